/* Attention, written once for all variants over lanes. A forward unit keeps the state of its rows
 * in scratch and walks the blocks of keys: scores of a group of rows (dots), softmax, weighted
 * values (sum).
 * One fragment of code, not an interface: the forward and its plan are one algorithm over lanes. */
#ifndef CART_TENSOR_ATTENTION_IMPL_H
#define CART_TENSOR_ATTENTION_IMPL_H

#include "tensor/attention_join_impl.h"

/* A group of n rows from r on meets the block that starts at key first. */
static void group_attend(struct forward_state *f, size_t r, size_t n, size_t first)
{
    size_t lo[GROUP], hi[GROUP], DHp = f->DHp;
    float m_old[GROUP_PADDED] = {0}, m_new[GROUP_PADDED] = {0}, alpha[GROUP_PADDED],
          sum[GROUP_PADDED];

    for (size_t i = 0; i < n; i++) {
        visible(f->d, f->pos[r + i], first, &lo[i], &hi[i]);
        m_old[i] = f->m[r + i];
    }
    for (size_t i = 0; i < n; i += TILE_ROWS) {
        size_t rows = min_size(TILE_ROWS, n - i), j0 = lo[i], j1 = hi[i];

        for (size_t k = 1; k < rows; k++) {
            j0 = min_size(j0, lo[i + k]);
            j1 = max_size(j1, hi[i + k]);
        }
        dots(rows, f->q + (r + i) * f->DHc, f->DHc, f->d->DH, &f->kt, f->s + i * BLOCK, j0, j1);
    }
    group_maxima(f->s, n, lo, hi, f->d->scale, m_old, m_new);
    exp_differences(alpha, m_old, m_new, n);
    group_exponentials(f->s, n, m_new, sum);
    for (size_t i = 0; i < n; i++) {
        if (hi[i] == 0)
            continue;
        f->m[r + i] = m_new[i];
        f->l[r + i] = __builtin_fmaf(f->l[r + i], alpha[i], sum[i]);
        if (alpha[i] != 1.0f)
            row_scale(f->o + (r + i) * DHp, alpha[i], DHp);
    }
    for (size_t i = 0; i < n; i += TILE_ROWS) {
        struct sum_args a = {f->o + (r + i) * DHp, DHp, f->s + i * BLOCK, BLOCK, 1, f->v, f->ldv};

        sum_banded(min_size(TILE_ROWS, n - i), &a, DHp, lo + i, hi + i);
    }
}

/* Rows r0 .. r1 - 1 meet the block that is read. */
static void block_attend(struct forward_state *f, size_t r0, size_t r1, struct reading *read)
{
    bool once = r1 - r0 <= TILE_ROWS; /* what one tile reads need not be widened before */

    f->kt = keys_side_by_side(read, once, f->kt_copy, f->rows_copy);
    f->v = rows_in_place(read, true, once, &f->ldv);
    /* Rows that many tiles read again and again should not share a few sets of the cache. */
    if (f->v.base == NULL || (r1 - r0 > GROUP && f->ldv != f->DHp)) {
        copy_across(read, true, f->rows_copy);
        f->v = source_cells(f->rows_copy);
        f->ldv = f->DHp;
    }
    for (size_t r = r0; r < r1; r += GROUP) {
        size_t count = min_size(GROUP, r1 - r), seen = 0;

        for (size_t i = 0; i < count; i++) {
            size_t lo, hi;

            visible(f->d, f->pos[r + i], read->first, &lo, &hi);
            seen |= hi;
        }
        if (seen)
            group_attend(f, r, count, read->first);
    }
}

/* Rows r0 .. r1 - 1 meet the blocks [b0, b1) of an item's keys, as far as they see
 * them. */
static void rows_attend(struct forward_state *f, size_t r0, size_t r1,
                        const struct cart_attn_item *it, size_t b0, size_t b1)
{
    struct reading read = {.it = it, .d = f->d, .cur = {it->segs, 0}, .kv = f->kv};
    size_t last = 0, begin = SIZE_MAX;

    for (size_t r = r0; r < r1; r++) {
        last = max_size(last, f->pos[r]);
        begin = min_size(begin, cart_attn_first_key(f->d, f->pos[r]));
    }
    b0 = max_size(b0, begin / BLOCK);
    b1 = min_size(b1, last / BLOCK + 1);
    for (size_t b = b0; b < b1; b++) {
        read.first = b * BLOCK;
        read.n = min_size(BLOCK, last + 1 - read.first);
        block_attend(f, r0, r1, &read);
        if ((read.first + BLOCK) % CART_ATTN_SPAN == 0)
            join_rows(f, r0, r1);
    }
}

static void forward(const struct cart_attn_forward_work *w, const struct cart_attn_dims *d,
                    size_t kv, void *scratch)
{
    struct forward_state f;

    state_init(&f, w, d, kv, scratch);
    if (w->n_items == 1) {
        rows_attend(&f, 0, f.n, w->items, 0, SIZE_MAX);
    } else {
        size_t r = 0, G = d->H / d->HK;

        rows_attend(&f, 0, f.n, w->items, 0, w->shared / BLOCK);
        for (size_t i = 0; i < w->n_items; i++) {
            size_t n = w->items[i].T * G;

            if (n > 0)
                rows_attend(&f, r, r + n, &w->items[i], w->shared / BLOCK, SIZE_MAX);
            r += n;
        }
    }
    rows_finish(&f, w);
}

static void forward_span(const struct cart_attn_forward_work *w, const struct cart_attn_dims *d,
                         size_t kv, size_t span, float *part, void *scratch)
{
    struct forward_state f;
    size_t blocks = CART_ATTN_SPAN / BLOCK;

    state_init(&f, w, d, kv, scratch);
    rows_attend(&f, 0, f.n, w->items, span * blocks, (span + 1) * blocks);
    /* A whole span has been joined to an empty total already; the last one may be cut short. */
    join_rows(&f, 0, f.n);
    for (size_t r = 0; r < f.n; r++, part += f.DHp + 2) {
        memcpy(part, f.total + r * f.DHp, f.DHp * sizeof(float));
        part[f.DHp] = f.M[r];
        part[f.DHp + 1] = f.L[r];
    }
}

static void join(const struct cart_attn_forward_work *w, const struct cart_attn_dims *d, size_t kv,
                 size_t n_spans, const float *parts, void *scratch)
{
    struct forward_state f;

    state_init(&f, w, d, kv, scratch);
    for (size_t s = 0; s < n_spans; s++) {
        for (size_t r = 0; r < f.n; r++, parts += f.DHp + 2) {
            memcpy(f.o + r * f.DHp, parts, f.DHp * sizeof(float));
            f.m[r] = parts[f.DHp];
            f.l[r] = parts[f.DHp + 1];
        }
        join_rows(&f, 0, f.n);
    }
    rows_finish(&f, w);
}

#include "tensor/attention_backward_impl.h"

#endif
