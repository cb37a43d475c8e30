/* The scheduler, property by property, on a tiny random model: caching, sharing, refusals,
 * cancelling, scores, embeddings, cartridges that come and go. */
#include "helper/serving.h"

#include "model/head.h"

#include <math.h>
#include <semaphore.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

static void simple_request(struct cart_serve_request *q, uint32_t *prompt, size_t n, uint64_t seed)
{
    *q = (struct cart_serve_request)CART_SERVE_REQUEST;
    for (size_t i = 0; i < n; i++)
        prompt[i] = test_pick(seed, (uint32_t)i, 300);
    q->prompt = prompt;
    q->n_prompt = n;
    q->temperature = 0;
    q->max_tokens = 20;
    q->ignore_stop = true;
    q->stack = test_stack(0);
}

/* B41, B43: the same request again, and again, finds all rows but the last. */
static void repeats_are_equal_and_cached(void **state)
{
    (void)state;
    struct cart_scheduler_options o = CART_SCHEDULER_OPTIONS;
    struct cart_scheduler *s = test_scheduler_start(&o);
    uint32_t prompt[200];

    for (size_t n = 1; n <= 200; n = n < 64 ? n + 21 : n + 34) {
        struct cart_serve_request q;
        struct client c[3];
        struct answer want;
        simple_request(&q, prompt, n, n);
        test_plain_run(&q, 0, &want);
        for (size_t i = 0; i < 3; i++) {
            test_ask(s, &c[i], &q);
            assert_true(test_same_answer(&c[i].got[0], &want));
            assert_int_equal(c[i].usage.cached_tokens, i == 0 ? 0 : n - 1);
            assert_int_equal(c[i].usage.completion_tokens, want.n);
        }
        cart_stack_release(q.stack);
    }
    cart_scheduler_free(s);
}

/* Requests that begin alike and come together compute the common part once. */
static void equal_prompts_wait_for_each_other(void **state)
{
    (void)state;
    struct cart_scheduler_options o = {8, 8, 0, 0, 64, 0, CART_F32};
    struct cart_scheduler *s = test_scheduler_start(&o);
    struct cart_serve_request q;
    struct cart_scheduler_counts counts;
    struct client c[8];
    struct answer want;
    uint32_t prompt[300];

    simple_request(&q, prompt, 300, 5);
    test_plain_run(&q, 0, &want);
    for (size_t i = 0; i < 8; i++) {
        test_client_init(&c[i], s);
        test_client_submit(&c[i], &q);
    }
    for (size_t i = 0; i < 8; i++) {
        test_client_wait(&c[i]);
        assert_true(test_same_answer(&c[i].got[0], &want));
        test_client_release(&c[i]);
    }
    cart_scheduler_counts(s, &counts);
    assert_true(counts.prefilled_tokens < 300 + 8 * 24); /* once, and a few last tokens */
    cart_stack_release(q.stack);
    cart_scheduler_free(s);
}

static void broken_rows_break_one_answer(void **state)
{
    (void)state;
    struct cart_scheduler_options o = CART_SCHEDULER_OPTIONS;
    struct cart_scheduler *s = test_scheduler_start(&o);
    struct cart_serve_request good;
    struct cart_serve_request bad;
    struct client c[2];
    struct answer want;
    uint32_t a[40];
    uint32_t b[40];

    simple_request(&good, a, 40, 1);
    simple_request(&bad, b, 40, 2);
    cart_stack_release(bad.stack);
    bad.stack = test_stack(4);
    test_plain_run(&good, 0, &want);
    test_client_init(&c[0], s);
    test_client_init(&c[1], s);
    test_client_submit(&c[0], &bad);
    test_client_submit(&c[1], &good);
    test_client_wait(&c[0]);
    test_client_wait(&c[1]);
    assert_int_equal(c[0].got[0].finish, CART_SERVE_NOT_FINITE);
    assert_true(test_same_answer(&c[1].got[0], &want));
    test_client_release(&c[0]);
    test_client_release(&c[1]);
    cart_stack_release(good.stack);
    cart_stack_release(bad.stack);
    cart_scheduler_free(s);
}

