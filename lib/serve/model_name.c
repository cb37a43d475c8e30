#define _XOPEN_SOURCE 700 /* realpath */
#include "serve/model_name.h"

#include "format/text.h"

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

/* The result [*n] lies in path or, where that ends in "." or "..", in *real: the path it was
 * resolved to, which the caller frees; else *real stays as it was. */
static const char *model_name(const char *path, size_t *n, char **real)
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

/* Replaces what an id cannot have; whether there was any. */
static bool clean(char *name)
{
    bool any = false;
    for (unsigned char *p = (unsigned char *)name; *p; p++) {
        bool first = p == (unsigned char *)name;
        /* U+0080 to U+009F are control characters too. */
        bool second = !first && p[-1] == 0xc2 && *p < 0xa0;
        if (second)
            p[-1] = '-';
        if (second || *p <= ' ' || *p == 127 || *p == ':' ||
            (*p == '/' && (first || p[-1] == '/' || p[1] == '\0'))) {
            *p = '-';
            any = true;
        }
    }
    return any;
}

int cart_serve_base_name(char *out, size_t cap, const char *given, const char *path,
                         struct cart_err *err)
{
    char *real = NULL, shown[160];
    size_t n = given ? strlen(given) : 0;
    const char *name = given ? given : model_name(path, &n, &real);
    bool ok = n > 0 && n < cap && cart_text_check("", name, n, NULL) == 0;
    if (ok) {
        memcpy(out, name, n);
        out[n] = '\0';
        ok = !clean(out) || !given;
    }
    if (!ok)
        cart_err_set(err, CART_EUSAGE,
                     "--name %s: expected 1 to %zu bytes of UTF-8 without blanks, colons, control "
                     "characters, or a slash at an end or beside another",
                     cart_err_escape(shown, sizeof shown, name, n), cap - 1);
    free(real);
    return ok ? 0 : CART_EUSAGE;
}
