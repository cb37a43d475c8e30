/* Not one bit moves: everything that a model computes (helper/exact.h), over weight formats,
 * families, CPU paths, threads, widths, splits of the prefill, packing and recomputation, equals
 * the plainest run of the same file: generic, one thread, one stream, whole prompts, no packing, no
 * recomputation. The bf16 class, and each type of keys and values, has a plainest run of its own.
 * One TAP line for each combination.
 *
 *   test_exact        combinations in which every pair of two settings occurs
 *   test_exact full   these, and all of CPU x threads x widths x splits for each format, and for
 *                     every fourth format in the bf16 class, with the other settings drawn at
 *                     random
 *
 * Floating formats occur as a file and as a directory of SafeTensors, whose plainest run is that of
 * the file. */
#include "base/cpu.h"
#include "base/rng.h"
#include "helper/exact.h"
#include "helper/gguf_write.h"
#include "helper/hub_write.h"
#include "helper/weights.h"
#include "model/model.h"
#include "tensor/attention.h"
#include "tensor/matmul.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { FORMAT, FAMILY, CPU, THREADS, WIDTH, SPLIT, PACK, RECOMPUTE, PRECISION, KV, FORM, SETTINGS };
enum { GGUF, HUB, FORMS };

static const char *const families[] = {"llama", "qwen2", "qwen3"};
static const char *const cpus[] = {"generic", "avx2", "avx512", "baseline"};
static const size_t threads[] = {1, 2, 3};
static const size_t widths[] = {1, 2, 5, 16};
static const size_t splits[] = {0, 1, 7, 64};
static const int kvs[] = {CART_F32, CART_F16, CART_BF16};

/* The baseline, generic without FMA instructions, is slow: only the full list has it. */
#define QUICK_CPUS ((size_t)3)
static size_t levels[SETTINGS] = {TEST_DTYPES,
                                  CART_COUNTOF(families),
                                  QUICK_CPUS,
                                  CART_COUNTOF(threads),
                                  CART_COUNTOF(widths),
                                  CART_COUNTOF(splits),
                                  2,
                                  2,
                                  2,
                                  CART_COUNTOF(kvs),
                                  FORMS};
#define MOST_LEVELS ((size_t)TEST_DTYPES)

typedef size_t combination[SETTINGS];

/* ---- the list ---- */

/* seen[a][x][b][y]: setting a at level x has met setting b at level y. */
static bool seen[SETTINGS][MOST_LEVELS][SETTINGS][MOST_LEVELS];

static void mark(const combination c)
{
    for (size_t a = 0; a < SETTINGS; a++)
        for (size_t b = 0; b < SETTINGS; b++)
            seen[a][c[a]][b][c[b]] = true;
}

static bool is_float(size_t format)
{
    int dtype = test_dtypes[format];

    return dtype == CART_F32 || dtype == CART_F16 || dtype == CART_BF16;
}

/* Whether setting s may have level v beside those of c that are set: SafeTensors have floats. */
static bool allowed(const combination c, size_t s, size_t v)
{
    size_t format = s == FORMAT ? v : c[FORMAT], form = s == FORM ? v : c[FORM];

    return form != HUB || format == SIZE_MAX || is_float(format);
}

static bool first_unseen(size_t *a, size_t *x, size_t *b, size_t *y)
{
    for (*a = 0; *a < SETTINGS; ++*a)
        for (*x = 0; *x < levels[*a]; ++*x)
            for (*b = *a + 1; *b < SETTINGS; ++*b)
                for (*y = 0; *y < levels[*b]; ++*y)
                    if (!seen[*a][*x][*b][*y])
                        return true;
    return false;
}

/* Combination n of a list in which every pair occurs: it begins with a pair that has not, and every
 * other setting takes the level that meets most of what it has not met, another in turn where
 * several do. */
