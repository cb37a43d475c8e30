/* The two register tiles that all of attention is made of. Included once by each attention variant
 * through attention_impl.h.
 * One fragment of code, not an interface: both tiles share their layout of keys. */
#ifndef CART_TENSOR_ATTENTION_TILES_IMPL_H
#define CART_TENSOR_ATTENTION_TILES_IMPL_H

#include "tensor/attention_sources_impl.h"

#define TILE_ROWS 6

/* s[i][j] = chain over the cells c ascending of q[i][c] * kt[c][j], for n rows and nv vectors of
 * keys; kt and s have rows of BLOCK. steps cells hold DH values. */
CART_ALWAYS_INLINE void dots_template(const int n, const int nv, const int type, const float *q,
                                      size_t ldq, size_t steps, const struct source *kt, float *s)
{
    size_t at = kt->at, ld = type == CELLS ? BLOCK : VALUES * BLOCK;
    struct lanes acc[TILE_ROWS][LANES_TILE];

#pragma GCC unroll 6
    for (int i = 0; i < n; i++)
#pragma GCC unroll 4
        for (int v = 0; v < nv; v++)
            acc[i][v] = lanes_set(0.0f);
    for (size_t c = 0; c < steps; c++, at += ld, q++) {
        struct lanes k[LANES_TILE];

#pragma GCC unroll 4
        for (int v = 0; v < nv; v++) {
            k[v] = cells_load(type, kt->base, at + (size_t)(LANES * v), BLOCK);
            lanes_pin(&k[v]);
        }
#pragma GCC unroll 6
        for (int i = 0; i < n; i++) {
            struct lanes x = lanes_set(q[(size_t)i * ldq]);

#pragma GCC unroll 4
            for (int v = 0; v < nv; v++)
                acc[i][v] = cells_chain(x, k[v], acc[i][v]);
        }
    }
#pragma GCC unroll 6
    for (int i = 0; i < n; i++)
#pragma GCC unroll 4
        for (int v = 0; v < nv; v++)
            lanes_store(s + (size_t)i * BLOCK + LANES * v, acc[i][v]);
}

/* A sum of vectors with coefficients, both cells: out[i] += chain over x ascending in [x0, x1) of
 * coef[i, x] * vec[x], for n rows of nv vectors. */
struct sum_args {
    float *out;
    size_t ldo;
    const float *coef; /* coef[i * step_i + x * step_x] */
    size_t step_i, step_x;
    struct source vec; /* rows of cells, or of values, ldv apart */
    size_t ldv;
};

CART_ALWAYS_INLINE void sum_template(const int n, const int nv, const int type,
                                     const struct sum_args *a, size_t x0, size_t x1)
{
    struct lanes acc[TILE_ROWS][LANES_TILE];
    const float *coef = a->coef + x0 * a->step_x;
    size_t step_i = a->step_i, step_x = a->step_x, ldv = a->ldv;
    size_t ld = type == CELLS ? ldv : VALUES * ldv, at = a->vec.at + x0 * ld;

#pragma GCC unroll 6
    for (int i = 0; i < n; i++)
#pragma GCC unroll 4
        for (int v = 0; v < nv; v++)
            acc[i][v] = lanes_load(a->out + (size_t)i * a->ldo + LANES * v);
    for (size_t x = x0; x < x1; x++, coef += step_x, at += ld) {
        struct lanes k[LANES_TILE];

#pragma GCC unroll 4
        for (int v = 0; v < nv; v++) {
            k[v] = cells_load(type, a->vec.base, at + (size_t)(LANES * v), ldv);
            lanes_pin(&k[v]);
        }
#pragma GCC unroll 6
        for (int i = 0; i < n; i++) {
            struct lanes p = lanes_set(coef[(size_t)i * step_i]);

#pragma GCC unroll 4
            for (int v = 0; v < nv; v++)
                acc[i][v] = cells_chain(p, k[v], acc[i][v]);
        }
    }
#pragma GCC unroll 6
    for (int i = 0; i < n; i++)
#pragma GCC unroll 4
        for (int v = 0; v < nv; v++)
            lanes_store(a->out + (size_t)i * a->ldo + LANES * v, acc[i][v]);
}

typedef void dots_fn(const float *q, size_t ldq, size_t steps, const struct source *kt, float *s);
typedef void sum_fn(const struct sum_args *a, size_t x0, size_t x1);

#define TILES(n, nv, type)                                                                         \
    static __attribute__((noinline)) void dots_##n##_##nv##_##type(                                \
        const float *q, size_t ldq, size_t steps, const struct source *kt, float *s)               \
    {                                                                                              \
        dots_template(n, nv, type, q, ldq, steps, kt, s);                                          \
    }                                                                                              \
    static __attribute__((noinline)) void sum_##n##_##nv##_##type(const struct sum_args *a,        \
                                                                  size_t x0, size_t x1)            \
    {                                                                                              \
        sum_template(n, nv, type, a, x0, x1);                                                      \
    }
#define TILES_OF(nv, type)                                                                         \
    TILES(1, nv, type)                                                                             \
    TILES(2, nv, type) TILES(3, nv, type) TILES(4, nv, type) TILES(5, nv, type) TILES(6, nv, type)
#define TILE_ROW(f, nv, type)                                                                      \
    {                                                                                              \
        f##_1_##nv##_##type, f##_2_##nv##_##type, f##_3_##nv##_##type, f##_4_##nv##_##type,        \
            f##_5_##nv##_##type, f##_6_##nv##_##type                                               \
    }
#if VALUES == 1
#define TILES_OF_CELLS(nv)
#define TILE_TABLE(f, nv)                                                                          \
    {                                                                                              \
        TILE_ROW(f, nv, F32), TILE_ROW(f, nv, F16), TILE_ROW(f, nv, BF16)                          \
    }
#else
#define TILES_OF_CELLS(nv) TILES_OF(nv, CELLS)
#define TILE_TABLE(f, nv)                                                                          \
    {                                                                                              \
        TILE_ROW(f, nv, F32), TILE_ROW(f, nv, F16), TILE_ROW(f, nv, BF16), TILE_ROW(f, nv, CELLS)  \
    }
#endif

enum { KINDS = VALUES == 1 ? 3 : 4 };

/* The place of a type in the tables. */
static inline size_t kind_of(int type)
{
    return type == F32 ? 0 : type == F16 ? 1 : type == BF16 ? 2 : 3;
}

TILES_OF(1, F32)
TILES_OF(1, F16)
TILES_OF(1, BF16)
TILES_OF_CELLS(1)
static dots_fn *const dots_narrow[KINDS][TILE_ROWS] = TILE_TABLE(dots, 1);
static sum_fn *const sum_narrow[KINDS][TILE_ROWS] = TILE_TABLE(sum, 1);
#if LANES_TILE == 4
TILES_OF(4, F32)
TILES_OF(4, F16)
TILES_OF(4, BF16)
TILES_OF_CELLS(4)
static dots_fn *const dots_wide[KINDS][TILE_ROWS] = TILE_TABLE(dots, 4);
static sum_fn *const sum_wide[KINDS][TILE_ROWS] = TILE_TABLE(sum, 4);
#endif

#endif
