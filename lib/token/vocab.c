/* From a vocabulary as a file states it to tables that can be trusted: names, types, decoded bytes,
 * merges. */
#include "token/tokenizer_impl.h"
#include "token/unicode.h"

#include <stdlib.h>
#include <string.h>

/* A file whose strings were chosen to collide would make loading quadratic; honest ones stay far
 * below. */
#define MAX_PROBES 1024
#define ALPHABET_END 324 /* one past the last code point of the byte alphabet */

/* End markers that files have been seen to list as ordinary text. */
static const char *const end_markers[] = {
    "<|endoftext|>", "<|im_end|>",    "<|eot_id|>", "<|eom_id|>", "<|end_of_text|>",
    "<|end|>",       "<end_of_turn>", "<|return|>", "<|call|>",   "<|end_of_turn|>",
};

/* A good 64-bit mix of n bytes; not stable between machines, never stored. */
static uint64_t hash_of(const void *bytes, size_t n)
{
    const unsigned char *p = bytes;
    uint64_t h = 0x9e3779b97f4a7c15u ^ n;
    uint64_t v;
    while (n >= 8) {
        memcpy(&v, p, 8);
        h = (h ^ v) * 0xff51afd7ed558ccdu;
        h ^= h >> 32;
        p += 8;
        n -= 8;
    }
    v = 0;
    memcpy(&v, p, n);
    h = (h ^ v) * 0xc4ceb9fe1a85ec53u;
    h ^= h >> 29;
    h *= 0xff51afd7ed558ccdu;
    return h ^ h >> 32;
}

/* A power of two that n entries fill to two thirds at most. */
static size_t table_size(size_t n)
{
    size_t size = 16;
    while (size < n + n / 2)
        size *= 2;
    return size;
}

static int string_table_init(struct cart_string_table *table, size_t n, struct cart_err *err)
{
    size_t size = table_size(n);
    table->slots = calloc(size, sizeof *table->slots);
    if (table->slots == NULL)
        return cart_err_memory(err, "vocabulary", size * sizeof *table->slots);
    table->mask = size - 1;
    return 0;
}

static struct cart_text bytes_of(const struct cart_tokenizer *t, uint32_t id)
{
    return (struct cart_text){t->bytes + t->offsets[id], t->offsets[id + 1] - t->offsets[id]};
}

/* The slot of the string, or the free one where it belongs; NULL if the table is too crowded there.
 */
static struct cart_string_slot *string_slot(const struct cart_tokenizer *t,
                                            const struct cart_string_table *table, const char *s,
                                            size_t n, uint64_t h)
{
    for (size_t i = 0; i < MAX_PROBES; i++) {
        struct cart_string_slot *slot = &table->slots[(h + i) & table->mask];
        if (slot->id1 == 0)
            return slot;
        if (slot->tag != (uint32_t)(h >> 32))
            continue;
        struct cart_text k =
            table == &t->by_name ? t->names[slot->id1 - 1] : bytes_of(t, slot->id1 - 1);
        if (k.n == n && (n == 0 || memcmp(k.data, s, n) == 0))
            return slot;
    }
    return NULL;
}

static uint32_t string_find(const struct cart_tokenizer *t, const struct cart_string_table *table,
                            const char *s, size_t n)
{
    const struct cart_string_slot *slot = string_slot(t, table, s, n, hash_of(s, n));
    return slot == NULL || slot->id1 == 0 ? CART_TOKEN_NONE : slot->id1 - 1;
}

/* 0, or CART_EFORMAT if the string is there already. */
static int string_add(const struct cart_tokenizer *t, const struct cart_string_table *table,
                      struct cart_text s, uint32_t id, struct cart_err *err)
{
    char shown[64];
    uint64_t h = hash_of(s.data, s.n);
    struct cart_string_slot *slot = string_slot(t, table, s.data, s.n, h);
    if (slot == NULL)
        return cart_err_set(err, CART_EFORMAT, "vocabulary: token %u: too many strings of one hash",
                            (unsigned)id);
    if (slot->id1 != 0)
        return cart_err_set(err, CART_EFORMAT, "vocabulary: tokens %u and %u: both are '%s'",
                            (unsigned)slot->id1 - 1, (unsigned)id,
                            cart_err_escape(shown, sizeof shown, s.data, s.n));
    slot->tag = (uint32_t)(h >> 32);
    slot->id1 = id + 1;
    return 0;
}

