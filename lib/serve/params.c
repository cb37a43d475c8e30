#include "serve/params.h"

#include "base/clock.h"
#include "base/hash.h"
#include "base/spelling.h"
#include "model/model.h"
#include "serve/wire.h"

#include <errno.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>

#define COUNT_MAX ((size_t)INT32_MAX) /* of max_tokens as clients may give it */
#define WORK_MAX ((size_t)1 << 20)    /* tokens that one request may ask for over all its choices */
#define VALUES_MOST ((size_t)16)      /* largest bodies that one body's values may take */
#define VALUES_MIN ((size_t)32 << 20) /* bytes that they always may */
#define BIAS_MAX ((size_t)65536)
#define RETRY_SECONDS 1

/* ---- faults ---- */

static bool set(struct cart_fault *f, unsigned status, const char *code, const char *param,
                const char *fmt, va_list ap)
{
    *f = (struct cart_fault){.status = status, .code = code};
    snprintf(f->param, sizeof f->param, "%s", param ? param : "");
    vsnprintf(f->message, sizeof f->message, fmt, ap);
    return false;
}

bool cart_fault_set(struct cart_fault *f, unsigned status, const char *code, const char *param,
                    const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    set(f, status, code, param, fmt, ap);
    va_end(ap);
    return false;
}

bool cart_fault_value(struct cart_fault *f, const char *param, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    set(f, 400, "invalid_value", param, fmt, ap);
    va_end(ap);
    return false;
}

bool cart_fault_found(struct cart_fault *f, const char *param, const json_t *v, const char *fmt,
                      ...)
{
    char found[48];
    va_list ap;
    va_start(ap, fmt);
    set(f, 400, "invalid_value", param, fmt, ap);
    va_end(ap);
    if (json_is_real(v))
        snprintf(found, sizeof found, "%g", json_real_value(v));
    else
        cart_json_found(v, found);
    size_t len = strlen(f->message);
    snprintf(f->message + len, sizeof f->message - len, ", found %s", found);
    return false;
}

bool cart_fault_memory(struct cart_fault *f)
{
    return cart_fault_set(f, 503, "out_of_memory", NULL, "no memory for this request");
}

void cart_fault_send(const struct cart_fault *f, struct cart_exchange *x)
{
    pthread_mutex_lock(&x->lock);
    x->retry_after = f->retry_after;
    pthread_mutex_unlock(&x->lock);
    cart_exchange_error_with(x, f->status, f->code, f->param[0] ? f->param : NULL,
                             f->members[0] ? f->members : NULL, f->message);
}

void cart_fault_or_reply(struct cart_exchange *x, bool ok, struct cart_wire *w,
                         struct cart_fault *f)
{
    if (ok && (w->r == 0 || cart_fault_memory(f)))
        cart_exchange_reply(x, 200, "application/json", &w->b);
    else
        cart_fault_send(f, x);
    cart_wire_release(w);
}

bool cart_fault_refused(struct cart_fault *f, struct cart_serve *s, enum cart_refusal why,
                        const struct cart_err *err, size_t n_prompt, size_t rows)
{
    size_t context = cart_scheduler_context(s->scheduler);
    switch (why) {
    case CART_REFUSED_CONTEXT:
        cart_fault_set(f, 400, "context_length_exceeded", NULL,
                       "This model's maximum context length is %zu tokens; %zu cartridge rows and "
                       "a prompt of %zu "
                       "tokens exceed the available context size.",
                       context, rows, n_prompt);
        snprintf(f->members, sizeof f->members,
                 "\"n_prompt_tokens\":%zu,\"n_ctx\":%zu,\"n_cartridge_rows\":%zu", n_prompt,
                 context, rows);
        return false;
    case CART_REFUSED_QUEUE:
        cart_fault_set(f, 429, "queue_full", NULL, "the queue is full; try again later");
        f->retry_after = RETRY_SECONDS;
        return false;
    case CART_REFUSED_DRAINING:
        cart_fault_set(f, 503, "shutting_down", NULL, "the server is shutting down");
        f->retry_after = RETRY_SECONDS;
        return false;
    case CART_REFUSED_MEMORY:
        cart_fault_memory(f);
        f->retry_after = RETRY_SECONDS;
        return false;
    default:
        return cart_fault_value(f, NULL, "%s", err->msg);
    }
}

