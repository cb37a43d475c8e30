/* Files that become shorter under a guarded map. */
#include "base/guard.h"

#include "base/log.h"
#include "base/pool.h"

#include <sched.h>
#include <setjmp.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <unistd.h>

#include <cmocka.h>

static void test_short_file(void **state)
{
    char name[] = "/tmp/cart-test-guard-XXXXXX";
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    struct cart_err err = {0};
    struct cart_map map[2];
    struct cart_guard *g[2];
    (void)state;
    int fd = mkstemp(name);
    assert_true(fd >= 0);
    for (size_t i = 0; i < 4 * page + 100; i++)
        assert_int_equal(write(fd, "x", 1), 1);
    cart_log_short_maps();
    for (int i = 0; i < 2; i++) {
        assert_int_equal(cart_map_open(&map[i], name, &err), 0);
        assert_int_equal(cart_guard_new(&g[i], &map[i], &err), 0);
    }
    assert_int_equal(map[0].data[3 * page], 'x');
    assert_int_equal(ftruncate(fd, (off_t)page), 0);
    assert_false(cart_guard_broken(g[0]));
    assert_int_equal(map[0].data[2 * page + 5], 0);
    assert_int_equal(map[0].data[4 * page + 99], 0);
    assert_int_equal(map[0].data[page], 0);
    assert_int_equal(map[0].data[page - 1], 'x');
    assert_true(cart_guard_broken(g[0]));
    assert_false(cart_guard_broken(g[1]));
    assert_false(cart_guard_fill(&page));
    /* A guard that is taken again knows nothing of what it was. */
    cart_guard_free(g[0]);
    cart_map_release(&map[0]);
    assert_int_equal(cart_map_open(&map[0], name, &err), 0);
    assert_int_equal(cart_guard_new(&g[0], &map[0], &err), 0);
    assert_false(cart_guard_broken(g[0]));
    for (int i = 0; i < 2; i++) {
        cart_guard_free(g[i]);
        cart_map_release(&map[i]);
    }
    assert_false(cart_guard_broken(NULL));
    close(fd);
    unlink(name);
}

struct look {
    const struct cart_map *map;
    atomic_size_t in_workers, arrived;
};

/* Each thread waits until all have come, so that every one of them meets the missing page of a
 * guarded map of its own. */
static void look_beyond(void *ctx, size_t unit, size_t worker)
{
    struct look *l = ctx;
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    atomic_fetch_add(&l->arrived, 1);
    while (atomic_load(&l->arrived) < 3)
        sched_yield();
    if (l->map[unit].data[2 * page] == 0 && worker > 0)
        atomic_fetch_add(&l->in_workers, 1);
}

static void test_in_every_thread(void **state)
{
    char name[] = "/tmp/cart-test-guard-XXXXXX";
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    struct cart_err err = {0};
    struct cart_map map[3];
    struct cart_guard *g[3];
    struct cart_pool *pool;
    struct look l = {.map = map};
    (void)state;
    int fd = mkstemp(name);
    assert_true(fd >= 0);
    assert_int_equal(ftruncate(fd, (off_t)(3 * page)), 0);
    cart_log_short_maps();
    for (int i = 0; i < 3; i++) {
        assert_int_equal(cart_map_open(&map[i], name, &err), 0);
        assert_int_equal(cart_guard_new(&g[i], &map[i], &err), 0);
    }
    assert_int_equal(cart_pool_new(&pool, 3, &err), 0);
    assert_int_equal(ftruncate(fd, (off_t)page), 0);
    cart_pool_run(pool, 3, look_beyond, &l);
    assert_int_equal(atomic_load(&l.in_workers), 2);
    for (int i = 0; i < 3; i++) {
        assert_true(cart_guard_broken(g[i]));
        cart_guard_free(g[i]);
        cart_map_release(&map[i]);
    }
    cart_pool_free(pool);
    close(fd);
    unlink(name);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_short_file),
                                       cmocka_unit_test(test_in_every_thread)};
    cmocka_set_message_output(CM_OUTPUT_TAP);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
