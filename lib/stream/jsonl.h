/* JSON Lines whose objects say in "record" what they are: reading, and writing. */
#ifndef CART_STREAM_JSONL_H
#define CART_STREAM_JSONL_H

#include "base/buf.h"
#include "base/json.h"

/* Text input by lines, each parsed as one JSON object with a string "record". Empty lines are
 * passed over; a line of more than 1 GiB, one that is not such an object or another format are
 * CART_EFORMAT. */
struct cart_jsonl;
int cart_jsonl_open(struct cart_jsonl **out, const char *path,
                    struct cart_err *err) CART_MUST_USE; /* "-": standard input */
/* 1: *v is the next line's object (owned by the caller), *record its "record" (borrowed from *v);
 * 0: the input is over. */
int cart_jsonl_next(struct cart_jsonl *l, json_t **v, const char **record,
                    struct cart_err *err) CART_MUST_USE;
const char *cart_jsonl_where(const struct cart_jsonl *l); /* "FILE: line 12", for messages */
void cart_jsonl_close(struct cart_jsonl *l);

/* Appends {"record":record, and the members of fields in canonical form}. */
int cart_jsonl_add(struct cart_buf *line, const char *record, const json_t *fields,
                   struct cart_err *err) CART_MUST_USE;
/* Ends the line, writes it to fd (< 0: nowhere) and empties it; out names fd in messages. */
int cart_jsonl_put(struct cart_buf *line, int fd, const char *out,
                   struct cart_err *err) CART_MUST_USE;

#endif
