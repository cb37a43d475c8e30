/* The numbers of a run as data: one METR record (or one JSON line, where the name ends in .jsonl)
 * per optimizer step and evaluation. Written to FILE.part as they come (CART_EAGAIN: another
 * process is doing so), FILE appears at the end.
 * The lines so far are kept, so that a run that goes on from a saved state writes the file of a run
 * that never stopped. */
#ifndef CART_STUDY_METRICS_H
#define CART_STUDY_METRICS_H

#include "stream/stream.h"

struct cart_metrics;

/* path NULL: nothing is written, lines are kept all the same. A device or FIFO under path (or "-",
 * standard output) is written directly and has no FILE.part. head: HEAD of the stream form
 * (borrowed for the call). lines: JSON lines of an earlier run to begin with, or NULL. */
int cart_metrics_open(struct cart_metrics **out, const char *path, const json_t *head,
                      const char *lines, size_t n, struct cart_err *err) CART_MUST_USE;
/* Keeps a line, so that nothing but its writing can still fail: a step whose line there is no
 * memory for is not made. */
int cart_metrics_add(struct cart_metrics *m, const json_t *fields,
                     struct cart_err *err) CART_MUST_USE;
/* Writes the lines kept since. One that could not be written stays kept: a run that goes on writes
 * it. */
int cart_metrics_flush(struct cart_metrics *m, struct cart_err *err) CART_MUST_USE;
const struct cart_buf *cart_metrics_lines(const struct cart_metrics *m); /* borrowed */

/* Publishes FILE. Afterwards m is good for its lines and cart_metrics_close. */
int cart_metrics_finish(struct cart_metrics *m, struct cart_err *err) CART_MUST_USE;
/* Frees m. A FILE.part that was not published goes: whoever goes on has the lines. */
void cart_metrics_close(struct cart_metrics *m);

#endif
