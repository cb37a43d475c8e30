/* The definition of attention and its gradients: one query, one head, one key at a time. See
 * attention.h for the formulas and orders, which this file follows line by line. */
#include "tensor/attention.h"

#include "tensor/mathf.h"

#include <math.h>

#define LANES 16

static float value_at(const void *base, int dtype, size_t i)
{
    switch (dtype) {
    case CART_F16:
        return cart_f16_to_f32(((const uint16_t *)base)[i]);
    case CART_BF16:
        return cart_bf16_to_f32(((const uint16_t *)base)[i]);
    default:
        return ((const float *)base)[i];
    }
}

/* The segment that holds logical key j; *row is its row there. */
static size_t find_segment(const struct cart_attn_item *it, size_t j, size_t *row)
{
    size_t s = 0;

    while (j >= it->segs[s].rows)
        j -= it->segs[s++].rows;
    *row = j;
    return s;
}

/* k and v of logical key j, head kv, as f32 [DH]. */
static void key_read(const struct cart_attn_item *it, const struct cart_attn_dims *d, size_t j,
                     size_t kv, float *k, float *v)
{
    size_t row;
    const struct cart_kv_segment *s = &it->segs[find_segment(it, j, &row)];

    if (s->blocked) {
        size_t place = s->skip + row, key = kv * s->stride + cart_attn_blocked_key(place, d->DH);

        for (size_t i = 0; i < d->DH; i++) {
            k[i] = value_at(s->k, s->dtype, key + i * CART_ATTN_BLOCK);
            v[i] = value_at(s->v, s->dtype, kv * s->stride + place * d->DH + i);
        }
        return;
    }
    for (size_t i = 0; i < d->DH; i++) {
        k[i] = value_at(s->k, s->dtype, row * s->stride + kv * d->DH + i);
        v[i] = value_at(s->v, s->dtype, row * s->stride + kv * d->DH + i);
    }
}

static float dot(const float *a, const float *b, size_t n)
{
    float c = 0;

    for (size_t i = 0; i < n; i++)
        c = fmaf(a[i], b[i], c);
    return c;
}

static float tree_of_halves(float lane[LANES])
{
    for (int half = LANES / 2; half > 0; half /= 2)
        for (int i = 0; i < half; i++)
            lane[i] += lane[i + half];
    return lane[0];
}

/* One block of visible keys j0 .. j1 - 1 joins the state of its span. */
static void add_block(const struct cart_attn_item *it, const struct cart_attn_dims *d,
                      const float *q, size_t kv, size_t j0, size_t j1, float *m, float *l, float *o)
{
    float s[CART_ATTN_BLOCK], lane[LANES] = {0}, m_new = *m, alpha;
    float k[CART_ATTN_HEAD_MAX], v[CART_ATTN_HEAD_MAX];

    for (size_t j = j0; j < j1; j++) {
        key_read(it, d, j, kv, k, v);
        s[j - j0] = d->scale * dot(q, k, d->DH);
        if (s[j - j0] > m_new)
            m_new = s[j - j0];
    }
    m_new += 0.0f;
    alpha = cart_expf(*m - m_new);
    for (size_t i = 0; i < d->DH; i++)
        o[i] *= alpha;
    for (size_t j = j0; j < j1; j++) {
        float p = cart_expf(s[j - j0] - m_new);

        key_read(it, d, j, kv, k, v);
        lane[j % LANES] += p;
        for (size_t i = 0; i < d->DH; i++)
            o[i] = fmaf(p, v[i], o[i]);
    }
    *l = fmaf(*l, alpha, tree_of_halves(lane));
    *m = m_new;
}

