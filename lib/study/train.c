#include "study/train.h"

#include "base/clock.h"
#include "base/hash.h"
#include "base/interrupt.h"
#include "base/io.h"
#include "study/distill.h"
#include "study/estimate.h"
#include "study/evaluate.h"
#include "study/feed.h"
#include "study/metrics.h"
#include "study/target_batch.h"
#include "study/train_state.h"

#include <fcntl.h>
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define EVAL_TOKENS ((size_t)1024) /* of held-out conversations at a time */
#define MAX_WARMUP ((uint64_t)50)
#define SAVE_EVERY ((uint64_t)20)

struct run {
    const struct cart_model *m;
    const struct cart_train_options *opt;
    const struct cart_train_watch *watch;
    struct cart_pool *pool;
    struct cart_feed *feed;
    struct cart_init init; /* rows in training, recipe of their start */
    struct cart_schedule schedule;
    struct cart_distiller *distiller;
    struct cart_evaluator *evaluator;
    struct cart_metrics *metrics;
    struct cart_conversation *slots; /* [accum] */
    const struct cart_conversation **group;
    struct cart_distill_sums *sums; /* [max(accum, held-out)] */
    size_t n_sums;
    json_t *recipe, *identity;
    struct cart_buf state_path, part_path;
    bool saves;                /* there is a place for states */
    uint64_t save_every;       /* steps; 0: only when stopped */
    struct cart_output direct; /* where there is none: opened before any work, for the cartridge */
    int claim;                 /* FILE.part, locked as long as the run lasts; -1: none */
    uint64_t step;
};

static const json_t *head_of(const struct run *t)
{
    return cart_feed_head(t->feed);
}

/* The whole of what the rows are a function of, beside stream and model. */
static int make_recipe(struct run *t, struct cart_err *err)
{
    const struct cart_train_options *o = t->opt;
    t->recipe =
        json_pack("{s:f, s:s, s:I, s:I, s:I, s:I, s:s}", "lr", o->lr, "schedule",
                  cart_schedule_name(o->schedule), "steps", (json_int_t)t->schedule.total, "warmup",
                  (json_int_t)t->schedule.warmup, "accum", (json_int_t)o->accum, "seed",
                  (json_int_t)o->init.seed, "loss_norm", o->token_norm ? "token" : "entries");
    if (!t->recipe || json_object_update(t->recipe, t->init.recipe) != 0)
        return cart_err_memory(err, "recipe", 0);
    return 0;
}

/* HEAD and not a digest of it, so that a difference has a name. */
static int make_identity(struct run *t, struct cart_err *err)
{
    char corpus[33];
    int r = cart_corpus_digest(cart_feed_corpus(t->feed), corpus, err);
    if (r < 0)
        return r;
    t->identity =
        json_pack("{s:O, s:s, s:o, s:O, s:b, s:I}", "stream", head_of(t), "corpus", corpus, "model",
                  cart_fingerprints_json(&t->m->fp), "recipe", t->recipe, "draft-ref",
                  (int)t->opt->draft, "eval-every", (json_int_t)t->opt->eval_every);
    return t->identity ? 0 : cart_err_memory(err, "identity", 0);
}

static int plan_schedule(struct run *t, struct cart_err *err)
{
    const struct cart_train_options *o = t->opt;
    uint64_t steps = o->steps;
    if (steps == 0) {
        /* A stream that does not say how many conversations it has is read whole first. */
        int r = cart_feed_planned(t->feed) ? 0 : cart_feed_finish(t->feed, err);
        if (r < 0)
            return r;
        double wanted = ceil(o->epochs * (double)cart_feed_planned(t->feed) / (double)o->accum);
        if (wanted > CART_TRAIN_MAX_STEPS)
            return cart_err_set(err, CART_EUSAGE,
                                "%g passes over %zu conversations: expected at most %.0f steps of "
                                "them, found %.0f",
                                o->epochs, cart_feed_planned(t->feed), CART_TRAIN_MAX_STEPS,
                                wanted);
        steps = wanted > 1.0 ? (uint64_t)wanted : 1;
    }
    uint64_t warmup = o->warmup;
    if (warmup == UINT64_MAX)
        warmup = steps / 20 < MAX_WARMUP ? steps / 20 : MAX_WARMUP;
    t->schedule = (struct cart_schedule){o->schedule, o->lr, warmup, steps};
    return 0;
}

