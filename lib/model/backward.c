/* The training pass. Forward keeps, per layer, what its backward reads (or, with recompute, the
 * layer's input alone); the backward walks the layers down and carries dx [M, D], the gradient of
 * the residual stream. In the last layer only the rows from each conversation's first wanted one to
 * its last go on beyond keys and values: the others have no reader, and a gradient of zero.
 *
 * Gradients of prefix rows: each conversation has a partial buffer that starts from zero (so its
 * sum does not depend on its company), and the partials are added to the totals in conversation
 * order. */
#include "model/backward.h"

#include "base/buf.h"
#include "model/layer.h"

#include <stdlib.h>
#include <string.h>

struct cart_tape {
    const struct cart_model *m;
    struct cart_tape_limits lim;
    struct cart_arena arena;
    struct cart_layer_acts *layers; /* [L]; with recompute only .x is per layer, the rest shared */
    struct cart_layer_scratch scratch;
    float *x_out; /* [M, D] output of the last layer, of its rows that go on */
    float *x_want,
        *r_want;       /* [wants, D], [wants] rows that the loss reads, and their norm factors */
    float *dx, *dh;    /* [M, D] */
    float *dact;       /* [M, F] */
    float *dattn, *dq; /* [M, H DH] */
    float *dk, *dv, *dk_raw;      /* [M, HK DH] */
    float *partial_k, *partial_v; /* [convs, prefix, HK DH] */
    size_t *row0;                 /* [convs + 1] first row of each conversation */
    uint32_t *on;                 /* [tokens] rows of the last layer that go on, ascending */
    size_t *on0;                  /* [convs + 1] the first of each conversation among them */
    bool in_place;                /* no layer has head norms, so q_raw and k_raw are rotated */
    struct cart_attn_item *items; /* [convs] */
    struct cart_attn_grad *grads; /* [convs] */
    struct cart_kv_segment *segs; /* [convs, parts + 1] */
    float **seg_dk, **seg_dv;     /* the same shape */
    size_t segs_cap, dk_cap, dv_cap;
    /* The forward under way. */
    const struct cart_kv_part *const *parts;
    const struct cart_tape_conv *convs;
    size_t n_parts, n, M, R;
};

struct widths {
    size_t q, k, F, stats, H, HK;
};

static struct widths widest(const struct cart_model *m)
{
    struct widths w = {0};
    for (size_t i = 0; i < m->L; i++) {
        const struct cart_layer *l = &m->layers[i];
        w.q = l->H * l->DH > w.q ? l->H * l->DH : w.q;
        w.k = cart_layer_kv_width(l) > w.k ? cart_layer_kv_width(l) : w.k;
        w.F = l->F > w.F ? l->F : w.F;
        w.H = l->H > w.H ? l->H : w.H;
        w.HK = l->HK > w.HK ? l->HK : w.HK;
    }
    return w;
}

static void layout_acts(struct cart_arena *a, struct cart_layer_acts *c, size_t M,
                        const struct cart_model *m, const struct widths *w)
{
    c->q_raw = cart_arena_push(a, M * w->q, sizeof *c->q_raw);
    c->k_raw = cart_arena_push(a, M * w->k, sizeof *c->k_raw);
    c->v = cart_arena_push(a, M * w->k, sizeof *c->v);
    c->attn = cart_arena_push(a, M * w->q, sizeof *c->attn);
    c->stats = cart_arena_push(a, M * w->H * 2, sizeof *c->stats);
    c->x1 = cart_arena_push(a, M * m->D, sizeof *c->x1);
    c->gate = cart_arena_push(a, M * w->F, sizeof *c->gate);
    c->up = cart_arena_push(a, M * w->F, sizeof *c->up);
    c->r1 = cart_arena_push(a, M, sizeof *c->r1);
    c->r2 = cart_arena_push(a, M, sizeof *c->r2);
    c->rq = cart_arena_push(a, M * w->H, sizeof *c->rq);
    c->rk = cart_arena_push(a, M * w->HK, sizeof *c->rk);
}

