/* The loop of cart_serve_run: accepts connections and moves their bytes (relay.c), notices clients
 * that hang up while they wait, keeps deadlines, drains. */
#include "serve/exchange.h"

#include "base/clock.h"
#include "serve/listen.h"
#include "serve/metrics.h"
#include "serve/net.h"
#include "serve/relay.h"
#include "serve/work.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#define N_EVENTS 64
#define TICK_MS 500
#define DRAIN_TICK_MS 20
#define PING_SECONDS 15.0 /* of silence before a stream that waits gets a comment */
#define ROOM_FOR 8        /* connections, where there are no descriptors */
#define FLUSH_SECONDS 2.0 /* that answers cut off at the end of a drain have to leave */

#define DESCRIPTORS_EACH 3              /* of a connection: the client's, and a pair */
#define OTHER_DESCRIPTORS ((size_t)128) /* listeners, epoll, files being read */
#define LINGER_SECONDS 2.0              /* for a client that has its answer to close too */

enum { AT_CONTROL, AT_LISTENER, AT_CLIENT, AT_RELAY };

/* A client's connection. The loop's own. */
struct link {
    struct cart_relay relay;
    int outer; /* libmicrohttpd's end of the pair: its number, no longer ours */
    bool held; /* a header waits for the answer before it */
};

/* What libmicrohttpd has, by its descriptor. */
struct connection {
    enum cart_net_phase phase;
    double since;
    struct link *link; /* whose end it is; NULL: that has been dropped */
    bool held;         /* the loop is to be told when it waits for a header again */
    char client[CART_CLIENT_MAX];
};

struct cart_net {
    struct cart_listeners listeners;
    int epoll, control[2];
    pthread_mutex_t lock;           /* of what follows, up to closed */
    struct connection *connections; /* [n_connections], by descriptor */
    size_t n_connections, open;
    struct cart_exchange *watched;
    bool closed; /* the last ones have been answered: nobody may wait any more */

    struct link **links; /* [n_links] by the descriptors of both its ends; the loop's own */
    size_t n_links;

    atomic_int stops;
    atomic_bool draining;
    double swept; /* when time was last asked */
    bool resting; /* there are no descriptors: the listeners are left alone until then */
};

/* ---- words ---- */

void cart_net_note(struct cart_serve *s, enum cart_log_level level, const char *fmt, ...)
{
    char text[1024];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    if (s->opt.on_note)
        s->opt.on_note(s->opt.ctx, level, text);
}

bool cart_net_draining(const struct cart_serve *s)
{
    return atomic_load(&s->net->draining);
}

/* ---- the directory ---- */

struct reading {
    struct cart_serve *s;
    struct cart_wire *refused; /* or NULL */
};

static void report_file(void *ctx, const char *name, const char *warning,
                        const struct cart_err *err)
{
    const struct reading *reading = ctx;
    if (!err) {
        if (warning && *warning)
            cart_net_note(reading->s, CART_LOG_WARNING, "cartridge %s: %s", name, warning);
        return;
    }
    cart_net_note(reading->s, CART_LOG_WARNING, "cartridge %s: not loaded: %s", name, err->msg);
    if (reading->refused) {
        cart_wire_add(reading->refused, reading->refused->b.len ? ",{\"id\":" : "{\"id\":");
        cart_wire_quote(reading->refused, name);
        cart_wire_add(reading->refused, ",\"message\":");
        cart_wire_quote(reading->refused, err->msg);
        cart_wire_add(reading->refused, "}");
    }
}

bool cart_net_load_directory(struct cart_serve *s, struct cart_wire *refused)
{
    struct reading reading = {s, refused};
    struct cart_err err = {0};
    if (!s->opt.directory) {
        cart_net_note(s, CART_LOG_WARNING, "no directory to read again (--directory)");
        return false;
    }
    if (cart_registry_load(s->registry, s->opt.directory, report_file, &reading, &err) < 0) {
        cart_net_note(s, CART_LOG_ERROR, "%s", err.msg);
        return false;
    }
    size_t n = cart_registry_counts(s->registry).cartridges;
    cart_net_note(s, CART_LOG_NOTICE, "%s: read again; %zu cartridge%s in all", s->opt.directory, n,
                  CART_S(n));
    return true;
}

