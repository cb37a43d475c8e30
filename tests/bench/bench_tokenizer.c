/* Text to ids: megabytes a second of one core. */
#include "base/clock.h"
#include "base/io.h"
#include "base/rng.h"
#include "helper/bench_args.h"
#include "model/model.h"
#include "token/tokenizer.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char usage[] =
    "usage: bench_tokenizer [MiB [MODEL.gguf]]\n"
    "Splits and merges so much text (100 MiB by default) in documents of a mebibyte, with the\n"
    "vocabulary of the model, by default CART_MODEL, or the demo model if it was fetched, else one "
    "of\n"
    "the tiny ones. The texts: prose, words of the tree's README in random order; code-like "
    "lines;\n"
    "CJK; one run of a single letter. CPU time of the process. The ids of each text's first "
    "document\n"
    "are decoded and compared with it.\n";

enum { DOCUMENT = 1 << 20, WORDS = 20000 };

static void need(int r, const struct cart_err *err)
{
    if (r < 0)
        bench_die(cart_err_status(r), "%s", err->msg);
}

/* Whitespace-separated words of a file, at most WORDS. */
static size_t words_of(const char *path, struct cart_buf *b, const char **words)
{
    struct cart_err err;
    size_t n = 0;

    need(cart_io_slurp(path, (size_t)1 << 24, b, &err), &err);
    for (char *save = NULL, *w = strtok_r(b->data, " \n\t", &save); w && n < WORDS;
         w = strtok_r(NULL, " \n\t", &save))
        words[n++] = w;
    return n;
}

static void prose(struct cart_buf *b, const char *const *words, size_t n, uint64_t *seed)
{
    struct cart_err err;

    while (b->len < DOCUMENT) {
        size_t line = 8 + cart_rng_below(1, (*seed)++, 0, 0, 12);
        for (size_t i = 0; i < line; i++)
            need(cart_buf_addf(b, &err, "%s%s", i ? " " : "",
                               words[cart_rng_below(2, (*seed)++, 0, 0, n)]),
                 &err);
        need(cart_buf_add(b, line % 4 ? "\n" : ".\n\n", line % 4 ? 1 : 3, &err), &err);
    }
}

static void code(struct cart_buf *b, const char *const *words, size_t n, uint64_t *seed)
{
    struct cart_err err;

    (void)words;
    (void)n;
    while (b->len < DOCUMENT) {
        unsigned k = (unsigned)cart_rng_below(3, (*seed)++, 0, 0, 100000);
        need(cart_buf_addf(b, &err, "%*sif (value_%u[%u] != 0x%x) return \"%x\"; /* %u */\n",
                           (int)(k % 5) * 4, "", k % 97, k % 13, k, k, k),
             &err);
    }
}

static void cjk(struct cart_buf *b, const char *const *words, size_t n, uint64_t *seed)
{
    struct cart_err err;

    (void)words;
    (void)n;
    while (b->len < DOCUMENT) {
        unsigned cp = 0x4e00 + (unsigned)cart_rng_below(4, (*seed)++, 0, 0, 3000);
        const char c[3] = {(char)(0xe0 | cp >> 12), (char)(0x80 | (cp >> 6 & 63)),
                           (char)(0x80 | (cp & 63))};
        need(cart_buf_add(b, c, 3, &err), &err);
        if (cp % 17 == 0)
            need(cart_buf_add(b, "\xe3\x80\x82\n", 4, &err), &err);
    }
}

static void run_of_a(struct cart_buf *b, const char *const *words, size_t n, uint64_t *seed)
{
    struct cart_err err;

    (void)words;
    (void)n;
    (void)seed;
    need(cart_buf_reserve(b, DOCUMENT, &err), &err);
    memset(b->data, 'a', DOCUMENT);
    b->len = DOCUMENT;
}

static void check(const struct cart_tokenizer *t, const struct cart_buf *text,
                  const struct cart_ids *ids)
{
    struct cart_buf back = CART_BUF_INIT, norm = CART_BUF_INIT;
    struct cart_err err;

    need(cart_tokenizer_normalize(t, text->data, text->len, &norm, &err), &err);
    need(cart_tokenizer_decode(t, ids->data, ids->n, false, &back, &err), &err);
    if (back.len != norm.len || memcmp(back.data, norm.data, norm.len) != 0)
        bench_die(1, "the ids do not decode to the text");
    cart_buf_release(&back);
    cart_buf_release(&norm);
}

int main(int argc, char **argv)
{
    static const struct {
        const char *name;
        void (*make)(struct cart_buf *, const char *const *, size_t, uint64_t *);
    } kinds[] = {{"prose", prose}, {"code", code}, {"CJK", cjk}, {"one letter", run_of_a}};
    static const char *words[WORDS];
    struct bench_args a = bench_args(argc, argv, usage);
    const char *number = bench_args_operand(&a), *model = bench_args_operand(&a);
    size_t documents = number ? bench_whole("MiB", number, 1, 1 << 20) : 100;
    struct cart_model *m;
    struct cart_buf file = CART_BUF_INIT;
    struct cart_err err;

    bench_args_end(&a);
    if (model == NULL && (model = bench_model_file(stderr)) == NULL)
        model = bench_tree("tests/golden/tiny/llama_tied.gguf");
    need(cart_model_open(&m, model, NULL, &err), &err);
    const struct cart_tokenizer *t = cart_model_tokenizer(m);
    size_t n = words_of(bench_tree("README.md"), &file, words);
    printf("%s: %zu tokens in the vocabulary; %zu MiB of each text\n", model,
           cart_tokenizer_size(t), documents);
    for (size_t k = 0; k < CART_COUNTOF(kinds); k++) {
        struct cart_buf text = CART_BUF_INIT;
        struct cart_ids ids = CART_IDS_INIT;
        uint64_t seed = 1;
        double spent = 0, bytes = 0, made = 0;
        for (size_t d = 0; d < documents; d++) {
            cart_buf_reset(&text);
            ids.n = 0;
            kinds[k].make(&text, words, n, &seed);
            double start = cart_clock_cpu();
            need(cart_tokenizer_encode(t, text.data, text.len, 0, &ids, NULL, &err), &err);
            spent += cart_clock_cpu() - start;
            bytes += (double)text.len;
            made += (double)ids.n;
            if (d == 0)
                check(t, &text, &ids);
        }
        printf("%-11s %6.1f MB/s, %.2f bytes a token\n", kinds[k].name, bytes / spent / 1e6,
               bytes / made);
        cart_buf_release(&text);
        cart_ids_release(&ids);
    }
    cart_buf_release(&file);
    cart_model_close(m);
    return 0;
}
