#include "serve/answer.h"

#include "base/clock.h"
#include "base/hash.h"
#include "base/opt.h"
#include "model/model.h"
#include "serve/answer_impl.h"
#include "token/chat.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define FRAME_BYTES                                                                                \
    ((size_t)16 << 10) /* of a choice's part of the prompt: sent when there is more */

/* ---- text ---- */

/* Content that passed the stop strings. Line breaks around marks belong to the template, not to the
 * answer. */
static void show(struct cart_answer *a, struct cart_choice *c, struct cart_wire *to,
                 const char *text, size_t n)
{
    while (c->lead && n > 0 && *text == '\n') {
        text++;
        n--;
    }
    if (n == 0)
        return;
    c->lead = false;
    if (!a->opt.marks) {
        cart_wire_bytes(to, text, n);
        return;
    }
    size_t keep = 0;
    while (keep < n && text[n - 1 - keep] == '\n')
        keep++;
    if (keep < n) {
        for (; c->breaks > 0; c->breaks--)
            cart_wire_add(to, "\n");
        cart_wire_bytes(to, text, n - keep);
    }
    c->breaks += keep;
}

static bool show_content(struct cart_answer *a, struct cart_choice *c, const char *text, size_t n)
{
    struct cart_buf out = CART_BUF_INIT;
    bool hit = false;
    c->decoded += n;
    if (cart_stop_push(&c->scan, a->opt.stops, text, n, &out, &hit, NULL) < 0)
        c->content.r = CART_ESYS;
    else if (out.len > 0)
        show(a, c, &c->content, out.data, out.len);
    c->shown += out.len;
    c->stopped |= hit;
    cart_buf_release(&out);
    return !hit;
}

/* The call's name is known: its entry begins. */
static void begin_call(struct cart_answer *a, struct cart_choice *c)
{
    unsigned char digest[16];
    char hex[33];
    struct {
        char id[CART_ANSWER_ID];
        size_t choice, call;
    } seed;
    memset(&seed, 0, sizeof seed);
    memcpy(seed.id, a->id, sizeof seed.id);
    seed.choice = (size_t)(c - a->choices);
    seed.call = c->n_calls;
    cart_hash_bytes(&seed, sizeof seed, digest);
    cart_wire_add(&c->calls, c->calls.b.len ? ",{" : "{");
    if (a->opt.stream)
        cart_wire_f(&c->calls, "\"index\":%zu,", c->n_calls);
    cart_wire_f(&c->calls, "\"id\":\"call_%.24s\",\"type\":\"function\",\"function\":{\"name\":",
                cart_hex(hex, digest, sizeof digest));
    cart_wire_string(&c->calls, c->call.name.data, c->call.name.len);
    if (a->opt.stream)
        cart_wire_add(&c->calls, ",\"arguments\":\"\"}}");
    c->call_open = true;
    c->breaks = 0;
}

static void call_delta(struct cart_answer *a, struct cart_choice *c,
                       const struct cart_call_delta *d)
{
    if (d->begun)
        begin_call(a, c);
    if (d->n == 0)
        return;
    if (!a->opt.stream) {
        cart_wire_bytes(&c->arguments, d->arguments, d->n);
        return;
    }
    cart_wire_f(&c->calls,
                "%s{\"index\":%zu,\"function\":{\"arguments\":", c->calls.b.len ? "," : "",
                c->n_calls);
    cart_wire_string(&c->calls, d->arguments, d->n);
    cart_wire_add(&c->calls, "}}");
}

static void finish_call(struct cart_answer *a, struct cart_choice *c, bool closed)
{
    struct cart_call_delta d;
    if (cart_call_finish(&c->call, closed, &d)) {
        call_delta(a, c, &d);
        if (!a->opt.stream) {
            cart_wire_add(&c->calls, ",\"arguments\":");
            cart_wire_string(&c->calls, c->arguments.b.data, c->arguments.b.len);
            cart_wire_add(&c->calls, "}}");
        }
        c->n_calls++;
    } else {
        /* What the model wrote is no call: the client gets it as it was written. */
        for (; c->breaks > 0; c->breaks--)
            cart_wire_add(&c->content, "\n");
        cart_wire_add(&c->content, "<tool_call>");
        cart_wire_bytes(&c->content, c->call.text.data, c->call.text.len);
        if (closed)
            cart_wire_add(&c->content, "</tool_call>");
    }
    c->call_open = false;
    cart_wire_reset(&c->arguments);
    cart_call_reset(&c->call);
}

