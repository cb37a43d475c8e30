/* One step of the scheduler: every stream that decodes gets at least one token, prompts go on as
 * far as a piece of tokens allows, drafts ride along where rows are cheap. Which streams share a
 * step, and how prompts are cut, is decided here and shows in no answer. */
#include "serve/scheduler_impl.h"

#include "base/clock.h"
#include "model/head.h"
#include "tensor/ops.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define WORTH_WAITING                                                                              \
    ((size_t)16) /* tokens of a common prompt that another stream is about to compute */
#define DRAFT_WINDOW ((size_t)24) /* drafts after which a stream's luck is judged */
#define DRAFT_PAUSE ((size_t)48)  /* tokens without drafts where fewer than a third were right */

/* ---- what goes into the step ---- */

static bool in_prompt(const struct slot *slot)
{
    return slot->lane.rows < slot->n_prompt;
}

/* Every row of its prompt is wanted, so none may come from a cache. */
static bool scores_prompt(const struct slot *slot)
{
    return slot->job->req.prompt_logprobs && slot->choice == 0;
}

static size_t common(const uint32_t *a, const uint32_t *b, size_t n)
{
    size_t i = 0;

    while (i < n && a[i] == b[i])
        i++;
    return i;
}

/* Streams that share rows stand side by side, so that the attention reads these once; one with
 * fewer of them before those that go on from there. */
static int by_rows(const void *a, const void *b)
{
    const struct slot *x = *(const struct slot *const *)a;
    const struct slot *y = *(const struct slot *const *)b;
    uintptr_t p = (uintptr_t)x->lane.root;
    uintptr_t q = (uintptr_t)y->lane.root;

    for (size_t i = 0; p == q && i < x->lane.n_nodes && i < y->lane.n_nodes; i++) {
        p = (uintptr_t)x->lane.nodes[i];
        q = (uintptr_t)y->lane.nodes[i];
    }
    if (p != q)
        return p > q ? 1 : -1;
    if (x->lane.n_nodes != y->lane.n_nodes)
        return x->lane.n_nodes > y->lane.n_nodes ? 1 : -1;
    return (x > y) - (x < y);
}

static size_t collect(struct cart_scheduler *s, bool prompts)
{
    size_t n = 0;

    for (size_t i = 0; i < s->opt.slots; i++) {
        if (s->slots[i].job != NULL && in_prompt(&s->slots[i]) == prompts)
            s->order[n++] = &s->slots[i];
    }
    return n;
}

/* The longest of what the stream's own text and its cartridges propose, behind what it has. */
static size_t draft(struct cart_scheduler *s, struct slot *slot, size_t most)
{
    const struct cart_stack *stack = slot->job->req.stack;
    size_t have = slot->n_prompt + slot->sampled;
    size_t left = slot->max_tokens - slot->sampled - 1;
    size_t room = cart_lane_room(&slot->lane) - 1;
    uint32_t guess[CART_DRAFT_MAX];
    size_t best = 0;
    size_t n = 0;

    most = most < left ? most : left;
    most = most < room ? most : room;
    most = most < s->opt.draft_max ? most : s->opt.draft_max;
    if (slot->draft == NULL || slot->pause > 0 || most == 0)
        return 0;
    for (size_t i = 0; i <= (stack != NULL ? stack->n : 0); i++) {
        const struct cart_draft *d = i == 0 ? slot->draft : stack->entries[i - 1].draft;
        size_t matched = 0;
        size_t got = d != NULL ? cart_draft_find(d, slot->ids, have, most, guess, &matched) : 0;
        if (matched > best) {
            best = matched;
            n = got < matched ? got : matched;
            memcpy(slot->ids + have, guess, n * sizeof *guess);
        }
    }
    return n;
}

