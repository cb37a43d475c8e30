/* Counters of the server in Prometheus' text form. Any thread. Internal to the room. */
#ifndef CART_SERVE_METRICS_H
#define CART_SERVE_METRICS_H

#include "serve/exchange.h"
#include "serve/wire.h"

int cart_metrics_new(struct cart_metrics **out, struct cart_err *err) CART_MUST_USE;
void cart_metrics_free(struct cart_metrics *m);

void cart_metrics_began(struct cart_metrics *m);
void cart_metrics_ended(struct cart_metrics *m, enum cart_endpoint at, unsigned status);
size_t cart_metrics_in_flight(struct cart_metrics *m);
/* One generation, with the seconds until its first token (0: none came). */
void cart_metrics_generated(struct cart_metrics *m, const struct cart_usage *u, double first_token);

/* Everything, with what the scheduler and the registry count. */
void cart_metrics_write(const struct cart_serve *s, struct cart_wire *w);

#endif
