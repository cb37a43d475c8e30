/* base/err.h, base/buf.h, base/arena.h: messages, growth, measured allocation. */
#include "base/arena.h"
#include "base/buf.h"
#include "base/err.h"

#include <errno.h>
#include <setjmp.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static void test_messages(void **state)
{
    (void)state;
    struct cart_err err = {0};
    assert_int_equal(cart_err_set(&err, CART_EFORMAT, "tensor %s: expected %d", "k", 3),
                     CART_EFORMAT);
    assert_string_equal(err.msg, "tensor k: expected 3");
    assert_int_equal(cart_err_wrap(&err, CART_EMATCH, "file %d", 7), CART_EMATCH);
    assert_string_equal(err.msg, "file 7: tensor k: expected 3");
    assert_int_equal(err.code, CART_EMATCH);
    assert_int_equal(cart_err_set(NULL, CART_ETRUNC, "nobody listens"), CART_ETRUNC);

    errno = ENOSPC;
    assert_int_equal(cart_err_sys(&err, "out: writing"), CART_ESYS);
    assert_int_equal(err.sys, ENOSPC);
    assert_string_equal(err.msg, "out: writing: No space left on device");
}

static void test_long_messages_keep_the_reason(void **state)
{
    (void)state;
    struct cart_err err = {0};
    char name[2000];
    memset(name, 'n', sizeof name - 1);
    name[sizeof name - 1] = '\0';
    errno = ENOENT;
    cart_err_sys(&err, "%s", name);
    assert_non_null(strstr(err.msg, ": No such file or directory"));
    cart_err_set(&err, CART_EFORMAT, "the reason");
    cart_err_wrap(&err, CART_EFORMAT, "%s", name);
    assert_non_null(strstr(err.msg, ": the reason"));
    assert_true(strlen(err.msg) < sizeof err.msg);
}

static void test_messages_are_one_printable_line(void **state)
{
    (void)state;
    struct cart_err err = {0};
    char raw[600];
    cart_err_set(&err, CART_EFORMAT, "tensor [%s]: no",
                 "\x7f\n\xff"
                 "b");
    assert_string_equal(err.msg, "tensor [\\x7f\\x0a\\xffb]: no");
    cart_err_wrap(&err, CART_EFORMAT, "f\tg");
    assert_string_equal(err.msg, "f\\x09g: tensor [\\x7f\\x0a\\xffb]: no");
    errno = ENOENT;
    cart_err_sys(&err, "a\rb");
    assert_string_equal(err.msg, "a\\x0db: No such file or directory");
    cart_err_memory(&err, "\xc2\x9b", 0);
    assert_string_equal(err.msg, "\\xc2\\x9b: out of memory");
    /* What is fine stays as it is, and what grows is cut. */
    cart_err_set(&err, CART_EFORMAT, "\xe2\x82\xac %s", "\\x0a");
    assert_string_equal(err.msg, "\xe2\x82\xac \\x0a");
    memset(raw, '\n', sizeof raw);
    raw[sizeof raw - 1] = '\0';
    cart_err_set(&err, CART_EFORMAT, "%s", raw);
    assert_true(strlen(err.msg) < sizeof err.msg);
    assert_null(strchr(err.msg, '\n'));
    assert_string_equal(err.msg + strlen(err.msg) - 3, "...");
}

static void test_statuses(void **state)
{
    (void)state;
    const int codes[] = {CART_OK,     CART_EUSAGE, CART_EFORMAT, CART_ETRUNC,
                         CART_EMATCH, CART_ESYS,   CART_EAGAIN};
    const int statuses[] = {0, 2, 3, 3, 4, 5, 6};
    for (size_t i = 0; i < CART_COUNTOF(codes); i++)
        assert_int_equal(cart_err_status(codes[i]), statuses[i]);
}

static void check_escape(const char *text, size_t n, size_t cap, const char *expected)
{
    char *out = malloc(cap);
    assert_non_null(out);
    assert_ptr_equal(cart_err_escape(out, cap, text, n), out);
    assert_string_equal(out, expected);
    free(out);
}

static void test_escape(void **state)
{
    (void)state;
    check_escape("plain", 5, 64, "plain");
    check_escape("gr\xc3\xbc\xc3\x9f \xe2\x82\xac \xf0\x9f\x98\x80", 15, 64,
                 "gr\xc3\xbc\xc3\x9f \xe2\x82\xac \xf0\x9f\x98\x80");
    check_escape("a\x1b[2Jb\n", 7, 64, "a\\x1b[2Jb\\x0a");
    check_escape("x\0y", 3, 64, "x\\x00y");
    check_escape("\xff\xc0\xaf", 3, 64, "\\xff\\xc0\\xaf");
    check_escape("\xed\xa0\x80", 3, 64, "\\xed\\xa0\\x80");
    check_escape("\xc2\x9b"
                 "2J",
                 4, 64, "\\xc2\\x9b2J");
    check_escape("\xe2\x82", 2, 64, "\\xe2\\x82");
    check_escape("abcdefgh", 8, 9, "abcdefgh");
    check_escape("abcdefghi", 9, 9, "abcde...");
    check_escape("ab\xe2\x82\xac\xe2\x82\xac", 8, 8, "ab...");
    check_escape("abc", 3, 1, "");
}