static bool no_head_norms(const struct cart_model *m)
{
    for (size_t l = 0; l < m->L; l++)
        if (m->layers[l].q_norm || m->layers[l].k_norm)
            return false;
    return true;
}

/* layers [L] is the caller's while measuring and the tape's afterwards. */
static void layout(struct cart_arena *a, struct cart_tape *t, struct cart_layer_acts *layers)
{
    const struct cart_model *m = t->m;
    struct widths w = widest(m);
    size_t M = t->lim.tokens, half = m->rope.n_rot / 2;
    struct cart_layer_acts shared = {0};
    if (t->lim.recompute)
        layout_acts(a, &shared, M, m, &w);
    for (size_t i = 0; i < m->L; i++) {
        struct cart_layer_acts c = shared;
        c.x = cart_arena_push(a, M * m->D, sizeof *c.x);
        if (!t->lim.recompute)
            layout_acts(a, &c, M, m, &w);
        layers[i] = c;
    }
    struct cart_layer_scratch *s = &t->scratch;
    size_t apart = t->in_place ? 0 : M; /* rows before head norm and rotation, beside those after */
    s->h = cart_arena_push(a, M * m->D, sizeof *s->h);
    s->q = cart_arena_push(a, apart * w.q, sizeof *s->q);
    s->k = cart_arena_push(a, apart * w.k, sizeof *s->k);
    s->act = t->dact = cart_arena_push(a, M * w.F, sizeof *s->act);
    s->index = cart_arena_push(a, M, sizeof *s->index);
    s->cos = cart_arena_push(a, M * half, sizeof *s->cos);
    s->sin = cart_arena_push(a, M * half, sizeof *s->sin);
    t->x_out = t->dx = cart_arena_push(a, M * m->D, sizeof *t->dx);
    t->dh = s->h;
    t->x_want = cart_arena_push(a, t->lim.wants * m->D, sizeof *t->x_want);
    t->r_want = cart_arena_push(a, t->lim.wants, sizeof *t->r_want);
    t->dattn = cart_arena_push(a, M * w.q, sizeof *t->dattn);
    t->dq = cart_arena_push(a, M * w.q, sizeof *t->dq);
    t->dk = cart_arena_push(a, M * w.k, sizeof *t->dk);
    t->dv = cart_arena_push(a, M * w.k, sizeof *t->dv);
    t->dk_raw = cart_arena_push(a, apart * w.k, sizeof *t->dk_raw);
    size_t partial = t->lim.convs * t->lim.prefix * w.k;
    t->partial_k = cart_arena_push(a, partial, sizeof *t->partial_k);
    t->partial_v = cart_arena_push(a, partial, sizeof *t->partial_v);
    t->row0 = cart_arena_push(a, t->lim.convs + 1, sizeof *t->row0);
    t->on = cart_arena_push(a, M, sizeof *t->on);
    t->on0 = cart_arena_push(a, t->lim.convs + 1, sizeof *t->on0);
    t->items = cart_arena_push(a, t->lim.convs, sizeof *t->items);
    t->grads = cart_arena_push(a, t->lim.convs, sizeof *t->grads);
}

int cart_tape_new(struct cart_tape **out, const struct cart_model *m,
                  const struct cart_tape_limits *lim, struct cart_err *err)
{
    struct cart_tape *t = calloc(1, sizeof *t);
    if (t)
        t->layers = calloc(m->L, sizeof *t->layers);
    if (!t || !t->layers) {
        free(t);
        return cart_err_memory(err, "training pass", sizeof *t);
    }
    t->m = m;
    t->lim = *lim;
    t->in_place = no_head_norms(m);
    layout(&t->arena, t, t->layers);
    int r = cart_arena_reserve(&t->arena, t->arena.used, err);
    if (r < 0) {
        cart_tape_free(t);
        return cart_err_wrap(err, r, "activations of %zu tokens%s", lim->tokens,
                             lim->recompute ? "" : " (--recompute needs far less)");
    }
    layout(&t->arena, t, t->layers);
    for (size_t i = 0; i < lim->tokens; i++)
        t->scratch.index[i] = (uint32_t)i;
    *out = t;
    return 0;
}

