/* How time and memory grow with each size that a user may choose: tokens, rows, batch, corpus.
 * Every point is a process of its own, so that its anonymous memory is its own (of cart-tokenize:
 * all its memory), with one thread, whose CPU time is taken; the model is a small random one
 * (build/bench), whose attention weighs more than a large one's. */
#include "base/clock.h"
#include "base/cpu.h"
#include "engine/draft.h"
#include "helper/bench_args.h"
#include "helper/bench_tidy.h"
#include "helper/gguf_write.h"
#include "helper/workload.h"
#include "study/plan.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#define MARGIN 0.15

static const char usage[] =
    "usage: bench_growth [WORD]\n"
    "One line for each size that may grow, or only those whose name contains WORD: the time at "
    "the\n"
    "least and the greatest size, the exponent that fits the upper half of the sizes (time ~\n"
    "size^exponent), and the same for memory. Attention asks for the square of the tokens, "
    "everything\n"
    "else for no more than proportion: what exceeds its exponent by more than 0.15 is marked, and "
    "the\n"
    "status is 1. Writes a corpus of 110 MB into TMPDIR for a while.\n";

enum { POINTS = 8, TRIES = 3, ITEMS = 1000, PATH = 4200 };

struct point {
    double seconds, bytes;
};

static const char *model;    /* the small model's file */
static const char *folder;   /* of the corpus */
static const char *tokenize; /* the tool */
static int failed;

static void need(int r, const struct cart_err *err)
{
    if (r < 0)
        bench_die(cart_err_status(r), "%s", err->msg);
}

static _Noreturn void die(const char *what)
{
    bench_die(5, "%s: %s", what, strerror(errno));
}

/* A workload of helper/workload.h, n in the place of its #. */
static struct point run_workload(const char *pattern, size_t n)
{
    struct point p = {1e30, 0};
    struct cart_pool *pool;
    struct workloads *w;
    struct workload_run r;
    struct cart_err err;
    char text[64];
    need(cart_pool_new(&pool, 1, &err), &err);
    workloads_open(&w, model, pool);
    int at = (int)strcspn(pattern, "#");
    snprintf(text, sizeof text, "%.*s%zu%s", at, pattern, n, pattern + at + 1);
    for (int i = 0; i <= TRIES; i++) {
        workload(w, text, &r);
        if (i > 0)
            p.seconds = fmin(p.seconds, r.seconds);
    }
    p.bytes = workload_anonymous();
    return p;
}

static void path_of(char out[PATH], size_t bytes, const char *suffix)
{
    snprintf(out, PATH, "%s/%zu.%s", folder, bytes, suffix);
}

/* Text of about so many bytes, words from a small stock in changing order. */
static void write_text(const char *path, size_t bytes)
{
    static const char *const words[] = {"the ", "keys ", "of a ", "drawer",  ", ",      "open",
                                        "ing ", "when ", "lamp ", "is ",     "green. ", "42 ",
                                        "\n",   "Then ", "wait ", "minutes "};
    FILE *f = fopen(path, "w");
    uint32_t r = 1;
    if (f == NULL)
        die(path);
    for (size_t n = 0; n < bytes;) {
        r = r * 1664525 + 1013904223;
        const char *word = words[r >> 28];
        n += strlen(word);
        if (fputs(word, f) < 0)
            die(path);
    }
    if (fclose(f) != 0)
        die(path);
}

/* cart-tokenize over one file; the stream stays for those who read it. */
static struct point run_tokenize(const char *unused, size_t n)
{
    char text[PATH], stream[PATH];
    struct rusage u;
    (void)unused;
    path_of(text, n, "txt");
    path_of(stream, n, "tokens");
    pid_t pid = bench_fork();
    if (pid == 0) {
        execl(tokenize, tokenize, "-q", "-m", model, "-o", stream, text, (char *)NULL);
        _exit(127);
    }
    int status = bench_wait(pid, &u);
    if (status > 128)
        bench_die(status, "%s: killed by signal %d", tokenize, status - 128);
    if (status != 0)
        exit(status); /* it has said why */
    double spent = (double)(u.ru_utime.tv_sec + u.ru_stime.tv_sec) +
                   1e-6 * (double)(u.ru_utime.tv_usec + u.ru_stime.tv_usec);
    return (struct point){spent, 1024.0 * (double)u.ru_maxrss};
}

