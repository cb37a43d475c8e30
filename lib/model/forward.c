/* Inference forward: spans are cut into pieces of at most ws->tokens tokens, each of which runs
 * through all layers. Any cut gives the same bits, so the piece size is a matter of memory and
 * speed alone. */
#include "model/forward.h"

#include "base/buf.h"
#include "model/layer.h"

#include <stdlib.h>
#include <string.h>

/* A part of one span that is in the current piece. */
struct piece {
    size_t span, first, T; /* tokens [first, first + T) of the span */
    size_t row;            /* its first row among the piece's M rows */
    size_t pos;            /* logical index of its first token */
    size_t want, n_want;   /* its part of the workspace's on */
};

struct cart_workspace {
    struct cart_arena arena;
    struct cart_layer_acts acts;
    struct cart_layer_scratch scratch;
    struct piece *pieces;         /* [tokens] */
    struct cart_attn_item *items; /* [tokens] */
    struct cart_kv_segment *segs; /* grows with the number of parts */
    uint32_t *on;                 /* [tokens] the wanted rows of the M, ascending */
    size_t tokens, segs_cap;
};

/* The widest layer decides, so that all layers share the memory. */
static void layout(struct cart_arena *a, struct cart_workspace *w, const struct cart_model *m,
                   size_t M)
{
    size_t q = 0, k = 0, F = 0;
    for (size_t i = 0; i < m->L; i++) {
        const struct cart_layer *l = &m->layers[i];
        q = l->H * l->DH > q ? l->H * l->DH : q;
        k = cart_layer_kv_width(l) > k ? cart_layer_kv_width(l) : k;
        F = l->F > F ? l->F : F;
    }
    struct cart_layer_acts *c = &w->acts;
    struct cart_layer_scratch *s = &w->scratch;
    *c = (struct cart_layer_acts){0};
    c->x = c->x1 = cart_arena_push(a, M * m->D, sizeof *c->x); /* [M, D] */
    c->q_raw = s->q = cart_arena_push(a, M * q, sizeof *s->q); /* [M, H DH] */
    c->k_raw = s->k = cart_arena_push(a, M * k, sizeof *s->k); /* [M, HK DH] */
    c->v = cart_arena_push(a, M * k, sizeof *c->v);
    c->attn = cart_arena_push(a, M * q, sizeof *c->attn);
    c->gate = s->act = cart_arena_push(a, M * F, sizeof *c->gate); /* [M, F] */
    c->up = cart_arena_push(a, M * F, sizeof *c->up);
    s->h = cart_arena_push(a, M * m->D, sizeof *s->h);
    s->index = cart_arena_push(a, M, sizeof *s->index);
    s->cos = cart_arena_push(a, M * (m->rope.n_rot / 2), sizeof *s->cos);
    s->sin = cart_arena_push(a, M * (m->rope.n_rot / 2), sizeof *s->sin);
    w->pieces = cart_arena_push(a, M, sizeof *w->pieces);
    w->items = cart_arena_push(a, M, sizeof *w->items);
    w->on = cart_arena_push(a, M, sizeof *w->on);
}

int cart_workspace_new(struct cart_workspace **out, const struct cart_model *m, size_t tokens,
                       struct cart_err *err)
{
    struct cart_workspace *w = calloc(1, sizeof *w);
    if (!w)
        return cart_err_memory(err, "workspace", sizeof *w);
    w->tokens = tokens;
    layout(&w->arena, w, m, tokens);
    int r = cart_arena_reserve(&w->arena, w->arena.used, err);
    if (r < 0) {
        free(w);
        return cart_err_wrap(err, r, "activations of %zu tokens", tokens);
    }
    layout(&w->arena, w, m, tokens);
    for (size_t i = 0; i < tokens; i++)
        w->scratch.index[i] = (uint32_t)i;
    *out = w;
    return 0;
}

void cart_workspace_free(struct cart_workspace *w)
{
    if (!w)
        return;
    cart_arena_release(&w->arena);
    free(w->segs);
    free(w);
}

size_t cart_workspace_bytes(const struct cart_model *m, size_t tokens)
{
    struct cart_workspace w;
    struct cart_arena a = CART_ARENA_INIT;
    layout(&a, &w, m, tokens);
    return a.overflow ? SIZE_MAX : a.used;
}