/* History with an entry of ours; input: digest of the stream, where END was read. New reference. */
static json_t *make_history(struct run *t, bool whole, struct cart_err *err)
{
    char digest[33];
    json_t *extra = NULL, *history = NULL, *options = cart_json_copy(t->recipe);
    if (whole) {
        cart_feed_digest(t->feed, digest);
        extra = json_pack("{s:s}", "input", digest);
    }
    if (options && (!whole || extra) &&
        (!t->opt->draft || json_object_set_new(options, "draft_ref", json_true()) == 0))
        history = cart_history_extend(head_of(t), "cart-train", options, extra, err);
    else
        (void)cart_err_memory(err, "history", 0);
    json_decref(extra);
    json_decref(options);
    return history;
}

/* Whether metadata are of rows that were saved on the way: the last entry of their history is of
 * this tool, without the digest of a whole stream. */
static bool is_unfinished(const json_t *metadata)
{
    const char *text = json_string_value(json_object_get(metadata, "cart.history"));
    json_t *history = NULL;
    if (!text || cart_json_parse(&history, text, strlen(text), "history", NULL) < 0)
        return false;
    const json_t *last =
        json_array_get(history, json_array_size(history) ? json_array_size(history) - 1 : 0);
    const char *tool = json_string_value(json_object_get(last, "tool"));
    bool is = tool && strcmp(tool, "cart-train") == 0 && !json_object_get(last, "input");
    json_decref(history);
    return is;
}

/* A second claim: of the file that is about to take the name of FILE.part. */
static int claim_next(const struct run *t, const struct cart_output *out, int *claim,
                      struct cart_err *err)
{
    int r = cart_io_claim_fd(out->fd, t->part_path.data, err);
    if (r == 0 && (*claim = fcntl(out->fd, F_DUPFD_CLOEXEC, STDERR_FILENO + 1)) < 0)
        r = cart_err_sys(err, "%s", t->part_path.data);
    return r;
}

/* Of two claims the one whose file has the name now is kept: until then, whoever opens the name
 * finds it locked, before the renaming and after. */
static void settle_claim(struct run *t, int claim)
{
    bool renamed = claim >= 0 && cart_io_is_at(claim, t->part_path.data);
    int other = renamed ? t->claim : claim;
    if (renamed)
        t->claim = claim;
    if (other >= 0)
        (void)close(other);
}

/* The rows as they are, to FILE.part, or to FILE where the run is whole. */
static int save_cartridge(struct run *t, const char *path, bool whole, struct cart_err *err)
{
    json_t *metadata = NULL;
    int64_t *draft = NULL;
    size_t n_draft = 0;
    int claim = -1;
    struct cart_output out = {.fd = -1};
    const struct cart_corpus *corpus = cart_feed_corpus(t->feed);
    const struct cart_trainable *x = &t->init.rows;
    json_t *history = make_history(t, whole, err);
    int r = history ? 0 : CART_ESYS;
    if (r == 0)
        r = cart_init_describe(&metadata, t->m, corpus, &t->init, t->step, t->recipe, history, err);
    if (r == 0 && t->opt->draft)
        r = cart_init_draft(&draft, &n_draft, corpus, err);
    if (r == 0 && whole && !t->saves) {
        out = t->direct;
        t->direct = (struct cart_output){0};
    } else if (r == 0) {
        r = cart_output_open(&out, path, false, err);
    }
    if (r == 0)
        r = cart_cartridge_write(out.fd, path ? path : "standard output", t->m, x->parts,
                                 x->n_parts, x->frozen, metadata, draft, n_draft, err);
    if (r == 0 && !whole)
        r = claim_next(t, &out, &claim, err);
    if (r == 0)
        r = cart_output_commit(&out, err);
    else
        cart_output_abandon(&out);
    settle_claim(t, claim);
    free(draft);
    json_decref(metadata);
    json_decref(history);
    return r;
}

