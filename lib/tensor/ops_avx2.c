/* Norms, rotation, gating and elementwise steps over the lanes of this variant. */
#define OPS_NAME cart_ops_kernels_avx2
#include "tensor/ops_impl.h"
