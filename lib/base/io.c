#define _GNU_SOURCE /* O_TMPFILE, flock */
#include "base/io.h"

#include "base/interrupt.h"

#include <errno.h>
#include <fcntl.h>
#include <libgen.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

/* Linux moves at most a little under 2 GiB per call; asking for less keeps every system's rules. */
#define IO_CHUNK ((size_t)1 << 30)

int cart_io_read_failed(const char *name, struct cart_err *err)
{
    return errno == EISDIR
               ? cart_err_set(err, CART_EFORMAT, "%s: expected a file, found a directory", name)
               : cart_err_sys(err, "%s: reading", name);
}

/* Waits until there is something to read, or the end; false: a signal asks to stop, and there is
 * nothing yet. What a signal leaves to be read wakes up however shortly before the wait it came. */
static bool wait_for_bytes(int fd)
{
    struct pollfd p[] = {{.fd = fd, .events = POLLIN},
                         {.fd = cart_interrupt_fd(), .events = POLLIN}};
    if (p[1].fd < 0)
        return true;
    while (poll(p, 2, -1) < 0)
        if (errno != EINTR)
            return true; /* the read will say what is wrong */
    return p[0].revents != 0;
}

/* One read, restarted after a signal, unless that one asks to stop: the writer of a pipe may have
 * nothing to say for hours. */
static ssize_t read_some(int fd, void *out, size_t n, const char *name, struct cart_err *err)
{
    ssize_t got;
    do {
        if (!wait_for_bytes(fd))
            return cart_err_set(err, CART_EAGAIN, "%s: stopped while reading", name);
        got = read(fd, out, n < IO_CHUNK ? n : IO_CHUNK);
    } while (got < 0 && errno == EINTR && !cart_interrupted());
    if (got < 0 && errno == EINTR)
        return cart_err_set(err, CART_EAGAIN, "%s: stopped while reading", name);
    return got < 0 ? cart_io_read_failed(name, err) : got;
}

int cart_io_read(int fd, void *out, size_t n, const char *name, struct cart_err *err)
{
    unsigned char *p = out;
    size_t done = 0;
    while (done < n) {
        ssize_t got = read_some(fd, p + done, n - done, name, err);
        if (got < 0)
            return (int)got;
        if (got == 0)
            break;
        done += (size_t)got;
    }
    if (done == n)
        return 1;
    if (done == 0)
        return 0;
    return cart_err_set(err, CART_ETRUNC, "%s: ends early: expected %zu bytes, found %zu", name, n,
                        done);
}

int cart_io_write(int fd, const void *bytes, size_t n, const char *name, struct cart_err *err)
{
    const unsigned char *p = bytes;
    while (n > 0) {
        ssize_t put = write(fd, p, n < IO_CHUNK ? n : IO_CHUNK);
        if (put < 0 && errno == EINTR)
            continue;
        if (put < 0)
            return cart_err_sys(err, "%s: writing", name);
        p += put;
        n -= (size_t)put;
    }
    return 0;
}

static int slurp_fd(int fd, const char *name, size_t limit, struct cart_buf *b,
                    struct cart_err *err)
{
    size_t start = b->len;
    for (;;) {
        size_t room = b->cap > b->len + 1 ? b->cap - b->len - 1 : 0;
        if (room < 4096) {
            int r = cart_buf_reserve(b, (size_t)1 << 16, err);
            if (r < 0)
                return cart_err_wrap(err, r, "%s", name);
            room = b->cap - b->len - 1;
        }
        ssize_t got = read_some(fd, b->data + b->len, room, name, err);
        if (got < 0)
            return (int)got;
        b->len += (size_t)got;
        b->data[b->len] = '\0';
        if (got == 0)
            return 0;
        if (b->len - start > limit)
            return cart_err_set(err, CART_EFORMAT, "%s: expected at most %zu bytes, found more",
                                name, limit);
    }
}

int cart_io_slurp(const char *path, size_t limit, struct cart_buf *b, struct cart_err *err)
{
    if (strcmp(path, "-") == 0)
        return slurp_fd(STDIN_FILENO, "standard input", limit, b, err);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return cart_err_sys(err, "%s", path);
    int r = slurp_fd(fd, path, limit, b, err);
    close(fd);
    return r;
}