void cart_tape_free(struct cart_tape *t)
{
    if (!t)
        return;
    cart_arena_release(&t->arena);
    free(t->layers);
    free(t->segs);
    free(t->seg_dk);
    free(t->seg_dv);
    free(t);
}

size_t cart_tape_bytes(const struct cart_model *m, const struct cart_tape_limits *lim)
{
    struct cart_tape t = {.m = m, .lim = *lim, .in_place = no_head_norms(m)};
    struct cart_layer_acts *layers = calloc(m->L, sizeof *layers);
    if (!layers)
        return SIZE_MAX;
    layout(&t.arena, &t, layers);
    free(layers);
    return t.arena.overflow ? SIZE_MAX : t.arena.used;
}

static size_t prefix_rows(const struct cart_tape *t)
{
    size_t rows = 0;
    for (size_t j = 0; j < t->n_parts; j++)
        rows += t->parts[j]->rows;
    return rows;
}

static int check(const struct cart_tape *t, struct cart_err *err)
{
    size_t M = 0, R = 0, P = prefix_rows(t);
    if (t->n > t->lim.convs || P > t->lim.prefix)
        return cart_err_set(err, CART_EUSAGE,
                            "%zu conversations behind %zu rows: expected at most %zu behind %zu",
                            t->n, P, t->lim.convs, t->lim.prefix);
    for (size_t i = 0; i < t->n; i++) {
        const struct cart_tape_conv *c = &t->convs[i];
        if (c->T > t->m->context || P > t->m->context - c->T)
            return cart_err_set(err, CART_EUSAGE,
                                "%zu rows and %zu tokens exceed the model's context of %zu tokens",
                                P, c->T, t->m->context);
        for (size_t k = 0; k < c->T; k++)
            if (c->ids[k] >= t->m->V)
                return cart_err_set(err, CART_EUSAGE, "token id %u: expected less than %zu",
                                    c->ids[k], t->m->V);
        M += c->T;
        R += c->n_want;
    }
    if (M > t->lim.tokens || R > t->lim.wants)
        return cart_err_set(err, CART_EUSAGE,
                            "%zu tokens and %zu supervised rows: expected at most %zu and %zu", M,
                            R, t->lim.tokens, t->lim.wants);
    return 0;
}

static bool is_last(const struct cart_tape *t, size_t l)
{
    return l + 1 == t->m->L;
}

static struct cart_layer_rows rows_of(const struct cart_tape *t, size_t l)
{
    if (is_last(t, l))
        return (struct cart_layer_rows){t->on, t->M, t->on0[t->n]};
    return (struct cart_layer_rows){t->scratch.index, t->M, t->M};
}

static struct cart_layer_scratch scratch_of(const struct cart_tape *t, size_t l)
{
    struct cart_layer_scratch s = t->scratch;
    if (t->in_place) {
        s.q = t->layers[l].q_raw;
        s.k = t->layers[l].k_raw;
    }
    return s;
}

/* The conversation's rows among those that go on in layer l: the first, and how many. */
static size_t first_row(const struct cart_tape *t, size_t l, size_t conv)
{
    return is_last(t, l) ? t->on0[conv] : t->row0[conv];
}

static size_t count_rows(const struct cart_tape *t, size_t l, size_t conv)
{
    return is_last(t, l) ? t->on0[conv + 1] - t->on0[conv] : t->convs[conv].T;
}

/* One attention item a conversation, its segments pointing at layer l's prefix rows and the
 * conversation's own rows. */
