#include "serve/scheduler_impl.h"

#include "base/clock.h"
#include "base/opt.h"
#include "token/chat.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define PIECE ((size_t)256)
#define KV_ROWS_MIN ((size_t)16)
#define KV_ROWS_MAX ((size_t)1 << 40)

const char *cart_serve_topic_suffix(void)
{
    return "\nIn one word, the main topic of the text above is:";
}

/* ---- the ends of jobs ---- */

static void send(const struct job *j, struct cart_event e)
{
    e.request = j->id;
    if (j->req.on_event != NULL)
        (void)j->req.on_event(j->req.ctx, &e);
}

/* Under the lock. */
static void unlink_job(struct cart_scheduler *s, struct job *j)
{
    if (j->prev != NULL)
        j->prev->next = j->next;
    else
        s->jobs = j->next;
    if (j->next != NULL)
        j->next->prev = j->prev;
    else
        s->last = j->prev;
}

void cart_scheduler_job_append(struct cart_scheduler *s, struct job *j)
{
    s->n_waiting++;
    j->prev = s->last;
    j->next = NULL;
    if (s->last != NULL)
        s->last->next = j;
    else
        s->jobs = j;
    s->last = j;
}

static void job_end(struct cart_scheduler *s, struct job *j)
{
    double now = cart_clock_now();

    if (j->first_token > 0)
        j->usage.decode = now - j->first_token;
    else if (j->opened > 0)
        j->usage.prefill = now - j->opened;
    else
        j->usage.queued = now - j->submitted;
    s->counts.finished++;
    /* Who hears of the end may submit another one, and there is a place for it. */
    send(j, (struct cart_event){.type = CART_EVENT_END, .usage = &j->usage});
    cart_scheduler_job_free(j);
}

static void choice_end(struct cart_scheduler *s, struct job *j, size_t choice,
                       enum cart_serve_finish why, const struct cart_err *err)
{
    send(j, (struct cart_event){.type = CART_EVENT_FINISH,
                                .choice = choice,
                                .finish = why,
                                .err = why == CART_SERVE_FAILED ? err : NULL});
    s->counts.cancelled += why == CART_SERVE_CANCELLED;
    s->counts.failed +=
        why == CART_SERVE_FAILED || why == CART_SERVE_NOT_FINITE || why == CART_SERVE_DEAD_END;
    pthread_mutex_lock(&s->lock);
    s->at_work--;
    bool last = ++j->ended == j->req.n;
    bool waits = !last && j->ended == j->started;
    if (last || waits)
        unlink_job(s, j);
    /* It has no choice at work any more: those that wait already come first. */
    if (waits)
        cart_scheduler_job_append(s, j);
    pthread_mutex_unlock(&s->lock);
    if (last)
        job_end(s, j);
}

static void slot_clear(struct cart_scheduler *s, struct slot *slot, bool keep)
{
    cart_lane_close(&slot->lane, keep);
    cart_tally_free(slot->tally);
    cart_draft_free(slot->draft);
    if (slot->constraint != slot->job->req.constraint)
        cart_constraint_free(slot->constraint);
    free(slot->ids);
    memset(slot, 0, sizeof *slot);
    s->running--;
}

void cart_scheduler_finish(struct cart_scheduler *s, struct slot *slot, enum cart_serve_finish why,
                           const struct cart_err *err)
{
    struct job *j = slot->job;
    size_t choice = slot->choice;

    /* Rows that a failure may have touched are not kept. */
    slot_clear(s, slot, why != CART_SERVE_NOT_FINITE && why != CART_SERVE_FAILED);
    choice_end(s, j, choice, why, err);
}

bool cart_scheduler_is_stop(const struct cart_scheduler *s, const struct job *j, uint32_t id)
{
    for (size_t i = 0; !j->req.ignore_stop && i < s->n_stops; i++) {
        if (s->stops[i] == id)
            return true;
    }
    for (size_t i = 0; i < j->req.n_stop; i++) {
        if (j->stop[i] == id)
            return true;
    }
    return false;
}

/* ---- admission ---- */

static size_t most_tokens(const struct cart_scheduler *s, const struct job *j)
{
    size_t room = s->opt.context - j->usage.cartridge_rows - j->req.n_prompt;
    size_t want = j->req.kind == CART_SERVE_EMBED ? 0 : j->req.max_tokens;

    return want < room ? want : room;
}

