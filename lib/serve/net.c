/* The loop of cart_serve_run: accepts connections, notices clients that hang up while they wait,
 * keeps deadlines, drains; and the workers that parse requests. */
#include "serve/exchange.h"

#include "base/clock.h"
#include "serve/gate.h"
#include "serve/listen.h"
#include "serve/metrics.h"
#include "serve/net.h"

#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#define N_WORKERS 2
#define N_EVENTS 64
#define TICK_MS 500
#define DRAIN_TICK_MS 20
#define PING_SECONDS 15.0 /* of silence before a stream that waits gets a comment */
#define FLUSH_SECONDS 2.0 /* that answers cut off at the end of a drain have to leave */

#define REFUSAL                                                                                    \
    "{\"error\":{\"message\":\"%s\",\"type\":\"invalid_request_error\",\"param\":null,\"code\":"   \
    "\"bad_request\"}}"

enum { AT_CONTROL, AT_LISTENER, AT_CLIENT, AT_GATE };

struct connection {
    enum cart_net_phase phase; /* of the descriptor that indexes it */
    double since;
    bool ended; /* at the last look the client had closed its side and nothing was unread */
};

struct job {
    struct cart_exchange *x; /* NULL: read the directory again */
    struct job *next;
};

struct cart_net {
    struct cart_listeners listeners;
    int epoll, control[2];
    pthread_mutex_t lock;           /* of what follows, up to the workers */
    struct connection *connections; /* [n_connections], by descriptor */
    size_t n_connections, open;
    struct cart_exchange *watched;

