#include "token/tokenizer_json.h"

#include "token/tokenizer_json_impl.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { PAD_BYTES = 16 }; /* "[PAD4194303]" */

/* A file being read: strings are measured first, then copied one after another into out->text. */
struct reader {
    struct cart_vocab_json *out;
    const char *what;
    const json_t *vocab, *added, *merges;
    size_t at; /* bytes of text written */
    bool nfc;
};

static struct cart_text keep(struct reader *rd, const char *s, size_t n)
{
    char *to = rd->out->text + rd->at;
    memcpy(to, s, n);
    rd->at += n;
    return (struct cart_text){to, n};
}

static int refuse_part(const char *key, const char *what, struct cart_err *err)
{
    return cart_err_set(err, CART_EFORMAT, "%s: %s: only plain byte-level BPE is read", what, key);
}

/* The parts of the model that must be absent, or say that they do nothing; and the types of what is
 * read elsewhere or not at all. */
static int check_model(const json_t *model, const char *file, struct cart_err *err)
{
    static const char *const flags[] = {"byte_fallback", "ignore_merges", "fuse_unk"};
    static const char *const texts[] = {"continuing_subword_prefix", "end_of_word_suffix",
                                        "unk_token"};
    const json_t *dropout = json_object_get(model, "dropout");
    char what[320], found[48];
    int r = 0;
    snprintf(what, sizeof what, "%.280s: model", file);
    if (dropout && !json_is_null(dropout) && !json_is_number(dropout))
        return cart_err_set(err, CART_EFORMAT, "%s: dropout: expected a number, found %s", what,
                            cart_json_found(dropout, found));
    if (json_number_value(dropout) != 0)
        return refuse_part("dropout", what, err);
    for (size_t i = 0; i < CART_COUNTOF(flags) && r == 0; i++) {
        bool on = false;
        r = cart_json_bool_opt(model, flags[i], &on, what, err);
        if (r == 0 && on && i == 0)
            r = refuse_part(flags[i], what, err);
    }
    for (size_t i = 0; i < CART_COUNTOF(texts) && r == 0; i++) {
        const char *text = "";
        r = cart_json_string_opt(model, texts[i], &text, what, err);
        if (r == 0 && *text && i < 2)
            r = refuse_part(texts[i], what, err);
    }
    return r;
}

static int find_parts(struct reader *rd, const json_t *root, struct cart_err *err)
{
    json_t *model = NULL, *vocab = NULL, *merges = NULL, *added = NULL;
    const char *type = "BPE";
    int r = cart_json_object(root, "model", &model, rd->what, err);
    if (r == 0)
        r = cart_json_string_opt(model, "type", &type, rd->what, err);
    if (r == 0 && strcmp(type, "BPE") != 0) {
        char shown[64];
        r = cart_err_set(err, CART_EFORMAT, "%s: model: expected BPE, found '%s'", rd->what,
                         cart_err_escape(shown, sizeof shown, type, strlen(type)));
    }
    if (r == 0)
        r = check_model(model, rd->what, err);
    if (r == 0)
        r = cart_json_object(model, "vocab", &vocab, rd->what, err);
    if (r == 0)
        r = cart_json_array(model, "merges", &merges, rd->what, err);
    if (r == 0 && json_object_get(root, "added_tokens"))
        r = cart_json_array(root, "added_tokens", &added, rd->what, err);
    if (r == 0 && json_array_size(merges) > CART_TOKENIZER_MAX_VOCAB)
        r = cart_err_set(err, CART_EFORMAT, "%s: merges: expected at most %zu, found %zu", rd->what,
                         CART_TOKENIZER_MAX_VOCAB, json_array_size(merges));
    rd->vocab = vocab;
    rd->merges = merges;
    rd->added = added;
    return r;
}

/* The parts of merge i: "left right", cut at its space, or [left, right]. */
static int merge_parts(const struct reader *rd, size_t i, struct cart_text part[2],
                       struct cart_err *err)
{
    const json_t *m = json_array_get(rd->merges, i);
    if (json_is_string(m)) {
        part[0] = (struct cart_text){json_string_value(m), json_string_length(m)};
        part[1] = (struct cart_text){"", 0};
        return 0;
    }
    for (size_t k = 0; k < 2; k++) {
        const json_t *s = json_array_get(m, k);
        size_t n = json_string_length(s);
        if (json_array_size(m) != 2 || !json_is_string(s) || memchr(json_string_value(s), ' ', n))
            return cart_err_set(err, CART_EFORMAT,
                                "%s: merges: value %zu: expected a string or two without spaces",
                                rd->what, i);
        part[k] = (struct cart_text){json_string_value(s), n};
    }
    return 0;
}

