/* The definition of attention and its gradients: one query, one head, one key at a time, or in the
 * bf16 class a pair of them. See attention.h for the formulas and orders, which this file follows
 * line by line. */
#include "tensor/attention.h"

#include "tensor/flush_impl.h"
#include "tensor/mathf.h"

#include <math.h>

#define LANES 16

/* Values of a cell. */
static size_t values_of(enum cart_precision precision)
{
    return precision == CART_PRECISION_BF16 ? 2 : 1;
}

static float factor(enum cart_precision precision, float v)
{
    return precision == CART_PRECISION_BF16 ? cart_bf16_to_f32(cart_bf16_flushed(v)) : v;
}

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

/* The values of a cell go from the last to the first; those behind the n are zero. */
static float dot(enum cart_precision precision, const float *a, const float *b, size_t n)
{
    size_t values = values_of(precision);
    float c = 0;

    for (size_t i0 = 0; i0 < n; i0 += values)
        for (size_t i = i0 + values; i-- > i0;)
            c = fmaf(i < n ? factor(precision, a[i]) : 0, i < n ? factor(precision, b[i]) : 0, c);
    return c;
}

static float tree_of_halves(float lane[LANES])
{
    for (int half = LANES / 2; half > 0; half /= 2)
        for (int i = 0; i < half; i++)
            lane[i] += lane[i + half];
    return lane[0];
}

/* o += p v over the cells of the visible keys j0 .. j1 - 1, of which p holds the weights; the other
 * keys of a cell count as zeros. */
static void add_values(enum cart_precision precision, const struct cart_attn_item *it,
                       const struct cart_attn_dims *d, size_t kv, size_t j0, size_t j1,
                       const float *p, float *o)
{
    size_t values = values_of(precision);
    float k[CART_ATTN_HEAD_MAX], v[CART_ATTN_HEAD_MAX];

    for (size_t cell = j0 / values; cell * values < j1; cell++) {
        for (size_t j = (cell + 1) * values; j-- > cell * values;) {
            bool seen = j >= j0 && j < j1;

            if (seen)
                key_read(it, d, j, kv, k, v);
            for (size_t i = 0; i < d->DH; i++)
                o[i] = fmaf(seen ? p[j - j0] : 0, seen ? factor(precision, v[i]) : 0, o[i]);
        }
    }
}

/* One block of visible keys j0 .. j1 - 1 joins the state of its span. */
static void add_block(enum cart_precision precision, const struct cart_attn_item *it,
                      const struct cart_attn_dims *d, const float *q, size_t kv, size_t j0,
                      size_t j1, float *m, float *l, float *o)
{
    float s[CART_ATTN_BLOCK], lane[LANES] = {0}, m_new = *m, alpha;
    float k[CART_ATTN_HEAD_MAX], v[CART_ATTN_HEAD_MAX];

    for (size_t j = j0; j < j1; j++) {
        key_read(it, d, j, kv, k, v);
        s[j - j0] = d->scale * dot(precision, q, k, d->DH);
        if (s[j - j0] > m_new)
            m_new = s[j - j0];
    }
    m_new += 0.0f;
    alpha = cart_expf(*m - m_new);
    for (size_t i = 0; i < d->DH; i++)
        o[i] *= alpha;
    for (size_t j = j0; j < j1; j++) {
        s[j - j0] = factor(precision, cart_expf(s[j - j0] - m_new));
        lane[j % LANES] += s[j - j0];
    }
    add_values(precision, it, d, kv, j0, j1, s, o);
    *l = fmaf(*l, alpha, tree_of_halves(lane));
    *m = m_new;
}

static void forward_row(enum cart_precision precision, const struct cart_attn_item *it,
                        const struct cart_attn_dims *d, size_t t, size_t h)
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
                add_block(precision, it, d, q, kv, j0, j1, &m, &l, o);
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

void cart_attention_forward_ref(enum cart_precision precision, const struct cart_attn_item *items,
                                size_t n, const struct cart_attn_dims *d)
{
    unsigned mode = flush_begin(values_of(precision));

    for (size_t i = 0; i < n; i++)
        for (size_t t = 0; t < items[i].T; t++)
            for (size_t h = 0; h < d->H; h++)
                forward_row(precision, &items[i], d, t, h);
    flush_end(values_of(precision), mode);
}

/* A query of a head, its gradients and the keys that it sees. */
struct row {
    const float *q, *dout;
    float *dq, M, inverse, delta;
    size_t begin, end; /* equal: no such row */
};

