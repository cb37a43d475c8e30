/* For tests of the scheduler: a tiny model with three cartridges in a folder of their own, the
 * plain run that every answer must equal, and a client that keeps what it hears. */
#ifndef CART_TESTS_HELPER_SERVING_H
#define CART_TESTS_HELPER_SERVING_H

#include "base/cpu.h"
#include "engine/engine.h"
#include "serve/scheduler.h"

#include <pthread.h>

#define ANSWER_MAX 420

struct test_serving {
    struct cart_model *model;
    const struct cart_chat *chat;
    struct cart_pool *pool; /* the scheduler's */
    struct cart_registry *registry;
    struct cart_engine *plain; /* of the plain run, with a pool of its own */
    struct cart_pool *plain_pool;
    char folder[40];
};
extern struct test_serving test_serving;

void test_need(int r, const struct cart_err *err);
uint32_t test_pick(uint64_t n, uint32_t index, uint32_t bound); /* a random number below bound */

/* Group set-up and tear-down for cmocka. Cartridges: "one" of 70 rows, "two" of 33, and "wild" of
 * 20, whose rows are finite and break every answer. */
int test_serving_setup(void **state);
int test_serving_teardown(void **state);

const char *test_cartridge_path(const char *name); /* static buffer */
/* p rows, a prefill of random ids, which are also the draft reference; scale 1e38 makes them wild.
 */
void test_make_cartridge(const char *name, size_t p, uint64_t seed, float scale);
struct cart_stack *test_stack(unsigned mix); /* bit 0: "one", bit 1: "two"; 4: "wild" */

struct answer {
    uint32_t ids[ANSWER_MAX]; /* without the token that stopped it */
    float logprobs[ANSWER_MAX];
    size_t n;
    enum cart_serve_finish finish;
};

/* One session, the prompt in one go, one token after the other. No constraint. */
void test_plain_run(const struct cart_serve_request *q, size_t choice, struct answer *a);
bool test_same_answer(const struct answer *a, const struct answer *b);

struct client {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    struct cart_scheduler *s;
    struct answer got[4];
    size_t prompt_tokens_seen, prompt_scored, late_scores; /* late: behind a token of the answer */
    double prompt_logprob;
    float embedding[256];
    size_t n_embedding;
    struct cart_usage usage;
    size_t starts, finishes, ends;
    size_t leave_after;        /* tokens of one choice after which it cancels; SIZE_MAX: never */
    size_t hang_up;            /* tokens after which it says no */
    pthread_mutex_t *gate;     /* START waits for it: what is submitted meanwhile comes together */
    double first_token, ended; /* when, monotonic */
    char error[128];
};

bool test_on_event(void *ctx, const struct cart_event *e);
void test_client_init(struct client *c, struct cart_scheduler *s);
void test_client_wait(struct client *c);
uint64_t test_client_submit(struct client *c, struct cart_serve_request *q);
void test_client_release(struct client *c);
/* All four. */
void test_ask(struct cart_scheduler *s, struct client *c, struct cart_serve_request *q);

struct cart_scheduler *test_scheduler_start(const struct cart_scheduler_options *o);

#endif
