/* Functions of our own: how far from the truth (long double), what they do at the ends, and that
 * every variant's lanes take the same steps as the scalar functions. */
#include "tensor/mathf.h"

#include "tensor/dispatch.h"
#include "tensor/ops_kernels.h"
#include "tensor/vocab_kernels.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static uint64_t seed = 1;

static double uniform(double lo, double hi)
{
    seed = seed * 6364136223846793005u + 1442695040888963407u;
    return lo + (hi - lo) * (double)(seed >> 11) * 0x1p-53;
}

/* |got - want| in units of the last place of want. */
static double ulps_f32(float got, long double want)
{
    float near = fabsf((float)want);

    return (double)(fabsl((long double)got - want) /
                    (long double)(nextafterf(near, INFINITY) - near));
}

static double ulps_f64(double got, long double want)
{
    double near = fabs((double)want);

    return (double)(fabsl((long double)got - want) /
                    (long double)(nextafter(near, INFINITY) - near));
}

static float from_bits(uint32_t u)
{
    float x;

    memcpy(&x, &u, sizeof x);
    return x;
}

static void test_f32_accuracy(void **state)
{
    double worst_exp = 0, worst_sigmoid = 0;

    (void)state;
    for (uint32_t u = 0; u < 0xff800000u; u += 1009) {
        float x = from_bits(u);

        if (!(fabsf(x) < 200))
            continue;
        if (x >= -87.3365f && x <= 88.7228f)
            worst_exp = fmax(worst_exp, ulps_f32(cart_expf(x), expl(x)));
        else
            assert_true(cart_expf(x) == (x < 0 ? 0 : INFINITY));
        if (x > -87)
            worst_sigmoid =
                fmax(worst_sigmoid, ulps_f32(cart_sigmoidf(x), 1 / (1 + expl(-(long double)x))));
    }
    assert_true(worst_exp < 0.9 && worst_exp > 0.5);
    assert_true(worst_sigmoid < 2.6);
}

static void test_f32_ends(void **state)
{
    (void)state;
    assert_true(cart_expf(0.0f) == 1 && cart_expf(-0.0f) == 1);
    assert_true(cart_expf(-INFINITY) == 0 && !signbit(cart_expf(-INFINITY)));
    assert_true(cart_expf(INFINITY) == INFINITY && cart_expf(3e38f) == INFINITY &&
                cart_expf(-3e38f) == 0);
    assert_true(cart_expf(-87.3365f) >= 0x1p-126f && isfinite(cart_expf(88.7228f)));
    assert_true(cart_expf(1e-40f) == 1);
    assert_true(isnan(cart_expf(NAN)) && isnan(cart_expf(-NAN)) &&
                isnan(cart_expf(from_bits(0x7fc00001))));
    assert_true(cart_sigmoidf(0) == 0.5f && cart_sigmoidf(INFINITY) == 1 &&
                cart_sigmoidf(-INFINITY) == 0);
    assert_true(isnan(cart_sigmoidf(NAN)));
}

static void test_f64_accuracy(void **state)
{
    double worst_exp = 0, worst_log = 0, worst_pow = 0, worst_sin = 0, worst_cos = 0;

    (void)state;
    for (int i = 0; i < 300000; i++) {
        double x = uniform(-745, 709), y = ldexp(uniform(0.5, 1), i % 2000 - 1000), s, c;
        double base = uniform(1, 1e6), power = uniform(-2, 2),
               range = i % 3 == 0   ? 4
                       : i % 3 == 1 ? 1e5
                                    : 2.1e9;

        if (x > -708)
            worst_exp = fmax(worst_exp, ulps_f64(cart_exp(x), expl(x)));
        else
            assert_true(fabsl(cart_exp(x) - expl(x)) <= 0x1p-1073L);
        y = i % 2 ? y : uniform(0.5, 2);
        worst_log = fmax(worst_log, ulps_f64(cart_ln(y), logl(y)));
        worst_pow = fmax(worst_pow, fabs((double)(cart_pow(base, power) / powl(base, power) - 1)));
        x = uniform(-range, range);
        cart_sincos(x, &s, &c);
        worst_sin = fmax(worst_sin, ulps_f64(s, sinl(x)));
        worst_cos = fmax(worst_cos, ulps_f64(c, cosl(x)));
    }
    assert_true(worst_exp < 1);
    assert_true(worst_log < 0.6);
    assert_true(worst_pow < 2.3e-16);
    assert_true(worst_sin < 0.9 && worst_cos < 0.9);
}

