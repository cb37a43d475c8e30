/* Whole models: what each kind of work takes, as a share of what the machine allows. Workloads are
 * those of helper/workload.h, in turns, with the limits measured in every round: shares are of the
 * limits of the same round. */
#define _GNU_SOURCE /* wait4 */
#include "base/clock.h"
#include "base/cpu.h"
#include "helper/bench_args.h"
#include "helper/bench_tidy.h"
#include "helper/gguf_write.h"
#include "helper/limits.h"
#include "helper/workload.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static const char usage[] =
    "usage: bench_model [+bf16] [-r REPEATS] [-w WORKLOAD]... [MODEL.gguf]...\n"
    "       bench_model [+bf16] --serve MODEL.gguf\n"
    "       bench_model [+bf16] --memory WORKLOAD MODEL.gguf\n"
    "       bench_model --models | --make\n"
    "Each workload once uncounted, then REPEATS (5) times: medians with the least and the most, "
    "as\n"
    "shares of the CPU's peak and read bandwidth in the same round. Without -w all that are\n"
    "standard, then the anonymous memory of processes that do only one of them. WORKLOAD is one "
    "of\n"
    "  prefill T           T tokens at once, logits of the last\n"
    "  decode B DEPTH      a step of B streams behind DEPTH rows each (decode-f16: of 16 bits)\n"
    "  shared B P          the same behind the same P rows (shared-f16: of 16 bits)\n"
    "  cartridge B P       the same behind a cartridge's rows\n"
    "  teacher B T R       B conversations of T tokens, the likeliest of the last R rows each\n"
    "  train B T P R       forward and backward of B conversations of T tokens behind P rows\n"
    "  recompute B T P R   the same, each layer run again on the way back\n"
    "Without models: CART_MODEL, or the demo model if it was fetched, and random files of\n"
    "Qwen3-0.6B's shape in F16, BF16, Q8_0 and Q4_K, made once in build/bench of the tree (3.3 "
    "GB).\n"
    "  +bf16               the bf16 class, against the peak of VDPBF16PS where the CPU has it\n"
    "  --serve             answer each line, a workload, with \"SECONDS VALUE\" (for peers/)\n"
    "  --memory            only the anonymous memory after one run\n"
    "  --models, --make    name the models that there are without one named; make them, too\n";

enum { STANDARD = 5 };

static const char *const standard[] = {
    "prefill 512",       "decode 1 16",         "decode 1 512",           "cartridge 1 512",
    "decode 4 512",      "decode 16 512",       "shared 16 512",          "cartridge 16 512",
    "teacher 4 600 160", "train 4 224 256 160", "recompute 4 224 256 160"};
static const char *const memory[] = {"train 4 224 256 160", "recompute 4 224 256 160",
                                     "train 4 400 256 160", "recompute 4 400 256 160",
                                     "decode 16 512",       "shared 16 512"};

struct bench {
    bool bf16, whole; /* whole: all workloads, and memory */
    size_t repeats, n;
    const char *workloads[WORKLOAD_KEPT];
    struct cart_pool *pool;
    double peak, read; /* of this round, per second */
};

static void need(int r, const struct cart_err *err)
{
    if (r < 0)
        bench_die(cart_err_status(r), "%s", err->msg);
}

/* One workload over all rounds. */
struct series {
    struct workload_run last;
    double *seconds, *peak, *read; /* [repeats]: time, and shares of the limits of that round */
};

