#include "model/head.h"

#include "base/arena.h"
#include "tensor/mathf.h"

#include <stdlib.h>

struct cart_head {
    const struct cart_model *m;
    size_t rows;               /* logits rows held at a time */
    float *logits;             /* [rows, V] */
    struct cart_logsum *stats; /* [rows] */
    struct cart_arena arena;
};

static void layout(struct cart_arena *a, struct cart_head *h)
{
    h->logits = cart_arena_push(a, h->rows * h->m->V, sizeof *h->logits);
    h->stats = cart_arena_push(a, h->rows, sizeof *h->stats);
}

int cart_head_new(struct cart_head **out, const struct cart_model *m, size_t rows,
                  struct cart_err *err)
{
    struct cart_head *h = calloc(1, sizeof *h);
    if (!h)
        return cart_err_memory(err, "output head", sizeof *h);
    h->m = m;
    h->rows = rows;
    layout(&h->arena, h);
    int r = cart_arena_reserve(&h->arena, h->arena.used, err);
    if (r < 0) {
        free(h);
        return cart_err_wrap(err, r, "logits of %zu rows", rows);
    }
    layout(&h->arena, h);
    *out = h;
    return 0;
}

void cart_head_free(struct cart_head *h)
{
    if (!h)
        return;
    cart_arena_release(&h->arena);
    free(h);
}

void cart_head_logits(const struct cart_model *m, const float *hidden, size_t R, float *logits,
                      struct cart_pool *pool)
{
    cart_matmul_forward(logits, m->V, hidden, m->D, R, &m->head, NULL, false, pool);
}

/* The logits of rows [r0, r0 + n) and their statistics. */
static void chunk(struct cart_head *h, const float *hidden, size_t r0, size_t n,
                  struct cart_pool *pool)
{
    const struct cart_model *m = h->m;
    cart_head_logits(m, hidden + r0 * m->D, n, h->logits, pool);
    cart_vocab_logsum(h->stats, h->logits, m->V, n, m->V, pool);
}

static size_t chunk_size(const struct cart_head *h, size_t R, size_t r0)
{
    return R - r0 < h->rows ? R - r0 : h->rows;
}

void cart_head_topk(struct cart_head *h, const float *hidden, size_t R, size_t k, uint32_t *ids,
                    float *logprobs, struct cart_pool *pool)
{
    size_t V = h->m->V;
    for (size_t r0 = 0; r0 < R; r0 += h->rows) {
        size_t n = chunk_size(h, R, r0);
        chunk(h, hidden, r0, n, pool);
        float *lp = logprobs + r0 * k;
        cart_vocab_topk(ids + r0 * k, lp, k, h->logits, V, n, V, pool);
        for (size_t i = 0; i < n * k; i++)
            lp[i] = (float)cart_vocab_logprob(lp[i], &h->stats[i / k]);
    }
}

void cart_head_logprobs(struct cart_head *h, const float *hidden, size_t R, const uint32_t *ids,
                        double *out, struct cart_pool *pool)
{
    for (size_t r0 = 0; r0 < R; r0 += h->rows) {
        size_t n = chunk_size(h, R, r0);
        chunk(h, hidden, r0, n, pool);
        for (size_t i = 0; i < n; i++)
            out[r0 + i] = cart_vocab_logprob(h->logits[i * h->m->V + ids[r0 + i]], &h->stats[i]);
    }
}

/* One row's share of the loss, from its logits. */
static void row_sums(const struct cart_head *h, size_t row, const struct cart_distill_target *t,
                     size_t r, struct cart_distill_sums *s)
{
    size_t V = h->m->V, first = t->offsets[r], end = t->offsets[r + 1];
    const float *logits = h->logits + row * V;
    for (size_t e = first; e < end; e++) {
        double p = t->p[e], lq = cart_vocab_logprob(logits[t->ids[e]], &h->stats[row]);
        s->ce -= p * lq;
        if (p > 0)
            s->kl += p * (cart_ln(p) - lq);
    }
    s->entries += end - first;
    s->rows++;
    if (end > first && cart_vocab_argmax(logits, V) == t->ids[first])
        s->top1++;
}

void cart_head_distill(struct cart_head *h, const float *hidden, size_t R,
                       const struct cart_distill_target *t, struct cart_distill_sums *sums,
                       bool per_row, float *dhidden, struct cart_pool *pool)
{
    const struct cart_model *m = h->m;
    for (size_t r0 = 0; r0 < R; r0 += h->rows) {
        size_t n = chunk_size(h, R, r0);
        chunk(h, hidden, r0, n, pool);
        for (size_t i = 0; i < n; i++)
            row_sums(h, i, t, r0 + i, per_row ? &sums[r0 + i] : &sums[0]);
        if (!dhidden)
            continue;
        cart_vocab_distill_backward(h->logits, m->V, n, m->V, h->stats, t->offsets + r0, t->ids,
                                    t->p, pool);
        cart_matmul_backward(dhidden + r0 * m->D, m->D, h->logits, m->V, n, &m->head, true, pool);
    }
}
