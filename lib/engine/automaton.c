/* Running a grammar: closures, transitions, masks. */
#include "engine/automaton_impl.h"

#include "base/buf.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#define UNKNOWN (UINT32_MAX - 1) /* a transition that nobody has asked for */
#define AT_END UINT32_MAX        /* the node of a configuration that has nothing left */
#define TABLE_STEPS ((uint64_t)64)

/* ---- the budget ---- */

static uint64_t budget(const struct cart_constraint *c)
{
    return CART_AUTOMATON_BUDGET + 4 * (uint64_t)c->l->n;
}

static int spend(struct cart_constraint *c, uint64_t steps, struct cart_err *err)
{
    if (steps > c->left) {
        c->left = 0;
        return cart_err_set(err, CART_EFORMAT,
                            "expected a schema of at most %llu steps for one token, found more",
                            (unsigned long long)budget(c));
    }
    c->left -= steps;
    return 0;
}

static void refill(struct cart_constraint *c)
{
    c->left += CART_AUTOMATON_REFILL + 2 * (uint64_t)c->l->n;
    if (c->left > budget(c))
        c->left = budget(c);
}

/* ---- closures ---- */

static uint64_t config_hash(struct cart_config x)
{
    return cart_index_mix(1, (uint64_t)x.node << 32 | x.stack);
}

/* Slots for at least twice as many as have been met, with those of this closure in them. */
static int grow_slots(struct cart_constraint *c, struct cart_err *err)
{
    size_t cap = c->met_slots_cap > 0 ? 2 * c->met_slots_cap : 256;
    uint64_t *slots = calloc(cap, sizeof *slots);

    if (slots == NULL)
        return cart_err_memory(err, "an automaton", cap * sizeof *slots);
    for (size_t i = 0; i < c->n_met; i++) {
        size_t at = config_hash(c->met[i]) & (cap - 1);
        while (slots[at] != 0)
            at = (at + 1) & (cap - 1);
        slots[at] = (uint64_t)c->closure << 32 | (i + 1);
    }
    free(c->met_slots);
    c->met_slots = slots;
    c->met_slots_cap = cap;
    return 0;
}

/* Slots of older closures count as empty. */
static void begin_closure(struct cart_constraint *c)
{
    c->n_met = 0;
    if (++c->closure == 0) {
        if (c->met_slots != NULL)
            memset(c->met_slots, 0, c->met_slots_cap * sizeof *c->met_slots);
        c->closure = 1;
    }
}

static int meet(struct cart_constraint *c, uint32_t node, uint32_t stack, struct cart_err *err)
{
    const struct cart_config x = {node, stack};
    int r = spend(c, 1, err);

    if (r == 0 && 2 * (c->n_met + 1) > c->met_slots_cap)
        r = grow_slots(c, err);
    if (r < 0)
        return r;
    size_t at = config_hash(x) & (c->met_slots_cap - 1);
    for (; c->met_slots[at] >> 32 == c->closure; at = (at + 1) & (c->met_slots_cap - 1)) {
        const struct cart_config *old = &c->met[(uint32_t)c->met_slots[at] - 1];
        if (old->node == node && old->stack == stack)
            return 0;
    }
    r = cart_array_reserve(&c->met, &c->met_cap, c->n_met + 1, sizeof *c->met, err);
    if (r < 0)
        return r;
    c->met[c->n_met++] = x;
    c->met_slots[at] = (uint64_t)c->closure << 32 | c->n_met;
    return 0;
}

/* Where a rule returns to; a repetition has all of its times left. */
static struct cart_frame frame_at(const struct cart_constraint *c, uint32_t node, uint32_t below)
{
    struct cart_frame f = {node, below, 0, 0, 0};

    if (c->nodes[node].kind == CART_NODE_REPEAT) {
        f.need = c->repetitions[c->nodes[node].a].least;
        f.may = c->repetitions[c->nodes[node].a].most;
    }
    return f;
}

/* A repetition with so many times left: once more, or on. */
static int repeat(struct cart_constraint *c, uint32_t node, uint32_t below, uint32_t need,
                  uint32_t may, struct cart_err *err)
{
    const struct cart_node *x = &c->nodes[node];
    uint32_t stack;
    int r = 0;

    if (may > 0) {
        uint32_t need_then = need > 0 && need != CART_GRAMMAR_ANY ? need - 1 : need;
        uint32_t may_then = may != CART_GRAMMAR_ANY ? may - 1 : may;
        r = cart_automaton_push(c, (struct cart_frame){node, below, need_then, may_then, 0}, &stack,
                                err);
        if (r == 0)
            r = meet(c, c->rules[c->repetitions[x->a].rule], stack, err);
    }
    return r == 0 && need == 0 ? meet(c, x->next, below, err) : r;
}