/* The optimizer file is what a run goes on from; C.part is the same rows for whoever wants to try
 * them meanwhile. */
static int save_state(struct run *t, struct cart_err *err)
{
    struct cart_train_state state = {.step = t->step, .metrics = *cart_metrics_lines(t->metrics)};
    cart_feed_tell(t->feed, &state.mark);
    int r = cart_model_unchanged(t->m, err);
    if (r == 0)
        r = cart_train_state_save(t->state_path.data, &t->init.rows, &state, t->identity, err);
    return r < 0 ? r : save_cartridge(t, t->part_path.data, false, err);
}

static struct cart_train_report report_of(const struct run *t, const struct cart_distill_sums *s,
                                          size_t n)
{
    struct cart_distill_sums sum = {0};
    cart_target_sum(&sum, s, n);
    double per = t->opt->token_norm ? (double)sum.rows : (double)sum.entries;
    double rows = sum.rows ? (double)sum.rows : 1.0;
    return (struct cart_train_report){.step = t->step,
                                      .steps = t->schedule.total,
                                      .loss = per > 0 ? sum.ce / per : 0,
                                      .kl = sum.kl / rows,
                                      .top1 = (double)sum.top1 / rows,
                                      .tokens = sum.rows,
                                      .conversations = n};
}

static int add_metrics(struct run *t, const char *split, const struct cart_train_report *r,
                       struct cart_err *err)
{
    json_t *o = json_pack("{s:I, s:s, s:f, s:f, s:f, s:I, s:I}", "step", (json_int_t)r->step,
                          "split", split, "loss", r->loss, "kl", r->kl, "top1", r->top1, "tokens",
                          (json_int_t)r->tokens, "conversations", (json_int_t)r->conversations);
    int bad = o && r->lr > 0 ? json_object_set_new(o, "lr", json_real(r->lr)) : 0;
    int e = o && !bad ? cart_metrics_add(t->metrics, o, err) : cart_err_memory(err, "metrics", 0);
    json_decref(o);
    return e;
}

static int evaluate(struct run *t, struct cart_err *err)
{
    size_t n;
    const struct cart_conversation *const *held = cart_feed_held_out(t->feed, &n);
    struct cart_trainable *x = &t->init.rows;
    const struct cart_kv_part *parts[2] = {&x->parts[0], &x->parts[1]};
    if (n == 0)
        return 0;
    int r = t->evaluator ? 0 : cart_evaluator_new(&t->evaluator, t->m, EVAL_TOKENS, err);
    if (r < 0 || (r = cart_evaluator_targets(t->evaluator, parts, x->n_parts, held, n, t->sums,
                                             t->pool, err)) < 0)
        return r < 0 ? cart_err_wrap(err, r, "held-out conversations") : r;
    struct cart_train_report report = report_of(t, t->sums, n);
    t->watch->evaluation(t->watch->ctx, &report);
    r = add_metrics(t, "held-out", &report, err);
    return r < 0 ? r : cart_metrics_flush(t->metrics, err);
}

static int read_group(struct run *t, struct cart_err *err)
{
    for (size_t i = 0; i < t->opt->accum; i++) {
        int r = cart_feed_next(t->feed, &t->slots[i], err);
        if (r < 0)
            return r;
        t->group[i] = &t->slots[i];
    }
    return 0;
}

static int train_step(struct run *t, struct cart_err *err)
{
    size_t n = t->opt->accum;
    int r = cart_distiller_run(t->distiller, &t->init.rows, t->group, n, t->sums, t->pool, err);
    if (r < 0)
        return cart_err_wrap(err, r, "step %llu", (unsigned long long)t->step + 1);
    struct cart_train_report report = report_of(t, t->sums, n);
    struct cart_distill_sums sum = {0};
    cart_target_sum(&sum, t->sums, n);
    double per = t->opt->token_norm ? (double)sum.rows : (double)sum.entries;
    report.step = t->step + 1;
    report.lr = cart_schedule_lr(&t->schedule, report.step);
    if ((r = add_metrics(t, "train", &report, err)) < 0)
        return r;
    t->step++;
    cart_trainable_step(&t->init.rows, t->step, report.lr, per > 0 ? 1.0 / per : 0.0, t->pool);
    t->watch->step(t->watch->ctx, &report);
    return cart_metrics_flush(t->metrics, err);
}

