#include "study/eval.h"

#include "base/clock.h"
#include "base/log.h"
#include "study/context.h"
#include "study/estimate.h"
#include "study/evaluate.h"
#include "study/init.h"
#include "token/chat.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define EVAL_TOKENS ((size_t)1024)
#define TIMED_TOKENS ((size_t)256) /* of each student, to know its time */
#define TIMED_SECONDS 3.0          /* of all; the others are taken to be as slow as the last */

/* What one arm measured, item by item, for the paired differences. */
struct samples {
    double *kl;             /* [conversations] sums */
    double *answer, *right; /* [questions]; right: -1 where nothing was judged */
};

struct eval_run {
    struct cart_eval *out;
    const struct cart_model *m;
    const struct cart_eval_options *opt;
    struct cart_pool *pool;
    struct cart_corpus corpus;
    char digest[33];     /* of corpus */
    const char *profile; /* of the model's chat */
    struct cart_conversation_order order;
    struct cart_conversation **convs;
    size_t n, cap;
    double *rows; /* [n] supervised tokens of each */
    struct cart_distill_sums *sums;
    struct cart_questions questions;
    struct cart_score *scores; /* [questions.options] */
    struct cart_evaluator *evaluator;
    struct samples *samples; /* [arms] */
    size_t samples_cap;
    size_t bare, untrained;      /* arms; SIZE_MAX: not in the table */
    struct cart_eval_need *need; /* counts and times, judges nothing; or NULL */
    double read_seconds;         /* a token, of the bare model; for need */
    double each, timed;          /* a token, of the student timed last; in all; for need */
    cart_eval_progress_fn *progress;
    void *ctx;
};

static int keep(struct eval_run *e, const struct cart_record *rec, const char *name,
                struct cart_err *err)
{
    struct cart_conversation *c = malloc(sizeof *c);
    if (!c)
        return cart_err_memory(err, "conversation", sizeof *c);
    cart_conversation_init(c);
    int r = cart_conversation_parse(c, rec, e->m->V, &e->corpus, name, err);
    if (r == 0)
        r = cart_conversation_follow(&e->order, c, name, err);
    if (r == 0)
        r = cart_conversation_alone(c, name, err);
    /* Held-out conversations come first, so one tells which kind is wanted. */
    bool wanted = r == 0 && c->R > 0 && (c->held_out || !e->out->held_out);
    if (wanted &&
        (r = cart_array_reserve(&e->convs, &e->cap, e->n + 1, sizeof *e->convs, err)) == 0) {
        e->out->held_out = c->held_out;
        e->convs[e->n++] = c;
        return 0;
    }
    cart_conversation_release(c);
    free(c);
    return r;
}

static int read_stream(struct eval_run *e, const char *input, struct cart_err *err)
{
    struct cart_stream_reader *in = NULL;
    struct cart_record rec;
    int r = cart_stream_open(&in, input, "targets", err);
    if (r < 0)
        return r;
    const char *name = cart_stream_name(in);
    r = cart_fingerprints_check(e->m, json_object_get(cart_stream_head(in), "model"),
                                e->opt->allow_other_weights, name, err);
    if (r == 0)
        r = cart_corpus_read(&e->corpus, in, e->m->V, &rec, err);
    cart_conversation_order_init(&e->order, cart_stream_head(in));
    while (r == 1) {
        if ((r = keep(e, &rec, name, err)) == 0)
            r = cart_stream_read(in, &rec, err);
    }
    if (r == 0 && e->n == 0)
        r = cart_err_set(err, CART_EFORMAT, "%s: no conversation to judge by", name);
    cart_stream_close(in);
    return r < 0 ? r : cart_corpus_digest(&e->corpus, e->digest, err);
}

