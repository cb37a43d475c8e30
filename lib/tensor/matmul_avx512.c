/* The matrix products of the f32 class for AVX-512: a cell is one value. */
#include "tensor/matmul_kernels.h"

#include "tensor/widen_avx512_impl.h"

enum { VALUES = 1 };

CART_ALWAYS_INLINE __m512 chain(__m512 c, __m512 a, __m512 b)
{
    return _mm512_fmadd_ps(a, b, c);
}

CART_ALWAYS_INLINE __m512 cell_of(__m512 v0, __m512 v1)
{
    (void)v1;
    return v0;
}

#include "tensor/matmul_backward_avx512_impl.h"
#include "tensor/matmul_fused_avx512_impl.h"

const struct cart_matmul_kernels cart_matmul_kernels_avx512 = {
    .values = VALUES,
    .rows = ROWS,
    .fused_rows = FUSED_ROWS,
    .widen = widen,
    .pack = pack,
    .tile = tile,
    .fused = fused,
    .gemv = gemv,
    .tile_backward = tile_backward,
};
