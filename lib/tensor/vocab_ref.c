/* The definition of everything in vocab.h, one value at a time. */
#include "tensor/mathf.h"
#include "tensor/vocab_kernels.h"

#include <math.h>

#define LANES 16

static struct cart_logsum logsum(const float *row, size_t V)
{
    struct cart_logsum s = {-INFINITY, 0};
    double lane[LANES] = {0};

    for (size_t i = 0; i < V; i++)
        if (row[i] > s.max)
            s.max = row[i];
    s.max += 0.0f;
    for (size_t i = 0; i < V; i++)
        lane[i % LANES] += cart_expf(row[i] - s.max);
    for (int half = LANES / 2; half > 0; half /= 2)
        for (int i = 0; i < half; i++)
            lane[i] += lane[i + half];
    s.sum = lane[0];
    return s;
}

/* Whether value a at id i ranks before value b at id j. */
static bool before(float a, uint32_t i, float b, uint32_t j)
{
    if (isnan(a) || isnan(b))
        return isnan(a) == isnan(b) ? i < j : isnan(b);
    return a > b || (a == b && i < j);
}

static void topk(uint32_t *ids, float *values, size_t k, const float *row, size_t V)
{
    for (size_t e = 0; e < k; e++) {
        bool found = false;

        for (uint32_t i = 0; i < V; i++) {
            if (e > 0 && !before(values[e - 1], ids[e - 1], row[i], i))
                continue;
            if (!found || before(row[i], i, values[e], ids[e])) {
                ids[e] = i;
                values[e] = row[i];
                found = true;
            }
        }
    }
}

static uint32_t argmax(const float *row, size_t V)
{
    uint32_t best = 0;

    for (uint32_t i = 1; i < V; i++)
        if (before(row[i], i, row[best], best))
            best = i;
    return best;
}

static void distill_backward(float *row, size_t V, const struct cart_logsum *s, const uint32_t *ids,
                             const float *p, size_t n)
{
    double mass = 0;
    float scale;

    for (size_t e = 0; e < n; e++)
        mass += p[e];
    scale = (float)(mass / s->sum);
    for (size_t i = 0; i < V; i++)
        row[i] = cart_expf(row[i] - s->max) * scale;
    for (size_t e = 0; e < n; e++)
        row[ids[e]] -= p[e];
}

const struct cart_vocab_kernels cart_vocab_kernels_ref = {logsum, topk, argmax, distill_backward};