static int prepare(struct eval_run *e, struct cart_err *err)
{
    int r = 0;
    if (e->opt->questions)
        r = cart_questions_read(&e->questions, e->opt->questions, e->m, &e->corpus, err);
    if (r < 0 || (r = cart_evaluator_new(&e->evaluator, e->m, EVAL_TOKENS, err)) < 0)
        return r;
    e->rows = calloc(e->n, sizeof *e->rows);
    e->sums = calloc(e->n, sizeof *e->sums);
    e->scores = calloc(e->questions.options + 1, sizeof *e->scores);
    if (!e->rows || !e->sums || !e->scores)
        return cart_err_memory(err, "evaluation", e->n * sizeof *e->sums);
    for (size_t i = 0; i < e->n; i++) {
        e->rows[i] = (double)e->convs[i]->R;
        e->out->tokens += e->convs[i]->R;
    }
    size_t k = 0;
    for (size_t i = 0; i < e->questions.n; i++)
        for (size_t o = 0; o < e->questions.items[i].n; o++) {
            const struct cart_option *opt = &e->questions.items[i].options[o];
            e->scores[k++] = (struct cart_score){opt->ids, opt->T, opt->n_scored, 0.0};
        }
    e->out->conversations = e->n;
    e->out->questions = e->questions.n;
    e->out->unlocated = e->questions.unlocated;
    const struct cart_questions *q = &e->questions;
    if (q->unlocated)
        r = cart_buf_addf(&e->out->notes, err,
                          "questions: the corpus does not hold the quote of %zu: line%s %s\n",
                          q->unlocated, CART_S(q->unlocated), q->unlocated_lines.data);
    if (r == 0 && q->too_long)
        r = cart_buf_addf(&e->out->notes, err,
                          "questions: %zu left out, beyond the context of %zu: line%s %s\n",
                          q->too_long, e->m->context, CART_S(q->too_long), q->too_long_lines.data);
    return r;
}

static void add_recall(struct cart_eval_recall *r, double answer, double right)
{
    r->n++;
    r->answer += answer;
    r->judged += right >= 0.0;
    r->right += right > 0.0;
}

static void finish_recall(struct cart_eval_recall *r)
{
    r->answer = r->n ? r->answer / (double)r->n : 0.0;
}

/* From the scores of all options to each question's verdict. */
static void judge(struct eval_run *e, struct cart_eval_arm *arm, struct samples *s)
{
    size_t k = 0;
    for (size_t i = 0; i < e->questions.n; i++) {
        const struct cart_question *q = &e->questions.items[i];
        double best_wrong = 0.0, own = e->scores[k].sum / (double)e->scores[k].n_scored;
        for (size_t o = 1; o < q->n; o++) {
            double x = e->scores[k + o].sum / (double)e->scores[k + o].n_scored;
            best_wrong = o == 1 || x > best_wrong ? x : best_wrong;
        }
        k += q->n;
        s->answer[i] = own;
        s->right[i] = q->n < 2 ? -1.0 : own > best_wrong ? 1.0 : 0.0;
        add_recall(&arm->all, s->answer[i], s->right[i]);
        if (q->located)
            add_recall(q->at <= e->out->opening ? &arm->within : &arm->beyond, s->answer[i],
                       s->right[i]);
    }
    finish_recall(&arm->all);
    finish_recall(&arm->within);
    finish_recall(&arm->beyond);
}

static int new_arm(struct eval_run *e, const char *name, struct cart_err *err)
{
    struct cart_eval *out = e->out;
    int r = cart_array_reserve(&out->arms, &out->cap, out->n + 1, sizeof *out->arms, err);
    if (r == 0)
        r = cart_array_reserve(&e->samples, &e->samples_cap, out->n + 1, sizeof *e->samples, err);
    if (r < 0)
        return r;
    struct samples s = {calloc(e->n, sizeof(double)), calloc(e->questions.n + 1, sizeof(double)),
                        calloc(e->questions.n + 1, sizeof(double))};
    char *copy = strdup(name);
    e->samples[out->n] = s;
    out->arms[out->n++] = (struct cart_eval_arm){.name = copy};
    return s.kl && s.answer && s.right && copy
               ? 0
               : cart_err_memory(err, "evaluation", e->n * sizeof(double));
}

