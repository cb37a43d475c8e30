#include "helper/vocab.h"

#include "base/io.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <zstd.h>

/* A test has no use for a half-made fixture. */
static void need(int r, const struct cart_err *err, const char *what)
{
    if (r >= 0)
        return;
    printf("Bail out! %s: %s\n", what, err->msg);
    exit(99);
}

static const char *path_under(char *out, size_t cap, const char *variable, const char *standard,
                              const char *between, const char *name)
{
    const char *root = getenv(variable);
    snprintf(out, cap, "%s%s%s", root != NULL && *root != '\0' ? root : standard, between, name);
    return out;
}

const char *test_shared(const char *name)
{
    static char path[1024];
    return path_under(path, sizeof path, "CART_SHARED", "../shared", "/data/", name);
}

const char *test_root(const char *name)
{
    static char path[1024];
    return path_under(path, sizeof path, "CART_TEST_ROOT", ".", "/", name);
}

const char *test_demo_model(void)
{
    static char path[1024];
    const char *cache = getenv("XDG_CACHE_HOME");
    const char *home = getenv("HOME");
    if (cache != NULL && *cache != '\0')
        snprintf(path, sizeof path, "%s/cart/SmolLM2-135M-Instruct.Q4_1.gguf", cache);
    else
        snprintf(path, sizeof path, "%s/.cache/cart/SmolLM2-135M-Instruct.Q4_1.gguf",
                 home == NULL ? "" : home);
    return path;
}

static bool present(const char *path)
{
    if (access(path, R_OK) == 0)
        return true;
    printf("# %s is not there\n", path);
    return false;
}

void test_unpack(struct cart_buf *image, const char *path)
{
    struct cart_err err = {0};
    struct cart_buf packed = CART_BUF_INIT;
    need(cart_io_slurp(path, (size_t)1 << 30, &packed, &err), &err, path);
    unsigned long long size = ZSTD_getFrameContentSize(packed.data, packed.len);
    size_t cap = size < (1u << 30) ? (size_t)size : (size_t)64 << 20;
    need(cart_buf_reserve(image, cap, &err), &err, path);
    size_t n = ZSTD_decompress(image->data, cap, packed.data, packed.len);
    if (ZSTD_isError(n))
        need(cart_err_set(&err, CART_EFORMAT, "%s", ZSTD_getErrorName(n)), &err, path);
    image->len = n;
    cart_buf_release(&packed);
}

static struct cart_text *texts(const struct cart_gguf *g, const char *key, size_t *n)
{
    struct cart_err err = {0};
    struct cart_gguf_array a = {.n = 0};
    need(cart_gguf_array_opt(g, key, CART_GGUF_SET(CART_GGUF_STRING), &a, &err), &err, key);
    struct cart_text *out = calloc(a.n + 1, sizeof *out);
    const unsigned char *cursor = a.data;
    for (size_t i = 0; i < a.n; i++) {
        struct cart_gguf_str s = cart_gguf_string_next(&cursor);
        out[i] = (struct cart_text){s.data, s.len};
    }
    *n = a.n;
    return out;
}

static void string(const struct cart_gguf *g, const char *key, char *out, size_t cap)
{
    struct cart_err err = {0};
    struct cart_gguf_str s = {"", 0};
    need(cart_gguf_string_opt(g, key, &s, &err), &err, key);
    snprintf(out, cap, "%.*s", (int)s.len, s.data);
}

static int64_t id(const struct cart_gguf *g, const char *key)
{
    struct cart_err err = {0};
    uint64_t v = UINT64_MAX;
    need(cart_gguf_u64_opt(g, key, UINT32_MAX, &v, &err), &err, key);
    return v == UINT64_MAX ? -1 : (int64_t)v;
}

bool test_vocab_open(struct test_vocab *v, const char *path)
{
    struct cart_err err = {0};
    size_t n = strlen(path);
    memset(v, 0, sizeof *v);
    if (!present(path))
        return false;
    if (n > 4 && strcmp(path + n - 4, ".zst") == 0) {
        test_unpack(&v->image, path);
        need(cart_gguf_parse(&v->gguf, v->image.data, v->image.len, path, &err), &err, "fixture");
    } else {
        need(cart_gguf_open(&v->gguf, path, &err), &err, "fixture");
    }
    const struct cart_gguf *g = v->gguf;
    struct cart_vocab_source *s = &v->src;
    string(g, "tokenizer.ggml.model", v->model, sizeof v->model);
    string(g, "tokenizer.ggml.pre", v->pre, sizeof v->pre);
    s->model = v->model;
    s->pre = v->pre;
    s->tokens = v->tokens = texts(g, "tokenizer.ggml.tokens", &s->n_tokens);
    s->merges = v->merges = texts(g, "tokenizer.ggml.merges", &s->n_merges);
    struct cart_gguf_array types = {.n = 0};
    need(cart_gguf_array(g, "tokenizer.ggml.token_type", CART_GGUF_SET_INT, &types, &err), &err,
         path);
    v->types = calloc(types.n, sizeof *v->types);
    for (size_t i = 0; i < types.n; i++)
        v->types[i] = (int32_t)cart_gguf_array_i64(&types, i);
    s->types = v->types;
    s->n_types = types.n;
    s->bos = id(g, "tokenizer.ggml.bos_token_id");
    s->eos = id(g, "tokenizer.ggml.eos_token_id");
    s->eot = id(g, "tokenizer.ggml.eot_token_id");
    s->pad = id(g, "tokenizer.ggml.padding_token_id");
    s->unk = id(g, "tokenizer.ggml.unknown_token_id");
    need(cart_gguf_bool_opt(g, "tokenizer.ggml.add_bos_token", &s->add_bos, &err), &err, path);
    need(cart_gguf_string_opt(g, "tokenizer.chat_template", &v->chat_template, &err), &err, path);
    need(cart_tokenizer_new(&v->t, s, &err), &err, path);
    return true;
}