int cart_map_fd(struct cart_map *map, int fd, const char *name, struct cart_err *err)
{
    struct stat st;
    if (fstat(fd, &st) < 0)
        return cart_err_sys(err, "%s", name);
    if (S_ISDIR(st.st_mode))
        return cart_err_set(err, CART_EFORMAT, "%s: expected a file, found a directory", name);
    if (!S_ISREG(st.st_mode))
        return cart_err_set(err, CART_EUSAGE, "%s: expected a regular file, found a pipe or device",
                            name);
    if ((uintmax_t)st.st_size > SIZE_MAX)
        return cart_err_memory(err, name, SIZE_MAX);
    struct cart_map m = {NULL, (size_t)st.st_size};
    if (m.size > 0) {
        void *p = mmap(NULL, m.size, PROT_READ, MAP_SHARED, fd, 0);
        if (p == MAP_FAILED)
            return cart_err_sys(err, "%s: mapping %zu bytes", name, m.size);
        m.data = p;
    }
    *map = m;
    return 0;
}

int cart_map_open(struct cart_map *map, const char *path, struct cart_err *err)
{
    /* Without O_NONBLOCK a FIFO would wait for a writer before it could be refused. */
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0)
        return cart_err_sys(err, "%s", path);
    int r = cart_map_fd(map, fd, path, err);
    close(fd);
    return r;
}

void cart_map_release(struct cart_map *map)
{
    if (map->data)
        munmap((void *)(uintptr_t)map->data, map->size);
    *map = (struct cart_map){NULL, 0};
}

/* The directory that holds path, as a new string; NULL when out of memory. */
static char *parent_of(const char *path)
{
    char *copy = strdup(path);
    char *dir = copy ? strdup(dirname(copy)) : NULL;
    free(copy);
    return dir;
}

/* The error of making path: a folder that is not there is the likeliest, and named. */
static int failed_open(const char *path, struct cart_err *err)
{
    int sys = errno;
    char *dir = parent_of(path);
    bool missing = sys == ENOENT && dir && access(dir, F_OK) != 0;
    errno = sys;
    int r =
        missing ? cart_err_sys(err, "%s: its folder %s", path, dir) : cart_err_sys(err, "%s", path);
    free(dir);
    return r;
}

char *cart_io_join(const char *dir, const char *name)
{
    size_t n = strlen(dir), cap = n + 1 + strlen(name) + 1;
    char *path = malloc(cap);
    if (path)
        snprintf(path, cap, "%s%s%s", dir, n > 0 && dir[n - 1] == '/' ? "" : "/", name);
    return path;
}

/* Where the symbolic link path leads, as a new string; NULL: it is none, or errno says why. */
static char *link_target(const char *path)
{
    char target[4096];
    ssize_t n = readlink(path, target, sizeof target - 1);
    if (n < 0)
        return NULL;
    target[n] = '\0';
    if (target[0] == '/' || !strchr(path, '/'))
        return strdup(target);
    char *dir = parent_of(path);
    char *next = dir ? cart_io_join(dir, target) : NULL;
    free(dir);
    return next;
}

/* The name that path stands for, symbolic links followed to where they end even if nothing is there
 * yet; the caller's to free. NULL: errno says why. */
static char *final_name(const char *path)
{
    char *at = strdup(path);
    for (int links = 0; at && links < 40; links++) {
        errno = 0;
        char *next = link_target(at);
        if (!next && errno != ENOMEM)
            return at;
        free(at);
        at = next;
    }
    if (at) {
        free(at);
        errno = ELOOP;
    }
    return NULL;
}

/* The directory that holds path, opened to be synced. */
static int open_parent(int *fd, const char *path, struct cart_err *err)
{
    char *dir = parent_of(path);
    if (!dir)
        return cart_err_memory(err, path, 0);
    *fd = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    int r = *fd < 0 ? cart_err_sys(err, "%s: syncing its directory", path) : 0;
    free(dir);
    return r;
}

/* Some file systems cannot sync a directory and say EINVAL; there is nothing more to do on them. */
static int sync_opened(int dir, const char *path, struct cart_err *err)
{
    bool failed = fsync(dir) < 0 && errno != EINVAL && errno != ENOTSUP;
    int r = failed ? cart_err_sys(err, "%s: syncing its directory", path) : 0;
    close(dir);
    return r;
}

static int sync_parent(const char *path, struct cart_err *err)
{
    int dir, r = open_parent(&dir, path, err);
    return r < 0 ? r : sync_opened(dir, path, err);
}

