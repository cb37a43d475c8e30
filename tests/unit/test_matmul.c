/* Products with frozen weights: every variant gives the bits of the reference, for every type, any
 * number of rows and threads; the reference agrees with f64; the backward is the transpose of the
 * forward. */
#include "tensor/matmul.h"

#include "base/cpu.h"
#include "helper/pools.h"
#include "helper/weights.h"
#include "tensor/dispatch.h"
#include "tensor/matmul_impl.h"
#include "tensor/matmul_kernels.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { M_MAX = 65 };

static const float guard = 12345.678f;

static float *floats(size_t n, uint64_t seed)
{
    float *x = malloc(n * sizeof *x);

    assert_non_null(x);
    for (size_t i = 0; i < n; i++)
        x[i] = test_random_float(&seed);
    return x;
}

/* Ordinary numbers with zeros of both signs and products that underflow in between: they show
 * whether zeros that fill up K are treated alike everywhere. */
static float *activations(size_t n, uint64_t seed)
{
    float *x = floats(n, seed);

    for (size_t i = 0; i < n; i += 11)
        x[i] = i % 2 ? -0.0f : (i % 3 ? 0.0f : -1e-44f);
    for (size_t i = 5; i < n; i += 37) /* products near the smallest normal number */
        x[i] *= i % 3 ? 1e-38f : 3e-36f;
    return x;
}

struct problem {
    struct cart_matrix w;
    size_t ldx, ldy;
    float *x, *y0, *bias; /* [M_MAX, K] rows ldx apart; [M_MAX, N] rows ldy apart; [N] */
    float *want;          /* like y0 */
};

static void problem_release(struct problem *p)
{
    test_weights_release(&p->w);
    free(p->x);
    free(p->y0);
    free(p->bias);
    free(p->want);
}

static void expect_rows(const char *what, const char *who, const struct problem *p,
                        const float *got, const float *want, size_t ld, size_t M, size_t N)
{
    for (size_t m = 0; m < M; m++)
        for (size_t n = 0; n < N; n++)
            if (memcmp(&got[m * ld + n], &want[m * ld + n], sizeof *got))
                fail_msg("%s: %s: %s N=%zu K=%zu M=%zu: [%zu, %zu]: expected %a, found %a", what,
                         who, cart_dtype_info(p->w.dtype)->name, p->w.N, p->w.K, M, m, n,
                         (double)want[m * ld + n], (double)got[m * ld + n]);
    for (size_t m = 0; m < M; m++)
        for (size_t n = N; n < ld; n++)
            if (memcmp(&got[m * ld + n], &guard, sizeof guard))
                fail_msg("%s: %s: wrote beyond row %zu", what, who, m);
}

static void guard_rows(float *x, size_t ld, size_t M, size_t N)
{
    for (size_t m = 0; m < M; m++)
        for (size_t n = N; n < ld; n++)
            x[m * ld + n] = guard;
}

static const struct cart_matmul_kernels *kernels_of(const struct cart_tensor_kernels *set,
                                                    enum cart_precision class)
{
    return class == CART_PRECISION_BF16 ? set->matmul_bf16 : set->matmul;
}

