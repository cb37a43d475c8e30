/* Lanes in AVX-512 registers. Included by lanes_impl.h, which see.
 * One fragment of code, not an interface: each operation of the lanes, once. */
#ifndef CART_TENSOR_LANES_AVX512_IMPL_H
#define CART_TENSOR_LANES_AVX512_IMPL_H

#include <immintrin.h>

#define LANES_TILE 4 /* vectors side by side in a register tile of six rows */

struct lanes {
    __m512 v;
};

struct dlanes {
    __m512d lo, hi;
};

#define LANES_OF(expr) ((struct lanes){expr})

CART_ALWAYS_INLINE struct lanes lanes_set(float x)
{
    return LANES_OF(_mm512_set1_ps(x));
}

/* Keeps a in a register: left alone, the compiler folds its load into every use. */
CART_ALWAYS_INLINE void lanes_pin(struct lanes *a)
{
    __asm__("" : "+v"(a->v));
}

CART_ALWAYS_INLINE struct lanes lanes_load(const float *p)
{
    return LANES_OF(_mm512_loadu_ps(p));
}

CART_ALWAYS_INLINE void lanes_store(float *p, struct lanes a)
{
    _mm512_storeu_ps(p, a.v);
}

/* The first n < 16 lanes; the others are +0 and their memory is not touched. */
CART_ALWAYS_INLINE struct lanes lanes_load_n(const float *p, size_t n)
{
    return LANES_OF(_mm512_maskz_loadu_ps((__mmask16)((1u << n) - 1), p));
}

CART_ALWAYS_INLINE void lanes_store_n(float *p, struct lanes a, size_t n)
{
    _mm512_mask_storeu_ps(p, (__mmask16)((1u << n) - 1), a.v);
}

CART_ALWAYS_INLINE struct lanes lanes_load_f16(const uint16_t *p)
{
    return LANES_OF(_mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)p)));
}

CART_ALWAYS_INLINE struct lanes lanes_load_bf16(const uint16_t *p)
{
    __m512i wide = _mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i *)p));

    return LANES_OF(_mm512_castsi512_ps(_mm512_slli_epi32(wide, 16)));
}

CART_ALWAYS_INLINE void lanes_store_f16(uint16_t *p, struct lanes a)
{
    _mm256_storeu_si256((__m256i *)p, _mm512_cvtps_ph(a.v, _MM_FROUND_TO_NEAREST_INT));
}

CART_ALWAYS_INLINE void lanes_store_bf16(uint16_t *p, struct lanes a)
{
    __m512i u = _mm512_castps_si512(a.v), high = _mm512_srli_epi32(u, 16);
    __m512i odd = _mm512_and_si512(high, _mm512_set1_epi32(1));
    __m512i r = _mm512_add_epi32(u, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff)));
    __mmask16 nan = _mm512_cmp_ps_mask(a.v, a.v, _CMP_UNORD_Q);

    r = _mm512_mask_or_epi32(_mm512_srli_epi32(r, 16), nan, high, _mm512_set1_epi32(0x40));
    _mm256_storeu_si256((__m256i *)p, _mm512_cvtepi32_epi16(r));
}

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

/* Sixteen rows of sixteen values to sixteen columns: out[d * ldo + i] = in[i].lane[d]. */
CART_ALWAYS_INLINE void lanes_transpose(const struct lanes in[LANES], float *out, size_t ldo)
{
    __m512 t[16], u[16];

#pragma GCC unroll 8
    for (int i = 0; i < 8; i++) {
        t[2 * i] = _mm512_unpacklo_ps(in[2 * i].v, in[2 * i + 1].v);
        t[2 * i + 1] = _mm512_unpackhi_ps(in[2 * i].v, in[2 * i + 1].v);
    }
#pragma GCC unroll 4
    for (int i = 0; i < 4; i++) {
        __m512d a = _mm512_castps_pd(t[4 * i]), b = _mm512_castps_pd(t[4 * i + 2]);
        __m512d c = _mm512_castps_pd(t[4 * i + 1]), d = _mm512_castps_pd(t[4 * i + 3]);

        u[4 * i] = _mm512_castpd_ps(_mm512_unpacklo_pd(a, b));
        u[4 * i + 1] = _mm512_castpd_ps(_mm512_unpackhi_pd(a, b));
        u[4 * i + 2] = _mm512_castpd_ps(_mm512_unpacklo_pd(c, d));
        u[4 * i + 3] = _mm512_castpd_ps(_mm512_unpackhi_pd(c, d));
    }
    /* Quarter q of u[4 g + c] now holds column 4 q + c of rows 4 g .. 4 g + 3. */
#pragma GCC unroll 4
    for (int c = 0; c < 4; c++) {
        __m512 a = _mm512_shuffle_f32x4(u[c], u[4 + c], 0x88),
               b = _mm512_shuffle_f32x4(u[c], u[4 + c], 0xdd);
        __m512 e = _mm512_shuffle_f32x4(u[8 + c], u[12 + c], 0x88);
        __m512 f = _mm512_shuffle_f32x4(u[8 + c], u[12 + c], 0xdd);

        _mm512_storeu_ps(out + (size_t)c * ldo, _mm512_shuffle_f32x4(a, e, 0x88));
        _mm512_storeu_ps(out + (size_t)(c + 8) * ldo, _mm512_shuffle_f32x4(a, e, 0xdd));
        _mm512_storeu_ps(out + (size_t)(c + 4) * ldo, _mm512_shuffle_f32x4(b, f, 0x88));
        _mm512_storeu_ps(out + (size_t)(c + 12) * ldo, _mm512_shuffle_f32x4(b, f, 0xdd));
    }
}

#endif
