/* Attention of both classes: every variant gives the bits of the definition, for any segments, calls, company and
 * threads; the definition agrees with f64 and its gradients with differences; what a query does not
 * see cannot touch it. */
#include "tensor/attention.h"

#include "base/cpu.h"
#include "helper/pools.h"
#include "helper/weights.h"
#include "tensor/attention_kernels.h"
#include "tensor/dispatch.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { SEGMENTS = 8, GAP = 3 };

static enum cart_precision class;

/* Each test runs once for each class: its state. */
static void choose(void **state)
{
    class = *(const enum cart_precision *)*state;
}

static const struct cart_attention_kernels *of_class(const struct cart_tensor_kernels *set)
{
    return class == CART_PRECISION_BF16 ? set->attention_bf16 : set->attention;
}

/* x as a factor of the class. */
static float factor(float x)
{
    return class == CART_PRECISION_BF16 ? cart_bf16_to_f32(cart_bf16_flushed(x)) : x;
}

struct shape {
    size_t H, HK, DH, window, T, pos0;
};

/* Heads alone and in groups, widths of every remainder, windows inside, across and beyond blocks
 * and spans; rows of even and odd number that are the first to see a block. */
static const struct shape shapes[] = {
    {3, 1, 64, 0, 5, 0},      {9, 3, 64, 0, 70, 130},    {4, 4, 16, 0, 33, 64},
    {8, 2, 80, 17, 150, 7},   {6, 2, 128, 64, 140, 500}, {2, 1, 256, 0, 9, 520},
    {5, 5, 7, 3, 20, 1},      {2, 2, 24, 1, 80, 0},      {12, 1, 32, 0, 130, 63},
    {4, 2, 65, 100, 3, 1100}, {1, 1, 1, 0, 65, 0},       {3, 3, 64, 512, 2, 1500},
    {3, 1, 64, 0, 1, 1535},   {3, 1, 64, 700, 1, 1536},  {9, 3, 48, 0, 1, 1090},
    {4, 1, 33, 0, 17, 47},    {4, 1, 256, 0, 60, 70},    {1, 1, 1000, 0, 60, 3},
    {6, 2, 64, 0, 75, 21},   {3, 3, 40, 60, 150, 33},
};

static void *room(size_t n, size_t size)
{
    void *p = calloc(n ? n : 1, size);

    assert_non_null(p);
    return p;
}

/* Multiples of 1/64 below 2, which F16 and BF16 hold exactly. */
static float *grid(size_t n, uint64_t seed)
{
    float *x = room(n, sizeof *x);

    for (size_t i = 0; i < n; i++)
        x[i] = (float)((int)(test_random(&seed) % 255) - 127) / 64.0f;
    return x;
}

static float *filled(size_t n, float value)
{
    float *x = room(n, sizeof *x);

    for (size_t i = 0; i < n; i++)
        x[i] = value;
    return x;
}

/* Keys and values of one stream: as one array each, and as segments in which they lie with gaps of
 * NaN. */
struct keys {
    size_t rows, width, DH; /* width = HK * DH */
    float *k, *v;           /* [rows][width] */
    struct cart_kv_segment segs[SEGMENTS];
    size_t n_segs;
    void *memory[2 * SEGMENTS];
    size_t n_memory;
};

static struct keys keys_make(size_t rows, const struct shape *s, uint64_t seed)
{
    size_t width = s->HK * s->DH;

    return (struct keys){.rows = rows,
                         .width = width,
                         .DH = s->DH,
                         .k = grid(rows * width, seed),
                         .v = grid(rows * width, seed + 1)};
}

static void keys_clear(struct keys *k)
{
    for (size_t i = 0; i < k->n_memory; i++)
        free(k->memory[i]);
    k->n_segs = k->n_memory = 0;
}

static void keys_release(struct keys *k)
{
    keys_clear(k);
    free(k->k);
    free(k->v);
}

/* Takes the floats. */
static void *narrowed(float *f, size_t n, int dtype)
{
    uint16_t *h;

    if (dtype == CART_F32)
        return f;
    h = room(n, sizeof *h);
    for (size_t i = 0; i < n; i++)
        h[i] = dtype == CART_F16 ? cart_f16_from_f32(f[i]) : cart_bf16_from_f32(f[i]);
    free(f);
    return h;
}

