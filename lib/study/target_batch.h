/* The targets of several conversations side by side, as the output head wants them: for each
 * supervised token the row before it, and its retained entries with probabilities. Memory is kept
 * from batch to batch. */
#ifndef CART_STUDY_TARGET_BATCH_H
#define CART_STUDY_TARGET_BATCH_H

#include "model/head.h"
#include "study/conversation.h"

struct cart_target_batch {
    size_t R, E;     /* rows and entries so far */
    size_t *want;    /* [R] rows of each conversation, counted within it */
    size_t *offsets; /* [R + 1] */
    uint32_t *ids;   /* [E] */
    float *p;        /* [E] */
    size_t want_cap, offsets_cap, ids_cap, p_cap;
};

void cart_target_batch_reset(struct cart_target_batch *b);
void cart_target_batch_release(struct cart_target_batch *b);

/* Appends c's targets (it must have some). */
int cart_target_batch_add(struct cart_target_batch *b, const struct cart_conversation *c,
                          struct cart_err *err) CART_MUST_USE;

/* Tokens of c that are fed: the last supervised token is an answer, never an input. */
size_t cart_target_tokens(const struct cart_conversation *c);

/* Adds the sums of rows [n] to *out, in row order. */
void cart_target_sum(struct cart_distill_sums *out, const struct cart_distill_sums *rows, size_t n);

#endif
