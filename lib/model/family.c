/* Descriptors: what each family's keys say about the model. Nothing here touches weights.
 * Adding a family: a row in families[] and, where its keys differ, a reader. family_hub.c reads the
 * same from config.json. */
#include "model/model_impl.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const struct cart_family families[] = {
    {"llama", "LlamaForCausalLM", CART_ROPE_INTERLEAVED, false, false},
    {"qwen2", "Qwen2ForCausalLM", CART_ROPE_HALF, true, false},
    {"qwen3", "Qwen3ForCausalLM", CART_ROPE_HALF, false, true},
};

/* "llama" + ".block_count"; the architectures above are short, and only they get here. */
static const char *key(const struct cart_model *m, const char *suffix, char out[96])
{
    snprintf(out, 96, "%s.%s", m->arch, suffix);
    return out;
}

static int count(const struct cart_model *m, const char *suffix, uint64_t max, size_t *out,
                 struct cart_err *err)
{
    char name[96];
    uint64_t v = 0;
    int r = cart_gguf_u64(m->priv->source.gguf, key(m, suffix, name), max, &v, err);
    if (r == 0 && v == 0)
        r = cart_err_set(err, CART_EFORMAT, "%s: key %s: expected 1 to %llu, found 0", m->path,
                         name, (unsigned long long)max);
    if (r == 0)
        *out = (size_t)v;
    return r;
}

/* The same of a key that may be absent: *out stays. */
static int count_opt(const struct cart_model *m, const char *suffix, uint64_t max, size_t *out,
                     struct cart_err *err)
{
    char name[96];
    bool there = cart_gguf_find(m->priv->source.gguf, key(m, suffix, name)) != NULL;
    return there ? count(m, suffix, max, out, err) : 0;
}

/* A count that is one number or an array of one per layer; values [L]. Absent: values keep what
 * they hold. */
static int count_per_layer(const struct cart_model *m, const char *suffix, uint64_t max,
                           size_t *values, struct cart_err *err)
{
    char name[96];
    const struct cart_gguf *g = m->priv->source.gguf;
    const struct cart_gguf_key *k = cart_gguf_find(g, key(m, suffix, name));
    if (!k)
        return 0;
    if (k->type != CART_GGUF_ARRAY) {
        size_t v = 0;
        int r = count(m, suffix, max, &v, err);
        for (size_t l = 0; r == 0 && l < m->L; l++)
            values[l] = v;
        return r;
    }
    struct cart_gguf_array a;
    int r = cart_gguf_array(g, name, CART_GGUF_SET_INT, &a, err);
    if (r < 0)
        return r;
    if (a.n != m->L)
        return cart_err_set(err, CART_EFORMAT,
                            "%s: key %s: expected %zu values, one a layer, found %zu", m->path,
                            name, m->L, a.n);
    for (size_t l = 0; l < m->L; l++) {
        int64_t v = cart_gguf_array_i64(&a, l);
        if (v < 1 || (uint64_t)v > max)
            return cart_err_set(err, CART_EFORMAT,
                                "%s: key %s: value %zu: expected 1 to %llu, found %lld", m->path,
                                name, l, (unsigned long long)max, (long long)v);
        values[l] = (size_t)v;
    }
    return 0;
}

int cart_family_find(struct cart_model *m, const char *arch, size_t n,
                     const struct cart_family **out, struct cart_err *err)
{
    for (size_t i = 0; i < CART_COUNTOF(families); i++)
        if (n == strlen(families[i].arch) && memcmp(arch, families[i].arch, n) == 0) {
            *out = &families[i];
            m->arch = families[i].arch;
            m->priv->biases = families[i].biases;
            m->priv->head_norms = families[i].head_norms;
            return 0;
        }
    static const char *const recurrent[] = {
        "mamba",     "mamba2",     "rwkv6",         "rwkv7",      "jamba", "falcon-h1", "falcon_h1",
        "qwen3next", "qwen3_next", "granitehybrid", "nemotron_h", "lfm2",  "plamo2"};
    char shown[80];
    cart_err_escape(shown, sizeof shown, arch, n);
    for (size_t i = 0; i < CART_COUNTOF(recurrent); i++)
        if (n == strlen(recurrent[i]) && memcmp(arch, recurrent[i], n) == 0)
            return cart_err_set(err, CART_EFORMAT,
                                "%s: architecture '%s': a recurrent state is not a KV cache, so no "
                                "cartridge can stand for it",
                                m->path, shown);
    return cart_err_set(err, CART_EFORMAT, "%s: architecture '%s': expected llama, qwen2 or qwen3",
                        m->path, shown);
}

