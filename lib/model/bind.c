/* Weights by name. Matrices stay where the mapped file has them, in their own encoding; vectors
 * (norms, biases, rotation factors) are few and small, and are widened into the model's arena. */
#include "model/model_impl.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct binder {
    struct cart_model *m;
    struct cart_arena *arena; /* NULL base while measuring */
    struct cart_err *err;
    int r; /* first failure; later calls do nothing */
};

static const struct cart_gguf_tensor *take(struct binder *b, const char *name, bool optional)
{
    const struct cart_gguf *g = b->m->priv->gguf;
    const struct cart_gguf_tensor *t = cart_gguf_tensor(g, name);
    if (!t) {
        if (!optional)
            b->r = cart_err_set(b->err, CART_EFORMAT, "%s: tensor %s: missing", b->m->path, name);
        return NULL;
    }
    if (!cart_dtype_info(t->type)) {
        const struct cart_gguf_type *type = cart_gguf_tensor_type(t->type);
        b->r = cart_err_set(b->err, CART_EFORMAT, "%s: tensor %s: type %s is not supported",
                            b->m->path, name, type ? type->name : "unknown");
        return NULL;
    }
    b->m->priv->used[t - cart_gguf_tensor_at(g, 0)] = true;
    return t;
}

static bool shaped(struct binder *b, const struct cart_gguf_tensor *t, const char *name, size_t K,
                   size_t N)
{
    if (t->dims[0] == K && t->dims[1] == N && t->dims[2] == 1 && t->dims[3] == 1)
        return true;
    b->r = cart_err_set(b->err, CART_EFORMAT,
                        "%s: tensor %s: expected [%zu, %zu], found [%" PRIu64 ", %" PRIu64
                        ", %" PRIu64 ", %" PRIu64 "]",
                        b->m->path, name, K, N, t->dims[0], t->dims[1], t->dims[2], t->dims[3]);
    return false;
}

static void matrix(struct binder *b, const char *name, size_t N, size_t K, struct cart_matrix *out)
{
    if (b->r < 0)
        return;
    const struct cart_gguf_tensor *t = take(b, name, false);
    if (!t || !shaped(b, t, name, K, N))
        return;
    const struct cart_dtype_info *d = cart_dtype_info(t->type);
    *out = (struct cart_matrix){
        .dtype = t->type, .N = N, .K = K, .row_bytes = K / d->block * d->bytes, .data = t->data};
}

static void vector(struct binder *b, const char *name, size_t n, bool optional, const float **out)
{
    if (b->r < 0)
        return;
    const struct cart_gguf_tensor *t = take(b, name, optional);
    if (!t || !shaped(b, t, name, n, 1))
        return;
    float *v = cart_arena_push(b->arena, n, sizeof *v);
    if (v) {
        cart_widen(t->type, t->data, 0, n, v);
        if (!cart_all_finite(v, n))
            b->r =
                cart_err_set(b->err, CART_EFORMAT, "%s: tensor %s: not finite", b->m->path, name);
    }
    *out = v;
}

static void bind_layer(struct binder *b, size_t i)
{
    struct cart_model *m = b->m;
    struct cart_layer *l = &m->layers[i];
    size_t D = m->D, q = l->H * l->DH, k = cart_layer_kv_width(l), F = l->F;
    char n[64];
#define NAME(suffix) (snprintf(n, sizeof n, "blk.%zu.%s", i, suffix), n)
    vector(b, NAME("attn_norm.weight"), D, false, &l->attn_norm);
    matrix(b, NAME("attn_q.weight"), q, D, &l->wq);
    matrix(b, NAME("attn_k.weight"), k, D, &l->wk);
    matrix(b, NAME("attn_v.weight"), k, D, &l->wv);
    matrix(b, NAME("attn_output.weight"), D, q, &l->wo);
    vector(b, NAME("ffn_norm.weight"), D, false, &l->ffn_norm);
    matrix(b, NAME("ffn_gate.weight"), F, D, &l->w_gate);
    matrix(b, NAME("ffn_up.weight"), F, D, &l->w_up);
    matrix(b, NAME("ffn_down.weight"), D, F, &l->w_down);
    if (m->priv->biases) {
        vector(b, NAME("attn_q.bias"), q, true, &l->q_bias);
        vector(b, NAME("attn_k.bias"), k, true, &l->k_bias);
        vector(b, NAME("attn_v.bias"), k, true, &l->v_bias);
    }
    if (m->priv->head_norms) {
        vector(b, NAME("attn_q_norm.weight"), l->DH, false, &l->q_norm);
        vector(b, NAME("attn_k_norm.weight"), l->DH, false, &l->k_norm);
    }
#undef NAME
    l->scale = (float)(1 / sqrt((double)l->DH));
}

static int bind_all(struct cart_model *m, struct cart_arena *arena, struct cart_err *err)
{
    struct binder b = {.m = m, .arena = arena, .err = err};
    matrix(&b, "token_embd.weight", m->V, m->D, &m->embed);
    vector(&b, "output_norm.weight", m->D, false, &m->out_norm);
    if (b.r == 0 && cart_gguf_tensor(m->priv->gguf, "output.weight"))
        matrix(&b, "output.weight", m->V, m->D, &m->head);
    else
        m->head = m->embed;
    vector(&b, "rope_freqs.weight", m->rope.n_rot / 2, true, &m->rope.factor);
    for (size_t i = 0; i < m->L; i++)
        bind_layer(&b, i);
    return b.r;
}

/* A weight that the forward would ignore makes every answer quietly wrong. Rotation tables that old
 * converters wrote are the exception: they hold what the keys say. */
static int check_all_used(const struct cart_model *m, struct cart_err *err)
{
    const struct cart_gguf *g = m->priv->gguf;
    for (size_t i = 0; i < cart_gguf_n_tensors(g); i++) {
        const struct cart_gguf_tensor *t = cart_gguf_tensor_at(g, i);
        static const char inert[] = ".attn_rot_embd";
        char shown[80];
        cart_err_escape(shown, sizeof shown, t->name.data, t->name.len);
        if (!m->priv->used[i] && !strstr(shown, inert))
            return cart_err_set(err, CART_EFORMAT,
                                "%s: tensor %s: not a weight of a %s model with %zu layers",
                                m->path, shown, m->arch, m->L);
    }
    return 0;
}

int cart_bind_weights(struct cart_model *m, struct cart_err *err)
{
    const struct cart_gguf *g = m->priv->gguf;
    const struct cart_gguf_tensor *embed = cart_gguf_tensor(g, "token_embd.weight");
    if (!embed)
        return cart_err_set(err, CART_EFORMAT, "%s: tensor token_embd.weight: missing", m->path);
    m->V = (size_t)embed->dims[1];
    m->priv->used = calloc(cart_gguf_n_tensors(g), sizeof *m->priv->used);
    if (!m->priv->used)
        return cart_err_memory(err, "tensor table", cart_gguf_n_tensors(g));
    struct cart_arena measure = CART_ARENA_INIT;
    int r = bind_all(m, &measure, err);
    if (r == 0)
        r = check_all_used(m, err);
    if (r == 0)
        r = cart_arena_reserve(&m->priv->arena, measure.used, err);
    if (r == 0)
        r = bind_all(m, &m->priv->arena, err);
    for (size_t j = 0; r == 0 && m->rope.factor && j < m->rope.n_rot / 2; j++)
        if (!(m->rope.factor[j] > 0))
            r = cart_err_set(err, CART_EFORMAT,
                             "%s: tensor rope_freqs.weight: value %zu: expected above 0", m->path,
                             j);
    return r;
}
