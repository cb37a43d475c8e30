/* A whole stream as JSON Lines and back, without loss: {"record":"head",...}, one line a record (the text twins of
 * kinds.h), {"record":"end","records":N,"bytes":N,"digest":"<hex>"}. A skippable record of unknown type is
 * {"record":"skippable","type":"ABCD","hex":"..."}. */
#ifndef CART_STREAM_LISTING_H
#define CART_STREAM_LISTING_H

#include "stream/stream.h"

/* Lists r from its HEAD to its END on fd; out names fd in messages. Every rule of cart-stream(5) is checked on the way,
 * those between records too. fd < 0: checks only. */
int cart_listing_stream(struct cart_stream_reader *r, int fd, const char *out, struct cart_err *err) CART_MUST_USE;

/* Text input by lines, each parsed as one JSON object with a string "record". Empty lines are passed over. */
struct cart_lines;
int cart_lines_open(struct cart_lines **out, const char *path, struct cart_err *err) CART_MUST_USE; /* "-": standard input */
/* 1: *v is the next line's object (owned by the caller), *record its "record" (borrowed from *v); 0: the input is over. */
int cart_lines_next(struct cart_lines *l, json_t **v, const char **record, struct cart_err *err) CART_MUST_USE;
const char *cart_lines_where(const struct cart_lines *l); /* "FILE: line 12", for messages */
void cart_lines_close(struct cart_lines *l);

/* head: the first line's object (its "record" was "head"). Packs it and the lines that follow into a stream on fd; level as for
 * cart_stream_create. A missing end line is CART_ETRUNC. Returns 1 where the end line states other counts or another digest than
 * what was packed (the lines were edited), else 0. */
int cart_listing_pack(struct cart_lines *l, json_t *head, int fd, const char *out, int level, struct cart_err *err) CART_MUST_USE;

#endif