static void add_span(struct cart_scheduler *s, struct slot *slot, size_t T, size_t *n,
                     size_t *hidden)
{
    struct cart_span *span = &s->spans[*n];

    slot->hidden = *hidden;
    slot->T = cart_lane_begin(&slot->lane, T, &span->kv);
    span->ids = slot->ids + slot->lane.rows;
    span->T = slot->T;
    slot->all_rows = !in_prompt(slot) || scores_prompt(slot);
    s->wants[*n] = slot->T - 1;
    span->want = slot->all_rows ? NULL : &s->wants[*n];
    span->n_want = slot->all_rows ? slot->T : slot->lane.rows + slot->T == slot->n_prompt;
    *hidden += span->n_want;
    (*n)++;
}

static void plan_answers(struct cart_scheduler *s, size_t *n, size_t *hidden)
{
    size_t count = collect(s, false);
    size_t extra = s->R - s->opt.slots; /* rows for drafts */

    qsort(s->order, count, sizeof(struct slot *), by_rows);
    for (size_t i = 0; i < count; i++) {
        struct slot *slot = s->order[i];
        slot->n_draft = draft(s, slot, extra);
        extra -= slot->n_draft;
        add_span(s, slot, 1 + slot->n_draft, n, hidden);
    }
}

/* Whether an earlier stream of those going on computes what this one needs next. */
static bool better_wait(const struct slot *slot, struct slot *const *going, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        const struct slot *o = going[i];
        if (o->lane.root != slot->lane.root)
            continue;
        size_t most = o->n_prompt < slot->n_prompt ? o->n_prompt : slot->n_prompt - 1;
        size_t shared = common(o->ids, slot->ids, most);
        if (shared > o->lane.rows && shared >= slot->lane.rows + WORTH_WAITING)
            return true;
    }
    return false;
}

static int by_age(const void *a, const void *b)
{
    const struct slot *x = *(const struct slot *const *)a;
    const struct slot *y = *(const struct slot *const *)b;

    if (x->job->id != y->job->id)
        return x->job->id < y->job->id ? -1 : 1;
    return (x->choice > y->choice) - (x->choice < y->choice);
}

static size_t remaining(const struct slot *slot)
{
    return slot->n_prompt - slot->lane.rows;
}

static int by_remaining(const void *a, const void *b)
{
    const struct slot *x = *(const struct slot *const *)a;
    const struct slot *y = *(const struct slot *const *)b;

    if (remaining(x) != remaining(y))
        return remaining(x) < remaining(y) ? -1 : 1;
    return by_age(a, b);
}

/* A piece of prompt tokens for one step: a quarter is the oldest stream's, so that it ends some
 * day; then the shortest go first, so that a short question never waits for a long one; what is
 * left is the oldest's again. T of slot order[i] is tokens[i]. */
static void share_piece(struct cart_scheduler *s, size_t n)
{
    const struct slot *oldest = s->order[0];
    size_t left = s->opt.piece;
    size_t first = left / 4 > 0 ? left / 4 : 1;

    first = first < remaining(oldest) ? first : remaining(oldest);
    left -= first;
    qsort(s->order, n, sizeof(struct slot *), by_remaining);
    size_t at = 0;
    for (size_t i = 0; i < n; i++) {
        if (s->order[i] == oldest) {
            at = i;
            s->tokens[i] = first;
            continue;
        }
        s->tokens[i] = remaining(s->order[i]) < left ? remaining(s->order[i]) : left;
        left -= s->tokens[i];
    }
    size_t more = remaining(oldest) - first;
    s->tokens[at] += more < left ? more : left;
}

/* Choice 0 scores the prompt for all choices, and no token comes before the prompt's: the others
 * wait until it is through. */
static bool awaits_scores(const struct cart_scheduler *s, const struct slot *slot)
{
    if (!slot->job->req.prompt_logprobs || slot->choice == 0)
        return false;
    for (size_t i = 0; i < s->opt.slots; i++) {
        const struct slot *o = &s->slots[i];
        if (o->job == slot->job && o->choice == 0 && in_prompt(o))
            return true;
    }
    return false;
}

