/* One HTTP request and its answer: what http.c, which speaks to libmicrohttpd, and the routes know
 * of each other. Internal to the room.
 *
 * An exchange is born in libmicrohttpd's thread when a header has come and ends there when the
 * answer has gone or the client has. A route that takes long runs in a worker, and its answer may
 * be written by the scheduler's thread; both hold the exchange while they do (cart_exchange_hold),
 * and everything they write goes through the functions below, which lock it and wake the
 * connection. */
#ifndef CART_SERVE_EXCHANGE_H
#define CART_SERVE_EXCHANGE_H

#include "base/buf.h"
#include "serve/serve.h"

#include <pthread.h>
#include <stdatomic.h>

struct MHD_Connection;
struct cart_exchange;
struct cart_metrics;
struct cart_wire;

/* Where a request can go; also the label of the metrics. */
enum cart_endpoint {
    CART_AT_CHAT,
    CART_AT_COMPLETIONS,
    CART_AT_MODELS,
    CART_AT_EMBEDDINGS,
    CART_AT_TOKENIZE,
    CART_AT_DETOKENIZE,
    CART_AT_TEMPLATE,
    CART_AT_COUNT,
    CART_AT_CARTRIDGES,
    CART_AT_HEALTH,
    CART_AT_METRICS,
    CART_AT_PROPS,
    CART_AT_PAGE,
    CART_AT_NOWHERE,
    CART_N_ENDPOINTS,
};

typedef void cart_route_fn(struct cart_exchange *x);

/* The thread of a route: libmicrohttpd's where nothing takes time, a worker, or the loader. */
enum cart_route_thread { CART_ON_HTTP, CART_ON_WORKER, CART_ON_LOADER };

struct cart_route {
    const char *method, *path; /* path ends in a slash: what follows it is x->argument */
    enum cart_endpoint endpoint;
    cart_route_fn *run;
    enum cart_route_thread thread;
    bool open; /* needs no key */
};

#define CART_ARGUMENT_MAX ((size_t)255)
#define CART_MODEL_ID_MAX ((size_t)300) /* bytes of BASE:NAME, which the tool keeps shorter */
#define CART_CLIENT_MAX 46              /* bytes of an address as text, as INET6_ADDRSTRLEN */
#define CART_CLIENT_UNIX "unix"

struct cart_exchange {
    struct cart_serve *serve;
    struct MHD_Connection *connection; /* NULL when the client has gone */
    const struct cart_route *route;
    char id[40]; /* x-request-id */
    char argument[CART_ARGUMENT_MAX + 1];
    const char *method;
    char *path;      /* owned */
    char *authority; /* of a target in absolute form, which stands for Host; owned, or NULL */
    char *origin;    /* allowed Origin to reflect, owned, or NULL */
    bool http10, head_only;
    int fd;                       /* libmicrohttpd's, whose other end is the relay's */
    char client[CART_CLIENT_MAX]; /* address, or CART_CLIENT_UNIX */
    double started;
    struct cart_buf body;
    bool too_large, too_many, no_memory; /* one of them: then the body is thrown away */
    size_t thrown;                       /* bytes of it */

    pthread_mutex_t lock; /* of everything below */
    int holders;
    bool answered;  /* status is decided */
    bool streaming; /* out grows until ended */
    bool ended, suspended, queued, gone, probed;
    bool pings; /* a stream was asked for: comments may come before its first frame */
    unsigned status;
    const char *content_type; /* static */
    char *cartridges;         /* X-Cartridges, owned; NULL for none */
    const char *allow;        /* Allow of a 405 */
    unsigned retry_after;     /* seconds, 0 for none */
    bool no_retry;            /* x-should-retry: false */
    struct cart_buf out;
    size_t sent;        /* of out, when streaming */
    double last_write;  /* when out last grew, or the start */
    uint64_t *requests; /* of the scheduler, [n_requests] owned */
    size_t n_requests;
    struct cart_serve_record record; /* code; generated and what follows it */
    char *refused;                   /* the message of an error answer, owned; NULL for none */
    char record_model[CART_MODEL_ID_MAX];
    struct cart_exchange *next, *prev; /* list of watched ones; lock of the server */
    bool watched;

    void *state; /* of the route: freed with the exchange */
    void (*free_state)(void *state);
};

