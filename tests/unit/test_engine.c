/* The sampler against its definition; batches whose streams must not notice each other; prefixes
 * and chats that must equal the plain run. A tiny random model. */
#include "base/cpu.h"
#include "engine/batch.h"
#include "engine/dialogue.h"
#include "engine/draft.h"
#include "helper/vocab.h"
#include "model/model.h"
#include "tensor/dtype.h"
#include "token/chat.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static struct cart_model *model;
static const struct cart_chat *chat;

static void need(int r, const struct cart_err *err)
{
    if (r < 0)
        fail_msg("%s", err->msg);
}

/* ---- sampler ---- */

static void test_sampler(void **state)
{
    (void)state;
    static const float row[] = {1.0f, 3.0f, 2.0f, 3.0f, -4.0f, 0.5f};
    struct cart_err err = {0};
    struct cart_sampler_scratch *w;
    struct cart_sampling s = CART_SAMPLING_GREEDY;
    size_t seen[6] = {0};

    need(cart_sampler_scratch_new(&w, 6, &err), &err);
    assert_int_equal(cart_sampler_pick(&s, row, 6, 0, NULL), 1); /* ties to the lower id */
    s.temperature = 1;
    for (uint32_t i = 0; i < 6000; i++)
        seen[cart_sampler_pick(&s, row, 6, i, w)]++;
    /* e^x / sum: 0.0515, 0.381, 0.140, 0.381, 0.00035, 0.031 */
    assert_true(seen[1] > 2150 && seen[1] < 2420 && seen[3] > 2150 && seen[3] < 2420);
    assert_true(seen[2] > 740 && seen[2] < 940 && seen[0] > 240 && seen[0] < 380);
    s.top_k = 3;
    for (uint32_t i = 0; i < 500; i++) {
        uint32_t id = cart_sampler_pick(&s, row, 6, i, w);
        assert_true(id >= 1 && id <= 3);
    }
    s.top_k = 1;
    for (uint32_t i = 0; i < 50; i++)
        assert_int_equal(cart_sampler_pick(&s, row, 6, i, w), 1);
    s.top_k = 0;
    s.top_p = 0.8; /* 0.381 + 0.381 is not enough, so 2 crosses */
    size_t crossing = 0;
    for (uint32_t i = 0; i < 500; i++) {
        uint32_t id = cart_sampler_pick(&s, row, 6, i, w);
        assert_true(id >= 1 && id <= 3);
        crossing += id == 2;
    }
    assert_true(crossing > 20);
    s.top_p = 1;
    s.min_p = 0.5;
    for (uint32_t i = 0; i < 500; i++)
        assert_true(cart_sampler_pick(&s, row, 6, i, w) % 2 == 1);
    cart_sampler_scratch_free(w);
}

/* ---- batches ---- */

#define STREAMS 7
#define TOKENS 24

struct stream {
    struct cart_session session;
    uint32_t prompt[200];
    size_t n_prompt;
    struct cart_sampling sampling;
    uint32_t got[TOKENS];
    size_t n, done;
};

static int keep(void *ctx, const struct cart_generation *g, struct cart_err *err)
{
    struct stream *s = ctx;

    (void)err;
    memcpy(s->got, g->ids, g->n * sizeof *g->ids);
    s->n = g->n;
    s->done++;
    return 0;
}

static void make_stream(struct stream *s, size_t i)
{
    memset(s, 0, sizeof *s);
    s->n_prompt = 3 + 31 * i;
    for (size_t k = 0; k < s->n_prompt; k++)
        s->prompt[k] = cart_rng_u32(7, i, CART_RNG_TEST, (uint32_t)k) % 200;
    s->sampling = (struct cart_sampling){
        i % 2 ? 0.9 : 0, i == 3 ? 20 : 0, i == 5 ? 0.9 : 1, 0, 11, i, CART_RNG_TEST};
}

static void add(struct cart_batch *b, struct stream *s, const struct cart_kv_part *const *parts,
                size_t n_parts, const struct cart_draft *draft)
{
    struct cart_err err = {0};

    need(cart_session_init(&s->session, model, CART_F32, parts, n_parts, 4, &err), &err);
    const struct cart_request req = {.session = &s->session,
                                     .prompt = s->prompt,
                                     .n_prompt = s->n_prompt,
                                     .max_tokens = TOKENS,
                                     .sampling = s->sampling,
                                     .draft = draft,
                                     .on_done = keep,
                                     .ctx = s};
    need(cart_batch_add(b, &req, &err), &err);
}

