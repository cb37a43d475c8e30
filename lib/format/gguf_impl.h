/* The GGUF reader's own state, shared by gguf.c (parsing) and gguf_get.c (typed look-ups). */
#ifndef CART_FORMAT_GGUF_IMPL_H
#define CART_FORMAT_GGUF_IMPL_H

#include "base/io.h"
#include "format/gguf.h"

/* One name of a sorted index. */
struct cart_gguf_entry {
    uint64_t hash;
    struct cart_gguf_str name;
    size_t index; /* of the key or tensor in file order */
};

struct cart_gguf {
    struct cart_map map; /* zero when the bytes are borrowed */
    const unsigned char *bytes;
    size_t size;
    char shown[256]; /* the path, escaped for messages */
    unsigned version;
    size_t alignment;
    size_t header_bytes; /* header, keys and tensor table */
    size_t n_keys, n_tensors;
    struct cart_gguf_key *keys;           /* [n_keys], in file order */
    struct cart_gguf_entry *key_index;    /* [n_keys], sorted */
    struct cart_gguf_tensor *tensors;     /* [n_tensors], in file order */
    struct cart_gguf_entry *tensor_index; /* [n_tensors], sorted */
};

/* n <= 8 little-endian bytes. */
uint64_t cart_gguf_load(const unsigned char *p, size_t n);

/* Four and eight of them, spelt so that compilers make one load of it: a vocabulary has a length
 * and a type a string. */
static inline uint32_t cart_gguf_load_u32(const unsigned char *p)
{
    return (uint32_t)p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 | (uint32_t)p[3] << 24;
}

static inline uint64_t cart_gguf_load_u64(const unsigned char *p)
{
    return (uint64_t)p[0] | (uint64_t)p[1] << 8 | (uint64_t)p[2] << 16 | (uint64_t)p[3] << 24 |
           (uint64_t)p[4] << 32 | (uint64_t)p[5] << 40 | (uint64_t)p[6] << 48 |
           (uint64_t)p[7] << 56;
}

/* Bytes of one value of a fixed-size type; 0 for strings and arrays. */
size_t cart_gguf_value_bytes(enum cart_gguf_value type);

#endif
