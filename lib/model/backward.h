/* Training pass: conversations packed into one forward behind shared parts, and the gradient of a
 * loss with respect to the parts' rows. The base is frozen: no gradient of a weight exists. With
 * recompute only each layer's input is kept and the layer is run again on the way back: the same
 * bits, a fraction of the memory. */
#ifndef CART_MODEL_BACKWARD_H
#define CART_MODEL_BACKWARD_H

#include "model/forward.h"

/* Gradient of one part, parallel to its layers: [L] -> [rows, HK, DH] dense f32, or NULL: the part
 * is frozen. */
struct cart_kv_grad {
    float *const *dk, *const *dv;
};

/* One conversation: T tokens behind the parts; its loss reads the hidden rows of tokens
 * want[0..n_want), ascending. */
struct cart_tape_conv {
    const uint32_t *ids;
    size_t T;
    const size_t *want;
    size_t n_want;
};

struct cart_tape;

/* Room for conversations of at most tokens tokens and wants wanted rows together, at most convs of
 * them, behind parts of at most prefix rows. */
struct cart_tape_limits {
    size_t tokens, convs, wants, prefix;
    bool recompute;
};
int cart_tape_new(struct cart_tape **out, const struct cart_model *m,
                  const struct cart_tape_limits *lim, struct cart_err *err) CART_MUST_USE;
void cart_tape_free(struct cart_tape *t);
size_t cart_tape_bytes(const struct cart_model *m, const struct cart_tape_limits *lim);

/* parts (f32 rows, n_parts of them) and convs must stay unchanged until the backward. hidden [sum
 * of n_want, D]. */
int cart_tape_forward(struct cart_tape *t, const struct cart_kv_part *const *parts, size_t n_parts,
                      const struct cart_tape_conv *convs, size_t n, float *hidden,
                      struct cart_pool *pool, struct cart_err *err) CART_MUST_USE;

/* dhidden [sum of n_want, D]: gradient with respect to those hidden rows. Adds into grads
 * [n_parts]: within a conversation the queries ascend (then the head in its group), from zero;
 * conversations are then added in order. */
void cart_tape_backward(struct cart_tape *t, const float *dhidden, const struct cart_kv_grad *grads,
                        struct cart_pool *pool);

#endif
