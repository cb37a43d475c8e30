/* cart-train: reads a target stream, writes a cartridge; beside it, while it runs, the state to go
 * on from. */
#include "base/interrupt.h"
#include "base/io.h"
#include "base/opt.h"
#include "base/pool.h"
#include "study/estimate.h"
#include "study/train.h"
#include "tensor/matmul.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct options {
    struct cart_common common;
    struct cart_train_options train;
    const char *profile;
    struct cart_progress progress;
    struct cart_train_plan plan;
    bool no_pack;
    int schedule, loss_norm;
    double kl_before;
};

#define MIB (1.0 / 1048576.0)

static void on_plan(void *ctx, const struct cart_train_plan *p)
{
    struct options *o = ctx;
    o->plan = *p;
    if (!o->common.dry_run) {
        cart_log(CART_LOG_INFO,
                 "p %zu (%zu frozen), %llu steps of %zu conversations, warm-up %llu, %zu held out",
                 p->p, p->frozen, (unsigned long long)p->steps, o->train.accum,
                 (unsigned long long)p->warmup, p->held_out);
        if (p->done > 0)
            cart_log(CART_LOG_NOTICE, "goes on after step %llu of %llu",
                     (unsigned long long)p->done, (unsigned long long)p->steps);
        cart_progress_start(&o->progress, o->common.progress, "steps", (double)p->steps);
        cart_progress_skip(&o->progress, (double)p->done);
        return;
    }
    double steps = (double)(p->steps - p->done);
    double evals = 2.0 + (o->train.eval_every ? steps / (double)o->train.eval_every : 0.0);
    cart_log(CART_LOG_NOTICE,
             "%zu training and %zu held-out conversation%s, %llu step%s of %zu, p %zu", p->planned,
             p->held_out, CART_S(p->held_out), (unsigned long long)p->steps, CART_S(p->steps),
             o->train.accum, p->p);
    cart_log(CART_LOG_NOTICE,
             "memory beside the model: %.1f MiB (rows, gradient, moments %.1f; one step %.1f; an "
             "evaluation %.1f; documents %.1f)",
             (double)(p->state_bytes + p->tape_bytes + p->eval_bytes + p->corpus_bytes) * MIB,
             (double)p->state_bytes * MIB, (double)p->tape_bytes * MIB, (double)p->eval_bytes * MIB,
             (double)p->corpus_bytes * MIB);
    cart_log(CART_LOG_NOTICE, "disk: cartridge %.1f MiB, saved state %.1f MiB more, spool %.1f MiB",
             (double)p->row_bytes * MIB, 4.0 * (double)p->row_bytes * MIB,
             (double)p->spool_bytes * MIB);
    cart_log(CART_LOG_NOTICE, "time: about %.0f s (%.2f s a step, %.2f s an evaluation)",
             steps * p->step_seconds + evals * p->eval_seconds, p->step_seconds, p->eval_seconds);
    char busy[256];
    if (cart_busy_words(p->share, busy, sizeof busy))
        cart_log(CART_LOG_NOTICE, "%s", busy);
}

static void on_step(void *ctx, const struct cart_train_report *r)
{
    struct options *o = ctx;
    char note[96];
    snprintf(note, sizeof note, "loss %.4f, KL %.4f, top-1 %.1f %%, lr %.2g", r->loss, r->kl,
             100.0 * r->top1, r->lr);
    cart_progress_update(&o->progress, (double)r->step, note);
    cart_log(CART_LOG_DEBUG, "step %llu: %s", (unsigned long long)r->step, note);
}

static void on_evaluation(void *ctx, const struct cart_train_report *r)
{
    struct options *o = ctx;
    if (o->common.dry_run)
        return;
    cart_progress_end(&o->progress);
    char when[40] = "before training";
    if (r->step > 0)
        snprintf(when, sizeof when, "after step %llu", (unsigned long long)r->step);
    cart_log(CART_LOG_NOTICE,
             "held-out %s: loss %.4f, KL %.4f, top-1 %.1f %% (%zu conversation%s, %zu token%s)",
             when, r->loss, r->kl, 100.0 * r->top1, r->conversations, CART_S(r->conversations),
             r->tokens, CART_S(r->tokens));
    if (r->step == 0)
        o->kl_before = r->kl;
    else if (r->step == r->steps && r->kl > o->kl_before && o->kl_before > 0)
        cart_log(CART_LOG_WARNING,
                 "held-out KL has risen: more conversations and steps, or a lower --lr, may help");
    if (r->step < r->steps) {
        cart_progress_start(&o->progress, o->common.progress, "steps", (double)r->steps);
        cart_progress_skip(&o->progress, (double)r->step);
    }
}