static void prompts_are_scored(void **state)
{
    (void)state;
    struct cart_scheduler_options o = {2, 4, 0, 0, 50, 4, CART_F32};
    struct cart_scheduler *s = test_scheduler_start(&o);
    struct cart_err err = {0};
    struct cart_serve_request q;
    struct client c;
    uint32_t prompt[130];
    double want = 0;

    simple_request(&q, prompt, 130, 9);
    test_ask(s, &c, &q); /* so that its rows are there, and must not be used */
    q.max_tokens = 0;
    q.prompt_logprobs = true;
    q.top_logprobs = 3;
    test_ask(s, &c, &q);
    struct cart_session session;
    float *hidden = malloc(130 * test_serving.model->D * sizeof *hidden);
    double scores[130];
    struct cart_head *head;
    test_need(cart_session_init(&session, test_serving.model, CART_F32, NULL, 0, 130, &err), &err);
    const struct cart_span span = {prompt, 130, cart_session_kv(&session), NULL, 130};
    test_need(cart_engine_forward(test_serving.plain, &span, 1, hidden, &err), &err);
    test_need(cart_head_new(&head, test_serving.model, 16, &err), &err);
    cart_head_logprobs(head, hidden, 129, prompt + 1, scores, test_serving.plain_pool);
    for (size_t i = 0; i < 129; i++)
        want += (double)(float)scores[i];
    assert_int_equal(c.prompt_tokens_seen, 130);
    assert_int_equal(c.prompt_scored, 129);
    assert_true(c.prompt_logprob == want);
    assert_int_equal(c.got[0].finish, CART_SERVE_LENGTH);
    assert_int_equal(c.got[0].n, 0);
    /* The embedding is the last of these hidden states, of length 1. */
    q.prompt_logprobs = false;
    q.kind = CART_SERVE_EMBED;
    test_ask(s, &c, &q);
    const float *last = hidden + 129 * test_serving.model->D;
    double sum = 0;
    for (size_t i = 0; i < test_serving.model->D; i++)
        sum += (double)last[i] * (double)last[i];
    assert_int_equal(c.n_embedding, test_serving.model->D);
    for (size_t i = 0; i < test_serving.model->D; i++)
        assert_true(c.embedding[i] == (float)((double)last[i] * (1 / sqrt(sum))));
    cart_head_free(head);
    cart_session_release(&session);
    free(hidden);
    cart_stack_release(q.stack);
    cart_scheduler_free(s);
}

/* Choice 0 scores the prompt for all, from its first row on; the others have rows in the cache and
 * would be ahead of it. */
static void scores_come_before_every_choice(void **state)
{
    (void)state;
    struct cart_scheduler_options o = {4, 4, 0, 0, 16, 4, CART_F32};
    struct cart_scheduler *s = test_scheduler_start(&o);
    struct cart_serve_request q;
    struct client c;
    struct answer want;
    uint32_t prompt[130];

    simple_request(&q, prompt, 130, 9);
    test_plain_run(&q, 0, &want);
    test_ask(s, &c, &q);
    q.prompt_logprobs = true;
    for (q.n = 1; q.n <= 4; q.n++) {
        test_ask(s, &c, &q);
        assert_int_equal(c.prompt_tokens_seen, 130);
        assert_int_equal(c.late_scores, 0);
        assert_int_equal(c.usage.cached_tokens, 0);
        for (size_t i = 0; i < q.n; i++)
            assert_true(test_same_answer(&c.got[i], &want));
    }
    cart_stack_release(q.stack);
    cart_scheduler_free(s);
}

