#include "study/teacher.h"

#include "model/head.h"
#include "tensor/mathf.h"
#include "token/chat.h"
#include "study/kernels.h"

#include <stdlib.h>
#include <string.h>

/* A conversation in the batch, and what its forward needs. */
struct pupil {
    struct cart_conversation c;
    struct cart_prefix *prefix;
    const struct cart_kv_part *part;
    struct cart_session session;
    bool session_ready;
    size_t *wants; /* [wants_cap]: the row before each supervised token */
    size_t wants_cap, n_wants;
};

struct cart_teacher {
    struct cart_engine *e;
    const struct cart_chat *chat;
    const struct cart_corpus *corpus;
    struct cart_teacher_options opt;
    cart_teacher_fn *fn;
    void *ctx;
    struct cart_head *head;
    struct pupil pupils[CART_TEACHER_BATCH];
    size_t n, rows;          /* pupils, and rows of their distinct context turns */
    struct cart_ids context; /* scratch */
    float *hidden;           /* [rows, D] */
    size_t hidden_cap;       /* in rows */
    uint32_t *top_ids;       /* [rows, K] */
    float *top;              /* [rows, K] */
    size_t top_ids_cap, top_cap;
};

int cart_teacher_new(struct cart_teacher **out, struct cart_engine *e, const struct cart_chat *chat,
                     const struct cart_corpus *corpus, const struct cart_teacher_options *opt,
                     cart_teacher_fn *fn, void *ctx, struct cart_err *err)
{
    const struct cart_model *m = cart_engine_model(e);

    if (opt->top_k == 0 || opt->top_k > CART_TEACHER_MAX_K || opt->top_k > m->V)
        return cart_err_set(err, CART_EUSAGE, "top-k: expected 1 to %zu, found %zu",
                            m->V < CART_TEACHER_MAX_K ? m->V : CART_TEACHER_MAX_K, opt->top_k);
    if (!(opt->mass > 0 && opt->mass <= 1))
        return cart_err_set(err, CART_EUSAGE, "mass: expected more than 0 and at most 1, found %g",
                            opt->mass);
    struct cart_teacher *t = calloc(1, sizeof *t);
    if (t == NULL)
        return cart_err_memory(err, "the teacher", sizeof *t);
    t->e = e;
    t->chat = chat;
    t->corpus = corpus;
    t->opt = *opt;
    t->fn = fn;
    t->ctx = ctx;
    int r = cart_head_new(&t->head, m, CART_HEAD_ROWS, err);
    if (r < 0) {
        free(t);
        return r;
    }
    *out = t;
    return 0;
}

static void leave(struct cart_teacher *t, struct pupil *p)
{
    cart_prefix_release(t->e, p->prefix);
    p->prefix = NULL;
}

void cart_teacher_free(struct cart_teacher *t)
{
    if (t == NULL)
        return;
    for (size_t i = 0; i < CART_TEACHER_BATCH; i++) {
        struct pupil *p = &t->pupils[i];
        leave(t, p);
        cart_conversation_release(&p->c);
        if (p->session_ready)
            cart_session_release(&p->session);
        free(p->wants);
    }
    cart_head_free(t->head);
    cart_ids_release(&t->context);
    free(t->hidden);
    free(t->top_ids);
    free(t->top);
    free(t);
}

/* Seats a conversation: its prefix, its own rows, the rows it wants. */
static int enter(struct cart_teacher *t, struct pupil *p, struct cart_err *err)
{
    const struct cart_model *m = cart_engine_model(t->e);
    size_t n = cart_conversation_supervised(&p->c);
    int r;

    t->context.n = 0;
    if ((r = cart_context_of(&t->context, t->chat, t->corpus, &p->c, err)) < 0 ||
        (r = cart_prefix_acquire(t->e, t->context.data, t->context.n, &p->prefix, err)) < 0)
        return r;
    p->part = cart_prefix_part(p->prefix);
    if (!p->session_ready) {
        if ((r = cart_session_init(&p->session, m, CART_F32, &p->part, 1, p->c.T, err)) < 0)
            return r;
        p->session_ready = true;
    }
    cart_session_restart(&p->session, &p->part, 1);
    if ((r = cart_session_reserve(&p->session, m, p->c.T, err)) < 0 ||
        (r = cart_array_reserve(&p->wants, &p->wants_cap, n, sizeof *p->wants, err)) < 0)
        return r;
    p->n_wants = 0;
    for (size_t i = 0; i < p->c.n_supervised; i++) {
        for (size_t k = p->c.supervised[i].first; k < p->c.supervised[i].end; k++)
            p->wants[p->n_wants++] = k - 1;
    }
    return 0;
}

/* Keeps of k falling log-probabilities the smallest prefix that reaches the mass. Returns its
 * length, 0 if one is not a number, and -sum p log p over it. */
static size_t retain(const struct cart_teacher *t, const float *logprobs, float *entropy)
{
    double mass = 0;
    double h = 0;
    size_t n = 0;

    while (n < t->opt.top_k && mass < t->opt.mass) {
        double lp = (double)logprobs[n];
        if (!(lp <= 0 && lp > -1e30))
            return 0;
        double p = cart_exp(lp);
        mass += p;
        h -= p * lp;
        n++;
    }
    *entropy = (float)(h > 0 ? h : 0);
    return n;
}

static int set_targets(struct cart_teacher *t, struct pupil *p, size_t first_row,
                       struct cart_err *err)
{
    struct cart_conversation *c = &p->c;
    size_t k = t->opt.top_k;
    int r = cart_conversation_reserve_targets(c, p->n_wants, p->n_wants * k, err);

