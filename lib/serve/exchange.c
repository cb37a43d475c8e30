#include "serve/exchange.h"

#include "base/clock.h"
#include "serve/wire.h"

#include <microhttpd.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define BODIES_MOST ((size_t)16)      /* largest ones that may be there together */
#define BODIES_MIN ((size_t)64 << 20) /* bytes of bodies that always may */

bool cart_exchange_collect(struct cart_exchange *x, const char *data, size_t n)
{
    struct cart_serve *s = x->serve;
    size_t most =
        s->opt.max_body > BODIES_MIN / BODIES_MOST ? BODIES_MOST * s->opt.max_body : BODIES_MIN;
    x->too_large = n > s->opt.max_body - x->body.len;
    if (!x->too_large && atomic_fetch_add(&s->bodies, n) + n > most) {
        atomic_fetch_sub(&s->bodies, n);
        x->too_many = true;
    } else if (!x->too_large && cart_buf_add(&x->body, data, n, NULL) < 0) {
        atomic_fetch_sub(&s->bodies, n);
        x->no_memory = true;
    }
    return !x->too_large && !x->too_many && !x->no_memory;
}

void cart_exchange_drop_body(struct cart_exchange *x)
{
    atomic_fetch_sub(&x->serve->bodies, x->body.len);
    cart_buf_release(&x->body);
}

void cart_exchange_hold(struct cart_exchange *x)
{
    pthread_mutex_lock(&x->lock);
    x->holders++;
    pthread_mutex_unlock(&x->lock);
}

void cart_exchange_release(struct cart_exchange *x)
{
    pthread_mutex_lock(&x->lock);
    bool last = --x->holders == 0;
    pthread_mutex_unlock(&x->lock);
    if (!last)
        return;
    if (x->free_state)
        x->free_state(x->state);
    pthread_mutex_destroy(&x->lock);
    cart_exchange_drop_body(x);
    free(x->cartridges);
    cart_buf_release(&x->out);
    free(x->path);
    free(x->authority);
    free(x->origin);
    free(x->requests);
    free(x->refused);
    free(x);
}

/* Under the lock. */
static void wake(struct cart_exchange *x)
{
    if (x->suspended && x->connection) {
        x->suspended = false;
        MHD_resume_connection(x->connection);
    }
}

void cart_exchange_reply(struct cart_exchange *x, unsigned status, const char *type,
                         struct cart_buf *body)
{
    pthread_mutex_lock(&x->lock);
    if (!x->answered) {
        x->answered = true;
        x->ended = true;
        x->status = status;
        x->content_type = type;
        x->out = *body;
        *body = (struct cart_buf)CART_BUF_INIT;
        wake(x);
    }
    pthread_mutex_unlock(&x->lock);
    cart_buf_release(body);
}

static const char *error_type(unsigned status)
{
    switch (status) {
    case 401:
        return "authentication_error";
    case 403:
        return "permission_error";
    case 404:
        return "not_found_error";
    case 429:
        return "rate_limit_error";
    case 500:
        return "server_error";
    case 503:
        return "unavailable_error";
    default:
        return "invalid_request_error";
    }
}

static void error_body(struct cart_wire *w, unsigned status, const char *code, const char *param,
                       const char *members, const char *message)
{
    cart_wire_add(w, "{\"error\":{\"message\":");
    cart_wire_quote(w, message);
    cart_wire_f(w, ",\"type\":\"%s\",\"param\":", error_type(status));
    if (param)
        cart_wire_quote(w, param);
    else
        cart_wire_add(w, "null");
    cart_wire_add(w, ",\"code\":");
    if (code)
        cart_wire_quote(w, code);
    else
        cart_wire_add(w, "null");
    if (members) {
        cart_wire_add(w, ",");
        cart_wire_add(w, members);
    }
    cart_wire_add(w, "}}");
}

