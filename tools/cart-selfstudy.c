/* cart-selfstudy: reads a token stream; writes a conversation stream (with --targets the target
 * stream that cart-teacher would make of it): the model interviews itself about chunks of the
 * corpus. Changes nothing else; FILE.part is what an interrupted run goes on from. */
#include "base/clock.h"
#include "base/interrupt.h"
#include "base/opt.h"
#include "model/model.h"
#include "study/estimate.h"
#include "study/selfstudy.h"
#include "study/stage.h"
#include "study/teacher.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

struct options {
    struct cart_common common;
    struct cart_selfstudy_options study;
    struct cart_teacher_options teacher;
    size_t n, cache;
    const char *chunk, *seed_types, *shard, *profile;
    int context;
    bool targets, resume;
    uint64_t total, first, end; /* conversations of the run; of this shard */
};

struct work {
    const struct options *o;
    struct cart_model *m;
    struct cart_pool *pool;
    struct cart_engine *e;
    struct cart_stream_reader *in;
    struct cart_corpus corpus;
    struct cart_plan *plan;
    struct cart_selfstudy *study;
    struct cart_teacher *teacher;
    struct cart_stage stage;
    json_t *head;
    struct cart_progress progress;
    double seconds; /* of the whole study */
};

static int check(struct options *o, struct cart_err *err)
{
    struct cart_plan_options *p = &o->study.plan;
    size_t i = 1, shards = 1;
    int r;

    if (o->resume && cart_io_is_direct(o->common.output))
        return cart_err_set(err, CART_EUSAGE, "--resume: expected a file to go on with: -o FILE");
    if ((r = cart_opt_pair(o->chunk, ':', 1 << 20, &p->chunk_min, &p->chunk_max, "--chunk", err)) <
            0 ||
        (o->shard != NULL &&
         (r = cart_opt_pair(o->shard, '/', 1 << 20, &i, &shards, "--shard", err)) < 0) ||
        (r = cart_seed_weights_parse(p->weights, o->seed_types, err)) < 0)
        return r;
    p->context = (enum cart_context_choice)o->context;
    o->total = (uint64_t)o->n + p->held_out;
    if (o->total == 0)
        return cart_err_set(err, CART_EUSAGE,
                            "-n and --held-out: expected a conversation, found none");
    o->first = o->total * (i - 1) / shards;
    o->end = o->total * i / shards;
    return 0;
}

/* ---- writing ---- */

static int on_targets(void *ctx, const struct cart_conversation *c, struct cart_err *err)
{
    struct work *w = ctx;
    return cart_stage_write(&w->stage, c, err);
}

static int on_conversation(void *ctx, uint64_t n, struct cart_conversation *c, struct cart_err *err)
{
    struct work *w = ctx;
    const struct cart_selfstudy_counts *k = cart_selfstudy_counts(w->study);
    char note[64];
    int r = 0;

    cart_log(CART_LOG_INFO, "conversation %llu: %s", (unsigned long long)n,
             c != NULL ? c->seed_type : "empty, left out");
    if (c != NULL)
        r = w->teacher != NULL ? cart_teacher_push(w->teacher, c, err)
                               : cart_stage_write(&w->stage, c, err);
    snprintf(note, sizeof note, "%zu tokens written by the model", k->decoded);
    cart_progress_update(&w->progress, (double)(n + 1 - w->o->first), note);
    return r;
}

static int make_head(struct work *w, struct cart_err *err)
{
    const struct options *o = w->o;
    char digest[33];
    int r = cart_corpus_digest(&w->corpus, digest, err);

    if (r < 0)
        return r;
    json_t *options = cart_selfstudy_options_json(&o->study, o->n);
    json_t *extra =
        json_pack("{s:I,s:s}", "seed", (json_int_t)o->study.plan.seed, "corpus", digest);
    json_t *history = extra != NULL ? cart_history_extend(cart_stream_head(w->in), "cart-selfstudy",
                                                          options, extra, err)
                                    : NULL;
    json_t *fp = cart_fingerprints_json(&w->m->fp);
    if (history != NULL && o->targets) {
        json_t *before = json_pack("{s:O}", "history", history);
        json_t *teacher = cart_teacher_options_json(&o->teacher);
        json_decref(history);
        history =
            before != NULL ? cart_history_extend(before, "cart-teacher", teacher, NULL, err) : NULL;
        json_decref(before);
        json_decref(teacher);
    }
    if (history != NULL && fp != NULL)
        w->head =
            json_pack("{s:s,s:O,s:O,s:I,s:I}", "kind", o->targets ? "targets" : "conversations",
                      "model", fp, "history", history, "conversations", (json_int_t)o->total,
                      "held_out", (json_int_t)o->study.plan.held_out);
    /* So that a join knows a shard whose first conversation came out empty. */
    if (w->head != NULL && o->end - o->first < o->total &&
        json_object_set_new(w->head, "shard",
                            json_pack("[I,I]", (json_int_t)o->first, (json_int_t)o->end)) < 0) {
        json_decref(w->head);
        w->head = NULL;
    }
    json_decref(options);
    json_decref(extra);
    json_decref(history);
    json_decref(fp);
    return w->head != NULL ? 0 : cart_err_memory(err, "HEAD", 0);
}