/* Whole characters go where the mode says. False: a stop string has come. */
static bool text(struct cart_answer *a, struct cart_choice *c, const char *bytes, size_t n)
{
    struct cart_call_delta d;
    switch (c->mode) {
    case CART_MODE_REASONING:
        show(a, c, &c->reasoning, bytes, n);
        return true;
    case CART_MODE_CALL:
        if (cart_call_push(&c->call, bytes, n, &d, NULL) < 0)
            c->content.r = CART_ESYS;
        else
            call_delta(a, c, &d);
        return true;
    default:
        return show_content(a, c, bytes, n);
    }
}

/* The end of a run of text: half a character becomes U+FFFD, what only looked like a stop string is
 * shown. */
static bool settle(struct cart_answer *a, struct cart_choice *c)
{
    struct cart_buf out = CART_BUF_INIT;
    bool go_on = true;
    if (cart_decoder_finish(&c->decoder, &out, NULL) < 0)
        c->content.r = CART_ESYS;
    if (out.len > 0)
        go_on = text(a, c, out.data, out.len);
    cart_buf_reset(&out);
    if (go_on && c->mode == CART_MODE_CONTENT) {
        if (cart_stop_flush(&c->scan, &out, NULL) < 0)
            c->content.r = CART_ESYS;
        show(a, c, &c->content, out.data, out.len);
        c->shown += out.len;
    }
    cart_buf_release(&out);
    return go_on;
}

/* Whether the token is a mark of the template; then the mode changes. */
static bool mark(struct cart_answer *a, struct cart_choice *c, uint32_t id, bool *go_on)
{
    enum cart_mode next;
    if (!a->opt.marks || id == CART_TOKEN_NONE)
        return false;
    if (id == a->think_open)
        next = CART_MODE_REASONING;
    else if (id == a->think_close)
        next = CART_MODE_CONTENT;
    else if (a->opt.calls && id == a->call_open)
        next = CART_MODE_CALL;
    else if (a->opt.calls && id == a->call_close && c->mode == CART_MODE_CALL)
        next = CART_MODE_CONTENT;
    else
        return false;
    if (!(*go_on = settle(a, c)))
        return true;
    if (c->mode == CART_MODE_CALL)
        finish_call(a, c, id == a->call_close);
    /* Line breaks at the end of reasoning are the template's; those before a call too, if it is
     * one. */
    if (c->mode == CART_MODE_REASONING)
        c->breaks = 0;
    c->lead = next == CART_MODE_REASONING || id == a->think_close || id == a->call_close;
    c->mode = next;
    return true;
}

static size_t characters(const struct cart_buf *text)
{
    size_t n = 0;
    for (size_t i = 0; i < text->len; i++)
        n += ((unsigned char)text->data[i] & 0xc0) != 0x80;
    return n;
}

static bool token(struct cart_answer *a, struct cart_choice *c, const struct cart_event *e)
{
    struct cart_buf out = CART_BUF_INIT;
    bool go_on = true;
    size_t start = c->decoded;
    c->tokens++;
    if (a->opt.logprobs && e->has_logprob)
        cart_answer_logprob(a, c, e, start);
    if (!mark(a, c, e->id, &go_on) && !e->control) {
        if (cart_decoder_push(&c->decoder, e->id, &out, NULL) < 0)
            c->content.r = CART_ESYS;
        c->chars += characters(&out);
        if (out.len > 0)
            go_on = text(a, c, out.data, out.len);
    }
    c->reasoning_tokens += c->mode == CART_MODE_REASONING;
    cart_answer_release_logprobs(c, c->scan.held.len == 0 && c->decoder.n_held == 0 && !c->stopped);
    cart_buf_release(&out);
    return go_on;
}

