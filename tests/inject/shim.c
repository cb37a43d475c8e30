/* A preloaded library that makes one call of a program fail, come short or be its last. It counts
 * the calls of one class from the start of main to its return (what libraries do before main is out
 * of our hands), and acts at the n-th. Calls that the C library makes inside itself, as stdio does,
 * do not pass here.
 *
 *   CART_INJECT        MODE:N, N from 1 on; 0 only counts
 *       alloc-once     memory, mappings, threads: the n-th is refused
 *       alloc-rest     the n-th and all after it
 *       io-fail        transfers, syncs, names, opens, closes: the n-th fails, with an error of its
 *                      kind
 *       io-short       transfers of more than one byte: the n-th moves half
 *       io-eintr       transfers: the n-th is interrupted by a signal that asks for nothing
 *       disk-full      what changes files: from the n-th on, all that needs room fails with ENOSPC
 *       kill-before    SIGKILL before the n-th change of a file
 *       kill-after     SIGKILL after it; a write has moved half by then
 *   CART_INJECT_COUNT  file that takes the number of points when main returns
 *   CART_INJECT_LOG    file that takes a line for each call that was made to fail, and of io-fail:0
 *                      for each that changed a file: the point, the numbers of the file and of the
 *                      folder where it gets a name, the call
 *   CART_INJECT_SLOW   milliseconds that every fsync takes longer
 *   CART_INJECT_NAMED  set: no file without a name can be opened, as on file systems that lack
 *                      them */
#define _GNU_SOURCE
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <malloc.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

enum mode {
    NONE,
    ALLOC_ONCE,
    ALLOC_REST,
    IO_FAIL,
    IO_SHORT,
    IO_EINTR,
    DISK_FULL,
    KILL_BEFORE,
    KILL_AFTER
};
enum kind { ALLOC, TRANSFER_IN, TRANSFER_OUT, CHANGE, REMOVAL, LOOK };
enum act { GO, FAIL, HALF, DIE_AFTER };

static const char *const mode_names[] = {
    [ALLOC_ONCE] = "alloc-once",   [ALLOC_REST] = "alloc-rest", [IO_FAIL] = "io-fail",
    [IO_SHORT] = "io-short",       [IO_EINTR] = "io-eintr",     [DISK_FULL] = "disk-full",
    [KILL_BEFORE] = "kill-before", [KILL_AFTER] = "kill-after"};

static enum mode mode;
static unsigned long at;
static bool no_unnamed;
static atomic_int on;
static atomic_ulong count;
static _Thread_local unsigned long point; /* the last that was counted */

