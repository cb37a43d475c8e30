/* Lanes in pairs of AVX2 registers. Included by lanes_impl.h, which see.
 * One fragment of code, not an interface: each operation of the lanes, once. */
#ifndef CART_TENSOR_LANES_AVX2_IMPL_H
#define CART_TENSOR_LANES_AVX2_IMPL_H

#include "tensor/lanes_avx2_memory_impl.h"

CART_ALWAYS_INLINE struct lanes lanes_add(struct lanes a, struct lanes b)
{
    return LANES_OF(_mm256_add_ps(a.lo, b.lo), _mm256_add_ps(a.hi, b.hi));
}

CART_ALWAYS_INLINE struct lanes lanes_sub(struct lanes a, struct lanes b)
{
    return LANES_OF(_mm256_sub_ps(a.lo, b.lo), _mm256_sub_ps(a.hi, b.hi));
}

CART_ALWAYS_INLINE struct lanes lanes_mul(struct lanes a, struct lanes b)
{
    return LANES_OF(_mm256_mul_ps(a.lo, b.lo), _mm256_mul_ps(a.hi, b.hi));
}

CART_ALWAYS_INLINE struct lanes lanes_div(struct lanes a, struct lanes b)
{
    return LANES_OF(_mm256_div_ps(a.lo, b.lo), _mm256_div_ps(a.hi, b.hi));
}

/* a * b + c with one rounding. */
CART_ALWAYS_INLINE struct lanes lanes_fma(struct lanes a, struct lanes b, struct lanes c)
{
    return LANES_OF(_mm256_fmadd_ps(a.lo, b.lo, c.lo), _mm256_fmadd_ps(a.hi, b.hi, c.hi));
}

CART_ALWAYS_INLINE struct lanes lanes_negate(struct lanes a)
{
    __m256 sign = _mm256_set1_ps(-0.0f);

    return LANES_OF(_mm256_xor_ps(a.lo, sign), _mm256_xor_ps(a.hi, sign));
}

/* a > b ? a : b, so b where a is NaN. */
CART_ALWAYS_INLINE struct lanes lanes_max(struct lanes a, struct lanes b)
{
    return LANES_OF(_mm256_max_ps(a.lo, b.lo), _mm256_max_ps(a.hi, b.hi));
}

/* Lane i of a for lo <= i < hi, fill elsewhere. */
CART_ALWAYS_INLINE struct lanes lanes_keep(struct lanes a, size_t lo, size_t hi, float fill)
{
    __m256i lo0 = lanes_half_mask(lo > 16 ? 16 : lo, 0),
            lo1 = lanes_half_mask(lo > 16 ? 16 : lo, 8);
    __m256i hi0 = lanes_half_mask(hi > 16 ? 16 : hi, 0),
            hi1 = lanes_half_mask(hi > 16 ? 16 : hi, 8);
    __m256 f = _mm256_set1_ps(fill);

    return LANES_OF(_mm256_blendv_ps(f, a.lo, _mm256_castsi256_ps(_mm256_andnot_si256(lo0, hi0))),
                    _mm256_blendv_ps(f, a.hi, _mm256_castsi256_ps(_mm256_andnot_si256(lo1, hi1))));
}

/* x < bound ? 0 : a. */
CART_ALWAYS_INLINE struct lanes lanes_zero_below(struct lanes x, float bound, struct lanes a)
{
    __m256 b = _mm256_set1_ps(bound);

    return LANES_OF(_mm256_and_ps(_mm256_cmp_ps(x.lo, b, _CMP_NLT_UQ), a.lo),
                    _mm256_and_ps(_mm256_cmp_ps(x.hi, b, _CMP_NLT_UQ), a.hi));
}

/* x > bound ? a : b. */
CART_ALWAYS_INLINE struct lanes lanes_if_above(struct lanes x, float bound, struct lanes a,
                                               struct lanes b)
{
    __m256 c = _mm256_set1_ps(bound);

    return LANES_OF(_mm256_blendv_ps(b.lo, a.lo, _mm256_cmp_ps(x.lo, c, _CMP_GT_OQ)),
                    _mm256_blendv_ps(b.hi, a.hi, _mm256_cmp_ps(x.hi, c, _CMP_GT_OQ)));
}