static void plan_prompts(struct cart_scheduler *s, size_t *n, size_t *hidden)
{
    size_t count = collect(s, true);
    size_t going = 0;

    qsort(s->order, count, sizeof(struct slot *), by_age);
    for (size_t i = 0; i < count; i++) {
        struct slot *slot = s->order[i];
        struct job *j = slot->job;
        if (awaits_scores(s, slot))
            continue;
        if (!scores_prompt(slot)) {
            size_t found = cart_lane_catch_up(&slot->lane, slot->ids, slot->n_prompt - 1);
            if (slot->choice == 0) {
                j->usage.cached_tokens += found;
                s->counts.cached_tokens += found;
            }
            if (better_wait(slot, s->order, going))
                continue;
        }
        s->order[going++] = slot;
    }
    if (going == 0)
        return;
    share_piece(s, going);
    /* The longest piece comes first: the tail that takes more than a page is there once. */
    for (size_t i = going; i > 0; i--) {
        size_t longest = 0;
        for (size_t k = 1; k < going; k++) {
            if (s->tokens[k] > s->tokens[longest])
                longest = k;
        }
        if (s->tokens[longest] > 0)
            add_span(s, s->order[longest], s->tokens[longest], n, hidden);
        s->tokens[longest] = 0;
    }
}

/* ---- prompts: scores and embeddings ---- */

static void send(const struct slot *slot, struct cart_event e)
{
    const struct job *j = slot->job;

    e.request = j->id;
    e.choice = slot->choice;
    if (j->req.on_event != NULL)
        (void)j->req.on_event(j->req.ctx, &e);
}

/* Fills the alternatives of a row of logits. */
static size_t list_top(struct cart_scheduler *s, size_t row, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        size_t at = row * CART_SERVE_TOP_MAX + i;
        s->top[i] = (struct cart_logprob){
            s->top_ids[at], (float)cart_vocab_logprob(s->top_values[at], &s->sums[row])};
    }
    return n;
}

/* Softmax statistics and the best tokens of rows [0, n) of the logits. */
static void rank_rows(struct cart_scheduler *s, size_t n)
{
    size_t V = s->m->V;
    size_t k = CART_SERVE_TOP_MAX < V ? CART_SERVE_TOP_MAX : V;

    cart_vocab_logsum(s->sums, s->logits, V, n, V, s->pool);
    for (size_t i = 0; i < n; i++)
        cart_vocab_topk(s->top_ids + i * CART_SERVE_TOP_MAX, s->top_values + i * CART_SERVE_TOP_MAX,
                        k, s->logits + i * V, V, 1, V, s->pool);
}

static void send_prompt_token(struct cart_scheduler *s, const struct slot *slot, size_t index,
                              bool scored, size_t row)
{
    uint32_t id = slot->ids[index];
    struct cart_event e = {
        .type = CART_EVENT_PROMPT,
        .id = id,
        .bytes = cart_tokenizer_bytes(s->t, id),
        .control = cart_tokenizer_is_control(s->t, id),
        .has_logprob = scored,
    };
    size_t want = slot->job->req.top_logprobs;

    if (scored) {
        e.logprob = (float)cart_vocab_logprob(s->logits[row * s->m->V + id], &s->sums[row]);
        e.top = s->top;
        e.n_top = list_top(s, row, want < s->m->V ? want : s->m->V);
    }
    send(slot, e);
}

/* Scores of the prompt tokens that follow the rows of this step. */
static void score_prompt(struct cart_scheduler *s, struct slot *slot, size_t before)
{
    size_t rows = slot->n_prompt - 1 - before < slot->T ? slot->n_prompt - 1 - before : slot->T;
    size_t V = s->m->V;

    if (before == 0)
        send_prompt_token(s, slot, 0, false, 0);
    for (size_t r0 = 0; r0 < rows; r0 += s->R) {
        size_t n = rows - r0 < s->R ? rows - r0 : s->R;
        cart_head_logits(s->m, s->hidden + (slot->hidden + r0) * s->m->D, n, s->logits, s->pool);
        rank_rows(s, n);
        for (size_t i = 0; i < n; i++)
            send_prompt_token(s, slot, before + r0 + i + 1, cart_all_finite(s->logits + i * V, V),
                              i);
    }
}

