/* The reading of blocks of keys and values, from segments of either layout, as the tiles want them.
 * Included once by each attention variant through attention_impl.h; a fragment of code, not an
 * interface. */
#ifndef CART_TENSOR_ATTENTION_BLOCKS_IMPL_H
#define CART_TENSOR_ATTENTION_BLOCKS_IMPL_H

#include "tensor/attention_bands_impl.h"

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

/* Which keys of which head are read: first .. first + n - 1, 0 < n <= BLOCK, first a multiple of
 * it. */
struct reading {
    const struct cart_attn_item *it;
    const struct cart_attn_dims *d;
    struct cursor cur;
    size_t kv, first, n;
};

/* The row of key first + j in the segment where the cursor stands. */
static size_t row_at(const struct reading *r, size_t j)
{
    return r->first + j - r->cur.base;
}

/* Where DH values of a row lie side by side: its values in either layout, its key by rows. */
static size_t place_of(const struct reading *r, size_t row)
{
    const struct cart_kv_segment *s = r->cur.seg;

    if (s->blocked)
        return r->kv * s->stride + (s->skip + row) * r->d->DH;
    return row * s->stride + r->kv * r->d->DH;
}

/* The keys or values where they lie as rows, *ld apart: of whole vectors, in one segment, f32 or,
 * where any is set, of any type. Base is NULL if they do not. */
static struct source rows_in_place(struct reading *r, bool values, bool any, size_t *ld)
{
    const struct cart_kv_segment *s;

    cursor_seek(&r->cur, r->it, r->first);
    s = r->cur.seg;
    if ((s->dtype != CART_F32 && !any) || r->d->DH % LANES != 0 || row_at(r, r->n) > s->rows ||
        (s->blocked && !values))
        return source_f32(NULL);
    *ld = s->blocked ? r->d->DH : s->stride;
    return (struct source){values ? s->v : s->k, place_of(r, row_at(r, 0)), s->dtype};
}

/* Copies keys or values to rows [BLOCK][DHp]. Those that there are none of are zero, and keys of
 * blocked segments. */
static void rows_copy(struct reading *r, bool values, float *out)
{
    size_t DHp = cart_attn_padded(r->d->DH);

    for (size_t j = 0; j < r->n; j++) {
        const struct cart_kv_segment *s;

        cursor_seek(&r->cur, r->it, r->first + j);
        s = r->cur.seg;
        if (s->blocked && !values)
            memset(out + j * DHp, 0, DHp * sizeof(float));
        else
            widen_row(out + j * DHp, values ? s->v : s->k, s->dtype, place_of(r, row_at(r, j)),
                      r->d->DH);
    }
    memset(out + r->n * DHp, 0, (BLOCK - r->n) * DHp * sizeof(float));
}

/* out [DHp][BLOCK]: sixteen keys side by side. rows are f32. */
static void block_transpose(float *out, struct source rows, size_t ld, size_t DHp)
{
    const float *x = (const float *)rows.base + rows.at;

    for (size_t j = 0; j < BLOCK; j += LANES)
        for (size_t c = 0; c < DHp; c += LANES) {
            struct lanes in[LANES];

#pragma GCC unroll 16
            for (size_t i = 0; i < LANES; i++)
                in[i] = lanes_load(x + (j + i) * ld + c);
            lanes_transpose(in, out + c * BLOCK + j, BLOCK);
        }
}

/* Copies keys of blocked segments to their columns of kt [DH][BLOCK]. */
static void columns_copy(struct reading *r, float *kt)
{
    float line[BLOCK];

    for (size_t j = 0, n; j < r->n; j += n) {
        const struct cart_kv_segment *s;
        size_t place, at;

        cursor_seek(&r->cur, r->it, r->first + j);
        s = r->cur.seg;
        n = min_size(r->n - j, s->rows - row_at(r, j));
        if (!s->blocked)
            continue;
        place = s->skip + row_at(r, j);
        n = min_size(n, BLOCK - place % BLOCK);
        at = r->kv * s->stride + cart_attn_blocked_key(place, r->d->DH);
        for (size_t c = 0; c < r->d->DH; c++) {
            widen_row(line, s->k, s->dtype, at + c * BLOCK, n);
            memcpy(kt + c * BLOCK + j, line, n * sizeof *line);
        }
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
        return source_f32(NULL);
    return (struct source){s->k, r->kv * s->stride + cart_attn_blocked_key(place, r->d->DH),
                           s->dtype};
}

/* The keys side by side, [DH][BLOCK]: in place where they lie so, f32 or, where any is set, of any
 * type; else in copy. rows [BLOCK][DHp] is scratch. */
static struct source keys_side_by_side(struct reading *r, bool any, float *copy, float *rows)
{
    size_t DHp = cart_attn_padded(r->d->DH), ld = DHp;
    struct source in_place = columns_in_place(r);
    bool blocked = false;

    if (in_place.base != NULL) {
        if (in_place.dtype == CART_F32 || any)
            return in_place;
        widen_row(copy, in_place.base, in_place.dtype, in_place.at, r->d->DH * BLOCK);
        return source_f32(copy);
    }
    if (r->n == BLOCK)
        in_place = rows_in_place(r, false, false, &ld);
    if (in_place.base == NULL) {
        rows_copy(r, false, rows);
        for (size_t j = 0; j < r->n; j = r->cur.base + r->cur.seg->rows - r->first) {
            cursor_seek(&r->cur, r->it, r->first + j);
            blocked |= r->cur.seg->blocked;
        }
        in_place = source_f32(rows);
    }
    block_transpose(copy, in_place, ld, DHp);
    if (blocked)
        columns_copy(r, copy);
    return source_f32(copy);
}

#endif
