/* base/json.h: what is refused, what is canonical, typed look-ups. */
#include "base/json.h"

#include <errno.h>
#include <math.h>
#include <setjmp.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static void check_refused(const char *text, size_t n, const char *part)
{
    struct cart_err err = {0};
    json_t *v = NULL;
    assert_int_equal(cart_json_parse(&v, text, n, "input", &err), CART_EFORMAT);
    assert_null(v);
    assert_memory_equal(err.msg, "input: JSON: ", 13);
    if (!strstr(err.msg, part))
        fail_msg("<%s> is not in <%s>", part, err.msg);
}

static void test_refused(void **state)
{
    (void)state;
    static const char *const bad[] = {
        "",
        " ",
        "{",
        "[1,]",
        "{\"a\":1,}",
        "{\"a\":1 \"b\":2}",
        "[1] 2",
        "nul",
        "NaN",
        "Infinity",
        "-",
        "01",
        "1.",
        ".5",
        "'a'",
        "\"\x01\"",
        "\"\\x\"",
        "\"\\ud800\"",
        "[1",
        "\xef\xbb\xbf{}",
        "\"\xff\"",
        "\"\xc0\xaf\"",
        "{1:2}",
        "1e999",
        "99999999999999999999",
        "{\"a\":1,\"a\":2}",
        "// x\n1",
    };
    for (size_t i = 0; i < CART_COUNTOF(bad); i++)
        check_refused(bad[i], strlen(bad[i]), "column");
    check_refused("{\"a\":1,\"a\":2}", 13, "duplicate");
}

static void test_depth(void **state)
{
    (void)state;
    char text[2 * 129];
    memset(text, '[', 129);
    memset(text + 129, ']', 129);
    check_refused(text, sizeof text,
                  "JSON: column 129: expected at most 128 lists in each other, found '[");
    json_t *v = NULL;
    assert_int_equal(cart_json_parse(&v, text + 1, sizeof text - 2, "input", NULL), 0);
    struct cart_buf b = CART_BUF_INIT;
    assert_int_equal(cart_json_dump(v, &b, NULL), 0);
    assert_int_equal(b.len, 256);
    cart_buf_release(&b);
    json_decref(v);
    /* Brackets in strings do not count. */
    char *quoted = malloc(1003);
    assert_non_null(quoted);
    memset(quoted, '[', 1002);
    quoted[0] = quoted[1001] = '"';
    assert_int_equal(cart_json_parse(&v, quoted, 1002, "input", NULL), 0);
    json_decref(v);
    free(quoted);
}

static void check_canonical(const char *text, const char *expected)
{
    json_t *v = NULL;
    struct cart_err err = {0};
    struct cart_buf b = CART_BUF_INIT;
    if (cart_json_parse(&v, text, strlen(text), "input", &err) < 0)
        fail_msg("%s", err.msg);
    assert_int_equal(cart_json_dump(v, &b, &err), 0);
    assert_string_equal(b.data, expected);
    cart_buf_release(&b);
    json_decref(v);
}

static void test_canonical(void **state)
{
    (void)state;
    check_canonical(" { \"b\" : [ 1 , 2.50 , null ] , \"a\" : { } } ",
                    "{\"a\":{},\"b\":[1,2.5,null]}");
    check_canonical("\"\\u00e9\\/\\n\\u0001\\\"\\\\ \\ud83d\\ude00\"",
                    "\"\xc3\xa9/\\n\\u0001\\\"\\\\ \xf0\x9f\x98\x80\"");
    check_canonical("\"a\\u0000b\"", "\"a\\u0000b\"");
    check_canonical("[true,false,-9223372036854775808,9223372036854775807]",
                    "[true,false,-9223372036854775808,9223372036854775807]");
    check_canonical("[1.0,0.1,1e300,-0.0,5e-324,1e22]",
                    "[1.0,0.1,1e+300,-0.0,4.94065645841247e-324,1e+22]");
    check_canonical("{\"B\":1,\"a\":2,\"\xc3\xa4\":3,\"\":4}",
                    "{\"\":4,\"B\":1,\"a\":2,\"\xc3\xa4\":3}");
}

