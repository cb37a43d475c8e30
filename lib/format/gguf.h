/* GGUF version 2 and 3 (little-endian), read in place from a mapped file. Opening checks the whole
 * container: header, every key and value, the tensor table, and that every tensor's bytes lie
 * inside the file; afterwards each pointer handed out is safe to read for its stated length. What
 * the keys mean, and which tensor types can be computed with, is the model room's.
 *
 * Stricter than the format's common readers: keys are UTF-8 without NUL and unique, booleans are 0
 * or 1, arrays hold no arrays, dimensions are 1..2^48 and 1 to 4 of them, names have 1..63 bytes,
 * alignment is a power of two from 8 to 65536, tensors follow each other in file order with nothing
 * but padding between. Bytes after the last tensor are accepted. Time and memory are linear in the
 * header's size; nothing is allocated that the file's size does not justify.
 *
 * Everything returned points into the mapping (or a table owned by the reader) and lives until
 * cart_gguf_close. Strings are {data, len} and NOT NUL-terminated; outside text goes through
 * cart_err_escape before it is printed. A reader is immutable after open: any number of threads may
 * use it. */
#ifndef CART_FORMAT_GGUF_H
#define CART_FORMAT_GGUF_H

#include "base/err.h"

#define CART_GGUF_MAX_DIMS 4
#define CART_GGUF_MAX_TENSORS ((size_t)1 << 16)
#define CART_GGUF_MAX_KEYS ((size_t)1 << 20)
#define CART_GGUF_MAX_STRING ((size_t)16 << 20) /* bytes of one string value */

/* Value types, with the format's numbers. */
enum cart_gguf_value {
    CART_GGUF_U8 = 0,
    CART_GGUF_I8 = 1,
    CART_GGUF_U16 = 2,
    CART_GGUF_I16 = 3,
    CART_GGUF_U32 = 4,
    CART_GGUF_I32 = 5,
    CART_GGUF_F32 = 6,
    CART_GGUF_BOOL = 7,
    CART_GGUF_STRING = 8,
    CART_GGUF_ARRAY = 9,
    CART_GGUF_U64 = 10,
    CART_GGUF_I64 = 11,
    CART_GGUF_F64 = 12,
};

/* Sets of element types, for cart_gguf_array. */
#define CART_GGUF_SET(type) (1u << (type))
#define CART_GGUF_SET_INT                                                                          \
    (CART_GGUF_SET(CART_GGUF_U8) | CART_GGUF_SET(CART_GGUF_I8) | CART_GGUF_SET(CART_GGUF_U16) |    \
     CART_GGUF_SET(CART_GGUF_I16) | CART_GGUF_SET(CART_GGUF_U32) | CART_GGUF_SET(CART_GGUF_I32) |  \
     CART_GGUF_SET(CART_GGUF_U64) | CART_GGUF_SET(CART_GGUF_I64))
#define CART_GGUF_SET_REAL (CART_GGUF_SET(CART_GGUF_F32) | CART_GGUF_SET(CART_GGUF_F64))

struct cart_gguf_str {
    const char *data; /* never NULL */
    size_t len;
};

/* An array value: n elements of type, stored one after another from data (unaligned,
 * little-endian). */
struct cart_gguf_array {
    enum cart_gguf_value type; /* never CART_GGUF_ARRAY */
    size_t n;
    const unsigned char *data;
    size_t bytes;
};

struct cart_gguf_key {
    struct cart_gguf_str name;
    enum cart_gguf_value type;
    const unsigned char
        *value; /* the value's bytes as stored; for arrays from the element type on */
    size_t bytes;
};

struct cart_gguf_tensor {
    struct cart_gguf_str name;
    int type;                          /* GGUF tensor type id; known to cart_gguf_tensor_type */
    unsigned n_dims;                   /* 1..4 */
    uint64_t dims[CART_GGUF_MAX_DIMS]; /* dims[0] innermost (row length), 1 beyond n_dims */
    const unsigned char *data; /* aligned to the file's alignment (mappings are page-aligned) */
    size_t bytes;              /* dims[0] / block * block bytes * the other dims */
};

/* A tensor type of the format: every known one, not only those that the tensor room computes with.
 */
struct cart_gguf_type {
    const char *name; /* "Q4_K" */
    size_t block;     /* values per block */
    size_t bytes;     /* bytes per block */
};

struct cart_gguf;

