/* Loss and gradient of groups of conversations on the tiny models: against differences of the loss
 * itself, and bit for bit the same however a group is packed, cut or recomputed; schedule and
 * bootstrap. */
#include "base/cpu.h"
#include "base/rng.h"
#include "study/bootstrap.h"
#include "study/distill.h"
#include "study/evaluate.h"
#include "study/init.h"
#include "study/schedule.h"

#include <math.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <setjmp.h>

#include <cmocka.h>

#define N 3
#define P 12

static struct cart_err err;
static struct cart_pool *pool;

static void need(int r)
{
    if (r < 0)
        fail_msg("%s", err.msg);
}

struct fixture {
    struct cart_model *m;
    struct cart_trainable rows;
    struct cart_conversation convs[N];
    const struct cart_conversation *list[N];
};

/* A conversation of random ids with two supervised ranges and one to three entries a row. */
static void make_conversation(struct cart_conversation *c, const struct cart_model *m, uint64_t n)
{
    size_t T = 10 + 7 * n;
    cart_conversation_init(c);
    c->n = n;
    for (size_t i = 0; i < T; i++) {
        uint32_t id = (uint32_t)cart_rng_below(n, 0, CART_RNG_TEST, (uint32_t)i, m->V);
        need(cart_conversation_push_ids(c, &id, 1, &err));
    }
    need(cart_conversation_reserve_targets(c, T, 3 * T, &err));
    for (size_t t = 3; t < T; t++) {
        if (t == 6)
            continue;
        c->rows[c->R] = (uint32_t)t;
        c->offsets[c->R++] = c->E;
        for (size_t e = 0; e <= t % 3; e++) {
            c->target_ids[c->E] = (uint32_t)((t * 13 + e * 31 + n) % m->V);
            c->logprobs[c->E++] = -0.7f - (float)e;
        }
    }
    c->offsets[c->R] = c->E;
    c->has_targets = true;
}

static void setup(struct fixture *f, const char *name)
{
    const char *root = getenv("CART_TEST_ROOT");
    char path[1024];
    uint32_t ids[P];
    struct cart_kv_tail tail;
    struct cart_kv_part part;
    memset(f, 0, sizeof *f);
    snprintf(path, sizeof path, "%s/tests/golden/tiny/%s.gguf", root ? root : ".", name);
    need(cart_model_open(&f->m, path, NULL, &err));
    for (size_t i = 0; i < P; i++)
        ids[i] = (uint32_t)(17 * i + 40) % (uint32_t)f->m->V;
    struct cart_kv_layer *layers = calloc(f->m->L, sizeof *layers);
    need(cart_init_prefill(&tail, f->m, ids, P, pool, &err));
    cart_kv_part_of_tail(&part, layers, f->m, &tail, 0, P);
    need(cart_trainable_init(&f->rows, f->m, P, 1, &err));
    cart_trainable_set(&f->rows, f->m, &part, 1);
    cart_kv_tail_release(&tail);
    free(layers);
    for (size_t i = 0; i < N; i++) {
        make_conversation(&f->convs[i], f->m, i);
        f->list[i] = &f->convs[i];
    }
}

static void teardown(struct fixture *f)
{
    for (size_t i = 0; i < N; i++)
        cart_conversation_release(&f->convs[i]);
    cart_trainable_release(&f->rows);
    cart_model_close(f->m);
}

/* The summed loss; the gradient is left in rows.g. */
static double loss_of(struct fixture *f, const struct cart_distill_options *o,
                      struct cart_distill_sums sums[N])
{
    struct cart_distiller *d;
    double ce = 0;
    memset(f->rows.g, 0, f->rows.n * sizeof *f->rows.g);
    need(cart_distiller_new(&d, f->m, o, &err));
    need(cart_distiller_run(d, &f->rows, f->list, N, sums, pool, &err));
    cart_distiller_free(d);
    for (size_t i = 0; i < N; i++)
        ce += sums[i].ce;
    return ce;
}

static const struct cart_distill_options packed = {false, true, 4096};

