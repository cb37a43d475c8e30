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

/* The lists of a vocabulary, as the file has them and as the tokenizer wants them. */
struct lists {
    struct cart_gguf_array tokens_in, merges_in, types_in; /* n is 0 where there is none */
    struct cart_text *tokens, *merges;
    int32_t *types;
    struct cart_arena arena;
};

static int find_lists(const struct cart_gguf *g, struct lists *v, struct cart_err *err)
{
    unsigned strings = CART_GGUF_SET(CART_GGUF_STRING),
             ints = CART_GGUF_SET(CART_GGUF_I32) | CART_GGUF_SET(CART_GGUF_U32);
    int r = cart_gguf_array_opt(g, "tokenizer.ggml.tokens", strings, &v->tokens_in, err);
    if (r == 0)
        r = cart_gguf_array_opt(g, "tokenizer.ggml.merges", strings, &v->merges_in, err);
    if (r == 0)
        r = cart_gguf_array_opt(g, "tokenizer.ggml.token_type", ints, &v->types_in, err);
    return r;
}

/* Each element takes bytes of the file, so that its size bounds this. */
static void layout(struct cart_arena *a, struct lists *v)
{
    v->tokens = cart_arena_push(a, v->tokens_in.n, sizeof *v->tokens);
    v->merges = cart_arena_push(a, v->merges_in.n, sizeof *v->merges);
    v->types = cart_arena_push(a, v->types_in.n, sizeof *v->types);
}

static void read_texts(const struct cart_gguf_array *a, struct cart_text *out)
{
    const unsigned char *cursor = a->data;
    for (size_t i = 0; i < a->n; i++) {
        struct cart_gguf_str s = cart_gguf_string_next(&cursor);
        out[i] = (struct cart_text){s.data, s.len};
    }
}

static int read_lists(struct lists *v, struct cart_vocab_source *src, struct cart_err *err)
{
    layout(&v->arena, v);
    int r = cart_arena_reserve_dense(&v->arena, v->arena.used, err);
    if (r < 0)
        return r;
    layout(&v->arena, v);
    read_texts(&v->tokens_in, v->tokens);
    read_texts(&v->merges_in, v->merges);
    for (size_t i = 0; i < v->types_in.n; i++) {
        int64_t type = cart_gguf_array_i64(&v->types_in, i);
        v->types[i] = type < 0 || type > INT32_MAX ? -1 : (int32_t)type;
    }
    src->tokens = v->tokens;
    src->n_tokens = v->tokens_in.n;
    src->tokens_stored = (struct cart_text){(const char *)v->tokens_in.data, v->tokens_in.bytes};
    src->merges = v->merges;
    src->n_merges = v->merges_in.n;
    src->merges_stored = (struct cart_text){(const char *)v->merges_in.data, v->merges_in.bytes};
    src->types = v->types_in.n > 0 ? v->types : NULL;
    src->n_types = v->types_in.n;
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
    struct lists lists = {.arena = CART_ARENA_INIT};
    char *model = NULL, *pre = NULL;
    int r = text_key(m, "tokenizer.ggml.model", &model, err);
    if (r == 0)
        r = text_key(m, "tokenizer.ggml.pre", &pre, err);
    if (r == 0)
        r = find_lists(g, &lists, err);
    if (r == 0)
        r = check_scores(m, lists.tokens_in.n, err);
    if (r == 0 && lists.tokens_in.n != m->V)
        r = cart_err_set(err, CART_EFORMAT,
                         "%s: key tokenizer.ggml.tokens: expected %zu strings, one a row of the "
                         "embedding, found %zu",
                         m->path, m->V, lists.tokens_in.n);
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
    src.add_bos = r == 0 && src.bos >= 0 && cart_tokenizer_family_adds_bos(pre);
    if (r == 0)
        r = cart_gguf_bool_opt(g, "tokenizer.ggml.add_bos_token", &src.add_bos, err);
    if (r == 0)
        r = read_lists(&lists, &src, err);
    if (r == 0) {
        src.model = model ? model : "";
        src.pre = pre ? pre : "";
        r = cart_tokenizer_new(&m->priv->tokenizer, &src, err);
        if (r < 0)
            cart_err_wrap(err, r, "%s", m->path);
    }
    cart_arena_release(&lists.arena);
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
