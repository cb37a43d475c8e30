/* POST /v1/embeddings: the fleet index's own recipe, so that vectors from here and from an index
 * can be compared. */
#include "base/clock.h"
#include "model/model.h"
#include "serve/group.h"
#include "serve/prompt.h"
#include "serve/routes.h"
#include "serve/wire.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define INPUTS_MAX ((size_t)2048)

static const char *const known[] = {"model", "input",      "encoding_format", "dimensions",
                                    "user",  "cartridges", "fleet",           NULL};

/* State of an exchange; the group comes first. */
struct embedding {
    struct cart_group group;
    struct cart_selection selection;
    float *vectors; /* [group.n, D] */
    size_t D, keep; /* keep: values that the client wants */
    bool base64;
};

static void embedding_free(void *state)
{
    struct embedding *e = state;
    cart_group_release(&e->group);
    free(e->vectors);
    free(e);
}

/* The first values of a vector are a vector of their own, of length 1 again. */
static void shorten(float *v, size_t n)
{
    double sum = 0;
    for (size_t i = 0; i < n; i++)
        sum += (double)v[i] * (double)v[i];
    double scale = sum > 0 ? 1.0 / sqrt(sum) : 0.0;
    for (size_t i = 0; i < n; i++)
        v[i] = (float)((double)v[i] * scale);
}

static bool on_event(struct cart_group *b, size_t prompt, const struct cart_event *ev)
{
    struct embedding *e = (struct embedding *)b;
    if (ev->type == CART_EVENT_EMBEDDING) {
        float *v = e->vectors + prompt * e->D;
        memcpy(v, ev->embedding, e->D * sizeof *v);
        if (e->keep < e->D)
            shorten(v, e->keep);
    } else if (ev->type == CART_EVENT_FINISH && ev->finish != CART_SERVE_STOP &&
               ev->finish != CART_SERVE_LENGTH) {
        cart_group_fail(b);
        if (ev->finish == CART_SERVE_CANCELLED)
            cart_exchange_error(b->x, 503, "shutting_down", NULL, "the request was cancelled");
        else
            cart_exchange_error(b->x, 500, "failed", NULL, "%s",
                                ev->err ? ev->err->msg
                                        : "the model gave a number that is not finite");
    }
    return true;
}

static void write_base64(struct cart_wire *w, const float *v, size_t n)
{
    static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    uint32_t group = 0;
    size_t held = 0, total = n * 4;
    char out[5] = "";
    for (size_t i = 0; i < total; i++) {
        uint32_t bits;
        memcpy(&bits, &v[i / 4], sizeof bits);
        group =
            group << 8 | (bits >> 8 * (i % 4) & 0xff); /* little-endian, whatever this machine is */
        if (++held < 3 && i + 1 < total)
            continue;
        group <<= 8 * (3 - held);
        for (size_t k = 0; k < 4; k++)
            out[k] = k <= held ? digits[group >> (18 - 6 * k) & 63] : '=';
        cart_wire_bytes(w, out, 4);
        group = 0;
        held = 0;
    }
}

static void write_vector(struct cart_wire *w, const struct embedding *e, size_t i)
{
    const float *v = e->vectors + i * e->D;
    cart_wire_f(w, "%s{\"object\":\"embedding\",\"index\":%zu,\"embedding\":", i ? "," : "", i);
    if (e->base64) {
        cart_wire_add(w, "\"");
        write_base64(w, v, e->keep);
        cart_wire_add(w, "\"}");
        return;
    }
    cart_wire_add(w, "[");
    for (size_t k = 0; k < e->keep; k++) {
        if (k)
            cart_wire_add(w, ",");
        cart_wire_real(w, v[k]);
    }
    cart_wire_add(w, "]}");
}

static void on_done(struct cart_group *b)
{
    struct embedding *e = (struct embedding *)b;
    struct cart_wire w = CART_WIRE_INIT;
    cart_wire_add(&w, "{\"object\":\"list\",\"model\":");
    cart_wire_quote(&w, e->selection.model);
    cart_wire_add(&w, ",\"data\":[");
    for (size_t i = 0; i < b->n; i++)
        write_vector(&w, e, i);
    cart_wire_f(&w, "],\"usage\":{\"prompt_tokens\":%zu,\"total_tokens\":%zu}}",
                b->usage.prompt_tokens, b->usage.prompt_tokens);
    if (w.r < 0)
        cart_exchange_error(b->x, 503, "out_of_memory", NULL, "no memory for the answer");
    else
        cart_exchange_reply(b->x, 200, "application/json", &w.b);
    cart_wire_release(&w);
}

static bool read_fields(struct cart_serve *s, const json_t *o, struct embedding *e,
                        struct cart_fault *f)
{
    const char *format = "float";
    e->D = e->keep = s->model->D;
    if (!cart_param_string(o, "encoding_format", &format, f) ||
        !cart_param_size(o, "dimensions", 1, e->D, &e->keep, f))
        return false;
    e->base64 = strcmp(format, "base64") == 0;
    if (!e->base64 && strcmp(format, "float") != 0)
        return cart_fault_found(f, "encoding_format", cart_param(o, "encoding_format"),
                                "encoding_format: expected float or base64");
    return cart_params_select(s, o, &e->selection, f);
}

static bool prepare(struct cart_exchange *x, struct embedding *e, const json_t *o,
                    struct cart_fault *f)
{
    struct cart_serve *s = x->serve;
    const json_t *input = cart_param(o, "input");
    size_t n = cart_inputs_count(input, "input", INPUTS_MAX, f), values;
    if (n == 0 || !cart_params_unknown(s, o, known, f) || !read_fields(s, o, e, f))
        return false;
    struct cart_stack *stack = e->selection.stack;
    e->group.request = (struct cart_serve_request)CART_SERVE_REQUEST;
    e->group.request.kind = CART_SERVE_EMBED;
    if (!cart_group_init(&e->group, x, n)) {
        cart_stack_release(stack);
        return cart_fault_memory(f);
    }
    e->group.request.stack = stack;
    e->group.on_event = on_event;
    e->group.on_done = on_done;
    if (!cart_size_mul(n, e->D, &values) || !(e->vectors = calloc(values, sizeof *e->vectors)))
        return cart_fault_memory(f);
    for (size_t i = 0; i < n; i++)
        if (!cart_inputs_encode(s, input, "input", i, cart_serve_topic_suffix(), stack != NULL,
                                &e->group.prompts[i].ids, f))
            return false;
    cart_selection_label(&e->selection, x);
    return true;
}

void cart_route_embeddings(struct cart_exchange *x)
{
    struct cart_fault f = {0};
    json_t *body = NULL;
    struct embedding *e = calloc(1, sizeof *e);
    bool ok = e ? cart_params_body(x, &body, &f) : cart_fault_memory(&f);
    if (e) {
        x->state = e;
        x->free_state = embedding_free;
    }
    ok = ok && prepare(x, e, body, &f);
    json_decref(body);
    if (ok)
        cart_group_run(&e->group);
    else
        cart_fault_send(&f, x);
}
