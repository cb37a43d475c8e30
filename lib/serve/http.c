/* libmicrohttpd's side: framing was judged before (gate.c); a header is checked before its body is
 * read, a body is collected within its limit, a route answers at once or the connection is
 * suspended until a worker or the scheduler has written. Suspended connections cost no thread;
 * net.c watches their sockets, which libmicrohttpd does not. */
#include "serve/exchange.h"

#include "base/clock.h"
#include "base/hash.h"
#include "serve/gate.h"
#include "serve/keys.h"
#include "serve/metrics.h"
#include "serve/work.h"

#include <fcntl.h>
#include <limits.h>
#include <microhttpd.h>
#include <netinet/in.h>
#include <arpa/inet.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/socket.h>
#include <unistd.h>

#define STREAM_BLOCK ((size_t)16384)
/* A header that the gate lets in, its cookies once more, a record for each of both, and a header of
 * ours: where it does not suffice libmicrohttpd makes answers of its own. */
#define CONNECTION_MEMORY ((size_t)65536)

/* ---- one exchange ---- */

static int connection_fd(struct MHD_Connection *c)
{
    const union MHD_ConnectionInfo *info =
        MHD_get_connection_info(c, MHD_CONNECTION_INFO_CONNECTION_FD);
    return info ? (int)info->connect_fd : -1;
}

static const char *field(struct MHD_Connection *c, const char *name)
{
    return MHD_lookup_connection_value(c, MHD_HEADER_KIND, name);
}

/* A name that the client gave for its request is kept where it is harmless in a header and a log.
 */
