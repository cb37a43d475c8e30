#include "engine/sampler.h"

#include "tensor/mathf.h"
#include "tensor/vocab.h"

#include <stdlib.h>

struct candidate {
    float p; /* relative to the most likely token */
    uint32_t id;
};

struct cart_sampler_scratch {
    float *p;               /* [V] */
    struct candidate *list; /* [V] */
};

size_t cart_sampler_bytes(size_t V)
{
    return V * (sizeof(float) + sizeof(struct candidate));
}

int cart_sampler_scratch_new(struct cart_sampler_scratch **out, size_t V, struct cart_err *err)
{
    struct cart_sampler_scratch *s = calloc(1, sizeof *s);

    if (s != NULL) {
        s->p = calloc(V, sizeof *s->p);
        s->list = calloc(V, sizeof *s->list);
    }
    if (s == NULL || s->p == NULL || s->list == NULL) {
        cart_sampler_scratch_free(s);
        return cart_err_memory(err, "a sampler", cart_sampler_bytes(V));
    }
    *out = s;
    return 0;
}

void cart_sampler_scratch_free(struct cart_sampler_scratch *s)
{
    if (s == NULL)
        return;
    free(s->p);
    free(s->list);
    free(s);
}

static int by_likelihood(const void *a, const void *b)
{
    const struct candidate *x = a;
    const struct candidate *y = b;

    if (x->p != y->p)
        return x->p > y->p ? -1 : 1;
    return x->id < y->id ? -1 : x->id > y->id;
}

static int by_id(const void *a, const void *b)
{
    const struct candidate *x = a;
    const struct candidate *y = b;

    return x->id < y->id ? -1 : x->id > y->id;
}

/* Puts the candidates that may survive the cuts into list, most likely first; returns their number.
 * Only the upper part of the row is sorted: the threshold falls until enough tokens, or enough of
 * the mass, lie above it. */
static size_t sort_candidates(struct cart_sampler_scratch *w, size_t V, size_t want,
                              double want_mass)
{
    for (float least = 1.0f / 64;; least = least > 1e-6f ? least / 64 : 0.0f) {
        size_t n = 0;
        double mass = 0;

        for (size_t i = 0; i < V; i++) {
            if (w->p[i] >= least) {
                w->list[n++] = (struct candidate){w->p[i], (uint32_t)i};
                mass += w->p[i];
            }
        }
        if (least == 0.0f || n >= want || mass >= want_mass) {
            qsort(w->list, n, sizeof *w->list, by_likelihood);
            return n;
        }
    }
}

static size_t cut(const struct cart_sampling *s, struct cart_sampler_scratch *w, size_t V)
{
    size_t k = s->top_k > 0 && s->top_k < V ? s->top_k : V;
    double total = 0;
    size_t n;

    if (k < V) {
        n = sort_candidates(w, V, k, 2.0 * (double)V);
        n = n < k ? n : k;
        for (size_t i = 0; i < n; i++)
            total += w->list[i].p;
    } else {
        for (size_t i = 0; i < V; i++)
            total += w->p[i];
        /* A margin for the other order of this sum: the walk below decides, never the threshold. */
        n = sort_candidates(w, V, V, s->top_p < 1 ? s->top_p * total * 1.000001 : 2.0 * (double)V);
    }
    double mass = 0;
    size_t kept = 0;
    while (kept < n && (s->top_p >= 1 || mass < s->top_p * total)) {
        if (kept > 0 && w->list[kept].p < s->min_p)
            break;
        mass += w->list[kept++].p;
    }
    qsort(w->list, kept, sizeof *w->list, by_id);
    return kept;
}

uint32_t cart_sampler_pick(const struct cart_sampling *s, const float *logits, size_t V,
                           uint32_t index, struct cart_sampler_scratch *w)
{
    uint32_t best = cart_vocab_argmax(logits, V);

    if (s->temperature <= 0)
        return best;
    float max = logits[best];
    float inverse = (float)(1.0 / s->temperature);
    for (size_t i = 0; i < V; i++)
        w->p[i] = cart_expf((logits[i] - max) * inverse);
    double u = cart_rng_uniform(s->seed, s->n, s->use, index);
    double sum = 0;
    double walked = 0;
    if ((s->top_k == 0 || s->top_k >= V) && s->top_p >= 1 && s->min_p <= 0) {
        for (size_t i = 0; i < V; i++)
            sum += w->p[i];
        for (size_t i = 0; i < V; i++) {
            walked += w->p[i];
            if (walked > u * sum)
                return (uint32_t)i;
        }
        return best;
    }
    size_t n = cut(s, w, V);
    for (size_t i = 0; i < n; i++)
        sum += w->list[i].p;
    for (size_t i = 0; i < n; i++) {
        walked += w->list[i].p;
        if (walked > u * sum)
            return w->list[i].id;
    }
    return best;
}
