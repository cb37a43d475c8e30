#include "study/selfstudy.h"

#include "base/interrupt.h"
#include "engine/batch.h"
#include "study/context.h"
#include "study/speech.h"
#include "study/kernels.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

/* Conversations under way or waiting for an earlier one: this many times gen_batch. */
#define WINDOW 4

enum job_state { JOB_FREE, JOB_ASKING, JOB_ANSWERING, JOB_DONE };

/* One conversation from its plan to its record. */
struct job {
    struct cart_selfstudy *s;
    enum job_state state;
    bool empty;
    struct cart_plan_item item;
    struct cart_conversation c;
    struct cart_buf message; /* bot A's, then the answer's text */
    size_t opening_n;        /* bytes of message that were given */
    const char *ask_finish;
    size_t session; /* index; SIZE_MAX: none */
    struct cart_prefix *prefix;
    const struct cart_kv_part *part;
};

struct cart_selfstudy {
    struct cart_engine *e;
    const struct cart_model *m;
    const struct cart_tokenizer *t;
    const struct cart_chat *chat;
    const struct cart_corpus *corpus;
    const struct cart_plan *plan;
    struct cart_selfstudy_options opt;
    struct cart_batch *batch;
    struct cart_draft *draft; /* of the corpus; NULL: no speculation */
    struct job *jobs;         /* [n_jobs]: conversation n is jobs[n % n_jobs] */
    size_t n_jobs;
    struct cart_session *sessions; /* [gen_batch] */
    bool *taken;                   /* [gen_batch] */
    size_t n_sessions;             /* initialised */
    struct cart_ids ids;           /* scratch */
    struct cart_buf text;          /* scratch */
    struct cart_selfstudy_counts counts;
};

size_t cart_selfstudy_longest(const struct cart_selfstudy_options *o)
{
    return 160 + o->plan.max_q + o->plan.max_a;
}

size_t cart_selfstudy_bytes(const struct cart_selfstudy *s)
{
    const struct cart_selfstudy_options *o = &s->opt;

    return o->gen_batch *
               cart_kv_tail_bytes(s->m, CART_F32, CART_KV_ANYWHERE, cart_selfstudy_longest(o)) +
           cart_batch_bytes(s->m, o->gen_batch, o->spec_b) +
           (s->draft != NULL ? cart_draft_bytes(s->draft) : 0);
}

static int index_corpus(struct cart_selfstudy *s, struct cart_err *err)
{
    int r = cart_draft_new(&s->draft, err);

    for (size_t i = 0; i < s->corpus->n_docs && r == 0; i++)
        r = cart_draft_add(s->draft, s->corpus->docs[i].tokens, s->corpus->docs[i].n, err);
    return r;
}

int cart_selfstudy_new(struct cart_selfstudy **out, struct cart_engine *e,
                       const struct cart_corpus *corpus, const struct cart_plan *plan,
                       const struct cart_selfstudy_options *opt, struct cart_err *err)
{
    struct cart_selfstudy *s = calloc(1, sizeof *s);
    int r;

    assert(opt->gen_batch > 0);
    if (s == NULL)
        return cart_err_memory(err, "self-study", sizeof *s);
    s->e = e;
    s->m = cart_engine_model(e);
    s->t = cart_model_tokenizer(s->m);
    s->corpus = corpus;
    s->plan = plan;
    s->opt = *opt;
    s->n_jobs = WINDOW * opt->gen_batch;
    s->jobs = calloc(s->n_jobs, sizeof *s->jobs);
    s->sessions = calloc(opt->gen_batch, sizeof *s->sessions);
    s->taken = calloc(opt->gen_batch, sizeof *s->taken);
    for (size_t i = 0; s->jobs != NULL && i < s->n_jobs; i++) {
        s->jobs[i].s = s;
        s->jobs[i].session = SIZE_MAX;
    }
    if (s->jobs == NULL || s->sessions == NULL || s->taken == NULL) {
        r = cart_err_memory(err, "self-study", s->n_jobs * sizeof *s->jobs);
        goto out;
    }
    if ((r = cart_model_chat(s->m, &s->chat, err)) < 0 ||
        (r = cart_batch_new(&s->batch, e, s->chat, opt->gen_batch, opt->spec_b, err)) < 0 ||
        (opt->spec_b > 0 && (r = index_corpus(s, err)) < 0))
        goto out;
    for (; s->n_sessions < opt->gen_batch; s->n_sessions++) {
        r = cart_session_init(&s->sessions[s->n_sessions], s->m, CART_F32, NULL, 0,
                              cart_selfstudy_longest(opt), err);
        if (r < 0)
            goto out;
    }
    *out = s;
    return 0;
out:
    cart_selfstudy_free(s);
    return r;
}