static void test_buffer(void **state)
{
    (void)state;
    struct cart_buf b = CART_BUF_INIT;
    for (int i = 0; i < 1000; i++)
        assert_int_equal(cart_buf_addf(&b, NULL, "%d,", i), 0);
    assert_int_equal(b.len, 10 * 2 + 90 * 3 + 900 * 4);
    assert_memory_equal(b.data, "0,1,2,", 6);
    assert_memory_equal(b.data + b.len - 5, ",999,", 6);
    cart_buf_reset(&b);
    assert_int_equal(cart_buf_add(&b, "x\0y", 3, NULL), 0);
    assert_int_equal(b.len, 3);
    assert_memory_equal(b.data, "x\0y", 4);
    struct cart_err err = {0};
    assert_int_equal(cart_buf_reserve(&b, SIZE_MAX, &err), CART_ESYS);
    assert_int_equal(err.sys, ENOMEM);
    assert_memory_equal(b.data, "x\0y", 4);
    cart_buf_release(&b);
    assert_null(b.data);
}

static void test_array(void **state)
{
    (void)state;
    void *items = NULL;
    size_t cap = 0;
    assert_int_equal(cart_array_reserve(&items, &cap, 3, 8, NULL), 0);
    assert_true(cap >= 3);
    memset(items, 7, 3 * 8);
    assert_int_equal(cart_array_reserve(&items, &cap, SIZE_MAX / 4, 8, NULL), CART_ESYS);
    assert_int_equal(((unsigned char *)items)[23], 7);
    free(items);
}

struct layout {
    float *a;
    char *b;
    double *c;
};

static void lay_out(struct cart_arena *arena, struct layout *l)
{
    l->a = cart_arena_push(arena, 100, sizeof *l->a);
    l->b = cart_arena_push(arena, 1, 1);
    l->c = cart_arena_push(arena, 0, sizeof *l->c);
}

static void test_arena(void **state)
{
    (void)state;
    struct cart_arena arena = CART_ARENA_INIT;
    struct layout l;
    lay_out(&arena, &l);
    assert_null(l.a);
    size_t measured = arena.used;
    assert_true(measured >= 401);
    assert_int_equal(cart_arena_reserve(&arena, arena.used, NULL), 0);
    lay_out(&arena, &l);
    assert_int_equal(arena.used, measured);
    assert_int_equal((uintptr_t)l.a % 64, 0);
    assert_int_equal((uintptr_t)l.b % 64, 0);
    assert_int_equal((uintptr_t)l.c % 64, 0);
    assert_true(l.b >= (char *)(l.a + 100) + 64);
    for (int i = 0; i < 100; i++)
        assert_true(l.a[i] == 0);
    cart_arena_release(&arena);
    assert_null(arena.base);
}

/* From a mebibyte on other pages, and nothing else that differs. */
static void test_arena_dense(void **state)
{
    (void)state;
    const size_t sizes[] = {1, 100, 1 << 20, (2 << 20) - 1, (2 << 20) + 1, 5 << 20};
    for (size_t i = 0; i < CART_COUNTOF(sizes); i++) {
        struct cart_arena arena = CART_ARENA_INIT;
        cart_arena_push(&arena, sizes[i], 1);
        size_t measured = arena.used;
        assert_int_equal(cart_arena_reserve_dense(&arena, measured, NULL), 0);
        assert_true(arena.cap >= measured && arena.cap < measured + (2 << 20));
        unsigned char *p = cart_arena_push(&arena, sizes[i], 1);
        assert_int_equal(arena.used, measured);
        assert_int_equal((uintptr_t)p % 64, 0);
        for (size_t k = 0; k < sizes[i]; k += 4095)
            assert_int_equal(p[k], 0);
        memset(p, 1, sizes[i]);
        cart_arena_release(&arena);
        assert_null(arena.base);
    }
}

static void test_arena_overflow(void **state)
{
    (void)state;
    const size_t cases[][2] = {{SIZE_MAX, 2}, {SIZE_MAX / 2 + 1, 2}, {SIZE_MAX - 10, 1}};
    for (size_t i = 0; i < CART_COUNTOF(cases); i++) {
        struct cart_arena arena = CART_ARENA_INIT;
        cart_arena_push(&arena, cases[i][0], cases[i][1]);
        assert_true(arena.overflow);
        struct cart_err err = {0};
        assert_int_equal(cart_arena_reserve(&arena, arena.used, &err), CART_ESYS);
        assert_int_equal(cart_arena_reserve_dense(&arena, arena.used, &err), CART_ESYS);
        cart_arena_release(&arena);
    }
    struct cart_arena most = CART_ARENA_INIT;
    assert_int_equal(cart_arena_reserve_dense(&most, SIZE_MAX - 64, NULL), CART_ESYS);
    struct cart_arena arena = CART_ARENA_INIT;
    cart_arena_push(&arena, SIZE_MAX / 2, 1);
    cart_arena_push(&arena, SIZE_MAX / 2, 1);
    assert_true(arena.overflow);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_messages),
        cmocka_unit_test(test_long_messages_keep_the_reason),
        cmocka_unit_test(test_messages_are_one_printable_line),
        cmocka_unit_test(test_statuses),
        cmocka_unit_test(test_escape),
        cmocka_unit_test(test_buffer),
        cmocka_unit_test(test_array),
        cmocka_unit_test(test_arena),
        cmocka_unit_test(test_arena_dense),
        cmocka_unit_test(test_arena_overflow),
    };
    cmocka_set_message_output(CM_OUTPUT_TAP);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
