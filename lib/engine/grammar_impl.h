/* A grammar over bytes and the automaton that runs it. Internal to the room: constraint.h is the
 * way in.
 *
 * The grammar is a network of nodes with calls: a node takes one byte of a set or one special token
 * and goes on, splits, calls a rule and goes on, or returns. A configuration is a node and the
 * stack of nodes to return to; a state is a set of configurations at nodes that take something, or
 * at the end. Stacks and states are kept once each, transitions are worked out when they are first
 * needed: after that a byte costs one look-up. */
#ifndef CART_ENGINE_GRAMMAR_IMPL_H
#define CART_ENGINE_GRAMMAR_IMPL_H

#include "engine/lexicon_impl.h"

#define CART_GRAMMAR_NODES_MAX ((size_t)1 << 18)
#define CART_GRAMMAR_STATES_MAX ((size_t)1 << 14)
#define CART_GRAMMAR_MASKS_MAX ((size_t)512) /* masks kept */

enum cart_node_kind {
    CART_NODE_RETURN,
    CART_NODE_BYTES,
    CART_NODE_TOKEN,
    CART_NODE_SPLIT,
    CART_NODE_CALL
};

struct cart_node {
    enum cart_node_kind kind;
    uint32_t a;    /* BYTES: set; TOKEN: id; SPLIT: one way; CALL: rule */
    uint32_t next; /* where it goes on; SPLIT: the other way */
};

/* Building: from the end to the front, each function makes what comes before next and returns its
 * first node. The first failure sticks (failed), everything after it does nothing. Node
 * CART_GRAMMAR_RETURN ends a rule. */
#define CART_GRAMMAR_RETURN 0u

uint32_t cart_grammar_bytes(struct cart_constraint *c, const char *ranges,
                            uint32_t next); /* "az09": a to z, 0 to 9 */
uint32_t cart_grammar_range(struct cart_constraint *c, unsigned char lo, unsigned char hi,
                            uint32_t next);
uint32_t cart_grammar_text(struct cart_constraint *c, const char *text, size_t n, uint32_t next);
uint32_t cart_grammar_marked(struct cart_constraint *c, const char *text,
                             uint32_t next); /* special tokens recognised */
uint32_t cart_grammar_either(struct cart_constraint *c, uint32_t a, uint32_t b);
uint32_t cart_grammar_call(struct cart_constraint *c, uint32_t rule, uint32_t next);
uint32_t cart_grammar_loop(struct cart_constraint *c); /* a split to be closed: goes nowhere yet */
void cart_grammar_close(struct cart_constraint *c, uint32_t loop, uint32_t again, uint32_t next);
uint32_t cart_grammar_rule(struct cart_constraint *c); /* a new rule, to be defined */
void cart_grammar_define(struct cart_constraint *c, uint32_t rule, uint32_t start);
bool cart_grammar_failed(const struct cart_constraint *c);

int cart_grammar_new(struct cart_constraint **out, const struct cart_lexicon *l,
                     struct cart_err *err) CART_MUST_USE;
/* rule is the whole; makes the first state. CART_EFORMAT: nothing can match, or it is too large. */
int cart_grammar_finish(struct cart_constraint *c, uint32_t rule,
                        struct cart_err *err) CART_MUST_USE;

#endif
