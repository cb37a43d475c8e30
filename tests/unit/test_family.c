/* What the keys and weights of a model file mean, and what they must not say: a tiny model with
 * keys changed, or values of a tensor, is refused with words of the right one, or computes what
 * they ask for. */
#include "base/io.h"
#include "format/gguf.h"
#include "helper/gguf_write.h"
#include "helper/rotation.h"
#include "helper/vocab.h"
#include "model/forward.h"
#include "model/model.h"
#include "tensor/attention.h"
#include "token/tokenizer.h"

#include <math.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <setjmp.h>

#include <cmocka.h>

#define ALIGNMENT 32 /* of the tensors behind the keys, which must stay where they are */

static struct cart_pool *pool;

static void load_model(struct cart_buf *b, const char *name)
{
    const char *root = getenv("CART_TEST_ROOT");
    char path[512];
    struct cart_err err = {0};
    snprintf(path, sizeof path, "%s/tests/golden/tiny/%s.gguf", root ? root : ".", name);
    if (cart_io_slurp(path, 1 << 24, b, &err) < 0)
        fail_msg("%s", err.msg);
}

static void load(struct cart_buf *b)
{
    load_model(b, "llama_tied");
}

static char *seek(const struct cart_buf *b, const char *text)
{
    size_t n = strlen(text);
    for (size_t i = 0; i + n <= b->len; i++)
        if (memcmp(b->data + i, text, n) == 0)
            return b->data + i;
    return NULL;
}

static char *find(const struct cart_buf *b, const char *text)
{
    char *at = seek(b, text);
    if (!at)
        fail_msg("no %s in the file", text);
    return at;
}

/* A key that nobody looks for is a key that is absent. */
static void hide(struct cart_buf *b, const char *key)
{
    find(b, key)[strlen(key) - 1] = '~';
}

static void put(struct cart_buf *b, const void *bytes, size_t n)
{
    assert_int_equal(cart_buf_add(b, bytes, n, NULL), 0);
}

static void put_u64(struct cart_buf *b, uint64_t v)
{
    put(b, &v, sizeof v);
}

static void put_u32(struct cart_buf *b, uint32_t v)
{
    put(b, &v, sizeof v);
}

static void put_name(struct cart_buf *b, const char *key)
{
    put_u64(b, strlen(key));
    put(b, key, strlen(key));
}

/* One more key before all others, and a second one that fills the room up to the alignment. */
static void insert(struct cart_buf *b, const char *key, const struct cart_buf *value)
{
    struct cart_buf out = CART_BUF_INIT;
    char name[40];
    uint64_t n;
    memcpy(&n, b->data + 16, sizeof n);
    snprintf(name, sizeof name, "test.filler%llu", (unsigned long long)n);
    put(&out, b->data, 16);
    put_u64(&out, n + 2);
    put_name(&out, key);
    put(&out, value->data, value->len);
    put_name(&out, name);
    put_u32(&out, CART_GGUF_STRING);
    size_t filler = ALIGNMENT - (out.len + 8 - 24) % ALIGNMENT;
    put_u64(&out, filler);
    for (size_t i = 0; i < filler; i++)
        put(&out, "x", 1);
    put(&out, b->data + 24, b->len - 24);
    cart_buf_release(b);
    *b = out;
}

static void insert_heads(struct cart_buf *b, const uint32_t *heads, size_t n)
{
    struct cart_buf v = CART_BUF_INIT;
    put_u32(&v, CART_GGUF_ARRAY);
    put_u32(&v, CART_GGUF_U32);
    put_u64(&v, n);
    put(&v, heads, n * sizeof *heads);
    insert(b, "llama.attention.head_count", &v);
    cart_buf_release(&v);
}

/* With a pool to help it: the same model, or the same words. */
static void expect_helped(const char *path, const struct cart_model *alone, const char *words)
{
    struct cart_model_options o = {.profile = NULL};
    struct cart_err err = {0};
    struct cart_model *m = NULL;
    for (size_t threads = 1; threads <= 3; threads++) {
        assert_int_equal(cart_pool_new(&o.pool, threads, NULL), 0);
        int r = cart_model_open(&m, path, &o, &err);
        assert_int_equal(r < 0, alone == NULL);
        if (r < 0)
            assert_string_equal(err.msg, words);
        else
            assert_memory_equal(&m->fp, &alone->fp, sizeof m->fp);
        cart_model_close(m);
        m = NULL;
        cart_pool_free(o.pool);
    }
}

/* Opens what b holds and releases it: the model, or NULL after comparing the words. words NULL: the
 * file is a model. */