/* ---- reports ---- */

/* Where tokens are in fewer chunks, a user is told how many conversations are the rule. */
#define SEVERAL 4.0

/* Whether the documents are chat prompts that cart-tokenize rendered: no text to ask about. */
static bool are_prompts(const json_t *head)
{
    const json_t *stage = json_array_get(json_object_get(head, "history"), 0);
    return json_is_true(json_object_get(json_object_get(stage, "options"), "chat"));
}

static int report_plan(struct work *w, struct cart_err *err)
{
    const struct options *o = w->o;
    size_t held_out = o->study.plan.held_out;
    double share, times;
    int r = cart_plan_coverage(w->plan, held_out, o->total, &share, &times, err);

    if (r < 0)
        return r;
    if (are_prompts(cart_stream_head(w->in)))
        cart_log(CART_LOG_WARNING,
                 "%s: the documents are chat prompts, of cart-tokenize --chat: a corpus is made "
                 "without that",
                 cart_stream_name(w->in));
    cart_log(CART_LOG_NOTICE,
             "%zu document%s, %zu tokens; the chunks of %zu training conversation%s cover %.1f %% "
             "of them, each %.1f times on average",
             w->corpus.n_docs, CART_S(w->corpus.n_docs), w->corpus.tokens, o->n, CART_S(o->n),
             100 * share, times);
    if (times > 0 && times < SEVERAL)
        cart_log(CART_LOG_NOTICE,
                 "that is few: -n %.0f would cover each %.0f times; the rule of cart-selfstudy(1) "
                 "for a small corpus, one for every 10 tokens, is -n %zu",
                 ceil((double)o->n * SEVERAL / times), SEVERAL, (w->corpus.tokens + 9) / 10);
    if (held_out > 0 && cart_plan_regions(w->plan) > 0)
        cart_log(CART_LOG_NOTICE, "%zu held-out conversation%s on %zu stretch%s kept from training",
                 held_out, CART_S(held_out), cart_plan_regions(w->plan),
                 cart_plan_regions(w->plan) == 1 ? "" : "es");
    else if (held_out > 0)
        cart_log(
            CART_LOG_NOTICE,
            "%zu held-out conversation%s: new questions on the same text, as keeping text from "
            "training takes %zu tokens",
            held_out, CART_S(held_out), 8 * o->study.plan.chunk_max);
    return 0;
}

static void report_end(const struct work *w)
{
    const struct cart_selfstudy_counts *k = cart_selfstudy_counts(w->study);

    cart_log(CART_LOG_NOTICE,
             "%zu conversation%s (%zu left out as empty; %zu answer%s cut at a sentence, %zu in "
             "mid-sentence); "
             "%zu tokens read, %zu written",
             k->written, CART_S(k->written), k->empty, k->cut, CART_S(k->cut), k->unfinished,
             k->prefilled, k->decoded);
    cart_log(CART_LOG_INFO, "%.1f s: %.0f tokens read a second and %.0f written", w->seconds,
             (double)k->prefilled / w->seconds, (double)k->decoded / w->seconds);
    if (w->o->study.spec_b > 0)
        cart_log(CART_LOG_NOTICE, "%zu tokens guessed from the corpus, %zu of them right",
                 k->guessed, k->right);
}

