#include "base/interrupt.h"

#include <signal.h>
#include <string.h>

static volatile sig_atomic_t arrived; /* the signal, 0 if none */

static void note(int sig)
{
    arrived = sig;
    /* The second signal, of either kind, meets the default action and kills at once. */
    signal(SIGINT, SIG_DFL);
    signal(SIGTERM, SIG_DFL);
}

/* A signal that is ignored, as INT is for background jobs of a shell and under nohup, stays
 * ignored. */
static void catch_unless_ignored(int sig)
{
    struct sigaction sa;
    if (sigaction(sig, NULL, &sa) < 0 || sa.sa_handler == SIG_IGN)
        return;
    memset(&sa, 0, sizeof sa);
    sa.sa_handler = note;
    sigemptyset(&sa.sa_mask);
    sigaction(sig, &sa, NULL);
}

void cart_interrupt_install(void)
{
    catch_unless_ignored(SIGINT);
    catch_unless_ignored(SIGTERM);
}

static void release(int sig)
{
    struct sigaction sa;
    if (sigaction(sig, NULL, &sa) == 0 && sa.sa_handler == note)
        signal(sig, SIG_DFL);
}

void cart_interrupt_release(void)
{
    release(SIGINT);
    release(SIGTERM);
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
    signal(sig, SIG_DFL);
    raise(sig);
}
