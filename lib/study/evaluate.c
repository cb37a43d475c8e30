#include "study/evaluate.h"

#include "base/buf.h"
#include "study/target_batch.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define PIECE ((size_t)512) /* tokens run through a layer at a time */

struct cart_evaluator {
    const struct cart_model *m;
    size_t tokens;
    struct cart_workspace *ws;
    struct cart_head *head;
    struct cart_target_batch batch;
    struct cart_distill_sums *rows; /* [R] */
    double *logprobs;               /* [R] */
    uint32_t *ids;                  /* [R] */
    size_t *want;                   /* [R] */
    float *hidden;                  /* [R, D] */
    struct cart_span *spans;
    struct cart_kv_tail *tails;
    size_t rows_cap, logprobs_cap, ids_cap, want_cap, hidden_cap, spans_cap, tails_cap;
};

int cart_evaluator_new(struct cart_evaluator **out, const struct cart_model *m, size_t tokens,
                       struct cart_err *err)
{
    struct cart_evaluator *e = calloc(1, sizeof *e);
    if (!e)
        return cart_err_memory(err, "evaluation", sizeof *e);
    e->m = m;
    e->tokens = tokens;
    int r = cart_workspace_new(&e->ws, m, tokens < PIECE ? tokens : PIECE, err);
    if (r == 0)
        r = cart_head_new(&e->head, m, CART_HEAD_ROWS, err);
    if (r < 0) {
        cart_evaluator_free(e);
        return r;
    }
    *out = e;
    return 0;
}

void cart_evaluator_free(struct cart_evaluator *e)
{
    if (!e)
        return;
    cart_workspace_free(e->ws);
    cart_head_free(e->head);
    cart_target_batch_release(&e->batch);
    free(e->rows);
    free(e->logprobs);
    free(e->ids);
    free(e->want);
    free(e->hidden);
    free(e->spans);
    free(e->tails);
    free(e);
}

size_t cart_evaluator_bytes(const struct cart_model *m, size_t tokens, size_t longest)
{
    size_t most = cart_kv_places(CART_KV_ANYWHERE, longest), held = most > tokens ? most : tokens;
    /* Of supervised tokens there are fewer than tokens: hidden rows are counted for all. */
    return cart_workspace_bytes(m, tokens < PIECE ? tokens : PIECE) +
           cart_kv_tail_bytes(m, CART_F32, 0, held) +
           (held * m->D + CART_HEAD_ROWS * m->V) * sizeof(float);
}

static int reserve(struct cart_evaluator *e, size_t n, size_t R, struct cart_err *err)
{
    int r;
    if ((r = cart_array_reserve(&e->spans, &e->spans_cap, n, sizeof *e->spans, err)) < 0 ||
        (r = cart_array_reserve(&e->tails, &e->tails_cap, n, sizeof *e->tails, err)) < 0 ||
        (r = cart_array_reserve(&e->rows, &e->rows_cap, R, sizeof *e->rows, err)) < 0 ||
        (r = cart_array_reserve(&e->logprobs, &e->logprobs_cap, R, sizeof *e->logprobs, err)) < 0 ||
        (r = cart_array_reserve(&e->ids, &e->ids_cap, R, sizeof *e->ids, err)) < 0 ||
        (r = cart_array_reserve(&e->want, &e->want_cap, R, sizeof *e->want, err)) < 0)
        return r;
    return cart_array_reserve(&e->hidden, &e->hidden_cap, R, e->m->D * sizeof *e->hidden, err);
}

static size_t rows_of(const struct cart_kv_part *const *parts, size_t n_parts)
{
    return cart_kv_rows(&(struct cart_kv){parts, n_parts, NULL});
}

/* Runs spans [n] (ids, T and wants set) behind the parts, each with a tail that lives as long as
 * the call. */
static int run_spans(struct cart_evaluator *e, const struct cart_kv_part *const *parts,
                     size_t n_parts, size_t n, struct cart_pool *pool, struct cart_err *err)
{
    int r = 0;
    size_t made = 0, before = rows_of(parts, n_parts);
    for (; made < n && r == 0; made++) {
        r = cart_kv_tail_init(&e->tails[made], e->m, CART_F32, before, e->spans[made].T, err);
        if (r < 0)
            break;
        e->spans[made].kv = (struct cart_kv){parts, n_parts, &e->tails[made]};
    }
    if (r == 0)
        r = cart_forward(e->m, e->ws, e->spans, n, e->hidden, pool, err);
    for (size_t i = 0; i < made; i++)
        cart_kv_tail_release(&e->tails[i]);
    return r;
}

/* Whether a text of T tokens is still held beside those that have taken from the room. */
static bool hold(size_t *room, size_t before, size_t T, bool alone)
{
    size_t rows = cart_kv_places(before, T);
    if (rows > *room && !alone)
        return false;
    *room -= rows < *room ? rows : *room;
    return true;
}

