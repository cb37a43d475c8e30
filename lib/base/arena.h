/* Measure, then allocate. A layout function pushes every array it needs. Run on an empty arena the
 * pushes only count (and return NULL); after cart_arena_reserve(&a, a.used, &err) the same function
 * runs again and hands out zeroed, 64-byte aligned memory. One arena per lifetime; not thread-safe;
 * gaps are poisoned under ASan. */
#ifndef CART_BASE_ARENA_H
#define CART_BASE_ARENA_H

#include "base/err.h"

struct cart_arena {
    unsigned char *base; /* NULL while measuring */
    size_t cap;          /* bytes reserved */
    size_t used;         /* bytes pushed */
    bool overflow;       /* a size wrapped while measuring: reserve then fails */
};

#define CART_ARENA_INIT                                                                            \
    {                                                                                              \
        NULL, 0, 0, false                                                                          \
    }

/* n elements of size bytes. NULL while measuring. Pushing more than was measured is a bug
 * (asserts). */
void *cart_arena_push(struct cart_arena *a, size_t n, size_t size);

/* Allocates bytes (zeroed pages from the system) and resets used to 0. The arena must be empty
 * (base NULL). */
int cart_arena_reserve(struct cart_arena *a, size_t bytes, struct cart_err *err) CART_MUST_USE;
/* The same of memory that is going to be used whole and at random: from a mebibyte on it comes in
 * large pages where the system has them. */
int cart_arena_reserve_dense(struct cart_arena *a, size_t bytes,
                             struct cart_err *err) CART_MUST_USE;

void cart_arena_release(struct cart_arena *a);

#endif
