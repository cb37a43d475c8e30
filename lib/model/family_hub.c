/* The descriptor from a config.json of the hub. Numbers are rounded as a GGUF file keeps them, so
 * that both forms of a model are one model. What a key asks for and no layer of ours does is
 * refused; what only says how the model was made or is to be sampled is passed over. */
#include "model/model_impl.h"
#include "tensor/mathf.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

struct config {
    const json_t *root;
    const char *path; /* for messages */
};

static int count(const struct config *c, const char *key, uint64_t max, bool optional, size_t *out,
                 struct cart_err *err)
{
    uint64_t v = *out;
    int r = optional ? cart_json_u64_opt(c->root, key, max, &v, c->path, err)
                     : cart_json_u64(c->root, key, max, &v, c->path, err);
    if (r == 0 && v == 0)
        r = cart_err_set(err, CART_EFORMAT, "%s: %s: expected 1 to %llu, found 0", c->path, key,
                         (unsigned long long)max);
    if (r == 0)
        *out = (size_t)v;
    return r;
}

/* A number between low and high, both excluded; optional: *out stays where obj lacks it. */
static int number(const struct config *c, const json_t *obj, const char *key, double low,
                  double high, bool optional, double *out, struct cart_err *err)
{
    const json_t *at = json_object_get(obj, key);
    double v = (double)(float)json_number_value(at);
    if (optional && (!at || json_is_null(at)))
        return 0;
    if (!json_is_number(at))
        return cart_err_set(err, CART_EFORMAT, "%s: %s: expected a number", c->path, key);
    if (!(v > low && v < high))
        return cart_err_set(err, CART_EFORMAT, "%s: %s: expected above %g and below %g, found %g",
                            c->path, key, low, high, v);
    *out = v;
    return 0;
}

/* What no model of the families has; absent or null, it is off. */
static int check_off(const struct config *c, const char *key, struct cart_err *err)
{
    bool on = false;
    int r = cart_json_bool_opt(c->root, key, &on, c->path, err);
    if (r == 0 && on)
        r = cart_err_set(err, CART_EFORMAT, "%s: %s: expected false, found true", c->path, key);
    return r;
}

static int check_activation(const struct config *c, struct cart_err *err)
{
    const char *name = "silu";
    char shown[96];
    int r = cart_json_string_opt(c->root, "hidden_act", &name, c->path, err);
    if (r == 0 && strcmp(name, "silu") != 0)
        r = cart_err_set(err, CART_EFORMAT, "%s: hidden_act: expected silu, found '%s'", c->path,
                         cart_err_escape(shown, sizeof shown, name, strlen(name)));
    return r;
}

static int check_architecture(const struct config *c, const struct cart_family *f,
                              struct cart_err *err)
{
    const json_t *list = json_object_get(c->root, "architectures");
    const char *found = "";
    char shown[80];
    if (!list || json_is_null(list))
        return 0;
    for (size_t i = 0; i < json_array_size(list); i++) {
        const char *name = json_string_value(json_array_get(list, i));
        if (name && strcmp(name, f->hub_class) == 0)
            return 0;
        found = name && !*found ? name : found;
    }
    return cart_err_set(err, CART_EFORMAT, "%s: architectures: expected %s, found '%s'", c->path,
                        f->hub_class, cart_err_escape(shown, sizeof shown, found, strlen(found)));
}

static int check_quantization(const struct config *c, struct cart_err *err)
{
    static const char *const keys[] = {"quantization_config", "compression_config"};
    for (size_t i = 0; i < CART_COUNTOF(keys); i++) {
        const json_t *v = json_object_get(c->root, keys[i]);
        const char *method = json_string_value(json_object_get(v, "quant_method"));
        char shown[40];
        if (v && !json_is_null(v))
            return cart_err_set(err, CART_EFORMAT,
                                "%s: %s: weights packed by '%s' are not read: take the original "
                                "checkpoint, or a GGUF file",
                                c->path, keys[i],
                                cart_err_escape(shown, sizeof shown, method ? method : "",
                                                method ? strlen(method) : 0));
    }
    return 0;
}

/* A window that some layer has and some query would feel. */
static int check_window(const struct config *c, const struct cart_model *m, struct cart_err *err)
{
    bool use = false;
    uint64_t window = m->context, first = 0;
    int r = cart_json_bool_opt(c->root, "use_sliding_window", &use, c->path, err);
    if (r == 0 && use)
        r = cart_json_u64_opt(c->root, "sliding_window", UINT32_MAX, &window, c->path, err);
    if (r == 0 && use)
        r = cart_json_u64_opt(c->root, "max_window_layers", UINT32_MAX, &first, c->path, err);
    if (r == 0 && use && window < m->context && first < m->L)
        r = cart_err_set(err, CART_EFORMAT,
                         "%s: use_sliding_window: layers that see only %llu tokens are not "
                         "supported",
                         c->path, (unsigned long long)window);
    json_t *types = json_object_get(c->root, "layer_types");
    if (r == 0 && types && !json_is_null(types))
        r = cart_json_array(c->root, "layer_types", &types, c->path, err);
    for (size_t i = 0; r == 0 && i < json_array_size(types); i++) {
        const char *type = json_string_value(json_array_get(types, i));
        char shown[64];
        if (!type || strcmp(type, "full_attention") != 0)
            r = cart_err_set(
                err, CART_EFORMAT,
                "%s: layer_types: value %zu: expected full_attention, found '%s'", c->path, i,
                cart_err_escape(shown, sizeof shown, type ? type : "", type ? strlen(type) : 0));
    }
    return r;
}

