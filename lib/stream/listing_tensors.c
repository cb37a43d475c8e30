/* Listings of safetensors images and the way back. */
#include "base/io.h"
#include "stream/listing.h"
#include "stream/safetensors.h"
#include "stream/values.h"

#include <stdlib.h>
#include <string.h>

/* --- image to lines --- */

/* NULL: no memory. */
static json_t *shape_of(const struct cart_st_tensor *t)
{
    json_t *shape = json_array();
    int bad = 0;

    for (size_t i = 0; i < t->rank; i++)
        bad |= json_array_append_new(shape, json_integer((json_int_t)t->shape[i]));
    if (bad) {
        json_decref(shape);
        return NULL;
    }
    return shape;
}

static int add_tensor(struct cart_buf *line, const struct cart_st_tensor *t, bool data,
                      struct cart_err *err)
{
    json_t *least, *greatest, *fields;
    bool finite;
    int r;

    if ((r = cart_values_range(t, &least, &greatest, &finite, err)) < 0)
        return r;
    fields = json_pack("{s: s, s: s, s: o, s: o, s: o, s: b}", "name", t->name, "dtype",
                       cart_st_dtype_name(t->dtype), "shape", shape_of(t), "min", least, "max",
                       greatest, "finite", finite);
    if (fields == NULL)
        return cart_err_memory(err, "a tensor's description", 0);
    r = cart_jsonl_add(line, "tensor", fields, err);
    json_decref(fields);
    if (r < 0 || !data)
        return r;
    line->len--; /* the object's end: its data follows */
    if ((r = cart_buf_addf(line, err, ",\"data\":")) < 0 ||
        (r = cart_values_print(t, line, err)) < 0)
        return r;
    return cart_buf_add(line, "}", 1, err);
}

/* The header text of an image whose header is not what the canonical writer makes of its content;
 * else NULL. */
static int odd_header(const struct cart_st *st, const unsigned char *bytes, json_t **out,
                      struct cart_err *err)
{
    struct cart_buf own = CART_BUF_INIT;
    size_t length = (size_t)((const unsigned char *)st->data_start - bytes) - 8;
    int r = cart_st_header(&own, st->tensors, st->n, st->metadata, err);

    *out = NULL;
    if (r == 0 && (own.len != length + 8 || memcmp(own.data, bytes, own.len) != 0) &&
        (*out = json_stringn((const char *)bytes + 8, length)) == NULL)
        r = cart_err_memory(err, "the header", length);
    cart_buf_release(&own);
    return r;
}

static int add_image(struct cart_buf *line, const struct cart_st *st, const unsigned char *bytes,
                     bool data, struct cart_err *err)
{
    json_t *header = NULL, *fields;
    int r;

    if (data && (r = odd_header(st, bytes, &header, err)) < 0)
        return r;
    fields = json_pack("{s: O, s: I, s: o*}", "metadata", st->metadata, "tensors",
                       (json_int_t)st->n, "header", header);
    if (fields == NULL)
        return cart_err_memory(err, "the metadata", 0);
    r = cart_jsonl_add(line, "safetensors", fields, err);
    json_decref(fields);
    return r;
}

int cart_listing_safetensors(const void *bytes, size_t size, const char *what, bool data, int fd,
                             const char *out, struct cart_err *err)
{
    struct cart_buf line = CART_BUF_INIT;
    struct cart_st st;
    int r;

    if ((r = cart_st_parse(&st, bytes, size, what, err)) < 0)
        return r;
    if (fd < 0)
        goto done;
    if ((r = add_image(&line, &st, bytes, data, err)) < 0 ||
        (r = cart_jsonl_put(&line, fd, out, err)) < 0)
        goto done;
    for (size_t i = 0; i < st.n; i++)
        if ((r = add_tensor(&line, &st.tensors[i], data, err)) < 0 ||
            (r = cart_jsonl_put(&line, fd, out, err)) < 0)
            goto done;
    if ((r = cart_buf_addf(&line, err, "{\"record\":\"end\",\"tensors\":%zu}", st.n)) == 0)
        r = cart_jsonl_put(&line, fd, out, err);
done:
    cart_buf_release(&line);
    cart_st_release(&st);
    return r;
}

