/* Spans joined, and rows finished.
 * Included once by each attention variant through attention_impl.h; a fragment of code, not an
 * interface. */
#ifndef CART_TENSOR_ATTENTION_JOIN_IMPL_H
#define CART_TENSOR_ATTENTION_JOIN_IMPL_H

#include "tensor/attention_softmax_impl.h"
#include "tensor/attention_state_impl.h"

/* At the end of a span the state of each row that saw something joins its total and starts anew. */
static void join_rows(struct forward_state *f, size_t r0, size_t r1)
{
    size_t DHp = f->DHp;

    for (size_t r = r0; r < r1; r++) {
        float *o = f->o + r * DHp, *total = f->total + r * DHp;
        float top, factor[2 * LANES], from[2 * LANES] = {0}, to[2 * LANES] = {0};

        if (f->l[r] == 0)
            continue;
        if (f->L[r] == 0) {
            f->M[r] = f->m[r];
            f->L[r] = f->l[r];
            memcpy(total, o, DHp * sizeof(float));
        } else {
            top = f->m[r] > f->M[r] ? f->m[r] : f->M[r];
            from[0] = f->M[r];
            from[1] = f->m[r];
            to[0] = to[1] = top;
            exp_differences(factor, from, to, 2);
            f->M[r] = top;
            f->L[r] = __builtin_fmaf(f->L[r], factor[0], f->l[r] * factor[1]);
            for (size_t c = 0; c < DHp; c += LANES) {
                struct lanes part = lanes_mul(lanes_load(o + c), lanes_set(factor[1]));

                lanes_store(total + c,
                            lanes_fma(lanes_load(total + c), lanes_set(factor[0]), part));
            }
        }
        f->m[r] = -INFINITY;
        f->l[r] = 0;
        memset(o, 0, DHp * sizeof(float));
    }
}

static void row_finish(const struct forward_state *f, size_t i, const struct cart_attn_item *it,
                       size_t t, size_t head)
{
    size_t DH = f->d->DH, c = 0;
    struct lanes l = lanes_set(f->L[i]), zero = lanes_set(0.0f);
    const float *total = f->total + i * f->DHp;
    float *out = it->out + t * it->ldo + head * DH;

    for (; c + LANES <= DH; c += LANES)
        lanes_store(out + c, lanes_add(lanes_div(lanes_load(total + c), l), zero));
    if (c < DH)
        lanes_store_n(out + c, lanes_add(lanes_div(lanes_load(total + c), l), zero), DH - c);
    if (it->stats) {
        it->stats[(t * f->d->H + head) * 2] = f->M[i];
        it->stats[(t * f->d->H + head) * 2 + 1] = f->L[i];
    }
}

static void rows_finish(struct forward_state *f, const struct cart_attn_forward_work *w)
{
    size_t G = f->d->H / f->d->HK;

    join_rows(f, 0, f->n);
    for (size_t r = 0; r < f->n; r++) {
        const struct cart_attn_item *it;
        size_t t, g;

        row_of(w, f->d, r, &it, &t, &g);
        row_finish(f, r, it, t, f->kv * G + g);
    }
}

#endif