static bool every(uint64_t step, uint64_t n)
{
    return n > 0 && step % n == 0;
}

/* 1 where the last line of the metrics is an evaluation, which then is this step's, else 0. */
static int evaluated(const struct run *t, struct cart_err *err)
{
    const struct cart_buf *lines = cart_metrics_lines(t->metrics);
    const char *split = NULL;
    json_t *last = NULL;
    size_t end = lines->len, at = end ? end - 1 : 0;
    while (at > 0 && lines->data[at - 1] != '\n')
        at--;
    if (end == 0)
        return 0;
    int r = cart_json_parse(&last, lines->data + at, end - at, "metrics", err);
    if (r == 0 && (r = cart_json_string(last, "split", &split, "metrics", err)) == 0)
        r = strcmp(split, "held-out") == 0;
    json_decref(last);
    return r;
}

/* A state may have been saved between a step and its evaluation, which is made up for then. */
static int evaluate_if_due(struct run *t, struct cart_err *err)
{
    bool due = every(t->step, t->opt->eval_every) || t->step == 0 || t->step == t->schedule.total;
    int r = due ? evaluated(t, err) : 1;
    return r == 0 ? evaluate(t, err) : r < 0 ? r : 0;
}

/* Steps until all are done. A mark is taken before each group, so that a failure before its step
 * leaves the state before. Once the rows have moved, the group is used up, whatever fails then. */
static int loop(struct run *t, struct cart_err *err)
{
    uint64_t total = t->schedule.total;
    int r = evaluate_if_due(t, err);
    while (r == 0 && t->step < total) {
        struct cart_feed_mark mark;
        uint64_t before = t->step;
        cart_feed_tell(t->feed, &mark);
        if ((r = read_group(t, err)) < 0 || (r = train_step(t, err)) < 0) {
            if (t->step == before)
                cart_feed_rewind(t->feed, mark.taken);
            return r;
        }
        if ((r = evaluate_if_due(t, err)) < 0)
            return r;
        if (cart_interrupted())
            return cart_err_set(err, CART_EAGAIN, "stopped after step %llu of %llu",
                                (unsigned long long)t->step, (unsigned long long)total);
        if (every(t->step, t->save_every) && t->step < total && (r = save_state(t, err)) < 0)
            return r;
    }
    return r < 0 ? r : cart_feed_finish(t->feed, err);
}

static int open_metrics(struct run *t, const struct cart_buf *lines, struct cart_err *err)
{
    json_t *history = make_history(t, false, err);
    if (!history)
        return CART_ESYS;
    json_t *head = json_pack("{s:s, s:o}", "kind", "metrics", "history", history);
    if (!head)
        return cart_err_memory(err, "HEAD", 0);
    json_t *fp = json_object_get(head_of(t), "model");
    int r = fp && json_object_set(head, "model", fp) != 0 ? cart_err_memory(err, "HEAD", 0) : 0;
    if (r == 0)
        r = cart_metrics_open(&t->metrics, t->opt->dry_run ? NULL : t->opt->metrics, head,
                              lines->data, lines->len, err);
    json_decref(head);
    return r;
}

/* Goes on from a saved state, if there is one and that is wanted. A link in its place would be
 * removed at the end, and what it leads to left. */
