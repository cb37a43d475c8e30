/* serve: JSON written by hand, stop strings over any cut of the text, tool calls over any cut,
 * keys. */
#include "serve/calls.h"
#include "serve/keys.h"
#include "serve/model_name.h"
#include "serve/stops.h"
#include "serve/wire.h"

#include "base/json.h"
#include "base/rng.h"

#include <math.h>
#include <setjmp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

/* ---- wire ---- */

static void check_string(const char *text, size_t n, const char *expected)
{
    struct cart_wire w = CART_WIRE_INIT;
    json_t *v = NULL;
    cart_wire_string(&w, text, n);
    assert_int_equal(w.r, 0);
    assert_int_equal(cart_json_parse(&v, w.b.data, w.b.len, "string", NULL), 0);
    assert_int_equal(json_string_length(v), strlen(expected));
    assert_memory_equal(json_string_value(v), expected, strlen(expected));
    json_decref(v);
    cart_wire_release(&w);
}

static void test_wire_string(void **state)
{
    (void)state;
    check_string("", 0, "");
    check_string("a\"b\\c/\n\t\x01", 9, "a\"b\\c/\n\t\x01");
    check_string("\xc3\xa9\xf0\x9f\x98\x80", 6, "\xc3\xa9\xf0\x9f\x98\x80");
    check_string("a\xff"
                 "b",
                 3,
                 "a\xef\xbf\xbd"
                 "b");
    check_string("\xe6\xad", 2, "\xef\xbf\xbd");
    check_string("\xf0\x9f"
                 "a",
                 3,
                 "\xef\xbf\xbd"
                 "a");
    check_string("\xed\xa0\x80", 3, "\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd");
    check_string("\xc0\x80", 2, "\xef\xbf\xbd\xef\xbf\xbd");
}

/* Any two bytes between others are one valid JSON string. */
static void test_wire_any_bytes(void **state)
{
    (void)state;
    for (unsigned i = 0; i < 65536; i++) {
        const char text[4] = {'a', (char)(i & 0xff), (char)(i >> 8), 'z'};
        struct cart_wire w = CART_WIRE_INIT;
        cart_wire_string(&w, text, 4);
        json_t *v = json_loadb(w.b.data, w.b.len, JSON_DECODE_ANY | JSON_ALLOW_NUL, NULL);
        if (!v)
            fail_msg("bytes %04x: <%s>", i, w.b.data);
        json_decref(v);
        cart_wire_release(&w);
    }
}

static void test_wire_real(void **state)
{
    (void)state;
    static const float values[] = {0.0f,    -0.1f,       1.0f,        -1e-30f,
                                   3.4e38f, 0.33333334f, -12.074742f, 1e10f};
    for (size_t i = 0; i < CART_COUNTOF(values); i++) {
        struct cart_wire w = CART_WIRE_INIT;
        cart_wire_real(&w, (double)values[i]);
        json_t *v = json_loadb(w.b.data, w.b.len, JSON_DECODE_ANY, NULL);
        assert_true(json_is_real(v));
        assert_true((float)json_real_value(v) == values[i]);
        json_decref(v);
        cart_wire_release(&w);
    }
    struct cart_wire w = CART_WIRE_INIT;
    cart_wire_real(&w, -INFINITY);
    assert_string_equal(w.b.data, "-9999.0");
    cart_wire_release(&w);
}

/* ---- stop strings ---- */

/* The text in pieces of the given size; what is shown before each push is a beginning of what is
 * shown in the end. */
static void run_stops(const char *text, const struct cart_stops *stops, size_t piece,
                      const char *shown, bool stops_here)
{
    struct cart_stop_scan s = {.held = CART_BUF_INIT};
    struct cart_buf out = CART_BUF_INIT;
    bool hit = false;
    for (size_t at = 0; at < strlen(text) && !hit; at += piece) {
        size_t n = strlen(text) - at < piece ? strlen(text) - at : piece;
        assert_int_equal(cart_stop_push(&s, stops, text + at, n, &out, &hit, NULL), 0);
        assert_true(out.len <= strlen(shown));
        if (out.len)
            assert_memory_equal(out.data, shown, out.len);
        /* Held back is only what may become a stop string: less than the longest. */
        assert_true(s.held.len < 8);
    }
    if (!hit)
        assert_int_equal(cart_stop_flush(&s, &out, NULL), 0);
    assert_int_equal(hit, stops_here);
    assert_int_equal(out.len, strlen(shown));
    if (out.len)
        assert_memory_equal(out.data, shown, out.len);
    cart_buf_release(&out);
    cart_stop_release(&s);
}