static void on_notice(void *ctx, const char *text)
{
    (void)ctx;
    cart_log(CART_LOG_WARNING, "%s", text);
}

static void on_saved(void *ctx, uint64_t step, const char *path)
{
    (void)ctx;
    cart_log(CART_LOG_NOTICE, "%s holds the state after step %llu: --resume goes on from it", path,
             (unsigned long long)step);
}

/* The folder of a path, for the spool: the same disk as the result. */
static int folder_of(struct cart_buf *b, const char *path, struct cart_err *err)
{
    const char *slash = path ? strrchr(path, '/') : NULL;
    if (cart_io_is_direct(path))
        return cart_buf_addf(b, err, "%s", cart_io_scratch_dir());
    if (!slash)
        return cart_buf_addf(b, err, ".");
    return cart_buf_addf(b, err, "%.*s", slash == path ? 1 : (int)(slash - path), path);
}

static int run(struct options *o, const char *input, struct cart_err *err)
{
    struct cart_model *m = NULL;
    struct cart_pool *pool = NULL;
    struct cart_buf folder = CART_BUF_INIT;
    struct cart_train_watch watch = {o, on_plan, on_step, on_evaluation, on_notice, on_saved};
    int r;
    if ((r = cart_kernels_select((enum cart_kernels)o->common.kernels,
                                 (enum cart_precision)o->common.precision, err)) < 0 ||
        (r = folder_of(&folder, o->train.output, err)) < 0 ||
        (r = cart_model_open_pooled(&m, &pool, o->common.model, o->profile, o->common.jobs, err)) <
            0)
        goto out;
    o->train.spool_dir = folder.data;
    /* Where there is something to save or to put away. */
    if (!o->common.dry_run &&
        !(cart_io_is_direct(o->train.output) && cart_io_is_direct(o->train.metrics)))
        cart_interrupt_install();
    r = cart_train_run(m, input, &o->train, &watch, pool, err);
    cart_progress_end(&o->progress);
    if (r == 0 && !o->common.dry_run) {
        cart_log_wrote(o->train.output, "%zu row%s after %llu step%s", o->plan.p, CART_S(o->plan.p),
                       (unsigned long long)o->plan.steps, CART_S(o->plan.steps));
        cart_log_wrote(o->train.metrics, "losses and rates");
    }
out:
    cart_buf_release(&folder);
    cart_pool_free(pool);
    cart_model_close(m);
    return r;
}

static int check(struct options *o, struct cart_err *err)
{
    o->train.pack = !o->no_pack;
    o->train.schedule = o->schedule == 1 ? CART_SCHEDULE_CONSTANT : CART_SCHEDULE_COSINE;
    o->train.token_norm = o->loss_norm == 1;
    o->train.dry_run = o->common.dry_run;
    o->train.output = o->common.output;
    if (o->train.steps && o->train.epochs != 1.0)
        return cart_err_set(err, CART_EUSAGE, "--steps and --epochs: expected one of them");
    if (o->no_pack && o->train.max_tokens)
        return cart_err_set(err, CART_EUSAGE, "--max-tokens: not with --no-pack, which packs none");
    if (!o->train.max_tokens)
        o->train.max_tokens = 2048;
    return 0;
}

