/* What a variant provides for vocab.c: the steps of vocab.h for one row of logits. vocab_ref.c
 * holds their definition as one more set. Private to lib/tensor and its tests. */
#ifndef CART_TENSOR_VOCAB_KERNELS_H
#define CART_TENSOR_VOCAB_KERNELS_H

#include "tensor/vocab.h"

struct cart_vocab_kernels {
    struct cart_logsum (*logsum)(const float *row, size_t V);
    void (*topk)(uint32_t *ids, float *values, size_t k, const float *row, size_t V);
    uint32_t (*argmax)(const float *row, size_t V);
    void (*distill_backward)(float *row, size_t V, const struct cart_logsum *s, const uint32_t *ids,
                             const float *p, size_t n);
};

extern const struct cart_vocab_kernels cart_vocab_kernels_ref;
extern const struct cart_vocab_kernels cart_vocab_kernels_generic;
extern const struct cart_vocab_kernels cart_vocab_kernels_fma;
extern const struct cart_vocab_kernels cart_vocab_kernels_avx2;
extern const struct cart_vocab_kernels cart_vocab_kernels_avx512;

#endif