    if (r < 0)
        return r;
    c->R = p->n_wants;
    c->E = 0;
    c->offsets[0] = 0;
    for (size_t i = 0; i < c->R; i++) {
        const float *logprobs = t->top + (first_row + i) * k;
        size_t n = retain(t, logprobs, &c->entropy[i]);
        if (n == 0)
            return cart_err_set(err, CART_EFORMAT,
                                "conversation %llu: token %zu: the logits are not finite",
                                (unsigned long long)c->n, p->wants[i] + 1);
        c->rows[i] = (uint32_t)(p->wants[i] + 1);
        memcpy(c->target_ids + c->E, t->top_ids + (first_row + i) * k, n * sizeof *c->target_ids);
        memcpy(c->logprobs + c->E, logprobs, n * sizeof *c->logprobs);
        c->E += n;
        c->offsets[i + 1] = c->E;
    }
    c->has_targets = true;
    return 0;
}

static int run(struct cart_teacher *t, struct cart_err *err)
{
    const struct cart_model *m = cart_engine_model(t->e);
    struct cart_span spans[CART_TEACHER_BATCH];
    size_t n_spans = 0;
    size_t rows = 0;
    int r;

    for (size_t i = 0; i < t->n; i++) {
        struct pupil *p = &t->pupils[i];
        if ((r = enter(t, p, err)) < 0)
            return cart_err_wrap(err, r, "conversation %llu", (unsigned long long)p->c.n);
        if (p->n_wants == 0)
            continue;
        /* Nothing after the last wanted row is needed. */
        size_t T = p->wants[p->n_wants - 1] + 1;
        if (cart_session_rows(&p->session) + T > m->context)
            return cart_err_set(err, CART_EUSAGE,
                                "conversation %llu: %zu tokens behind a context turn of %zu exceed "
                                "the model's context "
                                "of %zu",
                                (unsigned long long)p->c.n, T, cart_session_rows(&p->session),
                                m->context);
        spans[n_spans++] =
            (struct cart_span){p->c.ids, T, cart_session_kv(&p->session), p->wants, p->n_wants};
        rows += p->n_wants;
    }
    if ((r = cart_array_reserve(&t->hidden, &t->hidden_cap, rows, m->D * sizeof *t->hidden, err)) <
            0 ||
        (r = cart_array_reserve(&t->top_ids, &t->top_ids_cap, rows * t->opt.top_k,
                                sizeof *t->top_ids, err)) < 0 ||
        (r = cart_array_reserve(&t->top, &t->top_cap, rows * t->opt.top_k, sizeof *t->top, err)) <
            0)
        return r;
    if (n_spans > 0 && (r = cart_engine_forward(t->e, spans, n_spans, t->hidden, err)) < 0)
        return r;
    if (rows > 0)
        cart_head_topk(t->head, t->hidden, rows, t->opt.top_k, t->top_ids, t->top,
                       cart_engine_pool(t->e));
    rows = 0;
    for (size_t i = 0; i < t->n; i++) {
        if ((r = set_targets(t, &t->pupils[i], rows, err)) < 0)
            return r;
        rows += t->pupils[i].n_wants;
    }
    return 0;
}

int cart_teacher_flush(struct cart_teacher *t, struct cart_err *err)
{
    int r = t->n > 0 ? run(t, err) : 0;

    for (size_t i = 0; i < t->n; i++)
        leave(t, &t->pupils[i]);
    for (size_t i = 0; i < t->n && r >= 0; i++)
        r = t->fn(t->ctx, &t->pupils[i].c, err);
    t->n = t->rows = 0;
    return r < 0 ? r : 0;
}

/* Rows that c's context turn adds to those of the batch. */
static size_t new_rows(const struct cart_teacher *t, const struct cart_conversation *c)
{
    for (size_t i = 0; i < t->n; i++) {
        const struct cart_conversation *o = &t->pupils[i].c;
        if (o->context == c->context && o->doc == c->doc &&
            o->context_span.first == c->context_span.first &&
            o->context_span.end == c->context_span.end)
            return 0;
    }
    return c->context_span.end - c->context_span.first;
}

int cart_teacher_push(struct cart_teacher *t, struct cart_conversation *c, struct cart_err *err)
{
    size_t rows = new_rows(t, c);
    int r;

    if (t->n > 0 && rows > 0 && t->rows + rows > CART_TEACHER_ROWS &&
        (r = cart_teacher_flush(t, err)) < 0)
        return r;
    struct cart_conversation empty = t->pupils[t->n].c;
    cart_conversation_reset(&empty);
    t->rows += t->n == 0 ? c->context_span.end - c->context_span.first : rows;
    t->pupils[t->n++].c = *c;
    *c = empty;
    return t->n == CART_TEACHER_BATCH ? cart_teacher_flush(t, err) : 0;
}

size_t cart_teacher_bytes(const struct cart_model *m, size_t n, size_t longest, size_t rows)
{
    size_t batch = n < CART_TEACHER_BATCH ? n : CART_TEACHER_BATCH;
    size_t held = rows < CART_TEACHER_ROWS ? rows : CART_TEACHER_ROWS;
    /* A conversation's context and its own rows each fill up blocks. */
    return cart_kv_tail_bytes(m, CART_F32, 0, held + batch * (longest + 3 * CART_KV_ANYWHERE));
}

json_t *cart_teacher_options_json(const struct cart_teacher_options *opt)
{
    return cart_kernels_mark(
        json_pack("{s:I,s:f}", "top_k", (json_int_t)opt->top_k, "mass", opt->mass));
}
