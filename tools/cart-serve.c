/* cart-serve: reads a model and cartridges, answers HTTP requests until it is told to stop. This
 * file has the options, the words for the log, and what signals do; lib/serve has the server. */
#include "base/opt.h"
#include "base/pool.h"
#include "engine/draft.h"
#include "model/model.h"
#include "serve/model_name.h"
#include "serve/serve.h"

#include <malloc.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct options {
    struct cart_common common;
    struct cart_opt_list cartridges, defaults, origins, hosts;
    const char *directory, *name, *host, *unix_path, *keys_file, *profile, *kv;
    size_t port, slots, queue, context, piece, draft, max_body, connections, timeout, drain_timeout;
    bool allow_other_weights, no_tcp;
    int log_format; /* 0 text, 1 JSON */
};
static struct cart_serve *volatile serving;

static void on_signal(int sig)
{
    struct cart_serve *s = serving;
    if (s && sig == SIGHUP)
        cart_serve_reload(s);
    else if (s)
        cart_serve_stop(s);
}

static void catch_signals(void)
{
    static const int caught[] = {SIGINT, SIGTERM, SIGHUP};
    struct sigaction sa;
    memset(&sa, 0, sizeof sa);
    sigemptyset(&sa.sa_mask);
    sa.sa_handler = on_signal;
    for (size_t i = 0; i < CART_COUNTOF(caught); i++)
        sigaction(caught[i], &sa, NULL);
    sa.sa_handler = SIG_IGN;
    sigaction(SIGPIPE, &sa, NULL);
}

/* ---- words ---- */

/* The log is one thread's at a time; here several have something to say. */
static void CART_PRINTF(2, 3) say(enum cart_log_level level, const char *fmt, ...)
{
    static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
    char text[1024];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    pthread_mutex_lock(&lock);
    cart_log(level, "%s", text);
    pthread_mutex_unlock(&lock);
}

static void on_note(void *ctx, enum cart_log_level level, const char *text)
{
    (void)ctx;
    say(level, "%s", text);
}

static json_t *record_json(const struct cart_serve_record *r)
{
    json_t *o = json_pack("{s:s, s:s, s:s, s:s, s:i, s:f, s:s*, s:s*}", "id", r->id, "method",
                          r->method, "path", r->path, "client", r->client, "status", (int)r->status,
                          "seconds", r->seconds, "error", r->code, "message", r->message);
    if (!o || !r->generated)
        return o;
    const struct cart_usage *u = &r->usage;
    json_t *more = json_pack(
        "{s:s, s:s, s:s, s:I, s:I, s:I, s:I, s:I, s:I, s:f, s:f, s:f, s:f}", "model", r->model,
        "cartridges", r->cartridges, "finish", r->finish, "prompt_tokens",
        (json_int_t)u->prompt_tokens, "cached_tokens", (json_int_t)u->cached_tokens,
        "cartridge_tokens", (json_int_t)u->cartridge_rows, "completion_tokens",
        (json_int_t)u->completion_tokens, "drafted_tokens", (json_int_t)u->drafted,
        "accepted_tokens", (json_int_t)u->accepted, "first_token_seconds", r->first_token,
        "queued_seconds", u->queued, "prefill_seconds", u->prefill, "decode_seconds", u->decode);
    json_object_update(o, more); /* nothing, where there was no memory for it */
    json_decref(more);
    return o;
}

static void log_text(const struct cart_serve_record *r)
{
    char path[160];
    const char *colon = r->message ? ": " : "", *message = r->message ? r->message : "";
    cart_err_escape(path, sizeof path, r->path, strlen(r->path));
    if (!r->generated) {
        say(r->monitoring ? CART_LOG_INFO : CART_LOG_NOTICE, "%s %s %s %u %.1f ms%s%s", r->client,
            r->method, path, r->status, 1000.0 * r->seconds, colon, message);
        return;
    }
    const struct cart_usage *u = &r->usage;
    double rate = u->decode > 0 ? (double)u->completion_tokens / u->decode : 0.0;
    say(CART_LOG_NOTICE,
        "%s %s %s %u %.1f ms %s%s%s: prompt %zu (%zu cached), rows %zu, answer %zu%s%s, %.1f "
        "tokens/s, queued %.1f ms%s%s",
        r->client, r->method, path, r->status, 1000.0 * r->seconds, r->model,
        *r->cartridges ? " behind " : "", r->cartridges, u->prompt_tokens, u->cached_tokens,
        u->cartridge_rows, u->completion_tokens, *r->finish ? " " : "", r->finish, rate,
        1000.0 * u->queued, colon, message);
}