static void plan_attention(struct cart_tape *t, size_t l)
{
    const struct cart_layer *layer = &t->m->layers[l];
    const struct cart_layer_acts *a = &t->layers[l];
    struct cart_layer_scratch s = scratch_of(t, l);
    size_t wk = cart_layer_kv_width(layer), wq = layer->H * layer->DH, P = prefix_rows(t);
    for (size_t i = 0; i < t->n; i++) {
        struct cart_kv_segment *seg = t->segs + i * (t->n_parts + 1);
        size_t row = t->row0[i], q = first_row(t, l, i), T = count_rows(t, l, i);
        for (size_t j = 0; j < t->n_parts; j++) {
            const struct cart_kv_layer *pl = &t->parts[j]->layers[l];
            seg[j] = (struct cart_kv_segment){.k = pl->k,
                                              .v = pl->v,
                                              .rows = t->parts[j]->rows,
                                              .stride = pl->stride,
                                              .dtype = t->parts[j]->dtype,
                                              .blocked = t->parts[j]->blocked,
                                              .skip = t->parts[j]->skip};
        }
        seg[t->n_parts] = (struct cart_kv_segment){.k = s.k + row * wk,
                                                   .v = a->v + row * wk,
                                                   .rows = t->convs[i].T,
                                                   .stride = wk,
                                                   .dtype = CART_F32};
        t->items[i] =
            (struct cart_attn_item){.q = s.q + q * wq,
                                    .out = a->attn + q * wq,
                                    .stats = a->stats + q * layer->H * 2,
                                    .segs = seg,
                                    .n_segs = t->n_parts + 1,
                                    .T = T,
                                    .pos0 = P + (is_last(t, l) && T > 0 ? t->convs[i].want[0] : 0),
                                    .ldq = wq,
                                    .ldo = wq};
    }
}

/* Layer l up to y; see cart_layer_finish. */
static void layer_forward(struct cart_tape *t, size_t l, float *y, struct cart_pool *pool)
{
    const struct cart_layer *layer = &t->m->layers[l];
    struct cart_attn_dims dims = cart_layer_attn_dims(layer);
    struct cart_layer_scratch s = scratch_of(t, l);
    struct cart_layer_rows rows = rows_of(t, l);
    cart_layer_project(t->m, layer, &t->layers[l], &s, &rows, pool);
    plan_attention(t, l);
    cart_attention_forward(t->items, t->n, &dims, pool);
    cart_layer_finish(t->m, layer, &t->layers[l], &s, y, &rows, pool);
}

static int begin(struct cart_tape *t, struct cart_err *err)
{
    size_t need = t->n * (t->n_parts + 1);
    int r = cart_array_reserve(&t->segs, &t->segs_cap, need, sizeof *t->segs, err);
    if (r == 0)
        r = cart_array_reserve(&t->seg_dk, &t->dk_cap, need, sizeof *t->seg_dk, err);
    if (r == 0)
        r = cart_array_reserve(&t->seg_dv, &t->dv_cap, need, sizeof *t->seg_dv, err);
    if (r < 0)
        return r;
    size_t P = prefix_rows(t), half = t->m->rope.n_rot / 2;
    t->M = t->R = t->on0[0] = 0;
    for (size_t i = 0; i < t->n; i++) {
        const struct cart_tape_conv *c = &t->convs[i];
        t->row0[i] = t->M;
        cart_layer_embed(t->m, c->ids, c->T, t->layers[0].x + t->M * t->m->D);
        cart_rope_table(t->scratch.cos + t->M * half, t->scratch.sin + t->M * half, P, c->T,
                        &t->m->rope);
        size_t first = c->n_want > 0 ? c->want[0] : 0,
               n = c->n_want > 0 ? c->want[c->n_want - 1] + 1 - first : 0;
        for (size_t j = 0; j < n; j++)
            t->on[t->on0[i] + j] = (uint32_t)(t->M + first + j);
        t->on0[i + 1] = t->on0[i] + n;
        t->M += c->T;
        t->R += c->n_want;
    }
    t->row0[t->n] = t->M;
    return 0;
}

/* Where wanted row w of a conversation is in x_out and in the first dx. */
static size_t out_row(const struct cart_tape *t, size_t conv, size_t w)
{
    return t->on0[conv] + t->convs[conv].want[w] - t->convs[conv].want[0];
}

