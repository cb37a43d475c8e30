#include "base/clock.h"
#include "base/io.h"
#include "base/json.h"
#include "base/log.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

/* How long the reader of a FIFO may take to come, and to make room: one that was started in the
 * same moment is there by then, and where there is none the run goes on. */
#define PATIENCE 1.0

static int trace_fd = -1;
static bool torn; /* the file ends within a line, which a crash or a full disk has left */

/* Start of the session's first process in clock ticks since boot, so that a reused session number
 * makes another id. */
static unsigned long long session_start(long sid)
{
    char name[64];
    char line[1024];
    unsigned long long ticks = 0;
    snprintf(name, sizeof name, "/proc/%ld/stat", sid);
    FILE *f = fopen(name, "r");
    if (!f)
        return 0;
    if (fgets(line, sizeof line, f)) {
        /* The command stands in parentheses and may hold blanks: count fields behind the last one.
         */
        char *p = strrchr(line, ')');
        if (p &&
            sscanf(
                p + 1,
                " %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %llu",
                &ticks) != 1)
            ticks = 0;
    }
    fclose(f);
    return ticks;
}

static const char *run_id(void)
{
    const char *id = getenv("CART_TRACE_RUN");
    if (id && *id)
        return id;
    char made[64];
    long sid = (long)getsid(0);
    snprintf(made, sizeof made, "%llx-%lx-%lx", session_start(sid), (unsigned long)sid,
             (unsigned long)getpgrp());
    setenv("CART_TRACE_RUN", made, 1);
    id = getenv("CART_TRACE_RUN");
    return id ? id : "";
}

/* Whether the first line of a file, or as much of it as fits, is an event: each names its kind, and
 * the long ones begin with the command line. */
static bool is_events(const char *path)
{
    static const char start[] = "{\"argv\":[";
    char line[4096];
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOCTTY);
    if (fd < 0)
        return true; /* may be written only: not a file that was made to be read */
    ssize_t n = read(fd, line, sizeof line - 1);
    close(fd);
    if (n <= 0)
        return n == 0;
    line[n] = '\0';
    line[strcspn(line, "\n")] = '\0';
    return strncmp(line, start, sizeof start - 1) == 0 ||
           (line[0] == '{' && strstr(line, "\"event\":\"") != NULL);
}

int cart_trace_check(struct cart_err *err)
{
    const char *path = getenv("CART_TRACE");
    struct stat st;
    if (!path || !*path || cart_io_is_direct(path) || stat(path, &st) != 0 ||
        !S_ISREG(st.st_mode) || is_events(path))
        return 0;
    cart_err_set(err, CART_EUSAGE,
                 "CART_TRACE: %s: expected a file of events or none, found other content", path);
    unsetenv("CART_TRACE");
    return CART_EUSAGE;
}

static bool ends_torn(const char *path, int fd)
{
    struct stat st;
    char last = '\n';
    if (fstat(fd, &st) < 0 || !S_ISREG(st.st_mode) || st.st_size == 0)
        return false;
    int in = open(path, O_RDONLY | O_CLOEXEC | O_NOCTTY);
    if (in < 0)
        return false; /* may be written only */
    if (pread(in, &last, 1, st.st_size - 1) != 1)
        last = '\n';
    close(in);
    return last != '\n';
}

static bool open_trace(void)
{
    const char *path = getenv("CART_TRACE");
    static const struct timespec moment = {0, 10000000};
    if (trace_fd >= 0)
        return true;
    if (!path || !*path)
        return false;
    /* A socket and a device that is not there make open() say ENXIO too, and go on doing so. */
    struct stat st;
    bool fifo = stat(path, &st) == 0 && S_ISFIFO(st.st_mode);
    double until = cart_clock_now() + PATIENCE;
    for (;;) {
        trace_fd =
            open(path, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC | O_NOCTTY | O_NONBLOCK, 0666);
        if (trace_fd >= 0 || errno != ENXIO || !fifo || cart_clock_now() > until)
            break;
        nanosleep(&moment, NULL);
    }
    torn = trace_fd >= 0 && ends_torn(path, trace_fd);
    if (trace_fd < 0) {
        struct cart_err err;
        cart_err_sys(&err, "CART_TRACE: %s", path);
        cart_log(CART_LOG_WARNING, "%s", err.msg);
        unsetenv("CART_TRACE");
    }
    return trace_fd >= 0;
}

/* A write whose reader may have gone: EPIPE, and no SIGPIPE, which a thread gets for its own writes
 * only. One that was pending before stays so. */
static ssize_t write_alive(int fd, const void *bytes, size_t n)
{
    static const struct timespec now = {0, 0};
    sigset_t set, before, pending;
    sigemptyset(&set);
    sigaddset(&set, SIGPIPE);
    sigemptyset(&pending);
    (void)sigpending(&pending);
    pthread_sigmask(SIG_BLOCK, &set, &before);
    ssize_t put;
    do
        put = write(fd, bytes, n);
    while (put < 0 && errno == EINTR);
    int saved = errno;
    if (put < 0 && saved == EPIPE && !sigismember(&pending, SIGPIPE))
        while (sigtimedwait(&set, NULL, &now) < 0 && errno == EINTR)
            ;
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    errno = saved;
    return put;
}

/* One write, so that lines of several processes do not mix, but for a line that is larger than what
 * a pipe takes at once. What fails is said once. */
static void put_line(const struct cart_buf *line)
{
    struct cart_err err;
    const char *at = line->data;
    size_t left = line->len;
    while (left > 0) {
        ssize_t put = write_alive(trace_fd, at, left);
        struct pollfd p = {.fd = trace_fd, .events = POLLOUT};
        if (put < 0 && errno == EAGAIN && poll(&p, 1, (int)(1000 * PATIENCE)) > 0)
            continue;
        if (put < 0)
            break;
        at += put;
        left -= (size_t)put;
    }
    if (left == 0)
        return;
    cart_err_sys(&err, "CART_TRACE: %s: writing", getenv("CART_TRACE"));
    cart_log(CART_LOG_WARNING, "%s", err.msg);
    close(trace_fd);
    trace_fd = -1;
    unsetenv("CART_TRACE");
}

void cart_trace(const char *event, const char *fields)
{
    if (!open_trace())
        return;
    struct timespec ts = {0, 0};
    clock_gettime(CLOCK_REALTIME, &ts);
    json_t *own = json_pack("{s:s, s:s, s:s, s:i, s:f}", "event", event, "tool", cart_log_program(),
                            "run", run_id(), "pid", (int)getpid(), "time",
                            (double)ts.tv_sec + 1e-9 * (double)ts.tv_nsec);
    json_t *more = NULL;
    struct cart_buf line = CART_BUF_INIT;
    /* Tracing is a help for people who look at a run: it never makes the run fail. */
    if (own && fields && cart_json_parse(&more, fields, strlen(fields), "trace", NULL) == 0)
        json_object_update_missing(own, more);
    int r = torn ? cart_buf_add(&line, "\n", 1, NULL) : 0;
    torn = false;
    if (r == 0 && own && cart_json_dump(own, &line, NULL) == 0 &&
        cart_buf_add(&line, "\n", 1, NULL) == 0)
        put_line(&line);
    cart_buf_release(&line);
    json_decref(more);
    json_decref(own);
}
