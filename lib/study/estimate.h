/* How long a stage will take: a short calibration on the machine at hand. Words for people, never
 * part of a result. */
#ifndef CART_STUDY_ESTIMATE_H
#define CART_STUDY_ESTIMATE_H

#include "engine/engine.h"

struct cart_rates {
    double prefill; /* tokens a second, one stream */
    double decode;  /* tokens a second over all streams together, logits included */
};

/* Runs one prompt of at most 256 tokens (fewer where the model's context is shorter) and some
 * decode steps of `streams` streams behind it. Takes about a second on the models of the demo. */
int cart_estimate_rates(struct cart_engine *e, size_t streams, struct cart_rates *out,
                        struct cart_err *err) CART_MUST_USE;

#endif