static void embed(struct cart_scheduler *s, struct slot *slot)
{
    float *x = s->hidden + slot->hidden * s->m->D;
    size_t D = s->m->D;
    double sum = 0;

    if (!cart_all_finite(x, D)) {
        cart_scheduler_finish(s, slot, CART_SERVE_NOT_FINITE, NULL);
        return;
    }
    for (size_t i = 0; i < D; i++)
        sum += (double)x[i] * (double)x[i];
    double scale = sum > 0 ? 1 / sqrt(sum) : 0;
    for (size_t i = 0; i < D; i++)
        x[i] = (float)((double)x[i] * scale);
    s->counts.embeddings++;
    send(slot, (struct cart_event){.type = CART_EVENT_EMBEDDING, .embedding = x, .D = D});
    cart_scheduler_finish(s, slot, CART_SERVE_STOP, NULL);
}

/* ---- sampling ---- */

static void end(struct outcome *out, enum cart_serve_finish why)
{
    out->ended = true;
    out->finish = why;
}

/* What the constraint forbids becomes impossible. false: the stream ends instead (out says how). */
static bool constrain(const struct cart_scheduler *s, struct slot *slot, float *row)
{
    const uint64_t *mask = NULL;
    bool complete = false;
    bool any = false;
    size_t V = s->m->V;

    if (cart_constraint_mask(slot->constraint, slot->state, &mask, &complete, &slot->out.err) < 0) {
        end(&slot->out, CART_SERVE_FAILED);
        return false;
    }
    for (size_t i = 0; i < V; i++) {
        bool allowed = mask[i / 64] >> (i % 64) & 1;
        if (!allowed && complete)
            allowed = cart_scheduler_is_stop(s, slot->job, (uint32_t)i);
        any |= allowed;
        if (!allowed)
            row[i] = -INFINITY;
    }
    if (!any)
        end(&slot->out, complete ? CART_SERVE_STOP : CART_SERVE_DEAD_END);
    return any;
}

/* One token from one row. false: the stream has ended without it. */
static bool sample(const struct cart_scheduler *s, struct slot *slot, size_t row, size_t worker,
                   uint32_t *id)
{
    const struct cart_serve_request *q = &slot->job->req;
    const struct cart_sampling how = {q->temperature, q->top_k,     q->top_p,    q->min_p,
                                      q->seed,        slot->choice, CART_RNG_ASK};
    size_t V = s->m->V;
    const float *logits = s->logits + row * V;
    uint32_t index = (uint32_t)(slot->sampled + slot->out.n);

    if (!cart_all_finite(logits, V)) {
        end(&slot->out, CART_SERVE_NOT_FINITE);
        return false;
    }
    if (cart_adjust_any(&q->adjust) || slot->constraint != NULL) {
        float *copy = s->scratch + worker * V;
        memcpy(copy, logits, V * sizeof *copy);
        cart_adjust_logits(&q->adjust, slot->tally, copy, V);
        if (slot->constraint != NULL && !constrain(s, slot, copy))
            return false;
        logits = copy;
    }
    *id = cart_sampler_pick(&how, logits, V, index, s->samplers[worker]);
    return true;
}

/* Does a sampled token end its stream? */
static void judge(const struct cart_scheduler *s, struct slot *slot, uint32_t id)
{
    struct outcome *out = &slot->out;

    if (cart_scheduler_is_stop(s, slot->job, id)) {
        end(out, CART_SERVE_STOP);
        out->silent = true;
        return;
    }
    if (slot->constraint != NULL) {
        if (cart_constraint_advance(slot->constraint, slot->state, id, &slot->state, &out->err) <
            0) {
            end(out, CART_SERVE_FAILED);
            return;
        }
        if (cart_constraint_finished(slot->constraint, slot->state)) {
            end(out, CART_SERVE_STOP);
            return;
        }
    }
    if (slot->sampled + out->n == slot->max_tokens)
        end(out, CART_SERVE_LENGTH);
}