static void *lay_out(const float *rows, size_t n, size_t width, size_t stride, int dtype)
{
    size_t total = (n + 2) * stride;
    float *f = filled(total, NAN);

    for (size_t r = 0; r < n; r++)
        memcpy(f + r * stride, rows + r * width, width * sizeof *f);
    return narrowed(f, total, dtype);
}

/* Head by head in blocks; keys or values. */
static void *lay_out_blocked(const float *rows, const struct cart_kv_segment *s, size_t width,
                             size_t DH, bool values)
{
    size_t total = width / DH * s->stride;
    float *f = filled(total, NAN);

    for (size_t r = 0; r < s->rows; r++)
        for (size_t c = 0; c < width; c++) {
            size_t place = s->skip + r, head = c / DH * s->stride;

            f[head + (values ? place * DH + c % DH
                             : cart_attn_blocked_key(place, DH) + c % DH * CART_ATTN_BLOCK)] =
                rows[r * width + c];
        }
    return narrowed(f, total, s->dtype);
}

/* Cuts the rows at the given places (increasing, ended by 0); a segment's type, layout and gap
 * follow from mix: 0 is f32 by rows. Blocked ones stand where they can be read in place, or not. */
static void keys_cut(struct keys *k, const size_t *cuts, unsigned mix)
{
    static const int types[] = {CART_F32, CART_F16, CART_BF16};
    size_t from = 0;

    keys_clear(k);
    for (size_t i = 0; from < k->rows || i == 0; i++) {
        size_t to = cuts[i] && cuts[i] < k->rows ? cuts[i] : k->rows, layout = (mix / 2 + i) % 3;
        const float *rows[2] = {k->k + from * k->width, k->v + from * k->width};
        struct cart_kv_segment s = {.rows = to - from,
                                    .stride = k->width + (mix + i) % 2 * GAP,
                                    .dtype = mix ? types[(mix + i) % 3] : CART_F32,
                                    .blocked = mix && layout > 0};
        void *memory[2];

        if (s.blocked) {
            s.skip = (from + (layout == 1 ? 0 : 7)) % CART_ATTN_BLOCK;
            s.stride =
                (s.skip + s.rows + CART_ATTN_BLOCK) / CART_ATTN_BLOCK * CART_ATTN_BLOCK * k->DH;
        }
        assert_true(k->n_segs < SEGMENTS);
        for (int v = 0; v < 2; v++) {
            memory[v] = s.blocked ? lay_out_blocked(rows[v], &s, k->width, k->DH, v)
                                  : lay_out(rows[v], s.rows, k->width, s.stride, s.dtype);
            k->memory[k->n_memory++] = memory[v];
        }
        s.k = memory[0];
        s.v = memory[1];
        k->segs[k->n_segs++] = s;
        from = to;
    }
}

static const size_t whole[] = {0};

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

/* Every variant, shape and number of threads; then the same keys in other segments. */
static void test_forward_variants(void **state)
{
    static const size_t cuts[][SEGMENTS] = {
        {0}, {1, 0}, {63, 64, 65, 0}, {5, 70, 128, 513, 600, 0}, {64, 512, 0}};
    const struct cart_tensor_kernels *sets[CART_TENSOR_SETS];
    size_t n = cart_tensor_kernels_usable(sets);

    choose(state);
    for (size_t i = 0; i < CART_COUNTOF(shapes); i++) {
        struct stream x = stream_make(&shapes[i], i * 10);

        stream_define(&x);
        for (unsigned c = 0; c < 4 * CART_COUNTOF(cuts); c++) {
            keys_cut(&x.keys, cuts[c / 4], c % 4 ? c : 0);
            for (size_t s = 0; s < n; s++) {
                struct cart_attn_item it = item_of(&x, 0, x.T, x.out, x.stats);

                /* The plain variants are slow, above all sanitized: one cut of each kind will do.
                 */
                if (s < 2 && c > 0 && c != 1 + i % 3 + 4 * (i % CART_COUNTOF(cuts)))
                    continue;
                stream_blank(&x);
                cart_attention_forward_with(of_class(sets[s]), &it, 1, &x.d,
                                            test_pools[(c + s) % TEST_POOLS]);
                expect_stream(sets[s]->name, &x);
            }
        }
        stream_release(&x);
    }
}

