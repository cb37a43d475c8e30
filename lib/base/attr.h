/* Function attributes and overflow-checked size arithmetic used by every room. */
#ifndef CART_BASE_ATTR_H
#define CART_BASE_ATTR_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define CART_MUST_USE __attribute__((warn_unused_result))
#define CART_PRINTF(fmt, args) __attribute__((format(printf, fmt, args)))
#define CART_COUNTOF(a) (sizeof(a) / sizeof((a)[0]))

/* Each writes the exact result and returns true, or returns false on overflow (*out is then
 * unspecified). */
static inline bool cart_size_add(size_t a, size_t b, size_t *out)
{
    return !__builtin_add_overflow(a, b, out);
}

static inline bool cart_size_mul(size_t a, size_t b, size_t *out)
{
    return !__builtin_mul_overflow(a, b, out);
}

#endif
