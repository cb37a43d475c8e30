/* The reading of blocks of keys and values, from segments of either layout, as the tiles want them.
 * Included once by each attention variant through attention_impl.h; a fragment of code, not an
 * interface. */
#ifndef CART_TENSOR_ATTENTION_BLOCKS_IMPL_H
#define CART_TENSOR_ATTENTION_BLOCKS_IMPL_H

#include "tensor/attention_reading_impl.h"

/* Copies keys or values to rows of the cells along them, [BLOCK][DHc]. Those that there are none of
 * are zero, and keys of blocked segments. */
static void copy_along(struct reading *r, bool values, float *out)
{
    size_t DHc = cells_padded(r->d->DH);

    for (size_t j = 0, ld; j < r->n;) {
        size_t n = run_of_keys(r, j, &ld);
        struct source row = row_of_key(r, j, values);

        if (row.base == NULL)
            memset(out + j * DHc, 0, n * DHc * sizeof(float));
        for (; n > 0; n--, j++, row.at += ld)
            if (row.base != NULL)
                row_along(out + j * DHc, row, r->d->DH);
    }
    memset(out + r->n * DHc, 0, (BLOCK - r->n) * DHc * sizeof(float));
}

/* Copies keys by rows, or values, to the cells across them, [BLOCK / VALUES][DHp], zeros where
 * there are none. */
static void copy_across(struct reading *r, bool values, float *out)
{
    size_t DHp = cart_attn_padded(r->d->DH), j = 0, ld;

    while (j < r->n) {
        size_t n = run_of_keys(r, j, &ld);
        struct source even = row_of_key(r, j, values), odd = even;

        for (; n >= VALUES; n -= VALUES, j += VALUES, even.at += VALUES * ld) {
            odd.at = even.at + (VALUES - 1) * ld;
            rows_across(out + j / VALUES * DHp, even, odd, r->d->DH);
        }
        if (n > 0) {
            /* A pair of which the segment has the first alone. */
            odd = j + 1 < r->n ? row_of_key(r, j + 1, values) : source_cells(NULL);
            rows_across(out + j / VALUES * DHp, even, odd, r->d->DH);
            j += VALUES;
        }
    }
    j = round_up(r->n, VALUES) / VALUES;
    memset(out + j * DHp, 0, (BLOCK / VALUES - j) * DHp * sizeof(float));
}

/* out [DHc][BLOCK]: sixteen keys side by side. rows hold cells. */
static void block_transpose(float *out, struct source rows, size_t ld, size_t DHc)
{
    const float *x = (const float *)rows.base + rows.at;

    for (size_t j = 0; j < BLOCK; j += LANES)
        for (size_t c = 0; c < DHc; c += LANES) {
            struct lanes in[LANES];

#pragma GCC unroll 16
            for (size_t i = 0; i < LANES; i++)
                in[i] = lanes_load(x + (j + i) * ld + c);
            lanes_transpose(in, out + c * BLOCK + j, BLOCK);
        }
}

/* The cells of n keys that stand side by side as values, BLOCK apart; odd heads have a last cell
 * that is half zero. */
static void columns_along(float *kt, const struct source *keys, size_t n, size_t DH)
{
    float line[BLOCK] = {0};

    for (size_t c = 0; c < DH; c += VALUES, kt += BLOCK) {
        struct source even = {keys->base, keys->at + c * BLOCK, keys->type}, odd = even;

        odd.base = c + VALUES > DH ? NULL : keys->base;
        odd.at += BLOCK;
        rows_across(n == BLOCK ? kt : line, even, odd, n);
        if (n < BLOCK)
            memcpy(kt, line, n * sizeof *line);
    }
}

/* Copies keys of blocked segments to their columns of kt [DHc][BLOCK]. */
static void columns_copy(struct reading *r, float *kt)
{
    for (size_t j = 0, n; j < r->n; j += n) {
        const struct cart_kv_segment *s;
        struct source keys;
        size_t place;

        cursor_seek(&r->cur, r->it, r->first + j);
        s = r->cur.seg;
        n = min_size(r->n - j, s->rows - row_at(r, j));
        if (!s->blocked)
            continue;
        place = s->skip + row_at(r, j);
        n = min_size(n, BLOCK - place % BLOCK);
        keys = (struct source){s->k, r->kv * s->stride + cart_attn_blocked_key(place, r->d->DH),
                               s->dtype};
        columns_along(kt + j, &keys, n, r->d->DH);
    }
}

/* The keys side by side where they lie so, or NULL as base. */
static struct source columns_in_place(struct reading *r)
{
    const struct cart_kv_segment *s;
    size_t place;

    cursor_seek(&r->cur, r->it, r->first);
    s = r->cur.seg;
    place = s->skip + row_at(r, 0);
    if (!s->blocked || place % BLOCK != 0 || row_at(r, r->n) > s->rows)
        return source_cells(NULL);
    return (struct source){s->k, r->kv * s->stride + cart_attn_blocked_key(place, r->d->DH),
                           s->dtype};
}

/* The keys side by side, [DHc][BLOCK]: in place where they lie so, cells or, where any is set, of
 * any type; else in copy. rows [BLOCK][DHc] is scratch. */
static struct source keys_side_by_side(struct reading *r, bool any, float *copy, float *rows)
{
    size_t DHc = cells_padded(r->d->DH), ld = DHc;
    struct source in_place = columns_in_place(r);
    bool blocked = false;

    if (in_place.base != NULL) {
        if (in_place.type == CELLS || (any && r->d->DH % VALUES == 0))
            return in_place;
        columns_along(copy, &in_place, BLOCK, r->d->DH);
        return source_cells(copy);
    }
    if (r->n == BLOCK)
        in_place = rows_in_place(r, false, false, &ld);
    if (in_place.base == NULL) {
        copy_along(r, false, rows);
        for (size_t j = 0; j < r->n; j = r->cur.base + r->cur.seg->rows - r->first) {
            cursor_seek(&r->cur, r->it, r->first + j);
            blocked |= r->cur.seg->blocked;
        }
        in_place = source_cells(rows);
    }
    block_transpose(copy, in_place, ld, DHc);
    if (blocked)
        columns_copy(r, copy);
    return source_cells(copy);
}

#endif