/* jansson's iterators take no const, but only walk. */
static json_t *walkable(const json_t *v)
{
    return (json_t *)(uintptr_t)v;
}

static int measure(struct reader *rd, size_t *total, struct cart_err *err)
{
    size_t n = PAD_BYTES * rd->out->src.n_tokens, i;
    struct cart_text part[2];
    const char *key;
    json_t *v;
    json_object_foreach(walkable(rd->vocab), key, v)
        n += strlen(key);
    json_array_foreach(walkable(rd->added), i, v)
        n += json_string_length(json_object_get(v, "content"));
    for (i = 0; i < json_array_size(rd->merges); i++) {
        int r = merge_parts(rd, i, part, err);
        if (r < 0)
            return r;
        n += part[0].n + 1 + part[1].n;
    }
    *total = n;
    return 0;
}

static int allocate(struct reader *rd, struct cart_err *err)
{
    struct cart_vocab_json *v = rd->out;
    size_t total = 0, merges = json_array_size(rd->merges);
    int r = measure(rd, &total, err);
    if (r < 0)
        return r;
    v->text = malloc(total + 1);
    v->tokens = calloc(v->src.n_tokens, sizeof *v->tokens);
    v->types = calloc(v->src.n_tokens, sizeof *v->types);
    v->merges = calloc(merges + 1, sizeof *v->merges);
    if (!v->text || !v->tokens || !v->types || !v->merges)
        return cart_err_memory(err, rd->what, total);
    v->src.tokens = v->tokens;
    v->src.types = v->types;
    v->src.merges = v->merges;
    v->src.n_types = v->src.n_tokens;
    v->src.n_merges = merges;
    return 0;
}

/* An id that a row of the embedding belongs to. */
static int take_id(const struct reader *rd, const json_t *v, const char *token, size_t *id,
                   struct cart_err *err)
{
    char shown[64];
    uint64_t i;
    if (rd->out->src.n_tokens == 0 || !cart_json_whole(v, rd->out->src.n_tokens - 1, &i))
        return cart_err_set(err, CART_EFORMAT,
                            "%s: token '%s': expected an id below %zu, the rows of the embedding",
                            rd->what, cart_err_escape(shown, sizeof shown, token, strlen(token)),
                            rd->out->src.n_tokens);
    *id = (size_t)i;
    return 0;
}

static int id_taken(const struct reader *rd, size_t id, const char *token, struct cart_err *err)
{
    char a[64], b[64];
    struct cart_text was = rd->out->tokens[id];
    return cart_err_set(err, CART_EFORMAT, "%s: id %zu: both '%s' and '%s' have it", rd->what, id,
                        cart_err_escape(a, sizeof a, was.data, was.n),
                        cart_err_escape(b, sizeof b, token, strlen(token)));
}

static int read_vocab(struct reader *rd, struct cart_err *err)
{
    struct cart_vocab_json *v = rd->out;
    const char *key;
    json_t *value;
    size_t id = 0;
    json_object_foreach(walkable(rd->vocab), key, value) {
        int r = take_id(rd, value, key, &id, err);
        if (r == 0 && v->types[id] != 0)
            r = id_taken(rd, id, key, err);
        if (r < 0)
            return r;
        v->tokens[id] = keep(rd, key, strlen(key));
        v->types[id] = CART_TOKEN_NORMAL;
    }
    return 0;
}

static int check_added(const struct reader *rd, const json_t *token, const char *content,
                       bool *special, struct cart_err *err)
{
    static const char *const flags[] = {"single_word", "lstrip", "rstrip", "normalized", "special"};
    char shown[64], what[360];
    bool on[CART_COUNTOF(flags)] = {false};
    int r = 0;
    snprintf(what, sizeof what, "%.280s: added token '%s'", rd->what,
             cart_err_escape(shown, sizeof shown, content, strlen(content)));
    for (size_t i = 0; i < CART_COUNTOF(flags) && r == 0; i++)
        r = cart_json_bool_opt(token, flags[i], &on[i], what, err);
    on[3] = on[3] && rd->nfc;
    for (size_t i = 0; i < 4 && r == 0; i++)
        if (on[i])
            r = cart_err_set(err, CART_EFORMAT, "%s: %s: expected false, found true", what,
                             flags[i]);
    *special = on[4];
    return r;
}

