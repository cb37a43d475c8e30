/* serve/registry.h: of which cartridges rows are copied, while there is room for two. */
#include "helper/serving.h"
#include "serve/registry_impl.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#define N ((size_t)3)

static const char *const names[N] = {"kept-a", "kept-b", "kept-c"};
static size_t each; /* bytes of one copy */

static void add(size_t i)
{
    struct cart_err err = {0};

    test_need(cart_registry_add(test_serving.registry, names[i], test_cartridge_path(names[i]),
                                NULL, 0, &err),
              &err);
}

static void drop(size_t i)
{
    struct cart_err err = {0};

    test_need(cart_registry_drop(test_serving.registry, names[i], &err), &err);
}

/* The folder is read again, the three files being there under names that were given. */
static void reload(void)
{
    struct cart_err err = {0};

    test_need(cart_registry_load(test_serving.registry, test_serving.folder, NULL, NULL, &err),
              &err);
}

static struct cart_stack *stack(size_t i)
{
    struct cart_err err = {0};
    struct cart_stack *s = NULL;

    test_need(cart_stack_acquire(&s, test_serving.registry, names + i, 1, NULL, &err), &err);
    return s;
}

/* Which of the three are read in a copy, a bit each; and the bytes of all copies are what they
 * must. */
static unsigned copied(size_t copies)
{
    unsigned bits = 0;

    assert_int_equal(cart_registry_counts(test_serving.registry).copied, copies * each);
    for (size_t i = 0; i < N; i++) {
        size_t at;
        if (!cart_registry_find(test_serving.registry, names[i], &at))
            continue;
        struct cart_stack *s = stack(i);
        bits |= (unsigned)s->parts[0]->blocked << i;
        cart_stack_release(s);
    }
    return bits;
}

static int setup(void **state)
{
    int r = test_serving_setup(state);
    struct cart_registry *registry = test_serving.registry;

    /* Those of the helper leave first: one of them is large enough for a copy. */
    test_need(cart_registry_drop(registry, "one", NULL), NULL);
    test_need(cart_registry_drop(registry, "two", NULL), NULL);
    test_need(cart_registry_drop(registry, "wild", NULL), NULL);
    unlink(test_cartridge_path("one"));
    unlink(test_cartridge_path("two"));
    unlink(test_cartridge_path("wild"));
    for (size_t i = 0; i < N; i++)
        test_make_cartridge(names[i], 100, 80 + i, 1);
    each = cart_kv_tail_bytes(test_serving.model, CART_F32, 0, 100);
    registry->copies = 2 * each + each / 2;
    return r;
}

static int teardown(void **state)
{
    for (size_t i = 0; i < N; i++)
        unlink(test_cartridge_path(names[i]));
    return test_serving_teardown(state);
}

static int add_all(void **state)
{
    (void)state;
    for (size_t i = 0; i < N; i++)
        add(i);
    assert_int_equal(copied(2), 3);
    return 0;
}

static int drop_all(void **state)
{
    (void)state;
    for (size_t i = 0; i < N; i++) {
        size_t at;
        if (cart_registry_find(test_serving.registry, names[i], &at))
            drop(i);
    }
    assert_int_equal(copied(0), 0);
    return 0;
}

static void one_that_found_no_room_is_copied_when_there_is_some(void **state)
{
    (void)state;
    struct cart_stack *before = stack(2);
    drop(0);
    assert_int_equal(copied(1), 2);
    unlink(test_cartridge_path(names[0]));
    reload();
    assert_int_equal(copied(2), 6);
    /* Who had it before goes on in its file, under the same id. */
    struct cart_stack *after = stack(2);
    assert_false(before->parts[0]->blocked);
    assert_true(before->entries[0].id == after->entries[0].id);
    cart_stack_release(before);
    cart_stack_release(after);
    test_make_cartridge(names[0], 100, 80, 1);
}

static void copies_that_requests_hold_count(void **state)
{
    (void)state;
    struct cart_stack *held = stack(0);
    drop(0);
    assert_int_equal(copied(2), 2);
    add(2);
    assert_int_equal(copied(2), 2);
    cart_stack_release(held);
    assert_int_equal(copied(1), 2);
    add(2);
    assert_int_equal(copied(2), 6);
}

static void one_that_is_replaced_makes_room_for_the_next(void **state)
{
    (void)state;
    add(0);
    assert_int_equal(copied(2), 3);
    struct cart_stack *held = stack(0);
    add(0); /* the old rows are held: the new ones have no room */
    assert_int_equal(copied(2), 2);
    cart_stack_release(held);
    reload();
    assert_int_equal(copied(2), 3);
}

static void what_was_written_to_is_not_copied(void **state)
{
    (void)state;
    const char *path = test_cartridge_path(names[2]);
    struct cart_stack *s = stack(2);

    drop(0);
    FILE *f = fopen(path, "r+b");
    assert_non_null(f);
    assert_int_equal(fseek(f, -8, SEEK_END), 0);
    assert_int_equal(fwrite("\x7f\x12\x34\x56\x78\x12\x34\x7f", 8, 1, f), 1);
    assert_int_equal(fclose(f), 0);
    add(1);
    assert_int_equal(copied(1), 2);
    cart_stack_examine(s);
    add(1);
    assert_int_equal(copied(1), 2);
    cart_stack_release(s);
    test_make_cartridge(names[2], 100, 82, 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(one_that_found_no_room_is_copied_when_there_is_some,
                                        add_all, drop_all),
        cmocka_unit_test_setup_teardown(copies_that_requests_hold_count, add_all, drop_all),
        cmocka_unit_test_setup_teardown(one_that_is_replaced_makes_room_for_the_next, add_all,
                                        drop_all),
        cmocka_unit_test_setup_teardown(what_was_written_to_is_not_copied, add_all, drop_all),
    };
    cmocka_set_message_output(CM_OUTPUT_TAP);
    return cmocka_run_group_tests(tests, setup, teardown);
}
