#include "helper/cartridge_save.h"
#include "helper/serving.h"

#include "base/clock.h"
#include "cartridge/trainable.h"
#include "engine/sampler.h"
#include "helper/vocab.h"
#include "model/head.h"
#include "tensor/vocab.h"
#include "token/chat.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct test_serving test_serving = {.folder = "/tmp/test_serving.XXXXXX"};
static const char *const names[] = {"one", "two", "wild"};

void test_need(int r, const struct cart_err *err)
{
    if (r < 0) {
        fprintf(stderr, "# %s\n", err->msg);
        exit(1);
    }
}

static void demand(bool what, const char *words)
{
    if (!what) {
        fprintf(stderr, "# expected %s\n", words);
        exit(1);
    }
}

uint32_t test_pick(uint64_t n, uint32_t index, uint32_t bound)
{
    return cart_rng_u32(17, n, CART_RNG_TEST, index) % bound;
}

/* ---- cartridges ---- */

const char *test_cartridge_path(const char *name)
{
    static char path[128];
    snprintf(path, sizeof path, "%s/%s.cartridge.safetensors", test_serving.folder, name);
    return path;
}

/* Rows of a prefill of random ids, which are also the draft reference; scale 1e38: rows that are
 * finite and break every answer. */
void test_make_cartridge(const char *name, size_t p, uint64_t seed, float scale)
{
    struct cart_err err = {0};
    struct cart_trainable t;
    struct cart_session s;
    uint32_t ids[256];
    int64_t draft[256];

    demand(p <= CART_COUNTOF(ids), "p <= CART_COUNTOF(ids)");
    for (size_t i = 0; i < p; i++)
        draft[i] = ids[i] = test_pick(seed, (uint32_t)i, 300);
    test_need(cart_session_init(&s, test_serving.model, CART_F32, NULL, 0, p, &err), &err);
    const struct cart_span span = {ids, p, cart_session_kv(&s), NULL, 0};
    test_need(cart_engine_forward(test_serving.plain, &span, 1, NULL, &err), &err);
    test_need(cart_trainable_init(&t, test_serving.model, p, 1, &err), &err);
    struct cart_kv_layer layers[16];
    struct cart_kv_part part;
    cart_kv_part_of_tail(&part, layers, test_serving.model, &s.tail, 0, p);
    cart_trainable_set(&t, test_serving.model, &part, 1);
    for (size_t i = 0; scale != 1 && i < t.n; i++)
        t.x[i] = t.x[i] < 0 ? -scale : scale;
    json_t *history = json_array();
    json_t *recipe = json_object();
    json_t *about = NULL;
    const struct cart_cartridge_about a = {.p = p,
                                           .frozen = 1,
                                           .profile = "chatml",
                                           .corpus = "0123456789abcdef0123456789abcdef",
                                           .recipe = recipe,
                                           .history = history};
    test_need(cart_cartridge_describe(&about, test_serving.model, &a, &err), &err);
    test_need(test_cartridge_save(test_cartridge_path(name), test_serving.model, t.parts, t.n_parts,
                                  1, about, draft, p, &err),
              &err);
    json_decref(about);
    json_decref(history);
    json_decref(recipe);
    cart_trainable_release(&t);
    cart_session_release(&s);
}

struct cart_stack *test_stack(unsigned mix)
{
    struct cart_err err = {0};
    struct cart_stack *s = NULL;
    const char *list[2];
    size_t n = 0;

    if (mix & 1)
        list[n++] = names[0];
    if (mix & 2)
        list[n++] = names[1];
    if (mix == 4)
        list[n++] = names[2];
    test_need(cart_stack_acquire(&s, test_serving.registry, list, n, NULL, &err), &err);
    return s;
}

/* ---- the plain run ---- */

static bool stops(const struct cart_serve_request *q, uint32_t id)
{
    for (size_t i = 0; i < q->n_stop; i++) {
        if (q->stop[i] == id)
            return true;
    }
    return !q->ignore_stop && cart_chat_is_stop(test_serving.chat, id);
}

