/* What a request may do to a row of logits before the sampler: a bias per token, and penalties on
 * tokens seen before. One pass in one order, f32, so a result is a function of the row, the
 * settings and the ids before it alone:
 *
 *   repeat penalty  each distinct token of prompt and answer: x > 0 ? x / repeat : x * repeat
 *   penalties       each distinct token of the answer: x - (frequency * count + presence), the
 *                   amount rounded once
 *   bias            x + bias, entry after entry
 *
 * A token whose logit became NaN or infinite that way counts as the lowest (or largest) finite
 * value. */
#ifndef CART_ENGINE_ADJUST_H
#define CART_ENGINE_ADJUST_H

#include "base/err.h"

struct cart_bias {
    uint32_t id;
    float bias; /* finite */
};

struct cart_adjust {
    double repeat;                /* > 0; 1: none */
    double presence, frequency;   /* finite; 0: none */
    const struct cart_bias *bias; /* [n_bias] */
    size_t n_bias;
};

#define CART_ADJUST_NONE                                                                           \
    {                                                                                              \
        1.0, 0.0, 0.0, NULL, 0                                                                     \
    }

/* How often each token has occurred: in the prompt (once or not at all) and in the answer. */
struct cart_tally;
int cart_tally_new(struct cart_tally **out, size_t V, struct cart_err *err) CART_MUST_USE;
void cart_tally_free(struct cart_tally *t);
void cart_tally_prompt(struct cart_tally *t, const uint32_t *ids, size_t n);
void cart_tally_push(struct cart_tally *t, uint32_t id);

/* Whether the row is changed at all; where not, no tally is needed. needs_tally: penalties are set.
 */
bool cart_adjust_any(const struct cart_adjust *a);
bool cart_adjust_needs_tally(const struct cart_adjust *a);

/* In place. t may be NULL unless cart_adjust_needs_tally. */
void cart_adjust_logits(const struct cart_adjust *a, const struct cart_tally *t, float *logits,
                        size_t V);

#endif
