/* The rate of a progress line is that of what was done here: what was there before the start, or
 * before a pause, is no part of it. */
#include "base/clock.h"
#include "base/log.h"

#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <setjmp.h>

#include <cmocka.h>

/* The last line of a progress whose clock began 10 seconds ago, as it stands on standard error. */
static void last_line(char *out, size_t cap, double skipped, double done)
{
    FILE *f = tmpfile();
    int saved = dup(STDERR_FILENO);
    struct cart_progress p;
    assert_non_null(f);
    assert_true(saved >= 0);
    fflush(stderr);
    assert_true(dup2(fileno(f), STDERR_FILENO) >= 0);
    cart_progress_start(&p, CART_PROGRESS_ALWAYS, "steps", 1000);
    cart_progress_skip(&p, skipped);
    p.started = cart_clock_now() - 10.0;
    cart_progress_update(&p, done, NULL);
    cart_progress_end(&p);
    fflush(stderr);
    assert_true(dup2(saved, STDERR_FILENO) >= 0);
    close(saved);
    rewind(f);
    out[0] = '\0';
    while (fgets(out, (int)cap, f))
        ;
    fclose(f);
}

static void has(const char *line, const char *words)
{
    if (!strstr(line, words))
        fail_msg("expected '%s' in: %s", words, line);
}

static void test_rate(void **state)
{
    char line[512];
    (void)state;
    last_line(line, sizeof line, 0, 500);
    has(line, "500/1000 steps, 50/s, 10 s left");
    last_line(line, sizeof line, 300, 500);
    has(line, "500/1000 steps, 20/s, 25 s left");
    last_line(line, sizeof line, 500, 500);
    has(line, "500/1000 steps, 0.00/s");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_rate),
    };
    cmocka_set_message_output(CM_OUTPUT_TAP);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
