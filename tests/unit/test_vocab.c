/* Rows of logits: every variant gives the bits of the definition; the definitions agree with f64;
 * top-k keeps its order among equals, NaN and infinities. */
#include "tensor/vocab.h"

#include "base/cpu.h"
#include "helper/pools.h"
#include "helper/weights.h"
#include "tensor/dispatch.h"
#include "tensor/vocab_kernels.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static const size_t sizes[] = {1, 2, 15, 16, 17, 63, 64, 65, 100, 1000, 4099};

/* Kinds of rows: smooth, many equal values, rising, with NaN, with infinities, all NaN. */
enum { KINDS = 6 };

static float *row_make(size_t V, int kind, uint64_t seed)
{
    float *x = malloc(V * sizeof *x);

    assert_non_null(x);
    for (size_t i = 0; i < V; i++) {
        float u = 8 * test_random_float(&seed);

        x[i] = kind == 1 ? floorf(u / 4) : kind == 2 ? (float)i / 100 : u;
        if (kind == 1 && x[i] == 0 && i % 2)
            x[i] = -0.0f;
        if (kind == 3 && i % 5 == 1)
            x[i] = i % 2 ? NAN : -NAN;
        if (kind == 4 && i % 7 == 3)
            x[i] = -INFINITY;
        if (kind == 5)
            x[i] = NAN;
    }
    return x;
}

static bool same(double a, double b)
{
    return memcmp(&a, &b, sizeof a) == 0 || (isnan(a) && isnan(b));
}

static void test_variants(void **state)
{
    static const size_t ks[] = {1, 2, 5, 20, 256};
    const struct cart_tensor_kernels *sets[CART_TENSOR_SETS];
    size_t n_sets = cart_tensor_kernels_usable(sets);
    const struct cart_vocab_kernels *ref = &cart_vocab_kernels_ref;

    (void)state;
    for (size_t i = 0; i < CART_COUNTOF(sizes); i++)
        for (int kind = 0; kind < KINDS; kind++) {
            size_t V = sizes[i];
            float *x = row_make(V, kind, i), *a = row_make(V, kind, i), *b = row_make(V, kind, i);
            struct cart_logsum want = ref->logsum(x, V);
            uint32_t ids[3] = {0, (uint32_t)(V - 1), (uint32_t)(V / 2)};
            float p[3] = {0.5f, 0.25f, 0.125f};
            size_t entries = V > 2 ? 3 : 1;

            ref->distill_backward(a, V, &want, ids, p, entries);
            for (size_t s = 0; s < n_sets; s++) {
                const struct cart_vocab_kernels *k = sets[s]->vocab;
                struct cart_logsum got = k->logsum(x, V);

                if (!same(got.sum, want.sum) || !same((double)got.max, (double)want.max))
                    fail_msg("%s: logsum of %zu, kind %d: expected %a, found %a", sets[s]->name, V,
                             kind, want.sum, got.sum);
                assert_int_equal(k->argmax(x, V), ref->argmax(x, V));
                memcpy(b, x, V * sizeof *b);
                k->distill_backward(b, V, &want, ids, p, entries);
                for (size_t e = 0; e < V; e++)
                    if (!same((double)a[e], (double)b[e]))
                        fail_msg("%s: gradient of %zu, kind %d: value %zu: expected %a, found %a",
                                 sets[s]->name, V, kind, e, (double)a[e], (double)b[e]);
                for (size_t t = 0; t < CART_COUNTOF(ks) && ks[t] <= V; t++) {
                    uint32_t want_ids[256], got_ids[256];
                    float want_values[256], got_values[256];

                    ref->topk(want_ids, want_values, ks[t], x, V);
                    k->topk(got_ids, got_values, ks[t], x, V);
                    assert_memory_equal(got_ids, want_ids, ks[t] * sizeof *got_ids);
                    for (size_t e = 0; e < ks[t]; e++)
                        assert_memory_equal(&got_values[e], &x[got_ids[e]], sizeof(float));
                }
            }
            free(x);
            free(a);
            free(b);
        }
}