/* ---- events ---- */

static const char *finish_word(const struct cart_answer *a, const struct cart_choice *c,
                               enum cart_serve_finish why)
{
    switch (why) {
    case CART_SERVE_LENGTH:
        return "length";
    case CART_SERVE_STOP:
    case CART_SERVE_CALLER:
        return a->opt.calls && c->n_calls > 0 && !c->stopped ? "tool_calls" : "stop";
    default:
        return NULL;
    }
}

static bool broken(struct cart_answer *a, const struct cart_event *e)
{
    struct cart_exchange *x = a->group.x;
    /* The one thing of a request that shows while it is answered: the work that its schema asks
     * for. */
    bool beyond = e->finish == CART_SERVE_FAILED && e->err && e->err->code == CART_EFORMAT;
    cart_group_fail(&a->group);
    pthread_mutex_lock(&x->lock);
    x->no_retry = e->finish == CART_SERVE_NOT_FINITE || e->finish == CART_SERVE_DEAD_END || beyond;
    x->record.finish = "error";
    pthread_mutex_unlock(&x->lock);
    switch (e->finish) {
    case CART_SERVE_NOT_FINITE:
        cart_exchange_error(x, 500, "model_not_finite", NULL,
                            "the model gave a number that is not finite");
        break;
    case CART_SERVE_DEAD_END:
        cart_exchange_error(x, 500, "constraint_dead_end", NULL,
                            "no token of this vocabulary can go on within the asked-for format");
        break;
    case CART_SERVE_CANCELLED:
        cart_exchange_error(x, 503, "shutting_down", NULL, "the request was cancelled");
        break;
    default:
        cart_exchange_error(x, beyond ? 400 : 500, beyond ? "unsupported_schema" : "failed", NULL,
                            "%s", e->err ? e->err->msg : "the request failed");
    }
    return false;
}

static bool lost(struct cart_answer *a)
{
    cart_group_fail(&a->group);
    cart_exchange_error(a->group.x, 503, "reader_too_slow", NULL,
                        "the answer was cut off: it was not read, or there was no memory for it");
    return false;
}

/* A choice is over. After a stop string what was held back is not shown. */
static bool finish(struct cart_answer *a, struct cart_choice *c, const struct cart_event *e)
{
    const char *word = finish_word(a, c, e->finish);
    if (!word && !c->stopped)
        return broken(a, e);
    if (!c->stopped)
        settle(a, c);
    if (c->mode == CART_MODE_CALL && !c->stopped)
        finish_call(a, c, false);
    struct cart_wire *tail = c->mode == CART_MODE_REASONING ? &c->reasoning : &c->content;
    for (; c->breaks > 0 && c->n_calls == 0; c->breaks--)
        cart_wire_add(tail, "\n");
    c->breaks = 0;
    cart_answer_release_logprobs(c, !c->stopped);
    c->finish = c->stopped ? "stop" : finish_word(a, c, e->finish);
    pthread_mutex_lock(&a->group.x->lock);
    a->group.x->record.finish = c->finish;
    pthread_mutex_unlock(&a->group.x->lock);
    cart_answer_finish(a, (size_t)(c - a->choices));
    return true;
}

/* Prompt text, which is never searched for stop strings. */
static void show_prompt(struct cart_choice *c, const struct cart_buf *text)
{
    cart_wire_bytes(&c->content, text->data, text->len);
    c->decoded += text->len;
    c->shown += text->len;
    c->chars += characters(text);
}

/* One scored token of the echoed prompt, for every choice. */
static void prompt_token(struct cart_answer *a, size_t prompt, const struct cart_event *e)
{
    for (size_t i = 0; i < a->opt.n; i++) {
        struct cart_choice *c = &a->choices[prompt * a->opt.n + i];
        struct cart_buf out = CART_BUF_INIT;
        cart_answer_logprob(a, c, e, c->decoded);
        c->decoder.special = true;
        if (cart_decoder_push(&c->decoder, e->id, &out, NULL) < 0)
            c->content.r = CART_ESYS;
        c->decoder.special = false;
        show_prompt(c, &out);
        cart_answer_release_logprobs(c, c->decoder.n_held == 0);
        cart_buf_release(&out);
    }
}