bool cart_fault_changed(struct cart_fault *f, const char *cartridge)
{
    return cart_fault_set(f, 503, "cartridge_changed", "cartridges",
                          "cartridge '%s': its file was written to while it was served; reload it, "
                          "or start the server again",
                          cartridge);
}

/* ---- names that are not there ---- */

#define LISTED_MOST ((size_t)8)

/* The id of entry i as a message has it: the base model first, unless only cartridges count. */
static const char *id_of(const struct cart_serve *s, const struct cart_stack *all, size_t i,
                         bool models, char *out, size_t cap)
{
    if (models && i == 0)
        snprintf(out, cap, "%s", s->opt.name);
    else if (models)
        snprintf(out, cap, "%s:%s", s->opt.name, all->entries[i - 1].name);
    else
        snprintf(out, cap, "%s", all->entries[i].name);
    return out;
}

bool cart_fault_unknown(struct cart_fault *f, struct cart_serve *s, const char *param,
                        const char *wanted)
{
    struct cart_stack *all = NULL;
    char shown[160], id[300], near[300] = "", list[LISTED_MOST * sizeof id];
    bool models = strcmp(param, "cartridges") != 0;
    if (cart_stack_acquire_all(&all, s->registry, NULL) < 0)
        return cart_fault_memory(f);
    size_t n = all->n + models, at = 0;
    for (size_t i = 0; i < n; i++) {
        id_of(s, all, i, models, id, sizeof id);
        if (i < LISTED_MOST)
            at += (size_t)snprintf(list + at, sizeof list - at, "%s%s", i ? ", " : "", id);
        /* A cartridge's name alone, or other capitals. */
        const char *name = strrchr(id, ':');
        if (strcasecmp(id, wanted) == 0 || (name && strcasecmp(name + 1, wanted) == 0))
            memcpy(near, id, sizeof near);
    }
    cart_stack_release(all);
    cart_fault_set(f, 404, models ? "model_not_found" : "cartridge_not_found", param,
                   "%s '%s' does not exist; ", models ? "model" : "cartridge",
                   cart_err_escape(shown, sizeof shown, wanted, strlen(wanted)));
    size_t len = strlen(f->message), cap = sizeof f->message - len;
    if (*near)
        snprintf(f->message + len, cap, "did you mean '%s'?", near);
    else if (n == 0)
        snprintf(f->message + len, cap, "there is none");
    else if (n > LISTED_MOST)
        snprintf(f->message + len, cap, "there are %s and %zu more", list, n - LISTED_MOST);
    else
        snprintf(f->message + len, cap, "there %s %s", n == 1 ? "is" : "are", list);
    return false;
}

/* ---- fields ---- */

bool cart_params_body(struct cart_exchange *x, json_t **out, struct cart_fault *f)
{
    struct cart_err err = {0};
    json_t *o = NULL;
    if (cart_net_draining(x->serve))
        return cart_fault_refused(f, x->serve, CART_REFUSED_DRAINING, &err, 0, 0);
    if (x->body.len == 0)
        return cart_fault_set(f, 400, "invalid_json", NULL,
                              "expected a JSON object in the body, found no body");
    size_t most = VALUES_MOST * x->serve->opt.max_body;
    most = x->body.len + (most > VALUES_MIN ? most : VALUES_MIN);
    int r = cart_json_parse_within(&o, x->body.data, x->body.len, most, "body", &err);
    cart_exchange_drop_body(x);
    if (r == CART_ESYS)
        return cart_fault_memory(f);
    if (r < 0 && err.sys == EFBIG)
        return cart_fault_set(f, 413, "values_too_large", NULL, "%s", err.msg);
    if (r < 0)
        return cart_fault_set(f, 400, "invalid_json", NULL, "%s", err.msg);
    if (!json_is_object(o)) {
        char found[48];
        cart_fault_set(f, 400, "invalid_json", NULL, "expected a JSON object in the body, found %s",
                       cart_json_found(o, found));
        json_decref(o);
        return false;
    }
    *out = o;
    return true;
}

const json_t *cart_param(const json_t *o, const char *key)
{
    const json_t *v = json_object_get(o, key);
    return json_is_null(v) ? NULL : v;
}

bool cart_param_bool(const json_t *o, const char *key, bool *out, struct cart_fault *f)
{
    const json_t *v = cart_param(o, key);
    if (!v)
        return true;
    if (!json_is_boolean(v))
        return cart_fault_found(f, key, v, "%s: expected true or false", key);
    *out = json_is_true(v);
    return true;
}

