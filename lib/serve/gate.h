/* A look at every byte of a connection before libmicrohttpd reads it: that accepts framing that
 * other readers of the same bytes may read differently (folded fields, NUL, bare line feeds, chunk
 * sizes of any length), and where it refuses a header itself, a second response follows in the body
 * of the first. What is refused here is answered by relay.c. Pure functions over bytes. Internal to
 * the room. */
#ifndef CART_SERVE_GATE_H
#define CART_SERVE_GATE_H

#include "base/attr.h"

#include <stdbool.h>
#include <stdint.h>

#define CART_GATE_HEADER_MAX ((size_t)16384) /* of request line and fields, or of a trailer */
#define CART_GATE_FIELDS_MAX ((size_t)128)   /* of one request; each cookie counts */
#define CART_GATE_CHUNK_LINE_MAX ((size_t)256)

enum cart_gate_place { CART_GATE_HEADER, CART_GATE_CHUNK, CART_GATE_CHUNK_END, CART_GATE_TRAILER };

/* Where a connection is; all zero at its start. */
struct cart_gate {
    enum cart_gate_place at; /* what the next bytes are */
    size_t trailer, fields;  /* bytes and fields of a trailer so far */
    unsigned status;         /* of a refusal */
    const char *reason;      /* static */
};

/* data [n]: the next bytes of the connection. How many of them may go on, > 0, and more than n
 * where a body follows whose length is known: the next call is about what comes after those. 0:
 * more must come before anything can be said. -1: refused, for good. max_body: a chunk beyond it is
 * refused. */
int64_t cart_gate_next(struct cart_gate *g, const char *data, size_t n, size_t max_body);

/* Whether a Host field names a host, and a port if any: nothing but host[:digits]. *n: bytes of the
 * host without its port, a bracketed address with its brackets. */
bool cart_gate_host(const char *value, size_t len, size_t *n);

#endif
