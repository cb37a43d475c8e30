/* Attention, written once for all variants over lanes. A forward unit keeps the state of its rows
 * in scratch and walks the blocks of keys: scores of a group of rows (dots), softmax, weighted
 * values (sum).
 * One fragment of code, not an interface: the forward and its plan are one algorithm over lanes. */
#ifndef CART_TENSOR_ATTENTION_IMPL_H
#define CART_TENSOR_ATTENTION_IMPL_H

#include "tensor/attention_blocks_impl.h"

#include <assert.h>

#define GROUP 24 /* rows whose scores are kept at a time */

/* The state of a forward unit: n rows of one KV head. */
struct forward_state {
    const struct cart_attn_dims *d;
    size_t kv, DHp, n;
    float *q, *o, *total; /* [n][DHp]: queries, running span, joined spans */
    float *m, *l, *M, *L; /* [n] */
    size_t *pos;          /* [n] */
    float *s;             /* [GROUP][BLOCK] */
    float *kt_copy;       /* [DHp][BLOCK] */
    float *rows_copy;     /* [BLOCK][DHp] */

    /* The block: keys side by side [DH][BLOCK], values as rows, ldv apart. */
    struct source kt, v;
    size_t ldv;
};

static void row_of(const struct cart_attn_forward_work *w, const struct cart_attn_dims *d, size_t r,
                   const struct cart_attn_item **item, size_t *t, size_t *g)
{
    const struct cart_attn_item *it = w->items;
    size_t G = d->H / d->HK;

    r += w->r0;
    while (r >= it->T * G)
        r -= it++->T * G;
    *item = it;
    *t = r / G;
    *g = r % G;
}

static void state_init(struct forward_state *f, const struct cart_attn_forward_work *w,
                       const struct cart_attn_dims *d, size_t kv, void *scratch)
{
    float *space = scratch;
    size_t n = w->r1 - w->r0, G = d->H / d->HK, DHp = cart_attn_padded(d->DH);

    f->d = d;
    f->kv = kv;
    f->DHp = DHp;
    f->n = n;
    f->s = take(&space, GROUP * BLOCK);
    f->kt_copy = take(&space, DHp * BLOCK);
    f->rows_copy = take(&space, DHp * BLOCK);
    f->q = take(&space, n * DHp);
    f->o = take(&space, n * DHp);
    f->total = take(&space, n * DHp);
    f->m = take(&space, n);
    f->l = take(&space, n);
    f->M = take(&space, n);
    f->L = take(&space, n);
    f->pos = (size_t *)take(&space, n * sizeof(size_t) / sizeof(float));
    assert((size_t)((char *)space - (char *)scratch) <= CART_ATTN_SCRATCH);
    memset(f->o, 0, n * DHp * sizeof(float));
    for (size_t i = 0; i < n; i++) {
        f->m[i] = -INFINITY;
        f->l[i] = f->L[i] = f->M[i] = 0;
    }
    for (size_t r = 0; r < n; r++) {
        const struct cart_attn_item *it;
        size_t t, g;

        row_of(w, d, r, &it, &t, &g);
        f->pos[r] = it->pos0 + t;
        widen_row(f->q + r * DHp, it->q + t * it->ldq + (kv * G + g) * d->DH, CART_F32, 0, d->DH);
    }
}

/* Row r sees keys [*lo, *hi) of the block that starts at key first; empty is 0, 0. */
static void visible(const struct cart_attn_dims *d, size_t pos, size_t first, size_t *lo,
                    size_t *hi)
{
    size_t from = max_size(cart_attn_first_key(d, pos), first),
           to = min_size(pos + 1, first + BLOCK);

    *lo = from < to ? from - first : 0;
    *hi = from < to ? to - first : 0;
}

/* Scaled scores, with -inf for keys that a row does not see, and the new maximum of each row. */
static void group_maxima(float *s, size_t n, const size_t *lo, const size_t *hi, float scale,
                         const float *m, float *m_new)
{
    struct lanes factor = lanes_set(scale);

    for (size_t i = 0; i < n; i++, s += BLOCK) {
        struct lanes top = lanes_set(-INFINITY);
        bool part = lo[i] > 0 || hi[i] < BLOCK;
        float highest;

#pragma GCC unroll 4
        for (size_t v = 0; v < BLOCK / LANES; v++) {
            struct lanes x = lanes_mul(lanes_load(s + LANES * v), factor);
            size_t at = LANES * v;

            if (part)
                x = lanes_keep(x, lo[i] > at ? lo[i] - at : 0, hi[i] > at ? hi[i] - at : 0,
                               -INFINITY);
            lanes_store(s + at, x);
            top = lanes_max(x, top);
        }
        highest = lanes_top(top);
        m_new[i] = (highest > m[i] ? highest : m[i]) + 0.0f;
    }
}

