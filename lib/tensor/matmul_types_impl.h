/* A variant's kernels that depend on the type of the weights: one function for each type, and the
 * tables that find them. The file that includes it, once, defines for a type known at compile time
 *   fused_rows(t, w, dtype, R)                a tile of R rows, 2 to FUSED_ROWS (4), of x
 *   gemv_rows(y, x, w, dtype)                 one row of x by CART_GEMV_ROWS of W
 *   widen_row(row, k0, n, out, step, dtype)   cells of a row of W
 * and gets fused, gemv and widen of matmul_kernels.h. */
#ifndef CART_TENSOR_MATMUL_TYPES_IMPL_H
#define CART_TENSOR_MATMUL_TYPES_IMPL_H

#include "tensor/matmul_kernels.h"

/* One function per type and number of rows. */
#define INSTANCES(type)                                                                            \
    static void fused2_##type(const struct cart_tile *t, const struct cart_rows *w)                \
    {                                                                                              \
        fused_rows(t, w, CART_##type, 2);                                                          \
    }                                                                                              \
    static void fused3_##type(const struct cart_tile *t, const struct cart_rows *w)                \
    {                                                                                              \
        fused_rows(t, w, CART_##type, 3);                                                          \
    }                                                                                              \
    static void fused4_##type(const struct cart_tile *t, const struct cart_rows *w)                \
    {                                                                                              \
        fused_rows(t, w, CART_##type, 4);                                                          \
    }                                                                                              \
    static void gemv_##type(float *y, const float *x, const struct cart_rows *w)                   \
    {                                                                                              \
        gemv_rows(y, x, w, CART_##type);                                                           \
    }                                                                                              \
    static void widen_##type(const void *row, size_t k0, size_t n, float *out, size_t step)        \
    {                                                                                              \
        widen_row(row, k0, n, out, step, CART_##type);                                             \
    }

#define EACH_TYPE(f)                                                                               \
    f(F32) f(F16) f(BF16) f(Q8_0) f(Q4_0) f(Q4_1) f(Q5_0) f(Q5_1) f(Q2_K) f(Q3_K) f(Q4_K) f(Q5_K)  \
        f(Q6_K) f(IQ4_NL) f(IQ4_XS) f(MXFP4)

EACH_TYPE(INSTANCES)

typedef void fused_fn(const struct cart_tile *t, const struct cart_rows *w);

#define ENTRY(type)                                                                                \
    [CART_##type] = {{fused2_##type, fused3_##type, fused4_##type}, gemv_##type, widen_##type},

static const struct {
    fused_fn *fused[FUSED_ROWS - 1];
    void (*gemv)(float *y, const float *x, const struct cart_rows *w);
    void (*widen)(const void *row, size_t k0, size_t n, float *out, size_t step);
} entries[] = {EACH_TYPE(ENTRY)};

static void fused(const struct cart_tile *t, const struct cart_rows *w, size_t R)
{
    entries[w->dtype].fused[R - 2](t, w);
}

static void gemv(float *y, const float *x, const struct cart_rows *w)
{
    entries[w->dtype].gemv(y, x, w);
}

static void widen(int dtype, const void *row, size_t k0, size_t n, float *out, size_t step)
{
    entries[dtype].widen(row, k0, n, out, step);
}

#endif
