/* A stream in a few lines for people: what is in it, of which model, made by what. */
#ifndef CART_STREAM_SUMMARY_H
#define CART_STREAM_SUMMARY_H

#include "stream/stream.h"

/* Appends the lines for the stream of r, which is read to its END under all rules of
 * cart-stream(5). */
int cart_summary_stream(struct cart_buf *out, struct cart_stream_reader *r,
                        struct cart_err *err) CART_MUST_USE;

/* One line, "  label         ..."; fmt gives the rest. */
int cart_summary_line(struct cart_buf *out, struct cart_err *err, const char *label,
                      const char *fmt, ...) CART_PRINTF(4, 5) CART_MUST_USE;
/* The lines of a model's fingerprints, an object of strings whose keys begin with prefix, and of a
 * history array; none where it is NULL. */
int cart_summary_model(struct cart_buf *out, const json_t *fingerprints, const char *prefix,
                       struct cart_err *err) CART_MUST_USE;
int cart_summary_history(struct cart_buf *out, const json_t *history,
                         struct cart_err *err) CART_MUST_USE;

#endif