/* A prompt cut into calls at any place. */
static void test_forward_calls(void **state)
{
    const struct cart_tensor_kernels *set = cart_tensor_kernels();

    choose(state);
    for (size_t i = 0; i < CART_COUNTOF(shapes); i++) {
        struct stream x = stream_make(&shapes[i], i * 10);

        stream_define(&x);
        for (size_t step = 1; step < x.T; step = step * 3 + 1) {
            stream_blank(&x);
            for (size_t t = 0; t < x.T; t += step) {
                size_t end = t + step < x.T ? t + step : x.T;
                struct cart_attn_item it = item_of(&x, t, end, x.out, x.stats);

                cart_attention_forward_with(of_class(set), &it, 1, &x.d,
                                            test_pools[t % TEST_POOLS]);
            }
            expect_stream("calls", &x);
        }
        stream_release(&x);
    }
}

/* Streams behind one shared prefix, in any company and order, equal each alone. */
static void check_company(size_t prefix_rows, size_t window, size_t n_streams, size_t T_most,
                          unsigned mix)
{
    enum { MOST = 24 };
    struct shape s = {6, 2, 64, window, 0, 0};
    struct keys prefix = keys_make(prefix_rows, &s, 5);
    struct stream x[MOST];
    struct cart_kv_segment segs[MOST][2];
    struct cart_attn_item items[MOST];
    const struct cart_tensor_kernels *sets[CART_TENSOR_SETS];
    size_t n_sets = cart_tensor_kernels_usable(sets);

    keys_cut(&prefix, whole, mix);
    for (size_t i = 0; i < n_streams; i++) {
        size_t own = i * 37 % 150;

        s.T = 1 + i % T_most;
        s.pos0 = own;
        x[i] = stream_make(&s, 100 + i);
        keys_cut(&x[i].keys, whole, mix);
        x[i].pos0 += prefix_rows;
        segs[i][0] = prefix.segs[0];
        segs[i][1] = x[i].keys.segs[0];
        items[i] = item_of(&x[i], 0, x[i].T, x[i].want, x[i].want_stats);
        items[i].segs = segs[i];
        items[i].n_segs = 2;
    }
    /* One stream that shares nothing, and one without queries. */
    segs[2][0].k = segs[2][0].v;
    items[3].T = x[3].T = 0;
    cart_attention_forward_ref(class, items, n_streams, &x[0].d);
    for (size_t order = 0; order < 3 * n_sets; order++) {
        struct cart_attn_item some[MOST];

        for (size_t i = 0; i < n_streams; i++) {
            size_t j = (i * (order % 3 == 1 ? 5 : 1) + order) % n_streams;

            some[i] = items[j];
            some[i].out = x[j].out;
            some[i].stats = x[j].stats;
            stream_blank(&x[j]);
        }
        cart_attention_forward_with(of_class(sets[order / 3]), some, n_streams, &x[0].d,
                                    test_pools[order % TEST_POOLS]);
        for (size_t i = 0; i < n_streams; i++)
            expect_stream("company", &x[i]);
    }
    for (size_t i = 0; i < n_streams; i++)
        stream_release(&x[i]);
    keys_release(&prefix);
}

