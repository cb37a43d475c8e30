/* INT and TERM: the first is noted, the second kills, and once the work is done the first kills. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "base/interrupt.h"
#include "base/io.h"

#include <signal.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

/* The status of a child that does so much of: install, a signal, release, a signal. 0: it lived. */
static int live_through(bool install, int first, bool release, int second)
{
    pid_t child = fork();
    int status = 0;

    assert_true(child >= 0);
    if (child == 0) {
        if (install)
            cart_interrupt_install();
        if (first)
            raise(first);
        if (first && !cart_interrupted())
            _exit(3);
        if (release)
            cart_interrupt_release();
        if (second)
            raise(second);
        _exit(0);
    }
    assert_int_equal(waitpid(child, &status, 0), child);
    return status;
}

static void dies_of(int sig, int status)
{
    assert_true(WIFSIGNALED(status));
    assert_int_equal(WTERMSIG(status), sig);
}

static void test_signals(void **state)
{
    (void)state;
    /* A shell starts what it runs in the background with INT ignored. */
    signal(SIGINT, SIG_DFL);
    signal(SIGTERM, SIG_DFL);
    assert_int_equal(live_through(true, SIGINT, false, 0), 0);
    assert_int_equal(live_through(true, SIGTERM, true, 0), 0);
    dies_of(SIGINT, live_through(true, SIGINT, false, SIGINT));
    dies_of(SIGTERM, live_through(true, SIGINT, false, SIGTERM));
    dies_of(SIGINT, live_through(true, 0, true, SIGINT));
    dies_of(SIGTERM, live_through(true, 0, true, SIGTERM));
    /* What was ignored, as under nohup, stays ignored. */
    signal(SIGINT, SIG_IGN);
    assert_int_equal(live_through(true, 0, true, SIGINT), 0);
    signal(SIGINT, SIG_DFL);
}

/* A signal just before the wait ends it as one within does; what is there to read comes first. */
static void test_reading(void **state)
{
    (void)state;
    pid_t child = fork();
    int status = 0;

    assert_true(child >= 0);
    if (child == 0) {
        int p[2];
        char byte = 0;
        struct cart_err err = {0};
        if (pipe(p) < 0 || write(p[1], "x", 1) != 1)
            _exit(2);
        cart_interrupt_install();
        raise(SIGTERM);
        alarm(20);
        if (cart_io_read(p[0], &byte, 1, "pipe", &err) != 1 || byte != 'x')
            _exit(3);
        if (cart_io_read(p[0], &byte, 1, "pipe", &err) != CART_EAGAIN)
            _exit(4);
        _exit(strcmp(err.msg, "pipe: stopped while reading") == 0 ? 0 : 5);
    }
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_int_equal(status, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_signals),
                                       cmocka_unit_test(test_reading)};

    cmocka_set_message_output(CM_OUTPUT_TAP);
    return cmocka_run_group_tests_name("interrupt", tests, NULL, NULL);
}
