/* Whole models: what each kind of work takes, as a share of what the machine allows.
 *
 *   bench_model [+bf16] [-r REPEATS] [-w WORKLOAD]... [MODEL.gguf]...
 *   bench_model [+bf16] --serve MODEL.gguf      answers each line, a workload, with
 *                                               "SECONDS VALUE" (for peers/)
 *   bench_model [+bf16] --memory WORKLOAD MODEL.gguf
 *   bench_model --models                        names of the models that there are without one
 *                                               named
 *
 * +bf16: the bf16 class, against the peak of VDPBF16PS. Workloads are those of helper/workload.h;
 * by default all of them, each REPEATS (5) times after one that does not count, in turns, with the
 * limits measured in every round: shares are of the limits of the same round. Given are medians
 * with the least and the most. Then for each memory workload the anonymous memory of a process that
 * does only that. Without models: the demo model if it was fetched, and random files of
 * Qwen3-0.6B's shape in F16, BF16, Q8_0 and Q4_K, made once in build/bench. */
#define _GNU_SOURCE /* popen */
#include "base/clock.h"
#include "base/cpu.h"
#include "helper/gguf_write.h"
#include "helper/limits.h"
#include "helper/vocab.h"
#include "helper/workload.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { MOST = 32, STANDARD = 5 };

static const char *const standard[] = {
    "prefill 512",       "decode 1 16",         "decode 1 512",           "cartridge 1 512",
    "decode 4 512",      "decode 16 512",       "shared 16 512",          "cartridge 16 512",
    "teacher 4 600 160", "train 4 224 256 160", "recompute 4 224 256 160"};
static const char *const memory[] = {"train 4 224 256 160", "recompute 4 224 256 160",
                                     "train 4 400 256 160", "recompute 4 400 256 160",
                                     "decode 16 512",       "shared 16 512"};

struct bench {
    const char *self; /* argv[0] */
    bool bf16, whole; /* whole: all workloads, and memory */
    size_t repeats, n;
    const char *workloads[MOST];
    struct cart_pool *pool;
    double peak, read; /* of this round, per second */
};

static void need(int r, const struct cart_err *err)
{
    if (r < 0) {
        fprintf(stderr, "bench_model: %s\n", err->msg);
        exit(cart_err_status(r));
    }
}

/* One workload over all rounds. */
struct series {
    struct workload_run last;
    double *seconds, *peak, *read; /* [repeats]: time, and shares of the limits of that round */
};

static void limits(struct bench *b)
{
    b->peak = b->bf16 ? limit_bf16(b->pool) : limit_fma(b->pool);
    b->read = limit_read(b->pool);
}

static void print(const char *what, struct series *s, size_t n)
{
    double t = workload_median(s->seconds, n);
    printf("| %s | %.2f (%.2f-%.2f) | %.1f | %.1f | %.2f |", what, 1e3 * t, 1e3 * s->seconds[0],
           1e3 * s->seconds[n - 1], s->last.tokens / t, s->last.flop / t / 1e9,
           workload_median(s->peak, n));
    if (s->last.bytes > 0)
        printf(" %.1f | %.2f |\n", s->last.bytes / t / 1e9, workload_median(s->read, n));
    else
        puts(" | |");
    fflush(stdout);
}

static void rounds(struct bench *b, struct workloads *w)
{
    struct series s[MOST] = {{{0}, NULL, NULL, NULL}};
    double *peak = calloc(b->repeats, sizeof *peak), *read = calloc(b->repeats, sizeof *read);
    for (size_t i = 0; i < b->n; i++) {
        s[i].seconds = calloc(3 * b->repeats, sizeof(double));
        s[i].peak = s[i].seconds + b->repeats;
        s[i].read = s[i].peak + b->repeats;
        workload(w, b->workloads[i], &s[i].last);
    }
    for (size_t r = 0; r < b->repeats; r++) {
        limits(b);
        peak[r] = b->peak;
        read[r] = b->read;
        for (size_t i = 0; i < b->n; i++) {
            workload(w, b->workloads[i], &s[i].last);
            s[i].seconds[r] = s[i].last.seconds;
            s[i].peak[r] = s[i].last.flop / s[i].last.seconds / b->peak;
            s[i].read[r] = s[i].last.bytes / s[i].last.seconds / b->read;
        }
    }
    double p = workload_median(peak, b->repeats), q = workload_median(read, b->repeats);
    printf("peak %.0f (%.0f-%.0f) GFLOP/s, read %.1f (%.1f-%.1f) GB/s\n\n", p / 1e9, peak[0] / 1e9,
           peak[b->repeats - 1] / 1e9, q / 1e9, read[0] / 1e9, read[b->repeats - 1] / 1e9);
    puts("| work | ms | tokens/s | GFLOP/s | of the peak | GB/s | of the read bandwidth |");
    puts("|---|---|---|---|---|---|---|");
    for (size_t i = 0; i < b->n; i++) {
        print(b->workloads[i], &s[i], b->repeats);
        free(s[i].seconds);
    }
    free(peak);
    free(read);
}