static int restore(struct run *t, struct cart_err *err)
{
    struct cart_train_state state = {.metrics = CART_BUF_INIT};
    struct stat st;
    int r = 0;
    if (t->saves && lstat(t->state_path.data, &st) == 0 && S_ISLNK(st.st_mode))
        return cart_err_set(err, CART_EUSAGE,
                            "%s: expected a regular file or none, found a symbolic link",
                            t->state_path.data);
    if (t->opt->resume) {
        r = cart_train_state_load(t->state_path.data, &t->init.rows, &state, t->identity, err);
        if (r == 1) {
            t->step = state.step;
            r = cart_feed_seek(t->feed, &state.mark, err);
            if (r == CART_EMATCH) {
                struct cart_err why = *err;
                cart_err_set(err, r, "%s; remove %s to begin anew", why.msg, t->state_path.data);
            }
        }
    } else if (t->saves && lstat(t->state_path.data, &st) == 0) {
        r = cart_err_set(
            err, CART_EUSAGE,
            "%s holds the state of an earlier run: --resume goes on from it; remove it "
            "to begin anew",
            t->state_path.data);
    }
    if (r == 0)
        r = open_metrics(t, &state.metrics, err);
    cart_buf_release(&state.metrics);
    return r;
}

/* What the run writes under names of its own making may be nothing that it reads or writes besides;
 * the names that were given are the tool's to compare. */
static int check_names(const struct run *t, const char *input, const char *metrics_part,
                       struct cart_err *err)
{
    const char *init = t->opt->init.init, *out = t->saves ? t->opt->output : NULL;
    const char *names[] = {t->state_path.data,
                           t->part_path.data,
                           metrics_part,
                           out,
                           cart_io_is_direct(t->opt->metrics) ? NULL : t->opt->metrics,
                           strcmp(input, "-") == 0 ? "/dev/stdin" : input,
                           init};
    enum { OWN = 3 };
    for (size_t i = 0; i < OWN; i++)
        for (size_t k = i + 1; k < CART_COUNTOF(names); k++)
            if (names[i] && names[k] && cart_io_same_file(names[i], names[k]))
                return cart_err_set(err, CART_EUSAGE,
                                    "%s: is the name of a file that this run keeps meanwhile",
                                    k < OWN ? names[i] : names[k]);
    return 0;
}

/* FILE.part, locked: what an earlier run has left there goes, anything else is somebody's. */
static int claim_part(struct run *t, struct cart_err *err)
{
    struct cart_map map = {NULL, 0};
    struct cart_st st = {0};
    const char *part = t->part_path.data;
    bool own = false;
    int r = cart_io_claim(&t->claim, part, err);
    if (r < 0 || (r = cart_map_fd(&map, t->claim, part, err)) < 0)
        return r;
    if (map.size > 0 && (r = cart_st_parse(&st, map.data, map.size, part, err)) == 0)
        own = is_unfinished(st.metadata);
    cart_st_release(&st);
    if (r != CART_ESYS)
        r = own || map.size == 0
                ? 0
                : cart_err_set(
                      err, CART_EUSAGE,
                      "%s: expected the rows of a stopped run, or no file, found something "
                      "else: the rows are kept there meanwhile",
                      part);
    cart_map_release(&map);
    return r;
}

static int prepare_output(struct run *t, const char *input, struct cart_err *err)
{
    const char *out = t->opt->output, *metrics = t->opt->metrics;
    struct cart_buf metrics_part = CART_BUF_INIT;
    int r = 0;
    t->saves = !cart_io_is_direct(out);
    if (!t->saves && !t->opt->dry_run && (r = cart_output_open(&t->direct, out, false, err)) < 0)
        return r;
    t->save_every = t->opt->save_every != UINT64_MAX ? t->opt->save_every
                    : t->saves                       ? SAVE_EVERY
                                                     : 0;
    if (!t->saves && (t->opt->resume || t->save_every))
        return cart_err_set(err, CART_EUSAGE,
                            "saved states need a file for the cartridge: -o FILE");
    if (t->saves &&
        ((r = cart_io_companion(&t->state_path, out, ".optimizer.safetensors", err)) < 0 ||
         (r = cart_io_companion(&t->part_path, out, ".part", err)) < 0))
        return r;
    if (!cart_io_is_direct(metrics))
        r = cart_io_companion(&metrics_part, metrics, ".part", err);
    if (r == 0)
        r = check_names(t, input, metrics_part.data, err);
    if (r == 0 && t->saves && !t->opt->dry_run)
        r = claim_part(t, err);
    cart_buf_release(&metrics_part);
    return r;
}

