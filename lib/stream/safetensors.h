/* safetensors images, in memory and at rest: u64 header length, JSON header, data. Reading trusts
 * nothing: every rule of the format (and the stricter ones of cart-cartridge(5): no duplicate
 * names, no holes, no overlap, rank <= 8) is checked before a pointer into the data is handed out.
 * Writing is canonical: tensors in the order given (the caller sorts), header keys in that order
 * after __metadata__ (sorted keys), padded with spaces so that data starts 64-aligned. Equal
 * content is equal bytes. */
#ifndef CART_STREAM_SAFETENSORS_H
#define CART_STREAM_SAFETENSORS_H

#include "base/buf.h"
#include "base/json.h"

enum cart_st_dtype {
    CART_ST_F32,
    CART_ST_F16,
    CART_ST_BF16,
    CART_ST_F64,
    CART_ST_I64,
    CART_ST_I32,
    CART_ST_I16,
    CART_ST_I8,
    CART_ST_U64,
    CART_ST_U32,
    CART_ST_U16,
    CART_ST_U8,
    CART_ST_BOOL
};
#define CART_ST_MAX_RANK 8

struct cart_st_tensor {
    const char *name; /* UTF-8, NUL-terminated, no NUL inside */
    enum cart_st_dtype dtype;
    size_t rank, shape[CART_ST_MAX_RANK];
    const void *data; /* reading: into the image (may be unaligned for foreign files) */
    size_t bytes;
};

struct cart_st {
    struct cart_st_tensor *tensors; /* owned array, in data order; names and metadata owned, data
                                       borrowed from the image */
    size_t n;
    json_t *metadata;       /* object of strings; never NULL after parse */
    const void *data_start; /* where the header ends in the image */
    void *priv;
};

/* bytes [size] must outlive st and start on an 8-byte boundary for aligned data. what names the
 * source in messages. CART_EFORMAT / CART_ETRUNC. */
int cart_st_parse(struct cart_st *st, const void *bytes, size_t size, const char *what,
                  struct cart_err *err) CART_MUST_USE;
void cart_st_release(struct cart_st *st);
const struct cart_st_tensor *cart_st_find(const struct cart_st *st,
                                          const char *name); /* NULL if absent; O(1) */

/* The tensor of that name with that dtype and rank (rank SIZE_MAX: any), or CART_EFORMAT naming
 * what differs. */
int cart_st_expect(const struct cart_st *st, const char *name, enum cart_st_dtype dtype,
                   size_t rank, const struct cart_st_tensor **out, const char *what,
                   struct cart_err *err) CART_MUST_USE;

const char *cart_st_dtype_name(enum cart_st_dtype t);
size_t cart_st_dtype_size(enum cart_st_dtype t);
int cart_st_dtype_find(const char *name); /* enum cart_st_dtype, or -1 for a name that is none */

/* XXH3-128 over the data of n tensors in their order, in hexadecimal: of all tensors of an image,
 * over the bytes behind its header. */
int cart_st_digest(const struct cart_st_tensor *tensors, size_t n, char out[33],
                   struct cart_err *err) CART_MUST_USE;

/* Appends a whole image to b. metadata is an object of strings; NULL and {} write no __metadata__.
 * Names must be non-empty UTF-8 and differ, bytes must be what dtype and shape say: else
 * CART_EUSAGE. For aligned data the caller puts 8-byte types first. */
int cart_st_build(struct cart_buf *b, const struct cart_st_tensor *tensors, size_t n,
                  const json_t *metadata, struct cart_err *err) CART_MUST_USE;
/* Appends the length field and the padded header of that image alone. */
int cart_st_header(struct cart_buf *b, const struct cart_st_tensor *tensors, size_t n,
                   const json_t *metadata, struct cart_err *err) CART_MUST_USE;
/* The whole image straight to a descriptor (large artifacts are not copied). */
int cart_st_write(int fd, const struct cart_st_tensor *tensors, size_t n, const json_t *metadata,
                  const char *name, struct cart_err *err) CART_MUST_USE;

#endif