static int slot_fill(const struct cart_scheduler *s, struct slot *slot, struct job *j,
                     struct cart_err *err)
{
    int r = 0;

    slot->ids = malloc((j->req.n_prompt + slot->max_tokens) * sizeof *slot->ids);
    if (slot->ids == NULL)
        return cart_err_memory(err, "the tokens of a stream", 0);
    memcpy(slot->ids, j->prompt, j->req.n_prompt * sizeof *slot->ids);
    if (j->req.constraint != NULL) {
        if (slot->choice == 0)
            slot->constraint = j->req.constraint;
        else if ((r = cart_constraint_copy(&slot->constraint, j->req.constraint, err)) < 0)
            return r;
        slot->state = cart_constraint_start(slot->constraint);
    }
    if (cart_adjust_needs_tally(&j->req.adjust)) {
        if ((r = cart_tally_new(&slot->tally, s->m->V, err)) < 0)
            return r;
        cart_tally_prompt(slot->tally, j->prompt, j->req.n_prompt);
    }
    if (s->opt.draft_max > 0 && slot->max_tokens > 1) {
        if ((r = cart_draft_new(&slot->draft, err)) < 0 ||
            (r = cart_draft_add(slot->draft, j->prompt, j->req.n_prompt, err)) < 0)
            return r;
    }
    return 0;
}

static int slot_open(struct cart_scheduler *s, struct slot *slot, struct job *j,
                     struct cart_err *err)
{
    const struct cart_stack *stack = j->req.stack;
    bool scores = j->req.prompt_logprobs && j->started == 0;
    int r;

    slot->n_prompt = j->req.n_prompt;
    slot->max_tokens = most_tokens(s, j);
    const struct cart_lane_start start = {
        .key = j->key,
        .n_key = stack != NULL ? stack->n : 0,
        .parts = stack != NULL ? stack->parts : NULL,
        .n_parts = stack != NULL ? stack->n_parts : 0,
        .first = j->usage.cartridge_rows,
        .ids = j->prompt,
        .n = slot->n_prompt,
        .limit = scores ? 0 : slot->n_prompt - 1,
        .max_rows = slot->n_prompt + slot->max_tokens,
    };
    if ((r = cart_lane_open(&slot->lane, s->pages, &start, err)) < 0)
        return r;
    slot->job = j;
    slot->choice = j->started;
    s->running++;
    r = slot_fill(s, slot, j, err);
    if (r < 0)
        slot_clear(s, slot, true);
    return r;
}

static void announce(struct cart_scheduler *s, struct job *j, const struct slot *slot)
{
    j->announced = true;
    j->opened = cart_clock_now();
    j->usage.queued = j->opened - j->submitted;
    j->usage.cached_tokens = slot->lane.rows;
    s->counts.cached_tokens += slot->lane.rows;
    s->counts.prompt_tokens += j->req.n_prompt;
    s->counts.cartridge_rows += j->usage.cartridge_rows;
    send(j, (struct cart_event){.type = CART_EVENT_START, .usage = &j->usage});
}

/* Whose choice is the next to start: the first job that has none at work, so that one with many
 * choices takes the slots that nobody else wants. NULL: none has a choice left to start. */
static struct job *first_waiting(struct cart_scheduler *s)
{
    struct job *first = NULL;

    pthread_mutex_lock(&s->lock);
    for (struct job *j = s->jobs; j != NULL; j = j->next) {
        if (j->started == j->req.n)
            continue;
        if (first == NULL)
            first = j;
        if (j->started == j->ended) {
            first = j;
            break;
        }
    }
    pthread_mutex_unlock(&s->lock);
    return first;
}

/* Under the lock: n more choices of the job are at work. */
static void count_starts(struct cart_scheduler *s, struct job *j, size_t n)
{
    s->n_waiting -= j->started == j->ended;
    s->at_work += n;
    j->started += n;
}

static void admit(struct cart_scheduler *s)
{
    while (s->running < s->opt.slots) {
        struct job *j = first_waiting(s);
        struct slot *slot = s->slots;
        struct cart_err err = {0};
        if (j == NULL)
            return;
        while (slot->job != NULL)
            slot++;
        int r = slot_open(s, slot, j, &err);
        if (r == CART_EAGAIN)
            return;
        size_t choice = j->started;
        pthread_mutex_lock(&s->lock);
        count_starts(s, j, 1);
        pthread_mutex_unlock(&s->lock);
        if (r == 0 && !j->announced)
            announce(s, j, slot);
        if (r < 0)
            choice_end(s, j, choice, CART_SERVE_FAILED, &err);
    }
}

