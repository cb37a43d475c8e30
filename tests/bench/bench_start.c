/* How soon cart-ask gives its first token when its files are in the page cache.
 *
 *   bench_start [-r REPEATS] [QUESTION [MODEL.gguf [CARTRIDGE]]]
 *
 * Starts the tool REPEATS (9) times after one that does not count; prints the medians of two waits
 * in milliseconds, with the least and the most: until the forward starts (the event "ready" of
 * CART_TRACE) and until the first bytes of the answer. */
#define _GNU_SOURCE /* mkdtemp */
#include "helper/vocab.h"
#include "helper/workload.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { MOST = 99 };

static char trace[] = "/tmp/bench_start.XXXXXX";

/* The clock of the trace. */
static double now(void)
{
    struct timespec t = {0, 0};
    clock_gettime(CLOCK_REALTIME, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static void die(const char *what)
{
    perror(what);
    exit(5);
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
    if (at == 0) {
        fprintf(stderr, "bench_start: %s: no event \"ready\"\n", trace);
        exit(1);
    }
    return at;
}

static void ask(const char *const command[], double *until_ready, double *until_first)
{
    int ends[2], status;
    char byte;
    if (truncate(trace, 0) < 0 || pipe(ends) < 0)
        die("bench_start");
    double start = now();
    pid_t pid = fork();
    if (pid == 0) {
        dup2(ends[1], STDOUT_FILENO);
        close(ends[0]);
        close(ends[1]);
        execv(command[0], (char *const *)(uintptr_t)command);
        _exit(127);
    }
    close(ends[1]);
    if (pid < 0 || read(ends[0], &byte, 1) != 1)
        die(command[0]);
    *until_first = now() - start;
    while (read(ends[0], &byte, 1) > 0)
        ;
    close(ends[0]);
    if (waitpid(pid, &status, 0) != pid || status != 0)
        die(command[0]);
    *until_ready = ready() - start;
}

static void print(const char *what, double *t, size_t n)
{
    double middle = workload_median(t, n);
    printf("%s %.1f ms [%.1f, %.1f]\n", what, 1e3 * middle, 1e3 * t[0], 1e3 * t[n - 1]);
}

int main(int argc, char **argv)
{
    char tool[4096];
    const char *slash = strrchr(argv[0], '/');
    double a[MOST], b[MOST];
    int i = 1;
    size_t repeats = 9;
    if (argc > 2 && strcmp(argv[1], "-r") == 0) {
        repeats = strtoul(argv[2], NULL, 10);
        i = 3;
    }
    repeats = repeats < 1 ? 1 : repeats > MOST ? MOST : repeats;
    snprintf(tool, sizeof tool, "%.*s/../bin/cart-ask", slash ? (int)(slash - argv[0]) : 1,
             slash ? argv[0] : ".");
    const char *question = i < argc ? argv[i] : "Where is the key of the third drawer kept?";
    const char *model = i + 1 < argc ? argv[i + 1] : test_demo_model();
    const char *command[] = {tool,  "-q",     "--max-tokens", "1",  "-m",
                             model, question, NULL,           NULL, NULL};
    if (i + 2 < argc) {
        command[7] = "-c";
        command[8] = argv[i + 2];
    }
    if (access(model, R_OK) != 0) {
        printf("%s: not fetched (examples/fetch-model.sh)\n", model);
        return 0;
    }
    int fd = mkstemp(trace);
    if (fd < 0 || setenv("CART_TRACE", trace, 1) != 0)
        die(trace);
    close(fd);
    ask(command, &a[0], &b[0]);
    for (size_t r = 0; r < repeats; r++)
        ask(command, &a[r], &b[r]);
    unlink(trace);
    print("until the forward starts", a, repeats);
    print("until the first token", b, repeats);
    return 0;
}