static struct cart_model *open_as(struct cart_buf *b, int status, const char *words)
{
    char path[] = "/tmp/cart-family-XXXXXX";
    int fd = mkstemp(path);
    struct cart_err err = {0};
    struct cart_model *m = NULL;
    assert_true(fd >= 0);
    assert_int_equal(cart_io_write(fd, b->data, b->len, path, &err), 0);
    close(fd);
    int r = cart_model_open(&m, path, NULL, &err);
    expect_helped(path, m, err.msg);
    unlink(path);
    cart_buf_release(b);
    if (!words && r < 0)
        fail_msg("%s", err.msg);
    if (words && r == 0)
        fail_msg("expected '%s', but it opened", words);
    if (words && r != status)
        fail_msg("expected status %d, found %d: %s", status, r, err.msg);
    if (words && !strstr(err.msg, words))
        fail_msg("expected '%s' in: %s", words, err.msg);
    return m;
}

static void expect(struct cart_buf *b, const char *words)
{
    cart_model_close(open_as(b, CART_EFORMAT, words));
}

/* ---- a table of keys ---- */

enum value { END, GONE, U32, I32, F32, BOOL, TEXT };

/* One key with another value, or without it. */
struct edit {
    const char *key;
    enum value value;
    double number;
    const char *text;
};

/* words NULL: the file is a model all the same. */
struct fault {
    struct edit edits[4];
    int status;
    const char *words;
};

static void put_number(struct cart_buf *v, const struct edit *e)
{
    static const uint32_t types[] = {[U32] = CART_GGUF_U32,
                                     [I32] = CART_GGUF_I32,
                                     [F32] = CART_GGUF_F32,
                                     [BOOL] = CART_GGUF_BOOL};
    int32_t i = (int32_t)e->number;
    float x = (float)e->number;
    unsigned char truth = e->number != 0;
    put_u32(v, types[e->value]);
    if (e->value == U32)
        put_u32(v, (uint32_t)e->number);
    else if (e->value == I32)
        put(v, &i, sizeof i);
    else if (e->value == F32)
        put(v, &x, sizeof x);
    else
        put(v, &truth, 1);
}

static void apply(struct cart_buf *b, const struct edit *e)
{
    struct cart_buf v = CART_BUF_INIT;
    if (seek(b, e->key))
        hide(b, e->key);
    if (e->value == TEXT) {
        put_u32(&v, CART_GGUF_STRING);
        put_name(&v, e->text);
    } else if (e->value != GONE) {
        put_number(&v, e);
    }
    if (v.len > 0)
        insert(b, e->key, &v);
    cart_buf_release(&v);
}

static struct cart_model *edited(const char *name, const struct fault *f)
{
    struct cart_buf b = CART_BUF_INIT;
    load_model(&b, name);
    for (size_t i = 0; i < CART_COUNTOF(f->edits) && f->edits[i].value != END; i++)
        apply(&b, &f->edits[i]);
    return open_as(&b, f->status, f->words);
}

static void judge(const char *name, const struct fault *faults, size_t n)
{
    for (size_t i = 0; i < n; i++)
        cart_model_close(edited(name, &faults[i]));
}

#define ARCH(k) "llama." k
#define LENGTHS_GONE                                                                               \
    {ARCH("attention.key_length"), GONE, 0, NULL},                                                 \
    {                                                                                              \
        ARCH("attention.value_length"), GONE, 0, NULL                                              \
    }