static int check_features(const struct config *c, const struct cart_model *m,
                          const struct cart_family *f, struct cart_err *err)
{
    int r = check_architecture(c, f, err);
    if (r == 0)
        r = check_quantization(c, err);
    if (r == 0)
        r = check_activation(c, err);
    /* qwen2 has its biases, and the key says nothing there. */
    if (r == 0 && !f->biases)
        r = check_off(c, "attention_bias", err);
    if (r == 0)
        r = check_off(c, "mlp_bias", err);
    if (r == 0)
        r = check_off(c, "rope_interleaved", err);
    if (r == 0) {
        double rotary = 1;
        r = number(c, c->root, "partial_rotary_factor", 0, 1e3, true, &rotary, err);
        if (r == 0 && rotary != 1)
            r = cart_err_set(err, CART_EFORMAT, "%s: partial_rotary_factor: expected 1, found %g",
                             c->path, rotary);
    }
    return r < 0 ? r : check_window(c, m, err);
}

static int read_heads(const struct config *c, struct cart_model *m, struct cart_err *err)
{
    size_t h = 0, hk = 0, f = 0, dh = 0;
    int r = count(c, "num_attention_heads", CART_MAX_HEADS, false, &h, err);
    hk = h;
    if (r == 0)
        r = count(c, "num_key_value_heads", CART_MAX_HEADS, true, &hk, err);
    if (r == 0)
        r = count(c, "intermediate_size", CART_MAX_WIDTH, false, &f, err);
    if (r == 0 && h % hk != 0)
        r = cart_err_set(err, CART_EFORMAT,
                         "%s: num_key_value_heads: %zu query heads are no multiple of %zu", c->path,
                         h, hk);
    if (r < 0)
        return r;
    dh = m->D / h;
    const json_t *width = json_object_get(c->root, "head_dim");
    if (width && !json_is_null(width))
        r = count(c, "head_dim", CART_MAX_HEAD_DIM, false, &dh, err);
    else if (m->D % h != 0)
        r = cart_err_set(err, CART_EFORMAT,
                         "%s: hidden_size: expected a multiple of %zu heads, found %zu", c->path, h,
                         m->D);
    if (r == 0 && (dh == 0 || dh % 2 != 0 || dh > CART_MAX_HEAD_DIM))
        r = cart_err_set(err, CART_EFORMAT,
                         "%s: head_dim: expected an even number up to %d, found %zu", c->path,
                         CART_MAX_HEAD_DIM, dh);
    for (size_t l = 0; r == 0 && l < m->L; l++) {
        m->layers[l].H = h;
        m->layers[l].HK = hk;
        m->layers[l].DH = dh;
        m->layers[l].F = f;
    }
    return r;
}

/* The divisors of Llama 3.x: 1 for short waves, factor for long ones, in between by how many of the
 * wave the first context held. In f32 and in the steps of the converter to GGUF, whose tensor
 * rope_freqs.weight this stands for. */
static int llama3_factors(const struct config *c, const json_t *scaling, struct cart_model *m,
                          struct cart_err *err)
{
    double factor = 0, low = 0, high = 0, context = 0;
    int r = number(c, scaling, "factor", 0, 1e6, false, &factor, err);
    if (r == 0)
        r = number(c, scaling, "low_freq_factor", 0, 1e6, false, &low, err);
    if (r == 0)
        r = number(c, scaling, "high_freq_factor", low, 1e6, false, &high, err);
    if (r == 0)
        r = number(c, scaling, "original_max_position_embeddings", 0, 1e9, false, &context, err);
    size_t n = m->rope.n_rot / 2;
    if (r == 0 && !(m->priv->factors = calloc(n, sizeof *m->priv->factors)))
        r = cart_err_memory(err, "rotation factors", n * sizeof *m->priv->factors);
    for (size_t j = 0; r == 0 && j < n; j++) {
        float turn = (float)cart_pow(m->rope.base, (double)((float)(2 * j) / (float)(2 * n)));
        float wave = 1.0f / (1.0f / turn) * (float)6.283185307179586;
        float smooth = (1.0f / wave * (float)context - (float)low) / (float)(high - low);
        float *out = &m->priv->factors[j];
        if ((double)wave < context / high)
            *out = 1;
        else if ((double)wave > context / low)
            *out = (float)factor;
        else
            *out = 1.0f / ((1.0f - smooth) / (float)factor + smooth);
    }
    m->rope.factor = m->priv->factors;
    return r;
}

