#include "engine/batch.h"

#include "engine/draft.h"
#include "model/head.h"
#include "tensor/ops.h"
#include "token/chat.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

struct slot {
    bool active;
    struct cart_request req;
    uint32_t *ids; /* [n_prompt + max_tokens]: prompt, then what was sampled */
    size_t ids_cap;
    size_t n_prompt, max_tokens;
    size_t fed;     /* of ids, how many have rows */
    size_t sampled; /* tokens after the prompt */
    /* Of this step. */
    size_t row;     /* its first row of logits */
    size_t n_guess; /* ids behind those it has, fed as guesses */
};

/* What became of a row of logits. */
struct pick {
    size_t slot;
    uint32_t index; /* of the token in its stream */
    uint32_t id;
    bool finite;
};

struct cart_batch {
    struct cart_engine *e;
    const struct cart_chat *stop;
    struct slot *slots;
    size_t n_slots, active, ahead;
    size_t first;                          /* slot whose prompt comes first in the next step */
    struct cart_span *spans;               /* [n_slots] */
    size_t *wants;                         /* [n_slots]: the last row of a prompt */
    struct pick *picks;                    /* [rows], rows = n_slots * (1 + ahead) */
    float *hidden, *logits;                /* [rows, D], [rows, V] */
    struct cart_sampler_scratch **scratch; /* [threads], made when first needed */
    size_t threads;
    size_t prefilled, decoded, guessed, right;
};

size_t cart_batch_bytes(const struct cart_model *m, size_t slots, size_t ahead)
{
    return slots * (1 + ahead) * (m->D + m->V) * sizeof(float);
}

int cart_batch_new(struct cart_batch **out, struct cart_engine *e, const struct cart_chat *stop,
                   size_t slots, size_t ahead, struct cart_err *err)
{
    const struct cart_model *m = cart_engine_model(e);
    struct cart_batch *b = calloc(1, sizeof *b);
    size_t rows = slots * (1 + ahead);

    assert(slots > 0 && ahead <= CART_DRAFT_MAX);
    if (b == NULL)
        return cart_err_memory(err, "a batch", sizeof *b);
    b->e = e;
    b->stop = stop;
    b->n_slots = slots;
    b->ahead = ahead;
    b->threads = cart_pool_threads(cart_engine_pool(e));
    b->slots = calloc(slots, sizeof *b->slots);
    b->spans = calloc(slots, sizeof *b->spans);
    b->wants = calloc(slots, sizeof *b->wants);
    b->picks = calloc(rows, sizeof *b->picks);
    b->hidden = calloc(rows, m->D * sizeof *b->hidden);
    b->logits = calloc(rows, m->V * sizeof *b->logits);
    b->scratch = calloc(b->threads, sizeof(struct cart_sampler_scratch *));
    if (b->slots == NULL || b->spans == NULL || b->wants == NULL || b->picks == NULL ||
        b->hidden == NULL || b->logits == NULL || b->scratch == NULL) {
        cart_batch_free(b);
        return cart_err_memory(err, "a batch", cart_batch_bytes(m, slots, ahead));
    }
    *out = b;
    return 0;
}

void cart_batch_free(struct cart_batch *b)
{
    if (b == NULL)
        return;
    for (size_t i = 0; b->slots != NULL && i < b->n_slots; i++)
        free(b->slots[i].ids);
    for (size_t i = 0; b->scratch != NULL && i < b->threads; i++)
        cart_sampler_scratch_free(b->scratch[i]);
    free(b->slots);
    free(b->spans);
    free(b->wants);
    free(b->picks);
    free(b->hidden);
    free(b->logits);
    free(b->scratch);
    free(b);
}

size_t cart_batch_active(const struct cart_batch *b)
{
    return b->active;
}

size_t cart_batch_prefilled(const struct cart_batch *b)
{
    return b->prefilled;
}

size_t cart_batch_decoded(const struct cart_batch *b)
{
    return b->decoded;
}

size_t cart_batch_guessed(const struct cart_batch *b)
{
    return b->guessed;
}

size_t cart_batch_right(const struct cart_batch *b)
{
    return b->right;
}

/* One scratch for each worker, made with the first request that samples: greedy streams need none.
 */