static int prepare(struct run *t, const char *input, struct cart_err *err)
{
    const struct cart_train_options *o = t->opt;
    struct cart_feed_options fo = {o->spool_dir, o->init.seed, o->init.allow_other_weights};
    struct cart_distill_options dop = {o->recompute, o->pack, o->max_tokens};
    char warning[512];
    int r;
    size_t held;
    if ((r = prepare_output(t, input, err)) < 0 ||
        (r = cart_feed_open(&t->feed, input, t->m, &fo, err)) < 0 ||
        (r = plan_schedule(t, err)) < 0 ||
        (r = cart_init_make(&t->init, t->m, &o->init, cart_feed_corpus(t->feed), t->pool, warning,
                            sizeof warning, err)) < 0 ||
        (r = cart_feed_stand_behind(t->feed, t->init.rows.p, err)) < 0)
        return r;
    if (t->init.rows.n == 0)
        return cart_err_set(
            err, CART_EUSAGE,
            "--frozen %zu: expected fewer than the %zu rows: nothing would be trained",
            t->init.rows.frozen, t->init.rows.p);
    if (warning[0])
        t->watch->notice(t->watch->ctx, warning);
    (void)cart_feed_held_out(t->feed, &held);
    t->n_sums = held > o->accum ? held : o->accum;
    t->slots = calloc(o->accum, sizeof *t->slots);
    t->group = calloc(o->accum, sizeof *t->group);
    t->sums = calloc(t->n_sums, sizeof *t->sums);
    if (!t->slots || !t->group || !t->sums)
        return cart_err_memory(err, "group", o->accum * sizeof *t->slots);
    for (size_t i = 0; i < o->accum; i++)
        cart_conversation_init(&t->slots[i]);
    if ((r = make_recipe(t, err)) < 0 || (r = make_identity(t, err)) < 0 ||
        (r = cart_distiller_new(&t->distiller, t->m, &dop, err)) < 0 || (r = restore(t, err)) < 0)
        return r;
    return cart_io_spare(err);
}

/* FILE.part stays where it holds rows that there is a state of, or is another run's by now. */
static void release_claim(struct run *t)
{
    struct stat st;
    if (t->claim < 0)
        return;
    if (fstat(t->claim, &st) == 0 && st.st_size == 0 && cart_io_is_at(t->claim, t->part_path.data))
        (void)unlink(t->part_path.data);
    (void)close(t->claim);
}

static void release(struct run *t)
{
    for (size_t i = 0; t->slots && i < t->opt->accum; i++)
        cart_conversation_release(&t->slots[i]);
    free(t->slots);
    free(t->group);
    free(t->sums);
    cart_metrics_close(t->metrics);
    cart_evaluator_free(t->evaluator);
    cart_distiller_free(t->distiller);
    cart_init_release(&t->init);
    cart_feed_close(t->feed);
    json_decref(t->recipe);
    json_decref(t->identity);
    cart_output_abandon(&t->direct);
    release_claim(t);
    cart_buf_release(&t->state_path);
    cart_buf_release(&t->part_path);
}

static struct cart_train_plan plan_of(const struct run *t)
{
    const struct cart_trainable *x = &t->init.rows;
    struct cart_train_plan p = {.steps = t->schedule.total,
                                .warmup = t->schedule.warmup,
                                .done = t->step,
                                .p = x->p,
                                .frozen = x->frozen,
                                .planned = cart_feed_planned(t->feed),
                                .row_bytes = (x->n + x->n_sink) * sizeof(float),
                                .state_bytes = cart_trainable_bytes(t->m, x->p, x->frozen)};
    const struct cart_conversation *const *held = cart_feed_held_out(t->feed, &p.held_out);
    size_t longest = 0;
    for (size_t i = 0; i < p.held_out; i++)
        longest = held[i]->T > longest ? held[i]->T : longest;
    p.corpus_bytes = cart_corpus_bytes(cart_feed_corpus(t->feed));
    if (p.held_out > 0)
        p.eval_bytes = cart_evaluator_bytes(t->m, EVAL_TOKENS, longest);
    return p;
}

/* Seconds of a step beyond which an evaluation is not tried, but reckoned from the step. */
#define CALIBRATION 3.0

