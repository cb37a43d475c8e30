/* The definitions of y = x . W^T and dx += dy . W; see matmul.h for the orders. */
#include "tensor/matmul.h"

#include "tensor/matmul_split_impl.h"

#include <math.h>
#include <string.h>

enum { LANES = CART_TILE_LANES };

static float factor_ref(enum cart_precision precision, float v)
{
    return precision == CART_PRECISION_BF16 ? cart_bf16_to_f32(cart_bf16_flushed(v)) : v;
}

/* What a row of W or x holds behind its K values. */
static float padded(const float *v, size_t k, size_t K)
{
    return k < K ? v[k] : 0.0f;
}

/* Steps of 16 * values; wide and x have up to 256 values, the rest is zero. The values of a cell go
 * from the last to the first. */
static void chains_ref(enum cart_precision precision, float lane[LANES], const float *x,
                       const float *wide, size_t k)
{
    size_t values = precision == CART_PRECISION_BF16 ? 2 : 1;

    for (size_t k0 = 0; k0 < k; k0 += LANES * values) {
        for (size_t i = 0; i < LANES; i++) {
            for (size_t v = values; v-- > 0;) {
                size_t at = k0 + i * values + v;

                lane[i] = fmaf(factor_ref(precision, padded(x, at, k)),
                               factor_ref(precision, padded(wide, at, k)), lane[i]);
            }
        }
    }
}

static float dot_ref(enum cart_precision precision, const float *x, const struct cart_matrix *w,
                     size_t n)
{
    float lane[LANES] = {0}, wide[256];

    for (size_t k0 = 0; k0 < w->K; k0 += 256) {
        size_t k = min_size(w->K - k0, 256);

        cart_widen_ref(w->dtype, cart_matrix_row(w, n), k0, k, wide);
        chains_ref(precision, lane, x + k0, wide, k);
    }
    for (size_t half = LANES / 2; half > 0; half /= 2)
        for (size_t i = 0; i < half; i++)
            lane[i] += lane[i + half];
    return lane[0];
}

void cart_matmul_forward_ref(enum cart_precision precision, float *y, size_t ldy, const float *x,
                             size_t ldx, size_t M, const struct cart_matrix *w, const float *bias,
                             bool add)
{
    size_t values = precision == CART_PRECISION_BF16 ? 2 : 1;
    unsigned mode = flush_begin(values);

    for (size_t m = 0; m < M; m++) {
        for (size_t n = 0; n < w->N; n++) {
            float sum = dot_ref(precision, x + m * ldx, w, n);

            if (bias)
                sum += bias[n];
            y[m * ldy + n] = add ? y[m * ldy + n] + sum : sum;
        }
    }
    flush_end(values, mode);
}

/* Row n of W, from value k0 on; zeros behind the last row. */
static void row_ref(const struct cart_matrix *w, size_t n, size_t k0, size_t k, float *wide)
{
    memset(wide, 0, k * sizeof *wide);
    if (n < w->N)
        cart_widen_ref(w->dtype, cart_matrix_row(w, n), k0, k, wide);
}

void cart_matmul_backward_ref(enum cart_precision precision, float *dx, size_t lddx,
                              const float *dy, size_t lddy, size_t M, const struct cart_matrix *w,
                              bool add)
{
    size_t values = precision == CART_PRECISION_BF16 ? 2 : 1;
    unsigned mode = flush_begin(values);
    float wide[256];

    for (size_t m = 0; m < M && !add; m++)
        memset(dx + m * lddx, 0, w->K * sizeof *dx);
    for (size_t n0 = 0; n0 < w->N; n0 += values) {
        for (size_t n = n0 + values; n-- > n0;) {
            for (size_t k0 = 0; k0 < w->K; k0 += 256) {
                size_t k = min_size(w->K - k0, 256);

                row_ref(w, n, k0, k, wide);
                for (size_t m = 0; m < M; m++) {
                    float g = factor_ref(precision, padded(dy + m * lddy, n, w->N));

                    for (size_t i = 0; i < k; i++)
                        dx[m * lddx + k0 + i] =
                            fmaf(g, factor_ref(precision, wide[i]), dx[m * lddx + k0 + i]);
                }
            }
        }
    }
    flush_end(values, mode);
}
