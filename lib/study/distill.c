#include "study/distill.h"

#include "base/buf.h"
#include "model/backward.h"
#include "study/target_batch.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define TOKEN_STEP ((size_t)128) /* the tape grows in such steps */
#define WANT_STEP ((size_t)64)

struct cart_distiller {
    const struct cart_model *m;
    struct cart_distill_options opt;
    struct cart_tape *tape;
    struct cart_tape_limits lim;
    struct cart_head *head;
    struct cart_target_batch batch;
    struct cart_tape_conv *convs;
    struct cart_distill_sums *rows; /* [R] */
    float *hidden, *dhidden;        /* [R, D] */
    size_t convs_cap, rows_cap, hidden_cap, dhidden_cap;
};

int cart_distiller_new(struct cart_distiller **out, const struct cart_model *m,
                       const struct cart_distill_options *opt, struct cart_err *err)
{
    struct cart_distiller *d = calloc(1, sizeof *d);
    if (!d)
        return cart_err_memory(err, "training step", sizeof *d);
    d->m = m;
    d->opt = *opt;
    d->lim.recompute = opt->recompute;
    int r = cart_head_new(&d->head, m, CART_HEAD_ROWS, err);
    if (r < 0) {
        free(d);
        return r;
    }
    *out = d;
    return 0;
}

void cart_distiller_free(struct cart_distiller *d)
{
    if (!d)
        return;
    cart_tape_free(d->tape);
    cart_head_free(d->head);
    cart_target_batch_release(&d->batch);
    free(d->convs);
    free(d->rows);
    free(d->hidden);
    free(d->dhidden);
    free(d);
}

size_t cart_distiller_bytes(const struct cart_distiller *d)
{
    size_t tape = d->tape ? cart_tape_bytes(d->m, &d->lim) : 0;
    return tape + (d->hidden_cap + d->dhidden_cap) * d->m->D * sizeof *d->hidden +
           CART_HEAD_ROWS * d->m->V * sizeof(float);
}

static size_t round_up(size_t n, size_t step)
{
    return (n + step - 1) / step * step;
}

/* A tape for at least so much; what it already has room for is kept. */
static int fit_tape(struct cart_distiller *d, size_t tokens, size_t convs, size_t wants,
                    size_t prefix, struct cart_err *err)
{
    struct cart_tape_limits l = d->lim;
    if (d->tape && tokens <= l.tokens && convs <= l.convs && wants <= l.wants && prefix <= l.prefix)
        return 0;
    l.tokens = tokens > l.tokens ? round_up(tokens, TOKEN_STEP) : l.tokens;
    l.wants = wants > l.wants ? round_up(wants, WANT_STEP) : l.wants;
    l.convs = convs > l.convs ? convs : l.convs;
    l.prefix = prefix > l.prefix ? prefix : l.prefix;
    cart_tape_free(d->tape);
    d->tape = NULL;
    int r = cart_tape_new(&d->tape, d->m, &l, err);
    if (r == 0)
        d->lim = l;
    return r;
}

/* Lays conversations [n] out side by side. */
static int prepare(struct cart_distiller *d, const struct cart_trainable *t,
                   const struct cart_conversation *const *convs, size_t n, struct cart_err *err)
{
    size_t tokens = 0, row = 0;
    int r = cart_array_reserve(&d->convs, &d->convs_cap, n, sizeof *d->convs, err);
    cart_target_batch_reset(&d->batch);
    for (size_t i = 0; i < n && r == 0; i++) {
        tokens += cart_target_tokens(convs[i]);
        r = cart_target_batch_add(&d->batch, convs[i], err);
    }
    if (r < 0)
        return r;
    for (size_t i = 0; i < n; i++) {
        d->convs[i] = (struct cart_tape_conv){convs[i]->ids, cart_target_tokens(convs[i]),
                                              d->batch.want + row, convs[i]->R};
        row += convs[i]->R;
    }
    size_t D = d->m->D, R = d->batch.R;
    if ((r = cart_array_reserve(&d->rows, &d->rows_cap, R, sizeof *d->rows, err)) < 0 ||
        (r = cart_array_reserve(&d->hidden, &d->hidden_cap, R, D * sizeof *d->hidden, err)) < 0 ||
        (r = cart_array_reserve(&d->dhidden, &d->dhidden_cap, R, D * sizeof *d->dhidden, err)) < 0)
        return r;
    return fit_tape(d, tokens, n, R, t->p, err);
}

