/* Vocabularies: the input is lines, each a letter and what it is about. "m a b" a merge (its result
 * becomes a token unless there is one), "t", "c", "u" an ordinary, control or user-defined token,
 * "x" a text to be tokenised; the first byte of all chooses the pre-tokenizer. The 256 bytes come
 * first, but for those that a line "-" drops. A vocabulary is refused, or it tokenises every text
 * without loss. */
#include "fuzz/fuzz.h"
#include "helper/vocab.h"

#include <stdlib.h>
#include <string.h>

#define LINES_MAX ((size_t)512)

static struct test_vocab bytes; /* where the spelling of the 256 bytes comes from */

struct made {
    struct cart_text tokens[256 + 2 * LINES_MAX], merges[LINES_MAX], texts[LINES_MAX];
    int32_t types[256 + 2 * LINES_MAX];
    char *spelt[LINES_MAX]; /* results of merges, owned */
    size_t n_tokens, n_merges, n_texts, n_spelt;
};

static void add_token(struct made *m, const char *s, size_t n, int32_t type)
{
    m->types[m->n_tokens] = type;
    m->tokens[m->n_tokens++] = (struct cart_text){s, n};
}

static void add_merge(struct made *m, const char *s, size_t n)
{
    const char *space = n > 0 ? memchr(s, ' ', n) : NULL;
    m->merges[m->n_merges++] = (struct cart_text){s, n};
    if (!space)
        return;
    char *spelt = malloc(n);
    size_t left = (size_t)(space - s);
    fuzz_demand(spelt != NULL, "memory");
    memcpy(spelt, s, left);
    memcpy(spelt + left, space + 1, n - left - 1);
    m->spelt[m->n_spelt++] = spelt;
    for (size_t i = 0; i < m->n_tokens; i++)
        if (m->tokens[i].n == n - 1 && memcmp(m->tokens[i].data, spelt, n - 1) == 0)
            return;
    add_token(m, spelt, n - 1, CART_TOKEN_NORMAL);
}

static void add_line(struct made *m, const char *s, size_t n)
{
    static const char letters[] = "tcu";
    static const int32_t types[] = {CART_TOKEN_NORMAL, CART_TOKEN_CONTROL, CART_TOKEN_USER_DEFINED};
    const char *letter = memchr(letters, *s, sizeof letters - 1);
    if (*s == 'm')
        add_merge(m, s + 1, n - 1);
    else if (letter)
        add_token(m, s + 1, n - 1, types[letter - letters]);
    else if (*s == 'x')
        m->texts[m->n_texts++] = (struct cart_text){s + 1, n - 1};
    else if (*s == '-' && m->n_tokens > 1)
        m->n_tokens--;
}

static void read_lines(struct made *m, const char *s, size_t n)
{
    for (size_t i = 0; i < 256; i++)
        add_token(m, bytes.tokens[i].data, bytes.tokens[i].n, CART_TOKEN_NORMAL);
    for (size_t at = 0, lines = 0; at < n && lines < LINES_MAX; lines++) {
        const char *end = memchr(s + at, '\n', n - at);
        size_t len = end ? (size_t)(end - s) - at : n - at;
        if (len > 0)
            add_line(m, s + at, len);
        at += len + 1;
    }
}

static void check_text(const struct cart_tokenizer *t, const struct cart_text *x)
{
    struct cart_err err = {0};
    struct cart_buf norm = CART_BUF_INIT, back = CART_BUF_INIT;
    struct cart_ids ids = CART_IDS_INIT, again = CART_IDS_INIT;
    struct cart_encode_stats stats = {0};
    fuzz_need(cart_tokenizer_encode(t, x->data, x->n, 0, &ids, &stats, &err), &err);
    fuzz_need(cart_tokenizer_encode(t, x->data, x->n, 0, &again, NULL, &err), &err);
    fuzz_demand(ids.n == again.n &&
                    (ids.n == 0 || memcmp(ids.data, again.data, ids.n * sizeof *ids.data) == 0),
                "the same ids for the same text");
    fuzz_need(cart_tokenizer_normalize(t, x->data, x->n, &norm, &err), &err);
    fuzz_need(cart_tokenizer_decode(t, ids.data, ids.n, true, &back, &err), &err);
    fuzz_demand(back.len + stats.dropped == norm.len, "all bytes, but for those dropped");
    fuzz_demand(stats.dropped > 0 || fuzz_same(&back, &norm), "the text back");
    for (size_t i = 0; i < ids.n; i++)
        fuzz_demand(!cart_tokenizer_is_control(t, ids.data[i]), "plain tokens of plain text");
    ids.n = 0;
    fuzz_need(cart_tokenizer_encode(t, x->data, x->n, CART_ENCODE_SPECIAL, &ids, NULL, &err), &err);
    cart_ids_release(&again);
    cart_ids_release(&ids);
    cart_buf_release(&back);
    cart_buf_release(&norm);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    static const char *const pres[] = {"smollm", "qwen2", "llama-bpe"}, *const one[] = {"a b",
                                                                                        NULL};
    static struct made m;
    struct cart_err err = {0};
    struct cart_tokenizer *t;
    if (!bytes.t)
        test_vocab_small(&bytes, "smollm", one, NULL, CART_TOKEN_NORMAL);
    if (n == 0)
        return 0;
    char *copy = fuzz_copy(data + 1, n - 1);
    m.n_tokens = m.n_merges = m.n_texts = m.n_spelt = 0;
    read_lines(&m, copy, n - 1);
    const struct cart_vocab_source src = {.model = "gpt2",
                                          .pre = pres[data[0] % 3],
                                          .tokens = m.tokens,
                                          .n_tokens = m.n_tokens,
                                          .types = m.types,
                                          .n_types = m.n_tokens,
                                          .merges = m.merges,
                                          .n_merges = m.n_merges,
                                          .bos = -1,
                                          .eos = -1,
                                          .eot = -1,
                                          .pad = -1,
                                          .unk = -1};
    int r = cart_tokenizer_new(&t, &src, &err);
    if (r < 0) {
        fuzz_refused(r, &err);
    } else {
        for (size_t i = 0; i < m.n_texts; i++)
            check_text(t, &m.texts[i]);
        cart_tokenizer_free(t);
    }
    for (size_t i = 0; i < m.n_spelt; i++)
        free(m.spelt[i]);
    free(copy);
    return 0;
}
