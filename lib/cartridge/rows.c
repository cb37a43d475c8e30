#include "cartridge/rows.h"

#include "base/hash.h"

#include <assert.h>
#include <string.h>

const char *const cart_rows_names[CART_ROWS_TENSORS] = {"k_sink", "k", "v_sink", "v"};

bool cart_rows_parse_name(const char *name, size_t *layer, size_t *which)
{
    static const char prefix[] = "layers.";
    if (strncmp(name, prefix, sizeof prefix - 1) != 0)
        return false;
    const char *s = name + sizeof prefix - 1;
    if (*s < '0' || *s > '9' || (*s == '0' && s[1] != '.'))
        return false;
    size_t i = 0;
    for (; *s >= '0' && *s <= '9'; s++) {
        i = i * 10 + (size_t)(*s - '0');
        if (i > 1u << 20)
            return false;
    }
    if (*s++ != '.')
        return false;
    for (size_t k = 0; k < CART_ROWS_TENSORS; k++)
        if (strcmp(s, cart_rows_names[k]) == 0) {
            *layer = i;
            *which = k;
            return true;
        }
    return false;
}

int cart_rows_dtype(enum cart_st_dtype t)
{
    return t == CART_ST_F32    ? CART_F32
           : t == CART_ST_F16  ? CART_F16
           : t == CART_ST_BF16 ? CART_BF16
                               : -1;
}

/* Exponent bits all set: infinity or NaN. */
static bool finite_values(int dtype, const void *row, size_t n)
{
    if (dtype == CART_F32)
        return cart_all_finite(row, n);
    const uint16_t *h = row;
    uint16_t mask = dtype == CART_F16 ? 0x7c00 : 0x7f80;
    for (size_t i = 0; i < n; i++)
        if ((h[i] & mask) == mask)
            return false;
    return true;
}

static int check_layer(const struct cart_layer *l, size_t layer, const char *name, const void *data,
                       size_t stride, int dtype, size_t rows, size_t row0, const char *what,
                       struct cart_err *err)
{
    size_t size = cart_dtype_info(dtype)->bytes;
    for (size_t r = 0; r < rows; r++) {
        const char *row = (const char *)data + r * stride * size;
        if (finite_values(dtype, row, cart_layer_kv_width(l)))
            continue;
        size_t head = 0;
        while (head + 1 < l->HK && finite_values(dtype, row + head * l->DH * size, l->DH))
            head++;
        return cart_err_set(err, CART_EFORMAT,
                            "%s: layers.%zu.%s: row %zu, head %zu: not a finite number", what,
                            layer, name, row0 + r, head);
    }
    return 0;
}

int cart_rows_check_finite(const struct cart_model *m, const struct cart_kv_part *part, size_t row0,
                           const char *what, struct cart_err *err)
{
    assert(!part->blocked);
    for (size_t i = 0; i < m->L; i++) {
        const struct cart_kv_layer *kv = &part->layers[i];
        int r = check_layer(&m->layers[i], i, "k", kv->k, kv->stride, part->dtype, part->rows, row0,
                            what, err);
        if (r == 0)
            r = check_layer(&m->layers[i], i, "v", kv->v, kv->stride, part->dtype, part->rows, row0,
                            what, err);
        if (r < 0)
            return r;
    }
    return 0;
}

void cart_rows_reorder(void *dst, const void *src, size_t rows, const struct cart_layer *layer,
                       const struct cart_rope *rope, size_t size)
{
    size_t half = rope->n_rot / 2;
    size_t heads = rows * layer->HK;
    size_t head_bytes = layer->DH * size;
    memcpy(dst, src, heads * head_bytes);
    for (size_t h = 0; h < heads; h++) {
        char *to = (char *)dst + h * head_bytes;
        const char *from = (const char *)src + h * head_bytes;
        for (size_t j = 0; j < half; j++) {
            if (rope->order == CART_ROPE_INTERLEAVED) {
                memcpy(to + 2 * j * size, from + j * size, size);
                memcpy(to + (2 * j + 1) * size, from + (j + half) * size, size);
            } else {
                memcpy(to + j * size, from + 2 * j * size, size);
                memcpy(to + (j + half) * size, from + (2 * j + 1) * size, size);
            }
        }
    }
}

