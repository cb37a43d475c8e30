/* A group of rows meets a block of keys, on the way back. Included once by each attention variant
 * through attention_backward_impl.h; a fragment of code, not an interface. */
#ifndef CART_TENSOR_ATTENTION_BACKWARD_GROUP_IMPL_H
#define CART_TENSOR_ATTENTION_BACKWARD_GROUP_IMPL_H

#include "tensor/attention_backward_state_impl.h"

/* Scores and dout . v of n rows from i on, in tiles. */
static void group_dots(struct backward_state *b, size_t i, size_t n)
{
    struct source kt = source_cells(b->kt), vt = source_cells(b->vt);
    size_t DHc = b->DHc, DH = b->d->DH;

    for (size_t r = 0; r < n; r += TILE_ROWS) {
        size_t rows = min_size(TILE_ROWS, n - r), j0 = b->lo[r], j1 = b->hi[r];

        for (size_t k = 1; k < rows; k++) {
            j0 = min_size(j0, b->lo[r + k]);
            j1 = max_size(j1, b->hi[r + k]);
        }
        dots(rows, b->q + (i + r) * DHc, DHc, DH, &kt, b->s + r * BLOCK, j0, j1);
        dots(rows, b->dout + (i + r) * DHc, DHc, DH, &vt, b->dp + r * BLOCK, j0, j1);
    }
}

struct weights {
    struct lanes p, ds;
};

/* p and ds of keys v .. v + LANES - 1 of the block for row r of n of the group, row i + r of the
 * chunk. What a row does not see holds nothing of use or, where it may share a cell with what one
 * sees, zero. */
CART_ALWAYS_INLINE struct weights row_weights(const struct backward_state *b, size_t i, size_t n,
                                              size_t r, size_t v)
{
    struct weights w = {lanes_set(0.0f), lanes_set(0.0f)};
    struct lanes scale = lanes_set(b->d->scale), x, dp;

    if (VALUES > 1 && r >= n)
        return w;
    x = lanes_sub(lanes_mul(lanes_load(b->s + r * BLOCK + v), scale), lanes_set(b->m[i + r]));
    dp = lanes_sub(lanes_load(b->dp + r * BLOCK + v), lanes_set(b->delta[i + r]));
    w.p = lanes_mul(lanes_exp_falling(x), lanes_set(b->inverse[i + r]));
    w.ds = lanes_mul(lanes_mul(w.p, dp), scale);
    if (VALUES > 1 && (b->lo[r] > 0 || b->hi[r] < BLOCK)) {
        size_t lo = b->lo[r] > v ? b->lo[r] - v : 0, hi = b->hi[r] > v ? b->hi[r] - v : 0;

        w.p = lanes_keep(w.p, lo, hi, 0.0f);
        w.ds = lanes_keep(w.ds, lo, hi, 0.0f);
    }
    return w;
}

/* Scores become p, and dout . v becomes ds, of n rows from i on. */
static void group_weights(struct backward_state *b, size_t i, size_t n)
{
    for (size_t r = 0; r < n; r += VALUES) {
        for (size_t v = 0; v < BLOCK; v += LANES * VALUES) {
            struct weights w[VALUES][VALUES]; /* [row][keys] */

            for (size_t a = 0; a < VALUES; a++)
                for (size_t h = 0; h < VALUES; h++)
                    w[a][h] = row_weights(b, i, n, r + a, v + h * LANES);
            for (size_t h = 0; h < VALUES; h++) {
                size_t at = r * BLOCK + v + h * LANES;

                lanes_store(b->s + at, cells_across(w[0][h].p, w[VALUES - 1][h].p));
                lanes_store(b->dp + at, cells_across(w[0][h].ds, w[VALUES - 1][h].ds));
            }
            for (size_t a = 0; VALUES > 1 && a < VALUES; a++)
                lanes_store(b->ds_along + ((r + a) * BLOCK + v) / VALUES,
                            cells_along(w[a][0].ds, w[a][VALUES - 1].ds));
        }
    }
}

/* The rows of the group that see each key: neighbours, since the band of keys moves on with the
 * row. */
static void group_bands(struct backward_state *b, size_t n)
{
    size_t all = 0;

    for (size_t r = 0; r < n; r++)
        all += b->lo[r] == 0 && b->hi[r] == BLOCK;
    for (size_t j = 0; j < BLOCK; j++) {
        size_t r = 0;

        while (all < n && r < n && b->hi[r] <= j)
            r++;
        b->from[j] = r;
        while (all < n && r < n && b->lo[r] <= j && j < b->hi[r])
            r++;
        b->to[j] = all < n ? r : n;
    }
}

/* out [BLOCK][DHp] += transposed(coef [n][BLOCK]) . vec [n][DHp], both cells across the n rows,
 * each key over the rows that see it. */
static void keys_add(struct backward_state *b, float *out, const float *coef, const float *vec)
{
    for (size_t j = 0; j < BLOCK; j += TILE_ROWS) {
        struct sum_args a = {out + j * b->DHp,  b->DHp, coef + j, 1, VALUES * BLOCK,
                             source_cells(vec), b->DHp};

        sum_banded(min_size(TILE_ROWS, BLOCK - j), &a, b->DHp, b->from + j, b->to + j);
    }
}

/* Rows i .. i + n - 1 of the chunk meet the block at key first. */
static void group_back(struct backward_state *b, size_t i, size_t n, size_t first)
{
    size_t DHp = b->DHp;

    for (size_t r = 0; r < n; r++)
        visible(b->d, b->w->item->pos0 + (b->row0 + i + r) / b->G, first, &b->lo[r], &b->hi[r]);
    group_dots(b, i, n);
    group_weights(b, i, n);
    for (size_t r = 0; b->w->dq && r < n; r += TILE_ROWS) {
        struct sum_args a = {
            b->dq + (i + r) * DHp, DHp, b->ds_along + r * (BLOCK / VALUES), BLOCK / VALUES, 1,
            source_cells(b->k),    DHp};

        sum_banded(min_size(TILE_ROWS, n - r), &a, DHp, b->lo + r, b->hi + r);
    }
    if (b->w->dkv && (b->any_dk || b->any_dv)) {
        group_bands(b, n);
        if (b->any_dv)
            keys_add(b, b->dv, b->s, b->dout_across + i / VALUES * DHp);
        if (b->any_dk)
            keys_add(b, b->dk, b->dp, b->q_across + i / VALUES * DHp);
    }
}

#endif