static void test_widths(void **state)
{
    static const struct fault faults[] = {
        {{{"general.architecture", GONE, 0, NULL}},
         CART_EFORMAT,
         "key general.architecture: expected string, found none"},
        {{{"general.architecture", TEXT, 0, "bert"}}, CART_EFORMAT, "architecture 'bert'"},
        {{{"general.architecture", TEXT, 0, "mamba"}}, CART_EFORMAT, "recurrent state"},
        {{{ARCH("block_count"), GONE, 0, NULL}}, CART_EFORMAT, "key llama.block_count"},
        {{{ARCH("block_count"), U32, 0, NULL}}, CART_EFORMAT, "expected 1 to 1024, found 0"},
        {{{ARCH("block_count"), U32, 1025, NULL}},
         CART_EFORMAT,
         "llama.block_count: expected 0 to"},
        {{{ARCH("block_count"), U32, 3, NULL}}, CART_EFORMAT, "model with 3 layers"},
        {{{ARCH("block_count"), U32, 5, NULL}},
         CART_EFORMAT,
         "tensor blk.4.attn_norm.weight: miss"},
        {{{ARCH("embedding_length"), U32, 0, NULL}},
         CART_EFORMAT,
         "expected 1 to 1048576, found 0"},
        {{{ARCH("embedding_length"), U32, 1048577, NULL}}, CART_EFORMAT, "llama.embedding_length"},
        {{{ARCH("embedding_length"), F32, 64, NULL}},
         CART_EFORMAT,
         "expected an integer, found f32"},
        {{{ARCH("embedding_length"), U32, 60, NULL}},
         CART_EFORMAT,
         "expected [60, 320], found [64"},
        {{{ARCH("context_length"), GONE, 0, NULL}}, CART_EFORMAT, "key llama.context_length"},
        {{{ARCH("context_length"), U32, 0, NULL}}, CART_EFORMAT, "expected 1 to 16777216, found 0"},
        {{{ARCH("context_length"), U32, 16777217, NULL}}, CART_EFORMAT, "llama.context_length"},
        {{{ARCH("context_length"), U32, 16777216, NULL}}, 0, NULL},
        {{{ARCH("feed_forward_length"), GONE, 0, NULL}},
         CART_EFORMAT,
         "feed_forward_length: missing"},
        {{{ARCH("feed_forward_length"), U32, 0, NULL}},
         CART_EFORMAT,
         "feed_forward_length: expected"},
        {{{ARCH("feed_forward_length"), U32, 31, NULL}},
         CART_EFORMAT,
         "expected [64, 31], found [64"},
    };
    (void)state;
    judge("llama_tied", faults, CART_COUNTOF(faults));
}

static void test_heads(void **state)
{
    static const struct fault faults[] = {
        {{{ARCH("attention.head_count"), GONE, 0, NULL}},
         CART_EFORMAT,
         "key llama.attention.head_count: missing"},
        {{{ARCH("attention.head_count"), U32, 0, NULL}},
         CART_EFORMAT,
         "expected 1 to 1024, found 0"},
        {{{ARCH("attention.head_count"), U32, 1025, NULL}},
         CART_EFORMAT,
         "head_count: expected 0 to"},
        {{{ARCH("attention.head_count"), U32, 5, NULL}},
         CART_EFORMAT,
         "layer 0: 5 query heads are no multiple of 2 key heads"},
        {{{ARCH("attention.head_count_kv"), U32, 0, NULL}},
         CART_EFORMAT,
         "expected 1 to 1024, found 0"},
        {{{ARCH("attention.head_count_kv"), U32, 3, NULL}},
         CART_EFORMAT,
         "layer 0: 4 query heads are no multiple of 3 key heads"},
        {{{ARCH("attention.head_count_kv"), U32, 8, NULL}},
         CART_EFORMAT,
         "no multiple of 8 key heads"},
        {{{ARCH("attention.head_count_kv"), U32, 1, NULL}},
         CART_EFORMAT,
         "[64, 16], found [64, 32"},
        {{{ARCH("attention.head_count_kv"), GONE, 0, NULL}},
         CART_EFORMAT,
         "[64, 64], found [64, 32"},
        {{LENGTHS_GONE}, 0, NULL},
        {{LENGTHS_GONE, {ARCH("attention.head_count"), U32, 6, NULL}},
         CART_EFORMAT,
         "layer 0: width 64 is no multiple of 6 heads"},
        {{{ARCH("attention.key_length"), U32, 0, NULL}},
         CART_EFORMAT,
         "expected 1 to 1024, found 0"},
        {{{ARCH("attention.key_length"), U32, 1025, NULL}},
         CART_EFORMAT,
         "key_length: expected 0 to"},
        {{{ARCH("attention.key_length"), U32, 8, NULL}},
         CART_EFORMAT,
         "attention.value_length: expected 8, the key length, found 16"},
        {{{ARCH("attention.value_length"), U32, 8, NULL}},
         CART_EFORMAT,
         "attention.value_length: expected 16, the key length, found 8"},
        {{{ARCH("attention.value_length"), U32, 0, NULL}},
         CART_EFORMAT,
         "expected 1 to 1024, found 0"},
        {{{ARCH("attention.value_length"), U32, 1025, NULL}},
         CART_EFORMAT,
         "value_length: expected"},
        {{{ARCH("attention.value_length"), GONE, 0, NULL}}, 0, NULL},
        /* A width that no key states is bounded all the same. */
        {{LENGTHS_GONE,
          {ARCH("embedding_length"), U32, 2048, NULL},
          {ARCH("attention.head_count"), U32, 2, NULL}},
         CART_EFORMAT,
         "tensor token_embd.weight: expected [2048, 320]"},
        {{LENGTHS_GONE,
          {ARCH("embedding_length"), U32, 2050, NULL},
          {ARCH("attention.head_count"), U32, 2, NULL}},
         CART_EFORMAT,
         "layer 0: head width: expected 1 to 1024, found 1025"},
    };
    (void)state;
    judge("llama_tied", faults, CART_COUNTOF(faults));
}