/* ---- the thread ---- */

/* Ends the streams of what was cancelled. */
static void reap(struct cart_scheduler *s)
{
    for (size_t i = 0; i < s->opt.slots; i++) {
        if (s->slots[i].job != NULL && s->slots[i].job->dying)
            cart_scheduler_finish(s, &s->slots[i], CART_SERVE_CANCELLED, NULL);
    }
}

/* A job that dies starts no further choices; they end here, before its streams do. */
static void reap_waiting(struct cart_scheduler *s)
{
    struct job *next;

    /* Nobody but this thread unlinks a job, so next stays valid; what is appended meanwhile comes
     * behind it and does not die yet. */
    pthread_mutex_lock(&s->lock);
    for (struct job *j = s->jobs; j != NULL; j = next) {
        next = j->next;
        if (!j->dying || j->started == j->req.n)
            continue;
        size_t first = j->started;
        size_t n = j->req.n;
        count_starts(s, j, n - first);
        pthread_mutex_unlock(&s->lock);
        for (size_t c = first; c < n; c++)
            choice_end(s, j, c, CART_SERVE_CANCELLED, NULL);
        pthread_mutex_lock(&s->lock);
    }
    pthread_mutex_unlock(&s->lock);
}

static void publish(struct cart_scheduler *s)
{
    struct cart_pages_counts pages = cart_pages_counts(s->pages);
    struct cart_scheduler_counts *c = &s->counts;

    c->running = s->running;
    c->slots = s->opt.slots;
    c->pages = pages.total;
    c->pages_used = pages.used;
    c->pages_committed = pages.committed;
    c->evicted_pages = pages.evicted;
    c->accepted = s->published.accepted;
    c->refused_queue = s->published.refused_queue;
    c->refused_context = s->published.refused_context;
    s->published = *c;
}

static void *run(void *arg)
{
    struct cart_scheduler *s = arg;

    for (;;) {
        pthread_mutex_lock(&s->lock);
        publish(s);
        while (s->jobs == NULL && !s->quit)
            pthread_cond_wait(&s->wake, &s->lock);
        bool done = s->jobs == NULL;
        for (struct job *j = s->jobs; j != NULL; j = j->next)
            j->dying = j->cancelled || s->quit;
        pthread_mutex_unlock(&s->lock);
        if (done)
            return NULL;
        reap_waiting(s);
        reap(s);
        admit(s);
        if (s->running > 0) {
            double start = cart_clock_now();
            cart_scheduler_step(s);
            s->counts.steps++;
            s->counts.busy_seconds += cart_clock_now() - start;
        }
    }
}

/* ---- making and ending it ---- */

int cart_scheduler_options_kv(struct cart_scheduler_options *o, const char *text,
                              struct cart_err *err)
{
    static const char *const words[] = {"f32", "f16", "bf16"};
    const char *colon = strchr(text, ':');
    size_t n = colon != NULL ? (size_t)(colon - text) : strlen(text);
    const char *rows = colon != NULL ? colon + 1 : NULL;
    size_t i = 0;
    uint64_t v = 0;

    while (i < CART_COUNTOF(words) && (strlen(words[i]) != n || memcmp(words[i], text, n) != 0))
        i++;
    if (i < CART_COUNTOF(words))
        o->kv = cart_kv_type((int)i);
    else
        rows = colon == NULL ? text : "";
    if (rows == NULL)
        return 0;
    if (!cart_opt_whole(rows, &v) || v < KV_ROWS_MIN || v > KV_ROWS_MAX)
        return cart_err_set(
            err, CART_EUSAGE,
            "--kv: expected f32, f16, bf16, a whole number of rows from %zu to %zu, "
            "or TYPE:ROWS, found %s",
            KV_ROWS_MIN, KV_ROWS_MAX, text);
    o->kv_rows = (size_t)v;
    return 0;
}