/* A corpus of n bytes read, a plan over it, ITEMS of its conversations. */
static struct point run_plan(const char *index, size_t n)
{
    struct cart_corpus corpus = CART_CORPUS_INIT;
    struct cart_stream_reader *in = NULL;
    struct cart_plan *plan;
    struct cart_plan_item item;
    struct cart_draft *draft = NULL;
    struct cart_model *m;
    struct cart_err err;
    struct cart_plan_options o = {.chunk_min = 256,
                                  .chunk_max = 512,
                                  .held_out = 8,
                                  .max_q = 64,
                                  .max_a = 160,
                                  .context = CART_CHOOSE_CHUNK};
    char stream[PATH];
    double share, times;
    for (int i = 0; i < CART_SEEDS; i++)
        o.weights[i] = 1;
    path_of(stream, n, "tokens");
    need(cart_model_open(&m, model, &(struct cart_model_options){.profile = "chatml"}, &err), &err);
    double start = cart_clock_cpu();
    need(cart_corpus_open(&corpus, &in, stream, m, &err), &err);
    need(cart_plan_new(&plan, &corpus, m, &o, &err), &err);
    for (uint64_t i = 0; i < ITEMS; i++)
        cart_plan_at(plan, i, &item);
    need(cart_plan_coverage(plan, 0, ITEMS, &share, &times, &err), &err);
    if (index != NULL) {
        start = cart_clock_cpu();
        need(cart_draft_new(&draft, &err), &err);
        for (size_t i = 0; i < corpus.n_docs; i++)
            need(cart_draft_add(draft, corpus.docs[i].tokens, corpus.docs[i].n, &err), &err);
    }
    return (struct point){cart_clock_cpu() - start, workload_anonymous()};
}

static struct point in_child(struct point (*run)(const char *, size_t), const char *arg, size_t n)
{
    struct point p = {0, 0};
    int ends[2];
    if (pipe(ends) < 0)
        die("pipe");
    pid_t pid = bench_fork();
    if (pid == 0) {
        p = run(arg, n);
        _exit(write(ends[1], &p, sizeof p) != sizeof p);
    }
    close(ends[1]);
    bool whole = read(ends[0], &p, sizeof p) == sizeof p;
    close(ends[0]);
    int status = bench_wait(pid, NULL);
    if (status > 128)
        bench_die(status, "a child at size %zu: killed by signal %d", n, status - 128);
    if (status != 0 || !whole)
        exit(status ? status : 1); /* it has said why */
    return p;
}

/* Slope of log y over log x, least squares. */
static double exponent(const double *x, const double *y, size_t n)
{
    double sx = 0, sy = 0, xx = 0, xy = 0;
    for (size_t i = 0; i < n; i++) {
        double a = log(x[i]), b = log(y[i]);
        sx += a, sy += b, xx += a * a, xy += a * b;
    }
    return ((double)n * xy - sx * sy) / ((double)n * xx - sx * sx);
}

struct growth {
    const char *what;
    struct point (*run)(const char *, size_t);
    const char *arg;
    size_t least, factor, points;
    double most; /* exponent of time; that of memory is 1 */
};