/* ---- connections and their deadlines ---- */

static void tell(struct cart_serve *s, char what)
{
    int saved = errno;
    ssize_t n = write(s->net->control[1], &what, 1);
    (void)n; /* a full pipe has woken the loop already */
    errno = saved;
}

void cart_net_phase(struct cart_serve *s, int fd, enum cart_net_phase phase)
{
    struct cart_net *n = s->net;
    bool held = false;
    if (fd < 0)
        return;
    pthread_mutex_lock(&n->lock);
    if ((size_t)fd < n->n_connections) {
        struct connection *c = &n->connections[fd];
        n->open -= c->phase != CART_NET_CLOSED && phase == CART_NET_CLOSED;
        held = c->held && phase == CART_NET_HEADER;
        c->held &= !held;
        c->phase = phase;
        c->since = cart_clock_now();
    }
    pthread_mutex_unlock(&n->lock);
    if (held)
        tell(s, 'h');
}

void cart_net_client(struct cart_serve *s, int fd, char out[CART_CLIENT_MAX])
{
    struct cart_net *n = s->net;
    pthread_mutex_lock(&n->lock);
    snprintf(out, CART_CLIENT_MAX, "%s",
             fd >= 0 && (size_t)fd < n->n_connections ? n->connections[fd].client : "");
    pthread_mutex_unlock(&n->lock);
}

/* Whether the next header may go in: then a body is awaited from now on. */
static bool begin(void *ctx, struct cart_relay *r)
{
    struct cart_net *n = ctx;
    struct link *l = (struct link *)(void *)r; /* its first member */
    pthread_mutex_lock(&n->lock);
    struct connection *c = &n->connections[l->outer];
    bool ours = c->link == l, idle = ours && c->phase == CART_NET_HEADER;
    if (idle) {
        c->phase = CART_NET_BODY;
        c->since = cart_clock_now();
    }
    l->held = ours && !idle;
    c->held |= l->held;
    pthread_mutex_unlock(&n->lock);
    return idle;
}

static void drop(struct cart_net *n, struct link *l)
{
    n->links[l->relay.client] = n->links[l->relay.inner] = NULL;
    /* Its number may have been given out again already. */
    pthread_mutex_lock(&n->lock);
    if (n->connections[l->outer].link == l)
        n->connections[l->outer].link = NULL;
    pthread_mutex_unlock(&n->lock);
    close(l->relay.client);
    close(l->relay.inner);
    free(l);
}

/* Closes who has waited longest without asking for anything. False: nobody has. */
static bool make_room(struct cart_net *n)
{
    int oldest = -1, unread = 0;
    pthread_mutex_lock(&n->lock);
    for (size_t i = 0; i < n->n_connections; i++)
        if (n->connections[i].phase == CART_NET_HEADER &&
            (oldest < 0 || n->connections[i].since < n->connections[oldest].since))
            oldest = (int)i;
    struct link *l = NULL;
    if (oldest >= 0) {
        /* It counts no longer, though libmicrohttpd has yet to see the end and close it. */
        shutdown(oldest, SHUT_RDWR);
        n->connections[oldest].phase = CART_NET_CLOSED;
        n->open--;
        l = n->connections[oldest].link;
    }
    pthread_mutex_unlock(&n->lock);
    /* An answer that is still on its way goes out before the end. */
    if (l && ioctl(l->relay.inner, FIONREAD, &unread) == 0 && unread == 0)
        drop(n, l);
    return oldest >= 0;
}