bool cart_param_size(const json_t *o, const char *key, size_t lo, size_t hi, size_t *out,
                     struct cart_fault *f)
{
    const json_t *v = cart_param(o, key);
    if (!v)
        return true;
    uint64_t n;
    if (!cart_json_whole(v, hi, &n) || n < lo)
        return cart_fault_found(f, key, v, "%s: expected an integer from %zu to %zu", key, lo, hi);
    *out = (size_t)n;
    return true;
}

static bool param_real(const json_t *o, const char *key, double lo, double hi, double *out,
                       struct cart_fault *f)
{
    const json_t *v = cart_param(o, key);
    if (!v)
        return true;
    double d = json_is_number(v) ? json_number_value(v) : NAN;
    if (!(d >= lo && d <= hi))
        return cart_fault_found(f, key, v, "%s: expected a number from %g to %g", key, lo, hi);
    *out = d;
    return true;
}

bool cart_param_string(const json_t *o, const char *key, const char **out, struct cart_fault *f)
{
    const json_t *v = cart_param(o, key);
    if (!v)
        return true;
    if (!cart_json_word(v))
        return cart_fault_found(f, key, v, "%s: expected a string", key);
    *out = cart_json_word(v);
    return true;
}

/* Letters and digits alone, in lower case, without an s at the end: what is left of a name however
 * it is spelt. */
static void essence(char *out, size_t cap, const char *name)
{
    size_t n = 0;
    for (; *name && n + 1 < cap; name++) {
        char c = *name;
        if (c >= 'A' && c <= 'Z')
            out[n++] = (char)(c - 'A' + 'a');
        else if ((c >= 'a' && c <= 'z') || (c >= '0' && c <= '9'))
            out[n++] = c;
    }
    n -= n > 0 && out[n - 1] == 's';
    out[n] = '\0';
}

/* The field that was meant by one that is not known, or NULL. Short names are near too many that
 * other servers have; "models" is a list of fall-backs there. */
static const char *meant(const char *key, const char *const *known)
{
    enum { LONG = 8 };
    char of_key[64], of_known[64];
    if (strlen(key) >= sizeof of_key || strcmp(key, "models") == 0)
        return NULL;
    essence(of_key, sizeof of_key, key);
    for (; *known; known++) {
        essence(of_known, sizeof of_known, *known);
        if (strcmp(of_key, of_known) == 0 ||
            (strlen(*known) >= LONG && cart_spelling_distance(key, strlen(key), *known, 1) == 1))
            return *known;
    }
    return NULL;
}

/* Whether the key was not seen before, as far as there is room to remember. */
static bool is_fresh(const char *key)
{
    enum { REMEMBERED = 32 };
    static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
    static uint32_t seen[REMEMBERED];
    static size_t n;
    uint32_t digest = cart_crc32(key, strlen(key));
    pthread_mutex_lock(&lock);
    size_t i = 0;
    while (i < n && seen[i] != digest)
        i++;
    bool fresh = i == n && n < REMEMBERED;
    if (fresh)
        seen[n++] = digest;
    pthread_mutex_unlock(&lock);
    return fresh;
}

bool cart_params_unknown(struct cart_serve *s, const json_t *o, const char *const *known,
                         struct cart_fault *f)
{
    const char *key;
    json_t *v,
        *walked = (json_t *)(uintptr_t)o; /* jansson's iterators take no const, but only walk */
    json_object_foreach(walked, key, v) {
        const char *const *k = known;
        char shown[80];
        while (*k && strcmp(*k, key) != 0)
            k++;
        if (*k || json_is_null(v))
            continue;
        cart_err_escape(shown, sizeof shown, key, strlen(key));
        if (meant(key, known))
            return cart_fault_value(f, shown, "unknown field %s: did you mean %s?", shown,
                                    meant(key, known));
        if (is_fresh(key))
            cart_net_note(s, CART_LOG_WARNING,
                          "a request has the unknown field %s, which is ignored (said once)",
                          shown);
    }
    return true;
}

/* ---- the model and its cartridges ---- */

