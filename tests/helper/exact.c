/* All that a model computes, done in a given way. See exact.h. */
#include "helper/exact.h"

#include "base/hash.h"
#include "base/rng.h"
#include "engine/batch.h"
#include "model/head.h"
#include "study/distill.h"
#include "study/teacher.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define STREAMS ((size_t)16)
#define LONGEST ((size_t)70)
#define DECODED ((size_t)5)
#define TALKS ((size_t)6)
#define TEXT ((size_t)50)
#define STEPS 3

const char *const exact_part_names[EXACT_PARTS] = {"rows", "logits",   "greedy tokens",  "targets",
                                                   "loss", "gradient", "optimizer steps"};

static struct cart_err err;

static void need(int r)
{
    if (r < 0) {
        printf("Bail out! %s\n", err.msg);
        exit(2);
    }
}

static void *room(size_t n, size_t size)
{
    void *p = calloc(n, size);

    if (p == NULL)
        need(cart_err_memory(&err, "a run", n * size));
    return p;
}

/* One run: the model, the way, and what all parts of it share. */
struct run {
    const struct cart_model *m;
    const struct exact_way *way;
    size_t P;
    struct cart_pool *pool;
    struct cart_engine *e;
    const struct cart_chat *chat;
    struct cart_trainable rows;
    const struct cart_kv_part *parts[2];
    uint32_t text[TEXT]; /* a document */
    struct cart_doc doc;
    struct cart_corpus corpus;
    struct cart_conversation talks[TALKS];
    struct cart_hash *hash;
    struct exact_result *out;
};

static uint32_t some_id(const struct run *x, size_t stream, size_t i)
{
    return (uint32_t)cart_rng_below(stream, 0, CART_RNG_TEST, (uint32_t)i, x->m->V - 3);
}

static void digest(struct run *x, enum exact_part part, const void *p, size_t n)
{
    cart_hash_bytes(p, n, x->out->digest[part]);
}

static size_t piece(const struct run *x, size_t left)
{
    return x->way->split > 0 && x->way->split < left ? x->way->split : left;
}

/* Feeds ids [n] of one stream in pieces, without a look at the result. */
static void feed(struct run *x, struct cart_session *s, const uint32_t *ids, size_t n)
{
    for (size_t at = 0, T; at < n; at += T) {
        T = piece(x, n - at);
        const struct cart_span span = {ids + at, T, cart_session_kv(s), NULL, 0};
        need(cart_engine_forward(x->e, &span, 1, NULL, &err));
    }
}

static void make_rows(struct run *x)
{
    struct cart_session s;
    struct cart_kv_part part;
    struct cart_kv_layer *layers = room(x->m->L, sizeof *layers);
    size_t P = x->P;
    uint32_t *ids = room(P, sizeof *ids);

    for (size_t i = 0; i < P; i++)
        ids[i] = some_id(x, 100, i);
    need(cart_session_init(&s, x->m, x->way->kv, NULL, 0, P, &err));
    feed(x, &s, ids, P);
    cart_kv_part_of_tail(&part, layers, x->m, &s.tail, 0, P);
    need(cart_trainable_init(&x->rows, x->m, P, 1, &err));
    cart_trainable_set(&x->rows, x->m, &part, 1);
    cart_session_release(&s);
    free(layers);
    free(ids);
    x->parts[0] = &x->rows.parts[0];
    x->parts[1] = &x->rows.parts[1];
    digest(x, EXACT_ROWS, x->rows.x, x->rows.n * sizeof *x->rows.x);
}

/* A stream of some prompt behind the rows. */
struct stream {
    struct cart_session session;
    uint32_t prompt[LONGEST];
    size_t n, fed;
    size_t row; /* of its first token, among those of all streams */
    uint32_t said[DECODED];
    size_t n_said;
};

static struct stream *make_streams(struct run *x)
{
    struct stream *s = room(STREAMS, sizeof *s);
    size_t row = 0;

    for (size_t i = 0; i < STREAMS; i++) {
        s[i].n = i % 8 == 2 ? LONGEST - i : 1 + i % 6;
        s[i].row = row;
        row += s[i].n;
        for (size_t k = 0; k < s[i].n; k++)
            s[i].prompt[k] = some_id(x, i, k);
        need(cart_session_init(&s[i].session, x->m, x->way->kv, x->parts, x->rows.n_parts, LONGEST,
                               &err));
    }
    return s;
}

static void free_streams(struct stream *s)
{
    for (size_t i = 0; i < STREAMS; i++)
        cart_session_release(&s[i].session);
    free(s);
}

