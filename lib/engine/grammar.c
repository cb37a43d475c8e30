#include "engine/grammar_impl.h"

#include "base/buf.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#define UNKNOWN (UINT32_MAX - 1) /* a transition that nobody has asked for */
#define CLOSURE_MAX ((size_t)4096)
#define AT_END UINT32_MAX /* the node of a configuration that has nothing left */

struct byte_set {
    uint64_t bits[4];
};

struct frame {
    uint32_t node, below; /* below: a frame, plus 1; 0: none */
};

struct config {
    uint32_t node, stack; /* stack: a frame, plus 1; 0: empty */
};

struct state {
    uint32_t first, n; /* its configurations */
    uint32_t *to;      /* [256] or NULL */
    uint64_t *mask;    /* or NULL */
};

/* Open addressing over the indices of an array, plus 1. */
struct index {
    uint32_t *slots;
    size_t n, cap;
};

struct cart_constraint {
    const struct cart_lexicon *l;
    struct cart_node *nodes;
    size_t n_nodes, nodes_cap;
    struct byte_set *sets;
    size_t n_sets, sets_cap;
    uint32_t *rules; /* first node of each */
    size_t n_rules, rules_cap;
    bool failed, too_large;
    bool *ends; /* [n_nodes] whether a way leads from there to the end of its rule */

    struct frame *frames;
    size_t n_frames, frames_cap;
    struct index frame_index;
    struct config *configs; /* of all states, one after the other */
    size_t n_configs, configs_cap;
    struct state *states;
    size_t n_states, states_cap, n_masks;
    struct index state_index;
    struct config *met; /* [CLOSURE_MAX] of one closure, nodes that only lead on included */
    size_t n_met;
    uint32_t *path;  /* [max_depth + 1] states along the trie */
    uint64_t *spare; /* mask of a state that keeps none */
    uint32_t start;
};

/* ---- building ---- */

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

static uint32_t add_set(struct cart_constraint *c, const struct byte_set *set)
{
    for (size_t i = 0; i < c->n_sets; i++) {
        if (memcmp(&c->sets[i], set, sizeof *set) == 0)
            return (uint32_t)i;
    }
    if (cart_array_reserve(&c->sets, &c->sets_cap, c->n_sets + 1, sizeof *c->sets, NULL) < 0) {
        c->failed = true;
        return 0;
    }
    c->sets[c->n_sets] = *set;
    return (uint32_t)c->n_sets++;
}

static void set_range(struct byte_set *set, unsigned lo, unsigned hi)
{
    for (unsigned b = lo; b <= hi; b++)
        set->bits[b / 64] |= (uint64_t)1 << (b % 64);
}

static bool set_has(const struct byte_set *set, unsigned b)
{
    return set->bits[b / 64] >> (b % 64) & 1;
}

uint32_t cart_grammar_range(struct cart_constraint *c, unsigned char lo, unsigned char hi,
                            uint32_t next)
{
    struct byte_set set = {{0}};

    set_range(&set, lo, hi);
    return add_node(c, (struct cart_node){CART_NODE_BYTES, add_set(c, &set), next});
}