/* The definition of a function that comes after this one. */
#define NEXT(name)                                                                                 \
    static __typeof__(name) *next;                                                                 \
    if (!next)                                                                                     \
    *(void **)&next = dlsym(RTLD_NEXT, #name)

/* Whether calls of this kind are points of the mode. */
static bool counts(enum kind kind, size_t bytes)
{
    switch (mode) {
    case ALLOC_ONCE:
    case ALLOC_REST:
        return kind == ALLOC;
    case IO_FAIL:
        return kind != ALLOC;
    case IO_SHORT:
        return (kind == TRANSFER_IN || kind == TRANSFER_OUT) && bytes > 1;
    case IO_EINTR:
        return kind == TRANSFER_IN || kind == TRANSFER_OUT;
    case DISK_FULL:
        return kind == TRANSFER_OUT || kind == CHANGE;
    case KILL_BEFORE:
    case KILL_AFTER:
        return kind == TRANSFER_OUT || kind == CHANGE || kind == REMOVAL;
    default:
        return false;
    }
}

/* What becomes of a call; sys is the error of its kind. */
static enum act decide(enum kind kind, size_t bytes, int sys)
{
    if (!atomic_load(&on) || !counts(kind, bytes))
        return GO;
    unsigned long n = point = atomic_fetch_add(&count, 1) + 1;
    bool all = mode == ALLOC_REST || mode == DISK_FULL;
    if (at == 0 || n < at || (n > at && !all))
        return GO;
    errno = mode == IO_EINTR ? EINTR : mode == DISK_FULL ? ENOSPC : sys;
    switch (mode) {
    case IO_SHORT:
        return HALF;
    case KILL_BEFORE:
        raise(SIGKILL);
        return GO;
    case KILL_AFTER:
        return kind == TRANSFER_OUT && bytes > 1 ? HALF : DIE_AFTER;
    default:
        return FAIL;
    }
}

/* ---- the log ---- */

struct who {
    unsigned long long file, folder;
    bool nameless; /* what is lost with such a file nobody misses */
};

/* Descriptors through which a file was changed and not synced since. */
static atomic_bool unsynced[1024];

static const char *log_path;
static char log_text[(size_t)1 << 20];
static atomic_size_t log_bytes;

static struct who of_fd(int fd)
{
    struct stat st;
    struct who w = {0};
    int sys = errno;
    if (log_path && fstat(fd, &st) == 0) {
        w.file = st.st_ino;
        w.nameless = st.st_nlink == 0;
    }
    errno = sys;
    return w;
}

static struct who of_names(int a, const char *from, int b, const char *to)
{
    struct stat st;
    struct who w = {0};
    char folder[4096];
    int sys = errno;
    if (log_path && fstatat(a, from, &st, 0) == 0)
        w.file = st.st_ino;
    snprintf(folder, sizeof folder, "%s", to);
    char *slash = strrchr(folder, '/');
    if (slash)
        slash[slash == folder] = '\0';
    if (log_path && fstatat(b, slash ? folder : ".", &st, 0) == 0)
        w.folder = st.st_ino;
    errno = sys;
    return w;
}

static void changed(int fd, bool yes)
{
    if (fd >= 0 && (size_t)fd < sizeof unsynced / sizeof *unsynced)
        atomic_store(&unsynced[fd], yes);
}

static void note(enum act act, const char *name, struct who w, bool done)
{
    char line[100];
    int sys = errno;
    if (!log_path || !atomic_load(&on) || (act != FAIL && !(mode == IO_FAIL && at == 0 && done)))
        return;
    size_t n =
        (size_t)snprintf(line, sizeof line, "%lu %llu %llu %s\n", point, w.file, w.folder, name);
    size_t place = atomic_fetch_add(&log_bytes, n);
    if (place + n > sizeof log_text) {
        fprintf(stderr, "shim: CART_INJECT_LOG: more than %zu bytes\n", sizeof log_text);
        _exit(99);
    }
    memcpy(log_text + place, line, n);
    errno = sys;
}

static void after(enum act act)
{
    if (mode == KILL_AFTER && act != GO)
        raise(SIGKILL);
}

/* ---- memory, mappings, threads ---- */

void *malloc(size_t n)
{
    NEXT(malloc);
    return decide(ALLOC, n, ENOMEM) == GO ? next(n) : NULL;
}

void *calloc(size_t n, size_t size)
{
    NEXT(calloc);
    return decide(ALLOC, n, ENOMEM) == GO ? next(n, size) : NULL;
}

void *realloc(void *p, size_t n)
{
    NEXT(realloc);
    return decide(ALLOC, n, ENOMEM) == GO ? next(p, n) : NULL;
}

void *reallocarray(void *p, size_t n, size_t size)
{
    NEXT(reallocarray);
    return decide(ALLOC, n, ENOMEM) == GO ? next(p, n, size) : NULL;
}

void *aligned_alloc(size_t alignment, size_t n)
{
    NEXT(aligned_alloc);
    return decide(ALLOC, n, ENOMEM) == GO ? next(alignment, n) : NULL;
}

void *memalign(size_t alignment, size_t n)
{
    NEXT(memalign);
    return decide(ALLOC, n, ENOMEM) == GO ? next(alignment, n) : NULL;
}

int posix_memalign(void **out, size_t alignment, size_t n)
{
    NEXT(posix_memalign);
    return decide(ALLOC, n, ENOMEM) == GO ? next(out, alignment, n) : ENOMEM;
}

void *mmap(void *p, size_t n, int prot, int flags, int fd, off_t offset)
{
    NEXT(mmap);
    return decide(ALLOC, n, ENOMEM) == GO ? next(p, n, prot, flags, fd, offset) : MAP_FAILED;
}

int pthread_create(pthread_t *t, const pthread_attr_t *attr, void *(*run)(void *), void *arg)
{
    NEXT(pthread_create);
    return decide(ALLOC, 0, EAGAIN) == GO ? next(t, attr, run, arg) : EAGAIN;
}

/* ---- transfers ---- */

#define HALVED(act, n) ((act) == HALF ? (n) / 2 : (n))

ssize_t read(int fd, void *p, size_t n)
{
    NEXT(read);
    enum act act = decide(TRANSFER_IN, n, EIO);
    return act == FAIL ? -1 : next(fd, p, HALVED(act, n));
}

ssize_t pread(int fd, void *p, size_t n, off_t offset)
{
    NEXT(pread);
    enum act act = decide(TRANSFER_IN, n, EIO);
    return act == FAIL ? -1 : next(fd, p, HALVED(act, n), offset);
}

ssize_t pread64(int fd, void *p, size_t n, off_t offset)
{
    return pread(fd, p, n, offset);
}

ssize_t write(int fd, const void *p, size_t n)
{
    NEXT(write);
    enum act act = decide(TRANSFER_OUT, n, EIO);
    ssize_t put = act == FAIL ? -1 : next(fd, p, HALVED(act, n));
    note(act, "write", of_fd(fd), put >= 0);
    changed(fd, true);
    after(act);
    return put;
}

ssize_t pwrite(int fd, const void *p, size_t n, off_t offset)
{
    NEXT(pwrite);
    enum act act = decide(TRANSFER_OUT, n, EIO);
    ssize_t put = act == FAIL ? -1 : next(fd, p, HALVED(act, n), offset);
    note(act, "write", of_fd(fd), put >= 0);
    changed(fd, true);
    after(act);
    return put;
}

ssize_t pwrite64(int fd, const void *p, size_t n, off_t offset)
{
    return pwrite(fd, p, n, offset);
}

/* Half of a list of pieces is its first piece. */
ssize_t writev(int fd, const struct iovec *v, int n)
{
    NEXT(writev);
    enum act act = decide(TRANSFER_OUT, n > 1 ? 2 : 0, EIO);
    ssize_t put = act == FAIL ? -1 : next(fd, v, act == HALF ? 1 : n);
    note(act, "write", of_fd(fd), put >= 0);
    changed(fd, true);
    after(act);
    return put;
}

/* ---- changes and looks ---- */

#define CALL(kind, whose, name, ...)                                                               \
    NEXT(name);                                                                                    \
    struct who w = whose;                                                                          \
    enum act act = decide(kind, 0, EIO);                                                           \
    int r = act == FAIL ? -1 : next(__VA_ARGS__);                                                  \
    note(act, #name, w, r == 0);                                                                   \
    after(act);                                                                                    \
    return r

int fsync(int fd)
{
    const char *slow = getenv("CART_INJECT_SLOW");
    if (slow)
        (void)poll(NULL, 0, atoi(slow));
    changed(fd, false);
    CALL(CHANGE, of_fd(fd), fsync, fd);
}

int fdatasync(int fd)
{
    changed(fd, false);
    CALL(CHANGE, of_fd(fd), fdatasync, fd);
}

int ftruncate(int fd, off_t n)
{
    changed(fd, true);
    CALL(CHANGE, of_fd(fd), ftruncate, fd, n);
}

int ftruncate64(int fd, off_t n)
{
    return ftruncate(fd, n);
}

int rename(const char *from, const char *to)
{
    CALL(CHANGE, of_names(AT_FDCWD, from, AT_FDCWD, to), rename, from, to);
}

int renameat(int a, const char *from, int b, const char *to)
{
    CALL(CHANGE, of_names(a, from, b, to), renameat, a, from, b, to);
}

int link(const char *from, const char *to)
{
    CALL(CHANGE, of_names(AT_FDCWD, from, AT_FDCWD, to), link, from, to);
}

int linkat(int a, const char *from, int b, const char *to, int flags)
{
    CALL(CHANGE, of_names(a, from, b, to), linkat, a, from, b, to, flags);
}

int unlink(const char *path)
{
    CALL(REMOVAL, (struct who){0}, unlink, path);
}

int fchmod(int fd, mode_t bits)
{
    CALL(CHANGE, of_fd(fd), fchmod, fd, bits);
}

off_t lseek(int fd, off_t offset, int whence)
{
    NEXT(lseek);
    return decide(LOOK, 0, EIO) == FAIL ? -1 : next(fd, offset, whence);
}

off_t lseek64(int fd, off_t offset, int whence)
{
    return lseek(fd, offset, whence);
}

DIR *opendir(const char *path)
{
    NEXT(opendir);
    return decide(LOOK, 0, EIO) == FAIL ? NULL : next(path);
}

struct dirent *readdir(DIR *d)
{
    NEXT(readdir);
    return decide(LOOK, 0, EIO) == FAIL ? NULL : next(d);
}

static int open_as(int dir, const char *path, int flags, mode_t bits)
{
    NEXT(openat);
    bool unnamed = (flags & O_TMPFILE) == O_TMPFILE;
    if (unnamed && no_unnamed) {
        errno = EOPNOTSUPP;
        return -1;
    }
    enum act act = decide(flags & O_CREAT || unnamed ? CHANGE : LOOK, 0, EIO);
    int fd = act == FAIL ? -1 : next(dir, path, flags, bits);
    note(act,
         unnamed           ? "open without a name"
         : flags & O_CREAT ? "creation"
                           : "open",
         of_fd(fd), false);
    after(act);
    return fd;
}

#define WITH_BITS                                                                                  \
    va_list ap;                                                                                    \
    va_start(ap, flags);                                                                           \
    mode_t bits = flags & O_CREAT || (flags & O_TMPFILE) == O_TMPFILE ? va_arg(ap, mode_t) : 0;    \
    va_end(ap)

int open(const char *path, int flags, ...)
{
    WITH_BITS;
    return open_as(AT_FDCWD, path, flags, bits);
}

int open64(const char *path, int flags, ...)
{
    WITH_BITS;
    return open_as(AT_FDCWD, path, flags, bits);
}

int openat(int dir, const char *path, int flags, ...)
{
    WITH_BITS;
    return open_as(dir, path, flags, bits);
}

/* As on Linux, a descriptor whose closing fails is closed all the same. */
int close(int fd)
{
    NEXT(close);
    struct who w = of_fd(fd);
    int r = next(fd);
    enum act act = decide(LOOK, 0, EIO);
    bool late =
        fd >= 0 && (size_t)fd < sizeof unsynced / sizeof *unsynced && unsynced[fd] && !w.nameless;
    note(act, late ? "close" : "close of nothing new", w, false);
    changed(fd, false);
    return act == FAIL ? -1 : r;
}

/* ---- the start ---- */

static int (*program_main)(int, char **, char **);

static void report(void)
{
    const char *path = getenv("CART_INJECT_COUNT");
    FILE *f = log_path ? fopen(log_path, "w") : NULL;
    if (f) {
        fwrite(log_text, 1, atomic_load(&log_bytes), f);
        fclose(f);
    }
    f = path ? fopen(path, "w") : NULL;
    if (f) {
        fprintf(f, "%lu\n", atomic_load(&count));
        fclose(f);
    }
}

static int counted_main(int argc, char **argv, char **env)
{
    const char *what = getenv("CART_INJECT");
    const char *colon = what ? strchr(what, ':') : NULL;
    for (size_t i = 1; colon && i < sizeof mode_names / sizeof *mode_names; i++)
        if (strncmp(what, mode_names[i], (size_t)(colon - what)) == 0)
            mode = (enum mode)i;
    if (!colon || mode == NONE) {
        fprintf(stderr, "shim: CART_INJECT: expected MODE:N, found %s\n", what ? what : "nothing");
        _exit(99);
    }
    at = strtoul(colon + 1, NULL, 10);
    no_unnamed = getenv("CART_INJECT_NAMED") != NULL;
    log_path = getenv("CART_INJECT_LOG");
    unsetenv("LD_PRELOAD");
    atomic_store(&on, 1);
    int status = program_main(argc, argv, env);
    atomic_store(&on, 0);
    report();
    return status;
}

int __libc_start_main(int (*main_fn)(int, char **, char **), int argc, char **argv,
                      void (*init)(void), void (*fini)(void), void (*rtld_fini)(void),
                      void *stack_end);

int __libc_start_main(int (*main_fn)(int, char **, char **), int argc, char **argv,
                      void (*init)(void), void (*fini)(void), void (*rtld_fini)(void),
                      void *stack_end)
{
    NEXT(__libc_start_main);
    program_main = main_fn;
    return next(counted_main, argc, argv, init, fini, rtld_fini, stack_end);
}
