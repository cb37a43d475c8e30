/* cart-teacher: reads a conversation stream; writes a target stream: the same conversations, each
 * with the teacher's most likely tokens and their log-probabilities at every supervised token, the
 * text of its context turn really in the context. Changes nothing else; FILE.part is what an
 * interrupted run goes on from. */
#include "base/clock.h"
#include "base/interrupt.h"
#include "base/opt.h"
#include "model/model.h"
#include "study/estimate.h"
#include "study/stage.h"
#include "study/teacher.h"

#include <stdlib.h>
#include <string.h>

struct options {
    struct cart_common common;
    struct cart_teacher_options teacher;
    size_t cache;
    bool resume, other_weights;
    const char *profile;
};

struct work {
    const struct options *o;
    struct cart_model *m;
    const struct cart_chat *chat;
    struct cart_pool *pool;
    struct cart_engine *e;
    struct cart_stream_reader *in;
    struct cart_corpus corpus;
    struct cart_teacher *teacher;
    struct cart_stage stage;
    json_t *head;
    struct cart_progress progress;
    size_t rows, entries;
};

static int on_targets(void *ctx, const struct cart_conversation *c, struct cart_err *err)
{
    struct work *w = ctx;

    w->rows += c->R;
    w->entries += c->E;
    cart_log(CART_LOG_INFO, "conversation %llu: %s, document %zu, %zu rows, %.1f entries a row",
             (unsigned long long)c->n, c->seed_type, c->doc, c->R,
             c->R > 0 ? (double)c->E / (double)c->R : 0.0);
    return cart_stage_write(&w->stage, c, err);
}

/* The HEAD of the result: that of the input with this stage in its history. */
static int make_head(struct work *w, struct cart_err *err)
{
    const json_t *in = cart_stream_head(w->in);
    json_t *options = cart_teacher_options_json(&w->o->teacher);
    json_t *history = cart_history_extend(in, "cart-teacher", options, NULL, err);
    json_t *fp = cart_fingerprints_json(&w->m->fp);

    json_decref(options);
    w->head = cart_json_copy(in);
    /* What is written is of the version that this program knows. */
    json_object_del(w->head, "version");
    if (history == NULL || fp == NULL || w->head == NULL ||
        json_object_set_new(w->head, "kind", json_string("targets")) < 0 ||
        json_object_set(w->head, "model", fp) < 0 ||
        json_object_set(w->head, "history", history) < 0) {
        json_decref(history);
        json_decref(fp);
        return cart_err_memory(err, "HEAD", 0);
    }
    json_decref(history);
    json_decref(fp);
    return 0;
}

static int open_all(struct work *w, const char *input, struct cart_record *rec,
                    struct cart_err *err)
{
    int r;
    if ((r = cart_model_open_pooled(&w->m, &w->pool, w->o->common.model, w->o->profile,
                                    w->o->common.jobs, err)) < 0 ||
        (r = cart_model_chat(w->m, &w->chat, err)) < 0 ||
        (r = cart_engine_new(&w->e, w->m, CART_F32, w->pool, w->o->cache, err)) < 0 ||
        (r = cart_stream_open(&w->in, input, "conversations", err)) < 0 ||
        (r = cart_fingerprints_check(w->m, json_object_get(cart_stream_head(w->in), "model"),
                                     w->o->other_weights, cart_stream_name(w->in), err)) < 0 ||
        (r = cart_teacher_new(&w->teacher, w->e, w->chat, &w->corpus, &w->o->teacher, on_targets, w,
                              err)) < 0)
        return r;
    return cart_corpus_read(&w->corpus, w->in, w->m->V, rec, err);
}

