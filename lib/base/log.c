#define _DEFAULT_SOURCE /* TIOCGWINSZ */
#include "base/log.h"

#include "base/clock.h"
#include "base/guard.h"
#include "base/io.h"
#include "base/jobserver.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <unistd.h>

#define PROGRESS_TERMINAL_SECONDS (1.0 / 6)
#define PROGRESS_PLAIN_SECONDS 10.0

static const char *program_name = "cart";
static int level_max = CART_LOG_NOTICE;
static bool line_open; /* a progress line stands on the terminal and must be cleared first */

void cart_log_init(const char *program, int verbosity)
{
    program_name = program;
    level_max = verbosity < 0    ? CART_LOG_ERROR
                : verbosity == 0 ? CART_LOG_NOTICE
                : verbosity == 1 ? CART_LOG_INFO
                                 : CART_LOG_DEBUG;
}

const char *cart_log_program(void)
{
    return program_name;
}

void cart_log(enum cart_log_level level, const char *fmt, ...)
{
    static const char *const words[] = {
        [CART_LOG_ERROR] = "", [CART_LOG_WARNING] = "warning: ", [CART_LOG_NOTICE] = "",
        [CART_LOG_INFO] = "",  [CART_LOG_DEBUG] = "debug: ",
    };
    if ((int)level > level_max)
        return;
    char text[1024];
    char safe[2048];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    /* Names of files and keys from outside must not steer the terminal. */
    cart_err_escape(safe, sizeof safe, text, strlen(text));
    fprintf(stderr, "%s%s: %s%s\n", line_open ? "\r\033[K" : "", program_name, words[level], safe);
    line_open = false;
}

/* Without the bytes only who has guarded them can go on, and only what is safe in a signal handler
 * may be called. */
static void on_short_map(int sig, siginfo_t *info, void *context)
{
    static const char text[] = ": a file became shorter while it was read\n";
    int saved = errno;
    (void)sig;
    (void)context;
    if (cart_guard_fill(info->si_addr)) {
        errno = saved;
        return;
    }
    ssize_t put = write(STDERR_FILENO, program_name, strlen(program_name));
    put = write(STDERR_FILENO, text, sizeof text - 1);
    (void)put;
    cart_jobserver_release();
    _exit(6);
}

void cart_log_short_maps(void)
{
    struct sigaction sa;
    memset(&sa, 0, sizeof sa);
    sigemptyset(&sa.sa_mask);
    sa.sa_flags = SA_SIGINFO;
    sa.sa_sigaction = on_short_map;
    sigaction(SIGBUS, &sa, NULL);
}

void cart_log_wrote(const char *path, const char *fmt, ...)
{
    char words[256];
    struct stat st;
    if (cart_io_is_direct(path) || stat(path, &st) < 0)
        return;
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(words, sizeof words, fmt, ap);
    va_end(ap);
    const char *const units[] = {"bytes", "KiB", "MiB", "GiB"};
    double size = (double)st.st_size;
    size_t u = 0;
    for (; size >= 1024.0 && u + 1 < CART_COUNTOF(units); u++)
        size /= 1024.0;
    cart_log(CART_LOG_NOTICE, "wrote %s, %.*f %s%s%s", path, u > 0, size, units[u],
             words[0] ? ": " : "", words);
}

void cart_progress_start(struct cart_progress *p, enum cart_progress_mode mode, const char *noun,
                         double total)
{
    bool terminal = isatty(STDERR_FILENO) == 1;
    *p = (struct cart_progress){
        .noun = noun, .total = total, .started = cart_clock_now(), .terminal = terminal};
    p->shown = terminal ? 0 : p->started;
    p->active = mode == CART_PROGRESS_ALWAYS ||
                (mode == CART_PROGRESS_AUTO && terminal && level_max > CART_LOG_ERROR);
}

static size_t put_duration(char *out, size_t cap, double seconds)
{
    int n;
    if (!(seconds < 1e7))
        n = snprintf(out, cap, "very long");
    else if (seconds >= 3600)
        n = snprintf(out, cap, "%d h %02d min", (int)(seconds / 3600), (int)(seconds / 60) % 60);
    else if (seconds >= 60)
        n = snprintf(out, cap, "%d min %02d s", (int)(seconds / 60), (int)seconds % 60);
    else
        n = snprintf(out, cap, "%.*f s", seconds < 10 ? 1 : 0, seconds);
    return n > 0 ? (size_t)n : 0;
}

static void put_line(const struct cart_progress *p, double now, const char *note, char *out,
                     size_t cap)
{
    char left[48] = "";
    char count[64];
    double spent = now - p->started;
    double rate = spent > 0 ? (p->done - p->skipped) / spent : 0;
    if (p->total > 0)
        snprintf(count, sizeof count, "%.0f/%.0f", p->done, p->total);
    else
        snprintf(count, sizeof count, "%.0f", p->done);
    if (p->total > p->done && rate > 0) {
        memcpy(left, ", ", 2);
        size_t n = put_duration(left + 2, sizeof left - 8, (p->total - p->done) / rate);
        snprintf(left + 2 + n, sizeof left - 2 - n, " left");
    } else {
        memcpy(left, " in ", 4);
        put_duration(left + 4, sizeof left - 4, spent);
    }
    snprintf(out, cap, "%s: %s %s, %.*f/s%s%s%s", program_name, count, p->noun, rate < 10 ? 2 : 0,
             rate, left, note && *note ? ", " : "", note ? note : "");
}

static size_t terminal_width(void)
{
    struct winsize w;
    if (ioctl(STDERR_FILENO, TIOCGWINSZ, &w) == 0 && w.ws_col > 1)
        return w.ws_col;
    return 80;
}

static void show(struct cart_progress *p, double now, const char *note, bool last)
{
    char line[512];
    put_line(p, now, note, line, sizeof line);
    p->shown = now;
    if (!p->terminal) {
        fprintf(stderr, "%s\n", line);
        return;
    }
    /* A line that wrapped could not be rewritten in place. */
    int width = (int)terminal_width() - 1;
    fprintf(stderr, "\r\033[K%.*s%s", width, line, last ? "\n" : "");
    fflush(stderr);
    line_open = !last;
}

void cart_progress_skip(struct cart_progress *p, double done)
{
    p->done = p->skipped = done;
}

void cart_progress_update(struct cart_progress *p, double done, const char *note)
{
    p->done = done;
    if (!p->active)
        return;
    double now = cart_clock_now();
    if (now - p->shown >= (p->terminal ? PROGRESS_TERMINAL_SECONDS : PROGRESS_PLAIN_SECONDS))
        show(p, now, note, false);
}

void cart_progress_end(struct cart_progress *p)
{
    if (p->active)
        show(p, cart_clock_now(), NULL, true);
    p->active = false;
}
