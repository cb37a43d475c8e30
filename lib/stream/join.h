/* Shards of one run, joined into the stream that the run would have written undivided. */
#ifndef CART_STREAM_JOIN_H
#define CART_STREAM_JOIN_H

#include "stream/stream.h"

/* Joins the streams of paths [n_paths] (at most one "-") in that order on fd; level as for
 * cart_stream_create. Each must keep the rules of cart-stream(5) under its own HEAD, else
 * CART_EFORMAT. All must have the same HEAD but for "shard" and, for conversations and targets, the
 * same documents, else CART_EMATCH: conversations, targets: documents once, then the conversations,
 * whose n must rise from file to file. Where HEAD has "shard" ([first, end) of n) the ranges must
 * follow each other; without it a gap between two files is CART_EMATCH unless gaps is set. tokens:
 * the documents of all, numbered anew. rounds, metrics: the records of all. 0; 1 where HEAD says
 * that they are not the whole run, but a shard of it still. */
int cart_stream_join(const char *const *paths, size_t n_paths, int fd, const char *out, int level,
                     bool gaps, struct cart_err *err) CART_MUST_USE;

#endif
