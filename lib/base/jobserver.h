/* GNU make's jobserver: under `make -j N` every running job owns one token and takes one more from
 * make's pipe for each further thread, so that the tools of all recipes together use N cores. A
 * recipe must be marked with + for make to pass its pipe on. */
#ifndef CART_BASE_JOBSERVER_H
#define CART_BASE_JOBSERVER_H

#include "base/attr.h"

/* How many threads to use where want are wished for: want outside a parallel make; under one, 1 and
 * as many as tokens are free now, up to want; 1 if make keeps its pipe to itself. Tokens go back
 * when the process exits, and when HUP, INT, PIPE or TERM ends it, where these were not ignored.
 * Call once. */
size_t cart_jobserver_acquire(size_t want);
/* Gives them back at once; for ends of a process that do not pass through exit(). Safe in a signal
 * handler. */
void cart_jobserver_release(void);

#endif