static uint32_t plain_token(const struct cart_serve_request *q, size_t choice, float *row,
                            const struct answer *a, struct cart_sampler_scratch *scratch,
                            float *logprob)
{
    const struct cart_sampling how = {q->temperature, q->top_k, q->top_p,    q->min_p,
                                      q->seed,        choice,   CART_RNG_ASK};
    struct cart_err err = {0};
    struct cart_tally *tally;
    struct cart_logsum sum;
    float *copy = malloc(test_serving.model->V * sizeof *copy);

    memcpy(copy, row, test_serving.model->V * sizeof *copy);
    test_need(cart_tally_new(&tally, test_serving.model->V, &err), &err);
    cart_tally_prompt(tally, q->prompt, q->n_prompt);
    for (size_t i = 0; i < a->n; i++)
        cart_tally_push(tally, a->ids[i]);
    if (cart_adjust_any(&q->adjust))
        cart_adjust_logits(&q->adjust, tally, copy, test_serving.model->V);
    uint32_t id = cart_sampler_pick(&how, copy, test_serving.model->V, (uint32_t)a->n, scratch);
    cart_vocab_logsum(&sum, row, test_serving.model->V, 1, test_serving.model->V,
                      test_serving.plain_pool);
    *logprob = (float)cart_vocab_logprob(row[id], &sum);
    cart_tally_free(tally);
    free(copy);
    return id;
}

/* One session, the prompt in one go, one token after the other. */
void test_plain_run(const struct cart_serve_request *q, size_t choice, struct answer *a)
{
    struct cart_err err = {0};
    struct cart_session s;
    struct cart_sampler_scratch *scratch;
    float *hidden = malloc(test_serving.model->D * sizeof *hidden);
    float *row = malloc(test_serving.model->V * sizeof *row);
    size_t rows = q->stack->rows + q->n_prompt;
    size_t most = q->max_tokens < test_serving.model->context - rows
                      ? q->max_tokens
                      : test_serving.model->context - rows;
    uint32_t id;

    memset(a, 0, sizeof *a);
    a->finish = CART_SERVE_LENGTH;
    test_need(cart_sampler_scratch_new(&scratch, test_serving.model->V, &err), &err);
    test_need(cart_session_init(&s, test_serving.model, CART_F32, q->stack->parts,
                                q->stack->n_parts, q->n_prompt + most + 1, &err),
              &err);
    size_t last = q->n_prompt - 1;
    struct cart_span span = {q->prompt, q->n_prompt, cart_session_kv(&s), &last, 1};
    while (a->n < most) {
        test_need(cart_engine_forward(test_serving.plain, &span, 1, hidden, &err), &err);
        cart_head_logits(test_serving.model, hidden, 1, row, test_serving.plain_pool);
        if (!isfinite(row[0])) {
            a->finish = CART_SERVE_NOT_FINITE;
            break;
        }
        id = plain_token(q, choice, row, a, scratch, &a->logprobs[a->n]);
        if (stops(q, id)) {
            a->finish = CART_SERVE_STOP;
            break;
        }
        demand(a->n < ANSWER_MAX, "a->n < ANSWER_MAX");
        a->ids[a->n++] = id;
        last = 0;
        span = (struct cart_span){&id, 1, cart_session_kv(&s), &last, 1};
    }
    cart_session_release(&s);
    cart_sampler_scratch_free(scratch);
    free(hidden);
    free(row);
}

/* ---- a client ---- */

bool test_on_event(void *ctx, const struct cart_event *e)
{
    struct client *c = ctx;
    struct answer *a = &c->got[e->choice];
    bool go_on = true;

    if (e->type == CART_EVENT_START && c->gate != NULL) {
        pthread_mutex_lock(c->gate);
        pthread_mutex_unlock(c->gate);
    }
    pthread_mutex_lock(&c->lock);
    switch (e->type) {
    case CART_EVENT_START:
        c->starts++;
        break;
    case CART_EVENT_PROMPT:
        c->prompt_tokens_seen++;
        c->prompt_scored += e->has_logprob;
        c->late_scores += c->got[0].n + c->got[1].n + c->got[2].n + c->got[3].n > 0;
        c->prompt_logprob += e->has_logprob ? (double)e->logprob : 0;
        break;
    case CART_EVENT_TOKEN:
        if (e->has_logprob) {
            a->logprobs[a->n] = e->logprob;
            for (size_t i = 1; i < e->n_top; i++) {
                if (e->top[i].logprob > e->top[i - 1].logprob)
                    snprintf(c->error, sizeof c->error, "top list rises");
            }
        }
        if (a->n == 0)
            c->first_token = cart_clock_now();
        a->ids[a->n++] = e->id;
        if (c->leave_after == a->n)
            cart_scheduler_cancel(c->s, e->request);
        go_on = c->hang_up != a->n;
        break;
    case CART_EVENT_FINISH:
        c->finishes++;
        a->finish = e->finish;
        break;
    case CART_EVENT_EMBEDDING:
        memcpy(c->embedding, e->embedding, e->D * sizeof *e->embedding);
        c->n_embedding = e->D;
        break;
    case CART_EVENT_END:
        c->usage = *e->usage;
        c->ends++;
        c->ended = cart_clock_now();
        pthread_cond_broadcast(&c->changed);
        break;
    }
    pthread_mutex_unlock(&c->lock);
    return go_on;
}

