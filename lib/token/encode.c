/* From text to ids: special tokens, normalisation, pieces, merges, in this order. */
#include "token/tokenizer_impl.h"

#include <stdlib.h>
#include <string.h>

int cart_ids_add(struct cart_ids *ids, const uint32_t *more, size_t n, struct cart_err *err)
{
    size_t need;
    if (n == 0)
        return 0;
    if (!cart_size_add(ids->n, n, &need))
        return cart_err_memory(err, "token ids", SIZE_MAX);
    if (need > ids->cap) {
        int r = cart_array_reserve(&ids->data, &ids->cap, need, sizeof *ids->data, err);
        if (r < 0)
            return r;
    }
    memcpy(ids->data + ids->n, more, n * sizeof *more);
    ids->n = need;
    return 0;
}

int cart_ids_push(struct cart_ids *ids, uint32_t id, struct cart_err *err)
{
    if (ids->n == ids->cap)
        return cart_ids_add(ids, &id, 1, err);
    ids->data[ids->n++] = id;
    return 0;
}

void cart_ids_release(struct cart_ids *ids)
{
    free(ids->data);
    *ids = (struct cart_ids)CART_IDS_INIT;
}

/* Within specials [lo, hi), which agree before depth: the first whose byte at depth is at least (or
 * above) b. */
static size_t bound(const struct cart_tokenizer *t, size_t lo, size_t hi, size_t depth,
                    unsigned char b, bool above)
{
    while (lo < hi) {
        size_t mid = lo + (hi - lo) / 2;
        unsigned char c = (unsigned char)t->names[t->specials[mid]].data[depth];
        if (c < b || (above && c == b))
            lo = mid + 1;
        else
            hi = mid;
    }
    return lo;
}

static uint32_t special_match(const struct cart_tokenizer *t, const char *p, const char *end,
                              size_t *len, size_t *steps)
{
    unsigned char first = (unsigned char)*p;
    size_t lo = t->special_first[first];
    size_t hi = t->special_first[first + 1];
    uint32_t best = CART_TOKEN_NONE;
    for (size_t depth = 1; lo < hi; depth++, ++*steps) {
        /* Sorted: the one that ends here comes before those that go on. */
        if (t->names[t->specials[lo]].n == depth) {
            best = t->specials[lo++];
            *len = depth;
        }
        if (p + depth >= end)
            break;
        unsigned char b = (unsigned char)p[depth];
        lo = bound(t, lo, hi, depth, b, false);
        hi = bound(t, lo, hi, depth, b, true);
    }
    return best;
}

const char *cart_special_find(const struct cart_tokenizer *t, const char *p, const char *end,
                              uint32_t *id, size_t *len, size_t *steps)
{
    for (; p < end; p++) {
        unsigned char b = (unsigned char)*p;
        if (t->special_first[b] == t->special_first[b + 1])
            continue;
        *id = special_match(t, p, end, len, steps);
        if (*id != CART_TOKEN_NONE)
            return p;
    }
    return end;
}

static int encode_pieces(const struct cart_tokenizer *t, const char *text, size_t n,
                         struct cart_ids *out, struct cart_bpe_scratch *scratch,
                         struct cart_encode_stats *stats, struct cart_err *err)
{
    const unsigned char *p = (const unsigned char *)text;
    const unsigned char *end = p + n;
    while (p < end) {
        size_t len = cart_split_next(t->split, t->classes, p, end, &stats->scan_steps);
        int r = cart_bpe_encode(t, p, len, out, scratch, stats, err);
        if (r < 0)
            return r;
        p += len;
    }
    return 0;
}

/* One stretch of text between special tokens. */
static int encode_text(const struct cart_tokenizer *t, const char *text, size_t n,
                       struct cart_ids *out, struct cart_bpe_scratch *scratch,
                       struct cart_encode_stats *stats, struct cart_err *err)
{
    struct cart_buf norm = CART_BUF_INIT;
    bool same = true;
    int r = t->nfc ? cart_nfc(t->classes, text, n, &norm, &same, err) : 0;
    if (r == 0)
        r = same ? encode_pieces(t, text, n, out, scratch, stats, err)
                 : encode_pieces(t, norm.data, norm.len, out, scratch, stats, err);
    cart_buf_release(&norm);
    return r;
}

static void count_lookalikes(const struct cart_tokenizer *t, const char *text, size_t n,
                             struct cart_encode_stats *stats)
{
    const char *end = text + n;
    uint32_t id;
    size_t len = 0;
    for (const char *p = text;
         (p = cart_special_find(t, p, end, &id, &len, &stats->scan_steps)) < end; p += len)
        stats->lookalikes++;
}

int cart_tokenizer_encode(const struct cart_tokenizer *t, const char *text, size_t n,
                          unsigned flags, struct cart_ids *out, struct cart_encode_stats *stats,
                          struct cart_err *err)
{
    struct cart_encode_stats unused = {0, 0, 0, 0};
    struct cart_bpe_scratch scratch = {NULL, 0};
    size_t before = out->n;
    int r = 0;
    if (stats == NULL)
        stats = &unused;
    if (n > 0 && flags & CART_ENCODE_SPECIAL) {
        const char *end = text + n;
        for (const char *p = text; r == 0 && p < end;) {
            uint32_t id;
            size_t len = 0;
            const char *q = cart_special_find(t, p, end, &id, &len, &stats->scan_steps);
            r = encode_text(t, p, (size_t)(q - p), out, &scratch, stats, err);
            if (r == 0 && q < end)
                r = cart_ids_push(out, id, err);
            p = q + len;
        }
    } else if (n > 0) {
        count_lookalikes(t, text, n, stats);
        r = encode_text(t, text, n, out, &scratch, stats, err);
    }
    free(scratch.memory);
    if (r < 0)
        out->n = before;
    return r;
}

int cart_tokenizer_normalize(const struct cart_tokenizer *t, const char *text, size_t n,
                             struct cart_buf *out, struct cart_err *err)
{
    bool same = true;
    size_t before = out->len;
    int r = t->nfc ? cart_nfc(t->classes, text, n, out, &same, err) : 0;
    if (r == 0 && same)
        r = cart_buf_add(out, text, n, err);
    if (r < 0)
        out->len = before;
    return r;
}
