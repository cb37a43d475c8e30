/* The tokenizer and the chat profile of a hub directory. tokenizer.json has the vocabulary;
 * tokenizer_config.json names the special tokens and has the template, unless chat_template.jinja
 * has it; config.json has the ids of special tokens that nothing names; generation_config.json may
 * list more ids that end a text. This is what a converter to GGUF would write down. */
#include "model/model_impl.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_EOG = 64 }; /* ids that end a text */

/* The spelling of a special token: a string, or an object that has it as "content". NULL: none. */
static int spelling(const struct cart_hub *h, const char *key, const char **out,
                    struct cart_err *err)
{
    const json_t *v = json_object_get(h->tokenizer_config, key);
    char what[320];
    *out = NULL;
    if (!v)
        return 0;
    snprintf(what, sizeof what, "%.240s/tokenizer_config.json", h->dir);
    if (!json_is_object(v))
        return cart_json_string_opt(h->tokenizer_config, key, out, what, err);
    int r = cart_json_string(v, "content", out, key, err);
    return r < 0 ? cart_err_wrap(err, r, "%s", what) : 0;
}

static int check_id(const struct cart_model *m, const json_t *v, const char *path, const char *key,
                    int64_t *out, struct cart_err *err)
{
    char found[48];
    uint64_t id;
    if (!cart_json_whole(v, m->V - 1, &id))
        return cart_err_set(err, CART_EFORMAT, "%s: %s: expected an id below %zu, found %s", path,
                            key, m->V, cart_json_found(v, found));
    *out = (int64_t)id;
    return 0;
}

/* Some files give a token that they do without the id -1. */
static bool is_none(const json_t *id)
{
    return !id || json_is_null(id) || (json_is_integer(id) && json_integer_value(id) == -1);
}

/* bos, eos, pad or unk: by its name in tokenizer_config.json, else by its id in config.json, for
 * eos the first where that is a list. Where a name decides, the id may be of a vocabulary that was
 * cut, or a list, and is not looked at. */
static int special(struct cart_model *m, const char *name, int64_t *out, struct cart_err *err)
{
    const struct cart_hub *h = m->priv->source.hub;
    char key[32], shown[64];
    const char *token;
    *out = -1;
    snprintf(key, sizeof key, "%s_token", name);
    int r = spelling(h, key, &token, err);
    if (r < 0)
        return r;
    if (!token) {
        snprintf(key, sizeof key, "%s_token_id", name);
        const json_t *v = json_object_get(h->config, key);
        if (json_is_array(v) && strcmp(name, "eos") == 0)
            v = json_array_get(v, 0);
        return is_none(v) ? 0 : check_id(m, v, h->config_path, key, out, err);
    }
    uint32_t id = cart_vocab_json_find(&m->priv->vocab, token);
    if (id == CART_TOKEN_NONE)
        return cart_err_set(err, CART_EFORMAT, "%s/tokenizer_config.json: %s: '%s' is no token",
                            h->dir, key,
                            cart_err_escape(shown, sizeof shown, token, strlen(token)));
    *out = id;
    return 0;
}

/* The tokenizer's own flag, else what its post-processor does. */
static int read_add_bos(struct cart_model *m, struct cart_err *err)
{
    struct cart_vocab_json *v = &m->priv->vocab;
    const struct cart_hub *h = m->priv->source.hub;
    struct cart_text first = {"", 0};
    char shown[64], what[320];
    bool add = v->first != CART_TOKEN_NONE;
    snprintf(what, sizeof what, "%.240s/tokenizer_config.json", h->dir);
    int r = h->tokenizer_config
                ? cart_json_bool_opt(h->tokenizer_config, "add_bos_token", &add, what, err)
                : 0;
    if (r < 0)
        return r;
    v->src.add_bos = add;
    if (!v->src.add_bos || v->first == CART_TOKEN_NONE || v->first == v->src.bos)
        return 0;
    first = v->tokens[v->first];
    return cart_err_set(err, CART_EFORMAT,
                        "%s/tokenizer.json: post_processor: expected the bos token, found '%s'",
                        h->dir, cart_err_escape(shown, sizeof shown, first.data, first.n));
}

