/* Backward tiles of the matrix products for AVX-512: six rows by four registers of columns.
 * Included once for each precision behind matmul_avx512_impl.h, whose chain it takes. One fragment
 * of code, not an interface. */
#ifndef CART_TENSOR_MATMUL_BACKWARD_AVX512_IMPL_H
#define CART_TENSOR_MATMUL_BACKWARD_AVX512_IMPL_H
#ifdef __AVX512F__

#include "tensor/matmul_avx512_impl.h"

CART_ALWAYS_INLINE void backward_rows(float *dx, size_t lddx, const float *dy, size_t lddy,
                                      const float *w, size_t ldw, size_t n, size_t R)
{
    enum { VECTORS = WIDE / LANES };
    __m512 c[ROWS][VECTORS];
    const float *g[ROWS];

#pragma GCC unroll 6
    for (size_t r = 0; r < R; r++) {
        g[r] = dy + r * lddy;
#pragma GCC unroll 4
        for (size_t v = 0; v < VECTORS; v++)
            c[r][v] = _mm512_loadu_ps(dx + r * lddx + LANES * v);
    }
    for (size_t i = 0; i < n; i++, w += ldw) {
        __m512 b[VECTORS];

#pragma GCC unroll 4
        for (size_t v = 0; v < VECTORS; v++)
            b[v] = _mm512_loadu_ps(w + LANES * v);
#pragma GCC unroll 6
        for (size_t r = 0; r < R; r++) {
            __m512 a = _mm512_set1_ps(g[r][i]);

            __asm__("" : "+v"(a));
#pragma GCC unroll 4
            for (size_t v = 0; v < VECTORS; v++)
                c[r][v] = chain(c[r][v], a, b[v]);
        }
    }
#pragma GCC unroll 6
    for (size_t r = 0; r < R; r++)
#pragma GCC unroll 4
        for (size_t v = 0; v < VECTORS; v++)
            _mm512_storeu_ps(dx + r * lddx + LANES * v, c[r][v]);
}

static void tile_backward(float *dx, size_t lddx, const float *dy, size_t lddy, const float *w,
                          size_t ldw, size_t n, size_t R)
{
    switch (R) {
    case 1:
        backward_rows(dx, lddx, dy, lddy, w, ldw, n, 1);
        break;
    case 2:
        backward_rows(dx, lddx, dy, lddy, w, ldw, n, 2);
        break;
    case 3:
        backward_rows(dx, lddx, dy, lddy, w, ldw, n, 3);
        break;
    case 4:
        backward_rows(dx, lddx, dy, lddy, w, ldw, n, 4);
        break;
    case 5:
        backward_rows(dx, lddx, dy, lddy, w, ldw, n, 5);
        break;
    default:
        backward_rows(dx, lddx, dy, lddy, w, ldw, n, 6);
        break;
    }
}

#endif
#endif