CART_ALWAYS_INLINE __m256 lanes_half_power2(__m256 t, uint32_t one)
{
    __m256i bits = _mm256_slli_epi32(_mm256_castps_si256(t), 23);

    return _mm256_castsi256_ps(_mm256_add_epi32(bits, _mm256_set1_epi32((int)one)));
}

/* The bits of t shifted into the exponent field, plus one: 2^n for the t = n + EXPF_MAGIC of exp.
 */
CART_ALWAYS_INLINE struct lanes lanes_power2(struct lanes t, uint32_t one)
{
    return LANES_OF(lanes_half_power2(t.lo, one), lanes_half_power2(t.hi, one));
}

/* Bit i says that lane i of a is not less than or equal to lane i of b (also for NaN). */
CART_ALWAYS_INLINE unsigned lanes_not_le(struct lanes a, struct lanes b)
{
    return (unsigned)_mm256_movemask_ps(_mm256_cmp_ps(a.lo, b.lo, _CMP_NLE_UQ)) |
           (unsigned)_mm256_movemask_ps(_mm256_cmp_ps(a.hi, b.hi, _CMP_NLE_UQ)) << 8;
}

CART_ALWAYS_INLINE unsigned lanes_equal(struct lanes a, struct lanes b)
{
    return (unsigned)_mm256_movemask_ps(_mm256_cmp_ps(a.lo, b.lo, _CMP_EQ_OQ)) |
           (unsigned)_mm256_movemask_ps(_mm256_cmp_ps(a.hi, b.hi, _CMP_EQ_OQ)) << 8;
}

/* The tree of halves over all lanes: l[i] += l[i + 8], then 4, 2, 1. */
CART_ALWAYS_INLINE float lanes_sum(struct lanes a)
{
    __m256 h = _mm256_add_ps(a.lo, a.hi);
    __m128 q = _mm_add_ps(_mm256_castps256_ps128(h), _mm256_extractf128_ps(h, 1));

    q = _mm_add_ps(q, _mm_movehl_ps(q, q));
    return _mm_cvtss_f32(_mm_add_ss(q, _mm_movehdup_ps(q)));
}

/* The largest lane; no lane may be NaN. */
CART_ALWAYS_INLINE float lanes_top(struct lanes a)
{
    __m256 h = _mm256_max_ps(a.lo, a.hi);
    __m128 q = _mm_max_ps(_mm256_castps256_ps128(h), _mm256_extractf128_ps(h, 1));

    q = _mm_max_ps(q, _mm_movehl_ps(q, q));
    return _mm_cvtss_f32(_mm_max_ss(q, _mm_movehdup_ps(q)));
}

struct dlanes {
    __m256d q[4];
};

CART_ALWAYS_INLINE struct dlanes dlanes_zero(void)
{
    __m256d z = _mm256_setzero_pd();

    return (struct dlanes){{z, z, z, z}};
}

CART_ALWAYS_INLINE __m256d dlanes_quarter(struct lanes a, int i)
{
    __m256 h = i < 2 ? a.lo : a.hi;

    return _mm256_cvtps_pd(i & 1 ? _mm256_extractf128_ps(h, 1) : _mm256_castps256_ps128(h));
}

/* a * b + c in f64. */
CART_ALWAYS_INLINE struct dlanes dlanes_fma(struct lanes a, struct lanes b, struct dlanes c)
{
#pragma GCC unroll 4
    for (int i = 0; i < 4; i++)
        c.q[i] = _mm256_fmadd_pd(dlanes_quarter(a, i), dlanes_quarter(b, i), c.q[i]);
    return c;
}

CART_ALWAYS_INLINE struct dlanes dlanes_add(struct dlanes c, struct lanes a)
{
#pragma GCC unroll 4
    for (int i = 0; i < 4; i++)
        c.q[i] = _mm256_add_pd(c.q[i], dlanes_quarter(a, i));
    return c;
}

CART_ALWAYS_INLINE double dlanes_sum(struct dlanes c)
{
    __m256d h = _mm256_add_pd(_mm256_add_pd(c.q[0], c.q[2]), _mm256_add_pd(c.q[1], c.q[3]));
    __m128d q = _mm_add_pd(_mm256_castpd256_pd128(h), _mm256_extractf128_pd(h, 1));

    return _mm_cvtsd_f64(_mm_add_sd(q, _mm_unpackhi_pd(q, q)));
}

#endif
