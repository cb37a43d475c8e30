/* Classes of code points, pinned to one version of Unicode so that a text has the same ids
 * everywhere and always, and the UTF-8 decoder of the room. */
#ifndef CART_TOKEN_UNICODE_H
#define CART_TOKEN_UNICODE_H

#include "base/attr.h"

enum {
    CART_UNICODE_LETTER = 1, /* general category L* */
    CART_UNICODE_NUMBER = 2, /* N* */
    CART_UNICODE_SPACE = 4,  /* White_Space: 25 code points */
    CART_UNICODE_MOVES = 8,  /* combining class other than 0, or NFC_Quick_Check other than Yes */
};

#define CART_UNICODE_MAX 0x110000

extern const uint32_t
    cart_unicode_ranges[]; /* [cart_unicode_n_ranges] of first << 8 | class, rising */
extern const size_t cart_unicode_n_ranges;

/* A table [CART_UNICODE_MAX] of classes, one byte a code point; the caller's to free. NULL when out
 * of memory. */
unsigned char *cart_unicode_classes(void);

/* Length of the well-formed UTF-8 sequence at p (end is one past the text, p < end) and its code
 * point; 0 if there is none: *want then says how many bytes from p belong to the maximal
 * well-formed beginning (at least 1), and *cut whether only the end of the text stopped it. */
size_t cart_utf8_sequence(const unsigned char *p, const unsigned char *end, uint32_t *cp,
                          size_t *want, bool *cut);

/* The same for scanners: always advances. A byte that is not UTF-8 counts as one symbol U+FFFD. */
static inline size_t cart_utf8_decode(const unsigned char *p, const unsigned char *end,
                                      uint32_t *cp)
{
    if (*p < 0x80) {
        *cp = *p;
        return 1;
    }
    size_t want;
    bool cut;
    size_t n = cart_utf8_sequence(p, end, cp, &want, &cut);
    if (n == 0) {
        *cp = 0xfffd;
        return 1;
    }
    return n;
}

/* Writes cp (a scalar value) as UTF-8, 1 to 4 bytes. */
size_t cart_utf8_encode(unsigned char out[4], uint32_t cp);

#endif
