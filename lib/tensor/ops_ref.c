/* The definition of everything in ops.h, one value at a time. */
#include "tensor/dtype.h"
#include "tensor/mathf.h"
#include "tensor/ops_kernels.h"

#include <math.h>

#define LANES 16

static double tree_of_halves(double lane[LANES])
{
    for (int half = LANES / 2; half > 0; half /= 2)
        for (int i = 0; i < half; i++)
            lane[i] += lane[i + half];
    return lane[0];
}

static float norm_forward(float *y, const float *x, const float *w, size_t D, float eps)
{
    double lane[LANES] = {0};
    float r;

    for (size_t i = 0; i < D; i++)
        lane[i % LANES] = fma(x[i], x[i], lane[i % LANES]);
    r = (float)(1.0 / sqrt(tree_of_halves(lane) / (double)D + (double)eps));
    for (size_t i = 0; i < D; i++)
        y[i] = w ? (x[i] * r) * w[i] : x[i] * r;
    return r;
}

static void norm_backward(float *dx, const float *dy, const float *x, float r, const float *w,
                          size_t D)
{
    double lane[LANES] = {0};
    float c;

    for (size_t i = 0; i < D; i++)
        lane[i % LANES] = fma(w ? dy[i] * w[i] : dy[i], x[i], lane[i % LANES]);
    c = (float)((double)r * (double)r * tree_of_halves(lane) / (double)D);
    for (size_t i = 0; i < D; i++)
        dx[i] = fmaf(r, fmaf(-x[i], c, w ? dy[i] * w[i] : dy[i]), dx[i]);
}

static void rope(float *x, size_t H, size_t DH, const float *cos, const float *sin, size_t n_rot,
                 enum cart_rope_order order, bool inverse)
{
    for (size_t h = 0; h < H; h++)
        for (size_t j = 0; j < n_rot / 2; j++) {
            float *a = x + h * DH + (order == CART_ROPE_HALF ? j : 2 * j);
            float *b = order == CART_ROPE_HALF ? a + n_rot / 2 : a + 1;
            float c = cos[j], s = inverse ? -sin[j] : sin[j], a0 = *a, b0 = *b;

            *a = fmaf(a0, c, -(b0 * s));
            *b = fmaf(a0, s, b0 * c);
        }
}

static void swiglu_forward(float *out, const float *gate, const float *up, size_t n)
{
    for (size_t i = 0; i < n; i++)
        out[i] = (gate[i] * cart_sigmoidf(gate[i])) * up[i];
}

static void swiglu_backward(float *dgate, float *dup, const float *dout, const float *gate,
                            const float *up, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        float g = gate[i], u = up[i], s = cart_sigmoidf(g);

        dgate[i] = (dout[i] * u) * (s * fmaf(g, 1.0f - s, 1.0f));
        dup[i] = dout[i] * (g * s);
    }
}

static void add(float *y, const float *x, size_t n)
{
    for (size_t i = 0; i < n; i++)
        y[i] += x[i];
}

static bool all_finite(const float *x, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (!isfinite(x[i]))
            return false;
    return true;
}

static void narrow(uint16_t *out, bool f16, const float *x, size_t n)
{
    for (size_t i = 0; i < n; i++)
        out[i] = f16 ? cart_f16_from_f32(x[i]) : cart_bf16_from_f32(x[i]);
}

static void adam_step(float *x, float *m, float *v, float *grad, float grad_scale, size_t n,
                      const struct cart_adam *a)
{
    for (size_t i = 0; i < n; i++) {
        float g = grad[i] * grad_scale;

        m[i] = fmaf(a->beta1, m[i], (1.0f - a->beta1) * g);
        v[i] = fmaf(a->beta2, v[i], ((1.0f - a->beta2) * g) * g);
        x[i] -= (a->lr * (m[i] / (float)a->c1)) / (sqrtf(v[i] / (float)a->c2) + a->eps);
        grad[i] = 0;
    }
}

const struct cart_ops_kernels cart_ops_kernels_ref = {
    norm_forward, norm_backward, rope,   swiglu_forward, swiglu_backward,
    add,          all_finite,    narrow, adam_step,
};