static bool names_of(const json_t *list, const char **names, size_t *n, struct cart_fault *f)
{
    char param[64];
    if (!json_is_array(list))
        return cart_fault_found(f, "cartridges", list, "cartridges: expected an array");
    if (json_array_size(list) > CART_STACK_MAX)
        return cart_fault_value(f, "cartridges", "cartridges: expected at most %zu, found %zu",
                                CART_STACK_MAX, json_array_size(list));
    for (size_t i = 0; i < json_array_size(list); i++) {
        const json_t *v = json_array_get(list, i);
        snprintf(param, sizeof param, "cartridges[%zu]", i);
        if (json_is_object(v)) {
            const json_t *source = cart_param(v, "source");
            if (source && (!cart_json_word(source) || strcmp(cart_json_word(source), "local") != 0))
                return cart_fault_found(f, param, source, "%s.source: expected local", param);
            v = json_object_get(v, "id");
        }
        if (!cart_json_word(v))
            return cart_fault_found(f, param, json_array_get(list, i),
                                    "%s: expected a name, or an object with an id", param);
        names[(*n)++] = cart_json_word(v);
    }
    return true;
}

/* The NAME of a model that is not used is there all the same: answers and logs repeat it. */
static bool check_name(struct cart_serve *s, const char *model, struct cart_fault *f)
{
    const char *name = model + strlen(s->opt.name) + 1;
    struct cart_stack *one = NULL;
    int r = cart_stack_acquire(&one, s->registry, &name, 1, NULL, NULL);
    cart_stack_release(one);
    if (r == CART_EUSAGE)
        return cart_fault_unknown(f, s, "model", model);
    return r == 0 || cart_fault_memory(f);
}

bool cart_params_select(struct cart_serve *s, const json_t *o, struct cart_selection *sel,
                        struct cart_fault *f)
{
    const char *names[CART_STACK_MAX], *model = NULL;
    size_t n = 0, missing = SIZE_MAX, base = strlen(s->opt.name);
    struct cart_err err = {0};
    *sel = (struct cart_selection){.how = "default"};
    if (!cart_param_string(o, "model", &model, f))
        return false;
    if (cart_param(o, "fleet"))
        return cart_fault_set(f, 400, "unsupported_feature", "fleet",
                              "fleet: this server has no fleet");
    bool bare = !model || strcmp(model, s->opt.name) == 0;
    if (!bare && (strncmp(model, s->opt.name, base) != 0 || model[base] != ':' || !model[base + 1]))
        return cart_fault_unknown(f, s, "model", model);
    const json_t *list = cart_param(o, "cartridges");
    if (list) {
        sel->how = "request";
        if (!names_of(list, names, &n, f) || (!bare && !check_name(s, model, f)))
            return false;
    } else if (!bare) {
        sel->how = "model";
        names[n++] = model + base + 1;
    } else {
        for (; n < s->opt.n_defaults; n++)
            names[n] = s->opt.defaults[n];
    }
    snprintf(sel->model, sizeof sel->model, "%s",
             model && strlen(model) < sizeof sel->model ? model : s->opt.name);
    if (n == 0)
        return true;
    if (cart_stack_acquire(&sel->stack, s->registry, names, n, &missing, &err) == 0)
        return true;
    if (missing >= n)
        return cart_fault_memory(f);
    if (strcmp(sel->how, "model") == 0)
        return cart_fault_unknown(f, s, "model", model);
    return cart_fault_unknown(f, s, "cartridges", names[missing]);
}

void cart_selection_write(const struct cart_selection *sel, struct cart_wire *w)
{
    cart_wire_add(w, "[");
    for (size_t i = 0; sel->stack && i < sel->stack->n; i++) {
        cart_wire_add(w, i ? ",{\"id\":" : "{\"id\":");
        cart_wire_quote(w, sel->stack->entries[i].name);
        cart_wire_f(w, ",\"rows\":%zu}", sel->stack->entries[i].cartridge->p);
    }
    cart_wire_f(w, "],\"cartridge_selection\":\"%s\"", sel->how);
}

void cart_selection_label(const struct cart_selection *sel, struct cart_exchange *x)
{
    struct cart_buf names = CART_BUF_INIT;
    int r = 0;
    for (size_t i = 0; sel->stack && i < sel->stack->n && r == 0; i++)
        r = cart_buf_addf(&names, NULL, "%s%s", i ? "," : "", sel->stack->entries[i].name);
    /* Without memory the list is left out whole: half of it would name other cartridges. */
    if (r < 0)
        cart_buf_release(&names);
    pthread_mutex_lock(&x->lock);
    x->cartridges = names.data;
    snprintf(x->record_model, sizeof x->record_model, "%s", sel->model);
    pthread_mutex_unlock(&x->lock);
}

