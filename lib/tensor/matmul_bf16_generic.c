/* The bf16 class for the baseline, and its twin with FMA instructions. */
#include "tensor/matmul_bf16_impl.h"

const struct cart_matmul_kernels CART_VARIANT(cart_matmul_kernels_bf16) = {
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