/* Prompts side by side, each by its own pieces: their rows of hidden. */
static void prefill_group(struct run *x, struct stream *s, size_t n, float *hidden)
{
    struct cart_span spans[STREAMS];
    float *got = room(n * LONGEST * x->m->D, sizeof *got);

    for (;;) {
        size_t k = 0, at = 0, of[STREAMS];
        for (size_t i = 0; i < n; i++) {
            size_t T = piece(x, s[i].n - s[i].fed);
            if (T == 0)
                continue;
            of[k] = i;
            spans[k++] = (struct cart_span){s[i].prompt + s[i].fed, T,
                                            cart_session_kv(&s[i].session), NULL, T};
        }
        if (k == 0)
            break;
        need(cart_engine_forward(x->e, spans, k, got, &err));
        for (size_t i = 0; i < k; i++) {
            struct stream *o = &s[of[i]];
            memcpy(hidden + (o->row + o->fed) * x->m->D, got + at * x->m->D,
                   spans[i].T * x->m->D * sizeof *got);
            o->fed += spans[i].T;
            at += spans[i].T;
        }
    }
    free(got);
}

static void make_logits(struct run *x)
{
    struct stream *s = make_streams(x);
    size_t D = x->m->D, V = x->m->V, R = s[STREAMS - 1].row + s[STREAMS - 1].n;
    float *hidden = room(R * D, sizeof *hidden), *logits = room(R * V, sizeof *logits);

    for (size_t i = 0; i < STREAMS; i += x->way->width) {
        size_t n = STREAMS - i < x->way->width ? STREAMS - i : x->way->width;
        prefill_group(x, s + i, n, hidden);
    }
    for (size_t i = 0; i < R; i += x->way->width)
        cart_head_logits(x->m, hidden + i * D, R - i < x->way->width ? R - i : x->way->width,
                         logits + i * V, x->pool);
    if (!cart_all_finite(logits, R * V))
        need(cart_err_set(&err, CART_EFORMAT, "%s: logits that are not finite", x->m->path));
    digest(x, EXACT_LOGITS, logits, R * V * sizeof *logits);
    free(hidden);
    free(logits);
    free_streams(s);
}

static int keep(void *ctx, const struct cart_generation *g, struct cart_err *e)
{
    struct stream *s = ctx;

    (void)e;
    memcpy(s->said, g->ids, g->n * sizeof *g->ids);
    s->n_said = g->n;
    return 0;
}

/* Streams join as others leave, and while others decode. */
static void make_greedy(struct run *x)
{
    struct stream *s = make_streams(x);
    struct cart_batch *b;
    uint32_t all[STREAMS][DECODED + 1] = {{0}};

    need(cart_batch_new(&b, x->e, x->chat, x->way->width, 0, &err));
    for (size_t i = 0; i < STREAMS || cart_batch_active(b) > 0;) {
        if (i < STREAMS && cart_batch_active(b) < x->way->width) {
            size_t before = x->way->split > 0 ? s[i].n / 2 : 0;
            feed(x, &s[i].session, s[i].prompt, before);
            const struct cart_request req = {.session = &s[i].session,
                                             .prompt = s[i].prompt + before,
                                             .n_prompt = s[i].n - before,
                                             .max_tokens = DECODED,
                                             .sampling = CART_SAMPLING_GREEDY,
                                             .on_done = keep,
                                             .ctx = &s[i]};
            need(cart_batch_add(b, &req, &err));
            i++;
        }
        need(cart_batch_step(b, &err));
    }
    for (size_t i = 0; i < STREAMS; i++) {
        all[i][0] = (uint32_t)s[i].n_said;
        memcpy(all[i] + 1, s[i].said, s[i].n_said * sizeof **all);
    }
    digest(x, EXACT_GREEDY, all, sizeof all);
    cart_batch_free(b);
    free_streams(s);
}

/* The teacher hands a conversation back with its targets. */
static int taught(void *ctx, const struct cart_conversation *c, struct cart_err *e)
{
    struct run *x = ctx;
    struct cart_conversation *own = &x->talks[c->n];

    (void)e;
    cart_conversation_init(own);
    own->n = c->n;
    need(cart_conversation_push_ids(own, c->ids, c->T, &err));
    need(cart_conversation_reserve_targets(own, c->R, c->E, &err));
    own->has_targets = true;
    own->R = c->R;
    own->E = c->E;
    memcpy(own->rows, c->rows, c->R * sizeof *c->rows);
    memcpy(own->offsets, c->offsets, (c->R + 1) * sizeof *c->offsets);
    memcpy(own->target_ids, c->target_ids, c->E * sizeof *c->target_ids);
    memcpy(own->logprobs, c->logprobs, c->E * sizeof *c->logprobs);
    cart_hash_add(x->hash, c->offsets, (c->R + 1) * sizeof *c->offsets);
    cart_hash_add(x->hash, c->target_ids, c->E * sizeof *c->target_ids);
    cart_hash_add(x->hash, c->logprobs, c->E * sizeof *c->logprobs);
    cart_hash_add(x->hash, c->entropy, c->R * sizeof *c->entropy);
    return 0;
}

