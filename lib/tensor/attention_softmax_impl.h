/* The softmax of a block: maxima, exponentials and their sums, for a group of rows.
 * Included once by each attention variant through attention_impl.h; a fragment of code, not an
 * interface. */
#ifndef CART_TENSOR_ATTENTION_SOFTMAX_IMPL_H
#define CART_TENSOR_ATTENTION_SOFTMAX_IMPL_H

#include "tensor/attention_blocks_impl.h"

/* Scaled scores, with -inf for keys that a row does not see, and the new maximum of each row. */
static void group_maxima(float *s, size_t n, const size_t *lo, const size_t *hi, float scale,
                         const float *m, float *m_new)
{
    struct lanes factor = lanes_set(scale);

    for (size_t i = 0; i < n; i++, s += BLOCK) {
        struct lanes top = lanes_set(-INFINITY);
        bool part = lo[i] > 0 || hi[i] < BLOCK;
        float highest;

#pragma GCC unroll 4
        for (size_t v = 0; v < BLOCK / LANES; v++) {
            struct lanes x = lanes_mul(lanes_load(s + LANES * v), factor);
            size_t at = LANES * v;

            if (part)
                x = lanes_keep(x, lo[i] > at ? lo[i] - at : 0, hi[i] > at ? hi[i] - at : 0,
                               -INFINITY);
            lanes_store(s + at, x);
            top = lanes_max(x, top);
        }
        highest = lanes_top(top);
        m_new[i] = (highest > m[i] ? highest : m[i]) + 0.0f;
    }
}

/* Scores become cells along p; sum[i] is the sum of what these hold, in the order of the
 * contract. */
static void group_exponentials(float *s, size_t n, const float *m_new, float *sum)
{
    for (size_t i = 0; i < n; i++, s += BLOCK) {
        struct lanes top = lanes_set(m_new[i]), total = lanes_set(0.0f), p[VALUES];

#pragma GCC unroll 4
        for (size_t v = 0; v < BLOCK / LANES; v += VALUES) {
            for (size_t h = 0; h < VALUES; h++)
                p[h] = lanes_exp_falling(lanes_sub(lanes_load(s + LANES * (v + h)), top));
            p[0] = cells_along(p[0], p[VALUES - 1]);
            lanes_store(s + LANES * v / VALUES, p[0]);
            for (int h = 0; h < VALUES; h++)
                total = lanes_add(total, cells_values(p[0], h));
        }
        sum[i] = lanes_sum(total);
    }
}

/* exp(a[i] - b[i]) of n <= GROUP values; the arrays are GROUP_PADDED long. */
#define GROUP_PADDED 32
static void exp_differences(float *out, const float *a, const float *b, size_t n)
{
    for (size_t i = 0; i < n; i += LANES)
        lanes_store(out + i, lanes_exp_falling(lanes_sub(lanes_load(a + i), lanes_load(b + i))));
}

static void row_scale(float *o, float a, size_t DHp)
{
    for (size_t c = 0; c < DHp; c += LANES)
        lanes_store(o + c, lanes_mul(lanes_load(o + c), lanes_set(a)));
}

#endif