/* For cart_eval_need: some conversations behind the rows tell how long all take. */
static int time_arm(struct eval_run *e, const struct cart_kv_part *const *parts, size_t n_parts,
                    struct cart_err *err)
{
    size_t n = 0, tokens = 0;
    int r = 0;
    while (n < e->n && tokens < TIMED_TOKENS)
        tokens += e->convs[n++]->T;
    if (e->timed < TIMED_SECONDS) {
        struct cart_lap lap;
        double start = cart_clock_now();
        cart_lap_begin(&lap, cart_pool_threads(e->pool));
        r = cart_evaluator_targets(e->evaluator, parts, n_parts,
                                   (const struct cart_conversation *const *)e->convs, n, e->sums,
                                   e->pool, err);
        e->each = cart_lap_end(&lap, &e->need->share) / (double)tokens;
        e->timed += cart_clock_now() - start;
    }
    /* The first student is the bare model, whose time is that of reading, too. */
    if (e->need->students++ == 0)
        e->read_seconds = e->each;
    e->need->seconds += e->each * (double)e->need->judged;
    return r;
}

/* Judges rows (parts) under a name. */
static int run_arm(struct eval_run *e, const char *name, const struct cart_kv_part *const *parts,
                   size_t n_parts, size_t bytes, struct cart_err *err)
{
    if (e->progress)
        e->progress(e->ctx, name);
    int r = new_arm(e, name, err);
    if (r < 0 || e->need)
        return r < 0 ? r : time_arm(e, parts, n_parts, err);
    struct cart_eval_arm *arm = &e->out->arms[e->out->n - 1];
    struct samples *s = &e->samples[e->out->n - 1];
    for (size_t i = 0; i < n_parts; i++)
        arm->rows += parts[i]->rows;
    arm->bytes = bytes;
    const struct cart_conversation *const *convs =
        (const struct cart_conversation *const *)e->convs;
    if ((r = cart_evaluator_targets(e->evaluator, parts, n_parts, convs, e->n, e->sums, e->pool,
                                    err)) < 0 ||
        (r = cart_evaluator_scores(e->evaluator, parts, n_parts, e->scores, e->questions.options,
                                   e->pool, err)) < 0)
        return cart_err_wrap(err, r, "%s", name);
    size_t top1 = 0;
    for (size_t i = 0; i < e->n; i++) {
        s->kl[i] = e->sums[i].kl;
        arm->kl += e->sums[i].kl;
        arm->ce += e->sums[i].ce;
        top1 += e->sums[i].top1;
    }
    double tokens = (double)e->out->tokens;
    arm->kl /= tokens;
    arm->ce /= tokens;
    arm->top1 = (double)top1 / tokens;
    judge(e, arm, s);
    return 0;
}

static void need_memory(struct eval_run *e, size_t bytes)
{
    if (e->need && bytes > e->need->memory)
        e->need->memory = bytes;
}

/* The rows of ids; for cart_eval_need as many of zeros. */
static int read_text(struct eval_run *e, struct cart_kv_tail *tail, const struct cart_ids *ids,
                     struct cart_err *err)
{
    if (!e->need)
        return cart_init_prefill(tail, e->m, ids->data, ids->n, e->pool, err);
    int r = cart_kv_tail_init(tail, e->m, CART_F32, 0, ids->n, err);
    for (size_t l = 0; r == 0 && l < e->m->L; l++) {
        size_t bytes = tail->places * cart_layer_kv_width(&e->m->layers[l]) * sizeof(float);
        memset(tail->k[l], 0, bytes);
        memset(tail->v[l], 0, bytes);
    }
    e->need->read += ids->n;
    need_memory(e, cart_init_prefill_bytes(e->m, ids->n));
    return r;
}

