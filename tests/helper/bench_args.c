#define _GNU_SOURCE /* program_invocation_short_name */
#include "helper/bench_args.h"

#include "helper/vocab.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { USAGE = 2, SYSTEM = 5, PATH = 4096 };

_Noreturn void bench_die(int status, const char *fmt, ...)
{
    va_list args;
    fflush(stdout);
    fprintf(stderr, "%s: ", program_invocation_short_name);
    va_start(args, fmt);
    vfprintf(stderr, fmt, args);
    va_end(args);
    fputc('\n', stderr);
    exit(status);
}

struct bench_args bench_args(int argc, char **argv, const char *usage)
{
    for (int i = 1; i < argc && strcmp(argv[i], "--") != 0; i++) {
        if (strcmp(argv[i], "-h") != 0 && strcmp(argv[i], "--help") != 0)
            continue;
        bool written = fputs(usage, stdout) >= 0 && fflush(stdout) == 0;
        exit(written ? 0 : SYSTEM);
    }
    return (struct bench_args){argc, 1, argv, NULL};
}

const char *bench_args_option(struct bench_args *a)
{
    a->option = a->at < a->argc ? a->argv[a->at] : "";
    if (strcmp(a->option, "--") == 0)
        a->at++;
    else if ((a->option[0] == '-' || a->option[0] == '+') && a->option[1] != '\0')
        return a->argv[a->at++];
    return NULL;
}

const char *bench_args_value(struct bench_args *a)
{
    if (a->at >= a->argc)
        bench_die(USAGE, "%s: expected a value, found none; -h tells more", a->option);
    return a->argv[a->at++];
}

_Noreturn void bench_args_unknown(const struct bench_args *a)
{
    bench_die(USAGE, "%s: unknown option; -h tells which there are", a->option);
}

const char *bench_args_operand(struct bench_args *a)
{
    return a->at < a->argc ? a->argv[a->at++] : NULL;
}

void bench_args_end(const struct bench_args *a)
{
    if (a->at < a->argc)
        bench_die(USAGE, "expected no more arguments, found '%s'; -h tells more", a->argv[a->at]);
}

size_t bench_whole(const char *what, const char *text, size_t least, size_t most)
{
    char *end;
    errno = 0;
    unsigned long n = strtoul(text, &end, 10);
    /* strtoul takes blanks and signs. */
    if (text[0] < '0' || text[0] > '9' || *end != '\0' || errno != 0 || n < least || n > most)
        bench_die(USAGE, "%s: expected a whole number from %zu to %zu, found '%s'", what, least,
                  most, text);
    return n;
}

size_t bench_word(const char *what, const char *text, const char *const *names, size_t n)
{
    char list[1024] = "";
    for (size_t i = 0, at = 0; i < n; i++) {
        if (strcmp(text, names[i]) == 0)
            return i;
        if (at < sizeof list)
            at += (size_t)snprintf(list + at, sizeof list - at, "%s%s", i ? " | " : "", names[i]);
    }
    bench_die(USAGE, "%s: expected %s, found '%s'", what, list, text);
}

/* The program's own path without its last parts. */
static void above(char out[PATH], int parts)
{
    ssize_t n = readlink("/proc/self/exe", out, PATH - 1);
    if (n < 0)
        bench_die(SYSTEM, "/proc/self/exe: %s", strerror(errno));
    out[n] = '\0';
    for (char *slash; parts > 0 && (slash = strrchr(out, '/')) != NULL; parts--)
        *slash = '\0';
}

static char *joined(const char *folder, const char *name)
{
    size_t n = strlen(folder) + strlen(name) + 2;
    char *path = malloc(n);
    if (path == NULL)
        bench_die(SYSTEM, "out of memory");
    snprintf(path, n, "%s/%s", folder, name);
    return path;
}

const char *bench_tool(const char *name)
{
    char folder[PATH];
    above(folder, 2);
    char *bin = joined(folder, "bin"), *path = joined(bin, name);
    free(bin);
    if (access(path, X_OK) != 0)
        bench_die(SYSTEM, "%s: expected the tool, built by make; found: %s", path, strerror(errno));
    return path;
}

const char *bench_tree(const char *name)
{
    char root[PATH];
    above(root, 4);
    char *mark = joined(root, "tests/helper/bench_args.h");
    if (access(mark, R_OK) != 0)
        bench_die(SYSTEM, "expected this program in build/MODE/bench of its source tree; %s: %s",
                  mark, strerror(errno));
    free(mark);
    return joined(root, name);
}

const char *bench_model_file(FILE *note)
{
    const char *path = getenv("CART_MODEL");
    if (path != NULL && *path != '\0') {
        if (access(path, R_OK) != 0)
            bench_die(SYSTEM, "CART_MODEL: %s: %s", path, strerror(errno));
        return path;
    }
    path = test_demo_model();
    if (access(path, R_OK) == 0)
        return path;
    fprintf(note, "%s: not fetched (examples/fetch-model.sh)\n", path);
    return NULL;
}