static int read_arch(struct cart_model *m, const struct cart_family **out, struct cart_err *err)
{
    struct cart_gguf_str arch;
    int r = cart_gguf_string(m->priv->source.gguf, "general.architecture", &arch, err);
    return r < 0 ? r : cart_family_find(m, arch.data, arch.len, out, err);
}

/* What the keys give for a layer, beside its head width; key_length and value_length are 0 where
 * the file lacks them. The width is bounded wherever it comes from: kernels keep a head on their
 * stack. */
static int check_layer(const struct cart_model *m, size_t l, size_t key_length, size_t value_length,
                       struct cart_err *err)
{
    const struct cart_layer *y = &m->layers[l];
    if (y->H == 0 || y->F == 0)
        return cart_err_set(err, CART_EFORMAT, "%s: key %s.%s: missing", m->path, m->arch,
                            y->H == 0 ? "attention.head_count" : "feed_forward_length");
    if (y->H % y->HK != 0)
        return cart_err_set(err, CART_EFORMAT,
                            "%s: layer %zu: %zu query heads are no multiple of %zu key heads",
                            m->path, l, y->H, y->HK);
    if (key_length == 0 && m->D % y->H != 0)
        return cart_err_set(err, CART_EFORMAT,
                            "%s: layer %zu: width %zu is no multiple of %zu heads", m->path, l,
                            m->D, y->H);
    if (y->DH == 0 || y->DH > CART_MAX_HEAD_DIM)
        return cart_err_set(err, CART_EFORMAT,
                            "%s: layer %zu: head width: expected 1 to %d, found %zu", m->path, l,
                            CART_MAX_HEAD_DIM, y->DH);
    if (value_length != 0 && value_length != y->DH)
        return cart_err_set(
            err, CART_EFORMAT,
            "%s: key %s.attention.value_length: expected %zu, the key length, found %zu", m->path,
            m->arch, y->DH, value_length);
    return 0;
}

static int read_heads(struct cart_model *m, struct cart_err *err)
{
    size_t *h = calloc(m->L * 3, sizeof *h);
    if (!h)
        return cart_err_memory(err, "layer table", m->L * 3 * sizeof *h);
    size_t *hk = h + m->L, *f = hk + m->L, dh = 0, dv = 0;
    int r = count_per_layer(m, "attention.head_count", CART_MAX_HEADS, h, err);
    if (r == 0)
        memcpy(hk, h, m->L * sizeof *h);
    if (r == 0)
        r = count_per_layer(m, "attention.head_count_kv", CART_MAX_HEADS, hk, err);
    if (r == 0)
        r = count_per_layer(m, "feed_forward_length", CART_MAX_WIDTH, f, err);
    if (r == 0)
        r = count_opt(m, "attention.key_length", CART_MAX_HEAD_DIM, &dh, err);
    if (r == 0)
        r = count_opt(m, "attention.value_length", CART_MAX_HEAD_DIM, &dv, err);
    for (size_t l = 0; r == 0 && l < m->L; l++) {
        struct cart_layer *layer = &m->layers[l];
        layer->H = h[l];
        layer->HK = hk[l];
        layer->F = f[l];
        layer->DH = dh ? dh : h[l] ? m->D / h[l] : 0;
        r = check_layer(m, l, dh, dv, err);
    }
    free(h);
    return r;
}

/* A factor that no scaling type goes with: files differ in what they mean by it. */
static int refuse_untyped_factor(const struct cart_model *m, const char *suffix,
                                 struct cart_err *err)
{
    char name[96];
    double factor = 1;
    int r = cart_gguf_real_opt(m->priv->source.gguf, key(m, suffix, name), &factor, err);
    if (r == 0 && factor != 1)
        r = cart_err_set(err, CART_EFORMAT,
                         "%s: key %s: found %g, but no rope.scaling.type says what it scales",
                         m->path, name, factor);
    return r;
}

/* Linear scaling or none; other kinds change the angles in ways that the file does not spell out.
 */
