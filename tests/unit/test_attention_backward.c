/* Gradients of attention, of both classes: every variant gives the bits of the definition, for any
 * segments, calls, company and threads; the definition agrees with differences of f64; what a query
 * does not see touches neither its gradient nor that of the unseen. Values at the edge of what is
 * flushed, forward too. */
#include "helper/streams_impl.h"

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
        cart_attention_backward_with(of_class(cart_tensor_kernels()), &it, &g, 1, &x.d,
                                     test_pools[0]);
        /* Pairs of rows are not cut. */
        for (size_t t = 0, step = (1 + x.T / 3 + class) / (1 + class) * (1 + class); t < x.T;
             t += step) {
            it = item_of(&x, t, t + step < x.T ? t + step : x.T, x.want, x.want_stats);
            g = grad_of(&got, t, x.ld);
            cart_attention_backward_with(of_class(cart_tensor_kernels()), &it, &g, 1, &x.d,
                                         test_pools[1]);
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
            cart_attention_backward_with(of_class(cart_tensor_kernels()), &items[i], &g[i], 1,
                                         &x[i].d, test_pools[0]);
            g[i] = grad_of(&got[i], 0, x[i].ld);
        }
        cart_attention_backward_with(of_class(cart_tensor_kernels()), items, g, N, &x[0].d,
                                     test_pools[threads]);
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
        cart_attention_backward_with(of_class(cart_tensor_kernels()), &it, &grad, 1, &x.d,
                                     test_pools[1]);
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
    static const float factors[][3] = {{0x1p-60f, 0x1p-66f, 0x1p-126f},
                                       {0x1p-127f, 1, 0x1p-128f},
                                       {0x1p-64f, 0x1p-64f, 0x1p-131f}};
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
            cart_attention_forward_with(of_class(sets[i]), &it, 1, &x.d,
                                        test_pools[i % TEST_POOLS]);
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

int main(void)
{
    static enum cart_precision f32 = CART_PRECISION_F32, bf16 = CART_PRECISION_BF16;
    const struct CMUnitTest tests[] = {
        BOTH(test_backward_variants),
        BOTH(test_backward_calls),
        BOTH(test_backward_company),
        BOTH(test_backward_differences),
        BOTH(test_backward_unseen),
        BOTH(test_backward_unseen_key),
        BOTH(test_tiny),
    };

    cmocka_set_message_output(CM_OUTPUT_TAP);
    return cmocka_run_group_tests(tests, test_pools_open, test_pools_close);
}