static int make_scratch(struct cart_batch *b, struct cart_err *err)
{
    for (size_t i = 0; i < b->threads; i++) {
        int r = 0;
        if (b->scratch[i] == NULL)
            r = cart_sampler_scratch_new(&b->scratch[i], cart_engine_model(b->e)->V, err);
        if (r < 0)
            return r;
    }
    return 0;
}

int cart_batch_add(struct cart_batch *b, const struct cart_request *req, struct cart_err *err)
{
    const struct cart_model *m = cart_engine_model(b->e);
    size_t rows = cart_session_rows(req->session);
    struct slot *s = NULL;
    int r;

    assert(req->n_prompt > 0 && req->max_tokens > 0);
    for (size_t i = 0; i < b->n_slots && s == NULL; i++)
        s = b->slots[i].active ? NULL : &b->slots[i];
    if (s == NULL)
        return cart_err_set(err, CART_EAGAIN, "all %zu streams of the batch are busy", b->n_slots);
    if (rows >= m->context || req->n_prompt >= m->context - rows)
        return cart_err_set(
            err, CART_EUSAGE,
            "a prompt of %zu tokens behind %zu rows leaves no room in the model's context of %zu",
            req->n_prompt, rows, m->context);
    if (req->sampling.temperature > 0 && (r = make_scratch(b, err)) < 0)
        return r;
    size_t room = m->context - rows - req->n_prompt;
    size_t max_tokens = req->max_tokens < room ? req->max_tokens : room;
    r = cart_array_reserve(&s->ids, &s->ids_cap, req->n_prompt + max_tokens, sizeof *s->ids, err);
    if (r < 0 || (r = cart_session_reserve(req->session, m, req->n_prompt + max_tokens, err)) < 0)
        return r;
    memcpy(s->ids, req->prompt, req->n_prompt * sizeof *s->ids);
    s->req = *req;
    s->req.prompt = NULL;
    s->n_prompt = req->n_prompt;
    s->max_tokens = max_tokens;
    s->fed = s->sampled = 0;
    s->active = true;
    b->active++;
    return 0;
}

/* ---- a step ---- */

/* Puts guesses behind the ids of a decoding stream and returns how many: never more than tokens
 * agreed before them, so that a chance likeness costs little. */
static size_t guess(const struct cart_batch *b, struct slot *s)
{
    size_t have = s->n_prompt + s->sampled;
    size_t left = s->max_tokens - s->sampled - 1;
    size_t matched = 0;

    if (s->req.draft == NULL)
        return 0;
    size_t n = cart_draft_find(s->req.draft, s->ids, have, left < b->ahead ? left : b->ahead,
                               s->ids + have, &matched);
    return n < matched ? n : matched;
}

/* T ids of a slot join the step. Logits are wanted of a prompt's last token, and of all that a
 * decoding stream feeds. */
static void plan_slot(struct cart_batch *b, size_t index, size_t T, size_t *n_spans, size_t *n_rows)
{
    struct slot *s = &b->slots[index];
    bool decoding = s->fed >= s->n_prompt;
    size_t n = decoding ? T : s->fed + T == s->n_prompt;

    b->wants[*n_spans] = T - 1;
    b->spans[*n_spans] = (struct cart_span){s->ids + s->fed, T, cart_session_kv(s->req.session),
                                            decoding ? NULL : &b->wants[*n_spans], n};
    s->row = *n_rows;
    for (size_t i = 0; i < n; i++)
        b->picks[(*n_rows)++] = (struct pick){.slot = index, .index = (uint32_t)(s->sampled + i)};
    s->fed += T;
    (*n_spans)++;
}

/* Decoding streams first, then prompts from slot `first` on while tokens are left. */
static size_t plan(struct cart_batch *b, size_t *n_rows)
{
    size_t left = CART_ENGINE_PIECE;
    size_t n = 0;

    for (size_t i = 0; i < b->n_slots; i++) {
        struct slot *s = &b->slots[i];
        if (!s->active || s->fed < s->n_prompt)
            continue;
        s->n_guess = guess(b, s);
        b->guessed += s->n_guess;
        plan_slot(b, i, 1 + s->n_guess, &n, n_rows);
        left -= left > s->n_guess ? 1 + s->n_guess : left;
    }
    size_t resume = b->first;
    for (size_t k = 0; k < b->n_slots && (left > 0 || n == 0); k++) {
        size_t i = (b->first + k) % b->n_slots;
        struct slot *s = &b->slots[i];
        if (!s->active || s->fed >= s->n_prompt)
            continue;
        size_t T = s->n_prompt - s->fed < left ? s->n_prompt - s->fed : left;
        s->n_guess = 0;
        plan_slot(b, i, T, &n, n_rows);
        b->prefilled += T;
        left -= T;
        resume = s->fed < s->n_prompt ? i : (i + 1) % b->n_slots;
    }
    b->first = resume;
    return n;
}

