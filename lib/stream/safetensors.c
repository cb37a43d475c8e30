#include "stream/safetensors.h"

#include <stdlib.h>
#include <string.h>

#define MAX_HEADER 100000000u /* the limit of the format's own library */
#define META "__metadata__"

static const struct {
    const char *name;
    size_t size;
} dtypes[] = {
    [CART_ST_F32] = {"F32", 4},   [CART_ST_F16] = {"F16", 2}, [CART_ST_BF16] = {"BF16", 2},
    [CART_ST_F64] = {"F64", 8},   [CART_ST_I64] = {"I64", 8}, [CART_ST_I32] = {"I32", 4},
    [CART_ST_I16] = {"I16", 2},   [CART_ST_I8] = {"I8", 1},   [CART_ST_U64] = {"U64", 8},
    [CART_ST_U32] = {"U32", 4},   [CART_ST_U16] = {"U16", 2}, [CART_ST_U8] = {"U8", 1},
    [CART_ST_BOOL] = {"BOOL", 1},
};

/* What the format has beside them: packed and complex numbers, which nothing here computes with. */
static const char *const other_dtypes[] = {"F8_E4M3",     "F8_E5M2",     "F8_E8M0",
                                           "F8_E4M3FNUZ", "F8_E5M2FNUZ", "F6_E2M3",
                                           "F6_E3M2",     "F4",          "C64"};

const char *cart_st_dtype_name(enum cart_st_dtype t)
{
    return dtypes[t].name;
}

size_t cart_st_dtype_size(enum cart_st_dtype t)
{
    return dtypes[t].size;
}

int cart_st_dtype_find(const char *name)
{
    for (size_t i = 0; i < CART_COUNTOF(dtypes); i++)
        if (strcmp(dtypes[i].name, name) == 0)
            return (int)i;
    return -1;
}

/* Where one entry of the header lies in the data, kept beside the tensor until both are in order.
 */
struct entry {
    struct cart_st_tensor t;
    size_t begin, end, rank_in_header;
};

static int refuse_dtype(const char *name, const char *path, struct cart_err *err)
{
    char shown[40];
    for (size_t i = 0; i < CART_COUNTOF(other_dtypes); i++)
        if (strcmp(name, other_dtypes[i]) == 0)
            return cart_err_set(err, CART_EFORMAT,
                                "%s: type %s is not supported: expected F64, F32, F16, BF16, "
                                "integers or BOOL",
                                path, name);
    return cart_err_set(err, CART_EFORMAT, "%s: dtype: expected one of safetensors, found %s", path,
                        cart_err_escape(shown, sizeof shown, name, strlen(name)));
}

static int parse_shape(struct cart_st_tensor *t, json_t *shape, size_t *bytes, const char *path,
                       struct cart_err *err)
{
    t->rank = json_array_size(shape);
    if (t->rank > CART_ST_MAX_RANK)
        return cart_err_set(err, CART_EFORMAT,
                            "%s: shape: expected at most %d dimensions, found %zu", path,
                            CART_ST_MAX_RANK, t->rank);
    *bytes = dtypes[t->dtype].size;
    for (size_t i = 0; i < t->rank; i++) {
        uint64_t d;
        if (!cart_json_whole(json_array_get(shape, i), SIZE_MAX, &d))
            return cart_err_set(err, CART_EFORMAT,
                                "%s: shape: dimension %zu: expected a whole number", path, i);
        t->shape[i] = (size_t)d;
        if (!cart_size_mul(*bytes, t->shape[i], bytes))
            return cart_err_set(err, CART_EFORMAT, "%s: shape: the byte count overflows", path);
    }
    return 0;
}

static int parse_entry(struct entry *e, json_t *v, size_t data_size, const char *path,
                       struct cart_err *err)
{
    const char *dtype;
    json_t *shape, *offsets;
    size_t bytes = 0;
    int r, d;

