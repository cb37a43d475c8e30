#include "base/buf.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int cart_buf_reserve(struct cart_buf *b, size_t extra, struct cart_err *err)
{
    size_t need;
    if (!cart_size_add(b->len, extra, &need) || !cart_size_add(need, 1, &need))
        return cart_err_memory(err, "buffer", SIZE_MAX);
    if (need <= b->cap)
        return 0;
    size_t cap = b->cap + b->cap / 2;
    if (cap < need)
        cap = need < 64 ? 64 : need;
    char *data = realloc(b->data, cap);
    if (!data)
        return cart_err_memory(err, "buffer", cap);
    b->data = data;
    b->cap = cap;
    return 0;
}

int cart_buf_add(struct cart_buf *b, const void *bytes, size_t n, struct cart_err *err)
{
    int r = cart_buf_reserve(b, n, err);
    if (r < 0)
        return r;
    if (n)
        memcpy(b->data + b->len, bytes, n);
    b->len += n;
    b->data[b->len] = '\0';
    return 0;
}

int cart_buf_addf(struct cart_buf *b, struct cart_err *err, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    int n = vsnprintf(NULL, 0, fmt, ap);
    va_end(ap);
    if (n < 0)
        return cart_err_sys(err, "formatting");
    int r = cart_buf_reserve(b, (size_t)n, err);
    if (r < 0)
        return r;
    va_start(ap, fmt);
    vsnprintf(b->data + b->len, (size_t)n + 1, fmt, ap);
    va_end(ap);
    b->len += (size_t)n;
    return 0;
}

void cart_buf_reset(struct cart_buf *b)
{
    b->len = 0;
    if (b->data)
        b->data[0] = '\0';
}

void cart_buf_release(struct cart_buf *b)
{
    free(b->data);
    *b = (struct cart_buf)CART_BUF_INIT;
}

int cart_array_reserve(void *items, size_t *cap, size_t need, size_t size, struct cart_err *err)
{
    if (need <= *cap)
        return 0;
    size_t grown = *cap + *cap / 2;
    if (grown < need)
        grown = need < 8 ? 8 : need;
    size_t bytes;
    if (!cart_size_mul(grown, size, &bytes))
        return cart_err_memory(err, "array", SIZE_MAX);
    void *old;
    /* The pointer has the type of its elements, whatever that is. */
    memcpy(&old, items, sizeof old);
    void *p = realloc(old, bytes);
    if (!p)
        return cart_err_memory(err, "array", bytes);
    memcpy(items, &p, sizeof p);
    *cap = grown;
    return 0;
}
