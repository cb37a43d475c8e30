#include "serve/wire.h"

#include "token/unicode.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void cart_wire_bytes(struct cart_wire *w, const char *text, size_t n)
{
    if (w->r == 0 && n > 0)
        w->r = cart_buf_add(&w->b, text, n, NULL);
}

void cart_wire_add(struct cart_wire *w, const char *text)
{
    cart_wire_bytes(w, text, strlen(text));
}

void cart_wire_f(struct cart_wire *w, const char *fmt, ...)
{
    char text[512];
    va_list ap;
    va_start(ap, fmt);
    int n = vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    if (n < 0 || (size_t)n >= sizeof text)
        w->r = w->r ? w->r : CART_ESYS;
    else
        cart_wire_bytes(w, text, (size_t)n);
}

static void escape(struct cart_wire *w, unsigned char c)
{
    static const char plain[] = "\"\\\b\f\n\r\t", letter[] = "\"\\bfnrt";
    const char *at = c ? strchr(plain, c) : NULL;
    char text[8];
    if (at)
        snprintf(text, sizeof text, "\\%c", letter[at - plain]);
    else
        snprintf(text, sizeof text, "\\u%04x", c);
    cart_wire_add(w, text);
}

void cart_wire_string(struct cart_wire *w, const char *text, size_t n)
{
    const unsigned char *p = (const unsigned char *)text, *end = p ? p + n : p, *from = p;
    cart_wire_add(w, "\"");
    while (p < end) {
        uint32_t cp = *p;
        size_t want = 1, len = 1;
        bool cut = false;
        if (cp >= 0x80)
            len = cart_utf8_sequence(p, end, &cp, &want, &cut);
        if (len > 0 && cp >= 0x20 && cp != '"' && cp != '\\') {
            p += len;
            continue;
        }
        cart_wire_bytes(w, (const char *)from, (size_t)(p - from));
        if (len == 0)
            cart_wire_add(w, "\xef\xbf\xbd");
        else
            escape(w, (unsigned char)cp);
        p += len > 0 ? len : want;
        from = p;
    }
    cart_wire_bytes(w, (const char *)from, (size_t)(p - from));
    cart_wire_add(w, "\"");
}

void cart_wire_quote(struct cart_wire *w, const char *text)
{
    cart_wire_string(w, text, strlen(text));
}

void cart_wire_real(struct cart_wire *w, double v)
{
    char text[40];
    /* JSON has no word for these; -9999 is what clients know as "as good as impossible". */
    if (!isfinite(v)) {
        cart_wire_add(w, "-9999.0");
        return;
    }
    for (int digits = 6; digits <= 9; digits++) {
        snprintf(text, sizeof text, "%.*g", digits, v);
        if ((float)strtod(text, NULL) == (float)v)
            break;
    }
    cart_wire_add(w, text);
    if (!strpbrk(text, ".e"))
        cart_wire_add(w, ".0");
}

void cart_wire_reset(struct cart_wire *w)
{
    cart_buf_reset(&w->b);
    w->r = 0;
}

void cart_wire_release(struct cart_wire *w)
{
    cart_buf_release(&w->b);
    w->r = 0;
}