/* ---- sampling ---- */

static bool read_stop(const json_t *o, struct cart_sampling_params *p, struct cart_fault *f)
{
    const json_t *v = cart_param(o, "stop");
    if (!v)
        return true;
    size_t n = json_is_array(v) ? json_array_size(v) : 1;
    if (!json_is_array(v) && !json_is_string(v))
        return cart_fault_found(f, "stop", v, "stop: expected a string, or an array of at most %zu",
                                CART_STOPS_MAX);
    if (n > CART_STOPS_MAX)
        return cart_fault_value(f, "stop", "stop: expected at most %zu strings, found %zu",
                                CART_STOPS_MAX, n);
    size_t total = 0;
    for (size_t i = 0; i < n; i++) {
        const json_t *item = json_is_array(v) ? json_array_get(v, i) : v;
        if (!json_is_string(item) || json_string_length(item) == 0 ||
            json_string_length(item) > CART_STOP_BYTES_MAX)
            return cart_fault_found(f, "stop", item, "stop: expected strings of 1 to %zu bytes",
                                    CART_STOP_BYTES_MAX);
        total += json_string_length(item);
    }
    /* Copied, for the answer outlives the body. */
    p->stop_text = malloc(total + 1);
    if (!p->stop_text)
        return cart_fault_memory(f);
    char *at = p->stop_text;
    for (size_t i = 0; i < n; i++) {
        const json_t *item = json_is_array(v) ? json_array_get(v, i) : v;
        size_t len = json_string_length(item);
        p->stops.items[p->stops.n++] =
            (struct cart_text){memcpy(at, json_string_value(item), len), len};
        at += len;
    }
    return true;
}

static bool read_bias(struct cart_serve *s, const json_t *o, struct cart_sampling_params *p,
                      struct cart_fault *f)
{
    json_t *v = json_object_get(o, "logit_bias"), *amount;
    const char *key;
    char shown[48];
    if (!v || json_is_null(v))
        return true;
    if (!json_is_object(v) || json_object_size(v) > BIAS_MAX)
        return cart_fault_found(f, "logit_bias", v,
                                "logit_bias: expected an object of at most %zu token ids",
                                BIAS_MAX);
    p->bias = calloc(json_object_size(v) + 1, sizeof *p->bias);
    if (!p->bias)
        return cart_fault_memory(f);
    json_object_foreach(v, key, amount) {
        double d = json_is_number(amount) ? json_number_value(amount) : NAN;
        /* One spelling for each, so that no token is named twice. */
        if (!*key || strlen(key) > 9 || strspn(key, "0123456789") != strlen(key) ||
            (key[0] == '0' && key[1]) || strtoul(key, NULL, 10) >= s->model->V)
            return cart_fault_value(
                f, "logit_bias", "logit_bias: expected token ids from 0 to %zu, found '%s'",
                s->model->V - 1, cart_err_escape(shown, sizeof shown, key, strlen(key)));
        if (!(d >= -100 && d <= 100))
            return cart_fault_found(f, "logit_bias", amount,
                                    "logit_bias: expected numbers from -100 to 100");
        p->bias[p->adjust.n_bias++] =
            (struct cart_bias){(uint32_t)strtoul(key, NULL, 10), (float)d};
    }
    p->adjust.bias = p->bias;
    return true;
}

/* A request without a seed gets one of its own: two such requests differ, as clients expect. */
static uint64_t fresh_seed(const struct cart_serve *s)
{
    static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
    static uint64_t count;
    struct {
        uint64_t n, created, pid;
        double now;
    } mix = {0, (uint64_t)s->created, (uint64_t)getpid(), cart_clock_now()};
    unsigned char digest[16];
    uint64_t seed;
    pthread_mutex_lock(&lock);
    mix.n = count++;
    pthread_mutex_unlock(&lock);
    cart_hash_bytes(&mix, sizeof mix, digest);
    memcpy(&seed, digest, sizeof seed);
    return seed;
}

static bool read_seed(struct cart_serve *s, const json_t *o, uint64_t *seed, struct cart_fault *f)
{
    const json_t *v = cart_param(o, "seed");
    *seed = v ? (uint64_t)json_integer_value(v) : fresh_seed(s);
    return !v || json_is_integer(v) || cart_fault_found(f, "seed", v, "seed: expected an integer");
}

