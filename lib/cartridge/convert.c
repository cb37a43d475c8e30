#include "cartridge/convert.h"

#include "cartridge/metadata.h"
#include "cartridge/rows.h"
#include "stream/stream.h"
#include "tensor/dtype.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static float value_at(enum cart_st_dtype d, const unsigned char *p)
{
    uint16_t half;
    float x;

    if (d == CART_ST_F32) {
        memcpy(&x, p, sizeof x);
        return x;
    }
    memcpy(&half, p, sizeof half);
    return d == CART_ST_F16 ? cart_f16_to_f32(half) : cart_bf16_to_f32(half);
}

bool cart_rows_present(const struct cart_st *st)
{
    size_t layer, which;

    for (size_t i = 0; i < st->n; i++)
        if (cart_rows_parse_name(st->tensors[i].name, &layer, &which) && which == CART_ROWS_K)
            return true;
    return json_object_get(st->metadata, "cart.version") != NULL;
}

/* t beside k, the keys of its layer, and first, the tensor of layer 0 that has as many rows. */
static int check_tensor(const struct cart_st_tensor *t, const struct cart_st_tensor *k,
                        const struct cart_st_tensor *first, const char *what, struct cart_err *err)
{
    const unsigned char *p = t->data;

    if (cart_rows_dtype(t->dtype) < 0)
        return cart_err_set(err, CART_EFORMAT, "%s: tensor %s: expected F32, F16 or BF16, found %s",
                            what, t->name, cart_st_dtype_name(t->dtype));
    if (t->dtype != first->dtype)
        return cart_err_set(err, CART_EFORMAT, "%s: tensor %s: expected %s as in %s, found %s",
                            what, t->name, cart_st_dtype_name(first->dtype), first->name,
                            cart_st_dtype_name(t->dtype));
    if (t->rank != 3)
        return cart_err_set(err, CART_EFORMAT,
                            "%s: tensor %s: expected [rows,heads,width], found %zu dimensions",
                            what, t->name, t->rank);
    if (k->rank != 3 || t->shape[1] != k->shape[1] || t->shape[2] != k->shape[2])
        return cart_err_set(err, CART_EFORMAT, "%s: tensors %s and %s differ in heads or width",
                            what, t->name, k->name);
    if (t->shape[0] != first->shape[0])
        return cart_err_set(err, CART_EFORMAT,
                            "%s: tensor %s: expected %zu rows as in %s, found %zu", what, t->name,
                            first->shape[0], first->name, t->shape[0]);
    size_t size = cart_st_dtype_size(t->dtype);
    for (size_t i = 0; i < t->bytes / size; i++)
        if (!isfinite(value_at(t->dtype, p + i * size)))
            return cart_err_set(err, CART_EFORMAT, "%s: tensor %s: value %zu is not finite", what,
                                t->name, i);
    return 0;
}

static const struct cart_st_tensor *find_row(const struct cart_st *st, size_t layer, size_t which)
{
    char name[64];

    snprintf(name, sizeof name, "layers.%zu.%s", layer, cart_rows_names[which]);
    return cart_st_find(st, name);
}

static int check_layer(const struct cart_st *st, size_t layer, const char *what,
                       struct cart_err *err)
{
    const struct cart_st_tensor *rows = find_row(st, 0, CART_ROWS_K);
    const struct cart_st_tensor *sink = find_row(st, 0, CART_ROWS_K_SINK);
    const struct cart_st_tensor *k = find_row(st, layer, CART_ROWS_K);
    bool sinks = sink != NULL && sink->shape[0] > 0;

    for (size_t which = 0; which < CART_ROWS_TENSORS; which++) {
        const struct cart_st_tensor *t = find_row(st, layer, which);
        bool of_sink = which == CART_ROWS_K_SINK || which == CART_ROWS_V_SINK;
        if (t == NULL && of_sink && !sinks)
            continue;
        if (t == NULL || (of_sink && sink == NULL))
            return cart_err_set(err, CART_EFORMAT, "%s: tensor layers.%zu.%s: not found", what,
                                t == NULL ? layer : 0, cart_rows_names[t == NULL ? which : 0]);
        int r = check_tensor(t, k != NULL ? k : t, of_sink ? sink : rows, what, err);
        if (r < 0)
            return r;
    }
    return 0;
}

int cart_rows_check(const struct cart_st *st, const char *what, struct cart_err *err)
{
    const struct cart_st_tensor *rows = find_row(st, 0, CART_ROWS_K);
    const struct cart_st_tensor *sink = find_row(st, 0, CART_ROWS_K_SINK);
    size_t layers = 0, layer, which;
    int r;

    for (size_t i = 0; i < st->n; i++)
        if (cart_rows_parse_name(st->tensors[i].name, &layer, &which) && layer >= layers)
            layers = layer + 1;
    if (rows == NULL || rows->rank != 3 || (sink != NULL && sink->rank != 3))
        return cart_err_set(err, CART_EFORMAT,
                            "%s: expected a tensor layers.0.k of rows, heads, width", what);
    if (sink != NULL && sink->dtype != rows->dtype)
        return cart_err_set(err, CART_EFORMAT, "%s: tensors %s and %s differ in type", what,
                            sink->name, rows->name);
    size_t frozen = sink != NULL ? sink->shape[0] : 0;
    if (frozen > CART_CARTRIDGE_MAX_P || rows->shape[0] > CART_CARTRIDGE_MAX_P - frozen ||
        frozen + rows->shape[0] == 0)
        return cart_err_set(err, CART_EFORMAT, "%s: expected 1 to %zu rows", what,
                            CART_CARTRIDGE_MAX_P);
    for (size_t i = 0; i < layers; i++)
        if ((r = check_layer(st, i, what, err)) < 0)
            return r;
    const struct cart_st_tensor *draft;
    struct cart_claims claims;
    char digest[33];
    if ((r = cart_claims_parse(&claims, st->metadata, NULL, err)) < 0 ||
        (r = cart_claims_check_rows(&claims, frozen + rows->shape[0], frozen, err)) < 0 ||
        (r = cart_rows_check_draft(st, (size_t)INT32_MAX + 1, &draft, err)) < 0 ||
        (r = cart_rows_check_header(st, err)) < 0 ||
        (r = cart_rows_check_data(st, digest, err)) < 0)
        return cart_err_wrap(err, r, "%s", what);
    return 0;
}

