/* base/opt.h: the strictness of command lines. Help and version are tested on the tools themselves.
 */
#include "base/opt.h"

#include <setjmp.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

struct options {
    struct cart_common common;
    bool flag;
    const char *name;
    struct cart_opt_list list;
    size_t size;
    uint64_t seed;
    double rate;
    int choice;
};

#define ARGS_MAX 32

struct parsed {
    struct options o;
    char *argv[ARGS_MAX];
    int argc, first;
    bool done;
    struct cart_err err;
};

/* Splits a line at blanks (no quoting; "\x1f" stands for an empty argument) and parses it. */
static int parse(struct parsed *p, char *line)
{
    memset(p, 0, sizeof *p);
    struct cart_opt table[] = {
        CART_OPT_FLAG('f', "flag", &p->o.flag, "a flag"),
        CART_OPT_STRING('n', "name", &p->o.name, "NAME", "a name"),
        CART_OPT_LIST('c', "cartridge", &p->o.list, "FILE", "a list"),
        CART_OPT_SIZE('s', "size", &p->o.size, 1, 1 << 20, "N", "a size"),
        CART_OPT_U64(0, "seed", &p->o.seed, 0, (double)UINT64_MAX, "N", "a seed"),
        CART_OPT_REAL(0, "rate", &p->o.rate, -1, 1, "X", "a rate"),
        CART_OPT_ENUM(0, "choice", &p->o.choice, "one|two|three", "a choice"),
        CART_OPT_END,
    };
    struct cart_tool tool = {"cart-test",
                             "tests options",
                             "[FILE]...",
                             table,
                             CART_USES_OUTPUT | CART_USES_JOBS | CART_USES_MODEL,
                             &p->o.common};
    p->argv[p->argc++] = (char *)(uintptr_t) "cart-test";
    for (char *t = strtok_r(line, " ", &line); t; t = strtok_r(NULL, " ", &line))
        p->argv[p->argc++] = strcmp(t, "\x1f") == 0 ? t + 1 : t;
    return cart_opt_parse(&tool, p->argc, p->argv, &p->first, &p->done, &p->err);
}

static void release(struct parsed *p)
{
    free(p->o.list.items);
}

static void test_good(void **state)
{
    (void)state;
    struct parsed p;
    char line[] = "a -fs 12 --name=x=y b -cONE --cartridge two -c three --seed "
                  "18446744073709551615 --rate -2.5e-1 - "
                  "--choice two";
    assert_int_equal(parse(&p, line), 0);
    assert_false(p.done);
    assert_true(p.o.flag);
    assert_int_equal(p.o.size, 12);
    assert_string_equal(p.o.name, "x=y");
    assert_int_equal(p.o.list.n, 3);
    assert_string_equal(p.o.list.items[0], "ONE");
    assert_string_equal(p.o.list.items[2], "three");
    assert_true(p.o.seed == UINT64_MAX);
    assert_true(p.o.rate == -0.25);
    assert_int_equal(p.o.choice, 1);
    assert_int_equal(p.argc - p.first, 3);
    assert_string_equal(p.argv[p.first], "a");
    assert_string_equal(p.argv[p.first + 1], "b");
    assert_string_equal(p.argv[p.first + 2], "-");
    assert_true(p.o.common.jobs >= 1);
    release(&p);
}

static void test_end_of_options(void **state)
{
    (void)state;
    struct parsed p;
    char line[] = "a -f -- --name -x";
    assert_int_equal(parse(&p, line), 0);
    assert_int_equal(p.argc - p.first, 3);
    assert_string_equal(p.argv[p.first], "a");
    assert_string_equal(p.argv[p.first + 1], "--name");
    assert_string_equal(p.argv[p.first + 2], "-x");
    assert_null(p.o.name);
}

static void test_suffixes(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        size_t value;
    } cases[] = {{"1", 1}, {"3K", 3072}, {"1M", 1048576}, {"0012", 12}, {"1024K", 1048576}};
    for (size_t i = 0; i < CART_COUNTOF(cases); i++) {
        struct parsed p;
        char line[64] = "--size ";
        strcat(line, cases[i].text);
        assert_int_equal(parse(&p, line), 0);
        assert_int_equal(p.o.size, cases[i].value);
    }
}