/* Streams 0.. join at different steps of a batch of the given width. */
static void run_all(struct stream *streams, size_t width, size_t threads)
{
    struct cart_err err = {0};
    struct cart_pool *pool;
    struct cart_engine *e;
    struct cart_batch *b;
    size_t next = 0;

    need(cart_pool_new(&pool, threads, &err), &err);
    need(cart_engine_new(&e, model, CART_F32, pool, 0, &err), &err);
    need(cart_batch_new(&b, e, chat, width, 0, &err), &err);
    while (next < STREAMS || cart_batch_active(b) > 0) {
        if (next < STREAMS && cart_batch_active(b) < width) {
            make_stream(&streams[next], next);
            add(b, &streams[next++], NULL, 0, NULL);
        }
        need(cart_batch_step(b, &err), &err);
    }
    for (size_t i = 0; i < STREAMS; i++) {
        assert_int_equal(streams[i].done, 1);
        assert_true(streams[i].n > 0);
        assert_int_equal(cart_session_rows(&streams[i].session),
                         streams[i].n_prompt + streams[i].n - 1);
        cart_session_release(&streams[i].session);
    }
    cart_batch_free(b);
    cart_engine_free(e);
    cart_pool_free(pool);
}

static void test_company(void **state)
{
    (void)state;
    static struct stream alone[STREAMS];
    static struct stream together[STREAMS];

    run_all(alone, 1, 1);
    for (size_t width = 2; width <= STREAMS; width++) {
        run_all(together, width, width % 3 + 1);
        for (size_t i = 0; i < STREAMS; i++) {
            assert_int_equal(alone[i].n, together[i].n);
            assert_memory_equal(alone[i].got, together[i].got, alone[i].n * sizeof *alone[i].got);
        }
    }
}

static void test_prefix(void **state)
{
    (void)state;
    struct cart_err err = {0};
    struct cart_pool *pool;
    struct cart_engine *e;
    struct cart_batch *b;
    struct cart_prefix *p;
    struct cart_prefix *q;
    static struct stream whole;
    static struct stream behind;

    need(cart_pool_new(&pool, 2, &err), &err);
    need(cart_engine_new(&e, model, CART_F32, pool, (size_t)1 << 20, &err), &err);
    need(cart_batch_new(&b, e, chat, 2, 0, &err), &err);
    make_stream(&whole, 6);
    make_stream(&behind, 6);
    need(cart_prefix_acquire(e, whole.prompt, 100, &p, &err), &err);
    need(cart_prefix_acquire(e, whole.prompt, 100, &q, &err), &err);
    assert_ptr_equal(p, q);
    assert_int_equal(cart_engine_prefilled(e), 100);
    const struct cart_kv_part *part = cart_prefix_part(p);
    memmove(behind.prompt, behind.prompt + 100, (behind.n_prompt - 100) * sizeof *behind.prompt);
    behind.n_prompt -= 100;
    add(b, &whole, NULL, 0, NULL);
    add(b, &behind, &part, 1, NULL);
    while (cart_batch_active(b) > 0)
        need(cart_batch_step(b, &err), &err);
    assert_int_equal(whole.n, behind.n);
    assert_memory_equal(whole.got, behind.got, whole.n * sizeof *whole.got);
    cart_session_release(&whole.session);
    cart_session_release(&behind.session);
    cart_prefix_release(e, p);
    cart_prefix_release(e, q);
    need(cart_prefix_acquire(e, whole.prompt, 100, &q, &err), &err); /* still kept */
    assert_int_equal(cart_engine_prefilled(e), 100);
    cart_prefix_release(e, q);
    assert_int_equal(cart_prefix_acquire(e, whole.prompt, model->context + 1, &q, &err),
                     CART_EUSAGE);
    cart_batch_free(b);
    cart_engine_free(e);
    cart_pool_free(pool);
}

/* Streams whose next tokens are guessed, by an index that is right, wrong, or right for a while:
 * the same tokens and the same rows as without, in fewer steps where guesses were right. */
