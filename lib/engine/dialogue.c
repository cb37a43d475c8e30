#include "engine/dialogue.h"

#include "base/clock.h"
#include "tensor/dtype.h"

#include <stdlib.h>

/* Shared rows are copied where a step behind them is slow enough to tell, and an answer may be long
 * enough to pay for it. */
enum { COPY_ROWS = CART_ATTN_BLOCK, COPY_ANSWER = 16 };
#define COPY_BYTES ((size_t)256 << 20)

struct cart_dialogue {
    struct cart_engine *e;
    const struct cart_model *m;
    const struct cart_chat *chat;
    struct cart_batch *batch;
    struct cart_session session;
    bool session_ready, behind;
    bool copy_tried;
    struct cart_kv_copy *copy; /* of the session's parts, or NULL */
    const struct cart_kv_part *copied[1];
    size_t turns;
    enum cart_finish finish; /* of the answer before */
    uint32_t last;           /* its last id, which has no row yet */
    struct cart_ids prompt;
    struct cart_decoder decoder;
    struct cart_buf text;
    /* The answer under way. */
    cart_dialogue_fn *fn;
    void *ctx;
    double start;
    struct cart_dialogue_answer *out;
};

int cart_dialogue_new(struct cart_dialogue **out, struct cart_engine *e,
                      const struct cart_kv_part *const *parts, size_t n_parts, bool behind,
                      struct cart_err *err)
{
    struct cart_dialogue *d = calloc(1, sizeof *d);
    int r;

    if (d == NULL)
        return cart_err_memory(err, "a dialogue", sizeof *d);
    d->e = e;
    d->m = cart_engine_model(e);
    d->behind = behind;
    if ((r = cart_model_chat(d->m, &d->chat, err)) < 0 ||
        (r = cart_batch_new(&d->batch, e, d->chat, 1, 0, err)) < 0 ||
        (r = cart_session_init(&d->session, d->m, cart_engine_kv(e), parts, n_parts, 64, err)) <
            0) {
        cart_dialogue_free(d);
        return r;
    }
    d->session_ready = true;
    *out = d;
    return 0;
}

void cart_dialogue_free(struct cart_dialogue *d)
{
    if (d == NULL)
        return;
    cart_batch_free(d->batch);
    if (d->session_ready)
        cart_session_release(&d->session);
    cart_kv_copy_free(d->copy);
    cart_ids_release(&d->prompt);
    cart_buf_release(&d->text);
    free(d);
}

/* What the last answer left open, then the user's turn and the opening of the next answer. */
static int make_prompt(struct cart_dialogue *d, const char *text, size_t n, struct cart_err *err)
{
    const struct cart_chat_message m = {.role = "user", .content = text, .n = n};
    const struct cart_chat_options o = {
        .generation_prompt = true, .behind = d->behind || d->turns > 0, .think = CART_THINK_OFF};
    size_t n_close;
    const uint32_t *close = cart_chat_turn_close(d->chat, &n_close);
    int r = 0;

    d->prompt.n = 0;
    if (d->turns > 0) {
        if (d->finish != CART_FINISH_STOP)
            r = cart_ids_push(&d->prompt, d->last, err);
        if (r < 0 || (r = cart_ids_add(&d->prompt, close, n_close, err)) < 0)
            return r;
    }
    return cart_chat_render(d->chat, &m, 1, &o, &d->prompt, NULL, err);
}

static int hand_out(struct cart_dialogue *d, struct cart_err *err)
{
    int r = d->fn != NULL && d->text.len > 0 ? d->fn(d->ctx, d->text.data, d->text.len, err) : 0;

    cart_buf_reset(&d->text);
    return r;
}

static int on_token(void *ctx, const uint32_t *ids, size_t n, struct cart_err *err)
{
    struct cart_dialogue *d = ctx;
    uint32_t id = ids[n - 1];
    int r;

    if (d->out->tokens++ == 0)
        d->out->first = cart_clock_now() - d->start;
    d->last = id;
    if (cart_chat_is_stop(d->chat, id))
        return 0;
    r = cart_decoder_push(&d->decoder, id, &d->text, err);
    return r < 0 ? r : hand_out(d, err);
}

static int on_done(void *ctx, const struct cart_generation *g, struct cart_err *err)
{
    struct cart_dialogue *d = ctx;

    if (g->finish == CART_FINISH_NOT_FINITE)
        return cart_err_set(err, CART_EFORMAT, "turn %zu: the logits are not finite", d->turns + 1);
    d->out->finish = d->finish = g->finish;
    return 0;
}

static bool copy_pays(const struct cart_dialogue *d)
{
    const struct cart_session *s = &d->session;
    size_t rows = 0, bytes = 0;

    for (size_t i = 0; i < s->n_parts; i++) {
        if (s->parts[i]->blocked || s->parts[i]->dtype != s->parts[0]->dtype)
            return false;
        rows += s->parts[i]->rows;
        bytes += cart_kv_part_bytes(d->m, s->parts[i]);
    }
    return rows >= COPY_ROWS && bytes <= COPY_BYTES;
}

/* Once. Without memory for it all stays as it is. */
static void copy_parts(struct cart_dialogue *d)
{
    struct cart_session *s = &d->session;
    struct cart_err err;

    if (d->copy_tried)
        return;
    d->copy_tried = true;
    if (!copy_pays(d) ||
        cart_kv_copy_new(&d->copy, d->m, s->parts, s->n_parts, cart_engine_pool(d->e), &err) < 0)
        return;
    d->copied[0] = &d->copy->part;
    s->parts = d->copied;
    s->n_parts = 1;
}

int cart_dialogue_ask(struct cart_dialogue *d, const char *text, size_t n,
                      const struct cart_sampling *sampling, size_t max_tokens, cart_dialogue_fn *fn,
                      void *ctx, struct cart_dialogue_answer *out, struct cart_err *err)
{
    int r = make_prompt(d, text, n, err);

    if (r < 0)
        return r;
    *out = (struct cart_dialogue_answer){.prompt = d->prompt.n};
    d->fn = fn;
    d->ctx = ctx;
    d->out = out;
    d->start = cart_clock_now();
    cart_decoder_init(&d->decoder, cart_model_tokenizer(d->m), false);
    struct cart_request req = {.session = &d->session,
                               .prompt = d->prompt.data,
                               .n_prompt = d->prompt.n,
                               .max_tokens = max_tokens,
                               .sampling = *sampling,
                               .on_token = on_token,
                               .on_done = on_done,
                               .ctx = d};
    req.sampling.n = d->turns;
    if ((r = cart_batch_add(d->batch, &req, err)) < 0)
        return r;
    while (cart_batch_active(d->batch) > 0) {
        if ((r = cart_batch_step(d->batch, err)) < 0)
            return r;
        if (out->tokens > 0 && max_tokens >= COPY_ANSWER && cart_batch_active(d->batch) > 0)
            copy_parts(d);
    }
    if ((r = cart_decoder_finish(&d->decoder, &d->text, err)) < 0 || (r = hand_out(d, err)) < 0)
        return r;
    d->turns++;
    out->seconds = cart_clock_now() - d->start;
    out->rows = cart_session_rows(&d->session);
    for (size_t i = 0; i < d->session.n_parts; i++)
        out->kv_bytes += cart_kv_part_bytes(d->m, d->session.parts[i]);
    const struct cart_kv_part own = {.rows = d->session.tail.rows, .dtype = d->session.tail.dtype};
    out->kv_bytes += cart_kv_part_bytes(d->m, &own);
    return 0;
}
