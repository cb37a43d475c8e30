/* The one place where variants are picked at run time. A set holds, for each family of kernels, a
 * pointer to that family's struct of function pointers. To add a family: declare its struct here,
 * add one field, add its four instances (generic, fma, avx2, avx512) to the table in dispatch.c. */
#ifndef CART_TENSOR_DISPATCH_H
#define CART_TENSOR_DISPATCH_H

#include "base/attr.h"

struct cart_matmul_kernels;    /* tensor/matmul_kernels.h */
struct cart_attention_kernels; /* tensor/attention_kernels.h */
struct cart_ops_kernels;       /* tensor/ops_kernels.h */
struct cart_vocab_kernels;     /* tensor/vocab_kernels.h */

struct cart_tensor_kernels {
    const char *name; /* "generic", "fma", "avx2", "avx512" */
    const struct cart_matmul_kernels *matmul;
    const struct cart_matmul_kernels *matmul_bf16; /* of the bf16 class */
    const struct cart_attention_kernels *attention;
    const struct cart_attention_kernels *attention_bf16; /* of the bf16 class */
    const struct cart_ops_kernels *ops;
    const struct cart_vocab_kernels *vocab;
};

#define CART_TENSOR_SETS 4

/* The set of cart_cpu_path(); on the generic path the twin compiled with -mfma where the CPU has
 * it. */
const struct cart_tensor_kernels *cart_tensor_kernels(void);

/* Fills out with every set that this CPU can run, whatever CART_CPU says, and returns their number:
 * for tests and benches, which compare all of them. */
size_t cart_tensor_kernels_usable(const struct cart_tensor_kernels *out[CART_TENSOR_SETS]);

#endif
