/* A cartridge in training: f32 rows with gradients and Adam moments, one arena. The trainable rows
 * of all layers are one run of n values (layer after layer, keys before values), and so are
 * gradient and moments: the optimizer takes one step over all. Sinks have no gradient. Owned by one
 * thread of control. */
#ifndef CART_CARTRIDGE_TRAINABLE_H
#define CART_CARTRIDGE_TRAINABLE_H

#include "cartridge/cartridge.h"
#include "model/backward.h"
#include "tensor/ops.h"

struct cart_trainable {
    size_t L, p, frozen;
    size_t n, n_sink;             /* values: trainable, frozen */
    float *x, *g, *m, *v;         /* [n] rows, gradient, first and second moment */
    float *sink;                  /* [n_sink] */
    struct cart_kv_part parts[2]; /* sinks, trainable; those with rows */
    struct cart_kv_grad grads[2]; /* parallel to parts */
    size_t n_parts;
    struct cart_kv_layer *layers[2];
    float **dk, **dv; /* [L] */
    struct cart_arena arena;
};

/* Rows, gradient and moments are zero. frozen <= p. CART_EUSAGE for p of 0 or beyond the model's
 * context. */
int cart_trainable_init(struct cart_trainable *t, const struct cart_model *m, size_t p,
                        size_t frozen, struct cart_err *err) CART_MUST_USE;
void cart_trainable_release(struct cart_trainable *t);
size_t cart_trainable_bytes(const struct cart_model *m, size_t p, size_t frozen);

/* Copies p rows, widened to f32: parts [n_parts] in order hold exactly p rows together. */
void cart_trainable_set(struct cart_trainable *t, const struct cart_model *m,
                        const struct cart_kv_part *parts, size_t n_parts);

/* The storage of row r (0 <= r < p) of one layer, [HK, DH]: sink or trainable. */
float *cart_trainable_k(const struct cart_trainable *t, const struct cart_model *m, size_t layer,
                        size_t r);
float *cart_trainable_v(const struct cart_trainable *t, const struct cart_model *m, size_t layer,
                        size_t r);

/* One Adam step over all trainable rows with gradient g * grad_scale; g is zero afterwards. step
 * counts from 1. */
void cart_trainable_step(struct cart_trainable *t, uint64_t step, double lr, double grad_scale,
                         struct cart_pool *pool);

#endif
