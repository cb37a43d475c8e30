/* Building grammars; finding out which of their nodes can be gone through to the end. */
#include "engine/automaton_impl.h"

#include "base/buf.h"

#include <stdlib.h>
#include <string.h>

int cart_index_grow(const struct cart_constraint *c, struct cart_index *x, cart_index_hash *hash,
                    struct cart_err *err)
{
    if (2 * (x->n + 1) <= x->cap)
        return 0;
    size_t cap = x->cap > 0 ? 2 * x->cap : 256;
    uint32_t *slots = calloc(cap, sizeof *slots);
    if (slots == NULL)
        return cart_err_memory(err, "an automaton", cap * sizeof *slots);
    for (size_t i = 0; i < x->cap; i++) {
        if (x->slots[i] == 0)
            continue;
        size_t at = hash(c, x->slots[i] - 1) & (cap - 1);
        while (slots[at] != 0)
            at = (at + 1) & (cap - 1);
        slots[at] = x->slots[i];
    }
    free(x->slots);
    x->slots = slots;
    x->cap = cap;
    return 0;
}

/* ---- nodes ---- */

static uint32_t add_node(struct cart_constraint *c, struct cart_node node)
{
    if (c->failed || c->n_nodes >= CART_GRAMMAR_NODES_MAX) {
        c->too_large = c->too_large || !c->failed;
        c->failed = true;
        return 0;
    }
    if (cart_array_reserve(&c->nodes, &c->nodes_cap, c->n_nodes + 1, sizeof *c->nodes, NULL) < 0) {
        c->failed = true;
        return 0;
    }
    c->nodes[c->n_nodes] = node;
    return (uint32_t)c->n_nodes++;
}

static uint64_t set_hash(const struct cart_constraint *c, uint32_t i)
{
    uint64_t h = 1;

    for (size_t k = 0; k < CART_COUNTOF(c->sets[i].bits); k++)
        h = cart_index_mix(h, c->sets[i].bits[k]);
    return h;
}

static uint32_t add_set(struct cart_constraint *c, const struct cart_byte_set *set)
{
    struct cart_index *x = &c->set_index;

    if (c->failed || cart_index_grow(c, x, set_hash, NULL) < 0 ||
        cart_array_reserve(&c->sets, &c->sets_cap, c->n_sets + 1, sizeof *c->sets, NULL) < 0) {
        c->failed = true;
        return 0;
    }
    c->sets[c->n_sets] = *set;
    size_t at = set_hash(c, (uint32_t)c->n_sets) & (x->cap - 1);
    for (; x->slots[at] != 0; at = (at + 1) & (x->cap - 1)) {
        if (memcmp(&c->sets[x->slots[at] - 1], set, sizeof *set) == 0)
            return x->slots[at] - 1;
    }
    x->slots[at] = (uint32_t)c->n_sets + 1;
    x->n++;
    return (uint32_t)c->n_sets++;
}

void cart_byte_set_add(struct cart_byte_set *set, unsigned lo, unsigned hi)
{
    for (unsigned b = lo; b <= hi; b++)
        set->bits[b / 64] |= (uint64_t)1 << (b % 64);
}

bool cart_byte_set_has(const struct cart_byte_set *set, unsigned byte)
{
    return set->bits[byte / 64] >> (byte % 64) & 1;
}

uint32_t cart_grammar_set(struct cart_constraint *c, const struct cart_byte_set *set, uint32_t next)
{
    return add_node(c, (struct cart_node){CART_NODE_BYTES, add_set(c, set), next});
}

uint32_t cart_grammar_range(struct cart_constraint *c, unsigned char lo, unsigned char hi,
                            uint32_t next)
{
    struct cart_byte_set set = {{0}};

    cart_byte_set_add(&set, lo, hi);
    return cart_grammar_set(c, &set, next);
}

uint32_t cart_grammar_bytes(struct cart_constraint *c, const char *ranges, uint32_t next)
{
    struct cart_byte_set set = {{0}};

    for (const char *p = ranges; *p != '\0'; p += 2)
        cart_byte_set_add(&set, (unsigned char)p[0], (unsigned char)p[1]);
    return cart_grammar_set(c, &set, next);
}

