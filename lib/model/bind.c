/* Weights by name. Matrices stay where the mapped file has them, in their own encoding; vectors
 * (norms, biases, rotation factors) are few and small, and are widened into the model's arena.
 *
 * The hub keeps the rows of llama's q and k as they were trained, for the rotation of pairs
 * (j, j + DH / 2); GGUF stores them so that pairs lie side by side. Sums over a head follow the
 * order of its values, so a hub's rows are bound as halves (tensor/matmul.h): counted as GGUF has
 * them, read where they are. */
#include "model/model_impl.h"
#include "tensor/mathf.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* What either form calls its tensors. */
struct names {
    const char *embed, *out_norm, *head, *layers; /* of layer i: layers, i, a point, and one of: */
    const char *attn_norm, *q, *k, *v, *o, *ffn_norm, *gate, *up, *down;
    const char *q_bias, *k_bias, *v_bias, *q_norm, *k_norm;
    const char *inert; /* within names of tables that hold what the metadata say */
};

static const struct names gguf_names = {
    .embed = "token_embd.weight",
    .out_norm = "output_norm.weight",
    .head = "output.weight",
    .layers = "blk",
    .attn_norm = "attn_norm.weight",
    .q = "attn_q.weight",
    .k = "attn_k.weight",
    .v = "attn_v.weight",
    .o = "attn_output.weight",
    .ffn_norm = "ffn_norm.weight",
    .gate = "ffn_gate.weight",
    .up = "ffn_up.weight",
    .down = "ffn_down.weight",
    .q_bias = "attn_q.bias",
    .k_bias = "attn_k.bias",
    .v_bias = "attn_v.bias",
    .q_norm = "attn_q_norm.weight",
    .k_norm = "attn_k_norm.weight",
    .inert = ".attn_rot_embd",
};

static const struct names hub_names = {
    .embed = "model.embed_tokens.weight",
    .out_norm = "model.norm.weight",
    .head = "lm_head.weight",
    .layers = "model.layers",
    .attn_norm = "input_layernorm.weight",
    .q = "self_attn.q_proj.weight",
    .k = "self_attn.k_proj.weight",
    .v = "self_attn.v_proj.weight",
    .o = "self_attn.o_proj.weight",
    .ffn_norm = "post_attention_layernorm.weight",
    .gate = "mlp.gate_proj.weight",
    .up = "mlp.up_proj.weight",
    .down = "mlp.down_proj.weight",
    .q_bias = "self_attn.q_proj.bias",
    .k_bias = "self_attn.k_proj.bias",
    .v_bias = "self_attn.v_proj.bias",
    .q_norm = "self_attn.q_norm.weight",
    .k_norm = "self_attn.k_norm.weight",
    .inert = "rotary_emb.inv_freq",
};

static const struct names *names_of(const struct cart_model *m)
{
    return m->priv->source.hub ? &hub_names : &gguf_names;
}

struct binder {
    struct cart_model *m;
    struct cart_arena *arena; /* NULL base while measuring */
    struct cart_err *err;
    int r; /* first failure; later calls do nothing */
};

static const struct cart_gguf_tensor *take(struct binder *b, const char *name, bool optional)
{
    const struct cart_checkpoint *c = &b->m->priv->source;
    const struct cart_gguf_tensor *t = cart_checkpoint_find(c, name);
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
    b->m->priv->used[t - cart_checkpoint_tensors(c)] = true;
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
    const struct names *is = names_of(m);
    bool hub = m->priv->source.hub != NULL;
    size_t D = m->D, q = l->H * l->DH, k = cart_layer_kv_width(l), F = l->F;
    char n[96];
#define NAME(part) (snprintf(n, sizeof n, "%s.%zu.%s", is->layers, i, is->part), n)
    vector(b, NAME(attn_norm), D, false, &l->attn_norm);
    matrix(b, NAME(q), q, D, &l->wq);
    matrix(b, NAME(k), k, D, &l->wk);
    matrix(b, NAME(v), k, D, &l->wv);
    matrix(b, NAME(o), D, q, &l->wo);
    vector(b, NAME(ffn_norm), D, false, &l->ffn_norm);
    matrix(b, NAME(gate), F, D, &l->w_gate);
    matrix(b, NAME(up), F, D, &l->w_up);
    matrix(b, NAME(down), D, F, &l->w_down);
    if (hub && m->rope.order == CART_ROPE_INTERLEAVED)
        l->wq.halves = l->wk.halves = l->DH / 2;
    /* GGUF files without these biases exist and mean zeros; the hub's always have them. */
    if (m->priv->biases) {
        vector(b, NAME(q_bias), q, !hub, &l->q_bias);
        vector(b, NAME(k_bias), k, !hub, &l->k_bias);
        vector(b, NAME(v_bias), k, !hub, &l->v_bias);
    }
    if (m->priv->head_norms) {
        vector(b, NAME(q_norm), l->DH, false, &l->q_norm);
        vector(b, NAME(k_norm), l->DH, false, &l->k_norm);
    }
#undef NAME
    l->scale = (float)(1 / sqrt((double)l->DH));
}