static int read_added(struct reader *rd, struct cart_err *err)
{
    struct cart_vocab_json *v = rd->out;
    for (size_t i = 0; i < json_array_size(rd->added); i++) {
        const json_t *token = json_array_get(rd->added, i);
        const char *content = NULL;
        bool special = false;
        size_t id = 0;
        int r = cart_json_string(token, "content", &content, rd->what, err);
        if (r == 0)
            r = take_id(rd, json_object_get(token, "id"), content, &id, err);
        if (r == 0)
            r = check_added(rd, token, content, &special, err);
        if (r < 0)
            return r;
        size_t n = strlen(content);
        bool listed = v->types[id] == CART_TOKEN_NORMAL && v->tokens[id].n == n &&
                      memcmp(v->tokens[id].data, content, n) == 0;
        if (v->types[id] != 0 && !listed)
            return id_taken(rd, id, content, err);
        if (!listed)
            v->tokens[id] = keep(rd, content, n);
        v->types[id] = special ? CART_TOKEN_CONTROL : CART_TOKEN_USER_DEFINED;
    }
    return 0;
}

/* Rows of the embedding without a token get the name that converters give them. */
static void fill_holes(struct reader *rd)
{
    struct cart_vocab_json *v = rd->out;
    for (size_t i = 0; i < v->src.n_tokens; i++) {
        char name[PAD_BYTES];
        if (v->types[i] != 0)
            continue;
        int n = snprintf(name, sizeof name, "[PAD%zu]", i);
        v->tokens[i] = keep(rd, name, (size_t)n);
        v->types[i] = CART_TOKEN_UNUSED;
    }
}

static int read_merges(struct reader *rd, struct cart_err *err)
{
    struct cart_text part[2];
    for (size_t i = 0; i < json_array_size(rd->merges); i++) {
        int r = merge_parts(rd, i, part, err);
        if (r < 0)
            return r;
        struct cart_text m = keep(rd, part[0].data, part[0].n);
        if (json_is_array(json_array_get(rd->merges, i))) {
            keep(rd, " ", 1);
            keep(rd, part[1].data, part[1].n);
            m.n += 1 + part[1].n;
        }
        rd->out->merges[i] = m;
    }
    return 0;
}

static int read_first(struct reader *rd, const json_t *root, struct cart_err *err)
{
    const char *first = NULL;
    int r = cart_vocab_json_ends(root, &first, rd->what, err);
    rd->out->first = CART_TOKEN_NONE;
    if (r < 0 || !first)
        return r;
    rd->out->first = cart_vocab_json_find(rd->out, first);
    char shown[64];
    if (rd->out->first == CART_TOKEN_NONE)
        return cart_err_set(err, CART_EFORMAT, "%s: post_processor: '%s' is no token", rd->what,
                            cart_err_escape(shown, sizeof shown, first, strlen(first)));
    return 0;
}

int cart_vocab_json_read(struct cart_vocab_json *out, const json_t *root, size_t n_tokens,
                         const char *what, struct cart_err *err)
{
    struct cart_vocab_json v = {.src = {.model = "gpt2",
                                        .n_tokens = n_tokens,
                                        .bos = -1,
                                        .eos = -1,
                                        .eot = -1,
                                        .pad = -1,
                                        .unk = -1}};
    struct reader rd = {.out = &v, .what = what};
    if (n_tokens == 0 || n_tokens > CART_TOKENIZER_MAX_VOCAB)
        return cart_err_set(err, CART_EFORMAT, "%s: tokens: expected 1 to %zu, found %zu", what,
                            CART_TOKENIZER_MAX_VOCAB, n_tokens);
    int r = find_parts(&rd, root, err);
    if (r == 0)
        r = cart_vocab_json_family(root, &v.src.pre, &rd.nfc, what, err);
    if (r == 0)
        r = allocate(&rd, err);
    if (r == 0)
        r = read_vocab(&rd, err);
    if (r == 0)
        r = read_added(&rd, err);
    if (r == 0) {
        fill_holes(&rd);
        r = read_merges(&rd, err);
    }
    if (r == 0)
        r = read_first(&rd, root, err);
    if (r < 0) {
        cart_vocab_json_release(&v);
        return r;
    }
    *out = v;
    return 0;
}

void cart_vocab_json_release(struct cart_vocab_json *v)
{
    free(v->tokens);
    free(v->merges);
    free(v->types);
    free(v->text);
    *v = (struct cart_vocab_json){0};
}

uint32_t cart_vocab_json_find(const struct cart_vocab_json *v, const char *token)
{
    size_t n = strlen(token);
    for (size_t i = 0; i < v->src.n_tokens; i++)
        if (v->tokens[i].n == n && memcmp(v->tokens[i].data, token, n) == 0)
            return (uint32_t)i;
    return CART_TOKEN_NONE;
}
