/* The GGUF reader: typed look-ups on an image made here, every truncation and every byte changed,
 * the crafted hostile set with its verdicts, names that look like an attack on a hash table, other
 * formats. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "base/buf.h"
#include "base/clock.h"
#include "format/gguf.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* --- a writer of images --- */

static void put(struct cart_buf *b, const void *p, size_t n)
{
    assert_int_equal(cart_buf_add(b, p, n, NULL), 0);
}

static void put_int(struct cart_buf *b, uint64_t v, size_t n)
{
    unsigned char le[8];

    for (size_t i = 0; i < n; i++)
        le[i] = (unsigned char)(v >> (8 * i));
    put(b, le, n);
}

static void put_str(struct cart_buf *b, const char *s)
{
    put_int(b, strlen(s), 8);
    put(b, s, strlen(s));
}

static void put_header(struct cart_buf *b, unsigned version, uint64_t tensors, uint64_t keys)
{
    put(b, "GGUF", 4);
    put_int(b, version, 4);
    put_int(b, tensors, 8);
    put_int(b, keys, 8);
}

static void put_key(struct cart_buf *b, const char *name, unsigned type)
{
    put_str(b, name);
    put_int(b, type, 4);
}

static void put_fixed(struct cart_buf *b, const char *name, unsigned type, uint64_t v, size_t n)
{
    put_key(b, name, type);
    put_int(b, v, n);
}

static void put_tensor(struct cart_buf *b, const char *name, unsigned n_dims, const uint64_t *dims,
                       unsigned type, uint64_t offset)
{
    put_str(b, name);
    put_int(b, n_dims, 4);
    for (unsigned i = 0; i < n_dims; i++)
        put_int(b, dims[i], 8);
    put_int(b, type, 4);
    put_int(b, offset, 8);
}

static void pad_to(struct cart_buf *b, size_t a)
{
    while (b->len % a)
        put(b, "", 1);
}

/* An image with every kind of value, and two tensors: F32 [3] and Q8_0 [32, 2]. */
static void make_image(struct cart_buf *b)
{
    static const uint64_t dims_a[] = {3}, dims_b[] = {32, 2};

    put_header(b, 3, 2, 18);
    put_fixed(b, "u8", CART_GGUF_U8, 200, 1);
    put_fixed(b, "i8", CART_GGUF_I8, 0xFE, 1);
    put_fixed(b, "u16", CART_GGUF_U16, 60000, 2);
    put_fixed(b, "i16", CART_GGUF_I16, 1234, 2);
    put_fixed(b, "u32", CART_GGUF_U32, 4000000000u, 4);
    put_fixed(b, "i32", CART_GGUF_I32, 77, 4);
    put_fixed(b, "u64", CART_GGUF_U64, UINT64_MAX, 8);
    put_fixed(b, "i64", CART_GGUF_I64, (uint64_t)-5, 8);
    put_fixed(b, "f32", CART_GGUF_F32, 0x3FC00000, 4);                   /* 1.5 */
    put_fixed(b, "f64", CART_GGUF_F64, UINT64_C(0xC004000000000000), 8); /* -2.5 */
    put_fixed(b, "nan", CART_GGUF_F32, 0x7FC00000, 4);
    put_fixed(b, "yes", CART_GGUF_BOOL, 1, 1);
    put_key(b, "text", CART_GGUF_STRING);
    put_str(b, "hello");
    put_key(b, "tokens", CART_GGUF_ARRAY);
    put_int(b, CART_GGUF_STRING, 4);
    put_int(b, 3, 8);
    put_str(b, "a");
    put_str(b, "");
    put_str(b, "<|end|>");
    put_key(b, "types", CART_GGUF_ARRAY);
    put_int(b, CART_GGUF_I32, 4);
    put_int(b, 3, 8);
    put_int(b, 1, 4);
    put_int(b, (uint64_t)-7, 4);
    put_int(b, 3, 4);
    put_key(b, "scores", CART_GGUF_ARRAY);
    put_int(b, CART_GGUF_F32, 4);
    put_int(b, 2, 8);
    put_int(b, 0x3F800000, 4);
    put_int(b, 0xC0000000, 4);
    put_key(b, "flags", CART_GGUF_ARRAY);
    put_int(b, CART_GGUF_BOOL, 4);
    put_int(b, 2, 8);
    put_int(b, 1, 2); /* true, false */
    put_fixed(b, "general.alignment", CART_GGUF_U32, 64, 4);
    put_tensor(b, "a.weight", 1, dims_a, 0, 0);
    put_tensor(b, "b.weight", 2, dims_b, 8, 64);
    pad_to(b, 64);
    put_int(b, 0x3F800000, 4);
    put_int(b, 0x40000000, 4);
    put_int(b, 0x40400000, 4);
    pad_to(b, 64);
    for (int i = 0; i < 68; i++)
        put_int(b, (uint64_t)i, 1);
}