static const struct growth lines[] = {
    {"prefill, tokens", run_workload, "prefill #", 128, 2, 6, 2},
    {"teacher, tokens", run_workload, "teacher 1 # 64", 128, 2, 6, 2},
    {"train, tokens", run_workload, "train 1 # 64 64", 128, 2, 6, 2},
    {"recompute, tokens", run_workload, "recompute 1 # 64 64", 128, 2, 6, 2},
    {"train, rows", run_workload, "train 2 64 # 32", 64, 2, 7, 1},
    {"recompute, rows", run_workload, "recompute 2 64 # 32", 64, 2, 7, 1},
    {"decode, rows", run_workload, "decode 4 #", 64, 2, 7, 1},
    {"decode, shared rows", run_workload, "shared 16 #", 64, 2, 7, 1},
    {"decode, batch", run_workload, "decode # 64", 1, 2, 7, 1},
    {"teacher, batch", run_workload, "teacher # 64 32", 1, 2, 7, 1},
    {"train, batch", run_workload, "train # 64 64 32", 1, 2, 7, 1},
    {"recompute, batch", run_workload, "recompute # 64 64 32", 1, 2, 7, 1},
    {"tokenize, bytes", run_tokenize, NULL, 10000, 10, 5, 1},
    {"plan, bytes", run_plan, NULL, 10000, 10, 5, 1},
    {"guesses, bytes", run_plan, "index", 10000, 10, 5, 1},
};

static const char *verdict(double found, double most)
{
    bool bad = found > most + MARGIN;
    failed |= bad;
    return bad ? "!" : "";
}

static void measure(const struct growth *g)
{
    double x[POINTS], t[POINTS], m[POINTS];
    size_t half = g->points > 4 ? g->points / 2 : 1, size = g->least;
    for (size_t i = 0; i < g->points; i++, size *= g->factor) {
        struct point p = in_child(g->run, g->arg, size);
        x[i] = (double)size;
        t[i] = p.seconds;
        m[i] = p.bytes;
    }
    size_t last = g->points - 1, n = g->points - half;
    double et = exponent(x + half, t + half, n), em = exponent(x + half, m + half, n);
    printf("| %s | %.0f to %.0f | %.2f to %.1f ms | %.2f%s | %.1f to %.1f MB | %.2f%s |\n", g->what,
           x[0], x[last], 1e3 * t[0], 1e3 * t[last], et, verdict(et, g->most), m[0] / 1e6,
           m[last] / 1e6, em, verdict(em, 1));
    fflush(stdout);
}

static void small_model(void)
{
    const struct gguf_shape s = {"llama", 4,     256, 4,        2,    64, 768,
                                 4096,    16384, 1e4, CART_F16, true, 1};
    const char *at = bench_tree("build/bench");
    char part[PATH];
    model = bench_tree("build/bench/growth.gguf");
    if (mkdir(at, 0777) != 0 && errno != EEXIST)
        die(at);
    snprintf(part, sizeof part, "%s.part", model);
    bench_litter(part);
    gguf_write_model(part, &s);
    if (rename(part, model) != 0)
        die(model);
}

/* Texts and streams for the lines about a corpus. */
static void corpora(void)
{
    char text[PATH], stream[PATH];
    folder = bench_folder();
    for (size_t i = 0, n = 10000; i < 5; i++, n *= 10) {
        path_of(text, n, "txt");
        path_of(stream, n, "tokens");
        bench_litter(text);
        bench_litter(stream);
        write_text(text, n);
        in_child(run_tokenize, NULL, n);
    }
}

int main(int argc, char **argv)
{
    struct bench_args a = bench_args(argc, argv, usage);
    const char *word = bench_args_operand(&a), *only = word ? word : "";
    const char *names[CART_COUNTOF(lines)];
    struct cart_err err;
    bool any = false, corpus = false;
    bench_args_end(&a);
    for (size_t i = 0; i < CART_COUNTOF(lines); i++) {
        names[i] = lines[i].what;
        any = any || strstr(lines[i].what, only);
        corpus = corpus || (strstr(lines[i].what, only) && strstr(lines[i].what, "bytes"));
    }
    if (!any)
        bench_word("WORD (a part of a name)", only, names, CART_COUNTOF(names));
    need(cart_cpu_init(&err), &err);
    tokenize = bench_tool("cart-tokenize");
    small_model();
    if (corpus)
        corpora();
    printf("| what | sizes | time | exponent | memory | exponent |\n|---|---|---|---|---|---|\n");
    for (size_t i = 0; i < CART_COUNTOF(lines); i++)
        if (strstr(lines[i].what, only))
            measure(&lines[i]);
    return failed;
}
