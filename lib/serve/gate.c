#include "serve/gate.h"

#include <string.h>
#include <strings.h>

/* A line without its end; the text goes on at next. */
struct line {
    const char *p;
    size_t n;
    const char *next;
};

enum verdict { MORE, PASS, REFUSE };

static enum verdict refuse(struct cart_gate *g, unsigned status, const char *reason)
{
    g->status = status;
    g->reason = reason;
    return REFUSE;
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
static enum verdict next_line(const char *p, const char *end, struct line *l, struct cart_gate *g)
{
    for (const char *q = p; q < end; q++) {
        unsigned char c = (unsigned char)*q;
        if (c == '\r' && q + 1 == end)
            return MORE;
        if (c == '\r' && q[1] == '\n') {
            *l = (struct line){p, (size_t)(q - p), q + 2};
            return PASS;
        }
        if ((c < ' ' && c != '\t') || c == 127)
            return refuse(g, 400,
                          "expected lines that end with CR LF and hold no control characters");
    }
    return MORE;
}

/* What a header says about its request so far. */
struct header {
    bool chunked, length, http10;
    size_t body;          /* Content-Length */
    size_t hosts, fields; /* fields: each cookie counts, for libmicrohttpd keeps each */
};

static enum verdict judge_request_line(const struct line *l, struct header *h, struct cart_gate *g)
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
    /* Decoded, it would end the path for whoever reads it as a string. */
    for (const char *p = target; p + 3 <= version; p++)
        if (memcmp(p, "%00", 3) == 0)
            return refuse(g, 400, "expected a target without %00");
    if (end - version != 8 || memcmp(version, "HTTP/", 5) != 0 || version[6] != '.')
        return refuse(g, 400, "expected METHOD TARGET HTTP/1.1");
    if (version[5] != '1' || (version[7] != '0' && version[7] != '1'))
        return refuse(g, 505, "expected HTTP/1.0 or HTTP/1.1");
    h->http10 = version[7] == '0';
    return PASS;
}

static bool is_name(const struct line *l, size_t n, const char *name)
{
    return n == strlen(name) && strncasecmp(l->p, name, n) == 0;
}

static bool is_host_character(char c)
{
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '.' ||
           c == '-' || c == '_' || c == '~' || c == '%';
}

bool cart_gate_host(const char *value, size_t len, size_t *n)
{
    size_t i = 0;
    if (len > 0 && value[0] == '[') {
        for (i = 1; i < len && (is_host_character(value[i]) || value[i] == ':'); i++)
            continue;
        if (i < 2 || i == len || value[i++] != ']')
            return false;
    } else {
        while (i < len && is_host_character(value[i]))
            i++;
    }
    *n = i;
    if (i == 0 || (i < len && value[i] != ':'))
        return false;
    for (i++; i < len; i++)
        if (value[i] < '0' || value[i] > '9')
            return false;
    return true;
}

static enum verdict judge_field(const struct line *l, struct header *f, struct cart_gate *g)
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
    /* A blank behind one of these is not taken off by libmicrohttpd, which then reads it
     * differently. */
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
        for (const char *p = v; p < end; p++)
            f->body = f->body * 10 + (size_t)(*p - '0');
    }
    if (is_name(l, n, "host")) {
        size_t host;
        if (++f->hosts > 1)
            return refuse(g, 400, "expected one Host field, found more");
        if (!cart_gate_host(v, (size_t)(end - v), &host))
            return refuse(g, 400, "Host: expected a host, and a port if any");
    }
    if (is_name(l, n, "cookie"))
        for (const char *p = v; p < end; p++)
            f->fields += *p == ';' || *p == ',';
    if (++f->fields > CART_GATE_FIELDS_MAX)
        return refuse(g, 431, "expected at most 128 fields and cookies");
    return PASS;
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