static void test_forward_company(void **state)
{
    choose(state);
    for (unsigned mix = 0; mix < 4; mix += 3) {
        check_company(256, 0, 24, 1, mix);
        check_company(700, 0, 13, 1, mix);
        check_company(130, 100, 24, 3, mix);
        check_company(40, 0, 11, 60, mix);
    }
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

static void check_oracle(const struct shape *s, float q_scale)
{
    struct stream x = stream_make(s, 3);
    double *q, *k, *v, *out = room(x.T * x.ld, sizeof *out), error = 0, norm = 0;

    for (size_t i = 0; i < x.T * x.ld; i++)
        x.q[i] = factor(x.q[i] * q_scale);
    q = widened(x.q, x.T * x.ld);
    k = widened(x.keys.k, x.keys.rows * x.keys.width);
    v = widened(x.keys.v, x.keys.rows * x.keys.width);
    stream_define(&x);
    oracle(&x, q, k, v, out);
    for (size_t t = 0; t < x.T; t++)
        for (size_t c = 0; c < x.d.H * x.d.DH; c++) {
            double want = out[t * x.ld + c], diff = (double)x.want[t * x.ld + c] - want;

            error += diff * diff;
            norm += want * want;
        }
    /* Weights of the bf16 class are rounded: by 2^-9 at most, each by itself. */
    assert_true(error <= (class == CART_PRECISION_BF16 ? 4e-6 : 1e-12) * norm);
    free(q);
    free(k);
    free(v);
    free(out);
    stream_release(&x);
}

/* The definition against f64; also with scores far below -5e4, where a finite stand-in for -inf
 * would win. */
static void test_forward_oracle(void **state)
{
    struct shape low = {1, 1, 4, 0, 70, 0};

    choose(state);
    for (size_t i = 0; i < CART_COUNTOF(shapes); i++)
        check_oracle(&shapes[i], 1);
    check_oracle(&low, 4096);
}

static void test_forward_all_low(void **state)
{
    struct shape s = {1, 1, 2, 0, 3, 70};
    struct stream x = stream_make(&s, 1);

    choose(state);
    for (size_t i = 0; i < x.keys.rows * 2; i++)
        x.keys.k[i] = 1;
    keys_cut(&x.keys, whole, 0);
    x.d.scale = 1;
    for (size_t i = 0; i < x.T * x.ld; i++)
        x.q[i] = -122880;
    stream_define(&x);
    for (size_t t = 0; t < x.T; t++) {
        double mean = 0;

        for (size_t j = 0; j <= x.pos0 + t; j++)
            mean += (double)x.keys.v[j * 2];
        mean /= (double)(x.pos0 + t + 1);
        assert_true(fabs((double)x.want[t * x.ld] - mean) < 1e-5);
        assert_true(x.want_stats[2 * t] == -245760);
    }
    stream_release(&x);
}

/* A key of NaN or infinity spoils exactly the queries that see it. */
static void test_forward_unseen(void **state)
{
    static const struct shape some[] = {
        {4, 2, 64, 0, 90, 30}, {3, 1, 20, 40, 140, 0}, {6, 2, 128, 64, 100, 470}};
    const struct cart_tensor_kernels *sets[CART_TENSOR_SETS];
    size_t n = cart_tensor_kernels_usable(sets);

    choose(state);
    for (size_t i = 0; i < CART_COUNTOF(some); i++) {
        struct stream x = stream_make(&some[i], i);

        stream_define(&x);
        for (size_t round = 0; round < 4 * n; round++) {
            size_t bad = x.pos0 + x.T - 1 - (round % 4) * 17, width = x.keys.width;
            struct keys spoilt = keys_make(x.keys.rows, &some[i], i);
            struct stream y = x;
            struct cart_attn_item it;

            for (size_t c = 0; c < width; c++) {
                spoilt.v[bad * width + c] = round % 2 ? NAN : INFINITY;
                spoilt.k[bad * width + c] = NAN;
            }
            keys_cut(&spoilt, whole, round % 3 ? 0 : 3);
            y.keys = spoilt;
            it = item_of(&y, 0, y.T, y.out, y.stats);
            stream_blank(&y);
            cart_attention_forward_with(of_class(sets[round / 4]), &it, 1, &y.d,
                                        test_pools[round % TEST_POOLS]);
            for (size_t t = 0; t < x.T; t++) {
                size_t pos = x.pos0 + t;
                bool seen = pos >= bad && (!x.d.window || pos - bad < x.d.window);

                for (size_t c = 0; c < x.d.H * x.d.DH; c++)
                    if (seen ? !isnan(y.out[t * x.ld + c])
                             : y.out[t * x.ld + c] != x.want[t * x.ld + c])
                        fail_msg("%s: shape %zu, key %zu spoilt: query %zu value %zu is %a",
                                 sets[round / 4]->name, i, bad, pos, c,
                                 (double)y.out[t * x.ld + c]);
            }
            keys_release(&spoilt);
        }
        stream_release(&x);
    }
}

/* What the backward adds to, and a second copy for what the definition gives. */
struct grads {
    float *dout, *dq, *dk, *dv; /* dq like q; dk, dv [rows][width], cut like the segments */
    float *dk_of[SEGMENTS], *dv_of[SEGMENTS];
};

static struct grads grads_make(const struct stream *x, unsigned without)
{
    size_t n = x->keys.rows * x->keys.width, at = 0;
    struct grads g = {
        grid(x->T * x->ld, 40), grid(x->T * x->ld, 41), grid(n, 42), grid(n, 43), {NULL}, {NULL}};

    for (size_t s = 0; s < x->keys.n_segs; at += x->keys.segs[s++].rows * x->keys.width) {
        g.dk_of[s] = (without >> s) & 1 ? NULL : g.dk + at;
        g.dv_of[s] = (without >> s) & 2 ? NULL : g.dv + at;
    }
    return g;
}

static void grads_release(struct grads *g)
{
    free(g->dout);
    free(g->dq);
    free(g->dk);
    free(g->dv);
}

static struct cart_attn_grad grad_of(const struct grads *g, size_t t0, size_t ld)
{
    return (struct cart_attn_grad){g->dout + t0 * ld, g->dq + t0 * ld, g->dk_of, g->dv_of, ld, ld};
}

static void expect_same(const char *what, const char *who, size_t shape, const float *got,
                        const float *want, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (memcmp(&got[i], &want[i], sizeof *got))
            fail_msg("%s: %s of shape %zu: value %zu of %zu: expected %a, found %a", who, what,
                     shape, i, n, (double)want[i], (double)got[i]);
}

static void expect_grads(const char *who, size_t shape, const struct stream *x,
                         const struct grads *got, const struct grads *want)
{
    expect_same("dq", who, shape, got->dq, want->dq, x->T * x->ld);
    expect_same("dk", who, shape, got->dk, want->dk, x->keys.rows * x->keys.width);
    expect_same("dv", who, shape, got->dv, want->dv, x->keys.rows * x->keys.width);
}

static void test_backward_variants(void **state)
{
    static const size_t cuts[][SEGMENTS] = {{0}, {1, 70, 130, 0}, {64, 0}};
    static const unsigned without[] = {0, 0, 1, 2, 3, 9};
    const struct cart_tensor_kernels *sets[CART_TENSOR_SETS];
    size_t n = cart_tensor_kernels_usable(sets);

    choose(state);
    for (size_t i = 0; i < CART_COUNTOF(shapes); i++) {
        struct stream x = stream_make(&shapes[i], i * 10);

        stream_define(&x);
        for (size_t c = 0; c < CART_COUNTOF(cuts); c++) {
            unsigned skip = without[(i + 2 * c) % CART_COUNTOF(without)];
            size_t plain = c == i % CART_COUNTOF(cuts)
                               ? 0
                               : 2; /* the slow variants see one cut of each shape */
            struct cart_attn_item it;
            struct cart_attn_grad g;
            struct grads want;

            keys_cut(&x.keys, cuts[c], 0);
            want = grads_make(&x, skip);
            it = item_of(&x, 0, x.T, x.want, x.want_stats);
            g = grad_of(&want, 0, x.ld);
            cart_attention_backward_ref(class, &it, &g, 1, &x.d);
            for (size_t s = plain; s < n; s++) {
                struct grads got = grads_make(&x, skip);

                g = grad_of(&got, 0, x.ld);
                cart_attention_backward_with(of_class(sets[s]), &it, &g, 1, &x.d,
                                             test_pools[(i + c + s) % TEST_POOLS]);
                expect_grads(sets[s]->name, i, &x, &got, &want);
                grads_release(&got);
            }
            grads_release(&want);
        }
        stream_release(&x);
    }
}

/* Queries in several calls, ascending: sums go on from where they were. */
static void test_backward_calls(void **state)
{
    choose(state);
    for (size_t i = 0; i < CART_COUNTOF(shapes); i++) {
        struct stream x = stream_make(&shapes[i], i * 10);
        struct grads want = grads_make(&x, 0), got = grads_make(&x, 0);
        struct cart_attn_item it = item_of(&x, 0, x.T, x.want, x.want_stats);
        struct cart_attn_grad g = grad_of(&want, 0, x.ld);

        stream_define(&x);
        cart_attention_backward_with(of_class(cart_tensor_kernels()), &it, &g, 1, &x.d, test_pools[0]);
        /* Pairs of rows are not cut. */
        for (size_t t = 0, step = (1 + x.T / 3 + class) / (1 + class) * (1 + class); t < x.T; t += step) {
            it = item_of(&x, t, t + step < x.T ? t + step : x.T, x.want, x.want_stats);
            g = grad_of(&got, t, x.ld);
            cart_attention_backward_with(of_class(cart_tensor_kernels()), &it, &g, 1, &x.d, test_pools[1]);
        }
        expect_grads("calls", i, &x, &got, &want);
        grads_release(&got);
        grads_release(&want);
        stream_release(&x);
    }
}

/* Several items in one call equal each alone, for any number of threads. */
static void test_backward_company(void **state)
{
    enum { N = 5 };

    choose(state);
    for (size_t threads = 0; threads < TEST_POOLS; threads++) {
        struct stream x[N];
        struct grads want[N], got[N];
        struct cart_attn_item items[N];
        struct cart_attn_grad g[N];

        for (size_t i = 0; i < N; i++) {
            struct shape s = {9, 3, 64, 0, 20 + 31 * i, 10 * i};

            x[i] = stream_make(&s, i);
            stream_define(&x[i]);
            want[i] = grads_make(&x[i], 0);
            got[i] = grads_make(&x[i], 0);
            items[i] = item_of(&x[i], 0, x[i].T, x[i].want, x[i].want_stats);
            g[i] = grad_of(&want[i], 0, x[i].ld);
            cart_attention_backward_with(of_class(cart_tensor_kernels()), &items[i], &g[i], 1, &x[i].d, test_pools[0]);
            g[i] = grad_of(&got[i], 0, x[i].ld);
        }
        cart_attention_backward_with(of_class(cart_tensor_kernels()), items, g, N, &x[0].d, test_pools[threads]);
        for (size_t i = 0; i < N; i++) {
            expect_grads("company", i, &x[i], &got[i], &want[i]);
            grads_release(&got[i]);
            grads_release(&want[i]);
            stream_release(&x[i]);
        }
    }
}

/* d(sum dout . out) by one input value, from f64 differences of the oracle. */
static double slope(const struct stream *x, double *value, const double *q, const double *k,
                    const double *v, const float *dout)
{
    double *a = room(x->T * x->ld, sizeof *a), *b = room(x->T * x->ld, sizeof *b), keep = *value,
           sum = 0;
    const double h = 1e-4;

    *value = keep + h;
    oracle(x, q, k, v, a);
    *value = keep - h;
    oracle(x, q, k, v, b);
    *value = keep;
    for (size_t t = 0; t < x->T; t++)
        for (size_t c = 0; c < x->d.H * x->d.DH; c++)
            sum += (double)dout[t * x->ld + c] * (a[t * x->ld + c] - b[t * x->ld + c]);
    free(a);
    free(b);
    return sum / (2 * h);
}

static bool near(double want, float got, double bound)
{
    if (class == CART_PRECISION_BF16)
        return fabs(want - (double)got) <= 4e-3 + 1e-2 * fabs(want);
    return fabs(want - (double)got) <= bound + 1e-4 * fabs(want);
}

static void test_backward_differences(void **state)
{
    static const struct shape some[] = {
        {4, 2, 16, 0, 9, 5}, {3, 1, 7, 4, 12, 61}, {2, 2, 33, 0, 5, 62}};

    choose(state);
    for (size_t i = 0; i < CART_COUNTOF(some); i++) {
        struct stream x = stream_make(&some[i], 77);
        size_t n_q = x.T * x.ld, n_k = x.keys.rows * x.keys.width;
        struct grads g = grads_make(&x, 0);
        struct cart_attn_item it = item_of(&x, 0, x.T, x.want, x.want_stats);
        struct cart_attn_grad grad = grad_of(&g, 0, x.ld);
        double *q = widened(x.q, n_q), *k = widened(x.keys.k, n_k), *v = widened(x.keys.v, n_k);

        memset(g.dq, 0, n_q * sizeof *g.dq);
        memset(g.dk, 0, n_k * sizeof *g.dk);
        memset(g.dv, 0, n_k * sizeof *g.dv);
        stream_define(&x);
        cart_attention_backward_with(of_class(cart_tensor_kernels()), &it, &grad, 1, &x.d, test_pools[1]);
        for (size_t e = 0; e < 120; e++) {
            size_t a = e * 7919 % n_q, b = e * 7919 % n_k;
            double want = a % x.ld < x.d.H * x.d.DH ? slope(&x, &q[a], q, k, v, g.dout) : 0;

            assert_true(near(want, g.dq[a], 2e-5));
            want = slope(&x, &k[b], q, k, v, g.dout);
            assert_true(near(want, g.dk[b], 1e-4));
            want = slope(&x, &v[b], q, k, v, g.dout);
            assert_true(near(want, g.dv[b], 2e-5));
        }
        free(q);
        free(k);
        free(v);
        grads_release(&g);
        stream_release(&x);
    }
}

/* A query whose output gradient is NaN spoils the keys that it sees and no other. */
static void test_backward_unseen(void **state)
{
    struct shape s = {4, 2, 64, 50, 90, 70};
    struct stream x = stream_make(&s, 9);
    const struct cart_tensor_kernels *sets[CART_TENSOR_SETS];
    size_t n = cart_tensor_kernels_usable(sets), bad = 40, width = x.keys.width;

    choose(state);
    stream_define(&x);
    for (size_t i = 0; i < n; i++) {
        struct grads g = grads_make(&x, 0), clean = grads_make(&x, 0);
        struct cart_attn_item it = item_of(&x, 0, x.T, x.want, x.want_stats);
        struct cart_attn_grad grad = grad_of(&clean, 0, x.ld);

        for (size_t c = 0; c < x.ld; c++)
            clean.dout[bad * x.ld + c] = 0;
        cart_attention_backward_ref(class, &it, &grad, 1, &x.d);
        for (size_t c = 0; c < x.ld; c++)
            g.dout[bad * x.ld + c] = NAN;
        grad = grad_of(&g, 0, x.ld);
        cart_attention_backward_with(of_class(sets[i]), &it, &grad, 1, &x.d, test_pools[0]);
        for (size_t j = 0; j < x.keys.rows; j++) {
            bool seen = j <= x.pos0 + bad && x.pos0 + bad - j < s.window;

            for (size_t c = 0; c < width; c++) {
                assert_int_equal(isnan(g.dv[j * width + c]), seen);
                assert_true(seen || g.dk[j * width + c] == clean.dk[j * width + c]);
            }
        }
        grads_release(&g);
        grads_release(&clean);
    }
    stream_release(&x);
}

/* A key of NaN spoils the queries that see it and no other. */
static void test_backward_unseen_key(void **state)
{
    struct shape s = {3, 1, 64, 50, 90, 70};
    struct stream x = stream_make(&s, 9);
    const struct cart_tensor_kernels *sets[CART_TENSOR_SETS];
    size_t n = cart_tensor_kernels_usable(sets), width = x.keys.width;

    choose(state);
    stream_define(&x);
    for (size_t i = 0; i < 2 * n; i++) {
        struct grads g = grads_make(&x, 0), clean = grads_make(&x, 0);
        struct cart_attn_item it = item_of(&x, 0, x.T, x.want, x.want_stats);
        struct cart_attn_grad grad = grad_of(&clean, 0, x.ld);
        float *k = (float *)x.keys.memory[0], *v = (float *)x.keys.memory[1];
        size_t bad = 100 + i % 2;

        cart_attention_backward_ref(class, &it, &grad, 1, &x.d);
        for (size_t c = 0; c < width; c++)
            k[bad * width + c] = v[bad * width + c] = NAN;
        grad = grad_of(&g, 0, x.ld);
        cart_attention_backward_with(of_class(sets[i / 2]), &it, &grad, 1, &x.d, test_pools[0]);
        memcpy(k + bad * width, x.keys.k + bad * width, width * sizeof *k);
        memcpy(v + bad * width, x.keys.v + bad * width, width * sizeof *v);
        for (size_t t = 0; t < x.T; t++) {
            size_t pos = x.pos0 + t;
            bool sees = pos >= bad && pos - bad < s.window;

            for (size_t c = 0; c < x.d.H * x.d.DH; c++) {
                assert_int_equal(isnan(g.dq[t * x.ld + c]), sees);
                assert_true(sees || g.dq[t * x.ld + c] == clean.dq[t * x.ld + c]);
            }
        }
        grads_release(&g);
        grads_release(&clean);
    }
    stream_release(&x);
}

/* Values that are subnormal, or whose products or sums are: as the class has it, everywhere. */
static void test_tiny(void **state)
{
    static const float factors[][3] = {
        {0x1p-60f, 0x1p-66f, 0x1p-126f}, {0x1p-127f, 1, 0x1p-128f}, {0x1p-64f, 0x1p-64f, 0x1p-131f}};
    struct shape s = {3, 1, 24, 0, 21, 50};
    const struct cart_tensor_kernels *sets[CART_TENSOR_SETS];
    size_t n = cart_tensor_kernels_usable(sets);

    choose(state);
    for (size_t f = 0; f < CART_COUNTOF(factors); f++) {
        struct stream x = stream_make(&s, f);
        struct grads want = grads_make(&x, 0);
        struct cart_attn_item it;
        struct cart_attn_grad g = grad_of(&want, 0, x.ld);

        for (size_t i = 0; i < x.T * x.ld; i++)
            x.q[i] *= factors[f][0];
        for (size_t i = 0; i < x.keys.rows * x.keys.width; i++) {
            x.keys.k[i] *= factors[f][1];
            x.keys.v[i] *= factors[f][2];
        }
        keys_cut(&x.keys, whole, 0);
        stream_define(&x);
        it = item_of(&x, 0, x.T, x.want, x.want_stats);
        for (size_t i = 0; i < x.T * x.ld; i++)
            want.dq[i] = want.dout[i] * 0x1p-126f;
        cart_attention_backward_ref(class, &it, &g, 1, &x.d);
        for (size_t i = 0; i < n; i++) {
            struct grads got = grads_make(&x, 0);

            it = item_of(&x, 0, x.T, x.out, x.stats);
            stream_blank(&x);
            cart_attention_forward_with(of_class(sets[i]), &it, 1, &x.d, test_pools[i % TEST_POOLS]);
            expect_stream(sets[i]->name, &x);
            for (size_t j = 0; j < x.T * x.ld; j++)
                got.dq[j] = got.dout[j] * 0x1p-126f;
            g = grad_of(&got, 0, x.ld);
            cart_attention_backward_with(of_class(sets[i]), &it, &g, 1, &x.d, test_pools[0]);
            expect_grads(sets[i]->name, f, &x, &got, &want);
            grads_release(&got);
        }
        grads_release(&want);
        stream_release(&x);
    }
}

/* One test of each class. */
#define BOTH(f) {#f, f, NULL, NULL, &f32}, {#f ": bf16", f, NULL, NULL, &bf16}

int main(void)
{
    static enum cart_precision f32 = CART_PRECISION_F32, bf16 = CART_PRECISION_BF16;
    const struct CMUnitTest tests[] = {
        BOTH(test_forward_variants),  BOTH(test_forward_calls),
        BOTH(test_forward_company),   BOTH(test_forward_oracle),
        BOTH(test_forward_all_low),   BOTH(test_forward_unseen),
        BOTH(test_backward_variants), BOTH(test_backward_calls),
        BOTH(test_backward_company),  BOTH(test_backward_differences),
        BOTH(test_backward_unseen),   BOTH(test_backward_unseen_key),
        BOTH(test_tiny),
    };

    cmocka_set_message_output(CM_OUTPUT_TAP);
    return cmocka_run_group_tests(tests, test_pools_open, test_pools_close);
}
