/* Attention of the bf16 class over the lanes of this variant. */
#include "tensor/attention_cells_bf16_impl.h"

#include "tensor/attention_impl.h"

const struct cart_attention_kernels CART_VARIANT(cart_attention_kernels_bf16) = {
    .values = VALUES,
    .forward = forward,
    .forward_span = forward_span,
    .join = join,
    .backward = backward,
};
