/* Lanes in AVX-512 registers. Included by lanes_impl.h, which see.
 * One fragment of code, not an interface: each operation of the lanes, once. */
#ifndef CART_TENSOR_LANES_AVX512_IMPL_H
#define CART_TENSOR_LANES_AVX512_IMPL_H

#include "tensor/lanes_avx512_memory_impl.h"

CART_ALWAYS_INLINE struct lanes lanes_add(struct lanes a, struct lanes b)
{
    return LANES_OF(_mm512_add_ps(a.v, b.v));
}

CART_ALWAYS_INLINE struct lanes lanes_sub(struct lanes a, struct lanes b)
{
    return LANES_OF(_mm512_sub_ps(a.v, b.v));
}

CART_ALWAYS_INLINE struct lanes lanes_mul(struct lanes a, struct lanes b)
{
    return LANES_OF(_mm512_mul_ps(a.v, b.v));
}

CART_ALWAYS_INLINE struct lanes lanes_div(struct lanes a, struct lanes b)
{
    return LANES_OF(_mm512_div_ps(a.v, b.v));
}

/* a * b + c with one rounding. */
CART_ALWAYS_INLINE struct lanes lanes_fma(struct lanes a, struct lanes b, struct lanes c)
{
    return LANES_OF(_mm512_fmadd_ps(a.v, b.v, c.v));
}

CART_ALWAYS_INLINE struct lanes lanes_negate(struct lanes a)
{
    return LANES_OF(_mm512_xor_ps(a.v, _mm512_set1_ps(-0.0f)));
}

/* a > b ? a : b, so b where a is NaN. */
CART_ALWAYS_INLINE struct lanes lanes_max(struct lanes a, struct lanes b)
{
    return LANES_OF(_mm512_max_ps(a.v, b.v));
}

/* Lane i of a for lo <= i < hi, fill elsewhere. */
CART_ALWAYS_INLINE struct lanes lanes_keep(struct lanes a, size_t lo, size_t hi, float fill)
{
    unsigned below = hi >= 16 ? 0xffffu : (1u << hi) - 1;
    unsigned under = lo >= 16 ? 0xffffu : (1u << lo) - 1;

    return LANES_OF(_mm512_mask_blend_ps((__mmask16)(below & ~under), _mm512_set1_ps(fill), a.v));
}

/* x < bound ? 0 : a. */
CART_ALWAYS_INLINE struct lanes lanes_zero_below(struct lanes x, float bound, struct lanes a)
{
    return LANES_OF(
        _mm512_maskz_mov_ps(_mm512_cmp_ps_mask(x.v, _mm512_set1_ps(bound), _CMP_NLT_UQ), a.v));
}

/* x > bound ? a : b. */
CART_ALWAYS_INLINE struct lanes lanes_if_above(struct lanes x, float bound, struct lanes a,
                                               struct lanes b)
{
    return LANES_OF(
        _mm512_mask_blend_ps(_mm512_cmp_ps_mask(x.v, _mm512_set1_ps(bound), _CMP_GT_OQ), b.v, a.v));
}

/* The bits of t shifted into the exponent field, plus one: 2^n for the t = n + EXPF_MAGIC of exp.
 */
CART_ALWAYS_INLINE struct lanes lanes_power2(struct lanes t, uint32_t one)
{
    __m512i bits = _mm512_slli_epi32(_mm512_castps_si512(t.v), 23);

    return LANES_OF(_mm512_castsi512_ps(_mm512_add_epi32(bits, _mm512_set1_epi32((int)one))));
}

/* Bit i says that lane i of a is not less than or equal to lane i of b (also for NaN). */
CART_ALWAYS_INLINE unsigned lanes_not_le(struct lanes a, struct lanes b)
{
    return _mm512_cmp_ps_mask(a.v, b.v, _CMP_NLE_UQ);
}

CART_ALWAYS_INLINE unsigned lanes_equal(struct lanes a, struct lanes b)
{
    return _mm512_cmp_ps_mask(a.v, b.v, _CMP_EQ_OQ);
}

/* The tree of halves over all lanes: l[i] += l[i + 8], then 4, 2, 1. */
CART_ALWAYS_INLINE float lanes_sum(struct lanes a)
{
    __m256 h = _mm256_add_ps(_mm512_castps512_ps256(a.v), _mm512_extractf32x8_ps(a.v, 1));
    __m128 q = _mm_add_ps(_mm256_castps256_ps128(h), _mm256_extractf128_ps(h, 1));

    q = _mm_add_ps(q, _mm_movehl_ps(q, q));
    return _mm_cvtss_f32(_mm_add_ss(q, _mm_movehdup_ps(q)));
}

/* The largest lane; no lane may be NaN. */
CART_ALWAYS_INLINE float lanes_top(struct lanes a)
{
    __m256 h = _mm256_max_ps(_mm512_castps512_ps256(a.v), _mm512_extractf32x8_ps(a.v, 1));
    __m128 q = _mm_max_ps(_mm256_castps256_ps128(h), _mm256_extractf128_ps(h, 1));

    q = _mm_max_ps(q, _mm_movehl_ps(q, q));
    return _mm_cvtss_f32(_mm_max_ss(q, _mm_movehdup_ps(q)));
}

struct dlanes {
    __m512d lo, hi;
};

CART_ALWAYS_INLINE struct dlanes dlanes_zero(void)
{
    return (struct dlanes){_mm512_setzero_pd(), _mm512_setzero_pd()};
}

/* a * b + c in f64. */
CART_ALWAYS_INLINE struct dlanes dlanes_fma(struct lanes a, struct lanes b, struct dlanes c)
{
    __m512d a0 = _mm512_cvtps_pd(_mm512_castps512_ps256(a.v));
    __m512d a1 = _mm512_cvtps_pd(_mm512_extractf32x8_ps(a.v, 1));
    __m512d b0 = _mm512_cvtps_pd(_mm512_castps512_ps256(b.v));
    __m512d b1 = _mm512_cvtps_pd(_mm512_extractf32x8_ps(b.v, 1));

    return (struct dlanes){_mm512_fmadd_pd(a0, b0, c.lo), _mm512_fmadd_pd(a1, b1, c.hi)};
}

CART_ALWAYS_INLINE struct dlanes dlanes_add(struct dlanes c, struct lanes a)
{
    return (struct dlanes){_mm512_add_pd(c.lo, _mm512_cvtps_pd(_mm512_castps512_ps256(a.v))),
                           _mm512_add_pd(c.hi, _mm512_cvtps_pd(_mm512_extractf32x8_ps(a.v, 1)))};
}

CART_ALWAYS_INLINE double dlanes_sum(struct dlanes c)
{
    __m512d e = _mm512_add_pd(c.lo, c.hi);
    __m256d h = _mm256_add_pd(_mm512_castpd512_pd256(e), _mm512_extractf64x4_pd(e, 1));
    __m128d q = _mm_add_pd(_mm256_castpd256_pd128(h), _mm256_extractf128_pd(h, 1));

    return _mm_cvtsd_f64(_mm_add_sd(q, _mm_unpackhi_pd(q, q)));
}

#endif