static void on_request(void *ctx, const struct cart_serve_record *r)
{
    const struct options *o = ctx;
    struct cart_buf line = CART_BUF_INIT;
    json_t *v = NULL;
    /* What monitors ask every second is for -v. */
    bool json = o->log_format == 1 && !o->common.quiet && (!r->monitoring || o->common.verbose > 0);
    if (o->log_format == 0)
        log_text(r);
    if (json || getenv("CART_TRACE"))
        v = record_json(r);
    if (v && cart_json_dump(v, &line, NULL) == 0) {
        cart_trace("request", line.data);
        /* One write, so that lines of several threads stay whole. */
        if (json)
            fprintf(stderr, "%s\n", line.data);
    }
    cart_buf_release(&line);
    json_decref(v);
}

/* ---- what is served ---- */

static int add_cartridge(struct cart_registry *registry, const char *text, struct cart_err *err)
{
    char name[CART_CARTRIDGE_NAME_MAX + 1], warning[256] = "";
    const char *equals = strchr(text, '=');
    if (!equals || equals == text || !equals[1] || (size_t)(equals - text) >= sizeof name)
        return cart_err_set(err, CART_EUSAGE, "-c %s: expected NAME=FILE", text);
    memcpy(name, text, (size_t)(equals - text));
    name[equals - text] = '\0';
    int r = cart_registry_add(registry, name, equals + 1, warning, sizeof warning, err);
    if (r == 0 && *warning)
        cart_log(CART_LOG_WARNING, "%s: %s", equals + 1, warning);
    return r;
}

static void report_file(void *ctx, const char *name, const char *warning,
                        const struct cart_err *err)
{
    (void)ctx;
    if (err)
        cart_log(CART_LOG_WARNING, "cartridge %s: not loaded: %s", name, err->msg);
    else if (warning && *warning)
        cart_log(CART_LOG_WARNING, "cartridge %s: %s", name, warning);
}

/* One name, one file: which of two was meant nobody knows. */
static int check_names(const struct cart_opt_list *l, struct cart_err *err)
{
    for (size_t i = 0; i < l->n; i++) {
        size_t n = strcspn(l->items[i], "=");
        for (size_t k = 0; k < i; k++)
            if (strcspn(l->items[k], "=") == n && memcmp(l->items[i], l->items[k], n) == 0)
                return cart_err_set(err, CART_EUSAGE,
                                    "-c %s: expected a name of its own, found it in -c %s",
                                    l->items[i], l->items[k]);
    }
    return 0;
}

static int load_cartridges(const struct options *o, struct cart_registry *registry,
                           struct cart_err *err)
{
    struct cart_stack *stack = NULL;
    int r = check_names(&o->cartridges, err);
    for (size_t i = 0; i < o->cartridges.n && r == 0; i++)
        r = add_cartridge(registry, o->cartridges.items[i], err);
    if (r == 0 && o->directory)
        r = cart_registry_load(registry, o->directory, report_file, NULL, err);
    if (r < 0 || o->defaults.n == 0)
        return r;
    r = cart_stack_acquire(&stack, registry, o->defaults.items, o->defaults.n, NULL, err);
    cart_stack_release(stack);
    return r < 0 ? cart_err_wrap(err, r, "--default") : 0;
}

static struct cart_serve_options serve_options(struct options *o, const char *name)
{
    return (struct cart_serve_options){
        .name = name,
        .host = o->no_tcp ? NULL : o->host,
        .port = o->port,
        .unix_path = o->unix_path,
        .directory = o->directory,
        .origins = o->origins.items,
        .hosts = o->hosts.items,
        .defaults = o->defaults.items,
        .n_origins = o->origins.n,
        .n_hosts = o->hosts.n,
        .n_defaults = o->defaults.n,
        .keys_file = o->keys_file,
        .max_body = o->max_body,
        .max_connections = o->connections,
        .timeout = (double)o->timeout,
        .drain_timeout = (double)o->drain_timeout,
        .on_request = on_request,
        .on_note = on_note,
        .ctx = o,
    };
}

static int scheduler_options(const struct options *o, struct cart_scheduler_options *so,
                             struct cart_err *err)
{
    *so = (struct cart_scheduler_options)CART_SCHEDULER_OPTIONS;
    so->slots = o->slots;
    so->queue = o->queue;
    so->context = o->context;
    so->piece = o->piece;
    so->draft_max = o->draft;
    return o->kv ? cart_scheduler_options_kv(so, o->kv, err) : 0;
}

