/* Whole-model rates as shares of what the machine allows, measured in the same run: prefill of 512
 * tokens, decode of one stream and of sixteen, and a training step of 4 x 224 tokens behind 256
 * rows.
 *
 *   bench_model [+bf16] [MODEL.gguf]...
 *
 * +bf16: the bf16 class, against the peak of VDPBF16PS.
 * Beside each training step stands the anonymous memory of the whole process at its end.
 * Without arguments: the demo model if it was fetched, and random files of Qwen3-0.6B's shape in
 * F16 and Q8_0, made once in build/bench. */
#include "base/clock.h"
#include "base/cpu.h"
#include "helper/gguf_write.h"
#include "helper/limits.h"
#include "helper/vocab.h"
#include "model/backward.h"
#include "model/head.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { REPEATS = 5 };

struct bench {
    struct cart_model *m;
    struct cart_pool *pool;
    struct cart_workspace *ws;
    struct cart_err err;
    double fma, read; /* limits, per second */
    uint32_t *ids;
    float *hidden, *logits;
};

static void need(int r, const struct cart_err *err)
{
    if (r < 0) {
        fprintf(stderr, "bench_model: %s\n", err->msg);
        exit(cart_err_status(r));
    }
}

/* Multiplications of one token in all matrices but the head. */
static double linear_values(const struct cart_model *m)
{
    double n = 0;
    for (size_t l = 0; l < m->L; l++) {
        const struct cart_layer *y = &m->layers[l];
        n += (double)m->D * (double)(2 * y->H * y->DH + 2 * y->HK * y->DH + 3 * y->F);
    }
    return n;
}

static double weight_bytes(const struct cart_model *m)
{
    double n = (double)m->head.row_bytes * (double)m->head.N;
    for (size_t l = 0; l < m->L; l++) {
        const struct cart_layer *y = &m->layers[l];
        const struct cart_matrix *w[] = {&y->wq,     &y->wk,   &y->wv,    &y->wo,
                                         &y->w_gate, &y->w_up, &y->w_down};
        for (size_t i = 0; i < CART_COUNTOF(w); i++)
            n += (double)w[i]->row_bytes * (double)w[i]->N;
    }
    return n;
}

/* FLOP of T queries behind P rows, forward. */
static double attention_flop(const struct cart_model *m, double T, double P)
{
    double n = 0;
    for (size_t l = 0; l < m->L; l++)
        n += 4 * (double)(m->layers[l].H * m->layers[l].DH) * (T * P + T * (T + 1) / 2);
    return n;
}

static void line(const char *what, double seconds, double tokens, double flop, double bytes,
                 const struct bench *b)
{
    printf("  %-34s %9.2f ms %9.1f tok/s", what, seconds * 1e3, tokens / seconds);
    if (flop > 0)
        printf(" %8.1f GFLOP/s %5.2f of peak", flop / seconds / 1e9, flop / seconds / b->fma);
    if (bytes > 0)
        printf(" %8.1f GB/s %5.2f of read bandwidth", bytes / seconds / 1e9,
               bytes / seconds / b->read);
    putchar('\n');
    fflush(stdout);
}

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

static double median(double *t, size_t n)
{
    qsort(t, n, sizeof *t, by_value);
    return t[n / 2];
}

static void prefill(struct bench *b)
{
    enum { T = 512 };
    double t[REPEATS];
    size_t want = T - 1;
    for (int i = 0; i < REPEATS; i++) {
        struct cart_kv_tail tail;
        need(cart_kv_tail_init(&tail, b->m, CART_F32, T, &b->err), &b->err);
        struct cart_span s = {
            .ids = b->ids, .T = T, .kv = {.tail = &tail}, .want = &want, .n_want = 1};
        double start = cart_clock_now();
        need(cart_forward(b->m, b->ws, &s, 1, b->hidden, b->pool, &b->err), &b->err);
        cart_head_logits(b->m, b->hidden, 1, b->logits, b->pool);
        t[i] = cart_clock_now() - start;
        cart_kv_tail_release(&tail);
    }
    double flop = 2 * T * linear_values(b->m) + attention_flop(b->m, T, 0) +
                  2.0 * (double)b->m->D * (double)b->m->V;
    line("prefill, 512 tokens", median(t, REPEATS), T, flop, 0, b);
}

