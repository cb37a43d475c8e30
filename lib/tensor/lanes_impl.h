/* Sixteen f32 lanes (struct lanes) and sixteen f64 lanes (struct dlanes), the unit of every order
 * that the headers fix, in the registers of the variant that includes this file: one zmm, two ymm,
 * or an array that the compiler vectorises as it can. Kernels are written once over these and give
 * the same bits in each variant. Private to lib/tensor; all functions are steps of one lane,
 * independent of the others, unless said. */
#ifndef CART_TENSOR_LANES_IMPL_H
#define CART_TENSOR_LANES_IMPL_H

#include "base/attr.h"
#include "tensor/dtype.h"
#include "tensor/expf_impl.h"
#include "tensor/variant.h"

#include <math.h>

#define LANES 16

#if defined(__AVX512F__) && defined(__AVX512DQ__) && defined(__AVX512BW__) && defined(__AVX512VL__)
#include "tensor/lanes_avx512_impl.h"
#elif defined(__AVX2__) && defined(__FMA__) && defined(__F16C__)
#include "tensor/lanes_avx2_impl.h"
#else
#include "tensor/lanes_generic_impl.h"
#endif

/* exp(x) for x <= 0 or NaN; the bits of cart_expf. */
CART_ALWAYS_INLINE struct lanes lanes_exp_falling(struct lanes x)
{
    struct lanes t = lanes_fma(x, lanes_set(EXPF_LOG2E), lanes_set(EXPF_MAGIC));
    struct lanes n = lanes_sub(t, lanes_set(EXPF_MAGIC));
    struct lanes r = lanes_fma(n, lanes_set(-EXPF_LN2_HI), x);
    struct lanes p;

    r = lanes_fma(n, lanes_set(-EXPF_LN2_LO), r);
    p = lanes_fma(lanes_set(EXPF_C6), r, lanes_set(EXPF_C5));
    p = lanes_fma(p, r, lanes_set(EXPF_C4));
    p = lanes_fma(p, r, lanes_set(EXPF_C3));
    p = lanes_fma(p, r, lanes_set(EXPF_C2));
    p = lanes_fma(p, r, lanes_set(1.0f));
    p = lanes_fma(p, r, lanes_set(1.0f));
    return lanes_zero_below(x, EXPF_LOW, lanes_mul(p, lanes_power2(t, EXPF_ONE)));
}

/* exp(x); the bits of cart_expf. */
CART_ALWAYS_INLINE struct lanes lanes_exp(struct lanes x)
{
    struct lanes t = lanes_fma(x, lanes_set(EXPF_LOG2E), lanes_set(EXPF_MAGIC));
    struct lanes n = lanes_sub(t, lanes_set(EXPF_MAGIC));
    struct lanes r = lanes_fma(n, lanes_set(-EXPF_LN2_HI), x);
    struct lanes scale =
        lanes_if_above(x, 0.0f, lanes_power2(t, EXPF_ONE - 0x00800000u), lanes_power2(t, EXPF_ONE));
    struct lanes p;

    r = lanes_fma(n, lanes_set(-EXPF_LN2_LO), r);
    p = lanes_fma(lanes_set(EXPF_C6), r, lanes_set(EXPF_C5));
    p = lanes_fma(p, r, lanes_set(EXPF_C4));
    p = lanes_fma(p, r, lanes_set(EXPF_C3));
    p = lanes_fma(p, r, lanes_set(EXPF_C2));
    p = lanes_fma(p, r, lanes_set(1.0f));
    p = lanes_fma(p, r, lanes_set(1.0f));
    p = lanes_mul(lanes_mul(p, scale), lanes_if_above(x, 0.0f, lanes_set(2.0f), lanes_set(1.0f)));
    p = lanes_if_above(x, EXPF_HIGH, lanes_set(INFINITY), p);
    return lanes_zero_below(x, EXPF_LOW, p);
}

/* 1 / (1 + exp(-x)); the bits of cart_sigmoidf. */
CART_ALWAYS_INLINE struct lanes lanes_sigmoid(struct lanes x)
{
    struct lanes one = lanes_set(1.0f);

    return lanes_div(one, lanes_add(one, lanes_exp(lanes_negate(x))));
}

#endif
