#include "token/unicode.h"

#include <stdlib.h>
#include <string.h>

unsigned char *cart_unicode_classes(void)
{
    /* Long ranges have no class: their pages stay untouched, and cost nothing. */
    unsigned char *classes = calloc(CART_UNICODE_MAX, 1);
    for (size_t i = 0; classes != NULL && i < cart_unicode_n_ranges; i++) {
        int class = (int)(cart_unicode_ranges[i] & 0xff);
        uint32_t first = cart_unicode_ranges[i] >> 8;
        uint32_t next =
            i + 1 < cart_unicode_n_ranges ? cart_unicode_ranges[i + 1] >> 8 : CART_UNICODE_MAX;
        if (class != 0)
            memset(classes + first, class, next - first);
    }
    return classes;
}

size_t cart_utf8_sequence(const unsigned char *p, const unsigned char *end, uint32_t *cp,
                          size_t *want, bool *cut)
{
    unsigned char lead = *p;
    size_t n;
    unsigned char low = 0x80;
    unsigned char high = 0xbf;
    uint32_t v;
    *want = 1;
    *cut = false;
    if (lead < 0x80) {
        *cp = lead;
        return 1;
    }
    if (lead >= 0xc2 && lead <= 0xdf) {
        n = 2;
        v = lead & 0x1f;
    } else if (lead >= 0xe0 && lead <= 0xef) {
        n = 3;
        v = lead & 0x0f;
        low = lead == 0xe0 ? 0xa0 : 0x80;  /* no overlong forms */
        high = lead == 0xed ? 0x9f : 0xbf; /* no surrogates */
    } else if (lead >= 0xf0 && lead <= 0xf4) {
        n = 4;
        v = lead & 0x07;
        low = lead == 0xf0 ? 0x90 : 0x80;
        high = lead == 0xf4 ? 0x8f : 0xbf; /* up to U+10FFFF */
    } else {
        return 0;
    }
    for (size_t i = 1; i < n; i++) {
        if (p + i >= end) {
            *cut = true;
            return 0;
        }
        if (p[i] < low || p[i] > high)
            return 0;
        low = 0x80;
        high = 0xbf;
        v = v << 6 | (p[i] & 0x3f);
        *want = i + 1;
    }
    *cp = v;
    return n;
}

size_t cart_utf8_encode(unsigned char out[4], uint32_t cp)
{
    if (cp < 0x80) {
        out[0] = (unsigned char)cp;
        return 1;
    }
    if (cp < 0x800) {
        out[0] = (unsigned char)(0xc0 | cp >> 6);
        out[1] = (unsigned char)(0x80 | (cp & 0x3f));
        return 2;
    }
    if (cp < 0x10000) {
        out[0] = (unsigned char)(0xe0 | cp >> 12);
        out[1] = (unsigned char)(0x80 | (cp >> 6 & 0x3f));
        out[2] = (unsigned char)(0x80 | (cp & 0x3f));
        return 3;
    }
    out[0] = (unsigned char)(0xf0 | cp >> 18);
    out[1] = (unsigned char)(0x80 | (cp >> 12 & 0x3f));
    out[2] = (unsigned char)(0x80 | (cp >> 6 & 0x3f));
    out[3] = (unsigned char)(0x80 | (cp & 0x3f));
    return 4;
}
