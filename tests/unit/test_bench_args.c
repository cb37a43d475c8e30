/* What the measuring programs share: arguments that are wrong end in one line and status 2, and
 * what was made for a while goes with the process, however that ends. */
#define _GNU_SOURCE /* program_invocation_short_name */
#include "helper/bench_args.h"
#include "helper/bench_tidy.h"
#include "helper/limits.h"
#include "helper/workload.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

static const char usage[] = "usage: program [-r N] [+fast] [FILE [N]]\n";

/* Runs f in a child; what it wrote on the descriptor fd is in out. Returns the wait status. */
static int in_child(void (*f)(char **), char **argv, int fd, char out[1024])
{
    int ends[2], status;
    size_t n = 0;
    assert_int_equal(pipe(ends), 0);
    fflush(stdout);
    pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        dup2(ends[1], fd);
        close(ends[0]);
        close(ends[1]);
        f(argv);
        exit(0);
    }
    close(ends[1]);
    for (ssize_t got; n < 1023 && (got = read(ends[0], out + n, 1023 - n)) > 0;)
        n += (size_t)got;
    out[n] = '\0';
    close(ends[0]);
    assert_int_equal(waitpid(pid, &status, 0), pid);
    return status;
}

static void program(char **argv)
{
    int argc = 0;
    while (argv[argc] != NULL)
        argc++;
    static const char *const words[] = {"one", "two"};
    struct bench_args a = bench_args(argc, argv, usage);
    size_t n = 5, fast = 0, word = 0;
    for (const char *o; (o = bench_args_option(&a)) != NULL;)
        if (strcmp(o, "-r") == 0)
            n = bench_whole(o, bench_args_value(&a), 1, 99);
        else if (strcmp(o, "+fast") == 0)
            fast = 1;
        else
            bench_args_unknown(&a);
    const char *file = bench_args_operand(&a), *text = bench_args_operand(&a);
    if (text != NULL)
        word = bench_word("WORD", text, words, 2);
    bench_args_end(&a);
    printf("%zu %zu %s %zu", n, fast, file ? file : "none", word);
    fflush(stdout);
}

static void test_accepted(void **state)
{
    static const struct {
        const char *argv[8];
        const char *out;
    } good[] = {{{"p", NULL}, "5 0 none 0"},
                {{"p", "-r", "99", "+fast", "file", "two", NULL}, "99 1 file 1"},
                {{"p", "--", "-h", NULL}, "5 0 -h 0"},
                {{"p", "-", "one", NULL}, "5 0 - 0"},
                {{"p", "-r", "-h", NULL}, usage},
                {{"p", "file", "--help", NULL}, usage}};
    char out[1024];
    (void)state;
    for (size_t i = 0; i < CART_COUNTOF(good); i++) {
        int status = in_child(program, (char **)(uintptr_t)good[i].argv, STDOUT_FILENO, out);
        assert_int_equal(status, 0);
        assert_string_equal(out, good[i].out);
    }
}

static void test_refused(void **state)
{
    static const struct {
        const char *argv[6];
        const char *message;
    } bad[] = {
        {{"p", "-r", "0", NULL}, "-r: expected a whole number from 1 to 99, found '0'"},
        {{"p", "-r", "100", NULL}, "-r: expected a whole number from 1 to 99, found '100'"},
        {{"p", "-r", "3x", NULL}, "-r: expected a whole number from 1 to 99, found '3x'"},
        {{"p", "-r", " 3", NULL}, "-r: expected a whole number from 1 to 99, found ' 3'"},
        {{"p", "-r", "-3", NULL}, "-r: expected a whole number from 1 to 99, found '-3'"},
        {{"p", "-r", "", NULL}, "-r: expected a whole number from 1 to 99, found ''"},
        {{"p", "-r", "99999999999999999999", NULL},
         "-r: expected a whole number from 1 to 99, found '99999999999999999999'"},
        {{"p", "-r", NULL}, "-r: expected a value, found none; -h tells more"},
        {{"p", "--bogus", NULL}, "--bogus: unknown option; -h tells which there are"},
        {{"p", "+bogus", NULL}, "+bogus: unknown option; -h tells which there are"},
        {{"p", "file", "tw", NULL}, "WORD: expected one | two, found 'tw'"},
        {{"p", "file", "two", "x", NULL}, "expected no more arguments, found 'x'; -h tells more"},
    };
    char out[1024], want[1024];
    (void)state;
    for (size_t i = 0; i < CART_COUNTOF(bad); i++) {
        int status = in_child(program, (char **)(uintptr_t)bad[i].argv, STDERR_FILENO, out);
        assert_true(WIFEXITED(status));
        assert_int_equal(WEXITSTATUS(status), 2);
        snprintf(want, sizeof want, "%s: %s\n", program_invocation_short_name, bad[i].message);
        assert_string_equal(out, want);
    }
}