/* A stream that has begun has its status already: the error is a frame, then the stream ends. */
static void error_frame(struct cart_exchange *x, const struct cart_wire *w)
{
    static const char before[] = "data: ", after[] = "\n\ndata: [DONE]\n\n";
    if (x->ended)
        return;
    x->ended = true;
    /* A frame that there is no memory for leaves the stream without its [DONE]: the connection
     * closes, and a client sees that. */
    if (w->b.len > 0 && cart_buf_add(&x->out, before, sizeof before - 1, NULL) == 0 &&
        cart_buf_add(&x->out, w->b.data, w->b.len, NULL) == 0 &&
        cart_buf_add(&x->out, after, sizeof after - 1, NULL) == 0)
        x->last_write = cart_clock_now();
    wake(x);
}

void cart_exchange_error_with(struct cart_exchange *x, unsigned status, const char *code,
                              const char *param, const char *members, const char *message)
{
    struct cart_wire w = CART_WIRE_INIT;
    error_body(&w, status, code, param, members, message);
    if (w.r < 0)
        cart_wire_release(&w);
    pthread_mutex_lock(&x->lock);
    bool streaming = x->streaming;
    /* For the log, as the client is told: of several errors the first. */
    if (!x->ended && !x->refused) {
        x->record.code = code;
        x->refused = strdup(message);
    }
    if (streaming)
        error_frame(x, &w);
    pthread_mutex_unlock(&x->lock);
    if (streaming)
        cart_wire_release(&w);
    else
        cart_exchange_reply(x, status, "application/json", &w.b);
}

void cart_exchange_error(struct cart_exchange *x, unsigned status, const char *code,
                         const char *param, const char *fmt, ...)
{
    char message[1024];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(message, sizeof message, fmt, ap);
    va_end(ap);
    cart_exchange_error_with(x, status, code, param, NULL, message);
}

bool cart_exchange_push(struct cart_exchange *x, const char *bytes, size_t n)
{
    pthread_mutex_lock(&x->lock);
    bool ok = !x->gone && !x->ended && (x->streaming || !x->answered);
    if (ok && x->out.len - x->sent > CART_EXCHANGE_BACKLOG)
        ok = false;
    if (ok && !x->streaming) {
        x->answered = true;
        x->streaming = true;
        x->status = 200;
        x->content_type = "text/event-stream";
    }
    /* What has been sent makes room before the buffer grows. */
    if (ok && x->sent > 0 && x->sent * 2 >= x->out.len) {
        memmove(x->out.data, x->out.data + x->sent, x->out.len - x->sent);
        x->out.len -= x->sent;
        x->sent = 0;
    }
    if (ok && cart_buf_add(&x->out, bytes, n, NULL) < 0)
        ok = false;
    if (ok) {
        x->last_write = cart_clock_now();
        wake(x);
    }
    pthread_mutex_unlock(&x->lock);
    return ok;
}

void cart_exchange_end(struct cart_exchange *x)
{
    pthread_mutex_lock(&x->lock);
    x->ended = true;
    wake(x);
    pthread_mutex_unlock(&x->lock);
}

bool cart_exchange_gone(struct cart_exchange *x)
{
    pthread_mutex_lock(&x->lock);
    bool gone = x->gone;
    pthread_mutex_unlock(&x->lock);
    return gone;
}

bool cart_exchange_expect(struct cart_exchange *x, uint64_t request)
{
    pthread_mutex_lock(&x->lock);
    uint64_t *more = realloc(x->requests, (x->n_requests + 1) * sizeof *more);
    bool keep = more && !x->gone;
    if (more) {
        x->requests = more;
        more[x->n_requests++] = request;
    }
    pthread_mutex_unlock(&x->lock);
    if (!keep)
        cart_scheduler_cancel(x->serve->scheduler, request);
    return keep;
}

void cart_exchange_cancel(struct cart_exchange *x)
{
    for (size_t i = 0;; i++) {
        pthread_mutex_lock(&x->lock);
        uint64_t request = i < x->n_requests ? x->requests[i] : 0;
        pthread_mutex_unlock(&x->lock);
        if (request == 0)
            return;
        cart_scheduler_cancel(x->serve->scheduler, request);
    }
}