    pthread_mutex_t work_lock;
    pthread_cond_t work;
    struct job *first, *last;
    bool quit;
    pthread_t workers[N_WORKERS];
    size_t n_workers;
    atomic_int stops;
    atomic_bool draining;
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

/* ---- workers ---- */

static void report_file(void *ctx, const char *name, const char *warning,
                        const struct cart_err *err)
{
    if (err)
        cart_net_note(ctx, CART_LOG_WARNING, "cartridge %s: not loaded: %s", name, err->msg);
    else if (warning && *warning)
        cart_net_note(ctx, CART_LOG_WARNING, "cartridge %s: %s", name, warning);
}

bool cart_net_load_directory(struct cart_serve *s)
{
    struct cart_err err = {0};
    if (!s->opt.directory) {
        cart_net_note(s, CART_LOG_WARNING, "no directory to read again (--directory)");
        return false;
    }
    if (cart_registry_load(s->registry, s->opt.directory, report_file, s, &err) < 0) {
        cart_net_note(s, CART_LOG_ERROR, "%s", err.msg);
        return false;
    }
    size_t n = cart_registry_counts(s->registry).cartridges;
    cart_net_note(s, CART_LOG_NOTICE, "%s: read again; %zu cartridge%s in all", s->opt.directory, n,
                  CART_S(n));
    return true;
}

static void run_job(struct cart_serve *s, struct cart_exchange *x)
{
    if (!x) {
        cart_net_load_directory(s);
        return;
    }
    if (x->more)
        x->more(x);
    else if (!cart_exchange_gone(x))
        x->route->run(x);
    cart_exchange_release(x);
}

static void *worker(void *arg)
{
    struct cart_serve *s = arg;
    struct cart_net *n = s->net;
    for (;;) {
        pthread_mutex_lock(&n->work_lock);
        while (!n->first && !n->quit)
            pthread_cond_wait(&n->work, &n->work_lock);
        struct job *j = n->first;
        if (j && !(n->first = j->next))
            n->last = NULL;
        pthread_mutex_unlock(&n->work_lock);
        if (!j)
            return NULL;
        run_job(s, j->x);
        free(j);
    }
}

static bool push_job(struct cart_serve *s, struct cart_exchange *x)
{
    struct cart_net *n = s->net;
    struct job *j = calloc(1, sizeof *j);
    if (!j)
        return false;
    j->x = x;
    pthread_mutex_lock(&n->work_lock);
    if (n->last)
        n->last->next = j;
    else
        n->first = j;
    n->last = j;
    pthread_cond_signal(&n->work);
    pthread_mutex_unlock(&n->work_lock);
    return true;
}

void cart_net_submit(struct cart_serve *s, struct cart_exchange *x)
{
    cart_exchange_hold(x);
    if (push_job(s, x))
        return;
    cart_exchange_error(x, 503, "out_of_memory", NULL, "no memory for another request");
    cart_exchange_release(x);
}

static void reload_later(struct cart_serve *s)
{
    if (!push_job(s, NULL))
        cart_net_note(s, CART_LOG_ERROR, "no memory to read the directory again");
}

/* ---- connections and their deadlines ---- */

void cart_net_phase(struct cart_serve *s, int fd, enum cart_net_phase phase)
{
    struct cart_net *n = s->net;
    if (fd < 0)
        return;
    pthread_mutex_lock(&n->lock);
    if ((size_t)fd < n->n_connections) {
        struct connection *c = &n->connections[fd];
        n->open -= c->phase != CART_NET_CLOSED && phase == CART_NET_CLOSED;
        n->open += c->phase == CART_NET_CLOSED && phase != CART_NET_CLOSED;
        c->phase = phase;
        c->since = cart_clock_now();
        c->ended = false;
    }
    pthread_mutex_unlock(&n->lock);
}

/* A new descriptor; false where there is no memory for it. Makes room by closing who has waited
 * longest without asking for anything. */
static bool admit(struct cart_serve *s, int fd)
{
    struct cart_net *n = s->net;
    bool ok = true;
    pthread_mutex_lock(&n->lock);
    if ((size_t)fd >= n->n_connections) {
        size_t more = (size_t)fd + 256;
        struct connection *c = realloc(n->connections, more * sizeof *c);
        ok = c != NULL;
        for (size_t i = n->n_connections; ok && i < more; i++)
            c[i] = (struct connection){CART_NET_CLOSED, 0, false};
        if (ok) {
            n->connections = c;
            n->n_connections = more;
        }
    }
    int oldest = -1;
    for (size_t i = 0; ok && n->open >= s->opt.max_connections && i < n->n_connections; i++)
        if (n->connections[i].phase == CART_NET_HEADER &&
            (oldest < 0 || n->connections[i].since < n->connections[oldest].since))
            oldest = (int)i;
    if (oldest >= 0)
        shutdown(oldest, SHUT_RDWR);
    else if (n->open >= s->opt.max_connections)
        ok = false;
    pthread_mutex_unlock(&n->lock);
    if (ok)
        cart_net_phase(s, fd, CART_NET_HEADER);
    return ok;
}

/* A connection that libmicrohttpd does not have yet. */
static void drop(struct cart_serve *s, int fd)
{
    cart_net_phase(s, fd, CART_NET_CLOSED);
    close(fd);
}

static void refuse(struct cart_serve *s, int fd, const struct cart_gate *g)
{
    char text[640], thrown[4096];
    int body = snprintf(NULL, 0, REFUSAL, g->reason);
    int n = snprintf(text, sizeof text,
                     "HTTP/1.1 %u Refused\r\nContent-Type: application/json\r\nContent-Length: "
                     "%d\r\nConnection: close\r\n\r\n" REFUSAL,
                     g->status, body, g->reason);
    ssize_t sent = n > 0 ? send(fd, text, (size_t)n, MSG_DONTWAIT | MSG_NOSIGNAL) : 0;
    (void)sent; /* a client that takes no answer gets none */
    shutdown(fd, SHUT_WR);
    /* Unread bytes would turn the close into a reset, which may overtake the answer. */
    for (int i = 0; i < N_EVENTS && recv(fd, thrown, sizeof thrown, MSG_DONTWAIT) > 0; i++)
        continue;
    cart_net_note(s, CART_LOG_INFO, "a request was refused: %s", g->reason);
    drop(s, fd);
}

/* More bytes at the gate. Edge-triggered: they stay in the socket until libmicrohttpd reads them.
 * Who closes before the header is complete will not complete it. */
static void look(struct cart_serve *s, int fd, uint32_t events)
{
    char data[CART_GATE_HEADER_MAX + CART_GATE_CHUNK_LINE_MAX];
    struct sockaddr_storage a;
    socklen_t n_addr = sizeof a;
    struct cart_gate g;
    ssize_t n = recv(fd, data, sizeof data, MSG_PEEK | MSG_DONTWAIT);
    if (n < 0 && (errno == EAGAIN || errno == EINTR))
        return;
    if (n <= 0) {
        drop(s, fd);
        return;
    }
    switch (cart_gate_judge(data, (size_t)n, s->opt.max_body, &g)) {
    case CART_GATE_MORE:
        if (events & (EPOLLRDHUP | EPOLLHUP | EPOLLERR))
            drop(s, fd);
        return;
    case CART_GATE_REFUSE:
        refuse(s, fd, &g);
        return;
    case CART_GATE_PASS:
        break;
    }
    epoll_ctl(s->net->epoll, EPOLL_CTL_DEL, fd, NULL);
    memset(&a, 0, sizeof a);
    if (getpeername(fd, (struct sockaddr *)&a, &n_addr) < 0)
        drop(s, fd);
    else if (!cart_http_add(s, fd, &a, n_addr))
        cart_net_phase(s, fd, CART_NET_CLOSED);
}

static void accept_all(struct cart_serve *s, int listener)
{
    struct sockaddr_storage a;
    for (int i = 0; i < N_EVENTS; i++) {
        socklen_t n = sizeof a;
        int on = 1, fd = accept(listener, (struct sockaddr *)&a, &n);
        struct epoll_event e = {.events = EPOLLIN | EPOLLRDHUP | EPOLLET,
                                .data.u64 = ((uint64_t)AT_GATE << 32) | (uint32_t)fd};
        if (fd < 0)
            return;
        if (cart_listen_prepare(fd, NULL) < 0 || !admit(s, fd)) {
            close(fd);
            continue;
        }
        if (a.ss_family != AF_UNIX)
            setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
        if (epoll_ctl(s->net->epoll, EPOLL_CTL_ADD, fd, &e) < 0)
            drop(s, fd);
    }
}

/* libmicrohttpd misses the end of a body that comes together with its last bytes: it waits for an
 * edge that was there already. Two looks, so that one that is only just being read is left alone.
 */
static bool ended(struct connection *c, int fd)
{
    char byte;
    bool before = c->ended;
    c->ended = recv(fd, &byte, 1, MSG_PEEK | MSG_DONTWAIT) == 0;
    return before && c->ended;
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
        bool late = waits && now - c->since > s->opt.timeout;
        if (late || (c->phase == CART_NET_BODY && ended(c, (int)i)))
            shutdown((int)i, SHUT_RDWR);
    }
    pthread_mutex_unlock(&n->lock);
}