static void test_guesses(void **state)
{
    (void)state;
    static struct stream plain[STREAMS];
    static struct stream guessed[STREAMS];
    struct cart_err err = {0};
    struct cart_draft *d;
    struct cart_pool *pool;
    struct cart_engine *e;

    run_all(plain, STREAMS, 1);
    need(cart_draft_new(&d, &err), &err);
    for (size_t i = 0; i < STREAMS; i++) {
        uint32_t text[200 + TOKENS];
        size_t n = plain[i].n_prompt;
        memcpy(text, plain[i].prompt, n * sizeof *text);
        memcpy(text + n, plain[i].got, plain[i].n * sizeof *text);
        n += plain[i].n;
        /* Of every other stream one token is another, so that guesses go wrong there. */
        if (i % 2 == 0)
            text[n - 9] = (text[n - 9] + 1) % 200;
        need(cart_draft_add(d, text, n, &err), &err);
    }
    for (size_t ahead = 1; ahead <= CART_DRAFT_MAX; ahead = 3 * ahead + 1) {
        struct cart_batch *b;
        size_t steps = 0;
        need(cart_pool_new(&pool, 1 + ahead % 3, &err), &err);
        need(cart_engine_new(&e, model, CART_F32, pool, 0, &err), &err);
        need(cart_batch_new(&b, e, chat, STREAMS, ahead, &err), &err);
        for (size_t i = 0; i < STREAMS; i++) {
            make_stream(&guessed[i], i);
            add(b, &guessed[i], NULL, 0, d);
        }
        for (; cart_batch_active(b) > 0; steps++)
            need(cart_batch_step(b, &err), &err);
        for (size_t i = 0; i < STREAMS; i++) {
            struct stream *g = &guessed[i];
            assert_int_equal(g->n, plain[i].n);
            assert_memory_equal(g->got, plain[i].got, g->n * sizeof *g->got);
            assert_int_equal(cart_session_rows(&g->session), g->n_prompt + g->n - 1);
            cart_session_release(&g->session);
        }
        assert_true(cart_batch_right(b) > 40 && cart_batch_right(b) < cart_batch_guessed(b));
        /* Prompts take two steps; one by one the tokens would take TOKENS more. */
        assert_true(steps <= (ahead == 1 ? 2 + TOKENS * 3 / 4 : 2 + TOKENS / 2));
        cart_batch_free(b);
        cart_engine_free(e);
        cart_pool_free(pool);
    }
    cart_draft_free(d);
}

/* Rows of a prefix as a file has them: `first` rows, then the others, of one type. */
static void lay_by_rows(struct cart_kv_part parts[2], const struct cart_kv_part *prefix,
                        size_t first, int dtype)
{
    size_t size = cart_dtype_info(dtype)->bytes;
    float k[1024], v[1024];

    for (size_t i = 0, at = 0; i < 2; at += parts[i++].rows) {
        struct cart_kv_layer *layers = calloc(model->L, sizeof *layers);
        parts[i] =
            (struct cart_kv_part){i == 0 ? first : prefix->rows - first, dtype, layers, false, 0};
        for (size_t l = 0; l < model->L; l++) {
            size_t width = cart_layer_kv_width(&model->layers[l]);
            char *rows = calloc(2 * parts[i].rows * width, size);
            char *values = rows + parts[i].rows * width * size;
            assert_true(width <= CART_COUNTOF(k));
            layers[l] = (struct cart_kv_layer){rows, values, width};
            for (size_t r = 0; r < parts[i].rows; r++) {
                cart_kv_part_row(prefix, model, l, at + r, k, v);
                cart_narrow(rows + r * width * size, dtype, k, width);
                cart_narrow(values + r * width * size, dtype, v, width);
            }
        }
    }
}

static void free_rows(struct cart_kv_part parts[2])
{
    for (size_t i = 0; i < 2; i++) {
        for (size_t l = 0; l < model->L; l++)
            free((void *)(uintptr_t)parts[i].layers[l].k);
        free((void *)(uintptr_t)parts[i].layers);
    }
}

/* Behind a copy of rows a token is what it is behind the rows, of any type and however they are
 * cut, copied by many threads or by none. */
static void test_copies(void **state)
{
    (void)state;
    static const int types[] = {CART_F32, CART_F16, CART_BF16};
    struct cart_err err = {0};
    struct cart_pool *pool;
    struct cart_engine *e;
    struct cart_prefix *p;
    struct stream s;
    float hidden[2][1024];

    assert_true(model->D <= CART_COUNTOF(hidden[0]));
    make_stream(&s, 6);
    need(cart_pool_new(&pool, 2, &err), &err);
    need(cart_engine_new(&e, model, CART_F32, pool, 0, &err), &err);
    need(cart_prefix_acquire(e, s.prompt, 150, &p, &err), &err);
    for (size_t i = 0; i < 6; i++) {
        struct cart_kv_part parts[2];
        const struct cart_kv_part *list[2] = {&parts[0], &parts[1]};
        struct cart_kv_copy *copy = NULL;
        lay_by_rows(parts, cart_prefix_part(p), i < 3 ? 1 : 70, types[i % 3]);
        need(cart_kv_copy_new(&copy, model, list, 2, i % 2 ? pool : NULL, &err), &err);
        assert_int_equal(copy->part.rows, 150);
        assert_int_equal(copy->part.dtype, types[i % 3]);
        const struct cart_kv_part *copied = &copy->part;
        for (size_t run = 0; run < 2; run++) {
            need(cart_session_init(&s.session, model, CART_F32, run ? &copied : list, run ? 1 : 2,
                                   4, &err),
                 &err);
            const struct cart_span span = {
                .ids = s.prompt, .T = 3, .kv = cart_session_kv(&s.session), .n_want = 1};
            need(cart_engine_forward(e, &span, 1, hidden[run], &err), &err);
            cart_session_release(&s.session);
        }
        assert_memory_equal(hidden[0], hidden[1], model->D * sizeof *hidden[0]);
        cart_kv_copy_free(copy);
        free_rows(parts);
    }
    cart_prefix_release(e, p);
    cart_engine_free(e);
    cart_pool_free(pool);
}

