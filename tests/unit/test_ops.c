/* Norms, rotation, gating, elementwise steps and Adam: every variant gives the bits of the
 * definition, for any length and number of threads; the definitions agree with f64, and backwards
 * with differences. */
#include "tensor/ops.h"

#include "base/cpu.h"
#include "helper/pools.h"
#include "helper/weights.h"
#include "tensor/dispatch.h"
#include "tensor/mathf.h"
#include "tensor/ops_kernels.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { N_MOST = 1100 };

static const size_t lengths[] = {1, 2, 7, 15, 16, 17, 31, 32, 33, 64, 80, 100, 128, 576, 1023};

static float *floats(size_t n, uint64_t seed)
{
    float *x = malloc(n * sizeof *x);

    assert_non_null(x);
    for (size_t i = 0; i < n; i++)
        x[i] = 3 * test_random_float(&seed);
    return x;
}

static void expect_bits(const char *what, const char *who, size_t n, const float *got,
                        const float *want, size_t count)
{
    for (size_t i = 0; i < count; i++)
        if (memcmp(&got[i], &want[i], sizeof *got))
            fail_msg("%s of %zu: %s: value %zu: expected %a, found %a", what, n, who, i,
                     (double)want[i], (double)got[i]);
}

/* What a step reads and writes, the same at every start. */
struct arrays {
    float *a[4];
};

static struct arrays arrays_make(void)
{
    return (struct arrays){
        {floats(N_MOST, 1), floats(N_MOST, 2), floats(N_MOST, 3), floats(N_MOST, 4)}};
}

static void arrays_release(struct arrays *x)
{
    for (int i = 0; i < 4; i++)
        free(x->a[i]);
}

typedef void step(const struct cart_ops_kernels *k, struct arrays *x, size_t n, bool flag);

static void step_norm(const struct cart_ops_kernels *k, struct arrays *x, size_t n, bool flag)
{
    x->a[3][n] = k->norm_forward(x->a[0], x->a[1], flag ? x->a[2] : NULL, n, 1e-5f);
    x->a[3][n] += k->norm_forward(x->a[1], x->a[1], flag ? x->a[2] : NULL, n, 1e-5f); /* in place */
}

static void step_norm_backward(const struct cart_ops_kernels *k, struct arrays *x, size_t n,
                               bool flag)
{
    k->norm_backward(x->a[0], x->a[1], x->a[2], 0.75f, flag ? x->a[3] : NULL, n);
}

static void step_rope(const struct cart_ops_kernels *k, struct arrays *x, size_t n, bool flag)
{
    size_t n_rot = n < 16 ? n / 2 * 2 : n / 4 * 2;

    k->rope(x->a[0], 1, n, x->a[1], x->a[2], n_rot, CART_ROPE_HALF, flag);
    k->rope(x->a[3], N_MOST / n, n, x->a[1], x->a[2], n_rot, CART_ROPE_INTERLEAVED, flag);
}

static void step_swiglu(const struct cart_ops_kernels *k, struct arrays *x, size_t n, bool flag)
{
    k->swiglu_forward(flag ? x->a[0] : x->a[2], x->a[0], x->a[1], n);
}

static void step_swiglu_backward(const struct cart_ops_kernels *k, struct arrays *x, size_t n,
                                 bool flag)
{
    if (flag)
        k->swiglu_backward(x->a[1], x->a[2], x->a[0], x->a[1], x->a[2], n);
    else
        k->swiglu_backward(x->a[3], x->a[2], x->a[0], x->a[1], x->a[2], n);
}

static void step_adds(const struct cart_ops_kernels *k, struct arrays *x, size_t n, bool flag)
{
    (void)flag;
    k->add(x->a[0], x->a[1], n);
}

static void step_adam(const struct cart_ops_kernels *k, struct arrays *x, size_t n, bool flag)
{
    struct cart_adam adam = {2e-2f, 0.9f, 0.999f, 1e-8f, 0.1, 0.001};

    for (size_t i = 0; i < n; i++)
        x->a[2][i] = fabsf(x->a[2][i]);
    k->adam_step(x->a[0], x->a[1], x->a[2], x->a[3], flag ? 0.37f : 1e-3f, n, &adam);
}