int main(int argc, char **argv)
{
    struct options o = {.train = {.init = {.frozen = 1},
                                  .lr = 2e-2,
                                  .warmup = UINT64_MAX,
                                  .epochs = 1.0,
                                  .accum = 4,
                                  .eval_every = 50,
                                  .save_every = UINT64_MAX}};
    struct cart_err err = {0};
    struct cart_train_options *t = &o.train;
    const struct cart_opt table[] = {
        CART_OPT_SIZE('p', "rows", &t->init.p, 1, 1 << 20, "P",
                      "rows (default: 256, or fewer for a short corpus)"),
        CART_OPT_INPUT(0, "init", &t->init.init, "spread|corpus|random|FILE",
                       "where the rows begin (default: spread)"),
        CART_OPT_SIZE(0, "frozen", &t->init.frozen, 0, 1 << 20, "N",
                      "rows, from the first, that never change (default: 1)"),
        CART_OPT_REAL(0, "lr", &t->lr, 1e-9, 10, "RATE", "learning rate (default: 2e-2)"),
        CART_OPT_ENUM(0, "schedule", &o.schedule, "cosine|constant",
                      "learning rate after the warm-up (default: cosine, to a tenth)"),
        CART_OPT_U64(0, "warmup", &t->warmup, 0, 1e9, "STEPS",
                     "steps until the full rate (default: a twentieth, at most 50)"),
        CART_OPT_SIZE(0, "accum", &t->accum, 1, 4096, "A", "conversations a step (default: 4)"),
        CART_OPT_REAL(0, "epochs", &t->epochs, 0.001, 1e6, "E",
                      "passes over the conversations (default: 1)"),
        CART_OPT_U64(0, "steps", &t->steps, 1, CART_TRAIN_MAX_STEPS, "N",
                     "steps, however many passes that takes"),
        CART_OPT_ENUM(0, "loss-norm", &o.loss_norm, "entries|token",
                      "what the loss is averaged over (default: entries)"),
        CART_OPT_U64(0, "seed", &t->init.seed, 0, 9007199254740991.0, "S",
                     "seed of random rows and later passes (default: 0)"),
        CART_OPT_FLAG(0, "recompute", &t->recompute,
                      "far less memory, the same bits, a third more time"),
        CART_OPT_FLAG(0, "checkpoint", &t->recompute, "the same as --recompute"),
        CART_OPT_FLAG(0, "no-pack", &o.no_pack,
                      "one conversation at a time: less memory, the same bits"),
        CART_OPT_SIZE(0, "max-tokens", &t->max_tokens, 1, 1 << 24, "N",
                      "tokens of one packed pass (default: 2048)"),
        CART_OPT_U64(0, "save-every", &t->save_every, 0, 1e9, "N",
                     "save the state every N steps (default: 20; 0: when stopped)"),
        CART_OPT_FLAG(0, "resume", &t->resume, "go on from the saved state, if there is one"),
        CART_OPT_U64(0, "eval-every", &t->eval_every, 0, 1e9, "N",
                     "steps between evaluations; 0: before and after (default: 50)"),
        CART_OPT_OUTPUT(0, "metrics", &t->metrics, "FILE",
                        "losses and rates as records, or JSON lines for *.jsonl"),
        CART_OPT_FLAG(0, "draft-ref", &t->draft, "embed the corpus's token ids as draft_reference"),
        CART_OPT_FLAG(0, "allow-other-weights", &t->init.allow_other_weights,
                      "targets or rows made by other weights of this model"),
        CART_OPT_STRING(0, "profile", &o.profile, "NAME",
                        "chat profile in place of the one that the template chooses"),
        CART_OPT_END,
    };
    const struct cart_tool tool = {"cart-train",
                                   "train a cartridge on teacher targets",
                                   "[FILE|-]",
                                   table,
                                   CART_USES_OUTPUT | CART_USES_JOBS | CART_USES_MODEL |
                                       CART_USES_DRY_RUN | CART_USES_PROGRESS | CART_USES_KERNELS,
                                   &o.common};
    int first;
    bool done = false;
    int r = cart_opt_parse(&tool, argc, argv, &first, &done, &err);
    if (r == 0 && !done && argc - first > 1)
        r = cart_err_set(&err, CART_EUSAGE, "expected one target stream, found %d operands",
                         argc - first);
    if (r == 0 && !done && (r = check(&o, &err)) == 0)
        r = run(&o, first < argc ? argv[first] : "-", &err);
    int status = cart_main_end(r, 0, &err);
    if (r < 0)
        cart_interrupt_die();
    return status;
}
