#include "stream/listing.h"

#include "base/io.h"
#include "stream/consistency.h"
#include "stream/frame_impl.h"
#include "stream/sniff.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MAX_LINE ((size_t)1 << 30)

/* --- stream to lines ----------------------------------------------------------------------------------------- */

static int put_line(struct cart_buf *line, int fd, const char *out, struct cart_err *err)
{
    int r = cart_buf_add(line, "\n", 1, err);

    if (r == 0 && fd >= 0)
        r = cart_io_write(fd, line->data, line->len, out, err);
    cart_buf_reset(line);
    return r;
}

static int add_head(struct cart_buf *line, const json_t *head, struct cart_err *err)
{
    int r = cart_buf_addf(line, err, "{\"record\":\"head\"");
    size_t at = line->len;

    if (r < 0 || (r = cart_json_dump(head, line, err)) < 0)
        return r;
    line->data[at] = ',';
    return 0;
}

static int add_hex(struct cart_buf *line, const unsigned char *p, size_t n, struct cart_err *err)
{
    int r;

    if (n > SIZE_MAX / 2 - 1)
        return cart_err_memory(err, "a line", n);
    if ((r = cart_buf_reserve(line, 2 * n, err)) < 0)
        return r;
    cart_hex(line->data + line->len, p, n);
    line->len += 2 * n;
    return 0;
}

static int add_skippable(struct cart_buf *line, const struct cart_record *rec, struct cart_err *err)
{
    int r;

    if ((r = cart_buf_addf(line, err, "{\"record\":\"skippable\",\"type\":\"%s\",\"hex\":\"",
                           rec->type)) < 0 ||
        (r = add_hex(line, rec->payload, rec->size, err)) < 0)
        return r;
    return cart_buf_add(line, "\"}", 2, err);
}

static int list_record(struct cart_consistency *check, const struct cart_kind *kind,
                       const struct cart_record *rec, const char *what, bool text,
                       struct cart_buf *line, struct cart_err *err)
{
    struct cart_payload p;
    int r;

    if (rec->skippable)
        return add_skippable(line, rec, err);
    if ((r = cart_payload_parse(&p, kind, rec, what, err)) < 0)
        return r;
    if ((r = cart_consistency_add(check, &p, what, err)) == 0 && !text)
        r = cart_payload_check(&p, rec, what, err);
    cart_payload_release(&p);
    return r < 0 || !text ? r : cart_kinds_to_json(kind, rec, what, line, err);
}

static int list_end(const struct cart_stream_reader *r, struct cart_buf *line, struct cart_err *err)
{
    unsigned char digest[16];
    char hex[33];

    cart_stream_digest(r, digest);
    return cart_buf_addf(line, err,
                         "{\"record\":\"end\",\"records\":%llu,\"bytes\":%llu,\"digest\":\"%s\"}",
                         (unsigned long long)cart_stream_records(r),
                         (unsigned long long)cart_stream_bytes(r), cart_hex(hex, digest, 16));
}

int cart_listing_stream(struct cart_stream_reader *reader, int fd, const char *out,
                        struct cart_err *err)
{
    const char *what = cart_stream_name(reader);
    const struct cart_kind *kind = cart_kind_find(cart_stream_kind(reader));
    struct cart_consistency *check = NULL;
    struct cart_buf line = CART_BUF_INIT;
    struct cart_record rec;
    int r;

    cart_stream_show_unknown(reader);
    if ((r = cart_consistency_new(&check, kind, err)) < 0 ||
        (r = add_head(&line, cart_stream_head(reader), err)) < 0 ||
        (r = put_line(&line, fd, out, err)) < 0)
        goto out;
    while ((r = cart_stream_read(reader, &rec, err)) == 1)
        if ((r = list_record(check, kind, &rec, what, fd >= 0, &line, err)) < 0 ||
            (r = put_line(&line, fd, out, err)) < 0)
            goto out;
    if (r == 0 && (r = list_end(reader, &line, err)) == 0)
        r = put_line(&line, fd, out, err);
out:
    cart_consistency_free(check);
    cart_buf_release(&line);
    return r;
}

