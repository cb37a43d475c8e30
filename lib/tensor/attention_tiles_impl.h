/* The two register tiles that all of attention is made of. Included once by each attention variant
 * through attention_impl.h.
 * One fragment of code, not an interface: both tiles share their layout of keys. */
#ifndef CART_TENSOR_ATTENTION_TILES_IMPL_H
#define CART_TENSOR_ATTENTION_TILES_IMPL_H

#include "tensor/attention_kernels.h"
#include "tensor/lanes_impl.h"

#define BLOCK CART_ATTN_BLOCK
#define TILE_ROWS 6

static inline size_t min_size(size_t a, size_t b)
{
    return a < b ? a : b;
}

static inline size_t max_size(size_t a, size_t b)
{
    return a > b ? a : b;
}

/* Values at .. at + LANES - 1 of base, widened. */
CART_ALWAYS_INLINE struct lanes lanes_load_as(const int dtype, const void *base, size_t at)
{
    return dtype == CART_F32   ? lanes_load((const float *)base + at)
           : dtype == CART_F16 ? lanes_load_f16((const uint16_t *)base + at)
                               : lanes_load_bf16((const uint16_t *)base + at);
}

/* Keys or values of a block in their own type: values from `at` on of base. */
struct source {
    const void *base;
    size_t at;
    int dtype;
};

static inline struct source source_f32(const float *x)
{
    return (struct source){x, 0, CART_F32};
}

/* s[i][j] = chain over c ascending of q[i][c] * kt[c][j], for n rows and nv vectors of keys; kt and
 * s have rows of BLOCK. */
CART_ALWAYS_INLINE void dots_template(const int n, const int nv, const int dtype, const float *q,
                                      size_t ldq, size_t DH, const struct source *kt, float *s)
{
    size_t at = kt->at;
    struct lanes acc[TILE_ROWS][LANES_TILE];

#pragma GCC unroll 6
    for (int i = 0; i < n; i++)
#pragma GCC unroll 4
        for (int v = 0; v < nv; v++)
            acc[i][v] = lanes_set(0.0f);
    for (size_t c = 0; c < DH; c++, at += BLOCK, q++) {
        struct lanes k[LANES_TILE];

#pragma GCC unroll 4
        for (int v = 0; v < nv; v++) {
            k[v] = lanes_load_as(dtype, kt->base, at + (size_t)(LANES * v));
            lanes_pin(&k[v]);
        }
#pragma GCC unroll 6
        for (int i = 0; i < n; i++) {
            struct lanes x = lanes_set(q[(size_t)i * ldq]);

#pragma GCC unroll 4
            for (int v = 0; v < nv; v++)
                acc[i][v] = lanes_fma(x, k[v], acc[i][v]);
        }
    }
#pragma GCC unroll 6
    for (int i = 0; i < n; i++)
#pragma GCC unroll 4
        for (int v = 0; v < nv; v++)
            lanes_store(s + (size_t)i * BLOCK + LANES * v, acc[i][v]);
}

/* A sum of vectors with coefficients: out[i] += chain over x ascending in [x0, x1) of coef[i, x] *
 * vec[x], for n rows of nv vectors. */
struct sum_args {
    float *out;
    size_t ldo;
    const float *coef; /* coef[i * step_i + x * step_x] */
    size_t step_i, step_x;
    struct source vec;
    size_t ldv;
};

CART_ALWAYS_INLINE void sum_template(const int n, const int nv, const int dtype,
                                     const struct sum_args *a, size_t x0, size_t x1)
{
    struct lanes acc[TILE_ROWS][LANES_TILE];
    const float *coef = a->coef + x0 * a->step_x;
    size_t step_i = a->step_i, step_x = a->step_x, ldv = a->ldv, at = a->vec.at + x0 * ldv;

#pragma GCC unroll 6
    for (int i = 0; i < n; i++)
#pragma GCC unroll 4
        for (int v = 0; v < nv; v++)
            acc[i][v] = lanes_load(a->out + (size_t)i * a->ldo + LANES * v);
    for (size_t x = x0; x < x1; x++, coef += step_x, at += ldv) {
        struct lanes k[LANES_TILE];

#pragma GCC unroll 4
        for (int v = 0; v < nv; v++) {
            k[v] = lanes_load_as(dtype, a->vec.base, at + (size_t)(LANES * v));
            lanes_pin(&k[v]);
        }
#pragma GCC unroll 6
        for (int i = 0; i < n; i++) {
            struct lanes p = lanes_set(coef[(size_t)i * step_i]);

#pragma GCC unroll 4
            for (int v = 0; v < nv; v++)
                acc[i][v] = lanes_fma(p, k[v], acc[i][v]);
        }
    }
#pragma GCC unroll 6
    for (int i = 0; i < n; i++)
#pragma GCC unroll 4
        for (int v = 0; v < nv; v++)
            lanes_store(a->out + (size_t)i * a->ldo + LANES * v, acc[i][v]);
}

typedef void dots_fn(const float *q, size_t ldq, size_t DH, const struct source *kt, float *s);
typedef void sum_fn(const struct sum_args *a, size_t x0, size_t x1);

#define TILES(n, nv, type)                                                                         \
    static __attribute__((noinline)) void dots_##n##_##nv##_##type(                                \
        const float *q, size_t ldq, size_t DH, const struct source *kt, float *s)                  \
    {                                                                                              \
        dots_template(n, nv, CART_##type, q, ldq, DH, kt, s);                                      \
    }                                                                                              \
    static __attribute__((noinline)) void sum_##n##_##nv##_##type(const struct sum_args *a,        \
                                                                  size_t x0, size_t x1)            \
    {                                                                                              \
        sum_template(n, nv, CART_##type, a, x0, x1);                                               \
    }
#define TILES_OF(nv, type)                                                                         \
    TILES(1, nv, type)                                                                             \
    TILES(2, nv, type) TILES(3, nv, type) TILES(4, nv, type) TILES(5, nv, type) TILES(6, nv, type)
#define TILE_ROW(f, nv, type)                                                                      \
    {                                                                                              \
        f##_1_##nv##_##type, f##_2_##nv##_##type, f##_3_##nv##_##type, f##_4_##nv##_##type,        \
            f##_5_##nv##_##type, f##_6_##nv##_##type                                               \
    }
#define TILE_TABLE(f, nv)                                                                          \
    {                                                                                              \
        TILE_ROW(f, nv, F32), TILE_ROW(f, nv, F16), TILE_ROW(f, nv, BF16)                          \
    }

enum { KINDS = 3 };

/* The place of a type in the tables. */
static inline size_t kind_of(int dtype)
{
    return dtype == CART_F32 ? 0 : dtype == CART_F16 ? 1 : 2;
}

TILES_OF(1, F32)
TILES_OF(1, F16)
TILES_OF(1, BF16)
static dots_fn *const dots_narrow[KINDS][TILE_ROWS] = TILE_TABLE(dots, 1);
static sum_fn *const sum_narrow[KINDS][TILE_ROWS] = TILE_TABLE(sum, 1);
#if LANES_TILE == 4
TILES_OF(4, F32)
TILES_OF(4, F16)
TILES_OF(4, BF16)
static dots_fn *const dots_wide[KINDS][TILE_ROWS] = TILE_TABLE(dots, 4);
static sum_fn *const sum_wide[KINDS][TILE_ROWS] = TILE_TABLE(sum, 4);
#endif

/* Hands out pieces of a worker's scratch. */
static inline float *take(float **free_space, size_t n)
{
    float *p = *free_space;

    *free_space += (n + 15) / 16 * 16;
    return p;
}

#endif