static int come_back(struct cart_constraint *c, uint32_t stack, struct cart_err *err)
{
    if (stack == 0)
        return meet(c, AT_END, 0, err);
    const struct cart_frame f = c->frames[stack - 1];
    if (c->nodes[f.node].kind == CART_NODE_REPEAT)
        return repeat(c, f.node, f.below, f.need, f.may, err);
    return meet(c, f.node, f.below, err);
}

/* Follows one configuration that takes nothing to those that it leads to. */
static int lead_on(struct cart_constraint *c, struct cart_config at, struct cart_err *err)
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
        if (node.next != CART_GRAMMAR_RETURN)
            r = cart_automaton_push(c, frame_at(c, node.next, stack), &stack, err);
        return r < 0 ? r : meet(c, c->rules[node.a], stack, err);
    case CART_NODE_REPEAT:
        return repeat(c, at.node, stack, c->repetitions[node.a].least, c->repetitions[node.a].most,
                      err);
    case CART_NODE_RETURN:
        return come_back(c, stack, err);
    case CART_NODE_NOWHERE:
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
        struct cart_config at = c->met[i];
        bool takes = at.node == AT_END || c->nodes[at.node].kind == CART_NODE_BYTES ||
                     c->nodes[at.node].kind == CART_NODE_TOKEN;
        if (!takes) {
            r = lead_on(c, at, err);
            continue;
        }
        if (c->n_configs >= CART_AUTOMATON_CONFIGS_MAX)
            r = cart_err_set(err, CART_EFORMAT,
                             "expected a schema of at most %zu places at once, found more",
                             CART_AUTOMATON_CONFIGS_MAX);
        else
            r = cart_array_reserve(&c->configs, &c->configs_cap, c->n_configs + 1,
                                   sizeof *c->configs, err);
        if (r == 0)
            c->configs[c->n_configs++] = at;
    }
    if (r == 0)
        r = cart_automaton_intern(c, first, out, err);
    if (r < 0)
        c->n_configs = first;
    return r;
}

int cart_automaton_begin(struct cart_constraint *c, uint32_t rule, struct cart_err *err)
{
    c->left = budget(c);
    c->forget_states = CART_AUTOMATON_FORGET_STATES;
    c->forget_configs = CART_AUTOMATON_FORGET_CONFIGS;
    c->forget_frames = CART_AUTOMATON_FORGET_FRAMES;
    begin_closure(c);
    int r = meet(c, c->rules[rule], 0, err);
    if (r == 0)
        r = close_over(c, &c->start, err);
    c->left = budget(c);
    return r;
}

/* ---- transitions ---- */

uint32_t cart_constraint_start(const struct cart_constraint *c)
{
    return c->start;
}

/* The state after one byte; same: the bytes after which it is that one, as far as is seen at once.
 */
static int step(struct cart_constraint *c, uint32_t state, unsigned byte,
                struct cart_byte_set *same, uint32_t *out, struct cart_err *err)
{
    const struct cart_state s = c->states[state];
    int r = spend(c, s.n, err);

    begin_closure(c);
    memset(same, 0xff, sizeof *same);
    for (uint32_t i = 0; i < s.n && r == 0; i++) {
        const struct cart_config at = c->configs[s.first + i];
        if (at.node == AT_END || c->nodes[at.node].kind != CART_NODE_BYTES)
            continue;
        const struct cart_byte_set *set = &c->sets[c->nodes[at.node].a];
        bool goes = cart_byte_set_has(set, byte);
        for (size_t k = 0; k < CART_COUNTOF(set->bits); k++)
            same->bits[k] &= goes ? set->bits[k] : ~set->bits[k];
        if (goes)
            r = meet(c, c->nodes[at.node].next, at.stack, err);
    }
    return r < 0 ? r : close_over(c, out, err);
}

static int after_special(struct cart_constraint *c, uint32_t state, uint32_t id, uint32_t *out,
                         struct cart_err *err)
{
    const struct cart_state s = c->states[state];
    int r = spend(c, s.n, err);

    begin_closure(c);
    for (uint32_t i = 0; i < s.n && r == 0; i++) {
        const struct cart_config at = c->configs[s.first + i];
        if (at.node != AT_END && c->nodes[at.node].kind == CART_NODE_TOKEN &&
            c->nodes[at.node].a == id)
            r = meet(c, c->nodes[at.node].next, at.stack, err);
    }
    return r < 0 ? r : close_over(c, out, err);
}

static int make_table(struct cart_constraint *c, uint32_t state, struct cart_err *err)
{
    int r = spend(c, TABLE_STEPS, err);

    if (r < 0)
        return r;
    if (c->n_tables >= CART_AUTOMATON_TABLES_MAX)
        cart_automaton_drop_tables(c);
    uint32_t *to = malloc(256 * sizeof *to);
    if (to == NULL)
        return cart_err_memory(err, "an automaton", 256 * sizeof *to);
    for (size_t i = 0; i < 256; i++)
        to[i] = UNKNOWN;
    c->states[state].to = to;
    c->n_tables++;
    return 0;
}