    if (!json_is_object(v))
        return cart_err_set(err, CART_EFORMAT, "%s: expected an object", path);
    if ((r = cart_json_string(v, "dtype", &dtype, path, err)) < 0 ||
        (r = cart_json_array(v, "shape", &shape, path, err)) < 0 ||
        (r = cart_json_array(v, "data_offsets", &offsets, path, err)) < 0)
        return r;
    if ((d = cart_st_dtype_find(dtype)) < 0)
        return refuse_dtype(dtype, path, err);
    e->t.dtype = (enum cart_st_dtype)d;
    if ((r = parse_shape(&e->t, shape, &bytes, path, err)) < 0)
        return r;
    uint64_t begin, end;
    if (json_array_size(offsets) != 2 ||
        !cart_json_whole(json_array_get(offsets, 0), SIZE_MAX, &begin) ||
        !cart_json_whole(json_array_get(offsets, 1), SIZE_MAX, &end) || end < begin)
        return cart_err_set(err, CART_EFORMAT,
                            "%s: data_offsets: expected two rising whole numbers", path);
    e->begin = (size_t)begin;
    e->end = (size_t)end;
    if (e->end - e->begin != bytes)
        return cart_err_set(err, CART_EFORMAT,
                            "%s: data_offsets: shape and dtype need %zu bytes, found %zu", path,
                            bytes, e->end - e->begin);
    if (e->end > data_size)
        return cart_err_set(err, CART_ETRUNC,
                            "%s: data_offsets: ends at byte %zu of the data, which has %zu", path,
                            e->end, data_size);
    e->t.bytes = bytes;
    return 0;
}

static int compare_entries(const void *pa, const void *pb)
{
    const struct entry *a = pa, *b = pb;

    if (a->begin != b->begin)
        return a->begin < b->begin ? -1 : 1;
    if (a->end != b->end)
        return a->end < b->end ? -1 : 1;
    return a->rank_in_header < b->rank_in_header ? -1 : 1;
}

/* The data must be covered from its first to its last byte, each byte by one tensor. */
static int check_cover(const struct entry *e, size_t n, size_t data_size, const char *what,
                       struct cart_err *err)
{
    size_t at = 0;
    char shown[80];

    for (size_t i = 0; i < n; i++) {
        if (e[i].begin != at)
            return cart_err_set(
                err, CART_EFORMAT,
                "%s: tensor %s: starts at byte %zu of the data, expected %zu (%s)", what,
                cart_err_escape(shown, sizeof shown, e[i].t.name, strlen(e[i].t.name)), e[i].begin,
                at, e[i].begin > at ? "a hole" : "an overlap");
        at = e[i].end;
    }
    if (at != data_size)
        return cart_err_set(err, CART_EFORMAT,
                            "%s: %zu bytes follow the last tensor's data, expected none", what,
                            data_size - at);
    return 0;
}

static int check_metadata(json_t *meta, const char *what, struct cart_err *err)
{
    const char *key;
    json_t *v;
    char shown[80];

    if (!json_is_object(meta))
        return cart_err_set(err, CART_EFORMAT, "%s: " META ": expected an object", what);
    json_object_foreach(meta, key, v)
        if (!json_is_string(v))
            return cart_err_set(err, CART_EFORMAT, "%s: " META ": %s: expected a string", what,
                                cart_err_escape(shown, sizeof shown, key, strlen(key)));
    return 0;
}

static int parse_tensors(struct cart_st *st, struct entry *e, json_t *header,
                         const unsigned char *data, size_t data_size, const char *what,
                         struct cart_err *err)
{
    const char *key;
    json_t *v;
    size_t n = 0;
    int r;

    json_object_foreach(header, key, v) {
        char shown[80], path[512];

        if (strcmp(key, META) == 0) {
            if ((r = check_metadata(v, what, err)) < 0)
                return r;
            st->metadata = json_incref(v);
            continue;
        }
        if (key[0] == '\0')
            return cart_err_set(err, CART_EFORMAT, "%s: expected a name for each tensor", what);
        cart_err_escape(shown, sizeof shown, key, strlen(key));
        snprintf(path, sizeof path, "%.400s: tensor %s", what, shown);
        if ((r = parse_entry(&e[n], v, data_size, path, err)) < 0)
            return r;
        e[n].t.name = key;
        e[n].t.data = data + e[n].begin;
        e[n].rank_in_header = n;
        n++;
    }
    st->n = n;
    if (n != 0)
        qsort(e, n, sizeof *e, compare_entries);
    return check_cover(e, n, data_size, what, err);
}