static void test_variants(void **state)
{
    static const struct {
        const char *name;
        step *run;
    } steps[] = {{"norm", step_norm}, {"norm backward", step_norm_backward},
                 {"rope", step_rope}, {"swiglu", step_swiglu},
                 {"adds", step_adds}, {"swiglu backward", step_swiglu_backward},
                 {"adam", step_adam}};
    const struct cart_tensor_kernels *sets[CART_TENSOR_SETS];
    size_t n_sets = cart_tensor_kernels_usable(sets);

    (void)state;
    for (size_t t = 0; t < CART_COUNTOF(steps); t++)
        for (size_t i = 0; i < 2 * CART_COUNTOF(lengths); i++) {
            struct arrays want = arrays_make();
            size_t n = lengths[i / 2];

            steps[t].run(&cart_ops_kernels_ref, &want, n, i % 2);
            for (size_t s = 0; s < n_sets; s++) {
                struct arrays got = arrays_make();

                steps[t].run(sets[s]->ops, &got, n, i % 2);
                for (int a = 0; a < 4; a++)
                    expect_bits(steps[t].name, sets[s]->name, n, got.a[a], want.a[a], N_MOST);
                arrays_release(&got);
            }
            arrays_release(&want);
        }
}

static void test_finite(void **state)
{
    static const float bad[] = {NAN, INFINITY, -INFINITY, -NAN};
    const struct cart_tensor_kernels *sets[CART_TENSOR_SETS];
    size_t n_sets = cart_tensor_kernels_usable(sets);
    float x[100] = {0};

    (void)state;
    x[7] = 3.4e38f;
    x[8] = -1e-45f;
    for (size_t s = 0; s < n_sets; s++) {
        assert_true(sets[s]->ops->all_finite(x, 100));
        assert_true(sets[s]->ops->all_finite(x, 0));
        for (size_t i = 0; i < 100; i++) {
            float keep = x[i];

            x[i] = bad[i % 4];
            assert_false(sets[s]->ops->all_finite(x, 100));
            assert_true(sets[s]->ops->all_finite(x, i));
            x[i] = keep;
        }
    }
    assert_true(cart_all_finite(x, 100));
}

/* Every variant rounds as the functions of dtype.h, of any length; whatever a value is. */
static void test_narrow(void **state)
{
    static const float odd[] = {0.0f,        -0.0f,          1e-45f,  -1e-39f,  5.96e-8f,
                                2.98e-8f,    -2.9802326e-8f, 6.1e-5f, 65504.0f, 65519.9f,
                                65520.0f,    -1e30f,         3.4e38f, INFINITY, -INFINITY,
                                1.00390625f, 1.01171875f,    2049.0f, 2051.0f,  -3.3961775e38f};
    const struct cart_tensor_kernels *sets[CART_TENSOR_SETS];
    size_t n_sets = cart_tensor_kernels_usable(sets);
    float *x = floats(N_MOST, 5);
    uint16_t got[N_MOST + 1], bad;

    (void)state;
    for (size_t i = 0; i < N_MOST; i++)
        x[i] = i % 3 == 0 ? odd[i / 3 % CART_COUNTOF(odd)] : ldexpf(x[i], (int)(i % 60) - 40);
    for (size_t s = 0; s < n_sets; s++)
        for (size_t i = 0; i < 2 * CART_COUNTOF(lengths); i++) {
            size_t n = lengths[i / 2];
            bool f16 = i % 2;

            got[n] = 0x7777;
            sets[s]->ops->narrow(got, f16, x, n);
            for (size_t k = 0; k < n; k++)
                assert_int_equal(got[k], f16 ? cart_f16_from_f32(x[k]) : cart_bf16_from_f32(x[k]));
            assert_int_equal(got[n], 0x7777);
            sets[s]->ops->narrow(&bad, f16, &(float){NAN}, 1);
            assert_true(isnan(f16 ? cart_f16_to_f32(bad) : cart_bf16_to_f32(bad)));
        }
    cart_narrow(x, CART_F32, odd, CART_COUNTOF(odd));
    assert_memory_equal(x, odd, sizeof odd);
    free(x);
}