int cart_tape_forward(struct cart_tape *t, const struct cart_kv_part *const *parts, size_t n_parts,
                      const struct cart_tape_conv *convs, size_t n, float *hidden,
                      struct cart_pool *pool, struct cart_err *err)
{
    const struct cart_model *m = t->m;
    t->parts = parts;
    t->n_parts = n_parts;
    t->convs = convs;
    t->n = n;
    int r = check(t, err);
    if (r == 0)
        r = begin(t, err);
    if (r < 0)
        return r;
    for (size_t l = 0; l < m->L; l++)
        layer_forward(t, l, is_last(t, l) ? t->x_out : t->layers[l + 1].x, pool);
    size_t k = 0;
    for (size_t i = 0; i < n; i++)
        for (size_t w = 0; w < convs[i].n_want; w++, k++)
            memcpy(t->x_want + k * m->D, t->x_out + out_row(t, i, w) * m->D, m->D * sizeof(float));
    cart_rmsnorm_forward(hidden, m->D, t->r_want, t->x_want, m->D, m->out_norm, t->R, m->D, m->eps,
                         pool);
    return 0;
}

/* dattn -> dq, dk, dv of the own tokens and the totals of the prefix rows. */
static void backward_attention(struct cart_tape *t, size_t l, const struct cart_kv_grad *grads,
                               struct cart_pool *pool)
{
    const struct cart_layer *layer = &t->m->layers[l];
    struct cart_attn_dims dims = cart_layer_attn_dims(layer);
    size_t wk = cart_layer_kv_width(layer), wq = layer->H * layer->DH, P = prefix_rows(t);
    memset(t->dq, 0, rows_of(t, l).R * wq * sizeof(float));
    memset(t->dk, 0, t->M * wk * sizeof(float));
    memset(t->dv, 0, t->M * wk * sizeof(float));
    memset(t->partial_k, 0, t->n * P * wk * sizeof(float));
    memset(t->partial_v, 0, t->n * P * wk * sizeof(float));
    for (size_t i = 0; i < t->n; i++) {
        float **dk = t->seg_dk + i * (t->n_parts + 1), **dv = t->seg_dv + i * (t->n_parts + 1);
        size_t row = 0;
        for (size_t j = 0; j < t->n_parts; j++) {
            bool wanted = grads[j].dk != NULL;
            dk[j] = wanted ? t->partial_k + (i * P + row) * wk : NULL;
            dv[j] = wanted ? t->partial_v + (i * P + row) * wk : NULL;
            row += t->parts[j]->rows;
        }
        dk[t->n_parts] = t->dk + t->row0[i] * wk;
        dv[t->n_parts] = t->dv + t->row0[i] * wk;
        t->grads[i] = (struct cart_attn_grad){.dout = t->dattn + first_row(t, l, i) * wq,
                                              .dq = t->dq + first_row(t, l, i) * wq,
                                              .dk = dk,
                                              .dv = dv,
                                              .lddo = wq,
                                              .lddq = wq};
    }
    cart_attention_backward(t->items, t->grads, t->n, &dims, pool);
    for (size_t i = 0; i < t->n; i++)
        for (size_t j = 0; j < t->n_parts; j++)
            if (grads[j].dk) {
                size_t values = t->parts[j]->rows * wk;
                cart_add(grads[j].dk[l], t->seg_dk[i * (t->n_parts + 1) + j], values, pool);
                cart_add(grads[j].dv[l], t->seg_dv[i * (t->n_parts + 1) + j], values, pool);
            }
}

/* dx: gradient of the layer's output on entry, of x1 on return. */
static void backward_ffn(struct cart_tape *t, size_t l, struct cart_pool *pool)
{
    const struct cart_layer *layer = &t->m->layers[l];
    const struct cart_layer_acts *a = &t->layers[l];
    size_t D = t->m->D, F = layer->F, R = rows_of(t, l).R;
    cart_matmul_backward(t->dact, F, t->dx, D, R, &layer->w_down, false, pool);
    cart_swiglu_backward(a->gate, a->up, t->dact, a->gate, a->up, R * F, pool);
    cart_matmul_backward(t->dh, D, a->gate, F, R, &layer->w_gate, false, pool);
    cart_matmul_backward(t->dh, D, a->up, F, R, &layer->w_up, true, pool);
    cart_rmsnorm_backward(t->dx, D, t->dh, D, a->x1, D, a->r2, layer->ffn_norm, R, D, pool);
}