static void listen_for(struct cart_net *n, uint32_t events)
{
    for (size_t i = 0; i < n->listeners.n; i++) {
        struct epoll_event e = {.events = events,
                                .data.u64 =
                                    ((uint64_t)AT_LISTENER << 32) | (uint32_t)n->listeners.fds[i]};
        epoll_ctl(n->epoll, EPOLL_CTL_MOD, n->listeners.fds[i], &e);
    }
}

/* There are no descriptors for another connection. Who waits outside would wake the loop without an
 * end: it is let in when the silent ones that make room have closed. */
static void rest(struct cart_net *n)
{
    n->resting = true;
    listen_for(n, 0);
    for (int i = 0; i < ROOM_FOR && make_room(n); i++)
        ;
}

/* A new descriptor for libmicrohttpd; false where there is no memory or no room for it. */
static bool admit(struct cart_serve *s, struct link *l, const char *client)
{
    struct cart_net *n = s->net;
    size_t fd = (size_t)l->outer;
    pthread_mutex_lock(&n->lock);
    bool ok = true, full = n->open >= s->opt.max_connections;
    if (fd >= n->n_connections) {
        size_t more = fd + 256;
        struct connection *c = realloc(n->connections, more * sizeof *c);
        ok = c != NULL;
        for (size_t i = n->n_connections; ok && i < more; i++)
            c[i] = (struct connection){.phase = CART_NET_CLOSED};
        if (ok) {
            n->connections = c;
            n->n_connections = more;
        }
    }
    pthread_mutex_unlock(&n->lock);
    if (!ok || (full && !make_room(n)))
        return false;
    pthread_mutex_lock(&n->lock);
    struct connection *c = &n->connections[fd];
    *c = (struct connection){.phase = CART_NET_HEADER, .since = cart_clock_now(), .link = l};
    snprintf(c->client, sizeof c->client, "%s", client);
    n->open++;
    pthread_mutex_unlock(&n->lock);
    return true;
}

static void pump(struct cart_serve *s, struct link *l, double now)
{
    l->held = false;
    if (!cart_relay_pump(&l->relay, s->opt.max_body, begin, s->net, now))
        drop(s->net, l);
}

/* Those whose next header has waited. */
static void pump_held(struct cart_serve *s)
{
    struct cart_net *n = s->net;
    double now = cart_clock_now();
    for (size_t i = 0; i < n->n_links; i++)
        if (n->links[i] && n->links[i]->held)
            pump(s, n->links[i], now);
}

static bool add_link(struct cart_net *n, struct link *l)
{
    int fds[2] = {l->relay.client, l->relay.inner};
    size_t most = (size_t)(fds[0] > fds[1] ? fds[0] : fds[1]);
    if (most >= n->n_links) {
        size_t more = most + 256;
        struct link **links = realloc(n->links, more * sizeof(struct link *));
        if (!links)
            return false;
        memset(links + n->n_links, 0, (more - n->n_links) * sizeof(struct link *));
        n->links = links;
        n->n_links = more;
    }
    for (int i = 0; i < 2; i++) {
        struct epoll_event e = {.events = EPOLLIN | EPOLLOUT | EPOLLRDHUP | EPOLLET,
                                .data.u64 = ((uint64_t)AT_RELAY << 32) | (uint32_t)fds[i]};
        if (epoll_ctl(n->epoll, EPOLL_CTL_ADD, fds[i], &e) < 0)
            return false;
    }
    n->links[fds[0]] = n->links[fds[1]] = l;
    return true;
}

