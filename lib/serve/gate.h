/* The first look at a connection's bytes, before libmicrohttpd reads them: it accepts framing that
 * other readers of the same bytes may read differently (folded fields, NUL, bare line feeds, chunk
 * sizes of any length). What is refused here is answered here. Pure functions over bytes. Internal
 * to the room. */
#ifndef CART_SERVE_GATE_H
#define CART_SERVE_GATE_H

#include "base/attr.h"

#define CART_GATE_HEADER_MAX ((size_t)16384) /* of request line and fields together */
#define CART_GATE_CHUNK_LINE_MAX ((size_t)256)

enum cart_gate_verdict {
    CART_GATE_MORE, /* the header is not complete, and fine so far */
    CART_GATE_PASS,
    CART_GATE_REFUSE,
};

struct cart_gate {
    unsigned status;    /* of a refusal */
    const char *reason; /* static */
};

/* data [n]: what has come, from the start of the connection. max_body: a first chunk beyond it is
 * refused. */
enum cart_gate_verdict cart_gate_judge(const char *data, size_t n, size_t max_body,
                                       struct cart_gate *g);

#endif
