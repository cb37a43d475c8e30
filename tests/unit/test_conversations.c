/* 200 conversations (50 under a sanitizer) of two turns, eight clients at once: families of prompts
 * that share beginnings, mixed cartridges, sampling, penalties, stops, cancellations, evictions.
 * Each answer is that of a plain run of the one request. */
#include "helper/serving.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#define PROMPT_MAX 490

/* ---- 200 conversations ---- */

#define CONVERSATIONS 200
#define CLIENTS 8

struct conversation {
    struct cart_serve_request q[2]; /* the question, and the one after its answer */
    uint32_t prompt[2][PROMPT_MAX];
    struct cart_bias bias[2];
    uint32_t stop[1];
    struct answer got[2][2];
    struct cart_usage usage[2];
    size_t leave_after, hang_up;
    bool faulty;
    char error[128];
};

static struct conversation *talks;
static struct cart_scheduler *shared_scheduler;
static size_t next_talk, n_talks;
static pthread_mutex_t talk_lock = PTHREAD_MUTEX_INITIALIZER;

static void make_conversation(struct conversation *t, size_t i)
{
    struct cart_serve_request *q = &t->q[0];
    uint32_t family = test_pick(i, 0, 6);
    size_t common = 20 + 29 * family;
    size_t own = 1 + test_pick(i, 1, 40);

    memset(t, 0, sizeof *t);
    *q = (struct cart_serve_request)CART_SERVE_REQUEST;
    for (size_t k = 0; k < common; k++)
        t->prompt[0][k] = test_pick(1000 + family, (uint32_t)k, 300);
    for (size_t k = 0; k < own; k++)
        t->prompt[0][common + k] = test_pick(2000 + test_pick(i, 2, 90), (uint32_t)k, 300);
    q->prompt = t->prompt[0];
    q->n_prompt = common + own;
    q->stack = test_stack(test_pick(i, 3, 4));
    q->max_tokens = 1 + test_pick(i, 4, 24);
    q->temperature = test_pick(i, 5, 2) ? 0 : 0.3 + 0.2 * test_pick(i, 6, 5);
    q->top_k = test_pick(i, 7, 3) == 0 ? 40 : 0;
    q->top_p = test_pick(i, 8, 3) == 0 ? 0.9 : 1;
    q->seed = i;
    q->n = test_pick(i, 9, 5) == 0 ? 2 : 1;
    if (test_pick(i, 10, 3) == 0) {
        t->bias[0] = (struct cart_bias){test_pick(i, 11, 300), 3.5f};
        t->bias[1] = (struct cart_bias){test_pick(i, 12, 300), -100.0f};
        q->adjust = (struct cart_adjust){1.2, 0.4, 0.3, t->bias, 2};
    }
    if (test_pick(i, 13, 3) == 0) {
        t->stop[0] = test_pick(i, 14, 300);
        q->stop = t->stop;
        q->n_stop = 1;
    }
    q->logprobs = test_pick(i, 15, 3) == 0;
    q->top_logprobs = test_pick(i, 16, 6);
    t->leave_after = test_pick(i, 17, 6) == 0 ? 1 + test_pick(i, 18, 6) : SIZE_MAX;
    t->hang_up = test_pick(i, 19, 8) == 0 ? 1 + test_pick(i, 20, 6) : SIZE_MAX;
}

/* The second question goes on from the first answer. */
static void follow_up(struct conversation *t, size_t i)
{
    const struct answer *a = &t->got[0][0];
    size_t n = t->q[0].n_prompt;

    t->q[1] = t->q[0];
    memcpy(t->prompt[1], t->prompt[0], n * sizeof(uint32_t));
    memcpy(t->prompt[1] + n, a->ids, a->n * sizeof(uint32_t));
    n += a->n;
    for (size_t k = 0; k < 9; k++)
        t->prompt[1][n++] = test_pick(i, 100 + (uint32_t)k, 300);
    t->q[1].prompt = t->prompt[1];
    t->q[1].n_prompt = n;
}

static void converse(struct conversation *t, size_t i)
{
    for (size_t turn = 0; turn < 2; turn++) {
        struct client c;
        if (turn == 1)
            follow_up(t, i);
        test_client_init(&c, shared_scheduler);
        c.leave_after = turn == 0 ? t->leave_after : SIZE_MAX;
        c.hang_up = turn == 0 ? t->hang_up : SIZE_MAX;
        struct cart_err err = {0};
        enum cart_refusal why;
        uint64_t id;
        t->q[turn].on_event = test_on_event;
        t->q[turn].ctx = &c;
        if (cart_scheduler_submit(shared_scheduler, &t->q[turn], &id, &why, &err) < 0) {
            t->faulty = true;
            snprintf(t->error, sizeof t->error, "%.120s", err.msg);
            return;
        }
        test_client_wait(&c);
        memcpy(t->got[turn], c.got, sizeof t->got[turn]);
        t->usage[turn] = c.usage;
        t->faulty |=
            c.starts > 1 || c.finishes != t->q[turn].n || c.ends != 1 || c.error[0] != '\0';
        test_client_release(&c);
    }
}

