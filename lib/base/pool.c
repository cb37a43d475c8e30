#define _GNU_SOURCE /* MADV_HUGEPAGE */
#include "base/pool.h"

#include "base/clock.h"

#include <assert.h>
#include <errno.h>
#include <fenv.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <sys/mman.h>
#ifdef __SSE__
#include <xmmintrin.h>
#endif

/* How long a thread looks for work, or for the end of a region, before it sleeps. */
#define POOL_SPIN_SECONDS 50e-6
#define POOL_SCRATCH_ALIGN ((size_t)2 << 20)

/* The units of one worker that nobody has taken: [next, end). */
struct range {
    _Alignas(64) _Atomic size_t next;
    size_t end;
};

/* ticket holds the number of the region in its upper half and the next unit in its lower half. A
 * worker reads ticket, then fn, ctx and units, and takes the unit by compare-and-swap: that
 * succeeds only if no other region began in between, so a worker that was held up cannot run a unit
 * of one region with the function of another. */
struct cart_pool {
    size_t threads;
    unsigned char *scratch;
    pthread_t *ids;
    size_t started;
    struct range *ranges; /* [threads] */

    _Alignas(64) _Atomic uint64_t ticket;
    _Atomic(cart_pool_fn *) fn;
    _Atomic(void *) ctx;
    _Atomic uint32_t units;

    _Alignas(64) _Atomic uint32_t done;
    _Alignas(64) _Atomic unsigned sleepers; /* workers in pthread_cond_wait, or about to be */
    _Atomic bool waiting;                   /* the caller likewise */
    _Atomic bool stop;
    bool running;

    pthread_mutex_t lock;
    pthread_cond_t work;
    pthread_cond_t finished;
};

struct worker {
    struct cart_pool *pool;
    size_t index;
};

/* Rounding to nearest, denormals kept, exceptions masked. Returns what was set before. */
static unsigned float_defaults(void)
{
#ifdef __SSE__
    unsigned old = _mm_getcsr();
    if ((old & ~0x3fU) != 0x1f80U)
        _mm_setcsr(0x1f80U);
    return old;
#else
    fesetenv(FE_DFL_ENV);
    return 0;
#endif
}

static void float_restore(unsigned old)
{
#ifdef __SSE__
    if ((old & ~0x3fU) != 0x1f80U)
        _mm_setcsr(old);
#else
    (void)old;
#endif
}

static void relax(void)
{
#ifdef __SSE__
    _mm_pause();
#endif
}

static uint64_t region_of(uint64_t ticket)
{
    return ticket >> 32;
}

/* Runs units of the present region until none is left to take. */
static void work(struct cart_pool *p, size_t worker)
{
    uint32_t count = 0;
    uint32_t units = 0;
    uint64_t t = atomic_load_explicit(&p->ticket, memory_order_acquire);
    for (;;) {
        cart_pool_fn *fn = atomic_load_explicit(&p->fn, memory_order_acquire);
        void *ctx = atomic_load_explicit(&p->ctx, memory_order_acquire);
        units = atomic_load_explicit(&p->units, memory_order_acquire);
        if ((uint32_t)t >= units)
            break;
        if (!atomic_compare_exchange_weak_explicit(&p->ticket, &t, t + 1, memory_order_acq_rel,
                                                   memory_order_acquire))
            continue;
        fn(ctx, (uint32_t)t, worker);
        count++;
        t = atomic_load_explicit(&p->ticket, memory_order_acquire);
    }
    /* While count units are not reported the region cannot end, so units is still its number. */
    if (count > 0 && atomic_fetch_add(&p->done, count) + count == units &&
        atomic_load(&p->waiting)) {
        pthread_mutex_lock(&p->lock);
        pthread_cond_signal(&p->finished);
        pthread_mutex_unlock(&p->lock);
    }
}