/* streams at depth, one step after another. */
static void decode(struct bench *b, size_t streams, size_t depth)
{
    enum { STEPS = 24 };
    double t[STEPS];
    struct cart_kv_tail *tails = calloc(streams, sizeof *tails);
    struct cart_span *spans = calloc(streams, sizeof *spans);
    for (size_t i = 0; i < streams; i++) {
        need(cart_kv_tail_init(&tails[i], b->m, CART_F32, depth + STEPS, &b->err), &b->err);
        tails[i].rows = depth;
        spans[i] =
            (struct cart_span){.ids = b->ids + i, .T = 1, .kv = {.tail = &tails[i]}, .n_want = 1};
    }
    for (size_t i = 0; i < STEPS; i++) {
        double start = cart_clock_now();
        need(cart_forward(b->m, b->ws, spans, streams, b->hidden, b->pool, &b->err), &b->err);
        cart_head_logits(b->m, b->hidden, streams, b->logits, b->pool);
        t[i] = cart_clock_now() - start;
    }
    double kv = (double)cart_kv_tail_bytes(b->m, CART_F32, depth + STEPS / 2) * (double)streams;
    char what[64];
    snprintf(what, sizeof what, "decode, %zu stream%s at depth %zu", streams,
             streams == 1 ? "" : "s", depth);
    double flop = streams > 1 ? 2 * (double)streams *
                                    (linear_values(b->m) + (double)b->m->D * (double)b->m->V)
                              : 0;
    line(what, median(t, STEPS), (double)streams, flop, weight_bytes(b->m) + kv, b);
    for (size_t i = 0; i < streams; i++)
        cart_kv_tail_release(&tails[i]);
    free(tails);
    free(spans);
}

/* Anonymous memory of this process now, in MB: what the mapped weights are not. */
static double anonymous_mb(void)
{
    char text[256];
    long kb = 0;
    FILE *f = fopen("/proc/self/status", "r");
    while (f && fgets(text, sizeof text, f))
        if (strncmp(text, "RssAnon:", 8) == 0)
            kb = strtol(text + 8, NULL, 10);
    if (f)
        fclose(f);
    return (double)kb * 1024 / 1e6;
}

/* A step of four conversations of T tokens, 160 of them supervised, behind 256 rows. */
static void train(struct bench *b, size_t T, bool recompute)
{
    enum { CONVS = 4, P = 256, WANTS = 160, K = 8 };
    const struct cart_model *m = b->m;
    struct cart_kv_tail tail;
    struct cart_kv_layer *layers = calloc(m->L, sizeof *layers);
    float **g = calloc(2 * m->L, sizeof *g);
    struct cart_kv_part part;
    const struct cart_kv_part *parts[] = {&part};
    need(cart_kv_tail_init(&tail, m, CART_F32, P, &b->err), &b->err);
    struct cart_span s = {.ids = b->ids, .T = P, .kv = {.tail = &tail}};
    need(cart_forward(m, b->ws, &s, 1, NULL, b->pool, &b->err), &b->err);
    cart_kv_part_of_tail(&part, layers, m, &tail, 0, P);
    for (size_t l = 0; l < 2 * m->L; l++)
        g[l] = calloc(P * cart_layer_kv_width(&m->layers[l % m->L]), sizeof **g);
    struct cart_kv_grad grad = {g, g + m->L};
    size_t want[WANTS], offsets[CONVS * WANTS + 1];
    uint32_t *ids = calloc(CONVS * WANTS * K, sizeof *ids);
    float *p = calloc(CONVS * WANTS * K, sizeof *p),
          *dhidden = calloc(CONVS * WANTS * m->D, sizeof *dhidden);
    struct cart_tape_conv convs[CONVS];
    for (size_t i = 0; i < WANTS; i++)
        want[i] = T - WANTS + i;
    for (size_t i = 0; i < CONVS; i++)
        convs[i] = (struct cart_tape_conv){b->ids + i, T, want, WANTS};
    for (size_t i = 0; i <= CONVS * WANTS; i++)
        offsets[i] = i * K;
    for (size_t i = 0; i < CONVS * WANTS * K; i++) {
        ids[i] = (uint32_t)(i % K);
        p[i] = 0.9f / K;
    }
    struct cart_distill_target target = {offsets, ids, p};
    struct cart_tape_limits lim = {CONVS * T, CONVS, CONVS * WANTS, P, recompute};
    struct cart_tape *tape = NULL;
    struct cart_head *head = NULL;
    need(cart_tape_new(&tape, m, &lim, &b->err), &b->err);
    need(cart_head_new(&head, m, 128, &b->err), &b->err);
    double t[3];
    for (size_t i = 0; i < CART_COUNTOF(t); i++) {
        struct cart_distill_sums sums = {0};
        double start = cart_clock_now();
        need(cart_tape_forward(tape, parts, 1, convs, CONVS, b->hidden, b->pool, &b->err), &b->err);
        memset(dhidden, 0, CONVS * WANTS * m->D * sizeof *dhidden);
        cart_head_distill(head, b->hidden, CONVS * WANTS, &target, &sums, false, dhidden, b->pool);
        cart_tape_backward(tape, dhidden, &grad, b->pool);
        t[i] = cart_clock_now() - start;
    }
    /* Forward and dX of every matrix, forward and backward of the head, attention forward and 2.5
     * times that backward. */
    double flop = 4.0 * CONVS * (double)T * linear_values(m) +
                  4.0 * CONVS * WANTS * (double)m->D * (double)m->V +
                  3.5 * CONVS * attention_flop(m, (double)T, P);
    char what[64];
    snprintf(what, sizeof what, "train 4 x %zu%s, %.0f MB", T, recompute ? ", recompute" : "",
             anonymous_mb());
    line(what, median(t, CART_COUNTOF(t)), (double)(CONVS * T), flop, 0, b);
    cart_tape_free(tape);
    cart_head_free(head);
    cart_kv_tail_release(&tail);
    for (size_t l = 0; l < 2 * m->L; l++)
        free(g[l]);
    free(g);
    free(layers);
    free(ids);
    free(p);
    free(dhidden);
}