/* --- lines to image --- */

struct packed {
    struct cart_st_tensor *tensors; /* [n]; names borrowed from lines */
    struct cart_buf *values;        /* [n]: their data */
    json_t **lines;                 /* [n]: what they were made from, without the data */
    size_t n, cap_tensors, cap_values, cap_lines;
};

static void packed_release(struct packed *p)
{
    for (size_t i = 0; i < p->n; i++) {
        cart_buf_release(&p->values[i]);
        json_decref(p->lines[i]);
    }
    free(p->tensors);
    free(p->values);
    free(p->lines);
}

static int parse_shape(struct cart_st_tensor *t, const json_t *line, const char *what,
                       struct cart_err *err)
{
    json_t *shape;
    int r;

    if ((r = cart_json_array(line, "shape", &shape, what, err)) < 0)
        return r;
    t->rank = json_array_size(shape);
    if (t->rank > CART_ST_MAX_RANK)
        return cart_err_set(err, CART_EFORMAT,
                            "%s: shape: expected at most %d dimensions, found %zu", what,
                            CART_ST_MAX_RANK, t->rank);
    for (size_t i = 0; i < t->rank; i++) {
        uint64_t d;
        if (!cart_json_whole(json_array_get(shape, i), SIZE_MAX, &d))
            return cart_err_set(err, CART_EFORMAT,
                                "%s: shape: dimension %zu: expected a whole number", what, i);
        t->shape[i] = (size_t)d;
    }
    return 0;
}

/* Takes over line. */
static int pack_tensor(struct packed *p, json_t *line, const char *what, struct cart_err *err)
{
    size_t need = p->n + 1;
    const char *dtype;
    char shown[40];
    json_t *data;
    int r, d;

    if ((r = cart_array_reserve(&p->tensors, &p->cap_tensors, need, sizeof *p->tensors, err)) < 0 ||
        (r = cart_array_reserve(&p->values, &p->cap_values, need, sizeof *p->values, err)) < 0 ||
        (r = cart_array_reserve(&p->lines, &p->cap_lines, need, sizeof(json_t *), err)) < 0) {
        json_decref(line);
        return r;
    }
    struct cart_st_tensor *t = &p->tensors[p->n];
    struct cart_buf *b = &p->values[p->n];
    *t = (struct cart_st_tensor){0};
    *b = (struct cart_buf)CART_BUF_INIT;
    p->lines[p->n++] = line;
    if ((r = cart_json_string(line, "name", &t->name, what, err)) < 0 ||
        (r = cart_json_string(line, "dtype", &dtype, what, err)) < 0 ||
        (r = parse_shape(t, line, what, err)) < 0)
        return r;
    if ((d = cart_st_dtype_find(dtype)) < 0)
        return cart_err_set(err, CART_EFORMAT, "%s: dtype: expected one of safetensors, found %s",
                            what, cart_err_escape(shown, sizeof shown, dtype, strlen(dtype)));
    t->dtype = (enum cart_st_dtype)d;
    if ((data = json_object_get(line, "data")) == NULL)
        return cart_err_set(err, CART_EFORMAT,
                            "%s: data: expected the values: list the file with --data", what);
    if ((r = cart_values_parse(t, false, data, b, what, err)) < 0)
        return r;
    json_object_del(line, "data");
    t->data = b->data;
    return 0;
}

/* Whether the first or the end line states another number of tensors. */
static bool counts_other(const json_t *line, size_t n)
{
    const json_t *stated = json_object_get(line, "tensors");
    uint64_t count;

    return stated != NULL && (!cart_json_whole(stated, SIZE_MAX, &count) || count != n);
}

