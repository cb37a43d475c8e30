#define _GNU_SOURCE /* O_TMPFILE */
/* base/io.h: whole or not at all, and every kind of file that is not one. */
#include "base/io.h"

#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <dirent.h>

#include <cmocka.h>

static char dir[] = "/tmp/cart-test-io-XXXXXX";

static int enter(void **state)
{
    (void)state;
    return mkdtemp(dir) && chdir(dir) == 0 ? 0 : -1;
}

static int leave(void **state)
{
    (void)state;
    return chdir("/") == 0 && rmdir(dir) == 0 ? 0 : -1;
}

static void put_file(const char *path, const char *text)
{
    int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC, 0644);
    assert_true(fd >= 0);
    assert_int_equal(write(fd, text, strlen(text)), (ssize_t)strlen(text));
    close(fd);
}

static void check_file(const char *path, const char *expected)
{
    struct cart_buf b = CART_BUF_INIT;
    assert_int_equal(cart_io_slurp(path, 1000, &b, NULL), 0);
    assert_int_equal(b.len, strlen(expected));
    assert_memory_equal(b.len ? b.data : "", expected, b.len);
    cart_buf_release(&b);
}

static size_t count_entries(void)
{
    size_t n = 0;
    DIR *d = opendir(".");
    assert_non_null(d);
    for (struct dirent *e; (e = readdir(d));)
        n += strcmp(e->d_name, ".") != 0 && strcmp(e->d_name, "..") != 0;
    closedir(d);
    return n;
}

static void test_output(void **state)
{
    (void)state;
    struct cart_output out;
    put_file("f", "old");
    assert_int_equal(chmod("f", 0640), 0);
    assert_int_equal(cart_output_open(&out, "f", false, NULL), 0);
    assert_int_equal(cart_io_write(out.fd, "new text", 8, "f", NULL), 0);
    check_file("f", "old");
    assert_int_equal(cart_output_commit(&out, NULL), 0);
    check_file("f", "new text");
    assert_int_equal(count_entries(), 1);
    struct stat st;
    assert_int_equal(stat("f", &st), 0);
    assert_int_equal(st.st_mode & 0777, 0640);

    assert_int_equal(cart_output_open(&out, "f", false, NULL), 0);
    assert_int_equal(cart_io_write(out.fd, "lost", 4, "f", NULL), 0);
    cart_output_abandon(&out);
    cart_output_abandon(&out);
    check_file("f", "new text");
    assert_int_equal(count_entries(), 1);

    assert_int_equal(symlink("f", "link"), 0);
    assert_int_equal(cart_output_open(&out, "link", false, NULL), 0);
    assert_int_equal(cart_io_write(out.fd, "through", 7, "f", NULL), 0);
    assert_int_equal(cart_output_commit(&out, NULL), 0);
    check_file("f", "through");
    assert_int_equal(lstat("link", &st), 0);
    assert_true(S_ISLNK(st.st_mode));
    unlink("link");
    unlink("f");
}

static void test_output_refused(void **state)
{
    (void)state;
    struct cart_output out = {0};
    struct cart_err err = {0};
    assert_int_equal(cart_output_open(&out, ".", false, &err), CART_EUSAGE);
    assert_int_equal(cart_output_open(&out, "x/", false, &err), CART_EUSAGE);
    assert_int_equal(cart_output_open(&out, "", false, &err), CART_EUSAGE);
    assert_int_equal(cart_output_open(&out, "absent/f", false, &err), CART_ESYS);
    assert_int_equal(err.sys, ENOENT);
    assert_string_equal(err.msg, "absent/f: its folder absent: No such file or directory");
    assert_null(out.path);
    if (geteuid() != 0) {
        assert_int_equal(mkdir("ro", 0555), 0);
        assert_int_equal(cart_output_open(&out, "ro/f", false, &err), CART_ESYS);
        assert_int_equal(err.sys, EACCES);
        rmdir("ro");
    }
    assert_int_equal(count_entries(), 0);
}

