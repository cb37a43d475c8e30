#include "serve/gate.h"

#include <string.h>
#include <strings.h>

/* A line without its end; the text goes on at next. */
struct line {
    const char *p;
    size_t n;
    const char *next;
};

static enum cart_gate_verdict refuse(struct cart_gate *g, unsigned status, const char *reason)
{
    g->status = status;
    g->reason = reason;
    return CART_GATE_REFUSE;
}

/* Token characters of RFC 9110: what methods and field names are made of. */
static bool is_token(const char *p, size_t n)
{
    static const char marks[] = "!#$%&'*+-.^_`|~";
    for (size_t i = 0; i < n; i++) {
        char c = p[i];
        if (!((c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
              (c != '\0' && strchr(marks, c))))
            return false;
    }
    return n > 0;
}

/* The next line, which ends with CR LF and has no other control character than tabs. MORE: it is
 * not whole yet. */
static enum cart_gate_verdict next_line(const char *p, const char *end, struct line *l,
                                        struct cart_gate *g)
{
    for (const char *q = p; q < end; q++) {
        unsigned char c = (unsigned char)*q;
        if (c == '\r' && q + 1 == end)
            return CART_GATE_MORE;
        if (c == '\r' && q[1] == '\n') {
            *l = (struct line){p, (size_t)(q - p), q + 2};
            return CART_GATE_PASS;
        }
        if ((c < ' ' && c != '\t') || c == 127)
            return refuse(g, 400,
                          "expected lines that end with CR LF and hold no control characters");
    }
    return CART_GATE_MORE;
}

static enum cart_gate_verdict judge_request_line(const struct line *l, struct cart_gate *g)
{
    const char *end = l->p + l->n, *target = memchr(l->p, ' ', l->n);
    if (!target || !is_token(l->p, (size_t)(target - l->p)))
        return refuse(g, 400, "expected METHOD TARGET HTTP/1.1");
    target++;
    const char *version = memchr(target, ' ', (size_t)(end - target));
    if (!version || version == target)
        return refuse(g, 400, "expected METHOD TARGET HTTP/1.1");
    version++;
    for (const char *p = target; p < version; p++)
        if (*p == '\t' || (unsigned char)*p >= 127)
            return refuse(g, 400, "expected a target of visible ASCII characters");
    if (end - version != 8 || memcmp(version, "HTTP/", 5) != 0 || version[6] != '.')
        return refuse(g, 400, "expected METHOD TARGET HTTP/1.1");
    if (version[5] != '1' || (version[7] != '0' && version[7] != '1'))
        return refuse(g, 505, "expected HTTP/1.0 or HTTP/1.1");
    return CART_GATE_PASS;
}

static bool is_name(const struct line *l, size_t n, const char *name)
{
    return n == strlen(name) && strncasecmp(l->p, name, n) == 0;
}

/* What the fields so far say about the body. */
struct framing {
    bool chunked, length;
};

static enum cart_gate_verdict judge_field(const struct line *l, struct framing *f,
                                          struct cart_gate *g)
{
    const char *colon = memchr(l->p, ':', l->n);
    size_t n = colon ? (size_t)(colon - l->p) : 0;
    if (l->p[0] == ' ' || l->p[0] == '\t')
        return refuse(g, 400, "expected fields on one line each");
    if (!is_token(l->p, n))
        return refuse(g, 400, "expected NAME: VALUE with no blank before the colon");
    const char *v = colon + 1, *end = l->p + l->n;
    while (v < end && (*v == ' ' || *v == '\t'))
        v++;
    while (end > v && (end[-1] == ' ' || end[-1] == '\t'))
        end--;
    if (is_name(l, n, "transfer-encoding")) {
        if (end - v != 7 || strncasecmp(v, "chunked", 7) != 0)
            return refuse(g, 400, "Transfer-Encoding: expected chunked");
        if (f->chunked || f->length)
            return refuse(g, 400, "expected one length of the body, found more");
        f->chunked = true;
    }
    if (is_name(l, n, "content-length")) {
        for (const char *p = v; p < end; p++)
            if (*p < '0' || *p > '9')
                return refuse(g, 400, "Content-Length: expected digits");
        if (v == end)
            return refuse(g, 400, "Content-Length: expected digits");
        if (f->chunked || f->length)
            return refuse(g, 400, "expected one length of the body, found more");
        f->length = true;
        if (end - v > 15)
            return refuse(g, 413, "Content-Length: larger than any body that is taken");
    }
    return CART_GATE_PASS;
}

/* Chunk extensions: ";" NAME or ";" NAME "=" VALUE, again and again; a value is a token or in
 * quotes. */
static bool are_extensions(const char *p, const char *end)
{
    while (p < end) {
        if (*p++ != ';')
            return false;
        const char *from = p;
        while (p < end && is_token(p, 1))
            p++;
        if (p == from)
            return false;
        if (p == end || *p != '=')
            continue;
        from = ++p;
        if (p < end && *p == '"') {
            for (p++; p < end && *p != '"'; p++)
                p += *p == '\\' && p + 1 < end;
            if (p++ >= end)
                return false;
            continue;
        }
        while (p < end && is_token(p, 1))
            p++;
        if (p == from)
            return false;
    }
    return true;
}

/* The line of the first chunk, if it is there already: later ones are libmicrohttpd's, and bounded
 * by the body's limit and its deadline. */
static enum cart_gate_verdict judge_chunk(const char *p, const char *end, size_t max_body,
                                          struct cart_gate *g)
{
    struct line l;
    size_t size = 0, digits = 0;
    enum cart_gate_verdict v = next_line(p, end, &l, g);
    if (v == CART_GATE_MORE && (size_t)(end - p) <= CART_GATE_CHUNK_LINE_MAX)
        return CART_GATE_PASS;
    if (v == CART_GATE_REFUSE)
        return v;
    if (v == CART_GATE_MORE || l.n > CART_GATE_CHUNK_LINE_MAX)
        return refuse(g, 400, "expected a chunk size, found a line without end");
    for (; digits < l.n; digits++) {
        static const char hex[] = "0123456789abcdef";
        char c = l.p[digits] >= 'A' && l.p[digits] <= 'F' ? (char)(l.p[digits] + 32) : l.p[digits];
        const char *at = c ? strchr(hex, c) : NULL;
        if (!at)
            break;
        if (size > max_body)
            return refuse(g, 413, "chunk size: larger than any body that is taken");
        size = size * 16 + (size_t)(at - hex);
    }
    if (digits == 0 || !are_extensions(l.p + digits, l.p + l.n))
        return refuse(g, 400, "expected a chunk size in hexadecimal digits");
    if (size > max_body)
        return refuse(g, 413, "chunk size: larger than any body that is taken");
    if (size > 0 && (size_t)(end - l.next) >= size + 2 && memcmp(l.next + size, "\r\n", 2) != 0)
        return refuse(g, 400, "expected a chunk as long as its size says");
    return CART_GATE_PASS;
}

enum cart_gate_verdict cart_gate_judge(const char *data, size_t n, size_t max_body,
                                       struct cart_gate *g)
{
    const char *p = data, *end = data + n;
    struct line l;
    struct framing f = {false, false};
    /* One empty line before a request is what some clients leave behind. */
    if (n >= 2 && memcmp(p, "\r\n", 2) == 0)
        p += 2;
    for (size_t i = 0;; i++) {
        enum cart_gate_verdict v = next_line(p, end, &l, g);
        if (v == CART_GATE_MORE && n > CART_GATE_HEADER_MAX)
            return refuse(g, 431, "expected a header of at most 16384 bytes");
        if (v != CART_GATE_PASS)
            return v;
        if (i > 0 && l.n == 0)
            break;
        v = i == 0 ? judge_request_line(&l, g) : judge_field(&l, &f, g);
        if (v != CART_GATE_PASS)
            return v;
        p = l.next;
    }
    return f.chunked ? judge_chunk(l.next, end, max_body, g) : CART_GATE_PASS;
}