/* client and pair are the link's, or closed. */
static void add_client(struct cart_serve *s, int client, const int pair[2], const char *name)
{
    struct link *l = calloc(1, sizeof *l);
    if (l) {
        l->relay.client = client;
        l->relay.inner = pair[0];
        l->outer = pair[1];
    }
    if (!l || cart_listen_prepare(client, NULL) < 0 || cart_listen_prepare(pair[0], NULL) < 0 ||
        cart_listen_prepare(pair[1], NULL) < 0 || !admit(s, l, name)) {
        close(client);
        close(pair[0]);
        close(pair[1]);
        free(l);
        return;
    }
    if (!add_link(s->net, l)) {
        cart_net_phase(s, pair[1], CART_NET_CLOSED);
        close(client);
        close(pair[0]);
        close(pair[1]);
        free(l);
        return;
    }
    if (!cart_http_add(s, pair[1])) {
        cart_net_phase(s, pair[1], CART_NET_CLOSED);
        drop(s->net, l);
    }
}

static void accept_all(struct cart_serve *s, int listener)
{
    struct sockaddr_storage a;
    for (int i = 0; i < N_EVENTS; i++) {
        socklen_t n = sizeof a;
        int on = 1, pair[2];
        char name[CART_CLIENT_MAX] = CART_CLIENT_UNIX;
        /* First: who is accepted and then has no place would be cut off with its request unread. */
        if (socketpair(AF_UNIX, SOCK_STREAM, 0, pair) < 0) {
            rest(s->net);
            return;
        }
        int fd = accept(listener, (struct sockaddr *)&a, &n);
        if (fd < 0) {
            int e = errno;
            close(pair[0]);
            close(pair[1]);
            if (e == EMFILE || e == ENFILE || e == ENOBUFS || e == ENOMEM)
                rest(s->net);
            return;
        }
        if (a.ss_family != AF_UNIX)
            setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
        if (a.ss_family == AF_INET)
            inet_ntop(AF_INET, &((struct sockaddr_in *)&a)->sin_addr, name, sizeof name);
        else if (a.ss_family == AF_INET6)
            inet_ntop(AF_INET6, &((struct sockaddr_in6 *)&a)->sin6_addr, name, sizeof name);
        add_client(s, fd, pair, name);
    }
}

/* Who has begun a request and not ended it in time is told so, by the relay and behind what
 * libmicrohttpd has closed; one that has sent nothing is closed without a word. */
static void refuse_late(struct link *l, enum cart_net_phase phase)
{
    int unread = 0;
    if (phase == CART_NET_BODY || (ioctl(l->relay.client, FIONREAD, &unread) == 0 && unread > 0)) {
        l->relay.gate.status = 408;
        l->relay.gate.reason = "expected the whole request in time";
    }
}

/* Under the lock, so that no descriptor is closed and given out again between the look and the
 * shutdown: it is CLOSED before it is closed. */
static void enforce_deadlines(struct cart_serve *s, double now)
{
    struct cart_net *n = s->net;
    pthread_mutex_lock(&n->lock);
    for (size_t i = 0; i < n->n_connections; i++) {
        struct connection *c = &n->connections[i];
        bool waits = c->phase == CART_NET_HEADER || c->phase == CART_NET_BODY;
        if (!waits || now - c->since <= s->opt.timeout)
            continue;
        if (c->link)
            refuse_late(c->link, c->phase);
        shutdown((int)i, SHUT_RDWR);
    }
    pthread_mutex_unlock(&n->lock);
    for (size_t i = 0; i < n->n_links; i++) {
        struct link *l = n->links[i];
        if (l && l->relay.stuck > 0 &&
            now - l->relay.stuck > (l->relay.answered ? LINGER_SECONDS : s->opt.timeout))
            drop(n, l);
    }
}

/* ---- clients that wait ---- */

bool cart_net_watch(struct cart_serve *s, struct cart_exchange *x)
{
    struct cart_net *n = s->net;
    struct epoll_event e = {.events = EPOLLRDHUP,
                            .data.u64 = ((uint64_t)AT_CLIENT << 32) | (uint32_t)x->fd};
    pthread_mutex_lock(&n->lock);
    if (n->closed) {
        pthread_mutex_unlock(&n->lock);
        return false;
    }
    x->watched = true;
    x->prev = NULL;
    x->next = n->watched;
    if (n->watched)
        n->watched->prev = x;
    n->watched = x;
    epoll_ctl(n->epoll, EPOLL_CTL_ADD, x->fd, &e);
    pthread_mutex_unlock(&n->lock);
    return true;
}