/* Scores become p; sum[i] their sum in the order of the contract. */
static void group_exponentials(float *s, size_t n, const float *m_new, float *sum)
{
    for (size_t i = 0; i < n; i++, s += BLOCK) {
        struct lanes top = lanes_set(m_new[i]), total = lanes_set(0.0f);

#pragma GCC unroll 4
        for (size_t v = 0; v < BLOCK / LANES; v++) {
            struct lanes p = lanes_exp_falling(lanes_sub(lanes_load(s + LANES * v), top));

            lanes_store(s + LANES * v, p);
            total = lanes_add(total, p);
        }
        sum[i] = lanes_sum(total);
    }
}

/* exp(a[i] - b[i]) of n <= GROUP values; the arrays are GROUP_PADDED long. */
#define GROUP_PADDED 32
static void exp_differences(float *out, const float *a, const float *b, size_t n)
{
    for (size_t i = 0; i < n; i += LANES)
        lanes_store(out + i, lanes_exp_falling(lanes_sub(lanes_load(a + i), lanes_load(b + i))));
}

static void row_scale(float *o, float a, size_t DHp)
{
    for (size_t c = 0; c < DHp; c += LANES)
        lanes_store(o + c, lanes_mul(lanes_load(o + c), lanes_set(a)));
}

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
        dots(rows, f->q + (r + i) * DHp, DHp, f->d->DH, &f->kt, f->s + i * BLOCK, j0, j1);
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

/* At the end of a span the state of each row that saw something joins its total and starts anew. */
static void join_rows(struct forward_state *f, size_t r0, size_t r1)
{
    size_t DHp = f->DHp;

    for (size_t r = r0; r < r1; r++) {
        float *o = f->o + r * DHp, *total = f->total + r * DHp;
        float top, factor[2 * LANES], from[2 * LANES] = {0}, to[2 * LANES] = {0};

        if (f->l[r] == 0)
            continue;
        if (f->L[r] == 0) {
            f->M[r] = f->m[r];
            f->L[r] = f->l[r];
            memcpy(total, o, DHp * sizeof(float));
        } else {
            top = f->m[r] > f->M[r] ? f->m[r] : f->M[r];
            from[0] = f->M[r];
            from[1] = f->m[r];
            to[0] = to[1] = top;
            exp_differences(factor, from, to, 2);
            f->M[r] = top;
            f->L[r] = __builtin_fmaf(f->L[r], factor[0], f->l[r] * factor[1]);
            for (size_t c = 0; c < DHp; c += LANES) {
                struct lanes part = lanes_mul(lanes_load(o + c), lanes_set(factor[1]));

                lanes_store(total + c,
                            lanes_fma(lanes_load(total + c), lanes_set(factor[0]), part));
            }
        }
        f->m[r] = -INFINITY;
        f->l[r] = 0;
        memset(o, 0, DHp * sizeof(float));
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
        rows_copy(read, true, f->rows_copy);
        f->v = source_f32(f->rows_copy);
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

static void row_finish(const struct forward_state *f, size_t i, const struct cart_attn_item *it,
                       size_t t, size_t head)
{
    size_t DH = f->d->DH, c = 0;
    struct lanes l = lanes_set(f->L[i]), zero = lanes_set(0.0f);
    const float *total = f->total + i * f->DHp;
    float *out = it->out + t * it->ldo + head * DH;

    for (; c + LANES <= DH; c += LANES)
        lanes_store(out + c, lanes_add(lanes_div(lanes_load(total + c), l), zero));
    if (c < DH)
        lanes_store_n(out + c, lanes_add(lanes_div(lanes_load(total + c), l), zero), DH - c);
    if (it->stats) {
        it->stats[(t * f->d->H + head) * 2] = f->M[i];
        it->stats[(t * f->d->H + head) * 2 + 1] = f->L[i];
    }
}

static void rows_finish(struct forward_state *f, const struct cart_attn_forward_work *w)
{
    size_t G = f->d->H / f->d->HK;

    join_rows(f, 0, f->n);
    for (size_t r = 0; r < f->n; r++) {
        const struct cart_attn_item *it;
        size_t t, g;

        row_of(w, f->d, r, &it, &t, &g);
        row_finish(f, r, it, t, f->kv * G + g);
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
