#include "token/tokenizer_impl.h"

#include "base/hash.h"
#include "token/unicode.h"

#include <stdlib.h>
#include <string.h>

/* What a pre-tokenizer's name in a file stands for. NFC is the qwen2 family's normaliser: a model
 * file does not state it, the family's own tokenizer has it. So it is with the bos of llama 3. */
static const struct family {
    const char *name;
    const char *canonical;
    enum cart_split split;
    bool nfc;
    bool ignore_merges;
    bool add_bos; /* where the file says nothing */
} families[] = {
    {"smollm", "smollm", CART_SPLIT_SMOLLM, false, false, false},
    {"qwen2", "qwen2", CART_SPLIT_QWEN2, true, false, false},
    {"llama-bpe", "llama-bpe", CART_SPLIT_LLAMA_BPE, false, true, true},
    {"llama3", "llama-bpe", CART_SPLIT_LLAMA_BPE, false, true, true},
    {"llama-v3", "llama-bpe", CART_SPLIT_LLAMA_BPE, false, true, true},
};

static const struct family *family_of(const char *pre)
{
    for (size_t i = 0; pre != NULL && i < CART_COUNTOF(families); i++)
        if (strcmp(pre, families[i].name) == 0)
            return &families[i];
    return NULL;
}

bool cart_tokenizer_family_adds_bos(const char *pre)
{
    const struct family *f = family_of(pre);
    return f != NULL && f->add_bos;
}

static int take_family(struct cart_tokenizer *t, const struct cart_vocab_source *src,
                       struct cart_err *err)
{
    char shown[64];
    if (src->model == NULL || strcmp(src->model, "gpt2") != 0)
        return cart_err_set(err, CART_EFORMAT, "tokenizer model: expected gpt2, found '%s'",
                            src->model == NULL ? ""
                                               : cart_err_escape(shown, sizeof shown, src->model,
                                                                 strlen(src->model)));
    const struct family *f = family_of(src->pre);
    if (f == NULL)
        return cart_err_set(
            err, CART_EFORMAT, "pre-tokenizer: expected smollm, qwen2 or llama-bpe, found '%s'",
            src->pre == NULL ? ""
                             : cart_err_escape(shown, sizeof shown, src->pre, strlen(src->pre)));
    t->pre = f->canonical;
    t->split = f->split;
    t->nfc = f->nfc;
    t->ignore_merges = f->ignore_merges;
    return 0;
}

static int take_id(uint32_t *out, int64_t id, const char *name, size_t n, struct cart_err *err)
{
    if (id < -1 || (id >= 0 && (uint64_t)id >= n))
        return cart_err_set(err, CART_EFORMAT,
                            "vocabulary: %s id: expected less than %zu, found %lld", name, n,
                            (long long)id);
    *out = id < 0 ? CART_TOKEN_NONE : (uint32_t)id;
    return 0;
}

static int take_ids(struct cart_tokenizer *t, const struct cart_vocab_source *src,
                    struct cart_err *err)
{
    int r;
    if ((r = take_id(&t->bos, src->bos, "bos", src->n_tokens, err)) < 0 ||
        (r = take_id(&t->eos, src->eos, "eos", src->n_tokens, err)) < 0 ||
        (r = take_id(&t->eot, src->eot, "eot", src->n_tokens, err)) < 0 ||
        (r = take_id(&t->pad, src->pad, "pad", src->n_tokens, err)) < 0 ||
        (r = take_id(&t->unk, src->unk, "unk", src->n_tokens, err)) < 0)
        return r;
    if (src->add_bos && t->bos == CART_TOKEN_NONE)
        return cart_err_set(err, CART_EFORMAT,
                            "vocabulary: a bos token is to be added, but none is named");
    t->add_bos = src->add_bos;
    return 0;
}

static int compare_texts(const void *pa, const void *pb)
{
    const struct cart_text *a = pa;
    const struct cart_text *b = pb;
    int r = memcmp(a->data, b->data, a->n < b->n ? a->n : b->n);
    return r != 0 ? r : (a->n > b->n) - (a->n < b->n);
}