static void check_forward_class(enum cart_precision class, int dtype, size_t N, size_t K,
                                size_t M_most, bool with_bias, bool add, size_t *cases)
{
    static const size_t Ms[] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 64, 65};
    const struct cart_tensor_kernels *sets[CART_TENSOR_SETS];
    size_t n_sets = cart_tensor_kernels_usable(sets);
    struct problem p = {.w = test_weights(dtype, N, K, 3, N + K), .ldx = K + 5, .ldy = N + 3};
    float *y;

    p.x = activations(M_MAX * p.ldx, 1);
    p.y0 = floats(M_MAX * p.ldy, 2);
    p.bias = floats(N, 3);
    p.want = floats(M_MAX * p.ldy, 2);
    guard_rows(p.y0, p.ldy, M_MAX, N);
    y = floats(M_MAX * p.ldy, 4);
    cart_matmul_forward_ref(class, p.want, p.ldy, p.x, p.ldx, M_most, &p.w,
                            with_bias ? p.bias : NULL, add);
    for (size_t i = 0; i < CART_COUNTOF(Ms) && Ms[i] <= M_most; i++) {
        for (size_t s = 0; s < n_sets; s++) {
            struct cart_pool *pool = test_pools[(i + s + *cases) % TEST_POOLS];

            memcpy(y, p.y0, M_MAX * p.ldy * sizeof *y);
            cart_matmul_forward_with(kernels_of(sets[s], class), y, p.ldy, p.x, p.ldx, Ms[i], &p.w,
                                     with_bias ? p.bias : NULL, add, pool);
            expect_rows("forward", sets[s]->name, &p, y, p.want, p.ldy, Ms[i], N);
            assert_memory_equal(y + Ms[i] * p.ldy, p.y0 + Ms[i] * p.ldy,
                                (M_MAX - Ms[i]) * p.ldy * sizeof *y);
        }
    }
    ++*cases;
    free(y);
    problem_release(&p);
}

static void check_forward(int dtype, size_t N, size_t K, size_t M_most, bool with_bias, bool add,
                          size_t *cases)
{
    check_forward_class(CART_PRECISION_F32, dtype, N, K, M_most, with_bias, add, cases);
    check_forward_class(CART_PRECISION_BF16, dtype, N, K, M_most, with_bias, add, cases);
}

static void check_backward_class(enum cart_precision class, int dtype, size_t N, size_t K,
                                 size_t M_most, size_t *cases)
{
    static const size_t Ms[] = {1, 2, 3, 4, 5, 6, 7, 11, 13, 64, 65};
    const struct cart_tensor_kernels *sets[CART_TENSOR_SETS];
    size_t n_sets = cart_tensor_kernels_usable(sets);
    struct problem p = {.w = test_weights(dtype, N, K, 1, N + K), .ldx = K + 3, .ldy = N + 2};
    float *dy = activations(M_MAX * p.ldy, 5), *dx = floats(M_MAX * p.ldx, 6);
    bool add = *cases / 2 % 2 == 0; /* each class meets both */

    p.x = floats(M_MAX * p.ldx, 7);
    p.want = floats(M_MAX * p.ldx, 7);
    guard_rows(p.x, p.ldx, M_MAX, K);
    cart_matmul_backward_ref(class, p.want, p.ldx, dy, p.ldy, M_most, &p.w, add);
    for (size_t i = 0; i < CART_COUNTOF(Ms) && Ms[i] <= M_most; i++) {
        for (size_t s = 0; s < n_sets; s++) {
            struct cart_pool *pool = test_pools[(i + s + *cases) % TEST_POOLS];

            memcpy(dx, p.x, M_MAX * p.ldx * sizeof *dx);
            cart_matmul_backward_with(kernels_of(sets[s], class), dx, p.ldx, dy, p.ldy, Ms[i], &p.w,
                                      add, pool);
            expect_rows("backward", sets[s]->name, &p, dx, p.want, p.ldx, Ms[i], K);
            assert_memory_equal(dx + Ms[i] * p.ldx, p.x + Ms[i] * p.ldx,
                                (M_MAX - Ms[i]) * p.ldx * sizeof *dx);
        }
    }
    ++*cases;
    free(dx);
    free(dy);
    problem_release(&p);
}

static void check_backward(int dtype, size_t N, size_t K, size_t M_most, size_t *cases)
{
    check_backward_class(CART_PRECISION_F32, dtype, N, K, M_most, cases);
    check_backward_class(CART_PRECISION_BF16, dtype, N, K, M_most, cases);
}

/* Shapes by block size: pieces of K, panels that are not full, several units. */
static const size_t Ks_float[] = {16, 40, 48, 1, 17, 300, 1300, 2570};
static const size_t Ks_block[] = {32, 96, 576, 1312, 2080};
static const size_t Ks_super[] = {256, 768, 1536, 3072};
static const size_t Ns[] = {37, 5, 9, 1, 4, 3, 2, 6};

