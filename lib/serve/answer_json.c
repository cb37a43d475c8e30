#include "serve/answer_impl.h"

#include "base/clock.h"

#include <stdlib.h>
#include <string.h>

/* ---- logprobs ---- */

static void bytes_array(struct cart_wire *w, struct cart_text t)
{
    cart_wire_add(w, "[");
    for (size_t i = 0; i < t.n; i++)
        cart_wire_f(w, "%s%u", i ? "," : "", (unsigned)(unsigned char)t.data[i]);
    cart_wire_add(w, "]");
}

static void chat_entry(struct cart_wire *w, struct cart_text t, double logprob)
{
    cart_wire_add(w, "{\"token\":");
    cart_wire_string(w, t.data, t.n);
    cart_wire_add(w, ",\"logprob\":");
    cart_wire_real(w, logprob);
    cart_wire_add(w, ",\"bytes\":");
    bytes_array(w, t);
}

static void chat_logprob(struct cart_wire *w, const struct cart_tokenizer *t,
                         const struct cart_event *e)
{
    chat_entry(w, e->bytes, e->logprob);
    cart_wire_add(w, ",\"top_logprobs\":[");
    for (size_t i = 0; i < e->n_top; i++) {
        if (i)
            cart_wire_add(w, ",");
        chat_entry(w, cart_tokenizer_bytes(t, e->top[i].id), e->top[i].logprob);
        cart_wire_add(w, "}");
    }
    cart_wire_add(w, "]}");
}

/* A token that is no text of its own (half a character) is spelt as bytes:\xe2\x82, as OpenAI's
 * completions do, so that two such tokens are two keys of an object. */
static void completion_token(struct cart_wire *w, struct cart_text t)
{
    struct cart_wire s = CART_WIRE_INIT;
    cart_wire_string(&s, t.data, t.n);
    bool whole = s.r == 0 && !strstr(s.b.data, "\xef\xbf\xbd");
    cart_wire_release(&s);
    if (whole) {
        cart_wire_string(w, t.data, t.n);
        return;
    }
    cart_wire_add(w, "\"bytes:");
    for (size_t i = 0; i < t.n; i++)
        cart_wire_f(w, "\\\\x%02x", (unsigned)(unsigned char)t.data[i]);
    cart_wire_add(w, "\"");
}

static void completion_top(struct cart_wire *w, const struct cart_tokenizer *t,
                           const struct cart_event *e)
{
    cart_wire_add(w, "{");
    for (size_t i = 0; i < e->n_top; i++) {
        if (i)
            cart_wire_add(w, ",");
        completion_token(w, cart_tokenizer_bytes(t, e->top[i].id));
        cart_wire_add(w, ":");
        cart_wire_real(w, e->top[i].logprob);
    }
    cart_wire_add(w, "}");
}

/* Where the token begins in the text, in characters: behind what is there, and behind the U+FFFD
 * that half a character becomes where the token does not complete it. */
static size_t offset(const struct cart_choice *c, struct cart_text t)
{
    bool begins = t.n > 0 && ((unsigned char)t.data[0] & 0xc0) != 0x80;
    return c->chars + (c->decoder.n_held > 0 && begins);
}

void cart_answer_logprob(struct cart_answer *a, struct cart_choice *c, const struct cart_event *e,
                         size_t start)
{
    struct cart_wire *w = &c->pending_text;
    const struct cart_tokenizer *t = c->decoder.t;
    if (cart_array_reserve(&c->pending, &c->cap_pending, c->n_pending + 1, sizeof *c->pending,
                           NULL) < 0) {
        w->r = CART_ESYS;
        return;
    }
    struct cart_pending *p = &c->pending[c->n_pending++];
    p->start = start;
    p->from[CART_LP_ENTRY] = w->b.len;
    if (a->opt.chat) {
        chat_logprob(w, t, e);
        p->from[CART_LP_VALUE] = p->from[CART_LP_TOP] = p->from[CART_LP_OFFSET] = w->b.len;
    } else {
        completion_token(w, e->bytes);
        p->from[CART_LP_VALUE] = w->b.len;
        if (e->has_logprob)
            cart_wire_real(w, e->logprob);
        else
            cart_wire_add(w, "null");
        p->from[CART_LP_TOP] = w->b.len;
        if (e->has_logprob)
            completion_top(w, t, e);
        else
            cart_wire_add(w, "null");
        p->from[CART_LP_OFFSET] = w->b.len;
        cart_wire_f(w, "%zu", offset(c, e->bytes));
    }
    p->from[CART_LP_COLUMNS] = w->b.len;
}