/* The whole functions, many rows with gaps, for each number of threads. */
static void test_rows(void **state)
{
    enum { M = 900, H = 3, DH = 20, D = H * DH, LD = D + 3 };
    float *x = floats(M * LD, 1), *w = floats(D, 2), *dy = floats(M * LD, 3);

    (void)state;
    for (size_t p = 0; p < TEST_POOLS; p++) {
        float *y = floats(M * LD, 4), *dx = floats(M * LD, 5), *want_dx = floats(M * LD, 5),
              *r = floats(M * H, 6);
        float row[D];

        cart_headnorm_forward(y, LD, r, x, LD, w, M, H, DH, 1e-6f, test_pools[p]);
        cart_headnorm_backward(dx, LD, dy, LD, x, LD, r, w, M, H, DH, test_pools[p]);
        for (size_t m = 0; m < M; m++)
            for (size_t h = 0; h < H; h++) {
                size_t at = m * LD + h * DH;
                float scale = cart_ops_kernels_ref.norm_forward(row, x + at, w, DH, 1e-6f);

                assert_true(scale == r[m * H + h]);
                assert_memory_equal(row, y + at, DH * sizeof *row);
                cart_ops_kernels_ref.norm_backward(want_dx + at, dy + at, x + at, scale, w, DH);
            }
        assert_memory_equal(dx, want_dx, M * LD * sizeof *dx);
        cart_rmsnorm_forward(y, LD, r, x, LD, w, M, D, 1e-6f, test_pools[p]);
        cart_rmsnorm_backward(dx, LD, dy, LD, x, LD, r, w, M, D, test_pools[p]);
        for (size_t m = 0; m < M; m++) {
            float scale = cart_ops_kernels_ref.norm_forward(row, x + m * LD, w, D, 1e-6f);

            assert_true(scale == r[m]);
            assert_memory_equal(row, y + m * LD, D * sizeof *row);
            cart_ops_kernels_ref.norm_backward(want_dx + m * LD, dy + m * LD, x + m * LD, scale, w,
                                               D);
        }
        assert_memory_equal(dx, want_dx, M * LD * sizeof *dx);
        cart_rmsnorm_forward(y, LD, NULL, x, LD, NULL, M, D, 1e-6f, test_pools[p]);
        free(y);
        free(dx);
        free(want_dx);
        free(r);
    }
    free(x);
    free(w);
    free(dy);
}

static void test_elements(void **state)
{
    enum { N = 70001 };
    struct cart_adam adam = {1e-2f, 0.9f, 0.999f, 1e-8f, 0.19, 0.002};

    (void)state;
    for (size_t p = 0; p < TEST_POOLS; p++) {
        float *a = floats(N, 1), *b = floats(N, 2), *c = floats(N, 3), *d = floats(N, 4);
        float *a1 = floats(N, 1), *b1 = floats(N, 2), *c1 = floats(N, 3), *d1 = floats(N, 4);
        const struct cart_ops_kernels *ref = &cart_ops_kernels_ref;

        cart_swiglu_forward(d, a, b, N, test_pools[p]);
        ref->swiglu_forward(d1, a1, b1, N);
        cart_swiglu_backward(a, b, c, a, b, N, test_pools[p]);
        ref->swiglu_backward(a1, b1, c1, a1, b1, N);
        cart_add(c, d, N, test_pools[p]);
        ref->add(c1, d1, N);
        for (size_t i = 0; i < N; i++)
            c[i] = c1[i] = fabsf(c1[i]);
        cart_adam_step(a, b, c, d, 0.5f, N, &adam, test_pools[p]);
        ref->adam_step(a1, b1, c1, d1, 0.5f, N, &adam);
        expect_bits("elements", "a", N, a, a1, N);
        expect_bits("elements", "b", N, b, b1, N);
        expect_bits("elements", "c", N, c, c1, N);
        for (size_t i = 0; i < N; i++)
            assert_true(d[i] == 0 && d1[i] == 0);
        free(a), free(b), free(c), free(d), free(a1), free(b1), free(c1), free(d1);
    }
}

