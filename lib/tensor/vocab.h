/* What happens to rows of logits [V]: softmax statistics, log-probabilities, top-k, the sparse
 * distillation loss and its gradient. Max is exact; sums of exp(x - max) (cart_expf in f32) are
 * f64: 16 lanes by index mod 16, tree of halves. */
#ifndef CART_TENSOR_VOCAB_H
#define CART_TENSOR_VOCAB_H

#include "base/pool.h"

struct cart_logsum {
    float max;
    double sum; /* of exp(x - max) */
};

/* stats [M] of logits [M, V], rows ld apart. */
void cart_vocab_logsum(struct cart_logsum *stats, const float *logits, size_t ld, size_t M,
                       size_t V, struct cart_pool *pool);

/* log softmax of one value: (x - max) - log(sum), in f64. */
double cart_vocab_logprob(float x, const struct cart_logsum *s);

/* The k largest of each row, falling, ties to the lower id. ids, values [M, k]. NaN counts as
 * lowest. */
void cart_vocab_topk(uint32_t *ids, float *values, size_t k, const float *logits, size_t ld,
                     size_t M, size_t V, struct cart_pool *pool);
uint32_t cart_vocab_argmax(const float *row, size_t V); /* ties to the lower id */

/* In place: logits row becomes d(sum_e -p_e log q_e)/d logits = (sum_e p_e) softmax - p, unscaled.
 * Entries of row m are ids/p [offsets[m] .. offsets[m+1]), ids distinct within a row. */
void cart_vocab_distill_backward(float *logits, size_t ld, size_t M, size_t V,
                                 const struct cart_logsum *stats, const size_t *offsets,
                                 const uint32_t *ids, const float *p, struct cart_pool *pool);

#endif