/* eos_token_id of config.json and generation_config.json: one id or several. */
static int read_eog(struct cart_model *m, uint32_t **ids, size_t *n, struct cart_err *err)
{
    const struct cart_hub *h = m->priv->source.hub;
    const json_t *const lists[] = {json_object_get(h->config, "eos_token_id"),
                                   json_object_get(h->generation, "eos_token_id")};
    const char *const paths[] = {"config.json", "generation_config.json"};
    *ids = calloc(2 * MAX_EOG, sizeof **ids);
    if (!*ids)
        return cart_err_memory(err, "end tokens", 2 * MAX_EOG * sizeof **ids);
    for (size_t k = 0; k < 2; k++) {
        size_t count = json_is_array(lists[k]) ? json_array_size(lists[k]) : !is_none(lists[k]);
        if (count > MAX_EOG)
            return cart_err_set(err, CART_EFORMAT,
                                "%s/%s: eos_token_id: expected at most %d ids, found %zu", h->dir,
                                paths[k], MAX_EOG, count);
        for (size_t i = 0; i < count; i++) {
            const json_t *v = json_is_array(lists[k]) ? json_array_get(lists[k], i) : lists[k];
            int64_t id = 0;
            int r = check_id(m, v, paths[k], "eos_token_id", &id, err);
            if (r < 0)
                return cart_err_wrap(err, r, "%s", h->dir);
            (*ids)[(*n)++] = (uint32_t)id;
        }
    }
    return 0;
}

static int read_tokenizer(struct cart_model *m, struct cart_err *err)
{
    struct cart_vocab_source *src = &m->priv->vocab.src;
    const struct cart_hub *h = m->priv->source.hub;
    json_t *root = NULL;
    uint32_t *eog = NULL;
    size_t n_eog = 0;
    uint64_t rows = m->V;
    char *path = cart_hub_path(h, "tokenizer.json");
    int r = path ? cart_hub_tokenizer(h, &root, err) : cart_err_memory(err, "tokenizer.json", 0);
    if (r == 0)
        r = cart_json_u64_opt(h->config, "vocab_size", UINT32_MAX, &rows, h->config_path, err);
    if (r == 0 && rows != m->V)
        r = cart_err_set(err, CART_EFORMAT,
                         "%s: vocab_size: expected %zu, the rows of the embedding, found %llu",
                         h->config_path, m->V, (unsigned long long)rows);
    if (r == 0)
        r = cart_vocab_json_read(&m->priv->vocab, root, m->V, path, err);
    json_decref(root);
    if (r == 0)
        r = special(m, "bos", &src->bos, err);
    if (r == 0)
        r = special(m, "eos", &src->eos, err);
    if (r == 0)
        r = special(m, "pad", &src->pad, err);
    if (r == 0)
        r = special(m, "unk", &src->unk, err);
    if (r == 0)
        r = read_add_bos(m, err);
    if (r == 0)
        r = read_eog(m, &eog, &n_eog, err);
    if (r == 0) {
        src->eog = eog;
        src->n_eog = n_eog;
        r = cart_tokenizer_new(&m->priv->tokenizer, src, err);
        src->eog = NULL;
        if (r < 0)
            cart_err_wrap(err, r, "%s", path);
    }
    free(eog);
    free(path);
    return r;
}

/* The template text of tokenizer_config.json: a string, or the one called default of a list. NULL:
 * none. */
static int template_of(const struct cart_hub *h, const json_t **out, struct cart_err *err)
{
    const json_t *v = json_object_get(h->tokenizer_config, "chat_template");
    char found[48];
    *out = json_is_string(v) ? v : NULL;
    if (v && !json_is_null(v) && !json_is_string(v) && !json_is_array(v))
        return cart_err_set(err, CART_EFORMAT,
                            "%s/tokenizer_config.json: chat_template: expected a string or an "
                            "array, found %s",
                            h->dir, cart_json_found(v, found));
    for (size_t i = 0; i < json_array_size(v); i++) {
        const json_t *named = json_array_get(v, i), *text = json_object_get(named, "template");
        const char *name = json_string_value(json_object_get(named, "name"));
        if (!name || !json_is_string(text))
            return cart_err_set(err, CART_EFORMAT,
                                "%s/tokenizer_config.json: chat_template: value %zu: expected an "
                                "object with the strings name and template",
                                h->dir, i);
        if (strcmp(name, "default") == 0)
            *out = text;
    }
    return 0;
}

int cart_vocabulary_read_hub(struct cart_model *m, const char *profile, struct cart_err *err)
{
    const struct cart_hub *h = m->priv->source.hub;
    const json_t *template = NULL;
    int r = read_tokenizer(m, err);
    if (r < 0 || (r = template_of(h, &template, err)) < 0)
        return r;
    const char *text = json_string_value(template);
    size_t n = json_string_length(template);
    if (h->template_text.data) {
        text = h->template_text.data;
        n = h->template_text.len;
    }
    return cart_vocabulary_chat(m, text, n, profile, err);
}