void cart_net_unwatch(struct cart_serve *s, struct cart_exchange *x)
{
    struct cart_net *n = s->net;
    if (!x->watched)
        return;
    pthread_mutex_lock(&n->lock);
    epoll_ctl(n->epoll, EPOLL_CTL_DEL, x->fd, NULL);
    if (x->next)
        x->next->prev = x->prev;
    if (x->prev)
        x->prev->next = x->next;
    else
        n->watched = x->next;
    x->watched = false;
    pthread_mutex_unlock(&n->lock);
}

/* A client that has closed its side may be gone or may still read: a FIN looks the same. An interim
 * response tells them apart, for a socket that is gone answers it with a reset; one that lives must
 * ignore it. An answer that has begun needs no such thing, its next bytes do the same. */
static bool probe(struct cart_exchange *x)
{
    static const char interim[] = "HTTP/1.1 100 Continue\r\n\r\n";
    bool lives = true;
    /* An answer begins under this lock: the interim response comes before all of it, or not. */
    pthread_mutex_lock(&x->lock);
    if (!x->probed && !x->answered && !x->queued)
        lives = !x->http10 &&
                send(x->fd, interim, sizeof interim - 1, MSG_DONTWAIT | MSG_NOSIGNAL) >= 0;
    x->probed = true;
    pthread_mutex_unlock(&x->lock);
    return lives;
}

/* The answer is of no use to anybody: its requests are cancelled, and the connection ends with the
 * answer. */
static void abandon(struct cart_exchange *x)
{
    pthread_mutex_lock(&x->lock);
    x->gone = true;
    pthread_mutex_unlock(&x->lock);
    cart_exchange_cancel(x);
    shutdown(x->fd, SHUT_RDWR);
    cart_exchange_error(x, 400, "client_closed_request", NULL, "the client closed the connection");
}

static void client_event(struct cart_serve *s, int fd, uint32_t events)
{
    struct cart_net *n = s->net;
    struct epoll_event quiet = {.events = 0,
                                .data.u64 = ((uint64_t)AT_CLIENT << 32) | (uint32_t)fd};
    pthread_mutex_lock(&n->lock);
    struct cart_exchange *x = n->watched;
    while (x && x->fd != fd)
        x = x->next;
    if (x) {
        /* Nothing more than a reset is of interest after the first of these. */
        if ((events & (EPOLLHUP | EPOLLERR)) || !probe(x)) {
            epoll_ctl(n->epoll, EPOLL_CTL_DEL, fd, NULL);
            abandon(x);
        } else {
            epoll_ctl(n->epoll, EPOLL_CTL_MOD, fd, &quiet);
        }
    }
    pthread_mutex_unlock(&n->lock);
}

/* Proxies and clients take silence for death: a stream that waits says that it lives. */
static void ping(struct cart_serve *s, double now)
{
    static const char comment[] = ": ping\n\n";
    struct cart_net *n = s->net;
    pthread_mutex_lock(&n->lock);
    for (struct cart_exchange *x = n->watched; x; x = x->next) {
        pthread_mutex_lock(&x->lock);
        bool due =
            x->pings && !x->ended && now - x->last_write > PING_SECONDS && x->out.len == x->sent;
        pthread_mutex_unlock(&x->lock);
        if (due)
            cart_exchange_push(x, comment, sizeof comment - 1);
    }
    pthread_mutex_unlock(&n->lock);
}

/* What is still under way when the time for it has passed. last: what comes later is refused
 * before it waits. */