static void sample_row(void *ctx, size_t unit, size_t worker)
{
    struct cart_batch *b = ctx;
    struct pick *p = &b->picks[unit];
    size_t V = cart_engine_model(b->e)->V;
    const float *logits = b->logits + unit * V;

    p->finite = cart_all_finite(logits, V);
    if (p->finite)
        p->id = cart_sampler_pick(&b->slots[p->slot].req.sampling, logits, V, p->index,
                                  b->scratch[worker]);
}

static int finish(struct cart_batch *b, struct slot *s, enum cart_finish why, struct cart_err *err)
{
    const struct cart_generation g = {s->ids + s->n_prompt, s->sampled, why};
    uint32_t *ids = s->ids;
    size_t cap = s->ids_cap;
    int r = 0;

    /* The callback may add a request into this very slot, so its ids are taken out of it first. */
    s->active = false;
    s->ids = NULL;
    s->ids_cap = 0;
    b->active--;
    if (s->req.on_done != NULL)
        r = s->req.on_done(s->req.ctx, &g, err);
    if (s->ids == NULL) {
        s->ids = ids;
        s->ids_cap = cap;
    } else {
        free(ids);
    }
    return r;
}

/* The stream gets the token of a pick. 1: it goes on. */
static int accept(struct cart_batch *b, struct slot *s, const struct pick *p, struct cart_err *err)
{
    int r = 0;

    if (!p->finite)
        return finish(b, s, CART_FINISH_NOT_FINITE, err);
    s->ids[s->n_prompt + s->sampled++] = p->id;
    if (s->req.on_token != NULL &&
        (r = s->req.on_token(s->req.ctx, s->ids + s->n_prompt, s->sampled, err)) < 0)
        return r;
    if (cart_chat_is_stop(b->stop, p->id))
        return finish(b, s, CART_FINISH_STOP, err);
    if (r > 0)
        return finish(b, s, CART_FINISH_ENDED, err);
    if (s->sampled == s->max_tokens)
        return finish(b, s, CART_FINISH_LENGTH, err);
    return 1;
}

/* Takes the picks of a stream for as long as its guesses are right. What a wrong guess left is
 * given back before anybody is told: the rows in the session are those of ids that stay. */
static int take(struct cart_batch *b, struct slot *s, struct cart_err *err)
{
    struct cart_kv_tail *tail = &s->req.session->tail;
    size_t n = s->n_guess, row = s->row;
    size_t have = s->n_prompt + s->sampled;
    int r = 1;

    tail->rows -= n;
    s->fed -= n;
    for (size_t i = 0; r == 1; i++) {
        uint32_t guessed = i < n ? s->ids[have + i] : 0;
        const struct pick *p = &b->picks[row + i];
        r = accept(b, s, p, err);
        b->decoded += p->index > 0;
        b->right += i < n && p->finite && p->id == guessed;
        if (i >= n || p->id != guessed)
            break;
        if (r == 1) {
            tail->rows++;
            s->fed++;
        }
    }
    return r < 0 ? r : 0;
}

int cart_batch_step(struct cart_batch *b, struct cart_err *err)
{
    const struct cart_model *m = cart_engine_model(b->e);
    struct cart_pool *pool = cart_engine_pool(b->e);
    size_t n_rows = 0;
    size_t n = plan(b, &n_rows);
    int r;

    if (n == 0)
        return 0;
    if ((r = cart_engine_forward(b->e, b->spans, n, b->hidden, err)) < 0)
        return r;
    if (n_rows == 0)
        return 0;
    cart_head_logits(m, b->hidden, n_rows, b->logits, pool);
    cart_pool_run(pool, n_rows, sample_row, b);
    for (size_t i = 0, next; i < n_rows; i = next) {
        struct slot *s = &b->slots[b->picks[i].slot];
        next = i + 1 + s->n_guess;
        if ((r = take(b, s, err)) < 0)
            return r;
    }
    return 0;
}
