/* Paired bootstrap: how sure a difference of means is. */
#ifndef CART_STUDY_BOOTSTRAP_H
#define CART_STUDY_BOOTSTRAP_H

#include "base/err.h"

#define CART_BOOTSTRAP_RESAMPLES ((size_t)2000)

struct cart_interval {
    double mean, low, high; /* low to high holds 95 % of the resamples */
};

/* Of sum(x) / sum(w) over n pairs, resampled together; n >= 1, w > 0. A function of (x, w, seed)
 * alone. */
int cart_bootstrap(struct cart_interval *out, const double *x, const double *w, size_t n,
                   uint64_t seed, struct cart_err *err) CART_MUST_USE;

#endif