uint32_t cart_grammar_text(struct cart_constraint *c, const char *text, size_t n, uint32_t next)
{
    while (n > 0) {
        unsigned char b = (unsigned char)text[--n];
        next = cart_grammar_range(c, b, b, next);
    }
    return next;
}

/* The longest special token that text begins with, or CART_TOKEN_NONE. */
static uint32_t special_at(const struct cart_lexicon *l, const char *text, size_t *n)
{
    uint32_t best = CART_TOKEN_NONE;

    *n = 0;
    for (size_t i = 0; i < l->n_special; i++) {
        struct cart_text s = cart_tokenizer_bytes(l->t, l->special[i]);
        if (s.n > *n && strncmp(text, s.data, s.n) == 0) {
            *n = s.n;
            best = l->special[i];
        }
    }
    return best;
}

uint32_t cart_grammar_marked(struct cart_constraint *c, const char *text, uint32_t next)
{
    size_t n;

    if (*text == '\0')
        return next;
    uint32_t id = special_at(c->l, text, &n);
    if (id == CART_TOKEN_NONE)
        return cart_grammar_text(c, text, 1, cart_grammar_marked(c, text + 1, next));
    next = cart_grammar_marked(c, text + n, next);
    return add_node(c, (struct cart_node){CART_NODE_TOKEN, id, next});
}

uint32_t cart_grammar_either(struct cart_constraint *c, uint32_t a, uint32_t b)
{
    return add_node(c, (struct cart_node){CART_NODE_SPLIT, a, b});
}

uint32_t cart_grammar_call(struct cart_constraint *c, uint32_t rule, uint32_t next)
{
    return add_node(c, (struct cart_node){CART_NODE_CALL, rule, next});
}

uint32_t cart_grammar_repeat(struct cart_constraint *c, uint32_t rule, uint32_t least,
                             uint32_t most, uint32_t next)
{
    if (most == 0)
        return next;
    if (c->failed || cart_array_reserve(&c->repetitions, &c->repetitions_cap, c->n_repetitions + 1,
                                        sizeof *c->repetitions, NULL) < 0) {
        c->failed = true;
        return 0;
    }
    c->repetitions[c->n_repetitions] = (struct cart_repetition){rule, least, most};
    return add_node(c, (struct cart_node){CART_NODE_REPEAT, (uint32_t)c->n_repetitions++, next});
}

uint32_t cart_grammar_loop(struct cart_constraint *c)
{
    return add_node(c, (struct cart_node){CART_NODE_SPLIT, 0, 0});
}

void cart_grammar_close(struct cart_constraint *c, uint32_t loop, uint32_t again, uint32_t next)
{
    if (!c->failed)
        c->nodes[loop] = (struct cart_node){CART_NODE_SPLIT, again, next};
}

uint32_t cart_grammar_rule(struct cart_constraint *c)
{
    if (c->failed ||
        cart_array_reserve(&c->rules, &c->rules_cap, c->n_rules + 1, sizeof *c->rules, NULL) < 0) {
        c->failed = true;
        return 0;
    }
    c->rules[c->n_rules] = 0;
    return (uint32_t)c->n_rules++;
}

void cart_grammar_define(struct cart_constraint *c, uint32_t rule, uint32_t start)
{
    if (!c->failed)
        c->rules[rule] = start;
}

bool cart_grammar_failed(const struct cart_constraint *c)
{
    return c->failed;
}

int cart_grammar_new(struct cart_constraint **out, const struct cart_lexicon *l,
                     struct cart_err *err)
{
    struct cart_constraint *c = calloc(1, sizeof *c);

    if (c == NULL)
        return cart_err_memory(err, "a grammar", sizeof *c);
    c->l = l;
    add_node(c, (struct cart_node){CART_NODE_RETURN, 0, 0});
    add_node(c, (struct cart_node){CART_NODE_NOWHERE, 0, 0});
    c->path = malloc((l->max_depth + 1) * sizeof *c->path);
    if (c->failed || c->path == NULL) {
        cart_constraint_free(c);
        return cart_err_memory(err, "a grammar", 0);
    }
    *out = c;
    return 0;
}

void cart_constraint_free(struct cart_constraint *c)
{
    if (c == NULL)
        return;
    cart_automaton_release(c);
    free(c->nodes);
    free(c->sets);
    free(c->set_index.slots);
    free(c->repetitions);
    free(c->rules);
    free(c->path);
    free(c);
}