/* Opens and checks path. CART_ESYS (missing), CART_EUSAGE (a pipe or device), CART_ETRUNC (the
 * file ends inside what its header announces), CART_EFORMAT (everything else; another format is
 * named). Messages: "path: part: expected, found". */
int cart_gguf_open(struct cart_gguf **out, const char *path, struct cart_err *err) CART_MUST_USE;
void cart_gguf_close(struct cart_gguf *g); /* NULL is fine */

/* The same over bytes [size] in memory, borrowed until close; what names them in messages. bytes
 * must be aligned to the alignment the image states if tensor data is to be read as numbers. */
int cart_gguf_parse(struct cart_gguf **out, const void *bytes, size_t size, const char *what,
                    struct cart_err *err) CART_MUST_USE;

unsigned cart_gguf_version(const struct cart_gguf *g); /* 2 or 3 */
size_t cart_gguf_alignment(const struct cart_gguf *g);
size_t cart_gguf_size(const struct cart_gguf *g); /* bytes of the file */
/* The bytes of header, keys and tensor table, from the file's first byte: what a fingerprint of
 * them covers. */
const unsigned char *cart_gguf_header(const struct cart_gguf *g, size_t *bytes);

/* Keys, in file order and by name (O(log n); NULL if absent). */
size_t cart_gguf_n_keys(const struct cart_gguf *g);
const struct cart_gguf_key *cart_gguf_key_at(const struct cart_gguf *g, size_t i);
const struct cart_gguf_key *cart_gguf_find(const struct cart_gguf *g, const char *key);

/* Typed look-ups. key is the caller's word and stands in messages as it is. The caller states the
 * type; any other is CART_EFORMAT naming key, expected and found, never a cast. The _opt forms
 * leave *out untouched and return 0 when the key is absent; the others then return CART_EFORMAT.
 * u64 takes any integer type whose value is in [0, max]; real takes F32 or F64 and refuses NaN and
 * infinities. */
int cart_gguf_u64(const struct cart_gguf *g, const char *key, uint64_t max, uint64_t *out,
                  struct cart_err *err) CART_MUST_USE;
int cart_gguf_u64_opt(const struct cart_gguf *g, const char *key, uint64_t max, uint64_t *out,
                      struct cart_err *err) CART_MUST_USE;
int cart_gguf_real(const struct cart_gguf *g, const char *key, double *out,
                   struct cart_err *err) CART_MUST_USE;
int cart_gguf_real_opt(const struct cart_gguf *g, const char *key, double *out,
                       struct cart_err *err) CART_MUST_USE;
int cart_gguf_bool_opt(const struct cart_gguf *g, const char *key, bool *out,
                       struct cart_err *err) CART_MUST_USE;
int cart_gguf_string(const struct cart_gguf *g, const char *key, struct cart_gguf_str *out,
                     struct cart_err *err) CART_MUST_USE;
int cart_gguf_string_opt(const struct cart_gguf *g, const char *key, struct cart_gguf_str *out,
                         struct cart_err *err) CART_MUST_USE;
/* An array whose element type is in set (CART_GGUF_SET...). For _opt, set out->n = 0 beforehand to
 * tell absence. */
int cart_gguf_array(const struct cart_gguf *g, const char *key, unsigned set,
                    struct cart_gguf_array *out, struct cart_err *err) CART_MUST_USE;
int cart_gguf_array_opt(const struct cart_gguf *g, const char *key, unsigned set,
                        struct cart_gguf_array *out, struct cart_err *err) CART_MUST_USE;

/* Element i < a->n of an integer or bool array; values above INT64_MAX become INT64_MAX (beyond
 * every cap). Another type is a bug (asserts). */
int64_t cart_gguf_array_i64(const struct cart_gguf_array *a, size_t i);

/* Walks a string array: *cursor starts at a->data; call at most a->n times. */
struct cart_gguf_str cart_gguf_string_next(const unsigned char **cursor);

/* Tensors, in file order and by name (O(log n); NULL if absent). */
size_t cart_gguf_n_tensors(const struct cart_gguf *g);
const struct cart_gguf_tensor *cart_gguf_tensor_at(const struct cart_gguf *g, size_t i);
const struct cart_gguf_tensor *cart_gguf_tensor(const struct cart_gguf *g, const char *name);

const struct cart_gguf_type *cart_gguf_tensor_type(int type); /* NULL if unknown or removed */
const char *cart_gguf_value_name(enum cart_gguf_value type);  /* "u32", "string", ... */

#endif
