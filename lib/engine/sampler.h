/* From a row of logits to a token. Temperature 0 is greedy: the largest logit, ties to the lower
 * id. Otherwise the row is divided by the temperature and cut: the top_k most likely, of those the
 * smallest set (most likely first, ties to the lower id) whose share reaches top_p, of those the
 * tokens at least min_p times as likely as the first; then one uniform number, a function of (seed,
 * n, use, index), walks the rest in ascending id. All sums are f64 in that order, so a token is a
 * function of the row and the key alone. */
#ifndef CART_ENGINE_SAMPLER_H
#define CART_ENGINE_SAMPLER_H

#include "base/err.h"
#include "base/rng.h"

struct cart_sampling {
    double temperature; /* 0: greedy */
    size_t top_k;       /* 0: all */
    double top_p;       /* in (0, 1]; 1: all */
    double min_p;       /* in [0, 1); 0: all */
    uint64_t seed, n;   /* n: the conversation or request */
    enum cart_rng_use use;
};

#define CART_SAMPLING_GREEDY                                                                       \
    {                                                                                              \
        0.0, 0, 1.0, 0.0, 0, 0, CART_RNG_ASK                                                       \
    }

/* Scratch of one sampler at work: [V] candidates. */
struct cart_sampler_scratch;
int cart_sampler_scratch_new(struct cart_sampler_scratch **out, size_t V,
                             struct cart_err *err) CART_MUST_USE;
size_t cart_sampler_bytes(size_t V); /* of one scratch */
void cart_sampler_scratch_free(struct cart_sampler_scratch *s);

/* logits [V], finite. index: how many tokens of this stream were sampled before. scratch: unused
 * (may be NULL) when greedy. */
uint32_t cart_sampler_pick(const struct cart_sampling *s, const float *logits, size_t V,
                           uint32_t index, struct cart_sampler_scratch *scratch);

#endif
