#include "model/listing.h"

#include "stream/jsonl.h"
#include "stream/summary.h"
#include "stream/values.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define SHOWN 8 /* values of an array that is cut */

/* Text as JSON: as it is where it is UTF-8, else escaped. */
static json_t *text_of(struct cart_gguf_str s)
{
    size_t cap = 4 * s.len + 1;
    char *shown;
    json_t *v;

    if (cart_utf8_valid(s.data, s.len))
        return json_stringn_nocheck(s.data != NULL ? s.data : "", s.len);
    if ((shown = malloc(cap)) == NULL)
        return NULL;
    v = json_string(cart_err_escape(shown, cap, s.data, s.len));
    free(shown);
    return v;
}

static enum cart_st_dtype dtype_of(enum cart_gguf_value type)
{
    static const enum cart_st_dtype map[] = {
        [CART_GGUF_U8] = CART_ST_U8,   [CART_GGUF_I8] = CART_ST_I8,   [CART_GGUF_U16] = CART_ST_U16,
        [CART_GGUF_I16] = CART_ST_I16, [CART_GGUF_U32] = CART_ST_U32, [CART_GGUF_I32] = CART_ST_I32,
        [CART_GGUF_F32] = CART_ST_F32, [CART_GGUF_U64] = CART_ST_U64, [CART_GGUF_I64] = CART_ST_I64,
        [CART_GGUF_F64] = CART_ST_F64};

    return map[type];
}

/* n numbers (one without brackets where scalar is set) as a JSON value, exactly. */
static int numbers_of(json_t **out, enum cart_gguf_value type, const unsigned char *p, size_t n,
                      bool scalar, struct cart_err *err)
{
    enum cart_st_dtype d = dtype_of(type);
    struct cart_st_tensor t = {"value", d, scalar ? 0 : 1, {n}, p, n * cart_st_dtype_size(d)};
    struct cart_buf text = CART_BUF_INIT;
    int r = cart_values_print(&t, &text, err);

    if (r == 0)
        r = cart_json_parse(out, text.data, text.len, "value", err);
    cart_buf_release(&text);
    return r;
}

static int array_of(json_t **out, const struct cart_gguf_array *a, size_t n, struct cart_err *err)
{
    const unsigned char *at = a->data;
    json_t *list;

    if (a->type != CART_GGUF_STRING && a->type != CART_GGUF_BOOL)
        return numbers_of(out, a->type, a->data, n, false, err);
    if ((list = json_array()) == NULL)
        return cart_err_memory(err, "a listing", 0);
    for (size_t i = 0; i < n; i++)
        if (json_array_append_new(list, a->type == CART_GGUF_BOOL
                                            ? json_boolean(a->data[i])
                                            : text_of(cart_gguf_string_next(&at))) < 0) {
            json_decref(list);
            return cart_err_memory(err, "a listing", 0);
        }
    *out = list;
    return 0;
}

static int value_of(json_t **out, const struct cart_gguf *g, const struct cart_gguf_key *k,
                    const char *name, bool whole, json_t *fields, struct cart_err *err)
{
    struct cart_gguf_array a = {0};
    struct cart_gguf_str s;
    int r;

    if (k->type == CART_GGUF_ARRAY) {
        if ((r = cart_gguf_array(g, name, ~0u, &a, err)) < 0)
            return r;
        if (json_object_set_new(fields, "of", json_string(cart_gguf_value_name(a.type))) != 0 ||
            json_object_set_new(fields, "count", json_integer((json_int_t)a.n)) != 0)
            return cart_err_memory(err, "a listing", 0);
        return array_of(out, &a, whole || a.n <= SHOWN ? a.n : SHOWN, err);
    }
    if (k->type == CART_GGUF_STRING) {
        if ((r = cart_gguf_string(g, name, &s, err)) < 0)
            return r;
        *out = text_of(s);
        return *out != NULL ? 0 : cart_err_memory(err, "a listing", s.len);
    }
    if (k->type == CART_GGUF_BOOL) {
        *out = json_boolean(k->value[0]);
        return 0;
    }
    return numbers_of(out, k->type, k->value, 1, true, err);
}

static int add_key(struct cart_buf *line, const struct cart_gguf *g, const struct cart_gguf_key *k,
                   bool whole, struct cart_err *err)
{
    json_t *fields = json_pack("{s: s%, s: s}", "key", k->name.data, k->name.len, "type",
                               cart_gguf_value_name(k->type));
    json_t *value = NULL;
    int r;

    if (fields == NULL)
        return cart_err_memory(err, "a listing", 0);
    const char *name = json_string_value(json_object_get(fields, "key"));
    if ((r = value_of(&value, g, k, name, whole, fields, err)) == 0)
        r = json_object_set_new(fields, "value", value) == 0
                ? cart_jsonl_add(line, "key", fields, err)
                : cart_err_memory(err, "a listing", 0);
    json_decref(fields);
    return r;
}

static int add_tensor(struct cart_buf *line, const struct cart_gguf *g,
                      const struct cart_gguf_tensor *t, struct cart_err *err)
{
    size_t bytes;
    const unsigned char *start = cart_gguf_header(g, &bytes);
    json_t *shape = json_array(), *fields;
    int r, bad = 0;

    for (unsigned i = 0; i < t->n_dims; i++)
        bad |= json_array_append_new(shape, json_integer((json_int_t)t->dims[i]));
    fields = json_pack("{s: o, s: s, s: o, s: I, s: I}", "name", text_of(t->name), "type",
                       cart_gguf_tensor_type(t->type)->name, "dims", shape, "offset",
                       (json_int_t)(t->data - start), "bytes", (json_int_t)t->bytes);
    r = fields != NULL && !bad ? cart_jsonl_add(line, "tensor", fields, err)
                               : cart_err_memory(err, "a listing", 0);
    json_decref(fields);
    return r;
}

