/* The pieces of one layer that the inference forward and the training pass share; internal to the
 * model room.
 *
 *   h = norm(x, attn_norm);  q, k, v = W h (+ bias);         cart_layer_project
 *   q, k = rope(headnorm(q, k))
 *   attn = attention(q, keys, values)                        the caller's
 *   x1 = x + Wo attn;  h2 = norm(x1, ffn_norm);              cart_layer_finish
 *   y = x1 + Wdown(silu(Wgate h2) * (Wup h2))
 *
 * M tokens of any number of streams lie side by side. All of them give keys and values; of the last
 * layer only some go on from there, the others have no reader. */
#ifndef CART_MODEL_LAYER_H
#define CART_MODEL_LAYER_H

#include "model/model.h"
#include "tensor/attention.h"

/* What a layer computes on the way, [M, ...] each. Training keeps them per layer; inference lets
 * several share memory: q_raw = q, k_raw = k, x1 = x, act = gate, and no norm factors. */
struct cart_layer_acts {
    float *x;             /* [M, D] input */
    float *q_raw, *k_raw; /* [M, H DH], [M, HK DH] before head norm and rotation */
    float *v;             /* [M, HK DH] */
    float *attn;          /* [M, H DH] */
    float *stats;         /* [M, H, 2] of the attention; NULL where not kept */
    float *x1;            /* [M, D] after attention */
    float *gate, *up;     /* [M, F] */
    float *r1, *r2;       /* [M] norm factors; NULL where not kept */
    float *rq, *rk;       /* [M, H], [M, HK] head norm factors; NULL where not kept */
};

/* Scratch that no later step reads. */
struct cart_layer_scratch {
    float *h;         /* [M, D] */
    float *q, *k;     /* [M, H DH], [M, HK DH] after rotation */
    float *act;       /* [M, F] */
    uint32_t *index;  /* [M] 0 .. M-1: row m of the rotation table belongs to token m, and all rows
                         are rows that go on */
    float *cos, *sin; /* [M, n_rot / 2] at each token's position */
};

/* Rows on [R] of the M, ascending, go on beyond keys and values, side by side: everything from q
 * and x1 to y has R rows. */
struct cart_layer_rows {
    const uint32_t *on;
    size_t M, R; /* R = M: all, in order */
};

void cart_layer_project(const struct cart_model *m, const struct cart_layer *l,
                        const struct cart_layer_acts *a, const struct cart_layer_scratch *s,
                        const struct cart_layer_rows *rows, struct cart_pool *pool);

/* q and k from q_raw and k_raw: the part of project that a backward repeats. */
void cart_layer_rotate(const struct cart_model *m, const struct cart_layer *l,
                       const struct cart_layer_acts *a, const struct cart_layer_scratch *s,
                       const struct cart_layer_rows *rows, struct cart_pool *pool);

/* From attn on. y [R, D] may be x1 (and x). y NULL: stops after gate and up, all that a backward
 * needs. */
void cart_layer_finish(const struct cart_model *m, const struct cart_layer *l,
                       const struct cart_layer_acts *a, const struct cart_layer_scratch *s,
                       float *y, const struct cart_layer_rows *rows, struct cart_pool *pool);

/* x [n, D] = embedding rows of ids. */
void cart_layer_embed(const struct cart_model *m, const uint32_t *ids, size_t n, float *x);

struct cart_attn_dims cart_layer_attn_dims(const struct cart_layer *l);

#endif