/* Names live in the keys of an index from name to place, which jansson keeps still while the object
 * lives. */
static int index_tensors(struct cart_st *st, const struct entry *e, struct cart_err *err)
{
    json_t *index = json_object();
    const char *key;
    json_t *v;

    st->priv = index;
    st->tensors = calloc(st->n ? st->n : 1, sizeof *st->tensors);
    if (index == NULL || st->tensors == NULL)
        return cart_err_memory(err, "the tensor directory", st->n * sizeof *st->tensors);
    for (size_t i = 0; i < st->n; i++) {
        st->tensors[i] = e[i].t;
        if (json_object_set_new_nocheck(index, e[i].t.name, json_integer((json_int_t)i)) < 0)
            return cart_err_memory(err, "the tensor directory", 0);
    }
    json_object_foreach(index, key, v)
        st->tensors[json_integer_value(v)].name = key;
    return 0;
}

int cart_st_parse(struct cart_st *out, const void *bytes, size_t size, const char *what,
                  struct cart_err *err)
{
    const unsigned char *p = bytes;
    struct cart_st st = {0};
    struct entry *e = NULL;
    json_t *header = NULL;
    uint64_t n = 0;
    int r;

    if (size < 8)
        return cart_err_set(err, CART_ETRUNC,
                            "%s: a safetensors file has at least 8 bytes, found %zu", what, size);
    for (int i = 7; i >= 0; i--)
        n = n << 8 | p[i];
    if (n > MAX_HEADER)
        return cart_err_set(err, CART_EFORMAT,
                            "%s: safetensors header: expected at most %u bytes, found %llu", what,
                            MAX_HEADER, (unsigned long long)n);
    if (n > size - 8)
        return cart_err_set(err, CART_ETRUNC,
                            "%s: safetensors header: expected %llu bytes, found %zu", what,
                            (unsigned long long)n, size - 8);
    char path[512];
    snprintf(path, sizeof path, "%.400s: safetensors header", what);
    if ((r = cart_json_parse(&header, (const char *)p + 8, (size_t)n, path, err)) < 0)
        return r;
    if (!json_is_object(header)) {
        r = cart_err_set(err, CART_EFORMAT, "%s: expected an object", path);
        goto out;
    }
    size_t most = json_object_size(header);
    if ((e = calloc(most ? most : 1, sizeof *e)) == NULL) {
        r = cart_err_memory(err, "the tensor directory", most * sizeof *e);
        goto out;
    }
    if ((r = parse_tensors(&st, e, header, p + 8 + n, size - 8 - (size_t)n, what, err)) < 0 ||
        (r = index_tensors(&st, e, err)) < 0)
        goto out;
    if (st.metadata == NULL && (st.metadata = json_object()) == NULL) {
        r = cart_err_memory(err, "the metadata", 0);
        goto out;
    }
    st.data_start = p + 8 + n;
    *out = st;
    st = (struct cart_st){0};
out:
    cart_st_release(&st);
    free(e);
    json_decref(header);
    return r;
}

void cart_st_release(struct cart_st *st)
{
    free(st->tensors);
    json_decref(st->metadata);
    json_decref(st->priv);
    *st = (struct cart_st){0};
}

const struct cart_st_tensor *cart_st_find(const struct cart_st *st, const char *name)
{
    json_t *at = json_object_get(st->priv, name);

    return at ? &st->tensors[json_integer_value(at)] : NULL;
}

int cart_st_expect(const struct cart_st *st, const char *name, enum cart_st_dtype dtype,
                   size_t rank, const struct cart_st_tensor **out, const char *what,
                   struct cart_err *err)
{
    const struct cart_st_tensor *t = cart_st_find(st, name);

    if (t == NULL)
        return cart_err_set(err, CART_EFORMAT, "%s: tensor %s: expected, not found", what, name);
    if (t->dtype != dtype)
        return cart_err_set(err, CART_EFORMAT, "%s: tensor %s: expected %s, found %s", what, name,
                            dtypes[dtype].name, dtypes[t->dtype].name);
    if (rank != SIZE_MAX && t->rank != rank)
        return cart_err_set(err, CART_EFORMAT, "%s: tensor %s: expected %zu dimensions, found %zu",
                            what, name, rank, t->rank);
    *out = t;
    return 0;
}
