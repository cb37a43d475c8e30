#include "study/estimate.h"

#include "base/clock.h"
#include "base/cpu.h"
#include "base/pool.h"
#include "model/head.h"

#include <stdio.h>
#include <stdlib.h>

#define STEPS 4
#define PROMPT ((size_t)256)
#define FIRST ((size_t)64) /* tokens of a first try */
#define ENOUGH 1.0         /* seconds after which no more is tried */
#define INSTANT 0.05       /* a lap too short to tell how busy the machine is */

void cart_lap_begin(struct cart_lap *l, size_t threads)
{
    size_t cpus = cart_cpu_count();
    *l = (struct cart_lap){cart_clock_now(), cart_clock_cpu(),
                           (double)(threads < cpus ? threads : cpus)};
}

double cart_lap_end(const struct cart_lap *l, double *share)
{
    double wall = cart_clock_now() - l->wall;
    double each = (cart_clock_cpu() - l->cpu) / l->threads;
    double ran = wall >= INSTANT ? each / wall : 1.0;

    *share = ran < *share ? ran : *share;
    return ran < CART_BUSY_SHARE ? each : wall;
}

bool cart_busy_words(double share, char *out, size_t cap)
{
    if (share >= CART_BUSY_SHARE)
        return false;
    snprintf(
        out, cap,
        "the machine is busy, or its disk slow: while this was measured the threads ran %.0f %% "
        "of the time; the time said is that of an idle machine",
        100.0 * share);
    return true;
}

static int time_decode(struct cart_engine *e, const struct cart_kv_part *part,
                       struct cart_session *sessions, struct cart_span *spans, size_t streams,
                       float *rows, struct cart_rates *out, struct cart_err *err)
{
    static const uint32_t id = 0;
    const struct cart_model *m = cart_engine_model(e);
    float *logits = rows + streams * m->D;
    int r;

    for (size_t i = 0; i < streams; i++) {
        if ((r = cart_session_init(&sessions[i], m, CART_F32, &part, 1, STEPS, err)) < 0)
            return r;
    }
    double start = cart_clock_now();
    size_t step = 0;
    struct cart_lap lap;
    cart_lap_begin(&lap, cart_pool_threads(cart_engine_pool(e)));
    for (; step < STEPS && cart_clock_now() - start < ENOUGH; step++) {
        for (size_t i = 0; i < streams; i++)
            spans[i] = (struct cart_span){&id, 1, cart_session_kv(&sessions[i]), NULL, 1};
        if ((r = cart_engine_forward(e, spans, streams, rows, err)) < 0)
            return r;
        cart_head_logits(m, rows, streams, logits, cart_engine_pool(e));
    }
    double seconds = cart_lap_end(&lap, &out->share);
    out->decode = (double)(streams * step) / (seconds > 0 ? seconds : 1e-9);
    return 0;
}

/* Reads n tokens; the prefix is the caller's to release. */
static int time_prompt(struct cart_engine *e, const uint32_t *ids, size_t n,
                       struct cart_prefix **prefix, struct cart_rates *out, struct cart_err *err)
{
    struct cart_lap lap;

    cart_lap_begin(&lap, cart_pool_threads(cart_engine_pool(e)));
    int r = cart_prefix_acquire(e, ids, n, prefix, err);
    double seconds = cart_lap_end(&lap, &out->share);
    out->prefill = (double)n / (seconds > 0 ? seconds : 1e-9);
    return r;
}

int cart_estimate_rates(struct cart_engine *e, size_t streams, struct cart_rates *out,
                        struct cart_err *err)
{
    const struct cart_model *m = cart_engine_model(e);
    size_t n = m->context > PROMPT + STEPS ? PROMPT
               : m->context > 2 * STEPS    ? m->context - 2 * STEPS
                                           : 1;
    struct cart_session *sessions = calloc(streams, sizeof *sessions);
    struct cart_span *spans = calloc(streams, sizeof *spans);
    float *rows = calloc(streams, (m->D + m->V) * sizeof *rows);
    uint32_t *ids = calloc(n, sizeof *ids);
    struct cart_prefix *prefix = NULL;
    int r;