static bool next_pairwise(combination c, size_t n)
{
    size_t a, x, b, y;

    if (!first_unseen(&a, &x, &b, &y))
        return false;
    for (size_t s = 0; s < SETTINGS; s++)
        c[s] = SIZE_MAX;
    c[a] = x;
    c[b] = y;
    for (size_t s = 0; s < SETTINGS; s++) {
        size_t best = 0, most = 0;
        for (size_t i = 0; i < levels[s] && c[s] == SIZE_MAX; i++) {
            size_t v = (i + n + n / levels[s]) % levels[s], fresh = 1;
            for (size_t o = 0; o < SETTINGS; o++)
                fresh += c[o] != SIZE_MAX && !seen[s][v][o][c[o]];
            if (fresh > most && allowed(c, s, v)) {
                most = fresh;
                best = v;
            }
        }
        c[s] = c[s] == SIZE_MAX ? best : c[s];
    }
    mark(c);
    return true;
}

/* ---- runs ---- */

/* A file of one format and family, with what its plainest run gives. */
struct file {
    struct cart_model *m[FORMS];
    size_t rows; /* more than a block of keys; of some files in the full list more than a span */
    struct exact_result want[2][CART_COUNTOF(kvs)]; /* for each precision and type of rows */
    bool ready[2][CART_COUNTOF(kvs)];
};

static struct file files[TEST_DTYPES][CART_COUNTOF(families)];
static char folder[] = "/tmp/cart-exact-XXXXXX";
static size_t done, wrong, left_out;
static bool full;

static bool set_cpu(const char *name)
{
    return setenv("CART_CPU", name, 1) == 0 && cart_cpu_init(NULL) == 0;
}

static void need(int r, const struct cart_err *err)
{
    if (r < 0) {
        printf("Bail out! %s\n", err->msg);
        exit(2);
    }
}

static void open_file(struct file *f, const combination c)
{
    static const struct cart_model_options options = {.profile = "chatml"};
    int dtype = test_dtypes[c[FORMAT]];
    struct gguf_shape s = {.arch = families[c[FAMILY]],
                           .L = 2,
                           .D = 96,
                           .H = 6,
                           .HK = 2,
                           .DH = 16,
                           .F = 160,
                           .V = 301,
                           .context = 1024,
                           .rope_base = 10000,
                           .dtype = dtype,
                           .tied = c[FORMAT] % 2 == 0,
                           .seed = c[FORMAT]};
    struct cart_err err = {0};
    char path[64], hub[96];

    if (cart_dtype_info(dtype)->block == 256) { /* a row is whole blocks */
        s.D = s.F = 256;
        s.H = 8;
        s.DH = 32;
    }
    snprintf(path, sizeof path, "%s/model.gguf", folder);
    gguf_write_model(path, &s);
    need(cart_model_open(&f->m[GGUF], path, &options, &err), &err);
    if (is_float(c[FORMAT])) {
        const struct hub_form form = {.dtype = -1, .shards = 1 + c[FAMILY]};
        snprintf(hub, sizeof hub, "%s/hub-%zu-%zu", folder, c[FORMAT], c[FAMILY]);
        hub_write_model(path, hub, &form);
        need(cart_model_open(&f->m[HUB], hub, &options, &err), &err);
    }
    unlink(path);
    f->rows = full && c[FORMAT] % 4 == 3 ? CART_ATTN_SPAN + 27 : CART_ATTN_BLOCK + 3;
}

/* The plainest run of the combination's file. */
static const struct exact_result *plainest(const combination c)
{
    const struct exact_way way = {.threads = 1, .width = 1, .kv = kvs[c[KV]]};
    struct file *f = &files[c[FORMAT]][c[FAMILY]];
    struct cart_err err = {0};

    need(set_cpu("generic") ? 0 : CART_EUSAGE, &err);
    if (f->m[GGUF] == NULL)
        open_file(f, c);
    need(cart_kernels_select(CART_KERNELS_AUTO, (enum cart_precision)c[PRECISION], &err), &err);
    if (!f->ready[c[PRECISION]][c[KV]])
        exact_run(&f->want[c[PRECISION]][c[KV]], f->m[GGUF], f->rows, &way);
    f->ready[c[PRECISION]][c[KV]] = true;
    return &f->want[c[PRECISION]][c[KV]];
}

