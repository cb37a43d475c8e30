/* safetensors images: canonical writing, reading by the rules, the crafted set with its verdicts,
 * every truncation and every changed byte of a header, and values as JSON. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "base/io.h"
#include "stream/safetensors.h"
#include "stream/values.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const float floats[6] = {1.5f, -0.0f, 3e38f, 1e-45f, 0.1f, -7};
static const int64_t wholes[2] = {INT64_MIN, 5};

static void make_tensors(struct cart_st_tensor t[3])
{
    t[0] = (struct cart_st_tensor){"z", CART_ST_I64, 1, {2}, wholes, 16};
    t[1] = (struct cart_st_tensor){"a \"q\" \xc3\xa9", CART_ST_F32, 2, {2, 3}, floats, 24};
    t[2] = (struct cart_st_tensor){"none", CART_ST_BF16, 3, {4, 0, 9}, "", 0};
}

static void build(struct cart_buf *b, const json_t *meta)
{
    struct cart_st_tensor t[3];
    struct cart_err err;

    make_tensors(t);
    cart_buf_reset(b);
    assert_int_equal(cart_st_build(b, t, 3, meta, &err), 0);
}

static void test_write_then_read(void **state)
{
    struct cart_buf b = CART_BUF_INIT, again = CART_BUF_INIT;
    json_t *meta = json_pack("{s: s, s: s}", "b", "two", "a", "one");
    const struct cart_st_tensor *t;
    struct cart_st st;
    struct cart_err err;

    (void)state;
    build(&b, meta);
    assert_int_equal(b.len % 8, 0);
    assert_int_equal((b.len - 40) % 64, 0);
    static const char start[] =
        "{\"__metadata__\":{\"a\":\"one\",\"b\":\"two\"},\"z\":{\"dtype\":\"I64\","
        "\"shape\":[2],\"data_offsets\":[0,16]},";
    assert_memory_equal(b.data + 8, start, sizeof start - 1);

    assert_int_equal(cart_st_parse(&st, b.data, b.len, "x", &err), 0);
    assert_int_equal(st.n, 3);
    assert_string_equal(st.tensors[0].name, "z");
    assert_string_equal(st.tensors[1].name, "a \"q\" \xc3\xa9");
    assert_int_equal(json_object_size(st.metadata), 2);
    assert_int_equal(cart_st_expect(&st, "z", CART_ST_I64, 1, &t, "x", &err), 0);
    assert_memory_equal(t->data, wholes, 16);
    assert_int_equal(cart_st_expect(&st, "none", CART_ST_BF16, SIZE_MAX, &t, "x", &err), 0);
    assert_int_equal(t->shape[2], 9);
    assert_int_equal(t->bytes, 0);
    assert_int_equal(cart_st_expect(&st, "z", CART_ST_F32, 1, &t, "x", &err), CART_EFORMAT);
    assert_string_equal(err.msg, "x: tensor z: expected F32, found I64");
    assert_int_equal(cart_st_expect(&st, "z", CART_ST_I64, 2, &t, "x", &err), CART_EFORMAT);
    assert_int_equal(cart_st_expect(&st, "y", CART_ST_I64, 2, &t, "x", &err), CART_EFORMAT);
    assert_null(cart_st_find(&st, "y"));

    assert_int_equal(cart_st_build(&again, st.tensors, st.n, st.metadata, &err), 0);
    assert_int_equal(again.len, b.len);
    assert_memory_equal(again.data, b.data, b.len);
    cart_st_release(&st);

    FILE *f = tmpfile();
    struct cart_st_tensor list[3];
    make_tensors(list);
    assert_int_equal(cart_st_write(fileno(f), list, 3, meta, "x", &err), 0);
    assert_int_equal(pread(fileno(f), again.data, again.cap, 0), (ssize_t)b.len);
    assert_memory_equal(again.data, b.data, b.len);
    fclose(f);
    json_decref(meta);
    cart_buf_release(&b);
    cart_buf_release(&again);
}

static void test_nothing_at_all(void **state)
{
    struct cart_buf b = CART_BUF_INIT;
    json_t *empty = json_object();
    struct cart_st st;
    struct cart_err err;

    (void)state;
    assert_int_equal(cart_st_build(&b, NULL, 0, empty, &err), 0);
    assert_int_equal(b.len, 64);
    assert_int_equal(cart_st_parse(&st, b.data, b.len, "x", &err), 0);
    assert_int_equal(st.n, 0);
    assert_int_equal(json_object_size(st.metadata), 0);
    cart_st_release(&st);
    json_decref(empty);
    cart_buf_release(&b);
}

static void refuse(struct cart_st_tensor *t, size_t n, const json_t *meta)
{
    struct cart_buf b = CART_BUF_INIT;
    struct cart_err err;

    assert_int_equal(cart_st_build(&b, t, n, meta, &err), CART_EUSAGE);
    assert_int_equal(b.len, 0);
    cart_buf_release(&b);
}

static void test_writer_refuses(void **state)
{
    struct cart_st_tensor t[3];
    json_t *meta = json_pack("{s: i}", "a", 1);

    (void)state;
    make_tensors(t);
    refuse(t, 3, meta);
    json_decref(meta);
    t[1].bytes = 20;
    refuse(t, 3, NULL);
    make_tensors(t);
    t[1].name = "z";
    refuse(t, 3, NULL);
    t[1].name = "__metadata__";
    refuse(t, 3, NULL);
    t[1].name = "";
    refuse(t, 3, NULL);
    t[1].name = "\xff";
    refuse(t, 3, NULL);
    make_tensors(t);
    t[2].shape[0] = t[2].shape[1] = SIZE_MAX / 2;
    refuse(t, 3, NULL);
    t[2].rank = 9;
    refuse(t, 3, NULL);
}

static void test_every_truncation(void **state)
{
    struct cart_buf b = CART_BUF_INIT;
    struct cart_st st;
    struct cart_err err;

    (void)state;
    build(&b, NULL);
    for (size_t n = 0; n < b.len; n++)
        assert_int_equal(cart_st_parse(&st, b.data, n, "x", &err), CART_ETRUNC);
    assert_int_equal(cart_buf_add(&b, "x", 1, NULL), 0);
    assert_int_equal(cart_st_parse(&st, b.data, b.len, "x", &err), CART_EFORMAT);
    cart_buf_release(&b);
}

/* A type of the format that nothing here computes with is told from a name that is none. */
static void test_other_types(void **state)
{
    static const struct {
        const char *dtype, *message;
    } cases[] = {{"F8_E4M3", "x: tensor t: type F8_E4M3 is not supported: expected F64, F32"},
                 {"C64", "x: tensor t: type C64 is not supported"},
                 {"F33", "x: tensor t: dtype: expected one of safetensors, found F33"}};
    char image[256];
    (void)state;
    for (size_t i = 0; i < CART_COUNTOF(cases); i++) {
        struct cart_st st;
        struct cart_err err;
        int n = snprintf(image + 8, sizeof image - 8,
                         "{\"t\":{\"dtype\":\"%s\",\"shape\":[8],\"data_offsets\":[0,8]}}",
                         cases[i].dtype);
        memset(image, 0, 8);
        image[0] = (char)n;
        assert_int_equal(cart_st_parse(&st, image, 8 + (size_t)n + 8, "x", &err), CART_EFORMAT);
        if (strncmp(err.msg, cases[i].message, strlen(cases[i].message)) != 0)
            fail_msg("%s: %s", cases[i].dtype, err.msg);
    }
}

