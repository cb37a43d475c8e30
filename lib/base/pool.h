/* The one owner of cores in a process: n threads (the caller is one of them) that run numbered
 * units of work. Units are handed out through a counter, so any worker may run any unit: work must
 * be split by *outputs*, so that no result depends on who ran what. Workers spin for some tens of
 * microseconds between regions, then sleep. Every worker has the default rounding mode and
 * denormals (set here, not inherited from the host program). */
#ifndef CART_BASE_POOL_H
#define CART_BASE_POOL_H

#include "base/err.h"

struct cart_pool;

/* Private scratch of each worker: bytes, 64-byte aligned, contents unspecified. Kernels block to
 * fit in it. */
#define CART_POOL_SCRATCH ((size_t)4 << 20)

typedef void cart_pool_fn(void *ctx, size_t unit, size_t worker);

/* threads >= 1. */
int cart_pool_new(struct cart_pool **out, size_t threads, struct cart_err *err) CART_MUST_USE;
void cart_pool_free(struct cart_pool *p);

size_t cart_pool_threads(const struct cart_pool *p);
void *cart_pool_scratch(struct cart_pool *p, size_t worker); /* CART_POOL_SCRATCH bytes */

/* Calls fn(ctx, u, worker) once for each u in [0, units), returns when all are done. Not reentrant.
 */
void cart_pool_run(struct cart_pool *p, size_t units, cart_pool_fn *fn, void *ctx);

/* The same, for units whose data lie side by side in memory: the units are cut into as many ranges
 * as there are workers, and each worker takes those of its own in ascending order, then what is
 * left of the others'. So it reads on where it has read, and fetched, before. */
void cart_pool_run_ranges(struct cart_pool *p, size_t units, cart_pool_fn *fn, void *ctx);

#endif