static void test_reals_are_exact(void **state)
{
    (void)state;
    uint64_t x = 88172645463325252U;
    for (int i = 0; i < 20000; i++) {
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
        double d;
        memcpy(&d, &x, sizeof d);
        if (!isfinite(d))
            continue;
        json_t *v = json_real(d);
        json_t *back = NULL;
        struct cart_buf b = CART_BUF_INIT;
        assert_int_equal(cart_json_dump(v, &b, NULL), 0);
        assert_int_equal(cart_json_parse(&back, b.data, b.len, "real", NULL), 0);
        assert_true(json_is_real(back));
        double e = json_real_value(back);
        assert_memory_equal(&d, &e, sizeof d);
        cart_buf_release(&b);
        json_decref(v);
        json_decref(back);
    }
}

static void test_lookups(void **state)
{
    (void)state;
    const char *text = "{\"s\":\"x\",\"n\":7,\"r\":1.5,\"t\":true,\"o\":{},\"a\":[],\"z\":null,"
                       "\"neg\":-1,\"nul\":\"a\\u0000b\"}";
    json_t *v = NULL;
    struct cart_err err = {0};
    assert_int_equal(cart_json_parse(&v, text, strlen(text), "input", &err), 0);
    const char *s = "old";
    uint64_t n = 1;
    bool t = false;
    json_t *child = NULL;
    assert_int_equal(cart_json_string(v, "s", &s, "head", &err), 0);
    assert_string_equal(s, "x");
    assert_int_equal(cart_json_u64(v, "n", 7, &n, "head", &err), 0);
    assert_int_equal(n, 7);
    assert_int_equal(cart_json_bool_opt(v, "t", &t, "head", &err), 0);
    assert_true(t);
    assert_int_equal(cart_json_object(v, "o", &child, "head", &err), 0);
    assert_int_equal(cart_json_array(v, "a", &child, "head", &err), 0);
    assert_int_equal(cart_json_string_opt(v, "z", &s, "head", &err), 0);
    assert_int_equal(cart_json_string_opt(v, "absent", &s, "head", &err), 0);
    assert_string_equal(s, "x");

    assert_int_equal(cart_json_string(v, "absent", &s, "head", &err), CART_EFORMAT);
    assert_string_equal(err.msg, "head: absent: expected a string, found nothing");
    assert_int_equal(cart_json_string(v, "nul", &s, "head", &err), CART_EFORMAT);
    assert_int_equal(cart_json_u64(v, "n", 6, &n, "head", &err), CART_EFORMAT);
    assert_string_equal(err.msg, "head: n: expected an integer from 0 to 6, found 7");
    assert_int_equal(cart_json_u64(v, "neg", 6, &n, "head", &err), CART_EFORMAT);
    assert_int_equal(cart_json_u64_opt(v, "r", 6, &n, "head", &err), CART_EFORMAT);
    assert_int_equal(cart_json_array(v, "o", &child, "head", &err), CART_EFORMAT);
    assert_string_equal(err.msg, "head: o: expected an array, found an object");
    assert_int_equal(cart_json_string(json_object_get(v, "a"), "s", &s, "head", &err),
                     CART_EFORMAT);
    assert_int_equal(n, 7);
    json_decref(v);
}

/* Where a fault is, and how far the end of the text may lie before it. */
static void test_messages(void **state)
{
    (void)state;
    static const char *const cases[][2] = {
        {"{\"a\":\n [1, \"\xc3\xa4\" x]}", "line 2, column 10: expected ',' or ']', found 'x]}'"},
        {"{\"a\":1,\"a\":2}", "JSON: column 9: expected no duplicate key, found 'a\":2}'"},
        {"[1", "JSON: column 3: expected ',' or ']', found the end"},
        {"\"\\ud800\\u0041\"", "JSON: column 4: expected four hexadecimal digits"},
        {"\"ab\xff\"", "JSON: column 4: expected UTF-8, found '\\xff\"'"},
        {"{\"a\\u0000b\":1}", "column 3: expected a key without NUL, found 'a\\u0000b\":1}'"},
        {"[9223372036854775808]", "column 2: expected an integer of 64 bits"},
        {"{} {}", "JSON: column 4: expected nothing more, found '{}'"},
    };
    for (size_t i = 0; i < CART_COUNTOF(cases); i++)
        check_refused(cases[i][0], strlen(cases[i][0]), cases[i][1]);
}

