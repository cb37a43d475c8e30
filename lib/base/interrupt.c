#include "base/interrupt.h"

#include <signal.h>
#include <string.h>

static volatile sig_atomic_t arrived; /* the signal, 0 if none */

/* The two signals, and what they did before they were caught: the default, or the jobserver's. */
static struct caught {
    int sig;
    struct sigaction before;
} caught[] = {{.sig = SIGINT}, {.sig = SIGTERM}};

/* The second signal, of either kind, meets what was there before, and kills at once. */
static void note(int sig)
{
    arrived = sig;
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

void cart_interrupt_install(void)
{
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
