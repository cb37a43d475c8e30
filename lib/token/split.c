#include "token/split.h"

#include "token/unicode.h"

enum {
    CLASS_WORD = CART_UNICODE_LETTER | CART_UNICODE_NUMBER,
    CLASS_NOT_OTHER = CLASS_WORD | CART_UNICODE_SPACE
};

struct scan {
    const unsigned char *classes;
    const unsigned char *end;
    size_t steps;
};

/* Class of the code point at p (0 at the end of the text) and its length. */
static unsigned look(struct scan *s, const unsigned char *p, size_t *len, uint32_t *cp)
{
    if (p >= s->end) {
        *len = 0;
        *cp = 0;
        return CART_UNICODE_SPACE | CLASS_WORD; /* belongs to no run */
    }
    s->steps++;
    *len = cart_utf8_decode(p, s->end, cp);
    return s->classes[*cp] & CLASS_NOT_OTHER;
}

/* The end of the run of code points whose class (of letter, number, space) is exactly want. */
static const unsigned char *run(struct scan *s, const unsigned char *p, unsigned want)
{
    for (;;) {
        size_t len;
        uint32_t cp;
        unsigned c = look(s, p, &len, &cp);
        if (len == 0 || c != want)
            return p;
        p += len;
    }
}

/* Bytes of 's 't 'm 'd 're 've 'll at p, where *p is an apostrophe; 0 if there is none. */
static size_t contraction(struct scan *s, const unsigned char *p, bool fold)
{
    size_t left = (size_t)(s->end - p);
    unsigned char a = left > 1 ? p[1] : 0;
    unsigned char b = left > 2 ? p[2] : 0;
    s->steps++;
    if (fold) {
        if (a == 0xc5 && b == 0xbf) /* U+017F, long s */
            return 3;
        a |= a >= 'A' && a <= 'Z' ? 0x20 : 0;
        b |= b >= 'A' && b <= 'Z' ? 0x20 : 0;
    }
    if (a == 's' || a == 't' || a == 'm' || a == 'd')
        return 2;
    if ((a == 'r' && b == 'e') || (a == 'v' && b == 'e') || (a == 'l' && b == 'l'))
        return 3;
    return 0;
}

/* \s+(?!\S)|\s+ for the white space run [p, q) that more text follows (at_end: that ends the text):
 * the last code point is left to what follows it unless it stands alone. last is where that code
 * point starts. */
static const unsigned char *spaces(const unsigned char *p, const unsigned char *last,
                                   const unsigned char *q, bool at_end)
{
    return at_end || last == p ? q : last;
}

static const unsigned char *next_smollm(struct scan *s, const unsigned char *p)
{
    size_t len, len2;
    uint32_t cp, cp2;
    unsigned c = look(s, p, &len, &cp);
    if (c == CART_UNICODE_NUMBER)
        return p + len;
    if (cp == '\'' && (len2 = contraction(s, p, false)) > 0)
        return p + len2;
    if (c == CART_UNICODE_LETTER || c == 0)
        return run(s, p + len, c);
    if (cp == ' ') {
        unsigned c2 = look(s, p + 1, &len2, &cp2);
        if (len2 > 0 && (c2 == CART_UNICODE_LETTER || c2 == 0))
            return run(s, p + 1 + len2, c2);
    }
    const unsigned char *last = p;
    const unsigned char *q = p + len;
    unsigned c2;
    while ((c2 = look(s, q, &len2, &cp2)) == CART_UNICODE_SPACE) {
        last = q;
        q += len2;
    }
    /* A number has been cut out before: the text between ends there. */
    return spaces(p, last, q, len2 == 0 || c2 == CART_UNICODE_NUMBER);
}

static const unsigned char *next_qwen2(struct scan *s, const unsigned char *p, size_t max_digits)
{
    size_t len, len2;
    uint32_t cp, cp2;
    unsigned c = look(s, p, &len, &cp);
    if (cp == '\'' && (len2 = contraction(s, p, true)) > 0)
        return p + len2;
    if (c == CART_UNICODE_LETTER)
        return run(s, p + len, c);
    if (c == CART_UNICODE_NUMBER) {
        const unsigned char *q = p + len;
        for (size_t i = 1; i < max_digits && look(s, q, &len2, &cp2) == CART_UNICODE_NUMBER; i++)
            q += len2;
        return q;
    }
    unsigned c2 = look(s, p + len, &len2, &cp2);
    if (cp != '\r' && cp != '\n' && len2 > 0 && c2 == CART_UNICODE_LETTER)
        return run(s, p + len + len2, c2);
    if (c == 0 || (cp == ' ' && len2 > 0 && c2 == 0)) {
        const unsigned char *q = run(s, p + len, 0);
        while (q < s->end && (*q == '\r' || *q == '\n'))
            q++;
        return q;
    }
    const unsigned char *last = p;
    const unsigned char *q = p + len;
    const unsigned char *line =
        cp == '\r' || cp == '\n' ? q : NULL; /* after the last line break of the run */
    while (look(s, q, &len2, &cp2) == CART_UNICODE_SPACE) {
        last = q;
        q += len2;
        if (cp2 == '\r' || cp2 == '\n')
            line = q;
    }
    return line != NULL ? line : spaces(p, last, q, len2 == 0);
}

size_t cart_split_next(enum cart_split kind, const unsigned char *classes, const unsigned char *p,
                       const unsigned char *end, size_t *steps)
{
    struct scan s = {classes, end, 0};
    const unsigned char *q = kind == CART_SPLIT_SMOLLM
                                 ? next_smollm(&s, p)
                                 : next_qwen2(&s, p, kind == CART_SPLIT_QWEN2 ? 1 : 3);
    *steps += s.steps;
    return (size_t)(q - p);
}
