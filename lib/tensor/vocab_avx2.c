/* Softmax statistics, top-k and the distillation gradient over the lanes of this variant. */
#define VOCAB_NAME cart_vocab_kernels_avx2
#include "tensor/vocab_impl.h"