static void make_targets(struct run *x)
{
    static const struct cart_teacher_options o = CART_TEACHER_DEFAULTS;
    struct cart_conversation c;
    struct cart_teacher *t;

    for (size_t i = 0; i < TEXT; i++)
        x->text[i] = some_id(x, 200, i);
    x->doc = (struct cart_doc){.id = "a", .path = "a", .tokens = x->text, .n = TEXT};
    x->corpus = (struct cart_corpus){.docs = &x->doc, .n_docs = 1, .tokens = TEXT};
    x->hash = cart_hash_new();
    if (x->hash == NULL)
        need(cart_err_memory(&err, "a digest", 0));
    need(cart_teacher_new(&t, x->e, x->chat, &x->corpus, &o, taught, x, &err));
    cart_conversation_init(&c);
    for (size_t n = 0; n < TALKS; n++) {
        c.n = n;
        c.context = n % 2 ? CART_CONTEXT_DOCUMENT : CART_CONTEXT_CHUNK;
        c.context_span =
            n % 2 ? (struct cart_range){0, TEXT} : (struct cart_range){7 * n, 7 * n + 20};
        for (size_t i = 0; i < 12 + 5 * n; i++) {
            uint32_t id = some_id(x, 300 + n, i);
            need(cart_conversation_push_ids(&c, &id, 1, &err));
        }
        need(cart_conversation_supervise(&c, 4 + n, 9 + n, &err));
        need(cart_conversation_supervise(&c, 10 + n, c.T, &err));
        need(cart_teacher_push(t, &c, &err));
        if ((n + 1) % x->way->width == 0)
            need(cart_teacher_flush(t, &err));
    }
    need(cart_teacher_flush(t, &err));
    cart_hash_final(x->hash, x->out->digest[EXACT_TARGETS]);
    cart_hash_free(x->hash);
    cart_conversation_release(&c);
    cart_teacher_free(t);
}

static void train(struct run *x)
{
    const struct cart_distill_options o = {x->way->recompute, x->way->pack, 25 * x->way->width};
    const struct cart_conversation *group[TALKS];
    struct cart_distill_sums sums[TALKS];
    struct cart_trainable *t = &x->rows;
    struct cart_distiller *d;
    size_t bytes = t->n * sizeof(float);
    float *state = room(3 * t->n, sizeof *state);

    need(cart_distiller_new(&d, x->m, &o, &err));
    for (size_t step = 1; step <= STEPS; step++) {
        for (size_t i = 0; i < TALKS; i++)
            group[i] = &x->talks[(i + step) % TALKS];
        need(cart_distiller_run(d, t, group, TALKS, sums, x->pool, &err));
        if (step == 1) {
            digest(x, EXACT_LOSS, sums, sizeof sums);
            digest(x, EXACT_GRADIENT, t->g, bytes);
        }
        cart_trainable_step(t, step, 0.01, 1.0 / 150, x->pool);
    }
    memcpy(state, t->x, bytes);
    memcpy(state + t->n, t->m, bytes);
    memcpy(state + 2 * t->n, t->v, bytes);
    digest(x, EXACT_STEPS, state, 3 * bytes);
    free(state);
    cart_distiller_free(d);
}

void exact_run(struct exact_result *out, const struct cart_model *m, size_t rows,
               const struct exact_way *way)
{
    struct run x = {.m = m, .way = way, .P = rows, .out = out};

    need(cart_pool_new(&x.pool, way->threads, &err));
    need(cart_engine_new(&x.e, m, way->kv, x.pool, 0, &err));
    need(cart_model_chat(m, &x.chat, &err));
    make_rows(&x);
    make_logits(&x);
    make_greedy(&x);
    make_targets(&x);
    train(&x);
    for (size_t i = 0; i < TALKS; i++)
        cart_conversation_release(&x.talks[i]);
    cart_trainable_release(&x.rows);
    cart_engine_free(x.e);
    cart_pool_free(x.pool);
}