static size_t shapes(int dtype, const size_t **Ks)
{
    size_t block = cart_dtype_info(dtype)->block;

    *Ks = block == 1 ? Ks_float : block == 32 ? Ks_block : Ks_super;
    return block == 1    ? CART_COUNTOF(Ks_float)
           : block == 32 ? CART_COUNTOF(Ks_block)
                         : CART_COUNTOF(Ks_super);
}

static void test_forward(void **state)
{
    size_t cases = 0;
    const size_t *Ks;

    (void)state;
    for (size_t t = 0; t < TEST_DTYPES; t++) {
        size_t n = shapes(test_dtypes[t], &Ks);

        for (size_t i = 0; i < n; i++)
            check_forward(test_dtypes[t], Ns[(i + t) % CART_COUNTOF(Ns)], Ks[i],
                          i % 3 == 2 ? 17 : 65, cases % 2, cases % 4 >= 2, &cases);
    }
}

/* More rows of W than one unit takes, so that units, ranges and the last panel all differ in size.
 */
static void test_forward_units(void **state)
{
    size_t cases = 0;

    (void)state;
    check_forward(CART_Q8_0, 419, 64, 65, true, true, &cases);
    check_forward(CART_Q4_K, 301, 256, 65, false, true, &cases);
    check_forward(CART_BF16, 1027, 24, 65, true, false, &cases);
}

/* K so long that few rows fit the scratch, and beyond the longest. */
static void test_forward_long(void **state)
{
    size_t cases = 0;

    (void)state;
    check_forward(CART_F16, 9, 70000, 17, false, false, &cases);
    check_forward(CART_Q4_0, 5, 1 << 17, 4, true, true, &cases);
    check_forward(CART_Q4_1, 2, (1 << 17) + 32, 2, true, false, &cases);
}

static void test_backward(void **state)
{
    size_t cases = 0;
    const size_t *Ks;

    (void)state;
    for (size_t t = 0; t < TEST_DTYPES; t++) {
        size_t n = shapes(test_dtypes[t], &Ks);

        for (size_t i = 0; i < n; i++)
            check_backward(test_dtypes[t], Ns[(i + t) % CART_COUNTOF(Ns)], Ks[i],
                           i % 3 == 2 ? 13 : 65, &cases);
    }
    check_backward(CART_Q8_0, 300, 160, 65, &cases);
    check_backward(CART_F32, 259, 70, 65, &cases);
}

/* Rows of W in the stored order of w.halves give the bits of a matrix that is stored as counted. */
static void check_halves(enum cart_precision class, int dtype, size_t heads, size_t halves,
                         size_t K, size_t M)
{
    const struct cart_tensor_kernels *sets[CART_TENSOR_SETS];
    size_t n_sets = cart_tensor_kernels_usable(sets), N = heads * 2 * halves;
    struct cart_matrix plain = test_weights(dtype, N, K, 0, 7), w = plain;
    uint8_t *bytes = malloc(N * w.row_bytes);
    float *x = floats(M * K, 1), *y = floats(M * N, 2), *want = floats(M * N, 2);
    float *dx = floats(M * K, 3), *dwant = floats(M * K, 3), *bias = floats(N, 4);

    w.data = bytes;
    w.halves = halves;
    for (size_t h = 0; h < heads; h++)
        for (size_t j = 0; j < halves; j++)
            for (size_t s = 0; s < 2; s++)
                memcpy(bytes + ((2 * h + s) * halves + j) * w.row_bytes,
                       (const uint8_t *)plain.data + (2 * (h * halves + j) + s) * w.row_bytes,
                       w.row_bytes);
    cart_matmul_forward_ref(class, want, N, x, K, M, &plain, bias, true);
    cart_matmul_backward_ref(class, dwant, K, want, N, M, &plain, true);
    for (size_t s = 0; s < n_sets; s++) {
        free(y);
        y = floats(M * N, 2);
        cart_matmul_forward_with(kernels_of(sets[s], class), y, N, x, K, M, &w, bias, true,
                                 test_pools[s % TEST_POOLS]);
        assert_memory_equal(y, want, M * N * sizeof *y);
        free(dx);
        dx = floats(M * K, 3);
        cart_matmul_backward_with(kernels_of(sets[s], class), dx, K, want, N, M, &w, true,
                                  test_pools[s % TEST_POOLS]);
        assert_memory_equal(dx, dwant, M * K * sizeof *dx);
    }
    free(bytes);
    free(x);
    free(y);
    free(want);
    free(dx);
    free(dwant);
    free(bias);
    test_weights_release(&plain);
}

