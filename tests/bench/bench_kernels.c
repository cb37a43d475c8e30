/* How close the products with frozen weights come to what the machine allows.
 *
 *   bench_kernels [THREADS [DTYPE|all [SET[+bf16] [M,N,K|-M,N,K]]]]
 *
 * SET is generic, fma, avx2 or avx512, the best by default, +bf16 the bf16 class; M,N,K is one
 * forward shape, -M,N,K one backward shape.
 *
 * Prints the peak of f32 fused multiply-adds and the read bandwidth, measured again beside each
 * group, then for each type and shape: the best time of several repeats, the fraction of the peak,
 * and for one row of x the fraction of the read bandwidth. Every product is compared with the
 * reference, on some of its values, before it is timed. With one thread the time is CPU time, which
 * other processes on the machine disturb less. */
#include "base/clock.h"
#include "base/cpu.h"
#include "helper/limits.h"
#include "helper/weights.h"
#include "tensor/dispatch.h"
#include "tensor/matmul_impl.h"
#include "tensor/matmul_kernels.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static struct cart_pool *pool;
static size_t threads = 1;
static const struct cart_tensor_kernels *set;
static const struct cart_matmul_kernels *kernels; /* of the set, in the class */
static enum cart_precision class;

static void die(const char *what)
{
    fprintf(stderr, "bench_kernels: %s\n", what);
    exit(1);
}

/* --- products --- */

struct shape {
    size_t M, N, K;
};

static float *floats(size_t n)
{
    uint64_t seed = n;
    float *x = malloc(n * sizeof *x);

    if (!x)
        die("no memory");
    for (size_t i = 0; i < n; i++)
        x[i] = test_random_float(&seed);
    return x;
}

/* The last rows of W against the last row of x. */
static void check_forward(const float *y, const float *x, const struct cart_matrix *w, size_t M)
{
    struct cart_matrix last = *w;
    float want[16];
    size_t n = w->N < 16 ? w->N : 16;

    last.N = n;
    last.data = (const uint8_t *)w->data + (w->N - n) * w->row_bytes;
    cart_matmul_forward_ref(class, want, n, x + (M - 1) * w->K, w->K, 1, &last, NULL, false);
    if (memcmp(want, y + M * w->N - n, n * sizeof *want))
        die("forward differs from the reference");
}

static void check_backward(const float *dx, const float *dy, const struct cart_matrix *w, size_t M)
{
    float *want = floats(M * w->K);

    cart_matmul_backward_ref(class, want + (M - 1) * w->K, w->K, dy + (M - 1) * w->N, w->N, 1, w,
                             true);
    if (memcmp(want + (M - 1) * w->K, dx + (M - 1) * w->K, w->K * sizeof *want))
        die("backward differs from the reference");
    free(want);
}

static double time_product(float *out, const float *in, const struct cart_matrix *w, size_t M,
                           bool backward)
{
    double best = 1e9, until = cart_clock_now() + 0.25;

    for (size_t i = 0; i < 5 || cart_clock_now() < until; i++) {
        double t = limit_now(pool);

        if (backward)
            cart_matmul_backward_with(kernels, out, w->K, in, w->N, M, w, true, pool);
        else
            cart_matmul_forward_with(kernels, out, w->N, in, w->K, M, w, NULL, false, pool);
        t = limit_now(pool) - t;
        best = t < best ? t : best;
        if (i == 0 && backward)
            check_backward(out, in, w, M);
        else if (i == 0)
            check_forward(out, in, w, M);
    }
    return best;
}

static void bench(int dtype, struct shape s, bool backward, double flops, double bytes_s)
{
    struct cart_matrix w = test_weights(dtype, s.N, s.K, 0, 1);
    float *x = floats(s.M * s.K), *y = floats(s.M * s.N);
    double t = backward ? time_product(x, y, &w, s.M, true) : time_product(y, x, &w, s.M, false);
    double rate = 2.0 * (double)(s.M * s.N * s.K) / t, read = (double)(w.row_bytes * s.N) / t;

    printf("%-6s %s M=%-4zu N=%-6zu K=%-5zu %8.3f ms %7.1f GFLOP/s %5.2f of peak",
           cart_dtype_info(dtype)->name, backward ? "bwd" : "fwd", s.M, s.N, s.K, t * 1e3,
           rate / 1e9, rate / flops);
    if (s.M <= 4)
        printf("  %5.1f GB/s %5.2f of read  %5.2f Gweight/s", read / 1e9, read / bytes_s,
               (double)(s.N * s.K) / t / 1e9);
    putchar('\n');
    fflush(stdout);
    free(x);
    free(y);
    test_weights_release(&w);
}

static void bench_dtype(int dtype, const char *only)
{
    static const struct shape forward[] = {{1, 1536, 768},   {1, 49152, 1024}, {2, 3072, 1024},
                                           {3, 3072, 1024},  {4, 3072, 1024},  {8, 3072, 1024},
                                           {16, 3072, 1024}, {64, 1536, 768},  {64, 3072, 1024},
                                           {64, 1024, 3072}, {256, 1536, 768}, {256, 1024, 3072}};
    static const struct shape back[] = {{64, 1536, 768}, {64, 3072, 1024}, {256, 1024, 3072}};
    double flops = class == CART_PRECISION_BF16 ? limit_bf16(pool) : limit_fma(pool),
           bytes_s = limit_read(pool);

    printf("# %s: peak %.1f GFLOP/s, read %.1f GB/s, %zu threads\n", cart_dtype_info(dtype)->name,
           flops / 1e9, bytes_s / 1e9, threads);
    if (only) {
        struct shape s;

        if (sscanf(only + (*only == '-'), "%zu,%zu,%zu", &s.M, &s.N, &s.K) != 3)
            die("expected M,N,K");
        bench(dtype, s, *only == '-', flops, bytes_s);
        return;
    }
    for (size_t i = 0; i < CART_COUNTOF(forward); i++)
        bench(dtype, forward[i], false, flops, bytes_s);
    for (size_t i = 0; i < CART_COUNTOF(back); i++)
        bench(dtype, back[i], true, flops, bytes_s);
}

int main(int argc, char **argv)
{
    const struct cart_tensor_kernels *sets[CART_TENSOR_SETS];
    size_t n = cart_tensor_kernels_usable(sets);
    struct cart_err err;

    threads = argc > 1 ? strtoul(argv[1], NULL, 10) : 1;
    set = sets[n - 1];
    for (size_t i = 0; argc > 3 && i < n; i++)
        if (strncmp(argv[3], sets[i]->name, strcspn(argv[3], "+")) == 0)
            set = sets[i];
    class = argc > 3 && strchr(argv[3], '+') ? CART_PRECISION_BF16 : CART_PRECISION_F32;
    kernels = class == CART_PRECISION_BF16 ? set->matmul_bf16 : set->matmul;
    if (threads < 1 || cart_cpu_init(&err) < 0 || cart_pool_new(&pool, threads, &err) < 0)
        die("cannot start threads");
    printf("# kernels: %s\n", set->name);
    for (size_t i = 0; i < TEST_DTYPES; i++)
        if (argc < 3 || strcmp(argv[2], cart_dtype_info(test_dtypes[i])->name) == 0 ||
            strcmp(argv[2], "all") == 0)
            bench_dtype(test_dtypes[i], argc > 4 ? argv[4] : NULL);
    cart_pool_free(pool);
    return 0;
}
