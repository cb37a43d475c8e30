/* What every storage type holds, as x86 vectors: sixteen codes of a block as signed bytes, and the
 * scale and the (negated) minimum they go with, so that a value is scale * code or fma(scale, code,
 * min). The templates of widening, of the fused tiles and of the one-row product are made of these.
 * Only for files compiled with AVX2, FMA and F16C at least. One fragment of code, not an
 * interface: all types stand side by side, so that they can be compared.
 *
 * Kernels go by *spans* of 256 values: one block of a K format, eight blocks of the others. The
 * heads of a span are decoded together, first; then come its *groups* (64 values of a K format, 32
 * of the others) in pieces of sixteen. Piece s of a group is a constant where these functions are
 * used. The last span of a row may have fewer groups; what remains behind it, of a floating type,
 * goes by values. */
#ifndef CART_TENSOR_WIDEN_X86_IMPL_H
#define CART_TENSOR_WIDEN_X86_IMPL_H
#ifdef __AVX2__

#include "tensor/dtype.h"
#include "tensor/variant.h"

#include <immintrin.h>
#include <string.h>

enum { WIDEN_SPAN = 256 };

/* Scale and negated minimum of each 16 or 32 values of a span of a row; floating types have none.
 * Where a block's head is the two, they stay side by side: scale[2 i] and scale[2 i + 1]. */
struct widen_state {
    float scale[16], min[16];
};

CART_ALWAYS_INLINE bool widen_is_float(int dtype)
{
    return dtype == CART_F32 || dtype == CART_F16 || dtype == CART_BF16;
}

CART_ALWAYS_INLINE bool widen_is_k(int dtype) /* one block of 256 values */
{
    return dtype == CART_Q2_K || dtype == CART_Q3_K || dtype == CART_Q4_K || dtype == CART_Q5_K ||
           dtype == CART_Q6_K || dtype == CART_IQ4_XS;
}

CART_ALWAYS_INLINE size_t widen_group(int dtype)
{
    return widen_is_k(dtype) ? 64 : 32;
}

CART_ALWAYS_INLINE size_t widen_bytes(int dtype) /* of a span */
{
    switch (dtype) {
    case CART_F32:
        return 1024;
    case CART_F16:
    case CART_BF16:
        return 512;
    case CART_Q8_0:
        return 8 * 34;
    case CART_Q4_0:
    case CART_IQ4_NL:
        return 8 * 18;
    case CART_Q4_1:
        return 8 * 20;
    case CART_Q5_0:
        return 8 * 22;
    case CART_Q5_1:
        return 8 * 24;
    case CART_MXFP4:
        return 8 * 17;
    case CART_Q2_K:
        return 84;
    case CART_Q3_K:
        return 110;
    case CART_Q4_K:
        return 144;
    case CART_Q5_K:
        return 176;
    case CART_Q6_K:
        return 210;
    case CART_IQ4_XS:
        return 136;
    default:
        return 0;
    }
}

/* Where value k of a row starts; k a multiple of the block, which is 1 for floating types. */
CART_ALWAYS_INLINE size_t widen_offset(int dtype, size_t k)
{
    if (widen_is_float(dtype))
        return k * (widen_bytes(dtype) / WIDEN_SPAN);
    return widen_is_k(dtype) ? k / WIDEN_SPAN * widen_bytes(dtype)
                             : k / 32 * (widen_bytes(dtype) / 8);
}

/* What widen_codes wants for group g of the span at b: the span in a K format, else the block of
 * the group. */
CART_ALWAYS_INLINE const uint8_t *widen_at(int dtype, const uint8_t *b, size_t g)
{
    return widen_is_k(dtype) ? b : b + g * (widen_bytes(dtype) / 8);
}

CART_ALWAYS_INLINE bool widen_has_min(int dtype)
{
    return dtype == CART_Q4_1 || dtype == CART_Q5_1 || dtype == CART_Q2_K || dtype == CART_Q4_K ||
           dtype == CART_Q5_K;
}