/* ---- clients that wait ---- */

void cart_net_watch(struct cart_serve *s, struct cart_exchange *x)
{
    struct cart_net *n = s->net;
    struct epoll_event e = {.events = EPOLLRDHUP,
                            .data.u64 = ((uint64_t)AT_CLIENT << 32) | (uint32_t)x->fd};
    pthread_mutex_lock(&n->lock);
    x->watched = true;
    x->prev = NULL;
    x->next = n->watched;
    if (n->watched)
        n->watched->prev = x;
    n->watched = x;
    epoll_ctl(n->epoll, EPOLL_CTL_ADD, x->fd, &e);
    pthread_mutex_unlock(&n->lock);
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
    pthread_mutex_lock(&x->lock);
    bool first = !x->probed, begun = x->answered || x->queued;
    x->probed = true;
    pthread_mutex_unlock(&x->lock);
    if (!first || begun)
        return true;
    if (x->http10)
        return false;
    return send(x->fd, interim, sizeof interim - 1, MSG_DONTWAIT | MSG_NOSIGNAL) >= 0;
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

/* What is still under way when the time for it has passed. */
static void cut_off(struct cart_serve *s)
{
    struct cart_net *n = s->net;
    pthread_mutex_lock(&n->lock);
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
        case AT_GATE:
            look(s, fd, events[i].events);
            break;
        default:
            for (ssize_t k = read(fd, bytes, sizeof bytes); k > 0; k--)
                if (bytes[k - 1] == 'r')
                    reload_later(s);
        }
    }
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
        wait_once(s, DRAIN_TICK_MS);
    cut_off(s);
    until =
        cart_clock_now() + (atomic_load(&s->net->stops) < 2 ? FLUSH_SECONDS : FLUSH_SECONDS / 10);
    while (cart_metrics_in_flight(s->metrics) > 0 && cart_clock_now() < until)
        wait_once(s, DRAIN_TICK_MS);
}