/* B45: around the end of the context, with and without rows before. */
static void context_ends_where_it_says(void **state)
{
    (void)state;
    struct cart_scheduler_options o = {2, 4, 200, 0, 0, 4, CART_F32};
    struct cart_scheduler *s = test_scheduler_start(&o);

    for (unsigned mix = 0; mix < 3; mix += 2) {
        for (size_t n = 198; n <= 201; n++) {
            struct cart_serve_request q;
            struct cart_err err = {0};
            struct client c;
            enum cart_refusal why;
            uint32_t prompt[201];
            uint64_t id;
            simple_request(&q, prompt, n, 3);
            cart_stack_release(q.stack);
            q.stack = test_stack(mix);
            q.n_prompt = n - q.stack->rows;
            q.max_tokens = SIZE_MAX;
            if (n < 200) {
                test_ask(s, &c, &q);
                assert_int_equal(c.got[0].finish, CART_SERVE_LENGTH);
                assert_int_equal(c.got[0].n, 200 - n);
            } else {
                assert_int_equal(cart_scheduler_submit(s, &q, &id, &why, &err), CART_EUSAGE);
                assert_int_equal(why, CART_REFUSED_CONTEXT);
                assert_non_null(strstr(err.msg, "maximum context length is 200 tokens"));
            }
            cart_stack_release(q.stack);
        }
    }
    cart_scheduler_free(s);
}

static pthread_mutex_t gate = PTHREAD_MUTEX_INITIALIZER;

static void full_queues_and_bad_numbers_are_refused(void **state)
{
    (void)state;
    struct cart_scheduler_options o = {1, 1, 0, 0, 16, 0, CART_F32};
    struct cart_scheduler *s = test_scheduler_start(&o);
    struct cart_serve_request q;
    struct cart_err err = {0};
    struct client c[2];
    enum cart_refusal why;
    uint32_t prompt[400];
    uint64_t id;

    simple_request(&q, prompt, 400, 3);
    q.max_tokens = 100;
    test_client_init(&c[0], s);
    test_client_init(&c[1], s);
    c[0].leave_after = 40;
    c[0].gate = &gate;
    pthread_mutex_lock(&gate);
    test_client_submit(&c[0], &q);
    uint64_t second = test_client_submit(&c[1], &q);
    assert_int_equal(cart_scheduler_submit(s, &q, &id, &why, &err), CART_EAGAIN);
    assert_int_equal(why, CART_REFUSED_QUEUE);
    cart_scheduler_cancel(s, second); /* while it waits: the one at work goes on */
    pthread_mutex_unlock(&gate);
    test_client_wait(&c[1]);
    assert_int_equal(c[1].got[0].finish, CART_SERVE_CANCELLED);
    assert_int_equal(c[1].starts, 0);
    test_client_wait(&c[0]);
    assert_int_equal(c[0].got[0].finish, CART_SERVE_CANCELLED);
    assert_true(c[0].got[0].n >= 40);
    cart_scheduler_cancel(s, 12345);
    struct cart_serve_request bad = q;
    bad.temperature = NAN;
    assert_int_equal(cart_scheduler_submit(s, &bad, &id, &why, &err), CART_EUSAGE);
    assert_int_equal(why, CART_REFUSED_INVALID);
    bad = q;
    prompt[7] = (uint32_t)test_serving.model->V;
    assert_int_equal(cart_scheduler_submit(s, &bad, &id, &why, &err), CART_EUSAGE);
    prompt[7] = 7;
    bad.n = 0;
    assert_int_equal(cart_scheduler_submit(s, &bad, &id, &why, &err), CART_EUSAGE);
    cart_scheduler_drain(s);
    assert_int_equal(cart_scheduler_submit(s, &q, &id, &why, &err), CART_EAGAIN);
    assert_int_equal(why, CART_REFUSED_DRAINING);
    test_client_release(&c[0]);
    test_client_release(&c[1]);
    cart_stack_release(q.stack);
    cart_scheduler_free(s);
}

/* Stands still at its first token, when every free slot has been given out. */
struct stand {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    bool arrived, go, ended;
};

static bool stand_still(void *ctx, const struct cart_event *e)
{
    struct stand *st = ctx;

    pthread_mutex_lock(&st->lock);
    st->arrived |= e->type == CART_EVENT_TOKEN;
    st->ended |= e->type == CART_EVENT_END;
    pthread_cond_broadcast(&st->changed);
    while (st->arrived && !st->go)
        pthread_cond_wait(&st->changed, &st->lock);
    pthread_mutex_unlock(&st->lock);
    return true;
}

