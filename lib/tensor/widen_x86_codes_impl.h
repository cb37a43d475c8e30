/* Sixteen codes of a block as signed bytes. Included once through widen_x86_impl.h; a fragment of
 * code, not an interface. */
#ifndef CART_TENSOR_WIDEN_X86_CODES_IMPL_H
#define CART_TENSOR_WIDEN_X86_CODES_IMPL_H

#include "tensor/widen_x86_heads_impl.h"

CART_ALWAYS_INLINE __m128i low_bits(__m128i v, size_t shift, int mask)
{
    return _mm_and_si128(_mm_srl_epi16(v, _mm_cvtsi32_si128((int)shift)),
                         _mm_set1_epi8((char)mask));
}

CART_ALWAYS_INLINE __m128i nibbles(const uint8_t *p, size_t high)
{
    __m128i v = load_bytes(p);

    return _mm_and_si128(high ? _mm_srli_epi16(v, 4) : v, _mm_set1_epi8(15));
}

/* Twice the values of E2M1 (code 8 is +0), and the non-linear code of IQ4_NL and IQ4_XS. */
CART_ALWAYS_INLINE __m128i e2m1_codes(void)
{
    return _mm_setr_epi8(0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12);
}

CART_ALWAYS_INLINE __m128i iq4_codes(void)
{
    return _mm_setr_epi8(-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113);
}

/* Byte i is 0xff where bit i of the two bytes at p is set. */
CART_ALWAYS_INLINE __m128i bit_mask(const uint8_t *p)
{
    __m128i spread = _mm_setr_epi8(0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1);
    __m128i select = _mm_set1_epi64x((long long)0x8040201008040201);
    __m128i bits = _mm_shuffle_epi8(_mm_cvtsi32_si128(load_u16(p)), spread);

    return _mm_cmpeq_epi8(_mm_and_si128(bits, select), select);
}

/* Byte i is 0xff where bit n of byte i at p is set. */
CART_ALWAYS_INLINE __m128i byte_mask(const uint8_t *p, size_t n)
{
    __m128i select = _mm_set1_epi8((char)(1 << n));

    return _mm_cmpeq_epi8(_mm_and_si128(load_bytes(p), select), select);
}

/* Two bits of each of sixteen bytes; in Q2_K, Q3_K and the upper bits of Q6_K a group of 64 values
 * is two of the four shifts of the same 32 bytes. */
CART_ALWAYS_INLINE __m128i two_bits(const uint8_t *q, size_t g, size_t s)
{
    return low_bits(load_bytes(q + 32 * (g / 2) + 16 * (s % 2)), 4 * (g % 2) + 2 * (s / 2), 3);
}

CART_ALWAYS_INLINE __m128i codes_q3_k(const uint8_t *b, size_t g, size_t s)
{
    __m128i high = byte_mask(b + 16 * (s % 2), 2 * g + s / 2);

    return _mm_sub_epi8(two_bits(b + 32, g, s), _mm_andnot_si128(high, _mm_set1_epi8(4)));
}

CART_ALWAYS_INLINE __m128i codes_q5_k(const uint8_t *b, size_t g, size_t s)
{
    __m128i high = byte_mask(b + 16 + 16 * (s % 2), 2 * g + s / 2);

    return _mm_or_si128(nibbles(b + 48 + 32 * g + 16 * (s % 2), s / 2),
                        _mm_and_si128(high, _mm_set1_epi8(16)));
}

CART_ALWAYS_INLINE __m128i codes_q6_k(const uint8_t *b, size_t g, size_t s)
{
    __m128i low = low_bits(load_bytes(b + 64 * (g / 2) + 16 * s), 4 * (g % 2), 15);
    __m128i code = _mm_or_si128(low, _mm_slli_epi16(two_bits(b + 128, g, s), 4));

    return _mm_sub_epi8(code, _mm_set1_epi8(32));
}

/* Sixteen codes: piece s of group g, b = widen_at(). Not for floating types. */
CART_ALWAYS_INLINE __m128i widen_codes(int dtype, const uint8_t *b, size_t g, size_t s)
{
    switch (dtype) {
    case CART_Q8_0:
        return load_bytes(b + 2 + 16 * s);
    case CART_Q4_0:
        return _mm_sub_epi8(nibbles(b + 2, s), _mm_set1_epi8(8));
    case CART_Q4_1:
        return nibbles(b + 4, s);
    case CART_Q5_0: /* x - 16 where the fifth bit is missing */
        return _mm_sub_epi8(nibbles(b + 6, s),
                            _mm_andnot_si128(bit_mask(b + 2 + 2 * s), _mm_set1_epi8(16)));
    case CART_Q5_1:
        return _mm_or_si128(nibbles(b + 8, s),
                            _mm_and_si128(bit_mask(b + 4 + 2 * s), _mm_set1_epi8(16)));
    case CART_IQ4_NL:
        return _mm_shuffle_epi8(iq4_codes(), nibbles(b + 2, s));
    case CART_MXFP4:
        return _mm_shuffle_epi8(e2m1_codes(), nibbles(b + 1, s));
    case CART_Q2_K:
        return two_bits(b + 16, g, s);
    case CART_Q3_K:
        return codes_q3_k(b, g, s);
    case CART_Q4_K:
        return nibbles(b + 16 + 32 * g + 16 * (s % 2), s / 2);
    case CART_Q5_K:
        return codes_q5_k(b, g, s);
    case CART_Q6_K:
        return codes_q6_k(b, g, s);
    case CART_IQ4_XS:
        return _mm_shuffle_epi8(iq4_codes(), nibbles(b + 8 + 16 * (2 * g + s / 2), s % 2));
    default:
        return _mm_setzero_si128();
    }
}

#endif
