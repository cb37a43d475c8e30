/* Rates of the scheduler, without HTTP. */
#include "helper/bench_args.h"
#include "helper/bench_tidy.h"
#include "helper/cartridge_save.h"
#include "base/clock.h"
#include "base/cpu.h"
#include "base/rng.h"
#include "cartridge/trainable.h"
#include "engine/constraint.h"
#include "engine/engine.h"
#include "serve/scheduler.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const char usage[] = "usage: bench_serve [MODEL.gguf [THREADS [REQUESTS]]]\n"
                            "1, 4 and 16 clients that share a context of 512 tokens, given as a "
                            "prompt and as a cartridge of\n"
                            "512 rows; speculation on and off on a text that repeats itself; the "
                            "longest step while a long\n"
                            "prompt of another client is computed; the cost of a constraint's "
                            "masks. With REQUESTS: memory\n"
                            "only, over so many short ones. Without MODEL: CART_MODEL, or the demo "
                            "model if it was fetched.\n";

#define SHARED ((size_t)512)
#define ANSWER ((size_t)64)
#define CLIENTS_MAX 16

static struct cart_model *model;
static struct cart_pool *pool;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;

static void need(int r, const struct cart_err *err)
{
    if (r < 0)
        bench_die(cart_err_status(r), "%s", err->msg);
}

struct client {
    size_t tokens, ends;
    double last, longest,
        first; /* when the last token came; the longest wait; when the first came */
};

static bool on_event(void *ctx, const struct cart_event *e)
{
    struct client *c = ctx;

    pthread_mutex_lock(&lock);
    if (e->type == CART_EVENT_TOKEN) {
        double now = cart_clock_now();
        if (c->tokens++ == 0)
            c->first = now;
        else if (now - c->last > c->longest)
            c->longest = now - c->last;
        c->last = now;
    }
    if (e->type == CART_EVENT_END)
        c->ends++;
    pthread_cond_broadcast(&changed);
    pthread_mutex_unlock(&lock);
    return true;
}

static void submit(struct cart_scheduler *s, struct client *c, const uint32_t *prompt, size_t n,
                   size_t answer, struct cart_stack *stack)
{
    struct cart_err err = {0};
    struct cart_serve_request q = CART_SERVE_REQUEST;
    enum cart_refusal why;
    uint64_t id;

    memset(c, 0, sizeof *c);
    q.prompt = prompt;
    q.n_prompt = n;
    q.max_tokens = answer;
    q.temperature = 0;
    q.ignore_stop = true;
    q.stack = stack;
    q.on_event = on_event;
    q.ctx = c;
    need(cart_scheduler_submit(s, &q, &id, &why, &err), &err);
}

static void await(struct client *c)
{
    pthread_mutex_lock(&lock);
    while (c->ends == 0)
        pthread_cond_wait(&changed, &lock);
    pthread_mutex_unlock(&lock);
}

static struct cart_scheduler *start(size_t slots, size_t draft)
{
    struct cart_err err = {0};
    struct cart_scheduler_options o = {slots, 64, 2048, slots * 1024, 128, draft, CART_F32};
    struct cart_scheduler *s;

    need(cart_scheduler_new(&s, model, pool, NULL, &o, &err), &err);
    return s;
}

static void fill(uint32_t *ids, size_t n, uint64_t seed)
{
    for (size_t i = 0; i < n; i++)
        ids[i] = cart_rng_u32(seed, 0, CART_RNG_TEST, (uint32_t)i) % (uint32_t)(model->V * 9 / 10);
}

