/* The HTTP server over the scheduler. One thread (libmicrohttpd's) moves bytes, one (the caller of
 * cart_serve_run) accepts connections, watches clients that wait and keeps deadlines, two parse
 * requests, one loads cartridges and reads files anew that were written to, one is the scheduler's.
 * Nothing a client does blocks any of them but the loader, which only loads wait for, and requests
 * for what was written to. cart-serve(1)
 * documents every route and field.
 *
 * Messages for people go out through the functions of struct cart_serve_options, from any of these
 * threads. */
#ifndef CART_SERVE_SERVE_H
#define CART_SERVE_SERVE_H

#include "base/log.h"
#include "serve/scheduler.h"

struct cart_serve;

/* One finished request, for the log. Everything borrowed for the call, and printable UTF-8: of what
 * the client wrote, the rest is escaped. */
struct cart_serve_record {
    const char *id, *method, *path,
        *client;     /* client: "127.0.0.1", "unix"; path without the query */
    unsigned status; /* 499: the client left before there was one */
    double seconds;
    const char *code, *message; /* of the error that was answered; NULL for none */
    bool monitoring;            /* health or metrics, which monitors ask every second */
    bool generated;             /* the fields below say something */
    const char *model, *cartridges, *finish;
    struct cart_usage usage;
    double first_token; /* seconds until the first token, 0 if none came */
};

struct cart_serve_options {
    const char *name;           /* id of the base model */
    const char *host;           /* address or host name of the TCP listener; NULL: none */
    size_t port;                /* 0: any free one */
    const char *unix_path;      /* Unix socket, or NULL */
    const char *directory;      /* of cartridges, or NULL */
    const char *const *origins; /* [n_origins] allowed beside loopback ones; "*": all */
    const char *const *hosts; /* [n_hosts] values of Host allowed beside loopback names; "*": all */
    const char *const *defaults; /* [n_defaults] cartridges where a request names none */
    size_t n_origins, n_hosts, n_defaults;
    const char *keys_file; /* one key a line; NULL: only $CART_API_KEY, if that is set */
    size_t max_body, max_connections;
    double timeout;       /* seconds for a header, for a body, without progress of a write */
    double drain_timeout; /* seconds that requests under way have after cart_serve_stop */
    void (*on_request)(void *ctx, const struct cart_serve_record *r);
    void (*on_note)(void *ctx, enum cart_log_level level, const char *text);
    void *ctx;
};

/* Lets this process have as many descriptors as it may: each connection takes three and each
 * cartridge one. Before cartridges are opened. */
void cart_serve_raise_descriptors(void);

/* Binds the listeners (also those of $LISTEN_FDS). All pointers are borrowed until cart_serve_free,
 * the strings of opt too, but the scheduler's, which is freed between cart_serve_run and that: its
 * last events still come here. CART_EUSAGE: a host that does not resolve, a key file without keys;
 * CART_ESYS: an address in use. */
int cart_serve_new(struct cart_serve **out, const struct cart_model *m,
                   struct cart_registry *registry, struct cart_scheduler *scheduler,
                   const struct cart_serve_options *opt, struct cart_err *err) CART_MUST_USE;

/* Serves until cart_serve_stop has been called and what was under way has ended. */
void cart_serve_run(struct cart_serve *s);
void cart_serve_free(struct cart_serve *s);

/* From a signal handler. stop: the first call drains, the second ends at once. reload: reads the
 * directory again. */
void cart_serve_stop(struct cart_serve *s);
void cart_serve_reload(struct cart_serve *s);

/* Where the first TCP listener is, as a URL has it: "127.0.0.1:8765", "[::1]:8765"; "" without
 * one. */
const char *cart_serve_address(const struct cart_serve *s);

#endif