/* An arm over rows that a prefill of ids gives. */
static int run_text(struct eval_run *e, const char *name, const struct cart_ids *ids,
                    struct cart_err *err)
{
    struct cart_kv_tail tail;
    struct cart_kv_part part;
    struct cart_kv_layer *layers = calloc(e->m->L, sizeof *layers);
    if (!layers)
        return cart_err_memory(err, "layers", e->m->L * sizeof *layers);
    int r = read_text(e, &tail, ids, err);
    if (r == 0) {
        const struct cart_kv_part *parts[1] = {&part};
        cart_kv_part_of_tail(&part, layers, e->m, &tail, 0, ids->n);
        r = run_arm(e, name, parts, 1, cart_kv_part_bytes(e->m, &part), err);
        cart_kv_tail_release(&tail);
    }
    free(layers);
    return r;
}

/* The longest thing that stands behind any rows. */
static size_t longest(const struct eval_run *e)
{
    size_t most = 0;
    for (size_t i = 0; i < e->n; i++)
        most = e->convs[i]->T > most ? e->convs[i]->T : most;
    for (size_t i = 0; i < e->questions.options; i++)
        most = e->scores[i].T > most ? e->scores[i].T : most;
    return most;
}

static int run_whole(struct eval_run *e, const struct cart_chat *chat, struct cart_err *err)
{
    struct cart_ids ids = CART_IDS_INIT;
    struct cart_range all = {0, e->corpus.tokens};
    int r = cart_context_build(&ids, chat, &e->corpus, CART_CONTEXT_CORPUS, 0, all, err);
    if (r == 0 && ids.n + longest(e) > e->m->context)
        r = cart_buf_addf(&e->out->notes, err,
                          "whole text: left out: %zu tokens and a conversation of %zu exceed the "
                          "context of %zu\n",
                          ids.n, longest(e), e->m->context);
    else if (r == 0)
        r = run_text(e, "whole text", &ids, err);
    cart_ids_release(&ids);
    return r;
}

/* 1: everything fits behind so many rows; 0: it does not, and a note says so. */
static int fits(struct eval_run *e, const char *name, size_t rows, struct cart_err *err)
{
    size_t most = longest(e);
    if (rows <= e->m->context && most <= e->m->context - rows)
        return 1;
    return cart_buf_addf(&e->out->notes, err,
                         "%s: left out: %zu rows and a conversation of %zu exceed the context of "
                         "%zu\n",
                         name, rows, most, e->m->context);
}

static int run_cut(struct eval_run *e, const struct cart_chat *chat, size_t p, struct cart_err *err)
{
    struct cart_ids ids = CART_IDS_INIT;
    char name[40];
    snprintf(name, sizeof name, "text %zu", p);
    for (size_t i = 0; i < e->out->n; i++)
        if (strcmp(e->out->arms[i].name, name) == 0)
            return 0;
    uint32_t *tokens = malloc(e->corpus.tokens * sizeof *tokens + 1);
    if (!tokens)
        return cart_err_memory(err, "corpus tokens", e->corpus.tokens * sizeof *tokens);
    cart_corpus_copy(&e->corpus, 0, e->corpus.tokens, tokens);
    struct cart_err why;
    int r = cart_init_ids(&ids, chat, tokens, e->corpus.tokens, p, false, &why);
    if (r == CART_EUSAGE)
        r = cart_buf_addf(&e->out->notes, err, "%s: left out: %s\n", name, why.msg);
    else if (r < 0)
        r = cart_err_set(err, r, "%s", why.msg);
    else if ((r = fits(e, name, ids.n, err)) == 1)
        r = run_text(e, name, &ids, err);
    cart_ids_release(&ids);
    free(tokens);
    return r;
}

/* Whether c says something else there. */
static bool says_other(const struct cart_cartridge *c, const char *key, const char *value)
{
    const char *said = json_string_value(json_object_get(c->metadata, key));
    return said && strcmp(said, value) != 0;
}