/* The special tokens sorted by spelling, and the index by first byte. */
static int index_specials(struct cart_tokenizer *t, struct cart_err *err)
{
    size_t n = 0;
    for (uint32_t i = 0; i < t->n; i++) {
        bool is = cart_tokenizer_is_special(t, i);
        n += is && t->names[i].n > 0;
        if (is && t->names[i].n > CART_TOKENIZER_MAX_SPECIAL)
            return cart_err_set(
                err, CART_EFORMAT,
                "vocabulary: special token %u: expected at most %zu bytes, found %zu", (unsigned)i,
                CART_TOKENIZER_MAX_SPECIAL, t->names[i].n);
    }
    struct cart_text *sorted = malloc((n + 1) * sizeof *sorted);
    t->specials = malloc((n + 1) * sizeof *t->specials);
    if (sorted == NULL || t->specials == NULL) {
        free(sorted);
        return cart_err_memory(err, "special tokens", (n + 1) * sizeof *sorted);
    }
    n = 0;
    for (uint32_t i = 0; i < t->n; i++)
        if (cart_tokenizer_is_special(t, i) && t->names[i].n > 0)
            sorted[n++] = t->names[i];
    qsort(sorted, n, sizeof *sorted, compare_texts);
    for (size_t i = 0; i < n; i++) {
        t->specials[i] = cart_tokenizer_find(t, sorted[i].data, sorted[i].n);
        t->special_first[(unsigned char)sorted[i].data[0] + 1]++;
    }
    for (size_t b = 1; b <= 256; b++)
        t->special_first[b] += t->special_first[b - 1];
    t->n_specials = n;
    free(sorted);
    return 0;
}

/* An id that ends a text, whether the source lists it or not. */
static bool ends_by_itself(const struct cart_tokenizer *t, uint32_t id)
{
    return id == t->eos || id == t->eot ||
           (t->types[id] != CART_TOKEN_NORMAL && cart_vocab_is_end_marker(t, id));
}

static bool is_listed(const struct cart_vocab_source *src, uint32_t id)
{
    for (size_t i = 0; i < src->n_eog; i++)
        if (src->eog[i] == id)
            return true;
    return false;
}

static int index_eog(struct cart_tokenizer *t, const struct cart_vocab_source *src,
                     struct cart_err *err)
{
    size_t most = t->n_specials + src->n_eog + 2; /* markers, listed ones, eos and eot */
    t->eog = malloc(most * sizeof *t->eog);
    if (t->eog == NULL)
        return cart_err_memory(err, "end markers", most * sizeof *t->eog);
    for (uint32_t i = 0; i < t->n; i++)
        if (ends_by_itself(t, i) || is_listed(src, i))
            t->eog[t->n_eog++] = i;
    return 0;
}

static void hash_u64(struct cart_hash *h, uint64_t v)
{
    unsigned char bytes[8];
    for (size_t i = 0; i < 8; i++)
        bytes[i] = (unsigned char)(v >> 8 * i);
    cart_hash_add(h, bytes, 8);
}

static void hash_text(struct cart_hash *h, const char *s, size_t n)
{
    hash_u64(h, n);
    cart_hash_add(h, s, n);
}

static void hash_texts(struct cart_hash *h, const struct cart_text *texts, size_t n,
                       struct cart_text stored)
{
    hash_u64(h, n);
    if (stored.data != NULL)
        cart_hash_add(h, stored.data, stored.n);
    for (size_t i = 0; i < n && stored.data == NULL; i++)
        hash_text(h, texts[i].data, texts[i].n);
}

