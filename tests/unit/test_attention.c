/* Attention of both classes: every variant gives the bits of the definition, for any segments,
 * calls, company and threads; the definition agrees with f64; what a query does not see cannot
 * touch it. */
#include "helper/streams_impl.h"

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

/* x as a factor of the class. */
static float factor(float x)
{
    return class == CART_PRECISION_BF16 ? cart_bf16_to_f32(cart_bf16_flushed(x)) : x;
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

int main(void)
{
    static enum cart_precision f32 = CART_PRECISION_F32, bf16 = CART_PRECISION_BF16;
    const struct CMUnitTest tests[] = {
        BOTH(test_forward_variants), BOTH(test_forward_calls),   BOTH(test_forward_company),
        BOTH(test_forward_oracle),   BOTH(test_forward_all_low), BOTH(test_forward_unseen),
    };

    cmocka_set_message_output(CM_OUTPUT_TAP);
    return cmocka_run_group_tests(tests, test_pools_open, test_pools_close);
}
