/* Which kernels the matrix products run on: those of the CPU path in the class that was chosen, or
 * OpenBLAS. */
#include "tensor/matmul.h"

#include "tensor/dispatch.h"
#include "tensor/matmul_impl.h"

static enum cart_kernels selected = CART_KERNELS_AUTO;
static enum cart_precision selected_class = CART_PRECISION_F32;

int cart_kernels_select(enum cart_kernels kernels, enum cart_precision class, struct cart_err *err)
{
    int r = 0;

#ifndef __SSE__
    if (class == CART_PRECISION_BF16)
        return cart_err_set(err, CART_EUSAGE, "--precision bf16: expected an x86-64 machine");
#endif
    if (class == CART_PRECISION_BF16 && kernels == CART_KERNELS_BLAS)
        return cart_err_set(err, CART_EUSAGE, "--precision bf16: not with --kernels blas");
    if (kernels == CART_KERNELS_BLAS)
        r = cart_matmul_blas_load(err);
    if (r == 0) {
        selected = kernels;
        selected_class = class;
    }
    return r;
}

enum cart_kernels cart_kernels_selected(void)
{
    return selected;
}

enum cart_precision cart_precision_selected(void)
{
    return selected_class;
}

static const struct cart_matmul_kernels *kernels_of_class(void)
{
    const struct cart_tensor_kernels *set = cart_tensor_kernels();

    return selected_class == CART_PRECISION_BF16 ? set->matmul_bf16 : set->matmul;
}

void cart_matmul_products(const struct cart_product *products, size_t n, const float *x, size_t ldx,
                          size_t M, struct cart_pool *pool)
{
    if (selected != CART_KERNELS_BLAS) {
        cart_matmul_products_with(kernels_of_class(), products, n, x, ldx, M, pool);
        return;
    }
    for (const struct cart_product *o = products; o < products + n; o++)
        cart_matmul_forward_blas(o->y, o->ldy, x, ldx, M, o->w, o->bias, o->add, pool);
}

void cart_matmul_forward(float *y, size_t ldy, const float *x, size_t ldx, size_t M,
                         const struct cart_matrix *w, const float *bias, bool add,
                         struct cart_pool *pool)
{
    const struct cart_product one = {w, bias, y, ldy, add};

    cart_matmul_products(&one, 1, x, ldx, M, pool);
}

void cart_matmul_backward(float *dx, size_t lddx, const float *dy, size_t lddy, size_t M,
                          const struct cart_matrix *w, bool add, struct cart_pool *pool)
{
    if (selected == CART_KERNELS_BLAS)
        cart_matmul_backward_blas(dx, lddx, dy, lddy, M, w, add, pool);
    else
        cart_matmul_backward_with(kernels_of_class(), dx, lddx, dy, lddy, M, w, add, pool);
}