/* Row after row as long as the token that a row gives is the one that was drafted: exactly the
 * tokens that single steps would have given. */
static void sample_slot(const struct cart_scheduler *s, struct slot *slot, size_t worker)
{
    struct outcome *out = &slot->out;
    const uint32_t *drafted = slot->ids + slot->n_prompt + slot->sampled;

    for (size_t i = 0; i < slot->n_rows && !out->ended; i++) {
        uint32_t id;
        if (!sample(s, slot, slot->row + i, worker, &id))
            return;
        out->ids[out->n++] = id;
        if (slot->tally != NULL)
            cart_tally_push(slot->tally, id);
        judge(s, slot, id);
        if (i + 1 < slot->n_rows && drafted[i] != id)
            return;
    }
}

static void sample_unit(void *ctx, size_t unit, size_t worker)
{
    struct cart_scheduler *s = ctx;
    struct slot *slot = &s->slots[unit];

    if (slot->n_rows > 0)
        sample_slot(s, slot, worker);
}

/* Copies the hidden rows that are sampled from next to each other; returns their number. */
static size_t pick_rows(struct cart_scheduler *s)
{
    size_t n = 0;
    size_t D = s->m->D;

    for (size_t i = 0; i < s->opt.slots; i++) {
        struct slot *slot = &s->slots[i];
        slot->n_rows = 0;
        memset(&slot->out, 0, sizeof slot->out);
        if (slot->job == NULL || slot->T == 0 || slot->max_tokens == 0)
            continue;
        bool answering = !in_prompt(slot);
        if (!answering && slot->lane.rows + slot->T < slot->n_prompt)
            continue;
        size_t from = slot->all_rows && !answering ? slot->hidden + slot->T - 1 : slot->hidden;
        slot->row = n;
        slot->n_rows = answering ? slot->T : 1;
        memcpy(s->picked + n * D, s->hidden + from * D, slot->n_rows * D * sizeof *s->picked);
        n += slot->n_rows;
    }
    return n;
}

static bool wants_logprobs(const struct cart_scheduler *s)
{
    for (size_t i = 0; i < s->opt.slots; i++) {
        if (s->slots[i].n_rows > 0 && s->slots[i].job->req.logprobs)
            return true;
    }
    return false;
}

static void sample_all(struct cart_scheduler *s)
{
    size_t n = pick_rows(s);

    if (n == 0)
        return;
    cart_head_logits(s->m, s->picked, n, s->logits, s->pool);
    if (wants_logprobs(s))
        rank_rows(s, n);
    cart_pool_run(s->pool, s->opt.slots, sample_unit, s);
}

/* ---- what comes out ---- */

static void count_drafts(struct cart_scheduler *s, struct slot *slot)
{
    size_t right = slot->out.n > 0 ? slot->out.n - 1 : 0;
    struct cart_usage *u = &slot->job->usage;

    slot->pause -= slot->pause < slot->out.n ? slot->pause : slot->out.n;
    if (slot->n_draft == 0)
        return;
    u->drafted += slot->n_draft;
    u->accepted += right;
    s->counts.drafted += slot->n_draft;
    s->counts.draft_accepted += right;
    s->counts.draft_steps++;
    slot->drafted += slot->n_draft;
    slot->accepted += right;
    if (slot->drafted >= DRAFT_WINDOW) {
        if (3 * slot->accepted < slot->drafted)
            slot->pause = DRAFT_PAUSE;
        slot->drafted = slot->accepted = 0;
    }
}

static bool send_token(struct cart_scheduler *s, const struct slot *slot, size_t i)
{
    const struct job *j = slot->job;
    uint32_t id = slot->out.ids[i];
    struct cart_event e = {
        .type = CART_EVENT_TOKEN,
        .request = j->id,
        .choice = slot->choice,
        .id = id,
        .bytes = cart_tokenizer_bytes(s->t, id),
        .control = cart_tokenizer_is_control(s->t, id),
    };

    if (j->req.logprobs) {
        size_t row = slot->row + i;
        size_t want = j->req.top_logprobs;
        e.has_logprob = true;
        e.logprob = (float)cart_vocab_logprob(s->logits[row * s->m->V + id], &s->sums[row]);
        e.top = s->top;
        e.n_top = list_top(s, row, want < s->m->V ? want : s->m->V);
    }
    return j->req.on_event == NULL || j->req.on_event(j->req.ctx, &e);
}

