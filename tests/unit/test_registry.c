/* serve/registry.h: of which cartridges rows are copied, while there is room for two; names, and
 * what is in a folder. */
#include "base/io.h"
#include "helper/serving.h"
#include "serve/registry_impl.h"

#include <setjmp.h>
#include <stdarg.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
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
    struct cart_registry *r = test_serving.registry;
    struct cart_stack *held = stack(0);
    drop(0);
    assert_int_equal(copied(2), 2);
    add(2);
    assert_int_equal(copied(2), 2);
    assert_false(cart_registry_can_copy(r));
    cart_stack_release(held);
    assert_int_equal(copied(1), 2);
    assert_true(cart_registry_can_copy(r));
    cart_registry_copy(r);
    assert_int_equal(copied(2), 6);
    assert_false(cart_registry_can_copy(r));
}

/* One run takes all that have room, also behind one that has none. */
static void as_many_are_copied_as_there_is_room_for(void **state)
{
    (void)state;
    struct cart_registry *r = test_serving.registry;
    size_t room = r->copies;
    r->copies = 0;
    drop_all(NULL);
    for (size_t i = 0; i < N; i++)
        add(i);
    assert_int_equal(copied(0), 0);
    r->copies = room;
    reload();
    assert_int_equal(copied(2), 3);
    drop(0);
    drop(1);
    cart_registry_copy(r);
    assert_int_equal(copied(1), 4);
    test_make_cartridge(names[0], 200, 80, 1);
    r->copies = 0;
    add(0);
    add(1);
    assert_int_equal(copied(1), 4);
    r->copies = room;
    cart_registry_copy(r);
    assert_int_equal(copied(2), 6);
    test_make_cartridge(names[0], 100, 80, 1);
}

/* Not 64 rows fill no block of keys. */
static void short_ones_are_read_in_their_files(void **state)
{
    (void)state;
    drop(0);
    test_make_cartridge(names[0], CART_ATTN_BLOCK - 1, 80, 1);
    add(0);
    assert_int_equal(copied(2), 6);
    test_make_cartridge(names[0], 100, 80, 1);
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
    const struct timespec times[2] = {{1000000000, 0}, {1000000000, 0}};
    FILE *f = fopen(path, "r+b");
    assert_non_null(f);
    assert_int_equal(fseek(f, -8, SEEK_END), 0);
    assert_int_equal(fwrite("\x7f\x12\x34\x56\x78\x12\x34\x7f", 8, 1, f), 1);
    assert_int_equal(fclose(f), 0);
    assert_int_equal(utimensat(AT_FDCWD, path, times, 0), 0);
    add(1);
    assert_int_equal(copied(1), 2);
    cart_stack_examine(s);
    add(1);
    assert_int_equal(copied(1), 2);
    cart_stack_release(s);
    test_make_cartridge(names[2], 100, 82, 1);
}

/* ---- names and folders ---- */

static void names_are_bounded(void **state)
{
    (void)state;
    struct cart_err err = {0};
    char name[CART_CARTRIDGE_NAME_MAX + 2];
    const char *path = test_cartridge_path(names[0]);
    memset(name, 'n', sizeof name);
    name[CART_CARTRIDGE_NAME_MAX + 1] = '\0';
    assert_int_equal(cart_registry_add(test_serving.registry, name, path, NULL, 0, &err),
                     CART_EUSAGE);
    assert_int_equal(cart_registry_add(test_serving.registry, ".x", path, NULL, 0, &err),
                     CART_EUSAGE);
    assert_int_equal(cart_registry_add(test_serving.registry, "", path, NULL, 0, &err),
                     CART_EUSAGE);
    name[CART_CARTRIDGE_NAME_MAX] = '\0';
    test_need(cart_registry_add(test_serving.registry, name, path, NULL, 0, &err), &err);
    reload();
    test_need(cart_registry_drop(test_serving.registry, name, &err), &err);
}

static size_t reports, refused;

static void on_report(void *ctx, const char *name, const char *warning, const struct cart_err *err)
{
    (void)ctx;
    (void)name;
    (void)warning;
    reports++;
    refused += err != NULL;
}

static void load_folder(const char *folder)
{
    struct cart_err err = {0};

    reports = refused = 0;
    test_need(cart_registry_load(test_serving.registry, folder, on_report, NULL, &err), &err);
}

static void in_folder(char *path, size_t cap, const char *folder, const char *file)
{
    snprintf(path, cap, "%s/%s", folder, file);
}

static void copy_file(const char *to, const char *from)
{
    struct cart_err err = {0};
    struct cart_buf b = {0};

    test_need(cart_io_slurp(from, (size_t)1 << 24, &b, &err), &err);
    FILE *f = fopen(to, "wb");
    assert_non_null(f);
    assert_int_equal(fwrite(b.data, b.len, 1, f), 1);
    assert_int_equal(fclose(f), 0);
    cart_buf_release(&b);
}

