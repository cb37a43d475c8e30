#include "base/err.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

/* A control character would move the cursor of the terminal that shows the message: C0, DEL, and C1
 * as UTF-8. */
static bool is_control(const unsigned char *s, size_t len)
{
    return (len == 1 && (s[0] < 0x20 || s[0] == 0x7f)) || (len == 2 && s[0] == 0xc2 && s[1] < 0xa0);
}

static void put_errno_text(char *out, size_t cap, int sys)
{
    if (strerror_r(sys, out, cap) != 0)
        snprintf(out, cap, "error %d", sys);
}

/* Whatever names from outside are in it, a message is one line that no terminal takes for more. */
static void make_printable(char *text, size_t cap)
{
    char raw[sizeof((struct cart_err *)NULL)->msg];
    size_t n = strlen(text);
    size_t i = 0;
    for (size_t len = 1; i < n && len > 0; i += len) {
        len = cart_utf8_length((const unsigned char *)text + i, n - i);
        if (len > 0 && is_control((const unsigned char *)text + i, len))
            break;
    }
    if (i == n)
        return;
    memcpy(raw, text, n + 1);
    cart_err_escape(text, cap, raw, n);
}

int cart_err_set(struct cart_err *err, int code, const char *fmt, ...)
{
    if (!err)
        return code;
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(err->msg, sizeof err->msg, fmt, ap);
    va_end(ap);
    make_printable(err->msg, sizeof err->msg);
    err->code = code;
    err->sys = 0;
    return code;
}

int cart_err_sys(struct cart_err *err, const char *fmt, ...)
{
    int sys = errno;
    if (!err)
        return CART_ESYS;
    char what[sizeof err->msg];
    char why[128];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(what, sizeof what, fmt, ap);
    va_end(ap);
    make_printable(what, sizeof what);
    put_errno_text(why, sizeof why, sys);
    /* The reason is what the reader needs most: a long name gives way to it. */
    snprintf(err->msg, sizeof err->msg, "%.*s: %s", (int)(sizeof err->msg - sizeof why - 3), what,
             why);
    err->code = CART_ESYS;
    err->sys = sys;
    return CART_ESYS;
}

int cart_err_memory(struct cart_err *err, const char *what, size_t bytes)
{
    int r = bytes ? cart_err_set(err, CART_ESYS, "%s: out of memory (%zu bytes)", what, bytes)
                  : cart_err_set(err, CART_ESYS, "%s: out of memory", what);
    if (err)
        err->sys = ENOMEM;
    return r;
}

int cart_err_wrap(struct cart_err *err, int code, const char *fmt, ...)
{
    if (!err)
        return code;
    char inner[sizeof err->msg];
    char context[sizeof err->msg];
    memcpy(inner, err->msg, sizeof inner);
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(context, sizeof context, fmt, ap);
    va_end(ap);
    make_printable(context, sizeof context);
    size_t need = strlen(inner) + 3;
    size_t room = need < sizeof err->msg / 2 ? sizeof err->msg - need : sizeof err->msg / 2;
    snprintf(err->msg, sizeof err->msg, "%.*s: %.*s", (int)room, context,
             (int)(sizeof err->msg - 3), inner);
    err->code = code;
    return code;
}

int cart_err_status(int code)
{
    switch (code) {
    case CART_EUSAGE:
        return 2;
    case CART_EFORMAT:
    case CART_ETRUNC:
        return 3;
    case CART_EMATCH:
        return 4;
    case CART_ESYS:
        return 5;
    case CART_EAGAIN:
        return 6;
    default:
        return code < 0 ? 5 : 0;
    }
}

size_t cart_utf8_length(const unsigned char *s, size_t n)
{
    if (s[0] < 0x80)
        return 1;
    size_t len = s[0] >= 0xc2 && s[0] <= 0xdf   ? 2
                 : (s[0] & 0xf0) == 0xe0        ? 3
                 : s[0] >= 0xf0 && s[0] <= 0xf4 ? 4
                                                : 0;
    if (len == 0 || len > n)
        return 0;
    for (size_t i = 1; i < len; i++)
        if ((s[i] & 0xc0) != 0x80)
            return 0;
    bool overlong = (s[0] == 0xe0 && s[1] < 0xa0) || (s[0] == 0xf0 && s[1] < 0x90);
    bool outside = (s[0] == 0xed && s[1] > 0x9f) || (s[0] == 0xf4 && s[1] > 0x8f);
    return overlong || outside ? 0 : len;
}

bool cart_utf8_valid(const char *s, size_t n)
{
    for (size_t i = 0, step; i < n; i += step)
        if ((step = cart_utf8_length((const unsigned char *)s + i, n - i)) == 0)
            return false;
    return true;
}

char *cart_err_escape(char *out, size_t cap, const char *text, size_t n)
{
    static const char dots[] = "...";
    static const char digits[] = "0123456789abcdef";
    if (cap == 0)
        return out;
    const unsigned char *s = (const unsigned char *)text;
    size_t used = 0;
    size_t safe = 0; /* where the dots go if the rest does not fit */
    size_t i = 0;
    while (i < n) {
        size_t len = cart_utf8_length(s + i, n - i);
        bool escape = len == 0 || is_control(s + i, len);
        size_t step = len ? len : 1;
        size_t need = escape ? 4 * step : step;
        if (used + need >= cap)
            break;
        if (escape) {
            for (size_t k = 0; k < step; k++) {
                out[used++] = '\\';
                out[used++] = 'x';
                out[used++] = digits[s[i + k] >> 4];
                out[used++] = digits[s[i + k] & 15];
            }
        } else {
            memcpy(out + used, s + i, step);
            used += step;
        }
        i += step;
        if (used + sizeof dots <= cap)
            safe = used;
    }
    if (i < n && cap >= sizeof dots) {
        memcpy(out + safe, dots, sizeof dots);
        return out;
    }
    out[used] = '\0';
    return out;
}