/* One block of 32 with scale and minimum at its start. */
CART_ALWAYS_INLINE bool widen_has_pair(int dtype)
{
    return dtype == CART_Q4_1 || dtype == CART_Q5_1;
}

CART_ALWAYS_INLINE __m128i load_bytes(const uint8_t *p)
{
    return _mm_loadu_si128((const void *)p);
}

CART_ALWAYS_INLINE uint16_t load_u16(const uint8_t *p)
{
    uint16_t h;

    memcpy(&h, p, sizeof h);
    return h;
}

CART_ALWAYS_INLINE uint32_t load_u32(const uint8_t *p)
{
    uint32_t u;

    memcpy(&u, p, sizeof u);
    return u;
}

/* The f16 at p as one f32 in lane 0; sign 0x8000 negates it. */
CART_ALWAYS_INLINE __m128 load_f16(const uint8_t *p, int sign)
{
    return _mm_cvtph_ps(_mm_cvtsi32_si128(load_u16(p) ^ sign));
}

/* --- heads of a span --- */

/* out [8] = d * eight codes (signed bytes in the low half of codes). */
CART_ALWAYS_INLINE void store_scales(float *out, __m128 d, __m128i codes)
{
    _mm256_storeu_ps(out, _mm256_mul_ps(_mm256_broadcastss_ps(d),
                                        _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(codes))));
}

/* Scales and minima of Q4_K and Q5_K: eight of six bits each in twelve bytes. */
CART_ALWAYS_INLINE void head_q45_k(const uint8_t *b, struct widen_state *st)
{
    uint32_t a = load_u32(b + 4), m = load_u32(b + 8), c = load_u32(b + 12);
    uint32_t s_high = (c & 0x0f0f0f0f) | (a >> 2 & 0x30303030);
    uint32_t m_high = (c >> 4 & 0x0f0f0f0f) | (m >> 2 & 0x30303030);

    store_scales(st->scale, load_f16(b, 0),
                 _mm_setr_epi32((int)(a & 0x3f3f3f3f), (int)s_high, 0, 0));
    store_scales(st->min, load_f16(b + 2, 0x8000),
                 _mm_setr_epi32((int)(m & 0x3f3f3f3f), (int)m_high, 0, 0));
}

CART_ALWAYS_INLINE void head_q2_k(const uint8_t *b, struct widen_state *st)
{
    __m128i codes = load_bytes(b), nibble = _mm_set1_epi8(15);
    __m128i scale = _mm_and_si128(codes, nibble),
            min = _mm_and_si128(_mm_srli_epi16(codes, 4), nibble);
    __m128 d = load_f16(b + 80, 0), m = load_f16(b + 82, 0x8000);

    store_scales(st->scale, d, scale);
    store_scales(st->scale + 8, d, _mm_srli_si128(scale, 8));
    store_scales(st->min, m, min);
    store_scales(st->min + 8, m, _mm_srli_si128(min, 8));
}

CART_ALWAYS_INLINE void head_q3_k(const uint8_t *b, struct widen_state *st)
{
    uint32_t a = load_u32(b + 96), c = load_u32(b + 100), h = load_u32(b + 104);
    __m128i codes = _mm_setr_epi32((int)((a & 0x0f0f0f0f) | (h << 4 & 0x30303030)),
                                   (int)((c & 0x0f0f0f0f) | (h << 2 & 0x30303030)),
                                   (int)((a >> 4 & 0x0f0f0f0f) | (h & 0x30303030)),
                                   (int)((c >> 4 & 0x0f0f0f0f) | (h >> 2 & 0x30303030)));
    __m128 d = load_f16(b + 108, 0);

    codes = _mm_sub_epi8(codes, _mm_set1_epi8(32));
    store_scales(st->scale, d, codes);
    store_scales(st->scale + 8, d, _mm_srli_si128(codes, 8));
}

CART_ALWAYS_INLINE void head_q6_k(const uint8_t *b, struct widen_state *st)
{
    __m128i codes = load_bytes(b + 192);
    __m128 d = load_f16(b + 208, 0);

    store_scales(st->scale, d, codes);
    store_scales(st->scale + 8, d, _mm_srli_si128(codes, 8));
}

