/* Between the files of the matrix product, its tests and benches: products with a chosen variant,
 * and the ones through OpenBLAS. Contracts as in matmul.h. */
#ifndef CART_TENSOR_MATMUL_IMPL_H
#define CART_TENSOR_MATMUL_IMPL_H

#include "tensor/matmul.h"

struct cart_matmul_kernels;

void cart_matmul_products_with(const struct cart_matmul_kernels *kernels,
                               const struct cart_product *products, size_t n, const float *x,
                               size_t ldx, size_t M, struct cart_pool *pool);
void cart_matmul_forward_with(const struct cart_matmul_kernels *kernels, float *y, size_t ldy,
                              const float *x, size_t ldx, size_t M, const struct cart_matrix *w,
                              const float *bias, bool add, struct cart_pool *pool);
void cart_matmul_backward_with(const struct cart_matmul_kernels *kernels, float *dx, size_t lddx,
                               const float *dy, size_t lddy, size_t M, const struct cart_matrix *w,
                               bool add, struct cart_pool *pool);

int cart_matmul_blas_load(struct cart_err *err); /* one thread inside: the pool splits */
void cart_matmul_forward_blas(float *y, size_t ldy, const float *x, size_t ldx, size_t M,
                              const struct cart_matrix *w, const float *bias, bool add,
                              struct cart_pool *pool);
void cart_matmul_backward_blas(float *dx, size_t lddx, const float *dy, size_t lddy, size_t M,
                               const struct cart_matrix *w, bool add, struct cart_pool *pool);

#endif