static void stand_until(struct stand *st, const bool *what)
{
    pthread_mutex_lock(&st->lock);
    while (!*what)
        pthread_cond_wait(&st->changed, &st->lock);
    pthread_mutex_unlock(&st->lock);
}

/* One request of many choices has all slots: as many others wait as the queue says, and no more. */
static void who_waits_is_in_the_queue(void **state)
{
    (void)state;
    for (size_t queue = 0; queue < 2; queue++) {
        struct cart_scheduler_options o = {2, queue, 0, 0, 16, 0, CART_F32};
        struct cart_scheduler *s = test_scheduler_start(&o);
        struct stand st = {.lock = PTHREAD_MUTEX_INITIALIZER, .changed = PTHREAD_COND_INITIALIZER};
        struct cart_scheduler_counts counts;
        struct cart_serve_request many;
        struct cart_serve_request one;
        struct cart_err err = {0};
        struct client c[2];
        enum cart_refusal why;
        uint32_t prompt[8];
        uint64_t id;

        simple_request(&many, prompt, 8, 5);
        one = many;
        many.n = 8;
        many.on_event = stand_still;
        many.ctx = &st;
        test_need(cart_scheduler_submit(s, &many, &id, &why, &err), &err);
        stand_until(&st, &st.arrived);
        test_client_init(&c[0], s);
        test_client_init(&c[1], s);
        for (size_t i = 0; i < queue; i++)
            test_client_submit(&c[i], &one);
        assert_int_equal(cart_scheduler_submit(s, &one, &id, &why, &err), CART_EAGAIN);
        assert_int_equal(why, CART_REFUSED_QUEUE);
        cart_scheduler_counts(s, &counts);
        assert_int_equal(counts.waiting, queue);
        pthread_mutex_lock(&st.lock);
        st.go = true;
        pthread_cond_broadcast(&st.changed);
        pthread_mutex_unlock(&st.lock);
        stand_until(&st, &st.ended);
        if (queue > 0)
            test_client_wait(&c[0]);
        /* All slots are free again, and there is room for as many. */
        test_client_release(&c[0]);
        test_ask(s, &c[0], &one);
        cart_scheduler_counts(s, &counts);
        assert_int_equal(counts.waiting, 0);
        test_client_release(&c[1]);
        cart_stack_release(many.stack);
        cart_scheduler_free(s);
    }
}

/* A long prompt of one client does not keep a short one of another waiting. */
static void short_questions_pass_long_ones(void **state)
{
    (void)state;
    struct cart_scheduler_options o = {2, 4, 0, 0, 16, 0, CART_F32};
    struct cart_scheduler *s = test_scheduler_start(&o);
    struct cart_serve_request slow;
    struct cart_serve_request quick;
    struct client c[2];
    uint32_t a[490];
    uint32_t b[10];

    simple_request(&slow, a, 490, 1);
    simple_request(&quick, b, 10, 2);
    quick.max_tokens = 5;
    test_client_init(&c[0], s);
    test_client_init(&c[1], s);
    c[0].gate = &gate;
    pthread_mutex_lock(&gate);
    test_client_submit(&c[0], &slow);
    test_client_submit(&c[1], &quick);
    pthread_mutex_unlock(&gate);
    test_client_wait(&c[1]);
    test_client_wait(&c[0]);
    assert_true(c[1].ended < c[0].first_token);
    assert_int_equal(c[0].got[0].n, 20);
    test_client_release(&c[0]);
    test_client_release(&c[1]);
    cart_stack_release(slow.stack);
    cart_stack_release(quick.stack);
    cart_scheduler_free(s);
}

/* ---- what one client waits for another, counted in steps ---- */

enum { PIECE = 16, LONG = 480, SHORT = 10 };