/* Reads to the end, counts, and says what a run would need. */
static int dry_run(struct work *w, struct cart_record *rec, int r, struct cart_err *err)
{
    struct cart_conversation_order order;
    struct cart_conversation c;
    struct cart_rates rates;
    size_t n = 0;
    size_t ids = 0;
    size_t rows = 0;
    size_t done = 0;
    size_t longest = 0;
    size_t chunks = 0; /* tokens that are a context of their own */
    uint64_t next = 0; /* n of the first that FILE.part has not */
    int s;
    struct cart_contexts contexts;

    if ((w->o->resume && (s = cart_stage_peek(w->o->common.output, &done, &next, err)) < 0) ||
        (s = cart_contexts_init(&contexts, &w->corpus, err)) < 0)
        return s;
    cart_conversation_init(&c);
    cart_conversation_order_init(&order, cart_stream_head(w->in));
    for (; r > 0; r = cart_stream_read(w->in, rec, err)) {
        if ((s = cart_conversation_parse(&c, rec, w->m->V, &w->corpus, cart_stream_name(w->in),
                                         err)) < 0 ||
            (s = cart_conversation_follow(&order, &c, cart_stream_name(w->in), err)) < 0) {
            r = s;
            break;
        }
        if (c.n < next)
            continue;
        n++;
        ids += c.T;
        longest = c.T > longest ? c.T : longest;
        if (c.context == CART_CONTEXT_CHUNK)
            chunks += c.context_span.end - c.context_span.first;
        cart_contexts_add(&contexts, c.context, c.doc, c.context_span);
        rows += cart_conversation_supervised(&c);
    }
    cart_conversation_release(&c);
    ids += chunks + contexts.kept;
    size_t cache = cart_contexts_bytes(&contexts, w->m, w->o->cache);
    cart_contexts_release(&contexts);
    if (r < 0 || (r = cart_estimate_rates(w->e, 1, &rates, err)) < 0)
        return r;
    if (done > 0)
        cart_log(CART_LOG_NOTICE, "%zu conversation%s of it done: what follows is of the others",
                 done, CART_S(done));
    cart_log(CART_LOG_NOTICE, "%zu conversation%s, %zu supervised token%s", n, CART_S(n), rows,
             CART_S(rows));
    cart_log(CART_LOG_NOTICE, "memory beside the model: at most %.0f MiB",
             (double)(cart_workspace_bytes(w->m, CART_ENGINE_PIECE) +
                      cart_teacher_bytes(w->m, n, longest, chunks) + cart_corpus_bytes(&w->corpus) +
                      cache) /
                 1048576.0);
    cart_log(CART_LOG_NOTICE, "disk: about %.1f MiB; time: about %.0f s",
             (double)(n * 1500 + ids * 4 + rows * 90) / 1048576.0, (double)ids / rates.prefill);
    char busy[256];
    if (cart_busy_words(rates.share, busy, sizeof busy))
        cart_log(CART_LOG_NOTICE, "%s", busy);
    return 0;
}

static int teach(struct work *w, struct cart_record *rec, int r, struct cart_err *err)
{
    const char *name = cart_stream_name(w->in);
    uint64_t planned = 0;
    struct cart_conversation_order order;
    double done = 0;
    struct cart_conversation c;

    cart_conversation_init(&c);
    cart_conversation_order_init(&order, cart_stream_head(w->in));
    if (cart_json_u64_opt(cart_stream_head(w->in), "conversations", UINT32_MAX, &planned, name,
                          NULL) < 0)
        planned = 0;
    cart_progress_start(&w->progress, w->o->common.progress, "conversations", (double)planned);
    for (; r > 0; r = cart_stream_read(w->in, rec, err)) {
        int s = cart_conversation_parse(&c, rec, w->m->V, &w->corpus, name, err);
        if (s == 0)
            s = cart_conversation_follow(&order, &c, name, err);
        if (s < 0) {
            r = s;
            break;
        }
        done++;
        if ((s = cart_stage_skip(&w->stage, &c, err)) == 1)
            cart_progress_skip(&w->progress, done);
        else if (s == 0)
            s = cart_teacher_push(w->teacher, &c, err);
        if (s < 0) {
            r = s;
            break;
        }
        cart_progress_update(&w->progress, done, NULL);
        if (cart_interrupted()) {
            r = cart_err_set(err, CART_EAGAIN, "stopped after %.0f conversation%s", done,
                             CART_S((size_t)done));
            break;
        }
    }
    if (r == 0 && (r = cart_stage_skip(&w->stage, NULL, err)) == 0)
        r = cart_teacher_flush(w->teacher, err);
    cart_progress_end(&w->progress);
    cart_conversation_release(&c);
    return r;
}