static void test_output_devices(void **state)
{
    (void)state;
    struct cart_output out;
    struct cart_err err = {0};
    assert_int_equal(cart_output_open(&out, "/dev/full", false, &err), 0);
    assert_int_equal(cart_io_write(out.fd, "x", 1, "/dev/full", &err), CART_ESYS);
    assert_int_equal(err.sys, ENOSPC);
    cart_output_abandon(&out);
    assert_int_equal(cart_output_open(&out, "/dev/null", false, &err), 0);
    assert_int_equal(cart_io_write(out.fd, "x", 1, "/dev/null", &err), 0);
    assert_int_equal(cart_output_commit(&out, &err), 0);
    struct stat st;
    assert_int_equal(stat("/dev/null", &st), 0);
    assert_true(S_ISCHR(st.st_mode));
}

/* The directory turns into something else between open and commit: FILE is untouched and nothing is
 * left. */
static void test_output_commit_fails(void **state)
{
    (void)state;
    struct cart_output out;
    struct cart_err err = {0};
    assert_int_equal(mkdir("d", 0755), 0);
    assert_int_equal(cart_output_open(&out, "d/f", false, &err), 0);
    assert_int_equal(cart_io_write(out.fd, "x", 1, "f", &err), 0);
    assert_int_equal(mkdir("d/f", 0755), 0);
    assert_int_equal(cart_output_commit(&out, &err), CART_ESYS);
    assert_null(out.path);
    assert_int_equal(rmdir("d/f"), 0);
    assert_int_equal(rmdir("d"), 0);
}

/* In place of the C library's: the library under test closes through this one. */
static int close_error;
int close(int fd)
{
    int r = (int)syscall(SYS_close, fd);
    if (r == 0 && close_error) {
        errno = close_error;
        close_error = 0;
        return -1;
    }
    return r;
}

/* An error that only close tells leaves no new file, and an old one as it was. */
static void test_output_close_fails(void **state)
{
    (void)state;
    struct cart_output out;
    struct cart_err err = {0};
    for (int old = 0; old < 2; old++) {
        if (old)
            put_file("f", "old");
        assert_int_equal(cart_output_open(&out, "f", false, &err), 0);
        assert_int_equal(cart_io_write(out.fd, "new", 3, "f", &err), 0);
        close_error = EIO;
        assert_int_equal(cart_output_commit(&out, &err), CART_ESYS);
        assert_int_equal(close_error, 0);
        assert_non_null(strstr(err.msg, "f: closing: Input/output error"));
        assert_int_equal(count_entries(), old);
    }
    check_file("f", "old");
    unlink("f");
}

/* Not even SIGKILL leaves a temporary file, where the system has files without a name. */
static void test_output_killed(void **state)
{
    (void)state;
    int fd = open(".", O_TMPFILE | O_RDWR, 0600);
    if (fd < 0) {
        print_message("# machine: no O_TMPFILE here\n");
        skip();
    }
    close(fd);
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        struct cart_output out;
        if (cart_output_open(&out, "f", false, NULL) == 0 &&
            cart_io_write(out.fd, "half", 4, "f", NULL) == 0)
            raise(SIGKILL);
        _exit(1);
    }
    int status = 0;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
    assert_int_equal(count_entries(), 0);
}

static int publish(const char *from, const char *to, struct cart_err *err)
{
    int fd = open(from, O_RDONLY);
    int r = cart_io_publish(fd, from, to, err);
    close(fd);
    return r;
}

static void test_publish(void **state)
{
    (void)state;
    struct cart_err err = {0};
    put_file("a", "one");
    put_file("b", "two");
    assert_int_equal(publish("a", "b", &err), 0);
    check_file("b", "one");
    assert_int_equal(count_entries(), 1);
    assert_int_equal(publish("a", "b", &err), CART_EAGAIN);
    /* What took the name meanwhile is another's. */
    put_file("a", "mine");
    int fd = open("a", O_RDONLY);
    assert_int_equal(rename("a", "away"), 0);
    put_file("a", "other");
    assert_int_equal(cart_io_publish(fd, "a", "b", &err), CART_EAGAIN);
    close(fd);
    check_file("a", "other");
    check_file("b", "one");
    assert_int_equal(unlink("a") | unlink("away"), 0);
    /* What is no file is never replaced. */
    assert_int_equal(symlink("/dev/null", "null"), 0);
    assert_true(cart_io_is_direct("null"));
    assert_false(cart_io_is_direct("b"));
    assert_int_equal(publish("b", "null", &err), CART_EUSAGE);
    assert_int_equal(unlink("null"), 0);
    check_file("b", "one");
    unlink("b");
}