static void test_f64_ends(void **state)
{
    double s, c;

    (void)state;
    assert_true(cart_exp(0) == 1 && cart_exp(-INFINITY) == 0 && cart_exp(INFINITY) == INFINITY &&
                isnan(cart_exp(NAN)));
    assert_true(cart_exp(709.7) < INFINITY && cart_exp(710) == INFINITY && cart_exp(-745) > 0 &&
                cart_exp(-746) == 0);
    assert_true(cart_ln(1) == 0 && cart_ln(0) == -INFINITY && isnan(cart_ln(-1)) &&
                cart_ln(INFINITY) == INFINITY);
    assert_true(fabs(cart_ln(0x1p-1074) + 744.4400719213812) < 1e-12);
    assert_true(cart_pow(10, 2) == 100 && cart_pow(2, -3) == 0.125 && cart_pow(7, 0) == 1 &&
                cart_pow(0, 2) == 0);
    assert_true(cart_pow(10, 400) == INFINITY && cart_pow(10, -400) == 0 && isnan(cart_pow(-1, 2)));
    cart_sincos(0, &s, &c);
    assert_true(s == 0 && c == 1);
    cart_sincos(-2, &s, &c);
    assert_true(fabs(s + 0.90929742682568170) < 1e-16 && fabs(c + 0.41614683654714238) < 1e-16);
    cart_sincos(INFINITY, &s, &c);
    assert_true(isnan(s) && isnan(c));
}

/* Every kind of float: all exponents, dense mantissas near the bounds of exp, the special values.
 */
static size_t sweep(float *x, size_t n)
{
    static const float special[] = {0.0f, -0.0f,  INFINITY, -INFINITY, NAN,
                                    -NAN, 1e-45f, -1e-45f,  1.1e-38f,  3.4e38f};
    size_t at = 0;

    for (size_t i = 0; i < sizeof special / sizeof special[0]; i++)
        x[at++] = special[i];
    for (int i = -2000; i <= 2000; i++) {
        x[at++] = from_bits(0xc2aeac4fu + (uint32_t)i); /* about -87.3365 */
        x[at++] = from_bits(0x42b17213u + (uint32_t)i); /* about 88.7228 */
    }
    while (at < n) {
        seed = seed * 6364136223846793005u + 1442695040888963407u;
        x[at] = from_bits((uint32_t)(seed >> 32));
        if (at % 2)
            x[at] = (float)uniform(-100, 100);
        at++;
    }
    return at;
}

/* The lanes of a variant are reached through kernels that are little else: silu and the softmax
 * gradient. */
static void test_lanes(void **state)
{
    enum { N = 100003 };
    const struct cart_tensor_kernels *sets[CART_TENSOR_SETS];
    size_t n_sets = cart_tensor_kernels_usable(sets);
    float *x = malloc(N * sizeof *x), *one = malloc(N * sizeof *one), *y = malloc(N * sizeof *y);
    uint32_t id = 0;
    float mass = 1;
    struct cart_logsum unit = {0, 1};

    (void)state;
    assert_true(x && one && y);
    for (size_t i = 0; i < N; i++)
        one[i] = 1;
    for (size_t s = 0; s < n_sets; s++) {
        sweep(x, N);
        sets[s]->ops->swiglu_forward(y, x, one, N);
        for (size_t i = 0; i < N; i++) {
            float want = x[i] * cart_sigmoidf(x[i]);

            if (isnan(want) ? !isnan(y[i]) : memcmp(&want, &y[i], sizeof want))
                fail_msg("%s: silu(%a): expected %a, found %a", sets[s]->name, (double)x[i],
                         (double)want, (double)y[i]);
        }
        for (size_t i = 0; i < N; i++)
            y[i] = x[i] > 0 ? -x[i] : x[i];
        sets[s]->vocab->distill_backward(y, N, &unit, &id, &mass, 1);
        for (size_t i = 1; i < N; i++) {
            float want = cart_expf(x[i] > 0 ? -x[i] : x[i]);

            if (isnan(want) ? !isnan(y[i]) : memcmp(&want, &y[i], sizeof want))
                fail_msg("%s: exp(-|%a|): expected %a, found %a", sets[s]->name, (double)x[i],
                         (double)want, (double)y[i]);
        }
    }
    free(x);
    free(one);
    free(y);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_f32_accuracy), cmocka_unit_test(test_f32_ends),
        cmocka_unit_test(test_f64_accuracy), cmocka_unit_test(test_f64_ends),
        cmocka_unit_test(test_lanes),
    };

    cmocka_set_message_output(CM_OUTPUT_TAP);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