CART_ALWAYS_INLINE void head_iq4_xs(const uint8_t *b, struct widen_state *st)
{
    __m256i low = _mm256_srlv_epi32(_mm256_set1_epi32((int)load_u32(b + 4)),
                                    _mm256_setr_epi32(0, 4, 8, 12, 16, 20, 24, 28));
    __m256i high = _mm256_srlv_epi32(_mm256_set1_epi32(load_u16(b + 2)),
                                     _mm256_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14));
    __m256i code =
        _mm256_or_si256(_mm256_and_si256(low, _mm256_set1_epi32(15)),
                        _mm256_slli_epi32(_mm256_and_si256(high, _mm256_set1_epi32(3)), 4));

    code = _mm256_sub_epi32(code, _mm256_set1_epi32(32));
    _mm256_storeu_ps(
        st->scale, _mm256_mul_ps(_mm256_broadcastss_ps(load_f16(b, 0)), _mm256_cvtepi32_ps(code)));
}

/* Eight blocks with one f16 each, step bytes apart. */
CART_ALWAYS_INLINE void heads_scale(const uint8_t *b, size_t step, struct widen_state *st)
{
    __m128i d = _mm_setr_epi16((short)load_u16(b), (short)load_u16(b + step),
                               (short)load_u16(b + 2 * step), (short)load_u16(b + 3 * step),
                               (short)load_u16(b + 4 * step), (short)load_u16(b + 5 * step),
                               (short)load_u16(b + 6 * step), (short)load_u16(b + 7 * step));

    _mm256_storeu_ps(st->scale, _mm256_cvtph_ps(d));
}

/* Four blocks with two f16 each, scale and minimum. */
CART_ALWAYS_INLINE void heads_pair(const uint8_t *b, size_t step, float *out)
{
    __m128i d = _mm_setr_epi32((int)load_u32(b), (int)load_u32(b + step),
                               (int)load_u32(b + 2 * step), (int)load_u32(b + 3 * step));

    _mm256_storeu_ps(out, _mm256_cvtph_ps(d));
}

/* 2^(e - 128) of MXFP4, half the scale because its codes are doubled: subnormal for e < 2. */
CART_ALWAYS_INLINE float mxfp4_scale(uint32_t e)
{
    return _mm_cvtss_f32(
        _mm_castsi128_ps(_mm_cvtsi32_si128((int)(e < 2 ? 0x00200000u << e : (e - 1) << 23))));
}

/* Eight blocks of MXFP4, step bytes apart. */
CART_ALWAYS_INLINE void heads_mxfp4(const uint8_t *b, size_t step, struct widen_state *st)
{
    __m256i e = _mm256_cvtepu8_epi32(_mm_setr_epi8(
        (char)b[0], (char)b[step], (char)b[2 * step], (char)b[3 * step], (char)b[4 * step],
        (char)b[5 * step], (char)b[6 * step], (char)b[7 * step], 0, 0, 0, 0, 0, 0, 0, 0));
    __m256i scale = _mm256_slli_epi32(_mm256_sub_epi32(e, _mm256_set1_epi32(1)), 23);
    __m256i small = _mm256_sllv_epi32(_mm256_set1_epi32(0x00200000), e);

    scale = _mm256_blendv_epi8(scale, small, _mm256_cmpgt_epi32(_mm256_set1_epi32(2), e));
    _mm256_storeu_ps(st->scale, _mm256_castsi256_ps(scale));
}

/* The heads of a whole span. Q8_0 has so little to do otherwise that it reads each head where it
 * stands. */
