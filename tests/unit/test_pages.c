/* The page tree against its definition: rows are written as numbers that tell which cartridges and
 * which tokens they stand behind, so a row that was shared, copied or left over wrongly shows at
 * once. */
#include "base/rng.h"
#include "engine/draft.h"
#include "engine/pages.h"
#include "helper/vocab.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define PAGES ((size_t)24)
#define PIECE ((size_t)100)
#define LANES 6
#define TOKENS_MAX 400
#define WIDTH_MAX 1024
#define LAYERS_MAX 32

static struct cart_model *model;

static void need(int r, const struct cart_err *err)
{
    if (r < 0)
        fail_msg("%s", err->msg);
}

static uint32_t pick(uint64_t n, uint32_t index, uint32_t bound)
{
    return cart_rng_u32(23, n, CART_RNG_TEST, index) % bound;
}

/* What the first value of the row of token n - 1 is, in layer l: a function of everything before
 * it. */
static float mark(uint64_t key, const uint32_t *ids, size_t n, size_t l)
{
    uint64_t h = key * 1000003 + l;

    for (size_t i = 0; i < n; i++)
        h = (h ^ ids[i]) * 1099511628211u;
    return (float)(h >> 44);
}

struct stream {
    struct cart_lane lane;
    uint64_t key;
    size_t first, n, target; /* rows before, tokens with rows, tokens it will have */
    uint32_t ids[TOKENS_MAX];
    bool open;
};

static void write_rows(const struct stream *s, const struct cart_kv *kv, size_t T)
{
    float k[WIDTH_MAX] = {0}, v[WIDTH_MAX] = {0};

    if (kv->tail->rows == 0)
        cart_kv_tail_start(kv->tail, s->first + s->n);
    for (size_t l = 0; l < model->L; l++) {
        size_t width = cart_layer_kv_width(&model->layers[l]);
        assert_true(width <= WIDTH_MAX);
        for (size_t t = 0; t < T; t++) {
            k[0] = mark(s->key, s->ids, s->n + t + 1, l);
            v[width - 1] = -mark(s->key, s->ids, s->n + t + 1, l);
            cart_kv_tail_write(kv->tail, model, l, kv->tail->rows + t, k, v, 1);
        }
    }
}

/* Every row that a forward would read. */
static void check_rows(struct stream *s)
{
    float k[WIDTH_MAX], v[WIDTH_MAX];
    struct cart_kv_layer layers[LAYERS_MAX];
    struct cart_kv_part own;
    struct cart_kv kv;
    size_t token = 0;

    assert_int_equal(s->lane.rows, s->n);
    cart_lane_begin(&s->lane, 1, &kv);
    assert_true(model->L <= LAYERS_MAX);
    cart_kv_part_of_tail(&own, layers, model, kv.tail, 0, kv.tail->rows);
    for (size_t i = 0; i <= kv.n_parts; i++) {
        size_t rows = i < kv.n_parts ? kv.parts[i]->rows : kv.tail->rows;
        for (size_t r = 0; r < rows; r++) {
            size_t l = (token + r) % model->L;
            size_t width = cart_layer_kv_width(&model->layers[l]);
            cart_kv_part_row(i < kv.n_parts ? kv.parts[i] : &own, model, l, r, k, v);
            assert_true(k[0] == mark(s->key, s->ids, token + r + 1, l));
            assert_true(v[width - 1] == -mark(s->key, s->ids, token + r + 1, l));
        }
        token += rows;
        if (i < kv.n_parts)
            assert_true((s->first + token) % CART_PAGE_ROWS == 0);
    }
    assert_int_equal(token, s->n);
    cart_lane_append(&s->lane, s->ids, 0);
}

static void open_stream(struct stream *s, struct cart_pages *p, uint64_t n)
{
    struct cart_err err = {0};
    uint32_t family = pick(n, 0, 4);

    s->key = pick(n, 1, 3);
    s->first = 30 * (size_t)s->key;
    s->target = 2 + pick(n, 2, 300);
    for (size_t i = 0; i < s->target; i++) {
        bool common = i < 40 + 50 * (size_t)family;
        s->ids[i] = pick(common ? 100000 + family : 200000 + n % 7, (uint32_t)i, 50);
    }
    const struct cart_lane_start start = {.key = &s->key,
                                          .n_key = 1,
                                          .first = s->first,
                                          .ids = s->ids,
                                          .n = s->target,
                                          .limit = s->target - 1,
                                          .max_rows = s->target};
    int r = cart_lane_open(&s->lane, p, &start, &err);
    if (r == CART_EAGAIN) {
        struct cart_pages_counts c = cart_pages_counts(p);
        assert_true(c.committed + (s->first + s->target + CART_PAGE_ROWS - 1) / CART_PAGE_ROWS -
                        s->first / CART_PAGE_ROWS >
                    c.total);
        return;
    }
    need(r, &err);
    s->open = true;
    s->n = s->lane.rows;
    assert_true(s->n < s->target);
}

