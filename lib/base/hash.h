/* Digests: XXH3-128 for our own content (xxHash), SHA-256 where people compare by hand (nettle),
 * CRC-32 for single records (zlib). All results are the same on every machine. */
#ifndef CART_BASE_HASH_H
#define CART_BASE_HASH_H

#include "base/err.h"

struct cart_hash; /* streaming XXH3-128 */

struct cart_hash *cart_hash_new(void); /* NULL when out of memory; cart_hash_free(NULL) is fine */
void cart_hash_add(struct cart_hash *h, const void *bytes, size_t n);
void cart_hash_final(struct cart_hash *h,
                     unsigned char out[16]); /* canonical big-endian; h can go on */
void cart_hash_free(struct cart_hash *h);

void cart_hash_bytes(const void *bytes, size_t n, unsigned char out[16]); /* XXH3-128 in one call */
void cart_sha256(const void *bytes, size_t n, unsigned char out[32]);
uint32_t cart_crc32(const void *bytes, size_t n);

/* Lower-case hex with a NUL: out holds 2 * n + 1 bytes. Returns out. */
char *cart_hex(char *out, const unsigned char *bytes, size_t n);

#endif