static void run(const char *path, double fma, double read, struct cart_pool *pool)
{
    struct bench b = {.pool = pool, .fma = fma, .read = read};
    need(cart_model_open(&b.m, path, NULL, &b.err), &b.err);
    need(cart_workspace_new(&b.ws, b.m, 512, &b.err), &b.err);
    b.ids = calloc(1024, sizeof *b.ids);
    b.hidden = calloc(1024 * b.m->D, sizeof *b.hidden);
    b.logits = calloc(16 * b.m->V, sizeof *b.logits);
    for (size_t i = 0; i < 1024; i++)
        b.ids[i] = (uint32_t)(i * 37 % 251);
    const char *slash = strrchr(path, '/');
    printf("%s: %s, %zu layers, D %zu, V %zu, %.0f M values in layers\n", slash ? slash + 1 : path,
           b.m->arch, b.m->L, b.m->D, b.m->V, linear_values(b.m) / 1e6);
    prefill(&b);
    decode(&b, 1, 16);
    decode(&b, 1, 512);
    decode(&b, 4, 512);
    decode(&b, 16, 512);
    train(&b, 224, false);
    train(&b, 224, true);
    train(&b, 400, false);
    train(&b, 400, true);
    free(b.ids);
    free(b.hidden);
    free(b.logits);
    cart_workspace_free(b.ws);
    cart_model_close(b.m);
}

/* Qwen3-0.6B's shape with random weights. */
static const char *qwen(int dtype, char path[128])
{
    struct stat st;
    mkdir("build", 0777);
    mkdir("build/bench", 0777);
    snprintf(path, 128, "build/bench/qwen3-0.6b-shape-%s.gguf", cart_dtype_info(dtype)->name);
    if (stat(path, &st) != 0) {
        struct gguf_shape s = {"qwen3", 28,    1024, 16,    8,    128, 3072,
                               151936,  40960, 1e6,  dtype, true, 1};
        char part[160];
        snprintf(part, sizeof part, "%s.part", path);
        gguf_write_model(part, &s);
        if (rename(part, path) != 0)
            perror(path);
    }
    return path;
}

int main(int argc, char **argv)
{
    struct cart_err err;
    struct cart_pool *pool = NULL;
    need(cart_cpu_init(&err), &err);
    need(cart_pool_new(&pool, cart_cpu_count(), &err), &err);
    bool bf16 = argc > 1 && strcmp(argv[1], "+bf16") == 0;
    int first = bf16 ? 2 : 1;
    need(cart_kernels_select(CART_KERNELS_AUTO, bf16 ? CART_PRECISION_BF16 : CART_PRECISION_F32,
                             &err),
         &err);
    double fma = bf16 ? limit_bf16(pool) : limit_fma(pool), read = limit_read(pool);
    printf("CPU path %s, %zu threads, class %s: peak %.0f GFLOP/s, read bandwidth %.1f GB/s\n",
           cart_cpu_path_name(), cart_pool_threads(pool), bf16 ? "bf16" : "f32", fma / 1e9,
           read / 1e9);
    for (int i = first; i < argc; i++)
        run(argv[i], fma, read, pool);
    if (argc == first) {
        char made[128];
        const char *path = test_demo_model();
        if (access(path, R_OK) == 0)
            run(path, fma, read, pool);
        else
            printf("%s: not fetched (examples/fetch-model.sh)\n", path);
        run(qwen(CART_F16, made), fma, read, pool);
        run(qwen(CART_Q8_0, made), fma, read, pool);
    }
    cart_pool_free(pool);
    return 0;
}