static void go_on(struct stream *s, uint64_t n)
{
    struct cart_kv kv;
    size_t T = 1 + pick(n, 3, 130);

    if (pick(n, 4, 3) == 0)
        s->n += cart_lane_catch_up(&s->lane, s->ids, s->target - 1);
    T = T < s->target - s->n ? T : s->target - s->n;
    if (T == 0)
        return;
    T = cart_lane_begin(&s->lane, T, &kv);
    assert_true(T > 0 && T <= kv.tail->cap - kv.tail->rows);
    write_rows(s, &kv, T);
    size_t keep =
        pick(n, 5, 3) == 0 ? 1 + pick(n, 6, (uint32_t)T) : T; /* the rest was drafted wrongly */
    cart_lane_append(&s->lane, s->ids + s->n, keep);
    s->n += keep;
}

static void random_lanes(void **state)
{
    (void)state;
    struct cart_err err = {0};
    struct cart_pages *p;
    static struct stream streams[LANES];
    size_t found = 0;

    need(cart_pages_new(&p, model, CART_F32, PAGES, PIECE, &err), &err);
    for (uint64_t n = 0; n < 4000; n++) {
        struct stream *s = &streams[pick(n, 7, LANES)];
        if (!s->open) {
            open_stream(s, p, n);
            found += s->open ? s->n : 0;
        } else if (pick(n, 8, 8) == 0) {
            cart_lane_close(&s->lane, pick(n, 9, 4) != 0);
            s->open = false;
        } else {
            go_on(s, n);
        }
        if (s->open && s->n < s->target)
            check_rows(s);
        struct cart_pages_counts c = cart_pages_counts(p);
        assert_true(c.used <= c.total && c.committed <= c.total);
    }
    for (size_t i = 0; i < LANES; i++) {
        if (streams[i].open)
            cart_lane_close(&streams[i].lane, true);
    }
    struct cart_pages_counts c = cart_pages_counts(p);
    assert_int_equal(c.committed, 0);
    assert_true(c.evicted > 100 && found > 5000);
    print_message("# %zu rows found, %llu pages evicted\n", found, (unsigned long long)c.evicted);
    cart_pages_free(p);
}

/* One page is all there is, and its rows are wanted: they are taken over in place. */
static void the_last_page(void **state)
{
    (void)state;
    struct cart_err err = {0};
    struct cart_pages *p;
    struct stream s = {.target = 20};

    need(cart_pages_new(&p, model, CART_F32, 1, PIECE, &err), &err);
    for (int turn = 0; turn < 3; turn++) {
        for (uint32_t i = 0; i < 20; i++)
            s.ids[i] = i < 12 ? i : i + (uint32_t)turn;
        const struct cart_lane_start start = {
            .key = &s.key, .n_key = 1, .ids = s.ids, .n = 20, .limit = 19, .max_rows = 20};
        need(cart_lane_open(&s.lane, p, &start, &err), &err);
        s.n = s.lane.rows;
        assert_int_equal(s.n, turn == 0 ? 0 : 12);
        check_rows(&s);
        struct cart_lane other;
        assert_int_equal(cart_lane_open(&other, p, &start, &err), CART_EAGAIN);
        struct cart_kv kv;
        size_t T = cart_lane_begin(&s.lane, 20 - s.n, &kv);
        write_rows(&s, &kv, T);
        cart_lane_append(&s.lane, s.ids + s.n, T);
        cart_lane_close(&s.lane, true);
    }
    cart_pages_free(p);
}

static void drafts_follow_the_longest_match(void **state)
{
    (void)state;
    struct cart_err err = {0};
    struct cart_draft *d;
    static const uint32_t text[] = {1, 2, 3, 4, 5, 9, 2, 3, 4, 7, 8, 0, 2, 3, 4};
    static const uint32_t short_context[] = {3, 4};
    static const uint32_t context[] = {1, 2, 3, 4};
    static const uint32_t other[] = {9, 2, 3, 4};
    uint32_t out[CART_DRAFT_MAX];
    size_t matched;

    need(cart_draft_new(&d, &err), &err);
    assert_int_equal(cart_draft_find(d, context, 4, 8, out, &matched), 0);
    for (size_t i = 0; i < CART_COUNTOF(text); i++)
        need(cart_draft_add(d, &text[i], 1, &err), &err);
    assert_int_equal(cart_draft_find(d, context, 4, 2, out, &matched), 2);
    assert_int_equal(matched, 4);
    assert_true(out[0] == 5 && out[1] == 9);
    assert_int_equal(cart_draft_find(d, other, 4, 8, out, &matched), 6);
    assert_true(out[0] == 7 && out[1] == 8 && out[5] == 4);
    assert_int_equal(cart_draft_find(d, short_context, 2, 8, out, &matched), 0);
    /* Growth keeps what was found. */
    for (uint32_t i = 0; i < 5000; i++) {
        uint32_t id = 100 + pick(1, i, 1000);
        need(cart_draft_add(d, &id, 1, &err), &err);
    }
    assert_int_equal(cart_draft_find(d, context, 4, 2, out, &matched), 2);
    assert_true(matched == 4 && out[0] == 5);
    cart_draft_free(d);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(random_lanes),
        cmocka_unit_test(the_last_page),
        cmocka_unit_test(drafts_follow_the_longest_match),
    };
    struct cart_err err = {0};

    need(cart_model_open(&model, test_root("tests/golden/tiny/qwen3.gguf"), NULL, &err), &err);
    cmocka_set_message_output(CM_OUTPUT_TAP);
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    cart_model_close(model);
    return failed;
}
