#include "base/hash.h"

#include <nettle/sha2.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>
#include <zlib.h>

#define SHORT 128 /* bytes that are copied before they are hashed */

/* Short pieces are collected: XXH3 takes as long for a few bytes as for some hundred, and the
 * fingerprint of a vocabulary has hundreds of thousands of them. */
struct cart_hash {
    XXH3_state_t *state; /* a pointer, because XXH3 wants it 64-byte aligned and allocates it so */
    size_t n;
    unsigned char pending[1024]; /* [n] not in state yet */
};

struct cart_hash *cart_hash_new(void)
{
    struct cart_hash *h = malloc(sizeof *h);
    if (!h)
        return NULL;
    h->state = XXH3_createState();
    if (!h->state) {
        free(h);
        return NULL;
    }
    XXH3_128bits_reset(h->state);
    h->n = 0;
    return h;
}

static void flush(struct cart_hash *h)
{
    XXH3_128bits_update(h->state, h->pending, h->n);
    h->n = 0;
}

/* A memcpy of a length that only the data know is a call; most pieces are a word or two. */
static inline void copy_short(unsigned char *out, const unsigned char *in, size_t n)
{
    if (n > 16) {
        memcpy(out, in, n);
    } else if (n >= 8) {
        memcpy(out, in, 8);
        memcpy(out + n - 8, in + n - 8, 8);
    } else if (n >= 4) {
        memcpy(out, in, 4);
        memcpy(out + n - 4, in + n - 4, 4);
    } else {
        for (size_t i = 0; i < n; i++)
            out[i] = in[i];
    }
}

void cart_hash_add(struct cart_hash *h, const void *bytes, size_t n)
{
    if (n > SHORT || n > sizeof h->pending - h->n)
        flush(h);
    if (n > SHORT) {
        XXH3_128bits_update(h->state, bytes, n);
        return;
    }
    copy_short(h->pending + h->n, bytes, n);
    h->n += n;
}

static void put_canonical(unsigned char out[16], XXH128_hash_t value)
{
    XXH128_canonical_t c;
    XXH128_canonicalFromHash(&c, value);
    memcpy(out, c.digest, 16);
}

void cart_hash_final(struct cart_hash *h, unsigned char out[16])
{
    flush(h);
    put_canonical(out, XXH3_128bits_digest(h->state));
}

void cart_hash_free(struct cart_hash *h)
{
    if (!h)
        return;
    XXH3_freeState(h->state);
    free(h);
}

void cart_hash_bytes(const void *bytes, size_t n, unsigned char out[16])
{
    put_canonical(out, XXH3_128bits(n ? bytes : "", n));
}

void cart_sha256(const void *bytes, size_t n, unsigned char out[32])
{
    struct sha256_ctx ctx;
    sha256_init(&ctx);
    if (n > 0)
        sha256_update(&ctx, n, bytes);
    sha256_digest(&ctx, 32, out);
}

uint32_t cart_crc32(const void *bytes, size_t n)
{
    return (uint32_t)crc32_z(0, n ? bytes : (const void *)"", n);
}

char *cart_hex(char *out, const unsigned char *bytes, size_t n)
{
    static const char digits[] = "0123456789abcdef";
    for (size_t i = 0; i < n; i++) {
        out[2 * i] = digits[bytes[i] >> 4];
        out[2 * i + 1] = digits[bytes[i] & 15];
    }
    out[2 * n] = '\0';
    return out;
}