static void test_numbers(void **state)
{
    static const char eps[] = ARCH("attention.layer_norm_rms_epsilon");
    static const char base[] = ARCH("rope.freq_base"), n_rot[] = ARCH("rope.dimension_count");
    static const char type[] = ARCH("rope.scaling.type"), factor[] = ARCH("rope.scaling.factor");
    static const struct fault faults[] = {
        {{{eps, GONE, 0, NULL}}, CART_EFORMAT, "layer_norm_rms_epsilon"},
        {{{eps, F32, 0, NULL}}, CART_EFORMAT, "expected a number between 0 and 1, found 0"},
        {{{eps, F32, 1, NULL}}, CART_EFORMAT, "expected a number between 0 and 1, found 1"},
        {{{eps, F32, -1e-5, NULL}},
         CART_EFORMAT,
         "expected a number between 0 and 1, found -1e-05"},
        {{{eps, F32, NAN, NULL}}, CART_EFORMAT, "expected a finite number, found nan"},
        {{{eps, U32, 1, NULL}}, CART_EFORMAT, "layer_norm_rms_epsilon"},
        {{{n_rot, U32, 0, NULL}}, CART_EFORMAT, "up to the head width 16, found 0"},
        {{{n_rot, U32, 15, NULL}}, CART_EFORMAT, "up to the head width 16, found 15"},
        {{{n_rot, U32, 18, NULL}}, CART_EFORMAT, "up to the head width 16, found 18"},
        {{{n_rot, U32, 1026, NULL}}, CART_EFORMAT, "rope.dimension_count: expected 0 to 1024"},
        {{{n_rot, U32, 8, NULL}}, 0, NULL},
        {{{base, F32, 0, NULL}}, CART_EFORMAT, "rope.freq_base: expected a base above 0, found 0"},
        {{{base, F32, -1, NULL}}, CART_EFORMAT, "expected a base above 0, found -1"},
        {{{base, F32, 2e30, NULL}}, CART_EFORMAT, "expected a base above 0, found 2e+30"},
        {{{base, F32, 1e-38, NULL}},
         CART_EFORMAT,
         "rotation by base 1e-38: expected an angle below 2^31 at position"},
        {{{type, TEXT, 0, "linear"}, {factor, F32, 1e-30, NULL}},
         CART_EFORMAT,
         "rotation by base 10000: expected an angle below 2^31"},
        {{{base, F32, INFINITY, NULL}}, CART_EFORMAT, "expected a finite number, found inf"},
        {{{type, TEXT, 0, "yarn"}}, CART_EFORMAT, "expected none or linear, found 'yarn'"},
        {{{type, TEXT, 0, "none"}, {factor, F32, 4, NULL}}, 0, NULL},
        {{{type, TEXT, 0, "linear"}}, CART_EFORMAT, "key llama.rope.scaling.factor"},
        {{{type, TEXT, 0, "linear"}, {factor, F32, 0, NULL}},
         CART_EFORMAT,
         "a factor above 0, found 0"},
        {{{type, TEXT, 0, "linear"}, {factor, F32, -2, NULL}}, CART_EFORMAT, "above 0, found -2"},
        {{{type, TEXT, 0, "linear"}, {factor, F32, 1e6, NULL}},
         CART_EFORMAT,
         "above 0, found 1e+06"},
        {{{factor, F32, 1, NULL}}, 0, NULL},
        {{{factor, F32, 4, NULL}}, CART_EFORMAT, "key llama.rope.scaling.factor: found 4"},
        {{{ARCH("rope.scale_linear"), F32, 2, NULL}}, CART_EFORMAT, "rope.scale_linear: found 2"},
    };
    (void)state;
    judge("llama_tied", faults, CART_COUNTOF(faults));
}

