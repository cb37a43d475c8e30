/* What a forward unit keeps of its rows, and which keys a row sees.
 * Included once by each attention variant through attention_impl.h; a fragment of code, not an
 * interface. */
#ifndef CART_TENSOR_ATTENTION_STATE_IMPL_H
#define CART_TENSOR_ATTENTION_STATE_IMPL_H

#include "tensor/attention_blocks_impl.h"

#include <assert.h>

#define GROUP 24 /* rows whose scores are kept at a time */

/* The state of a forward unit: n rows of one KV head. */
struct forward_state {
    const struct cart_attn_dims *d;
    size_t kv, DHp, DHc, n;
    float *q;             /* [n][DHc]: queries, as cells along them */
    float *o, *total;     /* [n][DHp]: running span, joined spans */
    float *m, *l, *M, *L; /* [n] */
    size_t *pos;          /* [n] */
    float *s;             /* [GROUP][BLOCK]: scores, then cells along p */
    float *kt_copy;       /* [DHc][BLOCK] */
    float *rows_copy;     /* [BLOCK][DHp] */

    /* The block: keys side by side, values as rows or across them, ldv apart. */
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
    f->DHc = cells_padded(d->DH);
    f->n = n;
    f->s = take(&space, GROUP * BLOCK);
    f->kt_copy = take(&space, f->DHc * BLOCK);
    f->rows_copy = take(&space, DHp * BLOCK);
    f->q = take(&space, n * f->DHc);
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
        row_along(f->q + r * f->DHc,
                  (struct source){it->q, t * it->ldq + (kv * G + g) * d->DH, F32}, d->DH);
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

#endif
