/* Attention over the lanes of this variant. */
#include "tensor/attention_impl.h"

const struct cart_attention_kernels CART_VARIANT(cart_attention_kernels) = {forward, forward_span,
                                                                            join, backward};
