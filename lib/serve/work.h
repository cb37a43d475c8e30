/* Threads that run what takes longer than libmicrohttpd's thread or the scheduler's may: two
 * workers for parsing, the ends of answers and listings, and the loader, which alone reads files
 * whole, so that no worker waits for a disk. Each kind runs its jobs in the order in which they
 * came; one that waits for a place with the scheduler waits aside. Internal to the room.
 *
 * Every function may be called from any thread, but for new, end and free. */
#ifndef CART_SERVE_WORK_H
#define CART_SERVE_WORK_H

#include "serve/exchange.h"

struct cart_work;

int cart_work_new(struct cart_work **out, struct cart_serve *s, struct cart_err *err) CART_MUST_USE;
/* When libmicrohttpd has ended, so that no exchange has a client any more: runs what is there, ends
 * the threads. What comes later is let go without being run. NULL and again is fine. */
void cart_work_end(struct cart_work *w);
/* After end and after the scheduler is freed, whose last events still come here; NULL is fine. */
void cart_work_free(struct cart_work *w);

/* Holds the exchange until it has run; without memory it becomes the exchange's error. */
void cart_work_submit(struct cart_work *w, struct cart_exchange *x, cart_route_fn *run);
void cart_work_submit_files(struct cart_work *w, struct cart_exchange *x, cart_route_fn *run);
/* Runs it once the scheduler may have a place again: resume lets the first of these go on. */
void cart_work_submit_later(struct cart_work *w, struct cart_exchange *x, cart_route_fn *run);
void cart_work_resume(struct cart_work *w);
void cart_work_resume_all(struct cart_work *w);
void cart_work_reload(struct cart_work *w); /* the loader reads the directory again */
void cart_work_copy(struct cart_work *w);   /* the loader calls cart_registry_copy */

#endif