/* Every list goes in with its length, so that no two vocabularies give the same bytes. */
static int fingerprint(struct cart_tokenizer *t, const struct cart_vocab_source *src,
                       struct cart_err *err)
{
    struct cart_hash *h = cart_hash_new();
    if (h == NULL)
        return cart_err_memory(err, "fingerprint", 0);
    hash_text(h, src->model, strlen(src->model));
    hash_text(h, t->pre, strlen(t->pre));
    hash_texts(h, src->tokens, src->n_tokens, src->tokens_stored);
    for (size_t i = 0; i < src->n_tokens; i++) {
        int32_t type = src->types == NULL ? 0 : src->types[i];
        hash_u64(h, (uint64_t)(type == CART_TOKEN_USER_DEFINED ? CART_TOKEN_CONTROL : type));
    }
    hash_texts(h, src->merges, src->n_merges, src->merges_stored);
    const int64_t ids[] = {src->bos, src->eos, src->eot, src->pad, src->unk, src->add_bos};
    for (size_t i = 0; i < CART_COUNTOF(ids); i++)
        hash_u64(h, (uint64_t)ids[i]);
    for (size_t i = 0; i < t->n_eog; i++)
        if (!ends_by_itself(t, t->eog[i]))
            hash_u64(h, t->eog[i]);
    unsigned char digest[16];
    cart_hash_final(h, digest);
    cart_hash_free(h);
    cart_hex(t->fingerprint, digest, sizeof digest);
    return 0;
}

int cart_tokenizer_new(struct cart_tokenizer **out, const struct cart_vocab_source *src,
                       struct cart_err *err)
{
    struct cart_tokenizer *t = calloc(1, sizeof *t);
    if (t == NULL)
        return cart_err_memory(err, "tokenizer", sizeof *t);
    int r = take_family(t, src, err);
    if (r < 0 || (r = cart_vocab_build(t, src, err)) < 0 || (r = take_ids(t, src, err)) < 0)
        goto out;
    if ((r = index_specials(t, err)) < 0 || (r = index_eog(t, src, err)) < 0 ||
        (r = fingerprint(t, src, err)) < 0)
        goto out;
    t->classes = cart_unicode_classes();
    if (t->classes == NULL) {
        r = cart_err_memory(err, "Unicode classes", CART_UNICODE_MAX);
        goto out;
    }
    *out = t;
    t = NULL;
out:
    cart_tokenizer_free(t);
    return r;
}

void cart_tokenizer_free(struct cart_tokenizer *t)
{
    if (t == NULL)
        return;
    cart_arena_release(&t->arena);
    free(t->specials);
    free(t->eog);
    free(t->classes);
    free(t);
}

struct cart_text cart_tokenizer_bytes(const struct cart_tokenizer *t, uint32_t id)
{
    if (id >= t->n)
        return (struct cart_text){NULL, 0};
    return (struct cart_text){t->bytes + t->offsets[id], t->offsets[id + 1] - t->offsets[id]};
}

struct cart_text cart_tokenizer_string(const struct cart_tokenizer *t, uint32_t id)
{
    return id < t->n ? t->names[id] : (struct cart_text){NULL, 0};
}

size_t cart_tokenizer_size(const struct cart_tokenizer *t)
{
    return t->n;
}

uint32_t cart_tokenizer_bos(const struct cart_tokenizer *t)
{
    return t->bos;
}

bool cart_tokenizer_adds_bos(const struct cart_tokenizer *t)
{
    return t->add_bos;
}

bool cart_tokenizer_is_control(const struct cart_tokenizer *t, uint32_t id)
{
    return id < t->n && (t->types[id] == CART_TOKEN_CONTROL || t->types[id] == CART_TOKEN_UNKNOWN);
}

bool cart_tokenizer_is_special(const struct cart_tokenizer *t, uint32_t id)
{
    return cart_tokenizer_is_control(t, id) ||
           (id < t->n && t->types[id] == CART_TOKEN_USER_DEFINED);
}

bool cart_tokenizer_is_eog(const struct cart_tokenizer *t, uint32_t id)
{
    for (size_t i = 0; i < t->n_eog; i++)
        if (t->eog[i] == id)
            return true;
    return false;
}

const char *cart_tokenizer_fingerprint(const struct cart_tokenizer *t)
{
    return t->fingerprint;
}
