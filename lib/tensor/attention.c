/* Splits attention into units for the pool: by outputs only, so that no sum depends on the split.
 * See attention.h. */
#include "tensor/attention.h"

#include "tensor/attention_kernels.h"
#include "tensor/dispatch.h"
#include "tensor/flush_impl.h"
#include "tensor/precision.h"

#include <assert.h>

#define MAX_RANGES 256
#define UNITS_PER_THREAD 4
#define ROW_STEP 24
#define SHARED_ITEMS 4 /* fewest items that one unit takes together, where there are as many */

static size_t min_size(size_t a, size_t b)
{
    return a < b ? a : b;
}

static size_t max_size(size_t a, size_t b)
{
    return a > b ? a : b;
}

struct plan {
    const struct cart_attention_kernels *kernels;
    const struct cart_attn_dims *d;
    struct cart_pool *pool;
    struct cart_attn_forward_work range[MAX_RANGES];
    size_t n;
    size_t n_spans; /* while one long item is cut into spans */
    size_t span0;
    float *parts; /* [HK][n_spans][rows][DHp + 2] */
};

/* Number of floats that one span of one KV head leaves. */
static size_t part_size(const struct cart_attn_forward_work *w, const struct cart_attn_dims *d)
{
    return (w->r1 - w->r0) * (cart_attn_padded(d->DH) + 2);
}

static void forward_unit(void *ctx, size_t unit, size_t worker)
{
    struct plan *p = ctx;
    unsigned mode = flush_begin(p->kernels->values);

    p->kernels->forward(&p->range[unit / p->d->HK], p->d, unit % p->d->HK,
                        cart_pool_scratch(p->pool, worker));
    flush_end(p->kernels->values, mode);
}

static void span_unit(void *ctx, size_t unit, size_t worker)
{
    struct plan *p = ctx;
    size_t kv = unit / p->n_spans, span = p->span0 + unit % p->n_spans;
    unsigned mode = flush_begin(p->kernels->values);

    p->kernels->forward_span(&p->range[0], p->d, kv, span,
                             p->parts + unit * part_size(&p->range[0], p->d),
                             cart_pool_scratch(p->pool, worker));
    flush_end(p->kernels->values, mode);
}

static void join_unit(void *ctx, size_t unit, size_t worker)
{
    struct plan *p = ctx;
    unsigned mode = flush_begin(p->kernels->values);

    p->kernels->join(&p->range[0], p->d, unit, p->n_spans,
                     p->parts + unit * p->n_spans * part_size(&p->range[0], p->d),
                     cart_pool_scratch(p->pool, worker));
    flush_end(p->kernels->values, mode);
}

static void run_ranges(struct plan *p)
{
    if (p->n > 0)
        cart_pool_run(p->pool, p->n * p->d->HK, forward_unit, p);
    p->n = 0;
}

static void add_range(struct plan *p, const struct cart_attn_forward_work *w)
{
    if (p->n == MAX_RANGES)
        run_ranges(p);
    p->range[p->n++] = *w;
}

/* Logical keys that both items read from the same memory, in whole blocks. */
static size_t shared_keys(const struct cart_attn_item *a, const struct cart_attn_item *b)
{
    size_t n = 0;

    for (size_t s = 0; s < a->n_segs && s < b->n_segs; s++) {
        const struct cart_kv_segment *x = &a->segs[s], *y = &b->segs[s];

        if (x->k != y->k || x->v != y->v || x->stride != y->stride || x->dtype != y->dtype ||
            x->blocked != y->blocked || x->skip != y->skip)
            break;
        n += min_size(x->rows, y->rows);
        if (x->rows != y->rows)
            break;
    }
    return n / CART_ATTN_BLOCK * CART_ATTN_BLOCK;
}

/* Takes as many of the n items as have few rows and share their first keys with the first, at most
 * `most`. */
static size_t add_shared(struct plan *p, const struct cart_attn_item *items, size_t n, size_t most)
{
    size_t G = p->d->H / p->d->HK, rows = items[0].T * G, shared = SIZE_MAX, taken = 1;
    size_t fit = cart_attn_rows_fit(p->d->DH);

    for (; taken < min_size(n, most); taken++) {
        const struct cart_attn_item *it = &items[taken];
        size_t keys = it->T > fit / G ? 0 : shared_keys(&items[0], it);

        if (keys == 0 || rows + it->T * G > fit)
            break;
        shared = min_size(shared, keys);
        rows += it->T * G;
    }
    if (taken > 1)
        add_range(p, &(struct cart_attn_forward_work){items, taken, 0, rows, shared});
    return taken > 1 ? taken : 0;
}

/* One item with few rows and many keys, where heads alone would leave threads without work: units
 * are spans of keys, and what they leave lies in the shared part of the first worker's scratch.
 * Returns false if that does not fit. */
static bool run_spans(struct plan *p, const struct cart_attn_item *it)
{
    size_t rows = it->T * (p->d->H / p->d->HK), end = it->pos0 + it->T, span0, n_spans, size;

    if (rows > ROW_STEP)
        return false;
    span0 = cart_attn_first_key(p->d, it->pos0) / CART_ATTN_SPAN;
    n_spans = (end + CART_ATTN_SPAN - 1) / CART_ATTN_SPAN - span0;
    size = rows * (cart_attn_padded(p->d->DH) + 2) * sizeof(float);
    if (n_spans < 2 || n_spans > (CART_POOL_SCRATCH - CART_ATTN_SCRATCH) / size / p->d->HK)
        return false;
    run_ranges(p);
    p->range[0] = (struct cart_attn_forward_work){it, 1, 0, rows, 0};
    p->span0 = span0;
    p->n_spans = n_spans;
    p->parts = (float *)cart_pool_scratch(p->pool, 0) + CART_ATTN_SCRATCH / sizeof(float);
    cart_pool_run(p->pool, p->d->HK * n_spans, span_unit, p);
    cart_pool_run(p->pool, p->d->HK, join_unit, p);
    return true;
}