/* Any one header byte changed to any value: refused, or read as something whose pointers stay
 * inside (under ASan). */
static void test_every_header_byte(void **state)
{
    struct cart_buf b = CART_BUF_INIT;
    struct cart_st st;
    struct cart_err err;
    size_t accepted = 0;

    (void)state;
    build(&b, NULL);
    size_t header = b.len - 40;
    for (size_t at = 0; at < header; at++)
        for (int v = 0; v < 256; v++) {
            char old = b.data[at];
            unsigned sum = 0;
            b.data[at] = (char)v;
            if (cart_st_parse(&st, b.data, b.len, "x", &err) == 0) {
                accepted++;
                for (size_t i = 0; i < st.n; i++)
                    for (size_t k = 0; k < st.tensors[i].bytes; k++)
                        sum += ((const unsigned char *)st.tensors[i].data)[k];
                assert_true(sum < 40 * 256);
                cart_st_release(&st);
            }
            b.data[at] = old;
        }
    assert_true(accepted > header);
    cart_buf_release(&b);
}

static void test_crafted_set(void **state)
{
    const char *shared = getenv("CART_SHARED");
    char path[512], line[512], name[128], verdict[32];
    size_t bytes;
    int seen = 0;

    (void)state;
    snprintf(path, sizeof path, "%s/data/safetensors-crafted/MANIFEST.tsv",
             shared != NULL ? shared : "../shared");
    FILE *list = fopen(path, "r");
    if (list == NULL) {
        print_message("# no crafted set at %s\n", path);
        skip();
    }
    assert_non_null(fgets(line, sizeof line, list));
    while (fgets(line, sizeof line, list) != NULL) {
        struct cart_buf b = CART_BUF_INIT;
        struct cart_st st;
        struct cart_err err;
        assert_int_equal(sscanf(line, "%127s %zu %31s", name, &bytes, verdict), 3);
        snprintf(path, sizeof path, "%s/data/safetensors-crafted/%s",
                 shared != NULL ? shared : "../shared", name);
        assert_int_equal(cart_io_slurp(path, 1 << 20, &b, &err), 0);
        assert_int_equal(b.len, bytes);
        int r = cart_st_parse(&st, b.data ? b.data : "", b.len, name, &err);
        if ((r == 0) != (strcmp(verdict, "accept") == 0))
            fail_msg("%s: expected %s, found %d", name, verdict, r);
        if (r == 0)
            cart_st_release(&st);
        else
            assert_int_equal(cart_err_status(r), 3);
        cart_buf_release(&b);
        seen++;
    }
    fclose(list);
    assert_true(seen >= 36);
}

