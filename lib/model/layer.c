#include "model/layer.h"

#include <string.h>

void cart_layer_embed(const struct cart_model *m, const uint32_t *ids, size_t n, float *x)
{
    const unsigned char *rows = m->embed.data;
    for (size_t i = 0; i < n; i++)
        cart_widen(m->embed.dtype, rows + (size_t)ids[i] * m->embed.row_bytes, 0, m->D,
                   x + i * m->D);
}

struct cart_attn_dims cart_layer_attn_dims(const struct cart_layer *l)
{
    return (struct cart_attn_dims){
        .H = l->H, .HK = l->HK, .DH = l->DH, .window = l->window, .scale = l->scale};
}

/* Rows on [R] of from [M, width] side by side to `to`, which may be from. */
static void take_rows(float *to, const float *from, size_t width,
                      const struct cart_layer_rows *rows)
{
    if (rows->R == rows->M && to != from)
        memcpy(to, from, rows->M * width * sizeof *to);
    for (size_t i = 0; i < rows->R && rows->R < rows->M; i++)
        memmove(to + i * width, from + rows->on[i] * width, width * sizeof *to);
}

void cart_layer_rotate(const struct cart_model *m, const struct cart_layer *l,
                       const struct cart_layer_acts *a, const struct cart_layer_scratch *s,
                       const struct cart_layer_rows *rows, struct cart_pool *pool)
{
    size_t M = rows->M, R = rows->R, wq = l->H * l->DH, wk = cart_layer_kv_width(l);
    if (l->q_norm)
        cart_headnorm_forward(s->q, wq, a->rq, a->q_raw, wq, l->q_norm, R, l->H, l->DH, m->eps,
                              pool);
    else if (s->q != a->q_raw)
        memcpy(s->q, a->q_raw, R * wq * sizeof *s->q);
    if (l->k_norm)
        cart_headnorm_forward(s->k, wk, a->rk, a->k_raw, wk, l->k_norm, M, l->HK, l->DH, m->eps,
                              pool);
    else if (s->k != a->k_raw)
        memcpy(s->k, a->k_raw, M * wk * sizeof *s->k);
    cart_rope_apply(s->q, wq, R, l->H, l->DH, rows->on, s->cos, s->sin, &m->rope, false, pool);
    cart_rope_apply(s->k, wk, M, l->HK, l->DH, s->index, s->cos, s->sin, &m->rope, false, pool);
}

void cart_layer_project(const struct cart_model *m, const struct cart_layer *l,
                        const struct cart_layer_acts *a, const struct cart_layer_scratch *s,
                        const struct cart_layer_rows *rows, struct cart_pool *pool)
{
    size_t D = m->D, M = rows->M, wq = l->H * l->DH, wk = cart_layer_kv_width(l);
    cart_rmsnorm_forward(s->h, D, a->r1, a->x, D, l->attn_norm, M, D, m->eps, pool);
    const struct cart_product qkv[] = {{&l->wk, l->k_bias, a->k_raw, wk, false},
                                       {&l->wv, l->v_bias, a->v, wk, false},
                                       {&l->wq, l->q_bias, a->q_raw, wq, false}};
    bool all = rows->R == M;
    cart_matmul_products(qkv, all ? 3 : 2, s->h, D, M, pool);
    if (!all) {
        take_rows(s->h, s->h, D, rows);
        cart_matmul_products(qkv + 2, 1, s->h, D, rows->R, pool);
    }
    cart_layer_rotate(m, l, a, s, rows, pool);
}

void cart_layer_finish(const struct cart_model *m, const struct cart_layer *l,
                       const struct cart_layer_acts *a, const struct cart_layer_scratch *s,
                       float *y, const struct cart_layer_rows *rows, struct cart_pool *pool)
{
    size_t D = m->D, R = rows->R, wq = l->H * l->DH, F = l->F;
    take_rows(a->x1, a->x, D, rows);
    cart_matmul_forward(a->x1, D, a->attn, wq, R, &l->wo, NULL, true, pool);
    cart_rmsnorm_forward(s->h, D, a->r2, a->x1, D, l->ffn_norm, R, D, m->eps, pool);
    const struct cart_product gate_up[] = {{&l->w_gate, NULL, a->gate, F, false},
                                           {&l->w_up, NULL, a->up, F, false}};
    cart_matmul_products(gate_up, 2, s->h, D, R, pool);
    if (!y)
        return;
    cart_swiglu_forward(s->act, a->gate, a->up, R * F, pool);
    if (y != a->x1)
        memcpy(y, a->x1, R * D * sizeof *y);
    cart_matmul_forward(y, D, s->act, F, R, &l->w_down, NULL, true, pool);
}