static int after_byte(struct cart_constraint *c, uint32_t state, unsigned byte, uint32_t *out,
                      struct cart_err *err)
{
    struct cart_byte_set same;
    uint32_t next;
    int r;

    if (c->states[state].to == NULL && (r = make_table(c, state, err)) < 0)
        return r;
    if (c->states[state].to[byte] == UNKNOWN) {
        if ((r = step(c, state, byte, &same, &next, err)) < 0)
            return r;
        uint32_t *to = c->states[state].to; /* states may have moved */
        for (unsigned b = 0; b < 256; b++) {
            if (cart_byte_set_has(&same, b))
                to[b] = next;
        }
    }
    *out = c->states[state].to[byte];
    return 0;
}

/* A position within a counted part comes once: its transitions are not worth a table. */
static int after_text(struct cart_constraint *c, uint32_t state, const char *bytes, size_t n,
                      uint32_t *next, struct cart_err *err)
{
    struct cart_byte_set same;
    uint32_t common;
    int r = 0;

    for (size_t i = 0; i < n && state != CART_CONSTRAINT_DEAD && r == 0; i++) {
        unsigned byte = (unsigned char)bytes[i];
        r = cart_automaton_common(c, state, &common, err);
        if (r == 0)
            r = common == state ? after_byte(c, state, byte, &state, err)
                                : step(c, state, byte, &same, &state, err);
    }
    if (r == 0)
        *next = state;
    return r;
}

/* A stream goes from one state to another; CART_CONSTRAINT_DEAD: from nowhere, or to it. */
static void move(struct cart_constraint *c, uint32_t from, uint32_t to)
{
    if (to != CART_CONSTRAINT_DEAD)
        c->states[to].holds++;
    if (from != CART_CONSTRAINT_DEAD && c->states[from].holds > 0)
        c->states[from].holds--;
}

int cart_constraint_feed(struct cart_constraint *c, uint32_t state, const char *bytes, size_t n,
                         uint32_t *next, struct cart_err *err)
{
    uint32_t at = state;
    int r = 0;

    move(c, CART_CONSTRAINT_DEAD, at);
    for (size_t i = 0; i < n && at != CART_CONSTRAINT_DEAD && r == 0; i++) {
        uint32_t to = at;
        refill(c);
        r = cart_automaton_tidy(c, err);
        if (r == 0)
            r = after_text(c, at, bytes + i, 1, &to, err);
        move(c, at, to);
        at = to;
    }
    if (r == 0)
        *next = at;
    return r;
}

int cart_constraint_advance(struct cart_constraint *c, uint32_t state, uint32_t id, uint32_t *next,
                            struct cart_err *err)
{
    struct cart_text text = cart_tokenizer_bytes(c->l->t, id);
    bool special = cart_tokenizer_is_special(c->l->t, id);
    uint32_t to = CART_CONSTRAINT_DEAD;
    int r = cart_automaton_tidy(c, err);

    refill(c);
    if (r == 0 && state != CART_CONSTRAINT_DEAD && (special || text.n > 0))
        r = special ? after_special(c, state, id, &to, err)
                    : after_text(c, state, text.data, text.n, &to, err);
    if (r < 0)
        return r;
    if (to != CART_CONSTRAINT_DEAD)
        move(c, state, to);
    *next = to;
    return 0;
}

/* ---- masks ---- */

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
        int r = spend(c, 1, err);
        if (r == 0 && to == UNKNOWN)
            r = after_byte(c, from, l->byte[i], &to, err);
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

static bool at_end(const struct cart_constraint *c, const struct cart_state *s)
{
    /* Configurations are sorted, and the end has the largest node. */
    return c->configs[s->first + s->n - 1].node == AT_END;
}

int cart_constraint_mask(struct cart_constraint *c, uint32_t state, const uint64_t **mask,
                         bool *complete, struct cart_err *err)
{
    assert(state < c->n_states && cart_automaton_held(c, state));
    uint32_t common;
    int r = cart_automaton_tidy(c, err);

    if (r < 0 || (r = cart_automaton_common(c, state, &common, err)) < 0)
        return r;
    if (c->states[common].mask == NULL) {
        size_t bytes = (c->l->V + 63) / 64 * sizeof **mask;
        uint64_t *fresh = malloc(bytes);
        if (fresh == NULL)
            return cart_err_memory(err, "a mask", bytes);
        if ((r = fill_mask(c, common, fresh, err)) < 0) {
            free(fresh);
            return r;
        }
        if (c->n_masks >= CART_AUTOMATON_MASKS_MAX)
            cart_automaton_drop_masks(c);
        c->states[common].mask = fresh;
        c->n_masks++;
    }
    *mask = c->states[common].mask;
    *complete = at_end(c, &c->states[state]);
    return 0;
}

bool cart_constraint_finished(const struct cart_constraint *c, uint32_t state)
{
    return state != CART_CONSTRAINT_DEAD && c->states[state].n == 1 && at_end(c, &c->states[state]);
}