static mode_t mode_of(const char *path)
{
    struct stat st;
    return lstat(path, &st) == 0 ? st.st_mode : 0;
}

/* Both ways of writing a file are one to whoever named it. */
static void test_links_are_followed(void **state)
{
    (void)state;
    struct cart_err err = {0};
    struct cart_output out;
    assert_int_equal(mkdir("dir", 0755), 0);
    assert_int_equal(symlink("dir/real", "link"), 0);
    assert_int_equal(symlink("link", "again"), 0);
    assert_true(cart_io_same_file("again", "dir/real"));
    assert_false(cart_io_same_file("again", "real"));
    for (int way = 0; way < 4; way++) {
        bool publishes = way % 2 == 0, older = way >= 2;
        if (older)
            assert_int_equal(chmod("dir/real", 0640), 0);
        if (publishes) {
            put_file("a", "one");
            assert_int_equal(publish("a", "again", &err), 0);
        } else {
            assert_int_equal(cart_output_open(&out, "again", false, &err), 0);
            assert_int_equal(cart_io_write(out.fd, "one", 3, "x", &err), 0);
            assert_int_equal(cart_output_commit(&out, &err), 0);
        }
        check_file("dir/real", "one");
        assert_true(S_ISLNK(mode_of("again")) && S_ISLNK(mode_of("link")));
        if (older)
            assert_int_equal(mode_of("dir/real") & 07777, 0640);
        else
            assert_int_equal(unlink("dir/real"), 0);
        if (way == 1)
            put_file("dir/real", "old");
    }
    assert_int_equal(unlink("link"), 0);
    assert_int_equal(symlink("again", "link"), 0);
    put_file("a", "one");
    assert_true(publish("a", "link", &err) < 0);
    assert_true(cart_output_open(&out, "link", false, &err) < 0);
    assert_int_equal(unlink("link") | unlink("again") | unlink("a") | unlink("dir/real"), 0);
    assert_int_equal(rmdir("dir"), 0);
}

static void test_claim(void **state)
{
    (void)state;
    struct cart_err err = {0};
    int a, b, c;
    put_file("p", "kept");
    assert_int_equal(cart_io_claim(&a, "p", &err), 0);
    check_file("p", "kept");
    assert_int_equal(cart_io_claim(&b, "p", &err), CART_EAGAIN);
    assert_string_equal(err.msg, "p: another process is writing it");
    /* The claim goes over to what is renamed to the name. */
    assert_int_equal(cart_io_claim(&b, "q", &err), 0);
    assert_true(cart_io_is_at(a, "p"));
    assert_int_equal(rename("q", "p"), 0);
    assert_false(cart_io_is_at(a, "p"));
    assert_true(cart_io_is_at(b, "p"));
    assert_false(cart_io_is_at(b, "q"));
    close(a);
    assert_int_equal(cart_io_claim(&c, "p", &err), CART_EAGAIN);
    /* A name that became another is free. */
    assert_int_equal(rename("p", "done"), 0);
    assert_int_equal(cart_io_claim(&c, "p", &err), 0);
    close(b);
    close(c);
    assert_int_equal(cart_io_claim(&a, "absent/p", &err), CART_ESYS);
    assert_string_equal(err.msg, "absent/p: its folder absent: No such file or directory");
    assert_int_equal(cart_io_claim(&a, "/dev/null", &err), CART_EUSAGE);
    unlink("p");
    unlink("done");
}

static void test_same_file(void **state)
{
    (void)state;
    put_file("f", "x");
    put_file("g", "x");
    assert_int_equal(symlink("f", "link"), 0);
    assert_true(cart_io_same_file("f", "./f"));
    assert_true(cart_io_same_file("link", "f"));
    assert_false(cart_io_same_file("f", "g"));
    assert_false(cart_io_same_file("f", "new"));
    assert_true(cart_io_same_file("new", "./new"));
    assert_false(cart_io_same_file("new", "newer"));
    assert_false(cart_io_same_file("absent/new", "new"));
    assert_false(cart_io_same_file("/dev/null", "/dev/null"));
    unlink("link");
    unlink("f");
    unlink("g");
}

