#include "serve/serve.h"

#include "base/hash.h"
#include "base/opt.h"
#include "model/model.h"
#include "serve/exchange.h"
#include "serve/keys.h"
#include "serve/metrics.h"
#include "serve/net.h"
#include "serve/routes.h"
#include "serve/wire.h"
#include "tensor/matmul.h"
#include "token/chat.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

static void route_health(struct cart_exchange *x)
{
    struct cart_wire w = CART_WIRE_INIT;
    if (cart_net_draining(x->serve)) {
        x->retry_after = 1;
        cart_exchange_error(x, 503, "shutting_down", NULL, "the server is shutting down");
        return;
    }
    cart_wire_add(&w, "{\"status\":\"ok\"}");
    cart_exchange_reply(x, 200, "application/json", &w.b);
}

static void route_metrics(struct cart_exchange *x)
{
    struct cart_wire w = CART_WIRE_INIT;
    cart_metrics_write(x->serve, &w);
    if (w.r < 0)
        cart_exchange_error(x, 503, "out_of_memory", NULL, "no memory for the answer");
    else
        cart_exchange_reply(x, 200, "text/plain; version=0.0.4; charset=utf-8", &w.b);
    cart_wire_release(&w);
}

static void route_props(struct cart_exchange *x)
{
    const struct cart_serve *s = x->serve;
    struct cart_scheduler_counts c;
    struct cart_wire w = CART_WIRE_INIT;
    cart_scheduler_counts(s->scheduler, &c);
    cart_wire_add(&w, "{\"build\":");
    cart_wire_quote(&w, cart_version());
    cart_wire_add(&w, ",\"model\":");
    cart_wire_quote(&w, s->opt.name);
    cart_wire_f(&w, ",\"n_ctx\":%zu,\"total_slots\":%zu,\"chat_profile\":",
                cart_scheduler_context(s->scheduler), c.slots);
    if (s->chat)
        cart_wire_quote(&w, cart_chat_profile(s->chat));
    else
        cart_wire_add(&w, "null");
    cart_wire_f(&w, ",\"thinking\":%s,\"key_required\":%s}",
                s->chat && cart_chat_has_thinking(s->chat) ? "true" : "false",
                s->keys ? "true" : "false");
    if (w.r < 0)
        cart_exchange_error(x, 503, "out_of_memory", NULL, "no memory for the answer");
    else
        cart_exchange_reply(x, 200, "application/json", &w.b);
    cart_wire_release(&w);
}

static void route_page(struct cart_exchange *x)
{
    struct cart_buf b = CART_BUF_INIT;
    if (cart_buf_add(&b, cart_page, strlen(cart_page), NULL) < 0)
        cart_exchange_error(x, 503, "out_of_memory", NULL, "no memory for the answer");
    else
        cart_exchange_reply(x, 200, "text/html; charset=utf-8", &b);
    cart_buf_release(&b);
}

