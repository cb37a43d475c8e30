/* Stacks and states: kept once each, brought to their common form, forgotten. */
#include "engine/automaton_impl.h"

#include "base/buf.h"

#include <stdlib.h>
#include <string.h>

static int too_large(struct cart_err *err, size_t most, const char *what)
{
    return cart_err_set(err, CART_EFORMAT, "expected a schema of at most %zu %s, found more", most,
                        what);
}

/* ---- stacks ---- */

static uint64_t frame_hash(const struct cart_constraint *c, uint32_t i)
{
    const struct cart_frame *f = &c->frames[i];

    return cart_index_mix(cart_index_mix(cart_index_mix(1, f->node), f->below),
                          (uint64_t)f->need << 32 | f->may);
}

/* What a token can tell of a number of times that are left. */
static uint32_t in_sight(const struct cart_constraint *c, uint32_t times)
{
    return times > c->l->max_depth ? CART_GRAMMAR_ANY : times;
}

/* Adds the frame where there is no equal one; its common form is not set yet. */
static int add_frame(struct cart_constraint *c, struct cart_frame f, uint32_t *out,
                     struct cart_err *err)
{
    struct cart_index *x = &c->frame_index;
    int r = cart_index_grow(c, x, frame_hash, err);

    if (r == 0)
        r = cart_array_reserve(&c->frames, &c->frames_cap, c->n_frames + 1, sizeof *c->frames, err);
    if (r < 0)
        return r;
    c->frames[c->n_frames] = f;
    size_t at = frame_hash(c, (uint32_t)c->n_frames) & (x->cap - 1);
    for (; x->slots[at] != 0; at = (at + 1) & (x->cap - 1)) {
        const struct cart_frame *old = &c->frames[x->slots[at] - 1];
        if (old->node == f.node && old->below == f.below && old->need == f.need &&
            old->may == f.may) {
            *out = x->slots[at];
            return 0;
        }
    }
    if (c->n_frames >= CART_AUTOMATON_FRAMES_MAX)
        return too_large(err, CART_AUTOMATON_FRAMES_MAX, "places to return to");
    x->slots[at] = *out = (uint32_t)++c->n_frames;
    x->n++;
    return 0;
}

int cart_automaton_push(struct cart_constraint *c, struct cart_frame f, uint32_t *out,
                        struct cart_err *err)
{
    struct cart_frame common = f;
    uint32_t top = 0;

    common.below = f.below > 0 ? c->frames[f.below - 1].common : 0;
    common.need = in_sight(c, f.need);
    common.may = in_sight(c, f.may);
    /* The common form comes first: a frame stands behind all that it names. */
    bool differs = common.below != f.below || common.need != f.need || common.may != f.may;
    int r = differs ? add_frame(c, common, &top, err) : 0;
    if (r == 0 && differs)
        c->frames[top - 1].common = top;
    if (r == 0)
        r = add_frame(c, f, out, err);
    if (r == 0)
        c->frames[*out - 1].common = differs ? top : *out;
    return r;
}

/* ---- states ---- */

static uint64_t state_hash(const struct cart_constraint *c, uint32_t i)
{
    const struct cart_state *s = &c->states[i];
    uint64_t h = s->n;

    for (uint32_t k = 0; k < s->n; k++) {
        const struct cart_config *x = &c->configs[s->first + k];
        h = cart_index_mix(h, (uint64_t)x->node << 32 | x->stack);
    }
    return h;
}

static int by_config(const void *a, const void *b)
{
    const struct cart_config *x = a;
    const struct cart_config *y = b;

    if (x->node != y->node)
        return x->node < y->node ? -1 : 1;
    return (x->stack > y->stack) - (x->stack < y->stack);
}

/* A place for one more state: a free one, or at the end. */
static int new_state(struct cart_constraint *c, uint32_t *id, struct cart_err *err)
{
    *id = c->free_state > 0 ? c->free_state - 1 : (uint32_t)c->n_states;
    if (c->free_state > 0)
        return 0;
    if (c->n_states >= CART_AUTOMATON_STATES_MAX)
        return too_large(err, CART_AUTOMATON_STATES_MAX, "states");
    return cart_array_reserve(&c->states, &c->states_cap, c->n_states + 1, sizeof *c->states, err);
}

