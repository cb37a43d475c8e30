/* Attention of the f32 class over the lanes of this variant. */
#include "tensor/attention_cells_f32_impl.h"

#include "tensor/attention_impl.h"

const struct cart_attention_kernels CART_VARIANT(cart_attention_kernels) = {
    .values = VALUES,
    .forward = forward,
    .forward_span = forward_span,
    .join = join,
    .backward = backward,
};