static void announce(const struct options *o, const struct cart_serve *s,
                     struct cart_registry *registry, const char *name)
{
    size_t n = cart_registry_counts(registry).cartridges;
    if (n > 0 && o->defaults.n == 0)
        say(CART_LOG_NOTICE, "%zu cartridge%s; a request names those it wants, see --default", n,
            CART_S(n));
    if (*cart_serve_address(s))
        say(CART_LOG_NOTICE, "%s: ready on http://%s", name, cart_serve_address(s));
    if (o->unix_path)
        say(CART_LOG_NOTICE, "%s: ready on %s", name, o->unix_path);
}

static int serve(struct options *o, const struct cart_model *m, struct cart_pool *pool,
                 struct cart_registry *registry, const char *name,
                 const struct cart_scheduler_options *so, struct cart_err *err)
{
    struct cart_serve_options opt = serve_options(o, name);
    struct cart_scheduler *scheduler = NULL;
    struct cart_serve *s = NULL;
    const struct cart_chat *chat = NULL;
    struct cart_err no_chat = {0};
    if (cart_model_chat(m, &chat, &no_chat) < 0)
        cart_log(CART_LOG_WARNING, "%s; chat requests will be refused", no_chat.msg);
    int r = cart_scheduler_new(&scheduler, m, pool, chat, so, err);
    if (r == 0 && (r = cart_serve_new(&s, m, registry, scheduler, &opt, err)) == 0) {
        serving = s;
        catch_signals();
        announce(o, s, registry, name);
        cart_serve_run(s);
        serving = NULL;
    }
    /* The scheduler's last events still go to exchanges of s. */
    cart_scheduler_free(scheduler);
    cart_serve_free(s);
    return r;
}

/* What one thread allocates here another frees: with an arena for each thread, as is usual, the
 * process would grow for thousands of requests. */
static void share_memory(void)
{
#ifdef M_ARENA_MAX
    mallopt(M_ARENA_MAX, 1);
#endif
}

static int run(struct options *o, struct cart_err *err)
{
    struct cart_model *m = NULL;
    struct cart_pool *pool = NULL;
    struct cart_registry *registry = NULL;
    struct cart_model_options mo = {.profile = o->profile};
    struct cart_scheduler_options so;
    char name[128];
    int r;
    if (o->no_tcp && (o->port != 8765 || strcmp(o->host, "127.0.0.1") != 0))
        return cart_err_set(err, CART_EUSAGE, "--host and --port: not with --no-tcp");
    if (o->allow_other_weights && o->cartridges.n == 0 && !o->directory)
        return cart_err_set(err, CART_EUSAGE, "--allow-other-weights goes with -c or -d");
    if ((r = cart_serve_base_name(name, sizeof name, o->name, o->common.model, err)) < 0 ||
        (r = scheduler_options(o, &so, err)) < 0 ||
        (r = cart_kernels_select((enum cart_kernels)o->common.kernels,
                                 (enum cart_precision)o->common.precision, err)) < 0 ||
        (r = cart_model_open(&m, o->common.model, &mo, err)) < 0 ||
        (r = cart_registry_new(&registry, m, o->allow_other_weights, err)) < 0 ||
        (r = load_cartridges(o, registry, err)) < 0)
        goto out;
    if (o->common.dry_run) {
        struct cart_registry_counts c = cart_registry_counts(registry);
        size_t bytes;
        if ((r = cart_scheduler_bytes(&bytes, m, &so, o->common.jobs, err)) < 0)
            goto out;
        cart_log(CART_LOG_NOTICE,
                 "%s: would serve it with %zu cartridge%s (%.1f MiB of rows, mapped)", name,
                 c.cartridges, CART_S(c.cartridges), (double)c.bytes / 1048576.0);
        cart_log(CART_LOG_NOTICE,
                 "memory beside the model: %.1f MiB at most, as rows are used (less: --kv, --ctx)",
                 (double)(bytes + c.copied) / 1048576.0);
        goto out;
    }
    if ((r = cart_pool_new(&pool, o->common.jobs, err)) == 0)
        r = serve(o, m, pool, registry, name, &so, err);
out:
    cart_registry_free(registry);
    cart_pool_free(pool);
    cart_model_close(m);
    return r;
}