/* Parses an exact heap copy, so that a read beyond the end is seen by the sanitizer. */
static int parse_copy(struct cart_gguf **g, void **copy, const struct cart_buf *b, size_t n,
                      struct cart_err *err)
{
    *copy = malloc(n ? n : 1);
    assert_non_null(*copy);
    if (n)
        memcpy(*copy, b->data, n);
    return cart_gguf_parse(g, *copy, n, "image", err);
}

static void read_everything(const struct cart_gguf *g)
{
    volatile unsigned char sink = 0;

    for (size_t i = 0; i < cart_gguf_n_keys(g); i++) {
        const struct cart_gguf_key *k = cart_gguf_key_at(g, i);
        for (size_t j = 0; j < k->bytes; j++)
            sink ^= k->value[j];
    }
    for (size_t i = 0; i < cart_gguf_n_tensors(g); i++) {
        const struct cart_gguf_tensor *t = cart_gguf_tensor_at(g, i);
        for (size_t j = 0; j < t->bytes; j++)
            sink ^= t->data[j];
    }
}

/* --- tests --- */

static void test_scalars(void **state)
{
    struct cart_buf b = CART_BUF_INIT;
    struct cart_gguf *g;
    struct cart_err err;
    uint64_t u = 0;
    double d = 0;
    bool flag = false;

    (void)state;
    make_image(&b);
    assert_int_equal(cart_gguf_parse(&g, b.data, b.len, "image", &err), 0);
    assert_int_equal(cart_gguf_version(g), 3);
    assert_int_equal(cart_gguf_alignment(g), 64);
    assert_int_equal(cart_gguf_n_keys(g), 18);
    assert_int_equal(cart_gguf_u64(g, "u8", 255, &u, &err), 0);
    assert_int_equal(u, 200);
    assert_int_equal(cart_gguf_u64(g, "u16", UINT64_MAX, &u, &err), 0);
    assert_int_equal(u, 60000);
    assert_int_equal(cart_gguf_u64(g, "i16", UINT64_MAX, &u, &err), 0);
    assert_int_equal(u, 1234);
    assert_int_equal(cart_gguf_u64(g, "u32", UINT64_MAX, &u, &err), 0);
    assert_int_equal(u, 4000000000u);
    assert_int_equal(cart_gguf_u64(g, "u64", UINT64_MAX, &u, &err), 0);
    assert_true(u == UINT64_MAX);
    assert_int_equal(cart_gguf_u64(g, "u64", 1000, &u, &err), CART_EFORMAT);
    assert_string_equal(err.msg, "image: key u64: expected 0 to 1000, found 18446744073709551615");
    assert_int_equal(cart_gguf_u64(g, "i64", 1000, &u, &err), CART_EFORMAT);
    assert_string_equal(err.msg, "image: key i64: expected 0 to 1000, found a negative value");
    assert_int_equal(cart_gguf_u64(g, "i8", 1000, &u, &err), CART_EFORMAT);
    assert_int_equal(cart_gguf_u64(g, "f32", 1000, &u, &err), CART_EFORMAT);
    assert_string_equal(err.msg, "image: key f32: expected an integer, found f32");
    assert_int_equal(cart_gguf_u64(g, "none", 1000, &u, &err), CART_EFORMAT);
    u = 42;
    assert_int_equal(cart_gguf_u64_opt(g, "none", 1000, &u, &err), 0);
    assert_int_equal(u, 42);

    assert_int_equal(cart_gguf_real(g, "f32", &d, &err), 0);
    assert_true(d == 1.5);
    assert_int_equal(cart_gguf_real(g, "f64", &d, &err), 0);
    assert_true(d == -2.5);
    assert_int_equal(cart_gguf_real(g, "nan", &d, &err), CART_EFORMAT);
    assert_int_equal(cart_gguf_real(g, "u32", &d, &err), CART_EFORMAT);
    assert_int_equal(cart_gguf_bool_opt(g, "yes", &flag, &err), 0);
    assert_true(flag);
    assert_int_equal(cart_gguf_bool_opt(g, "u8", &flag, &err), CART_EFORMAT);
    cart_gguf_close(g);
    cart_buf_release(&b);
}

