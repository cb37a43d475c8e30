/* gzip read strictly: the CRC and length that end each member are compared, nothing but a further
 * member or zeros follows one, and a file that ends early says so. Readers that pass over these
 * turn damage into text. One thread at a time. */
#ifndef CART_BASE_GUNZIP_H
#define CART_BASE_GUNZIP_H

#include "base/err.h"

#include <stddef.h>

/* Up to n > 0 bytes of the compressed file; 0 at its end; < 0: an error. */
typedef ptrdiff_t cart_gunzip_fn(void *ctx, void *out, size_t n, struct cart_err *err);

struct cart_gunzip;

/* fn delivers what is unpacked; name stands in messages, borrowed. */
int cart_gunzip_new(struct cart_gunzip **out, cart_gunzip_fn *fn, void *ctx, const char *name,
                    struct cart_err *err) CART_MUST_USE;
/* Up to n > 0 bytes; 0 at the end, when all checks have held; CART_EFORMAT when one has not. */
ptrdiff_t cart_gunzip_read(struct cart_gunzip *g, void *out, size_t n,
                           struct cart_err *err) CART_MUST_USE;
uint64_t cart_gunzip_packed(const struct cart_gunzip *g); /* compressed bytes so far */
void cart_gunzip_free(struct cart_gunzip *g);             /* NULL is fine */

#endif
