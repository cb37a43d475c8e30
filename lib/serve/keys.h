/* API keys. Only their digests are kept; a comparison takes the same time whichever key, or none,
 * is right. Internal to the room. */
#ifndef CART_SERVE_KEYS_H
#define CART_SERVE_KEYS_H

#include "base/err.h"

struct cart_keys;

/* One key a line of file (NULL: none; blank lines and lines that begin with # are none), and the
 * value of extra (may be NULL). *out is NULL where no key is configured. CART_EUSAGE: a file
 * without a key, a key with blanks inside. */
int cart_keys_load(struct cart_keys **out, const char *file, const char *extra,
                   struct cart_err *err) CART_MUST_USE;
void cart_keys_free(struct cart_keys *k);

/* keys NULL: everything is allowed. given may be NULL. */
bool cart_keys_allow(const struct cart_keys *k, const char *given);

#endif
