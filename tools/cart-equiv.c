/* cart-equiv: reads a token stream; tells on standard output whether an untrained cartridge is the
 * real prefill. */
#include "base/clock.h"
#include "base/io.h"
#include "base/opt.h"
#include "base/pool.h"
#include "study/equiv.h"
#include "study/estimate.h"
#include "tensor/matmul.h"

#include <stdio.h>
#include <stdlib.h>

struct options {
    struct cart_common common;
    struct cart_equiv_options equiv;
    const char *profile;
};

static int dry_run(const struct options *o, const struct cart_model *m, struct cart_pool *pool,
                   const struct cart_corpus *corpus, struct cart_err *err)
{
    const double MiB = 1048576.0;
    struct cart_engine *e = NULL;
    struct cart_equiv_need need;
    struct cart_rates rates = {0};
    int r = cart_equiv_need(&need, m, corpus, &o->equiv, err);
    if (r == 0 && (r = cart_engine_new(&e, m, CART_F32, pool, 0, err)) == 0)
        r = cart_estimate_rates(e, 1, &rates, err);
    if (r == 0)
        cart_log(CART_LOG_NOTICE,
                 "p %zu, suffix %zu, %zu steps; memory beside the model: %.1f MiB; disk: %.1f MiB "
                 "in %s; time: about %.1f s",
                 o->equiv.p, need.suffix, o->equiv.steps,
                 (double)(need.memory + cart_corpus_bytes(corpus)) / MiB, (double)need.disk / MiB,
                 o->equiv.dir,
                 (double)need.reads / rates.prefill + (double)need.decodes / rates.decode);
    char busy[256];
    if (r == 0 && cart_busy_words(rates.share, busy, sizeof busy))
        cart_log(CART_LOG_NOTICE, "%s", busy);
    cart_engine_free(e);
    return r;
}

static int run(struct options *o, const char *input, int *answer, struct cart_err *err)
{
    struct cart_model *m = NULL;
    struct cart_pool *pool = NULL;
    struct cart_stream_reader *in = NULL;
    struct cart_corpus corpus = CART_CORPUS_INIT;
    struct cart_equiv_result res;
    int r;
    if ((r = cart_kernels_select((enum cart_kernels)o->common.kernels,
                                 (enum cart_precision)o->common.precision, err)) < 0 ||
        (r = cart_model_open_pooled(&m, &pool, o->common.model, o->profile, o->common.jobs, err)) <
            0 ||
        (r = cart_corpus_open(&corpus, &in, input, m, err)) < 0)
        goto out;
    if (o->common.dry_run) {
        r = dry_run(o, m, pool, &corpus, err);
        goto out;
    }
    cart_log(CART_LOG_INFO, "%s: %zu document%s, %zu tokens", cart_stream_name(in), corpus.n_docs,
             CART_S(corpus.n_docs), corpus.tokens);
    double start = cart_clock_now();
    if ((r = cart_equiv_run(&res, m, &corpus, &o->equiv, pool, err)) < 0 ||
        (r = cart_model_unchanged(m, err)) < 0)
        goto out;
    cart_log(CART_LOG_INFO, "%zu rows saved and mapped, %zu tokens behind them compared: %.1f s",
             o->equiv.p, res.suffix + res.agreed, cart_clock_now() - start);
    *answer = res.max_delta == 0.0 && res.agreed == o->equiv.steps ? 0 : 1;
    printf("p %zu, suffix %zu: max |delta logit| = %g, greedy agreement %zu/%zu: %s\n", o->equiv.p,
           res.suffix, res.max_delta, res.agreed, o->equiv.steps,
           *answer == 0 ? "equal" : "NOT EQUAL");
out:
    r = cart_model_cause(m, r, err);
    cart_corpus_release(&corpus);
    cart_stream_close(in);
    cart_pool_free(pool);
    cart_model_close(m);
    return r;
}

int main(int argc, char **argv)
{
    struct options o = {
        .equiv = {.p = 256, .suffix_max = 256, .steps = 128, .dir = cart_io_scratch_dir()}};
    struct cart_err err = {0};
    const struct cart_opt table[] = {
        CART_OPT_SIZE('p', "rows", &o.equiv.p, 1, 1 << 20, "P",
                      "rows of the cartridge (default: 256)"),
        CART_OPT_SIZE(0, "suffix-max", &o.equiv.suffix_max, 1, 1 << 20, "T",
                      "tokens compared behind it, at most (default: 256)"),
        CART_OPT_SIZE(0, "steps", &o.equiv.steps, 1, 1 << 20, "N",
                      "greedy tokens compared (default: 128)"),
        CART_OPT_STRING(0, "profile", &o.profile, "NAME",
                        "chat profile in place of the one that the template chooses"),
        CART_OPT_END,
    };
    const struct cart_tool tool = {"cart-equiv",
                                   "check that an untrained cartridge is the real prefill",
                                   "[FILE|-]",
                                   table,
                                   CART_USES_JOBS | CART_USES_MODEL | CART_USES_DRY_RUN |
                                       CART_USES_KERNELS,
                                   &o.common};
    int first, answer = 0;
    bool done = false;
    int r = cart_opt_parse(&tool, argc, argv, &first, &done, &err);
    if (r == 0 && !done && argc - first > 1)
        r = cart_err_set(&err, CART_EUSAGE, "expected one token stream, found %d operands",
                         argc - first);
    if (r == 0 && !done)
        r = run(&o, first < argc ? argv[first] : "-", &answer, &err);
    return cart_main_end(r, answer, &err);
}
