/* Products with a frozen weight matrix in its own encoding. No gradient of the weights exists.
 *
 * Order of the forward sum (the contract; cart_matmul_forward_ref is its definition). K is padded
 * with zeros to a multiple of 16; lane i of sixteen f32 lanes takes k = i, i + 16, ... in ascending
 * order, one fmaf each, from +0; then the lanes are added as a tree of halves: l[i] += l[i + 8],
 * then 4, 2, 1. Then "+ bias[n]" if there is one; then "y_old + that" if add. Order of the backward
 * sum: one chain per element, from the old dx, ascending n: dx = fmaf(dy[n], W[n][k], dx). Every
 * variant gives these bits for any thread count, M and CPU.
 *
 * The bf16 class is another contract of the same kind, at up to twice the speed where the CPU has
 * VDPBF16PS. Both factors are rounded to bf16 (nearest, ties to even; subnormal ones to zero), and
 * every result that is subnormal is zero. Forward: K is padded to a multiple of 32; lane i takes
 * the pair k = 2i, 2i + 1 of each 32 in ascending order, the odd one first, one fmaf each; the rest
 * as above. Backward: n ascends in pairs, the odd one of a pair first; N is padded to a multiple of
 * 2. The instruction computes just that: Intel's manual, VDPBF16PS. */
#ifndef CART_TENSOR_MATMUL_H
#define CART_TENSOR_MATMUL_H

#include "base/pool.h"
#include "tensor/dtype.h"
#include "tensor/precision.h"

/* W [N, K], row-major, row_bytes apart. Borrowed: usually a part of a mapped file. Rows may be
 * stored in another order than they are counted in: with halves set, each 2 * halves of them are
 * stored as those of even number, then those of odd number (the halves of a head whose rotated
 * pairs are to lie side by side). Sums follow the counted order. */
struct cart_matrix {
    int dtype; /* enum cart_dtype */
    size_t N, K;
    size_t row_bytes;
    const void *data;
    size_t halves; /* 0: stored as counted; else N is a multiple of 2 * halves */
};

/* Row n < N, wherever it is stored. */
static inline const uint8_t *cart_matrix_row(const struct cart_matrix *w, size_t n)
{
    if (w->halves) {
        size_t i = n % (2 * w->halves);

        n = n - i + i % 2 * w->halves + i / 2;
    }
    return (const uint8_t *)w->data + n * w->row_bytes;
}

/* K > 0. y [M, N] (rows ldy floats apart) = x [M, K] (ldx) . W^T (+ bias [N]) (+ y if add). y may
 * not overlap x. */
void cart_matmul_forward(float *y, size_t ldy, const float *x, size_t ldx, size_t M,
                         const struct cart_matrix *w, const float *bias, bool add,
                         struct cart_pool *pool);

/* One of several products with the same x: as cart_matmul_forward. */
struct cart_product {
    const struct cart_matrix *w;
    const float *bias; /* or NULL */
    float *y;
    size_t ldy;
    bool add;
};

/* n >= 1 products, all of the same K, each with the bits of its own cart_matmul_forward, at once.
 * No y may overlap another or x. */
void cart_matmul_products(const struct cart_product *products, size_t n, const float *x, size_t ldx,
                          size_t M, struct cart_pool *pool);

/* dx [M, K] (lddx) = dy [M, N] (lddy) . W, or with add, += . */
void cart_matmul_backward(float *dx, size_t lddx, const float *dy, size_t lddy, size_t M,
                          const struct cart_matrix *w, bool add, struct cart_pool *pool);

/* The definitions, of the class named. */
void cart_matmul_forward_ref(enum cart_precision precision, float *y, size_t ldy, const float *x,
                             size_t ldx, size_t M, const struct cart_matrix *w, const float *bias,
                             bool add);
void cart_matmul_backward_ref(enum cart_precision precision, float *dx, size_t lddx,
                              const float *dy, size_t lddy, size_t M, const struct cart_matrix *w,
                              bool add);

/* auto: kernels of ours, of the CPU path. blas: matrix products through OpenBLAS over rows widened
 * block by block; close, but not the exact bits. Sets the class of attention too. Process-wide;
 * call before threads start. OpenBLAS has one thread: the pool splits. CART_EUSAGE for a class that
 * does not exist: bf16 through OpenBLAS, or on another machine than x86-64. */
enum cart_kernels { CART_KERNELS_AUTO, CART_KERNELS_BLAS };
int cart_kernels_select(enum cart_kernels kernels, enum cart_precision precision,
                        struct cart_err *err) CART_MUST_USE;
enum cart_kernels cart_kernels_selected(void);

#endif