static void test_stops(void **state)
{
    (void)state;
    static const struct {
        const char *stops[4], *text, *shown;
        bool hit;
    } cases[] = {
        {{"\nUser:"}, "yes\nUser: no", "yes", true},
        {{"\nUser:"}, "yes\nUser; no", "yes\nUser; no", false},
        {{"\nUser:"}, "yes\nUs", "yes\nUs", false},
        {{"\nUser:"}, "\nUser:", "", true},
        {{"\nUser:"}, "\n\nUser:", "\n", true},
        {{"ab", "abc"}, "xxabc", "xx", true},
        {{"abc", "b"}, "xxab", "xxa", true},
        {{"b", "abc"}, "xxabc", "xxa", true},
        {{"bc", "abc"}, "xxabc", "xx", true},
        {{"END", "no"}, "a no END", "a ", true},
        {{"aab"}, "aaaab!", "aa", true},
        {{"abab"}, "abaabab.", "aba", true},
        {{"END", "Done"}, "EN Don END", "EN Don ", true},
        {{"\xc3\xa9"}, "caf\xc3\xa8 caf\xc3\xa9", "caf\xc3\xa8 caf", true},
        {{NULL}, "anything", "anything", false},
    };
    for (size_t i = 0; i < CART_COUNTOF(cases); i++) {
        struct cart_stops stops = {.n = 0};
        for (size_t k = 0; k < 4 && cases[i].stops[k]; k++)
            stops.items[stops.n++] =
                (struct cart_text){cases[i].stops[k], strlen(cases[i].stops[k])};
        for (size_t piece = 1; piece <= 12; piece++)
            run_stops(cases[i].text, &stops, piece, cases[i].shown, cases[i].hit);
    }
}

/* Where the stop string begins that is whole first, the longest of several, or where text ends. */
static size_t plain_end(const char *text, const struct cart_stops *stops)
{
    for (size_t end = 1; end <= strlen(text); end++) {
        size_t longest = 0;
        for (size_t i = 0; i < stops->n; i++) {
            size_t n = stops->items[i].n;
            if (n <= end && n > longest && memcmp(text + end - n, stops->items[i].data, n) == 0)
                longest = n;
        }
        if (longest > 0)
            return end - longest;
    }
    return strlen(text);
}

/* Words of two letters, which repeat themselves in many ways, by the plain search. */
static void test_stops_repeating(void **state)
{
    enum { N = 40 };
    (void)state;
    for (uint32_t n = 0; n < 4000; n++) {
        char text[N + 1] = "", words[3][8], shown[N + 1];
        struct cart_stops stops = {.n = 1 + n % 3};
        for (uint32_t i = 0; i < N; i++)
            text[i] = cart_rng_below(5, n, CART_RNG_TEST, i, 4) ? 'a' : 'b';
        for (uint32_t k = 0; k < stops.n; k++) {
            size_t length = 2 + cart_rng_below(5, n, CART_RNG_TEST, 100 + k, 6);
            for (uint32_t i = 0; i < length; i++)
                words[k][i] = cart_rng_below(5, n, CART_RNG_TEST, 200 + 10 * k + i, 2) ? 'a' : 'b';
            stops.items[k] = (struct cart_text){words[k], length};
        }
        size_t end = plain_end(text, &stops);
        memcpy(shown, text, end);
        shown[end] = '\0';
        for (size_t piece = 1; piece <= 9; piece++)
            run_stops(text, &stops, piece, shown, end < N);
    }
}

/* A text that goes on as the longest stop strings do, but never ends as they: the comparisons are
 * counted, so no clock is needed. */
static void test_stops_linear(void **state)
{
    enum { N = 20000 };
    static char long_one[CART_STOP_BYTES_MAX];
    struct cart_stops stops = {.n = CART_STOPS_MAX};
    struct cart_stop_scan s = {.held = CART_BUF_INIT};
    struct cart_buf out = CART_BUF_INIT;
    bool hit;
    (void)state;
    memset(long_one, 'a', sizeof long_one);
    long_one[sizeof long_one - 1] = 'b';
    for (size_t i = 0; i < CART_STOPS_MAX; i++)
        stops.items[i] = (struct cart_text){long_one + i, sizeof long_one - i};
    for (size_t i = 0; i < N; i++) {
        assert_int_equal(cart_stop_push(&s, &stops, "a", 1, &out, &hit, NULL), 0);
        assert_false(hit);
    }
    assert_int_equal(s.held.len, sizeof long_one - 1);
    assert_int_equal(out.len, N - s.held.len);
    assert_true(s.steps <= 2 * CART_STOPS_MAX * N);
    assert_int_equal(cart_stop_push(&s, &stops, "b", 1, &out, &hit, NULL), 0);
    assert_true(hit);
    assert_int_equal(out.len, N + 1 - sizeof long_one);
    cart_buf_release(&out);
    cart_stop_release(&s);
}