static void test_vocabulary_keys(void **state)
{
    static const char bos[] = "tokenizer.ggml.bos_token_id", eos[] = "tokenizer.ggml.eos_token_id";
    static const char add[] = "tokenizer.ggml.add_bos_token";
    static const struct fault faults[] = {
        {{{"tokenizer.ggml.model", GONE, 0, NULL}}, CART_EFORMAT, "tokenizer model: expected gpt2"},
        {{{"tokenizer.ggml.model", TEXT, 0, "llama"}},
         CART_EFORMAT,
         "expected gpt2, found 'llama'"},
        {{{"tokenizer.ggml.pre", GONE, 0, NULL}}, CART_EFORMAT, "pre-tokenizer: expected smollm"},
        {{{"tokenizer.ggml.pre", TEXT, 0, "gpt-4o"}}, CART_EFORMAT, "llama-bpe, found 'gpt-4o'"},
        {{{"tokenizer.ggml.tokens", GONE, 0, NULL}},
         CART_EFORMAT,
         "expected 320 strings, one a row"},
        {{{"tokenizer.ggml.tokens", TEXT, 0, "!"}}, CART_EFORMAT, "key tokenizer.ggml.tokens"},
        {{{"tokenizer.ggml.merges", TEXT, 0, "a b"}}, CART_EFORMAT, "key tokenizer.ggml.merges"},
        {{{"tokenizer.ggml.token_type", U32, 1, NULL}}, CART_EFORMAT, "tokenizer.ggml.token_type"},
        {{{"tokenizer.ggml.scores", F32, 1, NULL}}, CART_EFORMAT, "key tokenizer.ggml.scores"},
        {{{bos, U32, 320, NULL}}, CART_EFORMAT, "bos_token_id: expected less than 320, found 320"},
        {{{bos, I32, -1, NULL}}, CART_EFORMAT, "key tokenizer.ggml.bos_token_id"},
        {{{eos, U32, 320, NULL}}, CART_EFORMAT, "eos_token_id: expected less than 320, found 320"},
        {{{eos, TEXT, 0, "</s>"}}, CART_EFORMAT, "key tokenizer.ggml.eos_token_id"},
        {{{"tokenizer.ggml.eot_token_id", U32, 320, NULL}},
         CART_EFORMAT,
         "eot_token_id: expected less"},
        {{{"tokenizer.ggml.padding_token_id", U32, 320, NULL}},
         CART_EFORMAT,
         "padding_token_id: exp"},
        {{{"tokenizer.ggml.unknown_token_id", U32, 320, NULL}},
         CART_EFORMAT,
         "unknown_token_id: exp"},
        {{{bos, GONE, 0, NULL}}, 0, NULL},
        {{{bos, GONE, 0, NULL}, {add, BOOL, 1, NULL}}, CART_EFORMAT, "a bos token is to be added"},
        {{{add, U32, 1, NULL}}, CART_EFORMAT, "key tokenizer.ggml.add_bos_token"},
        {{{"tokenizer.chat_template", U32, 1, NULL}}, CART_EFORMAT, "key tokenizer.chat_template"},
        {{{"tokenizer.chat_template", GONE, 0, NULL}}, 0, NULL},
        {{{"general.name", U32, 1, NULL}}, CART_EFORMAT, "key general.name"},
    };
    (void)state;
    judge("llama_tied", faults, CART_COUNTOF(faults));
}

/* Whether a raw prompt starts with bos: as the key says, else as the family does it. */
static void test_bos(void **state)
{
    static const char bos[] = "tokenizer.ggml.bos_token_id", add[] = "tokenizer.ggml.add_bos_token";
    static const char pre[] = "tokenizer.ggml.pre";
    static const struct {
        const char *model;
        struct edit edits[3];
        bool added;
    } rows[] = {
        {"llama3_untied", {{add, GONE, 0, NULL}}, true},
        {"llama3_untied", {{add, GONE, 0, NULL}, {pre, TEXT, 0, "llama3"}}, true},
        {"llama3_untied", {{add, GONE, 0, NULL}, {pre, TEXT, 0, "llama-v3"}}, true},
        {"llama3_untied", {{add, BOOL, 1, NULL}}, true},
        {"llama3_untied", {{add, BOOL, 0, NULL}}, false},
        {"llama3_untied", {{add, GONE, 0, NULL}, {bos, GONE, 0, NULL}}, false},
        {"llama_tied", {{add, GONE, 0, NULL}}, false},
        {"llama_tied", {{add, BOOL, 1, NULL}}, true},
        {"qwen2", {{add, GONE, 0, NULL}}, false},
    };
    (void)state;
    for (size_t i = 0; i < CART_COUNTOF(rows); i++) {
        struct fault f = {.words = NULL};
        memcpy(f.edits, rows[i].edits, sizeof rows[i].edits);
        struct cart_model *m = edited(rows[i].model, &f);
        if (cart_tokenizer_adds_bos(cart_model_tokenizer(m)) != rows[i].added)
            fail_msg("row %zu: expected %d", i, rows[i].added);
        cart_model_close(m);
    }
}

