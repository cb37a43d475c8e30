/* Rows of logits, one unit of the pool each. See vocab.h. */
#include "tensor/vocab.h"

#include "tensor/dispatch.h"
#include "tensor/mathf.h"
#include "tensor/vocab_kernels.h"

#include <assert.h>

struct rows {
    const struct cart_vocab_kernels *k;
    float *logits;
    const float *in;
    size_t ld, V, top;
    struct cart_logsum *stats;
    const struct cart_logsum *known;
    uint32_t *ids;
    float *values;
    const size_t *offsets;
    const uint32_t *entry_ids;
    const float *p;
};

static const struct cart_vocab_kernels *kernels(void)
{
    return cart_tensor_kernels()->vocab;
}

static void run(struct cart_pool *pool, size_t M, cart_pool_fn *fn, struct rows *r)
{
    if (M == 1)
        fn(r, 0, 0);
    else if (M > 1)
        cart_pool_run(pool, M, fn, r);
}

static void logsum_row(void *ctx, size_t m, size_t worker)
{
    const struct rows *r = ctx;

    (void)worker;
    r->stats[m] = r->k->logsum(r->in + m * r->ld, r->V);
}

void cart_vocab_logsum(struct cart_logsum *stats, const float *logits, size_t ld, size_t M,
                       size_t V, struct cart_pool *pool)
{
    struct rows r = {.k = kernels(), .in = logits, .ld = ld, .V = V, .stats = stats};

    run(pool, M, logsum_row, &r);
}

double cart_vocab_logprob(float x, const struct cart_logsum *s)
{
    return ((double)x - (double)s->max) - cart_ln(s->sum);
}

static void topk_row(void *ctx, size_t m, size_t worker)
{
    const struct rows *r = ctx;

    (void)worker;
    r->k->topk(r->ids + m * r->top, r->values + m * r->top, r->top, r->in + m * r->ld, r->V);
}

void cart_vocab_topk(uint32_t *ids, float *values, size_t k, const float *logits, size_t ld,
                     size_t M, size_t V, struct cart_pool *pool)
{
    struct rows r = {
        .k = kernels(), .in = logits, .ld = ld, .V = V, .top = k, .ids = ids, .values = values};

    assert(k <= V);
    run(pool, M, topk_row, &r);
}

uint32_t cart_vocab_argmax(const float *row, size_t V)
{
    return kernels()->argmax(row, V);
}

static void distill_row(void *ctx, size_t m, size_t worker)
{
    const struct rows *r = ctx;
    size_t from = r->offsets[m];

    (void)worker;
    r->k->distill_backward(r->logits + m * r->ld, r->V, &r->known[m], r->entry_ids + from,
                           r->p + from, r->offsets[m + 1] - from);
}

void cart_vocab_distill_backward(float *logits, size_t ld, size_t M, size_t V,
                                 const struct cart_logsum *stats, const size_t *offsets,
                                 const uint32_t *ids, const float *p, struct cart_pool *pool)
{
    struct rows r = {.k = kernels(),
                     .logits = logits,
                     .ld = ld,
                     .V = V,
                     .known = stats,
                     .offsets = offsets,
                     .entry_ids = ids,
                     .p = p};

    run(pool, M, distill_row, &r);
}
