#define _GNU_SOURCE /* memmem */
#include "study/questions.h"

#include "base/io.h"
#include "token/chat.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define FILE_LIMIT ((size_t)64 << 20)

/* What one line says; all borrowed from its object. */
struct line {
    const char *question, *answer, *stem, *quote, *path;
    const json_t *wrong;
    uint64_t at;
    bool has_at;
};

/* A misspelt key would change what is measured without a word. */
static int check_keys(const json_t *o, const char *what, struct cart_err *err)
{
    static const char *const keys[] = {"question", "answer", "wrong", "stem",
                                       "quote",    "path",   "at"};
    const char *key;
    json_t *v;
    json_object_foreach((json_t *)(uintptr_t)o, key, v) {
        bool known = key[0] == '_';
        for (size_t i = 0; i < CART_COUNTOF(keys) && !known; i++)
            known = strcmp(key, keys[i]) == 0;
        char shown[64];
        if (!known)
            return cart_err_set(err, CART_EFORMAT,
                                "%s: unknown key %s: expected question, answer, wrong, stem, "
                                "quote, path, at, or one that begins with _",
                                what, cart_err_escape(shown, sizeof shown, key, strlen(key)));
    }
    return 0;
}

static int parse_line(struct line *l, const json_t *o, const char *what, struct cart_err *err)
{
    int r;
    *l = (struct line){.at = UINT64_MAX};
    if (!json_is_object(o))
        return cart_err_set(err, CART_EFORMAT, "%s: expected an object", what);
    if ((r = check_keys(o, what, err)) < 0 ||
        (r = cart_json_string(o, "question", &l->question, what, err)) < 0 ||
        (r = cart_json_string(o, "answer", &l->answer, what, err)) < 0 ||
        (r = cart_json_string_opt(o, "stem", &l->stem, what, err)) < 0 ||
        (r = cart_json_string_opt(o, "quote", &l->quote, what, err)) < 0 ||
        (r = cart_json_string_opt(o, "path", &l->path, what, err)) < 0 ||
        (r = cart_json_u64_opt(o, "at", UINT32_MAX, &l->at, what, err)) < 0)
        return r;
    l->has_at = l->at != UINT64_MAX;
    l->wrong = json_object_get(o, "wrong");
    if (l->wrong && !json_is_array(l->wrong))
        return cart_err_set(err, CART_EFORMAT, "%s: wrong: expected an array of texts", what);
    size_t i;
    json_t *w;
    json_array_foreach((json_t *)l->wrong, i, w)
        if (!json_is_string(w) || json_string_length(w) == 0)
            return cart_err_set(err, CART_EFORMAT, "%s: wrong[%zu]: expected a text", what, i);
    if (!*l->question || !*l->answer)
        return cart_err_set(err, CART_EFORMAT, "%s: question and answer may not be empty", what);
    return 0;
}

static bool is_space(char c)
{
    return c == ' ' || c == '\n' || c == '\t';
}

/* By their tokens, the earlier one first where these are the same; behind one prompt, and in one
 * array. */
static int by_tokens(const void *a, const void *b)
{
    const struct cart_option *x = *(const struct cart_option *const *)a;
    const struct cart_option *y = *(const struct cart_option *const *)b;
    if (x->n_scored != y->n_scored)
        return x->n_scored < y->n_scored ? -1 : 1;
    int c = memcmp(x->ids + (x->T - x->n_scored), y->ids + (y->T - y->n_scored),
                   x->n_scored * sizeof *x->ids);
    return c != 0 ? c : x < y ? -1 : x > y;
}

static bool same_tokens(const struct cart_option *a, const struct cart_option *b)
{
    return a->T == b->T && memcmp(a->ids, b->ids, a->T * sizeof *a->ids) == 0;
}

/* Two options that are the same tokens would split what the answer earns, or be right and wrong. */
static int check_distinct(const struct cart_question *q, const char *what, struct cart_err *err)
{
    const struct cart_option **sorted = calloc(q->n, sizeof *sorted), *first = NULL, *again = NULL;
    if (!sorted)
        return cart_err_memory(err, "options", q->n * sizeof *sorted);
    for (size_t i = 0; i < q->n; i++)
        sorted[i] = &q->options[i];
    qsort(sorted, q->n, sizeof *sorted, by_tokens);
    for (size_t i = 1; i < q->n; i++)
        if (same_tokens(sorted[i - 1], sorted[i]) && (!again || sorted[i] < again)) {
            first = sorted[i - 1];
            again = sorted[i];
        }
    free(sorted);
    if (!again)
        return 0;
    size_t at = (size_t)(again - q->options) - 1;
    if (first == q->options)
        return cart_err_set(err, CART_EFORMAT,
                            "%s: wrong[%zu]: expected another text than the answer, found the same",
                            what, at);
    return cart_err_set(err, CART_EFORMAT,
                        "%s: wrong[%zu]: expected another text than wrong[%zu], found the same",
                        what, at, (size_t)(first - q->options) - 1);
}

