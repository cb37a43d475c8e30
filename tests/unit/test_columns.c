/* Columns for a terminal: wrapping, padding, characters of several bytes, words longer than a
 * column. */
#include "base/columns.h"

#include <stdarg.h>
#include <stddef.h>

#include <setjmp.h>

#include <cmocka.h>

static void check(const char *a, const char *b, size_t width, const char *want)
{
    struct cart_buf out = CART_BUF_INIT;
    const char *texts[] = {a, b};

    assert_int_equal(cart_columns_add(&out, texts, 2, width, NULL), 0);
    assert_string_equal(out.data, want);
    cart_buf_release(&out);
}

static void test_columns(void **state)
{
    (void)state;
    check("one two", "x", 13, "one   | x\ntwo   | \n");
    check("gr\xC3\xBC\xC3\x9F", "y", 13, "gr\xC3\xBC\xC3\x9F  | y\n");
    check("abcdefgh", "", 11, "abcd | \nefgh | \n");
    check("a\n\nb", "c", 11, "a    | c\n     | \nb    | \n");
    check("ab", "cd", 0, "a | c\nb | d\n");
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_columns)};

    cmocka_set_message_output(CM_OUTPUT_TAP);
    return cmocka_run_group_tests_name("columns", tests, NULL, NULL);
}