/* ---- tool calls ---- */

static void run_call(const char *text, size_t piece, bool closed, const char *name,
                     const char *arguments)
{
    struct cart_call_scan s = {0};
    struct cart_call_delta d;
    struct cart_buf got = CART_BUF_INIT;
    size_t begun = 0;
    for (size_t at = 0; at < strlen(text); at += piece) {
        size_t n = strlen(text) - at < piece ? strlen(text) - at : piece;
        assert_int_equal(cart_call_push(&s, text + at, n, &d, NULL), 0);
        begun += d.begun;
        assert_true(d.n == 0 || begun == 1);
        assert_int_equal(cart_buf_add(&got, d.arguments ? d.arguments : "", d.n, NULL), 0);
    }
    bool is = cart_call_finish(&s, closed, &d);
    assert_int_equal(is, name != NULL);
    if (is) {
        begun += d.begun;
        assert_int_equal(cart_buf_add(&got, d.arguments ? d.arguments : "", d.n, NULL), 0);
        assert_int_equal(begun, 1);
        assert_string_equal(s.name.data, name);
        assert_string_equal(got.data, arguments);
    }
    cart_buf_release(&got);
    cart_call_release(&s);
}

/* A name without an end is not read again and again: after some thousand bytes the call is read
 * once, at its end, and is a call all the same. */
static void test_long_name(void **state)
{
    (void)state;
    struct cart_call_scan s = {0};
    struct cart_call_delta d;
    static const char tail[] = "\", \"arguments\": {}}";
    assert_int_equal(cart_call_push(&s, "{\"name\": \"", 10, &d, NULL), 0);
    for (size_t i = 0; i < 100000; i++) {
        assert_int_equal(cart_call_push(&s, "n", 1, &d, NULL), 0);
        assert_true(s.foreign == (s.text.len > 4096));
    }
    assert_int_equal(cart_call_push(&s, tail, sizeof tail - 1, &d, NULL), 0);
    assert_true(cart_call_finish(&s, true, &d));
    assert_true(d.begun);
    assert_int_equal(s.name.len, 100000);
    assert_int_equal(d.n, 2);
    cart_call_release(&s);
}

static void test_calls(void **state)
{
    (void)state;
    static const struct {
        const char *text, *name, *arguments;
        bool closed;
    } cases[] = {
        {"\n{\"name\": \"f\", \"arguments\": {\"a\": [1, {\"b\": \"}\"}]}}\n", "f",
         "{\"a\": [1, {\"b\": \"}\"}]}", true},
        {"{\"name\":\"get_it\",\"arguments\":{}}", "get_it", "{}", true},
        {"{\"name\": \"q\\u0041\", \"arguments\": {\"s\": \"\\\"}\\\\\"}}", "qA",
         "{\"s\": \"\\\"}\\\\\"}", true},
        {"{\"arguments\": {\"b\": 1, \"a\": 2}, \"name\": \"g\"}", "g", "{\"a\":2,\"b\":1}", true},
        {"{\"name\": \"h\"}", "h", "{}", true},
        {"{\"name\": \"k\", \"arguments\": \"{}\"}", "k", "{}", true},
        {"{\"name\": \"f\", \"arguments\": {\"a\": 12", "f", "{\"a\": 12", false},
        {"{\"name\": \"f\", \"argu", NULL, NULL, false},
        {"hello", NULL, NULL, true},
        {"{\"name\": 5, \"arguments\": {}}", NULL, NULL, true},
        {"", NULL, NULL, true},
    };
    for (size_t i = 0; i < CART_COUNTOF(cases); i++)
        for (size_t piece = 1; piece < 20; piece++)
            run_call(cases[i].text, piece, cases[i].closed, cases[i].name, cases[i].arguments);
}

/* ---- keys ---- */

