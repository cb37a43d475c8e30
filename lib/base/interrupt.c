#include "base/interrupt.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <string.h>
#include <unistd.h>

static volatile sig_atomic_t arrived; /* the signal, 0 if none */

/* A flag that is asked before a wait misses the signal that comes between the two; a byte in a pipe
 * stays. */
static int woken[2] = {-1, -1};

/* The two signals, and what they did before they were caught: the default, or the jobserver's. */
static struct caught {
    int sig;
    struct sigaction before;
} caught[] = {{.sig = SIGINT}, {.sig = SIGTERM}};

/* The second signal, of either kind, meets what was there before, and kills at once. */
static void note(int sig)
{
    int saved = errno;
    arrived = sig;
    ssize_t put = write(woken[1], "", 1);
    (void)put;
    errno = saved;
    for (size_t i = 0; i < sizeof caught / sizeof *caught; i++)
        sigaction(caught[i].sig, &caught[i].before, NULL);
}

/* A signal that is ignored, as INT is for background jobs of a shell and under nohup, stays
 * ignored. */
static void catch_unless_ignored(struct caught *c)
{
    struct sigaction sa;
    if (sigaction(c->sig, NULL, &sa) < 0 || sa.sa_handler == note)
        return;
    c->before = sa;
    if (sa.sa_handler == SIG_IGN)
        return;
    memset(&sa, 0, sizeof sa);
    sa.sa_handler = note;
    sigemptyset(&sa.sa_mask);
    sigaction(c->sig, &sa, NULL);
}

/* Without it, a signal ends a wait only where it comes within. */
static void open_pipe(void)
{
    if (woken[0] >= 0 || pipe(woken) < 0)
        return;
    for (int i = 0; i < 2; i++)
        (void)fcntl(woken[i], F_SETFD, FD_CLOEXEC);
}

void cart_interrupt_install(void)
{
    open_pipe();
    catch_unless_ignored(&caught[0]);
    catch_unless_ignored(&caught[1]);
}

static void release(const struct caught *c)
{
    struct sigaction sa;
    if (sigaction(c->sig, NULL, &sa) == 0 && sa.sa_handler == note)
        sigaction(c->sig, &c->before, NULL);
}

void cart_interrupt_release(void)
{
    release(&caught[0]);
    release(&caught[1]);
}

int cart_interrupt_fd(void)
{
    return woken[0];
}

bool cart_interrupted(void)
{
    return arrived != 0;
}

void cart_interrupt_die(void)
{
    int sig = arrived;
    if (sig == 0)
        return;
    cart_interrupt_release();
    raise(sig);
}