static void test_map(void **state)
{
    (void)state;
    struct cart_map map = {NULL, 0};
    struct cart_err err = {0};
    put_file("f", "mapped");
    assert_int_equal(cart_map_open(&map, "f", &err), 0);
    assert_int_equal(map.size, 6);
    assert_memory_equal(map.data, "mapped", 6);
    cart_map_release(&map);
    cart_map_release(&map);
    put_file("f", "");
    assert_int_equal(cart_map_open(&map, "f", &err), 0);
    assert_int_equal(map.size, 0);
    assert_null(map.data);
    unlink("f");
    assert_int_equal(cart_map_open(&map, "f", &err), CART_ESYS);
    assert_int_equal(err.sys, ENOENT);
    assert_int_equal(cart_map_open(&map, ".", &err), CART_EFORMAT);
    assert_string_equal(err.msg, ".: expected a file, found a directory");
    assert_int_equal(mkfifo("p", 0644), 0);
    assert_int_equal(cart_map_open(&map, "p", &err), CART_EUSAGE);
    assert_int_equal(cart_map_open(&map, "/dev/zero", &err), CART_EUSAGE);
    unlink("p");
}

static void test_read(void **state)
{
    (void)state;
    int fds[2];
    char b[4] = "";
    struct cart_err err = {0};
    assert_int_equal(pipe(fds), 0);
    assert_int_equal(write(fds[1], "abcdef", 6), 6);
    close(fds[1]);
    assert_int_equal(cart_io_read(fds[0], b, 4, "pipe", &err), 1);
    assert_memory_equal(b, "abcd", 4);
    assert_int_equal(cart_io_read(fds[0], b, 4, "pipe", &err), CART_ETRUNC);
    assert_string_equal(err.msg, "pipe: ends early: expected 4 bytes, found 2");
    assert_int_equal(cart_io_read(fds[0], b, 4, "pipe", &err), 0);
    assert_int_equal(cart_io_read(fds[0], b, 0, "pipe", &err), 1);
    close(fds[0]);
    assert_int_equal(cart_io_read(fds[0], b, 4, "pipe", &err), CART_ESYS);
}

static void test_slurp_limit(void **state)
{
    (void)state;
    struct cart_buf b = CART_BUF_INIT;
    struct cart_err err = {0};
    put_file("f", "12345");
    assert_int_equal(cart_io_slurp("f", 5, &b, &err), 0);
    assert_int_equal(b.len, 5);
    cart_buf_reset(&b);
    assert_int_equal(cart_io_slurp("f", 4, &b, &err), CART_EFORMAT);
    cart_buf_reset(&b);
    assert_int_equal(cart_io_slurp("/dev/zero", 100000, &b, &err), CART_EFORMAT);
    assert_int_equal(cart_io_slurp(".", 5, &b, &err), CART_EFORMAT);
    assert_string_equal(err.msg, ".: expected a file, found a directory");
    cart_buf_release(&b);
    unlink("f");
}

/* /dev/stdout is written through, never replaced, even where it is a regular file. */
static void test_names_of_descriptors(void **state)
{
    (void)state;
    assert_true(cart_io_is_direct("/dev/stdout"));
    assert_true(cart_io_is_direct("/dev/fd/1"));
    assert_true(cart_io_is_direct("/proc/self/fd/1"));
    assert_true(cart_io_is_direct("/dev/null"));
    assert_false(cart_io_is_direct("/dev/shm/no-such-file"));
    assert_false(cart_io_is_direct("1"));
}

