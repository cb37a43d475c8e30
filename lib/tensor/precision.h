/* The classes of compute: each its own contract of bits. f32 works on values as they are. bf16
 * rounds the factors of products to bf16 (nearest, ties to even; subnormal ones to zero), takes
 * them in pairs, and flushes every subnormal result to zero. cart_kernels_select chooses. */
#ifndef CART_TENSOR_PRECISION_H
#define CART_TENSOR_PRECISION_H

enum cart_precision { CART_PRECISION_F32, CART_PRECISION_BF16 };

enum cart_precision cart_precision_selected(void);

#endif
