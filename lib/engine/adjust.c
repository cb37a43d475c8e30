#include "engine/adjust.h"

#include <float.h>
#include <stdlib.h>

struct cart_tally {
    uint32_t *count; /* [V] occurrences in the answer */
    bool *met;       /* [V] listed in seen */
    uint32_t *seen;  /* [V] the distinct tokens of prompt and answer, n of them */
    size_t n, V;
};

int cart_tally_new(struct cart_tally **out, size_t V, struct cart_err *err)
{
    struct cart_tally *t = calloc(1, sizeof *t);

    if (t != NULL) {
        t->V = V;
        t->count = calloc(V, sizeof *t->count);
        t->met = calloc(V, sizeof *t->met);
        t->seen = calloc(V, sizeof *t->seen);
    }
    if (t == NULL || t->count == NULL || t->met == NULL || t->seen == NULL) {
        cart_tally_free(t);
        return cart_err_memory(err, "counts of tokens", V * sizeof *t->count);
    }
    *out = t;
    return 0;
}

void cart_tally_free(struct cart_tally *t)
{
    if (t == NULL)
        return;
    free(t->count);
    free(t->met);
    free(t->seen);
    free(t);
}

static void meet(struct cart_tally *t, uint32_t id)
{
    if (!t->met[id]) {
        t->met[id] = true;
        t->seen[t->n++] = id;
    }
}

void cart_tally_prompt(struct cart_tally *t, const uint32_t *ids, size_t n)
{
    for (size_t i = 0; i < n; i++)
        meet(t, ids[i]);
}

void cart_tally_push(struct cart_tally *t, uint32_t id)
{
    meet(t, id);
    t->count[id]++;
}

bool cart_adjust_needs_tally(const struct cart_adjust *a)
{
    return a->repeat != 1 || a->presence != 0 || a->frequency != 0;
}

bool cart_adjust_any(const struct cart_adjust *a)
{
    return a->n_bias > 0 || cart_adjust_needs_tally(a);
}

/* Sums of finite values may still leave the range of f32. */
static float tame(float x)
{
    if (x > FLT_MAX)
        return FLT_MAX;
    return x >= -FLT_MAX ? x : -FLT_MAX;
}

void cart_adjust_logits(const struct cart_adjust *a, const struct cart_tally *t, float *logits,
                        size_t V)
{
    if (cart_adjust_needs_tally(a)) {
        float repeat = (float)a->repeat;
        for (size_t i = 0; i < t->n; i++) {
            uint32_t id = t->seen[i];
            float x = logits[id];
            if (a->repeat != 1)
                x = x > 0 ? x / repeat : x * repeat;
            if (t->count[id] > 0)
                x -= (float)(a->frequency * (double)t->count[id] + a->presence);
            logits[id] = tame(x);
        }
    }
    for (size_t i = 0; i < a->n_bias; i++) {
        if (a->bias[i].id < V)
            logits[a->bias[i].id] = tame(logits[a->bias[i].id] + a->bias[i].bias);
    }
}
