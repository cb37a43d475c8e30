/* base/spelling.h */
#include "base/spelling.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

static size_t between(const char *a, const char *b)
{
    return cart_spelling_distance(a, strlen(a), b, SIZE_MAX);
}

static void slips_are_counted(void **state)
{
    (void)state;
    static const struct {
        const char *name, *known;
        size_t slips;
    } cases[] = {
        {"", "", 0},
        {"size", "size", 0},
        {"siz", "size", 1},
        {"sizes", "size", 1},
        {"sise", "size", 1},
        {"szie", "size", 1},
        {"isez", "size", 2},
        {"", "size", 4},
        {"size", "", 4},
        {"sitting", "kitten", 3},
        {"abcdef", "badcfe", 3},
        {"ca", "abc", 3},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        assert_int_equal(between(cases[i].name, cases[i].known), cases[i].slips);
        assert_int_equal(between(cases[i].known, cases[i].name), cases[i].slips);
        for (size_t most = 0; most < 6; most++) {
            size_t want = cases[i].slips <= most ? cases[i].slips : SIZE_MAX;
            assert_int_equal(
                cart_spelling_distance(cases[i].name, strlen(cases[i].name), cases[i].known, most),
                want);
        }
    }
}

static void only_the_length_given_counts(void **state)
{
    (void)state;
    assert_int_equal(cart_spelling_distance("size=3", 4, "size", 9), 0);
}

static void long_names_are_far_from_all(void **state)
{
    (void)state;
    char name[CART_SPELLING_MAX + 2];

    memset(name, 'a', sizeof name);
    name[CART_SPELLING_MAX + 1] = '\0';
    assert_int_equal(between(name, "a"), SIZE_MAX);
    assert_int_equal(between("a", name), SIZE_MAX);
    name[CART_SPELLING_MAX] = '\0';
    assert_int_equal(between(name, name), 0);
    assert_int_equal(between(name, name + 1), 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(slips_are_counted),
        cmocka_unit_test(only_the_length_given_counts),
        cmocka_unit_test(long_names_are_far_from_all),
    };
    cmocka_set_message_output(CM_OUTPUT_TAP);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
