#include "stream/listing.h"

#include "stream/consistency.h"
#include "stream/frame_impl.h"

#include <string.h>

/* --- stream to lines --- */

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
    if ((r = cart_consistency_new(&check, kind, cart_stream_head(reader), err)) < 0 ||
        (r = cart_jsonl_add(&line, "head", cart_stream_head(reader), err)) < 0 ||
        (r = cart_jsonl_put(&line, fd, out, err)) < 0)
        goto out;
    while ((r = cart_stream_read(reader, &rec, err)) == 1)
        if ((r = list_record(check, kind, &rec, what, fd >= 0, &line, err)) < 0 ||
            (r = cart_jsonl_put(&line, fd, out, err)) < 0)
            goto out;
    if (r == 0 && (r = cart_consistency_end(check, what, err)) == 0 &&
        (r = list_end(reader, &line, err)) == 0)
        r = cart_jsonl_put(&line, fd, out, err);
out:
    cart_consistency_free(check);
    cart_buf_release(&line);
    return r;
}

/* --- lines to stream --- */

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
    const json_t *stated = json_object_get(end, "digest");

    cart_stream_written(w, &records, &bytes, digest);
    return (n != NULL && (uint64_t)json_integer_value(n) != records) ||
           (size != NULL && (uint64_t)json_integer_value(size) != bytes) ||
           (stated != NULL && (!json_is_string(stated) ||
                               strcmp(json_string_value(stated), cart_hex(hex, digest, 16)) != 0));
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
    if ((r = cart_kinds_from_json(kind, v, what, payload, type, err)) < 0)
        return r == CART_EUSAGE ? cart_err_wrap(err, CART_EFORMAT, "%s", what) : r;
    return cart_stream_write(w, type, payload->data, payload->len, err);
}

static int pack_lines(struct cart_jsonl *l, struct cart_stream_writer *w,
                      const struct cart_kind *kind, struct cart_err *err)
{
    struct cart_buf payload = CART_BUF_INIT;
    const char *record;
    bool edited = false, ended = false;
    json_t *v;
    int r;

    while ((r = cart_jsonl_next(l, &v, &record, err)) == 1) {
        if (ended)
            r = cart_err_set(err, CART_EFORMAT, "%s: a line follows the end line",
                             cart_jsonl_where(l));
        else
            r = pack_line(w, kind, v, record, cart_jsonl_where(l), &payload, &edited, err);
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
                            cart_jsonl_where(l));
    return edited;
}

int cart_listing_pack(struct cart_jsonl *l, json_t *head, int fd, const char *out, int level,
                      struct cart_err *err)
{
    struct cart_stream_writer *w;
    int r, edited;

    json_object_del(head, "record");
    if ((r = cart_stream_create(&w, fd, out, head, level, err)) < 0)
        return r == CART_EUSAGE ? cart_err_wrap(err, CART_EFORMAT, "%s", cart_jsonl_where(l)) : r;
    edited =
        pack_lines(l, w, cart_kind_find(json_string_value(json_object_get(head, "kind"))), err);
    if (edited < 0) {
        cart_stream_abandon(w);
        return edited;
    }
    r = cart_stream_finish(w, err);
    return r < 0 ? r : edited;
}
