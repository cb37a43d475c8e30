/* What the keys of a model file must not say: a tiny model with one of its keys renamed, or one
 * more, is refused with words of the right key. */
#include "base/io.h"
#include "format/gguf.h"
#include "model/model.h"

#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <setjmp.h>

#include <cmocka.h>

#define ALIGNMENT 32 /* of the tensors behind the keys, which must stay where they are */

static void load(struct cart_buf *b)
{
    const char *root = getenv("CART_TEST_ROOT");
    char path[512];
    struct cart_err err = {0};
    snprintf(path, sizeof path, "%s/tests/golden/tiny/llama_tied.gguf", root ? root : ".");
    if (cart_io_slurp(path, 1 << 24, b, &err) < 0)
        fail_msg("%s", err.msg);
}

static char *find(const struct cart_buf *b, const char *text)
{
    size_t n = strlen(text);
    for (size_t i = 0; i + n <= b->len; i++)
        if (memcmp(b->data + i, text, n) == 0)
            return b->data + i;
    fail_msg("no %s in the file", text);
    return NULL;
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
    uint64_t n;
    memcpy(&n, b->data + 16, sizeof n);
    put(&out, b->data, 16);
    put_u64(&out, n + 2);
    put_name(&out, key);
    put(&out, value->data, value->len);
    put_name(&out, "test.filler");
    put_u32(&out, CART_GGUF_STRING);
    size_t filler = ALIGNMENT - (out.len + 8 - 24) % ALIGNMENT;
    put_u64(&out, filler);
    for (size_t i = 0; i < filler; i++)
        put(&out, "x", 1);
    put(&out, b->data + 24, b->len - 24);
    cart_buf_release(b);
    *b = out;
}

static void insert_f32(struct cart_buf *b, const char *key, float x)
{
    struct cart_buf v = CART_BUF_INIT;
    put_u32(&v, CART_GGUF_F32);
    put(&v, &x, sizeof x);
    insert(b, key, &v);
    cart_buf_release(&v);
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

/* words NULL: the file is a model. Releases b. */
static void expect(struct cart_buf *b, const char *words)
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
    cart_model_close(m);
    cart_buf_release(b);
    if (!words && r < 0)
        fail_msg("%s", err.msg);
    if (!words)
        return;
    assert_int_equal(r, CART_EFORMAT);
    if (!strstr(err.msg, words))
        fail_msg("expected '%s' in: %s", words, err.msg);
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

static void test_untyped_scaling(void **state)
{
    (void)state;
    struct cart_buf b = CART_BUF_INIT;
    load(&b);
    insert_f32(&b, "llama.rope.scaling.factor", 1);
    expect(&b, NULL);
    load(&b);
    insert_f32(&b, "llama.rope.scaling.factor", 4);
    expect(&b, "key llama.rope.scaling.factor: found 4");
    load(&b);
    insert_f32(&b, "llama.rope.scale_linear", 2);
    expect(&b, "key llama.rope.scale_linear: found 2");
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

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_narrowest_head),
        cmocka_unit_test(test_untyped_scaling),
        cmocka_unit_test(test_nul_in_text),
    };
    cmocka_set_message_output(CM_OUTPUT_TAP);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