/* In a process of its own, so that nothing else is counted. */
static void memories(const struct bench *b, const char *path)
{
    for (size_t i = 0; i < CART_COUNTOF(memory); i++) {
        char command[4096], line[128] = "";
        snprintf(command, sizeof command, "'%s' %s --memory '%s' '%s'", b->self,
                 b->bf16 ? "+bf16" : "", memory[i], path);
        FILE *f = popen(command, "r");
        if (f == NULL || fgets(line, sizeof line, f) == NULL || pclose(f) != 0) {
            fprintf(stderr, "bench_model: %s: failed\n", command);
            exit(1);
        }
        printf("%s%-24s %s", i == 0 ? "\nanonymous memory:\n" : "", memory[i], line);
        fflush(stdout);
    }
}

static void run_memory(const struct bench *b, const char *text, const char *path)
{
    struct workloads *w;
    struct workload_run r;
    workloads_open(&w, path, b->pool);
    workload(w, text, &r);
    printf("%7.1f MB", workload_anonymous() / 1e6);
    if (r.rows > 0)
        printf(", %.1f MB of them rows", r.rows / 1e6);
    putchar('\n');
    workloads_close(w);
}

static void run(struct bench *b, const char *path)
{
    const char *slash = strrchr(path, '/');
    struct workloads *w;
    workloads_open(&w, path, b->pool);
    const struct cart_model *m = workloads_model(w);
    printf("\n%s: %s, %zu layers, D %zu, V %zu, %.0f M values in layers; ",
           slash ? slash + 1 : path, m->arch, m->L, m->D, m->V, workload_linear(m) / 1e6);
    rounds(b, w);
    workloads_close(w);
    if (b->whole)
        memories(b, path);
}

static void serve(const struct bench *b, const char *path)
{
    char line[128];
    struct workloads *w;
    struct workload_run r;
    workloads_open(&w, path, b->pool);
    while (fgets(line, sizeof line, stdin)) {
        line[strcspn(line, "\n")] = '\0';
        workload(w, line, &r);
        printf("%.9f %.9g\n", r.seconds, r.value);
        fflush(stdout);
    }
    workloads_close(w);
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

/* The real model first, where it was fetched, then the one in BF16. */
static size_t standard_models(char path[STANDARD][1024])
{
    static const int dtypes[] = {CART_BF16, CART_F16, CART_Q8_0, CART_Q4_K};
    char made[128];
    size_t n = 0;
    if (access(test_demo_model(), R_OK) == 0)
        snprintf(path[n++], 1024, "%s", test_demo_model());
    else
        fprintf(stderr, "%s: not fetched (examples/fetch-model.sh)\n", test_demo_model());
    for (size_t i = 0; i < CART_COUNTOF(dtypes); i++)
        snprintf(path[n++], 1024, "%s", qwen(dtypes[i], made));
    return n;
}

static void select_class(bool bf16)
{
    struct cart_err err;
    need(cart_kernels_select(CART_KERNELS_AUTO, bf16 ? CART_PRECISION_BF16 : CART_PRECISION_F32,
                             &err),
         &err);
}

/* Every model in f32; the real one and the BF16 one also in the bf16 class where the CPU has it. */
static void run_standard(struct bench *b)
{
    char path[STANDARD][1024];
    size_t n = standard_models(path);
    for (size_t i = 0; i < n; i++)
        run(b, path[i]);
    if (b->bf16 || !cart_cpu_has_bf16())
        return;
    b->bf16 = true;
    select_class(true);
    printf("class bf16\n");
    for (size_t i = 0; i + 3 < n; i++)
        run(b, path[i]);
}

int main(int argc, char **argv)
{
    struct bench b = {.self = argv[0], .repeats = 5};
    struct cart_err err;
    int i = 1;
    const char *mode = "";
    need(cart_cpu_init(&err), &err);
    need(cart_pool_new(&b.pool, cart_cpu_count(), &err), &err);
    for (; i < argc && (argv[i][0] == '+' || argv[i][0] == '-'); i++) {
        b.bf16 = b.bf16 || strcmp(argv[i], "+bf16") == 0;
        if (strncmp(argv[i], "--", 2) == 0)
            mode = argv[i];
        if (strcmp(argv[i], "-r") == 0 && i + 1 < argc)
            b.repeats = strtoul(argv[++i], NULL, 10);
        if (strcmp(argv[i], "-w") == 0 && i + 1 < argc && b.n < MOST)
            b.workloads[b.n++] = argv[++i];
    }
    b.whole = b.n == 0;
    for (size_t k = 0; b.whole && k < CART_COUNTOF(standard); k++)
        b.workloads[b.n++] = standard[k];
    b.repeats = b.repeats > 0 ? b.repeats : 1;
    select_class(b.bf16);
    if (strcmp(mode, "--models") == 0) {
        char path[STANDARD][1024];
        size_t n = standard_models(path);
        for (size_t k = 0; k < n; k++)
            puts(path[k]);
    } else if (strcmp(mode, "--serve") == 0 && i < argc) {
        serve(&b, argv[i]);
    } else if (strcmp(mode, "--memory") == 0 && i + 1 < argc) {
        run_memory(&b, argv[i], argv[i + 1]);
    } else {
        printf("CPU path %s, %zu threads, class %s\n", cart_cpu_path_name(),
               cart_pool_threads(b.pool), b.bf16 ? "bf16" : "f32");
        for (int k = i; k < argc; k++)
            run(&b, argv[k]);
        if (i == argc)
            run_standard(&b);
    }
    cart_pool_free(b.pool);
    return 0;
}