int main(int argc, char **argv)
{
    struct options o = {.host = "127.0.0.1",
                        .port = 8765,
                        .slots = 8,
                        .queue = 64,
                        .piece = 256,
                        .draft = 8,
                        .max_body = (size_t)16 << 20,
                        .connections = 4096,
                        .timeout = 60,
                        .drain_timeout = 30};
    struct cart_err err = {0};
    const struct cart_opt table[] = {
        CART_OPT_LIST('c', "cartridge", &o.cartridges, "NAME=FILE",
                      "serve this cartridge under this name"),
        CART_OPT_STRING('d', "directory", &o.directory, "DIR",
                        "serve the cartridges of this folder; HUP reads it again"),
        CART_OPT_LIST(0, "default", &o.defaults, "NAME",
                      "cartridges of requests that name none, in order"),
        CART_OPT_STRING(0, "name", &o.name, "NAME",
                        "id of the base model (default: the file's name)"),
        CART_OPT_STRING(0, "host", &o.host, "HOST", "address to listen on (default: 127.0.0.1)"),
        CART_OPT_SIZE('p', "port", &o.port, 0, 65535, "N",
                      "TCP port; 0: any free one (default: 8765)"),
        CART_OPT_STRING(0, "unix", &o.unix_path, "PATH", "listen on a Unix socket too"),
        CART_OPT_FLAG(0, "no-tcp", &o.no_tcp, "no TCP listener"),
        CART_OPT_SIZE(0, "slots", &o.slots, 1, 1024, "N", "answers at work together (default: 8)"),
        CART_OPT_SIZE(0, "queue", &o.queue, 0, 65536, "N",
                      "requests that may wait; then 429 (default: 64)"),
        CART_OPT_SIZE(0, "ctx", &o.context, 16, 1 << 24, "ROWS",
                      "rows, cartridges included, of one answer (default: the model's context)"),
        CART_OPT_STRING(
            0, "kv", &o.kv, "TYPE|ROWS|TYPE:ROWS",
            "rows in memory: f32, f16 or bf16, and how many (default: slots times ctx)"),
        CART_OPT_SIZE(0, "piece", &o.piece, 1, 65536, "N",
                      "prompt tokens computed in one step (default: 256)"),
        CART_OPT_SIZE(0, "draft", &o.draft, 0, CART_DRAFT_MAX, "N",
                      "tokens guessed ahead, 0: none; never changes an answer (default: 8)"),
        CART_OPT_INPUT(0, "api-key-file", &o.keys_file, "FILE",
                       "keys of clients, one a line (also $CART_API_KEY)"),
        CART_OPT_LIST(0, "cors-origin", &o.origins, "ORIGIN",
                      "web pages of this origin may call too; *: all"),
        CART_OPT_LIST(0, "allow-host", &o.hosts, "HOST",
                      "accept this Host on a loopback address too; *: all"),
        CART_OPT_SIZE(0, "max-body", &o.max_body, 1024, 1 << 30, "BYTES",
                      "largest request body (default: 16M)"),
        CART_OPT_SIZE(0, "connections", &o.connections, 8, 65536, "N",
                      "open connections (default: 4096)"),
        CART_OPT_SIZE(0, "timeout", &o.timeout, 1, 86400, "SECONDS",
                      "for a header, for a body, and for a reader that stands still (default: 60)"),
        CART_OPT_SIZE(0, "drain-timeout", &o.drain_timeout, 0, 86400, "SECONDS",
                      "that requests under way have after TERM (default: 30)"),
        CART_OPT_ENUM(0, "log-format", &o.log_format, "text|json",
                      "a line for each request (default: text)"),
        CART_OPT_FLAG(0, "allow-other-weights", &o.allow_other_weights,
                      "cartridges made by other weights of this model"),
        CART_OPT_STRING(0, "profile", &o.profile, "NAME",
                        "chat profile in place of the one that the template chooses"),
        CART_OPT_END,
    };
    const struct cart_tool tool = {
        "cart-serve",
        "an OpenAI-compatible server whose requests choose cartridges",
        "",
        table,
        CART_USES_JOBS | CART_USES_MODEL | CART_USES_DRY_RUN | CART_USES_KERNELS,
        &o.common};
    int first;
    bool done = false;
    int r = cart_opt_parse(&tool, argc, argv, &first, &done, &err);
    if (r == 0 && !done && argc - first > 0)
        r = cart_err_set(&err, CART_EUSAGE, "expected no operands, found %d", argc - first);
    share_memory();
    cart_serve_raise_descriptors();
    if (r == 0 && !done)
        r = run(&o, &err);
    free(o.cartridges.items);
    free(o.defaults.items);
    free(o.origins.items);
    free(o.hosts.items);
    return cart_main_end(r, 0, &err);
}
