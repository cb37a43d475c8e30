/* Results of the bf16 class are flushed: the control register does it for every path alike, as
 * VDPBF16PS does on its own. values is that of the kernels: those of a cell. Private to
 * lib/tensor. */
#ifndef CART_TENSOR_FLUSH_IMPL_H
#define CART_TENSOR_FLUSH_IMPL_H

#include "base/attr.h"

#ifdef __SSE__
#include <xmmintrin.h>
#endif

static inline unsigned flush_begin(size_t values)
{
#ifdef __SSE__
    unsigned old = _mm_getcsr();

    if (values == 2)
        _mm_setcsr(old | 0x8040U);
    return old;
#else
    (void)values;
    return 0;
#endif
}

static inline void flush_end(size_t values, unsigned old)
{
#ifdef __SSE__
    if (values == 2)
        _mm_setcsr(old);
#else
    (void)values;
    (void)old;
#endif
}

#endif