/* Rows that lie side by side go to where they belong among the M; the others get zeros. */
static void spread_rows(float *x, size_t width, const struct cart_layer_rows *rows)
{
    size_t i = rows->R;
    for (size_t r = rows->M; r-- > 0 && rows->R < rows->M;)
        if (i > 0 && rows->on[i - 1] == r)
            memmove(x + r * width, x + --i * width, width * sizeof *x);
        else
            memset(x + r * width, 0, width * sizeof *x);
}

/* From dq, dk (rotated) and dv to dx of the layer's input. */
static void backward_project(struct cart_tape *t, size_t l, struct cart_pool *pool)
{
    const struct cart_model *m = t->m;
    const struct cart_layer *layer = &m->layers[l];
    const struct cart_layer_acts *a = &t->layers[l];
    const struct cart_layer_scratch *s = &t->scratch;
    struct cart_layer_rows rows = rows_of(t, l);
    size_t D = m->D, M = rows.M, R = rows.R, wq = layer->H * layer->DH,
           wk = cart_layer_kv_width(layer);
    float *dq = t->dq, *dk = t->dk;
    cart_rope_apply(dq, wq, R, layer->H, layer->DH, rows.on, s->cos, s->sin, &m->rope, true, pool);
    cart_rope_apply(dk, wk, M, layer->HK, layer->DH, s->index, s->cos, s->sin, &m->rope, true,
                    pool);
    if (layer->q_norm) {
        dq = t->dattn;
        memset(dq, 0, R * wq * sizeof(float));
        cart_headnorm_backward(dq, wq, t->dq, wq, a->q_raw, wq, a->rq, layer->q_norm, R, layer->H,
                               layer->DH, pool);
    }
    if (layer->k_norm) {
        dk = t->dk_raw;
        memset(dk, 0, M * wk * sizeof(float));
        cart_headnorm_backward(dk, wk, t->dk, wk, a->k_raw, wk, a->rk, layer->k_norm, M, layer->HK,
                               layer->DH, pool);
    }
    cart_matmul_backward(t->dh, D, dq, wq, R, &layer->wq, false, pool);
    spread_rows(t->dh, D, &rows);
    spread_rows(t->dx, D, &rows);
    cart_matmul_backward(t->dh, D, dk, wk, M, &layer->wk, true, pool);
    cart_matmul_backward(t->dh, D, t->dv, wk, M, &layer->wv, true, pool);
    cart_rmsnorm_backward(t->dx, D, t->dh, D, a->x, D, a->r1, layer->attn_norm, M, D, pool);
}

void cart_tape_backward(struct cart_tape *t, const float *dhidden, const struct cart_kv_grad *grads,
                        struct cart_pool *pool)
{
    const struct cart_model *m = t->m;
    size_t D = m->D, k = 0;
    memset(t->dx, 0, t->on0[t->n] * D * sizeof(float));
    for (size_t i = 0; i < t->n; i++)
        for (size_t w = 0; w < t->convs[i].n_want; w++, k++)
            cart_rmsnorm_backward(t->dx + out_row(t, i, w) * D, D, dhidden + k * D, D,
                                  t->x_want + k * D, D, t->r_want + k, m->out_norm, 1, D, pool);
    for (size_t l = m->L; l-- > 0;) {
        const struct cart_layer *layer = &m->layers[l];
        struct cart_layer_rows rows = rows_of(t, l);
        size_t wq = layer->H * layer->DH;
        /* What the last layer left is still there. */
        if (!is_last(t, l) && t->lim.recompute)
            layer_forward(t, l, NULL, pool);
        else if (!is_last(t, l)) {
            if (!t->in_place)
                cart_layer_rotate(m, layer, &t->layers[l], &t->scratch, &rows, pool);
            plan_attention(t, l);
        }
        backward_ffn(t, l, pool);
        cart_matmul_backward(t->dattn, wq, t->dx, D, rows.R, &layer->wo, false, pool);
        backward_attention(t, l, grads, pool);
        if (l > 0)
            backward_project(t, l, pool);
    }
}
