/* How storage types lie in memory: spans, groups, and the few loads that decoding is made of.
 * Included once through widen_x86_impl.h; a fragment of code, not an interface. */
#ifndef CART_TENSOR_WIDEN_X86_LAYOUT_IMPL_H
#define CART_TENSOR_WIDEN_X86_LAYOUT_IMPL_H

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

#endif
