/* Norms, rotation, gating and elementwise steps in plain C. */
#include "tensor/variant.h"
#define OPS_NAME CART_VARIANT(cart_ops_kernels)
#include "tensor/ops_impl.h"
