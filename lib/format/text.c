/* UTF-8 validation. The table of well-formed sequences is the standard's (table 3-7): the second
 * byte of E0, ED, F0 and F4 has a narrower range, every other continuation is 80..BF. */
#include "format/text.h"

#include <string.h>

/* Length that the first byte announces, 0 if no character starts with it; range of the second byte.
 */
static size_t lead(unsigned char c, unsigned char *lo, unsigned char *hi)
{
    *lo = 0x80;
    *hi = 0xBF;
    if (c < 0x80)
        return 1;
    if (c < 0xC2)
        return 0;
    if (c < 0xE0)
        return 2;
    if (c < 0xF0) {
        if (c == 0xE0)
            *lo = 0xA0;
        if (c == 0xED)
            *hi = 0x9F;
        return 3;
    }
    if (c < 0xF5) {
        if (c == 0xF0)
            *lo = 0x90;
        if (c == 0xF4)
            *hi = 0x8F;
        return 4;
    }
    return 0;
}

/* Bytes at s [n] that are part of one character: its whole length if *whole, else the maximal
 * subpart. */
static size_t sequence(const unsigned char *s, size_t n, bool *whole)
{
    unsigned char lo, hi;
    size_t len = lead(s[0], &lo, &hi);

    *whole = len == 1;
    if (len < 2)
        return 1;
    if (n < 2 || s[1] < lo || s[1] > hi)
        return 1;
    for (size_t i = 2; i < len; i++) {
        if (i >= n || (s[i] & 0xC0) != 0x80)
            return i;
    }
    *whole = true;
    return len;
}

size_t cart_text_valid(const char *s, size_t n)
{
    const unsigned char *p = (const unsigned char *)s;
    size_t i = 0;

    while (i < n) {
        /* Eight ASCII bytes at a time: most text is mostly that. */
        uint64_t word;
        while (n - i >= sizeof word) {
            memcpy(&word, p + i, sizeof word);
            if (word & UINT64_C(0x8080808080808080))
                break;
            i += sizeof word;
        }
        if (i == n)
            break;
        bool whole;
        size_t len = sequence(p + i, n - i, &whole);
        if (!whole)
            return i;
        i += len;
    }
    return n;
}

int cart_text_check(const char *what, const char *s, size_t n, struct cart_err *err)
{
    size_t at = cart_text_valid(s, n);

    if (at == n)
        return 0;
    return cart_err_set(err, CART_EFORMAT, "%s: expected UTF-8, found byte 0x%02x at offset %zu",
                        what, (unsigned char)s[at], at);
}

size_t cart_text_subpart(const char *s, size_t n)
{
    bool whole;

    return sequence((const unsigned char *)s, n, &whole);
}
