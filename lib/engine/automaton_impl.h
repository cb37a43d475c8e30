/* The inside of a constraint: the grammar, and the automaton that runs it. Internal to the room.
 *
 * A configuration is a node and the stack of frames to return to; a state is a set of
 * configurations at nodes that take something, or at the end. Stacks and states are kept once each,
 * transitions are worked out when they are first needed: after that a byte costs one look-up.
 *
 * A frame within a repetition counts: how many more times the rule must come, and how many it may.
 * No token is longer than the trie is deep, so more than that depth is as good as without a limit:
 * each stack has such a common form, and masks are those of a state's common form. An array or a
 * string of thousands therefore has as many masks as one of any length, until shortly before its
 * end.
 *
 * States that a stream holds stay; the others are forgotten when there are many of them, and made
 * again where they are needed. So what is bounded is not the length of an answer but the work for
 * one token: a budget of steps, refilled by every token. */
#ifndef CART_ENGINE_AUTOMATON_IMPL_H
#define CART_ENGINE_AUTOMATON_IMPL_H

#include "engine/grammar_impl.h"

/* Steps: a configuration looked at, a node of the trie gone through. The budget is what one
 * token may take: a few hundredths of a second, even where every step misses the caches, and
 * four walks through the whole trie. Each token gives back so much, and two walks: others wait
 * for the work. */
#define CART_AUTOMATON_BUDGET ((uint64_t)1 << 20)
#define CART_AUTOMATON_REFILL ((uint64_t)1 << 17)

#define CART_AUTOMATON_FORGET_STATES ((size_t)1 << 14) /* beyond, those not held are forgotten */
#define CART_AUTOMATON_FORGET_CONFIGS ((size_t)1 << 19)
#define CART_AUTOMATON_FORGET_FRAMES ((size_t)1 << 18)
#define CART_AUTOMATON_STATES_MAX ((size_t)1 << 20) /* together: 150 MiB */
#define CART_AUTOMATON_CONFIGS_MAX ((size_t)1 << 22)
#define CART_AUTOMATON_FRAMES_MAX ((size_t)1 << 20)
#define CART_AUTOMATON_TABLES_MAX ((size_t)1 << 14) /* transitions kept: 16 MiB */
#define CART_AUTOMATON_MASKS_MAX ((size_t)512)      /* masks kept */

enum cart_node_kind {
    CART_NODE_RETURN,
    CART_NODE_NOWHERE,
    CART_NODE_BYTES,
    CART_NODE_TOKEN,
    CART_NODE_SPLIT,
    CART_NODE_CALL,
    CART_NODE_REPEAT
};

struct cart_node {
    enum cart_node_kind kind;
    uint32_t a;    /* BYTES: set; TOKEN: id; SPLIT: one way; CALL: rule; REPEAT: repetition */
    uint32_t next; /* where it goes on; SPLIT: the other way */
};

struct cart_repetition {
    uint32_t rule, least, most;
};

/* Open addressing over the indices of an array, plus 1. */
struct cart_index {
    uint32_t *slots;
    size_t n, cap; /* cap: a power of two, at least twice n */
};

typedef uint64_t cart_index_hash(const struct cart_constraint *c, uint32_t i);

/* Makes room for one more. */
int cart_index_grow(const struct cart_constraint *c, struct cart_index *x, cart_index_hash *hash,
                    struct cart_err *err) CART_MUST_USE;

static inline uint64_t cart_index_mix(uint64_t h, uint64_t x)
{
    h = (h ^ x) * 0x9e3779b97f4a7c15u;
    return h ^ h >> 29;
}

struct cart_frame {
    uint32_t node, below; /* below: a frame, plus 1; 0: none */
    uint32_t need, may;   /* at a repetition: how many times more; CART_GRAMMAR_ANY: without end */
    uint32_t common;      /* the stack's common form: a frame, plus 1 */
};

struct cart_config {
    uint32_t node, stack; /* stack: a frame, plus 1; 0: empty */
};

struct cart_state {
    uint32_t first, n; /* its configurations; n == 0: free, first is the next free one */
    uint32_t common;   /* the state of its common form, or CART_CONSTRAINT_DEAD: not known yet */
    uint32_t holds;    /* streams that are there */
    uint32_t *to;      /* [256] or NULL */
    uint64_t *mask;    /* or NULL */
};

struct cart_constraint {
    const struct cart_lexicon *l;
    struct cart_node *nodes;
    size_t n_nodes, nodes_cap;
    struct cart_byte_set *sets;
    size_t n_sets, sets_cap;
    struct cart_index set_index;
    struct cart_repetition *repetitions;
    size_t n_repetitions, repetitions_cap;
    uint32_t *rules; /* first node of each */
    size_t n_rules, rules_cap;
    bool failed, too_large;
    uint32_t whole; /* the rule that an answer is */

    struct cart_frame *frames;
    size_t n_frames, frames_cap;
    struct cart_index frame_index;
    struct cart_config *configs; /* of all states, one after the other */
    size_t n_configs, configs_cap;
    struct cart_state *states;
    size_t n_states, states_cap; /* free ones included */
    uint32_t free_state;         /* the first, plus 1; 0: none */
    struct cart_index state_index;
    size_t n_tables, n_masks;
    size_t forget_states, forget_configs, forget_frames; /* when to forget next */

    struct cart_config *met; /* of one closure, nodes that only lead on included */
    size_t n_met, met_cap;
    uint64_t *met_slots; /* [met_slots_cap] which closure, and which of met plus 1 */
    size_t met_slots_cap;
    uint32_t closure; /* its number */
    uint32_t *path;   /* [max_depth + 1] states along the trie */
    uint64_t left;    /* of the budget, in steps */
    uint32_t start;
};

/* Stacks and states (automaton_store.c). The stack with that frame on top: a frame, plus 1. */
int cart_automaton_push(struct cart_constraint *c, struct cart_frame f, uint32_t *out,
                        struct cart_err *err) CART_MUST_USE;
/* The state of the configurations [first, n_configs), which go where there was one already or are
 * none (*out CART_CONSTRAINT_DEAD). */
int cart_automaton_intern(struct cart_constraint *c, size_t first, uint32_t *out,
                          struct cart_err *err) CART_MUST_USE;
/* The state whose masks are this one's. */
int cart_automaton_common(struct cart_constraint *c, uint32_t state, uint32_t *out,
                          struct cart_err *err) CART_MUST_USE;
/* Whether some stream is there, or may begin there. */
bool cart_automaton_held(const struct cart_constraint *c, size_t state);
/* Forgets what is not held where there is much of it. */
int cart_automaton_tidy(struct cart_constraint *c, struct cart_err *err) CART_MUST_USE;
void cart_automaton_drop_tables(struct cart_constraint *c);
void cart_automaton_drop_masks(struct cart_constraint *c);
void cart_automaton_release(struct cart_constraint *c);

/* The first state, of a grammar whose nodes that lead nowhere are marked. */
int cart_automaton_begin(struct cart_constraint *c, uint32_t rule,
                         struct cart_err *err) CART_MUST_USE;

#endif