static void check(const combination c)
{
    const struct exact_way way = {threads[c[THREADS]], widths[c[WIDTH]],  splits[c[SPLIT]],
                                  c[PACK] == 1,        c[RECOMPUTE] == 1, kvs[c[KV]]};
    const struct exact_result *want = plainest(c);
    const struct file *f = &files[c[FORMAT]][c[FAMILY]];
    struct exact_result got;
    char name[160];

    snprintf(name, sizeof name, "%s %s%s, %s -j %zu, %zu wide, split %zu%s%s%s, kv %s",
             cart_dtype_info(test_dtypes[c[FORMAT]])->name, families[c[FAMILY]],
             c[FORM] == HUB ? " as SafeTensors" : "", cpus[c[CPU]], way.threads, way.width,
             way.split, way.pack ? ", packed" : "", way.recompute ? ", recomputed" : "",
             c[PRECISION] == CART_PRECISION_BF16 ? ", bf16" : "",
             cart_dtype_info(kvs[c[KV]])->name);
    if (!set_cpu(cpus[c[CPU]])) {
        left_out++;
        printf("ok %zu - %s # SKIP machine: no %s\n", ++done, name, cpus[c[CPU]]);
        return;
    }
    exact_run(&got, f->m[c[FORM]], f->rows, &way);
    bool same = memcmp(&got, want, sizeof got) == 0;
    wrong += !same;
    printf("%s %zu - %s\n", same ? "ok" : "not ok", ++done, name);
    for (size_t i = 0; i < EXACT_PARTS; i++)
        if (memcmp(got.digest[i], want->digest[i], sizeof got.digest[i]) != 0)
            printf("# not the bytes of the plainest run: %s\n", exact_part_names[i]);
    fflush(stdout);
}

/* All of CPU x threads x widths x splits; the other settings are drawn at random. */
static void check_product(size_t format, size_t precision)
{
    uint32_t i = 0;

    for (size_t cpu = 0; cpu < QUICK_CPUS; cpu++)
        for (size_t j = 0; j < CART_COUNTOF(threads); j++)
            for (size_t w = 0; w < CART_COUNTOF(widths); w++)
                for (size_t s = 0; s < CART_COUNTOF(splits); s++, i++) {
                    uint32_t r = cart_rng_u32(format, precision, CART_RNG_TEST, i);
                    check((combination){format, r % CART_COUNTOF(families), cpu, j, w, s,
                                        r >> 8 & 1, r >> 9 & 1, precision,
                                        (r >> 16) % CART_COUNTOF(kvs),
                                        is_float(format) && (r >> 10 & 1) ? HUB : GGUF});
                }
}

int main(int argc, char **argv)
{
    full = argc > 1 && strcmp(argv[1], "full") == 0;
    combination c;
    size_t n = 0;

    for (size_t format = 0; format < TEST_DTYPES; format++)
        seen[FORMAT][format][FORM][HUB] = seen[FORM][HUB][FORMAT][format] = !is_float(format);
    if (!mkdtemp(folder)) {
        perror(folder);
        return 5;
    }
    if (full)
        levels[CPU] = CART_COUNTOF(cpus);
    for (; next_pairwise(c, n); n++)
        check(c);
    for (size_t format = 0; format < TEST_DTYPES && full; format++)
        check_product(format, CART_PRECISION_F32);
    for (size_t format = 1; format < TEST_DTYPES && full; format += 4)
        check_product(format, CART_PRECISION_BF16);
    printf("1..%zu\n", done);
    printf("# %zu combinations, %zu left out, %zu differ\n", done, left_out, wrong);
    for (size_t i = 0; i < TEST_DTYPES; i++)
        for (size_t k = 0; k < CART_COUNTOF(families); k++)
            for (size_t form = 0; form < FORMS; form++)
                cart_model_close(files[i][k].m[form]);
    char command[64];
    snprintf(command, sizeof command, "rm -rf '%s'", folder);
    if (system(command) != 0)
        fprintf(stderr, "test_exact: %s is left behind\n", folder);
    return wrong > 0;
}