/* ---- what has an end ---- */

/* Whether some text leads from the node to its rule's return, as far as it is known of others. */
static bool leads_out(const struct cart_constraint *c, const bool *out, const struct cart_node *x)
{
    switch (x->kind) {
    case CART_NODE_RETURN:
        return true;
    case CART_NODE_NOWHERE:
        return false;
    case CART_NODE_BYTES:
    case CART_NODE_TOKEN:
        return out[x->next];
    case CART_NODE_SPLIT:
        return out[x->a] || out[x->next];
    case CART_NODE_CALL:
        return out[x->next] && out[c->rules[x->a]];
    case CART_NODE_REPEAT:
        return out[x->next] &&
               (c->repetitions[x->a].least == 0 || out[c->rules[c->repetitions[x->a].rule]]);
    }
    return false;
}

/* A node from which no text leads out, since a schema asks for itself within itself, becomes
 * NOWHERE: an answer never goes where it could not end. Nodes come after those that they lead to
 * but for references, so that few rounds are needed: not more than references nest. */
static int drop_endless(struct cart_constraint *c, struct cart_err *err)
{
    bool *out = calloc(c->n_nodes, sizeof *out);
    bool more = true;

    if (out == NULL)
        return cart_err_memory(err, "a grammar", c->n_nodes);
    while (more) {
        more = false;
        for (size_t i = 0; i < c->n_nodes; i++) {
            if (!out[i] && leads_out(c, out, &c->nodes[i]))
                more = out[i] = true;
        }
    }
    for (size_t i = 0; i < c->n_nodes; i++) {
        if (!out[i])
            c->nodes[i].kind = CART_NODE_NOWHERE;
    }
    free(out);
    return 0;
}

int cart_grammar_finish(struct cart_constraint *c, uint32_t rule, struct cart_err *err)
{
    int r;

    if (c->failed)
        return c->too_large
                   ? cart_err_set(err, CART_EFORMAT,
                                  "expected a schema of at most %zu grammar nodes, found more",
                                  CART_GRAMMAR_NODES_MAX)
                   : cart_err_memory(err, "a grammar", 0);
    if ((r = drop_endless(c, err)) < 0)
        return r;
    if (c->nodes[c->rules[rule]].kind == CART_NODE_NOWHERE)
        return cart_err_set(err, CART_EFORMAT, "nothing can match the schema");
    c->whole = rule;
    return cart_automaton_begin(c, rule, err);
}

int cart_constraint_copy(struct cart_constraint **out, const struct cart_constraint *c,
                         struct cart_err *err)
{
    struct cart_constraint *k;
    int r = cart_grammar_new(&k, c->l, err);

    if (r < 0)
        return r;
    if ((r = cart_array_reserve(&k->nodes, &k->nodes_cap, c->n_nodes, sizeof *k->nodes, err)) < 0 ||
        (r = cart_array_reserve(&k->sets, &k->sets_cap, c->n_sets, sizeof *k->sets, err)) < 0 ||
        (r = cart_array_reserve(&k->repetitions, &k->repetitions_cap, c->n_repetitions,
                                sizeof *k->repetitions, err)) < 0 ||
        (r = cart_array_reserve(&k->rules, &k->rules_cap, c->n_rules, sizeof *k->rules, err)) < 0)
        goto out;
    k->n_nodes = c->n_nodes;
    k->n_sets = c->n_sets;
    k->n_repetitions = c->n_repetitions;
    k->n_rules = c->n_rules;
    memcpy(k->nodes, c->nodes, c->n_nodes * sizeof *k->nodes);
    if (c->n_sets > 0)
        memcpy(k->sets, c->sets, c->n_sets * sizeof *k->sets);
    if (c->n_repetitions > 0)
        memcpy(k->repetitions, c->repetitions, c->n_repetitions * sizeof *k->repetitions);
    memcpy(k->rules, c->rules, c->n_rules * sizeof *k->rules);
    k->whole = c->whole;
    r = cart_automaton_begin(k, k->whole, err);
out:
    if (r < 0)
        cart_constraint_free(k);
    else
        *out = k;
    return r;
}
