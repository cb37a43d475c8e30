/* The backward half of attention_impl.h, which includes it.
 *   p = exp(s - M) / L,  dv += p dout,  dp = dout . v,  ds = p (dp - delta) scale,  dq += ds k,  dk += ds q */
#ifndef CART_TENSOR_ATTENTION_BACKWARD_IMPL_H
#define CART_TENSOR_ATTENTION_BACKWARD_IMPL_H

struct backward_state {
    const struct cart_attn_backward_work *w;
    const struct cart_attn_dims *d;
    size_t kv, DHp, G;
    float *kt, *vt;       /* [DHp][BLOCK] */
    float *dk, *dv;       /* [BLOCK][DHp] */
    float *q, *dout, *dq; /* [GROUP_BACK][DHp] */
    float *s, *dp;        /* [GROUP_BACK][BLOCK]: scores, then p; dout . v, then ds */
    float m[GROUP_BACK], inverse[GROUP_BACK], delta[GROUP_BACK];
    size_t lo[GROUP_BACK], hi[GROUP_BACK]; /* keys of the block that a row sees */
    size_t from[BLOCK], to[BLOCK];         /* rows of the group that a key is seen by */
    struct block block;
    bool any_dk, any_dv; /* whether a segment in this block wants it */
};

static void narrow_row(float *out, const float *x, size_t n)
{
    size_t i = 0;

    for (; i + LANES <= n; i += LANES)
        lanes_store(out + i, lanes_load(x + i));
    if (i < n)
        lanes_store_n(out + i, lanes_load(x + i), n - i);
}

/* Loads (or stores, if out) the running gradients of the n keys from first on; segments that want none read as zero. */
static void block_gradients(struct backward_state *b, struct cursor *c, size_t first, size_t n, bool out)
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

/* Brings in what n rows from row r on have: queries, output gradients, running dq, statistics. */
static void group_load(struct backward_state *b, size_t r, size_t n, size_t first)
{
    const struct cart_attn_item *it = b->w->item;
    const struct cart_attn_grad *g = b->w->grad;
    size_t DH = b->d->DH, DHp = b->DHp;

    for (size_t i = 0; i < n; i++) {
        size_t t = (r + i) / b->G, h = b->kv * b->G + (r + i) % b->G;
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
        visible(b->d, it->pos0 + t, first, &b->lo[i], &b->hi[i]);
    }
}

/* Scores become p, and dout . v becomes ds; what a row does not see holds nothing of use. */
static void group_weights(struct backward_state *b, size_t n)
{
    struct lanes scale = lanes_set(b->d->scale);

    for (size_t i = 0; i < n; i++) {
        struct lanes m = lanes_set(b->m[i]), inverse = lanes_set(b->inverse[i]), delta = lanes_set(b->delta[i]);
        float *s = b->s + i * BLOCK, *dp = b->dp + i * BLOCK;

#pragma GCC unroll 4
        for (size_t v = 0; v < BLOCK; v += LANES) {
            struct lanes x = lanes_sub(lanes_mul(lanes_load(s + v), scale), m);
            struct lanes p = lanes_mul(lanes_exp_falling(x), inverse);

            lanes_store(s + v, p);
            lanes_store(dp + v, lanes_mul(lanes_mul(p, lanes_sub(lanes_load(dp + v), delta)), scale));
        }
    }
}

