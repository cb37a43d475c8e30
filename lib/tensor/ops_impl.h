/* The kernels of ops.h over lanes; steps that neither sum nor need exp are plain loops, which the
 * compiler turns into vectors of the same values. The body of each ops variant, which defines
 * OPS_NAME first. */
#ifndef CART_TENSOR_OPS_IMPL_H
#define CART_TENSOR_OPS_IMPL_H

#include "tensor/lanes_impl.h"
#include "tensor/ops_kernels.h"

#include <string.h>

/* Lanes i .. of x [n], +0 beyond n. */
CART_ALWAYS_INLINE struct lanes part(const float *x, size_t i, size_t n)
{
    return i + LANES <= n ? lanes_load(x + i) : lanes_load_n(x + i, n - i);
}

CART_ALWAYS_INLINE void put(float *x, size_t i, size_t n, struct lanes a)
{
    if (i + LANES <= n)
        lanes_store(x + i, a);
    else
        lanes_store_n(x + i, a, n - i);
}

static float norm_forward(float *y, const float *x, const float *w, size_t D, float eps)
{
    struct dlanes sum = dlanes_zero();
    struct lanes scale;
    float r;

    for (size_t i = 0; i < D; i += LANES) {
        struct lanes a = part(x, i, D);

        sum = dlanes_fma(a, a, sum);
    }
    r = (float)(1.0 / sqrt(dlanes_sum(sum) / (double)D + (double)eps));
    scale = lanes_set(r);
    for (size_t i = 0; i < D; i += LANES) {
        struct lanes a = lanes_mul(part(x, i, D), scale);

        put(y, i, D, w ? lanes_mul(a, part(w, i, D)) : a);
    }
    return r;
}

static void norm_backward(float *dx, const float *dy, const float *x, float r, const float *w,
                          size_t D)
{
    struct dlanes sum = dlanes_zero();
    struct lanes scale = lanes_set(r), c;

    for (size_t i = 0; i < D; i += LANES) {
        struct lanes g = part(dy, i, D);

        sum = dlanes_fma(w ? lanes_mul(g, part(w, i, D)) : g, part(x, i, D), sum);
    }
    c = lanes_set((float)((double)r * (double)r * dlanes_sum(sum) / (double)D));
    for (size_t i = 0; i < D; i += LANES) {
        struct lanes g = part(dy, i, D);

        if (w)
            g = lanes_mul(g, part(w, i, D));
        g = lanes_fma(lanes_negate(part(x, i, D)), c, g);
        put(dx, i, D, lanes_fma(scale, g, part(dx, i, D)));
    }
}

static void rope_half(float *restrict a, float *restrict b, const float *restrict cos,
                      const float *restrict sin, size_t n, float sign)
{
    for (size_t j = 0; j < n; j++) {
        float s = sign * sin[j], a0 = a[j], b0 = b[j];

        a[j] = __builtin_fmaf(a0, cos[j], -(b0 * s));
        b[j] = __builtin_fmaf(a0, s, b0 * cos[j]);
    }
}

static void rope_interleaved(float *restrict x, const float *restrict cos,
                             const float *restrict sin, size_t n, float sign)
{
    for (size_t j = 0; j < n; j++) {
        float s = sign * sin[j], a0 = x[2 * j], b0 = x[2 * j + 1];

        x[2 * j] = __builtin_fmaf(a0, cos[j], -(b0 * s));
        x[2 * j + 1] = __builtin_fmaf(a0, s, b0 * cos[j]);
    }
}

static void rope(float *x, size_t H, size_t DH, const float *cos, const float *sin, size_t n_rot,
                 enum cart_rope_order order, bool inverse)
{
    float sign = inverse ? -1.0f : 1.0f;

    for (size_t h = 0; h < H; h++, x += DH)
        if (order == CART_ROPE_HALF)
            rope_half(x, x + n_rot / 2, cos, sin, n_rot / 2, sign);
        else
            rope_interleaved(x, cos, sin, n_rot / 2, sign);
}

static void swiglu_forward(float *out, const float *gate, const float *up, size_t n)
{
    for (size_t i = 0; i < n; i += LANES) {
        struct lanes g = part(gate, i, n);

        put(out, i, n, lanes_mul(lanes_mul(g, lanes_sigmoid(g)), part(up, i, n)));
    }
}

static void swiglu_backward(float *dgate, float *dup, const float *dout, const float *gate,
                            const float *up, size_t n)
{
    struct lanes one = lanes_set(1.0f);

    for (size_t i = 0; i < n; i += LANES) {
        struct lanes g = part(gate, i, n), u = part(up, i, n), d = part(dout, i, n),
                     s = lanes_sigmoid(g);
        struct lanes slope = lanes_mul(s, lanes_fma(g, lanes_sub(one, s), one));

        put(dgate, i, n, lanes_mul(lanes_mul(d, u), slope));
        put(dup, i, n, lanes_mul(d, lanes_mul(g, s)));
    }
}

static void add(float *restrict y, const float *restrict x, size_t n)
{
    for (size_t i = 0; i < n; i++)
        y[i] += x[i];
}

static bool all_finite(const float *x, size_t n)
{
    uint32_t bad = 0;

    for (size_t i = 0; i < n; i++)
        bad |= (uint32_t)((expf_to_bits(x[i]) & 0x7f800000u) == 0x7f800000u);
    return bad == 0;
}

CART_ALWAYS_INLINE void narrow_lanes(uint16_t *out, bool f16, struct lanes x)
{
    if (f16)
        lanes_store_f16(out, x);
    else
        lanes_store_bf16(out, x);
}

static void narrow(uint16_t *out, bool f16, const float *x, size_t n)
{
    uint16_t rest[LANES];
    size_t i = 0;

    for (; i + LANES <= n; i += LANES)
        narrow_lanes(out + i, f16, lanes_load(x + i));
    if (i < n) {
        narrow_lanes(rest, f16, lanes_load_n(x + i, n - i));
        memcpy(out + i, rest, (n - i) * sizeof *rest);
    }
}

static void adam_step(float *restrict x, float *restrict m, float *restrict v, float *restrict grad,
                      float grad_scale, size_t n, const struct cart_adam *a)
{
    float b1 = a->beta1, b2 = a->beta2, lr = a->lr, eps = a->eps, c1 = (float)a->c1,
          c2 = (float)a->c2;

    for (size_t i = 0; i < n; i++) {
        float g = grad[i] * grad_scale;
        float m1 = __builtin_fmaf(b1, m[i], (1.0f - b1) * g);
        float v1 = __builtin_fmaf(b2, v[i], ((1.0f - b2) * g) * g);

        m[i] = m1;
        v[i] = v1;
        x[i] -= (lr * (m1 / c1)) / (__builtin_sqrtf(v1 / c2) + eps);
        grad[i] = 0;
    }
}

const struct cart_ops_kernels OPS_NAME = {
    norm_forward, norm_backward, rope,   swiglu_forward, swiglu_backward,
    add,          all_finite,    narrow, adam_step,
};

#endif