int cart_automaton_intern(struct cart_constraint *c, size_t first, uint32_t *out,
                          struct cart_err *err)
{
    struct cart_index *x = &c->state_index;
    size_t n = c->n_configs - first;
    uint32_t id;
    int r = cart_index_grow(c, x, state_hash, err);

    *out = CART_CONSTRAINT_DEAD;
    if (r < 0 || n == 0)
        return r;
    if ((r = new_state(c, &id, err)) < 0)
        return r;
    uint32_t free_next = c->free_state > 0 ? c->states[id].first : 0;
    qsort(c->configs + first, n, sizeof *c->configs, by_config);
    c->states[id] =
        (struct cart_state){(uint32_t)first, (uint32_t)n, CART_CONSTRAINT_DEAD, 0, NULL, NULL};
    size_t at = state_hash(c, id) & (x->cap - 1);
    for (; x->slots[at] != 0; at = (at + 1) & (x->cap - 1)) {
        const struct cart_state *s = &c->states[x->slots[at] - 1];
        if (s->n == n &&
            memcmp(c->configs + s->first, c->configs + first, n * sizeof *c->configs) == 0) {
            c->states[id] = (struct cart_state){.first = free_next};
            c->n_configs = first;
            *out = x->slots[at] - 1;
            return 0;
        }
    }
    if (c->free_state > 0)
        c->free_state = free_next;
    else
        c->n_states++;
    x->slots[at] = id + 1;
    x->n++;
    *out = id;
    return 0;
}

int cart_automaton_common(struct cart_constraint *c, uint32_t state, uint32_t *out,
                          struct cart_err *err)
{
    const struct cart_state s = c->states[state];
    size_t first = c->n_configs;

    *out = s.common;
    if (s.common != CART_CONSTRAINT_DEAD)
        return 0;
    int r = cart_array_reserve(&c->configs, &c->configs_cap, first + s.n, sizeof *c->configs, err);
    if (r < 0)
        return r;
    for (uint32_t i = 0; i < s.n; i++) {
        struct cart_config x = c->configs[s.first + i];
        x.stack = x.stack > 0 ? c->frames[x.stack - 1].common : 0;
        c->configs[c->n_configs++] = x;
    }
    /* Alternatives may have become equal. */
    qsort(c->configs + first, s.n, sizeof *c->configs, by_config);
    size_t n = first;
    for (size_t i = first; i < c->n_configs; i++) {
        if (n == first || by_config(&c->configs[n - 1], &c->configs[i]) != 0)
            c->configs[n++] = c->configs[i];
    }
    c->n_configs = n;
    if ((r = cart_automaton_intern(c, first, out, err)) < 0) {
        c->n_configs = first;
        return r;
    }
    c->states[state].common = c->states[*out].common = *out;
    return 0;
}

/* ---- forgetting ---- */

bool cart_automaton_held(const struct cart_constraint *c, size_t state)
{
    return c->states[state].holds > 0 || state == c->start;
}

void cart_automaton_drop_tables(struct cart_constraint *c)
{
    for (size_t i = 0; i < c->n_states; i++) {
        free(c->states[i].to);
        c->states[i].to = NULL;
    }
    c->n_tables = 0;
}

void cart_automaton_drop_masks(struct cart_constraint *c)
{
    for (size_t i = 0; i < c->n_states; i++) {
        free(c->states[i].mask);
        c->states[i].mask = NULL;
    }
    c->n_masks = 0;
}

/* Frames that held states lead to move up; where[i]: what frame i is now, plus 1, or 0. They keep
 * their order, so that a state's configurations stay sorted. */