/* Without logprobs nobody scores the prompt, and its ids are enough for its text. Called when it is
 * about to be computed: a prompt that waits holds no text. */
static void echo_prompt(struct cart_answer *a, size_t prompt)
{
    const struct cart_ids *ids = &a->group.prompts[prompt].ids;
    struct cart_choice *first = &a->choices[prompt * a->opt.n];
    struct cart_decoder decoder = first->decoder;
    struct cart_buf out = CART_BUF_INIT;
    int r = 0;
    decoder.special = true;
    for (size_t i = 0; i < ids->n && r == 0; i++)
        r = cart_decoder_push(&decoder, ids->data[i], &out, NULL);
    decoder.special = false;
    for (size_t i = 0; i < a->opt.n; i++) {
        first[i].decoder = decoder;
        show_prompt(&first[i], &out);
        if (r < 0)
            first[i].content.r = CART_ESYS;
    }
    cart_buf_release(&out);
}

static size_t choice_bytes(const struct cart_choice *c)
{
    size_t n = c->content.b.len + c->reasoning.b.len + c->calls.b.len + c->arguments.b.len +
               c->pending_text.b.len + c->call.text.len;
    for (size_t k = 0; k < CART_LP_COLUMNS; k++)
        n += c->lp[k].b.len;
    return n;
}

static bool too_long(struct cart_answer *a)
{
    cart_group_fail(&a->group);
    cart_exchange_error(
        a->group.x, 400, "answer_too_large", NULL,
        "the answer would have more than %zu bytes before they can be sent; "
        "expected a stream, a shorter prompt to repeat, or fewer tokens, choices or "
        "logprobs",
        a->most);
    return false;
}

/* All choices of a prompt hold the same of it. What of a stream is enough for a frame goes out, so
 * that neither memory nor a reader has to take a long prompt at once. */
static bool prompt_event(struct cart_answer *a, size_t prompt, const struct cart_event *e)
{
    bool whole = true;
    size_t first = prompt * a->opt.n;
    size_t before = a->opt.n * choice_bytes(&a->choices[first]), after = 0;
    if (e->type == CART_EVENT_PROMPT)
        prompt_token(a, prompt, e);
    else if (a->opt.echo && !a->opt.logprobs)
        echo_prompt(a, prompt);
    for (size_t i = first; i < first + a->opt.n; i++) {
        const struct cart_choice *c = &a->choices[i];
        if (a->opt.stream && e->type == CART_EVENT_PROMPT && choice_bytes(c) >= FRAME_BYTES)
            cart_answer_frame(a, i);
        whole &= cart_answer_ok(c);
        after += choice_bytes(c);
    }
    a->held += after - before;
    if (!whole || a->frame.r != 0)
        return lost(a);
    return a->held <= a->most || too_long(a);
}

static bool choice_event(struct cart_answer *a, struct cart_choice *c, const struct cart_event *e)
{
    bool go_on = true;
    size_t before = choice_bytes(c);
    if (e->type == CART_EVENT_TOKEN)
        go_on = token(a, c, e);
    else if (!finish(a, c, e))
        return false;
    if (!cart_answer_ok(c) || a->frame.r != 0)
        return lost(a);
    if (a->opt.stream && e->type == CART_EVENT_TOKEN)
        cart_answer_frame(a, (size_t)(c - a->choices));
    a->held += choice_bytes(c) - before;
    if (a->frame.r != 0)
        return lost(a);
    return a->held > a->most ? too_long(a) : go_on;
}

static bool on_event(struct cart_group *b, size_t prompt, const struct cart_event *e)
{
    struct cart_answer *a = (struct cart_answer *)b;
    switch (e->type) {
    case CART_EVENT_START:
    case CART_EVENT_PROMPT:
        return prompt_event(a, prompt, e);
    case CART_EVENT_TOKEN:
    case CART_EVENT_FINISH:
        return choice_event(a, &a->choices[prompt * a->opt.n + e->choice], e);
    default:
        return true;
    }
}