static void test_halves(void **state)
{
    (void)state;
    check_halves(CART_PRECISION_F32, CART_BF16, 3, 32, 96, 1);
    check_halves(CART_PRECISION_F32, CART_F16, 3, 32, 96, 9);
    check_halves(CART_PRECISION_F32, CART_F32, 5, 1, 70, 3);
    check_halves(CART_PRECISION_F32, CART_F32, 2, 3, 2570, 65);
    check_halves(CART_PRECISION_F32, CART_BF16, 9, 16, 1300, 2);
    check_halves(CART_PRECISION_BF16, CART_BF16, 9, 16, 1300, 2);
    check_halves(CART_PRECISION_BF16, CART_F16, 5, 3, 96, 65);
}

/* Several matrices of one x, of types and sizes of their own: each result is that of its
 * product. */
static void check_products(enum cart_precision class, size_t K, size_t M, size_t *cases)
{
    enum { N_PRODUCTS = 4 };
    static const struct {
        int dtype;
        size_t N;
        bool bias, add;
    } each[N_PRODUCTS] = {{CART_Q4_1, 200, false, true},
                          {CART_Q8_0, 1, true, false},
                          {CART_F16, 67, true, true},
                          {CART_Q4_1, 512, false, false}};
    const struct cart_tensor_kernels *sets[CART_TENSOR_SETS];
    size_t n_sets = cart_tensor_kernels_usable(sets);
    struct problem p[N_PRODUCTS];
    struct cart_product products[N_PRODUCTS];
    float *x = activations(M * K, 1), *bias = floats(512, 3);

    for (size_t i = 0; i < N_PRODUCTS; i++) {
        size_t N = each[i].N;

        p[i] = (struct problem){.w = test_weights(each[i].dtype, N, K, 0, i), .ldy = N + 3};
        p[i].y0 = floats(M * p[i].ldy, i);
        guard_rows(p[i].y0, p[i].ldy, M, N);
        p[i].want = malloc(M * p[i].ldy * sizeof(float));
        assert_non_null(p[i].want);
        memcpy(p[i].want, p[i].y0, M * p[i].ldy * sizeof(float));
        cart_matmul_forward_ref(class, p[i].want, p[i].ldy, x, K, M, &p[i].w,
                                each[i].bias ? bias : NULL, each[i].add);
        products[i] =
            (struct cart_product){&p[i].w, each[i].bias ? bias : NULL,
                                  malloc(M * p[i].ldy * sizeof(float)), p[i].ldy, each[i].add};
        assert_non_null(products[i].y);
    }
    for (size_t s = 0; s < n_sets; s++) {
        for (size_t i = 0; i < N_PRODUCTS; i++)
            memcpy(products[i].y, p[i].y0, M * p[i].ldy * sizeof(float));
        cart_matmul_products_with(kernels_of(sets[s], class), products, N_PRODUCTS, x, K, M,
                                  test_pools[(s + *cases) % TEST_POOLS]);
        for (size_t i = 0; i < N_PRODUCTS; i++)
            expect_rows("products", sets[s]->name, &p[i], products[i].y, p[i].want, p[i].ldy, M,
                        p[i].w.N);
    }
    ++*cases;
    for (size_t i = 0; i < N_PRODUCTS; i++) {
        free(products[i].y);
        problem_release(&p[i]);
    }
    free(x);
    free(bias);
}

