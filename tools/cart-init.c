/* cart-init: reads a token stream, writes a cartridge with zero training. */
#include "base/io.h"
#include "base/opt.h"
#include "base/pool.h"
#include "study/estimate.h"
#include "study/init.h"
#include "tensor/matmul.h"

#include <stdlib.h>
#include <string.h>

struct options {
    struct cart_common common;
    struct cart_init_options init;
    const char *profile;
    bool draft;
};

/* Releases out, where it succeeds. */
static int save(const struct options *o, const struct cart_model *m, const struct cart_init *init,
                const struct cart_corpus *corpus, const json_t *head, struct cart_output *out,
                struct cart_err *err)
{
    json_t *metadata = NULL, *history = NULL, *options = cart_json_copy(init->recipe);
    int64_t *draft = NULL;
    size_t n_draft = 0;
    int r = 0;
    if (!options || (o->draft && json_object_set_new(options, "draft_ref", json_true()) != 0))
        (void)cart_err_memory(err, "history", 0);
    else
        history = cart_history_extend(head, "cart-init", options, NULL, err);
    json_decref(options);
    if (!history)
        return err->code;
    r = cart_init_describe(&metadata, m, corpus, init, 0, init->recipe, history, err);
    if (r == 0 && o->draft)
        r = cart_init_draft(&draft, &n_draft, corpus, err);
    if (r == 0)
        r = cart_model_unchanged(m, err);
    if (r == 0)
        r = cart_cartridge_write(out->fd, out->path ? out->path : "standard output", m,
                                 init->rows.parts, init->rows.n_parts, init->rows.frozen, metadata,
                                 draft, n_draft, err);
    if (r == 0)
        r = cart_output_commit(out, err);
    if (r == 0)
        cart_log_wrote(o->common.output, "%zu row%s", init->rows.p, CART_S(init->rows.p));
    free(draft);
    json_decref(metadata);
    json_decref(history);
    return r;
}

/* The rows are made all the same: that is what takes the time. */
static void dry_run(const struct cart_model *m, const struct cart_corpus *corpus,
                    const struct cart_init *init, const struct cart_lap *lap)
{
    double share = 1.0, seconds = cart_lap_end(lap, &share);
    char busy[256];
    const double MiB = 1048576.0;
    cart_log(
        CART_LOG_NOTICE,
        "%zu tokens of %zu document%s; p %zu; memory beside the model: %.1f MiB; disk: %.1f "
        "MiB; time: about %.1f s",
        corpus->tokens, corpus->n_docs, CART_S(corpus->n_docs), init->rows.p,
        (double)(cart_init_bytes(m, init->rows.p, init->rows.frozen) + cart_corpus_bytes(corpus)) /
            MiB,
        (double)((init->rows.n + init->rows.n_sink) * sizeof(float)) / MiB, seconds);
    if (cart_busy_words(share, busy, sizeof busy))
        cart_log(CART_LOG_NOTICE, "%s", busy);
}

static int run(struct options *o, const char *input, struct cart_err *err)
{
    struct cart_model *m = NULL;
    struct cart_pool *pool = NULL;
    struct cart_stream_reader *in = NULL;
    struct cart_corpus corpus = CART_CORPUS_INIT;
    struct cart_init init = {.recipe = NULL};
    struct cart_output out = {0};
    char warning[512];
    int r;
    if ((r = cart_kernels_select((enum cart_kernels)o->common.kernels,
                                 (enum cart_precision)o->common.precision, err)) < 0 ||
        (!o->common.dry_run && (r = cart_output_open(&out, o->common.output, false, err)) < 0) ||
        (r = cart_model_open_pooled(&m, &pool, o->common.model, o->profile, o->common.jobs, err)) <
            0 ||
        (r = cart_corpus_open(&corpus, &in, input, m, err)) < 0)
        goto out;
    cart_log(CART_LOG_INFO, "%s: %zu document%s, %zu tokens", cart_stream_name(in), corpus.n_docs,
             CART_S(corpus.n_docs), corpus.tokens);
    struct cart_lap lap;
    cart_lap_begin(&lap, cart_pool_threads(pool));
    if ((r = cart_init_make(&init, m, &o->init, &corpus, pool, warning, sizeof warning, err)) < 0)
        goto out;
    if (warning[0])
        cart_log(CART_LOG_WARNING, "%s: %s", o->init.init, warning);
    if (o->common.dry_run)
        dry_run(m, &corpus, &init, &lap);
    else
        r = save(o, m, &init, &corpus, cart_stream_head(in), &out, err);
out:
    r = cart_model_cause(m, r, err);
    cart_output_abandon(&out);
    cart_init_release(&init);
    cart_corpus_release(&corpus);
    cart_stream_close(in);
    cart_pool_free(pool);
    cart_model_close(m);
    return r;
}

/* An option that would change nothing is a mistake. */
static int check(const struct cart_init_options *o, struct cart_err *err)
{
    enum cart_init_kind kind = cart_init_kind_of(o->init);
    if (o->seed > 0 && kind != CART_INIT_RANDOM)
        return cart_err_set(err, CART_EUSAGE, "--seed goes with --init random");
    if (o->allow_other_weights && kind != CART_INIT_FILE)
        return cart_err_set(err, CART_EUSAGE, "--allow-other-weights goes with --init FILE");
    return 0;
}

int main(int argc, char **argv)
{
    struct options o = {.init = {.frozen = 1}};
    struct cart_err err = {0};
    const struct cart_opt table[] = {
        CART_OPT_SIZE('p', "rows", &o.init.p, 1, 1 << 20, "P",
                      "rows (default: 256, or fewer for a short corpus)"),
        CART_OPT_INPUT(0, "init", &o.init.init, "spread|corpus|random|FILE",
                       "where the rows come from (default: spread)"),
        CART_OPT_SIZE(0, "frozen", &o.init.frozen, 0, 1 << 20, "N",
                      "rows, from the first, that training never changes (default: 1)"),
        CART_OPT_U64(0, "seed", &o.init.seed, 0, 9007199254740991.0, "S",
                     "seed of random rows (default: 0)"),
        CART_OPT_FLAG(0, "draft-ref", &o.draft, "embed the corpus's token ids as draft_reference"),
        CART_OPT_FLAG(0, "allow-other-weights", &o.init.allow_other_weights,
                      "take rows of a cartridge made by other weights of this model"),
        CART_OPT_STRING(0, "profile", &o.profile, "NAME",
                        "chat profile in place of the one that the template chooses"),
        CART_OPT_END,
    };
    const struct cart_tool tool = {"cart-init",
                                   "make a cartridge without training",
                                   "[FILE|-]",
                                   table,
                                   CART_USES_OUTPUT | CART_USES_JOBS | CART_USES_MODEL |
                                       CART_USES_KERNELS | CART_USES_DRY_RUN,
                                   &o.common};
    int first;
    bool done = false;
    int r = cart_opt_parse(&tool, argc, argv, &first, &done, &err);
    if (r == 0 && !done && argc - first > 1)
        r = cart_err_set(&err, CART_EUSAGE, "expected one token stream, found %d operands",
                         argc - first);
    if (r == 0 && !done && (r = check(&o.init, &err)) == 0)
        r = run(&o, first < argc ? argv[first] : "-", &err);
    return cart_main_end(r, 0, &err);
}