/* The number where path is a name in the folder of this process's descriptors, else -1. */
static int entry_of_descriptors(const char *path)
{
    static const char *const folders[] = {"/proc/self/fd", "/proc/thread-self/fd"};
    const char *slash = strrchr(path, '/'), *name = slash ? slash + 1 : path;
    struct stat dir, own;
    size_t n = strlen(name);
    if (n == 0 || n > 9 || strspn(name, "0123456789") != n)
        return -1;
    char *parent = parent_of(path);
    bool known = parent && stat(parent, &dir) == 0, same = false;
    free(parent);
    for (size_t i = 0; i < CART_COUNTOF(folders) && known && !same; i++)
        same = stat(folders[i], &own) == 0 && own.st_dev == dir.st_dev && own.st_ino == dir.st_ino;
    return same ? (int)strtol(name, NULL, 10) : -1;
}

/* The descriptor that path is a name of, as /dev/stdout, /dev/fd/3 and links to them are; -1: of
 * none. What such a name leads to may be a regular file with content that is not ours. */
static int descriptor_of(const char *path)
{
    char *at = strdup(path);
    int fd = -1;
    for (int links = 0; at && links < 40 && (fd = entry_of_descriptors(at)) < 0; links++) {
        char *next = link_target(at);
        free(at);
        at = next;
    }
    free(at);
    return fd;
}

bool cart_io_is_direct(const char *path)
{
    struct stat st;
    return !path || strcmp(path, "-") == 0 || path[0] == '\0' ||
           strncmp(path, "/dev/std", 8) == 0 || strncmp(path, "/dev/fd/", 8) == 0 ||
           strncmp(path, "/proc/", 6) == 0 || descriptor_of(path) >= 0 ||
           (stat(path, &st) == 0 && !S_ISREG(st.st_mode));
}

bool cart_io_beside(const char *a, const char *b)
{
    struct stat da, db;
    char *pa = parent_of(a), *pb = parent_of(b);
    bool same = pa && pb && stat(pa, &da) == 0 && stat(pb, &db) == 0 && da.st_dev == db.st_dev &&
                da.st_ino == db.st_ino;
    free(pa);
    free(pb);
    return same;
}

/* Two names under which nothing stands. */
static bool same_new_name(const char *a, const char *b)
{
    const char *sa = strrchr(a, '/'), *sb = strrchr(b, '/');
    return strcmp(sa ? sa + 1 : a, sb ? sb + 1 : b) == 0 && cart_io_beside(a, b);
}

bool cart_io_same_file(const char *a, const char *b)
{
    struct stat sa, sb;
    bool is_a = stat(a, &sa) == 0, is_b = stat(b, &sb) == 0;
    if (is_a && is_b)
        return S_ISREG(sa.st_mode) && sa.st_dev == sb.st_dev && sa.st_ino == sb.st_ino;
    if (is_a || is_b)
        return false;
    char *fa = final_name(a), *fb = final_name(b);
    bool same = fa && fb && same_new_name(fa, fb);
    free(fa);
    free(fb);
    return same;
}

static bool is_standard_output(const char *path)
{
    return !path || strcmp(path, "-") == 0;
}

bool cart_io_same_output(const char *a, const char *b)
{
    struct stat sa, sb;
    if (is_standard_output(a) && is_standard_output(b))
        return true;
    a = is_standard_output(a) ? "/dev/stdout" : a;
    b = is_standard_output(b) ? "/dev/stdout" : b;
    return cart_io_same_file(a, b) || (stat(a, &sa) == 0 && stat(b, &sb) == 0 &&
                                       (S_ISFIFO(sa.st_mode) || S_ISSOCK(sa.st_mode)) &&
                                       sa.st_dev == sb.st_dev && sa.st_ino == sb.st_ino);
}

bool cart_io_within(const char *path, const char *dir)
{
    struct stat st;
    char *file = final_name(path), *parent = file ? parent_of(file) : NULL;
    char *in = parent ? realpath(parent, NULL) : NULL;
    char *top = stat(dir, &st) == 0 && S_ISDIR(st.st_mode) ? realpath(dir, NULL) : NULL;
    size_t n = top ? strlen(top) : 0;
    bool within = in && top && strncmp(in, top, n) == 0 &&
                  (in[n] == '\0' || in[n] == '/' || top[n - 1] == '/');
    free(top);
    free(in);
    free(parent);
    free(file);
    return within;
}