/* ---- lists ---- */

/* Where the first element of an array of the file begins. */
static char *elements(const struct cart_buf *b, const char *key)
{
    return find(b, key) + strlen(key) + 4 + 4 + 8;
}

static void insert_array(struct cart_buf *b, const char *key, uint32_t type, size_t width, size_t n)
{
    static const unsigned char one[8] = {1};
    struct cart_buf v = CART_BUF_INIT;
    put_u32(&v, CART_GGUF_ARRAY);
    put_u32(&v, type);
    put_u64(&v, n);
    for (size_t i = 0; i < n; i++)
        put(&v, one, width);
    if (seek(b, key))
        hide(b, key);
    insert(b, key, &v);
    cart_buf_release(&v);
}

static void test_lists(void **state)
{
    static const struct {
        const char *key;
        uint32_t type;
        size_t width, n;
        const char *words;
    } arrays[] = {
        {"tokenizer.ggml.token_type", CART_GGUF_I32, 4, 319, "types: expected 320, found 319"},
        {"tokenizer.ggml.token_type", CART_GGUF_U32, 4, 320, NULL},
        {"tokenizer.ggml.token_type", CART_GGUF_U8, 1, 320, "key tokenizer.ggml.token_type"},
        {"tokenizer.ggml.scores", CART_GGUF_F32, 4, 319, "scores: expected 320 values, found 319"},
        {"tokenizer.ggml.scores", CART_GGUF_I32, 4, 320, "key tokenizer.ggml.scores"},
        {"tokenizer.ggml.scores", CART_GGUF_F32, 4, 320, NULL},
        {ARCH("attention.head_count"), CART_GGUF_U32, 4, 3,
         "expected 4 values, one a layer, found 3"},
        {ARCH("attention.head_count"), CART_GGUF_F32, 4, 4, "key llama.attention.head_count"},
    };
    struct cart_buf b = CART_BUF_INIT;
    (void)state;
    for (size_t i = 0; i < CART_COUNTOF(arrays); i++) {
        load(&b);
        insert_array(&b, arrays[i].key, arrays[i].type, arrays[i].width, arrays[i].n);
        expect(&b, arrays[i].words);
    }
    load(&b); /* behind the length of the first, the first and the length of the second */
    elements(&b, "tokenizer.ggml.tokens")[8 + 1 + 8] = '!';
    expect(&b, "both are '!'");
    load(&b);
    *strchr(elements(&b, "tokenizer.ggml.merges") + 8, ' ') = 'x';
    expect(&b, "found no space");
    load(&b);
    elements(&b, "tokenizer.ggml.token_type")[0] = 7;
    expect(&b, "type of token 0: expected 1 to 6, found 7");
}

static void test_long_template(void **state)
{
    enum { MOST = 1 << 20 };
    struct cart_buf b = CART_BUF_INIT;
    struct edit e = {"tokenizer.chat_template", TEXT, 0, NULL};
    char *text = malloc(MOST + 2);
    (void)state;
    memset(text, ' ', MOST + 1);
    text[MOST + 1] = '\0';
    e.text = text;
    load(&b);
    apply(&b, &e);
    expect(&b, "chat_template: expected at most 1048576 bytes, found 1048577");
    text[MOST] = '\0';
    load(&b);
    apply(&b, &e);
    expect(&b, NULL);
    free(text);
}

/* ---- weights ---- */

/* Value i of a tensor of f32 becomes x. */
static void set_value(struct cart_buf *b, const char *tensor, size_t i, float x)
{
    struct cart_gguf *g;
    struct cart_err err = {0};
    if (cart_gguf_parse(&g, b->data, b->len, "image", &err) < 0)
        fail_msg("%s", err.msg);
    const struct cart_gguf_tensor *t = cart_gguf_tensor(g, tensor);
    assert_non_null(t);
    assert_true((i + 1) * sizeof x <= t->bytes);
    size_t at = (size_t)((const char *)t->data - b->data) + i * sizeof x;
    cart_gguf_close(g);
    memcpy(b->data + at, &x, sizeof x);
}