/* 1 where the end line states another number of tensors, else 0. */
static int pack_all(struct packed *p, struct cart_jsonl *l, struct cart_err *err)
{
    bool edited = false;
    const char *record;
    bool ended = false;
    json_t *line;
    int r;

    while ((r = cart_jsonl_next(l, &line, &record, err)) == 1) {
        const char *what = cart_jsonl_where(l);
        if (!ended && strcmp(record, "tensor") == 0) {
            if ((r = pack_tensor(p, line, what, err)) < 0)
                return r;
            continue;
        }
        bool end = strcmp(record, "end") == 0;
        edited = counts_other(line, p->n);
        json_decref(line);
        if (ended)
            return cart_err_set(err, CART_EFORMAT, "%s: a line follows the end line", what);
        if (!end)
            return cart_err_set(err, CART_EFORMAT, "%s: record: expected tensor or end", what);
        ended = true;
    }
    if (r == 0 && !ended)
        return cart_err_set(err, CART_ETRUNC,
                            "%s: no line has \"record\":\"end\": the listing was cut off",
                            cart_jsonl_where(l));
    return r < 0 ? r : edited;
}

/* Whether the image says of its tensors and metadata what the lines said. */
static bool as_listed(const struct cart_st *st, const struct packed *p, const json_t *metadata)
{
    if (st->n != p->n || !json_equal(st->metadata, metadata))
        return false;
    for (size_t i = 0; i < p->n; i++) {
        const struct cart_st_tensor *t = &p->tensors[i], *u = &st->tensors[i];
        if (strcmp(t->name, u->name) != 0 || t->dtype != u->dtype || t->rank != u->rank ||
            memcmp(t->shape, u->shape, t->rank * sizeof *t->shape) != 0)
            return false;
    }
    return true;
}

/* The image with the header that was listed, which must describe the tensors that were, and hold
 * the same metadata. */
static int write_odd(const struct packed *p, const char *header, const json_t *metadata, int fd,
                     const char *out, const char *what, struct cart_err *err)
{
    struct cart_buf image = CART_BUF_INIT;
    struct cart_st st = {0};
    uint64_t length = strlen(header);
    unsigned char field[8];
    int r;

    for (size_t i = 0; i < sizeof field; i++)
        field[i] = (unsigned char)(length >> (8 * i));
    if ((r = cart_buf_add(&image, field, sizeof field, err)) < 0 ||
        (r = cart_buf_add(&image, header, length, err)) < 0)
        goto done;
    for (size_t i = 0; i < p->n; i++)
        if ((r = cart_buf_add(&image, p->values[i].data, p->values[i].len, err)) < 0)
            goto done;
    if ((r = cart_st_parse(&st, image.data, image.len, what, err)) < 0)
        goto done;
    if (!as_listed(&st, p, metadata)) {
        r = cart_err_set(err, CART_EFORMAT,
                         "%s: its header is not that of its tensors and metadata: edited? "
                         "remove header to have a new one made",
                         what);
        goto done;
    }
    r = cart_io_write(fd, image.data, image.len, out, err);
done:
    cart_st_release(&st);
    cart_buf_release(&image);
    return r;
}

int cart_listing_pack_safetensors(struct cart_jsonl *l, json_t *head, int fd, const char *out,
                                  struct cart_err *err)
{
    struct packed p = {0};
    struct cart_buf what = CART_BUF_INIT;
    const char *header = NULL;
    json_t *metadata;
    int r, edited;

    if ((r = cart_buf_addf(&what, err, "%s", cart_jsonl_where(l))) < 0 ||
        (r = cart_json_object(head, "metadata", &metadata, what.data, err)) < 0 ||
        (r = cart_json_string_opt(head, "header", &header, what.data, err)) < 0 ||
        (r = edited = pack_all(&p, l, err)) < 0)
        goto done;
    if (header != NULL)
        r = write_odd(&p, header, metadata, fd, out, what.data, err);
    else if ((r = cart_st_write(fd, p.tensors, p.n, metadata, out, err)) == CART_EUSAGE)
        r = cart_err_wrap(err, CART_EFORMAT, "%s", what.data);
    if (r == 0)
        r = edited || counts_other(head, p.n);
done:
    packed_release(&p);
    cart_buf_release(&what);
    return r;
}
