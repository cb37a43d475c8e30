#include "serve/listen.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#define BACKLOG 1024
#define FIRST_PASSED_FD 3 /* SD_LISTEN_FDS_START */

int cart_listen_prepare(int fd, struct cart_err *err)
{
    int flags = fcntl(fd, F_GETFL);
    if (flags < 0 || fcntl(fd, F_SETFL, flags | O_NONBLOCK) < 0 ||
        fcntl(fd, F_SETFD, FD_CLOEXEC) < 0)
        return cart_err_sys(err, "socket");
    return 0;
}

static bool is_loopback(const struct sockaddr *a)
{
    if (a->sa_family == AF_INET)
        return (ntohl(((const struct sockaddr_in *)(const void *)a)->sin_addr.s_addr) >> 24) == 127;
    if (a->sa_family == AF_INET6)
        return IN6_IS_ADDR_LOOPBACK(&((const struct sockaddr_in6 *)(const void *)a)->sin6_addr);
    return true;
}

static void write_address(struct cart_listeners *l, const struct sockaddr *a)
{
    const struct sockaddr_in *four = (const struct sockaddr_in *)(const void *)a;
    const struct sockaddr_in6 *six = (const struct sockaddr_in6 *)(const void *)a;
    char text[INET6_ADDRSTRLEN];
    if (a->sa_family == AF_INET && inet_ntop(AF_INET, &four->sin_addr, text, sizeof text))
        snprintf(l->address, sizeof l->address, "%s:%u", text, (unsigned)ntohs(four->sin_port));
    if (a->sa_family == AF_INET6 && inet_ntop(AF_INET6, &six->sin6_addr, text, sizeof text))
        snprintf(l->address, sizeof l->address, "[%s]:%u", text, (unsigned)ntohs(six->sin6_port));
}

/* Takes a listening socket over. */
static int take(struct cart_listeners *l, int fd, struct cart_err *err)
{
    struct sockaddr_storage a;
    socklen_t n = sizeof a;
    if (l->n == CART_LISTENERS_MAX)
        return cart_err_set(err, CART_EUSAGE, "expected at most %zu sockets", CART_LISTENERS_MAX);
    int r = cart_listen_prepare(fd, err);
    if (r < 0)
        return r;
    memset(&a, 0, sizeof a);
    if (getsockname(fd, (struct sockaddr *)&a, &n) < 0)
        return cart_err_sys(err, "socket");
    if (!is_loopback((struct sockaddr *)&a))
        l->loopback = false;
    if (!*l->address)
        write_address(l, (struct sockaddr *)&a);
    l->fds[l->n++] = fd;
    return 0;
}

static int open_one(struct cart_listeners *l, const struct addrinfo *ai, const char *host,
                    size_t port, struct cart_err *err)
{
    int on = 1, r;
    int fd = socket(ai->ai_family, SOCK_STREAM, 0);
    if (fd < 0)
        return cart_err_sys(err, "%s port %zu", host, port);
    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    if (ai->ai_family == AF_INET6)
        setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &on, sizeof on);
    if (bind(fd, ai->ai_addr, ai->ai_addrlen) < 0 || listen(fd, BACKLOG) < 0)
        r = cart_err_sys(err, "%s port %zu", host, port);
    else
        r = take(l, fd, err);
    if (r < 0)
        close(fd);
    return r;
}

/* A host of several addresses (localhost) is served on all that this machine can bind. */
static int open_tcp(struct cart_listeners *l, const char *host, size_t port, struct cart_err *err)
{
    struct addrinfo hints = {.ai_family = AF_UNSPEC,
                             .ai_socktype = SOCK_STREAM,
                             .ai_flags = AI_PASSIVE},
                    *all = NULL;
    char service[16];
    size_t before = l->n;
    int r = CART_EUSAGE;
    snprintf(service, sizeof service, "%zu", port);
    int e = getaddrinfo(host, service, &hints, &all);
    if (e != 0)
        return cart_err_set(err, e == EAI_MEMORY || e == EAI_SYSTEM ? CART_ESYS : CART_EUSAGE,
                            "--host %s: %s", host, gai_strerror(e));
    for (struct addrinfo *ai = all; ai; ai = ai->ai_next) {
        if (port == 0 && l->n > before)
            break;
        r = open_one(l, ai, host, port, err);
    }
    freeaddrinfo(all);
    return l->n > before ? 0 : r;
}

