#include "engine/draft.h"

#include "base/buf.h"

#include <stdlib.h>
#include <string.h>

#define MATCH_MAX 64 /* agreement beyond this says nothing more */
#define LOOKS 16     /* places looked at per question, the latest first */

/* Place i of the text is where token i follows ids[i - KEY .. i); all places with the same key hash
 * are chained. */
struct cart_draft {
    uint32_t *ids;  /* [n] */
    uint32_t *prev; /* [n] an earlier place with the same hash, plus 1; 0: none */
    uint32_t *head; /* [1 << bits] the latest place, plus 1 */
    size_t n, ids_cap, prev_cap;
    unsigned bits;
};

int cart_draft_new(struct cart_draft **out, struct cart_err *err)
{
    struct cart_draft *d = calloc(1, sizeof *d);

    if (d == NULL)
        return cart_err_memory(err, "an index of drafts", sizeof *d);
    *out = d;
    return 0;
}

void cart_draft_free(struct cart_draft *d)
{
    if (d == NULL)
        return;
    free(d->ids);
    free(d->prev);
    free(d->head);
    free(d);
}

/* Of the key that ends before p. */
static size_t hash(const struct cart_draft *d, const uint32_t *p)
{
    uint64_t h = 0;

    for (size_t i = 1; i <= CART_DRAFT_KEY; i++)
        h = (h ^ p[-(ptrdiff_t)i]) * 0x9e3779b97f4a7c15u;
    return (size_t)(h >> (64 - d->bits));
}

static void chain(struct cart_draft *d, size_t place)
{
    size_t h = hash(d, d->ids + place);

    d->prev[place] = d->head[h];
    d->head[h] = (uint32_t)place + 1;
}

static int grow(struct cart_draft *d, struct cart_err *err)
{
    unsigned bits = d->head == NULL ? 8 : d->bits + 1;

    while (((size_t)1 << bits) < d->n)
        bits++;
    uint32_t *head = calloc((size_t)1 << bits, sizeof *head);
    if (head == NULL)
        return cart_err_memory(err, "an index of drafts", sizeof *head << bits);
    free(d->head);
    d->head = head;
    d->bits = bits;
    for (size_t i = CART_DRAFT_KEY; i < d->n; i++)
        chain(d, i);
    return 0;
}

int cart_draft_add(struct cart_draft *d, const uint32_t *ids, size_t n, struct cart_err *err)
{
    size_t need;

    if (!cart_size_add(d->n, n, &need) || need >= UINT32_MAX)
        return cart_err_memory(err, "an index of drafts", 0);
    int r = cart_array_reserve(&d->ids, &d->ids_cap, need, sizeof *d->ids, err);
    if (r < 0)
        return r;
    r = cart_array_reserve(&d->prev, &d->prev_cap, need, sizeof *d->prev, err);
    if (r < 0)
        return r;
    for (size_t i = 0; i < n; i++) {
        if ((d->head == NULL || d->n >= (size_t)1 << d->bits) && (r = grow(d, err)) < 0)
            return r;
        d->ids[d->n] = ids[i];
        d->prev[d->n] = 0;
        if (d->n >= CART_DRAFT_KEY)
            chain(d, d->n);
        d->n++;
    }
    return 0;
}

size_t cart_draft_bytes(const struct cart_draft *d)
{
    size_t places = d->head ? (size_t)1 << d->bits : 0;

    return d->ids_cap * sizeof *d->ids + d->prev_cap * sizeof *d->prev + places * sizeof *d->head;
}

size_t cart_draft_find(const struct cart_draft *d, const uint32_t *context, size_t n, size_t max,
                       uint32_t *out, size_t *matched)
{
    size_t best = 0;
    size_t place = 0;

    *matched = 0;
    if (n < CART_DRAFT_KEY || d->head == NULL || max == 0)
        return 0;
    uint32_t at = d->head[hash(d, context + n)];
    for (int looks = 0; at != 0 && looks < LOOKS; looks++) {
        size_t p = at - 1;
        size_t m = 0;
        while (m < MATCH_MAX && m < p && m < n && d->ids[p - 1 - m] == context[n - 1 - m])
            m++;
        if (m >= CART_DRAFT_KEY && m > best) {
            best = m;
            place = p;
        }
        at = d->prev[p];
    }
    if (best == 0)
        return 0;
    *matched = best;
    max = max < CART_DRAFT_MAX ? max : CART_DRAFT_MAX;
    size_t count = d->n - place < max ? d->n - place : max;
    memcpy(out, d->ids + place, count * sizeof *out);
    return count;
}
