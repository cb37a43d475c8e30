/* The parser is ours, since jansson's takes a refused allocation for a fault of the text, or
 * asserts. The values are jansson's. */
#include "base/json.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define JSON_BYTES ((size_t)1 << 30)

/* What jansson and a 64-bit allocator take for one value, rounded up: the struct, the table that a
 * list starts with, and in lists the place of an element and the node of a member, twice where
 * tables grow by doubling. Words are shared. */
#define NUMBER_BYTES ((size_t)32)
#define STRING_BYTES ((size_t)80)
#define ARRAY_BYTES ((size_t)128)
#define OBJECT_BYTES ((size_t)256)
#define ELEMENT_BYTES ((size_t)16)
#define MEMBER_BYTES ((size_t)112)

struct parser {
    const unsigned char *text, *at, *end;
    size_t most, left; /* bytes that the values may take, and may still */
    /* Decoded strings: a stack, since the key of a member waits while its value is read. */
    struct cart_buf strings;
    const char *what, *colon; /* ": " behind a what that is not empty */
    struct cart_err *err;
};

/* A fault of the text at the present place. */
static int fault(const struct parser *p, const char *expected)
{
    unsigned line = 1, column = 1;
    char found[48], place[48];
    for (const unsigned char *c = p->text; c < p->at; c++) {
        column = *c == '\n' ? 1 : column + ((*c & 0xc0) != 0x80);
        line += *c == '\n';
    }
    size_t n = (size_t)(p->end - p->at) < 20 ? (size_t)(p->end - p->at) : 20;
    cart_err_escape(found, sizeof found, (const char *)p->at, n);
    /* Of a text without lines the line is what its name says. */
    bool lines = memchr(p->text, '\n', (size_t)(p->end - p->text)) != NULL;
    if (lines)
        snprintf(place, sizeof place, "line %u, column %u", line, column);
    else
        snprintf(place, sizeof place, "column %u", column);
    return cart_err_set(p->err, CART_EFORMAT, "%s%sJSON: %s: expected %s, found %s%s%s", p->what,
                        p->colon, place, expected, n ? "'" : "the end", found, n ? "'" : "");
}

static int keep(const struct parser *p, json_t *made, json_t **out)
{
    *out = made;
    return made ? 0 : cart_err_memory(p->err, p->what, 0);
}

/* Counts bytes of memory before they are asked for. */
static int spend(struct parser *p, size_t bytes)
{
    if (bytes <= p->left) {
        p->left -= bytes;
        return 0;
    }
    int r =
        cart_err_set(p->err, CART_EFORMAT,
                     "%s%sJSON: expected values that take at most %zu bytes of memory, found more",
                     p->what, p->colon, p->most);
    if (p->err)
        p->err->sys = EFBIG;
    return r;
}

static void skip_blanks(struct parser *p)
{
    while (p->at < p->end && (*p->at == ' ' || *p->at == '\t' || *p->at == '\n' || *p->at == '\r'))
        p->at++;
}

static bool take(struct parser *p, unsigned char c)
{
    bool yes = p->at < p->end && *p->at == c;
    p->at += yes;
    return yes;
}

/* ---- strings ---- */

/* Four hexadecimal digits at s, or -1. */
static long hex4(const unsigned char *s, const unsigned char *end)
{
    long v = 0;
    for (int i = 0; i < 4; i++, s++) {
        int digit = s >= end                               ? -1
                    : *s >= '0' && *s <= '9'               ? *s - '0'
                    : (*s | 32) >= 'a' && (*s | 32) <= 'f' ? (*s | 32) - 'a' + 10
                                                           : -1;
        if (digit < 0)
            return -1;
        v = 16 * v + digit;
    }
    return v;
}

/* Behind "\u". */
static int parse_unicode_escape(struct parser *p)
{
    long c = hex4(p->at, p->end);
    size_t used = 4;
    if (c >= 0xd800 && c < 0xdc00) {
        long low = p->end - p->at >= 10 && p->at[4] == '\\' && p->at[5] == 'u'
                       ? hex4(p->at + 6, p->end)
                       : -1;
        c = low >= 0xdc00 && low < 0xe000 ? 0x10000 + ((c - 0xd800) << 10) + (low - 0xdc00) : -1;
        used = 10;
    }
    if (c < 0 || (c >= 0xdc00 && c < 0xe000))
        return fault(p, "four hexadecimal digits, surrogates in pairs");
    p->at += used;
    unsigned char u[4];
    size_t n = c < 0x80 ? 1 : c < 0x800 ? 2 : c < 0x10000 ? 3 : 4;
    static const unsigned char lead[] = {0, 0, 0xc0, 0xe0, 0xf0};
    for (size_t i = n; i-- > 1; c >>= 6)
        u[i] = (unsigned char)(0x80 | (c & 0x3f));
    u[0] = (unsigned char)(lead[n] | c);
    return cart_buf_add(&p->strings, u, n, p->err);
}

