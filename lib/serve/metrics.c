#include "serve/metrics.h"

#include "base/cpu.h"
#include "base/opt.h"

#include <stdlib.h>
#include <string.h>

static const unsigned statuses[] = {200, 204, 400, 401, 403, 404, 405,
                                    411, 413, 429, 499, 500, 503, 0};
#define N_STATUSES CART_COUNTOF(statuses)

static const char *const endpoints[CART_N_ENDPOINTS] = {
    "chat_completions", "completions",    "models",       "embeddings", "tokenize",
    "detokenize",       "apply_template", "input_tokens", "cartridges", "health",
    "metrics",          "props",          "page",         "none"};

static const double bounds[] = {0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25,
                                0.5,   1,      2.5,   5,    10,    30,   60,  120};
#define N_BOUNDS CART_COUNTOF(bounds)

struct histogram {
    uint64_t counts[N_BOUNDS + 1];
    double sum;
};

struct cart_metrics {
    pthread_mutex_t lock;
    uint64_t requests[CART_N_ENDPOINTS][N_STATUSES];
    size_t in_flight;
    struct histogram prefill, first, per_token, queued;
};

int cart_metrics_new(struct cart_metrics **out, struct cart_err *err)
{
    struct cart_metrics *m = calloc(1, sizeof *m);
    if (!m)
        return cart_err_memory(err, "metrics", sizeof *m);
    pthread_mutex_init(&m->lock, NULL);
    *out = m;
    return 0;
}

void cart_metrics_free(struct cart_metrics *m)
{
    if (!m)
        return;
    pthread_mutex_destroy(&m->lock);
    free(m);
}

void cart_metrics_began(struct cart_metrics *m)
{
    pthread_mutex_lock(&m->lock);
    m->in_flight++;
    pthread_mutex_unlock(&m->lock);
}

void cart_metrics_ended(struct cart_metrics *m, enum cart_endpoint at, unsigned status)
{
    size_t i = 0;
    while (statuses[i] && statuses[i] != status)
        i++;
    pthread_mutex_lock(&m->lock);
    m->in_flight--;
    m->requests[at][i]++;
    pthread_mutex_unlock(&m->lock);
}

size_t cart_metrics_in_flight(struct cart_metrics *m)
{
    pthread_mutex_lock(&m->lock);
    size_t n = m->in_flight;
    pthread_mutex_unlock(&m->lock);
    return n;
}

static void observe(struct histogram *h, double seconds)
{
    size_t i = 0;
    while (i < N_BOUNDS && seconds > bounds[i])
        i++;
    h->counts[i]++;
    h->sum += seconds;
}

void cart_metrics_generated(struct cart_metrics *m, const struct cart_usage *u, double first_token)
{
    pthread_mutex_lock(&m->lock);
    observe(&m->queued, u->queued);
    observe(&m->prefill, u->prefill);
    if (first_token > 0)
        observe(&m->first, first_token);
    if (u->completion_tokens > 1)
        observe(&m->per_token, u->decode / (double)(u->completion_tokens - 1));
    pthread_mutex_unlock(&m->lock);
}

static void head(struct cart_wire *w, const char *name, const char *type, const char *help)
{
    cart_wire_f(w, "# HELP cart_%s %s\n# TYPE cart_%s %s\n", name, help, name, type);
}

static void one(struct cart_wire *w, const char *name, const char *type, const char *help,
                double value)
{
    head(w, name, type, help);
    cart_wire_f(w, "cart_%s %.15g\n", name, value);
}

static void write_histogram(struct cart_wire *w, const struct histogram *h, const char *name,
                            const char *help)
{
    uint64_t n = 0;
    head(w, name, "histogram", help);
    for (size_t i = 0; i < N_BOUNDS; i++) {
        n += h->counts[i];
        cart_wire_f(w, "cart_%s_bucket{le=\"%g\"} %llu\n", name, bounds[i], (unsigned long long)n);
    }
    n += h->counts[N_BOUNDS];
    cart_wire_f(w, "cart_%s_bucket{le=\"+Inf\"} %llu\ncart_%s_sum %.9g\ncart_%s_count %llu\n", name,
                (unsigned long long)n, name, h->sum, name, (unsigned long long)n);
}

static void write_requests(struct cart_metrics *m, struct cart_wire *w)
{
    head(w, "requests_total", "counter",
         "HTTP requests answered, by endpoint and status (499: the client left first).");
    for (size_t e = 0; e < CART_N_ENDPOINTS; e++)
        for (size_t i = 0; i < N_STATUSES; i++)
            if (m->requests[e][i] && statuses[i])
                cart_wire_f(w, "cart_requests_total{endpoint=\"%s\",code=\"%u\"} %llu\n",
                            endpoints[e], statuses[i], (unsigned long long)m->requests[e][i]);
            else if (m->requests[e][i])
                cart_wire_f(w, "cart_requests_total{endpoint=\"%s\",code=\"other\"} %llu\n",
                            endpoints[e], (unsigned long long)m->requests[e][i]);
}