/* Gives back what a job holds of the engine. */
static void let_go(struct job *j)
{
    cart_prefix_release(j->s->e, j->prefix);
    j->prefix = NULL;
    if (j->session != SIZE_MAX)
        j->s->taken[j->session] = false;
    j->session = SIZE_MAX;
}

void cart_selfstudy_free(struct cart_selfstudy *s)
{
    if (s == NULL)
        return;
    for (size_t i = 0; s->jobs != NULL && i < s->n_jobs; i++) {
        let_go(&s->jobs[i]);
        cart_conversation_release(&s->jobs[i].c);
        cart_buf_release(&s->jobs[i].message);
    }
    cart_batch_free(s->batch);
    cart_draft_free(s->draft);
    for (size_t i = 0; i < s->n_sessions; i++)
        cart_session_release(&s->sessions[i]);
    free(s->sessions);
    free(s->taken);
    free(s->jobs);
    cart_ids_release(&s->ids);
    cart_buf_release(&s->text);
    free(s);
}

const struct cart_selfstudy_counts *cart_selfstudy_counts(const struct cart_selfstudy *s)
{
    return &s->counts;
}

/* ---- pieces of a conversation ---- */

/* Puts j behind the context turn of a span; what stood before is given back. */
static int stand_behind(struct job *j, enum cart_context_kind kind, struct cart_range span,
                        struct cart_err *err)
{
    struct cart_selfstudy *s = j->s;
    struct cart_prefix *prefix;
    int r;

    s->ids.n = 0;
    if ((r = cart_context_build(&s->ids, s->chat, s->corpus, kind, j->item.doc, span, err)) < 0 ||
        (r = cart_prefix_acquire(s->e, s->ids.data, s->ids.n, &prefix, err)) < 0)
        return r;
    cart_prefix_release(s->e, j->prefix);
    j->prefix = prefix;
    j->part = cart_prefix_part(prefix);
    cart_session_restart(&s->sessions[j->session], &j->part, 1);
    return 0;
}

/* Tokens that the conversation may have behind its context turn. */
static size_t room(const struct job *j)
{
    const struct cart_selfstudy *s = j->s;
    size_t open, close;

    cart_chat_system_open(s->chat, &open);
    cart_chat_turn_close(s->chat, &close);
    size_t before = open + close + j->item.context_span.end - j->item.context_span.first;
    return before < s->m->context ? s->m->context - before : 0;
}

/* Appends a user turn and the opening of the answer to it. */
static int user_turn(const struct cart_selfstudy *s, const char *text, size_t n,
                     struct cart_ids *out, struct cart_err *err)
{
    const struct cart_chat_message m = {.role = "user", .content = text, .n = n};
    const struct cart_chat_options o = {
        .generation_prompt = true, .behind = true, .think = CART_THINK_OFF};

    return cart_chat_render(s->chat, &m, 1, &o, out, NULL, err);
}

/* Appends the text of ids as valid UTF-8, whatever bytes the tokens spell; control tokens give
 * nothing. */
static int decode_text(const struct cart_selfstudy *s, const uint32_t *ids, size_t n,
                       struct cart_buf *out, struct cart_err *err)
{
    struct cart_decoder d;
    int r = 0;

