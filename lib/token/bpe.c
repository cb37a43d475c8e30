/* Byte-level BPE: of all adjacent pairs the one whose merge stands first in the list is joined, the
 * leftmost of equals, until none is left. Short pieces scan for it; long ones keep the pairs in a
 * heap, so that n bytes take O(n log n). */
#include "token/tokenizer_impl.h"

#include <stdlib.h>
#include <string.h>

#define SHORT 48 /* symbols that are merged by scanning, on the stack */
#define NO_RANK UINT32_MAX
#define END UINT32_MAX

static uint32_t rank_of(const struct cart_tokenizer *t, uint32_t left, uint32_t right,
                        struct cart_encode_stats *stats)
{
    stats->merge_steps++;
    const struct cart_pair_slot *pair = cart_token_pair(t, left, right);
    return pair == NULL ? NO_RANK : pair->rank1 - 1;
}

static size_t merge_short(const struct cart_tokenizer *t, uint32_t *ids, size_t n,
                          struct cart_encode_stats *stats)
{
    uint32_t rank[SHORT]; /* of the pair (i, i + 1) */
    for (size_t i = 0; i + 1 < n; i++)
        rank[i] = rank_of(t, ids[i], ids[i + 1], stats);
    while (n > 1) {
        size_t best = 0;
        for (size_t i = 1; i + 1 < n; i++)
            if (rank[i] < rank[best])
                best = i;
        stats->merge_steps += n;
        if (rank[best] == NO_RANK)
            break;
        ids[best] = cart_token_pair(t, ids[best], ids[best + 1])->result;
        memmove(ids + best + 1, ids + best + 2, (n - best - 2) * sizeof *ids);
        memmove(rank + best, rank + best + 1, (n - best - 2) * sizeof *rank);
        n--;
        if (best > 0)
            rank[best - 1] = rank_of(t, ids[best - 1], ids[best], stats);
        if (best + 1 < n)
            rank[best] = rank_of(t, ids[best], ids[best + 1], stats);
    }
    return n;
}

/* A linked list of symbols under a binary heap of (rank << 32 | place); an entry is stale when the
 * pair at its place has another rank by now (a rank is one pair, and a symbol only ever grows, so
 * ranks do not come back). */
struct queue {
    uint64_t *heap; /* up to 3 n entries: n - 1 at first, 2 for each of n - 1 merges */
    size_t n_heap;
    uint32_t *id, *rank, *prev, *next; /* [n] */
    struct cart_encode_stats *stats;
};

static void sift_down(struct queue *q, size_t i)
{
    uint64_t v = q->heap[i];
    for (;;) {
        size_t child = 2 * i + 1;
        if (child >= q->n_heap)
            break;
        if (child + 1 < q->n_heap && q->heap[child + 1] < q->heap[child])
            child++;
        if (v <= q->heap[child])
            break;
        q->heap[i] = q->heap[child];
        i = child;
        q->stats->merge_steps++;
    }
    q->heap[i] = v;
}

static void push(struct queue *q, uint64_t v)
{
    size_t i = q->n_heap++;
    while (i > 0 && q->heap[(i - 1) / 2] > v) {
        q->heap[i] = q->heap[(i - 1) / 2];
        i = (i - 1) / 2;
        q->stats->merge_steps++;
    }
    q->heap[i] = v;
}

static uint64_t pop(struct queue *q)
{
    uint64_t v = q->heap[0];
    q->heap[0] = q->heap[--q->n_heap];
    if (q->n_heap > 0)
        sift_down(q, 0);
    return v;
}

static void refresh(const struct cart_tokenizer *t, struct queue *q, uint32_t place)
{
    q->rank[place] =
        q->next[place] == END ? NO_RANK : rank_of(t, q->id[place], q->id[q->next[place]], q->stats);
    if (q->rank[place] != NO_RANK)
        push(q, (uint64_t)q->rank[place] << 32 | place);
}

