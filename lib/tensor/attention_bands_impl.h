/* Tiles over as many keys and columns as there are, where each row may see keys of its own.
 * Included once by each attention variant through attention_impl.h; a fragment of code, not an
 * interface. */
#ifndef CART_TENSOR_ATTENTION_BANDS_IMPL_H
#define CART_TENSOR_ATTENTION_BANDS_IMPL_H

#include "tensor/attention_tiles_impl.h"

/* Scores of n <= TILE_ROWS rows with keys j0 .. j1 - 1 of a block, in whole vectors. */
static void dots(size_t n, const float *q, size_t ldq, size_t DH, const struct source *kt, float *s,
                 size_t j0, size_t j1)
{
    size_t first = j0 / LANES * LANES, kind = kind_of(kt->type), steps = (DH + VALUES - 1) / VALUES;

#if LANES_TILE == 4
    if (j1 - first > 2 * LANES) {
        dots_wide[kind][n - 1](q, ldq, steps, kt, s);
        return;
    }
#endif
    for (size_t j = first; j < j1; j += LANES) {
        struct source part = {kt->base, kt->at + j, kt->type};

        dots_narrow[kind][n - 1](q, ldq, steps, &part, s + j);
    }
}

/* Columns of the cells [x0, x1). */
static void sum_columns(size_t n, const struct sum_args *a, size_t DHp, size_t x0, size_t x1)
{
    struct sum_args part = *a;
    size_t c = 0, kind = kind_of(a->vec.type);

    if (x0 >= x1)
        return;
#if LANES_TILE == 4
    for (; c + 4 * LANES <= DHp; c += 4 * LANES, part.out += 4 * LANES, part.vec.at += 4 * LANES)
        sum_wide[kind][n - 1](&part, x0, x1);
#endif
    for (; c < DHp; c += LANES, part.out += LANES, part.vec.at += LANES)
        sum_narrow[kind][n - 1](&part, x0, x1);
}

/* Columns of the cells at x, of which rows take the odd or the even values alone: the others, which
 * may be anything, become zero. */
static void sum_part(size_t n, const struct sum_args *a, size_t DHp, size_t x, bool odd)
{
    struct sum_args part = *a;
    float vec[CART_ATTN_HEAD_MAX];

    for (size_t c = 0; c < DHp; c += LANES) {
        struct lanes zero = lanes_set(0.0f), v;

        if (a->vec.type == CELLS) {
            v = lanes_load((const float *)a->vec.base + a->vec.at + x * a->ldv + c);
            v = cells_kept(v, odd);
        } else {
            v = lanes_load_as(a->vec.type, a->vec.base,
                              a->vec.at + (VALUES * x + odd) * a->ldv + c);
            v = cells_across(odd ? zero : v, odd ? v : zero);
        }
        lanes_store(vec + c, v);
    }
    part.coef += x * a->step_x;
    part.vec = source_cells(vec);
    sum_columns(n, &part, DHp, 0, 1);
}

/* Columns of the values [x0, x1), whose coefficients are zero outside it. */
static void sum_values(size_t n, const struct sum_args *a, size_t DHp, size_t x0, size_t x1)
{
    if (x0 >= x1)
        return;
    if (x0 % VALUES)
        sum_part(n, a, DHp, x0 / VALUES, true);
    sum_columns(n, a, DHp, (x0 + VALUES - 1) / VALUES, x1 / VALUES);
    if (x1 % VALUES)
        sum_part(n, a, DHp, x1 / VALUES, false);
}

/* The same where row i takes only values in [lo[i], hi[i]): the cells that all rows share as a
 * tile, the rims row by row. */
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
        sum_values(n, a, DHp, from, to);
        return;
    }
    from = round_up(from, VALUES);
    to = round_down(to, VALUES);
    if (from > to)
        from = to = SIZE_MAX;
    for (int rim = 0; rim < 2; rim++) {
        for (size_t i = 0; i < n; i++) {
            struct sum_args row = *a;

            row.out += i * a->ldo;
            row.coef += i * a->step_i;
            sum_values(1, &row, DHp, rim ? max_size(to, lo[i]) : lo[i],
                       rim ? hi[i] : min_size(from, hi[i]));
        }
        if (rim == 0 && from < to)
            sum_values(n, a, DHp, from, to);
    }
}

#endif