/* A stream that answers gets one token a step: its tokens are the clock. */
struct clockwork {
    sem_t reached, go;
    size_t steps;
    size_t since, most;        /* tokens of the long prompt since the last step, and at most */
    size_t began[2], first[2]; /* steps when the long and the short one started and had a token */
};

struct hand {
    struct client client;
    struct clockwork *clock;
    size_t who; /* 0: long, 1: short, 2: the one that answers */
};

static bool on_tick(void *ctx, const struct cart_event *e)
{
    struct hand *h = ctx;
    struct clockwork *w = h->clock;

    if (h->who == 2 && e->type == CART_EVENT_TOKEN) {
        w->steps++;
        w->since = 0;
        if (w->steps == 5 || w->steps == 10) {
            sem_post(&w->reached);
            sem_wait(&w->go);
        }
    }
    if (h->who < 2 && e->type == CART_EVENT_START)
        w->began[h->who] = w->steps;
    if (h->who < 2 && e->type == CART_EVENT_TOKEN && w->first[h->who] == 0)
        w->first[h->who] = w->steps;
    w->since += h->who == 0 && e->type == CART_EVENT_PROMPT;
    w->most = w->since > w->most ? w->since : w->most;
    return test_on_event(&h->client, e);
}

static void start(struct hand *h, struct cart_scheduler *s, struct cart_serve_request *q)
{
    struct cart_err err = {0};
    uint64_t id;

    test_client_init(&h->client, s);
    q->on_event = on_tick;
    q->ctx = h;
    test_need(cart_scheduler_submit(s, q, &id, NULL, &err), &err);
}

/* Answers under way get a token in every step of a long prompt, none of which takes more than a
 * piece; and a short question that comes meanwhile has its first token after one step. */
static void none_waits_longer_than_a_piece(void **state)
{
    (void)state;
    struct cart_scheduler_options o = {3, 4, 0, 0, PIECE, 0, CART_F32};
    struct cart_scheduler *s = test_scheduler_start(&o);
    struct clockwork w = {.steps = 0};
    struct hand hands[3];
    struct cart_serve_request q[3];
    static const size_t n[3] = {LONG, SHORT, SHORT};
    uint32_t prompts[3][LONG];

    assert_int_equal(sem_init(&w.reached, 0, 0), 0);
    assert_int_equal(sem_init(&w.go, 0, 0), 0);
    for (size_t i = 0; i < 3; i++) {
        hands[i].clock = &w;
        hands[i].who = i;
        simple_request(&q[i], prompts[i], n[i], 1 + i);
        q[i].max_tokens = i == 2 ? 80 : 2;
    }
    q[0].prompt_logprobs = true;
    start(&hands[2], s, &q[2]);
    sem_wait(&w.reached);
    start(&hands[0], s, &q[0]);
    sem_post(&w.go);
    sem_wait(&w.reached);
    start(&hands[1], s, &q[1]);
    sem_post(&w.go);
    for (size_t i = 0; i < 3; i++)
        test_client_wait(&hands[i].client);
    assert_int_equal(w.began[0], 5);
    assert_int_equal(w.began[1], 10);
    assert_int_equal(w.first[1], 11);
    assert_true(w.first[0] >= 5 + LONG / PIECE && w.first[0] <= 5 + LONG / PIECE + 2);
    assert_true(w.most > 0 && w.most <= PIECE + 1); /* the first token of a prompt has no score */
    for (size_t i = 0; i < 3; i++) {
        test_client_release(&hands[i].client);
        cart_stack_release(q[i].stack);
    }
    sem_destroy(&w.reached);
    sem_destroy(&w.go);
    cart_scheduler_free(s);
}

/* A request with more choices than slots lets others in between; the helper keeps when the last
 * choice began. */
