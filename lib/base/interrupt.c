#include "base/interrupt.h"

#include <signal.h>
#include <string.h>

static volatile sig_atomic_t arrived; /* the signal, 0 if none */

static void note(int sig)
{
    arrived = sig;
}

void cart_interrupt_install(void)
{
    struct sigaction sa;
    memset(&sa, 0, sizeof sa);
    sa.sa_handler = note;
    sigemptyset(&sa.sa_mask);
    /* RESETHAND: the second signal meets the default action and kills at once. */
    sa.sa_flags = (int)SA_RESETHAND;
    sigaction(SIGINT, &sa, NULL);
    sigaction(SIGTERM, &sa, NULL);
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
