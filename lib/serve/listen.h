/* Sockets that a server listens on: TCP, Unix, and those that systemd opened for it. Internal to
 * the room. */
#ifndef CART_SERVE_LISTEN_H
#define CART_SERVE_LISTEN_H

#include "base/err.h"

#define CART_LISTENERS_MAX ((size_t)16)

struct cart_listeners {
    int fds[CART_LISTENERS_MAX];
    size_t n;
    char address[64];  /* of the first TCP listener, as a URL has it, with its port; or "" */
    bool loopback;     /* every TCP listener is on a loopback address */
    char *unlink_path; /* the Unix socket that is ours to remove, owned, or NULL */
};

/* host NULL: no TCP; unix_path NULL: no Unix socket. Sockets of $LISTEN_FDS (where $LISTEN_PID is
 * this process) come first, and with them host is not used. A Unix socket that nobody answers on is
 * replaced, one in use is CART_ESYS. All are non-blocking and closed on exec. */
int cart_listeners_open(struct cart_listeners *l, const char *host, size_t port,
                        const char *unix_path, struct cart_err *err) CART_MUST_USE;
void cart_listeners_close(struct cart_listeners *l);

int cart_listen_prepare(int fd,
                        struct cart_err *err) CART_MUST_USE; /* non-blocking, closed on exec */

#endif