static void limits(struct bench *b)
{
    b->peak = b->bf16 && cart_cpu_has_bf16() ? limit_bf16(b->pool) : limit_fma(b->pool);
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
    struct series s[WORKLOAD_KEPT] = {{{0}, NULL, NULL, NULL}};
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
        const char *self = "/proc/self/exe";
        const char *command[] = {"bench_model", "--memory", memory[i], "--", path, NULL, NULL};
        if (b->bf16)
            command[1] = "+bf16", command[2] = "--memory", command[3] = memory[i];
        printf("%s%-24s ", i == 0 ? "\nanonymous memory:\n" : "", memory[i]);
        pid_t pid = bench_fork();
        if (pid == 0) {
            execv(self, (char *const *)(uintptr_t)command);
            _exit(127);
        }
        int status = bench_wait(pid, NULL);
        if (status > 128)
            bench_die(status, "%s: --memory '%s': killed by signal %d", path, memory[i],
                      status - 128);
        if (status != 0)
            exit(status);
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
static void make_qwen(int dtype, const char *path)
{
    const struct gguf_shape s = {"qwen3", 28,    1024, 16,    8,    128, 3072,
                                 151936,  40960, 1e6,  dtype, true, 1};
    char part[2048];
    if (access(path, F_OK) == 0)
        return;
    snprintf(part, sizeof part, "%s.part", path);
    bench_litter(part);
    gguf_write_model(part, &s);
    if (rename(part, path) != 0)
        bench_die(5, "%s: %s", path, strerror(errno));
}

/* The real model first, where it is there, then the one in BF16. */
static size_t standard_models(char path[STANDARD][1024], bool make)
{
    static const int dtypes[] = {CART_BF16, CART_F16, CART_Q8_0, CART_Q4_K};
    const char *real = bench_model_file(stderr), *folder = bench_tree("build/bench");
    size_t n = 0;
    if (real != NULL)
        snprintf(path[n++], 1024, "%s", real);
    if (make && mkdir(folder, 0777) != 0 && errno != EEXIST)
        bench_die(5, "%s: %s", folder, strerror(errno));
    for (size_t i = 0; i < CART_COUNTOF(dtypes); i++, n++) {
        snprintf(path[n], 1024, "%s/qwen3-0.6b-shape-%s.gguf", folder,
                 cart_dtype_info(dtypes[i])->name);
        if (make)
            make_qwen(dtypes[i], path[n]);
    }
    return n;
}

static void name_models(bool make)
{
    char path[STANDARD][1024];
    size_t n = standard_models(path, make);
    for (size_t i = 0; i < n; i++)
        puts(path[i]);
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
    size_t n = standard_models(path, true);
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

/* Before anything is begun: a named model is one. */
static void try_model(const char *path)
{
    struct cart_model *m;
    struct cart_err err;
    need(cart_model_open(&m, path, NULL, &err), &err);
    cart_model_close(m);
}

static void run_models(struct bench *b, char *const *paths, int n)
{
    for (int i = 0; i < n; i++)
        try_model(paths[i]);
    struct limit_load before = limit_load_now();
    printf("CPU path %s, %zu threads, class %s\n", cart_cpu_path_name(), cart_pool_threads(b->pool),
           b->bf16 ? "bf16" : "f32");
    for (int i = 0; i < n; i++)
        run(b, paths[i]);
    if (n == 0)
        run_standard(b);
    limit_load_warn(&before);
}

static const char *workload_asked(const char *what, const char *text)
{
    if (!workload_known(text))
        bench_die(2, "%s: expected one of %s, found '%s'", what, workload_forms, text);
    return text;
}

/* Options into b; returns the word of the mode, or "". */
static const char *options(struct bench *b, struct bench_args *a)
{
    static const char *const modes[] = {"--serve", "--memory", "--models", "--make"};
    const char *mode = "", *o;
    while ((o = bench_args_option(a)) != NULL) {
        size_t i = 0;
        while (i < CART_COUNTOF(modes) && strcmp(o, modes[i]) != 0)
            i++;
        if (i < CART_COUNTOF(modes) && *mode != '\0')
            bench_die(2, "%s: expected no other mode beside it, found %s", o, mode);
        if (i < CART_COUNTOF(modes)) {
            mode = o;
            if (i == 1 && b->n < WORKLOAD_KEPT)
                b->workloads[b->n++] = workload_asked(o, bench_args_value(a));
        } else if (strcmp(o, "+bf16") == 0) {
            b->bf16 = true;
        } else if (strcmp(o, "-r") == 0) {
            b->repeats = bench_whole(o, bench_args_value(a), 1, 10000);
        } else if (strcmp(o, "-w") == 0 && b->n == WORKLOAD_KEPT) {
            bench_die(2, "-w: expected at most %d, found more", WORKLOAD_KEPT);
        } else if (strcmp(o, "-w") == 0) {
            b->workloads[b->n++] = workload_asked(o, bench_args_value(a));
        } else {
            bench_args_unknown(a);
        }
    }
    return mode;
}

int main(int argc, char **argv)
{
    struct bench b = {.repeats = 5};
    struct bench_args a = bench_args(argc, argv, usage);
    struct cart_err err;
    const char *mode = options(&b, &a), *path = NULL;
    if (*mode != '\0') {
        bool one = strcmp(mode, "--serve") == 0 || strcmp(mode, "--memory") == 0;
        if (one && (path = bench_args_operand(&a)) == NULL)
            bench_die(2, "%s: expected a model, found none", mode);
        bench_args_end(&a);
        if (b.n > (strcmp(mode, "--memory") == 0))
            bench_die(2, "%s: expected no -w beside it, found '%s'", mode, b.workloads[b.n - 1]);
    }
    b.whole = b.n == 0;
    for (size_t k = 0; b.whole && k < CART_COUNTOF(standard); k++)
        b.workloads[b.n++] = standard[k];
    need(cart_cpu_init(&err), &err);
    need(cart_pool_new(&b.pool, cart_cpu_count(), &err), &err);
    select_class(b.bf16);
    if (strcmp(mode, "--serve") == 0)
        serve(&b, path);
    else if (strcmp(mode, "--memory") == 0)
        run_memory(&b, b.workloads[0], path);
    else if (*mode != '\0')
        name_models(strcmp(mode, "--make") == 0);
    else
        run_models(&b, argv + a.at, argc - a.at);
    cart_pool_free(b.pool);
    return 0;
}
