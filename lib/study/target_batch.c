#include "study/target_batch.h"

#include "base/buf.h"
#include "tensor/mathf.h"

#include <stdlib.h>
#include <string.h>

void cart_target_batch_reset(struct cart_target_batch *b)
{
    b->R = b->E = 0;
}

void cart_target_batch_release(struct cart_target_batch *b)
{
    free(b->want);
    free(b->offsets);
    free(b->ids);
    free(b->p);
    memset(b, 0, sizeof *b);
}

int cart_target_batch_add(struct cart_target_batch *b, const struct cart_conversation *c,
                          struct cart_err *err)
{
    int r;
    if ((r = cart_array_reserve(&b->want, &b->want_cap, b->R + c->R, sizeof *b->want, err)) < 0 ||
        (r = cart_array_reserve(&b->offsets, &b->offsets_cap, b->R + c->R + 1, sizeof *b->offsets,
                                err)) < 0 ||
        (r = cart_array_reserve(&b->ids, &b->ids_cap, b->E + c->E, sizeof *b->ids, err)) < 0 ||
        (r = cart_array_reserve(&b->p, &b->p_cap, b->E + c->E, sizeof *b->p, err)) < 0)
        return r;
    for (size_t i = 0; i < c->R; i++) {
        b->want[b->R + i] = c->rows[i] - 1;
        b->offsets[b->R + i] = b->E + c->offsets[i];
    }
    for (size_t i = 0; i < c->E; i++) {
        b->ids[b->E + i] = c->target_ids[i];
        b->p[b->E + i] = cart_expf(c->logprobs[i]);
    }
    b->R += c->R;
    b->E += c->E;
    b->offsets[b->R] = b->E;
    return 0;
}

size_t cart_target_tokens(const struct cart_conversation *c)
{
    return c->R ? c->rows[c->R - 1] : 0;
}

void cart_target_sum(struct cart_distill_sums *out, const struct cart_distill_sums *rows, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        out->ce += rows[i].ce;
        out->kl += rows[i].kl;
        out->entries += rows[i].entries;
        out->rows += rows[i].rows;
        out->top1 += rows[i].top1;
    }
}