void cart_attention_forward_with(const struct cart_attention_kernels *kernels,
                                 const struct cart_attn_item *items, size_t n,
                                 const struct cart_attn_dims *d, struct cart_pool *pool)
{
    struct plan p = {.kernels = kernels, .d = d, .pool = pool};
    size_t threads = cart_pool_threads(pool), G = d->H / d->HK, rows = 0, chunk, most,
           fit = cart_attn_rows_fit(d->DH);
    bool spans = threads > 1 && n * d->HK < 2 * threads;

    assert(d->DH > 0 && d->DH <= CART_ATTN_HEAD_MAX && d->H % d->HK == 0);
    for (size_t i = 0; i < n; i++)
        rows += items[i].T * G;
    chunk = rows * d->HK / (UNITS_PER_THREAD * threads) / ROW_STEP * ROW_STEP;
    chunk = min_size(max_size(chunk, ROW_STEP), fit);
    most = max_size(SHARED_ITEMS, n * d->HK / (UNITS_PER_THREAD * threads));
    for (size_t i = 0; i < n;) {
        size_t taken = 0, end = items[i].T * G;

        if (items[i].T > 0 && end <= fit / 2)
            taken = add_shared(&p, items + i, n - i, most);
        if (taken == 0 && spans && end > 0 && run_spans(&p, &items[i]))
            end = 0;
        /* The last rows see most keys: they go first, so that the end of the run is fine-grained.
         */
        while (taken == 0 && end > 0) {
            size_t begin = (end - 1) / chunk * chunk;

            add_range(&p, &(struct cart_attn_forward_work){&items[i], 1, begin, end, 0});
            end = begin;
        }
        i += max_size(taken, 1);
    }
    run_ranges(&p);
}

struct back_plan {
    const struct cart_attention_kernels *kernels;
    const struct cart_attn_item *items;
    const struct cart_attn_grad *grads;
    const struct cart_attn_dims *d;
    struct cart_pool *pool;
    size_t pieces; /* 1, or the pieces that the keys and then the rows of one item and head are cut
                      into */
};

static void backward_unit(void *ctx, size_t unit, size_t worker)
{
    const struct back_plan *p = ctx;
    size_t per_head = p->pieces > 1 ? 2 * p->pieces : 1, piece = unit % per_head,
           kv = unit / per_head % p->d->HK;
    size_t i = unit / per_head / p->d->HK, rows = p->items[i].T * (p->d->H / p->d->HK);
    size_t blocks = (p->items[i].pos0 + p->items[i].T + CART_ATTN_BLOCK - 1) / CART_ATTN_BLOCK;
    struct cart_attn_backward_work w = {&p->items[i], &p->grads[i], 0, rows, 0, blocks, true, true};
    unsigned mode;

    if (rows == 0)
        return;
    if (p->pieces > 1 && piece < p->pieces) {
        w.dq = false;
        w.b0 = blocks * piece / p->pieces;
        w.b1 = blocks * (piece + 1) / p->pieces;
    } else if (p->pieces > 1) {
        /* As in the forward, the rows that see most come first. */
        piece = 2 * p->pieces - 1 - piece;
        w.dkv = false;
        w.r0 = rows * piece / p->pieces;
        w.r1 = rows * (piece + 1) / p->pieces;
    }
    mode = flush_begin(p->kernels->values);
    p->kernels->backward(&w, p->d, kv, cart_pool_scratch(p->pool, worker));
    flush_end(p->kernels->values, mode);
}

/* A unit is one KV head of one item, whose five products share scores. Where these are too few for
 * the threads, keys (for dk and dv) and rows (for dq) are cut into pieces that each work out scores
 * again: seven products, more threads. */
void cart_attention_backward_with(const struct cart_attention_kernels *kernels,
                                  const struct cart_attn_item *items,
                                  const struct cart_attn_grad *grads, size_t n,
                                  const struct cart_attn_dims *d, struct cart_pool *pool)
{
    struct back_plan p = {kernels, items, grads, d, pool, 1};
    size_t threads = cart_pool_threads(pool), units = n * d->HK;

    assert(d->DH > 0 && d->DH <= CART_ATTN_HEAD_MAX && d->H % d->HK == 0);
    for (size_t i = 0; i < n; i++)
        for (size_t k = 0; k < items[i].n_segs; k++)
            assert(items[i].segs[k].dtype == CART_F32 && !items[i].segs[k].blocked);
    if (units == 0)
        return;
    if (2 * units < 3 * threads && units % threads != 0)
        p.pieces = (2 * threads + units - 1) / units;
    cart_pool_run(pool, p.pieces > 1 ? units * 2 * p.pieces : units, backward_unit, &p);
}

static const struct cart_attention_kernels *kernels_of_class(void)
{
    const struct cart_tensor_kernels *set = cart_tensor_kernels();

    return cart_precision_selected() == CART_PRECISION_BF16 ? set->attention_bf16 : set->attention;
}

void cart_attention_forward(const struct cart_attn_item *items, size_t n,
                            const struct cart_attn_dims *d, struct cart_pool *pool)
{
    cart_attention_forward_with(kernels_of_class(), items, n, d, pool);
}

void cart_attention_backward(const struct cart_attn_item *items, const struct cart_attn_grad *grads,
                             size_t n, const struct cart_attn_dims *d, struct cart_pool *pool)
{
    cart_attention_backward_with(kernels_of_class(), items, grads, n, d, pool);
}
