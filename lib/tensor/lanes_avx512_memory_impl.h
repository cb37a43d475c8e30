/* How lanes lie in AVX-512 registers, and come from memory and go there. Included by
 * lanes_avx512_impl.h. */
#ifndef CART_TENSOR_LANES_AVX512_MEMORY_IMPL_H
#define CART_TENSOR_LANES_AVX512_MEMORY_IMPL_H

#include <immintrin.h>

#define LANES_TILE 4 /* vectors side by side in a register tile of six rows */

struct lanes {
    __m512 v;
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