static void test_many_names(void **state)
{
    enum { N = 50000 };
    struct cart_st_tensor *t = calloc(N, sizeof *t);
    char(*names)[16] = calloc(N, sizeof *names);
    struct cart_buf b = CART_BUF_INIT;
    struct cart_st st;
    struct cart_err err;

    (void)state;
    for (size_t i = 0; i < N; i++) {
        snprintf(names[i], sizeof names[i], "t%zu", i);
        t[i] = (struct cart_st_tensor){names[i], CART_ST_U8, 0, {0}, "\7", 1};
    }
    assert_int_equal(cart_st_build(&b, t, N, NULL, &err), 0);
    assert_int_equal(cart_st_parse(&st, b.data, b.len, "x", &err), 0);
    for (size_t i = 0; i < N; i++)
        assert_ptr_equal(cart_st_find(&st, names[i]), &st.tensors[i]);
    cart_st_release(&st);
    free(t);
    free(names);
    cart_buf_release(&b);
}

/* --- values --- */

static void there_and_back(enum cart_st_dtype dtype, const void *bytes, size_t n)
{
    struct cart_st_tensor t = {"t", dtype, 1, {n}, bytes, n * cart_st_dtype_size(dtype)};
    struct cart_buf text = CART_BUF_INIT, back = CART_BUF_INIT;
    struct cart_err err;
    json_t *v;

    assert_int_equal(cart_values_print(&t, &text, &err), 0);
    assert_int_equal(cart_json_parse(&v, text.data, text.len, "t", &err), 0);
    t.shape[0] = 77;
    assert_int_equal(cart_values_parse(&t, true, v, &back, "t", &err), 0);
    assert_int_equal(t.shape[0], n);
    assert_int_equal(t.bytes, n * cart_st_dtype_size(dtype));
    assert_int_equal(back.len, t.bytes);
    if (n > 0)
        assert_memory_equal(back.data, bytes, t.bytes);
    json_decref(v);
    cart_buf_release(&text);
    cart_buf_release(&back);
}

static void test_values_all_16_bits(void **state)
{
    static const enum cart_st_dtype dtypes[] = {CART_ST_F16, CART_ST_BF16, CART_ST_I16,
                                                CART_ST_U16};
    uint16_t *all = calloc(65536, sizeof *all);

    (void)state;
    for (size_t i = 0; i < 65536; i++)
        all[i] = (uint16_t)i;
    for (size_t i = 0; i < CART_COUNTOF(dtypes); i++)
        there_and_back(dtypes[i], all, 65536);
    free(all);
}

