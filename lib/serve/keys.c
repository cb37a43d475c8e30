#include "serve/keys.h"

#include "base/hash.h"
#include "base/io.h"

#include <stdlib.h>
#include <string.h>

#define FILE_MAX ((size_t)1 << 20)
#define DIGEST 32

struct cart_keys {
    unsigned char (*digests)[DIGEST];
    size_t n, cap;
};

static int add(struct cart_keys *k, const char *key, size_t n, const char *where,
               struct cart_err *err)
{
    for (size_t i = 0; i < n; i++)
        if ((unsigned char)key[i] <= ' ' || key[i] == 127)
            return cart_err_set(err, CART_EUSAGE, "%s: expected keys without blanks", where);
    int r = cart_array_reserve(&k->digests, &k->cap, k->n + 1, sizeof *k->digests, err);
    if (r == 0)
        cart_sha256(key, n, k->digests[k->n++]);
    return r;
}

static void trim(const char **p, size_t *n)
{
    while (*n > 0 && strchr(" \t\r", **p)) {
        (*p)++;
        (*n)--;
    }
    while (*n > 0 && strchr(" \t\r", (*p)[*n - 1]))
        (*n)--;
}

static int add_lines(struct cart_keys *k, const struct cart_buf *text, const char *file,
                     struct cart_err *err)
{
    int r = 0;
    for (size_t at = 0; at < text->len && r == 0;) {
        const char *line = text->data + at, *end = memchr(line, '\n', text->len - at);
        size_t n = end ? (size_t)(end - line) : text->len - at;
        at += n + 1;
        trim(&line, &n);
        if (n > 0 && *line != '#')
            r = add(k, line, n, file, err);
    }
    return r;
}

int cart_keys_load(struct cart_keys **out, const char *file, const char *extra,
                   struct cart_err *err)
{
    struct cart_buf text = CART_BUF_INIT;
    struct cart_keys *k = calloc(1, sizeof *k);
    int r = k ? 0 : cart_err_memory(err, "API keys", sizeof *k);
    if (r == 0 && file)
        r = cart_io_slurp(file, FILE_MAX, &text, err);
    if (r == 0 && file)
        r = add_lines(k, &text, file, err);
    if (r == 0 && file && k->n == 0)
        r = cart_err_set(err, CART_EUSAGE, "%s: expected at least one key, found none", file);
    if (r == 0 && extra && *extra)
        r = add(k, extra, strlen(extra), "CART_API_KEY", err);
    if (text.data)
        memset(text.data, 0, text.len);
    cart_buf_release(&text);
    if (r < 0 || k->n == 0) {
        cart_keys_free(k);
        k = NULL;
    }
    if (r == 0)
        *out = k;
    return r;
}

void cart_keys_free(struct cart_keys *k)
{
    if (!k)
        return;
    free(k->digests);
    free(k);
}

bool cart_keys_allow(const struct cart_keys *k, const char *given)
{
    unsigned char digest[DIGEST];
    unsigned found = 0;
    if (!k)
        return true;
    cart_sha256(given ? given : "", given ? strlen(given) : 0, digest);
    for (size_t i = 0; i < k->n; i++) {
        unsigned difference = 0;
        for (size_t j = 0; j < DIGEST; j++)
            difference |= (unsigned)(digest[j] ^ k->digests[i][j]);
        found |= (difference - 1) >> 31;
    }
    return given && found == 1;
}