static int targets_batch(struct cart_evaluator *e, const struct cart_kv_part *const *parts,
                         size_t n_parts, const struct cart_conversation *const *convs, size_t n,
                         struct cart_distill_sums *sums, struct cart_pool *pool,
                         struct cart_err *err)
{
    int r = 0;
    size_t row = 0;
    cart_target_batch_reset(&e->batch);
    for (size_t i = 0; i < n && r == 0; i++)
        r = cart_target_batch_add(&e->batch, convs[i], err);
    if (r < 0 || (r = reserve(e, n, e->batch.R, err)) < 0)
        return r;
    for (size_t i = 0; i < n; i++) {
        e->spans[i] = (struct cart_span){.ids = convs[i]->ids,
                                         .T = cart_target_tokens(convs[i]),
                                         .want = e->batch.want + row,
                                         .n_want = convs[i]->R};
        row += convs[i]->R;
    }
    if ((r = run_spans(e, parts, n_parts, n, pool, err)) < 0)
        return r;
    memset(e->rows, 0, e->batch.R * sizeof *e->rows);
    struct cart_distill_target target = {e->batch.offsets, e->batch.ids, e->batch.p};
    cart_head_distill(e->head, e->hidden, e->batch.R, &target, e->rows, true, NULL, pool);
    row = 0;
    for (size_t i = 0; i < n; i++) {
        memset(&sums[i], 0, sizeof sums[i]);
        cart_target_sum(&sums[i], e->rows + row, convs[i]->R);
        row += convs[i]->R;
        /* Finite rows may be so large that what they give is not. */
        if (!isfinite(sums[i].ce) || !isfinite(sums[i].kl))
            return cart_err_set(err, CART_EFORMAT,
                                "conversation %llu: the loss is not a finite number",
                                (unsigned long long)convs[i]->n);
    }
    return 0;
}

int cart_evaluator_targets(struct cart_evaluator *e, const struct cart_kv_part *const *parts,
                           size_t n_parts, const struct cart_conversation *const *convs, size_t n,
                           struct cart_distill_sums *sums, struct cart_pool *pool,
                           struct cart_err *err)
{
    size_t before = rows_of(parts, n_parts);
    for (size_t first = 0; first < n;) {
        size_t end = first, room = e->tokens;
        while (end < n && hold(&room, before, cart_target_tokens(convs[end]), end == first))
            end++;
        int r =
            targets_batch(e, parts, n_parts, convs + first, end - first, sums + first, pool, err);
        if (r < 0)
            return r;
        first = end;
    }
    return 0;
}

static int scores_batch(struct cart_evaluator *e, const struct cart_kv_part *const *parts,
                        size_t n_parts, struct cart_score *scores, size_t n, struct cart_pool *pool,
                        struct cart_err *err)
{
    size_t R = 0, row = 0;
    for (size_t i = 0; i < n; i++)
        R += scores[i].n_scored;
    int r = reserve(e, n, R, err);
    if (r < 0)
        return r;
    for (size_t i = 0; i < n; i++) {
        const struct cart_score *s = &scores[i];
        e->spans[i] = (struct cart_span){
            .ids = s->ids, .T = s->T - 1, .want = e->want + row, .n_want = s->n_scored};
        for (size_t k = s->T - s->n_scored; k < s->T; k++, row++) {
            e->want[row] = k - 1;
            e->ids[row] = s->ids[k];
        }
    }
    if ((r = run_spans(e, parts, n_parts, n, pool, err)) < 0)
        return r;
    cart_head_logprobs(e->head, e->hidden, R, e->ids, e->logprobs, pool);
    row = 0;
    for (size_t i = 0; i < n; i++) {
        scores[i].sum = 0.0;
        for (size_t k = 0; k < scores[i].n_scored; k++)
            scores[i].sum += e->logprobs[row++];
        if (!isfinite(scores[i].sum))
            return cart_err_set(err, CART_EFORMAT,
                                "the log-probability of an answer is not a finite number");
    }
    return 0;
}

int cart_evaluator_scores(struct cart_evaluator *e, const struct cart_kv_part *const *parts,
                          size_t n_parts, struct cart_score *scores, size_t n,
                          struct cart_pool *pool, struct cart_err *err)
{
    size_t before = rows_of(parts, n_parts);
    for (size_t first = 0; first < n;) {
        size_t end = first, room = e->tokens;
        while (end < n && hold(&room, before, scores[end].T, end == first))
            end++;
        int r = scores_batch(e, parts, n_parts, scores + first, end - first, pool, err);
        if (r < 0)
            return r;
        first = end;
    }
    return 0;
}
