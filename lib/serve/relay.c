#define _GNU_SOURCE /* POLLRDHUP */
#include "serve/relay.h"

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/types.h>

#define BLOCK ((size_t)16384)

#define REFUSAL                                                                                    \
    "{\"error\":{\"message\":\"%s\",\"type\":\"invalid_request_error\",\"param\":null,\"code\":"   \
    "\"bad_request\"}}"

static short look(int fd)
{
    struct pollfd p = {.fd = fd, .events = POLLRDHUP};
    return poll(&p, 1, 0) == 1 ? p.revents : 0;
}

static bool later(ssize_t n)
{
    return n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK);
}

/* Takes off a socket what has gone on from it. */
static void consume(int fd, char *data, ssize_t n)
{
    ssize_t got = recv(fd, data, (size_t)n, MSG_DONTWAIT);
    (void)got; /* it was there a moment ago, and nobody else reads */
}

/* What the gate lets go on of data. False: nothing, now or ever. */
static bool judge(struct cart_relay *r, const char *data, size_t n, size_t max_body,
                  cart_relay_begin_fn *begin, void *ctx)
{
    struct cart_gate next = r->gate;
    int64_t ready = cart_gate_next(&next, data, n, max_body);
    /* Who closes before a header is complete will not complete it. */
    if (ready == 0 && look(r->client) & (POLLRDHUP | POLLHUP | POLLERR))
        r->ended = true;
    if (ready == 0 || (r->gate.at == CART_GATE_HEADER && !begin(ctx, r)))
        return false;
    r->gate = next;
    r->ended = ready < 0;
    r->ready = ready > 0 ? (uint64_t)ready : 0;
    return ready > 0;
}

/* From the client. False: it is gone. */
static bool inward(struct cart_relay *r, size_t max_body, cart_relay_begin_fn *begin, void *ctx)
{
    char data[CART_GATE_HEADER_MAX + CART_GATE_CHUNK_LINE_MAX];
    for (;;) {
        ssize_t n = recv(r->client, data, sizeof data, MSG_PEEK | MSG_DONTWAIT);
        if (later(n))
            return true;
        if (n < 0)
            return false;
        if (n == 0) {
            r->ended = true;
            return true;
        }
        if (r->ready == 0 && !judge(r, data, (size_t)n, max_body, begin, ctx))
            return true;
        size_t most = (uint64_t)n < r->ready ? (size_t)n : (size_t)r->ready;
        ssize_t sent = send(r->inner, data, most, MSG_DONTWAIT | MSG_NOSIGNAL);
        /* Where libmicrohttpd has closed its end, outward finds that. */
        if (sent <= 0)
            return true;
        consume(r->client, data, sent);
        r->ready -= (uint64_t)sent;
    }
}

static const char *words_of(unsigned status)
{
    switch (status) {
    case 408:
        return "Request Timeout";
    case 413:
        return "Content Too Large";
    case 431:
        return "Request Header Fields Too Large";
    case 505:
        return "HTTP Version Not Supported";
    default:
        return "Bad Request";
    }
}

static void send_refusal(const struct cart_relay *r)
{
    char text[640];
    int body = snprintf(NULL, 0, REFUSAL, r->gate.reason);
    int n = snprintf(text, sizeof text,
                     "HTTP/1.1 %u %s\r\nContent-Type: application/json\r\nContent-Length: "
                     "%d\r\nConnection: close\r\n\r\n" REFUSAL,
                     r->gate.status, words_of(r->gate.status), body, r->gate.reason);
    ssize_t sent = n > 0 ? send(r->client, text, (size_t)n, MSG_DONTWAIT | MSG_NOSIGNAL) : 0;
    (void)sent; /* a client that takes no answer gets none */
}

/* To the client. False: it is gone. */
static bool outward(struct cart_relay *r, double now)
{
    char data[BLOCK];
    for (;;) {
        ssize_t n = recv(r->inner, data, sizeof data, MSG_PEEK | MSG_DONTWAIT);
        if (later(n))
            return true;
        if (n <= 0) {
            if (r->gate.status != 0)
                send_refusal(r);
            shutdown(r->client, SHUT_WR);
            r->answered = true;
            r->stuck = now;
            return true;
        }
        ssize_t sent = send(r->client, data, (size_t)n, MSG_DONTWAIT | MSG_NOSIGNAL);
        if (later(sent)) {
            r->stuck = r->stuck > 0 ? r->stuck : now;
            return true;
        }
        if (sent < 0)
            return false;
        r->stuck = 0;
        consume(r->inner, data, sent);
    }
}

/* Unread bytes would turn a close into a reset, which may overtake the answer. False: no more
 * come. */
static bool throw_away(const struct cart_relay *r)
{
    char data[BLOCK];
    ssize_t n;
    do
        n = recv(r->client, data, sizeof data, MSG_DONTWAIT);
    while (n > 0);
    return later(n);
}

/* libmicrohttpd misses an end that comes together with bytes before it, for it waits for an edge
 * that was there already: so it is told when it has read them. */
static void tell_end(struct cart_relay *r)
{
    int unread = 0;
    if (!r->ended || r->told || (ioctl(r->inner, TIOCOUTQ, &unread) == 0 && unread > 0))
        return;
    shutdown(r->inner, SHUT_WR);
    r->told = true;
}

bool cart_relay_pump(struct cart_relay *r, size_t max_body, cart_relay_begin_fn *begin, void *ctx,
                     double now)
{
    if (!r->answered && !r->ended && !inward(r, max_body, begin, ctx))
        return false;
    tell_end(r);
    if (!r->answered && !outward(r, now))
        return false;
    if (r->answered)
        return throw_away(r);
    /* An end is not an error: the client may still read. What is worse than that is. */
    return !r->ended || !(look(r->client) & (POLLHUP | POLLERR));
}