static void make_cartridge(const char *path, const uint32_t *ids, size_t p)
{
    struct cart_err err = {0};
    struct cart_engine *e;
    struct cart_session session;
    struct cart_trainable t;
    struct cart_kv_layer *layers = calloc(model->L, sizeof *layers);
    struct cart_kv_part part;
    json_t *about = NULL;
    json_t *history = json_array();
    json_t *recipe = json_object();
    const struct cart_cartridge_about a = {.p = p,
                                           .frozen = 1,
                                           .profile = "chatml",
                                           .corpus = "0123456789abcdef0123456789abcdef",
                                           .recipe = recipe,
                                           .history = history};

    need(cart_engine_new(&e, model, CART_F32, pool, 0, &err), &err);
    need(cart_session_init(&session, model, CART_F32, NULL, 0, p, &err), &err);
    const struct cart_span span = {ids, p, cart_session_kv(&session), NULL, 0};
    need(cart_engine_forward(e, &span, 1, NULL, &err), &err);
    need(cart_trainable_init(&t, model, p, 1, &err), &err);
    cart_kv_part_of_tail(&part, layers, model, &session.tail, 0, p);
    cart_trainable_set(&t, model, &part, 1);
    need(cart_cartridge_describe(&about, model, &a, &err), &err);
    need(test_cartridge_save(path, model, t.parts, t.n_parts, 1, about, NULL, 0, &err), &err);
    json_decref(about);
    json_decref(history);
    json_decref(recipe);
    cart_trainable_release(&t);
    cart_session_release(&session);
    cart_engine_free(e);
    free(layers);
}

/* n clients at once, each with its own question of 24 tokens behind the shared context; tokens a
 * second over all. */
static void rate(size_t n, struct cart_stack *stack, const uint32_t *context)
{
    struct cart_scheduler *s = start(CLIENTS_MAX, 0);
    static uint32_t prompts[CLIENTS_MAX][SHARED + 24];
    struct client c[CLIENTS_MAX];
    size_t shared = stack == NULL ? SHARED : 0;
    double begin = cart_clock_now();
    double first = 0;

    for (size_t i = 0; i < n; i++) {
        memcpy(prompts[i], context, shared * sizeof *context);
        fill(prompts[i] + shared, 24, 50 + i);
        submit(s, &c[i], prompts[i], shared + 24, ANSWER, stack);
    }
    for (size_t i = 0; i < n; i++) {
        await(&c[i]);
        first += (c[i].first - begin) / (double)n;
    }
    double seconds = cart_clock_now() - begin;
    printf("%2zu clients, context as %-9s %7.1f tokens/s, first token after %.3f s\n", n,
           stack == NULL ? "prompt" : "cartridge", (double)(n * ANSWER) / seconds, first);
    cart_scheduler_free(s);
}

static void speculation(size_t draft)
{
    struct cart_scheduler *s = start(1, draft);
    struct cart_scheduler_counts counts;
    uint32_t prompt[256];
    struct client c;

    for (size_t i = 0; i < 256; i++)
        fill(prompt + i, 1, 7 + i % 32);
    submit(s, &c, prompt, 256, 200, NULL);
    await(&c);
    cart_scheduler_counts(s, &counts);
    printf("drafts of %zu: %.1f tokens/s, %llu of %llu right\n", draft,
           199 / (cart_clock_now() - c.first), (unsigned long long)counts.draft_accepted,
           (unsigned long long)counts.drafted);
    cart_scheduler_free(s);
}

static void long_prompt(void)
{
    struct cart_scheduler *s = start(4, 0);
    static uint32_t prompt[1800];
    uint32_t question[24];
    struct client c[3];

    fill(question, 24, 3);
    submit(s, &c[0], question, 24, 150, NULL);
    pthread_mutex_lock(&lock);
    while (c[0].tokens < 5 && c[0].ends == 0)
        pthread_cond_wait(&changed, &lock);
    bool early = c[0].ends > 0;
    pthread_mutex_unlock(&lock);
    if (early)
        printf("the first client had ended before the long prompt came\n");
    fill(prompt, 1800, 4);
    submit(s, &c[1], prompt, 1800, 1, NULL);
    nanosleep(&(struct timespec){0, 100000000}, NULL);
    double begin = cart_clock_now();
    fill(question, 24, 5);
    submit(s, &c[2], question, 24, 4, NULL);
    for (size_t i = 0; i < 3; i++)
        await(&c[i]);
    printf("while 1800 tokens are prefilled: longest wait between two tokens %.3f s, a new "
           "client's first token after "
           "%.3f s\n",
           c[0].longest, c[2].first - begin);
    cart_scheduler_free(s);
}

