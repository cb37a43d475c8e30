/* From a vocabulary as a file states it to tables that can be trusted: names, types, decoded bytes,
 * merges. */
#include "token/tokenizer_impl.h"
#include "token/unicode.h"

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

/* Entries that are looked up together: what each touches in a table far larger than the cache is
 * asked for before any is waited for. */
#define AHEAD 16

/* n <= 8 bytes as a number that, with n, no other bytes give: two loads, where memcpy and memcmp of
 * a length that only the string knows are calls. */
static inline uint64_t word_of(const unsigned char *p, size_t n)
{
    uint32_t first, last;
    if (n < 4) {
        uint64_t v = 0;
        while (n > 0)
            v = v << 8 | p[--n];
        return v;
    }
    memcpy(&first, p, 4);
    memcpy(&last, p + n - 4, 4);
    return (uint64_t)first << 32 | last;
}

/* A good 64-bit mix of n bytes; not stable between machines, never stored. */
static uint64_t hash_of(const void *bytes, size_t n)
{
    const unsigned char *p = bytes;
    uint64_t h = 0x9e3779b97f4a7c15u ^ n;
    uint64_t v;
    while (n > 8) {
        memcpy(&v, p, 8);
        h = (h ^ v) * 0xff51afd7ed558ccdu;
        h ^= h >> 32;
        p += 8;
        n -= 8;
    }
    h = (h ^ word_of(p, n)) * 0xc4ceb9fe1a85ec53u;
    h ^= h >> 29;
    h *= 0xff51afd7ed558ccdu;
    return h ^ h >> 32;
}

static bool same_bytes(const char *a, const char *b, size_t n)
{
    if (n > 8)
        return memcmp(a, b, n) == 0;
    return word_of((const unsigned char *)a, n) == word_of((const unsigned char *)b, n);
}

/* A power of two that n entries fill to two thirds at most. */
static size_t table_size(size_t n)
{
    size_t size = 16;
    while (size < n + n / 2)
        size *= 2;
    return size;
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
        if (k.n == n && same_bytes(k.data, s, n))
            return slot;
    }
    return NULL;
}

static uint32_t string_find(const struct cart_tokenizer *t, const struct cart_string_table *table,
                            const char *s, size_t n, uint64_t h)
{
    const struct cart_string_slot *slot = string_slot(t, table, s, n, h);
    return slot == NULL || slot->id1 == 0 ? CART_TOKEN_NONE : slot->id1 - 1;
}

/* The hash of s, whose slot will be read soon. */
static uint64_t string_ahead(const struct cart_string_table *table, const char *s, size_t n)
{
    uint64_t h = hash_of(s, n);
    __builtin_prefetch(&table->slots[h & table->mask]);
    return h;
}

/* 0, or CART_EFORMAT if the string is there already. h: its hash. */
static int string_add(const struct cart_tokenizer *t, const struct cart_string_table *table,
                      struct cart_text s, uint64_t h, uint32_t id, struct cart_err *err)
{
    char shown[64];
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
    return string_find(t, &t->by_bytes, bytes, n, hash_of(bytes, n));
}

