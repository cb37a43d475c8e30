/* The steps of exp in f32, once: for cart_expf and, lane by lane, for every kernel. Private to
 * lib/tensor. n = round(x / ln 2), by adding and taking away 1.5 * 2^23; r = x - n ln 2 in two
 * fmaf; exp(r) by a polynomial of degree 6 (minimax on +-ln(2)/2, relative error 3e-9); times 2^n.
 */
#ifndef CART_TENSOR_EXPF_IMPL_H
#define CART_TENSOR_EXPF_IMPL_H

#include <stdint.h>
#include <string.h>

#define EXPF_LOG2E 0x1.715476p+0f
#define EXPF_MAGIC 12582912.0f
#define EXPF_LN2_HI 0.693359375f /* few bits: n * EXPF_LN2_HI is exact */
#define EXPF_LN2_LO -2.12194440e-4f
#define EXPF_C2 0.499999934331f
#define EXPF_C3 0.166665204014f
#define EXPF_C4 0.0416683903521f
#define EXPF_C5 0.00836874497873f
#define EXPF_C6 0.00138145696476f
#define EXPF_LOW -87.3365f   /* below: +0, so no result is subnormal */
#define EXPF_HIGH 88.7228f   /* above: +inf */
#define EXPF_ONE 0x3f800000u /* the bits of 1.0f */

static inline float expf_from_bits(uint32_t u)
{
    float x;

    memcpy(&x, &u, sizeof x);
    return x;
}

static inline uint32_t expf_to_bits(float x)
{
    uint32_t u;

    memcpy(&u, &x, sizeof u);
    return u;
}

/* exp(x). The factor 2^n is applied as 2^(n - 1) and 2 for positive x, since 2^128 is no float. */
static inline float expf_steps(float x)
{
    float t = __builtin_fmaf(x, EXPF_LOG2E, EXPF_MAGIC);
    float n = t - EXPF_MAGIC;
    float r = __builtin_fmaf(n, -EXPF_LN2_HI, x);
    uint32_t bits = (expf_to_bits(t) << 23) + EXPF_ONE - (x > 0 ? 0x00800000u : 0);
    float p;

    r = __builtin_fmaf(n, -EXPF_LN2_LO, r);
    p = __builtin_fmaf(EXPF_C6, r, EXPF_C5);
    p = __builtin_fmaf(p, r, EXPF_C4);
    p = __builtin_fmaf(p, r, EXPF_C3);
    p = __builtin_fmaf(p, r, EXPF_C2);
    p = __builtin_fmaf(p, r, 1.0f);
    p = __builtin_fmaf(p, r, 1.0f);
    p = p * expf_from_bits(bits) * (x > 0 ? 2.0f : 1.0f);
    p = x > EXPF_HIGH ? __builtin_inff() : p;
    return x < EXPF_LOW ? 0.0f : p;
}

#endif