static void test_products(void **state)
{
    static const size_t Ms[] = {1, 2, 5, 16, 100};
    size_t cases = 0;

    (void)state;
    for (size_t i = 0; i < CART_COUNTOF(Ms); i++) {
        check_products(CART_PRECISION_F32, 96, Ms[i], &cases);
        check_products(CART_PRECISION_F32, 1376, Ms[i], &cases);
        check_products(CART_PRECISION_BF16, 96, Ms[i], &cases);
    }
}

/* The public entries use the process's set; the same bits again. */
static void test_public(void **state)
{
    struct cart_matrix w = test_weights(CART_Q6_K, 21, 512, 0, 9);
    float *x = floats(7 * 512, 1), *y = floats(7 * 21, 2), *want = floats(7 * 21, 2);
    float *dx = floats(7 * 512, 3), *dwant = floats(7 * 512, 3);

    (void)state;
    cart_matmul_forward_ref(CART_PRECISION_F32, want, 21, x, 512, 7, &w, NULL, true);
    cart_matmul_forward(y, 21, x, 512, 7, &w, NULL, true, test_pools[1]);
    assert_memory_equal(y, want, 7 * 21 * sizeof *y);
    cart_matmul_backward_ref(CART_PRECISION_F32, dwant, 512, y, 21, 7, &w, true);
    cart_matmul_backward(dx, 512, y, 21, 7, &w, true, test_pools[1]);
    assert_memory_equal(dx, dwant, 7 * 512 * sizeof *dx);
    free(x);
    free(y);
    free(want);
    free(dx);
    free(dwant);
    test_weights_release(&w);
}

/* Sum of squared differences over sum of squares. */
static double nmse(const float *got, const double *want, size_t n)
{
    double diff = 0, norm = 0;

    for (size_t i = 0; i < n; i++) {
        diff += (got[i] - want[i]) * (got[i] - want[i]);
        norm += want[i] * want[i];
    }
    return diff / norm;
}

enum { EM = 9, EN = 33 };

/* y (+ bias, + y0) and dx of one problem in f64, from widened weights. */
static void exact(double *y, double *dx, const float *x, const float *y0, const float *dy,
                  const float *bias, const struct cart_matrix *w)
{
    float *wide = malloc(w->K * sizeof *wide);

    for (size_t n = 0; n < w->N; n++) {
        cart_widen_ref(w->dtype, (const uint8_t *)w->data + n * w->row_bytes, 0, w->K, wide);
        for (size_t m = 0; m < EM; m++) {
            y[m * EN + n] = (double)y0[m * EN + n] + bias[n];
            for (size_t k = 0; k < w->K; k++) {
                y[m * EN + n] += (double)x[m * w->K + k] * wide[k];
                dx[m * w->K + k] += (double)dy[m * EN + n] * wide[k];
            }
        }
    }
    free(wide);
}

static void check_exact(int dtype, size_t K)
{
    struct cart_matrix w = test_weights(dtype, EN, K, 0, 11);
    float *x = floats(EM * K, 1), *y = floats(EM * EN, 2), *y0 = floats(EM * EN, 2),
          *dy = floats(EM * EN, 3);
    float *bias = floats(EN, 4), *dx = floats(EM * K, 5);
    double *want_y = calloc(EM * EN, sizeof *want_y), *want_dx = calloc(EM * K, sizeof *want_dx);

    for (size_t i = 0; i < EM * K; i++)
        want_dx[i] = dx[i];
    exact(want_y, want_dx, x, y0, dy, bias, &w);
    cart_matmul_forward_ref(CART_PRECISION_F32, y, EN, x, K, EM, &w, bias, true);
    cart_matmul_backward_ref(CART_PRECISION_F32, dx, K, dy, EN, EM, &w, true);
    assert_true(nmse(y, want_y, EM * EN) < 1e-12);
    assert_true(nmse(dx, want_dx, EM * K) < 1e-12);

    /* OpenBLAS: its own order of sums, the same product. */
    for (size_t i = 0; i < TEST_POOLS; i++) {
        memcpy(y, y0, EM * EN * sizeof *y);
        cart_matmul_forward_blas(y, EN, x, K, EM, &w, bias, true, test_pools[i]);
        assert_true(nmse(y, want_y, EM * EN) < 1e-12);
        for (size_t j = 0; j < EM * EN; j++)
            want_y[j] -= y0[j];
        cart_matmul_forward_blas(y, EN, x, K, EM, &w, bias, false, test_pools[i]);
        assert_true(nmse(y, want_y, EM * EN) < 1e-12);
        for (size_t j = 0; j < EM * EN; j++)
            want_y[j] += y0[j];
        free(dx);
        dx = floats(EM * K, 5);
        cart_matmul_backward_blas(dx, K, dy, EN, EM, &w, true, test_pools[i]);
        assert_true(nmse(dx, want_dx, EM * K) < 1e-12);
    }
    free(x);
    free(y);
    free(y0);
    free(dy);
    free(bias);
    free(dx);
    free(want_y);
    free(want_dx);
    test_weights_release(&w);
}

