#define _GNU_SOURCE /* wait4, mkdtemp, program_invocation_short_name */
#include "helper/bench_tidy.h"

#include "base/attr.h"
#include "base/io.h"
#include "helper/bench_args.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

enum { SYSTEM = 5, MOST = 32, CHILDREN = 8 };

static const int ends[] = {SIGINT, SIGTERM, SIGHUP, SIGPIPE};

/* Changed with the signals blocked; read by the handler, too. */
static char *litter[MOST];
static size_t n_litter;
static pid_t children[CHILDREN]; /* 0: none */
static pid_t owner;              /* who installed the handler and the end */

/* Calls only what a handler may. A child that is stopped writes no more. */
static void tidy(void)
{
    for (size_t i = 0; i < CHILDREN; i++)
        if (children[i] > 0 && kill(children[i], SIGKILL) == 0)
            waitpid(children[i], NULL, 0);
    while (n_litter > 0)
        if (unlink(litter[--n_litter]) != 0)
            rmdir(litter[n_litter]);
}

static void at_exit(void)
{
    if (getpid() == owner)
        tidy();
}

static void on_signal(int sig)
{
    tidy();
    signal(sig, SIG_DFL);
    kill(getpid(), sig);
}

static void block(sigset_t *old)
{
    sigset_t set;
    sigemptyset(&set);
    for (size_t i = 0; i < CART_COUNTOF(ends); i++)
        sigaddset(&set, ends[i]);
    sigprocmask(SIG_BLOCK, &set, old);
}

static void unblock(const sigset_t *old)
{
    sigprocmask(SIG_SETMASK, old, NULL);
}

/* Once in each process; with the signals blocked. */
static void install(void)
{
    struct sigaction action = {.sa_handler = on_signal}, before;
    if (owner == 0)
        atexit(at_exit);
    if (owner == getpid())
        return;
    owner = getpid();
    sigfillset(&action.sa_mask);
    for (size_t i = 0; i < CART_COUNTOF(ends); i++)
        if (sigaction(ends[i], NULL, &before) == 0 && before.sa_handler != SIG_IGN)
            sigaction(ends[i], &action, NULL);
}

/* With the signals blocked. */
static char *add(const char *path)
{
    char *copy = strdup(path);
    install();
    if (copy == NULL || n_litter == MOST)
        bench_die(SYSTEM, "%s: cannot be kept in mind", path);
    litter[n_litter++] = copy;
    return copy;
}

void bench_litter(const char *path)
{
    sigset_t old;
    block(&old);
    add(path);
    unblock(&old);
}

const char *bench_folder(void)
{
    char path[4096];
    sigset_t old;
    snprintf(path, sizeof path, "%s/%s.XXXXXX", cart_io_scratch_dir(),
             program_invocation_short_name);
    block(&old);
    if (mkdtemp(path) == NULL)
        bench_die(SYSTEM, "%s: %s", path, strerror(errno));
    char *made = add(path);
    unblock(&old);
    return made;
}

pid_t bench_fork(void)
{
    pid_t parent = getpid();
    size_t i = 0;
    sigset_t old;
    block(&old);
    install();
    while (i < CHILDREN && children[i] != 0)
        i++;
    fflush(stdout);
    pid_t pid = i < CHILDREN ? fork() : -1;
    if (pid < 0)
        bench_die(SYSTEM, "fork: %s", strerror(errno));
    if (pid > 0) {
        children[i] = pid;
    } else {
        n_litter = 0;
        memset(children, 0, sizeof children);
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        if (getppid() != parent)
            _exit(SYSTEM);
    }
    unblock(&old);
    return pid;
}

int bench_wait(pid_t pid, struct rusage *used)
{
    int status = 0;
    while (wait4(pid, &status, 0, used) < 0)
        if (errno != EINTR)
            bench_die(SYSTEM, "wait: %s", strerror(errno));
    for (size_t i = 0; i < CHILDREN; i++)
        if (children[i] == pid)
            children[i] = 0;
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}