static int add_file(struct cart_buf *line, const char *record, const struct cart_gguf *g,
                    struct cart_err *err)
{
    bool start = strcmp(record, "gguf") == 0;
    json_t *fields = json_pack("{s: I, s: I}", "keys", (json_int_t)cart_gguf_n_keys(g), "tensors",
                               (json_int_t)cart_gguf_n_tensors(g));
    int r, bad = fields == NULL;

    if (start) {
        bad |= json_object_set_new(fields, "version", json_integer(cart_gguf_version(g)));
        bad |= json_object_set_new(fields, "alignment",
                                   json_integer((json_int_t)cart_gguf_alignment(g)));
        bad |= json_object_set_new(fields, "bytes", json_integer((json_int_t)cart_gguf_size(g)));
    }
    r = bad ? cart_err_memory(err, "a listing", 0) : cart_jsonl_add(line, record, fields, err);
    json_decref(fields);
    return r;
}

int cart_model_listing(const struct cart_gguf *g, bool whole, int fd, const char *out,
                       struct cart_err *err)
{
    struct cart_buf line = CART_BUF_INIT;
    int r;

    if ((r = add_file(&line, "gguf", g, err)) < 0 || (r = cart_jsonl_put(&line, fd, out, err)) < 0)
        goto done;
    for (size_t i = 0; i < cart_gguf_n_keys(g); i++)
        if ((r = add_key(&line, g, cart_gguf_key_at(g, i), whole, err)) < 0 ||
            (r = cart_jsonl_put(&line, fd, out, err)) < 0)
            goto done;
    for (size_t i = 0; i < cart_gguf_n_tensors(g); i++)
        if ((r = add_tensor(&line, g, cart_gguf_tensor_at(g, i), err)) < 0 ||
            (r = cart_jsonl_put(&line, fd, out, err)) < 0)
            goto done;
    if ((r = add_file(&line, "end", g, err)) == 0)
        r = cart_jsonl_put(&line, fd, out, err);
done:
    cart_buf_release(&line);
    return r;
}

/* --- for people --- */

/* The number under "ARCH.name", 0 where there is none. */
static unsigned long long number_of(const struct cart_gguf *g, const char *arch, const char *name)
{
    uint64_t v = 0;
    char key[160];

    snprintf(key, sizeof key, "%.100s.%s", arch, name);
    return cart_gguf_u64_opt(g, key, UINT64_MAX, &v, NULL) < 0 ? 0 : v;
}

/* "Q4_1 180, F32 92": the tensors of each type. */
static void put_types(const struct cart_gguf *g, char *out, size_t cap)
{
    size_t counts[64] = {0}, used = 0;

    for (size_t i = 0; i < cart_gguf_n_tensors(g); i++) {
        int type = cart_gguf_tensor_at(g, i)->type;
        counts[type >= 0 && type < 64 ? type : 0]++;
    }
    out[0] = '\0';
    for (int type = 0; type < 64; type++) {
        const struct cart_gguf_type *t = counts[type] ? cart_gguf_tensor_type(type) : NULL;
        if (t && used < cap)
            used += (size_t)snprintf(out + used, cap - used, "%s%s %zu", used ? ", " : "", t->name,
                                     counts[type]);
    }
}

int cart_model_summary(struct cart_buf *out, const struct cart_gguf *g, const char *what,
                       struct cart_err *err)
{
    struct cart_gguf_str arch = {"", 0}, name = {"", 0};
    char a[80], n[160], types[300];
    double weights = 0;
    int r;

    if ((r = cart_gguf_string_opt(g, "general.architecture", &arch, err)) < 0 ||
        (r = cart_gguf_string_opt(g, "general.name", &name, err)) < 0)
        return r;
    for (size_t i = 0; i < cart_gguf_n_tensors(g); i++) {
        const struct cart_gguf_tensor *t = cart_gguf_tensor_at(g, i);
        weights +=
            (double)t->dims[0] * (double)t->dims[1] * (double)t->dims[2] * (double)t->dims[3];
    }
    cart_err_escape(a, sizeof a, arch.data, arch.len);
    cart_err_escape(n, sizeof n, name.data, name.len);
    put_types(g, types, sizeof types);
    if ((r = cart_buf_addf(out, err, "%s: GGUF model\n", what)) < 0 ||
        (r = cart_summary_line(out, err, "model", "%s%s%s", *a ? a : "unknown architecture",
                               *n ? ", " : "", n)) < 0 ||
        (r = cart_summary_line(out, err, "sizes", "%llu layers, width %llu, context %llu",
                               number_of(g, a, "block_count"), number_of(g, a, "embedding_length"),
                               number_of(g, a, "context_length"))) < 0)
        return r;
    return cart_summary_line(out, err, "tensors", "%zu of %.1f M weights, %.1f MiB: %s",
                             cart_gguf_n_tensors(g), weights / 1e6,
                             (double)cart_gguf_size(g) / 1048576.0, types);
}

int cart_model_summary_open(struct cart_buf *out, const struct cart_model *m, struct cart_err *err)
{
    json_t *fp = cart_fingerprints_json(&m->fp);
    int r = fp ? 0 : cart_err_memory(err, "fingerprints", 0);

    if (r == 0 && (r = cart_buf_addf(out, err, "%s: SafeTensors model\n", m->path)) == 0 &&
        (r = cart_summary_line(out, err, "model", "%s", m->arch)) == 0 &&
        (r = cart_summary_line(out, err, "sizes", "%zu layers, width %zu, context %zu", m->L, m->D,
                               m->context)) == 0)
        r = cart_summary_model(out, fp, "", err);
    json_decref(fp);
    return r;
}