static int read_scaling(const struct config *c, const json_t *scaling, struct cart_model *m,
                        struct cart_err *err)
{
    const char *type = "default";
    char shown[40];
    int r = cart_json_string_opt(scaling, "type", &type, c->path, err);
    if (r == 0)
        r = cart_json_string_opt(scaling, "rope_type", &type, c->path, err);
    if (r < 0 || strcmp(type, "default") == 0)
        return r;
    if (strcmp(type, "llama3") == 0)
        return llama3_factors(c, scaling, m, err);
    if (strcmp(type, "linear") == 0) {
        double factor = 1;
        r = number(c, scaling, "factor", 0, 1e6, false, &factor, err);
        m->rope.scale = 1 / factor;
        return r;
    }
    return cart_err_set(err, CART_EFORMAT,
                        "%s: rope_scaling: expected default, linear or llama3, found '%s'", c->path,
                        cart_err_escape(shown, sizeof shown, type, strlen(type)));
}

/* Whether every member of a but the base is in b. */
static bool holds(const json_t *b, const json_t *a)
{
    const char *key;
    json_t *v;
    json_object_foreach((json_t *)a, key, v) {
        const json_t *w = json_object_get(b, key);
        bool equal = json_is_number(v) && json_is_number(w)
                         ? json_number_value(v) == json_number_value(w)
                         : json_equal(v, w);
        if (strcmp(key, "rope_theta") != 0 && !equal)
            return false;
    }
    return true;
}

/* Newer files gather the base and the scaling in rope_parameters; what older readers find beside it
 * must say the same. */
static int read_rope(const struct config *c, const struct cart_family *f, struct cart_model *m,
                     struct cart_err *err)
{
    double base = 10000;
    const json_t *scaling = json_object_get(c->root, "rope_parameters");
    bool gathered = scaling && !json_is_null(scaling);
    const json_t *old = json_object_get(c->root, "rope_scaling");
    char found[48];
    const json_t *theta = json_object_get(c->root, "rope_theta");
    bool apart = theta && !json_is_null(theta);
    int r = number(c, c->root, "rope_theta", 0, 1e30, true, &base, err);
    if (r == 0 && gathered && !json_is_object(scaling))
        r = cart_err_set(err, CART_EFORMAT, "%s: rope_parameters: expected an object, found %s",
                         c->path, cart_json_found(scaling, found));
    if (r == 0 && gathered)
        r = number(c, scaling, "rope_theta", 0, 1e30, apart, &base, err);
    m->rope =
        (struct cart_rope){.order = f->rope, .n_rot = m->layers[0].DH, .base = base, .scale = 1};
    if (r == 0 && gathered && old && !json_is_null(old) &&
        !(holds(old, scaling) && holds(scaling, old)))
        return cart_err_set(err, CART_EFORMAT,
                            "%s: rope_scaling: expected what rope_parameters says, or nothing",
                            c->path);
    if (!gathered)
        scaling = old;
    return r < 0 || !scaling || json_is_null(scaling) ? r : read_scaling(c, scaling, m, err);
}

int cart_family_read_hub(struct cart_model *m, struct cart_err *err)
{
    const struct cart_hub *h = m->priv->source.hub;
    struct config c = {h->config, h->config_path};
    const struct cart_family *f = NULL;
    const char *type = "";
    double eps = 0;
    int r = cart_json_string(c.root, "model_type", &type, c.path, err);
    if (r == 0)
        r = cart_family_find(m, type, strlen(type), &f, err);
    if (r == 0)
        r = count(&c, "num_hidden_layers", CART_MAX_LAYERS, false, &m->L, err);
    if (r == 0)
        r = count(&c, "hidden_size", CART_MAX_WIDTH, false, &m->D, err);
    if (r == 0)
        r = count(&c, "max_position_embeddings", CART_MAX_CONTEXT, false, &m->context, err);
    if (r == 0)
        r = number(&c, c.root, "rms_norm_eps", 0, 1, false, &eps, err);
    if (r == 0)
        r = cart_json_bool_opt(c.root, "tie_word_embeddings", &m->priv->tied, c.path, err);
    if (r == 0)
        r = check_features(&c, m, f, err);
    if (r < 0)
        return r;
    m->eps = (float)eps;
    m->layers = calloc(m->L, sizeof *m->layers);
    if (!m->layers)
        return cart_err_memory(err, "layer table", m->L * sizeof *m->layers);
    r = read_heads(&c, m, err);
    return r < 0 ? r : read_rope(&c, f, m, err);
}