static void test_workloads(void **state)
{
    static const char *const good[] = {"prefill 1",         "decode 64 512",
                                       "shared-f16 16 512", "cartridge 1 512",
                                       "teacher 4 600 160", "recompute 4 224 256 160"};
    static const char *const bad[] = {
        "",           "prefill",     "prefill ",      "prefill -5",  "prefill 512 junk",
        "prefill 0",  "prefill  5",  "prefill 5 ",    "prefill 5x",  "prefill 99999999999999999999",
        "prefill +5", "decode 65 1", "teacher 1 5 6", "train 1 5 5", "train 1 5 5 6",
        "nonsense 1", "pre 1"};
    (void)state;
    for (size_t i = 0; i < CART_COUNTOF(good); i++)
        assert_true(workload_known(good[i]));
    for (size_t i = 0; i < CART_COUNTOF(bad); i++)
        assert_false(workload_known(bad[i]));
}

/* Makes a folder, a file in it and a child, which holds standard output open as long as it lives,
 * tells the folder, and ends as argv says. */
static void messy(char **argv)
{
    char path[4200];
    const char *folder = bench_folder();
    snprintf(path, sizeof path, "%s/file", folder);
    bench_litter(path);
    FILE *f = fopen(path, "w");
    if (f == NULL || fclose(f) != 0)
        _exit(9);
    pid_t pid = bench_fork();
    if (pid == 0) {
        sleep(20);
        printf(" and the child lives");
        exit(0);
    }
    printf("%s", folder);
    fflush(stdout);
    if (argv[0][0] == 'e')
        exit(5);
    raise(atoi(argv[0]));
}

static void test_tidy(void **state)
{
    static const char *const ways[] = {"exit", "2", "15", "1", "9"}; /* INT, TERM, HUP, KILL */
    const int statuses[] = {5, SIGINT, SIGTERM, SIGHUP, SIGKILL};
    (void)state;
    for (size_t i = 0; i < CART_COUNTOF(ways); i++) {
        char out[1024], path[1100], *argv[] = {(char *)(uintptr_t)ways[i], NULL};
        signal(SIGINT, SIG_DFL);
        signal(SIGHUP, SIG_DFL);
        int status = in_child(messy, argv, STDOUT_FILENO, out);
        assert_int_equal(i == 0 ? WEXITSTATUS(status) : WTERMSIG(status), statuses[i]);
        assert_true(out[0] != '\0' && strstr(out, "lives") == NULL);
        bool left = access(out, F_OK) == 0;
        assert_true(left == (i == 4)); /* nobody can tidy after KILL */
        snprintf(path, sizeof path, "%s/file", out);
        unlink(path);
        rmdir(out);
    }
}

static void test_children(void **state)
{
    (void)state;
    pid_t pid = bench_fork();
    if (pid == 0)
        _exit(7);
    assert_int_equal(bench_wait(pid, NULL), 7);
    pid = bench_fork();
    if (pid == 0)
        raise(SIGKILL);
    assert_int_equal(bench_wait(pid, NULL), 128 + SIGKILL);
}

static void test_places(void **state)
{
    (void)state;
    const char *file = bench_tree("README.md"), *tool = bench_tool("cart-ask");
    assert_int_equal(access(file, R_OK), 0);
    assert_int_equal(access(tool, X_OK), 0);
    free((void *)(uintptr_t)file);
    free((void *)(uintptr_t)tool);
}

static void test_load(void **state)
{
    struct limit_load load = limit_load_now();
    (void)state;
    assert_true(load.busy <= load.all && load.own >= 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_accepted),  cmocka_unit_test(test_refused),
        cmocka_unit_test(test_workloads), cmocka_unit_test(test_tidy),
        cmocka_unit_test(test_children),  cmocka_unit_test(test_places),
        cmocka_unit_test(test_load)};
    cmocka_set_message_output(CM_OUTPUT_TAP);
    return cmocka_run_group_tests_name("bench_args", tests, NULL, NULL);
}
