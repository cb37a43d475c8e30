/* Attention of the bf16 class over the lanes of this variant. */
#include "tensor/attention_cells_bf16_impl.h"

#include "tensor/attention_impl.h"

const struct cart_attention_kernels cart_attention_kernels_bf16_avx2 = {
    .values = VALUES,
    .forward = forward,
    .forward_span = forward_span,
    .join = join,
    .backward = backward,
};
