/* What a measuring program makes for a while and must not leave behind: files, folders, children.
 * They go when it ends, by exit or by a signal (INT, TERM, HUP, PIPE); children also when it is
 * killed. For programs with one thread that calls these; they print and exit. */
#ifndef CART_TESTS_HELPER_BENCH_TIDY_H
#define CART_TESTS_HELPER_BENCH_TIDY_H

#include <sys/resource.h>
#include <sys/types.h>

/* A file, or a folder that is empty then, to be removed at the end if it is there: what was named
 * last goes first. The name is copied. */
void bench_litter(const char *path);

/* A new folder in TMPDIR, and it is litter; the name stays. */
const char *bench_folder(void);

/* fork(): the child dies with this process, and its litter is not the parent's. */
pid_t bench_fork(void);

/* Waits for such a child; used may be NULL. Returns its status as the shell tells it: 128 and the
 * signal that killed it. */
int bench_wait(pid_t pid, struct rusage *used);

#endif