static int dry_run(struct work *w, struct cart_err *err)
{
    const struct options *o = w->o;
    const struct cart_plan_options *p = &o->study.plan;
    struct cart_rates rates;
    struct cart_study_work work;
    uint64_t next = 0;
    size_t done = 0;
    int r = cart_estimate_rates(w->e, o->study.gen_batch, &rates, err);

    if (r == 0 && o->resume)
        r = cart_stage_peek(o->common.output, &done, &next, err);
    uint64_t first = next > o->first ? next : o->first;
    if (r < 0 || (r = cart_estimate_study(&work, w->plan, p, &w->corpus, first, o->end, o->targets,
                                          err)) < 0)
        return r;
    if (done > 0)
        cart_log(CART_LOG_NOTICE, "%zu conversation%s of it done: what follows is of the others",
                 done, CART_S(done));
    double n = o->end > first ? (double)(o->end - first) : 0;
    size_t longest = cart_selfstudy_longest(&o->study);
    cart_log(CART_LOG_NOTICE, "memory beside the model: at most %.0f MiB",
             (double)(cart_selfstudy_bytes(w->study) + cart_corpus_bytes(&w->corpus) +
                      (o->targets ? cart_teacher_bytes(w->m, (size_t)n, longest, work.chunks) : 0) +
                      cart_workspace_bytes(w->m, CART_ENGINE_PIECE) +
                      cart_study_chunk_bytes(&work, w->m, o->study.gen_batch) +
                      cart_contexts_bytes(&work.contexts, w->m, o->cache)) /
                 1048576.0);
    cart_log(CART_LOG_NOTICE,
             "disk: about %.1f MiB; time: about %.0f s (%.0f conversations, %.0f of them decoded; "
             "%.0f tokens read at %.0f/s, %.0f written at %.0f/s)",
             n * (o->targets ? 9000 : 2000) / 1048576.0,
             work.read / rates.prefill + work.written / rates.decode, n, work.spoken, work.read,
             rates.prefill, work.written, rates.decode);
    char busy[256];
    if (cart_busy_words(rates.share, busy, sizeof busy))
        cart_log(CART_LOG_NOTICE, "%s", busy);
    return 0;
}

/* ---- the run ---- */

static int open_all(struct work *w, const char *input, struct cart_err *err)
{
    const struct options *o = w->o;
    const struct cart_chat *chat;
    int r;
    if ((r = cart_model_open_pooled(&w->m, &w->pool, o->common.model, o->profile, o->common.jobs,
                                    err)) < 0 ||
        (r = cart_model_chat(w->m, &chat, err)) < 0 ||
        (r = cart_engine_new(&w->e, w->m, CART_F32, w->pool, o->cache, err)) < 0 ||
        (r = cart_corpus_open(&w->corpus, &w->in, input, w->m, err)) < 0 ||
        (r = cart_plan_new(&w->plan, &w->corpus, w->m, &o->study.plan, err)) < 0 ||
        (r = cart_selfstudy_new(&w->study, w->e, &w->corpus, w->plan, &o->study, err)) < 0)
        return r;
    return o->targets ? cart_teacher_new(&w->teacher, w->e, chat, &w->corpus, &o->teacher,
                                         on_targets, w, err)
                      : 0;
}

static int study(struct work *w, struct cart_err *err)
{
    const struct options *o = w->o;
    uint64_t first = w->stage.next_n > o->first ? w->stage.next_n : o->first;
    double start = cart_clock_now();
    int r;
    if (w->stage.conversations > 0)
        cart_log(CART_LOG_NOTICE, "going on after %zu conversation%s", w->stage.conversations,
                 CART_S(w->stage.conversations));
    cart_progress_start(&w->progress, o->common.progress, "conversations",
                        (double)(o->end - o->first));
    cart_progress_skip(&w->progress, (double)(first - o->first));
    r = cart_selfstudy_run(w->study, first, o->end, on_conversation, w, err);
    if (w->teacher != NULL) {
        /* However the run ends: conversations that are made would have to be made again. */
        struct cart_err late = {0};
        int s = cart_teacher_flush(w->teacher, r < 0 ? &late : err);
        r = r == 0 || (r == 1 && s < 0) ? s : r;
    }
    cart_progress_end(&w->progress);
    w->seconds = cart_clock_now() - start;
    if (r == 1)
        r = cart_err_set(err, CART_EAGAIN,
                         "stopped after %zu conversation%s; %zu more that were begun are lost",
                         w->stage.conversations, CART_S(w->stage.conversations),
                         cart_selfstudy_counts(w->study)->lost);
    return r;
}