static int check(const struct cart_model *m, const struct cart_span *spans, size_t n,
                 struct cart_err *err)
{
    for (size_t i = 0; i < n; i++) {
        const struct cart_span *s = &spans[i];
        size_t rows = cart_kv_rows(&s->kv);
        if (s->T > m->context || rows > m->context - s->T)
            return cart_err_set(err, CART_EUSAGE,
                                "%zu rows and %zu tokens exceed the model's context of %zu tokens",
                                rows, s->T, m->context);
        if (s->T > s->kv.tail->cap - s->kv.tail->rows)
            return cart_err_set(err, CART_EUSAGE, "stream: expected at most %zu tokens, found %zu",
                                s->kv.tail->cap - s->kv.tail->rows, s->T);
        for (size_t t = 0; t < s->T; t++)
            if (s->ids[t] >= m->V)
                return cart_err_set(err, CART_EUSAGE, "token id %u: expected less than %zu",
                                    s->ids[t], m->V);
    }
    return 0;
}

/* Room for the segments of any piece: each of the n streams has its parts and its tail. */
static int reserve_segments(struct cart_workspace *w, const struct cart_span *spans, size_t n,
                            struct cart_err *err)
{
    size_t total = 0;
    for (size_t i = 0; i < n; i++)
        if (!cart_size_add(total, spans[i].kv.n_parts + 1, &total))
            return cart_err_memory(err, "key and value segments", 0);
    return cart_array_reserve(&w->segs, &w->segs_cap, total, sizeof *w->segs, err);
}

/* Rows of the pieces' keys and values that one unit writes. */
enum { WRITE_ROWS = 64, WRITE_ALONE = 4 };

struct rows_write {
    const struct cart_workspace *w;
    const struct cart_model *m;
    const struct cart_span *spans;
    size_t l;
};

static size_t write_units(const struct piece *p)
{
    return (p->T + WRITE_ROWS - 1) / WRITE_ROWS;
}

static void write_unit(void *ctx, size_t unit, size_t worker)
{
    const struct rows_write *x = ctx;
    const struct piece *p = x->w->pieces;
    (void)worker;
    while (unit >= write_units(p))
        unit -= write_units(p++);
    size_t first = unit * WRITE_ROWS, left = p->T - first;
    size_t row = (p->row + first) * cart_layer_kv_width(&x->m->layers[x->l]);
    const struct cart_kv_tail *t = x->spans[p->span].kv.tail;
    cart_kv_tail_write(t, x->m, x->l, t->rows + first, x->w->scratch.k + row, x->w->acts.v + row,
                       left < WRITE_ROWS ? left : WRITE_ROWS);
}

/* Writes the M rows of the pieces behind their streams' tails in layer l. */
static void write_rows(const struct cart_workspace *w, const struct cart_model *m,
                       const struct cart_span *spans, size_t n_pieces, size_t M, size_t l,
                       struct cart_pool *pool)
{
    struct rows_write x = {w, m, spans, l};
    size_t units = 0;
    for (size_t i = 0; i < n_pieces; i++)
        units += write_units(&w->pieces[i]);
    if (M > WRITE_ALONE)
        cart_pool_run(pool, units, write_unit, &x);
    for (size_t u = 0; M <= WRITE_ALONE && u < units; u++)
        write_unit(&x, u, 0);
}

/* Lists the segments that a piece reads: its stream's parts, then its tail up to and with its own
 * rows. Returns how many. */
static size_t list_segments(const struct cart_model *m, const struct cart_kv *kv,
                            const struct piece *p, size_t l, struct cart_kv_segment *seg)
{
    const struct cart_kv_tail *t = kv->tail;
    for (size_t j = 0; j < kv->n_parts; j++) {
        const struct cart_kv_part *part = kv->parts[j];
        const struct cart_kv_layer *pl = &part->layers[l];
        seg[j] = (struct cart_kv_segment){pl->k,       pl->v,         part->rows, pl->stride,
                                          part->dtype, part->blocked, part->skip};
    }
    seg[kv->n_parts] = (struct cart_kv_segment){
        t->k[l], t->v[l], t->rows + p->T, t->places * m->layers[l].DH, t->dtype, true, t->skip};
    return kv->n_parts + 1;
}

/* Sets the next item to T queries that stand side by side from row r on, the first at position pos.
 */
static void add_item(struct cart_workspace *w, const struct cart_layer *layer, size_t *n,
                     const struct cart_kv_segment *seg, size_t n_segs, size_t r, size_t T,
                     size_t pos)
{
    size_t wq = layer->H * layer->DH;
    w->items[(*n)++] = (struct cart_attn_item){.q = w->scratch.q + r * wq,
                                               .out = w->acts.attn + r * wq,
                                               .segs = seg,
                                               .n_segs = n_segs,
                                               .T = T,
                                               .pos0 = pos,
                                               .ldq = wq,
                                               .ldo = wq};
}

/* The queries of layer l: all of each piece, or only the wanted ones, each run of neighbours an
 * item. Returns the number of items. */