static void constraint(void)
{
    struct cart_err err = {0};
    struct cart_scheduler *s = start(1, 0);
    struct cart_constraint *k;
    const uint64_t *mask;
    bool complete;
    uint32_t at;

    need(cart_constraint_object(&k, cart_scheduler_lexicon(s), &err), &err);
    need(cart_constraint_feed(k, cart_constraint_start(k), "{\"a\":\"b", 7, &at, &err), &err);
    double begin = cart_clock_now();
    need(cart_constraint_mask(k, at, &mask, &complete, &err), &err);
    double cold = cart_clock_now() - begin;
    begin = cart_clock_now();
    need(cart_constraint_mask(k, at, &mask, &complete, &err), &err);
    printf("mask within a string: %.2f ms the first time, %.4f ms after\n", 1e3 * cold,
           1e3 * (cart_clock_now() - begin));
    cart_constraint_free(k);
    cart_scheduler_free(s);
}

static long resident(void)
{
    long pages = 0;
    long rss = 0;
    FILE *f = fopen("/proc/self/statm", "r");

    if (f == NULL || fscanf(f, "%ld %ld", &pages, &rss) != 2)
        rss = 0;
    if (f != NULL)
        fclose(f);
    return rss * sysconf(_SC_PAGESIZE) / 1024;
}

static void soak(size_t requests)
{
    struct cart_scheduler *s = start(8, 4);
    struct client c[32];
    uint32_t prompt[80];
    long early = 0;

    for (size_t i = 0; i < requests; i += 32) {
        for (size_t k = 0; k < 32; k++) {
            fill(prompt, 80, i / 3 + k % 5);
            submit(s, &c[k], prompt, 1 + (i + 7 * k) % 80, 1 + k % 4, NULL);
        }
        for (size_t k = 0; k < 32; k++)
            await(&c[k]);
        if (early == 0 && i >= requests / 5)
            early = resident();
    }
    printf("resident after %zu requests %ld KiB, after %zu %ld KiB\n", requests / 5, early,
           requests, resident());
    cart_scheduler_free(s);
}

static void rates(void)
{
    struct cart_err err = {0};
    uint32_t context[SHARED];
    char path[4200];
    const char *const names[] = {"context"};
    struct cart_registry *registry;
    struct cart_stack *stack;

    fill(context, SHARED, 1);
    snprintf(path, sizeof path, "%s/context", bench_folder());
    bench_litter(path);
    make_cartridge(path, context, SHARED);
    need(cart_registry_new(&registry, model, false, &err), &err);
    need(cart_registry_add(registry, names[0], path, NULL, 0, &err), &err);
    need(cart_stack_acquire(&stack, registry, names, 1, NULL, &err), &err);
    for (size_t n = 1; n <= CLIENTS_MAX; n *= 4) {
        rate(n, NULL, context);
        rate(n, stack, context);
    }
    cart_stack_release(stack);
    cart_registry_free(registry);
}

int main(int argc, char **argv)
{
    struct cart_err err = {0};
    struct bench_args a = bench_args(argc, argv, usage);
    const char *gguf = bench_args_operand(&a), *text = bench_args_operand(&a);
    size_t threads = text ? bench_whole("THREADS", text, 1, 256) : 0, requests = 0;
    if ((text = bench_args_operand(&a)) != NULL)
        requests = bench_whole("REQUESTS", text, 1, 100000000);
    bench_args_end(&a);

    if (gguf == NULL && (gguf = bench_model_file(stdout)) == NULL)
        return 0;
    need(cart_cpu_init(&err), &err);
    need(cart_model_open(&model, gguf, NULL, &err), &err);
    need(cart_pool_new(&pool, threads ? threads : cart_cpu_count(), &err), &err);
    if (requests > 0) {
        soak(requests);
    } else {
        rates();
        speculation(0);
        speculation(8);
        long_prompt();
        constraint();
    }
    cart_pool_free(pool);
    cart_model_close(model);
    return 0;
}