void cart_answer_release_logprobs(struct cart_choice *c, bool all)
{
    while (c->first_pending < c->n_pending &&
           (all || c->pending[c->first_pending].start < c->shown)) {
        const struct cart_pending *p = &c->pending[c->first_pending++];
        for (size_t k = 0; k < CART_LP_COLUMNS && c->pending_text.r == 0; k++) {
            if (p->from[k + 1] == p->from[k])
                continue;
            if (c->lp[k].b.len)
                cart_wire_add(&c->lp[k], ",");
            cart_wire_bytes(&c->lp[k], c->pending_text.b.data + p->from[k],
                            p->from[k + 1] - p->from[k]);
        }
    }
    if (c->first_pending == c->n_pending && c->pending_text.r == 0) {
        c->first_pending = c->n_pending = 0;
        cart_wire_reset(&c->pending_text);
    }
}

static void write_logprobs(const struct cart_answer *a, const struct cart_choice *c,
                           struct cart_wire *w)
{
    static const char *const names[CART_LP_COLUMNS] = {
        "{\"tokens\":[", "],\"token_logprobs\":[", "],\"top_logprobs\":[", "],\"text_offset\":["};
    cart_wire_add(w, ",\"logprobs\":");
    if (!a->opt.logprobs) {
        cart_wire_add(w, "null");
        return;
    }
    if (a->opt.chat) {
        cart_wire_add(w, "{\"content\":[");
        cart_wire_bytes(w, c->lp[CART_LP_ENTRY].b.data, c->lp[CART_LP_ENTRY].b.len);
        cart_wire_add(w, "],\"refusal\":null}");
        return;
    }
    for (size_t k = 0; k < CART_LP_COLUMNS; k++) {
        cart_wire_add(w, names[k]);
        cart_wire_bytes(w, c->lp[k].b.data, c->lp[k].b.len);
    }
    cart_wire_add(w, "]}");
}

bool cart_answer_ok(const struct cart_choice *c)
{
    int r = c->content.r | c->reasoning.r | c->calls.r | c->arguments.r | c->pending_text.r;
    for (size_t k = 0; k < CART_LP_COLUMNS; k++)
        r |= c->lp[k].r;
    return r == 0;
}

/* ---- objects ---- */

void cart_answer_head(struct cart_answer *a)
{
    struct cart_wire *w = &a->head;
    const char *object = a->opt.chat ? a->opt.stream ? "chat.completion.chunk" : "chat.completion"
                                     : "text_completion";
    cart_wire_add(w, "{\"id\":");
    cart_wire_quote(w, a->id);
    cart_wire_f(w, ",\"object\":\"%s\",\"created\":%ld,\"model\":", object, a->created);
    cart_wire_quote(w, a->selection.model);
    cart_wire_f(w, ",\"system_fingerprint\":\"%s\"", a->fingerprint);
}