static void test_vectors(void **state)
{
    static const struct {
        const char *model, *tensor;
        size_t at;
        float x;
        const char *words;
    } faults[] = {
        {"llama_tied", "blk.0.attn_norm.weight", 63, NAN, "blk.0.attn_norm.weight: not finite"},
        {"llama_tied", "blk.3.ffn_norm.weight", 0, INFINITY, "blk.3.ffn_norm.weight: not finite"},
        {"llama_tied", "output_norm.weight", 5, -INFINITY, "output_norm.weight: not finite"},
        {"qwen2", "blk.1.attn_q.bias", 7, NAN, "blk.1.attn_q.bias: not finite"},
        {"qwen2", "blk.1.attn_k.bias", 0, INFINITY, "blk.1.attn_k.bias: not finite"},
        {"qwen2", "blk.1.attn_v.bias", 0, NAN, "blk.1.attn_v.bias: not finite"},
        {"qwen3", "blk.2.attn_q_norm.weight", 1, NAN, "blk.2.attn_q_norm.weight: not finite"},
        {"qwen3", "blk.2.attn_k_norm.weight", 1, INFINITY, "blk.2.attn_k_norm.weight: not finite"},
        {"llama3_untied", "rope_freqs.weight", 15, 0,
         "rope_freqs.weight: value 15: expected above 0"},
        {"llama3_untied", "rope_freqs.weight", 0, -1,
         "rope_freqs.weight: value 0: expected above 0"},
        {"llama3_untied", "rope_freqs.weight", 2, NAN, "rope_freqs.weight: not finite"},
        {"llama3_untied", "rope_freqs.weight", 3, 1e-6f, NULL},
    };
    struct cart_buf b = CART_BUF_INIT;
    (void)state;
    for (size_t i = 0; i < CART_COUNTOF(faults); i++) {
        load_model(&b, faults[i].model);
        set_value(&b, faults[i].tensor, faults[i].at, faults[i].x);
        expect(&b, faults[i].words);
    }
}

static void test_tensor_table(void **state)
{
    struct cart_buf b = CART_BUF_INIT;
    (void)state;
    load(&b);
    hide(&b, "blk.0.attn_q.weight");
    expect(&b, "tensor blk.0.attn_q.weight: missing");
    load(&b);
    hide(&b, "token_embd.weight");
    expect(&b, "tensor token_embd.weight: missing");
    load_model(&b,
               "qwen2"); /* such a file means zeros, but a tensor of another name is not known */
    hide(&b, "blk.0.attn_q.bias");
    expect(&b, "tensor blk.0.attn_q.bia~: not a weight of a qwen2 model");
    load(&b); /* behind its name, the number of dimensions and both */
    find(&b, "blk.0.attn_k.weight")[strlen("blk.0.attn_k.weight") + 4 + 16] = 26;
    expect(&b, "tensor blk.0.attn_k.weight: type I32 is not supported");
}

/* ---- what the keys mean ---- */

static void expect_rotation(const char *name, const struct fault *f, double base, double scale)
{
    struct cart_model *m = edited(name, f);
    assert_true(test_rotation(m, base, scale, pool));
    cart_model_close(m);
}

static void test_rotation_keys(void **state)
{
    static const struct fault plain = {{{NULL, END, 0, NULL}}, 0, NULL};
    static const struct fault absent = {{{ARCH("rope.freq_base"), GONE, 0, NULL}}, 0, NULL};
    static const struct fault absent_qwen = {{{"qwen2.rope.freq_base", GONE, 0, NULL}}, 0, NULL};
    static const struct fault other = {{{ARCH("rope.freq_base"), F32, 500, NULL}}, 0, NULL};
    static const struct fault partial = {{{ARCH("rope.dimension_count"), U32, 8, NULL}}, 0, NULL};
    static const struct fault linear = {{{ARCH("rope.scaling.type"), TEXT, 0, "linear"},
                                         {ARCH("rope.scaling.factor"), F32, 4, NULL}},
                                        0,
                                        NULL};
    (void)state;
    expect_rotation("llama_tied", &plain, 10000, 1);
    expect_rotation("llama_tied", &absent, 10000, 1);
    expect_rotation("llama_tied", &other, 500, 1);
    expect_rotation("llama_tied", &partial, 10000, 1);
    expect_rotation("llama_tied", &linear, 10000, 0.25);
    expect_rotation("qwen2", &plain, 1e6, 1);
    expect_rotation("qwen2", &absent_qwen, 10000, 1);
}

