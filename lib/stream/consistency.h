/* What the records of one stream must be to each other, beyond each being well-formed: documents
 * first and numbered from 0, conversations in rising n with the held-out ones first, spans inside
 * their documents, targets that fit their ids. The rules are those of cart-stream(5). Feed every
 * record in order. */
#ifndef CART_STREAM_CONSISTENCY_H
#define CART_STREAM_CONSISTENCY_H

#include "stream/kinds.h"

struct cart_consistency;

/* head: the stream's, checked; borrowed for the call. */
int cart_consistency_new(struct cart_consistency **out, const struct cart_kind *kind,
                         const json_t *head, struct cart_err *err) CART_MUST_USE;
/* CART_EFORMAT naming the first rule broken. what: the stream, for messages. */
int cart_consistency_add(struct cart_consistency *c, const struct cart_payload *p, const char *what,
                         struct cart_err *err) CART_MUST_USE;
/* At END: CART_EFORMAT where a stream that needs documents has none. */
int cart_consistency_end(const struct cart_consistency *c, const char *what,
                         struct cart_err *err) CART_MUST_USE;

/* The order of a stream's conversations, for every reader of them: n rises and is one of those that
 * HEAD plans, held-out ones come first and are those that HEAD holds out. Begun with the checked
 * HEAD (what it does not state binds nothing). Takes the next one in, or says what is wrong with
 * it. */
struct cart_conversation_order {
    uint64_t first, end; /* of n: HEAD's shard, or all of its conversations */
    uint64_t held;       /* HEAD's held_out */
    bool states_held;
    uint64_t last; /* n of the last one, where there is any */
    bool any, training;
};
void cart_conversation_order_init(struct cart_conversation_order *o, const json_t *head);
const char *cart_conversation_order_fault(struct cart_conversation_order *o, uint64_t n,
                                          bool held_out);

/* The rule of one row of targets, for every reader of them: at most CART_TARGET_ROW_MAX distinct
 * ids, falling log-probabilities of at most 0, whose probabilities are at most CART_TARGET_MASS_MAX
 * together, and their entropy to CART_TARGET_ENTROPY_APART. NULL, or what is wrong.
 * ids [n] int32, logprobs [n] float, of any alignment. */
#define CART_TARGET_ROW_MAX ((size_t)4096)
#define CART_TARGET_MASS_MAX 1.001 /* room for logits and log-probabilities that were rounded */
#define CART_TARGET_ENTROPY_APART 0.001
const char *cart_target_row_fault(const void *ids, const void *logprobs, size_t n, float entropy);
void cart_consistency_free(struct cart_consistency *c);

#endif