/* The newer name wins where both are given. */
static bool read_limit(struct cart_serve *s, const json_t *o, struct cart_sampling_params *p,
                       struct cart_fault *f)
{
    size_t old = SIZE_MAX, max = SIZE_MAX, context = cart_scheduler_context(s->scheduler);
    if (!cart_param_size(o, "max_tokens", 0, COUNT_MAX, &old, f) ||
        !cart_param_size(o, "max_completion_tokens", 0, COUNT_MAX, &max, f))
        return false;
    p->max_tokens = max != SIZE_MAX ? max : old;
    p->has_max = p->max_tokens != SIZE_MAX;
    size_t each = p->max_tokens < context ? p->max_tokens : context;
    if (p->n > 1 && each > WORK_MAX / p->n)
        return cart_fault_value(f, "n",
                                "n times max_tokens: expected at most %zu tokens, found %zu "
                                "times %zu",
                                WORK_MAX, p->n, each);
    return true;
}

/* Some clients send whole numbers with a point. */
static bool read_top_k(const json_t *o, size_t *top_k, struct cart_fault *f)
{
    const json_t *v = cart_param(o, "top_k");
    double d = v ? json_number_value(v) : 0;
    if (v && (!json_is_number(v) || !(d >= -1 && d <= INT32_MAX) || d != floor(d)))
        return cart_fault_found(f, "top_k", v, "top_k: expected an integer from -1 to %d",
                                INT32_MAX);
    *top_k = d > 0 ? (size_t)d : 0;
    return true;
}

bool cart_params_sampling(struct cart_serve *s, const json_t *o, struct cart_sampling_params *p,
                          struct cart_fault *f)
{
    *p = (struct cart_sampling_params){
        .n = 1, .temperature = 1, .top_p = 1, .adjust = CART_ADJUST_NONE};
    const json_t *options = cart_param(o, "stream_options");
    if (!cart_param_bool(o, "stream", &p->stream, f) ||
        !cart_param_size(o, "n", 1, CART_SERVE_CHOICES_MAX, &p->n, f) ||
        !param_real(o, "temperature", 0, 2, &p->temperature, f) ||
        !param_real(o, "top_p", 0, 1, &p->top_p, f) ||
        !param_real(o, "min_p", 0, 1, &p->min_p, f) || !read_top_k(o, &p->top_k, f) ||
        !param_real(o, "presence_penalty", -2, 2, &p->adjust.presence, f) ||
        !param_real(o, "frequency_penalty", -2, 2, &p->adjust.frequency, f) ||
        !param_real(o, "repetition_penalty", 0.01, 100, &p->adjust.repeat, f) ||
        !param_real(o, "repeat_penalty", 0.01, 100, &p->adjust.repeat, f) ||
        !cart_param_bool(o, "ignore_eos", &p->ignore_stop, f))
        return false;
    /* The smallest set whose share reaches 0 is the first token; a share of 1 of the likeliest is
     * that token too. */
    if (p->top_p == 0)
        p->top_k = 1;
    p->top_p = p->top_p == 0 ? 1 : p->top_p;
    if (p->min_p == 1)
        p->top_k = 1;
    p->min_p = p->min_p == 1 ? 0 : p->min_p;
    if (options && !json_is_object(options))
        return cart_fault_found(f, "stream_options", options, "stream_options: expected an object");
    if (options && !p->stream)
        return cart_fault_value(f, "stream_options", "stream_options: goes with stream: true only");
    if (options && !cart_param_bool(options, "include_usage", &p->include_usage, f))
        return false;
    return read_seed(s, o, &p->seed, f) && read_limit(s, o, p, f) && read_stop(o, p, f) &&
           read_bias(s, o, p, f);
}

void cart_params_release(struct cart_sampling_params *p)
{
    free(p->bias);
    free(p->stop_text);
    p->bias = NULL;
    p->stop_text = NULL;
    p->stops.n = 0;
}

void cart_params_apply(const struct cart_sampling_params *p, struct cart_serve_request *r)
{
    r->n = p->n;
    r->max_tokens = p->max_tokens;
    r->temperature = p->temperature;
    r->top_p = p->top_p;
    r->min_p = p->min_p;
    r->top_k = p->top_k;
    r->seed = p->seed;
    r->adjust = p->adjust;
    r->ignore_stop = p->ignore_stop;
}
