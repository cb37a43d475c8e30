/* The tokenizer and the chat profile that a file's tokenizer.* keys describe. */
#include "model/model_impl.h"

#include <stdlib.h>
#include <string.h>

#define MAX_TEMPLATE ((size_t)1 << 20)

/* A special id: -1 when the key is absent. */
static int special(const struct cart_model *m, const char *key, int64_t *out, struct cart_err *err)
{
    uint64_t id = 0;
    *out = -1;
    if (!cart_gguf_find(m->priv->source.gguf, key))
        return 0;
    int r = cart_gguf_u64(m->priv->source.gguf, key, UINT32_MAX, &id, err);
    if (r == 0 && id >= m->V)
        r = cart_err_set(err, CART_EFORMAT, "%s: key %s: expected less than %zu, found %llu",
                         m->path, key, m->V, (unsigned long long)id);
    *out = (int64_t)id;
    return r;
}

/* A string key as C text (owned), or NULL if absent. C text would end at a NUL within. */
static int text_key(const struct cart_model *m, const char *key, char **out, struct cart_err *err)
{
    struct cart_gguf_str s = {NULL, 0};
    int r = cart_gguf_string_opt(m->priv->source.gguf, key, &s, err);
    if (r < 0 || !s.data)
        return r;
    if (memchr(s.data, 0, s.len))
        return cart_err_set(err, CART_EFORMAT, "%s: key %s: expected text, found a NUL in it",
                            m->path, key);
    *out = strndup(s.data, s.len);
    return *out ? 0 : cart_err_memory(err, key, s.len);
}

static int text_array(const struct cart_gguf *g, const char *key, struct cart_text **out, size_t *n,
                      struct cart_err *err)
{
    struct cart_gguf_str *strings = NULL;
    int r = cart_gguf_strings_opt(g, key, &strings, n, err);
    if (r < 0 || *n == 0) {
        free(strings);
        return r;
    }
    *out = calloc(*n, sizeof **out);
    for (size_t i = 0; *out && i < *n; i++)
        (*out)[i] = (struct cart_text){strings[i].data, strings[i].len};
    free(strings);
    return *out ? 0 : cart_err_memory(err, key, *n * sizeof **out);
}

static int read_types(const struct cart_model *m, int32_t **out, size_t *n, struct cart_err *err)
{
    struct cart_gguf_array a = {.n = 0};
    int r =
        cart_gguf_array_opt(m->priv->source.gguf, "tokenizer.ggml.token_type",
                            CART_GGUF_SET(CART_GGUF_I32) | CART_GGUF_SET(CART_GGUF_U32), &a, err);
    if (r < 0 || a.n == 0)
        return r;
    int32_t *types = calloc(a.n, sizeof *types);
    if (!types)
        return cart_err_memory(err, "token types", a.n * sizeof *types);
    for (size_t i = 0; i < a.n; i++) {
        int64_t v = cart_gguf_array_i64(&a, i);
        types[i] = v < 0 || v > INT32_MAX ? -1 : (int32_t)v;
    }
    *out = types;
    *n = a.n;
    return 0;
}

/* Scores have no use in byte-level BPE, but a table of the wrong length marks a broken file. */
static int check_scores(const struct cart_model *m, size_t n_tokens, struct cart_err *err)
{
    struct cart_gguf_array a = {.n = n_tokens};
    int r = cart_gguf_array_opt(m->priv->source.gguf, "tokenizer.ggml.scores", CART_GGUF_SET_REAL,
                                &a, err);
    if (r == 0 && a.n != n_tokens)
        r = cart_err_set(err, CART_EFORMAT,
                         "%s: key tokenizer.ggml.scores: expected %zu values, found %zu", m->path,
                         n_tokens, a.n);
    return r;
}

static int read_tokenizer(struct cart_model *m, struct cart_err *err)
{
    const struct cart_gguf *g = m->priv->source.gguf;
    struct cart_vocab_source src = {0};
    struct cart_text *tokens = NULL, *merges = NULL;
    int32_t *types = NULL;
    char *model = NULL, *pre = NULL;
    int r = text_key(m, "tokenizer.ggml.model", &model, err);
    if (r == 0)
        r = text_key(m, "tokenizer.ggml.pre", &pre, err);
    if (r == 0)
        r = text_array(g, "tokenizer.ggml.tokens", &tokens, &src.n_tokens, err);
    if (r == 0)
        r = text_array(g, "tokenizer.ggml.merges", &merges, &src.n_merges, err);
    if (r == 0)
        r = read_types(m, &types, &src.n_types, err);
    if (r == 0)
        r = check_scores(m, src.n_tokens, err);
    if (r == 0 && src.n_tokens != m->V)
        r = cart_err_set(err, CART_EFORMAT,
                         "%s: key tokenizer.ggml.tokens: expected %zu strings, one a row of the "
                         "embedding, found %zu",
                         m->path, m->V, src.n_tokens);
    if (r == 0)
        r = special(m, "tokenizer.ggml.bos_token_id", &src.bos, err);
    if (r == 0)
        r = special(m, "tokenizer.ggml.eos_token_id", &src.eos, err);
    if (r == 0)
        r = special(m, "tokenizer.ggml.eot_token_id", &src.eot, err);
    if (r == 0)
        r = special(m, "tokenizer.ggml.padding_token_id", &src.pad, err);
    if (r == 0)
        r = special(m, "tokenizer.ggml.unknown_token_id", &src.unk, err);
    if (r == 0)
        r = cart_gguf_bool_opt(g, "tokenizer.ggml.add_bos_token", &src.add_bos, err);
    if (r == 0) {
        src.model = model ? model : "";
        src.pre = pre ? pre : "";
        src.tokens = tokens;
        src.merges = merges;
        src.types = types;
        r = cart_tokenizer_new(&m->priv->tokenizer, &src, err);
        if (r < 0)
            cart_err_wrap(err, r, "%s", m->path);
    }
    free(tokens);
    free(merges);
    free(types);
    free(model);
    free(pre);
    return r;
}

/* A model without a usable template still tokenises; whoever needs to chat gets this error then. A
 * profile that was asked for by name and does not exist is an error at once, and so is a lack of
 * memory, which says nothing of the template. */
int cart_vocabulary_chat(struct cart_model *m, const char *text, size_t n, const char *profile,
                         struct cart_err *err)
{
    int r = cart_chat_new(&m->priv->chat, m->priv->tokenizer, text, n, profile, &m->priv->chat_err);
    if (r < 0 && (profile || r == CART_ESYS)) {
        if (err)
            *err = m->priv->chat_err;
        return r;
    }
    return 0;
}

int cart_vocabulary_read(struct cart_model *m, const char *profile, struct cart_err *err)
{
    struct cart_gguf_str text = {NULL, 0};
    int r = read_tokenizer(m, err);
    if (r == 0)
        r = cart_gguf_string_opt(m->priv->source.gguf, "tokenizer.chat_template", &text, err);
    if (r == 0 && text.len > MAX_TEMPLATE)
        r = cart_err_set(err, CART_EFORMAT,
                         "%s: key tokenizer.chat_template: expected at most %zu bytes, found %zu",
                         m->path, MAX_TEMPLATE, text.len);
    return r < 0 ? r : cart_vocabulary_chat(m, text.data, text.len, profile, err);
}