/* Resumes what is suspended (libmicrohttpd must not be stopped before), ends its thread and the
 * workers. */
static void halt(struct cart_serve *s)
{
    struct cart_net *n = s->net;
    cut_off(s);
    cart_http_stop(s);
    pthread_mutex_lock(&n->work_lock);
    n->quit = true;
    pthread_cond_broadcast(&n->work);
    pthread_mutex_unlock(&n->work_lock);
    while (n->n_workers > 0)
        pthread_join(n->workers[--n->n_workers], NULL);
}

void cart_serve_run(struct cart_serve *s)
{
    double swept = cart_clock_now();
    while (atomic_load(&s->net->stops) == 0) {
        wait_once(s, TICK_MS);
        double now = cart_clock_now();
        if (now - swept < TICK_MS / 1000.0)
            continue;
        swept = now;
        enforce_deadlines(s, now);
        ping(s, now);
    }
    drain(s);
    halt(s);
}

static void tell(struct cart_serve *s, char what)
{
    int saved = errno;
    ssize_t n = write(s->net->control[1], &what, 1);
    (void)n; /* a full pipe has woken the loop already */
    errno = saved;
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

size_t cart_serve_port(const struct cart_serve *s)
{
    return s->net->listeners.port;
}

/* ---- life ---- */

static void raise_descriptor_limit(void)
{
    struct rlimit l;
    if (getrlimit(RLIMIT_NOFILE, &l) == 0 && l.rlim_cur < l.rlim_max) {
        l.rlim_cur = l.rlim_max;
        setrlimit(RLIMIT_NOFILE, &l);
    }
}

int cart_net_open(struct cart_serve *s, struct cart_err *err)
{
    struct cart_net *n = calloc(1, sizeof *n);
    if (!n)
        return cart_err_memory(err, "network", sizeof *n);
    s->net = n;
    n->epoll = n->control[0] = n->control[1] = -1;
    pthread_mutex_init(&n->lock, NULL);
    pthread_mutex_init(&n->work_lock, NULL);
    pthread_cond_init(&n->work, NULL);
    raise_descriptor_limit();
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
    for (; n->n_workers < N_WORKERS; n->n_workers++)
        if ((errno = pthread_create(&n->workers[n->n_workers], NULL, worker, s)) != 0)
            return cart_err_sys(err, "worker thread");
    return 0;
}

void cart_net_close(struct cart_serve *s)
{
    struct cart_net *n = s->net;
    if (!n)
        return;
    halt(s);
    /* Those still at the gate; libmicrohttpd has closed its own. */
    for (size_t i = 0; i < n->n_connections; i++)
        if (n->connections[i].phase != CART_NET_CLOSED)
            close((int)i);
    cart_listeners_close(&n->listeners);
    if (n->epoll >= 0)
        close(n->epoll);
    for (int i = 0; i < 2; i++)
        if (n->control[i] >= 0)
            close(n->control[i]);
    pthread_cond_destroy(&n->work);
    pthread_mutex_destroy(&n->work_lock);
    pthread_mutex_destroy(&n->lock);
    free(n->connections);
    free(n);
    s->net = NULL;
}