/* --- lines to stream ----------------------------------------------------------------------------------------- */

struct cart_lines {
    FILE *in;
    bool owned;
    char *name;
    struct cart_buf line, where;
    unsigned long number;
};

int cart_lines_open(struct cart_lines **out, const char *path, struct cart_err *err)
{
    bool standard = strcmp(path, "-") == 0;
    struct cart_lines *l = calloc(1, sizeof *l);

    if (l == NULL || (l->name = strdup(standard ? "standard input" : path)) == NULL) {
        cart_lines_close(l);
        return cart_err_memory(err, "a line reader", sizeof *l);
    }
    l->owned = !standard;
    if ((l->in = standard ? stdin : fopen(path, "rb")) == NULL) {
        cart_err_sys(err, "%s", path);
        cart_lines_close(l);
        return CART_ESYS;
    }
    *out = l;
    return 0;
}

/* 1 with a line (its end taken off), 0 at the end of the input. */
static int read_line(struct cart_lines *l, struct cart_err *err)
{
    int c, r;

    cart_buf_reset(&l->line);
    cart_buf_reset(&l->where);
    l->number++;
    if ((r = cart_buf_addf(&l->where, err, "%s: line %lu", l->name, l->number)) < 0)
        return r;
    while ((c = getc_unlocked(l->in)) != EOF && c != '\n') {
        if (l->line.len >= MAX_LINE)
            return cart_err_set(err, CART_EFORMAT, "%s: expected at most %zu bytes", l->where.data,
                                MAX_LINE);
        if (l->line.len + 1 >= l->line.cap && (r = cart_buf_reserve(&l->line, 1, err)) < 0)
            return r;
        l->line.data[l->line.len++] = (char)c;
    }
    if (l->line.len > 0)
        l->line.data[l->line.len] = '\0';
    if (ferror(l->in))
        return cart_err_sys(err, "%s: reading", l->name);
    return c == '\n' || l->line.len > 0;
}

static int parse_line(struct cart_lines *l, json_t **v, const char **record, struct cart_err *err)
{
    enum cart_sniff what = cart_sniff(l->line.data, l->line.len);
    int r;

    if (what != CART_SNIFF_JSON)
        return cart_err_set(err, CART_EFORMAT, "%s: expected a JSON object, found %s",
                            l->where.data, cart_sniff_name(what));
    if ((r = cart_json_parse(v, l->line.data, l->line.len, l->where.data, err)) < 0)
        return r;
    if ((r = cart_json_string(*v, "record", record, l->where.data, err)) < 0) {
        json_decref(*v);
        return r;
    }
    return 1;
}

int cart_lines_next(struct cart_lines *l, json_t **v, const char **record, struct cart_err *err)
{
    int r;

    while ((r = read_line(l, err)) == 1)
        if (l->line.len > 0 && strspn(l->line.data, " \t\r") < l->line.len)
            return parse_line(l, v, record, err);
    return r;
}

const char *cart_lines_where(const struct cart_lines *l)
{
    return l->where.data;
}

void cart_lines_close(struct cart_lines *l)
{
    if (l == NULL)
        return;
    if (l->owned && l->in != NULL)
        fclose(l->in);
    cart_buf_release(&l->line);
    cart_buf_release(&l->where);
    free(l->name);
    free(l);
}

