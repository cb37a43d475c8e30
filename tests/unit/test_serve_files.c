/* serve/registry.h, serve/group.h, serve/work.h: what becomes of requests while the files of their
 * cartridges are written to, and which threads wait for files. */
#include "base/io.h"
#include "helper/serving.h"
#include "serve/group.h"
#include "serve/metrics.h"
#include "serve/work.h"

#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

/* ---- a cartridge "guest", the bytes of its file, and others of the same size ---- */

static char path[128], aside[160];
static struct cart_buf own, foreign;

static void slurp(struct cart_buf *b)
{
    struct cart_err err = {0};

    cart_buf_reset(b);
    test_need(cart_io_slurp(path, (size_t)1 << 24, b, &err), &err);
}

/* The registry has the cartridge as it was made, whatever was done to its file before. */
static void load(void)
{
    struct cart_err err = {0};

    test_need(cart_registry_add(test_serving.registry, "guest", path, NULL, 0, &err), &err);
}

static int setup(void **state)
{
    int r = test_serving_setup(state);

    snprintf(path, sizeof path, "%s", test_cartridge_path("guest"));
    snprintf(aside, sizeof aside, "%s.aside", path);
    test_make_cartridge("guest", 50, 78, 1);
    slurp(&foreign);
    test_make_cartridge("guest", 50, 77, 1);
    slurp(&own);
    assert_int_equal(own.len, foreign.len);
    assert_memory_not_equal(own.data, foreign.data, own.len);
    return r;
}

static int teardown(void **state)
{
    struct cart_err err = {0};

    test_need(cart_registry_drop(test_serving.registry, "guest", &err), &err);
    unlink(path);
    cart_buf_release(&own);
    cart_buf_release(&foreign);
    return test_serving_teardown(state);
}

/* A time of writing of its own for each: the clock of a file system may stand still meanwhile. */
static void set_time(const char *file)
{
    static time_t second = 1000000000;
    const struct timespec times[2] = {{second, 0}, {second, 0}};

    second++;
    assert_int_equal(utimensat(AT_FDCWD, file, times, 0), 0);
}

static void write_over(const char *file, const struct cart_buf *b)
{
    int fd = open(file, O_WRONLY);

    assert_true(fd >= 0);
    assert_int_equal(pwrite(fd, b->data, b->len, 0), (ssize_t)b->len);
    close(fd);
    set_time(file);
}

static struct cart_stack *stack(void)
{
    static const char *const list[] = {"guest"};
    struct cart_err err = {0};
    struct cart_stack *s = NULL;

    test_need(cart_stack_acquire(&s, test_serving.registry, list, 1, NULL, &err), &err);
    return s;
}

static enum cart_stack_standing standing(const struct cart_stack *s)
{
    size_t which = 9;
    enum cart_stack_standing is = cart_stack_standing(s, &which);

    assert_int_equal(which, is == CART_STACK_SOUND ? 9 : 0);
    return is;
}

/* ---- stacks ---- */

static void data_that_were_others_meanwhile_count_for_new_stacks_only(void **state)
{
    (void)state;
    load();
    struct cart_stack *old = stack();
    assert_int_equal(standing(old), CART_STACK_SOUND);
    write_over(path, &foreign);
    write_over(path, &own);
    assert_int_equal(standing(old), CART_STACK_UNKNOWN);
    cart_stack_examine(old);
    assert_int_equal(standing(old), CART_STACK_CHANGED);
    struct cart_stack *fresh = stack();
    assert_int_equal(standing(fresh), CART_STACK_SOUND);
    /* Pages go by the id: none of the old ones is ever found. */
    assert_true(fresh->entries[0].id != old->entries[0].id);
    /* One that nothing was computed behind may go on. */
    cart_stack_renew(old);
    assert_int_equal(standing(old), CART_STACK_SOUND);
    assert_true(fresh->entries[0].id == old->entries[0].id);
    cart_stack_release(old);
    cart_stack_release(fresh);
}

static void other_data_that_were_seen_stay_seen_until_it_is_opened_again(void **state)
{
    (void)state;
    load();
    struct cart_stack *old = stack();
    write_over(path, &foreign);
    cart_stack_examine(old);
    assert_int_equal(standing(old), CART_STACK_CHANGED);
    write_over(path, &own);
    cart_stack_examine(old);
    cart_stack_renew(old);
    assert_int_equal(standing(old), CART_STACK_CHANGED);
    struct cart_stack *fresh = stack();
    cart_stack_examine(fresh);
    assert_int_equal(standing(fresh), CART_STACK_CHANGED);
    cart_stack_release(fresh);
    load();
    fresh = stack();
    assert_int_equal(standing(fresh), CART_STACK_SOUND);
    assert_int_equal(standing(old), CART_STACK_CHANGED);
    cart_stack_release(fresh);
    cart_stack_release(old);
}

