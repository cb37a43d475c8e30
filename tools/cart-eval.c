/* cart-eval: reads a target stream (and cartridges, and questions); writes a table, or JSON, to
 * standard output. */
#include "base/io.h"
#include "base/opt.h"
#include "base/pool.h"
#include "study/estimate.h"
#include "study/eval.h"
#include "tensor/matmul.h"

#include <stdlib.h>
#include <string.h>

struct options {
    struct cart_common common;
    struct cart_eval_options eval;
    struct cart_opt_list cartridges;
    const char *profile;
    struct cart_progress progress;
    size_t arms; /* begun */
    bool json;
};

static void on_arm(void *ctx, const char *arm)
{
    struct options *o = ctx;
    cart_progress_update(&o->progress, (double)o->arms++, arm);
    cart_log(CART_LOG_INFO, "%s", arm);
}

/* Releases out. */
static int write_report(const struct options *o, const struct cart_eval *e, struct cart_output *out,
                        struct cart_err *err)
{
    struct cart_buf text = CART_BUF_INIT;
    json_t *json = NULL;
    int r;
    if (o->json) {
        if ((r = cart_eval_json(&json, e, err)) == 0 && (r = cart_json_dump(json, &text, err)) == 0)
            r = cart_buf_add(&text, "\n", 1, err);
    } else {
        r = cart_eval_table(e, &text, err);
    }
    if (r == 0 && (r = cart_io_write(out->fd, text.data, text.len, "report", err)) == 0)
        r = cart_output_commit(out, err);
    if (r == 0 && e->other_corpus > 0)
        cart_log(CART_LOG_WARNING, "%zu cartridge%s of another corpus than the stream's",
                 e->other_corpus, CART_S(e->other_corpus));
    if (r == 0)
        cart_log_wrote(o->common.output, "%zu student%s", e->n, CART_S(e->n));
    json_decref(json);
    cart_buf_release(&text);
    return r;
}

static int dry_run(const struct options *o, const struct cart_model *m, const char *input,
                   struct cart_pool *pool, struct cart_err *err)
{
    struct cart_eval_need need;
    int r = cart_eval_need(&need, m, input, &o->eval, pool, err);
    if (r < 0)
        return r;
    cart_log(CART_LOG_NOTICE,
             "%zu student%s judged by %zu conversation%s and %zu question%s: %zu token%s each; %zu "
             "token%s of text read before",
             need.students, CART_S(need.students), need.conversations, CART_S(need.conversations),
             need.questions, CART_S(need.questions), need.judged, CART_S(need.judged), need.read,
             CART_S(need.read));
    cart_log(CART_LOG_NOTICE,
             "memory beside the model: about %.0f MiB; disk: the report; time: about %.0f s",
             (double)need.memory / 1048576.0, need.seconds);
    char busy[256];
    if (cart_busy_words(need.share, busy, sizeof busy))
        cart_log(CART_LOG_NOTICE, "%s", busy);
    for (char *line = need.notes.data, *end; line && (end = strchr(line, '\n')); line = end + 1)
        cart_log(CART_LOG_NOTICE, "%.*s", (int)(end - line), line);
    cart_buf_release(&need.notes);
    return 0;
}

static int open_cartridges(struct options *o, const struct cart_model *m,
                           struct cart_cartridge **list, struct cart_err *err)
{
    struct cart_cartridge_options co = {.allow_other_weights = o->eval.allow_other_weights};
    for (size_t i = 0; i < o->cartridges.n; i++) {
        char warning[512];
        int r = cart_cartridge_open(&list[i], m, o->cartridges.items[i], &co, warning,
                                    sizeof warning, err);
        if (r < 0)
            return r;
        if (warning[0])
            cart_log(CART_LOG_WARNING, "%s: %s", o->cartridges.items[i], warning);
    }
    return 0;
}