static double norm_f64(const double *x, const float *w, const float *dy, size_t D, double eps,
                       double *y)
{
    double sum = 0, loss = 0;

    for (size_t i = 0; i < D; i++)
        sum += x[i] * x[i];
    for (size_t i = 0; i < D; i++) {
        double v = x[i] / sqrt(sum / (double)D + eps) * (double)w[i];

        loss += v * (double)dy[i];
        if (y)
            y[i] = v;
    }
    return loss;
}

static void test_norm_truth(void **state)
{
    enum { D = 67 };
    float *x = floats(D, 1), *w = floats(D, 2), *dy = floats(D, 3), y[D], dx[D], r;
    double wide[D], want[D];

    (void)state;
    for (size_t i = 0; i < D; i++) {
        wide[i] = (double)x[i];
        dx[i] = (float)i;
    }
    r = cart_ops_kernels_ref.norm_forward(y, x, w, D, 1e-5f);
    cart_ops_kernels_ref.norm_backward(dx, dy, x, r, w, D);
    norm_f64(wide, w, dy, D, (double)1e-5f, want);
    for (size_t i = 0; i < D; i++) {
        double keep = wide[i], slope, h = 1e-5;

        assert_true(fabs((double)y[i] - want[i]) <= 3e-7 * fabs(want[i]));
        wide[i] = keep + h;
        slope = norm_f64(wide, w, dy, D, (double)1e-5f, NULL);
        wide[i] = keep - h;
        slope = (slope - norm_f64(wide, w, dy, D, (double)1e-5f, NULL)) / (2 * h);
        wide[i] = keep;
        assert_true(fabs((double)dx[i] - (double)i - slope) <= 1e-5);
    }
    free(x);
    free(w);
    free(dy);
}

static void test_swiglu_truth(void **state)
{
    (void)state;
    for (float g = -30; g < 30; g += 0.37f) {
        float up = 1.3f, d = -0.7f, out, dg, du;
        double s = 1 / (1 + exp(-(double)g)), silu = (double)g * s;

        cart_ops_kernels_ref.swiglu_forward(&out, &g, &up, 1);
        cart_ops_kernels_ref.swiglu_backward(&dg, &du, &d, &g, &up, 1);
        assert_true(fabs((double)out - silu * (double)up) <= 5e-7 * fabs(silu) + 1e-30);
        assert_true(fabs((double)du - silu * (double)d) <= 5e-7 * fabs(silu) + 1e-30);
        assert_true(fabs((double)dg - (double)d * (double)up * s * (1 + (double)g * (1 - s))) <=
                    1e-6);
    }
}

/* Angles at far positions come from f64; factors divide; tables of any part agree; cos^2 + sin^2
 * = 1. */
static void test_rope_table(void **state)
{
    enum { N = 64, HALF = N / 2 };
    static const size_t positions[] = {0, 1, 4095, 40000, 131071, 2000000};
    float factor[HALF], cos_row[3 * HALF], sin_row[3 * HALF];

    (void)state;
    for (size_t j = 0; j < HALF; j++)
        factor[j] = j == HALF - 1 ? 1e30f : 1 + (float)j / 8;
    for (size_t k = 0; k < CART_COUNTOF(positions) * 2; k++) {
        struct cart_rope rope = {CART_ROPE_HALF, N, k % 2 ? 1e6 : 1e4, k % 2 ? 0.125 : 1,
                                 k % 2 ? factor : NULL};
        size_t pos = positions[k / 2];

        cart_rope_table(cos_row, sin_row, pos, 3, &rope);
        for (size_t i = 0; i < 3; i++)
            for (size_t j = 0; j < HALF; j++) {
                long double angle = (long double)(pos + i) * (long double)rope.scale *
                                    powl((long double)rope.base, -2 * (long double)j / N) /
                                    (rope.factor ? (long double)factor[j] : 1);

                assert_true(fabsl((long double)cos_row[i * HALF + j] - cosl(angle)) < 1e-7);
                assert_true(fabsl((long double)sin_row[i * HALF + j] - sinl(angle)) < 1e-7);
            }
    }
}

