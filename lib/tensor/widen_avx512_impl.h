/* Sixteen values of a block in one register, for every storage type. Only for files compiled with
 * AVX-512.
 *
 * Values of four bits are looked up: the sixteen results that a scale (and minimum) can give are
 * computed once, by one multiplication or one fused multiply-add as the format's definition has it,
 * and permuted by the codes. The permutation ignores the bits above the fourth, so low nibbles need
 * no mask. */
#ifndef CART_TENSOR_WIDEN_AVX512_IMPL_H
#define CART_TENSOR_WIDEN_AVX512_IMPL_H
#ifdef __AVX512F__

#include "tensor/widen_x86_impl.h"

/* *p in all lanes. As an integer it comes from the load alone; a broadcast of a float takes the
 * ports that shuffle as well. */
CART_ALWAYS_INLINE __m512 broadcast(const float *p)
{
    int bits;

    memcpy(&bits, p, sizeof bits);
    return _mm512_castsi512_ps(_mm512_set1_epi32(bits));
}

CART_ALWAYS_INLINE __m512 table_look_up(const uint8_t *nibble, size_t high, __m512 table)
{
    __m512i codes = _mm512_cvtepu8_epi32(load_bytes(nibble));

    return _mm512_permutexvar_ps(high ? _mm512_srli_epi32(codes, 4) : codes, table);
}