int cart_io_companion(struct cart_buf *b, const char *path, const char *ending,
                      struct cart_err *err)
{
    char *name = final_name(path);
    if (!name)
        return cart_err_sys(err, "%s", path);
    int r = cart_buf_addf(b, err, "%s%s", name, ending);
    free(name);
    return r;
}

int cart_io_spare(struct cart_err *err)
{
    enum { SPARE = 4 };
    int fd[SPARE], n = 0, r = 0;
    while (n < SPARE && (fd[n] = fcntl(STDERR_FILENO, F_DUPFD_CLOEXEC, 0)) >= 0)
        n++;
    if (n < SPARE)
        r = cart_err_sys(err, "descriptors for the results");
    while (n > 0)
        close(fd[--n]);
    return r;
}

int cart_io_claim_fd(int fd, const char *name, struct cart_err *err)
{
    if (flock(fd, LOCK_EX | LOCK_NB) < 0 && errno == EWOULDBLOCK)
        return cart_err_set(err, CART_EAGAIN, "%s: another process is writing it", name);
    return 0;
}

bool cart_io_is_at(int fd, const char *path)
{
    struct stat have, named;
    return fstat(fd, &have) == 0 && lstat(path, &named) == 0 && named.st_dev == have.st_dev &&
           named.st_ino == have.st_ino;
}

/* The error of a claim that could not open the file. A link is not followed: it, and not what it
 * leads to, would be renamed or removed at the end. */
static int failed_claim(const char *path, struct cart_err *err)
{
    struct stat st;
    int sys = errno;
    bool link = sys == ELOOP && lstat(path, &st) == 0 && S_ISLNK(st.st_mode);
    errno = sys;
    if (sys == EISDIR || link)
        return cart_err_set(err, CART_EUSAGE, "%s: expected a regular file or none, found a %s",
                            path, link ? "symbolic link" : "directory");
    return failed_open(path, err);
}

int cart_io_claim(int *fd, const char *path, struct cart_err *err)
{
    for (;;) {
        struct stat have, named;
        int f = open(path, O_RDWR | O_CREAT | O_CLOEXEC | O_NONBLOCK | O_NOFOLLOW, 0666);
        if (f < 0)
            return failed_claim(path, err);
        int r = cart_io_claim_fd(f, path, err);
        if (r == 0 && fstat(f, &have) < 0)
            r = cart_err_sys(err, "%s", path);
        if (r == 0 && !S_ISREG(have.st_mode))
            r = cart_err_set(err, CART_EUSAGE, "%s: expected a regular file or none", path);
        bool there = r == 0 && lstat(path, &named) == 0;
        if (r == 0 && !there && errno != ENOENT)
            r = cart_err_sys(err, "%s", path);
        /* Whoever had it may have renamed it meanwhile: then the name is of another file, or
         * none. */
        if (there && named.st_dev == have.st_dev && named.st_ino == have.st_ino) {
            *fd = f;
            return 0;
        }
        close(f);
        if (r < 0)
            return r;
    }
}

/* Names ".NAME.PID-N.tmp" beside path: unique among our processes, and O_EXCL settles the rest. */
static char *temporary_name(const char *path, unsigned n)
{
    const char *slash = strrchr(path, '/');
    const char *base = slash ? slash + 1 : path;
    size_t cap = strlen(path) + 64;
    char *name = malloc(cap);
    if (name)
        snprintf(name, cap, "%.*s.%.200s.%ld-%u.tmp", (int)(base - path), path, base,
                 (long)getpid(), n);
    return name;
}

/* A file that vanishes with the process unless it is linked, so that not even SIGKILL leaves
 * litter. */
static int open_unnamed(const char *dir)
{
    if (access("/proc/self/fd", X_OK) != 0)
        return -1;
    return open(dir, O_TMPFILE | O_RDWR | O_CLOEXEC, 0666);
}

const char *cart_io_scratch_dir(void)
{
    const char *dir = getenv("TMPDIR");
    return dir && *dir ? dir : "/tmp";
}