/* The order itself, by hand: falling, equals by id, -0 equal to +0, NaN after -inf. */
static void test_topk_order(void **state)
{
    const float row[] = {NAN, 1, -INFINITY, 3, -0.0f, 3, 0.0f, NAN, INFINITY, 1};
    const uint32_t want[] = {8, 3, 5, 1, 9, 4, 6, 2, 0, 7};
    const struct cart_tensor_kernels *sets[CART_TENSOR_SETS];
    size_t n_sets = cart_tensor_kernels_usable(sets);
    uint32_t ids[10];
    float values[10];

    (void)state;
    for (size_t k = 1; k <= 10; k++) {
        cart_vocab_kernels_ref.topk(ids, values, k, row, 10);
        assert_memory_equal(ids, want, k * sizeof *ids);
        for (size_t s = 0; s < n_sets; s++) {
            sets[s]->vocab->topk(ids, values, k, row, 10);
            assert_memory_equal(ids, want, k * sizeof *ids);
        }
    }
    assert_int_equal(cart_vocab_argmax(row, 10), 8);
    assert_int_equal(cart_vocab_argmax(row, 8), 3);
    assert_int_equal(cart_vocab_argmax(row, 1), 0);
}

static void test_truth(void **state)
{
    enum { V = 3001 };
    float *x = row_make(V, 0, 3), *g = row_make(V, 0, 3);
    struct cart_logsum s = cart_vocab_kernels_ref.logsum(x, V);
    uint32_t ids[2] = {17, 2000};
    float p[2] = {0.7f, 0.2f};
    double sum = 0, mass = (double)p[0] + (double)p[1];

    (void)state;
    for (size_t i = 0; i < V; i++)
        sum += exp((double)x[i]);
    cart_vocab_kernels_ref.distill_backward(g, V, &s, ids, p, 2);
    for (size_t i = 0; i < V; i++) {
        double q = exp((double)x[i]) / sum, want = mass * q - (i == 17     ? (double)p[0]
                                                               : i == 2000 ? (double)p[1]
                                                                           : 0);

        assert_true(fabs(cart_vocab_logprob(x[i], &s) - log(q)) < 1e-7);
        assert_true(fabs((double)g[i] - want) < 1e-6 * q + 6e-8);
    }
    free(x);
    free(g);
}

/* The whole functions on many rows with gaps, for each number of threads; a row without entries
 * becomes zero. */
static void test_rows(void **state)
{
    enum { M = 9, V = 500, LD = V + 3, K = 20 };
    uint32_t ids[M], top[M * K], want_top[K];
    float p[M], values[M * K], want_values[K];
    size_t offsets[M + 1];

    (void)state;
    for (size_t m = 0; m < M; m++) {
        ids[m] = (uint32_t)(m * 50);
        p[m] = 1.0f / (float)(m + 1);
        offsets[m] = m < 4 ? m : m == 4 ? 4 : m - 1;
    }
    offsets[M] = M - 1;
    for (size_t t = 0; t < TEST_POOLS; t++) {
        float *x = row_make(M * LD, 0, 6), *want = row_make(M * LD, 0, 6);
        struct cart_logsum stats[M];

        cart_vocab_logsum(stats, x, LD, M, V, test_pools[t]);
        cart_vocab_topk(top, values, K, x, LD, M, V, test_pools[t]);
        for (size_t m = 0; m < M; m++) {
            struct cart_logsum s = cart_vocab_kernels_ref.logsum(want + m * LD, V);

            assert_true(same(s.sum, stats[m].sum) && s.max == stats[m].max);
            cart_vocab_kernels_ref.topk(want_top, want_values, K, want + m * LD, V);
            assert_memory_equal(top + m * K, want_top, sizeof want_top);
            assert_memory_equal(values + m * K, want_values, sizeof want_values);
            cart_vocab_kernels_ref.distill_backward(want + m * LD, V, &s, ids + offsets[m],
                                                    p + offsets[m], offsets[m + 1] - offsets[m]);
        }
        cart_vocab_distill_backward(x, LD, M, V, stats, offsets, ids, p, test_pools[t]);
        assert_memory_equal(x, want, M * LD * sizeof *x);
        for (size_t i = 0; i < V; i++)
            assert_true(offsets[4] != offsets[5] ? x[4 * LD + i] != 0 : x[4 * LD + i] == 0);
        free(x);
        free(want);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_variants),
        cmocka_unit_test(test_topk_order),
        cmocka_unit_test(test_truth),
        cmocka_unit_test(test_rows),
    };

    cmocka_set_message_output(CM_OUTPUT_TAP);
    return cmocka_run_group_tests(tests, test_pools_open, test_pools_close);
}
