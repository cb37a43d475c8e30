/* A grammar over bytes: what schemas are compiled to, and automaton.c runs. Internal to the room:
 * constraint.h is the way in.
 *
 * The grammar is a network of nodes with calls: a node takes one byte of a set or one special token
 * and goes on, splits, calls a rule once or a number of times and goes on, or returns. */
#ifndef CART_ENGINE_GRAMMAR_IMPL_H
#define CART_ENGINE_GRAMMAR_IMPL_H

#include "engine/lexicon_impl.h"

#define CART_GRAMMAR_NODES_MAX ((size_t)1 << 20)

/* Building: from the end to the front, each function makes what comes before next and returns its
 * first node. The first failure sticks (failed), everything after it does nothing. Node
 * CART_GRAMMAR_RETURN ends a rule, CART_GRAMMAR_NOWHERE can never be gone through. */
#define CART_GRAMMAR_RETURN 0u
#define CART_GRAMMAR_NOWHERE 1u

#define CART_GRAMMAR_ANY UINT32_MAX /* of a repetition: without a limit */

/* Bytes of which one may come. */
struct cart_byte_set {
    uint64_t bits[4];
};

void cart_byte_set_add(struct cart_byte_set *set, unsigned lo, unsigned hi); /* both included */
bool cart_byte_set_has(const struct cart_byte_set *set, unsigned byte);

uint32_t cart_grammar_set(struct cart_constraint *c, const struct cart_byte_set *set,
                          uint32_t next);
uint32_t cart_grammar_bytes(struct cart_constraint *c, const char *ranges,
                            uint32_t next); /* "az09": a to z, 0 to 9 */
uint32_t cart_grammar_range(struct cart_constraint *c, unsigned char lo, unsigned char hi,
                            uint32_t next);
uint32_t cart_grammar_text(struct cart_constraint *c, const char *text, size_t n, uint32_t next);
uint32_t cart_grammar_marked(struct cart_constraint *c, const char *text,
                             uint32_t next); /* special tokens recognised */
uint32_t cart_grammar_either(struct cart_constraint *c, uint32_t a, uint32_t b);
uint32_t cart_grammar_call(struct cart_constraint *c, uint32_t rule, uint32_t next);
/* The rule, which takes something, least to most times: one node, whatever the numbers are. */
uint32_t cart_grammar_repeat(struct cart_constraint *c, uint32_t rule, uint32_t least,
                             uint32_t most, uint32_t next);
uint32_t cart_grammar_loop(struct cart_constraint *c); /* a split to be closed: goes nowhere yet */
void cart_grammar_close(struct cart_constraint *c, uint32_t loop, uint32_t again, uint32_t next);
uint32_t cart_grammar_rule(struct cart_constraint *c); /* a new rule, to be defined */
void cart_grammar_define(struct cart_constraint *c, uint32_t rule, uint32_t start);
bool cart_grammar_failed(const struct cart_constraint *c);

int cart_grammar_new(struct cart_constraint **out, const struct cart_lexicon *l,
                     struct cart_err *err) CART_MUST_USE;
/* rule is the whole; makes the first state. CART_EFORMAT: nothing finite can match, or it is too
 * large. */
int cart_grammar_finish(struct cart_constraint *c, uint32_t rule,
                        struct cart_err *err) CART_MUST_USE;

#endif