    cart_decoder_init(&d, s->t, false);
    for (size_t i = 0; i < n && r == 0; i++)
        r = cart_decoder_push(&d, ids[i], out, err);
    return r < 0 ? r : cart_decoder_finish(&d, out, err);
}

/* JSON text holds no NUL, which a token of a byte may decode to. */
static json_t *message_json(const char *role, const char *text, size_t n, struct cart_buf *scratch,
                            struct cart_err *err)
{
    static const char instead[] = "\xEF\xBF\xBD";

    cart_buf_reset(scratch);
    if (cart_buf_reserve(scratch, 3 * n, err) < 0)
        return NULL;
    for (size_t i = 0; i < n; i++) {
        bool nul = text[i] == '\0';
        if (cart_buf_add(scratch, nul ? instead : &text[i], nul ? 3 : 1, err) < 0)
            return NULL;
    }
    json_t *m = json_pack("{s:s,s:s%}", "role", role, "content",
                          scratch->len > 0 ? scratch->data : "", scratch->len);
    if (m == NULL)
        cart_err_memory(err, "a message", n);
    return m;
}

static int set_words(struct job *j, const char *answer, size_t n, const char *finish_a,
                     const char *finish_b, struct cart_err *err)
{
    struct cart_conversation *c = &j->c;
    json_t *user = message_json("user", j->message.data, j->message.len, &j->s->text, err);
    json_t *assistant =
        user != NULL ? message_json("assistant", answer, n, &j->s->text, err) : NULL;

    if (assistant == NULL) {
        json_decref(user);
        return CART_ESYS;
    }
    c->messages = json_pack("[o,o]", user, assistant);
    c->finish_reasons = json_pack("[s,s]", finish_a, finish_b);
    return c->messages != NULL && c->finish_reasons != NULL
               ? 0
               : cart_err_memory(err, "a conversation", 0);
}

/* The record of a question (in j->message) and an answer's ids, with the end of turn where it is
 * complete. */
static int write_record(struct job *j, const uint32_t *answer, size_t n, bool complete,
                        struct cart_err *err)
{
    struct cart_selfstudy *s = j->s;
    struct cart_conversation *c = &j->c;
    uint32_t end = cart_chat_end_of_turn(s->chat);
    int r;

    s->ids.n = 0;
    if ((r = user_turn(s, j->message.data, j->message.len, &s->ids, err)) < 0)
        return r;
    size_t first = s->ids.n;
    if ((r = cart_conversation_push_ids(c, s->ids.data, s->ids.n, err)) < 0 ||
        (r = cart_conversation_push_ids(c, answer, n, err)) < 0 ||
        (complete && (r = cart_conversation_push_ids(c, &end, 1, err)) < 0))
        return r;
    c->n = j->item.n;
    c->held_out = j->item.held_out;
    c->seed_type = cart_seed_type(j->item.seed)->name;
    c->doc = j->item.doc;
    c->chunk = j->item.chunk;
    c->context = j->item.context;
    c->context_span = j->item.context_span;
    return cart_conversation_supervise(c, first, c->T, err);
}

static int finish(struct job *j, bool empty)
{
    j->state = JOB_DONE;
    j->empty = empty;
    let_go(j);
    return 0;
}

/* ---- bot B ---- */