void test_client_init(struct client *c, struct cart_scheduler *s)
{
    memset(c, 0, sizeof *c);
    pthread_mutex_init(&c->lock, NULL);
    pthread_cond_init(&c->changed, NULL);
    c->s = s;
    c->leave_after = c->hang_up = SIZE_MAX;
}

void test_client_wait(struct client *c)
{
    pthread_mutex_lock(&c->lock);
    while (c->ends == 0)
        pthread_cond_wait(&c->changed, &c->lock);
    pthread_mutex_unlock(&c->lock);
}

uint64_t test_client_submit(struct client *c, struct cart_serve_request *q)
{
    struct cart_err err = {0};
    enum cart_refusal why;
    uint64_t id = 0;

    q->on_event = test_on_event;
    q->ctx = c;
    test_need(cart_scheduler_submit(c->s, q, &id, &why, &err), &err);
    demand(why == CART_REFUSED_NOT, "why == CART_REFUSED_NOT");
    return id;
}

void test_client_release(struct client *c)
{
    pthread_mutex_destroy(&c->lock);
    pthread_cond_destroy(&c->changed);
}

void test_ask(struct cart_scheduler *s, struct client *c, struct cart_serve_request *q)
{
    test_client_init(c, s);
    test_client_submit(c, q);
    test_client_wait(c);
    test_client_release(c);
}

bool test_same_answer(const struct answer *a, const struct answer *b)
{
    return a->n == b->n && a->finish == b->finish &&
           memcmp(a->ids, b->ids, a->n * sizeof *a->ids) == 0;
}

struct cart_scheduler *test_scheduler_start(const struct cart_scheduler_options *o)
{
    struct cart_err err = {0};
    struct cart_scheduler *s;

    test_need(
        cart_scheduler_new(&s, test_serving.model, test_serving.pool, test_serving.chat, o, &err),
        &err);
    return s;
}

int test_serving_setup(void **state)
{
    (void)state;
    struct cart_err err = {0};

    test_need(cart_cpu_init(&err), &err);
    test_need(
        cart_model_open(&test_serving.model, test_root("tests/golden/tiny/qwen3.gguf"), NULL, &err),
        &err);
    test_need(cart_model_chat(test_serving.model, &test_serving.chat, &err), &err);
    test_need(cart_pool_new(&test_serving.pool, 1, &err), &err);
    test_need(cart_pool_new(&test_serving.plain_pool, 1, &err), &err);
    test_need(cart_engine_new(&test_serving.plain, test_serving.model, CART_F32,
                              test_serving.plain_pool, 0, &err),
              &err);
    demand(mkdtemp(test_serving.folder) != NULL, "mkdtemp(test_serving.folder)");
    test_make_cartridge(names[0], 70, 31, 1);
    test_make_cartridge(names[1], 33, 32, 1);
    test_make_cartridge(names[2], 20, 33, 1e38f);
    test_need(cart_registry_new(&test_serving.registry, test_serving.model, false, &err), &err);
    test_need(cart_registry_load(test_serving.registry, test_serving.folder, NULL, NULL, &err),
              &err);
    demand(cart_registry_counts(test_serving.registry).cartridges == 3,
           "cart_registry_counts(test_serving.registry).cartridges == 3");
    return 0;
}

int test_serving_teardown(void **state)
{
    (void)state;
    for (size_t i = 0; i < CART_COUNTOF(names); i++)
        unlink(test_cartridge_path(names[i]));
    struct cart_err err = {0};
    test_need(cart_registry_load(test_serving.registry, test_serving.folder, NULL, NULL, &err),
              &err);
    demand(cart_registry_counts(test_serving.registry).cartridges == 0,
           "cart_registry_counts(test_serving.registry).cartridges == 0");
    rmdir(test_serving.folder);
    cart_registry_free(test_serving.registry);
    cart_engine_free(test_serving.plain);
    cart_pool_free(test_serving.plain_pool);
    cart_pool_free(test_serving.pool);
    cart_model_close(test_serving.model);
    return 0;
}