static void choices_take_turns(void **state)
{
    (void)state;
    for (size_t slots = 1; slots <= 2; slots++) {
        struct cart_scheduler_options o = {slots, 4, 0, 0, 64, 0, CART_F32};
        struct cart_scheduler *s = test_scheduler_start(&o);
        struct cart_serve_request many;
        struct cart_serve_request one;
        struct client c[3];
        uint32_t a[20];
        uint32_t b[20];
        simple_request(&many, a, 20, 1);
        simple_request(&one, b, 20, 2);
        many.n = slots + 2;
        one.max_tokens = 5;
        for (size_t i = 0; i < 3; i++)
            test_client_init(&c[i], s);
        c[0].gate = &gate;
        pthread_mutex_lock(&gate);
        test_client_submit(&c[0], &many);
        test_client_submit(&c[1], &one);
        test_client_submit(&c[2], &one);
        pthread_mutex_unlock(&gate);
        for (size_t i = 0; i < 3; i++)
            test_client_wait(&c[i]);
        assert_true(c[1].ended <= c[0].first_token);
        assert_true(c[2].ended <= c[0].first_token);
        assert_int_equal(c[0].finishes, slots + 2);
        for (size_t i = 0; i < 3; i++)
            test_client_release(&c[i]);
        cart_stack_release(many.stack);
        cart_stack_release(one.stack);
        cart_scheduler_free(s);
    }
}

/* Who has heard of an end finds the place free. */
static void an_end_leaves_a_place(void **state)
{
    (void)state;
    struct cart_scheduler_options o = {1, 0, 0, 0, 16, 0, CART_F32};
    struct cart_scheduler *s = test_scheduler_start(&o);
    struct cart_serve_request q;
    struct client c;
    uint32_t prompt[1];

    simple_request(&q, prompt, 1, 3);
    q.max_tokens = 1;
    for (size_t i = 0; i < 300; i++)
        test_ask(s, &c, &q);
    /* While it drains, what is begun goes on. */
    cart_scheduler_drain(s);
    q.begun = true;
    test_ask(s, &c, &q);
    assert_int_equal(c.got[0].n, 1);
    cart_stack_release(q.stack);
    cart_scheduler_free(s);
}

static void cartridges_come_and_go(void **state)
{
    (void)state;
    struct cart_scheduler_options o = {2, 4, 0, 0, 16, 4, CART_F32};
    struct cart_scheduler *s = test_scheduler_start(&o);
    struct cart_err err = {0};
    struct cart_serve_request q;
    struct client c;
    struct answer want[2];
    uint32_t prompt[30];
    const char *const list[] = {"guest"};
    char path[128];

    test_make_cartridge("guest", 50, 77, 1);
    snprintf(path, sizeof path, "%s", test_cartridge_path("guest"));
    test_need(cart_registry_add(test_serving.registry, "guest", path, NULL, 0, &err), &err);
    simple_request(&q, prompt, 30, 6);
    cart_stack_release(q.stack);
    test_need(cart_stack_acquire(&q.stack, test_serving.registry, list, 1, NULL, &err), &err);
    struct cart_stack *old = q.stack;
    test_plain_run(&q, 0, &want[0]);
    test_ask(s, &c, &q);
    assert_true(test_same_answer(&c.got[0], &want[0]));
    /* Another cartridge of the same name: new requests get the new one, with nothing of the old. */
    test_make_cartridge("guest", 50, 78, 1);
    test_need(cart_registry_add(test_serving.registry, "guest", path, NULL, 0, &err), &err);
    test_need(cart_stack_acquire(&q.stack, test_serving.registry, list, 1, NULL, &err), &err);
    test_plain_run(&q, 0, &want[1]);
    assert_false(test_same_answer(&want[0], &want[1]));
    test_ask(s, &c, &q);
    assert_true(test_same_answer(&c.got[0], &want[1]));
    assert_int_equal(c.usage.cached_tokens, 0);
    assert_int_equal(c.usage.cartridge_rows, 50);
    cart_stack_release(q.stack);
    test_need(cart_registry_drop(test_serving.registry, "guest", &err), &err);
    size_t missing = 9;
    assert_int_equal(cart_stack_acquire(&q.stack, test_serving.registry, list, 1, &missing, &err),
                     CART_EUSAGE);
    assert_int_equal(missing, 0);
    /* Who holds the old one still can use it. */
    q.stack = old;
    test_ask(s, &c, &q);
    assert_true(test_same_answer(&c.got[0], &want[0]));
    cart_stack_release(old);
    cart_scheduler_free(s);
    unlink(path);
}