static int answered(void *ctx, const struct cart_generation *g, struct cart_err *err)
{
    struct job *j = ctx;
    struct cart_selfstudy *s = j->s;
    struct cart_ids body = CART_IDS_INIT;
    struct cart_buf text = CART_BUF_INIT;
    bool stopped = g->finish == CART_FINISH_STOP;
    int r;

    if (g->finish == CART_FINISH_NOT_FINITE)
        return cart_err_set(err, CART_EFORMAT,
                            "conversation %llu: the answer's logits are not finite",
                            (unsigned long long)j->item.n);
    if ((r = cart_ids_add(&body, g->ids, g->n - stopped, err)) < 0)
        goto out;
    body.n = cart_chat_strip_thinking(s->chat, body.data, body.n);
    struct cart_speech_cut cut;
    if ((r = cart_speech_cut_answer(&cut, s->t, body.data, body.n, stopped, err)) < 0 ||
        (r = decode_text(s, body.data, cut.n, &text, err)) < 0)
        goto out;
    if (cart_speech_blank(text.data, text.len)) {
        r = finish(j, true);
        goto out;
    }
    if ((r = write_record(j, body.data, cut.n, cut.complete, err)) < 0)
        goto out;
    if ((r = set_words(j, text.data, text.len, j->ask_finish,
                       cut.complete   ? "stop"
                       : cut.sentence ? "cut"
                                      : "length",
                       err)) < 0)
        goto out;
    s->counts.cut += !cut.complete && cut.sentence;
    s->counts.unfinished += !cut.complete && !cut.sentence;
    r = finish(j, false);
out:
    cart_ids_release(&body);
    cart_buf_release(&text);
    return r;
}

/* A loop ends where it is noticed: decoding the rest of it would be wasted. */
static int end_loops(void *ctx, const uint32_t *ids, size_t n, struct cart_err *err)
{
    (void)ctx;
    (void)err;
    return cart_speech_looping(ids, n);
}

static int add_request(struct job *j, size_t max_tokens, const struct cart_sampling *sampling,
                       const struct cart_draft *draft, cart_batch_done_fn *done,
                       struct cart_err *err)
{
    struct cart_selfstudy *s = j->s;
    const struct cart_request req = {
        .session = &s->sessions[j->session],
        .prompt = s->ids.data,
        .n_prompt = s->ids.n,
        .max_tokens = max_tokens,
        .sampling = *sampling,
        .draft = draft,
        .on_token = end_loops,
        .on_done = done,
        .ctx = j,
    };
    int r = cart_batch_add(s->batch, &req, err);

    return r < 0 ? cart_err_wrap(err, r, "conversation %llu", (unsigned long long)j->item.n) : 0;
}

/* ---- bot A ---- */

static int asked(void *ctx, const struct cart_generation *g, struct cart_err *err)
{
    static const struct cart_sampling greedy = CART_SAMPLING_GREEDY;
    struct job *j = ctx;
    struct cart_selfstudy *s = j->s;
    int r;

    if (g->finish == CART_FINISH_NOT_FINITE)
        return cart_err_set(err, CART_EFORMAT,
                            "conversation %llu: the question's logits are not finite",
                            (unsigned long long)j->item.n);
    if ((r = decode_text(s, g->ids, g->n, &j->message, err)) < 0)
        return r;
    bool nothing = cart_speech_blank(j->message.data + j->opening_n, j->message.len - j->opening_n);
    cart_speech_clean_message(&j->message, g->finish != CART_FINISH_STOP);
    /* A message of hardly more than its given words asks for nothing. */
    if (nothing || j->message.len <= j->opening_n + 2)
        return finish(j, true);
    j->ask_finish = g->finish == CART_FINISH_STOP ? "stop" : "length";
    if ((r = stand_behind(j, j->item.context, j->item.context_span, err)) < 0)
        return r;
    s->ids.n = 0;
    if ((r = user_turn(s, j->message.data, j->message.len, &s->ids, err)) < 0)
        return r;
    /* A message may have more tokens than were sampled, its text being tokenised anew. */
    if (s->ids.n >= room(j))
        return finish(j, true);
    j->state = JOB_ANSWERING;
    return add_request(j, s->opt.plan.max_a, &greedy, s->draft, answered, err);
}

/* One of a list ended by NULL, by the numbers of the conversation. */
static const char *choose(const struct job *j, const char *const *list, uint32_t index)
{
    size_t n = 0;

    while (list[n] != NULL)
        n++;
    return list[cart_rng_below(j->s->opt.plan.seed, j->item.n, CART_RNG_SEED, index, n)];
}

