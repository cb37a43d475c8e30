/* The canonical writer: equal tensors, order and metadata give equal bytes. */
#include "base/hash.h"
#include "base/io.h"
#include "stream/safetensors.h"

#include <string.h>

#define ALIGN 64 /* data starts on a cache line of the mapped file */

int cart_st_digest(const struct cart_st_tensor *tensors, size_t n, char out[33],
                   struct cart_err *err)
{
    struct cart_hash *h = cart_hash_new();
    unsigned char digest[16];

    if (h == NULL)
        return cart_err_memory(err, "a digest", 0);
    for (size_t i = 0; i < n; i++)
        cart_hash_add(h, tensors[i].data, tensors[i].bytes);
    cart_hash_final(h, digest);
    cart_hex(out, digest, sizeof digest);
    cart_hash_free(h);
    return 0;
}

static int check_tensor(const struct cart_st_tensor *t, json_t *seen, struct cart_err *err)
{
    size_t bytes = cart_st_dtype_size(t->dtype);

    if (t->name[0] == '\0' || strcmp(t->name, "__metadata__") == 0)
        return cart_err_set(err, CART_EUSAGE, "tensor name '%s': not a name", t->name);
    if (json_object_get(seen, t->name) != NULL)
        return cart_err_set(err, CART_EUSAGE, "tensor %s: named twice", t->name);
    if (!cart_utf8_valid(t->name, strlen(t->name)))
        return cart_err_set(err, CART_EUSAGE, "tensor name: not UTF-8");
    if (json_object_set_new(seen, t->name, json_true()) < 0)
        return cart_err_memory(err, "the tensor directory", 0);
    if (t->rank > CART_ST_MAX_RANK)
        return cart_err_set(err, CART_EUSAGE,
                            "tensor %s: expected at most %d dimensions, found %zu", t->name,
                            CART_ST_MAX_RANK, t->rank);
    for (size_t i = 0; i < t->rank; i++)
        if (!cart_size_mul(bytes, t->shape[i], &bytes))
            return cart_err_set(err, CART_EUSAGE, "tensor %s: the byte count overflows", t->name);
    if (bytes != t->bytes)
        return cart_err_set(err, CART_EUSAGE,
                            "tensor %s: shape and dtype need %zu bytes, found %zu", t->name, bytes,
                            t->bytes);
    return 0;
}

static int add_string(struct cart_buf *b, const char *s, struct cart_err *err)
{
    json_t *v = json_string(s);
    int r;

    if (v == NULL)
        return cart_err_memory(err, "a tensor name", strlen(s));
    r = cart_json_dump(v, b, err);
    json_decref(v);
    return r;
}

static int add_entry(struct cart_buf *b, const struct cart_st_tensor *t, size_t begin,
                     struct cart_err *err)
{
    int r;

    if ((r = add_string(b, t->name, err)) < 0 ||
        (r = cart_buf_addf(b, err, ":{\"dtype\":\"%s\",\"shape\":[",
                           cart_st_dtype_name(t->dtype))) < 0)
        return r;
    for (size_t i = 0; i < t->rank; i++)
        if ((r = cart_buf_addf(b, err, "%s%zu", i ? "," : "", t->shape[i])) < 0)
            return r;
    return cart_buf_addf(b, err, "],\"data_offsets\":[%zu,%zu]}", begin, begin + t->bytes);
}

/* The length field and the padded header. seen is scratch, *total becomes the bytes of data. */
static int add_header(struct cart_buf *b, const struct cart_st_tensor *tensors, size_t n,
                      const json_t *metadata, json_t *seen, size_t *total, struct cart_err *err)
{
    static const char zeros[8],
        spaces[ALIGN + 1] = "                                                                ";
    size_t start = b->len, at = 0;
    const char *comma = "";
    int r;

    if ((r = cart_buf_add(b, zeros, sizeof zeros, err)) < 0 ||
        (r = cart_buf_add(b, "{", 1, err)) < 0)
        return r;
    if (metadata != NULL && json_object_size(metadata) != 0) {
        if ((r = cart_buf_addf(b, err, "\"__metadata__\":")) < 0 ||
            (r = cart_json_dump(metadata, b, err)) < 0)
            return r;
        comma = ",";
    }
    for (size_t i = 0; i < n; i++, comma = ",") {
        if ((r = check_tensor(&tensors[i], seen, err)) < 0)
            return r;
        size_t end;
        if (!cart_size_add(at, tensors[i].bytes, &end) || end > SIZE_MAX / 4)
            return cart_err_set(err, CART_EUSAGE, "safetensors: the byte count overflows");
        if ((r = cart_buf_addf(b, err, "%s", comma)) < 0 ||
            (r = add_entry(b, &tensors[i], at, err)) < 0)
            return r;
        at = end;
    }
    if ((r = cart_buf_add(b, "}", 1, err)) < 0)
        return r;
    size_t pad = (ALIGN - (b->len - start) % ALIGN) % ALIGN;
    if ((r = cart_buf_add(b, spaces, pad, err)) < 0)
        return r;
    uint64_t length = b->len - start - 8;
    for (int i = 0; i < 8; i++)
        b->data[start + (size_t)i] = (char)(unsigned char)(length >> (8 * i));
    *total = at;
    return 0;
}

static int build_header(struct cart_buf *b, const struct cart_st_tensor *tensors, size_t n,
                        const json_t *metadata, size_t *total, struct cart_err *err)
{
    const char *key;
    json_t *v, *seen;
    int r;

    json_object_foreach((json_t *)metadata, key, v)
        if (!json_is_string(v))
            return cart_err_set(err, CART_EUSAGE, "safetensors metadata: %s: expected a string",
                                key);
    if ((seen = json_object()) == NULL)
        return cart_err_memory(err, "the tensor directory", 0);
    r = add_header(b, tensors, n, metadata, seen, total, err);
    json_decref(seen);
    return r;
}

int cart_st_header(struct cart_buf *b, const struct cart_st_tensor *tensors, size_t n,
                   const json_t *metadata, struct cart_err *err)
{
    size_t total;

    return build_header(b, tensors, n, metadata, &total, err);
}

int cart_st_build(struct cart_buf *b, const struct cart_st_tensor *tensors, size_t n,
                  const json_t *metadata, struct cart_err *err)
{
    size_t start = b->len, total;
    int r;

    if ((r = build_header(b, tensors, n, metadata, &total, err)) < 0 ||
        (r = cart_buf_reserve(b, total, err)) < 0) {
        b->len = start;
        return r;
    }
    for (size_t i = 0; i < n; i++)
        if ((r = cart_buf_add(b, tensors[i].data, tensors[i].bytes, err)) < 0)
            return r;
    return 0;
}

int cart_st_write(int fd, const struct cart_st_tensor *tensors, size_t n, const json_t *metadata,
                  const char *name, struct cart_err *err)
{
    struct cart_buf header = CART_BUF_INIT;
    size_t total;
    int r;

    if ((r = build_header(&header, tensors, n, metadata, &total, err)) == 0)
        r = cart_io_write(fd, header.data, header.len, name, err);
    for (size_t i = 0; r == 0 && i < n; i++)
        r = cart_io_write(fd, tensors[i].data, tensors[i].bytes, name, err);
    cart_buf_release(&header);
    return r;
}
