#include "serve/work.h"

#include <errno.h>
#include <stdlib.h>

#define N_WORKERS 2

struct job {
    struct cart_exchange *x; /* held, for run; or NULL, for alone */
    cart_route_fn *run;
    void (*alone)(struct cart_serve *s);
    struct job *next;
};

struct queue {
    struct job *first, *last;
    pthread_cond_t more;
};

struct cart_work {
    struct cart_serve *serve;
    pthread_mutex_t lock;
    struct queue jobs;  /* of the workers */
    struct queue files; /* of the loader */
    struct queue later; /* that wait until the scheduler has a place */
    bool ended;
    pthread_t threads[N_WORKERS + 1]; /* the loader first */
    size_t n_threads;
};

static void append(struct queue *q, struct job *j)
{
    j->next = NULL;
    if (q->last)
        q->last->next = j;
    else
        q->first = j;
    q->last = j;
}

/* The first, or NULL. */
static struct job *take(struct queue *q)
{
    struct job *j = q->first;
    if (j && !(q->first = j->next))
        q->last = NULL;
    return j;
}

static void run(struct cart_work *w, struct queue *q)
{
    for (;;) {
        pthread_mutex_lock(&w->lock);
        while (!q->first && !w->ended)
            pthread_cond_wait(&q->more, &w->lock);
        struct job *j = take(q);
        pthread_mutex_unlock(&w->lock);
        if (!j)
            return;
        if (j->x) {
            j->run(j->x);
            cart_exchange_release(j->x);
        } else {
            j->alone(w->serve);
        }
        free(j);
    }
}

static void *run_worker(void *arg)
{
    struct cart_work *w = arg;
    run(w, &w->jobs);
    return NULL;
}

static void *run_loader(void *arg)
{
    struct cart_work *w = arg;
    run(w, &w->files);
    return NULL;
}

int cart_work_new(struct cart_work **out, struct cart_serve *s, struct cart_err *err)
{
    struct cart_work *w = calloc(1, sizeof *w);
    if (!w)
        return cart_err_memory(err, "workers", sizeof *w);
    w->serve = s;
    pthread_mutex_init(&w->lock, NULL);
    pthread_cond_init(&w->jobs.more, NULL);
    pthread_cond_init(&w->files.more, NULL);
    for (; w->n_threads < CART_COUNTOF(w->threads); w->n_threads++)
        if ((errno = pthread_create(&w->threads[w->n_threads], NULL,
                                    w->n_threads == 0 ? run_loader : run_worker, w)) != 0) {
            int r = cart_err_sys(err, "worker thread");
            cart_work_end(w);
            cart_work_free(w);
            return r;
        }
    *out = w;
    return 0;
}

void cart_work_end(struct cart_work *w)
{
    if (!w)
        return;
    pthread_mutex_lock(&w->lock);
    w->ended = true;
    pthread_cond_broadcast(&w->jobs.more);
    pthread_cond_broadcast(&w->files.more);
    pthread_mutex_unlock(&w->lock);
    while (w->n_threads > 0)
        pthread_join(w->threads[--w->n_threads], NULL);
    /* Nobody adds to these any more, nor takes from them. */
    for (struct job *j = take(&w->later); j; j = take(&w->later)) {
        cart_exchange_release(j->x);
        free(j);
    }
}

void cart_work_free(struct cart_work *w)
{
    if (!w)
        return;
    pthread_cond_destroy(&w->jobs.more);
    pthread_cond_destroy(&w->files.more);
    pthread_mutex_destroy(&w->lock);
    free(w);
}

/* False: there is no memory, or the threads have ended. */
static bool push(struct cart_work *w, struct queue *q, struct job job)
{
    struct job *j = malloc(sizeof *j);
    if (!j)
        return false;
    *j = job;
    pthread_mutex_lock(&w->lock);
    bool ok = !w->ended;
    if (ok)
        append(q, j);
    if (q != &w->later)
        pthread_cond_signal(&q->more);
    pthread_mutex_unlock(&w->lock);
    if (!ok)
        free(j);
    return ok;
}

static void submit(struct cart_work *w, struct queue *q, struct cart_exchange *x, cart_route_fn *fn)
{
    cart_exchange_hold(x);
    if (push(w, q, (struct job){.x = x, .run = fn}))
        return;
    cart_exchange_error(x, 503, "out_of_memory", NULL, "no memory for another request");
    cart_exchange_release(x);
}

void cart_work_submit(struct cart_work *w, struct cart_exchange *x, cart_route_fn *fn)
{
    submit(w, &w->jobs, x, fn);
}

void cart_work_submit_files(struct cart_work *w, struct cart_exchange *x, cart_route_fn *fn)
{
    submit(w, &w->files, x, fn);
}

void cart_work_submit_later(struct cart_work *w, struct cart_exchange *x, cart_route_fn *fn)
{
    submit(w, &w->later, x, fn);
}

void cart_work_resume(struct cart_work *w)
{
    pthread_mutex_lock(&w->lock);
    struct job *j = w->ended ? NULL : take(&w->later);
    if (j) {
        append(&w->jobs, j);
        pthread_cond_signal(&w->jobs.more);
    }
    pthread_mutex_unlock(&w->lock);
}

void cart_work_resume_all(struct cart_work *w)
{
    pthread_mutex_lock(&w->lock);
    for (struct job *j; !w->ended && (j = take(&w->later)) != NULL;)
        append(&w->jobs, j);
    pthread_cond_broadcast(&w->jobs.more);
    pthread_mutex_unlock(&w->lock);
}

static void load_directory(struct cart_serve *s)
{
    cart_net_load_directory(s, NULL);
}

void cart_work_reload(struct cart_work *w)
{
    if (!push(w, &w->files, (struct job){.alone = load_directory}))
        cart_net_note(w->serve, CART_LOG_ERROR, "no memory to read the directory again");
}

static void copy_rows(struct cart_serve *s)
{
    cart_registry_copy(s->registry);
}

void cart_work_copy(struct cart_work *w)
{
    (void)push(w, &w->files, (struct job){.alone = copy_rows}); /* the next one makes up for it */
}