static int start_asking(struct job *j, struct cart_err *err)
{
    struct cart_selfstudy *s = j->s;
    const struct cart_seed_type *type = cart_seed_type(j->item.seed);
    const char *instruction = choose(j, type->instructions, 0);
    const char *opening = choose(j, type->openings, 1);
    const struct cart_sampling sampling = {
        CART_SELFSTUDY_TEMPERATURE, 0, 1.0, 0.0, s->opt.plan.seed, j->item.n, CART_RNG_BOT_A};
    int r;

    for (j->session = 0; s->taken[j->session]; j->session++)
        assert(j->session + 1 < s->n_sessions);
    s->taken[j->session] = true;
    if ((r = stand_behind(j, CART_CONTEXT_CHUNK, j->item.chunk, err)) < 0)
        return r;
    s->ids.n = 0;
    if ((r = user_turn(s, instruction, strlen(instruction), &s->ids, err)) < 0 ||
        (r = cart_tokenizer_encode(s->t, opening, strlen(opening), 0, &s->ids, NULL, err)) < 0 ||
        (r = cart_buf_add(&j->message, opening, strlen(opening), err)) < 0)
        return r;
    j->opening_n = j->message.len;
    j->state = JOB_ASKING;
    return add_request(j, s->opt.plan.max_q, &sampling, NULL, asked, err);
}

/* ---- recite ---- */

/* The words of a recital, into j->message and answer, whose ids may be more than max_a; 1: they fit
 * behind the context turn; 0: they do not. */
static int recital(struct job *j, const char *wording, const struct cart_speech_recital *pick,
                   struct cart_ids *answer, struct cart_err *err)
{
    struct cart_selfstudy *s = j->s;
    const char *slot = strstr(wording, "%s");
    int r;

    answer->n = s->ids.n = 0;
    cart_buf_reset(&j->message);
    if ((r = cart_tokenizer_encode(s->t, pick->sentence.data, pick->sentence.n, 0, answer, NULL,
                                   err)) < 0 ||
        (r = cart_buf_add(&j->message, wording, (size_t)(slot - wording), err)) < 0 ||
        (r = cart_buf_add(&j->message, pick->quote.data, pick->quote.n, err)) < 0 ||
        (r = cart_buf_add(&j->message, slot + 2, strlen(slot + 2), err)) < 0 ||
        (r = user_turn(s, j->message.data, j->message.len, &s->ids, err)) < 0)
        return r;
    size_t max_a = s->opt.plan.max_a, n = answer->n < max_a ? answer->n : max_a;
    return s->ids.n + n + 1 <= room(j); /* 1: the end of turn */
}

static int recite(struct job *j, struct cart_err *err)
{
    struct cart_selfstudy *s = j->s;
    const struct cart_doc *doc = &s->corpus->docs[j->item.doc];
    struct cart_speech_recital pick;
    struct cart_buf text = CART_BUF_INIT, kept = CART_BUF_INIT;
    struct cart_ids answer = CART_IDS_INIT;
    const char *wording = choose(j, cart_seed_recite_wordings(), 0);
    int r = decode_text(s, doc->tokens + j->item.chunk.first,
                        j->item.chunk.end - j->item.chunk.first, &text, err);

    /* Prose has four bytes a token; text that has fewer may give a sentence that does not fit, and
     * then one of half the length is looked for. */
    size_t max_bytes = 4 * s->opt.plan.max_a;
    for (bool fits = false; r == 0 && !fits; max_bytes /= 2) {
        if (!cart_speech_pick_sentence(text.data, text.len, j->item.starts_clean,
                                       j->item.ends_clean, max_bytes, s->opt.plan.seed, j->item.n,
                                       2, &pick)) {
            r = finish(j, true);
            goto out;
        }
        r = recital(j, wording, &pick, &answer, err);
        fits = r == 1;
        r = r < 0 ? r : 0;
    }
    if (r < 0)
        goto out;
    bool whole = answer.n <= s->opt.plan.max_a;
    answer.n = whole ? answer.n : s->opt.plan.max_a;
    if ((r = write_record(j, answer.data, answer.n, whole, err)) < 0 ||
        (!whole && (r = decode_text(s, answer.data, answer.n, &kept, err)) < 0) ||
        (r = set_words(j, whole ? pick.sentence.data : kept.data,
                       whole ? pick.sentence.n : kept.len, "given", whole ? "given" : "length",
                       err)) < 0)
        goto out;
    s->counts.unfinished += !whole;
    r = finish(j, false);
out:
    cart_buf_release(&text);
    cart_buf_release(&kept);
    cart_ids_release(&answer);
    return r;
}