static void write_usage(const struct cart_answer *a, struct cart_wire *w)
{
    const struct cart_usage *u = &a->group.usage;
    size_t reasoning = 0;
    for (size_t i = 0; i < a->n_choices; i++)
        reasoning += a->choices[i].reasoning_tokens;
    cart_wire_f(w,
                "\"usage\":{\"prompt_tokens\":%zu,\"completion_tokens\":%zu,\"total_tokens\":%zu,"
                "\"prompt_tokens_details\":{\"cached_tokens\":%zu},\"completion_tokens_details\":{"
                "\"reasoning_tokens\":%zu,\"accepted_prediction_tokens\":%zu,\"rejected_prediction_"
                "tokens\":%zu},"
                "\"cartridge_tokens\":%zu}",
                u->prompt_tokens, u->completion_tokens, u->prompt_tokens + u->completion_tokens,
                u->cached_tokens,
                reasoning < u->completion_tokens ? reasoning : u->completion_tokens, u->accepted,
                u->drafted - u->accepted, u->cartridge_rows);
}

static void write_timings(const struct cart_answer *a, struct cart_wire *w)
{
    const struct cart_usage *u = &a->group.usage;
    cart_wire_f(
        w,
        ",\"timings\":{\"queued_seconds\":%.6f,\"prefill_seconds\":%.6f,\"decode_seconds\":%.6f}",
        u->queued, u->prefill, u->decode);
}

static void write_finish(const struct cart_choice *c, struct cart_wire *w)
{
    cart_wire_f(w, c->finish ? ",\"finish_reason\":\"%s\"}" : ",\"finish_reason\":null}",
                c->finish);
}

/* ---- frames ---- */

static void send(struct cart_answer *a)
{
    struct cart_wire *w = &a->frame;
    cart_wire_add(w, "\n\n");
    if (w->r == 0 && a->head.r == 0 && cart_exchange_push(a->group.x, w->b.data, w->b.len))
        cart_wire_reset(w);
    else
        w->r = CART_ESYS;
}

static void open_frame(struct cart_answer *a)
{
    cart_wire_add(&a->frame, "data: ");
    cart_wire_bytes(&a->frame, a->head.b.data, a->head.b.len);
}

static void delta(const struct cart_answer *a, struct cart_choice *c, struct cart_wire *w)
{
    const char *comma = "";
    if (!a->opt.chat) {
        cart_wire_add(w, ",\"text\":");
        cart_wire_string(w, c->content.b.data, c->content.b.len);
        return;
    }
    cart_wire_add(w, ",\"delta\":{");
    if (c->reasoning.b.len) {
        cart_wire_add(w, "\"reasoning_content\":");
        cart_wire_string(w, c->reasoning.b.data, c->reasoning.b.len);
        comma = ",";
    }
    if (c->content.b.len) {
        cart_wire_add(w, comma);
        cart_wire_add(w, "\"content\":");
        cart_wire_string(w, c->content.b.data, c->content.b.len);
        comma = ",";
    }
    if (c->calls.b.len) {
        cart_wire_add(w, comma);
        cart_wire_add(w, "\"tool_calls\":[");
        cart_wire_bytes(w, c->calls.b.data, c->calls.b.len);
        cart_wire_add(w, "]");
    }
    cart_wire_add(w, "}");
}

/* The first chunk of a choice has the role; it also says which cartridges answer. */
static void begin(struct cart_answer *a, size_t i)
{
    struct cart_wire *w = &a->frame;
    a->choices[i].began = true;
    if (!a->opt.chat)
        return;
    open_frame(a);
    cart_wire_add(w, ",\"cartridges\":");
    cart_selection_write(&a->selection, w);
    cart_wire_f(
        w, ",\"choices\":[{\"index\":%zu,\"delta\":{\"role\":\"assistant\",\"content\":\"\"}", i);
    cart_wire_add(w, ",\"logprobs\":null,\"finish_reason\":null}]}");
    send(a);
}