static void cut_off(struct cart_serve *s, bool last)
{
    struct cart_net *n = s->net;
    pthread_mutex_lock(&n->lock);
    n->closed = n->closed || last;
    for (struct cart_exchange *x = n->watched; x; x = x->next) {
        cart_exchange_cancel(x);
        cart_exchange_error(x, 503, "shutting_down", NULL, "the server is shutting down");
    }
    pthread_mutex_unlock(&n->lock);
}

/* ---- the loop ---- */

static int add_fd(struct cart_net *n, int fd, int kind, struct cart_err *err)
{
    struct epoll_event e = {.events = EPOLLIN, .data.u64 = ((uint64_t)kind << 32) | (uint32_t)fd};
    return epoll_ctl(n->epoll, EPOLL_CTL_ADD, fd, &e) < 0 ? cart_err_sys(err, "epoll") : 0;
}

static void wait_once(struct cart_serve *s, int ms)
{
    struct cart_net *n = s->net;
    struct epoll_event events[N_EVENTS];
    char bytes[64];
    int got = epoll_wait(n->epoll, events, N_EVENTS, ms);
    for (int i = 0; i < got; i++) {
        int fd = (int)(events[i].data.u64 & 0xffffffff);
        switch (events[i].data.u64 >> 32) {
        case AT_LISTENER:
            accept_all(s, fd);
            break;
        case AT_CLIENT:
            client_event(s, fd, events[i].events);
            break;
        case AT_RELAY:
            /* One that an earlier event of this lot has closed is gone; where its number has been
             * given out again, a pump too many does no harm. */
            if (n->links[fd])
                pump(s, n->links[fd], cart_clock_now());
            break;
        default:
            for (ssize_t k = read(fd, bytes, sizeof bytes); k > 0; k--) {
                if (bytes[k - 1] == 'r')
                    cart_work_reload(s->work);
                else if (bytes[k - 1] == 'h')
                    pump_held(s);
            }
        }
    }
}

/* Waits for events, at most ms, and does what time asks for. */
static void turn(struct cart_serve *s, int ms)
{
    struct cart_net *n = s->net;
    wait_once(s, ms);
    double now = cart_clock_now();
    if (now - n->swept < TICK_MS / 1000.0)
        return;
    n->swept = now;
    enforce_deadlines(s, now);
    ping(s, now);
    cart_work_resume_all(s->work);
    if (cart_registry_can_copy(s->registry))
        cart_work_copy(s->work);
    if (n->resting)
        listen_for(n, EPOLLIN);
    n->resting = false;
}

static void drain(struct cart_serve *s)
{
    double until = cart_clock_now() + s->opt.drain_timeout;
    size_t n = cart_metrics_in_flight(s->metrics);
    cart_net_note(s, CART_LOG_NOTICE, "stopping: %zu request%s under way", n, CART_S(n));
    atomic_store(&s->net->draining, true);
    cart_scheduler_drain(s->scheduler);
    while (cart_metrics_in_flight(s->metrics) > 0 && cart_clock_now() < until &&
           atomic_load(&s->net->stops) < 2)
        turn(s, DRAIN_TICK_MS);
    cut_off(s, false);
    until =
        cart_clock_now() + (atomic_load(&s->net->stops) < 2 ? FLUSH_SECONDS : FLUSH_SECONDS / 10);
    while (cart_metrics_in_flight(s->metrics) > 0 && cart_clock_now() < until)
        turn(s, DRAIN_TICK_MS);
}

/* libmicrohttpd has closed everything: what it wrote last goes out, then the clients are let go. */
static void flush(struct cart_serve *s)
{
    struct cart_net *n = s->net;
    double until =
        cart_clock_now() + (atomic_load(&n->stops) < 2 ? FLUSH_SECONDS : FLUSH_SECONDS / 10);
    for (size_t i = 0; i < n->listeners.n; i++)
        epoll_ctl(n->epoll, EPOLL_CTL_DEL, n->listeners.fds[i], NULL);
    for (bool waits = true; waits && cart_clock_now() < until;) {
        waits = false;
        for (size_t i = 0; i < n->n_links; i++)
            waits |= n->links[i] && !n->links[i]->relay.answered;
        if (waits)
            turn(s, DRAIN_TICK_MS);
    }
    for (size_t i = 0; i < n->n_links; i++)
        if (n->links[i])
            drop(n, n->links[i]);
}

