/* The door of the scheduler, for any thread: a request is checked, copied into a job and queued, or
 * refused; a job is cancelled. What happens to it then is scheduler.c's. */
#include "serve/scheduler_impl.h"

#include "base/clock.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- jobs ---- */

void cart_scheduler_job_free(struct job *j)
{
    if (j == NULL)
        return;
    cart_constraint_free(j->req.constraint);
    cart_stack_release(j->req.stack);
    free(j->prompt);
    free(j->stop);
    free(j->bias);
    free(j->key);
    free(j);
}

static void *copy(const void *items, size_t n, size_t size, bool *failed)
{
    void *p = n > 0 ? malloc(n * size) : NULL;

    if (n > 0 && p == NULL)
        *failed = true;
    else if (n > 0)
        memcpy(p, items, n * size);
    return p;
}

static struct job *job_new(const struct cart_serve_request *req)
{
    struct job *j = calloc(1, sizeof *j);
    bool failed = false;
    size_t n = req->stack != NULL ? req->stack->n : 0;

    if (j == NULL)
        return NULL;
    j->prompt = copy(req->prompt, req->n_prompt, sizeof *j->prompt, &failed);
    j->stop = copy(req->stop, req->n_stop, sizeof *j->stop, &failed);
    j->bias = copy(req->adjust.bias, req->adjust.n_bias, sizeof *j->bias, &failed);
    j->key = calloc(n > 0 ? n : 1, sizeof *j->key);
    if (failed || j->key == NULL) {
        cart_scheduler_job_free(j);
        return NULL;
    }
    for (size_t i = 0; i < n; i++)
        j->key[i] = req->stack->entries[i].id;
    j->req = *req;
    j->req.prompt = j->prompt;
    j->req.stop = j->stop;
    j->req.adjust.bias = j->bias;
    j->req.constraint = NULL;
    j->req.prompt_logprobs = req->prompt_logprobs && req->kind == CART_SERVE_GENERATE;
    if (req->stack != NULL)
        cart_stack_hold(req->stack);
    j->usage.prompt_tokens = req->n_prompt;
    j->usage.cartridge_rows = req->stack != NULL ? req->stack->rows : 0;
    j->submitted = cart_clock_now();
    return j;
}

/* ---- requests ---- */

static int check_ids(const struct cart_scheduler *s, const uint32_t *ids, size_t n,
                     const char *what, struct cart_err *err)
{
    for (size_t i = 0; i < n; i++) {
        if (ids[i] >= s->m->V)
            return cart_err_set(err, CART_EUSAGE, "%s: token id %u: expected less than %zu", what,
                                ids[i], s->m->V);
    }
    return 0;
}

static int check_adjust(const struct cart_scheduler *s, const struct cart_adjust *a,
                        struct cart_err *err)
{
    if (!(a->repeat > 0) || !isfinite(a->repeat))
        return cart_err_set(err, CART_EUSAGE, "repeat_penalty %g: expected more than 0", a->repeat);
    if (!isfinite(a->presence) || !isfinite(a->frequency))
        return cart_err_set(err, CART_EUSAGE, "penalties: expected finite numbers");
    for (size_t i = 0; i < a->n_bias; i++) {
        int r = check_ids(s, &a->bias[i].id, 1, "logit_bias", err);
        if (r < 0)
            return r;
        if (!isfinite(a->bias[i].bias))
            return cart_err_set(err, CART_EUSAGE, "logit_bias: expected finite numbers");
    }
    return 0;
}

static int check(const struct cart_scheduler *s, const struct cart_serve_request *q,
                 struct cart_err *err)
{
    int r;

