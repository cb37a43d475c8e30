/* The kernels of vocab.h over lanes. The body of each vocab variant, which defines VOCAB_NAME
 * first. */
#ifndef CART_TENSOR_VOCAB_IMPL_H
#define CART_TENSOR_VOCAB_IMPL_H

#include "tensor/lanes_impl.h"
#include "tensor/vocab_kernels.h"

#define ROW_UNROLL 4 /* vectors in flight where a chain of maxima would wait for itself */

/* The largest value that is no NaN; -inf if there is none. */
static float row_max(const float *row, size_t V)
{
    struct lanes top[ROW_UNROLL];
    size_t i = 0;
    float best;

    for (int u = 0; u < ROW_UNROLL; u++)
        top[u] = lanes_set(-INFINITY);
    for (; i + ROW_UNROLL * LANES <= V; i += ROW_UNROLL * LANES)
#pragma GCC unroll 4
        for (int u = 0; u < ROW_UNROLL; u++)
            top[u] = lanes_max(lanes_load(row + i + (size_t)u * LANES), top[u]);
    best = lanes_top(lanes_max(lanes_max(top[0], top[1]), lanes_max(top[2], top[3])));
    for (; i < V; i++)
        best = row[i] > best ? row[i] : best;
    return best;
}

static struct cart_logsum logsum(const float *row, size_t V)
{
    struct cart_logsum s = {row_max(row, V) + 0.0f, 0};
    struct dlanes sum = dlanes_zero();
    struct lanes top = lanes_set(s.max);
    size_t i = 0;

    for (; i + LANES <= V; i += LANES)
        sum = dlanes_add(sum, lanes_exp_falling(lanes_sub(lanes_load(row + i), top)));
    if (i < V) {
        struct lanes e = lanes_exp_falling(lanes_sub(lanes_load_n(row + i, V - i), top));

        sum = dlanes_add(sum, lanes_keep(e, 0, V - i, 0.0f));
    }
    s.sum = dlanes_sum(sum);
    return s;
}

/* Whether value a at id i ranks before value b at id j. */
static bool before(float a, uint32_t i, float b, uint32_t j)
{
    if (a != a || b != b)
        return (a != a) == (b != b) ? i < j : b != b;
    return a > b || (a == b && i < j);
}

/* A heap whose root ranks last: lets the entry at e sink to its place among the first n. */
static void heap_sink(uint32_t *ids, float *values, size_t e, size_t n)
{
    uint32_t id = ids[e];
    float value = values[e];

    for (size_t child; (child = 2 * e + 1) < n; e = child) {
        if (child + 1 < n && before(values[child], ids[child], values[child + 1], ids[child + 1]))
            child++;
        if (!before(value, id, values[child], ids[child]))
            break;
        ids[e] = ids[child];
        values[e] = values[child];
    }
    ids[e] = id;
    values[e] = value;
}

/* ids and values themselves are the heap; a vector of logits is looked at closer only if one may
 * rank before its root. */
static void topk(uint32_t *ids, float *values, size_t k, const float *row, size_t V)
{
    size_t i = k;

    if (k == 0)
        return;
    for (size_t e = 0; e < k; e++) {
        ids[e] = (uint32_t)e;
        values[e] = row[e];
    }
    for (size_t e = k / 2; e-- > 0;)
        heap_sink(ids, values, e, k);
    while (i < V) {
        size_t n = V - i < LANES ? V - i : LANES;
        struct lanes x = n < LANES ? lanes_load_n(row + i, n) : lanes_load(row + i);
        unsigned may = lanes_not_le(x, lanes_set(values[0]));

        for (may &= n < LANES ? (1u << n) - 1 : 0xffffu; may; may &= may - 1) {
            size_t at = i + (size_t)__builtin_ctz(may);

            if (!before(row[at], (uint32_t)at, values[0], ids[0]))
                continue;
            ids[0] = (uint32_t)at;
            values[0] = row[at];
            heap_sink(ids, values, 0, k);
        }
        i += n;
    }
    for (size_t n = k - 1; n > 0; n--) {
        uint32_t id = ids[n];
        float value = values[n];

        ids[n] = ids[0];
        values[n] = values[0];
        ids[0] = id;
        values[0] = value;
        heap_sink(ids, values, 0, n);
    }
}

static uint32_t argmax(const float *row, size_t V)
{
    float best = row_max(row, V);
    struct lanes want = lanes_set(best);
    size_t i = 0;

    for (; i + LANES <= V; i += LANES) {
        unsigned found = lanes_equal(lanes_load(row + i), want);

        if (found)
            return (uint32_t)(i + (size_t)__builtin_ctz(found));
    }
    for (; i < V; i++)
        if (row[i] == best)
            return (uint32_t)i;
    return 0;
}

static void distill_backward(float *row, size_t V, const struct cart_logsum *s, const uint32_t *ids,
                             const float *p, size_t n)
{
    double mass = 0;
    struct lanes scale, top = lanes_set(s->max);
    size_t i = 0;

    for (size_t e = 0; e < n; e++)
        mass += (double)p[e];
    scale = lanes_set((float)(mass / s->sum));
    for (; i + LANES <= V; i += LANES)
        lanes_store(row + i,
                    lanes_mul(lanes_exp_falling(lanes_sub(lanes_load(row + i), top)), scale));
    if (i < V)
        lanes_store_n(
            row + i,
            lanes_mul(lanes_exp_falling(lanes_sub(lanes_load_n(row + i, V - i), top)), scale),
            V - i);
    for (size_t e = 0; e < n; e++)
        row[ids[e]] -= p[e];
}

const struct cart_vocab_kernels VOCAB_NAME = {logsum, topk, argmax, distill_backward};

#endif