static bool of_other_corpus(const struct eval_run *e, const struct cart_cartridge *c)
{
    return says_other(c, "cart.corpus", e->digest);
}

/* Why this model and this stream cannot give the first rows of c again, or NULL. */
static const char *of_other_making(const struct eval_run *e, const struct cart_cartridge *c)
{
    if (of_other_corpus(e, c))
        return "it was made of another corpus than the stream's";
    if (says_other(c, "cart.weights", e->m->fp.weights))
        return "it was made by other weights than the model's";
    if (says_other(c, "cart.profile", e->profile))
        return "it was made with another chat profile";
    return NULL;
}

static int run_untrained(struct eval_run *e, const struct cart_cartridge *c, struct cart_err *err)
{
    const char *text = json_string_value(json_object_get(c->metadata, "cart.recipe"));
    json_t *recipe = NULL;
    struct cart_init init = {.recipe = NULL};
    struct cart_err why;
    int r = text ? cart_json_parse(&recipe, text, strlen(text), "cart.recipe", &why)
                 : cart_err_set(&why, CART_EMATCH, "the file has no recipe");
    const char *other = of_other_making(e, c);
    if (r == 0 && other)
        r = cart_err_set(&why, CART_EMATCH, "%s", other);
    if (r == 0)
        r = cart_init_remake(&init, e->m, recipe, &e->corpus, e->pool, &why);
    if (r == CART_EMATCH || r == CART_EUSAGE || r == CART_EFORMAT) {
        r = cart_buf_addf(&e->out->notes, err, "untrained: left out for %s: %s\n", c->path,
                          why.msg);
    } else if (r < 0) {
        r = cart_err_set(err, r, "untrained: %s", why.msg);
    } else {
        const struct cart_kv_part *parts[2] = {&init.rows.parts[0], &init.rows.parts[1]};
        /* The first is what all are compared with; others need a name of their own. */
        bool first = e->untrained == SIZE_MAX;
        struct cart_buf name = CART_BUF_INIT;
        r = first ? cart_buf_addf(&name, err, "untrained")
                  : cart_buf_addf(&name, err, "untrained %s", c->path);
        if (r == 0 && (r = fits(e, name.data, init.rows.p, err)) == 1) {
            e->untrained = first ? e->out->n : e->untrained;
            need_memory(e, cart_init_bytes(e->m, init.rows.p, init.rows.frozen));
            if (e->need)
                e->need->read += init.rows.p;
            r = run_arm(e, name.data, parts, init.rows.n_parts,
                        (init.rows.n + init.rows.n_sink) * sizeof(float), err);
        }
        cart_buf_release(&name);
        cart_init_release(&init);
    }
    json_decref(recipe);
    return r;
}

/* Whether all values at keys [n] are the same, or absent in both. */
static bool agree(const json_t *a, const json_t *b, const char *const *keys, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        const json_t *x = json_object_get(a, keys[i]), *y = json_object_get(b, keys[i]);
        if ((x || y) && !json_equal(x, y))
            return false;
    }
    return true;
}

/* 1 where the same maker gave both the same first rows: the first cartridge already has its
 * untrained arm. Else 0; CART_ESYS: no memory. */
static int same_start(const struct cart_cartridge *a, const struct cart_cartridge *b,
                      struct cart_err *err)
{
    static const char *const making[] = {"cart.corpus", "cart.weights", "cart.profile"};
    static const char *const recipe[] = {"init",        "p",       "frozen",   "init_seed",
                                         "init_digest", "kernels", "precision"};
    const char *ta = json_string_value(json_object_get(a->metadata, "cart.recipe"));
    const char *tb = json_string_value(json_object_get(b->metadata, "cart.recipe"));
    json_t *ra = NULL, *rb = NULL;
    struct cart_err why = {0};
    bool same = ta && tb && agree(a->metadata, b->metadata, making, CART_COUNTOF(making)) &&
                cart_json_parse(&ra, ta, strlen(ta), a->path, &why) == 0 &&
                cart_json_parse(&rb, tb, strlen(tb), b->path, &why) == 0 &&
                agree(ra, rb, recipe, CART_COUNTOF(recipe));
    json_decref(ra);
    json_decref(rb);
    return why.code == CART_ESYS ? cart_err_set(err, why.code, "%s", why.msg) : same;
}