/* Row r of the item: query r / G, head r % G of the heads that read KV head kv. */
static struct row row_of(enum cart_precision precision, const struct cart_attn_item *it,
                         const struct cart_attn_grad *g, const struct cart_attn_dims *d, size_t kv,
                         size_t r)
{
    size_t G = d->H / d->HK, t = r / G, h = kv * G + r % G, end = it->pos0 + t + 1;
    const float *out = it->out + t * it->ldo + h * d->DH;
    const float *stats = it->stats + (t * d->H + h) * 2;
    struct row row = {0};
    float lane[LANES] = {0};

    if (t >= it->T)
        return row;
    row.q = it->q + t * it->ldq + h * d->DH;
    row.dout = g->dout + t * g->lddo + h * d->DH;
    row.dq = g->dq + t * g->lddq + h * d->DH;
    row.M = stats[0];
    row.inverse = 1.0f / stats[1];
    row.begin = d->window && end > d->window ? end - d->window : 0;
    row.end = end;
    for (size_t i = 0; i < (d->DH + LANES - 1) / LANES * LANES; i++)
        lane[i % LANES] = fmaf(i < d->DH ? factor(precision, row.dout[i]) : 0,
                               i < d->DH ? out[i] : 0, lane[i % LANES]);
    row.delta = tree_of_halves(lane);
    return row;
}

/* x += a b, b of DH values; both zero where what they stand for is not seen. */
static void add_product(enum cart_precision precision, float *x, bool seen, float a, const float *b,
                        size_t DH)
{
    for (size_t i = 0; i < DH; i++)
        x[i] = fmaf(seen ? factor(precision, a) : 0, seen ? factor(precision, b[i]) : 0, x[i]);
}

/* What the cells of rows and of keys that begin at rows[0] and at key j0 add: products of what they
 * see of each other, to the gradient of each row and key that sees or is seen at all. */
static void add_cells(enum cart_precision precision, const struct cart_attn_item *it,
                      const struct cart_attn_grad *g, const struct cart_attn_dims *d, size_t kv,
                      const struct row *rows, size_t j0)
{
    size_t values = values_of(precision);
    float k[2][CART_ATTN_HEAD_MAX], v[CART_ATTN_HEAD_MAX], p[2][2] = {{0}}, ds[2][2] = {{0}};
    bool seen[2][2] = {{false}}, sees[2] = {false}, is_seen[2] = {false};

    for (size_t j = 0; j < values; j++) {
        for (size_t r = 0; r < values; r++) {
            seen[r][j] = j0 + j >= rows[r].begin && j0 + j < rows[r].end;
            sees[r] |= seen[r][j];
            is_seen[j] |= seen[r][j];
        }
        if (is_seen[j])
            key_read(it, d, j0 + j, kv, k[j], v);
        for (size_t r = 0; r < values; r++) {
            if (!seen[r][j])
                continue;
            p[r][j] = cart_expf(d->scale * dot(precision, rows[r].q, k[j], d->DH) - rows[r].M) *
                      rows[r].inverse;
            ds[r][j] =
                (p[r][j] * (dot(precision, rows[r].dout, v, d->DH) - rows[r].delta)) * d->scale;
        }
    }
    for (size_t r = 0; r < values; r++)
        for (size_t j = values; sees[r] && j-- > 0;)
            add_product(precision, rows[r].dq, seen[r][j], ds[r][j], k[j], d->DH);
    for (size_t j = 0; j < values; j++) {
        size_t row, s, at;

        if (!is_seen[j])
            continue;
        s = find_segment(it, j0 + j, &row);
        at = (row * d->HK + kv) * d->DH;
        for (size_t r = values; r-- > 0;) {
            if (g->dk[s])
                add_product(precision, g->dk[s] + at, seen[r][j], ds[r][j], rows[r].q, d->DH);
            if (g->dv[s])
                add_product(precision, g->dv[s] + at, seen[r][j], p[r][j], rows[r].dout, d->DH);
        }
    }
}

void cart_attention_backward_ref(enum cart_precision precision, const struct cart_attn_item *items,
                                 const struct cart_attn_grad *grads, size_t n,
                                 const struct cart_attn_dims *d)
{
    size_t values = values_of(precision), G = d->H / d->HK;
    unsigned mode = flush_begin(values);

    for (size_t i = 0; i < n; i++) {
        for (size_t kv = 0; kv < d->HK; kv++) {
            for (size_t r = 0; r < items[i].T * G; r += values) {
                struct row rows[2] = {row_of(precision, &items[i], &grads[i], d, kv, r),
                                      row_of(precision, &items[i], &grads[i], d, kv, r + 1)};

                for (size_t j = 0; j < items[i].pos0 + items[i].T; j += values)
                    add_cells(precision, &items[i], &grads[i], d, kv, rows, j);
            }
        }
    }
    flush_end(values, mode);
}
