#include "serve/group.h"

#include "base/clock.h"
#include "engine/constraint.h"
#include "serve/metrics.h"
#include "serve/work.h"

#include <stdlib.h>
#include <string.h>

#define AT_ONCE ((size_t)4) /* prompts of one list that are with the scheduler together */

bool cart_group_init(struct cart_group *b, struct cart_exchange *x, size_t n)
{
    b->x = x;
    b->prompts = calloc(n ? n : 1, sizeof *b->prompts);
    if (!b->prompts)
        return false;
    b->n = n;
    for (size_t i = 0; i < n; i++)
        b->prompts[i] = (struct cart_group_prompt){b, i, CART_IDS_INIT};
    pthread_mutex_init(&b->lock, NULL);
    return true;
}

void cart_group_release(struct cart_group *b)
{
    if (!b->prompts)
        return;
    for (size_t i = 0; i < b->n; i++)
        cart_ids_release(&b->prompts[i].ids);
    free(b->prompts);
    cart_stack_release(b->request.stack);
    cart_constraint_free(b->constraint);
    pthread_mutex_destroy(&b->lock);
    b->prompts = NULL;
}

static void add_usage(struct cart_usage *sum, const struct cart_usage *u)
{
    sum->prompt_tokens += u->prompt_tokens;
    sum->cached_tokens += u->cached_tokens;
    sum->cartridge_rows = u->cartridge_rows;
    sum->completion_tokens += u->completion_tokens;
    sum->drafted += u->drafted;
    sum->accepted += u->accepted;
    sum->queued += u->queued;
    sum->prefill += u->prefill;
    sum->decode += u->decode;
}

/* Under the lock: whether everything is over, true once. */
static bool over(struct cart_group *b)
{
    bool is = !b->finished && b->running == 0 && (b->failed || b->next == b->n);
    b->finished |= is;
    return is;
}

/* ---- the files under it ---- */

/* Whether its cartridges are what they were. If not, the exchange has the fault; where that takes
 * reading them, examined goes on in the loader (NULL: that has been done). */
static bool sound(struct cart_exchange *x, cart_route_fn *examined)
{
    const struct cart_group *b = x->state;
    const struct cart_stack *stack = b->request.stack;
    size_t which = 0;
    enum cart_stack_standing is = stack ? cart_stack_standing(stack, &which) : CART_STACK_SOUND;
    if (is == CART_STACK_UNKNOWN && examined) {
        cart_work_submit_files(x->serve->work, x, examined);
    } else if (is != CART_STACK_SOUND) {
        struct cart_fault f;
        cart_fault_changed(&f, stack->entries[which].name);
        cart_fault_send(&f, x);
    }
    return is == CART_STACK_SOUND;
}

/* ---- the end ---- */

static void finish_examined(struct cart_exchange *x)
{
    struct cart_group *b = x->state;
    cart_stack_examine(b->request.stack);
    if (sound(x, NULL))
        b->on_done(b);
}

static void close_group(struct cart_exchange *x)
{
    struct cart_group *b = x->state;
    pthread_mutex_lock(&b->lock);
    bool failed = b->failed;
    pthread_mutex_unlock(&b->lock);
    if (b->request.kind == CART_SERVE_GENERATE && b->usage.prompt_tokens > 0)
        cart_metrics_generated(x->serve->metrics, &b->usage, b->first_token);
    pthread_mutex_lock(&x->lock);
    x->record.generated = b->usage.prompt_tokens > 0; /* not where the first prompt was refused */
    x->record.cartridges = x->cartridges ? x->cartridges : "";
    x->record.usage = b->usage;
    x->record.first_token = b->first_token;
    pthread_mutex_unlock(&x->lock);
    if (!failed && sound(x, finish_examined))
        b->on_done(b);
}

void cart_group_fail(struct cart_group *b)
{
    pthread_mutex_lock(&b->lock);
    b->failed = true;
    pthread_mutex_unlock(&b->lock);
    cart_exchange_cancel(b->x);
}

static void feed(struct cart_exchange *x);

