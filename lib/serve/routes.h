/* The routes, each a cart_route_fn. Internal to the room. */
#ifndef CART_SERVE_ROUTES_H
#define CART_SERVE_ROUTES_H

#include "serve/exchange.h"

void cart_route_chat(struct cart_exchange *x);       /* POST /v1/chat/completions */
void cart_route_template(struct cart_exchange *x);   /* POST /apply-template */
void cart_route_count(struct cart_exchange *x);      /* POST /v1/chat/completions/input_tokens */
void cart_route_completion(struct cart_exchange *x); /* POST /v1/completions */
void cart_route_embeddings(struct cart_exchange *x); /* POST /v1/embeddings */
void cart_route_tokenize(struct cart_exchange *x);   /* POST /tokenize */
void cart_route_detokenize(struct cart_exchange *x); /* POST /detokenize */

void cart_route_models(struct cart_exchange *x);           /* GET /v1/models, /v1/models/ID */
void cart_route_cartridges(struct cart_exchange *x);       /* GET /v1/cartridges */
void cart_route_cartridge_load(struct cart_exchange *x);   /* POST /v1/cartridges */
void cart_route_cartridge_drop(struct cart_exchange *x);   /* DELETE /v1/cartridges/NAME */
void cart_route_cartridge_reload(struct cart_exchange *x); /* POST /v1/cartridges/reload */

/* The page as the build has put it in. */
extern const char cart_page[];

#endif
