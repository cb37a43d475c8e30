#include "model/model_impl.h"

#include <stdlib.h>
#include <string.h>

static int read_name(struct cart_model *m, struct cart_err *err)
{
    struct cart_gguf_str name = {"", 0};
    const struct cart_gguf *g = m->priv->source.gguf;
    int r = g ? cart_gguf_string_opt(g, "general.name", &name, err) : 0;
    if (r < 0)
        return r;
    m->name = strndup(name.data, name.len);
    return m->name ? 0 : cart_err_memory(err, "model name", name.len);
}

static int open_parts(struct cart_model *m, const struct cart_model_options *opt,
                      struct cart_err *err)
{
    const char *profile = opt ? opt->profile : NULL;
    int r = cart_checkpoint_open(&m->priv->source, m->path, err);
    if (r < 0)
        return r;
    bool hub = m->priv->source.hub != NULL;
    r = hub ? cart_family_read_hub(m, err) : cart_family_read(m, err);
    if (r == 0)
        r = read_name(m, err);
    if (r == 0)
        r = cart_bind_weights(m, err);
    if (r == 0)
        r = hub ? cart_vocabulary_read_hub(m, profile, err) : cart_vocabulary_read(m, profile, err);
    if (r == 0)
        r = cart_fingerprints_make(m, err);
    return r;
}

int cart_model_open(struct cart_model **out, const char *path, const struct cart_model_options *opt,
                    struct cart_err *err)
{
    struct cart_model *m = calloc(1, sizeof *m);
    if (m) {
        m->priv = calloc(1, sizeof *m->priv);
        m->path = strdup(path);
    }
    if (!m || !m->priv || !m->path) {
        cart_model_close(m);
        return cart_err_memory(err, "model", sizeof *m);
    }
    int r = open_parts(m, opt, err);
    if (r < 0) {
        cart_model_close(m);
        return r;
    }
    *out = m;
    return 0;
}

void cart_model_close(struct cart_model *m)
{
    if (!m)
        return;
    if (m->priv) {
        cart_chat_free(m->priv->chat);
        cart_tokenizer_free(m->priv->tokenizer);
        cart_arena_release(&m->priv->arena);
        cart_vocab_json_release(&m->priv->vocab);
        free(m->priv->factors);
        free(m->priv->used);
        cart_checkpoint_close(&m->priv->source);
    }
    free(m->priv);
    free(m->layers);
    free((char *)m->name);
    free((char *)m->path);
    free(m);
}

int cart_model_unchanged(const struct cart_model *m, struct cart_err *err)
{
    const char *touched;
    int r = cart_checkpoint_unchanged(&m->priv->source, &touched, err);
    /* A new name, owner or mode is no change; a time that was set back is, where it can be seen. */
    if (r == 0 && touched && (r = cart_fingerprints_hold(m, err)) == 0)
        return cart_err_set(err, CART_EAGAIN, "%s: changed while it was used", touched);
    return r < 0 ? r : 0;
}

const struct cart_tokenizer *cart_model_tokenizer(const struct cart_model *m)
{
    return m->priv->tokenizer;
}

int cart_model_chat(const struct cart_model *m, const struct cart_chat **out, struct cart_err *err)
{
    if (!m->priv->chat) {
        if (err)
            *err = m->priv->chat_err;
        return cart_err_wrap(err, m->priv->chat_err.code, "%s", m->path);
    }
    *out = m->priv->chat;
    return 0;
}