uint32_t cart_token_by_bytes(const struct cart_tokenizer *t, const char *bytes, size_t n)
{
    return string_find(t, &t->by_bytes, bytes, n);
}

uint32_t cart_tokenizer_find(const struct cart_tokenizer *t, const char *s, size_t n)
{
    return string_find(t, &t->by_name, s, n);
}

/* byte_of[c]: the byte that code point c stands for in the byte alphabet, or -1. Printable Latin-1
 * stands for itself, the other bytes for U+0100 and up, in order. */
static void alphabet(int byte_of[ALPHABET_END])
{
    for (size_t i = 0; i < ALPHABET_END; i++)
        byte_of[i] = -1;
    int next = 256;
    for (int b = 0; b < 256; b++) {
        bool self = (b >= 33 && b <= 126) || (b >= 161 && b <= 172) || b >= 174;
        byte_of[self ? b : next++] = b;
    }
}

/* Decodes one token to out (never longer than its string). *pure: every code point is in the byte
 * alphabet. */
static int decode_name(struct cart_text s, uint32_t id, bool literal, const int *byte_of, char *out,
                       size_t *n_out, bool *pure, struct cart_err *err)
{
    const unsigned char *p = (const unsigned char *)s.data;
    const unsigned char *end = p + s.n;
    size_t n = 0;
    *pure = s.n > 0;
    while (p < end) {
        uint32_t cp;
        size_t want;
        bool cut;
        size_t len = cart_utf8_sequence(p, end, &cp, &want, &cut);
        if (len == 0)
            return cart_err_set(err, CART_EFORMAT, "vocabulary: token %u: not UTF-8", (unsigned)id);
        bool in = cp < ALPHABET_END && byte_of[cp] >= 0;
        *pure = *pure && in;
        if (in && !literal) {
            out[n++] = (char)byte_of[cp];
        } else {
            memcpy(out + n, p, len);
            n += len;
        }
        p += len;
    }
    *n_out = n;
    return 0;
}

static int take_types(struct cart_tokenizer *t, const struct cart_vocab_source *src,
                      struct cart_err *err)
{
    if (src->types != NULL && src->n_types != src->n_tokens)
        return cart_err_set(err, CART_EFORMAT, "vocabulary: token types: expected %zu, found %zu",
                            src->n_tokens, src->n_types);
    for (size_t i = 0; i < t->n; i++) {
        int32_t type = src->types == NULL ? CART_TOKEN_NORMAL : src->types[i];
        if (type < CART_TOKEN_NORMAL || type > CART_TOKEN_BYTE)
            return cart_err_set(err, CART_EFORMAT,
                                "vocabulary: type of token %zu: expected 1 to 6, found %d", i,
                                (int)type);
        t->types[i] = (unsigned char)type;
    }
    for (size_t i = 0; i < CART_COUNTOF(end_markers); i++) {
        uint32_t id = cart_tokenizer_find(t, end_markers[i], strlen(end_markers[i]));
        if (id != CART_TOKEN_NONE && t->types[id] == CART_TOKEN_NORMAL)
            t->types[id] = CART_TOKEN_CONTROL;
    }
    return 0;
}