/* t's values as to, into new memory at *data. */
static int convert_tensor(struct cart_st_tensor *t, enum cart_st_dtype to, unsigned char **data,
                          const char *what, struct cart_err *err)
{
    size_t from_size = cart_st_dtype_size(t->dtype), size = cart_st_dtype_size(to);
    size_t n = t->bytes / from_size;
    unsigned char *p = malloc(n > 0 ? n * size : 1);

    if ((*data = p) == NULL)
        return cart_err_memory(err, t->name, n * size);
    for (size_t i = 0; i < n; i++, p += size) {
        float x = value_at(t->dtype, (const unsigned char *)t->data + i * from_size);
        uint16_t half = to == CART_ST_F16 ? cart_f16_from_f32(x) : cart_bf16_from_f32(x);
        if (to == CART_ST_F32)
            memcpy(p, &x, sizeof x);
        else
            memcpy(p, &half, sizeof half);
        if (!isfinite(value_at(to, p)))
            return cart_err_set(err, CART_EFORMAT, "%s: tensor %s: value %zu, %g, does not fit %s",
                                what, t->name, i, (double)x, cart_st_dtype_name(to));
    }
    t->dtype = to;
    t->data = *data;
    t->bytes = n * size;
    return 0;
}

static int extend_history(json_t *meta, const char *old, const char *dtype, const char *what,
                          struct cart_err *err)
{
    json_t *head = NULL, *list = NULL, *options = json_pack("{s: s}", "dtype", dtype);
    struct cart_buf text = CART_BUF_INIT;
    int r = cart_json_parse(&list, old, strlen(old), what, err);

    if (r < 0)
        goto out;
    if ((head = json_pack("{s: o}", "history", list)) == NULL ||
        (list = cart_history_extend(head, "cart-view", options, NULL, err)) == NULL) {
        r = cart_err_memory(err, "history", 0);
        goto out;
    }
    r = cart_json_dump(list, &text, err);
    json_decref(list);
    if (r == 0 && json_object_set_new(meta, "cart.history", json_string(text.data)) < 0)
        r = cart_err_memory(err, "the metadata", text.len);
out:
    json_decref(head);
    json_decref(options);
    cart_buf_release(&text);
    return r;
}

/* A file that says nothing of itself goes on saying nothing. */
static int describe(json_t *meta, enum cart_st_dtype to, const char *what, struct cart_err *err)
{
    const char *name = to == CART_ST_F32 ? "f32" : to == CART_ST_F16 ? "f16" : "bf16";
    const char *history = NULL;
    int r;

    if (json_object_get(meta, "cart.version") == NULL)
        return 0;
    if (json_object_set_new(meta, "cart.dtype", json_string(name)) < 0)
        return cart_err_memory(err, "the metadata", 0);
    if ((r = cart_json_string_opt(meta, "cart.history", &history, what, err)) < 0)
        return r;
    return extend_history(meta, history != NULL ? history : "[]", name, what, err);
}

int cart_rows_convert(const struct cart_st *st, enum cart_st_dtype to, int fd, const char *out,
                      const char *what, struct cart_err *err)
{
    struct cart_st_tensor *t = calloc(st->n + 1, sizeof *t);
    unsigned char **data = calloc(st->n + 1, sizeof *data);
    json_t *meta = cart_json_copy(st->metadata);
    bool changed = false;
    size_t layer, which;
    int r;

    if (t == NULL || data == NULL || meta == NULL) {
        r = cart_err_memory(err, "the tensor directory", st->n);
        goto done;
    }
    if (!cart_rows_present(st)) {
        r = cart_err_set(err, CART_EFORMAT,
                         "%s: expected a cartridge, found no tensor layers.<i>.k", what);
        goto done;
    }
    if ((r = cart_rows_check(st, what, err)) < 0)
        goto done;
    memcpy(t, st->tensors, st->n * sizeof *t);
    for (size_t i = 0; i < st->n; i++) {
        if (!cart_rows_parse_name(t[i].name, &layer, &which) || t[i].dtype == to)
            continue;
        changed = true;
        if ((r = convert_tensor(&t[i], to, &data[i], what, err)) < 0)
            goto done;
    }
    if (changed && (r = describe(meta, to, what, err)) == 0 &&
        (json_object_get(meta, "cart.version") || json_object_get(meta, "cart.data")))
        r = cart_rows_seal(meta, t, st->n, err);
    if (r == 0)
        r = cart_st_write(fd, t, st->n, meta, out, err);
done:
    for (size_t i = 0; i < st->n && data != NULL; i++)
        free(data[i]);
    free(data);
    free(t);
    json_decref(meta);
    return r;
}