static size_t plan_attention(struct cart_workspace *w, const struct cart_model *m,
                             const struct cart_span *spans, size_t n_pieces, size_t l, bool all)
{
    const struct cart_layer *layer = &m->layers[l];
    struct cart_kv_segment *seg = w->segs;
    size_t n = 0;
    for (size_t i = 0; i < n_pieces; i++) {
        const struct piece *p = &w->pieces[i];
        size_t n_segs = list_segments(m, &spans[p->span].kv, p, l, seg), end = p->want + p->n_want;
        if (all)
            add_item(w, layer, &n, seg, n_segs, p->row, p->T, p->pos);
        for (size_t r = p->want, T; !all && r < end; r += T) {
            for (T = 1; r + T < end && w->on[r + T] == w->on[r] + T;)
                T++;
            add_item(w, layer, &n, seg, n_segs, r, T, p->pos + w->on[r] - p->row);
        }
        seg += n_segs;
    }
    return n;
}

/* R: wanted rows. They end up side by side in acts.x. */
static void run_piece(const struct cart_model *m, struct cart_workspace *w,
                      const struct cart_span *spans, size_t n_pieces, size_t M, size_t R,
                      struct cart_pool *pool)
{
    size_t half = m->rope.n_rot / 2;
    for (size_t i = 0; i < n_pieces; i++) {
        const struct piece *p = &w->pieces[i];
        cart_layer_embed(m, spans[p->span].ids + p->first, p->T, w->acts.x + p->row * m->D);
        cart_rope_table(w->scratch.cos + p->row * half, w->scratch.sin + p->row * half, p->pos,
                        p->T, &m->rope);
    }
    for (size_t l = 0; l < m->L; l++) {
        const struct cart_layer *layer = &m->layers[l];
        struct cart_attn_dims dims = cart_layer_attn_dims(layer);
        bool all = l + 1 < m->L || R == M;
        struct cart_layer_rows rows = {all ? w->scratch.index : w->on, M, all ? M : R};
        cart_layer_project(m, layer, &w->acts, &w->scratch, &rows, pool);
        write_rows(w, m, spans, n_pieces, M, l, pool);
        size_t n = plan_attention(w, m, spans, n_pieces, l, all);
        cart_attention_forward(w->items, n, &dims, pool);
        cart_layer_finish(m, layer, &w->acts, &w->scratch, w->acts.x, &rows, pool);
    }
    for (size_t i = 0; i < n_pieces; i++)
        spans[w->pieces[i].span].kv.tail->rows += w->pieces[i].T;
}

/* Lists the wanted rows of a piece from place *R of on. done: how many of the span's wants earlier
 * pieces gave. */
static void list_wants(struct cart_workspace *w, const struct cart_span *s, struct piece *p,
                       size_t done, size_t *R)
{
    p->want = *R;
    for (size_t i = done; i < s->n_want; i++) {
        size_t t = s->want ? s->want[i] : i;
        if (t >= p->first + p->T)
            break;
        w->on[(*R)++] = (uint32_t)(p->row + t - p->first);
    }
    p->n_want = *R - p->want;
}

int cart_forward(const struct cart_model *m, struct cart_workspace *w,
                 const struct cart_span *spans, size_t n, float *hidden, struct cart_pool *pool,
                 struct cart_err *err)
{
    int r = check(m, spans, n, err);
    if (r == 0)
        r = reserve_segments(w, spans, n, err);
    if (r < 0)
        return r;
    size_t out = 0, span = 0, first = 0, done = 0; /* done: wants of the span that are out */
    while (span < n) {
        size_t M = 0, R = 0, n_pieces = 0;
        while (span + n_pieces < n && M < w->tokens && n_pieces < w->tokens) {
            const struct cart_span *s = &spans[span + n_pieces];
            struct piece *p = &w->pieces[n_pieces];
            size_t from = n_pieces == 0 ? first : 0;
            size_t T = s->T - from < w->tokens - M ? s->T - from : w->tokens - M;
            *p = (struct piece){span + n_pieces, from, T, M, cart_kv_rows(&s->kv), 0, 0};
            if (s->kv.tail->rows == 0)
                cart_kv_tail_start(s->kv.tail, p->pos);
            list_wants(w, s, p, n_pieces == 0 ? done : 0, &R);
            M += T;
            n_pieces++;
        }
        run_piece(m, w, spans, n_pieces, M, R, pool);
        if (R > 0)
            memcpy(hidden + out * m->D, w->acts.x, R * m->D * sizeof *hidden);
        out += R;
        const struct piece *last = &w->pieces[n_pieces - 1];
        bool whole = last->first + last->T == spans[last->span].T;
        done = whole ? 0 : (n_pieces == 1 ? done : 0) + last->n_want;
        first = whole ? 0 : last->first + last->T;
        span = whole ? last->span + 1 : last->span;
    }
    if (out)
        cart_rmsnorm_forward(hidden, m->D, NULL, hidden, m->D, m->out_norm, out, m->D, m->eps,
                             pool);
    return 0;
}
