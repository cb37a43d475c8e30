/* dx = dy . W, or +=, over weights in their own encoding; see matmul.h for the order.
 *
 * A unit is a range of columns of W by a range of rows; blocks of rows of W are widened in
 * ascending order, and each block continues the chains that dx holds; the first begins them where
 * nothing is added to. */
#include "tensor/matmul_impl.h"
#include "tensor/matmul_kernels.h"
#include "tensor/matmul_split_impl.h"

#include <string.h>

enum {
    LANES = CART_TILE_LANES,
    WIDE = CART_TILE_WIDE,
    BACKWARD_ROWS = CART_BACKWARD_SPAN,
    BACKWARD_PANELS = 4, /* 256 columns: one block of the K formats */
};

struct backward {
    const struct cart_matmul_kernels *kernels;
    struct cart_pool *pool;
    const struct cart_matrix *w;
    const float *dy;
    float *dx;
    size_t M, lddx, lddy;
    bool add;
    size_t k_range, m_range, k_units; /* a unit is k_range columns by m_range rows */
};

static void plan_backward(struct backward *b)
{
    size_t T = cart_pool_threads(b->pool), panels = ceil_div(b->w->K, WIDE);
    size_t ranges = ceil_div(panels, BACKWARD_PANELS), m_units = 1;

    /* Blocks of 256 values are not cut; other formats share the columns evenly. */
    b->k_range =
        (cart_dtype_info(b->w->dtype)->block > WIDE ? BACKWARD_PANELS : ceil_div(panels, ranges)) *
        WIDE;
    b->k_units = ceil_div(b->w->K, b->k_range);
    if (T > 1 && b->k_units < 4 * T)
        m_units = min_size(ceil_div(4 * T, b->k_units), ceil_div(b->M, 48));
    b->m_range = ceil_div(b->M, m_units);
}

/* The gradients of one tile: cells of dy [R, n]. */
struct gradients {
    const float *dy;
    size_t lddy, n;
};

/* Where dy is not of the cells' class, they are made in cells [CART_TILE_ROWS][BACKWARD_ROWS]. */
static struct gradients gradients_of(const struct backward *b, size_t m, size_t R, size_t n0,
                                     size_t rows, float *cells)
{
    const float *dy = b->dy + m * b->lddy + n0;

    if (b->kernels->values == 1)
        return (struct gradients){dy, b->lddy, rows};
    for (size_t r = 0; r < R; r++)
        b->kernels->pack(cells + r * BACKWARD_ROWS, dy + r * b->lddy, b->lddy, 1, rows);
    return (struct gradients){cells, BACKWARD_ROWS, ceil_div(rows, b->kernels->values)};
}

/* The last panel of a row may be narrower than 64 columns: it is worked on in a copy. */
static void backward_narrow(const struct backward *b, const struct gradients *g, size_t m, size_t R,
                            size_t k0, const float *panel)
{
    float copy[CART_TILE_ROWS * WIDE] = {0};
    size_t k = b->w->K - k0;

    for (size_t i = 0; i < R; i++)
        memcpy(copy + i * WIDE, b->dx + (m + i) * b->lddx + k0, k * sizeof(float));
    b->kernels->tile_backward(copy, WIDE, g->dy, g->lddy, panel, b->k_range, g->n, R);
    for (size_t i = 0; i < R; i++)
        memcpy(b->dx + (m + i) * b->lddx + k0, copy + i * WIDE, k * sizeof(float));
}

/* Columns k0 .. k1 of rows n0 .. n0 + rows of W into panel [rows / values][b->k_range], zeros up to
 * a multiple of 64 columns. */
static void widen_columns(const struct backward *b, float *panel, size_t n0, size_t rows, size_t k0,
                          size_t k1)
{
    size_t wide = round_up(k1 - k0, LANES), whole = round_up(k1 - k0, WIDE);

    for (size_t n = 0; n < rows; n += b->kernels->values, panel += b->k_range) {
        const void *row = cart_matrix_row(b->w, n0 + n);

        if (b->kernels->values == 2)
            b->kernels->widen_pair(b->w->dtype, row,
                                   n + 1 < rows ? cart_matrix_row(b->w, n0 + n + 1) : NULL, k0,
                                   k1 - k0, panel);
        else
            b->kernels->widen(b->w->dtype, row, k0, k1 - k0, panel, LANES);
        for (size_t k = wide; k < whole; k++)
            panel[k] = 0;
    }
}

/* Asks for columns k0 .. k1 of rows n0 .. n1 of W in the second-level cache. */
static void fetch_columns(const struct backward *b, size_t n0, size_t n1, size_t k0, size_t k1)
{
    const struct cart_dtype_info *info = cart_dtype_info(b->w->dtype);
    size_t from = k0 / info->block * info->bytes, to = k1 / info->block * info->bytes;

    for (size_t n = n0; n < n1; n++)
        for (size_t at = from; at < to; at += 64)
            __builtin_prefetch(cart_matrix_row(b->w, n) + at, 0, 2);
}

static void backward_unit(void *ctx, size_t unit, size_t worker)
{
    const struct backward *b = ctx;
    float *panel = cart_pool_scratch(b->pool, worker);
    size_t k0 = unit % b->k_units * b->k_range, k1 = min_size(k0 + b->k_range, b->w->K);
    size_t m0 = unit / b->k_units * b->m_range, m1 = min_size(m0 + b->m_range, b->M);
    /* Each tile asks for its share of the rows that are widened next. */
    size_t share = ceil_div(BACKWARD_ROWS, ceil_div(m1 - m0, b->kernels->rows));
    float cells[CART_TILE_ROWS * BACKWARD_ROWS];
    unsigned mode = flush_begin(b->kernels->values);
    size_t R;

    for (size_t n0 = 0; n0 < b->w->N; n0 += BACKWARD_ROWS) {
        size_t rows = min_size(BACKWARD_ROWS, b->w->N - n0), next = n0 + rows;

        widen_columns(b, panel, n0, rows, k0, k1);
        for (size_t m = m0; m < m1; m += R) {
            R = tile_rows(b->kernels, m1 - m, false);
            for (size_t r = 0; n0 == 0 && !b->add && r < R; r++)
                memset(b->dx + (m + r) * b->lddx + k0, 0, (k1 - k0) * sizeof(float));
            struct gradients g = gradients_of(b, m, R, n0, rows, cells);
            fetch_columns(b, next, min_size(next + share, b->w->N), k0, k1);
            next = min_size(next + share, b->w->N);
            for (size_t k = k0; k < k1; k += WIDE) {
                if (k1 - k < WIDE)
                    backward_narrow(b, &g, m, R, k, panel + k - k0);
                else
                    b->kernels->tile_backward(b->dx + m * b->lddx + k, b->lddx, g.dy, g.lddy,
                                              panel + k - k0, b->k_range, g.n, R);
            }
        }
    }
    flush_end(b->kernels->values, mode);
}

void cart_matmul_backward_with(const struct cart_matmul_kernels *kernels, float *dx, size_t lddx,
                               const float *dy, size_t lddy, size_t M, const struct cart_matrix *w,
                               bool add, struct cart_pool *pool)
{
    struct backward b = {.kernels = kernels,
                         .pool = pool,
                         .w = w,
                         .dy = dy,
                         .dx = dx,
                         .M = M,
                         .lddx = lddx,
                         .lddy = lddy,
                         .add = add};

    if (M == 0 || w->K == 0)
        return;
    plan_backward(&b);
    cart_pool_run(pool, b.k_units * ceil_div(M, b.m_range), backward_unit, &b);
}