/* 0 .. 15 as the four-bit type reads them. */
CART_ALWAYS_INLINE __m512 table_codes(int dtype)
{
    switch (dtype) {
    case CART_Q4_0:
        return _mm512_setr_ps(-8, -7, -6, -5, -4, -3, -2, -1, 0, 1, 2, 3, 4, 5, 6, 7);
    case CART_IQ4_NL:
    case CART_IQ4_XS:
        return _mm512_setr_ps(-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89,
                              113);
    case CART_MXFP4:
        return _mm512_setr_ps(0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12);
    default:
        return _mm512_setr_ps(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    }
}

/* scale * code, or fma(scale, code, min). */
CART_ALWAYS_INLINE __m512 code_value(int dtype, __m512 code, __m512 scale, __m512 min)
{
    return widen_has_min(dtype) ? _mm512_fmadd_ps(scale, code, min) : _mm512_mul_ps(scale, code);
}

/* --- codes of more than four bits, or of two formats in one byte: a group at once --- */

CART_ALWAYS_INLINE __m512i twice(const uint8_t *p) /* 32 bytes, in both halves */
{
    return _mm512_broadcast_i64x4(_mm256_loadu_si256((const void *)p));
}

/* Each half of v shifted down, the upper one by more further bits, and masked. */
CART_ALWAYS_INLINE __m512i halves_bits(__m512i v, size_t shift, short more, int mask)
{
    __m512i counts = _mm512_inserti64x4(_mm512_setzero_si512(), _mm256_set1_epi16(more), 1);

    v = _mm512_srlv_epi16(_mm512_srl_epi16(v, _mm_cvtsi32_si128((int)shift)), counts);
    return _mm512_and_si512(v, _mm512_set1_epi8((char)mask));
}

/* Bit n of 32 bytes, then bit n + 1 of them. */
CART_ALWAYS_INLINE __mmask64 halves_mask(const uint8_t *p, size_t n)
{
    __m512i select = _mm512_inserti64x4(_mm512_set1_epi8(1), _mm256_set1_epi8(2), 1);

    return _mm512_test_epi8_mask(twice(p), _mm512_sll_epi16(select, _mm_cvtsi32_si128((int)n)));
}

CART_ALWAYS_INLINE __m512i group_q6_k(const uint8_t *b, size_t g)
{
    __m512i low = _mm512_srl_epi16(_mm512_loadu_si512(b + 64 * (g / 2)),
                                   _mm_cvtsi32_si128((int)(4 * (g % 2))));
    __m512i high =
        _mm512_slli_epi16(halves_bits(twice(b + 128 + 32 * (g / 2)), 4 * (g % 2), 2, 3), 4);

    low = _mm512_or_si512(_mm512_and_si512(low, _mm512_set1_epi8(15)), high);
    return _mm512_sub_epi8(low, _mm512_set1_epi8(32));
}

/* 32 nibbles of sixteen bytes. */
CART_ALWAYS_INLINE __m256i nibbles32(const uint8_t *p)
{
    __m256i counts = _mm256_inserti128_si256(_mm256_setzero_si256(), _mm_set1_epi16(4), 1);

    return _mm256_and_si256(_mm256_srlv_epi16(_mm256_broadcastsi128_si256(load_bytes(p)), counts),
                            _mm256_set1_epi8(15));
}

/* The codes of group g, for the types that widen_piece does not look up in a table; b = widen_at().
 */
CART_ALWAYS_INLINE void widen_group_codes(int dtype, const uint8_t *b, size_t g, uint8_t *out)
{
    __m512i v;
    __m256i w;

    switch (dtype) {
    case CART_Q5_0: /* x - 16 where the fifth bit is missing */
        w = nibbles32(b + 6);
        w = _mm256_mask_sub_epi8(w, (__mmask32)~load_u32(b + 2), w, _mm256_set1_epi8(16));
        _mm256_storeu_si256((void *)out, w);
        break;
    case CART_Q5_1:
        w = nibbles32(b + 8);
        w = _mm256_mask_add_epi8(w, (__mmask32)load_u32(b + 4), w, _mm256_set1_epi8(16));
        _mm256_storeu_si256((void *)out, w);
        break;
    case CART_Q2_K:
        _mm512_storeu_si512(out, halves_bits(twice(b + 16 + 32 * (g / 2)), 4 * (g % 2), 2, 3));
        break;
    case CART_Q3_K:
        v = halves_bits(twice(b + 32 + 32 * (g / 2)), 4 * (g % 2), 2, 3);
        _mm512_storeu_si512(
            out, _mm512_mask_sub_epi8(v, ~halves_mask(b, 2 * g), v, _mm512_set1_epi8(4)));
        break;
    case CART_Q5_K:
        v = halves_bits(twice(b + 48 + 32 * g), 0, 4, 15);
        _mm512_storeu_si512(
            out, _mm512_mask_add_epi8(v, halves_mask(b + 16, 2 * g), v, _mm512_set1_epi8(16)));
        break;
    case CART_Q6_K:
        _mm512_storeu_si512(out, group_q6_k(b, g));
        break;
    default:
        break;
    }
}

/* --- values --- */

/* Piece s of group g; b = widen_at(), codes = widen_group_codes(). */
CART_ALWAYS_INLINE __m512 widen_piece(int dtype, const uint8_t *b, const struct widen_state *st,
                                      const uint8_t *codes, size_t g, size_t s)
{
    const uint8_t *piece = codes + 16 * s;
    __m512 scale = _mm512_setzero_ps(), min = _mm512_setzero_ps();

    if (dtype == CART_F32)
        return _mm512_loadu_ps((const void *)(b + 64 * s));
    if (dtype == CART_F16)
        return _mm512_cvtph_ps(_mm256_loadu_si256((const void *)(b + 32 * s)));
    if (dtype == CART_BF16)
        return _mm512_castsi512_ps(_mm512_slli_epi32(
            _mm512_cvtepu16_epi32(_mm256_loadu_si256((const void *)(b + 32 * s))), 16));
    if (dtype == CART_Q8_0)
        scale = _mm512_broadcastss_ps(load_f16(b, 0));
    else
        scale = broadcast(widen_scale(dtype, st, g, s));
    if (widen_has_min(dtype))
        min = broadcast(widen_min(dtype, st, g, s));
    switch (dtype) {
    case CART_Q4_0:
    case CART_IQ4_NL:
        return table_look_up(b + 2, s, code_value(dtype, table_codes(dtype), scale, min));
    case CART_Q4_1:
        return table_look_up(b + 4, s, code_value(dtype, table_codes(dtype), scale, min));
    case CART_MXFP4:
        return table_look_up(b + 1, s, code_value(dtype, table_codes(dtype), scale, min));
    case CART_Q4_K:
        return table_look_up(b + 16 + 32 * g + 16 * (s % 2), s / 2,
                             code_value(dtype, table_codes(dtype), scale, min));
    case CART_IQ4_XS:
        return table_look_up(b + 8 + 32 * g + 16 * (s / 2), s % 2,
                             code_value(dtype, table_codes(dtype), scale, min));
    case CART_Q8_0:
        piece = b + 2 + 16 * s;
        break;
    default:
        break;
    }
    return code_value(dtype, _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(load_bytes(piece))), scale,
                      min);
}

/* Piece s of the left < 32 values at b of a floating type; zeros behind them. */
CART_ALWAYS_INLINE __m512 widen_rest(int dtype, const uint8_t *b, size_t s, size_t left)
{
    __mmask16 mask;

    left = left > 16 * s ? left - 16 * s : 0;
    mask = (__mmask16)(left < 16 ? (1u << left) - 1 : 0xffff);
    if (dtype == CART_F32)
        return _mm512_maskz_loadu_ps(mask, b + 64 * s);
    if (dtype == CART_F16)
        return _mm512_cvtph_ps(_mm256_maskz_loadu_epi16(mask, b + 32 * s));
    return _mm512_castsi512_ps(
        _mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(mask, b + 32 * s)), 16));
}

#endif
#endif