/* Of the header that a canonical writer makes of metadata, but for the digest itself: members, and
 * each tensor's name, type, shape and place. */
static int header_digest(const json_t *metadata, const struct cart_st_tensor *tensors, size_t n,
                         char out[33], struct cart_err *err)
{
    struct cart_buf header = CART_BUF_INIT;
    unsigned char hash[16];
    json_t *rest = cart_json_copy(metadata);
    int r = rest ? 0 : cart_err_memory(err, "metadata", 0);
    json_object_del(rest, "cart.sum");
    if (r == 0 && (r = cart_st_header(&header, tensors, n, rest, err)) == 0) {
        cart_hash_bytes(header.data, header.len, hash);
        cart_hex(out, hash, sizeof hash);
    }
    json_decref(rest);
    cart_buf_release(&header);
    return r;
}

int cart_rows_seal(json_t *metadata, const struct cart_st_tensor *tensors, size_t n,
                   struct cart_err *err)
{
    char digest[33];
    int r = cart_st_digest(tensors, n, digest, err);
    if (r == 0 && json_object_set_new(metadata, "cart.data", json_string(digest)) != 0)
        r = cart_err_memory(err, "metadata", 0);
    if (r == 0 && (r = header_digest(metadata, tensors, n, digest, err)) == 0 &&
        json_object_set_new(metadata, "cart.sum", json_string(digest)) != 0)
        r = cart_err_memory(err, "metadata", 0);
    return r;
}

static int compare_seal(const char *part, const char *key, const char *seal, const char *found,
                        struct cart_err *err)
{
    char shown[48];
    if (strcmp(seal, found) == 0)
        return 0;
    return cart_err_set(err, CART_EFORMAT,
                        "%s: expected the digest %s of metadata %s, found %s: damaged or edited",
                        part, cart_err_escape(shown, sizeof shown, seal, strlen(seal)), key, found);
}

int cart_rows_check_header(const struct cart_st *st, struct cart_err *err)
{
    const char *data = json_string_value(json_object_get(st->metadata, "cart.data"));
    const char *sum = json_string_value(json_object_get(st->metadata, "cart.sum"));
    char found[33];
    if (!data && !sum)
        return 0;
    if (!data || !sum)
        return cart_err_set(err, CART_EFORMAT,
                            "metadata: expected cart.data and cart.sum, or neither, found one");
    int r = header_digest(st->metadata, st->tensors, st->n, found, err);
    return r < 0 ? r : compare_seal("header", "cart.sum", sum, found, err);
}

int cart_rows_check_data(const struct cart_st *st, char out[33], struct cart_err *err)
{
    const char *seal = json_string_value(json_object_get(st->metadata, "cart.data"));
    int r = cart_st_digest(st->tensors, st->n, out, err);
    return r < 0 || !seal ? r : compare_seal("data", "cart.data", seal, out, err);
}

int cart_rows_check_draft(const struct cart_st *st, size_t V, const struct cart_st_tensor **out,
                          struct cart_err *err)
{
    const struct cart_st_tensor *t = cart_st_find(st, "draft_reference");
    *out = t;
    if (!t)
        return 0;
    if (t->dtype != CART_ST_I64 || t->rank != 1)
        return cart_err_set(err, CART_EFORMAT,
                            "tensor draft_reference: expected I64 of one dimension");
    for (size_t i = 0; i < t->shape[0]; i++) {
        int64_t id;
        memcpy(&id, (const char *)t->data + i * sizeof id, sizeof id);
        if (id < 0 || (uint64_t)id >= V)
            return cart_err_set(err, CART_EFORMAT,
                                "tensor draft_reference: entry %zu is no token id", i);
    }
    return 0;
}