static int add_option(struct cart_question *q, const struct cart_ids *prompt,
                      const struct cart_tokenizer *t, const char *text, bool space,
                      const char *what, struct cart_err *err)
{
    struct cart_buf b = CART_BUF_INIT;
    struct cart_ids ids = CART_IDS_INIT;
    int r = cart_ids_add(&ids, prompt->data, prompt->n, err);
    if (r == 0)
        r = cart_buf_addf(&b, err, "%s%s", space && !is_space(text[0]) ? " " : "", text);
    if (r == 0)
        r = cart_tokenizer_encode(t, b.data, b.len, 0, &ids, NULL, err);
    if (r == 0 && ids.n == prompt->n)
        r = cart_err_set(err, CART_EFORMAT, "%s: an option without tokens", what);
    cart_buf_release(&b);
    if (r < 0) {
        cart_ids_release(&ids);
        return r;
    }
    q->options[q->n++] = (struct cart_option){ids.data, ids.n, ids.n - prompt->n};
    return 0;
}

static int build(struct cart_question *q, const struct line *l, const struct cart_model *m,
                 const char *what, struct cart_err *err)
{
    const struct cart_tokenizer *t = cart_model_tokenizer(m);
    const struct cart_chat *chat;
    struct cart_ids prompt = CART_IDS_INIT;
    struct cart_chat_message msg = {
        .role = "user", .content = l->question, .n = strlen(l->question)};
    struct cart_chat_options co = {
        .generation_prompt = true, .behind = true, .think = CART_THINK_OFF};
    size_t wrong = json_array_size(l->wrong), stem = l->stem ? strlen(l->stem) : 0;
    int r = cart_model_chat(m, &chat, err);
    if (r < 0 || (r = cart_chat_render(chat, &msg, 1, &co, &prompt, NULL, err)) < 0)
        return r;
    /* The blank between it and an option belongs to the option's first token. */
    while (stem > 0 && is_space(l->stem[stem - 1]))
        stem--;
    if (stem > 0)
        r = cart_tokenizer_encode(t, l->stem, stem, 0, &prompt, NULL, err);
    q->options = calloc(wrong + 1, sizeof *q->options);
    if (r == 0 && !q->options)
        r = cart_err_memory(err, "options", (wrong + 1) * sizeof *q->options);
    for (size_t i = 0; i <= wrong && r == 0; i++) {
        const char *text = i == 0 ? l->answer : json_string_value(json_array_get(l->wrong, i - 1));
        r = add_option(q, &prompt, t, text, stem > 0, what, err);
    }
    cart_ids_release(&prompt);
    return r < 0 ? r : check_distinct(q, what, err);
}

/* A document's path, with or without the line that a document of a JSON Lines file has behind it,
 * or its end after a slash. */
static bool path_fits(const char *path, const char *wanted)
{
    size_t n = strlen(path), k = strlen(wanted), line = n;
    while (line > 0 && path[line - 1] >= '0' && path[line - 1] <= '9')
        line--;
    size_t ends[] = {n, line < n && line > 0 && path[line - 1] == ':' ? line - 1 : n};
    for (size_t i = 0; i < CART_COUNTOF(ends); i++) {
        size_t at = ends[i] - k;
        if (ends[i] >= k && memcmp(path + at, wanted, k) == 0 && (at == 0 || path[at - 1] == '/'))
            return true;
    }
    return false;
}

/* What all lines of a file are read against. */
struct reading {
    const struct cart_model *m;
    const struct cart_corpus *corpus;
    struct cart_buf *texts; /* [n_docs]: of those looked into, decoded once for all lines */
};

/* 1: *at is the tokens of the document up to the end of quote; 0: it is not in it. */
static int locate_in(size_t *at, const struct reading *in, size_t doc, const char *quote,
                     struct cart_err *err)
{
    const struct cart_tokenizer *t = cart_model_tokenizer(in->m);
    const struct cart_doc *d = &in->corpus->docs[doc];
    struct cart_buf *text = &in->texts[doc];
    int r = text->len > 0 ? 0 : cart_tokenizer_decode(t, d->tokens, d->n, true, text, err);
    const char *found =
        r == 0 && text->len > 0 ? memmem(text->data, text->len, quote, strlen(quote)) : NULL;
    if (!found)
        return r;
    size_t end = (size_t)(found - text->data) + strlen(quote), bytes = 0, i = 0;
    while (i < d->n && bytes < end)
        bytes += cart_tokenizer_bytes(t, d->tokens[i++]).n;
    *at = i;
    return 1;
}