/* A folder that is read again takes what was restored, though its file is as it was when it was
 * seen to have changed. */
static void a_reload_takes_what_was_restored(void **state)
{
    (void)state;
    struct cart_err err = {0};
    test_need(cart_registry_drop(test_serving.registry, "guest", NULL), &err);
    test_need(cart_registry_load(test_serving.registry, test_serving.folder, NULL, NULL, &err),
              &err);
    struct cart_stack *old = stack();
    write_over(path, &foreign);
    cart_stack_examine(old);
    write_over(path, &own);
    test_need(cart_registry_load(test_serving.registry, test_serving.folder, NULL, NULL, &err),
              &err);
    struct cart_stack *fresh = stack();
    assert_int_equal(standing(fresh), CART_STACK_SOUND);
    assert_int_equal(standing(old), CART_STACK_CHANGED);
    cart_stack_release(fresh);
    cart_stack_release(old);
    load();
}

static void modes_links_and_names_change_nothing(void **state)
{
    (void)state;
    load();
    struct cart_stack *s = stack();
    uint64_t id = s->entries[0].id;
    assert_int_equal(chmod(path, 0600), 0);
    assert_int_equal(link(path, aside), 0);
    cart_stack_examine(s);
    assert_int_equal(standing(s), CART_STACK_SOUND);
    assert_int_equal(unlink(aside), 0);
    assert_int_equal(rename(path, aside), 0);
    cart_stack_examine(s);
    assert_int_equal(standing(s), CART_STACK_SOUND);
    assert_int_equal(rename(aside, path), 0);
    cart_stack_examine(s);
    assert_int_equal(standing(s), CART_STACK_SOUND);
    struct cart_stack *fresh = stack();
    assert_true(fresh->entries[0].id == id);
    cart_stack_release(fresh);
    cart_stack_release(s);
}

static void a_file_is_watched_under_whatever_name(void **state)
{
    (void)state;
    load();
    struct cart_stack *s = stack();
    assert_int_equal(rename(path, aside), 0);
    write_over(aside, &foreign);
    cart_stack_examine(s);
    assert_int_equal(standing(s), CART_STACK_CHANGED);
    cart_stack_release(s);
    write_over(aside, &own);
    assert_int_equal(rename(aside, path), 0);
}

/* ---- threads ---- */

static struct cart_serve serve;

struct asked {
    struct cart_group group; /* first: the state of the exchange */
    struct cart_exchange x;
    pthread_t scheduler, end; /* who brought the events, and the end */
    bool done;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t told = PTHREAD_COND_INITIALIZER;
static bool loader_waits, loader_goes;

static bool on_event(struct cart_group *b, size_t prompt, const struct cart_event *e)
{
    (void)prompt;
    (void)e;
    ((struct asked *)(void *)b)->scheduler = pthread_self();
    return true;
}

static void on_done(struct cart_group *b)
{
    struct asked *a = (struct asked *)(void *)b;

    pthread_mutex_lock(&lock);
    a->end = pthread_self();
    a->done = true;
    pthread_cond_broadcast(&told);
    pthread_mutex_unlock(&lock);
}

static void in_worker(struct cart_exchange *x)
{
    cart_group_run(x->state);
}

static void hold_up(struct cart_exchange *x)
{
    (void)x;
    pthread_mutex_lock(&lock);
    loader_waits = true;
    pthread_cond_broadcast(&told);
    while (!loader_goes)
        pthread_cond_wait(&told, &lock);
    pthread_mutex_unlock(&lock);
}

static struct asked *ask(struct cart_stack *s)
{
    struct asked *a = calloc(1, sizeof *a);
    uint32_t id = 5;