static void test_strings_and_arrays(void **state)
{
    struct cart_buf b = CART_BUF_INIT;
    struct cart_gguf *g;
    struct cart_err err;
    struct cart_gguf_str s;
    struct cart_gguf_array a;
    const unsigned strings = CART_GGUF_SET(CART_GGUF_STRING);

    (void)state;
    make_image(&b);
    assert_int_equal(cart_gguf_parse(&g, b.data, b.len, "image", &err), 0);
    assert_int_equal(cart_gguf_string(g, "text", &s, &err), 0);
    assert_int_equal(s.len, 5);
    assert_memory_equal(s.data, "hello", 5);
    assert_int_equal(cart_gguf_string(g, "tokens", &s, &err), CART_EFORMAT);
    assert_int_equal(cart_gguf_array(g, "tokens", strings, &a, &err), 0);
    assert_int_equal(a.n, 3);
    const unsigned char *cursor = a.data;
    cart_gguf_string_next(&cursor);
    assert_int_equal(cart_gguf_string_next(&cursor).len, 0);
    s = cart_gguf_string_next(&cursor);
    assert_int_equal(s.len, 7);
    assert_memory_equal(s.data, "<|end|>", 7);
    assert_ptr_equal(cursor, a.data + a.bytes);
    assert_int_equal(cart_gguf_array_opt(g, "none", strings, &a, &err), 0);
    assert_int_equal(cart_gguf_array_opt(g, "types", strings, &a, &err), CART_EFORMAT);
    assert_string_equal(err.msg, "image: key types: expected array of string, found array of i32");

    assert_int_equal(cart_gguf_array(g, "types", CART_GGUF_SET_INT, &a, &err), 0);
    assert_int_equal(a.n, 3);
    assert_int_equal(cart_gguf_array_i64(&a, 0), 1);
    assert_int_equal(cart_gguf_array_i64(&a, 1), -7);
    assert_int_equal(cart_gguf_array(g, "types", CART_GGUF_SET(CART_GGUF_U32), &a, &err),
                     CART_EFORMAT);
    assert_int_equal(cart_gguf_array(g, "flags", CART_GGUF_SET(CART_GGUF_BOOL), &a, &err), 0);
    assert_int_equal(cart_gguf_array_i64(&a, 0), 1);
    assert_int_equal(cart_gguf_array_i64(&a, 1), 0);
    assert_int_equal(cart_gguf_array(g, "scores", CART_GGUF_SET_REAL, &a, &err), 0);
    assert_int_equal(a.n, 2);
    assert_int_equal(cart_gguf_array(g, "text", CART_GGUF_SET_REAL, &a, &err), CART_EFORMAT);
    assert_string_equal(err.msg, "image: key text: expected array of f32 or f64, found string");
    cart_gguf_close(g);
    cart_buf_release(&b);
}

static void test_tensors(void **state)
{
    struct cart_buf b = CART_BUF_INIT;
    struct cart_gguf *g;
    struct cart_err err;
    size_t header;

    (void)state;
    make_image(&b);
    put(&b, "tail beyond the padding.........................................", 64);
    assert_int_equal(cart_gguf_parse(&g, b.data, b.len, "image", &err), 0);
    assert_int_equal(cart_gguf_n_tensors(g), 2);
    const struct cart_gguf_tensor *t = cart_gguf_tensor(g, "b.weight");
    assert_non_null(t);
    assert_ptr_equal(t, cart_gguf_tensor_at(g, 1));
    assert_int_equal(t->bytes, 68);
    assert_int_equal(t->n_dims, 2);
    assert_int_equal(t->dims[0], 32);
    assert_int_equal(t->dims[1], 2);
    assert_int_equal(t->dims[2], 1);
    assert_int_equal(t->data[67], 67);
    assert_int_equal(cart_gguf_tensor_at(g, 0)->bytes, 12);
    assert_null(cart_gguf_tensor(g, "c.weight"));
    assert_ptr_equal(cart_gguf_header(g, &header), b.data);
    assert_int_equal(cart_gguf_tensor_at(g, 0)->data - (unsigned char *)b.data,
                     (header + 63) / 64 * 64);
    cart_gguf_close(g);
    cart_buf_release(&b);
}