/* The rows of the group that see each key: neighbours, since the band of keys moves on with the row. */
static void group_bands(struct backward_state *b, size_t n)
{
    size_t all = 0;

    for (size_t i = 0; i < n; i++)
        all += b->lo[i] == 0 && b->hi[i] == BLOCK;
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

/* out [BLOCK][DHp] += transposed(coef [n][BLOCK]) . vec [n][DHp], each key over the rows that see it. */
static void keys_add(struct backward_state *b, float *out, const float *coef, const float *vec)
{
    for (size_t j = 0; j < BLOCK; j += TILE_ROWS) {
        struct sum_args a = {out + j * b->DHp, b->DHp, coef + j, 1, BLOCK, vec, b->DHp};

        sum_banded(min_size(TILE_ROWS, BLOCK - j), &a, b->DHp, b->from + j, b->to + j);
    }
}

/* Scores and dout . v of a group, in tiles. */
static void group_dots(struct backward_state *b, size_t n)
{
    size_t DHp = b->DHp;

    for (size_t i = 0; i < n; i += TILE_ROWS) {
        size_t rows = min_size(TILE_ROWS, n - i), j0 = b->lo[i], j1 = b->hi[i];

        for (size_t k = 1; k < rows; k++) {
            j0 = min_size(j0, b->lo[i + k]);
            j1 = max_size(j1, b->hi[i + k]);
        }
        dots(rows, b->q + i * DHp, DHp, b->d->DH, b->kt, b->s + i * BLOCK, j0, j1);
        dots(rows, b->dout + i * DHp, DHp, b->d->DH, b->vt, b->dp + i * BLOCK, j0, j1);
    }
}

static void group_dq(struct backward_state *b, size_t r, size_t n)
{
    const struct cart_attn_grad *g = b->w->grad;
    size_t DH = b->d->DH, DHp = b->DHp;

    for (size_t i = 0; i < n; i += TILE_ROWS) {
        struct sum_args a = {b->dq + i * DHp, DHp, b->dp + i * BLOCK, BLOCK, 1, b->block.k, b->block.ldk};

        sum_banded(min_size(TILE_ROWS, n - i), &a, DHp, b->lo + i, b->hi + i);
    }
    for (size_t i = 0; i < n; i++) {
        size_t t = (r + i) / b->G, h = b->kv * b->G + (r + i) % b->G;

        narrow_row(g->dq + t * g->lddq + h * DH, b->dq + i * DHp, DH);
    }
}

static void group_back(struct backward_state *b, size_t r, size_t n, size_t first)
{
    group_load(b, r, n, first);
    group_dots(b, n);
    group_weights(b, n);
    if (b->w->dq)
        group_dq(b, r, n);
    if (b->w->dkv && (b->any_dk || b->any_dv)) {
        group_bands(b, n);
        if (b->any_dv)
            keys_add(b, b->dv, b->s, b->dout);
        if (b->any_dk)
            keys_add(b, b->dk, b->dp, b->q);
    }
}

/* The rows of the unit that see a key of the block at first. */
static void rows_seeing(const struct backward_state *b, size_t first, size_t *r0, size_t *r1)
{
    const struct cart_attn_item *it = b->w->item;
    size_t window = b->d->window, t0 = first > it->pos0 ? first - it->pos0 : 0, t1 = it->T;

    if (window) {
        size_t end = first + BLOCK - 1 + window; /* the first position past the window of the last key */

        t1 = end <= it->pos0 ? 0 : min_size(t1, end - it->pos0);
    }
    *r0 = max_size(b->w->r0, t0 * b->G);
    *r1 = min_size(b->w->r1, t1 * b->G);
}

static void backward(const struct cart_attn_backward_work *w, const struct cart_attn_dims *d, size_t kv, void *scratch)
{
    struct backward_state b = {.w = w, .d = d, .kv = kv, .DHp = cart_attn_padded(d->DH), .G = d->H / d->HK};
    struct cursor cur = {w->item->segs, 0}, grad_cur = cur;
    size_t end = w->item->pos0 + w->item->T;
    float *space = scratch;

    b.kt = take(&space, b.DHp * BLOCK);
    b.vt = take(&space, b.DHp * BLOCK);
    b.block.k_copy = take(&space, b.DHp * BLOCK);
    b.block.v_copy = take(&space, b.DHp * BLOCK);
    b.dk = take(&space, b.DHp * BLOCK);
    b.dv = take(&space, b.DHp * BLOCK);
    b.q = take(&space, b.DHp * GROUP_BACK);
    b.dout = take(&space, b.DHp * GROUP_BACK);
    b.dq = take(&space, b.DHp * GROUP_BACK);
    b.s = take(&space, GROUP_BACK * BLOCK);
    b.dp = take(&space, GROUP_BACK * BLOCK);
    assert((size_t)((char *)space - (char *)scratch) <= CART_ATTN_SCRATCH);
    for (size_t block = w->b0; block < w->b1 && block * BLOCK < end; block++) {
        size_t first = block * BLOCK, n = min_size(BLOCK, end - first), r0, r1;

        rows_seeing(&b, first, &r0, &r1);
        if (r0 >= r1)
            continue;
        block_read(&b.block, &cur, w->item, d, kv, first, n, true);
        block_transpose(b.kt, b.block.k, b.block.ldk, b.DHp);
        block_transpose(b.vt, b.block.v, b.block.ldv, b.DHp);
        if (w->dkv)
            block_gradients(&b, &grad_cur, first, n, false);
        for (size_t r = r0; r < r1; r += GROUP_BACK)
            group_back(&b, r, min_size(GROUP_BACK, r1 - r), first);
        if (w->dkv)
            block_gradients(&b, &grad_cur, first, n, true);
    }
}

#endif