    if (sessions == NULL || spans == NULL || rows == NULL || ids == NULL) {
        r = cart_err_memory(err, "a calibration", streams * (m->D + m->V) * sizeof *rows);
        goto out;
    }
    for (size_t i = 0; i < n; i++)
        ids[i] = (uint32_t)(i % m->V);
    out->share = 1.0;
    double start = cart_clock_now();
    r = time_prompt(e, ids, n < FIRST ? n : FIRST, &prefix, out, err);
    if (r == 0 && n > FIRST && cart_clock_now() - start < ENOUGH) {
        cart_prefix_release(e, prefix);
        prefix = NULL;
        r = time_prompt(e, ids, n, &prefix, out, err);
    }
    if (r == 0)
        r = time_decode(e, cart_prefix_part(prefix), sessions, spans, streams, rows, out, err);
out:
    for (size_t i = 0; sessions != NULL && i < streams; i++)
        cart_session_release(&sessions[i]);
    cart_prefix_release(e, prefix);
    free(sessions);
    free(spans);
    free(rows);
    free(ids);
    return r;
}

int cart_contexts_init(struct cart_contexts *c, const struct cart_corpus *corpus,
                       struct cart_err *err)
{
    *c = (struct cart_contexts){.corpus = corpus};
    c->seen = calloc(corpus->n_docs + 1, sizeof *c->seen);
    return c->seen ? 0 : cart_err_memory(err, "documents", corpus->n_docs);
}

void cart_contexts_release(struct cart_contexts *c)
{
    free(c->seen);
    c->seen = NULL;
}

void cart_contexts_add(struct cart_contexts *c, enum cart_context_kind context, size_t doc,
                       struct cart_range span)
{
    size_t of = context == CART_CONTEXT_DOCUMENT ? doc : c->corpus->n_docs;

    if (context == CART_CONTEXT_CHUNK || c->seen[of])
        return;
    c->seen[of] = true;
    c->kept += cart_kv_places(0, context == CART_CONTEXT_CORPUS ? c->corpus->tokens
                                                                : span.end - span.first);
}

size_t cart_contexts_bytes(const struct cart_contexts *c, const struct cart_model *m, size_t limit)
{
    size_t rows = cart_kv_tail_bytes(m, CART_F32, 0, c->kept);

    return rows < limit ? rows : limit;
}

/* Tokens of the turns around a message, about. */
#define TURNS 80.0

int cart_estimate_study(struct cart_study_work *out, const struct cart_plan *plan,
                        const struct cart_plan_options *opt, const struct cart_corpus *corpus,
                        uint64_t first, uint64_t end, bool targets, struct cart_err *err)
{
    double said = TURNS + (double)opt->max_q;
    int r = cart_contexts_init(&out->contexts, corpus, err);

    if (r < 0)
        return r;
    out->spoken = out->read = 0;
    out->chunk = out->chunks = 0;
    for (uint64_t i = first; i < end; i++) {
        struct cart_plan_item item;
        cart_plan_at(plan, i, &item);
        size_t tokens = item.chunk.end - item.chunk.first;
        double chunk = (double)tokens;
        bool spoken = item.seed != CART_SEED_RECITE;
        if (spoken) {
            out->spoken++;
            out->read += chunk + said;
            out->chunk = tokens > out->chunk ? tokens : out->chunk;
        }
        if (targets && item.context == CART_CONTEXT_CHUNK)
            out->chunks += tokens;
        if (targets)
            out->read +=
                said + (double)opt->max_a + (item.context == CART_CONTEXT_CHUNK ? chunk : 0);
        if (spoken || targets)
            cart_contexts_add(&out->contexts, item.context, item.doc, item.context_span);
    }
    out->read += (double)out->contexts.kept;
    out->written = out->spoken * 0.6 * (double)(opt->max_q + opt->max_a);
    cart_contexts_release(&out->contexts);
    return 0;
}

size_t cart_study_chunk_bytes(const struct cart_study_work *w, const struct cart_model *m,
                              size_t batch)
{
    size_t together = w->spoken < (double)batch ? (size_t)w->spoken : batch;

    return together * cart_kv_tail_bytes(m, CART_F32, 0, w->chunk);
}