static int read_rope_scaling(struct cart_model *m, struct cart_err *err)
{
    const struct cart_gguf *g = m->priv->source.gguf;
    char name[96];
    struct cart_gguf_str type = {"none", 4};
    double factor = 1;
    int r = cart_gguf_string_opt(g, key(m, "rope.scaling.type", name), &type, err);
    if (r < 0)
        return r;
    if (!cart_gguf_find(g, name) &&
        ((r = refuse_untyped_factor(m, "rope.scaling.factor", err)) < 0 ||
         (r = refuse_untyped_factor(m, "rope.scale_linear", err)) < 0))
        return r;
    if (type.len == 4 && memcmp(type.data, "none", 4) == 0)
        return 0;
    char shown[40];
    cart_err_escape(shown, sizeof shown, type.data, type.len);
    if (type.len != 6 || memcmp(type.data, "linear", 6) != 0)
        return cart_err_set(err, CART_EFORMAT, "%s: key %s: expected none or linear, found '%s'",
                            m->path, name, shown);
    r = cart_gguf_real(g, key(m, "rope.scaling.factor", name), &factor, err);
    if (r == 0 && !(factor > 0 && factor < 1e6))
        r = cart_err_set(err, CART_EFORMAT, "%s: key %s: expected a factor above 0, found %g",
                         m->path, name, factor);
    m->rope.scale = 1 / factor;
    return r;
}

/* One table of angles serves all layers: its width must fit the narrowest head, and where heads
 * differ only the file can say what it is. */
static int read_rope(struct cart_model *m, const struct cart_family *f, struct cart_err *err)
{
    char name[96];
    size_t dh = m->layers[0].DH, widest = dh;
    for (size_t l = 1; l < m->L; l++) {
        dh = m->layers[l].DH < dh ? m->layers[l].DH : dh;
        widest = m->layers[l].DH > widest ? m->layers[l].DH : widest;
    }
    uint64_t n_rot = dh;
    double base = 10000;
    const struct cart_gguf *g = m->priv->source.gguf;
    int r =
        cart_gguf_u64_opt(g, key(m, "rope.dimension_count", name), CART_MAX_HEAD_DIM, &n_rot, err);
    if (r == 0 && dh != widest && !cart_gguf_find(g, name))
        r = cart_err_set(err, CART_EFORMAT, "%s: key %s: missing, though heads are %zu to %zu wide",
                         m->path, name, dh, widest);
    if (r == 0 && (n_rot == 0 || n_rot % 2 != 0 || n_rot > dh))
        r = cart_err_set(
            err, CART_EFORMAT,
            "%s: rotary width: expected an even number up to the head width %zu, found %llu",
            m->path, dh, (unsigned long long)n_rot);
    if (r == 0)
        r = cart_gguf_real_opt(g, key(m, "rope.freq_base", name), &base, err);
    if (r == 0 && !(base > 0 && base < 1e30))
        r = cart_err_set(err, CART_EFORMAT, "%s: key %s: expected a base above 0, found %g",
                         m->path, name, base);
    m->rope =
        (struct cart_rope){.order = f->rope, .n_rot = (size_t)n_rot, .base = base, .scale = 1};
    return r < 0 ? r : read_rope_scaling(m, err);
}

int cart_family_read(struct cart_model *m, struct cart_err *err)
{
    const struct cart_family *f = NULL;
    char name[96];
    double eps = 0;
    int r = read_arch(m, &f, err);
    if (r == 0)
        r = count(m, "block_count", CART_MAX_LAYERS, &m->L, err);
    if (r == 0)
        r = count(m, "embedding_length", CART_MAX_WIDTH, &m->D, err);
    if (r == 0)
        r = count(m, "context_length", CART_MAX_CONTEXT, &m->context, err);
    if (r == 0)
        r = cart_gguf_real(m->priv->source.gguf, key(m, "attention.layer_norm_rms_epsilon", name),
                           &eps, err);
    if (r == 0 && !(eps > 0 && eps < 1))
        r = cart_err_set(err, CART_EFORMAT,
                         "%s: key %s: expected a number between 0 and 1, found %g", m->path, name,
                         eps);
    if (r < 0)
        return r;
    m->eps = (float)eps;
    m->layers = calloc(m->L, sizeof *m->layers);
    if (!m->layers)
        return cart_err_memory(err, "layer table", m->L * sizeof *m->layers);
    r = read_heads(m, err);
    return r < 0 ? r : read_rope(m, f, err);
}