/* The line before a chunk. */
static int64_t judge_chunk(struct cart_gate *g, const char *data, size_t n, size_t max_body)
{
    struct line l;
    size_t size = 0, digits = 0;
    enum verdict v = next_line(data, data + n, &l, g);
    if (v == MORE && n <= CART_GATE_CHUNK_LINE_MAX)
        return 0;
    if (v == REFUSE)
        return -1;
    if (v == MORE || (size_t)(l.next - data) > CART_GATE_CHUNK_LINE_MAX) {
        refuse(g, 400, "expected a chunk size, found a line without end");
        return -1;
    }
    for (; digits < l.n; digits++) {
        static const char hex[] = "0123456789abcdef";
        char c = l.p[digits] >= 'A' && l.p[digits] <= 'F' ? (char)(l.p[digits] + 32) : l.p[digits];
        const char *at = c ? strchr(hex, c) : NULL;
        if (!at)
            break;
        size = size > max_body ? size : size * 16 + (size_t)(at - hex);
    }
    if (digits == 0 || !are_extensions(l.p + digits, l.p + l.n)) {
        refuse(g, 400, "expected a chunk size in hexadecimal digits");
        return -1;
    }
    if (size > max_body) {
        refuse(g, 413, "chunk size: larger than any body that is taken");
        return -1;
    }
    g->at = size > 0 ? CART_GATE_CHUNK_END : CART_GATE_TRAILER;
    return (l.next - data) + (int64_t)size;
}

static int64_t judge_chunk_end(struct cart_gate *g, const char *data, size_t n)
{
    if (memcmp(data, "\r\n", n < 2 ? n : 2) != 0) {
        refuse(g, 400, "expected a chunk as long as its size says");
        return -1;
    }
    if (n < 2)
        return 0;
    g->at = CART_GATE_CHUNK;
    return 2;
}

/* A line of the fields after the last chunk; an empty one ends the request. */
static int64_t judge_trailer(struct cart_gate *g, const char *data, size_t n)
{
    struct line l;
    struct header h = {.fields = g->fields};
    enum verdict v = next_line(data, data + n, &l, g);
    if (g->trailer + (v == PASS ? (size_t)(l.next - data) : n) > CART_GATE_HEADER_MAX)
        v = refuse(g, 431, "expected a trailer of at most 16384 bytes");
    if (v == PASS && l.n > 0)
        v = judge_field(&l, &h, g);
    if (v == PASS && (h.chunked || h.length))
        v = refuse(g, 400, "expected the length of the body in the header");
    if (v != PASS)
        return v == MORE ? 0 : -1;
    g->trailer += (size_t)(l.next - data);
    g->fields = h.fields;
    if (l.n == 0)
        *g = (struct cart_gate){.at = CART_GATE_HEADER};
    return l.next - data;
}

static int64_t judge_header(struct cart_gate *g, const char *data, size_t n, size_t max_body)
{
    const char *p = data, *end = data + n;
    struct line l;
    struct header h = {0};
    /* One empty line before a request is what some clients leave behind. */
    if (n >= 2 && memcmp(p, "\r\n", 2) == 0)
        p += 2;
    for (size_t i = 0;; i++) {
        enum verdict v = next_line(p, end, &l, g);
        if (v != REFUSE && (v == MORE ? n : (size_t)(l.next - data)) > CART_GATE_HEADER_MAX)
            v = refuse(g, 431, "expected a header of at most 16384 bytes");
        if (v == PASS && i > 0 && l.n == 0)
            break;
        if (v == PASS)
            v = i == 0 ? judge_request_line(&l, &h, g) : judge_field(&l, &h, g);
        if (v != PASS)
            return v == MORE ? 0 : -1;
        p = l.next;
    }
    if (h.hosts == 0 && !h.http10) {
        refuse(g, 400, "expected a Host field");
        return -1;
    }
    /* What is there of a chunked body is judged before anything answers the header. */
    struct cart_gate first = {.at = CART_GATE_CHUNK};
    if (h.chunked && l.next < end &&
        judge_chunk(&first, l.next, (size_t)(end - l.next), max_body) < 0) {
        *g = first;
        return -1;
    }
    g->at = h.chunked ? CART_GATE_CHUNK : CART_GATE_HEADER;
    return (l.next - data) + (int64_t)h.body;
}

int64_t cart_gate_next(struct cart_gate *g, const char *data, size_t n, size_t max_body)
{
    if (g->status != 0)
        return -1;
    if (n == 0)
        return 0;
    switch (g->at) {
    case CART_GATE_CHUNK:
        return judge_chunk(g, data, n, max_body);
    case CART_GATE_CHUNK_END:
        return judge_chunk_end(g, data, n);
    case CART_GATE_TRAILER:
        return judge_trailer(g, data, n);
    default:
        return judge_header(g, data, n, max_body);
    }
}