/* Resumes what is suspended and lets nothing more be (libmicrohttpd must not be stopped before: a
 * connection that is suspended then aborts the process), ends its thread and the workers. */
static void halt(struct cart_serve *s)
{
    cut_off(s, true);
    cart_http_stop(s);
    flush(s);
    cart_work_end(s->work);
}

void cart_serve_run(struct cart_serve *s)
{
    while (atomic_load(&s->net->stops) == 0)
        turn(s, TICK_MS);
    drain(s);
    halt(s);
}

void cart_serve_stop(struct cart_serve *s)
{
    atomic_fetch_add(&s->net->stops, 1);
    tell(s, 's');
}

void cart_serve_reload(struct cart_serve *s)
{
    tell(s, 'r');
}

const char *cart_serve_address(const struct cart_serve *s)
{
    return s->net->listeners.address;
}

/* ---- life ---- */

void cart_serve_raise_descriptors(void)
{
    struct rlimit l;
    if (getrlimit(RLIMIT_NOFILE, &l) < 0 || l.rlim_cur >= l.rlim_max)
        return;
    l.rlim_cur = l.rlim_max;
    (void)setrlimit(RLIMIT_NOFILE, &l); /* where it fails, fewer connections have room */
}

/* As many connections as descriptors suffice for. */
static void bound_connections(struct cart_serve *s)
{
    struct rlimit l;
    size_t others = OTHER_DESCRIPTORS + cart_registry_counts(s->registry).cartridges;
    if (getrlimit(RLIMIT_NOFILE, &l) < 0)
        return;
    size_t most = l.rlim_cur > others + DESCRIPTORS_EACH
                      ? (size_t)(l.rlim_cur - others) / DESCRIPTORS_EACH
                      : 1;
    if (s->opt.max_connections > most)
        s->opt.max_connections = most;
}

int cart_net_open(struct cart_serve *s, struct cart_err *err)
{
    struct cart_net *n = calloc(1, sizeof *n);
    if (!n)
        return cart_err_memory(err, "network", sizeof *n);
    s->net = n;
    n->epoll = n->control[0] = n->control[1] = -1;
    pthread_mutex_init(&n->lock, NULL);
    bound_connections(s);
    int r = cart_listeners_open(&n->listeners, s->opt.host, s->opt.port, s->opt.unix_path, err);
    if (r < 0)
        return r;
    s->loopback = n->listeners.loopback;
    if ((n->epoll = epoll_create1(EPOLL_CLOEXEC)) < 0 || pipe(n->control) < 0)
        return cart_err_sys(err, "epoll");
    for (int i = 0; i < 2; i++)
        if ((r = cart_listen_prepare(n->control[i], err)) < 0)
            return r;
    if ((r = add_fd(n, n->control[0], AT_CONTROL, err)) < 0)
        return r;
    for (size_t i = 0; i < n->listeners.n; i++)
        if ((r = add_fd(n, n->listeners.fds[i], AT_LISTENER, err)) < 0)
            return r;
    return cart_work_new(&s->work, s, err);
}

void cart_net_close(struct cart_serve *s)
{
    struct cart_net *n = s->net;
    if (!n)
        return;
    halt(s);
    cart_listeners_close(&n->listeners);
    if (n->epoll >= 0)
        close(n->epoll);
    for (int i = 0; i < 2; i++)
        if (n->control[i] >= 0)
            close(n->control[i]);
    cart_work_free(s->work);
    pthread_mutex_destroy(&n->lock);
    free(n->connections);
    free(n->links);
    free(n);
    s->net = NULL;
}
