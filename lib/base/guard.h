/* Mapped files that someone may make shorter while they are used, for programs that outlive it:
 * what is read beyond the end of such a file (SIGBUS) reads as zeros from then on, and the guard
 * tells. Any thread. */
#ifndef CART_BASE_GUARD_H
#define CART_BASE_GUARD_H

#include "base/io.h"

struct cart_guard;

/* Guards the pages of map, which is released after the guard. An empty map is fine. */
int cart_guard_new(struct cart_guard **out, const struct cart_map *map,
                   struct cart_err *err) CART_MUST_USE;
void cart_guard_free(struct cart_guard *g); /* NULL is fine */

/* Whether something was missing: what was computed from the map since may be wrong. NULL: false. */
bool cart_guard_broken(const struct cart_guard *g);

/* For the handler of SIGBUS: puts zeros where at is in a guarded map, from its page to the end.
 * False: it is in none. */
bool cart_guard_fill(const void *at);

#endif
