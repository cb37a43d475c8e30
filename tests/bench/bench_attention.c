/* How close attention, and the steps between the matrix products, come to what the machine allows.
 * Every result is compared with its definition, on some of its values, before it is timed. */
#include "base/clock.h"
#include "base/cpu.h"
#include "helper/bench_args.h"
#include "helper/limits.h"
#include "helper/weights.h"
#include "tensor/attention_kernels.h"
#include "tensor/dispatch.h"
#include "tensor/ops_kernels.h"
#include "tensor/vocab_kernels.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char usage[] =
    "usage: bench_attention [THREADS [SET [CLASS]]]\n"
    "Attention as a fraction of the peak of VDPBF16PS where it uses that, else of f32 fused\n"
    "multiply-adds (measured beside it; only visible keys count: 4 DH operations for each query,\n"
    "head and key forward, 10 DH backward); the other steps in values a nanosecond. The time is "
    "the\n"
    "best of several repeats; with one thread it is CPU time, which other processes on the "
    "machine\n"
    "disturb less.\n"
    "  THREADS   1 by default\n"
    "  SET       generic, fma, avx2 or avx512; the best by default\n"
    "  CLASS     f32 (by default) or bf16\n";

enum { REPEATS = 9 };

static struct cart_pool *pool;
static size_t threads = 1;
static const struct cart_tensor_kernels *set;
static const struct cart_attention_kernels *kernels;
static enum cart_precision class;
static volatile float sink;

static _Noreturn void die(const char *what)
{
    bench_die(1, "%s", what);
}

static float *floats(size_t n, uint64_t seed)
{
    float *x = aligned_alloc(64, (n * sizeof *x + 63) / 64 * 64);

    if (!x)
        die("out of memory");
    for (size_t i = 0; i < n; i++)
        x[i] = test_random_float(&seed);
    return x;
}

struct shape {
    const char *name;
    size_t H, HK, DH, T, P, items;
};

/* items streams of T queries behind one prefix of P rows and rows of their own before them. */
struct problem {
    struct cart_attn_dims d;
    size_t n, T, P;
    float *q, *out, *stats, *prefix[2], *own[2], *dq, *dout, *dprefix[2], *down[2];
    struct cart_attn_item *items;
    struct cart_attn_grad *grads;
    struct cart_kv_segment *segs;
    float **dk, **dv;
};

static struct problem problem_make(const struct shape *s)
{
    size_t D = s->H * s->DH, W = s->HK * s->DH, n = s->items;
    struct problem p = {.d = {s->H, s->HK, s->DH, 0, 0.125f}, .n = n, .T = s->T, .P = s->P};

    p.q = floats(n * s->T * D, 1);
    p.out = floats(n * s->T * D, 2);
    p.dout = floats(n * s->T * D, 3);
    p.dq = floats(n * s->T * D, 4);
    p.stats = floats(n * s->T * s->H * 2, 5);
    p.items = calloc(n, sizeof *p.items);
    p.grads = calloc(n, sizeof *p.grads);
    p.segs = calloc(2 * n, sizeof *p.segs);
    p.dk = calloc(2 * n, sizeof *p.dk);
    p.dv = calloc(2 * n, sizeof *p.dv);
    for (int i = 0; i < 2; i++) {
        p.prefix[i] = floats(s->P * W, 6);
        p.own[i] = floats(n * s->T * W, 7);
        p.dprefix[i] = floats(n * s->P * W, 8);
        p.down[i] = floats(n * s->T * W, 9);
    }
    if (!p.items || !p.grads || !p.segs || !p.dk || !p.dv)
        die("out of memory");
    for (size_t i = 0; i < n; i++) {
        size_t q = i * s->T * D, k = i * s->T * W;

        p.segs[2 * i] = (struct cart_kv_segment){
            .k = p.prefix[0], .v = p.prefix[1], .rows = s->P, .stride = W, .dtype = CART_F32};
        p.segs[2 * i + 1] = (struct cart_kv_segment){
            .k = p.own[0] + k, .v = p.own[1] + k, .rows = s->T, .stride = W, .dtype = CART_F32};
        p.dk[2 * i] = p.dprefix[0] + i * s->P * W;
        p.dv[2 * i] = p.dprefix[1] + i * s->P * W;
        p.dk[2 * i + 1] = p.down[0] + k;
        p.dv[2 * i + 1] = p.down[1] + k;
        p.items[i] = (struct cart_attn_item){
            p.q + q, p.out + q, p.stats + i * s->T * s->H * 2, p.segs + 2 * i, 2, s->T, s->P, D, D};
        p.grads[i] =
            (struct cart_attn_grad){p.dout + q, p.dq + q, p.dk + 2 * i, p.dv + 2 * i, D, D};
    }
    return p;
}

