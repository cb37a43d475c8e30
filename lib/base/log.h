/* Words for people, on standard error: "cart-train: warning: ...". Used by tools and by what tools
 * pass in; rooms report through struct cart_err and progress callbacks, they never print. */
#ifndef CART_BASE_LOG_H
#define CART_BASE_LOG_H

#include "base/err.h"

enum cart_log_level {
    CART_LOG_ERROR,
    CART_LOG_WARNING,
    CART_LOG_NOTICE,
    CART_LOG_INFO,
    CART_LOG_DEBUG
};

/* verbosity: -1 for -q (errors only), 0 (up to notice), 1 for -v, 2 for -vv. program is borrowed.
 */
void cart_log_init(const char *program, int verbosity);
const char *cart_log_program(void);
/* "%zu conversation%s", n, CART_S(n). */
#define CART_S(n) ((n) == 1 ? "" : "s")
/* From here on, reading what a mapped file held before someone made it shorter (SIGBUS) ends the
 * program with one line and status 6, but where it is guarded (base/guard.h). */
void cart_log_short_maps(void);
void cart_log(enum cart_log_level level, const char *fmt, ...) CART_PRINTF(2, 3);

/* What a tool that is done says of the file that it wrote: "wrote FILE, 1.2 MiB: WORDS". Nothing
 * where path is no file. */
void cart_log_wrote(const char *path, const char *fmt, ...) CART_PRINTF(2, 3);

enum cart_progress_mode { CART_PROGRESS_AUTO, CART_PROGRESS_ALWAYS, CART_PROGRESS_NEVER };

/* A progress line: at most 6 a second on a terminal (rewritten in place), with rate and time left;
 * when forced on something that is no terminal, a plain line every ten seconds and one at the end.
 */
struct cart_progress {
    const char *noun; /* "conversations"; borrowed */
    double total;     /* 0 if unknown */
    double started;   /* seconds, monotonic */
    double shown;     /* when, monotonic */
    double done;      /* as of the last update */
    double skipped;   /* of done, what was there already */
    bool active, terminal;
};

void cart_progress_start(struct cart_progress *p, enum cart_progress_mode mode, const char *noun,
                         double total);
/* done: so much was there before, and says nothing about the rate. */
void cart_progress_skip(struct cart_progress *p, double done);
void cart_progress_update(struct cart_progress *p, double done,
                          const char *note); /* note may be NULL */
void cart_progress_end(struct cart_progress *p);

/* JSON events of a run for machines, appended to the file that CART_TRACE names; nothing without
 * it. Every process of a pipeline writes the same run id: CART_TRACE_RUN or, where that is not set,
 * one made of the session and the process group, which the stages of one shell pipeline share;
 * children inherit it. Each event is one line and one write:
 * {"event":...,"pid":...,"run":...,"time":seconds since 1970,"tool":...} with the members of
 * fields, the text of a JSON object or NULL, among them. Not for results: it holds clocks. */
void cart_trace(const char *event, const char *fields);

/* CART_EUSAGE where CART_TRACE names a file with other content than events, which appending would
 * damage; nothing is traced from then on. */
int cart_trace_check(struct cart_err *err) CART_MUST_USE;

#endif