static void test_exact(void **state)
{
    (void)state;
    assert_int_equal(cart_matmul_blas_load(NULL), 0);
    for (size_t t = 0; t < TEST_DTYPES; t++)
        check_exact(test_dtypes[t], cart_dtype_info(test_dtypes[t])->block == 1 ? 1345 : 768);
}

/* The switch takes effect, and the products through OpenBLAS are what it switches to. */
static void test_select(void **state)
{
    struct cart_matrix w = test_weights(CART_F32, 64, 2048, 0, 9);
    float *x = floats(64 * 2048, 1), *a = floats(64 * 64, 2), *b = floats(64 * 64, 2);

    (void)state;
    assert_int_equal(cart_kernels_selected(), CART_KERNELS_AUTO);
    assert_int_equal(cart_kernels_select(CART_KERNELS_BLAS, CART_PRECISION_F32, NULL), 0);
    assert_int_equal(cart_kernels_selected(), CART_KERNELS_BLAS);
    cart_matmul_forward(a, 64, x, 2048, 64, &w, NULL, false, test_pools[0]);
    cart_matmul_forward_blas(b, 64, x, 2048, 64, &w, NULL, false, test_pools[0]);
    assert_memory_equal(a, b, 64 * 64 * sizeof *a);
    assert_int_equal(cart_kernels_select(CART_KERNELS_AUTO, CART_PRECISION_F32, NULL), 0);
    cart_matmul_forward(a, 64, x, 2048, 64, &w, NULL, false, test_pools[0]);
    cart_matmul_forward_ref(CART_PRECISION_F32, b, 64, x, 2048, 64, &w, NULL, false);
    assert_memory_equal(a, b, 64 * 64 * sizeof *a);
    assert_int_equal(cart_kernels_select(CART_KERNELS_BLAS, CART_PRECISION_BF16, NULL),
                     CART_EUSAGE);
    assert_int_equal(cart_kernels_select(CART_KERNELS_AUTO, CART_PRECISION_BF16, NULL), 0);
    assert_int_equal(cart_precision_selected(), CART_PRECISION_BF16);
    cart_matmul_forward(a, 64, x, 2048, 64, &w, NULL, false, test_pools[0]);
    cart_matmul_forward_ref(CART_PRECISION_BF16, b, 64, x, 2048, 64, &w, NULL, false);
    assert_memory_equal(a, b, 64 * 64 * sizeof *a);
    assert_int_equal(cart_kernels_select(CART_KERNELS_AUTO, CART_PRECISION_F32, NULL), 0);
    free(x);
    free(a);
    free(b);
    test_weights_release(&w);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_forward),      cmocka_unit_test(test_forward_units),
        cmocka_unit_test(test_forward_long), cmocka_unit_test(test_backward),
        cmocka_unit_test(test_halves),       cmocka_unit_test(test_products),
        cmocka_unit_test(test_public),       cmocka_unit_test(test_exact),
        cmocka_unit_test(test_select),
    };

    cmocka_set_message_output(CM_OUTPUT_TAP);
    return cmocka_run_group_tests(tests, test_pools_open, test_pools_close);
}