static void test_rope_apply(void **state)
{
    enum { M = 700, H = 2, DH = 24, N = 16, HALF = N / 2, LD = H * DH + 1, POS = 50 };
    float cos[POS * HALF], sin[POS * HALF];
    uint32_t pos[M];

    (void)state;
    for (size_t m = 0; m < M; m++)
        pos[m] = (uint32_t)(m * 7 % POS);
    for (size_t k = 0; k < 2 * TEST_POOLS; k++) {
        struct cart_rope rope = {k % 2 ? CART_ROPE_HALF : CART_ROPE_INTERLEAVED, N, 100, 1, NULL};
        float *x = floats(M * LD, 8), *x0 = floats(M * LD, 8);

        cart_rope_table(cos, sin, 0, POS, &rope);
        cart_rope_apply(x, LD, M, H, DH, pos, cos, sin, &rope, false, test_pools[k / 2]);
        for (size_t m = 0; m < M; m++)
            for (size_t h = 0; h < H; h++)
                for (size_t j = 0; j < DH; j++) {
                    size_t at = m * LD + h * DH, pair = k % 2 ? j % HALF : j / 2;
                    bool second = k % 2 ? j >= HALF : j % 2;
                    double angle = (double)pos[m] * pow(100, -2.0 * (double)pair / N),
                           want = (double)x0[at + j];

                    if (j < N) {
                        double a = (double)x0[at + (k % 2 ? pair : 2 * pair)];
                        double b = (double)x0[at + (k % 2 ? pair + HALF : 2 * pair + 1)];

                        want = second ? a * (double)sinl(angle) + b * (double)cosl(angle)
                                      : a * (double)cosl(angle) - b * (double)sinl(angle);
                    }
                    assert_true(fabs((double)x[at + j] - want) < 2e-6);
                }
        cart_rope_apply(x, LD, M, H, DH, pos, cos, sin, &rope, true, test_pools[k / 2]);
        for (size_t i = 0; i < M * LD; i++)
            assert_true(fabsf(x[i] - x0[i]) < 2e-6f);
        free(x);
        free(x0);
    }
}

/* Ten steps against Adam in f64. */
static void test_adam_truth(void **state)
{
    float x = 1, m = 0, v = 0;
    double wide = 1, m1 = 0, v1 = 0, b1 = (double)0.9f, b2 = (double)0.999f;

    (void)state;
    for (int i = 1; i <= 10; i++) {
        struct cart_adam adam = {2e-2f, 0.9f, 0.999f, 1e-8f, 1 - pow(b1, i), 1 - pow(b2, i)};
        float grad = (float)i - 4.5f;
        double g = (double)grad * 0.125;

        cart_ops_kernels_ref.adam_step(&x, &m, &v, &grad, 0.125f, 1, &adam);
        m1 = b1 * m1 + (1 - b1) * g;
        v1 = b2 * v1 + (1 - b2) * g * g;
        wide -= (double)2e-2f * (m1 / adam.c1) / (sqrt(v1 / adam.c2) + (double)1e-8f);
        assert_true(fabs((double)x - wide) < 1e-6 && grad == 0);
    }
    assert_true(fabs(wide - 1) > 1e-3);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_variants),   cmocka_unit_test(test_finite),
        cmocka_unit_test(test_rows),       cmocka_unit_test(test_elements),
        cmocka_unit_test(test_norm_truth), cmocka_unit_test(test_swiglu_truth),
        cmocka_unit_test(test_rope_table), cmocka_unit_test(test_rope_apply),
        cmocka_unit_test(test_adam_truth), cmocka_unit_test(test_narrow),
    };

    cmocka_set_message_output(CM_OUTPUT_TAP);
    return cmocka_run_group_tests(tests, test_pools_open, test_pools_close);
}
