/* The matrix products of the bf16 class by VDPBF16PS: a cell is a pair of values. The instruction
 * flushes subnormal numbers to zero whatever the control register says. */
#include "tensor/matmul_kernels.h"

#include "tensor/widen_avx512_impl.h"

enum { VALUES = 2 };

CART_ALWAYS_INLINE __m512 chain(__m512 c, __m512 a, __m512 b)
{
    return _mm512_dpbf16_ps(c, (__m512bh)a, (__m512bh)b);
}

CART_ALWAYS_INLINE __m512 cell_of(__m512 v0, __m512 v1)
{
    return (__m512)_mm512_cvtne2ps_pbh(v1, v0);
}

#include "tensor/matmul_backward_avx512_impl.h"
#include "tensor/matmul_fused_avx512_impl.h"

/* Sixteen pairs, even[i] below odd[i]. */
CART_ALWAYS_INLINE __m512 pair_of(__m512 even, __m512 odd)
{
    const __m512i order =
        _mm512_set_epi16(31, 15, 30, 14, 29, 13, 28, 12, 27, 11, 26, 10, 25, 9, 24, 8, 23, 7, 22, 6,
                         21, 5, 20, 4, 19, 3, 18, 2, 17, 1, 16, 0);

    return (__m512)_mm512_permutexvar_epi16(order, (__m512i)_mm512_cvtne2ps_pbh(odd, even));
}

static void widen_pair(int dtype, const void *even, const void *odd, size_t k0, size_t n,
                       float *out)
{
    float wide[2][256] = {{0}};

    cart_matmul_kernels_avx512.widen(dtype, even, k0, n, wide[0], LANES);
    if (odd)
        cart_matmul_kernels_avx512.widen(dtype, odd, k0, n, wide[1], LANES);
    for (size_t k = 0; k < n; k += LANES)
        _mm512_storeu_ps(out + k,
                         pair_of(_mm512_loadu_ps(wide[0] + k), _mm512_loadu_ps(wide[1] + k)));
}

const struct cart_matmul_kernels cart_matmul_kernels_bf16_avx512 = {
    .values = VALUES,
    .rows = ROWS,
    .fused_rows = FUSED_ROWS,
    .widen = widen,
    .widen_pair = widen_pair,
    .pack = pack,
    .tile = tile,
    .fused = fused,
    .gemv = gemv,
    .tile_backward = tile_backward,
};