/* A socket file is left behind by a server that was killed; one that answers is somebody's. */
static int clear_path(const struct sockaddr_un *a, struct cart_err *err)
{
    struct stat st;
    if (lstat(a->sun_path, &st) < 0)
        return 0;
    if (!S_ISSOCK(st.st_mode))
        return cart_err_set(err, CART_EUSAGE, "%s: exists and is no socket", a->sun_path);
    int fd = socket(AF_UNIX, SOCK_STREAM, 0);
    if (fd < 0)
        return cart_err_sys(err, "%s", a->sun_path);
    bool used = connect(fd, (const struct sockaddr *)a, sizeof *a) == 0;
    close(fd);
    if (used)
        return cart_err_set(err, CART_ESYS, "%s: another server answers on this socket",
                            a->sun_path);
    return unlink(a->sun_path) < 0 ? cart_err_sys(err, "%s", a->sun_path) : 0;
}

static int open_unix(struct cart_listeners *l, const char *path, struct cart_err *err)
{
    struct sockaddr_un a;
    memset(&a, 0, sizeof a);
    a.sun_family = AF_UNIX;
    if (strlen(path) >= sizeof a.sun_path)
        return cart_err_set(err, CART_EUSAGE, "%s: expected a socket path of at most %zu bytes",
                            path, sizeof a.sun_path - 1);
    memcpy(a.sun_path, path, strlen(path));
    int r = clear_path(&a, err);
    if (r < 0)
        return r;
    int fd = socket(AF_UNIX, SOCK_STREAM, 0);
    if (fd < 0)
        return cart_err_sys(err, "%s", path);
    if (bind(fd, (struct sockaddr *)&a, sizeof a) < 0 || listen(fd, BACKLOG) < 0)
        r = cart_err_sys(err, "%s", path);
    else
        r = take(l, fd, err);
    if (r < 0)
        close(fd);
    else if (!(l->unlink_path = strdup(path)))
        r = cart_err_memory(err, "socket path", strlen(path));
    return r;
}

/* The protocol of systemd's socket activation: descriptors from 3 on, if they are meant for this
 * process. */
static int take_passed(struct cart_listeners *l, struct cart_err *err)
{
    const char *pid = getenv("LISTEN_PID"), *count = getenv("LISTEN_FDS");
    if (!pid || !count || strtol(pid, NULL, 10) != (long)getpid())
        return 0;
    long n = strtol(count, NULL, 10);
    int r = 0;
    for (long i = 0; i < n && r == 0; i++)
        r = take(l, FIRST_PASSED_FD + (int)i, err);
    unsetenv("LISTEN_PID");
    unsetenv("LISTEN_FDS");
    unsetenv("LISTEN_FDNAMES");
    return r;
}

int cart_listeners_open(struct cart_listeners *l, const char *host, size_t port,
                        const char *unix_path, struct cart_err *err)
{
    *l = (struct cart_listeners){.loopback = true};
    int r = take_passed(l, err);
    if (r == 0 && l->n == 0 && host)
        r = open_tcp(l, host, port, err);
    if (r == 0 && unix_path)
        r = open_unix(l, unix_path, err);
    if (r == 0 && l->n == 0)
        r = cart_err_set(err, CART_EUSAGE,
                         "expected --host, --unix or a socket from systemd to listen on");
    if (r < 0)
        cart_listeners_close(l);
    return r;
}

void cart_listeners_close(struct cart_listeners *l)
{
    for (size_t i = 0; i < l->n; i++)
        close(l->fds[i]);
    l->n = 0;
    if (l->unlink_path)
        unlink(l->unlink_path);
    free(l->unlink_path);
    l->unlink_path = NULL;
}