void test_vocab_close(struct test_vocab *v)
{
    cart_tokenizer_free(v->t);
    free(v->tokens);
    free(v->merges);
    free(v->types);
    cart_gguf_close(v->gguf);
    cart_buf_release(&v->image);
    memset(v, 0, sizeof *v);
}

/* The byte alphabet, written independently of the library: the bytes that print stand for
 * themselves. */
static size_t spell_byte(unsigned b, char *out)
{
    unsigned skipped = 0;
    unsigned cp = b;
    for (unsigned c = 0; c <= b; c++) {
        bool prints = (c > 32 && c < 127) || (c > 160 && c != 173);
        if (c == b && !prints)
            cp = 256 + skipped;
        skipped += !prints;
    }
    if (cp < 128) {
        out[0] = (char)cp;
        return 1;
    }
    out[0] = (char)(0xc0 | cp >> 6);
    out[1] = (char)(0x80 | (cp & 63));
    return 2;
}

struct cart_tokenizer *test_vocab_small(struct test_vocab *v, const char *pre,
                                        const char *const *merges, const char *const *extra,
                                        int32_t type)
{
    struct cart_err err = {0};
    size_t n_merges = 0, n_extra = 0;
    memset(v, 0, sizeof *v);
    while (merges[n_merges] != NULL)
        n_merges++;
    while (extra != NULL && extra[n_extra] != NULL)
        n_extra++;
    size_t n = 256 + n_merges + n_extra;
    v->tokens = calloc(n, sizeof *v->tokens);
    v->types = calloc(n, sizeof *v->types);
    v->merges = calloc(n_merges + 1, sizeof *v->merges);
    need(cart_buf_reserve(&v->image, 65536, &err), &err,
         "fixture"); /* holds all spellings; never moves */
    for (size_t i = 0; i < n; i++) {
        char *at = v->image.data + v->image.len;
        size_t len;
        if (i < 256) {
            len = spell_byte((unsigned)i, at);
        } else if (i < 256 + n_merges) {
            const char *m = merges[i - 256];
            size_t left = strcspn(m, " ");
            v->merges[i - 256] = (struct cart_text){m, strlen(m)};
            len = strlen(m) - 1;
            memcpy(at, m, left);
            memcpy(at + left, m + left + 1, len - left);
        } else {
            len = strlen(extra[i - 256 - n_merges]);
            memcpy(at, extra[i - 256 - n_merges], len);
        }
        v->image.len += len;
        v->tokens[i] = (struct cart_text){at, len};
        v->types[i] = i < 256 + n_merges ? CART_TOKEN_NORMAL : type;
    }
    v->src = (struct cart_vocab_source){.model = "gpt2",
                                        .pre = pre,
                                        .tokens = v->tokens,
                                        .n_tokens = n,
                                        .types = v->types,
                                        .n_types = n,
                                        .merges = v->merges,
                                        .n_merges = n_merges,
                                        .bos = -1,
                                        .eos = -1,
                                        .eot = -1,
                                        .pad = -1,
                                        .unk = -1};
    need(cart_tokenizer_new(&v->t, &v->src, &err), &err, "fixture");
    return v->t;
}

json_t *test_json(const char *path)
{
    struct cart_err err = {0};
    struct cart_buf b = CART_BUF_INIT;
    json_t *out = NULL;
    if (!present(path))
        return NULL;
    need(cart_io_slurp(path, (size_t)1 << 28, &b, &err), &err, path);
    need(cart_json_parse(&out, b.data, b.len, path, &err), &err, "fixture");
    cart_buf_release(&b);
    return out;
}

json_t *test_json_lines(const char *path)
{
    struct cart_err err = {0};
    struct cart_buf b = CART_BUF_INIT;
    if (!present(path))
        return NULL;
    need(cart_io_slurp(path, (size_t)1 << 28, &b, &err), &err, path);
    json_t *out = json_array();
    for (size_t at = 0; at < b.len;) {
        char *end = memchr(b.data + at, '\n', b.len - at);
        size_t len = end == NULL ? b.len - at : (size_t)(end - b.data) - at;
        json_t *line = NULL;
        need(cart_json_parse(&line, b.data + at, len, path, &err), &err, "fixture");
        json_array_append_new(out, line);
        at += len + 1;
    }
    cart_buf_release(&b);
    return out;
}

bool test_ids_equal(const struct cart_ids *ids, const json_t *expected, const char *label)
{
    size_t n = json_array_size(expected);
    for (size_t i = 0; i < n && i < ids->n; i++) {
        if (json_integer_value(json_array_get(expected, i)) == (json_int_t)ids->data[i])
            continue;
        printf("# %s: id %zu: expected %lld, found %u\n", label, i,
               (long long)json_integer_value(json_array_get(expected, i)), (unsigned)ids->data[i]);
        return false;
    }
    if (n != ids->n)
        printf("# %s: expected %zu ids, found %zu\n", label, n, ids->n);
    return n == ids->n;
}