static void test_values_wide(void **state)
{
    static const enum cart_st_dtype dtypes[] = {CART_ST_F32, CART_ST_F64, CART_ST_I32,
                                                CART_ST_I64, CART_ST_U32, CART_ST_U64,
                                                CART_ST_I8,  CART_ST_U8,  CART_ST_BOOL};
    enum { N = 20000 };
    uint64_t *bits = calloc(N, sizeof *bits), x = 1;

    (void)state;
    for (size_t i = 0; i < N; i++) {
        x = x * 6364136223846793005u + 1442695040888963407u;
        bits[i] = x ^ x >> 33;
    }
    for (size_t i = 0; i < CART_COUNTOF(dtypes); i++) {
        there_and_back(dtypes[i], bits, N);
        there_and_back(dtypes[i], bits, 0);
    }
    free(bits);
    there_and_back(CART_ST_F32, floats, 6);
    there_and_back(CART_ST_I64, wholes, 2);
}

static void test_values_text(void **state)
{
    static const float x[8] = {0.1f, -0.0f, 1.0f / 3, 16777216, 1e10f, -2.5f, 0, 3.4028234e38f};
    static const uint64_t u[2] = {UINT64_MAX, 3};
    static const uint32_t odd[3] = {0x7f800000, 0xff800000, 0xffc00001};
    struct cart_st_tensor t = {"t", CART_ST_F32, 3, {2, 2, 2}, x, 32};
    struct cart_buf b = CART_BUF_INIT;

    (void)state;
    assert_int_equal(cart_values_print(&t, &b, NULL), 0);
    assert_string_equal(b.data,
                        "[[[0.1,-0.0],[0.33333334,16777216]],[[1e+10,-2.5],[0,3.4028235e+38]]]");
    cart_buf_reset(&b);
    t = (struct cart_st_tensor){"t", CART_ST_U64, 1, {2}, u, 16};
    assert_int_equal(cart_values_print(&t, &b, NULL), 0);
    assert_string_equal(b.data, "[\"18446744073709551615\",3]");
    cart_buf_reset(&b);
    t = (struct cart_st_tensor){"t", CART_ST_F32, 1, {3}, odd, 12};
    assert_int_equal(cart_values_print(&t, &b, NULL), 0);
    assert_string_equal(b.data, "[\"Infinity\",\"-Infinity\",\"NaN:ffc00001\"]");
    cart_buf_reset(&b);
    t = (struct cart_st_tensor){"t", CART_ST_F32, 0, {0}, x, 4};
    assert_int_equal(cart_values_print(&t, &b, NULL), 0);
    assert_string_equal(b.data, "0.1");
    cart_buf_reset(&b);
    t = (struct cart_st_tensor){"t", CART_ST_F32, 3, {SIZE_MAX / 8, 1, 0}, x, 0};
    assert_int_equal(cart_values_print(&t, &b, NULL), 0);
    assert_string_equal(b.data, "[]");
    cart_buf_release(&b);
}

/* A double is rounded once, to the nearest and of two to the even one: not by way of a float, which
 * makes ties. */
static void test_values_rounded_once(void **state)
{
    static const struct {
        const char *text;
        unsigned bits;
    } cases[] = {
        {"[1.00390625]", 0x3f80},
        {"[1.0039062500009]", 0x3f81},
        {"[1.0039062499991]", 0x3f80},
        {"[1.01171875]", 0x3f82},
        {"[1.0117187499991]", 0x3f81},
        {"[1.0117187500009]", 0x3f82},
        {"[-1.0039062500009]", 0xbf81},
        {"[-1.0117187499991]", 0xbf81},
        {"[3.3895313892515355e38]", 0x7f7f},
        {"[1e-45]", 0x0000},
        {"[4.7e-41]", 0x0001},
    };

    (void)state;
    for (size_t i = 0; i < CART_COUNTOF(cases); i++) {
        struct cart_st_tensor t = {"t", CART_ST_BF16, 1, {1}, NULL, 0};
        struct cart_buf b = CART_BUF_INIT;
        json_t *v;
        assert_int_equal(cart_json_parse(&v, cases[i].text, strlen(cases[i].text), "t", NULL), 0);
        assert_int_equal(cart_values_parse(&t, false, v, &b, "t", NULL), 0);
        unsigned found = (unsigned char)b.data[0] | (unsigned)(unsigned char)b.data[1] << 8;
        if (found != cases[i].bits)
            fail_msg("%s: expected %04x, found %04x", cases[i].text, cases[i].bits, found);
        json_decref(v);
        cart_buf_release(&b);
    }
}

