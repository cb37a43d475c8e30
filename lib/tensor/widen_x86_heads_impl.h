/* The heads of a span: scales and minima of its blocks. Included once through widen_x86_impl.h; a
 * fragment of code, not an interface. */
#ifndef CART_TENSOR_WIDEN_X86_HEADS_IMPL_H
#define CART_TENSOR_WIDEN_X86_HEADS_IMPL_H

#include "tensor/widen_x86_layout_impl.h"

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

#endif
