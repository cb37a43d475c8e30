/* What a backward unit keeps, and how it comes in and goes out: gradients of a block of keys, rows
 * of a chunk. Included once by each attention variant through attention_backward_impl.h; a fragment
 * of code, not an interface. */
#ifndef CART_TENSOR_ATTENTION_BACKWARD_STATE_IMPL_H
#define CART_TENSOR_ATTENTION_BACKWARD_STATE_IMPL_H

#include "tensor/attention_blocks_impl.h"

#define GROUP_BACK 48 /* rows whose scores are kept at a time */

struct backward_state {
    const struct cart_attn_backward_work *w;
    const struct cart_attn_dims *d;
    size_t kv, DHp, DHc, G;
    float *kt, *vt;      /* [DHc][BLOCK] */
    float *dk, *dv;      /* [BLOCK][DHp] */
    float *k;            /* [BLOCK / VALUES][DHp]: across keys */
    float *rows;         /* [BLOCK][DHc]: scratch */
    bool any_dk, any_dv; /* whether a segment in this block wants it */

    /* The chunk: rows row0 .. row0 + n_rows - 1 of the item. */
    size_t row0, n_rows;
    float *q, *dout;               /* [n_rows][DHc]: along rows */
    float *q_across, *dout_across; /* [n_rows / VALUES, rounded up][DHp]: across rows */
    float *dq;                     /* [n_rows][DHp] */
    float *m, *inverse, *delta;    /* [n_rows] */

    /* The group: rows i .. of the chunk. Scores and dout . v become cells across the rows of p and
     * of ds, those of VALUES rows in the place of the first. */
    float *s, *dp;   /* [GROUP_BACK][BLOCK] */
    float *ds_along; /* [GROUP_BACK][BLOCK / VALUES]: ds again, as cells along it */
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
            widen_row(dk_here, (struct source){dk, at, F32}, DH);
        else
            memset(dk_here, 0, b->DHp * sizeof(float));
        if (dv)
            widen_row(dv_here, (struct source){dv, at, F32}, DH);
        else
            memset(dv_here, 0, b->DHp * sizeof(float));
    }
}

/* Where row i of the chunk has its DH values in an array of queries and heads, rows ld apart;
 * without base behind the last. */
static struct source row_of_chunk(const struct backward_state *b, size_t i, const float *x,
                                  size_t ld)
{
    size_t t = (b->row0 + i) / b->G, h = b->kv * b->G + (b->row0 + i) % b->G;

    return (struct source){i < b->n_rows ? x : NULL, t * ld + h * b->d->DH, F32};
}

/* The sum of dout * out; dout as cells along it. */
static float row_delta(const float *dout, const float *out, size_t DH)
{
    struct lanes sum = lanes_set(0.0f);

    for (size_t c = 0; c < DH; c += LANES * VALUES, dout += LANES) {
        struct lanes cells = lanes_load(dout);

        for (size_t h = 0, at = c; h < VALUES && at < DH; h++, at += LANES)
            sum =
                lanes_fma(cells_values(cells, (int)h), lanes_load_some(F32, out, at, DH - at), sum);
    }
    return lanes_sum(sum);
}

/* Brings in what the rows of the chunk have: queries, output gradients, running dq, statistics. */
static void chunk_load(struct backward_state *b)
{
    const struct cart_attn_item *it = b->w->item;
    const struct cart_attn_grad *g = b->w->grad;
    size_t DH = b->d->DH;

    for (size_t i = 0; i < b->n_rows; i++) {
        struct source q = row_of_chunk(b, i, it->q, it->ldq),
                      dout = row_of_chunk(b, i, g->dout, g->lddo);
        size_t t = (b->row0 + i) / b->G, h = b->kv * b->G + (b->row0 + i) % b->G;
        const float *stats = it->stats + (t * b->d->H + h) * 2;

        row_along(b->q + i * b->DHc, q, DH);
        row_along(b->dout + i * b->DHc, dout, DH);
        if (VALUES > 1 && b->w->dkv && i % VALUES == 0) {
            rows_across(b->q_across + i / VALUES * b->DHp, q,
                        row_of_chunk(b, i + 1, it->q, it->ldq), DH);
            rows_across(b->dout_across + i / VALUES * b->DHp, dout,
                        row_of_chunk(b, i + 1, g->dout, g->lddo), DH);
        }
        if (b->w->dq)
            widen_row(b->dq + i * b->DHp, row_of_chunk(b, i, g->dq, g->lddq), DH);
        b->delta[i] =
            row_delta(b->dout + i * b->DHc, it->out + row_of_chunk(b, i, it->out, it->ldo).at, DH);
        b->m[i] = stats[0];
        b->inverse[i] = 1.0f / stats[1];
    }
}

static void chunk_store(const struct backward_state *b)
{
    const struct cart_attn_grad *g = b->w->grad;

    for (size_t i = 0; b->w->dq && i < b->n_rows; i++)
        narrow_row(g->dq + row_of_chunk(b, i, g->dq, g->lddq).at, b->dq + i * b->DHp, b->d->DH);
}

#endif