    if (q->n_prompt == 0)
        return cart_err_set(err, CART_EUSAGE, "prompt: expected at least one token");
    if (q->n == 0 || q->n > CART_SERVE_CHOICES_MAX || (q->kind == CART_SERVE_EMBED && q->n != 1))
        return cart_err_set(err, CART_EUSAGE, "n %zu: expected 1 to %zu", q->n,
                            CART_SERVE_CHOICES_MAX);
    if (!(q->temperature >= 0) || !isfinite(q->temperature))
        return cart_err_set(err, CART_EUSAGE, "temperature %g: expected at least 0",
                            q->temperature);
    if (!(q->top_p > 0 && q->top_p <= 1))
        return cart_err_set(err, CART_EUSAGE, "top_p %g: expected more than 0, at most 1",
                            q->top_p);
    if (!(q->min_p >= 0 && q->min_p < 1))
        return cart_err_set(err, CART_EUSAGE, "min_p %g: expected at least 0, less than 1",
                            q->min_p);
    if (q->top_logprobs > CART_SERVE_TOP_MAX)
        return cart_err_set(err, CART_EUSAGE, "top_logprobs %zu: expected at most %zu",
                            q->top_logprobs, CART_SERVE_TOP_MAX);
    if ((r = check_ids(s, q->prompt, q->n_prompt, "prompt", err)) < 0 ||
        (r = check_ids(s, q->stop, q->n_stop, "stop", err)) < 0)
        return r;
    return check_adjust(s, &q->adjust, err);
}

static int check_context(const struct cart_scheduler *s, const struct cart_serve_request *q,
                         struct cart_err *err)
{
    size_t rows = q->stack != NULL ? q->stack->rows : 0;
    size_t answer = q->kind == CART_SERVE_GENERATE && q->max_tokens > 0;

    if (rows < s->opt.context && q->n_prompt + answer <= s->opt.context - rows)
        return 0;
    return cart_err_set(err, CART_EUSAGE,
                        "the request exceeds the available context size: %zu prompt tokens behind "
                        "%zu cartridge rows; "
                        "the maximum context length is %zu tokens",
                        q->n_prompt, rows, s->opt.context);
}

/* Once queued, the job may end before this returns; so its id is written first. */
static int enqueue(struct cart_scheduler *s, struct job *j, uint64_t *id, enum cart_refusal *why,
                   struct cart_err *err)
{
    int r = 0;

    pthread_mutex_lock(&s->lock);
    size_t open = s->opt.slots > s->at_work ? s->opt.slots - s->at_work : 0;
    if (s->quit || (s->draining && !j->req.begun)) {
        *why = CART_REFUSED_DRAINING;
        r = cart_err_set(err, CART_EAGAIN, "the server is shutting down");
    } else if (s->n_waiting >= open + s->opt.queue) {
        *why = CART_REFUSED_QUEUE;
        s->published.refused_queue++;
        r = cart_err_set(err, CART_EAGAIN, "requests that wait: %zu, no more are taken",
                         s->n_waiting);
    } else {
        *id = j->id = ++s->next_id;
        cart_scheduler_job_append(s, j);
        s->published.accepted++;
        pthread_cond_signal(&s->wake);
    }
    pthread_mutex_unlock(&s->lock);
    return r;
}

int cart_scheduler_submit(struct cart_scheduler *s, const struct cart_serve_request *req,
                          uint64_t *id, enum cart_refusal *why, struct cart_err *err)
{
    enum cart_refusal unused = CART_REFUSED_NOT;

    why = why != NULL ? why : &unused;
    *why = CART_REFUSED_INVALID;
    int r = check(s, req, err);
    if (r < 0)
        return r;
    if ((r = check_context(s, req, err)) < 0) {
        *why = CART_REFUSED_CONTEXT;
        pthread_mutex_lock(&s->lock);
        s->published.refused_context++;
        pthread_mutex_unlock(&s->lock);
        return r;
    }
    struct job *j = job_new(req);
    if (j == NULL) {
        *why = CART_REFUSED_MEMORY;
        return cart_err_memory(err, "a request", req->n_prompt * sizeof *req->prompt);
    }
    /* Set before anyone can see the job, taken back where nobody will. */
    j->req.constraint = req->constraint;
    if ((r = enqueue(s, j, id, why, err)) < 0) {
        j->req.constraint = NULL;
        cart_scheduler_job_free(j);
        return r;
    }
    *why = CART_REFUSED_NOT;
    return 0;
}

void cart_scheduler_cancel(struct cart_scheduler *s, uint64_t id)
{
    pthread_mutex_lock(&s->lock);
    for (struct job *j = s->jobs; j != NULL; j = j->next) {
        if (j->id == id)
            j->cancelled = true;
    }
    pthread_cond_signal(&s->wake);
    pthread_mutex_unlock(&s->lock);
}
