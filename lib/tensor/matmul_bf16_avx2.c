/* The bf16 class on CPUs with AVX2 and without VDPBF16PS: the plain source, as the compiler
 * vectorises it. */
#include "tensor/matmul_bf16_impl.h"

const struct cart_matmul_kernels cart_matmul_kernels_bf16_avx2 = {
    .values = VALUES,
    .rows = ROWS,
    .fused_rows = 0,
    .widen = widen,
    .widen_pair = widen_pair,
    .pack = pack,
    .tile = tile,
    .gemv = gemv,
    .tile_backward = tile_backward,
};
