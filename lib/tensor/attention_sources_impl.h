/* Where keys, values and rows come from, and how sixteen of them are read: as values or as the
 * cells of the class. Included once by each attention variant through attention_impl.h; a fragment
 * of code, not an interface. */
#ifndef CART_TENSOR_ATTENTION_SOURCES_IMPL_H
#define CART_TENSOR_ATTENTION_SOURCES_IMPL_H

#include "tensor/attention_kernels.h"
#include "tensor/lanes_impl.h"

#define BLOCK CART_ATTN_BLOCK

/* Of cells: a type of its own where a cell is not a value of f32. */
enum { F32 = CART_F32, F16 = CART_F16, BF16 = CART_BF16, CELLS = VALUES == 1 ? CART_F32 : -1 };

/* Keys or values of a block in their own type: from `at` on of base. */
struct source {
    const void *base;
    size_t at;
    int type; /* enum cart_dtype, or CELLS */
};

static inline struct source source_cells(const float *x)
{
    return (struct source){x, 0, CELLS};
}

static inline size_t min_size(size_t a, size_t b)
{
    return a < b ? a : b;
}

static inline size_t max_size(size_t a, size_t b)
{
    return a > b ? a : b;
}

static inline size_t round_down(size_t a, size_t b)
{
    return a / b * b;
}

static inline size_t round_up(size_t a, size_t b)
{
    return (a + b - 1) / b * b;
}

/* Hands out pieces of a worker's scratch. */
static inline float *take(float **free_space, size_t n)
{
    float *p = *free_space;

    *free_space += round_up(n, 16);
    return p;
}

/* DHc: the cells along a row of DH values, filled up to whole vectors. */
static inline size_t cells_padded(size_t DH)
{
    return round_up(DH, LANES * VALUES) / VALUES;
}

/* Values at .. at + LANES - 1 of base, widened. */
CART_ALWAYS_INLINE struct lanes lanes_load_as(const int type, const void *base, size_t at)
{
    return type == F32   ? lanes_load((const float *)base + at)
           : type == F16 ? lanes_load_f16((const uint16_t *)base + at)
                         : lanes_load_bf16((const uint16_t *)base + at);
}

/* The first n of them, at most LANES, and zeros behind; memory behind them is not touched. */
static inline struct lanes lanes_load_some(int type, const void *base, size_t at, size_t n)
{
    uint16_t rest[LANES] = {0};

    if (n >= LANES)
        return lanes_load_as(type, base, at);
    if (type == F32)
        return lanes_load_n((const float *)base + at, n);
    memcpy(rest, (const uint16_t *)base + at, n * sizeof rest[0]);
    return lanes_load_as(type, rest, 0);
}

/* The cells at .. at + LANES - 1 of base; those across values of a type have a row at `at` and,
 * where a cell holds two, one `step` behind it. */
CART_ALWAYS_INLINE struct lanes cells_load(const int type, const void *base, size_t at, size_t step)
{
    if (type == CELLS)
        return lanes_load((const float *)base + at);
    if (VALUES == 1)
        return lanes_load_as(type, base, at);
    return cells_across(lanes_load_as(type, base, at), lanes_load_as(type, base, at + step));
}

/* One row of n values as they are, zeros behind it up to whole vectors. */
static void widen_row(float *out, struct source row, size_t n)
{
    size_t i = 0;

    for (; i + LANES <= n; i += LANES)
        lanes_store(out + i, lanes_load_as(row.type, row.base, row.at + i));
    if (i < n)
        lanes_store(out + i, lanes_load_some(row.type, row.base, row.at + i, n - i));
}

/* One row of n values as the cells along it, zeros behind it up to whole vectors. */
static void row_along(float *out, struct source row, size_t n)
{
    size_t i = 0, at = row.at;

    for (; i + LANES * VALUES <= n; i += LANES * VALUES, at += LANES * VALUES, out += LANES)
        lanes_store(out, cells_along(lanes_load_as(row.type, row.base, at),
                                     lanes_load_as(row.type, row.base, at + LANES * (VALUES - 1))));
    if (i < n) {
        struct lanes odd = lanes_set(0.0f);

        if (VALUES > 1 && n - i > LANES)
            odd = lanes_load_some(row.type, row.base, at + LANES, n - i - LANES);
        lanes_store(out, cells_along(lanes_load_some(row.type, row.base, at, n - i), odd));
    }
}

/* Two rows of n values, or where a cell is one value the first, as the cells across them, zeros
 * behind them up to whole vectors. A row without base is zero. */
static void rows_across(float *out, struct source even, struct source odd, size_t n)
{
    struct lanes v = lanes_set(0.0f);
    size_t i = 0;

    if (VALUES == 1) {
        widen_row(out, even, n);
        return;
    }
    if (even.type == odd.type && odd.base != NULL)
        for (; i + LANES <= n; i += LANES)
            lanes_store(out + i, cells_across(lanes_load_as(even.type, even.base, even.at + i),
                                              lanes_load_as(even.type, odd.base, odd.at + i)));
    for (; i < n; i += LANES) {
        if (odd.base != NULL)
            v = lanes_load_some(odd.type, odd.base, odd.at + i, n - i);
        lanes_store(out + i,
                    cells_across(lanes_load_some(even.type, even.base, even.at + i, n - i), v));
    }
}

#endif
