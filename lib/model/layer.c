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

void cart_layer_rotate(const struct cart_model *m, const struct cart_layer *l,
                       const struct cart_layer_acts *a, const struct cart_layer_scratch *s,
                       size_t M, struct cart_pool *pool)
{
    size_t wq = l->H * l->DH, wk = cart_layer_kv_width(l);
    if (l->q_norm)
        cart_headnorm_forward(s->q, wq, a->rq, a->q_raw, wq, l->q_norm, M, l->H, l->DH, m->eps,
                              pool);
    else if (s->q != a->q_raw)
        memcpy(s->q, a->q_raw, M * wq * sizeof *s->q);
    if (l->k_norm)
        cart_headnorm_forward(s->k, wk, a->rk, a->k_raw, wk, l->k_norm, M, l->HK, l->DH, m->eps,
                              pool);
    else if (s->k != a->k_raw)
        memcpy(s->k, a->k_raw, M * wk * sizeof *s->k);
    cart_rope_apply(s->q, wq, M, l->H, l->DH, s->index, s->cos, s->sin, &m->rope, false, pool);
    cart_rope_apply(s->k, wk, M, l->HK, l->DH, s->index, s->cos, s->sin, &m->rope, false, pool);
}

void cart_layer_project(const struct cart_model *m, const struct cart_layer *l,
                        const struct cart_layer_acts *a, const struct cart_layer_scratch *s,
                        size_t M, struct cart_pool *pool)
{
    size_t D = m->D, wq = l->H * l->DH, wk = cart_layer_kv_width(l);
    cart_rmsnorm_forward(s->h, D, a->r1, a->x, D, l->attn_norm, M, D, m->eps, pool);
    cart_matmul_forward(a->q_raw, wq, s->h, D, M, &l->wq, l->q_bias, false, pool);
    cart_matmul_forward(a->k_raw, wk, s->h, D, M, &l->wk, l->k_bias, false, pool);
    cart_matmul_forward(a->v, wk, s->h, D, M, &l->wv, l->v_bias, false, pool);
    cart_layer_rotate(m, l, a, s, M, pool);
}

void cart_layer_finish(const struct cart_model *m, const struct cart_layer *l,
                       const struct cart_layer_acts *a, const struct cart_layer_scratch *s,
                       float *y, size_t M, struct cart_pool *pool)
{
    size_t D = m->D, wq = l->H * l->DH, F = l->F;
    if (a->x1 != a->x)
        memcpy(a->x1, a->x, M * D * sizeof *a->x1);
    cart_matmul_forward(a->x1, D, a->attn, wq, M, &l->wo, NULL, true, pool);
    cart_rmsnorm_forward(s->h, D, a->r2, a->x1, D, l->ffn_norm, M, D, m->eps, pool);
    cart_matmul_forward(a->gate, F, s->h, D, M, &l->w_gate, NULL, false, pool);
    cart_matmul_forward(a->up, F, s->h, D, M, &l->w_up, NULL, false, pool);
    if (!y)
        return;
    cart_swiglu_forward(s->act, a->gate, a->up, M * F, pool);
    if (y != a->x1)
        memcpy(y, a->x1, M * D * sizeof *y);
    cart_matmul_forward(y, D, s->act, F, M, &l->w_down, NULL, true, pool);
}