static int take_bytes(struct cart_tokenizer *t, struct cart_err *err)
{
    int byte_of[ALPHABET_END];
    alphabet(byte_of);
    size_t total = 0;
    for (size_t i = 0; i < t->n; i++)
        if (!cart_size_add(total, t->names[i].n, &total))
            return cart_err_memory(err, "vocabulary", SIZE_MAX);
    t->bytes = malloc(total > 0 ? total : 1);
    if (t->bytes == NULL)
        return cart_err_memory(err, "vocabulary", total);
    for (uint32_t i = 0; i < t->n; i++) {
        unsigned char type = t->types[i];
        bool literal = type == CART_TOKEN_CONTROL || type == CART_TOKEN_UNKNOWN ||
                       type == CART_TOKEN_USER_DEFINED;
        size_t n;
        bool pure;
        int r =
            decode_name(t->names[i], i, literal, byte_of, t->bytes + t->offsets[i], &n, &pure, err);
        if (r < 0)
            return r;
        t->offsets[i + 1] = t->offsets[i] + n;
        if (type != CART_TOKEN_NORMAL || !pure)
            continue;
        if ((r = string_add(t, &t->by_bytes, bytes_of(t, i), i, err)) < 0)
            return r;
        if (n > t->longest)
            t->longest = n;
    }
    for (unsigned b = 0; b < 256; b++) {
        char c = (char)b;
        t->byte_id[b] = cart_token_by_bytes(t, &c, 1);
        if (t->byte_id[b] == CART_TOKEN_NONE && ((b >= 0x20 && b < 0x7f) || b == '\n'))
            return cart_err_set(err, CART_EFORMAT, "vocabulary: byte 0x%02x has no token", b);
    }
    return 0;
}

static uint64_t pair_hash(uint32_t left, uint32_t right)
{
    uint64_t h = ((uint64_t)left << 32 | right) * 0x9e3779b97f4a7c15u;
    h ^= h >> 32;
    h *= 0xff51afd7ed558ccdu;
    return h ^ h >> 29;
}

const struct cart_pair_slot *cart_token_pair(const struct cart_tokenizer *t, uint32_t left,
                                             uint32_t right)
{
    for (uint64_t h = pair_hash(left, right);; h++) {
        const struct cart_pair_slot *slot = &t->pairs.slots[h & t->pairs.mask];
        if (slot->rank1 == 0)
            return NULL;
        if (slot->left == left && slot->right == right)
            return slot;
    }
}

/* A pair stated twice keeps its first, higher priority. */
static int pair_add(struct cart_tokenizer *t, uint32_t left, uint32_t right, uint32_t rank,
                    uint32_t result, struct cart_err *err)
{
    uint64_t h = pair_hash(left, right);
    for (size_t i = 0; i < MAX_PROBES; i++) {
        struct cart_pair_slot *slot = &t->pairs.slots[(h + i) & t->pairs.mask];
        if (slot->rank1 == 0) {
            *slot = (struct cart_pair_slot){left, right, rank + 1, result};
            return 0;
        }
        if (slot->left == left && slot->right == right)
            return 0;
    }
    return cart_err_set(err, CART_EFORMAT, "vocabulary: merge %u: too many pairs of one hash",
                        (unsigned)rank);
}

static int merge_refused(size_t i, struct cart_text m, const char *why, struct cart_err *err)
{
    char shown[96];
    return cart_err_set(err, CART_EFORMAT, "vocabulary: merge %zu '%s': %s", i,
                        cart_err_escape(shown, sizeof shown, m.data, m.n), why);
}

