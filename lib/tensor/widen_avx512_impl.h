/* Sixteen values of a block in one register, for every storage type. Only for files compiled with AVX-512.
 *
 * Values of four bits are looked up: the sixteen results that a scale (and minimum) can give are computed once, by
 * one multiplication or one fused multiply-add as the format's definition has it, and permuted by the codes. The
 * permutation ignores the bits above the fourth, so low nibbles need no mask. */
#ifndef CART_TENSOR_WIDEN_AVX512_IMPL_H
#define CART_TENSOR_WIDEN_AVX512_IMPL_H
#ifdef __AVX512F__

#include "tensor/widen_x86_impl.h"

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
        return _mm512_setr_ps(-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113);
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

/* Piece s of group g of the block at b, and its head where the type has one. */
CART_ALWAYS_INLINE __m512 widen_piece(int dtype, const uint8_t *b, const struct widen_state *st, size_t g, size_t s)
{
    __m512 scale = _mm512_setzero_ps(), min = _mm512_setzero_ps();

    if (dtype == CART_F32)
        return _mm512_loadu_ps((const void *)(b + 64 * s));
    if (dtype == CART_F16)
        return _mm512_cvtph_ps(_mm256_loadu_si256((const void *)(b + 32 * s)));
    if (dtype == CART_BF16)
        return _mm512_castsi512_ps(
            _mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_loadu_si256((const void *)(b + 32 * s))), 16));
    if (widen_block(dtype) == 256) {
        size_t i = widen_state_index(dtype, g, s);

        scale = _mm512_set1_ps(st->scale[i]);
        if (widen_has_min(dtype))
            min = _mm512_set1_ps(st->min[i]);
    } else {
        scale = _mm512_broadcastss_ps(widen_scale(dtype, b));
        if (widen_has_min(dtype))
            min = _mm512_broadcastss_ps(load_f16(b + 2, 0));
    }
    switch (dtype) {
    case CART_Q4_0:
    case CART_IQ4_NL:
        return table_look_up(b + 2, s, code_value(dtype, table_codes(dtype), scale, min));
    case CART_Q4_1:
        return table_look_up(b + 4, s, code_value(dtype, table_codes(dtype), scale, min));
    case CART_MXFP4:
        return table_look_up(b + 1, s, code_value(dtype, table_codes(dtype), scale, min));
    case CART_Q4_K:
        return table_look_up(b + 16 + 32 * g + 16 * (s % 2), s / 2, code_value(dtype, table_codes(dtype), scale, min));
    case CART_IQ4_XS:
        return table_look_up(b + 8 + 32 * g + 16 * (s / 2), s % 2, code_value(dtype, table_codes(dtype), scale, min));
    default:
        return code_value(dtype, _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(widen_codes(dtype, b, g, s))), scale, min);
    }
}

/* The first n < 16 values of a floating type, zeros behind them; reads no further. */
CART_ALWAYS_INLINE __m512 widen_tail(int dtype, const uint8_t *b, size_t n)
{
    __mmask16 mask = (__mmask16)((1u << n) - 1);

    if (dtype == CART_F32)
        return _mm512_maskz_loadu_ps(mask, b);
    if (dtype == CART_F16)
        return _mm512_cvtph_ps(_mm256_maskz_loadu_epi16(mask, b));
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(mask, b)), 16));
}

#endif
#endif