/* ---- the run ---- */

static int start(struct cart_selfstudy *s, uint64_t n, struct cart_err *err)
{
    struct job *j = &s->jobs[n % s->n_jobs];

    assert(j->state == JOB_FREE);
    cart_plan_at(s->plan, n, &j->item);
    cart_buf_reset(&j->message);
    cart_conversation_reset(&j->c);
    j->empty = false;
    return j->item.seed == CART_SEED_RECITE ? recite(j, err) : start_asking(j, err);
}

static int emit(struct cart_selfstudy *s, struct job *j, cart_selfstudy_fn *fn, void *ctx,
                struct cart_err *err)
{
    j->state = JOB_FREE;
    s->counts.empty += j->empty;
    s->counts.written += !j->empty;
    return fn(ctx, j->item.n, j->empty ? NULL : &j->c, err);
}

int cart_selfstudy_run(struct cart_selfstudy *s, uint64_t first, uint64_t end,
                       cart_selfstudy_fn *fn, void *ctx, struct cart_err *err)
{
    uint64_t next = first;    /* to start */
    uint64_t waiting = first; /* to emit */
    int r = 0;

    while (waiting < end) {
        while (next < end && next - waiting < s->n_jobs &&
               cart_batch_active(s->batch) < s->opt.gen_batch) {
            if ((r = start(s, next++, err)) < 0)
                return r;
        }
        while (waiting < next && s->jobs[waiting % s->n_jobs].state == JOB_DONE) {
            if ((r = emit(s, &s->jobs[waiting % s->n_jobs], fn, ctx, err)) < 0)
                return r;
            waiting++;
        }
        if (cart_interrupted() && waiting < end) {
            s->counts.lost = (size_t)(next - waiting);
            return 1;
        }
        if ((r = cart_batch_step(s->batch, err)) < 0)
            return r;
        s->counts.prefilled = cart_batch_prefilled(s->batch) + cart_engine_prefilled(s->e);
        s->counts.decoded = cart_batch_decoded(s->batch);
        s->counts.guessed = cart_batch_guessed(s->batch);
        s->counts.right = cart_batch_right(s->batch);
    }
    return 0;
}

json_t *cart_selfstudy_options_json(const struct cart_selfstudy_options *opt, size_t n)
{
    static const char *const contexts[] = {"auto", "chunk", "document", "corpus"};
    const struct cart_plan_options *p = &opt->plan;
    json_t *weights = json_object();
    int bad = 0;

    for (size_t i = 0; i < CART_SEEDS; i++) {
        if (p->weights[i] > 0)
            bad |= json_object_set_new(weights, cart_seed_type((enum cart_seed)i)->name,
                                       json_real(p->weights[i]));
    }
    if (bad) {
        json_decref(weights);
        return NULL;
    }
    return cart_kernels_mark(json_pack("{s:I,s:I,s:[I,I],s:I,s:I,s:s,s:o}", "n", (json_int_t)n,
                                       "held_out", (json_int_t)p->held_out, "chunk",
                                       (json_int_t)p->chunk_min, (json_int_t)p->chunk_max, "max_q",
                                       (json_int_t)p->max_q, "max_a", (json_int_t)p->max_a,
                                       "context", contexts[p->context], "seed_types", weights));
}