/* The longest header is wanted, a longer one refused before a byte of it is there. */
static void test_longest_header(void **state)
{
    static const unsigned char longest[8] = {0x00, 0xe1, 0xf5, 0x05},
                               longer[8] = {0x01, 0xe1, 0xf5, 0x05};
    struct cart_st st;
    struct cart_err err;

    (void)state;
    assert_int_equal(cart_st_parse(&st, longest, 8, "x", &err), CART_ETRUNC);
    assert_int_equal(cart_st_parse(&st, longer, 8, "x", &err), CART_EFORMAT);
    assert_string_equal(err.msg,
                        "x: safetensors header: expected at most 100000000 bytes, found 100000001");
}

static void test_values_refused(void **state)
{
    static const struct {
        enum cart_st_dtype dtype;
        const char *text;
    } cases[] = {
        {CART_ST_I32, "[2147483648]"},
        {CART_ST_I32, "[-2147483649]"},
        {CART_ST_I32, "[1.0]"},
        {CART_ST_I32, "[null]"},
        {CART_ST_I32, "[\"1\"]"},
        {CART_ST_I32, "[[1]]"},
        {CART_ST_I32, "{}"},
        {CART_ST_U8, "[256]"},
        {CART_ST_U8, "[-1]"},
        {CART_ST_F32, "[1e39]"},
        {CART_ST_F32, "[true]"},
        {CART_ST_F32, "[\"NaN\"]"},
        {CART_ST_F32, "[\"NaN:7f800000\"]"},
        {CART_ST_F32, "[\"NaN:7FC00000\"]"},
        {CART_ST_F16, "[65520]"},
        {CART_ST_U64, "[\"18446744073709551616\"]"},
        {CART_ST_U64, "[\"-1\"]"},
        {CART_ST_U64, "[\"99999999999999999999 \"]"},
    };
    struct cart_err err;

    (void)state;
    for (size_t i = 0; i < CART_COUNTOF(cases); i++) {
        struct cart_st_tensor t = {"t", cases[i].dtype, 1, {1}, NULL, 0};
        struct cart_buf b = CART_BUF_INIT;
        json_t *v;
        assert_int_equal(cart_json_parse(&v, cases[i].text, strlen(cases[i].text), "t", &err), 0);
        if (cart_values_parse(&t, false, v, &b, "t", &err) != CART_EFORMAT)
            fail_msg("%s was taken", cases[i].text);
        json_decref(v);
        cart_buf_release(&b);
    }
}

static void test_values_range(void **state)
{
    static const float x[4] = {2, -3.5f, 1e9f, 0};
    static const uint32_t inf[1] = {0x7f800000};
    struct cart_st_tensor t = {"t", CART_ST_F32, 1, {4}, x, 16};
    json_t *low, *high;
    bool finite;

    (void)state;
    assert_int_equal(cart_values_range(&t, &low, &high, &finite, NULL), 0);
    assert_true(finite && json_real_value(low) == -3.5 && json_number_value(high) == 1e9);
    json_decref(low);
    json_decref(high);
    t = (struct cart_st_tensor){"t", CART_ST_F32, 1, {1}, inf, 4};
    assert_int_equal(cart_values_range(&t, &low, &high, &finite, NULL), 0);
    assert_true(!finite && json_is_null(low) && json_is_null(high));
    t = (struct cart_st_tensor){"t", CART_ST_I64, 1, {2}, wholes, 16};
    assert_int_equal(cart_values_range(&t, &low, &high, &finite, NULL), 0);
    assert_true(finite && json_integer_value(low) == INT64_MIN && json_integer_value(high) == 5);
    json_decref(low);
    json_decref(high);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_write_then_read),     cmocka_unit_test(test_nothing_at_all),
        cmocka_unit_test(test_writer_refuses),      cmocka_unit_test(test_every_truncation),
        cmocka_unit_test(test_other_types),         cmocka_unit_test(test_every_header_byte),
        cmocka_unit_test(test_crafted_set),         cmocka_unit_test(test_many_names),
        cmocka_unit_test(test_values_all_16_bits),  cmocka_unit_test(test_values_wide),
        cmocka_unit_test(test_values_text),         cmocka_unit_test(test_values_refused),
        cmocka_unit_test(test_values_range),        cmocka_unit_test(test_longest_header),
        cmocka_unit_test(test_values_rounded_once),
    };

    cmocka_set_message_output(CM_OUTPUT_TAP);
    return cmocka_run_group_tests_name("safetensors", tests, NULL, NULL);
}