static int run_arms(struct eval_run *e, struct cart_err *err)
{
    const struct cart_chat *chat;
    const struct cart_eval_options *o = e->opt;
    int r = cart_model_chat(e->m, &chat, err);
    e->bare = 0;
    e->untrained = SIZE_MAX;
    if (r < 0)
        return r;
    e->profile = cart_chat_profile(chat);
    if ((r = run_arm(e, "bare", NULL, 0, 0, err)) < 0 || (r = run_whole(e, chat, err)) < 0)
        return r;
    for (size_t i = 0; i < o->n_cartridges && r == 0; i++)
        r = run_cut(e, chat, o->cartridges[i]->p, err);
    for (size_t i = 0; i < o->n_cartridges && r == 0; i++) {
        e->out->other_corpus += of_other_corpus(e, o->cartridges[i]);
        for (size_t k = 0; k < i && r == 0; k++)
            r = same_start(o->cartridges[k], o->cartridges[i], err);
        r = r == 0 ? run_untrained(e, o->cartridges[i], err) : r < 0 ? r : 0;
    }
    for (size_t i = 0; i < o->n_cartridges && r == 0; i++) {
        const struct cart_kv_part *parts[2];
        const struct cart_cartridge *c = o->cartridges[i];
        size_t n = cart_cartridge_parts(&o->cartridges[i], 1, parts);
        if ((r = fits(e, c->path, c->p, err)) == 1)
            r = run_arm(e, c->path, parts, n, c->row_bytes, err);
    }
    return r;
}

/* Paired difference over the questions that count; which: 0 right, 1 answer, 2 answer beyond the
 * opening. */
static int difference(struct eval_run *e, const struct samples *a, const struct samples *b,
                      int which, bool *has, struct cart_interval *out, struct cart_err *err)
{
    size_t n = 0, all = e->questions.n;
    double *x = calloc(2 * all + 1, sizeof *x), *w = x ? x + all : NULL;
    if (!x)
        return cart_err_memory(err, "differences", 2 * all * sizeof *x);
    for (size_t i = 0; i < all; i++) {
        const struct cart_question *q = &e->questions.items[i];
        if ((which == 0 && a->right[i] < 0.0) ||
            (which == 2 && (!q->located || q->at <= e->out->opening)))
            continue;
        x[n] = which == 0 ? a->right[i] - b->right[i] : a->answer[i] - b->answer[i];
        w[n++] = 1.0;
    }
    *has = n > 0;
    int r = n > 0 ? cart_bootstrap(out, x, w, n, e->out->seed, err) : 0;
    free(x);
    return r;
}

static int differences(struct eval_run *e, size_t arm, size_t other,
                       struct cart_eval_differences *d, struct cart_err *err)
{
    if (other == SIZE_MAX || arm == other)
        return 0;
    const struct samples *a = &e->samples[arm], *b = &e->samples[other];
    double *x = calloc(e->n, sizeof *x);
    if (!x)
        return cart_err_memory(err, "differences", e->n * sizeof *x);
    for (size_t i = 0; i < e->n; i++)
        x[i] = a->kl[i] - b->kl[i];
    d->present = d->has_kl = true;
    int r = cart_bootstrap(&d->kl, x, e->rows, e->n, e->out->seed, err);
    free(x);
    if (r < 0 || (r = difference(e, a, b, 0, &d->has_right, &d->right, err)) < 0 ||
        (r = difference(e, a, b, 1, &d->has_answer, &d->answer, err)) < 0)
        return r;
    return difference(e, a, b, 2, &d->has_beyond, &d->answer_beyond, err);
}