static int parse_escape(struct parser *p)
{
    static const char letters[] = "\"\\/bfnrt", meant[] = "\"\\/\b\f\n\r\t";
    const char *known = p->at < p->end && *p->at ? strchr(letters, *p->at) : NULL;
    if (take(p, 'u'))
        return parse_unicode_escape(p);
    if (!known)
        return fault(p, "an escape sequence");
    p->at++;
    return cart_buf_add(&p->strings, &meant[known - letters], 1, p->err);
}

/* Behind the opening quote; pushes the decoded bytes. */
static int parse_text(struct parser *p)
{
    for (;;) {
        const unsigned char *from = p->at;
        size_t n = 1;
        while (p->at < p->end && *p->at != '"' && *p->at != '\\' && *p->at >= 0x20 && n > 0) {
            n = *p->at < 0x80 ? 1 : cart_utf8_length(p->at, (size_t)(p->end - p->at));
            p->at += n;
        }
        int r = cart_buf_add(&p->strings, from, (size_t)(p->at - from), p->err);
        if (r < 0)
            return r;
        if (n == 0)
            return fault(p, "UTF-8");
        if (take(p, '"'))
            return 0;
        if (!take(p, '\\'))
            return fault(p, "the end of a string");
        if ((r = parse_escape(p)) < 0)
            return r;
    }
}

static int parse_string(struct parser *p, json_t **out)
{
    size_t mark = p->strings.len;
    int r = parse_text(p);
    if (r == 0)
        r = spend(p, STRING_BYTES + p->strings.len - mark);
    if (r == 0)
        r = keep(p, json_stringn_nocheck(p->strings.data + mark, p->strings.len - mark), out);
    p->strings.len = mark;
    return r;
}

/* ---- numbers and words ---- */

static size_t digits(struct parser *p)
{
    const unsigned char *from = p->at;
    while (p->at < p->end && *p->at >= '0' && *p->at <= '9')
        p->at++;
    return (size_t)(p->at - from);
}

static int parse_number(struct parser *p, json_t **out)
{
    const unsigned char *from = p->at;
    bool real = false;
    (void)take(p, '-');
    bool zero = p->at < p->end && *p->at == '0';
    size_t whole = digits(p);
    if (whole == 0 || (zero && whole > 1)) {
        p->at = from;
        return fault(p, "a number");
    }
    if (take(p, '.')) {
        real = true;
        if (digits(p) == 0)
            return fault(p, "a digit");
    }
    if (take(p, 'e') || take(p, 'E')) {
        real = true;
        if (!take(p, '+'))
            (void)take(p, '-');
        if (digits(p) == 0)
            return fault(p, "a digit");
    }
    size_t mark = p->strings.len;
    int r = spend(p, NUMBER_BYTES);
    if (r < 0 || (r = cart_buf_add(&p->strings, from, (size_t)(p->at - from), p->err)) < 0)
        return r;
    const char *text = p->strings.data + mark;
    p->strings.len = mark;
    errno = 0;
    if (!real) {
        long long v = strtoll(text, NULL, 10);
        if (errno == 0)
            return keep(p, json_integer(v), out);
    } else {
        double v = strtod(text, NULL);
        if (isfinite(v))
            return keep(p, json_real(v), out);
    }
    p->at = from;
    return fault(p, real ? "a number within double" : "an integer of 64 bits");
}

static int parse_word(struct parser *p, json_t **out)
{
    static const char *const words[] = {"true", "false", "null"};
    size_t left = (size_t)(p->end - p->at);
    for (size_t i = 0; i < CART_COUNTOF(words); i++) {
        size_t n = strlen(words[i]);
        if (left >= n && memcmp(p->at, words[i], n) == 0) {
            p->at += n;
            *out = i == 0 ? json_true() : i == 1 ? json_false() : json_null();
            return 0;
        }
    }
    return fault(p, "a value");
}

/* ---- arrays and objects ---- */

static int parse_value(struct parser *p, int depth, json_t **out);

