/* Attention over the lanes of this variant. */
#include "tensor/attention_impl.h"

const struct cart_attention_kernels cart_attention_kernels_avx2 = {forward, forward_span, join,
                                                                   backward};