uint32_t cart_grammar_bytes(struct cart_constraint *c, const char *ranges, uint32_t next)
{
    struct byte_set set = {{0}};

    for (const char *p = ranges; *p != '\0'; p += 2)
        set_range(&set, (unsigned char)p[0], (unsigned char)p[1]);
    return add_node(c, (struct cart_node){CART_NODE_BYTES, add_set(c, &set), next});
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
    c->met = malloc(CLOSURE_MAX * sizeof *c->met);
    c->path = malloc((l->max_depth + 1) * sizeof *c->path);
    c->spare = malloc((l->V + 63) / 64 * sizeof *c->spare);
    if (c->failed || c->met == NULL || c->path == NULL || c->spare == NULL) {
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
    for (size_t i = 0; i < c->n_states; i++) {
        free(c->states[i].to);
        free(c->states[i].mask);
    }
    free(c->nodes);
    free(c->sets);
    free(c->rules);
    free(c->ends);
    free(c->frames);
    free(c->frame_index.slots);
    free(c->configs);
    free(c->states);
    free(c->state_index.slots);
    free(c->met);
    free(c->path);
    free(c->spare);
    free(c);
}

/* ---- keeping stacks and states once ---- */

static uint64_t mix(uint64_t h, uint64_t x)
{
    h = (h ^ x) * 0x9e3779b97f4a7c15u;
    return h ^ h >> 29;
}

static uint64_t frame_hash(const struct cart_constraint *c, uint32_t i)
{
    return mix(mix(1, c->frames[i].node), c->frames[i].below);
}

static uint64_t state_hash(const struct cart_constraint *c, uint32_t i)
{
    const struct state *s = &c->states[i];
    uint64_t h = s->n;

    for (uint32_t k = 0; k < s->n; k++)
        h = mix(mix(h, c->configs[s->first + k].node), c->configs[s->first + k].stack);
    return h;
}

typedef uint64_t hash_fn(const struct cart_constraint *c, uint32_t i);

/* Makes room for one more. */
static int index_grow(struct cart_constraint *c, struct index *x, hash_fn *hash,
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

/* The stack with node on top: a frame, plus 1; < 0: no memory. */
static int push(struct cart_constraint *c, uint32_t node, uint32_t below, uint32_t *out,
                struct cart_err *err)
{
    struct index *x = &c->frame_index;
    int r = index_grow(c, x, frame_hash, err);

    if (r < 0 || (r = cart_array_reserve(&c->frames, &c->frames_cap, c->n_frames + 1,
                                         sizeof *c->frames, err)) < 0)
        return r;
    c->frames[c->n_frames] = (struct frame){node, below};
    size_t at = frame_hash(c, (uint32_t)c->n_frames) & (x->cap - 1);
    for (; x->slots[at] != 0; at = (at + 1) & (x->cap - 1)) {
        const struct frame *f = &c->frames[x->slots[at] - 1];
        if (f->node == node && f->below == below) {
            *out = x->slots[at];
            return 0;
        }
    }
    x->slots[at] = *out = (uint32_t)++c->n_frames;
    x->n++;
    return 0;
}

static int by_config(const void *a, const void *b)
{
    const struct config *x = a;
    const struct config *y = b;

    if (x->node != y->node)
        return x->node < y->node ? -1 : 1;
    return (x->stack > y->stack) - (x->stack < y->stack);
}

/* The state of the configurations [first, n_configs): an older equal one, or a new one. None: dead.
 */
static int intern(struct cart_constraint *c, size_t first, uint32_t *out, struct cart_err *err)
{
    struct index *x = &c->state_index;
    size_t n = c->n_configs - first;
    int r = index_grow(c, x, state_hash, err);

    *out = CART_CONSTRAINT_DEAD;
    if (r < 0 || n == 0)
        return r;
    if (c->n_states >= CART_GRAMMAR_STATES_MAX)
        return cart_err_set(err, CART_ESYS, "the constraint needs more than %zu states",
                            CART_GRAMMAR_STATES_MAX);
    if ((r = cart_array_reserve(&c->states, &c->states_cap, c->n_states + 1, sizeof *c->states,
                                err)) < 0)
        return r;
    qsort(c->configs + first, n, sizeof *c->configs, by_config);
    c->states[c->n_states] = (struct state){(uint32_t)first, (uint32_t)n, NULL, NULL};
    size_t at = state_hash(c, (uint32_t)c->n_states) & (x->cap - 1);
    for (; x->slots[at] != 0; at = (at + 1) & (x->cap - 1)) {
        const struct state *s = &c->states[x->slots[at] - 1];
        if (s->n == n &&
            memcmp(c->configs + s->first, c->configs + first, n * sizeof *c->configs) == 0) {
            c->n_configs = first;
            *out = x->slots[at] - 1;
            return 0;
        }
    }
    *out = (uint32_t)c->n_states++;
    x->slots[at] = *out + 1;
    x->n++;
    return 0;
}

/* ---- closures ---- */

static int meet(struct cart_constraint *c, uint32_t node, uint32_t stack, struct cart_err *err)
{
    if (node != AT_END && !c->ends[node])
        return 0;
    for (size_t i = 0; i < c->n_met; i++) {
        if (c->met[i].node == node && c->met[i].stack == stack)
            return 0;
    }
    if (c->n_met == CLOSURE_MAX)
        return cart_err_set(err, CART_ESYS,
                            "the constraint has more than %zu alternatives in one place",
                            CLOSURE_MAX);
    c->met[c->n_met++] = (struct config){node, stack};
    return 0;
}

/* Follows one configuration that takes nothing to those that it leads to. */
static int lead_on(struct cart_constraint *c, struct config at, struct cart_err *err)
{
    const struct cart_node node = c->nodes[at.node];
    uint32_t stack = at.stack;
    int r = 0;

    switch (node.kind) {
    case CART_NODE_SPLIT:
        r = meet(c, node.a, stack, err);
        return r < 0 ? r : meet(c, node.next, stack, err);
    case CART_NODE_CALL:
        /* A call before a return needs no frame: lists and nested calls keep the stack flat. */
        if (node.next != CART_GRAMMAR_RETURN && (r = push(c, node.next, stack, &stack, err)) < 0)
            return r;
        return meet(c, c->rules[node.a], stack, err);
    case CART_NODE_RETURN:
        if (stack == 0)
            return meet(c, AT_END, 0, err);
        return meet(c, c->frames[stack - 1].node, c->frames[stack - 1].below, err);
    case CART_NODE_BYTES:
    case CART_NODE_TOKEN:
        break;
    }
    return 0;
}

/* The state of everything that the met configurations lead to. */
static int close_over(struct cart_constraint *c, uint32_t *out, struct cart_err *err)
{
    size_t first = c->n_configs;
    int r = 0;

    for (size_t i = 0; i < c->n_met && r == 0; i++) {
        struct config at = c->met[i];
        bool takes = at.node == AT_END || c->nodes[at.node].kind == CART_NODE_BYTES ||
                     c->nodes[at.node].kind == CART_NODE_TOKEN;
        if (!takes) {
            r = lead_on(c, at, err);
            continue;
        }
        r = cart_array_reserve(&c->configs, &c->configs_cap, c->n_configs + 1, sizeof *c->configs,
                               err);
        if (r == 0)
            c->configs[c->n_configs++] = at;
    }
    if (r == 0)
        r = intern(c, first, out, err);
    if (r < 0)
        c->n_configs = first;
    return r;
}

/* ---- ways without end ---- */

/* Who waits for a node to end: edge 2i is node i's next, edge 2i + 1 its other one. */
struct waiting {
    uint32_t *first; /* [n_nodes] edge + 1, 0: none */
    uint32_t *after; /* [2 n_nodes] the next edge of the same list */
    uint32_t *reached;
    unsigned char *missing; /* [n_nodes] what must end before it does */
    size_t n_reached;
};

static void wait_for(struct waiting *w, uint32_t node, uint32_t edge)
{
    w->after[edge] = w->first[node];
    w->first[node] = edge + 1;
}

static void spread(struct cart_constraint *c, struct waiting *w)
{
    for (uint32_t i = 0; i < c->n_nodes; i++) {
        const struct cart_node *node = &c->nodes[i];
        if (node->kind == CART_NODE_RETURN) {
            c->ends[i] = true;
            w->reached[w->n_reached++] = i;
            continue;
        }
        wait_for(w, node->next, 2 * i);
        if (node->kind == CART_NODE_SPLIT)
            wait_for(w, node->a, 2 * i + 1);
        else if (node->kind == CART_NODE_CALL)
            wait_for(w, c->rules[node->a], 2 * i + 1);
        w->missing[i] = node->kind == CART_NODE_CALL ? 2 : 1;
    }
    while (w->n_reached > 0) {
        uint32_t edge = w->first[w->reached[--w->n_reached]];
        for (; edge != 0; edge = w->after[edge - 1]) {
            uint32_t i = (edge - 1) / 2;
            if (c->ends[i] || --w->missing[i] > 0)
                continue;
            c->ends[i] = true;
            w->reached[w->n_reached++] = i;
        }
    }
}

/* A schema may ask for a value that holds one like itself, and so on: an answer that went there
 * would never be complete. meet does not go where nothing ends. */
static int find_ends(struct cart_constraint *c, struct cart_err *err)
{
    size_t n = c->n_nodes;
    struct waiting w = {.first = calloc(n, sizeof *w.first),
                        .after = calloc(2 * n, sizeof *w.after),
                        .reached = calloc(n, sizeof *w.reached),
                        .missing = calloc(n, sizeof *w.missing)};
    c->ends = calloc(n, sizeof *c->ends);
    bool ok = w.first != NULL && w.after != NULL && w.reached != NULL && w.missing != NULL &&
              c->ends != NULL;
    if (ok)
        spread(c, &w);
    free(w.first);
    free(w.after);
    free(w.reached);
    free(w.missing);
    return ok ? 0 : cart_err_memory(err, "a grammar", n * sizeof *c->nodes);
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
    c->n_met = 0;
    if ((r = find_ends(c, err)) < 0 || (r = meet(c, c->rules[rule], 0, err)) < 0 ||
        (r = close_over(c, &c->start, err)) < 0)
        return r;
    if (c->start == CART_CONSTRAINT_DEAD)
        return cart_err_set(err, CART_EFORMAT, "nothing can match the schema");
    return 0;
}

/* ---- running ---- */

uint32_t cart_constraint_start(const struct cart_constraint *c)
{
    return c->start;
}

/* The state after one byte (id < 0) or one special token. */
static int step(struct cart_constraint *c, uint32_t state, unsigned byte, int64_t id, uint32_t *out,
                struct cart_err *err)
{
    const struct state s = c->states[state];
    int r = 0;

    c->n_met = 0;
    for (uint32_t i = 0; i < s.n && r == 0; i++) {
        const struct config at = c->configs[s.first + i];
        if (at.node == AT_END)
            continue;
        const struct cart_node *node = &c->nodes[at.node];
        bool goes = id < 0 ? node->kind == CART_NODE_BYTES && set_has(&c->sets[node->a], byte)
                           : node->kind == CART_NODE_TOKEN && node->a == (uint32_t)id;
        if (goes)
            r = meet(c, node->next, at.stack, err);
    }
    return r < 0 ? r : close_over(c, out, err);
}

static int after_byte(struct cart_constraint *c, uint32_t state, unsigned byte, uint32_t *out,
                      struct cart_err *err)
{
    struct state *s = &c->states[state];
    int r;

    if (s->to == NULL) {
        s->to = malloc(256 * sizeof *s->to);
        if (s->to == NULL)
            return cart_err_memory(err, "an automaton", 256 * sizeof *s->to);
        for (size_t i = 0; i < 256; i++)
            s->to[i] = UNKNOWN;
    }
    if (s->to[byte] == UNKNOWN) {
        uint32_t next;
        if ((r = step(c, state, byte, -1, &next, err)) < 0)
            return r;
        c->states[state].to[byte] = next; /* states may have moved */
    }
    *out = c->states[state].to[byte];
    return 0;
}

int cart_constraint_feed(struct cart_constraint *c, uint32_t state, const char *bytes, size_t n,
                         uint32_t *next, struct cart_err *err)
{
    int r = 0;

    for (size_t i = 0; i < n && state != CART_CONSTRAINT_DEAD && r == 0; i++)
        r = after_byte(c, state, (unsigned char)bytes[i], &state, err);
    if (r == 0)
        *next = state;
    return r;
}

int cart_constraint_advance(struct cart_constraint *c, uint32_t state, uint32_t id, uint32_t *next,
                            struct cart_err *err)
{
    struct cart_text text = cart_tokenizer_bytes(c->l->t, id);

    if (state == CART_CONSTRAINT_DEAD) {
        *next = state;
        return 0;
    }
    if (cart_tokenizer_is_special(c->l->t, id))
        return step(c, state, 0, id, next, err);
    if (text.n == 0) {
        *next = CART_CONSTRAINT_DEAD;
        return 0;
    }
    return cart_constraint_feed(c, state, text.data, text.n, next, err);
}

static int fill_mask(struct cart_constraint *c, uint32_t state, uint64_t *mask,
                     struct cart_err *err)
{
    const struct cart_lexicon *l = c->l;

    memset(mask, 0, (l->V + 63) / 64 * sizeof *mask);
    for (uint32_t i = 0; i < c->states[state].n; i++) {
        uint32_t node = c->configs[c->states[state].first + i].node;
        if (node != AT_END && c->nodes[node].kind == CART_NODE_TOKEN)
            mask[c->nodes[node].a / 64] |= (uint64_t)1 << (c->nodes[node].a % 64);
    }
    c->path[0] = state;
    for (size_t i = 0; i < l->n;) {
        uint32_t from = c->path[l->depth[i] - 1];
        uint32_t to = c->states[from].to != NULL ? c->states[from].to[l->byte[i]] : UNKNOWN;
        int r = to == UNKNOWN ? after_byte(c, from, l->byte[i], &to, err) : 0;
        if (r < 0)
            return r;
        if (to == CART_CONSTRAINT_DEAD) {
            i = l->skip[i];
            continue;
        }
        c->path[l->depth[i]] = to;
        for (uint32_t k = l->first[i]; k < l->first[i + 1]; k++)
            mask[l->tokens[k] / 64] |= (uint64_t)1 << (l->tokens[k] % 64);
        i++;
    }
    return 0;
}

static bool at_end(const struct cart_constraint *c, const struct state *s)
{
    /* Configurations are sorted, and the end has the largest node. */
    return c->configs[s->first + s->n - 1].node == AT_END;
}

int cart_constraint_mask(struct cart_constraint *c, uint32_t state, const uint64_t **mask,
                         bool *complete, struct cart_err *err)
{
    assert(state < c->n_states);
    uint64_t *m = c->states[state].mask;
    if (m == NULL) {
        uint64_t *fresh = NULL;
        if (c->n_masks < CART_GRAMMAR_MASKS_MAX)
            fresh = malloc((c->l->V + 63) / 64 * sizeof *fresh);
        m = fresh != NULL ? fresh : c->spare;
        int r = fill_mask(c, state, m, err);
        if (r < 0) {
            free(fresh);
            return r;
        }
        c->states[state].mask = fresh;
        c->n_masks += fresh != NULL;
    }
    *mask = m;
    *complete = at_end(c, &c->states[state]);
    return 0;
}

bool cart_constraint_finished(const struct cart_constraint *c, uint32_t state)
{
    return state != CART_CONSTRAINT_DEAD && c->states[state].n == 1 && at_end(c, &c->states[state]);
}