/* What a server keeps; the parts that routes need. */
struct cart_serve {
    struct cart_serve_options opt;
    const struct cart_model *model;
    struct cart_registry *registry;
    struct cart_scheduler *scheduler;
    const struct cart_chat *chat; /* NULL: a template that no profile knows */
    struct cart_err chat_err;     /* then: why */
    struct cart_metrics *metrics;
    struct cart_keys *keys;
    struct cart_net *net;   /* listeners, connections, the loop */
    struct cart_work *work; /* the workers */
    void *http;             /* libmicrohttpd's daemon */
    atomic_size_t bodies;   /* bytes of bodies that have come and are not parsed yet */
    long created;           /* seconds since 1970 */
    bool loopback;          /* every TCP listener is on a loopback address */
    char instance[17];      /* digest of build, model and classes of numbers */
};

/* More of the body. false: it is refused, as too_large and what follows that say. */
bool cart_exchange_collect(struct cart_exchange *x, const char *data, size_t n);
/* Once it has been read: an answer that waits for its turn holds no body. */
void cart_exchange_drop_body(struct cart_exchange *x);

void cart_exchange_hold(struct cart_exchange *x);
void cart_exchange_release(struct cart_exchange *x);

/* The whole answer. body's memory becomes the exchange's. Once; later calls change nothing. */
void cart_exchange_reply(struct cart_exchange *x, unsigned status, const char *type,
                         struct cart_buf *body);
/* {"error": {message, type, param, code}}; type follows from the status. param and code may be
 * NULL. While an answer is already streaming it becomes a last data: frame. */
void cart_exchange_error(struct cart_exchange *x, unsigned status, const char *code,
                         const char *param, const char *fmt, ...) CART_PRINTF(5, 6);
/* As above with further members of the error object: text such as "\"n_ctx\":512", or NULL. */
void cart_exchange_error_with(struct cart_exchange *x, unsigned status, const char *code,
                              const char *param, const char *members, const char *message);

/* A stream of server-sent events. push begins it (status 200) and appends one whole frame's bytes;
 * false: the client is gone or reads too slowly, and nothing more need be made. end is the clean
 * end. */
bool cart_exchange_push(struct cart_exchange *x, const char *bytes, size_t n);
void cart_exchange_end(struct cart_exchange *x);
bool cart_exchange_gone(struct cart_exchange *x);

/* Requests of the scheduler that stand behind this exchange: cancelled when the client goes. Takes
 * the id; false: the client has gone already and the request was cancelled. */
bool cart_exchange_expect(struct cart_exchange *x, uint64_t request);
/* Cancels them all. From any thread; the lock is not held. */
void cart_exchange_cancel(struct cart_exchange *x);

/* Bytes that wait for a reader before it counts as too slow. */
#define CART_EXCHANGE_BACKLOG ((size_t)4 << 20)

/* ---- http.c for net.c ---- */

int cart_http_start(struct cart_serve *s, struct cart_err *err) CART_MUST_USE;
/* One end of a pair whose other end is the relay's; it is libmicrohttpd's from here on, also on
 * failure. */
bool cart_http_add(struct cart_serve *s, int fd);
void cart_http_stop(struct cart_serve *s);

/* ---- net.c for http.c ---- */

/* Until the exchange ends. false: the server has ended, and the exchange must not be suspended. */
bool cart_net_watch(struct cart_serve *s, struct cart_exchange *x) CART_MUST_USE;
void cart_net_unwatch(struct cart_serve *s,
                      struct cart_exchange *x); /* no pointer to it is left afterwards */
/* Reads the directory again, now; takes its time. Appends {id, message} of each file that is
 * refused to refused, which may be NULL. false: the directory could not be read, which is
 * logged. */
bool cart_net_load_directory(struct cart_serve *s, struct cart_wire *refused);
bool cart_net_draining(const struct cart_serve *s);
/* Deadlines of a connection by libmicrohttpd's descriptor: it waits for a header (the next one goes
 * in only then), for a body, or for us. */
enum cart_net_phase { CART_NET_HEADER, CART_NET_BODY, CART_NET_ANSWER, CART_NET_CLOSED };
void cart_net_phase(struct cart_serve *s, int fd, enum cart_net_phase phase);
void cart_net_client(struct cart_serve *s, int fd, char out[CART_CLIENT_MAX]); /* who it is */
void cart_net_note(struct cart_serve *s, enum cart_log_level level, const char *fmt, ...)
    CART_PRINTF(3, 4);

extern const struct cart_route cart_routes[]; /* ended by a NULL method */

#endif