static void forward_row(const struct cart_attn_item *it, const struct cart_attn_dims *d, size_t t,
                        size_t h)
{
    size_t kv = h / (d->H / d->HK), pos = it->pos0 + t, end = pos + 1;
    size_t begin = d->window && end > d->window ? end - d->window : 0;
    const float *q = it->q + t * it->ldq + h * d->DH;
    float *out = it->out + t * it->ldo + h * d->DH;
    float o[CART_ATTN_HEAD_MAX], total[CART_ATTN_HEAD_MAX], M = 0, L = 0;
    bool first = true;

    for (size_t span = begin - begin % CART_ATTN_SPAN; span < end; span += CART_ATTN_SPAN) {
        float m = -INFINITY, l = 0;

        for (size_t i = 0; i < d->DH; i++)
            o[i] = 0;
        for (size_t j = span; j < span + CART_ATTN_SPAN && j < end; j += CART_ATTN_BLOCK) {
            size_t j0 = j > begin ? j : begin,
                   j1 = j + CART_ATTN_BLOCK < end ? j + CART_ATTN_BLOCK : end;

            if (j0 < j1)
                add_block(it, d, q, kv, j0, j1, &m, &l, o);
        }
        if (first) {
            M = m;
            L = l;
            for (size_t i = 0; i < d->DH; i++)
                total[i] = o[i];
            first = false;
        } else {
            float top = m > M ? m : M, a = cart_expf(M - top), b = cart_expf(m - top);

            M = top;
            L = fmaf(L, a, l * b);
            for (size_t i = 0; i < d->DH; i++)
                total[i] = fmaf(total[i], a, o[i] * b);
        }
    }
    for (size_t i = 0; i < d->DH; i++)
        out[i] = total[i] / L + 0.0f;
    if (it->stats) {
        it->stats[(t * d->H + h) * 2] = M;
        it->stats[(t * d->H + h) * 2 + 1] = L;
    }
}

void cart_attention_forward_ref(const struct cart_attn_item *items, size_t n,
                                const struct cart_attn_dims *d)
{
    for (size_t i = 0; i < n; i++)
        for (size_t t = 0; t < items[i].T; t++)
            for (size_t h = 0; h < d->H; h++)
                forward_row(&items[i], d, t, h);
}

static void backward_row(const struct cart_attn_item *it, const struct cart_attn_grad *g,
                         const struct cart_attn_dims *d, size_t t, size_t h)
{
    size_t kv = h / (d->H / d->HK), end = it->pos0 + t + 1;
    size_t begin = d->window && end > d->window ? end - d->window : 0;
    const float *q = it->q + t * it->ldq + h * d->DH, *out = it->out + t * it->ldo + h * d->DH;
    const float *dout = g->dout + t * g->lddo + h * d->DH;
    const float *stats = it->stats + (t * d->H + h) * 2;
    float *dq = g->dq + t * g->lddq + h * d->DH;
    float k[CART_ATTN_HEAD_MAX], v[CART_ATTN_HEAD_MAX], lane[LANES] = {0}, delta,
                                                        inverse = 1.0f / stats[1];

    for (size_t i = 0; i < (d->DH + LANES - 1) / LANES * LANES; i++)
        lane[i % LANES] = fmaf(i < d->DH ? dout[i] : 0, i < d->DH ? out[i] : 0, lane[i % LANES]);
    delta = tree_of_halves(lane);
    for (size_t j = begin; j < end; j++) {
        size_t row, s = find_segment(it, j, &row);
        size_t at = (row * d->HK + kv) * d->DH;
        float p, dp, ds;

        key_read(it, d, j, kv, k, v);
        p = cart_expf(d->scale * dot(q, k, d->DH) - stats[0]) * inverse;
        dp = dot(dout, v, d->DH);
        ds = (p * (dp - delta)) * d->scale;
        for (size_t i = 0; i < d->DH; i++) {
            dq[i] = fmaf(ds, k[i], dq[i]);
            if (g->dk[s])
                g->dk[s][at + i] = fmaf(ds, q[i], g->dk[s][at + i]);
            if (g->dv[s])
                g->dv[s][at + i] = fmaf(p, dout[i], g->dv[s][at + i]);
        }
    }
}

void cart_attention_backward_ref(const struct cart_attn_item *items,
                                 const struct cart_attn_grad *grads, size_t n,
                                 const struct cart_attn_dims *d)
{
    for (size_t i = 0; i < n; i++)
        for (size_t t = 0; t < items[i].T; t++)
            for (size_t h = 0; h < d->H; h++)
                backward_row(&items[i], &grads[i], d, t, h);
}