static uint64_t id_of(const char *name)
{
    struct cart_err err = {0};
    struct cart_stack *s = NULL;

    test_need(cart_stack_acquire(&s, test_serving.registry, &name, 1, NULL, &err), &err);
    uint64_t id = s->entries[0].id;
    cart_stack_release(s);
    return id;
}

/* Of a folder count regular files by their names; what did not change is kept, and other folders
 * are none of its business. */
static void a_folder_is_what_is_in_it(void **state)
{
    (void)state;
    char a[] = "/tmp/cart_registry_a.XXXXXX", b[] = "/tmp/cart_registry_b.XXXXXX", path[160];
    static const char *const files[] = {"one.cartridge.safetensors", "one.safetensors",
                                        "two.safetensors", ".three.safetensors", "four.txt"};
    struct cart_registry_counts before = cart_registry_counts(test_serving.registry);
    assert_non_null(mkdtemp(a));
    assert_non_null(mkdtemp(b));
    for (size_t i = 0; i < CART_COUNTOF(files); i++) {
        in_folder(path, sizeof path, a, files[i]);
        copy_file(path, test_cartridge_path(names[0]));
    }
    in_folder(path, sizeof path, a, "fifo.safetensors");
    assert_int_equal(mkfifo(path, 0600), 0);
    in_folder(path, sizeof path, a, "folder.safetensors");
    assert_int_equal(mkdir(path, 0700), 0);
    in_folder(path, sizeof path, b, "other.safetensors");
    copy_file(path, test_cartridge_path(names[1]));
    load_folder(a);
    assert_int_equal(reports, 2);
    load_folder(b);
    assert_int_equal(reports, 1);
    assert_int_equal(refused, 0);
    struct cart_registry_counts after = cart_registry_counts(test_serving.registry);
    assert_int_equal(after.cartridges - before.cartridges, 3);
    assert_int_equal(after.loads - before.loads, 3);
    uint64_t ids[] = {id_of("one"), id_of("two"), id_of("other")};
    load_folder(a);
    load_folder(b);
    assert_int_equal(reports, 0);
    assert_true(ids[0] == id_of("one") && ids[1] == id_of("two") && ids[2] == id_of("other"));
    /* One of no use is refused, and what had its name stays. */
    in_folder(path, sizeof path, a, "two.safetensors");
    unlink(path);
    FILE *f = fopen(path, "wb");
    assert_non_null(f);
    fputs("no tensors", f);
    fclose(f);
    load_folder(a);
    assert_int_equal(reports, 1);
    assert_int_equal(refused, 1);
    assert_true(ids[1] == id_of("two"));
    assert_int_equal(cart_registry_counts(test_serving.registry).refusals, before.refusals + 1);
    /* Gone is gone, in its own folder. */
    unlink(path);
    in_folder(path, sizeof path, a, "fifo.safetensors");
    unlink(path);
    in_folder(path, sizeof path, a, "folder.safetensors");
    rmdir(path);
    for (size_t i = 0; i < CART_COUNTOF(files); i++) {
        in_folder(path, sizeof path, a, files[i]);
        unlink(path);
    }
    load_folder(a);
    assert_int_equal(cart_registry_counts(test_serving.registry).cartridges, before.cartridges + 1);
    assert_true(ids[2] == id_of("other"));
    in_folder(path, sizeof path, b, "other.safetensors");
    unlink(path);
    load_folder(b);
    assert_int_equal(cart_registry_counts(test_serving.registry).cartridges, before.cartridges);
    rmdir(a);
    rmdir(b);
}

/* A FIFO is refused, not waited for. */
static void a_fifo_is_no_cartridge(void **state)
{
    (void)state;
    struct cart_err err = {0};
    char path[160];
    in_folder(path, sizeof path, test_serving.folder, "pipe");
    assert_int_equal(mkfifo(path, 0600), 0);
    assert_true(cart_registry_add(test_serving.registry, "pipe", path, NULL, 0, &err) < 0);
    unlink(path);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(one_that_found_no_room_is_copied_when_there_is_some,
                                        add_all, drop_all),
        cmocka_unit_test_setup_teardown(copies_that_requests_hold_count, add_all, drop_all),
        cmocka_unit_test_setup_teardown(one_that_is_replaced_makes_room_for_the_next, add_all,
                                        drop_all),
        cmocka_unit_test_setup_teardown(as_many_are_copied_as_there_is_room_for, add_all, drop_all),
        cmocka_unit_test_setup_teardown(short_ones_are_read_in_their_files, add_all, drop_all),
        cmocka_unit_test_setup_teardown(what_was_written_to_is_not_copied, add_all, drop_all),
        cmocka_unit_test(names_are_bounded),
        cmocka_unit_test(a_folder_is_what_is_in_it),
        cmocka_unit_test(a_fifo_is_no_cartridge),
    };
    cmocka_set_message_output(CM_OUTPUT_TAP);
    return cmocka_run_group_tests(tests, setup, teardown);
}