/* ---- life ---- */

static void answer_free(void *state)
{
    struct cart_answer *a = state;
    for (size_t i = 0; i < a->n_choices; i++) {
        struct cart_choice *c = &a->choices[i];
        cart_stop_release(&c->scan);
        cart_call_release(&c->call);
        cart_wire_release(&c->content);
        cart_wire_release(&c->reasoning);
        cart_wire_release(&c->calls);
        cart_wire_release(&c->arguments);
        for (size_t k = 0; k < CART_LP_COLUMNS; k++)
            cart_wire_release(&c->lp[k]);
        cart_wire_release(&c->pending_text);
        free(c->pending);
    }
    free(a->choices);
    cart_group_release(&a->group);
    cart_params_release(&a->params);
    cart_wire_release(&a->head);
    cart_wire_release(&a->frame);
    free(a);
}

/* The server's build and model, and which cartridges: what must be equal for equal seeds to give
 * equal answers. */
static void fingerprint(struct cart_answer *a, const struct cart_serve *s)
{
    struct cart_wire w = CART_WIRE_INIT;
    unsigned char digest[16];
    char hex[33];
    cart_wire_add(&w, s->instance);
    const struct cart_stack *stack = a->selection.stack;
    for (size_t i = 0; stack && i < stack->n; i++) {
        const struct cart_cartridge *c = stack->entries[i].cartridge;
        cart_wire_f(&w, "/%zu/%zu/%d/%s", c->frozen, c->p, c->dtype, c->digest);
    }
    cart_hash_bytes(w.b.data ? w.b.data : "", w.b.len, digest);
    snprintf(a->fingerprint, sizeof a->fingerprint, "fp_%.12s",
             cart_hex(hex, digest, sizeof digest));
    cart_wire_release(&w);
}

static uint32_t mark_id(const struct cart_tokenizer *t, const char *text)
{
    return cart_tokenizer_find(t, text, strlen(text));
}

bool cart_answer_new(struct cart_answer **out, struct cart_exchange *x, size_t n_prompts,
                     const struct cart_answer_options *o, const struct cart_sampling_params *params,
                     const struct cart_selection *selection)
{
    struct cart_serve *s = x->serve;
    const struct cart_tokenizer *t = cart_model_tokenizer(s->model);
    struct cart_answer *a = calloc(1, sizeof *a);
    if (!a || !(a->choices = calloc(n_prompts * o->n, sizeof *a->choices)) ||
        !cart_group_init(&a->group, x, n_prompts)) {
        if (a)
            free(a->choices);
        free(a);
        return false;
    }
    a->n_choices = n_prompts * o->n;
    for (size_t i = 0; i < a->n_choices; i++)
        cart_decoder_init(&a->choices[i].decoder, t, false);
    a->opt = *o;
    a->params = *params;
    a->opt.stops = &a->params.stops;
    a->selection = *selection;
    a->most = CART_ANSWER_MAX;
    a->created = (long)time(NULL);
    snprintf(a->id, sizeof a->id, "%s-%s", o->chat ? "chatcmpl" : "cmpl",
             strncmp(x->id, "req-", 4) == 0 ? x->id + 4 : x->id);
    a->think_open = mark_id(t, "<think>");
    a->think_close = mark_id(t, "</think>");
    a->call_open = mark_id(t, "<tool_call>");
    a->call_close = mark_id(t, "</tool_call>");
    fingerprint(a, s);
    cart_answer_head(a);
    a->group.request = (struct cart_serve_request)CART_SERVE_REQUEST;
    a->group.request.stack = selection->stack;
    cart_params_apply(&a->params, &a->group.request);
    a->group.request.logprobs = o->logprobs;
    a->group.request.prompt_logprobs = o->echo && o->logprobs;
    a->group.on_event = on_event;
    a->group.on_done = cart_answer_done;
    cart_selection_label(selection, x);
    pthread_mutex_lock(&x->lock);
    x->pings = o->stream;
    x->state = a;
    x->free_state = answer_free;
    pthread_mutex_unlock(&x->lock);
    *out = a;
    return true;
}