/* Waits until a region other than seen has begun, or the pool stops. */
static void await_region(struct cart_pool *p, uint64_t seen)
{
    double until = cart_clock_now() + POOL_SPIN_SECONDS;
    do {
        for (int i = 0; i < 32; i++) {
            if (region_of(atomic_load_explicit(&p->ticket, memory_order_acquire)) != seen ||
                atomic_load(&p->stop))
                return;
            relax();
        }
    } while (cart_clock_now() < until);
    pthread_mutex_lock(&p->lock);
    atomic_fetch_add(&p->sleepers, 1);
    while (region_of(atomic_load(&p->ticket)) == seen && !atomic_load(&p->stop))
        pthread_cond_wait(&p->work, &p->lock);
    atomic_fetch_sub(&p->sleepers, 1);
    pthread_mutex_unlock(&p->lock);
}

static void *worker_main(void *arg)
{
    struct worker w = *(struct worker *)arg;
    free(arg);
    float_defaults();
    uint64_t seen = 0;
    while (!atomic_load(&w.pool->stop)) {
        await_region(w.pool, seen);
        seen = region_of(atomic_load_explicit(&w.pool->ticket, memory_order_acquire));
        work(w.pool, w.index);
    }
    return NULL;
}

static int start_workers(struct cart_pool *p, struct cart_err *err)
{
    /* Signals are the main thread's: a worker must not be the one that runs a handler. */
    sigset_t all;
    sigset_t old;
    sigfillset(&all);
    /* Those that a thread raises itself end the process at once where they are blocked, past what
     * handles them: a mapped file that became shorter is SIGBUS. */
    static const int own[] = {SIGBUS, SIGSEGV, SIGFPE, SIGILL, SIGABRT, SIGTRAP};
    for (size_t i = 0; i < sizeof own / sizeof *own; i++)
        sigdelset(&all, own[i]);
    pthread_sigmask(SIG_SETMASK, &all, &old);
    int r = 0;
    for (size_t i = 1; i < p->threads && r == 0; i++) {
        struct worker *w = malloc(sizeof *w);
        if (!w) {
            r = cart_err_memory(err, "thread pool", sizeof *w);
            break;
        }
        *w = (struct worker){p, i};
        int e = pthread_create(&p->ids[p->started], NULL, worker_main, w);
        if (e != 0) {
            free(w);
            errno = e;
            r = cart_err_sys(err, "thread pool: starting thread %zu of %zu", i + 1, p->threads);
        } else {
            p->started++;
        }
    }
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    return r;
}

int cart_pool_new(struct cart_pool **out, size_t threads, struct cart_err *err)
{
    assert(threads >= 1);
    size_t bytes;
    if (!cart_size_mul(threads, CART_POOL_SCRATCH, &bytes))
        return cart_err_memory(err, "thread pool", SIZE_MAX);
    struct cart_pool *p = aligned_alloc(64, sizeof *p);
    if (!p)
        return cart_err_memory(err, "thread pool", sizeof *p);
    *p = (struct cart_pool){.threads = threads};
    pthread_mutex_init(&p->lock, NULL);
    pthread_cond_init(&p->work, NULL);
    pthread_cond_init(&p->finished, NULL);
    int r = 0;
    p->scratch = aligned_alloc(POOL_SCRATCH_ALIGN, bytes);
    p->ids = calloc(threads, sizeof *p->ids);
    p->ranges = aligned_alloc(64, threads * sizeof *p->ranges);
    if (!p->scratch || !p->ids || !p->ranges)
        r = cart_err_memory(err, "thread pool", bytes);
    else
        madvise(p->scratch, bytes, MADV_HUGEPAGE); /* a hint: failing costs only speed */
    if (r == 0)
        r = start_workers(p, err);
    if (r < 0) {
        cart_pool_free(p);
        return r;
    }
    *out = p;
    return 0;
}

void cart_pool_free(struct cart_pool *p)
{
    if (!p)
        return;
    pthread_mutex_lock(&p->lock);
    atomic_store(&p->stop, true);
    pthread_cond_broadcast(&p->work);
    pthread_mutex_unlock(&p->lock);
    for (size_t i = 0; i < p->started; i++)
        pthread_join(p->ids[i], NULL);
    pthread_cond_destroy(&p->finished);
    pthread_cond_destroy(&p->work);
    pthread_mutex_destroy(&p->lock);
    free(p->ranges);
    free(p->ids);
    free(p->scratch);
    free(p);
}

