/* Everything between the matrix products: norms, rotation, gating, and elementwise steps. Each has
 * its formula and a definition in ops_ref.c that fixes every order; backwards add, unless said.
 * Sums are in f64: 16 lanes by index mod 16 in ascending order (one fma each), then a tree of
 * halves. All else is f32, evaluated as written, fmaf where stated. Rows are independent; the pool
 * splits rows. */
#ifndef CART_TENSOR_OPS_H
#define CART_TENSOR_OPS_H

#include "base/pool.h"

/* y[m][i] = x[m][i] * r[m] * w[i], evaluated as (x * r) * w; r = (float)(1 / sqrt(sum x^2 / D +
 * eps)), in f64. w NULL: no weight. x [M, D] rows ldx apart, y rows ldy apart; y may be x. r [M] is
 * kept for the backward; may be NULL. */
void cart_rmsnorm_forward(float *y, size_t ldy, float *r, const float *x, size_t ldx,
                          const float *w, size_t M, size_t D, float eps, struct cart_pool *pool);
/* dx[m][i] += r * (g_i - x_i * c), as fmaf(r, fmaf(-x_i, c, g_i), dx), with g = dy * w and
 * c = (float)(r^2 * (sum_j g_j x_j) / D), in f64. */
void cart_rmsnorm_backward(float *dx, size_t lddx, const float *dy, size_t lddy, const float *x,
                           size_t ldx, const float *r, const float *w, size_t M, size_t D,
                           struct cart_pool *pool);

/* The same over each of H heads of DH values with one weight of DH values. x [M, H, DH], rows ldx
 * apart, in place allowed. r [M, H]. */
void cart_headnorm_forward(float *y, size_t ldy, float *r, const float *x, size_t ldx,
                           const float *w, size_t M, size_t H, size_t DH, float eps,
                           struct cart_pool *pool);
void cart_headnorm_backward(float *dx, size_t lddx, const float *dy, size_t lddy, const float *x,
                            size_t ldx, const float *r, const float *w, size_t M, size_t H,
                            size_t DH, struct cart_pool *pool);

/* Rotation. The table holds cos and sin [n_pos, n_rot / 2] for positions 0 .. n_pos - 1: angle(pos,
 * j) = pos * scale * base^(-2 j / n_rot) / factor[j], all in f64, rounded to f32 last. factor may
 * be NULL. */
enum cart_rope_order {
    CART_ROPE_INTERLEAVED,
    CART_ROPE_HALF
}; /* pairs (2j, 2j+1), or (j, j + n_rot/2) */
struct cart_rope {
    enum cart_rope_order order;
    size_t n_rot;
    double base, scale;
    const float *factor; /* [n_rot / 2], borrowed */
};
void cart_rope_table(float *cos, float *sin, size_t pos0, size_t n,
                     const struct cart_rope *rope); /* [n, n_rot / 2] */

/* x [M, H, DH] in place, row m at position pos[m]; table rows start at position 0. (a, b) -> (a c -
 * b s, a s + b c), evaluated as fmaf(a, c, -(b * s)) and fmaf(a, s, b * c). inverse rotates back
 * (the backward of a rotation). */
void cart_rope_apply(float *x, size_t ldx, size_t M, size_t H, size_t DH, const uint32_t *pos,
                     const float *cos, const float *sin, const struct cart_rope *rope, bool inverse,
                     struct cart_pool *pool);

/* out = silu(gate) * up = (gate * sigmoid(gate)) * up, n values; out may be gate or up. */
void cart_swiglu_forward(float *out, const float *gate, const float *up, size_t n,
                         struct cart_pool *pool);
/* With s = sigmoid(gate): dgate = (dout * up) * (s * fmaf(gate, 1 - s, 1)), dup = dout * (gate *
 * s). dgate, dup are overwritten; may be gate and up themselves. */
void cart_swiglu_backward(float *dgate, float *dup, const float *dout, const float *gate,
                          const float *up, size_t n, struct cart_pool *pool);

void cart_add(float *y, const float *x, size_t n, struct cart_pool *pool); /* y += x */
bool cart_all_finite(const float *x, size_t n);                            /* no NaN, no infinity */

/* out [n] of type dtype = x [n], each value rounded to the nearest, ties to even, as
 * cart_f16_from_f32 and cart_bf16_from_f32 do it; F32: a copy. */
void cart_narrow(void *out, int dtype, const float *x, size_t n);

/* Adam without weight decay (Kingma and Ba 2015). g = grad * grad_scale;
 * m = fmaf(b1, m, (1 - b1) * g); v = fmaf(b2, v, ((1 - b2) * g) * g);
 * x -= (lr * (m / c1)) / (sqrt(v / c2) + eps). The caller gives c1 = 1 - b1^step and
 * c2 = 1 - b2^step, with the b1 and b2 of the struct; they are rounded to f32. One pass; grad is
 * zeroed. */
struct cart_adam {
    float lr, beta1, beta2, eps;
    double c1, c2;
};
void cart_adam_step(float *x, float *m, float *v, float *grad, float grad_scale, size_t n,
                    const struct cart_adam *a, struct cart_pool *pool);

#endif
