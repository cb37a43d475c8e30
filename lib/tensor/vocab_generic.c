/* Softmax statistics, top-k and the distillation gradient in plain C. */
#include "tensor/variant.h"
#define VOCAB_NAME CART_VARIANT(cart_vocab_kernels)
#include "tensor/vocab_impl.h"