/* The same verdict and the same value as jansson's own parser, on texts with a few bytes
 * exchanged. */
static void test_as_jansson(void **state)
{
    (void)state;
    static const char seed[] =
        "{\"a\":[1,-20,3.5e2,0.25E-1,true,false,null,\"x\\u00e9\\n\\ud83d\\ude00\\u0000\"],"
        "\"\xc3\xa4\":{\"b\":{},\"c\":[]},\"\":\"\xf0\x9f\x98\x80\" , \"d\" : 0 }";
    static const char bytes[] = "{}[]\",:\\u0019aeE+-.tfnl \n\xc3\xa4\xf0\x9f\xed\xa0\x80\x01";
    uint64_t x = 88172645463325252U;
    size_t accepted = 0;
    for (int i = 0; i < 100000; i++) {
        char text[sizeof seed];
        size_t n = sizeof seed - 1;
        memcpy(text, seed, n);
        for (int k = i % 4; k >= 0; k--) {
            x ^= x << 13;
            x ^= x >> 7;
            x ^= x << 17;
            text[x % n] = bytes[(x >> 20) % (sizeof bytes - 1)];
            if ((x >> 40) % 8 == 0)
                n = 1 + (x >> 43) % n;
        }
        json_error_t e;
        json_t *mine = NULL;
        json_t *want =
            json_loadb(text, n, JSON_REJECT_DUPLICATES | JSON_DECODE_ANY | JSON_ALLOW_NUL, &e);
        int r = cart_json_parse(&mine, text, n, "input", NULL);
        if ((r == 0) != (want != NULL) || (want && !json_equal(mine, want)))
            fail_msg("%.*s: jansson %s", (int)n, text, want ? "accepts" : e.text);
        accepted += r == 0;
        json_decref(mine);
        json_decref(want);
    }
    assert_in_range(accepted, 1000, 90000);
}

static void test_difference(void **state)
{
    (void)state;
    static const struct {
        const char *saved, *asked, *why;
    } cases[] = {
        {"{\"a\":1,\"b\":[1,{\"c\":2}]}", "{\"b\":[1,{\"c\":2}],\"a\":1}", NULL},
        {"{\"lr\":0.02}", "{\"lr\":0.01}", "lr: saved with 0.02, asked for 0.01"},
        {"{\"a\":{\"b\":[1,{\"c\":2}]}}", "{\"a\":{\"b\":[1,{\"c\":\"x\"}]}}",
         "c: saved with 2, asked for \"x\""},
        {"{\"a\":1}", "{}", "a: saved with 1, asked for none"},
        {"{}", "{\"a\":null}", "a: saved with none, asked for null"},
        {"{\"a\":[1]}", "{\"a\":[1,2]}", "a: saved with [1], asked for [1,2]"},
    };
    for (size_t i = 0; i < CART_COUNTOF(cases); i++) {
        struct cart_buf why = CART_BUF_INIT;
        json_t *a = NULL, *b = NULL;
        assert_int_equal(cart_json_parse(&a, cases[i].saved, strlen(cases[i].saved), "", NULL), 0);
        assert_int_equal(cart_json_parse(&b, cases[i].asked, strlen(cases[i].asked), "", NULL), 0);
        assert_int_equal(cart_json_difference(a, b, &why, NULL), cases[i].why != NULL);
        if (cases[i].why)
            assert_string_equal(why.data, cases[i].why);
        json_decref(a);
        json_decref(b);
        cart_buf_release(&why);
    }
}

/* ---- memory ---- */

static size_t taken;

