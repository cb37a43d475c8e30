/* The output head over rows of final hidden states, fused with what is wanted of the logits: rows
 * go through in chunks, so that V-wide rows never all exist. hidden [R, D] as cart_forward gives
 * it. */
#ifndef CART_MODEL_HEAD_H
#define CART_MODEL_HEAD_H

#include "model/model.h"
#include "tensor/vocab.h"

struct cart_head; /* the chunk's memory; one per thread of control */

/* A good chunk: each widens the head's weights again, and more rows of logits than these are not
 * found in a cache. */
#define CART_HEAD_ROWS ((size_t)64)

/* rows: logits rows held at a time, at least 1. */
int cart_head_new(struct cart_head **out, const struct cart_model *m, size_t rows,
                  struct cart_err *err) CART_MUST_USE;
void cart_head_free(struct cart_head *h);

/* logits [R, V], all of them. */
void cart_head_logits(const struct cart_model *m, const float *hidden, size_t R, float *logits,
                      struct cart_pool *pool);

/* The k most likely tokens of each row, falling, ties to the lower id: ids, logprobs [R, k]. */
void cart_head_topk(struct cart_head *h, const float *hidden, size_t R, size_t k, uint32_t *ids,
                    float *logprobs, struct cart_pool *pool);

/* log softmax(logits[r])[ids[r]], [R], f64. */
void cart_head_logprobs(struct cart_head *h, const float *hidden, size_t R, const uint32_t *ids,
                        double *out, struct cart_pool *pool);

/* The sparse distillation loss. Row r has entries [offsets[r], offsets[r + 1]) of target ids and
 * probabilities p. */
struct cart_distill_target {
    const size_t *offsets; /* [R + 1] */
    const uint32_t *ids;
    const float *p;
};
struct cart_distill_sums {      /* sums over the rows, f64, added to in row order */
    double ce;                  /* -sum p log q */
    double kl;                  /* sum p (log p - log q) */
    size_t entries, rows, top1; /* top1: rows whose most likely token is the target's first entry */
};
/* Adds each row's sums into sums[r] where per_row, else all into sums[0]. dhidden [R, D] +=
 * gradient of the unscaled ce; NULL: none. */
void cart_head_distill(struct cart_head *h, const float *hidden, size_t R,
                       const struct cart_distill_target *t, struct cart_distill_sums *sums,
                       bool per_row, float *dhidden, struct cart_pool *pool);

#endif