static void merge_long(const struct cart_tokenizer *t, struct queue *q, size_t n)
{
    for (uint32_t i = 0; i < n; i++) {
        q->prev[i] = i == 0 ? END : i - 1;
        q->next[i] = i + 1 == n ? END : i + 1;
    }
    for (uint32_t i = 0; i < n; i++) {
        q->rank[i] = i + 1 == n ? NO_RANK : rank_of(t, q->id[i], q->id[i + 1], q->stats);
        if (q->rank[i] != NO_RANK)
            q->heap[q->n_heap++] = (uint64_t)q->rank[i] << 32 | i;
    }
    for (size_t i = q->n_heap / 2; i-- > 0;)
        sift_down(q, i);
    while (q->n_heap > 0) {
        uint64_t top = pop(q);
        uint32_t a = (uint32_t)top;
        if (q->rank[a] != (uint32_t)(top >> 32))
            continue;
        uint32_t b = q->next[a];
        q->id[a] = cart_token_pair(t, q->id[a], q->id[b])->result;
        q->next[a] = q->next[b];
        q->rank[b] = NO_RANK;
        if (q->next[a] != END)
            q->prev[q->next[a]] = a;
        refresh(t, q, a);
        if (q->prev[a] != END)
            refresh(t, q, q->prev[a]);
    }
}

/* The tokens of the bytes; a byte that the vocabulary lacks is left out, and its neighbours may
 * then merge. */
static size_t symbols(const struct cart_tokenizer *t, const unsigned char *piece, size_t n,
                      uint32_t *ids, struct cart_encode_stats *stats)
{
    size_t m = 0;
    for (size_t i = 0; i < n; i++)
        if (t->byte_id[piece[i]] != CART_TOKEN_NONE)
            ids[m++] = t->byte_id[piece[i]];
    stats->dropped += n - m;
    return m;
}

static int encode_long(const struct cart_tokenizer *t, const unsigned char *piece, size_t n,
                       struct cart_ids *out, struct cart_bpe_scratch *scratch,
                       struct cart_encode_stats *stats, struct cart_err *err)
{
    if (n > INT32_MAX)
        return cart_err_set(
            err, CART_EFORMAT,
            "text: a piece without a break: expected less than 2 GiB, found %zu bytes", n);
    int r = cart_array_reserve(&scratch->memory, &scratch->cap, 5 * n, sizeof(uint64_t), err);
    if (r < 0)
        return r;
    uint64_t *heap = scratch->memory;
    uint32_t *words = (uint32_t *)(heap + 3 * n);
    struct queue q = {heap, 0, words, words + n, words + 2 * n, words + 3 * n, stats};
    size_t m = symbols(t, piece, n, q.id, stats);
    if (m == 0)
        return 0;
    merge_long(t, &q, m);
    for (uint32_t i = 0; i != END; i = q.next[i])
        if ((r = cart_ids_push(out, q.id[i], err)) < 0)
            return r;
    return 0;
}

static int encode_short(const struct cart_tokenizer *t, const unsigned char *piece, size_t n,
                        struct cart_ids *out, struct cart_encode_stats *stats, struct cart_err *err)
{
    uint32_t ids[SHORT];
    size_t m = symbols(t, piece, n, ids, stats);
    return cart_ids_add(out, ids, merge_short(t, ids, m, stats), err);
}

int cart_bpe_encode(const struct cart_tokenizer *t, const unsigned char *piece, size_t n,
                    struct cart_ids *out, struct cart_bpe_scratch *scratch,
                    struct cart_encode_stats *stats, struct cart_err *err)
{
    if (n == 1 && t->byte_id[*piece] != CART_TOKEN_NONE)
        return cart_ids_push(out, t->byte_id[*piece], err);
    uint32_t id =
        n <= t->longest ? cart_token_by_bytes(t, (const char *)piece, n) : CART_TOKEN_NONE;
    unsigned char whole = CART_WHOLE_NO;
    if (id != CART_TOKEN_NONE)
        whole = t->ignore_merges ? CART_WHOLE_YES
                                 : atomic_load_explicit(&t->whole[id], memory_order_relaxed);
    if (whole == CART_WHOLE_YES)
        return cart_ids_push(out, id, err);
    size_t before = out->n;
    int r = n <= SHORT ? encode_short(t, piece, n, out, stats, err)
                       : encode_long(t, piece, n, out, scratch, stats, err);
    if (r == 0 && id != CART_TOKEN_NONE && whole == CART_WHOLE_UNKNOWN) {
        bool yes = out->n == before + 1 && out->data[before] == id;
        atomic_store_explicit(&t->whole[id], yes ? CART_WHOLE_YES : CART_WHOLE_NO,
                              memory_order_relaxed);
    }
    return r;
}