static int run(const struct options *o, const char *input, struct cart_err *err)
{
    struct work w = {.o = o, .corpus = CART_CORPUS_INIT, .stage = {.fd = -1}};
    int r;
    if ((r = cart_kernels_select((enum cart_kernels)o->common.kernels,
                                 (enum cart_precision)o->common.precision, err)) < 0 ||
        (r = open_all(&w, input, err)) < 0)
        goto out;
    if (o->common.dry_run) {
        if ((r = report_plan(&w, err)) == 0)
            r = dry_run(&w, err);
        goto out;
    }
    if ((r = make_head(&w, err)) < 0 ||
        (r = cart_stage_open(&w.stage, w.m, o->common.output, w.head, (int)o->common.compress,
                             o->resume, &w.corpus, err)) < 0)
        goto out;
    if (w.stage.part != NULL)
        cart_interrupt_install();
    if ((r = report_plan(&w, err)) == 0)
        r = study(&w, err);
    cart_interrupt_release();
    size_t n = w.stage.conversations;
    bool kept = w.stage.part != NULL;
    char *part = kept ? strdup(w.stage.part) : NULL; /* what ends the stage takes its own */
    if (r < 0) {
        kept = cart_stage_abandon(&w.stage, true); /* what was done so far is right all the same */
    } else if ((r = cart_stage_commit(&w.stage, err)) == 0) {
        report_end(&w);
        cart_log_wrote(o->common.output, "%zu conversation%s", n, CART_S(n));
    }
    if (r < 0 && kept)
        cart_log(CART_LOG_NOTICE, "%s holds %zu conversation%s: --resume goes on from it",
                 part != NULL ? part : "FILE.part", n, CART_S(n));
    free(part);
out:
    r = cart_model_cause(w.m, r, err);
    cart_selfstudy_free(w.study);
    cart_teacher_free(w.teacher);
    cart_plan_free(w.plan);
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
    struct options o = {
        .study = {.plan = {.held_out = 8, .max_q = 64, .max_a = 160}, .gen_batch = 16},
        .teacher = CART_TEACHER_DEFAULTS,
        .n = 200,
        .cache = (size_t)1 << 30,
        .chunk = "256:512"};
    struct cart_plan_options *p = &o.study.plan;
    struct cart_err err = {0};
    const struct cart_opt table[] = {
        CART_OPT_SIZE('n', "conversations", &o.n, 0, 1 << 30, "N",
                      "training conversations (default: 200)"),
        CART_OPT_SIZE(0, "held-out", &p->held_out, 0, 1 << 20, "H",
                      "conversations held out, which come first (default: 8)"),
        CART_OPT_STRING(0, "chunk", &o.chunk, "MIN:MAX", "tokens of a chunk (default: 256:512)"),
        CART_OPT_SIZE(0, "max-q", &p->max_q, 1, 1 << 16, "Q",
                      "tokens of a message, at most (default: 64)"),
        CART_OPT_SIZE(0, "max-a", &p->max_a, 1, 1 << 16, "A",
                      "tokens of an answer, at most (default: 160)"),
        CART_OPT_SIZE(0, "gen-batch", &o.study.gen_batch, 1, 1024, "B",
                      "conversations decoded together (default: 16)"),
        CART_OPT_SIZE(0, "spec-b", &o.study.spec_b, 0, CART_DRAFT_MAX, "K",
                      "tokens of an answer guessed from the corpus at a time (default: 0)"),
        CART_OPT_STRING(0, "seed-types", &o.seed_types, "LIST",
                        "kinds of messages, TYPE[:WEIGHT],... (default: all, half of them recite)"),
        CART_OPT_ENUM(0, "context", &o.context, "auto|chunk|document|corpus",
                      "what the answering side sees (default: auto, the document where it fits)"),
        CART_OPT_U64(0, "seed", &p->seed, 0, 9007199254740991.0, "S",
                     "seed of all chance (default: 0)"),
        CART_OPT_STRING(0, "shard", &o.shard, "I/N", "only the I-th of N parts of the run"),
        CART_OPT_FLAG(0, "targets", &o.targets, "write targets, as cart-teacher would"),
        CART_OPT_FLAG(0, "resume", &o.resume, "go on from FILE.part, if there is one"),
        CART_OPT_SIZE(0, "cache", &o.cache, 0, 1e15, "BYTES",
                      "memory for context turns kept for later (default: 1G)"),
        CART_OPT_STRING(0, "profile", &o.profile, "NAME",
                        "chat profile in place of the one that the template chooses"),
        CART_OPT_END,
    };
    const struct cart_tool tool = {"cart-selfstudy",
                                   "let the model interview itself about a corpus",
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
        r = cart_err_set(&err, CART_EUSAGE, "expected one token stream, found %d operands",
                         argc - first);
    if (r == 0 && !done && (r = check(&o, &err)) == 0)
        r = run(&o, first < argc ? argv[first] : "-", &err);
    int status = cart_main_end(r, 0, &err);
    if (r < 0)
        cart_interrupt_die();
    return status;
}