static void release_run(struct eval_run *e)
{
    for (size_t i = 0; i < e->n; i++) {
        cart_conversation_release(e->convs[i]);
        free(e->convs[i]);
    }
    for (size_t i = 0; i < e->out->n; i++) {
        free(e->samples[i].kl);
        free(e->samples[i].answer);
        free(e->samples[i].right);
    }
    free(e->convs);
    free(e->samples);
    free(e->rows);
    free(e->sums);
    free(e->scores);
    cart_questions_release(&e->questions);
    cart_evaluator_free(e->evaluator);
    cart_corpus_release(&e->corpus);
}

int cart_eval_run(struct cart_eval *out, const struct cart_model *m, const char *input,
                  const struct cart_eval_options *opt, cart_eval_progress_fn *progress, void *ctx,
                  struct cart_pool *pool, struct cart_err *err)
{
    struct cart_eval made = {.seed = opt->seed, .notes = CART_BUF_INIT};
    struct eval_run e = {.out = &made,
                         .m = m,
                         .opt = opt,
                         .pool = pool,
                         .corpus = CART_CORPUS_INIT,
                         .progress = progress,
                         .ctx = ctx};
    int r;
    if ((r = read_stream(&e, input, err)) < 0 || (r = prepare(&e, err)) < 0)
        goto out;
    made.opening = opt->n_cartridges ? opt->cartridges[0]->p : 0;
    for (size_t i = 0; i < e.questions.n; i++) {
        const struct cart_question *q = &e.questions.items[i];
        made.within += q->located && q->at <= made.opening;
        made.beyond += q->located && q->at > made.opening;
    }
    r = run_arms(&e, err);
    for (size_t i = 0; i < made.n && r == 0; i++) {
        r = differences(&e, i, e.bare, &made.arms[i].to_bare, err);
        if (r == 0)
            r = differences(&e, i, e.untrained, &made.arms[i].to_untrained, err);
    }
out:
    release_run(&e);
    if (r < 0)
        cart_eval_release(&made);
    else
        *out = made;
    return r;
}

int cart_eval_need(struct cart_eval_need *out, const struct cart_model *m, const char *input,
                   const struct cart_eval_options *opt, struct cart_pool *pool,
                   struct cart_err *err)
{
    struct cart_eval made = {.notes = CART_BUF_INIT};
    struct cart_eval_need need = {.share = 1.0};
    struct eval_run e = {
        .out = &made, .m = m, .opt = opt, .pool = pool, .corpus = CART_CORPUS_INIT, .need = &need};
    int r;
    if ((r = read_stream(&e, input, err)) == 0 && (r = prepare(&e, err)) == 0) {
        for (size_t i = 0; i < e.n; i++)
            need.judged += e.convs[i]->T;
        for (size_t i = 0; i < e.questions.options; i++)
            need.judged += e.scores[i].T;
        need.conversations = made.conversations;
        need.questions = made.questions;
        r = run_arms(&e, err);
        need.memory +=
            cart_evaluator_bytes(m, EVAL_TOKENS, longest(&e)) + cart_corpus_bytes(&e.corpus);
        need.seconds += e.read_seconds * (double)need.read;
    }
    release_run(&e);
    if (r == 0) {
        need.notes = made.notes;
        made.notes = (struct cart_buf)CART_BUF_INIT;
        *out = need;
    }
    cart_eval_release(&made);
    return r;
}

void cart_eval_release(struct cart_eval *e)
{
    for (size_t i = 0; i < e->n; i++)
        free(e->arms[i].name);
    free(e->arms);
    cart_buf_release(&e->notes);
    *e = (struct cart_eval){.n = 0};
}