static int take_merge(struct cart_tokenizer *t, struct cart_text m, size_t i,
                      struct cart_buf *joined, struct cart_err *err)
{
    const char *space = m.n > 0 ? memchr(m.data, ' ', m.n) : NULL;
    if (space == NULL)
        return merge_refused(i, m, "expected two tokens and one space, found no space", err);
    size_t left = (size_t)(space - m.data);
    size_t right = m.n - left - 1;
    if (left == 0 || right == 0 || memchr(space + 1, ' ', right) != NULL)
        return merge_refused(i, m, "expected two tokens and one space", err);
    uint32_t a = cart_tokenizer_find(t, m.data, left);
    uint32_t b = cart_tokenizer_find(t, space + 1, right);
    if (a == CART_TOKEN_NONE || b == CART_TOKEN_NONE)
        return merge_refused(
            i, m, a == CART_TOKEN_NONE ? "its left part is no token" : "its right part is no token",
            err);
    cart_buf_reset(joined);
    int r = cart_buf_add(joined, m.data, left, err);
    if (r < 0 || (r = cart_buf_add(joined, space + 1, right, err)) < 0)
        return r;
    uint32_t c = cart_tokenizer_find(t, joined->data, joined->len);
    if (c == CART_TOKEN_NONE)
        return merge_refused(i, m, "its result is no token", err);
    /* Otherwise plain text could become a control token. */
    if (t->types[c] == CART_TOKEN_CONTROL || t->types[c] == CART_TOKEN_UNKNOWN)
        return merge_refused(i, m, "its result is a control token", err);
    return pair_add(t, a, b, (uint32_t)i, c, err);
}

static int take_merges(struct cart_tokenizer *t, const struct cart_vocab_source *src,
                       struct cart_err *err)
{
    if (src->n_merges == 0 || src->n_merges > CART_TOKENIZER_MAX_VOCAB)
        return cart_err_set(err, CART_EFORMAT, "vocabulary: merges: expected 1 to %zu, found %zu",
                            CART_TOKENIZER_MAX_VOCAB, src->n_merges);
    size_t size = table_size(src->n_merges);
    t->pairs.slots = calloc(size, sizeof *t->pairs.slots);
    if (t->pairs.slots == NULL)
        return cart_err_memory(err, "vocabulary", size * sizeof *t->pairs.slots);
    t->pairs.mask = size - 1;
    struct cart_buf joined = CART_BUF_INIT;
    int r = 0;
    for (size_t i = 0; i < src->n_merges && r == 0; i++)
        r = take_merge(t, src->merges[i], i, &joined, err);
    cart_buf_release(&joined);
    return r;
}

int cart_vocab_build(struct cart_tokenizer *t, const struct cart_vocab_source *src,
                     struct cart_err *err)
{
    int r;
    if (src->n_tokens == 0 || src->n_tokens > CART_TOKENIZER_MAX_VOCAB)
        return cart_err_set(err, CART_EFORMAT, "vocabulary: tokens: expected 1 to %zu, found %zu",
                            CART_TOKENIZER_MAX_VOCAB, src->n_tokens);
    t->n = src->n_tokens;
    t->names = malloc(t->n * sizeof *t->names);
    t->types = malloc(t->n);
    t->offsets = calloc(t->n + 1, sizeof *t->offsets);
    t->whole = calloc(t->n, sizeof *t->whole);
    if (t->names == NULL || t->types == NULL || t->offsets == NULL || t->whole == NULL)
        return cart_err_memory(err, "vocabulary",
                               t->n * (sizeof *t->names + sizeof *t->offsets + 2));
    memcpy(t->names, src->tokens, t->n * sizeof *t->names);
    if ((r = string_table_init(&t->by_name, t->n, err)) < 0 ||
        (r = string_table_init(&t->by_bytes, t->n, err)) < 0)
        return r;
    for (uint32_t i = 0; i < t->n; i++)
        if ((r = string_add(t, &t->by_name, t->names[i], i, err)) < 0)
            return r;
    if ((r = take_types(t, src, err)) < 0 || (r = take_bytes(t, err)) < 0)
        return r;
    return take_merges(t, src, err);
}

bool cart_vocab_is_end_marker(const struct cart_tokenizer *t, uint32_t id)
{
    if (t->types[id] != CART_TOKEN_CONTROL && t->types[id] != CART_TOKEN_USER_DEFINED)
        return false;
    for (size_t i = 0; i < CART_COUNTOF(end_markers); i++)
        if (t->names[id].n == strlen(end_markers[i]) &&
            memcmp(t->names[id].data, end_markers[i], t->names[id].n) == 0)
            return true;
    return false;
}