struct said {
    char text[2048];
    size_t n;
};

static int hear(void *ctx, const char *text, size_t n, struct cart_err *err)
{
    struct said *s = ctx;

    (void)err;
    assert_true(s->n + n <= sizeof s->text);
    memcpy(s->text + s->n, text, n);
    s->n += n;
    return 0;
}

/* A conversation behind a file's rows, which are copied after the first token of an answer that may
 * be long, says what one behind the blocked rows of a prefix says. */
static void test_dialogue_copies(void **state)
{
    (void)state;
    struct cart_err err = {0};
    struct cart_pool *pool;
    struct cart_engine *e;
    struct cart_prefix *p;
    struct stream s;
    static struct said said[2];
    struct cart_kv_part parts[2];

    make_stream(&s, 6);
    need(cart_pool_new(&pool, 2, &err), &err);
    need(cart_engine_new(&e, model, CART_F32, pool, 0, &err), &err);
    need(cart_prefix_acquire(e, s.prompt, 150, &p, &err), &err);
    lay_by_rows(parts, cart_prefix_part(p), 1, CART_F32);
    for (size_t run = 0; run < 2; run++) {
        const struct cart_kv_part *own = cart_prefix_part(p);
        const struct cart_kv_part *list[2] = {&parts[0], &parts[1]};
        const struct cart_sampling greedy = CART_SAMPLING_GREEDY;
        struct cart_dialogue_answer a;
        struct cart_dialogue *d;
        need(cart_dialogue_new(&d, e, run ? list : &own, run ? 2 : 1, true, &err), &err);
        for (size_t turn = 0; turn < 2; turn++) {
            need(cart_dialogue_ask(d, "what is it", 10, &greedy, 24, hear, &said[run], &a, &err),
                 &err);
            assert_true(a.rows > 150 && a.tokens > 1);
            assert_int_equal(a.kv_bytes, a.rows * cart_kv_row_width(model) * sizeof(float));
        }
        cart_dialogue_free(d);
    }
    assert_int_equal(said[0].n, said[1].n);
    assert_memory_equal(said[0].text, said[1].text, said[0].n);
    free_rows(parts);
    cart_prefix_release(e, p);
    cart_engine_free(e);
    cart_pool_free(pool);
}

static void test_limits(void **state)
{
    (void)state;
    struct cart_err err = {0};
    struct cart_pool *pool;
    struct cart_engine *e;
    struct cart_batch *b;
    struct stream s;
    uint32_t *ids = calloc(model->context, sizeof *ids);

    need(cart_pool_new(&pool, 1, &err), &err);
    need(cart_engine_new(&e, model, CART_F32, pool, 0, &err), &err);
    need(cart_batch_new(&b, e, chat, 1, 0, &err), &err);
    make_stream(&s, 0);
    need(cart_session_init(&s.session, model, CART_F32, NULL, 0, 1, &err), &err);
    struct cart_request req = {.session = &s.session,
                               .prompt = ids,
                               .n_prompt = model->context,
                               .max_tokens = 5,
                               .sampling = s.sampling,
                               .on_done = keep,
                               .ctx = &s};
    assert_int_equal(cart_batch_add(b, &req, &err), CART_EUSAGE);
    req.n_prompt = model->context - 2;
    need(cart_batch_add(b, &req, &err), &err);
    assert_int_equal(cart_batch_add(b, &req, &err), CART_EAGAIN);
    while (cart_batch_active(b) > 0)
        need(cart_batch_step(b, &err), &err);
    assert_true(s.n >= 1 && s.n <= 2); /* what the context leaves */
    cart_session_release(&s.session);
    cart_batch_free(b);
    cart_engine_free(e);
    cart_pool_free(pool);
    free(ids);
}

int main(void)
{
    struct cart_err err = {0};
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_sampler), cmocka_unit_test(test_company),
        cmocka_unit_test(test_prefix),  cmocka_unit_test(test_guesses),
        cmocka_unit_test(test_copies),  cmocka_unit_test(test_dialogue_copies),
        cmocka_unit_test(test_limits),
    };

    if (cart_cpu_init(&err) < 0 ||
        cart_model_open(&model, test_root("tests/golden/tiny/qwen3.gguf"), NULL, &err) < 0 ||
        cart_model_chat(model, &chat, &err) < 0) {
        printf("Bail out! %s\n", err.msg);
        return 2;
    }
    cmocka_set_message_output(CM_OUTPUT_TAP);
    int failed = cmocka_run_group_tests_name("engine", tests, NULL, NULL);
    cart_model_close(model);
    return failed;
}