static int run(const struct options *o, const char *input, struct cart_err *err)
{
    struct work w = {.o = o, .corpus = CART_CORPUS_INIT, .stage = {.fd = -1}};
    struct cart_record rec;
    int r;

    if ((r = cart_kernels_select((enum cart_kernels)o->common.kernels,
                                 (enum cart_precision)o->common.precision, err)) < 0 ||
        (r = open_all(&w, input, &rec, err)) < 0)
        goto out;
    if (o->common.dry_run) {
        r = dry_run(&w, &rec, r, err);
        goto out;
    }
    int more = r;
    if ((r = make_head(&w, err)) < 0 ||
        (r = cart_stage_open(&w.stage, w.m, o->common.output, w.head, (int)o->common.compress,
                             o->resume, &w.corpus, err)) < 0)
        goto out;
    if (w.stage.part != NULL)
        cart_interrupt_install();
    size_t before = w.stage.conversations;
    double start = cart_clock_now();
    cart_log(CART_LOG_INFO, "%s: %zu document%s, %zu tokens", cart_stream_name(w.in),
             w.corpus.n_docs, CART_S(w.corpus.n_docs), w.corpus.tokens);
    if (before > 0)
        cart_log(CART_LOG_NOTICE, "going on after %zu conversation%s", before, CART_S(before));
    r = teach(&w, &rec, more, err);
    cart_interrupt_release();
    size_t all = w.stage.conversations, n = all - before; /* n: as rows and entries count */
    bool kept = w.stage.part != NULL;
    char *part = kept ? strdup(w.stage.part) : NULL; /* what ends the stage takes its own */
    if (r < 0) {
        /* Whatever is wrong, it is not what was done so far. */
        kept = cart_stage_abandon(&w.stage, true);
    } else if ((r = cart_stage_commit(&w.stage, err)) == 0) {
        cart_log(CART_LOG_NOTICE, "%zu conversation%s, %zu row%s, %.1f entries a row", n, CART_S(n),
                 w.rows, CART_S(w.rows), w.rows > 0 ? (double)w.entries / (double)w.rows : 0.0);
        double seconds = cart_clock_now() - start;
        cart_log(CART_LOG_INFO, "%.1f s: %.0f rows a second", seconds, (double)w.rows / seconds);
        if (all == 0)
            cart_log(CART_LOG_WARNING, "%s: no conversation: the result has none either",
                     cart_stream_name(w.in));
        cart_log_wrote(o->common.output, "%zu conversation%s", all, CART_S(all));
    }
    if (r < 0 && kept)
        cart_log(CART_LOG_NOTICE, "%s holds %zu conversation%s: --resume goes on from it",
                 part != NULL ? part : "FILE.part", all, CART_S(all));
    free(part);
out:
    r = cart_model_cause(w.m, r, err);
    cart_teacher_free(w.teacher);
    cart_corpus_release(&w.corpus);
    cart_stream_close(w.in);
    cart_engine_free(w.e);
    json_decref(w.head);
    cart_pool_free(w.pool);
    cart_model_close(w.m);
    return r;
}

int main(int argc, char **argv)
{
    struct options o = {.teacher = CART_TEACHER_DEFAULTS, .cache = (size_t)1 << 30};
    struct cart_err err = {0};
    const struct cart_opt table[] = {
        CART_OPT_SIZE('k', "top-k", &o.teacher.top_k, 1, 256, "K",
                      "entries kept a token, at most (default: 20)"),
        CART_OPT_REAL(0, "mass", &o.teacher.mass, 1e-6, 1, "M",
                      "probability that the entries reach, the crossing one kept (default: 0.99)"),
        CART_OPT_FLAG(0, "resume", &o.resume, "go on from FILE.part, if there is one"),
        CART_OPT_SIZE(0, "cache", &o.cache, 0, 1e15, "BYTES",
                      "memory for context turns kept for later (default: 1G)"),
        CART_OPT_FLAG(0, "allow-other-weights", &o.other_weights,
                      "conversations made by other weights of this model"),
        CART_OPT_STRING(0, "profile", &o.profile, "NAME",
                        "chat profile in place of the one that the template chooses"),
        CART_OPT_END,
    };
    const struct cart_tool tool = {"cart-teacher",
                                   "record what the model predicts with the text in its context",
                                   "[FILE|-]",
                                   table,
                                   CART_USES_OUTPUT | CART_USES_JOBS | CART_USES_MODEL |
                                       CART_USES_COMPRESS | CART_USES_DRY_RUN | CART_USES_PROGRESS |
                                       CART_USES_KERNELS,
                                   &o.common};
    int first;
    bool done = false;
    int r = cart_opt_parse(&tool, argc, argv, &first, &done, &err);

    if (r == 0 && !done && argc - first > 1)
        r = cart_err_set(&err, CART_EUSAGE, "expected one conversation stream, found %d operands",
                         argc - first);
    if (r == 0 && !done && o.resume && cart_io_is_direct(o.common.output))
        r = cart_err_set(&err, CART_EUSAGE, "--resume: expected a file to go on with: -o FILE");
    if (r == 0 && !done)
        r = run(&o, first < argc ? argv[first] : "-", &err);
    int status = cart_main_end(r, 0, &err);
    if (r < 0)
        cart_interrupt_die();
    return status;
}