static void fill_options(struct cart_scheduler_options *o, const struct cart_model *m)
{
    if (o->context == 0 || o->context > m->context)
        o->context = m->context;
    if (o->kv_rows == 0 && !cart_size_mul(o->slots, o->context, &o->kv_rows))
        o->kv_rows = SIZE_MAX / 2;
    if (o->kv_rows < o->context)
        o->kv_rows = o->context;
    if (o->piece == 0)
        o->piece = PIECE;
}

/* One page more for each stream: its rows may begin and end within pages. */
static size_t page_count(const struct cart_scheduler_options *o)
{
    return o->kv_rows / CART_PAGE_ROWS + 1 + o->slots;
}

static void row_counts(const struct cart_scheduler_options *o, size_t *R, size_t *M)
{
    *R = o->slots + 2 * o->draft_max;
    *M = *R + o->piece;
}

/* What a step works with. */
static void layout(struct cart_arena *a, struct cart_scheduler *s)
{
    size_t n = s->opt.slots;
    size_t V = s->m->V;
    size_t D = s->m->D;

    row_counts(&s->opt, &s->R, &s->M);
    s->slots = cart_arena_push(a, n, sizeof *s->slots);
    s->spans = cart_arena_push(a, n, sizeof *s->spans);
    s->wants = cart_arena_push(a, n, sizeof *s->wants);
    s->order = cart_arena_push(a, n, sizeof(struct slot *));
    s->tokens = cart_arena_push(a, n, sizeof *s->tokens);
    s->hidden = cart_arena_push(a, s->M, D * sizeof *s->hidden);
    s->picked = cart_arena_push(a, s->R, D * sizeof *s->picked);
    s->logits = cart_arena_push(a, s->R, V * sizeof *s->logits);
    s->sums = cart_arena_push(a, s->R, sizeof *s->sums);
    s->top_ids = cart_arena_push(a, s->R, CART_SERVE_TOP_MAX * sizeof *s->top_ids);
    s->top_values = cart_arena_push(a, s->R, CART_SERVE_TOP_MAX * sizeof *s->top_values);
    s->top = cart_arena_push(a, CART_SERVE_TOP_MAX, sizeof *s->top);
    s->scratch = cart_arena_push(a, s->threads, V * sizeof *s->scratch);
}

int cart_scheduler_bytes(size_t *out, const struct cart_model *m,
                         const struct cart_scheduler_options *opt, size_t threads,
                         struct cart_err *err)
{
    struct cart_scheduler s = {.m = m, .opt = *opt, .threads = threads};
    struct cart_arena a = CART_ARENA_INIT;
    struct cart_lexicon *lexicon = NULL;
    size_t sum = 0;
    int r = cart_lexicon_new(&lexicon, cart_model_tokenizer(m), err);

    if (r < 0)
        return r;
    fill_options(&s.opt, m);
    layout(&a, &s);
    /* A part of SIZE_MAX, which is more than there can be, leaves no sum. */
    const size_t parts[] = {
        cart_pages_bytes(m, s.opt.kv, page_count(&s.opt), s.opt.piece),
        cart_workspace_bytes(m, CART_ENGINE_PIECE),
        a.overflow ? SIZE_MAX : a.used,
        threads * cart_sampler_bytes(m->V),
        cart_lexicon_bytes(lexicon),
    };
    cart_lexicon_free(lexicon);
    for (size_t i = 0; i < CART_COUNTOF(parts); i++) {
        if (!cart_size_add(sum, parts[i], &sum))
            return cart_err_memory(err, "rows, activations and logits", SIZE_MAX);
    }
    *out = sum;
    return 0;
}

static int find_stops(struct cart_scheduler *s, const struct cart_chat *chat, struct cart_err *err)
{
    for (size_t pass = 0; pass < 2; pass++) {
        size_t n = 0;
        for (uint32_t id = 0; id < s->m->V; id++) {
            if (!(chat != NULL ? cart_chat_is_stop(chat, id) : cart_tokenizer_is_eog(s->t, id)))
                continue;
            if (pass == 1)
                s->stops[n] = id;
            n++;
        }
        if (pass == 0 && (s->stops = calloc(n > 0 ? n : 1, sizeof *s->stops)) == NULL)
            return cart_err_memory(err, "stop tokens", 0);
        s->n_stops = n;
    }
    return 0;
}

