#include "base/columns.h"

#include <stdlib.h>

/* Bytes of the next line of text that fit width places, cut at a space where there is one. *places:
 * their characters. */
static size_t line_length(const char *text, size_t width, size_t *places)
{
    size_t n = 0, chars = 0, space = 0;

    while (text[n] != '\0' && text[n] != '\n' && chars < width) {
        if (text[n] == ' ')
            space = n;
        n++;
        while (((unsigned char)text[n] & 0xC0) == 0x80)
            n++;
        chars++;
    }
    bool whole = text[n] == '\0' || text[n] == '\n' || text[n] == ' ';
    if (!whole && space > 0)
        n = space;
    *places = 0;
    for (size_t i = 0; i < n; i++)
        *places += ((unsigned char)text[i] & 0xC0) != 0x80;
    return n;
}

int cart_columns_add(struct cart_buf *out, const char *const *texts, size_t n, size_t width,
                     struct cart_err *err)
{
    size_t bars = 3 * (n - 1);
    size_t column = width > bars + n ? (width - bars) / n : 1;
    const char **left = malloc(n * sizeof *left);
    bool more = true;
    int r = 0;

    if (!left)
        return cart_err_memory(err, "columns", n * sizeof *left);
    for (size_t i = 0; i < n; i++)
        left[i] = texts[i];
    while (more && r == 0) {
        more = false;
        for (size_t i = 0; i < n && r == 0; i++) {
            size_t places;
            size_t bytes = line_length(left[i], column, &places);
            r = cart_buf_addf(out, err, "%.*s%*s%s", (int)bytes, left[i],
                              i + 1 < n ? (int)(column - places) : 0, "", i + 1 < n ? " | " : "\n");
            left[i] += bytes;
            left[i] += *left[i] == '\n' || *left[i] == ' ';
            more = more || *left[i] != '\0';
        }
    }
    free(left);
    return r;
}
