/* Which keys are read, and where their rows lie in segments of either layout. Included once by each
 * attention variant through attention_impl.h; a fragment of code, not an interface. */
#ifndef CART_TENSOR_ATTENTION_READING_IMPL_H
#define CART_TENSOR_ATTENTION_READING_IMPL_H

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

/* The DH values of key first + j, its key or its value by rows. */
static struct source row_of_key(struct reading *r, size_t j, bool values)
{
    const struct cart_kv_segment *s;

    cursor_seek(&r->cur, r->it, r->first + j);
    s = r->cur.seg;
    if (s->blocked && !values)
        return (struct source){NULL, 0, F32};
    return (struct source){values ? s->v : s->k, place_of(r, row_at(r, j)), s->dtype};
}

/* The keys or values where they lie as rows, *ld apart: of whole vectors, in one segment, cells or,
 * where any is set, of any type. Base is NULL if they do not. */
static struct source rows_in_place(struct reading *r, bool values, bool any, size_t *ld)
{
    const struct cart_kv_segment *s;

    cursor_seek(&r->cur, r->it, r->first);
    s = r->cur.seg;
    if ((s->dtype != CELLS && !any) || r->d->DH % LANES != 0 || row_at(r, r->n) > s->rows ||
        (s->blocked && !values))
        return source_cells(NULL);
    *ld = s->blocked ? r->d->DH : s->stride;
    return row_of_key(r, 0, values);
}

/* The rows from key first + j on that lie in one segment: their number, and how far apart. */
static size_t run_of_keys(struct reading *r, size_t j, size_t *ld)
{
    const struct cart_kv_segment *s;

    cursor_seek(&r->cur, r->it, r->first + j);
    s = r->cur.seg;
    *ld = s->blocked ? r->d->DH : s->stride;
    return min_size(r->n - j, s->rows - row_at(r, j));
}

#endif
