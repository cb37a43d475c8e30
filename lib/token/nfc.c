/* Normalization Form C in linear time. Only the few code points that can move or merge ("flagged"
 * in the pinned table), with the one before them, go through decomposition, ordering and
 * composition; all others are copied. The ordering is our own since that of utf8proc is quadratic
 * in the length of a run of marks. */
#include "token/tokenizer_impl.h"
#include "token/unicode.h"

#include <stdlib.h>
#include <string.h>
#include <utf8proc.h>

#define FIRST_FLAGGED_LEAD 0xcc /* of U+0300: no flagged code point is below */
#define CLASSES 256             /* canonical combining classes */
#define RUN_BY_INSERTION 16

/* The stretch being normalised, as code points. */
struct stretch {
    utf8proc_int32_t *cp;
    size_t n, cap;
    utf8proc_int32_t *sorted;
    size_t sorted_cap;
};

static unsigned combining_class(utf8proc_int32_t cp)
{
    return (unsigned)utf8proc_get_property(cp)->combining_class & (CLASSES - 1);
}

/* The next flagged code point from p on, or end. */
static const unsigned char *find_flagged(const unsigned char *classes, const unsigned char *p,
                                         const unsigned char *end)
{
    while (p < end) {
        if (*p < FIRST_FLAGGED_LEAD) {
            p++;
            continue;
        }
        uint32_t cp;
        size_t len = cart_utf8_decode(p, end, &cp);
        if (classes[cp] & CART_UNICODE_MOVES)
            return p;
        p += len;
    }
    return end;
}

/* Where the code point before p starts, or p if what stands there is no character. */
static const unsigned char *previous(const unsigned char *from, const unsigned char *p)
{
    for (size_t k = 1; k <= 4 && k <= (size_t)(p - from); k++) {
        uint32_t cp;
        size_t want;
        bool cut;
        if ((p[-(ptrdiff_t)k] & 0xc0) == 0x80)
            continue;
        return cart_utf8_sequence(p - k, p, &cp, &want, &cut) == k ? p - k : p;
    }
    return p;
}

static int decompose(struct stretch *s, const unsigned char *p, const unsigned char *end,
                     struct cart_err *err)
{
    s->n = 0;
    while (p < end) {
        uint32_t cp;
        utf8proc_int32_t parts[32];
        int bound = 0;
        p += cart_utf8_decode(p, end, &cp);
        utf8proc_ssize_t n =
            utf8proc_decompose_char((utf8proc_int32_t)cp, parts, CART_COUNTOF(parts),
                                    UTF8PROC_DECOMPOSE | UTF8PROC_STABLE, &bound);
        if (n < 0 || n > (utf8proc_ssize_t)CART_COUNTOF(parts))
            return cart_err_set(err, CART_EFORMAT, "text: U+%04X: cannot be decomposed",
                                (unsigned)cp);
        int r = cart_array_reserve(&s->cp, &s->cap, s->n + (size_t)n, sizeof *s->cp, err);
        if (r < 0)
            return r;
        memcpy(s->cp + s->n, parts, (size_t)n * sizeof *parts);
        s->n += (size_t)n;
    }
    return 0;
}

/* Stable sort of n marks by combining class. */
static int order_run(struct stretch *s, utf8proc_int32_t *cp, size_t n, struct cart_err *err)
{
    if (n <= RUN_BY_INSERTION) {
        for (size_t i = 1; i < n; i++) {
            utf8proc_int32_t v = cp[i];
            size_t j = i;
            for (; j > 0 && combining_class(cp[j - 1]) > combining_class(v); j--)
                cp[j] = cp[j - 1];
            cp[j] = v;
        }
        return 0;
    }
    int r = cart_array_reserve(&s->sorted, &s->sorted_cap, n, sizeof *s->sorted, err);
    if (r < 0)
        return r;
    size_t at[CLASSES + 1] = {0};
    for (size_t i = 0; i < n; i++)
        at[combining_class(cp[i]) + 1]++;
    for (size_t c = 1; c <= CLASSES; c++)
        at[c] += at[c - 1];
    for (size_t i = 0; i < n; i++)
        s->sorted[at[combining_class(cp[i])]++] = cp[i];
    memcpy(cp, s->sorted, n * sizeof *cp);
    return 0;
}

static int order(struct stretch *s, struct cart_err *err)
{
    for (size_t i = 0; i < s->n;) {
        size_t j = i;
        while (j < s->n && combining_class(s->cp[j]) != 0)
            j++;
        int r = order_run(s, s->cp + i, j - i, err);
        if (r < 0)
            return r;
        i = j + 1;
    }
    return 0;
}

static int normalize_stretch(struct stretch *s, const unsigned char *p, const unsigned char *end,
                             struct cart_buf *out, struct cart_err *err)
{
    int r = decompose(s, p, end, err);
    if (r < 0 || (r = order(s, err)) < 0)
        return r;
    utf8proc_ssize_t n =
        utf8proc_normalize_utf32(s->cp, (utf8proc_ssize_t)s->n, UTF8PROC_COMPOSE | UTF8PROC_STABLE);
    for (utf8proc_ssize_t i = 0; i < n && r == 0; i++) {
        unsigned char bytes[4];
        r = cart_buf_add(out, bytes, cart_utf8_encode(bytes, (uint32_t)s->cp[i]), err);
    }
    return r;
}

int cart_nfc(const unsigned char *classes, const char *text, size_t n, struct cart_buf *out,
             bool *same, struct cart_err *err)
{
    const unsigned char *done = (const unsigned char *)text;
    const unsigned char *end = done + n;
    const unsigned char *p = find_flagged(classes, done, end);
    *same = p == end;
    if (*same)
        return 0;
    struct stretch s = {NULL, 0, 0, NULL, 0};
    int r = cart_buf_reserve(out, n, err);
    while (r == 0 && p < end) {
        const unsigned char *first = previous(done, p);
        const unsigned char *q = p;
        uint32_t cp;
        size_t len;
        while (q < end && (len = cart_utf8_decode(q, end, &cp), classes[cp] & CART_UNICODE_MOVES))
            q += len;
        if ((r = cart_buf_add(out, done, (size_t)(first - done), err)) == 0)
            r = normalize_stretch(&s, first, q, out, err);
        done = q;
        p = find_flagged(classes, q, end);
    }
    if (r == 0)
        r = cart_buf_add(out, done, (size_t)(end - done), err);
    free(s.cp);
    free(s.sorted);
    return r;
}