static void problem_release(struct problem *p)
{
    for (int i = 0; i < 2; i++)
        free(p->prefix[i]), free(p->own[i]), free(p->dprefix[i]), free(p->down[i]);
    free(p->q), free(p->out), free(p->dout), free(p->dq), free(p->stats);
    free(p->items), free(p->grads), free(p->segs), free(p->dk), free(p->dv);
}

/* Some queries of some items against the definition. */
static void problem_compare(const struct problem *p)
{
    size_t D = p->d.H * p->d.DH;
    float *want = floats(D, 1);

    for (size_t c = 0; c < 6; c++) {
        size_t i = c % p->n, t = c * 101 % p->T;
        struct cart_attn_item it = p->items[i];

        it.q += t * D;
        it.pos0 += t;
        it.T = 1;
        it.out = want;
        it.stats = NULL;
        cart_attention_forward_ref(class, &it, 1, &p->d);
        if (memcmp(want, p->items[i].out + t * D, D * sizeof *want) != 0)
            die("differs from the definition");
    }
    free(want);
}

static double peak(void)
{
    return kernels == &cart_attention_kernels_bf16_avx512 ? limit_bf16(pool) : limit_fma(pool);
}

static double keys_seen(const struct problem *p)
{
    double T = (double)p->T;

    return (double)p->n * ((double)p->P * T + T * (T + 1) / 2);
}

static void bench_attention(const struct shape *s, bool backward)
{
    struct problem p = problem_make(s);
    double best = 1e9, limit = peak(),
           flop = keys_seen(&p) * (double)(s->H * s->DH) * (backward ? 10 : 4);
    double bytes = 2.0 * 4 * (double)(s->HK * s->DH * (s->P + s->items * s->T));

    cart_attention_forward_with(kernels, p.items, p.n, &p.d, pool);
    problem_compare(&p);
    for (size_t r = 0; r < REPEATS; r++) {
        double t = limit_now(pool);
        size_t loops = flop < 1e8 ? (size_t)(1e8 / flop) : 1;

        for (size_t i = 0; i < loops; i++) {
            if (backward)
                cart_attention_backward_with(kernels, p.items, p.grads, p.n, &p.d, pool);
            else
                cart_attention_forward_with(kernels, p.items, p.n, &p.d, pool);
        }
        t = (limit_now(pool) - t) / (double)loops;
        best = t < best ? t : best;
    }
    printf(
        "%-9s %-22s H %2zu/%zu DH %3zu T %4zu P %4zu x %2zu: %9.3f ms  %6.1f GFLOP/s  %.2f of peak",
        backward ? "backward" : "forward", s->name, s->H, s->HK, s->DH, s->T, s->P, s->items,
        best * 1e3, flop / best / 1e9, flop / best / limit);
    if (s->T == 1)
        printf("  keys %.1f GB/s", bytes / best / 1e9);
    printf("\n");
    problem_release(&p);
}

enum { N = 1 << 20, V = 49152 };

static void report(const char *name, double values, double best)
{
    printf("%-30s %9.3f ms  %6.2f values/ns\n", name, best * 1e3, values / best / 1e9);
}