/* A GGUF file without a head ties it to the embedding; for the hub the config says, and a head that
 * is there all the same is a copy. */
static bool is_tied(const struct cart_model *m)
{
    const struct cart_checkpoint *c = &m->priv->source;
    return c->hub ? m->priv->tied : !cart_checkpoint_find(c, names_of(m)->head);
}

static int bind_all(struct cart_model *m, struct cart_arena *arena, struct cart_err *err)
{
    struct binder b = {.m = m, .arena = arena, .err = err};
    const struct names *is = names_of(m);
    matrix(&b, is->embed, m->V, m->D, &m->embed);
    vector(&b, is->out_norm, m->D, false, &m->out_norm);
    if (is_tied(m))
        m->head = m->embed;
    else
        matrix(&b, is->head, m->V, m->D, &m->head);
    if (m->priv->source.gguf)
        vector(&b, "rope_freqs.weight", m->rope.n_rot / 2, true, &m->rope.factor);
    for (size_t i = 0; i < m->L; i++)
        bind_layer(&b, i);
    return b.r;
}

/* A weight that the forward would ignore makes every answer quietly wrong. Rotation tables that old
 * converters wrote are the exception: they hold what the keys say. */
static int check_all_used(const struct cart_model *m, struct cart_err *err)
{
    const struct names *is = names_of(m);
    for (size_t i = 0; i < m->priv->source.n; i++) {
        const struct cart_gguf_tensor *t = &cart_checkpoint_tensors(&m->priv->source)[i];
        char shown[80];
        cart_err_escape(shown, sizeof shown, t->name.data, t->name.len);
        if (!m->priv->used[i] && !strstr(shown, is->inert) &&
            !(m->priv->tied && strcmp(shown, is->head) == 0))
            return cart_err_set(err, CART_EFORMAT,
                                "%s: tensor %s: not a weight of a %s model with %zu layers",
                                m->path, shown, m->arch, m->L);
    }
    return 0;
}

int cart_bind_size(struct cart_model *m, struct cart_err *err)
{
    const char *name = names_of(m)->embed;
    const struct cart_gguf_tensor *embed = cart_checkpoint_find(&m->priv->source, name);
    if (!embed)
        return cart_err_set(err, CART_EFORMAT, "%s: tensor %s: missing", m->path, name);
    m->V = (size_t)embed->dims[1];
    return 0;
}

/* Every angle of the rotation is one that cart_sincos has a sine for, up to the last position. */
static int check_rotation(const struct cart_model *m, struct cart_err *err)
{
    size_t n = m->rope.n_rot;
    for (size_t j = 0; j < n / 2; j++) {
        double factor = m->rope.factor ? (double)m->rope.factor[j] : 1;
        double turn = cart_pow(m->rope.base, -2.0 * (double)j / (double)n) * m->rope.scale;
        if (!(factor > 0))
            return cart_err_set(err, CART_EFORMAT,
                                "%s: tensor rope_freqs.weight: value %zu: expected above 0",
                                m->path, j);
        if (!((double)m->context * turn / factor < 0x1p31))
            return cart_err_set(err, CART_EFORMAT,
                                "%s: rotation by base %g: expected an angle below 2^31 at position "
                                "%zu, found %g",
                                m->path, m->rope.base, m->context,
                                (double)m->context * turn / factor);
    }
    return 0;
}

int cart_bind_weights(struct cart_model *m, struct cart_err *err)
{
    const struct cart_checkpoint *c = &m->priv->source;
    m->priv->used = calloc(c->n, sizeof *m->priv->used);
    if (!m->priv->used)
        return cart_err_memory(err, "tensor table", c->n);
    struct cart_arena *arena = &m->priv->arena;
    int r = bind_all(m, arena, err);
    if (r == 0)
        r = check_all_used(m, err);
    if (r == 0)
        r = cart_arena_reserve(arena, arena->used, err);
    if (r == 0)
        r = bind_all(m, arena, err);
    return r < 0 ? r : check_rotation(m, err);
}
