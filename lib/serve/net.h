/* Life of the loop, the listeners and the workers. Internal to the room; exchange.h has what http.c
 * and the routes call. */
#ifndef CART_SERVE_NET_H
#define CART_SERVE_NET_H

#include "serve/exchange.h"

/* Binds and starts the workers; s->net is to be closed also after a failure. */
int cart_net_open(struct cart_serve *s, struct cart_err *err) CART_MUST_USE;
void cart_net_close(struct cart_serve *s);

#endif