/* A cartridge of some size stands in memory as attention reads it, where blocks begin; elsewhere it
 * is read in its file. */
static void cartridges_are_copied(void **state)
{
    (void)state;
    static const char *const names[] = {"guest", "small", "guest", "guest"};
    const struct cart_model *m = test_serving.model;
    struct cart_err err = {0};
    struct cart_stack *s;
    float k[2][1024], v[2][1024];

    for (size_t i = 0; i < 2; i++) {
        test_make_cartridge(names[i], i == 0 ? 100 : 28, 77, 1);
        test_need(cart_registry_add(test_serving.registry, names[i], test_cartridge_path(names[i]),
                                    NULL, 0, &err),
                  &err);
    }
    test_need(cart_stack_acquire(&s, test_serving.registry, names, 4, NULL, &err), &err);
    assert_int_equal(s->rows, 328);
    const struct cart_cartridge *c = s->entries[0].cartridge, *small = s->entries[1].cartridge;
    assert_int_equal(s->n_parts, 2 + small->n_parts + c->n_parts);
    assert_ptr_equal(s->parts[0], s->parts[1 + small->n_parts]);
    for (size_t i = 0; i < s->n_parts; i++)
        assert_int_equal(s->parts[i]->blocked, i == 0 || i == 1 + small->n_parts);
    assert_int_equal(s->parts[0]->rows, 100);
    for (size_t l = 0; l < m->L; l++) {
        size_t width = cart_layer_kv_width(&m->layers[l]), row = 0;
        assert_true(width <= CART_COUNTOF(k[0]));
        for (size_t i = 0; i < c->n_parts; i++) {
            for (size_t r = 0; r < c->parts[i].rows; r++, row++) {
                cart_kv_part_row(&c->parts[i], m, l, r, k[0], v[0]);
                cart_kv_part_row(s->parts[0], m, l, row, k[1], v[1]);
                assert_memory_equal(k[0], k[1], width * sizeof *k[0]);
                assert_memory_equal(v[0], v[1], width * sizeof *v[0]);
            }
        }
        assert_int_equal(row, 100);
    }
    cart_stack_release(s);
    for (size_t i = 0; i < 2; i++) {
        test_need(cart_registry_drop(test_serving.registry, names[i], &err), &err);
        unlink(test_cartridge_path(names[i]));
    }
}

/* Whatever is at work or waits when the scheduler ends hears of it, once. */
static void ending_cancels_the_rest(void **state)
{
    (void)state;
    for (unsigned delay = 0; delay < 4; delay++) {
        struct cart_scheduler_options o = {2, 6, 0, 0, 16, 4, CART_F32};
        struct cart_scheduler *s = test_scheduler_start(&o);
        struct cart_serve_request q;
        struct client c[6];
        uint32_t prompt[200];
        simple_request(&q, prompt, 200, delay);
        q.max_tokens = SIZE_MAX;
        for (size_t i = 0; i < 6; i++) {
            q.n = 1 + i % 3;
            test_client_init(&c[i], s);
            test_client_submit(&c[i], &q);
        }
        nanosleep(&(struct timespec){0, 4000000L * delay}, NULL);
        cart_scheduler_free(s);
        for (size_t i = 0; i < 6; i++) {
            assert_int_equal(c[i].ends, 1);
            assert_int_equal(c[i].finishes, 1 + i % 3);
            test_client_release(&c[i]);
        }
        cart_stack_release(q.stack);
    }
}

/* ---- many threads at one name ---- */

struct visitor {
    pthread_t thread;
    bool stop; /* guarded by lock */
    pthread_mutex_t lock;
    size_t seen, missed, wrong;
};

static bool visitor_stops(struct visitor *v)
{
    pthread_mutex_lock(&v->lock);
    bool stop = v->stop;
    pthread_mutex_unlock(&v->lock);
    return stop;
}

