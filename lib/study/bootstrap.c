#include "study/bootstrap.h"

#include "base/rng.h"

#include <stdlib.h>

static int ascending(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

int cart_bootstrap(struct cart_interval *out, const double *x, const double *w, size_t n,
                   uint64_t seed, struct cart_err *err)
{
    double *means = malloc(CART_BOOTSTRAP_RESAMPLES * sizeof *means);
    if (!means)
        return cart_err_memory(err, "resamples", CART_BOOTSTRAP_RESAMPLES * sizeof *means);
    double sx = 0.0, sw = 0.0;
    for (size_t i = 0; i < n; i++) {
        sx += x[i];
        sw += w[i];
    }
    out->mean = sx / sw;
    for (size_t b = 0; b < CART_BOOTSTRAP_RESAMPLES; b++) {
        sx = sw = 0.0;
        for (size_t i = 0; i < n; i++) {
            size_t k = cart_rng_below(seed, b, CART_RNG_BOOTSTRAP, (uint32_t)i, n);
            sx += x[k];
            sw += w[k];
        }
        means[b] = sx / sw;
    }
    qsort(means, CART_BOOTSTRAP_RESAMPLES, sizeof *means, ascending);
    out->low = means[CART_BOOTSTRAP_RESAMPLES / 40];
    out->high = means[CART_BOOTSTRAP_RESAMPLES - 1 - CART_BOOTSTRAP_RESAMPLES / 40];
    free(means);
    return 0;
}