static void test_keys(void **state)
{
    (void)state;
    char path[] = "/tmp/cart-keys-XXXXXX";
    int fd = mkstemp(path);
    struct cart_keys *k = NULL;
    struct cart_err err = {0};
    static const char text[] = "# ours\nfirst\n\n  second \r\n";
    assert_true(fd >= 0 && write(fd, text, sizeof text - 1) == sizeof text - 1);
    assert_int_equal(cart_keys_load(&k, path, "third", &err), 0);
    static const char *const good[] = {"first", "second", "third"}, *const bad[] = {
                                                                        "", "firs", "first ",
                                                                        "# ours", "FIRST"};
    for (size_t i = 0; i < CART_COUNTOF(good); i++)
        assert_true(cart_keys_allow(k, good[i]));
    for (size_t i = 0; i < CART_COUNTOF(bad); i++)
        assert_false(cart_keys_allow(k, bad[i]));
    assert_false(cart_keys_allow(k, NULL));
    cart_keys_free(k);
    assert_int_equal(ftruncate(fd, 0), 0);
    assert_int_equal(cart_keys_load(&k, path, "x", &err), CART_EUSAGE);
    close(fd);
    unlink(path);
    k = NULL;
    assert_int_equal(cart_keys_load(&k, NULL, NULL, &err), 0);
    assert_null(k);
    assert_true(cart_keys_allow(k, NULL));
}

static void expect_name(const char *path, const char *expected)
{
    char out[64];
    int r = cart_serve_base_name(out, sizeof out, NULL, path, NULL);
    assert_int_equal(r, *expected ? 0 : CART_EUSAGE);
    if (*expected)
        assert_string_equal(out, expected);
}

static void test_model_name(void **state)
{
    static const char *const names[][2] = {
        {"a/b.gguf", "b"},        {"b.gguf", "b"},       {"a/b", "b"}, {"a/b//", "b"},
        {"a/b/config.json", "b"}, {"b.json/", "b.json"}, {"/", ""},
    };
    static const char *const here[] = {"config.json",   ".",      "./",
                                       "./config.json", "here/.", "here/..//here/."};
    char dir[] = "/tmp/cart-name.XXXXXX", old[4096];
    (void)state;
    assert_non_null(getcwd(old, sizeof old));
    assert_non_null(mkdtemp(dir));
    assert_int_equal(chdir(dir), 0);
    assert_int_equal(mkdir("here", 0700), 0);
    for (size_t i = 0; i < CART_COUNTOF(names); i++)
        expect_name(names[i][0], names[i][1]);
    for (size_t i = 0; i < CART_COUNTOF(here); i++)
        expect_name(here[i], i < 4 ? strrchr(dir, '/') + 1 : "here");
    assert_int_equal(rmdir("here"), 0);
    assert_int_equal(chdir(old), 0);
    assert_int_equal(rmdir(dir), 0);
}

static void test_base_name(void **state)
{
    (void)state;
    static const struct {
        const char *name, *clean; /* clean NULL: as it is */
    } cases[] = {
        {"SmolLM2-135M.Q4_1", NULL}, {"caf\xc3\xa9\xc2\xa0", NULL},
        {"my model", "my-model"},    {"a:b", "a-b"},
        {"a\tb\n", "a-b-"},          {"a\x7f", "a-"},
        {"a\xc2\x85z", "a--z"},
    };
    static const char *const bad[] = {"", "/a", "a/", "a//b", "a\xff"};
    char out[32];
    struct cart_err err = {0};
    for (size_t i = 0; i < CART_COUNTOF(cases); i++) {
        const char *clean = cases[i].clean ? cases[i].clean : cases[i].name;
        assert_int_equal(cart_serve_base_name(out, sizeof out, NULL, cases[i].name, &err), 0);
        assert_string_equal(out, clean);
        int r = cart_serve_base_name(out, sizeof out, cases[i].name, "model", &err);
        assert_int_equal(r, cases[i].clean ? CART_EUSAGE : 0);
    }
    assert_int_equal(cart_serve_base_name(out, sizeof out, "Qwen/Qwen3-0.6B", "model", &err), 0);
    assert_string_equal(out, "Qwen/Qwen3-0.6B");
    for (size_t i = 0; i < CART_COUNTOF(bad); i++)
        assert_int_equal(cart_serve_base_name(out, sizeof out, bad[i], "model", &err), CART_EUSAGE);
    assert_int_equal(cart_serve_base_name(out, 4, "four", "model", &err), CART_EUSAGE);
    assert_int_equal(cart_serve_base_name(out, 5, "four", "model", &err), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_model_name),
        cmocka_unit_test(test_base_name),
        cmocka_unit_test(test_wire_string),
        cmocka_unit_test(test_wire_any_bytes),
        cmocka_unit_test(test_wire_real),
        cmocka_unit_test(test_stops),
        cmocka_unit_test(test_stops_repeating),
        cmocka_unit_test(test_stops_linear),
        cmocka_unit_test(test_calls),
        cmocka_unit_test(test_long_name),
        cmocka_unit_test(test_keys),
    };
    cmocka_set_message_output(CM_OUTPUT_TAP);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
