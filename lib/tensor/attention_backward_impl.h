/* The backward half of attention_impl.h, which includes it; a fragment of code, not an interface.
 *   p = exp(s - M) / L, dv += p dout
 *   dp = dout . v
 *   ds = p (dp - delta) scale
 *   dq += ds k, dk += ds q
 * A unit takes its rows in chunks that fit into scratch; a chunk walks the blocks of keys, and in
 * each block the groups of its rows. So a row meets its keys, and a key its rows, in ascending
 * order. */
#ifndef CART_TENSOR_ATTENTION_BACKWARD_IMPL_H
#define CART_TENSOR_ATTENTION_BACKWARD_IMPL_H

#include "tensor/attention_backward_group_impl.h"

/* The rows of the chunk that see a key of the block at first, counted within the chunk; from whole
 * cells of rows on. */
static void rows_seeing(const struct backward_state *b, size_t first, size_t *from, size_t *to)
{
    const struct cart_attn_item *it = b->w->item;
    size_t window = b->d->window, t0 = first > it->pos0 ? first - it->pos0 : 0, t1 = it->T;

    if (window) {
        size_t end =
            first + BLOCK - 1 + window; /* the first position past the window of the last key */

        t1 = end <= it->pos0 ? 0 : min_size(t1, end - it->pos0);
    }
    *from = round_down(max_size(b->row0, t0 * b->G) - b->row0, VALUES);
    *to = max_size(b->row0, min_size(b->row0 + b->n_rows, t1 * b->G)) - b->row0;
}

/* The keys of a block across them, and both sides' columns. Keys are copied in any case: rows that
 * many tiles read again and again should not share a few sets of the cache. */
static void block_load(struct backward_state *b, struct reading *read)
{
    size_t ldv = b->DHc;
    struct source v = source_cells(NULL);
    float *rows = VALUES == 1 ? b->k : b->rows;

    if (read->n == BLOCK)
        v = rows_in_place(read, true, false, &ldv);
    if (v.base == NULL) {
        copy_along(read, true, b->rows);
        v = source_cells(b->rows);
    }
    block_transpose(b->vt, v, ldv, b->DHc);
    copy_along(read, false, rows);
    block_transpose(b->kt, source_cells(rows), b->DHc, b->DHc);
    if (VALUES > 1)
        copy_across(read, false, b->k);
}

static void chunk_back(struct backward_state *b)
{
    const struct cart_attn_item *it = b->w->item;
    struct reading read = {.it = it, .d = b->d, .cur = {it->segs, 0}, .kv = b->kv};
    struct cursor grad_cur = read.cur;
    size_t end = it->pos0 + it->T;

    chunk_load(b);
    for (size_t block = b->w->b0; block < b->w->b1 && block * BLOCK < end; block++) {
        size_t first = block * BLOCK, n = min_size(BLOCK, end - first), from, to;

        rows_seeing(b, first, &from, &to);
        if (from >= to)
            continue;
        read.first = first;
        read.n = n;
        block_load(b, &read);
        if (b->w->dkv)
            block_gradients(b, &grad_cur, first, n, false);
        for (size_t i = from; i < to; i += GROUP_BACK)
            group_back(b, i, min_size(GROUP_BACK, to - i), first);
        if (b->w->dkv)
            block_gradients(b, &grad_cur, first, n, true);
    }
    chunk_store(b);
}

static void backward(const struct cart_attn_backward_work *w, const struct cart_attn_dims *d,
                     size_t kv, void *scratch)
{
    struct backward_state b = {.w = w,
                               .d = d,
                               .kv = kv,
                               .DHp = cart_attn_padded(d->DH),
                               .DHc = cells_padded(d->DH),
                               .G = d->H / d->HK};
    size_t most = min_size(chunk_most(b.DHp), w->r1 - w->r0);
    float *space = scratch;

    b.kt = take(&space, b.DHc * BLOCK);
    b.vt = take(&space, b.DHc * BLOCK);
    b.k = take(&space, b.DHp * BLOCK / VALUES);
    b.rows = take(&space, b.DHc * BLOCK);
    b.dk = take(&space, b.DHp * BLOCK);
    b.dv = take(&space, b.DHp * BLOCK);
    b.s = take(&space, GROUP_BACK * BLOCK);
    b.dp = take(&space, GROUP_BACK * BLOCK);
    b.q = take(&space, b.DHc * most);
    b.dout = take(&space, b.DHc * most);
    b.dq = take(&space, b.DHp * most);
    b.m = take(&space, most);
    b.inverse = take(&space, most);
    b.delta = take(&space, most);
    /* Cells of one value are the same along rows and across them. */
    b.q_across = VALUES == 1 ? b.q : take(&space, b.DHp * round_up(most, VALUES) / VALUES);
    b.dout_across = VALUES == 1 ? b.dout : take(&space, b.DHp * round_up(most, VALUES) / VALUES);
    b.ds_along = VALUES == 1 ? b.dp : take(&space, GROUP_BACK * BLOCK / VALUES);
    assert((size_t)((char *)space - (char *)scratch) <= CART_ATTN_SCRATCH);
    for (size_t r = w->r0; r < w->r1; r += most) {
        b.row0 = r;
        b.n_rows = min_size(most, w->r1 - r);
        chunk_back(&b);
    }
}

#endif