/* The loss changes along a direction as the gradient says. */
static void check_direction(struct fixture *f, const float *x0, const float *g, const float *u,
                            double h)
{
    struct cart_distill_sums sums[N];
    double slope = 0, loss[2];
    for (size_t i = 0; i < f->rows.n; i++)
        slope += (double)g[i] * u[i];
    for (int side = 0; side < 2; side++) {
        for (size_t i = 0; i < f->rows.n; i++)
            f->rows.x[i] = (float)(x0[i] + (side ? h : -h) * u[i]);
        loss[side] = loss_of(f, &packed, sums);
    }
    double found = (loss[1] - loss[0]) / (2 * h);
    if (!(fabs(found - slope) < 5e-3 * fabs(slope) + 2e-3))
        fail_msg("slope of the loss: by difference %.6g, by gradient %.6g", found, slope);
}

static void gradient_is_the_slope(void **state)
{
    (void)state;
    static const char *const names[] = {"llama_tied", "llama3_untied", "qwen2", "qwen3",
                                        "qwen2.mix"};
    for (size_t k = 0; k < CART_COUNTOF(names); k++) {
        struct fixture f;
        struct cart_distill_sums sums[N];
        setup(&f, names[k]);
        size_t n = f.rows.n;
        float *x0 = malloc(n * sizeof *x0), *g = malloc(n * sizeof *g), *u = malloc(n * sizeof *u);
        double norm = 0;
        (void)loss_of(&f, &packed, sums);
        memcpy(x0, f.rows.x, n * sizeof *x0);
        memcpy(g, f.rows.g, n * sizeof *g);
        for (size_t i = 0; i < n; i++)
            norm += (double)g[i] * g[i];
        assert_true(norm > 0);
        for (size_t i = 0; i < n; i++)
            u[i] = (float)(g[i] / sqrt(norm));
        check_direction(&f, x0, g, u, 1e-2);
        for (uint64_t r = 0; r < 2; r++) {
            for (size_t i = 0; i < n; i++)
                u[i] = (float)((cart_rng_normal(r, i, CART_RNG_TEST, 0) + 3.0 * g[i] / sqrt(norm)) /
                               sqrt((double)n));
            check_direction(&f, x0, g, u, 1e-2);
        }
        free(x0);
        free(g);
        free(u);
        teardown(&f);
    }
}

static void packing_changes_no_bit(void **state)
{
    (void)state;
    static const struct cart_distill_options ways[] = {{false, false, 4096},
                                                       {true, true, 4096},
                                                       {true, false, 4096},
                                                       {false, true, 30},
                                                       {false, true, 1}};
    struct fixture f;
    struct cart_distill_sums sums[N], want[N];
    setup(&f, "qwen3");
    double ce = loss_of(&f, &packed, want);
    float *g = malloc(f.rows.n * sizeof *g);
    memcpy(g, f.rows.g, f.rows.n * sizeof *g);
    for (size_t i = 0; i < CART_COUNTOF(ways); i++) {
        assert_true(loss_of(&f, &ways[i], sums) == ce);
        assert_memory_equal(sums, want, sizeof sums);
        assert_memory_equal(f.rows.g, g, f.rows.n * sizeof *g);
    }
    /* The evaluation, which keeps no tape, sees the same losses. */
    struct cart_evaluator *e;
    const struct cart_kv_part *parts[2] = {&f.rows.parts[0], &f.rows.parts[1]};
    need(cart_evaluator_new(&e, f.m, 16, &err));
    need(cart_evaluator_targets(e, parts, 2, f.list, N, sums, pool, &err));
    assert_memory_equal(sums, want, sizeof sums);
    cart_evaluator_free(e);
    free(g);
    teardown(&f);
}

/* A token of one conversation moves nothing of another. */
static void conversations_do_not_touch(void **state)
{
    (void)state;
    struct fixture f;
    struct cart_distill_sums a[N], b[N];
    setup(&f, "llama_tied");
    (void)loss_of(&f, &packed, a);
    f.convs[1].ids[4] = (f.convs[1].ids[4] + 1) % (uint32_t)f.m->V;
    (void)loss_of(&f, &packed, b);
    assert_memory_equal(&a[0], &b[0], sizeof a[0]);
    assert_memory_equal(&a[2], &b[2], sizeof a[2]);
    assert_true(a[1].ce != b[1].ce);
    teardown(&f);
}