static void keep_frames(struct cart_constraint *c, uint32_t *where)
{
    size_t n = 0;

    for (size_t i = 0; i < c->n_states; i++) {
        const struct cart_state *s = &c->states[i];
        for (uint32_t k = 0; k < s->n && cart_automaton_held(c, i); k++) {
            uint32_t stack = c->configs[s->first + k].stack;
            if (stack > 0)
                where[stack - 1] = 1;
        }
    }
    for (size_t i = c->n_frames; i-- > 0;) {
        if (where[i] == 0)
            continue;
        where[c->frames[i].common - 1] = 1;
        if (c->frames[i].below > 0)
            where[c->frames[i].below - 1] = 1;
    }
    for (size_t i = 0; i < c->n_frames; i++) {
        if (where[i] == 0)
            continue;
        struct cart_frame f = c->frames[i];
        where[i] = (uint32_t)n + 1;
        f.below = f.below > 0 ? where[f.below - 1] : 0;
        f.common = where[f.common - 1];
        c->frames[n++] = f;
    }
    c->n_frames = n;
}

/* An index of nothing, with its memory. */
static void empty_index(struct cart_index *x)
{
    if (x->slots != NULL)
        memset(x->slots, 0, x->cap * sizeof *x->slots);
    x->n = 0;
}

static void put(const struct cart_constraint *c, struct cart_index *x, cart_index_hash *hash,
                uint32_t i)
{
    size_t at = hash(c, i) & (x->cap - 1);

    while (x->slots[at] != 0)
        at = (at + 1) & (x->cap - 1);
    x->slots[at] = i + 1;
    x->n++;
}

/* Held states move into configs, the others are free from now on. */
static void keep_states(struct cart_constraint *c, struct cart_config *configs,
                        const uint32_t *where)
{
    size_t n = 0;

    c->free_state = 0;
    empty_index(&c->state_index);
    for (size_t i = c->n_states; i-- > 0;) {
        struct cart_state *s = &c->states[i];
        if (!cart_automaton_held(c, i)) {
            c->n_masks -= s->mask != NULL;
            free(s->mask);
            *s = (struct cart_state){.first = c->free_state};
            c->free_state = (uint32_t)i + 1;
            continue;
        }
        for (uint32_t k = 0; k < s->n; k++) {
            struct cart_config x = c->configs[s->first + k];
            x.stack = x.stack > 0 ? where[x.stack - 1] : 0;
            configs[n + k] = x;
        }
        s->first = (uint32_t)n;
        s->common = CART_CONSTRAINT_DEAD;
        n += s->n;
    }
    memcpy(c->configs, configs, n * sizeof *configs);
    c->n_configs = n;
    for (uint32_t i = 0; i < c->n_states; i++) {
        if (c->states[i].n > 0)
            put(c, &c->state_index, state_hash, i);
    }
}

static size_t beyond(size_t least, size_t kept)
{
    return least > 2 * kept ? least : 2 * kept;
}

int cart_automaton_tidy(struct cart_constraint *c, struct cart_err *err)
{
    if (c->state_index.n <= c->forget_states && c->n_configs <= c->forget_configs &&
        c->n_frames <= c->forget_frames)
        return 0;
    uint32_t *where = calloc(c->n_frames + 1, sizeof *where);
    struct cart_config *configs = malloc((c->n_configs + 1) * sizeof *configs);
    if (where == NULL || configs == NULL) {
        free(where);
        free(configs);
        return cart_err_memory(err, "an automaton", c->n_configs * sizeof *configs);
    }
    cart_automaton_drop_tables(c);
    keep_frames(c, where);
    keep_states(c, configs, where);
    empty_index(&c->frame_index);
    for (uint32_t i = 0; i < c->n_frames; i++)
        put(c, &c->frame_index, frame_hash, i);
    c->forget_states = beyond(CART_AUTOMATON_FORGET_STATES, c->state_index.n);
    c->forget_configs = beyond(CART_AUTOMATON_FORGET_CONFIGS, c->n_configs);
    c->forget_frames = beyond(CART_AUTOMATON_FORGET_FRAMES, c->n_frames);
    free(where);
    free(configs);
    return 0;
}

void cart_automaton_release(struct cart_constraint *c)
{
    cart_automaton_drop_tables(c);
    cart_automaton_drop_masks(c);
    free(c->frames);
    free(c->frame_index.slots);
    free(c->configs);
    free(c->states);
    free(c->state_index.slots);
    free(c->met);
    free(c->met_slots);
}
