/* How far a mistyped name is from one that is known, for "did you mean". */
#ifndef CART_BASE_SPELLING_H
#define CART_BASE_SPELLING_H

#include <stddef.h>

/* Letters to insert, delete or replace between name [n] and known, or neighbours to exchange (the
 * optimal string alignment distance); SIZE_MAX where these are more than most, which is soon seen,
 * or a name is longer than CART_SPELLING_MAX. */
#define CART_SPELLING_MAX ((size_t)63)
size_t cart_spelling_distance(const char *name, size_t n, const char *known, size_t most);

#endif
