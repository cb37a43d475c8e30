/* How soon cart-ask gives its first token when its files are in the page cache. */
#include "base/attr.h"
#include "helper/bench_args.h"
#include "helper/bench_tidy.h"
#include "helper/workload.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { MOST = 99 };

static const char usage[] = "usage: bench_start [-r REPEATS] [QUESTION [MODEL.gguf [CARTRIDGE]]]\n"
                            "Starts cart-ask REPEATS (9, at most 99) times after one that does not "
                            "count; the medians of two\n"
                            "waits in milliseconds, with the least and the most: until the forward "
                            "starts (the event \"ready\"\n"
                            "of CART_TRACE) and until the first bytes of the answer. Without "
                            "MODEL: CART_MODEL, or the demo\n"
                            "model if it was fetched.\n";

static char trace[4096];

/* The clock of the trace. */
static double now(void)
{
    struct timespec t = {0, 0};
    clock_gettime(CLOCK_REALTIME, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static _Noreturn void die(const char *what)
{
    bench_die(5, "%s: %s", what, strerror(errno));
}

/* When the trace says that the tool was ready. */
static double ready(void)
{
    char line[8192];
    double at = 0;
    FILE *f = fopen(trace, "r");
    while (f && fgets(line, sizeof line, f)) {
        const char *time = strstr(line, "\"time\":");
        if (time && strstr(line, "\"event\":\"ready\""))
            at = strtod(time + 7, NULL);
    }
    if (f)
        fclose(f);
    if (at == 0)
        bench_die(1, "%s: no event \"ready\"", trace);
    return at;
}

static void ask(const char *const command[], double *until_ready, double *until_first)
{
    int ends[2];
    char byte;
    if (truncate(trace, 0) < 0 || pipe(ends) < 0)
        die(trace);
    double start = now();
    pid_t pid = bench_fork();
    if (pid == 0) {
        dup2(ends[1], STDOUT_FILENO);
        close(ends[0]);
        close(ends[1]);
        execv(command[0], (char *const *)(uintptr_t)command);
        _exit(127);
    }
    close(ends[1]);
    bool answered = read(ends[0], &byte, 1) == 1;
    *until_first = now() - start;
    while (read(ends[0], &byte, 1) > 0)
        ;
    close(ends[0]);
    int status = bench_wait(pid, NULL);
    if (status > 128)
        bench_die(status, "%s: killed by signal %d", command[0], status - 128);
    if (status != 0)
        exit(status); /* it has said why */
    if (!answered)
        bench_die(1, "%s: no answer", command[0]);
    *until_ready = ready() - start;
}

static void print(const char *what, double *t, size_t n)
{
    double middle = workload_median(t, n);
    printf("%s %.1f ms [%.1f, %.1f]\n", what, 1e3 * middle, 1e3 * t[0], 1e3 * t[n - 1]);
}

int main(int argc, char **argv)
{
    double a[MOST], b[MOST];
    struct bench_args args = bench_args(argc, argv, usage);
    size_t repeats = 9;
    for (const char *o; (o = bench_args_option(&args)) != NULL;)
        if (strcmp(o, "-r") == 0)
            repeats = bench_whole(o, bench_args_value(&args), 1, MOST);
        else
            bench_args_unknown(&args);
    const char *question = bench_args_operand(&args), *model = bench_args_operand(&args);
    const char *cartridge = bench_args_operand(&args), *tool = bench_tool("cart-ask");
    bench_args_end(&args);
    if (question == NULL)
        question = "Where is the key of the third drawer kept?";
    if (model == NULL && (model = bench_model_file(stdout)) == NULL)
        return 0;
    const char *command[] = {tool, "-q",      "--max-tokens", "1",      "-m", model,
                             "-c", cartridge, "--",           question, NULL};
    if (cartridge == NULL)
        command[6] = "--", command[7] = question, command[8] = NULL;
    snprintf(trace, sizeof trace, "%s/trace", bench_folder());
    bench_litter(trace);
    FILE *f = fopen(trace, "w");
    if (f == NULL || fclose(f) != 0 || setenv("CART_TRACE", trace, 1) != 0)
        die(trace);
    ask(command, &a[0], &b[0]);
    for (size_t r = 0; r < repeats; r++)
        ask(command, &a[r], &b[r]);
    print("until the forward starts", a, repeats);
    print("until the first token", b, repeats);
    return 0;
}
