#include "base/jobserver.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define MAX_TOKENS 1024

static char tokens[MAX_TOKENS]; /* bytes taken, which must go back as they are */
static volatile size_t held;
static int back = -1; /* where they go */

void cart_jobserver_release(void)
{
    int e = errno;
    while (held > 0) {
        size_t last = --held; /* never twice, if a signal comes between */
        ssize_t n;
        while ((n = write(back, tokens + last, 1)) < 0 && errno == EINTR)
            continue;
        if (n != 1)
            break;
    }
    errno = e;
}

static void release_and_die(int sig)
{
    cart_jobserver_release();
    signal(sig, SIG_DFL);
    raise(sig);
}

/* Make counts its tokens: those of a process that a signal ends have to go back as well. */
static void release_when_killed(void)
{
    static const int sigs[] = {SIGHUP, SIGINT, SIGPIPE, SIGTERM};
    struct sigaction sa;
    for (size_t i = 0; i < sizeof sigs / sizeof *sigs; i++) {
        if (sigaction(sigs[i], NULL, &sa) < 0 || sa.sa_handler != SIG_DFL)
            continue;
        memset(&sa, 0, sizeof sa);
        sa.sa_handler = release_and_die;
        sigemptyset(&sa.sa_mask);
        sigaction(sigs[i], &sa, NULL);
    }
}

/* The last --jobserver-auth (or, before make 4.2, --jobserver-fds) of MAKEFLAGS; NULL if there is
 * none. */
static const char *find_auth(void)
{
    const char *flags = getenv("MAKEFLAGS");
    const char *found = NULL;
    for (const char *p = flags; p && (p = strstr(p, "--jobserver-")); p++) {
        const char *eq = strchr(p, '=');
        if (eq &&
            (strncmp(p, "--jobserver-auth=", 17) == 0 || strncmp(p, "--jobserver-fds=", 16) == 0))
            found = eq + 1;
    }
    return found;
}

/* Opens both ends anew: reading must not block, and that flag belongs to the description make
 * shares with everyone. */
static bool open_ends(const char *auth, int *in)
{
    char from[256];
    char to[256];
    int r;
    int w;
    if (sscanf(auth, "fifo:%255[^ ]", from) == 1) {
        memcpy(to, from, sizeof to);
    } else if (sscanf(auth, "%d,%d", &r, &w) == 2 && r > STDERR_FILENO && w > STDERR_FILENO) {
        snprintf(from, sizeof from, "/proc/self/fd/%d", r);
        snprintf(to, sizeof to, "/proc/self/fd/%d", w);
    } else {
        return false;
    }
    struct stat st;
    if (stat(from, &st) < 0 || !S_ISFIFO(st.st_mode) || stat(to, &st) < 0 || !S_ISFIFO(st.st_mode))
        return false;
    *in = open(from, O_RDONLY | O_NONBLOCK | O_CLOEXEC);
    back = *in >= 0 ? open(to, O_WRONLY | O_CLOEXEC) : -1;
    if (back >= 0)
        return true;
    if (*in >= 0)
        close(*in);
    return false;
}

size_t cart_jobserver_acquire(size_t want)
{
    const char *auth = find_auth();
    if (!auth || want <= 1 || held > 0)
        return want;
    int in;
    if (!open_ends(auth, &in))
        return 1;
    atexit(cart_jobserver_release);
    release_when_killed();
    while (held + 1 < want && held < MAX_TOKENS) {
        ssize_t n = read(in, tokens + held, 1);
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            break;
        held++;
    }
    close(in);
    return held + 1;
}