size_t cart_pool_threads(const struct cart_pool *p)
{
    return p->threads;
}

void *cart_pool_scratch(struct cart_pool *p, size_t worker)
{
    assert(worker < p->threads);
    return p->scratch + worker * CART_POOL_SCRATCH;
}

/* Opens a region; workers may start on it before this returns. */
static void begin(struct cart_pool *p, uint32_t units, cart_pool_fn *fn, void *ctx)
{
    uint64_t region = region_of(atomic_load_explicit(&p->ticket, memory_order_relaxed));
    /* First the old region is closed: a worker that is late in it would otherwise see a new count
     * of units beside a ticket that its swap still matches. */
    atomic_store(&p->ticket, region << 32 | UINT32_MAX);
    atomic_store_explicit(&p->done, 0, memory_order_relaxed);
    atomic_store_explicit(&p->fn, fn, memory_order_release);
    atomic_store_explicit(&p->ctx, ctx, memory_order_release);
    atomic_store_explicit(&p->units, units, memory_order_release);
    atomic_store(&p->ticket, ((region + 1) & UINT32_MAX) << 32);
    if (atomic_load(&p->sleepers) > 0) {
        pthread_mutex_lock(&p->lock);
        pthread_cond_broadcast(&p->work);
        pthread_mutex_unlock(&p->lock);
    }
}

static void await_done(struct cart_pool *p, uint32_t units)
{
    double until = cart_clock_now() + POOL_SPIN_SECONDS;
    do {
        for (int i = 0; i < 32; i++) {
            if (atomic_load_explicit(&p->done, memory_order_acquire) == units)
                return;
            relax();
        }
    } while (cart_clock_now() < until);
    pthread_mutex_lock(&p->lock);
    atomic_store(&p->waiting, true);
    while (atomic_load(&p->done) != units)
        pthread_cond_wait(&p->finished, &p->lock);
    atomic_store(&p->waiting, false);
    pthread_mutex_unlock(&p->lock);
}

void cart_pool_run(struct cart_pool *p, size_t units, cart_pool_fn *fn, void *ctx)
{
    assert(!p->running && units <= UINT32_MAX);
    p->running = true;
    unsigned old = float_defaults();
    if (p->threads == 1 || units <= 1) {
        for (size_t u = 0; u < units; u++)
            fn(ctx, u, 0);
    } else {
        begin(p, (uint32_t)units, fn, ctx);
        work(p, 0);
        await_done(p, (uint32_t)units);
    }
    float_restore(old);
    p->running = false;
}

/* One run over ranges. */
struct ranges {
    struct cart_pool *pool;
    cart_pool_fn *fn;
    void *ctx;
};

/* Whichever unit of the pool this is, the worker begins with its own range. */
static void ranges_unit(void *ctx, size_t unit, size_t worker)
{
    const struct ranges *c = ctx;
    size_t n = c->pool->threads;
    (void)unit;
    for (size_t i = 0; i < n; i++) {
        struct range *r = &c->pool->ranges[(worker + i) % n];
        for (size_t u; (u = atomic_fetch_add_explicit(&r->next, 1, memory_order_relaxed)) < r->end;)
            c->fn(c->ctx, u, worker);
    }
}

void cart_pool_run_ranges(struct cart_pool *p, size_t units, cart_pool_fn *fn, void *ctx)
{
    struct ranges c = {p, fn, ctx};
    if (p->threads == 1 || units <= 1) {
        cart_pool_run(p, units, fn, ctx);
        return;
    }
    assert(!p->running && units <= UINT32_MAX);
    for (size_t i = 0; i < p->threads; i++) {
        atomic_store_explicit(&p->ranges[i].next, units * i / p->threads, memory_order_relaxed);
        p->ranges[i].end = units * (i + 1) / p->threads;
    }
    cart_pool_run(p, p->threads, ranges_unit, &c);
}
