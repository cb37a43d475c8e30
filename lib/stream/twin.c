/* The text twin of a record: its fields and tensors side by side in one JSON object. */
#include "stream/frame_impl.h"
#include "stream/values.h"

#include <string.h>

#define MAX_TENSORS 8

/* A record's type in lower case, without its final spaces: "DOC " is "doc". */
static void twin_name(char out[5], const char *type)
{
    size_t n = 4;

    while (n > 1 && type[n - 1] == ' ')
        n--;
    for (size_t i = 0; i < n; i++)
        out[i] = type[i] >= 'A' && type[i] <= 'Z' ? (char)(type[i] + ('a' - 'A')) : type[i];
    out[n] = '\0';
}

int cart_payload_check(const struct cart_payload *p, const struct cart_record *rec,
                       const char *what, struct cart_err *err)
{
    struct cart_buf again = CART_BUF_INIT;
    const void *data[MAX_TENSORS];
    size_t counts[MAX_TENSORS];
    int r;

    for (size_t i = 0; i < p->desc->n_tensors; i++) {
        const struct cart_st_tensor *t = cart_st_find(&p->st, p->desc->tensors[i].name);
        data[i] = t->data;
        counts[i] = t->shape[0];
    }
    r = cart_payload_build(&again, p->desc, p->fields, data, counts, err);
    if (r == 0 && (again.len != rec->size || memcmp(again.data, rec->payload, rec->size) != 0))
        r = cart_err_set(err, CART_EFORMAT, "%s: %s: its payload is not in canonical form", what,
                         rec->type);
    cart_buf_release(&again);
    return r;
}

int cart_kinds_to_json(const struct cart_kind *kind, const struct cart_record *rec,
                       const char *what, struct cart_buf *line, struct cart_err *err)
{
    struct cart_payload p;
    char name[5];
    int r;

    if ((r = cart_payload_parse(&p, kind, rec, what, err)) < 0)
        return r;
    twin_name(name, rec->type);
    if ((r = cart_payload_check(&p, rec, what, err)) < 0 ||
        (r = cart_buf_addf(line, err, "{\"record\":\"%s\"", name)) < 0)
        goto out;
    if (json_object_size(p.fields) > 0) {
        /* The object's own brace becomes the comma after the record's type, and its end is taken
         * off. */
        size_t at = line->len;
        if ((r = cart_json_dump(p.fields, line, err)) < 0)
            goto out;
        line->data[at] = ',';
        line->len--;
    }
    for (size_t i = 0; i < p.desc->n_tensors; i++) {
        const char *tensor = p.desc->tensors[i].name;
        if ((r = cart_buf_addf(line, err, ",\"%s\":", tensor)) < 0 ||
            (r = cart_values_print(cart_st_find(&p.st, tensor), line, err)) < 0)
            goto out;
    }
    r = cart_buf_add(line, "}", 1, err);
out:
    cart_payload_release(&p);
    return r;
}

static int find_record(const struct cart_kind *kind, const json_t *line,
                       const struct cart_kind_record **out, const char *what, struct cart_err *err)
{
    const char *name;
    char own[5], shown[40];
    int r;

    if ((r = cart_json_string(line, "record", &name, what, err)) < 0)
        return r;
    for (size_t i = 0; i < kind->n_records; i++) {
        twin_name(own, kind->records[i].type);
        if (strcmp(own, name) == 0) {
            *out = &kind->records[i];
            return 0;
        }
    }
    return cart_err_set(err, CART_EFORMAT, "%s: record: a %s stream has none called %s", what,
                        kind->name, cart_err_escape(shown, sizeof shown, name, strlen(name)));
}

int cart_kinds_from_json(const struct cart_kind *kind, json_t *line, const char *what,
                         struct cart_buf *payload, char type[5], struct cart_err *err)
{
    const struct cart_kind_record *desc = NULL;
    struct cart_buf values[MAX_TENSORS] = {CART_BUF_INIT};
    const void *data[MAX_TENSORS];
    size_t counts[MAX_TENSORS];
    int r;

    if ((r = find_record(kind, line, &desc, what, err)) < 0)
        return r;
    json_object_del(line, "record");
    for (size_t i = 0; i < desc->n_tensors; i++) {
        const struct cart_kind_tensor *d = &desc->tensors[i];
        struct cart_st_tensor t = {
            .name = d->name, .dtype = d->dtype, .rank = d->rank, .shape = {0, d->inner}};
        json_t *v;
        if ((r = cart_json_array(line, d->name, &v, what, err)) < 0 ||
            (r = cart_values_parse(&t, true, v, &values[i], what, err)) < 0)
            goto out;
        data[i] = values[i].data;
        counts[i] = t.shape[0];
        json_object_del(line, d->name);
    }
    if ((r = cart_payload_build(payload, desc, line, data, counts, err)) == 0)
        memcpy(type, desc->type, 5);
out:
    for (size_t i = 0; i < MAX_TENSORS; i++)
        cart_buf_release(&values[i]);
    return r;
}