static int run(struct options *o, const char *input, struct cart_err *err)
{
    struct cart_model *m = NULL;
    struct cart_pool *pool = NULL;
    struct cart_eval eval = {.n = 0};
    struct cart_output out = {0};
    struct cart_cartridge **list = calloc(o->cartridges.n + 1, sizeof *list);
    int r = list ? 0 : cart_err_memory(err, "cartridges", o->cartridges.n * sizeof *list);
    if (r == 0)
        r = cart_kernels_select((enum cart_kernels)o->common.kernels,
                                (enum cart_precision)o->common.precision, err);
    /* An output that cannot be is found before the work. */
    if (r < 0 ||
        (!o->common.dry_run && (r = cart_output_open(&out, o->common.output, true, err)) < 0) ||
        (r = cart_model_open_pooled(&m, &pool, o->common.model, o->profile, o->common.jobs, err)) <
            0 ||
        (r = open_cartridges(o, m, list, err)) < 0)
        goto out;
    o->eval.cartridges = (const struct cart_cartridge *const *)list;
    o->eval.n_cartridges = o->cartridges.n;
    if (o->common.dry_run) {
        r = dry_run(o, m, input, pool, err);
        goto out;
    }
    cart_progress_start(&o->progress, o->common.progress, "students", 0.0);
    r = cart_eval_run(&eval, m, input, &o->eval, on_arm, o, pool, err);
    cart_progress_end(&o->progress);
    if (r == 0 && (r = cart_model_unchanged(m, err)) == 0)
        r = cart_cartridges_unchanged(o->eval.cartridges, o->eval.n_cartridges, err);
    if (r == 0)
        r = write_report(o, &eval, &out, err);
out:
    r = cart_model_cause(m, r, err);
    r = cart_cartridges_cause(o->eval.cartridges, o->eval.n_cartridges, r, err);
    cart_output_abandon(&out);
    cart_eval_release(&eval);
    for (size_t i = 0; list && i < o->cartridges.n; i++)
        cart_cartridge_close(list[i]);
    free(list);
    cart_pool_free(pool);
    cart_model_close(m);
    return r;
}

int main(int argc, char **argv)
{
    struct options o = {.json = false};
    struct cart_err err = {0};
    const struct cart_opt table[] = {
        CART_OPT_LIST('c', "cartridge", &o.cartridges, "CARTRIDGE",
                      "a cartridge to judge; may be given again"),
        CART_OPT_INPUT(0, "questions", &o.eval.questions, "FILE",
                       "questions with answers, as JSON Lines, for recall"),
        CART_OPT_FLAG(0, "json", &o.json, "one JSON object in place of the table"),
        CART_OPT_U64(0, "seed", &o.eval.seed, 0, 9007199254740991.0, "S",
                     "seed of the bootstrap (default: 0)"),
        CART_OPT_FLAG(0, "allow-other-weights", &o.eval.allow_other_weights,
                      "cartridges or targets made by other weights of this model"),
        CART_OPT_STRING(0, "profile", &o.profile, "NAME",
                        "chat profile in place of the one that the template chooses"),
        CART_OPT_END,
    };
    const struct cart_tool tool = {"cart-eval",
                                   "judge cartridges beside the bare model and the text in context",
                                   "[FILE|-]",
                                   table,
                                   CART_USES_OUTPUT | CART_USES_JOBS | CART_USES_MODEL |
                                       CART_USES_KERNELS | CART_USES_PROGRESS | CART_USES_DRY_RUN,
                                   &o.common};
    int first;
    bool done = false;
    int r = cart_opt_parse(&tool, argc, argv, &first, &done, &err);
    if (r == 0 && !done && argc - first > 1)
        r = cart_err_set(&err, CART_EUSAGE, "expected one target stream, found %d operands",
                         argc - first);
    if (r == 0 && !done)
        r = run(&o, first < argc ? argv[first] : "-", &err);
    free(o.cartridges.items);
    return cart_main_end(r, 0, &err);
}
