/* The two register tiles that all of attention is made of, the reading of blocks of keys, and their
 * layout. Included once by each attention variant through attention_impl.h.
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

/* s[i][j] = chain over c ascending of q[i][c] * kt[c][j], for n rows and nv vectors of keys; kt and
 * s have rows of BLOCK. */
CART_ALWAYS_INLINE void dots_template(const int n, const int nv, const float *q, size_t ldq,
                                      size_t DH, const float *kt, float *s)
{
    struct lanes acc[TILE_ROWS][LANES_TILE];

#pragma GCC unroll 6
    for (int i = 0; i < n; i++)
#pragma GCC unroll 4
        for (int v = 0; v < nv; v++)
            acc[i][v] = lanes_set(0.0f);
    for (size_t c = 0; c < DH; c++, kt += BLOCK, q++) {
        struct lanes k[LANES_TILE];

#pragma GCC unroll 4
        for (int v = 0; v < nv; v++) {
            k[v] = lanes_load(kt + LANES * v);
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
    const float *vec;
    size_t ldv;
};

CART_ALWAYS_INLINE void sum_template(const int n, const int nv, const struct sum_args *a, size_t x0,
                                     size_t x1)
{
    struct lanes acc[TILE_ROWS][LANES_TILE];
    const float *coef = a->coef + x0 * a->step_x, *vec = a->vec + x0 * a->ldv;
    size_t step_i = a->step_i, step_x = a->step_x, ldv = a->ldv;

#pragma GCC unroll 6
    for (int i = 0; i < n; i++)
#pragma GCC unroll 4
        for (int v = 0; v < nv; v++)
            acc[i][v] = lanes_load(a->out + (size_t)i * a->ldo + LANES * v);
    for (size_t x = x0; x < x1; x++, coef += step_x, vec += ldv) {
        struct lanes k[LANES_TILE];

#pragma GCC unroll 4
        for (int v = 0; v < nv; v++) {
            k[v] = lanes_load(vec + LANES * v);
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

#define TILES(n, nv)                                                                               \
    static __attribute__((noinline)) void dots_##n##_##nv(const float *q, size_t ldq, size_t DH,   \
                                                          const float *kt, float *s)               \
    {                                                                                              \
        dots_template(n, nv, q, ldq, DH, kt, s);                                                   \
    }                                                                                              \
    static __attribute__((noinline)) void sum_##n##_##nv(const struct sum_args *a, size_t x0,      \
                                                         size_t x1)                                \
    {                                                                                              \
        sum_template(n, nv, a, x0, x1);                                                            \
    }
#define TILES_OF(nv) TILES(1, nv) TILES(2, nv) TILES(3, nv) TILES(4, nv) TILES(5, nv) TILES(6, nv)
#define TILE_TABLE(f, nv) f##_1_##nv, f##_2_##nv, f##_3_##nv, f##_4_##nv, f##_5_##nv, f##_6_##nv

typedef void dots_fn(const float *q, size_t ldq, size_t DH, const float *kt, float *s);
typedef void sum_fn(const struct sum_args *a, size_t x0, size_t x1);

TILES_OF(1)
static dots_fn *const dots_narrow[TILE_ROWS] = {TILE_TABLE(dots, 1)};
static sum_fn *const sum_narrow[TILE_ROWS] = {TILE_TABLE(sum, 1)};
#if LANES_TILE == 4
TILES_OF(4)
static dots_fn *const dots_wide[TILE_ROWS] = {TILE_TABLE(dots, 4)};
static sum_fn *const sum_wide[TILE_ROWS] = {TILE_TABLE(sum, 4)};
#endif

/* Scores of n <= TILE_ROWS rows with keys j0 .. j1 - 1 of a block, in whole vectors. */
static void dots(size_t n, const float *q, size_t ldq, size_t DH, const float *kt, float *s,
                 size_t j0, size_t j1)
{
    size_t first = j0 / LANES * LANES;

#if LANES_TILE == 4
    if (j1 - first > 2 * LANES) {
        dots_wide[n - 1](q, ldq, DH, kt, s);
        return;
    }
#endif
    for (size_t j = first; j < j1; j += LANES)
        dots_narrow[n - 1](q, ldq, DH, kt + j, s + j);
}

static void sum_columns(size_t n, const struct sum_args *a, size_t DHp, size_t x0, size_t x1)
{
    struct sum_args part = *a;
    size_t c = 0;

    if (x0 >= x1)
        return;
#if LANES_TILE == 4
    for (; c + 4 * LANES <= DHp; c += 4 * LANES, part.out += 4 * LANES, part.vec += 4 * LANES)
        sum_wide[n - 1](&part, x0, x1);
#endif
    for (; c < DHp; c += LANES, part.out += LANES, part.vec += LANES)
        sum_narrow[n - 1](&part, x0, x1);
}

/* The same where row i takes only x in [lo[i], hi[i]): what all rows share as a tile, the rims row
 * by row. */
static void sum_banded(size_t n, const struct sum_args *a, size_t DHp, const size_t *lo,
                       const size_t *hi)
{
    size_t from = lo[0], to = hi[0];
    bool same = true;

    for (size_t i = 1; i < n; i++) {
        same &= lo[i] == lo[0] && hi[i] == hi[0];
        from = max_size(from, lo[i]);
        to = min_size(to, hi[i]);
    }
    if (same) {
        sum_columns(n, a, DHp, from, to);
        return;
    }
    if (from > to)
        from = to = SIZE_MAX;
    for (int rim = 0; rim < 2; rim++) {
        for (size_t i = 0; i < n; i++) {
            struct sum_args row = *a;

            row.out += i * a->ldo;
            row.coef += i * a->step_i;
            sum_columns(1, &row, DHp, rim ? max_size(to, lo[i]) : lo[i],
                        rim ? hi[i] : min_size(from, hi[i]));
        }
        if (rim == 0 && from < to)
            sum_columns(n, a, DHp, from, to);
    }
}

/* Walks the segments of one item in the order of logical keys. */
struct cursor {
    const struct cart_kv_segment *seg;
    size_t base; /* logical index of the first row of seg */
};

static void cursor_seek(struct cursor *c, const struct cart_attn_item *it, size_t key)
{
    if (key < c->base)
        *c = (struct cursor){it->segs, 0};
    while (key - c->base >= c->seg->rows)
        c->base += c->seg++->rows;
}

/* One row of n values widened to f32, zeros behind it up to whole vectors. */
static void widen_row(float *out, const void *base, int dtype, size_t at, size_t n)
{
    size_t i = 0;

    if (dtype == CART_F32) {
        const float *x = (const float *)base + at;

        for (; i + LANES <= n; i += LANES)
            lanes_store(out + i, lanes_load(x + i));
        if (i < n)
            lanes_store(out + i, lanes_load_n(x + i, n - i));
        return;
    }
    for (; i + LANES <= n; i += LANES) {
        const uint16_t *x = (const uint16_t *)base + at + i;

        lanes_store(out + i, dtype == CART_F16 ? lanes_load_f16(x) : lanes_load_bf16(x));
    }
    if (i < n) {
        uint16_t rest[LANES] = {0};

        memcpy(rest, (const uint16_t *)base + at + i, (n - i) * sizeof rest[0]);
        lanes_store(out + i, dtype == CART_F16 ? lanes_load_f16(rest) : lanes_load_bf16(rest));
    }
}

/* A block of keys as the tiles want it: rows [BLOCK] of k and v, ldk and ldv apart (in place where
 * they lie in one f32 segment and end at a whole vector; else the copies), DHp values each; keys
 * that the block lacks are zero. */
struct block {
    const float *k, *v;
    size_t ldk, ldv;
    float *k_copy, *v_copy; /* [BLOCK][DHp] */
};

/* Reads keys first .. first + n - 1 of KV head kv, 0 < n <= BLOCK. compact_k and compact_v copy in
 * any case: rows that many tiles read again and again should not share a few sets of the cache. */
static void block_read(struct block *b, struct cursor *c, const struct cart_attn_item *it,
                       const struct cart_attn_dims *d, size_t kv, size_t first, size_t n,
                       bool compact_k, bool compact_v)
{
    size_t DHp = cart_attn_padded(d->DH);
    bool plain;

    cursor_seek(c, it, first);
    plain = n == BLOCK && DHp == d->DH && c->seg->dtype == CART_F32 &&
            first - c->base + n <= c->seg->rows;
    b->k = b->k_copy;
    b->v = b->v_copy;
    b->ldk = b->ldv = DHp;
    if (plain && !compact_k) {
        b->k = (const float *)c->seg->k + (first - c->base) * c->seg->stride + kv * d->DH;
        b->ldk = c->seg->stride;
    }
    if (plain && !compact_v) {
        b->v = (const float *)c->seg->v + (first - c->base) * c->seg->stride + kv * d->DH;
        b->ldv = c->seg->stride;
    }
    if (b->k != b->k_copy && b->v != b->v_copy)
        return;
    for (size_t j = 0; j < n; j++) {
        size_t at;

        cursor_seek(c, it, first + j);
        at = (first + j - c->base) * c->seg->stride + kv * d->DH;
        if (b->k == b->k_copy)
            widen_row(b->k_copy + j * DHp, c->seg->k, c->seg->dtype, at, d->DH);
        if (b->v == b->v_copy)
            widen_row(b->v_copy + j * DHp, c->seg->v, c->seg->dtype, at, d->DH);
    }
    memset(b->k_copy + n * DHp, 0, (BLOCK - n) * DHp * sizeof(float));
    memset(b->v_copy + n * DHp, 0, (BLOCK - n) * DHp * sizeof(float));
}

/* out [DHp][BLOCK]: sixteen keys side by side. */
static void block_transpose(float *out, const float *rows, size_t ld, size_t DHp)
{
    for (size_t j = 0; j < BLOCK; j += LANES)
        for (size_t c = 0; c < DHp; c += LANES) {
            struct lanes in[LANES];

#pragma GCC unroll 16
            for (size_t i = 0; i < LANES; i++)
                in[i] = lanes_load(rows + (j + i) * ld + c);
            lanes_transpose(in, out + c * BLOCK + j, BLOCK);
        }
}

/* Hands out pieces of a worker's scratch. */
static inline float *take(float **free_space, size_t n)
{
    float *p = *free_space;

    *free_space += (n + 15) / 16 * 16;
    return p;
}

#endif