    assert_non_null(a);
    pthread_mutex_init(&a->x.lock, NULL);
    a->x.serve = &serve;
    a->x.holders = 2; /* one is the test's, so that it is freed here */
    a->x.record.finish = a->x.record.cartridges = "";
    a->x.state = &a->group;
    assert_true(cart_group_init(&a->group, &a->x, 1));
    assert_int_equal(cart_ids_add(&a->group.prompts[0].ids, &id, 1, NULL), 0);
    a->group.request = (struct cart_serve_request)CART_SERVE_REQUEST;
    a->group.request.max_tokens = 2;
    a->group.request.stack = s;
    a->group.on_event = on_event;
    a->group.on_done = on_done;
    cart_work_submit(serve.work, &a->x, in_worker);
    return a;
}

static void until(const bool *what)
{
    pthread_mutex_lock(&lock);
    while (!*what)
        pthread_cond_wait(&told, &lock);
    pthread_mutex_unlock(&lock);
}

static void forget(struct asked *a)
{
    cart_group_release(&a->group);
    free(a->x.requests);
    cart_buf_release(&a->x.out);
    free(a);
}

/* The loader stands still: answers come all the same, but those that depend on data to be read. */
static void only_the_loader_waits_for_files(void **state)
{
    (void)state;
    struct cart_scheduler_options o = {2, 4, 0, 0, 16, 0, CART_F32};
    struct cart_err err = {0};
    struct asked *blocker = calloc(1, sizeof *blocker);

    assert_non_null(blocker);
    load();
    serve.opt.name = "m";
    serve.model = test_serving.model;
    serve.registry = test_serving.registry;
    serve.scheduler = test_scheduler_start(&o);
    test_need(cart_metrics_new(&serve.metrics, &err), &err);
    test_need(cart_work_new(&serve.work, &serve, &err), &err);
    pthread_mutex_init(&blocker->x.lock, NULL);
    blocker->x.holders = 3;
    cart_work_submit_files(serve.work, &blocker->x, hold_up);
    cart_work_submit_files(serve.work, &blocker->x, hold_up);
    until(&loader_waits);
    struct cart_stack *before = stack();
    set_time(path);
    struct asked *slow = ask(before);
    struct asked *others[4];
    for (size_t i = 0; i < 4; i++) {
        others[i] = ask(NULL);
        until(&others[i]->done);
        assert_false(pthread_equal(others[i]->end, others[i]->scheduler));
    }
    pthread_mutex_lock(&lock);
    assert_false(slow->done);
    loader_goes = true;
    pthread_cond_broadcast(&told);
    pthread_mutex_unlock(&lock);
    /* The time was another and the data are not: it is answered. */
    until(&slow->done);
    cart_work_end(serve.work);
    /* Its last event still resumes what waits with the workers. */
    cart_scheduler_free(serve.scheduler);
    cart_work_free(serve.work);
    for (size_t i = 0; i < 4; i++)
        forget(others[i]);
    forget(slow);
    free(blocker);
    cart_metrics_free(serve.metrics);
}

struct resumer {
    pthread_t thread;
    struct cart_work *work;
    atomic_bool stop;
};

static void *resume(void *arg)
{
    struct resumer *r = arg;

    while (!atomic_load(&r->stop)) {
        cart_work_resume(r->work);
        cart_work_resume_all(r->work);
    }
    return NULL;
}

static void nothing(struct cart_exchange *x)
{
    (void)x;
}

/* Run or not, every exchange is let go once, while the scheduler still tells of places. */
static void who_waits_is_let_go_at_the_end(void **state)
{
    (void)state;
    struct cart_err err = {0};
    struct cart_exchange x[8];

    for (size_t round = 0; round < 50; round++) {
        struct resumer r = {.work = NULL};
        atomic_init(&r.stop, false);
        test_need(cart_work_new(&r.work, &serve, &err), &err);
        memset(x, 0, sizeof x);
        for (size_t i = 0; i < CART_COUNTOF(x); i++) {
            pthread_mutex_init(&x[i].lock, NULL);
            x[i].holders = 1;
        }
        assert_int_equal(pthread_create(&r.thread, NULL, resume, &r), 0);
        for (size_t i = 0; i < CART_COUNTOF(x); i++)
            cart_work_submit_later(r.work, &x[i], nothing);
        cart_work_end(r.work);
        atomic_store(&r.stop, true);
        pthread_join(r.thread, NULL);
        cart_work_free(r.work);
        for (size_t i = 0; i < CART_COUNTOF(x); i++) {
            assert_int_equal(x[i].holders, 1);
            pthread_mutex_destroy(&x[i].lock);
        }
    }
}

static void what_reads_files_is_the_loaders(void **state)
{
    (void)state;
    size_t found = 0;

    for (const struct cart_route *r = cart_routes; r->method; r++) {
        bool loads = strcmp(r->method, "POST") == 0 && strncmp(r->path, "/cartridges", 11) == 0;
        assert_int_equal(r->thread == CART_ON_LOADER, loads);
        found += loads;
    }
    assert_int_equal(found, 2);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(data_that_were_others_meanwhile_count_for_new_stacks_only),
        cmocka_unit_test(other_data_that_were_seen_stay_seen_until_it_is_opened_again),
        cmocka_unit_test(a_reload_takes_what_was_restored),
        cmocka_unit_test(modes_links_and_names_change_nothing),
        cmocka_unit_test(a_file_is_watched_under_whatever_name),
        cmocka_unit_test(only_the_loader_waits_for_files),
        cmocka_unit_test(who_waits_is_let_go_at_the_end),
        cmocka_unit_test(what_reads_files_is_the_loaders),
    };
    cmocka_set_message_output(CM_OUTPUT_TAP);
    return cmocka_run_group_tests(tests, setup, teardown);
}