static void test_bad_lines(void **state)
{
    (void)state;
    static const struct {
        const char *line, *message;
    } cases[] = {
        {"--siz 3", "unknown option --siz: did you mean --size? See cart-test -h"},
        {"--sizes 3", "unknown option --sizes: did you mean --size? See cart-test -h"},
        {"--choise two", "unknown option --choise: did you mean --choice? See cart-test -h"},
        {"--szie 3", "unknown option --szie: did you mean --size? See cart-test -h"},
        {"--verb", "unknown option --verb: did you mean --verbose? See cart-test -h"},
        {"--s", "unknown option --s: see cart-test -h"},
        {"--rats=1", "unknown option --rats: did you mean --rate? See cart-test -h"},
        {"-x", "unknown option -x: see cart-test -h"},
        {"-fx", "unknown option -x: see cart-test -h"},
        {"--no-flag", "unknown option --no-flag: see cart-test -h"},
        {"-z 3", "unknown option -z: see cart-test -h"},
        {"--dry-run", "unknown option --dry-run: see cart-test -h"},
        {"--flag=1", "--flag: takes no value"},
        {"--size", "--size: expected N, found nothing"},
        {"-s", "-s: expected N, found nothing"},
        {"-s 0", "-s: expected a whole number from 1 to 1048576, found '0'"},
        {"-s 2M", "-s: expected a whole number from 1 to 1048576, found '2M'"},
        {"-s 1k", "-s: expected a whole number from 1 to 1048576, or one with K, M or G behind it, "
                  "found '1k'"},
        {"-s 1KK", "-s: expected a whole number from 1 to 1048576, or one with K, M or G behind "
                   "it, found '1KK'"},
        {"-s +1", "-s: expected a whole number from 1 to 1048576, found '+1'"},
        {"-s -1", "-s: expected a whole number from 1 to 1048576, found '-1'"},
        {"-s 0x10", "-s: expected a whole number from 1 to 1048576, found '0x10'"},
        {"-s 1.5", "-s: expected a whole number from 1 to 1048576, found '1.5'"},
        {"-s 18446744073709551617",
         "-s: expected a whole number from 1 to 1048576, found '18446744073709551617'"},
        {"-s \x1f", "-s: expected N, found an empty argument"},
        {"--rate nan", "--rate: expected a number from -1 to 1, found 'nan'"},
        {"--rate 0x1", "--rate: expected a number from -1 to 1, found '0x1'"},
        {"--rate 1.01", "--rate: expected a number from -1 to 1, found '1.01'"},
        {"--rate 1e", "--rate: expected a number from -1 to 1, found '1e'"},
        {"--rate 1,5", "--rate: expected a number from -1 to 1, found '1,5'"},
        {"--choice tw", "--choice: expected one|two|three, found 'tw'"},
        {"--choice one|two", "--choice: expected one|two|three, found 'one|two'"},
        {"--seed 1K", "--seed: expected a whole number from 0 to 18446744073709551615, found '1K'"},
        {"-j 0", "-j: expected a whole number from 1 to 1024, found '0'"},
        {"--jobs=", "--jobs: expected N, found an empty argument"},
        {"-q -v", "--quiet and --verbose exclude each other"},
        {"--name a --\x1b[2J", "unknown option --\\x1b[2J: see cart-test -h"},
    };
    for (size_t i = 0; i < CART_COUNTOF(cases); i++) {
        struct parsed p;
        char line[128];
        strcpy(line, cases[i].line);
        assert_int_equal(parse(&p, line), CART_EUSAGE);
        assert_string_equal(p.err.msg, cases[i].message);
        release(&p);
    }
}

static void test_environment(void **state)
{
    (void)state;
    struct parsed p;
    char given[] = "-m other";
    char none[] = "";
    setenv("CART_MODEL", "model.gguf", 1);
    assert_int_equal(parse(&p, none), 0);
    assert_string_equal(p.o.common.model, "model.gguf");
    assert_int_equal(parse(&p, given), 0);
    assert_string_equal(p.o.common.model, "other");
    setenv("CART_MODEL", "", 1);
    assert_int_equal(parse(&p, none), CART_EUSAGE);
    unsetenv("CART_MODEL");
    assert_int_equal(parse(&p, none), CART_EUSAGE);
    setenv("CART_MODEL", "model.gguf", 1);
    setenv("CART_CPU", "no-such", 1);
    assert_int_equal(parse(&p, none), CART_EUSAGE);
    unsetenv("CART_CPU");
}

/* Under a parallel make that keeps its pipe to itself there is one core for us; outside one there
 * are all. */
static void test_jobserver_without_pipe(void **state)
{
    (void)state;
    struct parsed p;
    char none[] = "";
    char given[] = "-j 3";
    setenv("MAKEFLAGS", " -j4 --jobserver-auth=-2,-2", 1);
    assert_int_equal(parse(&p, none), 0);
    assert_int_equal(p.o.common.jobs, 1);
    assert_int_equal(parse(&p, given), 0);
    assert_int_equal(p.o.common.jobs, 3);
    unsetenv("MAKEFLAGS");
}

int main(void)
{
    unsetenv("MAKEFLAGS");
    setenv("CART_MODEL", "model.gguf", 1);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_good),        cmocka_unit_test(test_end_of_options),
        cmocka_unit_test(test_suffixes),    cmocka_unit_test(test_bad_lines),
        cmocka_unit_test(test_environment), cmocka_unit_test(test_jobserver_without_pipe),
    };
    cmocka_set_message_output(CM_OUTPUT_TAP);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
