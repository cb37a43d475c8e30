/* A growable byte buffer. data is NULL or cap bytes, of which len are used; one byte beyond len is
 * always NUL once anything was added, so that text can be used as a C string. Not thread-safe. */
#ifndef CART_BASE_BUF_H
#define CART_BASE_BUF_H

#include "base/err.h"

struct cart_buf {
    char *data;
    size_t len;
    size_t cap;
};

#define CART_BUF_INIT                                                                              \
    {                                                                                              \
        NULL, 0, 0                                                                                 \
    }

int cart_buf_add(struct cart_buf *b, const void *bytes, size_t n,
                 struct cart_err *err) CART_MUST_USE;
int cart_buf_addf(struct cart_buf *b, struct cart_err *err, const char *fmt, ...)
    CART_PRINTF(3, 4) CART_MUST_USE;

/* Makes room for extra more bytes (and the NUL); grows by half at least, so n adds cost O(n). */
int cart_buf_reserve(struct cart_buf *b, size_t extra, struct cart_err *err) CART_MUST_USE;
void cart_buf_reset(struct cart_buf *b); /* len = 0, memory kept */
void cart_buf_release(struct cart_buf *b);

/* Grows an array on the heap: the pointer at items, to elements of size bytes and of any type, then
 * has room for *cap >= need of them. On failure nothing has changed. */
int cart_array_reserve(void *items, size_t *cap, size_t need, size_t size,
                       struct cart_err *err) CART_MUST_USE;

#endif
