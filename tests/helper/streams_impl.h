/* Streams for the tests of attention: queries, what the definition makes of them, and the formula
 * in f64. Each test runs once for each class of compute. One fragment of code, not an interface:
 * the tests of the forward and of the backward share it. */
#ifndef CART_TEST_STREAMS_IMPL_H
#define CART_TEST_STREAMS_IMPL_H

#include "helper/stream_keys_impl.h"

/* One stream's queries and all that is kept of them. */
struct stream {
    struct cart_attn_dims d;
    struct keys keys;
    size_t T, pos0, ld;
    float *q, *out, *stats, *want, *want_stats;
};

static struct stream stream_make(const struct shape *s, uint64_t seed)
{
    struct stream x = {
        .d = {s->H, s->HK, s->DH, s->window, 0.25f / (float)s->DH}, .T = s->T, .pos0 = s->pos0};
    size_t ld = s->H * s->DH + 5;

    x.keys = keys_make(s->pos0 + s->T, s, seed);
    keys_cut(&x.keys, whole, 0);
    x.ld = ld;
    x.q = grid(s->T * ld, seed + 2);
    for (size_t i = 0; i < s->T * ld; i++)
        x.q[i] *= 9;
    x.out = filled(s->T * ld, 77);
    x.want = filled(s->T * ld, 77);
    x.stats = filled(s->T * s->H * 2, 77);
    x.want_stats = filled(s->T * s->H * 2, 77);
    return x;
}

static void stream_release(struct stream *x)
{
    keys_release(&x->keys);
    free(x->q);
    free(x->out);
    free(x->want);
    free(x->stats);
    free(x->want_stats);
}

/* Queries [t0, t1) of the stream as an item that writes to out and stats. */
static struct cart_attn_item item_of(const struct stream *x, size_t t0, size_t t1, float *out,
                                     float *stats)
{
    return (struct cart_attn_item){x->q + t0 * x->ld,
                                   out + t0 * x->ld,
                                   stats ? stats + t0 * x->d.H * 2 : NULL,
                                   x->keys.segs,
                                   x->keys.n_segs,
                                   t1 - t0,
                                   x->pos0 + t0,
                                   x->ld,
                                   x->ld};
}

static void expect_stream(const char *what, const struct stream *x)
{
    for (size_t i = 0; i < x->T * x->ld; i++)
        if (memcmp(&x->out[i], &x->want[i], sizeof(float)))
            fail_msg("%s: H %zu/%zu DH %zu window %zu T %zu pos0 %zu: row %zu value %zu: expected "
                     "%a, found %a",
                     what, x->d.H, x->d.HK, x->d.DH, x->d.window, x->T, x->pos0, i / x->ld,
                     i % x->ld, (double)x->want[i], (double)x->out[i]);
    for (size_t i = 0; i < x->T * x->d.H * 2; i++)
        if (memcmp(&x->stats[i], &x->want_stats[i], sizeof(float)))
            fail_msg("%s: statistics %zu: expected %a, found %a", what, i, (double)x->want_stats[i],
                     (double)x->stats[i]);
}

static void stream_blank(struct stream *x)
{
    for (size_t i = 0; i < x->T * x->ld; i++)
        x->out[i] = 77;
    memset(x->stats, 0, x->T * x->d.H * 2 * sizeof *x->stats);
}

static void stream_define(struct stream *x)
{
    struct cart_attn_item it = item_of(x, 0, x->T, x->want, x->want_stats);

    cart_attention_forward_ref(class, &it, 1, &x->d);
}

/* In f64, straight from the formula. */
static void oracle(const struct stream *x, const double *q, const double *k, const double *v,
                   double *out)
{
    size_t G = x->d.H / x->d.HK, DH = x->d.DH, width = x->keys.width;
    double *w = room(x->keys.rows, sizeof *w);

    for (size_t t = 0; t < x->T; t++)
        for (size_t h = 0; h < x->d.H; h++) {
            size_t end = x->pos0 + t + 1,
                   begin = x->d.window && end > x->d.window ? end - x->d.window : 0;
            const double *row = q + t * x->ld + h * DH;
            double top = -INFINITY, sum = 0;

            for (size_t j = begin; j < end; j++) {
                w[j] = 0;
                for (size_t c = 0; c < DH; c++)
                    w[j] += row[c] * k[j * width + h / G * DH + c];
                w[j] *= (double)x->d.scale;
                top = fmax(top, w[j]);
            }
            for (size_t j = begin; j < end; j++)
                sum += w[j] = exp(w[j] - top);
            for (size_t c = 0; c < DH; c++) {
                double o = 0;

                for (size_t j = begin; j < end; j++)
                    o += w[j] * v[j * width + h / G * DH + c];
                out[t * x->ld + h * DH + c] = o / sum;
            }
        }
    free(w);
}

static double *widened(const float *x, size_t n)
{
    double *y = room(n, sizeof *y);

    for (size_t i = 0; i < n; i++)
        y[i] = (double)x[i];
    return y;
}

/* One test of each class. */
#define BOTH(f)                                                                                    \
    {#f, f, NULL, NULL, &f32},                                                                     \
    {                                                                                              \
#f ": bf16", f, NULL, NULL, &bf16                                                          \
    }

#endif