static void request_id(struct cart_exchange *x)
{
    static atomic_ullong count;
    const char *given = field(x->connection, "X-Request-Id");
    static const char fine[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_.";
    if (given && *given && strlen(given) < sizeof x->id && strspn(given, fine) == strlen(given)) {
        snprintf(x->id, sizeof x->id, "%s", given);
        return;
    }
    struct {
        long created;
        long pid;
        unsigned long long n;
        double now;
    } seed;
    memset(&seed, 0, sizeof seed);
    seed.created = x->serve->created;
    seed.pid = (long)getpid();
    seed.n = atomic_fetch_add(&count, 1);
    seed.now = cart_clock_now();
    unsigned char digest[16];
    char hex[33];
    cart_hash_bytes(&seed, sizeof seed, digest);
    snprintf(x->id, sizeof x->id, "req-%.24s", cart_hex(hex, digest, sizeof digest));
}

/* The authority that a target in absolute form names, or NULL: it counts, and Host does not. */
static const char *authority_of(const char *url)
{
    static const char scheme[] = "http://";
    return strncasecmp(url, scheme, sizeof scheme - 1) == 0 ? url + sizeof scheme - 1 : NULL;
}

/* The path as routes have it: without the authority of the absolute form; a base URL that ends in a
 * slash doubles one, and a slash at the end names the same thing. */
static char *plain_path(const char *url)
{
    const char *authority = authority_of(url), *from = authority ? strchr(authority, '/') : url;
    char *path = strdup(from ? from : "/");
    size_t n = 0;
    for (const char *p = path; p && *p; p++)
        if (*p != '/' || n == 0 || path[n - 1] != '/')
            path[n++] = *p;
    if (n > 1 && path[n - 1] == '/')
        n--;
    if (path)
        path[n] = '\0';
    return path;
}

static struct cart_exchange *exchange_new(struct cart_serve *s, struct MHD_Connection *c,
                                          const char *method, const char *url, const char *version)
{
    struct cart_exchange *x = calloc(1, sizeof *x);
    if (!x)
        return NULL;
    const char *authority = authority_of(url);
    x->path = plain_path(url);
    if (authority)
        x->authority = strndup(authority, strcspn(authority, "/?"));
    if (!x->path || (authority && !x->authority)) {
        free(x->path);
        free(x->authority);
        free(x);
        return NULL;
    }
    pthread_mutex_init(&x->lock, NULL);
    x->serve = s;
    x->connection = c;
    x->method = method;
    x->http10 = strcmp(version, "HTTP/1.0") == 0;
    x->head_only = strcmp(method, "HEAD") == 0;
    x->fd = connection_fd(c);
    cart_net_client(s, x->fd, x->client);
    x->holders = 1;
    x->started = x->last_write = cart_clock_now();
    x->record.finish = x->record.cartridges = "";
    request_id(x);
    cart_metrics_began(s->metrics);
    return x;
}

/* ---- what a header must be before anything else is looked at ---- */

/* host [n], without its port. */
static bool loopback_name(const char *host, size_t n)
{
    if (n == 9 && strncasecmp(host, "localhost", 9) == 0)
        return true;
    if (n > 10 && strncasecmp(host + n - 10, ".localhost", 10) == 0)
        return true;
    if (n == 5 && strncmp(host, "[::1]", 5) == 0)
        return true;
    char text[16];
    struct in_addr a;
    if (n >= sizeof text)
        return false;
    memcpy(text, host, n);
    text[n] = '\0';
    return inet_pton(AF_INET, text, &a) == 1 && (ntohl(a.s_addr) >> 24) == 127;
}

static bool listed(const char *const *list, size_t n, const char *text, size_t len)
{
    for (size_t i = 0; i < n; i++)
        if (strcmp(list[i], "*") == 0 ||
            (strlen(list[i]) == len && strncasecmp(list[i], text, len) == 0))
            return true;
    return false;
}

/* A page elsewhere may point a name of its own at 127.0.0.1 and speak to us through its visitor's
 * browser. None: HTTP/1.0, which no browser speaks. */
static bool host_allowed(const struct cart_serve *s, const char *host)
{
    size_t n = 0;
    if (!s->loopback || !host)
        return true;
    return cart_gate_host(host, strlen(host), &n) &&
           (loopback_name(host, n) || listed(s->opt.hosts, s->opt.n_hosts, host, n));
}

static bool origin_allowed(const struct cart_serve *s, const char *origin, const char *host)
{
    const char *name = strstr(origin, "://");
    size_t n = 0;
    if (name && (strncmp(origin, "http://", 7) == 0 || strncmp(origin, "https://", 8) == 0)) {
        name += 3;
        if ((cart_gate_host(name, strlen(name), &n) && loopback_name(name, n)) ||
            (host && strcasecmp(name, host) == 0))
            return true;
    }
    return listed(s->opt.origins, s->opt.n_origins, origin, strlen(origin));
}

/* ---- routes ---- */

static bool route_fits(const struct cart_route *r, const char *path)
{
    size_t n = strlen(r->path);
    if (n > 1 && r->path[n - 1] == '/')
        return strncmp(path, r->path, n) == 0 && path[n] && strlen(path + n) <= CART_ARGUMENT_MAX;
    return strcmp(path, r->path) == 0;
}

/* The route, or NULL: then *allow names the methods that the path has, "" for none. */
static const struct cart_route *find_route(struct cart_exchange *x, char *allow, size_t cap)
{
    const char *path = strncmp(x->path, "/v1/", 4) == 0 ? x->path + 3 : x->path;
    const char *method = x->head_only ? "GET" : x->method;
    *allow = '\0';
    for (const struct cart_route *r = cart_routes; r->method; r++) {
        if (!route_fits(r, path))
            continue;
        if (strcmp(r->method, method) == 0) {
            if (r->path[strlen(r->path) - 1] == '/' && strlen(r->path) > 1)
                snprintf(x->argument, sizeof x->argument, "%s", path + strlen(r->path));
            return r;
        }
        size_t n = strlen(allow);
        snprintf(allow + n, cap - n, "%s%s", n ? ", " : "", r->method);
    }
    return NULL;
}

/* The static strings that Allow can be. */
static const char *allow_text(const char *allow)
{
    static const char *const all[] = {"GET",       "POST",        "DELETE",
                                      "GET, POST", "DELETE, GET", "GET, DELETE"};
    for (size_t i = 0; i < CART_COUNTOF(all); i++)
        if (strcmp(all[i], allow) == 0)
            return all[i];
    return "GET, POST, DELETE";
}

/* Says which paths there are; the table has one that has several methods once for each of them,
 * side by side. */
static void refuse_path(struct cart_exchange *x)
{
    char shown[160], list[512];
    size_t at = 0;
    for (const struct cart_route *r = cart_routes; r->method && at < sizeof list; r++) {
        bool again = r > cart_routes && strcmp(r[-1].path, r->path) == 0;
        if (!again && r->path[strlen(r->path) - 1] != '/')
            at += (size_t)snprintf(list + at, sizeof list - at, "%s%s", at ? ", " : "", r->path);
    }
    cart_exchange_error(x, 404, "not_found", NULL, "no path %s; there are %s",
                        cart_err_escape(shown, sizeof shown, x->path, strlen(x->path)), list);
}

static void refuse_method(struct cart_exchange *x, const char *allow)
{
    char path[160], method[48];
    x->allow = allow_text(allow);
    cart_exchange_error(x, 405, "method_not_allowed", NULL, "%s: expected %s, found %s",
                        cart_err_escape(path, sizeof path, x->path, strlen(x->path)), x->allow,
                        cart_err_escape(method, sizeof method, x->method, strlen(x->method)));
}

static const char *given_key(struct MHD_Connection *c)
{
    const char *auth = field(c, "Authorization");
    if (auth && strncasecmp(auth, "Bearer ", 7) == 0) {
        auth += 7;
        return auth + strspn(auth, " ");
    }
    return field(c, "X-Api-Key");
}

static void check_body(struct cart_exchange *x)
{
    const char *length = field(x->connection, "Content-Length"),
               *coding = field(x->connection, "Content-Encoding");
    if (length && strtoull(length, NULL, 10) > x->serve->opt.max_body)
        cart_exchange_error(x, 413, "body_too_large", NULL,
                            "expected a body of at most %zu bytes, found %s",
                            x->serve->opt.max_body, length);
    else if (coding && strcasecmp(coding, "identity") != 0)
        cart_exchange_error(x, 415, "unsupported_encoding", NULL,
                            "Content-Encoding: expected none, for bodies are read as they are");
}

static void check_header(struct cart_exchange *x)
{
    struct cart_serve *s = x->serve;
    char allow[64];
    const char *origin = field(x->connection, "Origin"),
               *host = x->authority ? x->authority : field(x->connection, "Host");
    /* Whoever reaches a Unix socket was let in by the file system, and no browser speaks to it. */
    if (!host_allowed(s, host) && strcmp(x->client, CART_CLIENT_UNIX) != 0) {
        cart_exchange_error(x, 403, "host_not_allowed", NULL,
                            "this server answers on loopback names only; --allow-host adds others");
    } else if (origin && !origin_allowed(s, origin, host)) {
        cart_exchange_error(x, 403, "origin_not_allowed", NULL,
                            "this origin may not call this server; --cors-origin adds origins");
    } else {
        x->origin = origin ? strdup(origin) : NULL;
        x->route = find_route(x, allow, sizeof allow);
        if (strcmp(x->method, "OPTIONS") == 0) {
            struct cart_buf none = CART_BUF_INIT;
            cart_exchange_reply(x, 204, NULL, &none);
        } else if (!x->route && *allow) {
            refuse_method(x, allow);
        } else if (!x->route) {
            refuse_path(x);
        } else if (!x->route->open && !cart_keys_allow(s->keys, given_key(x->connection))) {
            cart_exchange_error(x, 401, "invalid_api_key", NULL,
                                "expected a valid key in Authorization: Bearer KEY or x-api-key");
        } else {
            check_body(x);
        }
    }
}

/* ---- answers ---- */

static ssize_t read_stream(void *ctx, uint64_t pos, char *out, size_t max)
{
    struct cart_exchange *x = ctx;
    ssize_t r = 0;
    (void)pos;
    pthread_mutex_lock(&x->lock);
    size_t n = x->out.len - x->sent;
    if (n > 0) {
        r = (ssize_t)(n < max ? n : max);
        memcpy(out, x->out.data + x->sent, (size_t)r);
        x->sent += (size_t)r;
    } else if (x->ended) {
        r = MHD_CONTENT_READER_END_OF_STREAM;
    } else {
        x->suspended = true;
        MHD_suspend_connection(x->connection);
    }
    pthread_mutex_unlock(&x->lock);
    return r;
}

static void add_fields(struct cart_exchange *x, struct MHD_Response *r)
{
    char number[24];
    if (x->content_type)
        MHD_add_response_header(r, "Content-Type", x->content_type);
    MHD_add_response_header(r, "X-Request-Id", x->id);
    if (x->cartridges)
        MHD_add_response_header(r, "X-Cartridges", x->cartridges);
    if (x->origin) {
        MHD_add_response_header(r, "Access-Control-Allow-Origin", x->origin);
        MHD_add_response_header(r, "Vary", "Origin");
        MHD_add_response_header(r, "Access-Control-Expose-Headers",
                                "X-Request-Id, X-Cartridges, Retry-After");
    }
    if (strcmp(x->method, "OPTIONS") == 0) {
        MHD_add_response_header(r, "Allow", "GET, POST, DELETE, OPTIONS");
        MHD_add_response_header(r, "Access-Control-Allow-Methods", "GET, POST, DELETE, OPTIONS");
        const char *asked = field(x->connection, "Access-Control-Request-Headers");
        MHD_add_response_header(r, "Access-Control-Allow-Headers",
                                asked ? asked : "authorization, content-type");
        MHD_add_response_header(r, "Access-Control-Max-Age", "600");
    }
    if (x->allow)
        MHD_add_response_header(r, "Allow", x->allow);
    if (x->status == 401)
        MHD_add_response_header(r, "WWW-Authenticate", "Bearer");
    if (x->retry_after) {
        snprintf(number, sizeof number, "%u", x->retry_after);
        MHD_add_response_header(r, "Retry-After", number);
    }
    if (x->no_retry)
        MHD_add_response_header(r, "X-Should-Retry", "false");
    if (x->streaming) {
        MHD_add_response_header(r, "Cache-Control", "no-cache");
        MHD_add_response_header(r, "X-Accel-Buffering", "no");
    }
    if (x->route && x->route->endpoint == CART_AT_PAGE)
        MHD_add_response_header(
            r, "Content-Security-Policy",
            "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; "
            "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'");
}

/* Hands the answer over; in libmicrohttpd's thread, once. early: a body may still be on its way,
 * and is not read. */
static enum MHD_Result queue_answer(struct cart_exchange *x, bool early)
{
    struct MHD_Response *r;
    pthread_mutex_lock(&x->lock);
    x->queued = true;
    if (x->streaming) {
        r = MHD_create_response_from_callback(MHD_SIZE_UNKNOWN, STREAM_BLOCK, read_stream, x, NULL);
    } else {
        char *data = x->out.data;
        size_t n = x->out.len;
        x->out = (struct cart_buf)CART_BUF_INIT;
        r = data ? MHD_create_response_from_buffer(n, data, MHD_RESPMEM_MUST_FREE)
                 : MHD_create_response_from_buffer(0, (void *)(uintptr_t) "",
                                                   MHD_RESPMEM_PERSISTENT);
        if (!r)
            free(data);
    }
    if (r) {
        add_fields(x, r);
        if (early && !x->head_only && strcmp(x->method, "GET") != 0)
            MHD_add_response_header(r, "Connection", "close");
    }
    unsigned status = x->status;
    pthread_mutex_unlock(&x->lock);
    if (!r)
        return MHD_NO;
    enum MHD_Result done = MHD_queue_response(x->connection, status, r);
    MHD_destroy_response(r);
    return done;
}

static bool suspend_unless_answered(struct cart_exchange *x)
{
    pthread_mutex_lock(&x->lock);
    bool wait = !x->answered;
    if (wait && !x->suspended) {
        x->suspended = true;
        MHD_suspend_connection(x->connection);
    }
    pthread_mutex_unlock(&x->lock);
    return wait;
}

static void run_route(struct cart_exchange *x)
{
    if (!cart_exchange_gone(x))
        x->route->run(x);
}

static enum MHD_Result dispatch(struct cart_exchange *x)
{
    struct cart_serve *s = x->serve;
    cart_net_phase(s, x->fd, CART_NET_ANSWER);
    if (x->no_memory) {
        cart_exchange_error(x, 503, "out_of_memory", NULL, "no memory for this request");
    } else if (x->too_large) {
        cart_exchange_error(x, 413, "body_too_large", NULL, "expected a body of at most %zu bytes",
                            s->opt.max_body);
    } else if (x->too_many) {
        x->retry_after = 1;
        cart_exchange_error(x, 429, "queue_full", NULL,
                            "the requests that wait have as many bytes as may; try again later");
    } else if (x->route->thread == CART_ON_HTTP) {
        x->route->run(x);
    } else if (!cart_net_watch(s, x)) {
        cart_exchange_error(x, 503, "shutting_down", NULL, "the server is shutting down");
    } else {
        if (!suspend_unless_answered(x))
            return queue_answer(x, false);
        if (x->route->thread == CART_ON_LOADER)
            cart_work_submit_files(s->work, x, run_route);
        else
            cart_work_submit(s->work, x, run_route);
        return MHD_YES;
    }
    return queue_answer(x, false);
}

static enum MHD_Result collect(struct cart_exchange *x, const char *data, size_t *n)
{
    size_t more = *n;
    bool whole = !x->too_large && !x->too_many && !x->no_memory;
    *n = 0;
    if (whole && cart_exchange_collect(x, data, more))
        return MHD_YES;
    /* What comes is thrown away, so that the answer can say why; who sends as much again as the
     * limit is cut off. */
    cart_exchange_drop_body(x);
    x->thrown += more;
    return x->thrown > x->serve->opt.max_body ? MHD_NO : MHD_YES;
}

static enum MHD_Result on_request(void *ctx, struct MHD_Connection *c, const char *url,
                                  const char *method, const char *version, const char *data,
                                  size_t *n, void **state)
{
    struct cart_serve *s = ctx;
    struct cart_exchange *x = *state;
    if (!x) {
        x = exchange_new(s, c, method, url, version);
        if (!x)
            return MHD_NO;
        *state = x;
        check_header(x);
        return x->answered ? queue_answer(x, true) : MHD_YES;
    }
    if (*n > 0)
        return collect(x, data, n);
    if (x->queued)
        return MHD_YES;
    if (!x->watched)
        return dispatch(x);
    /* Woken: by an answer, or for no reason of ours. */
    return suspend_unless_answered(x) ? MHD_YES : queue_answer(x, false);
}

static void log_exchange(struct cart_exchange *x, bool complete)
{
    struct cart_serve *s = x->serve;
    char method[64], path[2048], message[1024];
    pthread_mutex_lock(&x->lock);
    struct cart_serve_record r = x->record;
    bool answered = x->answered;
    unsigned status = x->status;
    const char *refused = x->refused; /* once it is there it stays */
    pthread_mutex_unlock(&x->lock);
    r.id = x->id;
    r.method = cart_err_escape(method, sizeof method, x->method, strlen(x->method));
    r.path = cart_err_escape(path, sizeof path, x->path, strlen(x->path));
    r.client = x->client;
    r.model = x->record_model;
    if (refused)
        r.message = cart_err_escape(message, sizeof message, refused, strlen(refused));
    r.status = answered && complete ? status : 499;
    r.seconds = cart_clock_now() - x->started;
    r.monitoring =
        x->route && (x->route->endpoint == CART_AT_HEALTH || x->route->endpoint == CART_AT_METRICS);
    cart_metrics_ended(s->metrics, x->route ? x->route->endpoint : CART_AT_NOWHERE, r.status);
    if (s->opt.on_request)
        s->opt.on_request(s->opt.ctx, &r);
}

static void on_completed(void *ctx, struct MHD_Connection *c, void **state,
                         enum MHD_RequestTerminationCode how)
{
    struct cart_serve *s = ctx;
    struct cart_exchange *x = *state;
    (void)c;
    if (!x)
        return;
    *state = NULL;
    cart_net_unwatch(s, x);
    cart_net_phase(s, x->fd, CART_NET_HEADER);
    log_exchange(x, how == MHD_REQUEST_TERMINATED_COMPLETED_OK);
    pthread_mutex_lock(&x->lock);
    x->gone = true;
    x->connection = NULL;
    pthread_mutex_unlock(&x->lock);
    cart_exchange_cancel(x);
    cart_exchange_release(x);
}

static void on_connection(void *ctx, struct MHD_Connection *c, void **state,
                          enum MHD_ConnectionNotificationCode what)
{
    (void)state;
    if (what == MHD_CONNECTION_NOTIFY_CLOSED)
        cart_net_phase(ctx, connection_fd(c), CART_NET_CLOSED);
}

static void on_library_note(void *ctx, const char *fmt, va_list ap)
{
    char text[400], shown[800];
    vsnprintf(text, sizeof text, fmt, ap);
    text[strcspn(text, "\n")] = '\0';
    cart_net_note(ctx, CART_LOG_DEBUG, "libmicrohttpd: %s",
                  cart_err_escape(shown, sizeof shown, text, strlen(text)));
}

/* ---- the daemon ---- */

static struct MHD_Daemon *daemon_of(struct cart_serve *s)
{
    return s->http;
}

int cart_http_start(struct cart_serve *s, struct cart_err *err)
{
    /* Connections are counted, and their deadlines kept, by net.c: at a limit of its own
     * libmicrohttpd would close some without a word, so that its time-out comes later. */
    unsigned late = s->opt.timeout < 1 ? 2 : 2 * (unsigned)s->opt.timeout;
    s->http = MHD_start_daemon(
        MHD_USE_EPOLL_INTERNAL_THREAD | MHD_ALLOW_SUSPEND_RESUME | MHD_USE_NO_LISTEN_SOCKET |
            MHD_USE_ERROR_LOG,
        0, NULL, NULL, on_request, s, MHD_OPTION_EXTERNAL_LOGGER, on_library_note, s,
        MHD_OPTION_NOTIFY_COMPLETED, on_completed, s, MHD_OPTION_NOTIFY_CONNECTION, on_connection,
        s, MHD_OPTION_CONNECTION_MEMORY_LIMIT, CONNECTION_MEMORY, MHD_OPTION_CONNECTION_LIMIT,
        (unsigned)INT_MAX, MHD_OPTION_CONNECTION_TIMEOUT, late, MHD_OPTION_END);
    if (!s->http)
        return cart_err_sys(err, "libmicrohttpd: start");
    return 0;
}

bool cart_http_add(struct cart_serve *s, int fd)
{
    const struct sockaddr_storage nobody = {.ss_family = AF_UNIX};
    return MHD_add_connection(daemon_of(s), fd, (const struct sockaddr *)&nobody,
                              sizeof nobody.ss_family) == MHD_YES;
}

void cart_http_stop(struct cart_serve *s)
{
    if (s->http)
        MHD_stop_daemon(daemon_of(s));
    s->http = NULL;
}