static bool on_event(void *ctx, const struct cart_event *e)
{
    struct cart_group_prompt *p = ctx;
    struct cart_group *b = p->group;
    struct cart_exchange *x = b->x;
    if (e->type == CART_EVENT_TOKEN && b->first_token == 0)
        b->first_token = cart_clock_now() - x->started;
    if (e->type != CART_EVENT_END) {
        pthread_mutex_lock(&b->lock);
        bool failed = b->failed;
        pthread_mutex_unlock(&b->lock);
        return !failed && b->on_event(b, p->index, e);
    }
    pthread_mutex_lock(&b->lock);
    add_usage(&b->usage, e->usage);
    b->running--;
    bool done = over(b), failed = b->failed, go_on = !done && !failed && b->next < b->n;
    pthread_mutex_unlock(&b->lock);
    if (done && failed)
        close_group(x);
    else if (done)
        cart_work_submit(x->serve->work, x, close_group);
    else if (go_on)
        cart_work_submit(x->serve->work, x, feed);
    cart_work_resume(x->serve->work);
    cart_exchange_release(x);
    return true;
}

/* Hands prompt i over. False: it was refused. */
static bool submit(struct cart_group *b, size_t i, struct cart_fault *f, enum cart_refusal *why)
{
    struct cart_exchange *x = b->x;
    struct cart_serve_request r = b->request;
    struct cart_err err = {0};
    uint64_t id = 0;
    r.prompt = b->prompts[i].ids.data;
    r.n_prompt = b->prompts[i].ids.n;
    r.begun = i > 0;
    r.on_event = on_event;
    r.ctx = &b->prompts[i];
    cart_exchange_hold(x);
    /* Taken before the first event: the group may be over before this returns. */
    pthread_mutex_lock(&b->lock);
    r.constraint = b->constraint;
    b->constraint = NULL;
    pthread_mutex_unlock(&b->lock);
    if (cart_scheduler_submit(x->serve->scheduler, &r, &id, why, &err) == 0) {
        cart_exchange_expect(x, id);
        return true;
    }
    cart_constraint_free(r.constraint);
    cart_fault_refused(f, x->serve, *why, &err, r.n_prompt, r.stack ? r.stack->rows : 0);
    cart_exchange_release(x);
    return false;
}

/* A prompt was refused. Where others of the list were taken before it only waits for a place: until
 * one of ours ends, or one of somebody else's. */
static void refused(struct cart_group *b, size_t i, enum cart_refusal why,
                    const struct cart_fault *f)
{
    pthread_mutex_lock(&b->lock);
    b->running--;
    b->feeding = false;
    bool busy = why == CART_REFUSED_QUEUE && i > 0 && !b->failed, alone = b->running == 0;
    if (busy)
        b->next--;
    else
        b->failed = true;
    pthread_mutex_unlock(&b->lock);
    if (!busy) {
        cart_exchange_cancel(b->x);
        cart_fault_send(f, b->x);
    } else if (alone) {
        cart_work_submit_later(b->x->serve->work, b->x, feed);
    }
}

/* The next prompt, if there is room for one. One worker at a time takes them, so that a prompt that
 * is refused is the next one again. */
static bool next_prompt(struct cart_group *b, bool first, size_t *i)
{
    pthread_mutex_lock(&b->lock);
    bool mine = !first || !b->feeding;
    if (mine && !b->failed && cart_exchange_gone(b->x))
        b->failed = true;
    bool room = mine && !b->failed && b->next < b->n && b->running < AT_ONCE;
    if (mine)
        b->feeding = room;
    if (room) {
        *i = b->next++;
        b->running++;
    }
    pthread_mutex_unlock(&b->lock);
    return room;
}

static void feed(struct cart_exchange *x)
{
    struct cart_group *b = x->state;
    size_t i;
    bool go_on = true;
    for (bool first = true; go_on && next_prompt(b, first, &i); first = false) {
        struct cart_fault f;
        enum cart_refusal why = CART_REFUSED_NOT;
        go_on = submit(b, i, &f, &why);
        if (!go_on)
            refused(b, i, why, &f);
    }
    pthread_mutex_lock(&b->lock);
    bool done = over(b);
    pthread_mutex_unlock(&b->lock);
    if (done)
        close_group(x);
}

static void start_examined(struct cart_exchange *x)
{
    struct cart_group *b = x->state;
    cart_stack_examine(b->request.stack);
    cart_stack_renew(b->request.stack);
    if (sound(x, NULL))
        feed(x);
}

void cart_group_run(struct cart_group *b)
{
    if (b->request.stack)
        cart_stack_renew(b->request.stack);
    if (sound(b->x, start_examined))
        feed(b->x);
}