static void not_finite_names_the_conversation(void **state)
{
    (void)state;
    struct fixture f;
    struct cart_distill_sums sums[N];
    struct cart_distiller *d;
    setup(&f, "llama_tied");
    f.convs[1].logprobs[2] = NAN;
    need(cart_distiller_new(&d, f.m, &packed, &err));
    assert_int_equal(cart_distiller_run(d, &f.rows, f.list, N, sums, pool, &err), CART_EFORMAT);
    assert_non_null(strstr(err.msg, "conversation 1: "));
    cart_distiller_free(d);
    teardown(&f);
}

static void scores_are_log_probabilities(void **state)
{
    (void)state;
    struct fixture f;
    struct cart_evaluator *e;
    uint32_t ids[5] = {7, 9, 30, 0, 0};
    struct cart_score *s;
    setup(&f, "qwen2");
    size_t V = f.m->V;
    s = calloc(V, sizeof *s);
    uint32_t(*texts)[5] = calloc(V, sizeof *texts);
    for (size_t v = 0; v < V; v++) {
        memcpy(texts[v], ids, sizeof ids);
        texts[v][3] = (uint32_t)v;
        s[v] = (struct cart_score){texts[v], 4, 1, 0.0};
    }
    const struct cart_kv_part *parts[2] = {&f.rows.parts[0], &f.rows.parts[1]};
    need(cart_evaluator_new(&e, f.m, 64, &err));
    need(cart_evaluator_scores(e, parts, 2, s, V, pool, &err));
    double sum = 0;
    for (size_t v = 0; v < V; v++)
        sum += exp(s[v].sum);
    assert_true(fabs(sum - 1.0) < 1e-6);
    cart_evaluator_free(e);
    free(texts);
    free(s);
    teardown(&f);
}

static void rate_over_a_run(void **state)
{
    (void)state;
    struct cart_schedule s = {CART_SCHEDULE_COSINE, 0.02, 10, 110};
    assert_true(fabs(cart_schedule_lr(&s, 1) - 0.002) < 1e-12);
    assert_true(fabs(cart_schedule_lr(&s, 10) - 0.02) < 1e-12);
    assert_true(fabs(cart_schedule_lr(&s, 60) - 0.011) < 1e-12);
    assert_true(fabs(cart_schedule_lr(&s, 110) - 0.002) < 1e-12);
    for (uint64_t i = 11; i <= 110; i++)
        assert_true(cart_schedule_lr(&s, i) < cart_schedule_lr(&s, i - 1));
    s.kind = CART_SCHEDULE_CONSTANT;
    assert_true(cart_schedule_lr(&s, 5) == 0.01 && cart_schedule_lr(&s, 77) == 0.02);
    struct cart_schedule none = {CART_SCHEDULE_COSINE, 0.5, 0, 1};
    assert_true(fabs(cart_schedule_lr(&none, 1) - 0.05) < 1e-12);
}

static void interval_holds_the_mean(void **state)
{
    (void)state;
    double x[200], w[200];
    struct cart_interval a, b;
    for (size_t i = 0; i < 200; i++) {
        x[i] = cart_rng_normal(5, i, CART_RNG_TEST, 0) + 2.0;
        w[i] = 1.0;
    }
    need(cart_bootstrap(&a, x, w, 200, 1, &err));
    need(cart_bootstrap(&b, x, w, 200, 1, &err));
    assert_memory_equal(&a, &b, sizeof a);
    assert_true(a.low < a.mean && a.mean < a.high);
    /* Of 200 normal numbers the interval of the mean is 2 * 1.96 / sqrt(200) wide. */
    assert_true(fabs(a.high - a.low - 0.277) < 0.06);
    need(cart_bootstrap(&a, x, w, 1, 1, &err));
    assert_true(a.low == x[0] && a.high == x[0]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(gradient_is_the_slope),
        cmocka_unit_test(packing_changes_no_bit),
        cmocka_unit_test(conversations_do_not_touch),
        cmocka_unit_test(not_finite_names_the_conversation),
        cmocka_unit_test(scores_are_log_probabilities),
        cmocka_unit_test(rate_over_a_run),
        cmocka_unit_test(interval_holds_the_mean),
    };
    if (cart_cpu_init(&err) < 0 || cart_pool_new(&pool, 2, &err) < 0)
        return 2;
    cmocka_set_message_output(CM_OUTPUT_TAP);
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    cart_pool_free(pool);
    return failed;
}