static void test_every_truncation(void **state)
{
    struct cart_buf b = CART_BUF_INIT;
    struct cart_gguf *g;
    struct cart_err err;
    void *copy;

    (void)state;
    make_image(&b);
    for (size_t n = 0; n < b.len; n++) {
        int r = parse_copy(&g, &copy, &b, n, &err);
        if (r >= 0)
            fail_msg("accepted when cut to %zu of %zu bytes", n, b.len);
        assert_true(r == CART_ETRUNC || r == CART_EFORMAT);
        assert_int_equal(strncmp(err.msg, "image: ", 7), 0);
        free(copy);
    }
    assert_int_equal(parse_copy(&g, &copy, &b, b.len, &err), 0);
    cart_gguf_close(g);
    free(copy);
    cart_buf_release(&b);
}

static void test_every_changed_byte(void **state)
{
    static const unsigned char flips[] = {0x01, 0x80, 0xFF, 0x10};
    struct cart_buf b = CART_BUF_INIT;
    struct cart_gguf *g;
    size_t accepted = 0;

    (void)state;
    make_image(&b);
    for (size_t i = 0; i < b.len; i++) {
        for (size_t f = 0; f < CART_COUNTOF(flips); f++) {
            void *copy;
            b.data[i] = (char)(b.data[i] ^ flips[f]);
            if (parse_copy(&g, &copy, &b, b.len, NULL) == 0) {
                accepted++;
                read_everything(g);
                cart_gguf_close(g);
            }
            free(copy);
            b.data[i] = (char)(b.data[i] ^ flips[f]);
        }
    }
    /* Values and data may change; structure may not. */
    assert_true(accepted > 100 && accepted < 4 * b.len - 400);
    cart_buf_release(&b);
}

/* The message for an image that must be refused. */
static void refused(const struct cart_buf *b, int code, const char *message)
{
    struct cart_gguf *g;
    struct cart_err err;
    void *copy;

    assert_int_equal(parse_copy(&g, &copy, b, b->len, &err), code);
    assert_string_equal(err.msg, message);
    free(copy);
}

static void test_messages(void **state)
{
    static const uint64_t dims[] = {8};
    struct cart_buf b = CART_BUF_INIT;

    (void)state;
    put_header(&b, 3, 1, 0);
    put_tensor(&b, "blk.0.%s\x1b[2J", 1, dims, 0, 48);
    pad_to(&b, 32);
    put(&b, "................................", 32);
    refused(&b, CART_EFORMAT,
            "image: tensor blk.0.%s\\x1b[2J: offset 48: expected a multiple of 32");
    cart_buf_reset(&b);
    put_header(&b, 2, 0, 1);
    put_key(&b, "k", 13);
    refused(&b, CART_EFORMAT, "image: key k: value type: expected 0 to 12, found 13");
    cart_buf_reset(&b);
    put_header(&b, 3, 0, 1);
    put_int(&b, 90, 8);
    put(&b, "short", 5);
    refused(&b, CART_ETRUNC, "image: key 0: name: expected 90 bytes at offset 32, found 5");
    cart_buf_reset(&b);
    put_header(&b, 0x03000000, 0, 0);
    refused(&b, CART_EFORMAT,
            "image: header: expected little-endian data, found a big-endian file");
    cart_buf_release(&b);
}

/* One key of a header, whose string or array follows. */
static void start_key(struct cart_buf *b, const char *name, unsigned type)
{
    cart_buf_reset(b);
    put_header(b, 3, 0, 1);
    put_key(b, name, type);
}

static void fill(struct cart_buf *b, size_t n)
{
    assert_int_equal(cart_buf_reserve(b, n, NULL), 0);
    memset(b->data + b->len, 'x', n);
    b->len += n;
}

static void taken(const struct cart_buf *b)
{
    struct cart_gguf *g;
    struct cart_err err;

    if (cart_gguf_parse(&g, b->data, b->len, "image", &err) < 0)
        fail_msg("%s", err.msg);
    cart_gguf_close(g);
}

