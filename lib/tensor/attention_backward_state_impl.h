/* What a backward unit keeps, and how it comes in and goes out: gradients of a block of keys, rows of a
 * chunk. Included once by each attention variant through attention_backward_impl.h; a fragment of
 * code, not an interface. */
#ifndef CART_TENSOR_ATTENTION_BACKWARD_STATE_IMPL_H
#define CART_TENSOR_ATTENTION_BACKWARD_STATE_IMPL_H

#include "tensor/attention_blocks_impl.h"

#define GROUP_BACK 48 /* rows whose scores are kept at a time */

struct backward_state {
    const struct cart_attn_backward_work *w;
    const struct cart_attn_dims *d;
    size_t kv, DHp, G;
    float *kt, *vt;      /* [DHp][BLOCK] */
    float *dk, *dv;      /* [BLOCK][DHp] */
    float *k, *rows;     /* [BLOCK][DHp]: keys, and scratch for values */
    bool any_dk, any_dv; /* whether a segment in this block wants it */

    /* The chunk: rows row0 .. row0 + n_rows - 1 of the item. */
    size_t row0, n_rows;
    float *q, *dout, *dq;       /* [n_rows][DHp] */
    float *m, *inverse, *delta; /* [n_rows] */

    /* The group: rows i .. of the chunk. */
    float *s, *dp; /* [GROUP_BACK][BLOCK]: scores, then p; dout . v, then ds */
    size_t lo[GROUP_BACK], hi[GROUP_BACK]; /* keys of the block that a row sees */
    size_t from[BLOCK], to[BLOCK];         /* rows of the group that a key is seen by */
};

/* Rows of a chunk: about half a megabyte of scratch. */
static size_t chunk_most(size_t DHp)
{
    return CART_ATTN_HEAD_MAX / DHp * GROUP_BACK;
}

static void narrow_row(float *out, const float *x, size_t n)
{
    size_t i = 0;

    for (; i + LANES <= n; i += LANES)
        lanes_store(out + i, lanes_load(x + i));
    if (i < n)
        lanes_store_n(out + i, lanes_load(x + i), n - i);
}

/* Loads (or stores, if out) the running gradients of the n keys from first on; segments that want
 * none read as zero. */
static void block_gradients(struct backward_state *b, struct cursor *c, size_t first, size_t n,
                            bool out)
{
    const struct cart_attn_item *it = b->w->item;
    size_t DH = b->d->DH;

    b->any_dk = b->any_dv = false;
    for (size_t j = 0; j < n; j++) {
        size_t s, at;
        float *dk, *dv, *dk_here = b->dk + j * b->DHp, *dv_here = b->dv + j * b->DHp;

        cursor_seek(c, it, first + j);
        s = (size_t)(c->seg - it->segs);
        at = ((first + j - c->base) * b->d->HK + b->kv) * DH;
        dk = b->w->grad->dk[s];
        dv = b->w->grad->dv[s];
        b->any_dk |= dk != NULL;
        b->any_dv |= dv != NULL;
        if (out && dk)
            narrow_row(dk + at, dk_here, DH);
        if (out && dv)
            narrow_row(dv + at, dv_here, DH);
        if (out)
            continue;
        if (dk)
            widen_row(dk_here, dk, CART_F32, at, DH);
        else
            memset(dk_here, 0, b->DHp * sizeof(float));
        if (dv)
            widen_row(dv_here, dv, CART_F32, at, DH);
        else
            memset(dv_here, 0, b->DHp * sizeof(float));
    }
}

/* Brings in what the rows of the chunk have: queries, output gradients, running dq, statistics. */
static void chunk_load(struct backward_state *b)
{
    const struct cart_attn_item *it = b->w->item;
    const struct cart_attn_grad *g = b->w->grad;
    size_t DH = b->d->DH, DHp = b->DHp;

    for (size_t i = 0; i < b->n_rows; i++) {
        size_t t = (b->row0 + i) / b->G, h = b->kv * b->G + (b->row0 + i) % b->G;
        const float *out = it->out + t * it->ldo + h * DH, *dout = b->dout + i * DHp;
        const float *stats = it->stats + (t * b->d->H + h) * 2;
        struct lanes sum = lanes_set(0.0f);
        size_t c = 0;

        widen_row(b->q + i * DHp, it->q, CART_F32, t * it->ldq + h * DH, DH);
        widen_row(b->dout + i * DHp, g->dout, CART_F32, t * g->lddo + h * DH, DH);
        if (b->w->dq)
            widen_row(b->dq + i * DHp, g->dq, CART_F32, t * g->lddq + h * DH, DH);
        for (; c + LANES <= DH; c += LANES)
            sum = lanes_fma(lanes_load(dout + c), lanes_load(out + c), sum);
        if (c < DH)
            sum = lanes_fma(lanes_load(dout + c), lanes_load_n(out + c, DH - c), sum);
        b->delta[i] = lanes_sum(sum);
        b->m[i] = stats[0];
        b->inverse[i] = 1.0f / stats[1];
    }
}

static void chunk_store(const struct backward_state *b)
{
    const struct cart_attn_grad *g = b->w->grad;

    for (size_t i = 0; b->w->dq && i < b->n_rows; i++) {
        size_t t = (b->row0 + i) / b->G, h = b->kv * b->G + (b->row0 + i) % b->G;

        narrow_row(g->dq + t * g->lddq + h * b->d->DH, b->dq + i * b->DHp, b->d->DH);
    }
}

#endif