static int run_batch(struct cart_distiller *d, struct cart_trainable *t,
                     const struct cart_conversation *const *convs, size_t n,
                     struct cart_distill_sums *sums, struct cart_pool *pool, struct cart_err *err)
{
    const struct cart_kv_part *parts[2] = {&t->parts[0], &t->parts[1]};
    int r = prepare(d, t, convs, n, err);
    if (r < 0)
        return r;
    if ((r = cart_tape_forward(d->tape, parts, t->n_parts, d->convs, n, d->hidden, pool, err)) < 0)
        return r;
    size_t R = d->batch.R, row = 0;
    memset(d->rows, 0, R * sizeof *d->rows);
    memset(d->dhidden, 0, R * d->m->D * sizeof *d->dhidden);
    struct cart_distill_target target = {d->batch.offsets, d->batch.ids, d->batch.p};
    cart_head_distill(d->head, d->hidden, R, &target, d->rows, true, d->dhidden, pool);
    for (size_t i = 0; i < n; i++) {
        memset(&sums[i], 0, sizeof sums[i]);
        cart_target_sum(&sums[i], d->rows + row, convs[i]->R);
        row += convs[i]->R;
        if (!isfinite(sums[i].ce))
            return cart_err_set(err, CART_EFORMAT,
                                "conversation %llu: the loss is not a finite number",
                                (unsigned long long)convs[i]->n);
    }
    cart_tape_backward(d->tape, d->dhidden, t->grads, pool);
    return 0;
}

/* A batch's gradient is not finite: runs its conversations one by one to name the one that does it.
 */
static int blame(struct cart_distiller *d, struct cart_trainable *t,
                 const struct cart_conversation *const *convs, size_t n, struct cart_pool *pool,
                 struct cart_err *err)
{
    struct cart_distill_sums sums;
    for (size_t i = 0; i < n; i++) {
        memset(t->g, 0, t->n * sizeof *t->g);
        int r = run_batch(d, t, convs + i, 1, &sums, pool, err);
        if (r < 0)
            return r;
        if (!cart_all_finite(t->g, t->n))
            return cart_err_set(err, CART_EFORMAT, "conversation %llu: the gradient is not finite",
                                (unsigned long long)convs[i]->n);
    }
    return cart_err_set(err, CART_EFORMAT,
                        "conversations %llu to %llu: the sum of their gradients is not finite",
                        (unsigned long long)convs[0]->n, (unsigned long long)convs[n - 1]->n);
}

int cart_distiller_run(struct cart_distiller *d, struct cart_trainable *t,
                       const struct cart_conversation *const *convs, size_t n,
                       struct cart_distill_sums *sums, struct cart_pool *pool, struct cart_err *err)
{
    for (size_t first = 0; first < n;) {
        size_t end = first, tokens = 0;
        do {
            size_t T = cart_target_tokens(convs[end]);
            if (t->p + T > d->m->context)
                return cart_err_set(
                    err, CART_EUSAGE,
                    "conversation %llu: p %zu and %zu tokens exceed the model's context of %zu",
                    (unsigned long long)convs[end]->n, t->p, T, d->m->context);
            if (end > first && tokens + T > d->opt.max_tokens)
                break;
            tokens += T;
            end++;
        } while (end < n && d->opt.pack);
        int r = run_batch(d, t, convs + first, end - first, sums + first, pool, err);
        if (r < 0)
            return r;
        if (!cart_all_finite(t->g, t->n))
            return blame(d, t, convs + first, end - first, pool, err);
        first = end;
    }
    return 0;
}