static int hex_digit(char c)
{
    return c >= '0' && c <= '9' ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

static int pack_skippable(struct cart_stream_writer *w, const json_t *v, struct cart_buf *payload,
                          const char *what, struct cart_err *err)
{
    struct cart_record rec = {.skippable = true};
    const char *type, *hex;
    int r;

    if ((r = cart_json_string(v, "type", &type, what, err)) < 0 ||
        (r = cart_json_string(v, "hex", &hex, what, err)) < 0)
        return r;
    size_t n = strlen(hex);
    if (strlen(type) != 4 || !cart_frame_type_ok(type))
        return cart_err_set(err, CART_EFORMAT, "%s: type: expected a record type", what);
    if (n % 2 != 0 || strspn(hex, "0123456789abcdef") != n)
        return cart_err_set(err, CART_EFORMAT, "%s: hex: expected pairs of hex digits", what);
    cart_buf_reset(payload);
    if ((r = cart_buf_reserve(payload, n / 2, err)) < 0)
        return r;
    for (size_t i = 0; i < n / 2; i++)
        payload->data[payload->len++] =
            (char)(hex_digit(hex[2 * i]) << 4 | hex_digit(hex[2 * i + 1]));
    memcpy(rec.type, type, 4);
    rec.payload = payload->data;
    rec.size = payload->len;
    if ((r = cart_stream_write_record(w, &rec, err)) == CART_EUSAGE)
        return cart_err_set(err, CART_EFORMAT, "%s: type: %s is a type of this kind", what, type);
    return r;
}

/* 1 where an end line's statement differs from what was written. */
static int compare_end(const struct cart_stream_writer *w, const json_t *end)
{
    unsigned char digest[16];
    uint64_t records, bytes;
    char hex[33];
    const json_t *n = json_object_get(end, "records"), *size = json_object_get(end, "bytes");
    const char *stated = json_string_value(json_object_get(end, "digest"));

    cart_stream_written(w, &records, &bytes, digest);
    return (n != NULL && (uint64_t)json_integer_value(n) != records) ||
           (size != NULL && (uint64_t)json_integer_value(size) != bytes) ||
           (stated != NULL && strcmp(stated, cart_hex(hex, digest, 16)) != 0);
}

/* 0: packed; 1: this was the end line, *edited says whether it agrees. */
static int pack_line(struct cart_stream_writer *w, const struct cart_kind *kind, json_t *v,
                     const char *record, const char *what, struct cart_buf *payload, bool *edited,
                     struct cart_err *err)
{
    char type[5];
    int r;

    if (strcmp(record, "end") == 0) {
        *edited = compare_end(w, v);
        return 1;
    }
    if (strcmp(record, "skippable") == 0)
        return pack_skippable(w, v, payload, what, err);
    cart_buf_reset(payload);
    if ((r = cart_kinds_from_object(kind, v, what, payload, type, err)) < 0)
        return r == CART_EUSAGE ? cart_err_wrap(err, CART_EFORMAT, "%s", what) : r;
    return cart_stream_write(w, type, payload->data, payload->len, err);
}

static int pack_lines(struct cart_lines *l, struct cart_stream_writer *w,
                      const struct cart_kind *kind, struct cart_err *err)
{
    struct cart_buf payload = CART_BUF_INIT;
    const char *record;
    bool edited = false, ended = false;
    json_t *v;
    int r;

    while ((r = cart_lines_next(l, &v, &record, err)) == 1) {
        if (ended)
            r = cart_err_set(err, CART_EFORMAT, "%s: a line follows the end line",
                             cart_lines_where(l));
        else
            r = pack_line(w, kind, v, record, cart_lines_where(l), &payload, &edited, err);
        json_decref(v);
        if (r < 0)
            break;
        ended = r == 1 || ended;
    }
    cart_buf_release(&payload);
    if (r < 0)
        return r;
    if (!ended)
        return cart_err_set(err, CART_ETRUNC,
                            "%s: no line has \"record\":\"end\": the listing was cut off",
                            l->name);
    return edited;
}

int cart_listing_pack(struct cart_lines *l, json_t *head, int fd, const char *out, int level,
                      struct cart_err *err)
{
    struct cart_stream_writer *w;
    int r, edited;

    json_object_del(head, "record");
    if ((r = cart_stream_create(&w, fd, out, head, level, err)) < 0)
        return r == CART_EUSAGE ? cart_err_wrap(err, CART_EFORMAT, "%s", cart_lines_where(l)) : r;
    edited = pack_lines(l, w, cart_kind_find(json_string_value(json_object_get(head, "kind"))), err);
    if (edited < 0) {
        cart_stream_abandon(w);
        return edited;
    }
    r = cart_stream_finish(w, err);
    return r < 0 ? r : edited;
}