/* Paths without their /v1; the longer ones before those that they begin with. */
const struct cart_route cart_routes[] = {
    {"POST", "/chat/completions", CART_AT_CHAT, cart_route_chat, CART_ON_WORKER, false},
    {"POST", "/cartridge/chat/completions", CART_AT_CHAT, cart_route_chat, CART_ON_WORKER, false},
    {"POST", "/chat/completions/input_tokens", CART_AT_COUNT, cart_route_count, CART_ON_WORKER,
     false},
    {"POST", "/completions", CART_AT_COMPLETIONS, cart_route_completion, CART_ON_WORKER, false},
    {"POST", "/cartridge/completions", CART_AT_COMPLETIONS, cart_route_completion, CART_ON_WORKER,
     false},
    {"POST", "/embeddings", CART_AT_EMBEDDINGS, cart_route_embeddings, CART_ON_WORKER, false},
    {"POST", "/tokenize", CART_AT_TOKENIZE, cart_route_tokenize, CART_ON_WORKER, false},
    {"POST", "/detokenize", CART_AT_DETOKENIZE, cart_route_detokenize, CART_ON_WORKER, false},
    {"POST", "/apply-template", CART_AT_TEMPLATE, cart_route_template, CART_ON_WORKER, false},
    {"GET", "/models", CART_AT_MODELS, cart_route_models, CART_ON_WORKER, false},
    {"GET", "/models/", CART_AT_MODELS, cart_route_models, CART_ON_WORKER, false},
    {"GET", "/cartridges", CART_AT_CARTRIDGES, cart_route_cartridges, CART_ON_WORKER, false},
    {"POST", "/cartridges", CART_AT_CARTRIDGES, cart_route_cartridge_load, CART_ON_LOADER, false},
    {"POST", "/cartridges/reload", CART_AT_CARTRIDGES, cart_route_cartridge_reload, CART_ON_LOADER,
     false},
    {"DELETE", "/cartridges/", CART_AT_CARTRIDGES, cart_route_cartridge_drop, CART_ON_WORKER,
     false},
    {"GET", "/health", CART_AT_HEALTH, route_health, CART_ON_HTTP, true},
    {"GET", "/metrics", CART_AT_METRICS, route_metrics, CART_ON_HTTP, false},
    {"GET", "/props", CART_AT_PROPS, route_props, CART_ON_HTTP, false},
    {"GET", "/", CART_AT_PAGE, route_page, CART_ON_HTTP, true},
    {NULL, NULL, CART_AT_NOWHERE, NULL, CART_ON_HTTP, false},
};

static void digest_instance(struct cart_serve *s)
{
    struct cart_wire w = CART_WIRE_INIT;
    unsigned char digest[16];
    char hex[33];
    cart_wire_add(&w, cart_version());
    cart_wire_add(&w, s->model->fp.geometry);
    cart_wire_add(&w, s->model->fp.tokenizer);
    cart_wire_add(&w, s->model->fp.weights);
    /* The classes of arithmetic and of rows, and where an answer has no room to go on. */
    cart_wire_f(&w, "/%d/%d/%d/%zu/", (int)cart_kernels_selected(), (int)cart_precision_selected(),
                cart_scheduler_kv(s->scheduler), cart_scheduler_context(s->scheduler));
    cart_wire_add(&w, s->chat ? cart_chat_profile(s->chat) : "");
    cart_hash_bytes(w.b.data ? w.b.data : "", w.b.len, digest);
    memcpy(s->instance, cart_hex(hex, digest, sizeof digest), sizeof s->instance - 1);
    s->instance[sizeof s->instance - 1] = '\0';
    cart_wire_release(&w);
}

int cart_serve_new(struct cart_serve **out, const struct cart_model *m,
                   struct cart_registry *registry, struct cart_scheduler *scheduler,
                   const struct cart_serve_options *opt, struct cart_err *err)
{
    if (opt->n_defaults > CART_STACK_MAX)
        return cart_err_set(err, CART_EUSAGE, "expected at most %zu default cartridges",
                            CART_STACK_MAX);
    struct cart_serve *s = calloc(1, sizeof *s);
    if (!s)
        return cart_err_memory(err, "server", sizeof *s);
    s->opt = *opt;
    s->model = m;
    s->registry = registry;
    s->scheduler = scheduler;
    s->created = (long)time(NULL);
    /* Without a chat profile the server still completes and embeds. */
    if (cart_model_chat(m, &s->chat, &s->chat_err) < 0)
        s->chat = NULL;
    digest_instance(s);
    int r = cart_keys_load(&s->keys, opt->keys_file, getenv("CART_API_KEY"), err);
    if (r == 0)
        r = cart_metrics_new(&s->metrics, err);
    if (r == 0)
        r = cart_net_open(s, err);
    if (r == 0)
        r = cart_http_start(s, err);
    if (r < 0)
        cart_serve_free(s);
    else
        *out = s;
    return r;
}

void cart_serve_free(struct cart_serve *s)
{
    if (!s)
        return;
    cart_net_close(s);
    cart_metrics_free(s->metrics);
    cart_keys_free(s->keys);
    free(s);
}