CART_ALWAYS_INLINE void heads_span(int dtype, const uint8_t *b, struct widen_state *st)
{
    const size_t step = widen_bytes(dtype) / 8;

    switch (dtype) {
    case CART_Q4_0:
    case CART_Q5_0:
    case CART_IQ4_NL:
        heads_scale(b, step, st);
        break;
    case CART_Q4_1:
    case CART_Q5_1:
        heads_pair(b, step, st->scale);
        heads_pair(b + 4 * step, step, st->scale + 8);
        break;
    case CART_MXFP4:
        heads_mxfp4(b, step, st);
        break;
    case CART_Q2_K:
        head_q2_k(b, st);
        break;
    case CART_Q3_K:
        head_q3_k(b, st);
        break;
    case CART_Q4_K:
    case CART_Q5_K:
        head_q45_k(b, st);
        break;
    case CART_Q6_K:
        head_q6_k(b, st);
        break;
    case CART_IQ4_XS:
        head_iq4_xs(b, st);
        break;
    default:
        break;
    }
}

/* Those of n blocks of 32, the first of a span. */
CART_ALWAYS_INLINE void heads_some(int dtype, const uint8_t *b, size_t n, struct widen_state *st)
{
    const size_t step = widen_bytes(dtype) / 8;

    for (size_t i = 0; i < n; i++, b += step) {
        if (dtype == CART_MXFP4)
            st->scale[i] = mxfp4_scale(b[0]);
        else if (widen_has_pair(dtype))
            _mm_storel_pi((void *)(st->scale + 2 * i),
                          _mm_cvtph_ps(_mm_cvtsi32_si128((int)load_u32(b))));
        else if (!widen_is_float(dtype) && dtype != CART_Q8_0)
            _mm_store_ss(st->scale + i, load_f16(b, 0));
    }
}

/* How many groups a row goes on with, of which k values remain: a whole span, or what there is. */
CART_ALWAYS_INLINE size_t widen_groups(int dtype, size_t k)
{
    return (k < WIDEN_SPAN ? k : WIDEN_SPAN) / widen_group(dtype);
}

/* Decodes the heads of the n = widen_groups() groups at b. */
CART_ALWAYS_INLINE void widen_heads(int dtype, const uint8_t *b, size_t n, struct widen_state *st)
{
    if (n == WIDEN_SPAN / widen_group(dtype))
        heads_span(dtype, b, st);
    else
        heads_some(dtype, b, n, st);
}

/* --- codes --- */

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

/* Scale and minimum of piece s of group g: one for 32 values, or for sixteen. */
CART_ALWAYS_INLINE const float *widen_scale(int dtype, const struct widen_state *st, size_t g,
                                            size_t s)
{
    if (widen_has_pair(dtype))
        return st->scale + 2 * g;
    if (!widen_is_k(dtype))
        return st->scale + g;
    if (dtype == CART_Q4_K || dtype == CART_Q5_K || dtype == CART_IQ4_XS)
        return st->scale + 2 * g + s / 2;
    return st->scale + 4 * g + s;
}

CART_ALWAYS_INLINE const float *widen_min(int dtype, const struct widen_state *st, size_t g,
                                          size_t s)
{
    const float *scale = widen_scale(dtype, st, g, s);

    return widen_has_pair(dtype) ? scale + 1 : st->min + (scale - st->scale);
}

/* Rows of W that come next lie behind these ones. They are fetched in the order of their addresses,
 * which the hardware follows, as fast as what is read now; into the first-level cache only if they
 * leave room there. */
CART_ALWAYS_INLINE void widen_fetch(const uint8_t *p, size_t bytes, bool near)
{
    if (near) {
#pragma GCC unroll 16
        for (size_t line = 0; line < bytes; line += 64)
            _mm_prefetch((const void *)(p + line), _MM_HINT_T0);
    } else {
#pragma GCC unroll 16
        for (size_t line = 0; line < bytes; line += 64)
            _mm_prefetch((const void *)(p + line), _MM_HINT_T1);
    }
}

/* Whether ahead bytes of rows leave room. Floating types are read too fast for it to matter. */
CART_ALWAYS_INLINE bool widen_fetch_near(int dtype, size_t ahead)
{
    return !widen_is_float(dtype) && ahead <= 12 << 10;
}

#endif
#endif
