#include "engine/lexicon_impl.h"

#include <stdlib.h>
#include <string.h>

#define TOKEN_MAX                                                                                  \
    ((size_t)1024) /* bytes of a token that a grammar may use; longer ones are left out */

struct word {
    struct cart_text text;
    uint32_t id;
};

static int by_bytes(const void *a, const void *b)
{
    const struct word *x = a;
    const struct word *y = b;
    size_t n = x->text.n < y->text.n ? x->text.n : y->text.n;
    int order = memcmp(x->text.data, y->text.data, n);

    if (order != 0)
        return order;
    if (x->text.n != y->text.n)
        return x->text.n < y->text.n ? -1 : 1;
    return x->id < y->id ? -1 : x->id > y->id;
}

static size_t shared(const struct cart_text *a, const struct cart_text *b)
{
    size_t n = 0;

    while (n < a->n && n < b->n && a->data[n] == b->data[n])
        n++;
    return n;
}

static size_t count_nodes(const struct word *words, size_t n)
{
    size_t nodes = 0;

    for (size_t i = 0; i < n; i++)
        nodes += words[i].text.n - (i > 0 ? shared(&words[i - 1].text, &words[i].text) : 0);
    return nodes;
}

/* Words come sorted, so that the nodes come in preorder; a path of open nodes closes where the next
 * word leaves it. */
static void fill(struct cart_lexicon *l, const struct word *words, size_t n, uint32_t *path)
{
    size_t node = 0;
    size_t open = 0;

    for (size_t i = 0; i < n; i++) {
        size_t keep = i > 0 ? shared(&words[i - 1].text, &words[i].text) : 0;
        while (open > keep)
            l->skip[path[--open]] = (uint32_t)node;
        while (open < words[i].text.n) {
            l->byte[node] = (uint8_t)words[i].text.data[open];
            l->first[node] = (uint32_t)i;
            path[open++] = (uint32_t)node;
            l->depth[node++] = (uint16_t)open;
        }
        l->max_depth = open > l->max_depth ? open : l->max_depth;
        l->tokens[i] = words[i].id;
    }
    while (open > 0)
        l->skip[path[--open]] = (uint32_t)node;
    l->first[node] = (uint32_t)n;
}

size_t cart_lexicon_bytes(const struct cart_lexicon *l)
{
    return l->n * (sizeof *l->byte + sizeof *l->depth + sizeof *l->skip + sizeof *l->first) +
           l->V * (sizeof *l->tokens + sizeof *l->special);
}

/* A node's tokens are those from its first up to the first of the next node: true for preorder,
 * since a word that ends at a node sorts before those that go on from it. */
static int build(struct cart_lexicon *l, struct word *words, size_t n, struct cart_err *err)
{
    qsort(words, n, sizeof *words, by_bytes);
    l->n = count_nodes(words, n);
    l->byte = malloc(l->n + 1);
    l->depth = malloc((l->n + 1) * sizeof *l->depth);
    l->skip = malloc((l->n + 1) * sizeof *l->skip);
    l->first = malloc((l->n + 1) * sizeof *l->first);
    l->tokens = malloc((n + 1) * sizeof *l->tokens);
    uint32_t *path = malloc(TOKEN_MAX * sizeof *path);
    int r = 0;
    if (l->byte == NULL || l->depth == NULL || l->skip == NULL || l->first == NULL ||
        l->tokens == NULL || path == NULL)
        r = cart_err_memory(err, "the trie of a vocabulary", cart_lexicon_bytes(l));
    else
        fill(l, words, n, path);
    free(path);
    return r;
}

int cart_lexicon_new(struct cart_lexicon **out, const struct cart_tokenizer *t,
                     struct cart_err *err)
{
    struct cart_lexicon *l = calloc(1, sizeof *l);
    size_t V = cart_tokenizer_size(t);
    struct word *words = malloc((V + 1) * sizeof *words);
    size_t n = 0;
    int r = 0;

    if (l == NULL || words == NULL || (l->special = malloc((V + 1) * sizeof *l->special)) == NULL) {
        r = cart_err_memory(err, "the trie of a vocabulary", V * sizeof *words);
        goto out;
    }
    l->t = t;
    l->V = V;
    for (uint32_t id = 0; id < V; id++) {
        struct cart_text text = cart_tokenizer_bytes(t, id);
        if (cart_tokenizer_is_special(t, id))
            l->special[l->n_special++] = id;
        else if (text.n > 0 && text.n <= TOKEN_MAX)
            words[n++] = (struct word){text, id};
    }
    r = build(l, words, n, err);
out:
    free(words);
    if (r < 0)
        cart_lexicon_free(l);
    else
        *out = l;
    return r;
}

void cart_lexicon_free(struct cart_lexicon *l)
{
    if (l == NULL)
        return;
    free(l->byte);
    free(l->depth);
    free(l->skip);
    free(l->first);
    free(l->tokens);
    free(l->special);
    free(l);
}