/* Each stated maximum is taken, one more refused. */
static void test_limits(void **state)
{
    struct cart_buf b = CART_BUF_INIT;

    (void)state;
    for (uint64_t a = 65536; a <= 131072; a *= 2) {
        start_key(&b, "general.alignment", CART_GGUF_U32);
        put_int(&b, a, 4);
        if (a == 65536)
            taken(&b);
        else
            refused(&b, CART_EFORMAT,
                    "image: key general.alignment: expected a power of two from 8 to 65536, found "
                    "131072");
    }
    for (size_t more = 0; more < 2; more++)
        for (int in_array = 0; in_array < 2; in_array++) {
            start_key(&b, "k", in_array ? CART_GGUF_ARRAY : CART_GGUF_STRING);
            if (in_array) {
                put_int(&b, CART_GGUF_STRING, 4);
                put_int(&b, 1, 8);
            }
            put_int(&b, ((size_t)16 << 20) + more, 8);
            fill(&b, ((size_t)16 << 20) + more);
            if (more)
                refused(&b, CART_EFORMAT,
                        "image: key k: string: expected at most 16777216 bytes, found 16777217");
            else
                taken(&b);
        }
    for (size_t more = 0; more < 2; more++) {
        cart_buf_reset(&b);
        put_header(&b, 3, 0, 1);
        put_int(&b, 65535 + more, 8);
        fill(&b, 65535 + more);
        put_int(&b, CART_GGUF_U8, 4);
        put_int(&b, 1, 1);
        if (more)
            refused(&b, CART_EFORMAT,
                    "image: key 0: name: expected at most 65535 bytes, found 65536");
        else
            taken(&b);
    }
    cart_buf_reset(&b);
    put_header(&b, 3, 0, 1048577);
    fill(&b, 1048577 * 13);
    refused(&b, CART_EFORMAT,
            "image: header: key count: expected at most 1048577 (limit 1048576), found 1048577");
    cart_buf_reset(&b);
    put_header(&b, 3, 65537, 0);
    fill(&b, 65537 * 24);
    refused(&b, CART_EFORMAT,
            "image: header: tensor count: expected at most 65537 (limit 65536), found 65537");
    cart_buf_release(&b);
}

/* Sizes whose product is 0 modulo 2^64, or small. */
static void test_products(void **state)
{
    static const uint64_t dims[][4] = {{UINT64_C(1) << 32, UINT64_C(1) << 32, 1, 1},
                                       {UINT64_C(1) << 31, UINT64_C(1) << 31, 1, 1},
                                       {UINT64_C(1) << 48, UINT64_C(1) << 16, 1, 1},
                                       {16, 16, UINT64_C(1) << 48, UINT64_C(1) << 48}};
    struct cart_buf b = CART_BUF_INIT;

    (void)state;
    for (size_t i = 0; i < CART_COUNTOF(dims); i++) {
        char message[256];
        cart_buf_reset(&b);
        put_header(&b, 3, 1, 0);
        put_tensor(&b, "t", 4, dims[i], 0, 0);
        pad_to(&b, 32);
        snprintf(message, sizeof message,
                 "image: tensor t: dimensions: expected a size within the file's %zu bytes, found "
                 "%llu x %llu x %llu x %llu of F32",
                 b.len, (unsigned long long)dims[i][0], (unsigned long long)dims[i][1],
                 (unsigned long long)dims[i][2], (unsigned long long)dims[i][3]);
        refused(&b, CART_EFORMAT, message);
    }
    cart_buf_release(&b);
}

static void test_foreign(void **state)
{
    static const struct {
        const char *bytes;
        size_t n;
        const char *found;
    } cases[] = {
        {"version https://git-lfs.github.com/spec/v1\n", 43,
         "a Git LFS pointer (fetch the file itself with git lfs pull)"},
        {"<!DOCTYPE html><html>", 21, "an HTML or XML page (did a download fail?)"},
        {"\n <html>", 8, "an HTML or XML page (did a download fail?)"},
        {"PK\x03\x04....", 8, "a zip archive"},
        {"%PDF-1.7\n", 9, "a PDF document"},
        {"{\"error\":\"not found\"}", 21, "JSON text"},
        {"Not found\n", 10, "plain text"},
        {"\x05\0\0\0\0\0\0\0{\"a\":1}", 15,
         "a safetensors file (a cartridge goes with -c, weights by the name of their directory)"},
        {"tjgg\x03\0\0\0", 8, "a GGML file, from before GGUF"},
        {"\x89"
         "CART\r\n\x1a",
         8, "a cart stream"},
    };

    (void)state;
    for (size_t i = 0; i < CART_COUNTOF(cases); i++) {
        struct cart_buf b = CART_BUF_INIT;
        char message[200];
        put(&b, cases[i].bytes, cases[i].n);
        snprintf(message, sizeof message, "image: header: expected a GGUF file, found %s",
                 cases[i].found);
        refused(&b, CART_EFORMAT, message);
        cart_buf_release(&b);
    }
}