/* The steps between the products, on about as many values as one layer of a batch has. */
static void bench_steps(void)
{
    float *a = floats(N, 1), *b = floats(N, 2), *c = floats(N, 3), *d = floats(N, 4),
          *e = floats(N, 5);
    struct cart_adam adam = {1e-3f, 0.9f, 0.999f, 1e-8f, 0.1, 0.001};
    struct cart_logsum stats = {0, 1};
    uint32_t ids[256];
    float values[256];
    double best[9];

    for (size_t i = 0; i < 9; i++)
        best[i] = 1e9;
    for (size_t r = 0; r < REPEATS; r++) {
        const struct cart_ops_kernels *k = set->ops;
        const struct cart_vocab_kernels *v = set->vocab;
        double t[10];

        memset(c, 0, N * sizeof *c);
        t[0] = cart_clock_cpu();
        k->swiglu_forward(e, a, b, N);
        t[1] = cart_clock_cpu();
        k->swiglu_backward(d, e, c, a, b, N);
        t[2] = cart_clock_cpu();
        for (size_t i = 0; i + 576 <= N; i += 576)
            sink = k->norm_forward(e + i, a + i, b, 576, 1e-5f);
        t[3] = cart_clock_cpu();
        for (size_t i = 0; i + 576 <= N; i += 576)
            k->norm_backward(e + i, a + i, d + i, 1, b, 576);
        t[4] = cart_clock_cpu();
        for (size_t i = 0; i + 576 <= N; i += 576)
            k->rope(e + i, 9, 64, a, b, 64, r % 2 ? CART_ROPE_HALF : CART_ROPE_INTERLEAVED, false);
        t[5] = cart_clock_cpu();
        k->adam_step(e, d, c, b, 1e-3f, N, &adam);
        t[6] = cart_clock_cpu();
        for (size_t i = 0; i + V <= N; i += V)
            stats = v->logsum(a + i, V);
        t[7] = cart_clock_cpu();
        for (size_t i = 0; i + V <= N; i += V)
            v->topk(ids, values, 20, a + i, V);
        t[8] = cart_clock_cpu();
        memcpy(d, a, N * sizeof *d);
        t[8] = cart_clock_cpu() - t[8];
        t[9] = cart_clock_cpu();
        for (size_t i = 0; i + V <= N; i += V)
            v->distill_backward(d + i, V, &stats, ids, values, 20);
        t[9] = cart_clock_cpu() - t[9];
        for (size_t i = 0; i < 7; i++)
            best[i] = t[i + 1] - t[i] < best[i] ? t[i + 1] - t[i] : best[i];
        best[8] = t[9] < best[8] ? t[9] : best[8];
        /* b was an Adam gradient, which is now zero. */
        memcpy(b, a, N * sizeof *b);
        t[0] = cart_clock_cpu();
        for (size_t i = 0; i + V <= N; i += V)
            v->topk(ids, values, 20, a + i, V);
        t[0] = cart_clock_cpu() - t[0];
        best[7] = t[0] < best[7] ? t[0] : best[7];
    }
    report("SwiGLU forward", N, best[0]);
    report("SwiGLU backward", N, best[1]);
    report("RMSNorm forward, D 576", N, best[2]);
    report("RMSNorm backward, D 576", N, best[3]);
    report("rotation, DH 64", N, best[4]);
    report("Adam", N, best[5]);
    report("log sum, V 49152", N / V * V, best[6]);
    report("top 20, V 49152", N / V * V, best[7]);
    report("distillation gradient", N / V * V, best[8]);
    free(a), free(b), free(c), free(d), free(e);
}

static void arguments(int argc, char **argv)
{
    static const char *const classes[] = {"f32", "bf16"};
    const struct cart_tensor_kernels *sets[CART_TENSOR_SETS];
    const char *names[CART_TENSOR_SETS], *text;
    struct cart_err err;
    struct bench_args a = bench_args(argc, argv, usage);
    size_t n = cart_tensor_kernels_usable(sets);

    if (cart_cpu_init(&err) < 0)
        die(err.msg);
    for (size_t i = 0; i < n; i++)
        names[i] = sets[i]->name;
    if ((text = bench_args_operand(&a)) != NULL)
        threads = bench_whole("THREADS", text, 1, 256);
    set = cart_tensor_kernels();
    if ((text = bench_args_operand(&a)) != NULL)
        set = sets[bench_word("SET (of this CPU)", text, names, n)];
    if ((text = bench_args_operand(&a)) != NULL && bench_word("CLASS", text, classes, 2) == 1)
        class = CART_PRECISION_BF16;
    bench_args_end(&a);
    kernels = class == CART_PRECISION_BF16 ? set->attention_bf16 : set->attention;
    if (cart_pool_new(&pool, threads, &err) < 0)
        die(err.msg);
}

int main(int argc, char **argv)
{
    static const struct shape forward[] = {
        {"SmolLM2 prefill", 9, 3, 64, 512, 256, 1}, {"Qwen3 prefill", 16, 8, 128, 512, 256, 1},
        {"Gemma prefill", 4, 1, 256, 512, 256, 1},  {"narrow heads", 8, 8, 32, 512, 256, 1},
        {"one token", 9, 3, 64, 1, 2047, 1},        {"one token each", 9, 3, 64, 1, 1024, 16},
        {"one token", 16, 8, 128, 1, 1024, 1},
    };
    static const struct shape backward[] = {
        {"SmolLM2 training", 9, 3, 64, 224, 256, 4},
        {"SmolLM2 whole text", 9, 3, 64, 512, 256, 1},
        {"Qwen3 training", 16, 8, 128, 224, 256, 1},
    };
    arguments(argc, argv);
    printf("%zu thread(s), %s, peak %.1f GFLOP/s\n", threads, set->name, peak() / 1e9);
    for (size_t i = 0; i < CART_COUNTOF(forward); i++)
        bench_attention(&forward[i], false);
    for (size_t i = 0; i < CART_COUNTOF(backward); i++)
        bench_attention(&backward[i], true);
    bench_steps();
    cart_pool_free(pool);
    return 0;
}
