#include "base/hash.h"

#include <nettle/sha2.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>
#include <zlib.h>

/* A pointer, because XXH3 wants its state 64-byte aligned and allocates it so. */
struct cart_hash {
    XXH3_state_t *state;
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
    return h;
}

void cart_hash_add(struct cart_hash *h, const void *bytes, size_t n)
{
    if (n > 0)
        XXH3_128bits_update(h->state, bytes, n);
}

static void put_canonical(unsigned char out[16], XXH128_hash_t value)
{
    XXH128_canonical_t c;
    XXH128_canonicalFromHash(&c, value);
    memcpy(out, c.digest, 16);
}

void cart_hash_final(const struct cart_hash *h, unsigned char out[16])
{
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
