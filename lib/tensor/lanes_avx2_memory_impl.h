/* How lanes lie in pairs of AVX2 registers, and come from memory and go there. Included by
 * lanes_avx2_impl.h. */
#ifndef CART_TENSOR_LANES_AVX2_MEMORY_IMPL_H
#define CART_TENSOR_LANES_AVX2_MEMORY_IMPL_H

#include <immintrin.h>

#define LANES_TILE 1 /* vectors side by side in a register tile of six rows */

struct lanes {
    __m256 lo, hi;
};

#define LANES_OF(a, b) ((struct lanes){a, b})

CART_ALWAYS_INLINE struct lanes lanes_set(float x)
{
    return LANES_OF(_mm256_set1_ps(x), _mm256_set1_ps(x));
}

/* Keeps a in a register: left alone, the compiler folds its load into every use. */
CART_ALWAYS_INLINE void lanes_pin(struct lanes *a)
{
    __asm__("" : "+x"(a->lo), "+x"(a->hi));
}

CART_ALWAYS_INLINE struct lanes lanes_load(const float *p)
{
    return LANES_OF(_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8));
}

CART_ALWAYS_INLINE void lanes_store(float *p, struct lanes a)
{
    _mm256_storeu_ps(p, a.lo);
    _mm256_storeu_ps(p + 8, a.hi);
}

/* All ones in lane i of a half for first + i < n. */
CART_ALWAYS_INLINE __m256i lanes_half_mask(size_t n, int first)
{
    __m256i index =
        _mm256_add_epi32(_mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7), _mm256_set1_epi32(first));

    return _mm256_cmpgt_epi32(_mm256_set1_epi32((int)n), index);
}

/* The first n < 16 lanes; the others are +0 and their memory is not touched. */
CART_ALWAYS_INLINE struct lanes lanes_load_n(const float *p, size_t n)
{
    return LANES_OF(_mm256_maskload_ps(p, lanes_half_mask(n, 0)),
                    _mm256_maskload_ps(p + 8, lanes_half_mask(n, 8)));
}

CART_ALWAYS_INLINE void lanes_store_n(float *p, struct lanes a, size_t n)
{
    _mm256_maskstore_ps(p, lanes_half_mask(n, 0), a.lo);
    _mm256_maskstore_ps(p + 8, lanes_half_mask(n, 8), a.hi);
}

CART_ALWAYS_INLINE struct lanes lanes_load_f16(const uint16_t *p)
{
    return LANES_OF(_mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)p)),
                    _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(p + 8))));
}

CART_ALWAYS_INLINE __m256 lanes_half_bf16(const uint16_t *p)
{
    return _mm256_castsi256_ps(
        _mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)p)), 16));
}

CART_ALWAYS_INLINE struct lanes lanes_load_bf16(const uint16_t *p)
{
    return LANES_OF(lanes_half_bf16(p), lanes_half_bf16(p + 8));
}

CART_ALWAYS_INLINE void lanes_store_f16(uint16_t *p, struct lanes a)
{
    _mm_storeu_si128((__m128i *)p, _mm256_cvtps_ph(a.lo, _MM_FROUND_TO_NEAREST_INT));
    _mm_storeu_si128((__m128i *)(p + 8), _mm256_cvtps_ph(a.hi, _MM_FROUND_TO_NEAREST_INT));
}

CART_ALWAYS_INLINE __m256i lanes_half_to_bf16(__m256 a)
{
    __m256i u = _mm256_castps_si256(a), high = _mm256_srli_epi32(u, 16);
    __m256i odd = _mm256_and_si256(high, _mm256_set1_epi32(1));
    __m256i r = _mm256_add_epi32(u, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff)));
    __m256i nan = _mm256_castps_si256(_mm256_cmp_ps(a, a, _CMP_UNORD_Q));

    return _mm256_blendv_epi8(_mm256_srli_epi32(r, 16),
                              _mm256_or_si256(high, _mm256_set1_epi32(0x40)), nan);
}

CART_ALWAYS_INLINE void lanes_store_bf16(uint16_t *p, struct lanes a)
{
    __m256i r = _mm256_packus_epi32(lanes_half_to_bf16(a.lo), lanes_half_to_bf16(a.hi));

    _mm256_storeu_si256((__m256i *)p, _mm256_permute4x64_epi64(r, 0xd8));
}

/* One quarter of the exchange below: rows 8 r .. 8 r + 7, columns 8 c .. 8 c + 7. */
CART_ALWAYS_INLINE void lanes_transpose8(const struct lanes in[LANES], int r, int c, float *out,
                                         size_t ldo)
{
    __m256 t[8], u[8];

#pragma GCC unroll 4
    for (int i = 0; i < 4; i++) {
        __m256 a = c ? in[8 * r + 2 * i].hi : in[8 * r + 2 * i].lo;
        __m256 b = c ? in[8 * r + 2 * i + 1].hi : in[8 * r + 2 * i + 1].lo;

        t[2 * i] = _mm256_unpacklo_ps(a, b);
        t[2 * i + 1] = _mm256_unpackhi_ps(a, b);
    }
#pragma GCC unroll 2
    for (int i = 0; i < 2; i++) {
        u[4 * i] = _mm256_shuffle_ps(t[4 * i], t[4 * i + 2], 0x44);
        u[4 * i + 1] = _mm256_shuffle_ps(t[4 * i], t[4 * i + 2], 0xee);
        u[4 * i + 2] = _mm256_shuffle_ps(t[4 * i + 1], t[4 * i + 3], 0x44);
        u[4 * i + 3] = _mm256_shuffle_ps(t[4 * i + 1], t[4 * i + 3], 0xee);
    }
#pragma GCC unroll 4
    for (int i = 0; i < 4; i++) {
        float *p = out + (size_t)(8 * c + i) * ldo + 8 * r;

        _mm256_storeu_ps(p, _mm256_permute2f128_ps(u[i], u[4 + i], 0x20));
        _mm256_storeu_ps(p + 4 * ldo, _mm256_permute2f128_ps(u[i], u[4 + i], 0x31));
    }
}

/* Sixteen rows of sixteen values to sixteen columns: out[d * ldo + i] = in[i].lane[d]. */
CART_ALWAYS_INLINE void lanes_transpose(const struct lanes in[LANES], float *out, size_t ldo)
{
    lanes_transpose8(in, 0, 0, out, ldo);
    lanes_transpose8(in, 0, 1, out, ldo);
    lanes_transpose8(in, 1, 0, out, ldo);
    lanes_transpose8(in, 1, 1, out, ldo);
}

#endif