/* A million keys: a reader that compares each with all before it would take hours. */
static void test_many_keys(void **state)
{
    enum { N = 1000000 };
    struct cart_buf b = CART_BUF_INIT;
    struct cart_gguf *g;
    struct cart_err err;
    uint64_t v;

    (void)state;
    put_header(&b, 3, 0, N);
    for (int i = 0; i < N; i++) {
        char name[16];
        snprintf(name, sizeof name, "k%d", i);
        put_fixed(&b, name, CART_GGUF_U8, (uint64_t)i & 0xFF, 1);
    }
    double start = cart_clock_cpu();
    assert_int_equal(cart_gguf_parse(&g, b.data, b.len, "image", &err), 0);
    double seconds = cart_clock_cpu() - start;
    print_message("# %d keys in %.3f s\n", N, seconds);
    assert_int_equal(cart_gguf_u64(g, "k999999", 255, &v, &err), 0);
    assert_int_equal(v, 999999 & 0xFF);
    /* The bound of the reader's promise; instrumented builds are an order slower. */
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
    assert_true(seconds < 15.0);
#else
    assert_true(seconds < 1.5);
#endif
    cart_gguf_close(g);
    cart_buf_release(&b);
}

static void test_only_regular_files(void **state)
{
    char dir[] = "gguf-test-XXXXXX", path[64];
    struct cart_gguf *g;
    struct cart_err err;

    (void)state;
    assert_non_null(mkdtemp(dir));
    snprintf(path, sizeof path, "%s/fifo", dir);
    assert_int_equal(mkfifo(path, 0600), 0);
    assert_true(cart_gguf_open(&g, path, &err) < 0); /* and at once: a FIFO has no writer */
    assert_true(cart_gguf_open(&g, dir, &err) < 0);
    assert_int_equal(unlink(path), 0);
    assert_int_equal(cart_gguf_open(&g, path, &err), CART_ESYS);
    assert_int_equal(err.sys, ENOENT);
    assert_int_equal(rmdir(dir), 0);
}

/* The crafted set: each file of the list with its verdict. "policy" files are refused here,
 * "reject-at-load" ones are well-formed containers whose meaning the model room judges. */
static void test_crafted(void **state)
{
    const char *shared = getenv("CART_SHARED");
    char path[512], line[512];
    size_t files = 0;

    (void)state;
    snprintf(path, sizeof path, "%s/data/gguf-crafted/MANIFEST.tsv", shared ? shared : "../shared");
    FILE *list = fopen(path, "r");
    if (!list) {
        print_message("# skipped: %s is not here\n", path);
        skip();
    }
    assert_non_null(fgets(line, sizeof line, list));
    while (fgets(line, sizeof line, list)) {
        char name[64], verdict[32];
        struct cart_gguf *g;
        struct cart_err err;
        assert_int_equal(sscanf(line, "%63[^\t]\t%*[^\t]\t%31[^\t]", name, verdict), 2);
        snprintf(path, sizeof path, "%s/data/gguf-crafted/%s", shared ? shared : "../shared", name);
        bool accept = strcmp(verdict, "accept") == 0 || strcmp(verdict, "reject-at-load") == 0;
        int r = cart_gguf_open(&g, path, &err);
        if (accept != (r == 0))
            fail_msg("%s: expected %s, found %s", name, verdict, r ? err.msg : "accepted");
        if (r == 0) {
            read_everything(g);
            cart_gguf_close(g);
        } else if (r != CART_EFORMAT && r != CART_ETRUNC) {
            fail_msg("%s: code %d: %s", name, r, err.msg);
        }
        files++;
    }
    fclose(list);
    assert_int_equal(files, 96);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_scalars),
        cmocka_unit_test(test_strings_and_arrays),
        cmocka_unit_test(test_tensors),
        cmocka_unit_test(test_every_truncation),
        cmocka_unit_test(test_every_changed_byte),
        cmocka_unit_test(test_messages),
        cmocka_unit_test(test_limits),
        cmocka_unit_test(test_products),
        cmocka_unit_test(test_foreign),
        cmocka_unit_test(test_many_keys),
        cmocka_unit_test(test_only_regular_files),
        cmocka_unit_test(test_crafted),
    };

    cmocka_set_message_output(CM_OUTPUT_TAP);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