/* The time of an evaluation in steps: it goes forward alone, a third of the work, over its own
 * tokens. */
static double forward_share(const struct run *t)
{
    double step = 1, held = 0;
    size_t n;
    const struct cart_conversation *const *list = cart_feed_held_out(t->feed, &n);

    for (size_t i = 0; i < n; i++)
        held += (double)list[i]->T;
    for (size_t i = 0; i < t->opt->accum; i++)
        step += (double)t->group[i]->T;
    return held / step / 3.0;
}

/* Runs one group without an optimizer step, to know time and memory. */
static int calibrate(struct run *t, struct cart_train_plan *p, struct cart_err *err)
{
    int r = read_group(t, err);
    double t0 = cart_clock_now();
    struct cart_lap lap;
    p->share = 1.0;
    cart_lap_begin(&lap, cart_pool_threads(t->pool));
    if (r == 0)
        r = cart_distiller_run(t->distiller, &t->init.rows, t->group, t->opt->accum, t->sums,
                               t->pool, err);
    p->step_seconds = cart_lap_end(&lap, &p->share);
    p->tape_bytes = cart_distiller_bytes(t->distiller);
    struct cart_feed_mark mark;
    cart_feed_tell(t->feed, &mark);
    if (mark.read > 0)
        p->spool_bytes =
            (size_t)((double)cart_feed_spooled(t->feed) / (double)mark.read * (double)p->planned);
    if (r < 0)
        return r;
    if (cart_clock_now() - t0 > CALIBRATION) {
        p->eval_seconds = p->step_seconds * forward_share(t);
        return 0;
    }
    cart_lap_begin(&lap, cart_pool_threads(t->pool));
    r = evaluate(t, err);
    p->eval_seconds = cart_lap_end(&lap, &p->share);
    return r;
}

/* The metrics first: where the cartridge is, nobody runs again for them. Only then may what it
 * could be remade from go, the state last. */
static int publish(struct run *t, struct cart_err *err)
{
    int r = cart_model_unchanged(t->m, err);
    if (r == 0)
        r = cart_metrics_finish(t->metrics, err);
    if (r == 0)
        r = save_cartridge(t, t->opt->output, true, err);
    if (r < 0 || !t->saves)
        return r;
    const char *done[] = {t->part_path.data, t->state_path.data};
    /* What took the name of FILE.part is another's. */
    for (size_t i = cart_io_is_at(t->claim, done[0]) ? 0 : 1; i < CART_COUNTOF(done); i++)
        if (unlink(done[i]) < 0 && errno != ENOENT)
            return cart_err_sys(err, "%s: removing", done[i]);
    /* From here on the name may be another run's. */
    (void)close(t->claim);
    t->claim = -1;
    return 0;
}

int cart_train_run(const struct cart_model *m, const char *input,
                   const struct cart_train_options *opt, const struct cart_train_watch *watch,
                   struct cart_pool *pool, struct cart_err *err)
{
    struct run t = {.m = m, .opt = opt, .watch = watch, .pool = pool, .claim = -1};
    int r = prepare(&t, input, err);
    if (r == 0) {
        struct cart_train_plan plan = plan_of(&t);
        if (opt->dry_run)
            r = calibrate(&t, &plan, err);
        if (r == 0)
            watch->plan(watch->ctx, &plan);
    }
    bool trains = r == 0 && !opt->dry_run;
    if (trains) {
        r = loop(&t, err);
        cart_interrupt_release();
        if (r == 0)
            r = publish(&t, err);
    }
    r = cart_model_cause(m, r, err);
    if (trains && r < 0 && t.step > 0 && t.saves) {
        /* Whatever stopped the run, what is done so far is worth keeping; the first failure is the
         * one to report. */
        struct cart_err late = {0};
        int saved = save_state(&t, &late);
        if (saved < 0 && (!err || strcmp(late.msg, err->msg) != 0))
            watch->notice(watch->ctx, late.msg);
        else if (saved == 0)
            watch->saved(watch->ctx, t.step, t.state_path.data);
    }
    release(&t);
    return r;
}