int cart_io_scratch(int *out, const char *dir, struct cart_err *err)
{
    struct cart_buf path = CART_BUF_INIT;
    int r = 0, fd = open_unnamed(dir);
    if (fd < 0 && (r = cart_buf_addf(&path, err, "%s/cart-spool", dir)) == 0) {
        char *name = temporary_name(path.data, 0);
        if (!name)
            r = cart_err_memory(err, dir, 0);
        else if ((fd = open(name, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600)) < 0 ||
                 unlink(name) < 0)
            r = cart_err_sys(err, "%s: a scratch file in this folder", dir);
        free(name);
    }
    cart_buf_release(&path);
    if (r == 0)
        *out = fd;
    else if (fd >= 0)
        close(fd);
    return r;
}

static int open_beside(struct cart_output *o, struct cart_err *err)
{
    char *dir = parent_of(o->path);
    int fd = dir ? open_unnamed(dir) : -1;
    free(dir);
    if (!dir)
        return cart_err_memory(err, o->path, 0);
    o->unnamed = fd >= 0;
    for (unsigned n = 0;; n++) {
        o->tmp_path = temporary_name(o->path, n);
        if (!o->tmp_path) {
            if (fd >= 0)
                close(fd);
            return cart_err_memory(err, o->path, 0);
        }
        if (fd < 0)
            fd = open(o->tmp_path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
        if (fd >= 0)
            break;
        int sys = errno;
        free(o->tmp_path);
        o->tmp_path = NULL;
        errno = sys;
        if (sys != EEXIST || n == 999)
            return failed_open(o->path, err);
    }
    o->fd = fd;
    return 0;
}

/* Standard output, descriptors, devices and FIFOs: there is nothing to rename. */
static int accept_direct(struct cart_output *out, int fd, const char *name, bool text,
                         struct cart_err *err)
{
    if (!text && isatty(fd))
        return cart_err_set(err, CART_EUSAGE,
                            "%s: is a terminal: binary output goes to a file (-o) or a pipe", name);
    *out = (struct cart_output){.fd = fd};
    return 0;
}

/* A duplicate of a descriptor that was handed down to this process, whose place in its file and
 * O_APPEND stay what they are; -1: errno says why. What the process opened for itself is closed on
 * exec, and no name from outside means it. */
static int duplicate_of(int fd)
{
    int flags = fcntl(fd, F_GETFD), mode = fcntl(fd, F_GETFL);
    if (flags >= 0 && mode >= 0 && (flags & FD_CLOEXEC) == 0 && (mode & O_ACCMODE) != O_RDONLY)
        return fcntl(fd, F_DUPFD_CLOEXEC, STDERR_FILENO + 1);
    errno = EBADF;
    return -1;
}

static int open_direct(struct cart_output *out, const char *path, bool text, struct cart_err *err)
{
    int named = descriptor_of(path);
    int fd =
        named >= 0 ? duplicate_of(named) : open(path, O_WRONLY | O_APPEND | O_CLOEXEC | O_NOCTTY);
    if (fd < 0)
        return cart_err_sys(err, "%s", path);
    int r = accept_direct(out, fd, path, text, err);
    if (r < 0)
        close(fd);
    return r;
}

int cart_output_open(struct cart_output *out, const char *path, bool text, struct cart_err *err)
{
    if (is_standard_output(path))
        return accept_direct(out, STDOUT_FILENO, "standard output", text, err);
    struct stat st;
    bool exists = stat(path, &st) == 0;
    if (!exists && errno != ENOENT)
        return cart_err_sys(err, "%s", path);
    if ((exists && S_ISDIR(st.st_mode)) || path[0] == '\0' || path[strlen(path) - 1] == '/')
        return cart_err_set(err, CART_EUSAGE, "%s: expected the name of a file, found a directory",
                            path);
    if (cart_io_is_direct(path))
        return open_direct(out, path, text, err);
    struct cart_output o = {.fd = -1};
    o.path = final_name(path);
    if (!o.path)
        return cart_err_sys(err, "%s", path);
    int r = open_beside(&o, err);
    if (r < 0) {
        free(o.path);
        return r;
    }
    if (exists && fchmod(o.fd, st.st_mode & 07777) < 0) {
        r = cart_err_sys(err, "%s: setting its mode", path);
        cart_output_abandon(&o);
        return r;
    }
    *out = o;
    return 0;
}

/* Gives the nameless file its final name, if that is free, so that there is no moment at which a
 * killed process leaves another; else its temporary name. */
static int link_unnamed(struct cart_output *out, struct cart_err *err)
{
    char from[64];
    snprintf(from, sizeof from, "/proc/self/fd/%d", out->fd);
    if (linkat(AT_FDCWD, from, AT_FDCWD, out->path, AT_SYMLINK_FOLLOW) == 0) {
        free(out->tmp_path);
        out->tmp_path = NULL;
        return 0;
    }
    for (unsigned n = 1; linkat(AT_FDCWD, from, AT_FDCWD, out->tmp_path, AT_SYMLINK_FOLLOW) < 0;
         n++) {
        if (errno != EEXIST || n == 1000)
            return cart_err_sys(err, "%s", out->path);
        char *name = temporary_name(out->path, n);
        if (!name)
            return cart_err_memory(err, out->path, 0);
        free(out->tmp_path);
        out->tmp_path = name;
    }
    out->unnamed = false;
    return 0;
}

int cart_output_commit(struct cart_output *out, struct cart_err *err)
{
    int r = 0;
    if (!out->path) {
        /* cart_main_end closes standard output; a device is ours to close. */
        if (out->fd > STDERR_FILENO && close(out->fd) < 0)
            r = cart_err_sys(err, "output: closing");
        *out = (struct cart_output){0};
        return r;
    }
    if (fsync(out->fd) < 0)
        r = cart_err_sys(err, "%s: syncing", out->path);
    if (r == 0 && out->unnamed)
        r = link_unnamed(out, err);
    if (r == 0) {
        int fd = out->fd;
        out->fd = -1;
        if (close(fd) < 0) {
            r = cart_err_sys(err, "%s: closing", out->path);
            /* Without a temporary name it has its final one already. */
            if (!out->tmp_path)
                unlink(out->path);
        }
    }
    if (r == 0 && out->tmp_path && rename(out->tmp_path, out->path) < 0)
        r = cart_err_sys(err, "%s: renaming", out->path);
    if (r == 0) {
        free(out->tmp_path);
        out->tmp_path = NULL;
        r = sync_parent(out->path, err);
    }
    cart_output_abandon(out);
    return r;
}

void cart_output_abandon(struct cart_output *out)
{
    /* 0 to 2 are standard streams, or the fd of a zeroed struct: never ours to close. */
    if (out->fd > STDERR_FILENO)
        close(out->fd);
    if (out->tmp_path && !out->unnamed)
        unlink(out->tmp_path);
    free(out->tmp_path);
    free(out->path);
    *out = (struct cart_output){0};
}

/* To another file system a file is not renamed: its bytes go. */
static int copy_to(const char *to, int fd, const char *from, struct cart_err *err)
{
    struct cart_output out;
    struct cart_map map = {NULL, 0};
    int r = cart_map_fd(&map, fd, from, err);
    if (r == 0 && (r = cart_output_open(&out, to, false, err)) == 0) {
        if ((r = cart_io_write(out.fd, map.data, map.size, to, err)) == 0)
            r = cart_output_commit(&out, err);
        else
            cart_output_abandon(&out);
    }
    cart_map_release(&map);
    if (r == 0 && unlink(from) < 0)
        r = cart_err_sys(err, "%s: removing", from);
    return r;
}

int cart_io_publish(int fd, const char *from, const char *to, struct cart_err *err)
{
    struct stat st;
    bool exists = stat(to, &st) == 0;
    if (exists && !S_ISREG(st.st_mode))
        return cart_err_set(err, CART_EUSAGE, "%s: expected a regular file or none", to);
    if (!cart_io_is_at(fd, from))
        return cart_err_set(err, CART_EAGAIN, "%s: renamed, replaced or removed meanwhile", from);
    if (exists && fchmod(fd, st.st_mode & 07777) < 0)
        return cart_err_sys(err, "%s: setting its mode", from);
    if (fsync(fd) < 0)
        return cart_err_sys(err, "%s: syncing", from);
    char *name = final_name(to);
    if (!name)
        return cart_err_sys(err, "%s", to);
    /* Before the renaming, after which nothing may fail that could have been known. */
    int dir = -1, r = open_parent(&dir, name, err);
    if (r == 0 && rename(from, name) == 0) {
        r = sync_opened(dir, name, err);
    } else if (r == 0) {
        r = errno == EXDEV ? copy_to(name, fd, from, err)
                           : cart_err_sys(err, "%s: renaming to %s", from, name);
        close(dir);
    }
    free(name);
    return r;
}