static void *visit(void *arg)
{
    struct visitor *v = arg;
    const char *const list[] = {"two", "guest"};

    while (!visitor_stops(v)) {
        struct cart_stack *s = NULL;
        struct cart_stack *all = NULL;
        if (cart_stack_acquire(&s, test_serving.registry, list, 2, NULL, NULL) < 0) {
            v->missed++;
            continue;
        }
        cart_stack_hold(s);
        cart_stack_release(s);
        v->wrong +=
            s->rows != 33 + 100 || s->entries[1].cartridge->p != 100 || s->entries[1].draft == NULL;
        cart_stack_release(s);
        v->wrong += cart_stack_acquire_all(&all, test_serving.registry, NULL) < 0;
        cart_stack_release(all);
        v->seen++;
    }
    return NULL;
}

static void names_change_under_many_readers(void **state)
{
    (void)state;
    struct cart_err err = {0};
    struct visitor v[3];
    char path[128];

    test_make_cartridge("guest", 100, 77, 1); /* enough rows to be copied */
    snprintf(path, sizeof path, "%s", test_cartridge_path("guest"));
    memset(v, 0, sizeof v);
    for (size_t i = 0; i < 3; i++) {
        pthread_mutex_init(&v[i].lock, NULL);
        assert_int_equal(pthread_create(&v[i].thread, NULL, visit, &v[i]), 0);
    }
    for (size_t i = 0; i < 40; i++) {
        test_need(cart_registry_add(test_serving.registry, "guest", path, NULL, 0, &err), &err);
        test_need(cart_registry_add(test_serving.registry, "guest", path, NULL, 0, &err), &err);
        struct cart_stack *s;
        const char *const list[] = {"guest"};
        test_need(cart_stack_acquire(&s, test_serving.registry, list, 1, NULL, &err), &err);
        test_need(cart_registry_drop(test_serving.registry, "guest", &err), &err);
        assert_int_equal(s->entries[0].cartridge->p, 100);
        cart_stack_release(s);
    }
    for (size_t i = 0; i < 3; i++) {
        pthread_mutex_lock(&v[i].lock);
        v[i].stop = true;
        pthread_mutex_unlock(&v[i].lock);
        pthread_join(v[i].thread, NULL);
        pthread_mutex_destroy(&v[i].lock);
        assert_int_equal(v[i].wrong, 0);
        assert_true(v[i].seen + v[i].missed > 0);
    }
    unlink(path);
    assert_int_equal(cart_registry_add(test_serving.registry, "../x", path, NULL, 0, &err),
                     CART_EUSAGE);
    assert_int_equal(cart_registry_add(test_serving.registry, "none", path, NULL, 0, &err),
                     CART_ESYS);
    assert_int_equal(cart_registry_counts(test_serving.registry).cartridges, 3);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(repeats_are_equal_and_cached),
        cmocka_unit_test(equal_prompts_wait_for_each_other),
        cmocka_unit_test(broken_rows_break_one_answer),
        cmocka_unit_test(prompts_are_scored),
        cmocka_unit_test(scores_come_before_every_choice),
        cmocka_unit_test(context_ends_where_it_says),
        cmocka_unit_test(full_queues_and_bad_numbers_are_refused),
        cmocka_unit_test(who_waits_is_in_the_queue),
        cmocka_unit_test(short_questions_pass_long_ones),
        cmocka_unit_test(none_waits_longer_than_a_piece),
        cmocka_unit_test(choices_take_turns),
        cmocka_unit_test(an_end_leaves_a_place),
        cmocka_unit_test(cartridges_come_and_go),
        cmocka_unit_test(cartridges_are_copied),
        cmocka_unit_test(ending_cancels_the_rest),
        cmocka_unit_test(names_change_under_many_readers),
    };
    cmocka_set_message_output(CM_OUTPUT_TAP);
    return cmocka_run_group_tests(tests, test_serving_setup, test_serving_teardown);
}
