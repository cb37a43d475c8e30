/* Tiles over as many keys and columns as there are, where each row may see keys of its own. Included
 * once by each attention variant through attention_impl.h; a fragment of code, not an interface. */
#ifndef CART_TENSOR_ATTENTION_BANDS_IMPL_H
#define CART_TENSOR_ATTENTION_BANDS_IMPL_H

#include "tensor/attention_tiles_impl.h"

/* Scores of n <= TILE_ROWS rows with keys j0 .. j1 - 1 of a block, in whole vectors. */
static void dots(size_t n, const float *q, size_t ldq, size_t DH, const struct source *kt, float *s,
                 size_t j0, size_t j1)
{
    size_t first = j0 / LANES * LANES, kind = kind_of(kt->dtype);

#if LANES_TILE == 4
    if (j1 - first > 2 * LANES) {
        dots_wide[kind][n - 1](q, ldq, DH, kt, s);
        return;
    }
#endif
    for (size_t j = first; j < j1; j += LANES) {
        struct source part = {kt->base, kt->at + j, kt->dtype};

        dots_narrow[kind][n - 1](q, ldq, DH, &part, s + j);
    }
}

static void sum_columns(size_t n, const struct sum_args *a, size_t DHp, size_t x0, size_t x1)
{
    struct sum_args part = *a;
    size_t c = 0, kind = kind_of(a->vec.dtype);

    if (x0 >= x1)
        return;
#if LANES_TILE == 4
    for (; c + 4 * LANES <= DHp; c += 4 * LANES, part.out += 4 * LANES, part.vec.at += 4 * LANES)
        sum_wide[kind][n - 1](&part, x0, x1);
#endif
    for (; c < DHp; c += LANES, part.out += LANES, part.vec.at += LANES)
        sum_narrow[kind][n - 1](&part, x0, x1);
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

#endif
