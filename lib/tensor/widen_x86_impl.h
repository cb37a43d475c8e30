/* What every storage type holds, as x86 vectors: sixteen codes of a block as signed bytes, and the
 * scale and the (negated) minimum they go with, so that a value is scale * code or fma(scale, code,
 * min). The templates of widening, of the fused tiles and of the one-row product are made of these.
 * Only for files compiled with AVX2, FMA and F16C at least; a fragment of code, not an interface.
 *
 * Kernels go by *spans* of 256 values: one block of a K format, eight blocks of the others. The
 * heads of a span are decoded together, first; then come its *groups* (64 values of a K format, 32
 * of the others) in pieces of sixteen. Piece s of a group is a constant where these functions are
 * used. The last span of a row may have fewer groups; what remains behind it, of a floating type,
 * goes by values. */
#ifndef CART_TENSOR_WIDEN_X86_IMPL_H
#define CART_TENSOR_WIDEN_X86_IMPL_H
#ifdef __AVX2__

#include "tensor/widen_x86_codes_impl.h"

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
