#define _XOPEN_SOURCE 700 /* realpath */
#include "serve/model_name.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

static bool ends_in(const char *text, size_t n, const char *end)
{
    size_t k = strlen(end);
    return n > k && memcmp(text + n - k, end, k) == 0;
}

/* The last part of path [*n], without the ending of a GGUF file. */
static const char *last_part(const char *path, size_t *n)
{
    size_t end = *n, start;
    while (end > 1 && path[end - 1] == '/')
        end--;
    end -= ends_in(path, end, ".gguf") ? 5 : 0;
    for (start = end; start > 0 && path[start - 1] != '/'; start--)
        ;
    *n = end - start;
    return path + start;
}

const char *cart_serve_model_name(const char *path, size_t *n, char **real)
{
    *n = strlen(path);
    if (ends_in(path, *n, ".json")) {
        const char *slash = strrchr(path, '/');
        *n = slash ? (size_t)(slash - path) : 1;
        path = slash ? path : ".";
    }
    const char *name = last_part(path, n);
    if ((*n == 1 || (*n == 2 && name[1] == '.')) && name[0] == '.') {
        char *dots = strndup(path, (size_t)(name - path) + *n);
        *real = dots ? realpath(dots, NULL) : NULL;
        free(dots);
        *n = *real ? strlen(*real) : 0;
        name = *real ? last_part(*real, n) : name;
    }
    return name;
}