static void *counted_malloc(size_t n)
{
    void *p = malloc(n);
    taken += p ? n + 8 : 0;
    return p;
}

static void counted_free(void *p)
{
    free(p);
}

/* n times item with commas, between first and last. */
static struct cart_buf repeated(const char *first, const char *item, size_t n, const char *last)
{
    struct cart_buf b = CART_BUF_INIT;
    assert_int_equal(cart_buf_add(&b, first, strlen(first), NULL), 0);
    for (size_t i = 0; i < n; i++)
        assert_int_equal(cart_buf_addf(&b, NULL, "%s%s", i ? "," : "", item), 0);
    assert_int_equal(cart_buf_add(&b, last, strlen(last), NULL), 0);
    return b;
}

static void test_memory(void **state)
{
    (void)state;
    /* A whole list of such elements is taken, or takes too much. */
    static const struct {
        const char *item;
        bool taken;
    } dense[] = {
        {"0", true},
        {"null", true},
        {"0e0", true},
        {"\"\"", true},
        {"[0,1]", true},
        {"[\"a\",\"b\"]", true},
        {"{\"a\":1,\"b\":2}", true},
        {"{\"id\":1,\"special\":true}", true},
        {"[]", false},
        {"{}", false},
        {"[[]]", false},
        {"{\"\":{}}", false},
    };
    for (size_t i = 0; i < CART_COUNTOF(dense); i++) {
        struct cart_buf b = repeated("[", dense[i].item, 200000, "]");
        json_t *v = NULL;
        if (!dense[i].taken)
            check_refused(b.data, b.len, "expected values that take at most");
        else if (cart_json_parse(&v, b.data, b.len, "input", NULL) < 0)
            fail_msg("%s", dense[i].item);
        json_decref(v);
        cart_buf_release(&b);
    }
}

/* What is counted is what jansson asks for, and little more. */
static void test_memory_is_counted(void **state)
{
    (void)state;
    static const char *const items[] = {"0",
                                        "0.5",
                                        "\"\"",
                                        "\"twenty bytes in here\"",
                                        "[]",
                                        "{}",
                                        "{\"a\":1}",
                                        "[\"a\",\"b\"]",
                                        "[[]]",
                                        "[0,1,2]",
                                        "{\"a\":{\"b\":[]}}"};
    json_malloc_t old_malloc;
    json_free_t old_free;
    json_get_alloc_funcs(&old_malloc, &old_free);
    json_set_alloc_funcs(counted_malloc, counted_free);
    for (size_t i = 0; i < CART_COUNTOF(items); i++) {
        struct cart_buf b = repeated("[", items[i], 5000, "]");
        struct cart_err err = {0};
        json_t *v = NULL;
        taken = 0;
        assert_int_equal(cart_json_parse_within(&v, b.data, b.len, SIZE_MAX, "input", NULL), 0);
        json_decref(v);
        /* Tables that grew were freed: half of what arrays took, at most. */
        size_t whole = taken;
        v = NULL;
        if (cart_json_parse_within(&v, b.data, b.len, whole / 10 * 7, "input", &err) !=
                CART_EFORMAT ||
            err.sys != EFBIG || v)
            fail_msg("%s: taken within 7/10 of %zu bytes", items[i], whole);
        if (cart_json_parse_within(&v, b.data, b.len, whole / 10 * 18, "input", &err) < 0)
            fail_msg("%s: %zu bytes: %s", items[i], whole, err.msg);
        json_decref(v);
        cart_buf_release(&b);
    }
    json_set_alloc_funcs(old_malloc, old_free);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_refused),    cmocka_unit_test(test_depth),
        cmocka_unit_test(test_canonical),  cmocka_unit_test(test_reals_are_exact),
        cmocka_unit_test(test_lookups),    cmocka_unit_test(test_messages),
        cmocka_unit_test(test_as_jansson), cmocka_unit_test(test_difference),
        cmocka_unit_test(test_memory),     cmocka_unit_test(test_memory_is_counted),
    };
    cmocka_set_message_output(CM_OUTPUT_TAP);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
