/* Sizes that the files of the matrix product share. One fragment of code, not an
 * interface. */
#ifndef CART_TENSOR_MATMUL_SPLIT_IMPL_H
#define CART_TENSOR_MATMUL_SPLIT_IMPL_H

#include "base/attr.h"
#include "tensor/flush_impl.h"
#include "tensor/matmul_kernels.h"

static inline size_t ceil_div(size_t a, size_t b)
{
    return (a + b - 1) / b;
}

static inline size_t round_up(size_t a, size_t b)
{
    return ceil_div(a, b) * b;
}

static inline size_t min_size(size_t a, size_t b)
{
    return a < b ? a : b;
}

static inline size_t max_size(size_t a, size_t b)
{
    return a > b ? a : b;
}

/* Rows of the next tile when left remain. The first one of a range widens as it goes, with fewer
 * rows. */
static inline size_t tile_rows(const struct cart_matmul_kernels *kernels, size_t left, bool first)
{
    if (first && kernels->fused_rows) {
        if (left <= kernels->fused_rows)
            return left;
        return min_size(kernels->fused_rows, ceil_div(left, 2));
    }
    return ceil_div(left, ceil_div(left, kernels->rows));
}

#endif