static int buffers(struct cart_scheduler *s, struct cart_err *err)
{
    s->threads = cart_pool_threads(s->pool);
    layout(&s->arena, s);
    int r = cart_arena_reserve(&s->arena, s->arena.used, err);
    if (r < 0)
        return cart_err_wrap(err, r, "logits and hidden states of a step");
    layout(&s->arena, s);
    /* Not in the arena, where a leak checker does not look for what they point to. */
    s->samplers = calloc(s->threads, sizeof(struct cart_sampler_scratch *));
    if (s->samplers == NULL)
        return cart_err_memory(err, "samplers", s->threads * sizeof(void *));
    for (size_t i = 0; i < s->threads && r == 0; i++)
        r = cart_sampler_scratch_new(&s->samplers[i], s->m->V, err);
    return r;
}

static void release(struct cart_scheduler *s)
{
    for (size_t i = 0; s->samplers != NULL && i < s->threads; i++)
        cart_sampler_scratch_free(s->samplers[i]);
    free(s->samplers);
    cart_pages_free(s->pages);
    cart_engine_free(s->engine);
    cart_lexicon_free(s->lexicon);
    free(s->stops);
    cart_arena_release(&s->arena);
    free(s);
}

static int start_thread(struct cart_scheduler *s, struct cart_err *err)
{
    pthread_mutex_init(&s->lock, NULL);
    pthread_cond_init(&s->wake, NULL);
    int code = pthread_create(&s->thread, NULL, run, s);
    if (code == 0)
        return 0;
    pthread_cond_destroy(&s->wake);
    pthread_mutex_destroy(&s->lock);
    errno = code;
    return cart_err_sys(err, "the scheduler's thread");
}

int cart_scheduler_new(struct cart_scheduler **out, const struct cart_model *m,
                       struct cart_pool *pool, const struct cart_chat *chat,
                       const struct cart_scheduler_options *opt, struct cart_err *err)
{
    if (opt->slots == 0)
        return cart_err_set(err, CART_EUSAGE, "slots: expected at least 1");
    if (opt->draft_max > CART_DRAFT_MAX)
        return cart_err_set(err, CART_EUSAGE, "draft: expected at most %zu, found %zu",
                            CART_DRAFT_MAX, opt->draft_max);
    struct cart_scheduler *s = calloc(1, sizeof *s);
    if (s == NULL)
        return cart_err_memory(err, "a scheduler", sizeof *s);
    s->m = m;
    s->t = cart_model_tokenizer(m);
    s->pool = pool;
    s->opt = *opt;
    fill_options(&s->opt, m);
    s->counts.page_bytes = cart_page_bytes(m, s->opt.kv);
    int r = buffers(s, err);
    if (r == 0)
        r = find_stops(s, chat, err);
    if (r == 0)
        r = cart_lexicon_new(&s->lexicon, s->t, err);
    if (r == 0)
        r = cart_engine_new(&s->engine, m, s->opt.kv, pool, 0, err);
    if (r == 0)
        r = cart_pages_new(&s->pages, m, s->opt.kv, page_count(&s->opt), s->opt.piece, err);
    if (r == 0) {
        publish(s);
        r = start_thread(s, err);
    }
    if (r < 0) {
        release(s);
        return r;
    }
    *out = s;
    return 0;
}

void cart_scheduler_drain(struct cart_scheduler *s)
{
    pthread_mutex_lock(&s->lock);
    s->draining = true;
    pthread_mutex_unlock(&s->lock);
}

void cart_scheduler_free(struct cart_scheduler *s)
{
    if (s == NULL)
        return;
    pthread_mutex_lock(&s->lock);
    s->draining = s->quit = true;
    pthread_cond_signal(&s->wake);
    pthread_mutex_unlock(&s->lock);
    pthread_join(s->thread, NULL);
    pthread_cond_destroy(&s->wake);
    pthread_mutex_destroy(&s->lock);
    release(s);
}

const struct cart_lexicon *cart_scheduler_lexicon(const struct cart_scheduler *s)
{
    return s->lexicon;
}

size_t cart_scheduler_context(const struct cart_scheduler *s)
{
    return s->opt.context;
}

int cart_scheduler_kv(const struct cart_scheduler *s)
{
    return s->opt.kv;
}

void cart_scheduler_counts(struct cart_scheduler *s, struct cart_scheduler_counts *out)
{
    pthread_mutex_lock(&s->lock);
    *out = s->published;
    out->waiting = s->n_waiting;
    pthread_mutex_unlock(&s->lock);
}