/* One member behind a comma or the opening brace. */
static int parse_member(struct parser *p, int depth, json_t *into)
{
    size_t mark = p->strings.len;
    json_t *v = NULL;
    skip_blanks(p);
    if (!take(p, '"'))
        return fault(p, "a key in quotes");
    const unsigned char *key_at = p->at, *behind;
    int r = parse_text(p);
    if (r == 0 && (r = cart_buf_add(&p->strings, "", 1, p->err)) == 0) {
        const char *key = p->strings.data + mark;
        behind = p->at;
        p->at = key_at;
        if (strlen(key) + 1 != p->strings.len - mark)
            r = fault(p, "a key without NUL");
        else if (json_object_get(into, key) != NULL)
            r = fault(p, "no duplicate key");
        else
            p->at = behind;
    }
    if (r == 0)
        r = spend(p, MEMBER_BYTES + p->strings.len - mark);
    if (r == 0) {
        skip_blanks(p);
        r = take(p, ':') ? parse_value(p, depth, &v) : fault(p, "':'");
    }
    if (r == 0 && json_object_set_new_nocheck(into, p->strings.data + mark, v) != 0)
        r = cart_err_memory(p->err, p->what, 0);
    p->strings.len = mark;
    return r;
}

static int parse_element(struct parser *p, int depth, json_t *into)
{
    json_t *v;
    int r = spend(p, ELEMENT_BYTES);
    if (r == 0)
        r = parse_value(p, depth, &v);
    return r == 0 && json_array_append_new(into, v) != 0 ? cart_err_memory(p->err, p->what, 0) : r;
}

/* Behind the opening bracket or brace, which is closed by last. */
static int parse_list(struct parser *p, int depth, unsigned char last, json_t **out)
{
    json_t *made = NULL;
    int r = spend(p, last == '}' ? OBJECT_BYTES : ARRAY_BYTES);
    if (r == 0)
        r = keep(p, last == '}' ? json_object() : json_array(), &made);
    skip_blanks(p);
    bool more = r == 0 && !take(p, last);
    while (more) {
        r = last == '}' ? parse_member(p, depth, made) : parse_element(p, depth, made);
        skip_blanks(p);
        more = r == 0 && take(p, ',');
        if (r == 0 && !more && !take(p, last))
            r = fault(p, last == '}' ? "',' or '}'" : "',' or ']'");
    }
    if (r < 0)
        json_decref(made);
    else
        *out = made;
    return r;
}

static int parse_value(struct parser *p, int depth, json_t **out)
{
    skip_blanks(p);
    unsigned char c = p->at < p->end ? *p->at : 0;
    if ((c == '{' || c == '[') && depth == CART_JSON_DEPTH) {
        char most[64];
        snprintf(most, sizeof most, "at most %d lists in each other", CART_JSON_DEPTH);
        return fault(p, most);
    }
    if (take(p, '{'))
        return parse_list(p, depth + 1, '}', out);
    if (take(p, '['))
        return parse_list(p, depth + 1, ']', out);
    if (take(p, '"'))
        return parse_string(p, out);
    return c == '-' || (c >= '0' && c <= '9') ? parse_number(p, out) : parse_word(p, out);
}

int cart_json_parse(json_t **out, const char *text, size_t n, const char *what,
                    struct cart_err *err)
{
    size_t dense = CART_JSON_DENSE(n < JSON_BYTES ? n : JSON_BYTES);
    return cart_json_parse_within(out, text, n, dense < CART_JSON_MEMORY ? dense : CART_JSON_MEMORY,
                                  what, err);
}

int cart_json_parse_within(json_t **out, const char *text, size_t n, size_t most, const char *what,
                           struct cart_err *err)
{
    const unsigned char *s = (const unsigned char *)(text ? text : "");
    const char *colon = *what ? ": " : "";
    struct parser p = {s, s, s + n, most, most, CART_BUF_INIT, what, colon, err};
    json_t *v = NULL;
    if (n > JSON_BYTES)
        return cart_err_set(err, CART_EFORMAT, "%s%sJSON: expected at most %zu bytes, found %zu",
                            what, p.colon, JSON_BYTES, n);
    int r = parse_value(&p, 0, &v);
    skip_blanks(&p);
    if (r == 0 && p.at < p.end) {
        r = fault(&p, "nothing more");
        json_decref(v);
    }
    cart_buf_release(&p.strings);
    if (r == 0)
        *out = v;
    return r;
}