/* The widest head runs through every type of rows; a wider one would not fit the kernels' stack. */
static void test_widest_head(void **state)
{
    static const struct gguf_shape shape = {
        "llama", 1, 32, 2, 1, CART_ATTN_HEAD_MAX, 32, 272, 512, 10000, CART_F32, true, 1};
    static const int types[] = {CART_F32, CART_F16, CART_BF16};
    static const uint32_t ids[] = {1, 2, 3};
    char path[] = "/tmp/cart-family-XXXXXX";
    struct cart_model *m = NULL;
    struct cart_workspace *ws = NULL;
    struct cart_kv_tail tail;
    float hidden[32];
    const size_t want = 2;
    (void)state;
    close(mkstemp(path));
    gguf_write_model(path, &shape);
    assert_int_equal(cart_model_open(&m, path, NULL, NULL), 0);
    unlink(path);
    assert_int_equal(m->layers[0].DH, CART_ATTN_HEAD_MAX);
    assert_int_equal(cart_workspace_new(&ws, m, 3, NULL), 0);
    for (size_t i = 0; i < CART_COUNTOF(types); i++) {
        assert_int_equal(cart_kv_tail_init(&tail, m, types[i], 0, 3, NULL), 0);
        struct cart_span s = {
            .ids = ids, .T = 3, .kv = {.tail = &tail}, .want = &want, .n_want = 1};
        assert_int_equal(cart_forward(m, ws, &s, 1, hidden, pool, NULL), 0);
        for (size_t k = 0; k < CART_COUNTOF(hidden); k++)
            assert_true(isfinite(hidden[k]));
        cart_kv_tail_release(&tail);
    }
    cart_workspace_free(ws);
    cart_model_close(m);
}

/* The shared list of crafted files: what is a container but no model. */
static void test_crafted(void **state)
{
    char path[1200], line[512];
    size_t files = 0;
    FILE *list = fopen(test_shared("gguf-crafted/MANIFEST.tsv"), "r");
    (void)state;
    if (!list) {
        print_message("# skipped: %s is not here\n", test_shared("gguf-crafted/MANIFEST.tsv"));
        skip();
    }
    while (fgets(line, sizeof line, list)) {
        char name[64], verdict[32];
        struct cart_model *m;
        struct cart_err err = {0};
        assert_int_equal(sscanf(line, "%63[^\t]\t%*[^\t]\t%31[^\t]", name, verdict), 2);
        if (strcmp(verdict, "reject-at-load") != 0)
            continue;
        snprintf(path, sizeof path, "gguf-crafted/%s", name);
        int r = cart_model_open(&m, test_shared(path), NULL, &err);
        if (r != CART_EFORMAT)
            fail_msg("%s: status %d: %s", name, r, r ? err.msg : "opened");
        files++;
    }
    fclose(list);
    assert_int_equal(files, 19);
}

static void differing_heads(struct cart_buf *b)
{
    static const uint32_t heads[] = {4, 8, 8, 8};
    load(b);
    hide(b, "llama.attention.head_count");
    hide(b, "llama.attention.key_length");
    hide(b, "llama.attention.value_length");
    insert_heads(b, heads, 4);
}

static void test_narrowest_head(void **state)
{
    (void)state;
    struct cart_buf b = CART_BUF_INIT;
    differing_heads(&b);
    expect(&b, "rotary width: expected an even number up to the head width 8, found 16");
    differing_heads(&b);
    hide(&b, "llama.rope.dimension_count");
    expect(&b, "llama.rope.dimension_count: missing, though heads are 8 to 16 wide");
}

static void test_nul_in_text(void **state)
{
    (void)state;
    struct cart_buf b = CART_BUF_INIT;
    load(&b);
    /* The value: type and length, then "smollm". */
    find(&b, "tokenizer.ggml.pre")[strlen("tokenizer.ggml.pre") + 4 + 8 + 4] = '\0';
    expect(&b, "key tokenizer.ggml.pre: expected text, found a NUL in it");
}

static int setup(void **state)
{
    (void)state;
    return cart_pool_new(&pool, 1, NULL);
}

static int teardown(void **state)
{
    (void)state;
    cart_pool_free(pool);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_widths),         cmocka_unit_test(test_heads),
        cmocka_unit_test(test_numbers),        cmocka_unit_test(test_vocabulary_keys),
        cmocka_unit_test(test_lists),          cmocka_unit_test(test_long_template),
        cmocka_unit_test(test_vectors),        cmocka_unit_test(test_tensor_table),
        cmocka_unit_test(test_rotation_keys),  cmocka_unit_test(test_widest_head),
        cmocka_unit_test(test_narrowest_head), cmocka_unit_test(test_nul_in_text),
        cmocka_unit_test(test_crafted),        cmocka_unit_test(test_bos),
    };
    cmocka_set_message_output(CM_OUTPUT_TAP);
    return cmocka_run_group_tests(tests, setup, teardown);
}