/* 1: found, or nothing to find; 0: the corpus does not hold the quote. */
static int locate(struct cart_question *q, const struct line *l, const struct reading *in,
                  const char *what, struct cart_err *err)
{
    const struct cart_corpus *corpus = in->corpus;
    if (l->has_at) {
        if (l->at >= corpus->tokens)
            return cart_err_set(err, CART_EFORMAT, "%s: at %llu: the corpus has %zu tokens", what,
                                (unsigned long long)l->at, corpus->tokens);
        q->located = true;
        q->at = (size_t)l->at + 1;
        return 1;
    }
    if (!l->quote || !*l->quote)
        return 1;
    int r = 0;
    for (size_t d = 0; d < corpus->n_docs && r == 0; d++) {
        const struct cart_doc *doc = &corpus->docs[d];
        if (l->path && !path_fits(doc->path, l->path) && strcmp(doc->id, l->path) != 0)
            continue;
        size_t at = 0;
        r = locate_in(&at, in, d, l->quote, err);
        q->located = r == 1;
        q->at = q->located ? doc->first + at : 0;
    }
    return r;
}

/* Whether every option can be scored at all, behind no rows. */
static bool fits(const struct cart_question *q, const struct cart_model *m)
{
    for (size_t i = 0; i < q->n; i++)
        if (q->options[i].T > m->context)
            return false;
    return true;
}

static void release_question(struct cart_question *q)
{
    for (size_t k = 0; k < q->n; k++)
        free(q->options[k].ids);
    free(q->options);
}

/* One more line of those that count; what ends in its number. */
static int note_line(size_t *count, struct cart_buf *lines, const char *what, struct cart_err *err)
{
    return cart_buf_addf(lines, err, "%s%s", (*count)++ ? ", " : "", strrchr(what, ' ') + 1);
}

static int add_question(struct cart_questions *all, const struct line *l, const struct reading *in,
                        const char *what, struct cart_err *err)
{
    int r = cart_array_reserve(&all->items, &all->cap, all->n + 1, sizeof *all->items, err);
    if (r < 0)
        return r;
    struct cart_question *q = &all->items[all->n++];
    *q = (struct cart_question){.n = 0};
    if ((r = build(q, l, in->m, what, err)) < 0)
        return r;
    if (!fits(q, in->m)) {
        release_question(q);
        all->n--;
        return note_line(&all->too_long, &all->too_long_lines, what, err);
    }
    all->options += q->n;
    r = locate(q, l, in, what, err);
    return r == 0 ? note_line(&all->unlocated, &all->unlocated_lines, what, err) : r < 0 ? r : 0;
}

static int add_line(struct cart_questions *all, const char *text, size_t n,
                    const struct reading *in, const char *what, struct cart_err *err)
{
    json_t *o = NULL;
    struct line l;
    int r = cart_json_parse(&o, text, n, what, err);
    if (r < 0)
        return r;
    if ((r = parse_line(&l, o, what, err)) == 0)
        r = add_question(all, &l, in, what, err);
    json_decref(o);
    return r;
}

int cart_questions_read(struct cart_questions *out, const char *path, const struct cart_model *m,
                        const struct cart_corpus *corpus, struct cart_err *err)
{
    struct cart_questions all = {.n = 0};
    struct cart_buf text = CART_BUF_INIT, what = CART_BUF_INIT;
    const char *name = strcmp(path, "-") == 0 ? "standard input" : path;
    struct reading in = {m, corpus, calloc(corpus->n_docs + 1, sizeof *in.texts)};
    int r = in.texts ? cart_io_slurp(path, FILE_LIMIT, &text, err)
                     : cart_err_memory(err, "documents", corpus->n_docs * sizeof *in.texts);
    size_t line = 0;
    size_t mark = text.len >= 3 && memcmp(text.data, "\xef\xbb\xbf", 3) == 0 ? 3 : 0;
    for (size_t at = mark; at < text.len && r == 0; line++) {
        const char *s = text.data + at, *end = memchr(s, '\n', text.len - at);
        size_t n = end ? (size_t)(end - s) : text.len - at;
        at += n + 1;
        size_t blank = 0;
        while (blank < n && (is_space(s[blank]) || s[blank] == '\r'))
            blank++;
        cart_buf_reset(&what);
        if (blank < n && (r = cart_buf_addf(&what, err, "%s: line %zu", name, line + 1)) == 0)
            r = add_line(&all, s, n, &in, what.data, err);
    }
    if (r == 0 && all.n == 0)
        r = cart_err_set(err, CART_EFORMAT, "%s: expected a question%s, found none", name,
                         all.too_long ? " that fits the model's context" : "");
    for (size_t d = 0; in.texts && d < corpus->n_docs; d++)
        cart_buf_release(&in.texts[d]);
    free(in.texts);
    cart_buf_release(&what);
    cart_buf_release(&text);
    if (r < 0) {
        cart_questions_release(&all);
        return r;
    }
    *out = all;
    return 0;
}

void cart_questions_release(struct cart_questions *q)
{
    for (size_t i = 0; i < q->n; i++)
        release_question(&q->items[i]);
    free(q->items);
    cart_buf_release(&q->unlocated_lines);
    cart_buf_release(&q->too_long_lines);
    *q = (struct cart_questions){.n = 0};
}