static void *talk(void *arg)
{
    (void)arg;
    for (;;) {
        pthread_mutex_lock(&talk_lock);
        size_t i = next_talk++;
        pthread_mutex_unlock(&talk_lock);
        if (i >= n_talks)
            return NULL;
        converse(&talks[i], i);
    }
}

/* A choice that was cut short is the beginning of the whole answer. */
static void check_answer(const struct cart_serve_request *q, size_t choice,
                         const struct answer *got, size_t i)
{
    struct answer want;

    test_plain_run(q, choice, &want);
    if (got->finish == CART_SERVE_CANCELLED || got->finish == CART_SERVE_CALLER) {
        assert_true(got->n <= want.n);
        assert_memory_equal(got->ids, want.ids, got->n * sizeof *got->ids);
    } else if (!test_same_answer(got, &want)) {
        fail_msg("conversation %zu choice %zu: %zu tokens (finish %d), expected %zu (finish %d)", i,
                 choice, got->n, got->finish, want.n, want.finish);
    }
    for (size_t k = 0; q->logprobs && k < got->n; k++)
        assert_true(got->logprobs[k] == want.logprobs[k]);
}

static void run_conversations(size_t n, const struct cart_scheduler_options *o,
                              struct cart_scheduler_counts *counts)
{
    pthread_t threads[CLIENTS];
    size_t cached = 0;

    talks = calloc(n, sizeof *talks);
    for (size_t i = 0; i < n; i++)
        make_conversation(&talks[i], i);
    shared_scheduler = test_scheduler_start(o);
    next_talk = 0;
    n_talks = n;
    for (size_t i = 0; i < CLIENTS; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, talk, NULL), 0);
    for (size_t i = 0; i < CLIENTS; i++)
        pthread_join(threads[i], NULL);
    /* The last answers end a moment before their slots are free. */
    cart_scheduler_counts(shared_scheduler, counts);
    for (size_t ms = 0; ms < 10000 && counts->running + counts->waiting > 0; ms++) {
        nanosleep(&(struct timespec){0, 1000000}, NULL);
        cart_scheduler_counts(shared_scheduler, counts);
    }
    cart_scheduler_free(shared_scheduler);
    for (size_t i = 0; i < n; i++) {
        struct conversation *t = &talks[i];
        if (t->faulty)
            fail_msg("conversation %zu: %s", i, t->error);
        for (size_t turn = 0; turn < 2; turn++) {
            assert_true(t->usage[turn].cached_tokens < t->q[turn].n_prompt);
            cached += t->usage[turn].cached_tokens;
            for (size_t k = 0; k < t->q[turn].n; k++)
                check_answer(&t->q[turn], k, &t->got[turn][k], i);
        }
        cart_stack_release(t->q[0].stack);
    }
    print_message(
        "# %llu steps, %zu tokens cached of %llu, %llu pages evicted, %llu of %llu drafts right\n",
        (unsigned long long)counts->steps, cached, (unsigned long long)counts->prompt_tokens,
        (unsigned long long)counts->evicted_pages, (unsigned long long)counts->draft_accepted,
        (unsigned long long)counts->drafted);
    free(talks);
}

static void conversations_equal_fresh_runs(void **state)
{
    (void)state;
    struct cart_scheduler_counts c;
    struct cart_scheduler_options o = {5, 64, 0, 1000, 96, 8, CART_F32};

    size_t n = getenv("CART_SANITIZED") != NULL ? 50 : CONVERSATIONS;

    run_conversations(n, &o, &c);
    assert_true(c.evicted_pages > 0 && c.cached_tokens > 0 && c.draft_accepted > 0);
    assert_int_equal(c.accepted, 2 * n);
    assert_int_equal(c.finished, c.accepted);
    assert_int_equal(c.running, 0);
    assert_int_equal(c.pages_committed, 0);
    assert_true(c.pages_used <= c.pages);
}

static void one_slot_and_tiny_pieces_too(void **state)
{
    (void)state;
    struct cart_scheduler_counts c;
    struct cart_scheduler_options o = {1, 64, 0, 0, 7, 0, CART_F32};

    run_conversations(30, &o, &c);
    assert_int_equal(c.drafted, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(conversations_equal_fresh_runs),
        cmocka_unit_test(one_slot_and_tiny_pieces_too),
    };
    cmocka_set_message_output(CM_OUTPUT_TAP);
    return cmocka_run_group_tests(tests, test_serving_setup, test_serving_teardown);
}