void cart_answer_frame(struct cart_answer *a, size_t i)
{
    struct cart_choice *c = &a->choices[i];
    struct cart_wire *w = &a->frame;
    if (!c->began)
        begin(a, i);
    if (!c->content.b.len && !c->reasoning.b.len && !c->calls.b.len && !c->lp[CART_LP_ENTRY].b.len)
        return;
    open_frame(a);
    cart_wire_f(w, ",\"choices\":[{\"index\":%zu", i);
    delta(a, c, w);
    write_logprobs(a, c, w);
    cart_wire_add(w, ",\"finish_reason\":null}]}");
    send(a);
    cart_buf_reset(&c->content.b);
    cart_buf_reset(&c->reasoning.b);
    cart_buf_reset(&c->calls.b);
    for (size_t k = 0; k < CART_LP_COLUMNS; k++)
        cart_buf_reset(&c->lp[k].b);
}

void cart_answer_finish(struct cart_answer *a, size_t i)
{
    struct cart_choice *c = &a->choices[i];
    struct cart_wire *w = &a->frame;
    if (!a->opt.stream)
        return;
    cart_answer_frame(a, i);
    open_frame(a);
    cart_wire_f(w, ",\"choices\":[{\"index\":%zu,%s,\"logprobs\":null", i,
                a->opt.chat ? "\"delta\":{}" : "\"text\":\"\"");
    write_finish(c, w);
    cart_wire_add(w, "]}");
    send(a);
}

static void end_stream(struct cart_answer *a)
{
    struct cart_wire *w = &a->frame;
    if (a->opt.include_usage) {
        open_frame(a);
        cart_wire_add(w, ",\"choices\":[],\"cartridges\":");
        cart_selection_write(&a->selection, w);
        cart_wire_add(w, ",");
        write_usage(a, w);
        write_timings(a, w);
        cart_wire_add(w, "}");
        send(a);
    }
    cart_wire_add(w, "data: [DONE]");
    send(a);
    cart_exchange_end(a->group.x);
}

/* ---- the whole answer ---- */

static void write_message(const struct cart_choice *c, struct cart_wire *w)
{
    cart_wire_add(w, ",\"message\":{\"role\":\"assistant\",\"content\":");
    if (c->content.b.len == 0 && c->n_calls > 0)
        cart_wire_add(w, "null");
    else
        cart_wire_string(w, c->content.b.data, c->content.b.len);
    cart_wire_add(w, ",\"refusal\":null");
    if (c->reasoning.b.len) {
        cart_wire_add(w, ",\"reasoning_content\":");
        cart_wire_string(w, c->reasoning.b.data, c->reasoning.b.len);
    }
    if (c->calls.b.len) {
        cart_wire_add(w, ",\"tool_calls\":[");
        cart_wire_bytes(w, c->calls.b.data, c->calls.b.len);
        cart_wire_add(w, "]");
    }
    cart_wire_add(w, "}");
}

void cart_answer_done(struct cart_group *b)
{
    struct cart_answer *a = (struct cart_answer *)b;
    struct cart_wire *w = &a->frame;
    if (a->opt.stream) {
        end_stream(a);
        return;
    }
    cart_wire_bytes(w, a->head.b.data, a->head.b.len);
    cart_wire_add(w, ",\"choices\":[");
    for (size_t i = 0; i < a->n_choices; i++) {
        struct cart_choice *c = &a->choices[i];
        cart_wire_f(w, "%s{\"index\":%zu", i ? "," : "", i);
        if (a->opt.chat) {
            write_message(c, w);
        } else {
            cart_wire_add(w, ",\"text\":");
            cart_wire_string(w, c->content.b.data, c->content.b.len);
        }
        write_logprobs(a, c, w);
        write_finish(c, w);
    }
    cart_wire_add(w, "],\"cartridges\":");
    cart_selection_write(&a->selection, w);
    cart_wire_add(w, ",");
    write_usage(a, w);
    write_timings(a, w);
    cart_wire_add(w, "}");
    if (w->r < 0 || a->head.r < 0)
        cart_exchange_error(b->x, 503, "out_of_memory", NULL, "no memory for the answer");
    else
        cart_exchange_reply(b->x, 200, "application/json", &w->b);
}