uint32_t cart_tokenizer_find(const struct cart_tokenizer *t, const char *s, size_t n)
{
    return string_find(t, &t->by_name, s, n, hash_of(s, n));
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
        uint32_t cp = *p;
        size_t want;
        bool cut;
        size_t len = cp < 0x80 ? 1 : cart_utf8_sequence(p, end, &cp, &want, &cut);
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

/* Tokens [first, first + n), n <= AHEAD, as bytes, and the ordinary ones by them. */
static int take_bytes_of(struct cart_tokenizer *t, uint32_t first, uint32_t n, const int *byte_of,
                         struct cart_err *err)
{
    uint64_t hash[AHEAD];
    uint32_t ordinary[AHEAD], m = 0;
    for (uint32_t i = first; i < first + n; i++) {
        unsigned char type = t->types[i];
        bool literal = type == CART_TOKEN_CONTROL || type == CART_TOKEN_UNKNOWN ||
                       type == CART_TOKEN_USER_DEFINED;
        char *bytes = t->bytes + t->offsets[i];
        size_t len;
        bool pure;
        int r = decode_name(t->names[i], i, literal, byte_of, bytes, &len, &pure, err);
        if (r < 0)
            return r;
        t->offsets[i + 1] = t->offsets[i] + len;
        if (type != CART_TOKEN_NORMAL || !pure)
            continue;
        hash[m] = string_ahead(&t->by_bytes, bytes, len);
        ordinary[m++] = i;
        if (len > t->longest)
            t->longest = len;
    }
    for (uint32_t k = 0; k < m; k++) {
        uint32_t i = ordinary[k];
        int r = string_add(t, &t->by_bytes, bytes_of(t, i), hash[k], i, err);
        if (r < 0)
            return r;
    }
    return 0;
}

static int take_bytes(struct cart_tokenizer *t, struct cart_err *err)
{
    int byte_of[ALPHABET_END];
    int r = 0;
    alphabet(byte_of);
    for (size_t i = 0; i < t->n && r == 0; i += AHEAD)
        r = take_bytes_of(t, (uint32_t)i, (uint32_t)(t->n - i < AHEAD ? t->n - i : AHEAD), byte_of,
                          err);
    for (unsigned b = 0; b < 256 && r == 0; b++) {
        const char c[] = {(char)b};
        t->byte_id[b] = cart_token_by_bytes(t, c, sizeof c);
        if (t->byte_id[b] == CART_TOKEN_NONE && ((b >= 0x20 && b < 0x7f) || b == '\n'))
            r = cart_err_set(err, CART_EFORMAT, "vocabulary: byte 0x%02x has no token", b);
    }
    return r;
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
static int pair_add(struct cart_tokenizer *t, const struct cart_pair_slot *pair,
                    struct cart_err *err)
{
    uint64_t h = pair_hash(pair->left, pair->right);
    for (size_t i = 0; i < MAX_PROBES; i++) {
        struct cart_pair_slot *slot = &t->pairs.slots[(h + i) & t->pairs.mask];
        if (slot->rank1 == 0) {
            *slot = *pair;
            return 0;
        }
        if (slot->left == pair->left && slot->right == pair->right)
            return 0;
    }
    return cart_err_set(err, CART_EFORMAT, "vocabulary: merge %u: too many pairs of one hash",
                        (unsigned)pair->rank1 - 1);
}

static int merge_refused(size_t i, struct cart_text m, const char *why, struct cart_err *err)
{
    char shown[96];
    return cart_err_set(err, CART_EFORMAT, "vocabulary: merge %zu '%s': %s", i,
                        cart_err_escape(shown, sizeof shown, m.data, m.n), why);
}

/* A merge on its way into the table. */
struct merge {
    struct cart_text text, left, right;
    uint64_t h_left, h_right;
    struct cart_pair_slot pair;
};

static int merge_split(const struct cart_tokenizer *t, struct cart_text m, size_t i,
                       struct merge *out, struct cart_err *err)
{
    const char *space = m.n > 0 ? memchr(m.data, ' ', m.n) : NULL;
    if (space == NULL)
        return merge_refused(i, m, "expected two tokens and one space, found no space", err);
    size_t left = (size_t)(space - m.data);
    size_t right = m.n - left - 1;
    if (left == 0 || right == 0 || memchr(space + 1, ' ', right) != NULL)
        return merge_refused(i, m, "expected two tokens and one space", err);
    *out = (struct merge){.text = m,
                          .left = {m.data, left},
                          .right = {space + 1, right},
                          .h_left = string_ahead(&t->by_name, m.data, left),
                          .h_right = string_ahead(&t->by_name, space + 1, right)};
    return 0;
}

/* Asks for the name that the first slot of a hash points at; then for its bytes. */
static void name_ahead(const struct cart_tokenizer *t, uint64_t h)
{
    uint32_t id1 = t->by_name.slots[h & t->by_name.mask].id1;
    if (id1 != 0)
        __builtin_prefetch(&t->names[id1 - 1]);
}

static void spelling_ahead(const struct cart_tokenizer *t, uint64_t h)
{
    uint32_t id1 = t->by_name.slots[h & t->by_name.mask].id1;
    if (id1 != 0)
        __builtin_prefetch(t->names[id1 - 1].data);
}

/* The token that a merge makes. Vocabularies are mostly written in the order of their merges: then
 * it is the one after that of the merge before (guess), and no table is asked. */
static int merge_result(const struct cart_tokenizer *t, const struct merge *m, uint32_t guess,
                        struct cart_buf *joined, uint32_t *out, struct cart_err *err)
{
    if (guess < t->n) {
        struct cart_text name = t->names[guess];
        *out = guess;
        if (name.n == m->left.n + m->right.n && same_bytes(name.data, m->left.data, m->left.n) &&
            same_bytes(name.data + m->left.n, m->right.data, m->right.n))
            return 0;
    }
    cart_buf_reset(joined);
    int r = cart_buf_add(joined, m->left.data, m->left.n, err);
    if (r < 0 || (r = cart_buf_add(joined, m->right.data, m->right.n, err)) < 0)
        return r;
    *out = cart_tokenizer_find(t, joined->data, joined->len);
    return 0;
}

/* Its tokens, and its slot asked for. *last: the result of the merge before, then of this. */
static int merge_resolve(const struct cart_tokenizer *t, struct merge *m, size_t i, uint32_t *last,
                         struct cart_buf *joined, struct cart_err *err)
{
    uint32_t a = string_find(t, &t->by_name, m->left.data, m->left.n, m->h_left);
    uint32_t b = string_find(t, &t->by_name, m->right.data, m->right.n, m->h_right);
    if (a == CART_TOKEN_NONE || b == CART_TOKEN_NONE)
        return merge_refused(
            i, m->text,
            a == CART_TOKEN_NONE ? "its left part is no token" : "its right part is no token", err);
    int r = merge_result(t, m, *last + 1, joined, last, err);
    if (r < 0)
        return r;
    if (*last == CART_TOKEN_NONE)
        return merge_refused(i, m->text, "its result is no token", err);
    /* Otherwise plain text could become a control token. */
    if (t->types[*last] == CART_TOKEN_CONTROL || t->types[*last] == CART_TOKEN_UNKNOWN)
        return merge_refused(i, m->text, "its result is a control token", err);
    m->pair = (struct cart_pair_slot){a, b, (uint32_t)i + 1, *last};
    __builtin_prefetch(&t->pairs.slots[pair_hash(a, b) & t->pairs.mask], 1);
    return 0;
}

/* At most AHEAD merges from number first on: each step for all, as far as the step before came. */
static int merges_add(struct cart_tokenizer *t, const struct cart_text *merges, size_t first,
                      size_t n, uint32_t *last, struct cart_buf *joined, struct cart_err *err)
{
    struct merge ahead[AHEAD];
    struct cart_err why = {0}; /* of the first merge that is none */
    size_t split = 0, resolved = 0;
    int r = 0;
    while (split < n &&
           (r = merge_split(t, merges[first + split], first + split, &ahead[split], &why)) == 0)
        split++;
    for (size_t k = 0; k < split; k++) {
        name_ahead(t, ahead[k].h_left);
        name_ahead(t, ahead[k].h_right);
    }
    for (size_t k = 0; k < split; k++) {
        spelling_ahead(t, ahead[k].h_left);
        spelling_ahead(t, ahead[k].h_right);
    }
    for (int found = 0; resolved < split && found == 0; resolved += found == 0)
        if ((found = merge_resolve(t, &ahead[resolved], first + resolved, last, joined, &why)) < 0)
            r = found;
    for (size_t k = 0; k < resolved; k++) {
        int added = pair_add(t, &ahead[k].pair, err);
        if (added < 0)
            return added;
    }
    if (r < 0 && err != NULL)
        *err = why;
    return r;
}

static int take_merges(struct cart_tokenizer *t, const struct cart_vocab_source *src,
                       struct cart_err *err)
{
    struct cart_buf joined = CART_BUF_INIT;
    uint32_t last = CART_TOKEN_NONE;
    int r = 0;
    for (size_t i = 0; i < src->n_merges && r == 0; i += AHEAD)
        r = merges_add(t, src->merges, i, src->n_merges - i < AHEAD ? src->n_merges - i : AHEAD,
                       &last, &joined, err);
    cart_buf_release(&joined);
    return r;
}

static int take_names(struct cart_tokenizer *t, struct cart_err *err)
{
    uint64_t hash[AHEAD];
    int r = 0;
    for (size_t i = 0; i < t->n && r == 0; i += AHEAD) {
        size_t n = t->n - i < AHEAD ? t->n - i : AHEAD;
        for (size_t k = 0; k < n; k++)
            hash[k] = string_ahead(&t->by_name, t->names[i + k].data, t->names[i + k].n);
        for (size_t k = 0; k < n && r == 0; k++)
            r = string_add(t, &t->by_name, t->names[i + k], hash[k], (uint32_t)(i + k), err);
    }
    return r;
}

static void layout(struct cart_arena *a, struct cart_tokenizer *t, size_t bytes, size_t n_merges)
{
    size_t strings = table_size(t->n), pairs = table_size(n_merges);
    t->names = cart_arena_push(a, t->n, sizeof *t->names);
    t->types = cart_arena_push(a, t->n, sizeof *t->types);
    t->bytes = cart_arena_push(a, bytes, 1);
    t->offsets = cart_arena_push(a, t->n + 1, sizeof *t->offsets);
    t->by_name.slots = cart_arena_push(a, strings, sizeof *t->by_name.slots);
    t->by_bytes.slots = cart_arena_push(a, strings, sizeof *t->by_bytes.slots);
    t->pairs.slots = cart_arena_push(a, pairs, sizeof *t->pairs.slots);
    t->whole = cart_arena_push(a, t->n, sizeof *t->whole);
    t->by_name.mask = t->by_bytes.mask = strings - 1;
    t->pairs.mask = pairs - 1;
}

static int reserve(struct cart_tokenizer *t, const struct cart_vocab_source *src,
                   struct cart_err *err)
{
    size_t bytes = 0; /* no token takes more than its name */
    for (size_t i = 0; i < src->n_tokens; i++)
        if (!cart_size_add(bytes, src->tokens[i].n, &bytes))
            return cart_err_memory(err, "vocabulary", SIZE_MAX);
    layout(&t->arena, t, bytes, src->n_merges);
    int r = cart_arena_reserve_dense(&t->arena, t->arena.used, err);
    if (r < 0)
        return cart_err_wrap(err, r, "vocabulary");
    layout(&t->arena, t, bytes, src->n_merges);
    return 0;
}

int cart_vocab_build(struct cart_tokenizer *t, const struct cart_vocab_source *src,
                     struct cart_err *err)
{
    int r;
    if (src->n_tokens == 0 || src->n_tokens > CART_TOKENIZER_MAX_VOCAB)
        return cart_err_set(err, CART_EFORMAT, "vocabulary: tokens: expected 1 to %zu, found %zu",
                            CART_TOKENIZER_MAX_VOCAB, src->n_tokens);
    if (src->n_merges == 0 || src->n_merges > CART_TOKENIZER_MAX_VOCAB)
        return cart_err_set(err, CART_EFORMAT, "vocabulary: merges: expected 1 to %zu, found %zu",
                            CART_TOKENIZER_MAX_VOCAB, src->n_merges);
    t->n = src->n_tokens;
    if ((r = reserve(t, src, err)) < 0)
        return r;
    memcpy(t->names, src->tokens, t->n * sizeof *t->names);
    if ((r = take_names(t, err)) < 0 || (r = take_types(t, src, err)) < 0 ||
        (r = take_bytes(t, err)) < 0)
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
