/* The way of a connection's bytes between a client's socket and libmicrohttpd, which has the other
 * end of a pair of sockets. What a client sends goes on as far as the gate lets it, one request at
 * a time: the next header waits in the client's socket until the answer before it is whole. What
 * comes back goes out as it is. Nothing is kept in between, so whoever stands still on one side is
 * felt on the other.
 *
 * One thread of control. Internal to the room. */
#ifndef CART_SERVE_RELAY_H
#define CART_SERVE_RELAY_H

#include "serve/gate.h"

struct cart_relay {
    int client; /* non-blocking, as inner is; both are the caller's to close */
    int inner;  /* our end of the pair */
    struct cart_gate gate;
    uint64_t ready; /* bytes that the gate has let through and that have not gone on yet */
    bool ended;     /* nothing more goes in: the client has closed its side, or was refused */
    bool told;      /* and libmicrohttpd knows */
    bool answered;  /* libmicrohttpd has closed, and so have we: what still comes is thrown away */
    double
        stuck; /* since when the client takes nothing of what there is, or answered; 0: it takes */
};

/* Asked for each header: true lets it go in, and is then asked for the next one; after false pump
 * is to be called again when that may have changed. */
typedef bool cart_relay_begin_fn(void *ctx, struct cart_relay *r);

/* Moves what can be moved, both ways; to be called after every event of either descriptor
 * (edge-triggered will do). max_body: of a chunk. now: seconds. False: it is over. */
bool cart_relay_pump(struct cart_relay *r, size_t max_body, cart_relay_begin_fn *begin, void *ctx,
                     double now);

#endif
