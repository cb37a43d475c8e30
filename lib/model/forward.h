/* The forward pass over any mix of streams: prefill pieces and single decode tokens together. Bits
 * of a token depend on its stream's rows and ids alone: not on the other spans, nor on how its
 * prompt was cut. */
#ifndef CART_MODEL_FORWARD_H
#define CART_MODEL_FORWARD_H

#include "model/kv.h"

/* T new tokens of one stream, placed after the rows of kv; their keys and values are appended to
 * kv->tail (which needs T free rows). hidden rows wanted: tokens want[0..n_want) of the span
 * (ascending); NULL with n_want = T: all. */
struct cart_span {
    const uint32_t *ids;
    size_t T;
    struct cart_kv kv;
    const size_t *want;
    size_t n_want;
};

struct cart_workspace; /* activations of at most `tokens` tokens at a time; longer calls go in
                          pieces */

int cart_workspace_new(struct cart_workspace **out, const struct cart_model *m, size_t tokens,
                       struct cart_err *err) CART_MUST_USE;
void cart_workspace_free(struct cart_workspace *ws);
size_t cart_workspace_bytes(const struct cart_model *m, size_t tokens);

/* hidden [sum of n_want, D]: the wanted rows after the final norm, span after span. Checks ids < V
 * and positions < context (CART_EUSAGE); nothing else can fail. On success every tail has grown by
 * its T. A stream may occur once per call. */
int cart_forward(const struct cart_model *m, struct cart_workspace *ws,
                 const struct cart_span *spans, size_t n, float *hidden, struct cart_pool *pool,
                 struct cart_err *err) CART_MUST_USE;

#endif