/* Tokens become the stream's; false where memory for its index failed, which only ends speculation.
 */
static void take_tokens(struct cart_scheduler *s, struct slot *slot)
{
    struct outcome *out = &slot->out;
    struct job *j = slot->job;

    memcpy(slot->ids + slot->n_prompt + slot->sampled, out->ids, out->n * sizeof *out->ids);
    slot->sampled += out->n;
    j->usage.completion_tokens += out->n;
    s->counts.generated_tokens += out->n;
    if (slot->draft != NULL && cart_draft_add(slot->draft, out->ids, out->n, NULL) < 0) {
        cart_draft_free(slot->draft);
        slot->draft = NULL;
    }
    if (j->first_token == 0 && out->n > 0) {
        j->first_token = cart_clock_now();
        j->usage.prefill = j->first_token - j->opened;
    }
}

static void deliver(struct cart_scheduler *s, struct slot *slot)
{
    const struct outcome out = slot->out;
    size_t shown = out.silent ? out.n - 1 : out.n;

    count_drafts(s, slot);
    take_tokens(s, slot);
    for (size_t i = 0; i < shown; i++) {
        if (!send_token(s, slot, i)) {
            cart_scheduler_finish(s, slot, CART_SERVE_CALLER, NULL);
            return;
        }
    }
    if (out.ended)
        cart_scheduler_finish(s, slot, out.finish, &out.err);
}

/* The rows of this step are the lane's: all of a prompt's piece, and of an answer those of tokens
 * that stay. */
static void keep_rows(struct cart_scheduler *s, struct slot *slot)
{
    size_t keep = slot->T;

    if (in_prompt(slot))
        s->counts.prefilled_tokens += slot->T;
    else
        keep = slot->out.n > 0 ? slot->out.n : 1;
    keep = keep < slot->T ? keep : slot->T;
    cart_lane_append(&slot->lane, slot->ids + slot->lane.rows, keep);
}

static void after_forward(struct cart_scheduler *s, struct slot *slot)
{
    bool prompt = in_prompt(slot);

    keep_rows(s, slot);
    slot->T = 0;
    if (prompt && in_prompt(slot))
        return;
    if (prompt && slot->job->req.kind == CART_SERVE_EMBED)
        embed(s, slot);
    else if (slot->max_tokens == 0)
        cart_scheduler_finish(s, slot, CART_SERVE_LENGTH, NULL);
    else
        deliver(s, slot);
}

static void fail_all(struct cart_scheduler *s, const struct cart_err *err)
{
    for (size_t i = 0; i < s->opt.slots; i++) {
        if (s->slots[i].job != NULL && s->slots[i].T > 0)
            cart_scheduler_finish(s, &s->slots[i], CART_SERVE_FAILED, err);
    }
}

void cart_scheduler_step(struct cart_scheduler *s)
{
    struct cart_err err = {0};
    size_t n = 0;
    size_t hidden = 0;

    plan_answers(s, &n, &hidden);
    plan_prompts(s, &n, &hidden);
    if (n == 0)
        return;
    if (cart_engine_forward(s->engine, s->spans, n, s->hidden, &err) < 0) {
        fail_all(s, &err);
        return;
    }
    for (size_t i = 0; i < s->opt.slots; i++) {
        struct slot *slot = &s->slots[i];
        if (slot->job != NULL && slot->T > 0 && in_prompt(slot) && scores_prompt(slot))
            score_prompt(s, slot, slot->lane.rows);
    }
    sample_all(s);
    for (size_t i = 0; i < s->opt.slots; i++) {
        if (s->slots[i].job != NULL && s->slots[i].T > 0)
            after_forward(s, &s->slots[i]);
    }
}
