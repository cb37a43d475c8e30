/* How close the products with frozen weights come to what the machine allows. Every product is
 * compared with the reference, on some of its values, before it is timed. With one thread the time
 * is CPU time, which other processes on the machine disturb less. */
#include "base/clock.h"
#include "base/cpu.h"
#include "helper/bench_args.h"
#include "helper/limits.h"
#include "helper/weights.h"
#include "tensor/dispatch.h"
#include "tensor/matmul_impl.h"
#include "tensor/matmul_kernels.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char usage[] =
    "usage: bench_kernels [THREADS [DTYPE|all [SET[+bf16] [M,N,K|-M,N,K]]]]\n"
    "The peak of f32 fused multiply-adds (of VDPBF16PS where the kernels use that) and the read\n"
    "bandwidth, measured again beside each group, then for each type and shape: the best time of\n"
    "several repeats, the fraction of the peak, and for up to four rows of x that of the "
    "bandwidth.\n"
    "  THREADS   1 by default\n"
    "  SET       generic, fma, avx2 or avx512; the best that the CPU runs by default\n"
    "  +bf16     the bf16 class\n"
    "  M,N,K     one forward shape: M rows of x, weights [N, K]; -M,N,K one backward\n";

static struct cart_pool *pool;
static size_t threads = 1;
static const struct cart_tensor_kernels *set;
static const struct cart_matmul_kernels *kernels; /* of the set, in the class */
static enum cart_precision class;

static _Noreturn void die(const char *what)
{
    bench_die(1, "%s", what);
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

static void bench_dtype(int dtype, const struct shape *only, bool backward)
{
    static const struct shape forward[] = {{1, 1536, 768},   {1, 49152, 1024}, {2, 3072, 1024},
                                           {3, 3072, 1024},  {4, 3072, 1024},  {8, 3072, 1024},
                                           {16, 3072, 1024}, {64, 1536, 768},  {64, 3072, 1024},
                                           {64, 1024, 3072}, {256, 1536, 768}, {256, 1024, 3072}};
    static const struct shape back[] = {{64, 1536, 768}, {64, 3072, 1024}, {256, 1024, 3072}};
    double flops = kernels == &cart_matmul_kernels_bf16_avx512 ? limit_bf16(pool) : limit_fma(pool),
           bytes_s = limit_read(pool);

    printf("# %s: peak %.1f GFLOP/s, read %.1f GB/s, %zu threads\n", cart_dtype_info(dtype)->name,
           flops / 1e9, bytes_s / 1e9, threads);
    if (only) {
        bench(dtype, *only, backward, flops, bytes_s);
        return;
    }
    for (size_t i = 0; i < CART_COUNTOF(forward); i++)
        bench(dtype, forward[i], false, flops, bytes_s);
    for (size_t i = 0; i < CART_COUNTOF(back); i++)
        bench(dtype, back[i], true, flops, bytes_s);
}

/* SET[+bf16]; NULL: the best. */
static void choose(const char *text)
{
    const struct cart_tensor_kernels *sets[CART_TENSOR_SETS];
    const char *names[2 * CART_TENSOR_SETS];
    static char bf16[CART_TENSOR_SETS][32];
    size_t n = cart_tensor_kernels_usable(sets), i = n - 1;
    for (size_t k = 0; k < n; k++) {
        snprintf(bf16[k], sizeof bf16[k], "%s+bf16", sets[k]->name);
        names[k] = sets[k]->name;
        names[n + k] = bf16[k];
    }
    if (text != NULL)
        i = bench_word("SET (of this CPU)", text, names, 2 * n);
    class = i < n ? CART_PRECISION_F32 : CART_PRECISION_BF16;
    set = sets[i % n];
    kernels = i < n ? set->matmul : set->matmul_bf16;
}

/* M,N,K or -M,N,K, for which K of each type is a whole number of blocks. */
static bool parse_shape(struct shape *s, const char *text, const bool asked[TEST_DTYPES])
{
    static const char form[] = "M,N,K (or -M,N,K)";
    size_t *const into[] = {&s->M, &s->N, &s->K}, most = (size_t)1 << 28;
    bool backward = *text == '-';
    const char *at = text + backward;
    for (size_t i = 0; i < 3; i++, at++) {
        char number[16];
        size_t n = strcspn(at, ",");
        snprintf(number, sizeof number, "%.*s", (int)n, at);
        if (at[n] != (i < 2 ? ',' : '\0') || n >= sizeof number)
            bench_die(2, "%s: expected three whole numbers, found '%s'", form, text);
        *into[i] = bench_whole(form, number, 1, 1 << 20);
        at += n;
    }
    if (s->M * s->K > most || s->N * s->K > most || s->M * s->N > most)
        bench_die(2, "%s: expected at most %zu values of x, W and y each, found '%s'", form, most,
                  text);
    for (size_t i = 0; i < TEST_DTYPES; i++) {
        const struct cart_dtype_info *t = cart_dtype_info(test_dtypes[i]);
        if (asked[i] && s->K % t->block != 0)
            bench_die(2, "%s: expected K in whole blocks of %zu (%s), found '%s'", form, t->block,
                      t->name, text);
    }
    return backward;
}

int main(int argc, char **argv)
{
    struct bench_args a = bench_args(argc, argv, usage);
    const char *names[TEST_DTYPES + 1], *text = bench_args_operand(&a);
    bool asked[TEST_DTYPES], backward = false;
    struct shape only;
    struct cart_err err;

    threads = text ? bench_whole("THREADS", text, 1, 256) : 1;
    for (size_t i = 0; i < TEST_DTYPES; i++)
        names[i] = cart_dtype_info(test_dtypes[i])->name;
    names[TEST_DTYPES] = "all";
    text = bench_args_operand(&a);
    size_t which = text ? bench_word("DTYPE", text, names, TEST_DTYPES + 1) : TEST_DTYPES;
    for (size_t i = 0; i < TEST_DTYPES; i++)
        asked[i] = which == TEST_DTYPES || which == i;
    choose(bench_args_operand(&a));
    const char *shape = bench_args_operand(&a);
    if (shape != NULL)
        backward = parse_shape(&only, shape, asked);
    bench_args_end(&a);
    if (cart_cpu_init(&err) < 0 || cart_pool_new(&pool, threads, &err) < 0)
        die(err.msg);
    printf("# kernels: %s\n", set->name);
    for (size_t i = 0; i < TEST_DTYPES; i++)
        if (asked[i])
            bench_dtype(test_dtypes[i], shape ? &only : NULL, backward);
    cart_pool_free(pool);
    return 0;
}