/* What is in the file of a descriptor stays, and what its owner writes afterwards comes behind. */
static void test_output_to_descriptors(void **state)
{
    (void)state;
    static const char *const spellings[] = {"/dev/fd/", "/proc/self/fd/", "/dev//../dev/fd/"};
    struct cart_output out;
    struct cart_err err = {0};
    char name[64];
    put_file("log", "first ");
    int fd = open("log", O_WRONLY);
    assert_true(fd > 2);
    assert_int_equal(lseek(fd, 0, SEEK_END), 6);
    for (size_t i = 0; i <= CART_COUNTOF(spellings); i++) {
        snprintf(name, sizeof name, "%s%d", spellings[i % CART_COUNTOF(spellings)], fd);
        if (i == CART_COUNTOF(spellings)) {
            assert_int_equal(symlink(name, "link"), 0);
            strcpy(name, "link");
        }
        assert_true(cart_io_is_direct(name));
        assert_int_equal(cart_output_open(&out, name, false, &err), 0);
        assert_int_equal(cart_io_write(out.fd, "x", 1, name, &err), 0);
        assert_int_equal(cart_output_commit(&out, &err), 0);
    }
    assert_int_equal(write(fd, " last", 5), 5);
    check_file("log", "first xxxx last");
    assert_int_equal(count_entries(), 2);
    /* One of the process's own is not meant, nor one that cannot be written. */
    snprintf(name, sizeof name, "/dev/fd/%d", fd);
    assert_int_equal(fcntl(fd, F_SETFD, FD_CLOEXEC), 0);
    assert_int_equal(cart_output_open(&out, name, false, &err), CART_ESYS);
    assert_int_equal(err.sys, EBADF);
    close(fd);
    assert_int_equal(cart_output_open(&out, name, false, &err), CART_ESYS);
    assert_int_equal(open("log", O_RDONLY), fd);
    assert_int_equal(cart_output_open(&out, name, false, &err), CART_ESYS);
    assert_int_equal(err.sys, EBADF);
    close(fd);
    check_file("log", "first xxxx last");
    unlink("link");
    unlink("log");
}

static void test_same_output(void **state)
{
    (void)state;
    int p[2], q[2];
    char a[32], b[32], c[32];
    put_file("f", "x");
    assert_int_equal(mkfifo("fifo", 0600), 0);
    assert_int_equal(symlink("fifo", "link"), 0);
    assert_int_equal(pipe(p), 0);
    assert_int_equal(pipe(q), 0);
    snprintf(a, sizeof a, "/dev/fd/%d", p[1]);
    snprintf(b, sizeof b, "/proc/self/fd/%d", p[1]);
    snprintf(c, sizeof c, "/dev/fd/%d", q[1]);
    assert_true(cart_io_same_output(NULL, "-"));
    assert_true(cart_io_same_output("f", "./f"));
    assert_true(cart_io_same_output("new", "./new"));
    assert_true(cart_io_same_output("link", "fifo"));
    assert_true(cart_io_same_output(a, b));
    assert_false(cart_io_same_output(a, c));
    assert_false(cart_io_same_output(a, "fifo"));
    assert_false(cart_io_same_output("/dev/null", "/dev/null"));
    for (int i = 0; i < 2; i++) {
        close(p[i]);
        close(q[i]);
    }
    unlink("link");
    unlink("fifo");
    unlink("f");
}

static void test_within(void **state)
{
    (void)state;
    assert_int_equal(mkdir("d", 0777), 0);
    assert_int_equal(mkdir("d/e", 0777), 0);
    assert_int_equal(mkdir("dd", 0777), 0);
    put_file("f", "x");
    assert_int_equal(symlink("d/e/new", "link"), 0);
    assert_true(cart_io_within("d/new", "d"));
    assert_true(cart_io_within("d/e/new", "./d/"));
    assert_true(cart_io_within("link", "d"));
    assert_true(cart_io_within("f", "."));
    assert_true(cart_io_within("f", "/"));
    assert_false(cart_io_within("dd/new", "d"));
    assert_false(cart_io_within("d/new", "d/e"));
    assert_false(cart_io_within("f", "f"));
    assert_false(cart_io_within("absent/new", "d"));
    unlink("link");
    unlink("f");
    rmdir("dd");
    rmdir("d/e");
    rmdir("d");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_names_of_descriptors),
        cmocka_unit_test(test_output_to_descriptors),
        cmocka_unit_test(test_same_output),
        cmocka_unit_test(test_within),
        cmocka_unit_test(test_output),
        cmocka_unit_test(test_output_refused),
        cmocka_unit_test(test_output_devices),
        cmocka_unit_test(test_output_commit_fails),
        cmocka_unit_test(test_output_close_fails),
        cmocka_unit_test(test_output_killed),
        cmocka_unit_test(test_publish),
        cmocka_unit_test(test_links_are_followed),
        cmocka_unit_test(test_claim),
        cmocka_unit_test(test_same_file),
        cmocka_unit_test(test_map),
        cmocka_unit_test(test_read),
        cmocka_unit_test(test_slurp_limit),
    };
    cmocka_set_message_output(CM_OUTPUT_TAP);
    return cmocka_run_group_tests(tests, enter, leave);
}
