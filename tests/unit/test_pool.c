/* base/pool.h: every unit exactly once, whatever the number of threads; hammered, because its
 * faults are races. */
#include "base/clock.h"
#include "base/pool.h"

#include <setjmp.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#if defined(__SSE__)
#include <xmmintrin.h>
#endif

#include <cmocka.h>

#define UNITS_MAX 300

struct count {
    size_t threads;
    unsigned marks[UNITS_MAX];
    _Atomic unsigned bad;
};

static void mark(void *ctx, size_t unit, size_t worker)
{
    struct count *c = ctx;
    if (worker >= c->threads)
        atomic_fetch_add(&c->bad, 1);
    c->marks[unit]++;
}

static void test_each_unit_once(void **state)
{
    (void)state;
    static struct count c;
    for (size_t threads = 1; threads <= 4; threads++) {
        struct cart_pool *p = NULL;
        assert_int_equal(cart_pool_new(&p, threads, NULL), 0);
        assert_int_equal(cart_pool_threads(p), threads);
        c.threads = threads;
        /* Sizes change from region to region, so a unit of the wrong region shows. */
        for (unsigned round = 0; round < 6000; round++) {
            size_t units = (round / 2 * 7919U) % UNITS_MAX;
            memset(c.marks, 0, sizeof c.marks);
            if (round % 2)
                cart_pool_run_ranges(p, units, mark, &c);
            else
                cart_pool_run(p, units, mark, &c);
            for (size_t u = 0; u < UNITS_MAX; u++)
                assert_int_equal(c.marks[u], u < units ? 1 : 0);
        }
        assert_int_equal(atomic_load(&c.bad), 0);
        cart_pool_free(p);
    }
}

enum { RANGED = 3, RANGED_UNITS = 10 };

struct firsts {
    _Atomic size_t started;
    size_t first[RANGED], taken[RANGED];
};

/* Keeps a worker in its first unit until all are in theirs. */
static void note_first(void *ctx, size_t unit, size_t worker)
{
    struct firsts *f = ctx;
    if (f->taken[worker]++ > 0)
        return;
    f->first[worker] = unit;
    atomic_fetch_add(&f->started, 1);
    while (atomic_load(&f->started) < RANGED)
        nanosleep(&(struct timespec){0, 10000}, NULL);
}

static void test_ranges(void **state)
{
    (void)state;
    struct firsts f = {0};
    struct cart_pool *p = NULL;
    assert_int_equal(cart_pool_new(&p, RANGED, NULL), 0);
    cart_pool_run_ranges(p, RANGED_UNITS, note_first, &f);
    for (size_t w = 0; w < RANGED; w++)
        assert_int_equal(f.first[w], RANGED_UNITS * w / RANGED);
    assert_int_equal(f.taken[0] + f.taken[1] + f.taken[2], RANGED_UNITS);
    cart_pool_free(p);
}

struct sum {
    uint64_t out[64];
    uint64_t start;
};

static void add_up(void *ctx, size_t unit, size_t worker)
{
    struct sum *s = ctx;
    (void)worker;
    uint64_t v = s->start + unit;
    for (int i = 0; i < 50; i++)
        v = v * 6364136223846793005U + 1442695040888963407U;
    s->out[unit] = v;
}

static void other(void *ctx, size_t unit, size_t worker)
{
    (void)worker;
    ((struct sum *)ctx)->out[unit] = ~(uint64_t)unit;
}

/* Functions and contexts change between regions too, and a pause lets workers fall asleep now and
 * then. */
static void test_regions_do_not_mix(void **state)
{
    (void)state;
    static struct sum a;
    static struct sum b;
    static struct sum expected;
    struct cart_pool *p = NULL;
    assert_int_equal(cart_pool_new(&p, 4, NULL), 0);
    for (unsigned round = 0; round < 2000; round++) {
        a.start = expected.start = round;
        for (size_t u = 0; u < 64; u++)
            add_up(&expected, u, 0);
        cart_pool_run(p, 64, add_up, &a);
        cart_pool_run(p, 3 + round % 60, other, &b);
        assert_memory_equal(a.out, expected.out, sizeof a.out);
        for (size_t u = 0; u < 3 + round % 60; u++)
            assert_true(b.out[u] == ~(uint64_t)u);
        memset(&b, 0, sizeof b);
        if (round % 200 == 0)
            nanosleep(&(struct timespec){0, 1000000}, NULL);
    }
    cart_pool_free(p);
}

static bool filled[3]; /* a worker may find no unit left */

static void fill_scratch(void *ctx, size_t unit, size_t worker)
{
    struct cart_pool *p = ctx;
    unsigned char *s = cart_pool_scratch(p, worker);
    (void)unit;
    memset(s, (int)worker + 1, CART_POOL_SCRATCH);
    filled[worker] = true;
}

static void test_scratch(void **state)
{
    (void)state;
    struct cart_pool *p = NULL;
    assert_int_equal(cart_pool_new(&p, 3, NULL), 0);
    cart_pool_run(p, 30, fill_scratch, p);
    for (size_t w = 0; w < 3; w++) {
        unsigned char *s = cart_pool_scratch(p, w);
        assert_int_equal((uintptr_t)s % 64, 0);
        if (filled[w]) {
            assert_int_equal(s[0], w + 1);
            assert_int_equal(s[CART_POOL_SCRATCH - 1], w + 1);
        }
    }
    cart_pool_free(p);
}

#if defined(__SSE__)
static void read_float_mode(void *ctx, size_t unit, size_t worker)
{
    (void)worker;
    ((unsigned *)ctx)[unit] = _mm_getcsr() & ~0x3fU;
}

/* A host program that flushes denormals or rounds down must not change a result, nor find its own
 * mode changed. */
static void test_float_mode(void **state)
{
    (void)state;
    unsigned old = _mm_getcsr();
    for (size_t threads = 1; threads <= 3; threads++) {
        unsigned modes[50] = {0};
        struct cart_pool *p = NULL;
        _mm_setcsr(0x1f80U | 0x8040U | 0x2000U);
        assert_int_equal(cart_pool_new(&p, threads, NULL), 0);
        cart_pool_run(p, 50, read_float_mode, modes);
        unsigned after = _mm_getcsr() & ~0x3fU;
        _mm_setcsr(old);
        for (size_t u = 0; u < 50; u++)
            assert_int_equal(modes[u], 0x1f80);
        assert_int_equal(after, (0x1f80U | 0x8040U | 0x2000U) & ~0x3fU);
        cart_pool_free(p);
    }
}
#endif

/* An idle pool sleeps: its CPU time stays far below the time that passes. */
static void test_idle_costs_nothing(void **state)
{
    (void)state;
    static struct count c;
    struct cart_pool *p = NULL;
    assert_int_equal(cart_pool_new(&p, 4, NULL), 0);
    c.threads = 4;
    cart_pool_run(p, UNITS_MAX, mark, &c);
    double before = cart_clock_cpu();
    nanosleep(&(struct timespec){0, 200000000}, NULL);
    assert_true(cart_clock_cpu() - before < 0.05);
    cart_pool_free(p);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_each_unit_once),
        cmocka_unit_test(test_ranges),
        cmocka_unit_test(test_regions_do_not_mix),
        cmocka_unit_test(test_scratch),
#if defined(__SSE__)
        cmocka_unit_test(test_float_mode),
#endif
        cmocka_unit_test(test_idle_costs_nothing),
    };
    cmocka_set_message_output(CM_OUTPUT_TAP);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