static void write_scheduler(const struct cart_serve *s, struct cart_wire *w)
{
    struct cart_scheduler_counts c;
    cart_scheduler_counts(s->scheduler, &c);
    one(w, "requests_running", "gauge", "Answers at work.", (double)c.running);
    one(w, "requests_waiting", "gauge", "Requests that wait for a slot.", (double)c.waiting);
    one(w, "slots", "gauge", "Answers that can be at work together.", (double)c.slots);
    one(w, "queue_rejected_total", "counter", "Requests refused because the queue was full.",
        (double)c.refused_queue);
    one(w, "context_rejected_total", "counter", "Requests refused because they exceed the context.",
        (double)c.refused_context);
    one(w, "requests_cancelled_total", "counter",
        "Requests whose client left, or that were cut off at shutdown.", (double)c.cancelled);
    one(w, "requests_failed_total", "counter",
        "Requests that failed for lack of memory or a broken model.", (double)c.failed);
    one(w, "prompt_tokens_total", "counter", "Prompt tokens of all requests.",
        (double)c.prompt_tokens);
    one(w, "cached_tokens_total", "counter", "Prompt tokens whose rows were there already.",
        (double)c.cached_tokens);
    one(w, "prefilled_tokens_total", "counter", "Prompt tokens computed.",
        (double)c.prefilled_tokens);
    one(w, "generated_tokens_total", "counter", "Tokens sampled.", (double)c.generated_tokens);
    one(w, "cartridge_rows_total", "counter", "Cartridge rows that requests stood behind.",
        (double)c.cartridge_rows);
    one(w, "embeddings_total", "counter", "Embeddings computed.", (double)c.embeddings);
    one(w, "draft_tokens_total", "counter", "Tokens that speculation proposed.", (double)c.drafted);
    one(w, "draft_accepted_tokens_total", "counter", "Proposed tokens that were right.",
        (double)c.draft_accepted);
    one(w, "draft_acceptance_ratio", "gauge", "Share of proposed tokens that were right.",
        c.drafted ? (double)c.draft_accepted / (double)c.drafted : 0.0);
    one(w, "steps_total", "counter", "Forward passes.", (double)c.steps);
    one(w, "busy_seconds_total", "counter", "Time in forward passes and sampling.", c.busy_seconds);
    one(w, "kv_pages_evicted_total", "counter", "Pages of keys and values dropped for others.",
        (double)c.evicted_pages);
    one(w, "kv_bytes", "gauge", "Bytes of all pages for keys and values.",
        (double)c.pages * (double)c.page_bytes);
    one(w, "kv_used_bytes", "gauge", "Bytes of pages that hold rows.",
        (double)c.pages_used * (double)c.page_bytes);
    one(w, "kv_usage_ratio", "gauge", "Share of pages promised to answers at work.",
        c.pages ? (double)c.pages_committed / (double)c.pages : 0.0);
}

void cart_metrics_write(const struct cart_serve *s, struct cart_wire *w)
{
    struct cart_metrics *m = s->metrics;
    struct cart_registry_counts r = cart_registry_counts(s->registry);
    head(w, "build_info", "gauge", "Version, kernels and base model of this server.");
    cart_wire_add(w, "cart_build_info{version=");
    cart_wire_quote(w, cart_version());
    cart_wire_f(w, ",cpu=\"%s\",model=", cart_cpu_path_name());
    cart_wire_quote(w, s->opt.name);
    cart_wire_add(w, "} 1\n");
    pthread_mutex_lock(&m->lock);
    write_requests(m, w);
    one(w, "requests_in_flight", "gauge", "HTTP requests under way.", (double)m->in_flight);
    write_histogram(w, &m->queued, "queue_seconds", "Time that requests waited for a slot.");
    write_histogram(w, &m->prefill, "prefill_seconds", "Time of computing prompts.");
    write_histogram(w, &m->first, "time_to_first_token_seconds",
                    "From the request's header to the first token.");
    write_histogram(w, &m->per_token, "time_per_output_token_seconds",
                    "Mean time between the tokens of an answer.");
    pthread_mutex_unlock(&m->lock);
    write_scheduler(s, w);
    one(w, "cartridges", "gauge", "Cartridges that can be named.", (double)r.cartridges);
    one(w, "cartridge_resident_bytes", "gauge", "Bytes of their rows.", (double)r.bytes);
    one(w, "cartridge_loads_total", "counter", "Cartridges opened since the start.",
        (double)r.loads);
    one(w, "cartridge_refusals_total", "counter", "Cartridge files refused since the start.",
        (double)r.refusals);
}
