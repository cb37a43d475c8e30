/* The engine behind the server. One thread of its own runs the model; requests are plain structs
 * that any thread submits and cancels; what happens to them comes back as events. New requests join
 * between steps, prompts go in pieces so that answers under way keep flowing, and keys and values
 * live in pages that conversations share (engine/pages.h). Requests start in order; a further
 * choice starts behind those that wait and have none at work.
 *
 * An answer is a function of its request alone: cartridges, prompt, sampling, seed, choice. What
 * was cached, what ran beside it, what was drafted, cancelled or evicted changes no byte of it.
 *
 * Life of a request: cart_scheduler_submit either refuses it (nothing more happens) or gives it an
 * id, and then exactly one CART_EVENT_END comes, whatever happens, after which its ctx is never
 * used again. */
#ifndef CART_SERVE_SCHEDULER_H
#define CART_SERVE_SCHEDULER_H

#include "engine/adjust.h"
#include "serve/registry.h"
#include "token/tokenizer.h"

struct cart_chat;
struct cart_constraint;
struct cart_lexicon;
struct cart_scheduler;

#define CART_SERVE_TOP_MAX ((size_t)20) /* alternatives that a logprob entry may list */
#define CART_SERVE_CHOICES_MAX ((size_t)128)

struct cart_scheduler_options {
    size_t slots;   /* streams at work together, at least 1 */
    size_t queue;   /* requests that may wait beyond the free slots; then CART_REFUSED_QUEUE */
    size_t context; /* rows of a stream, its cartridges' too; 0, or more: the model's context */
    size_t kv_rows; /* rows that pages can hold in all; 0: slots * context; raised to one context */
    size_t piece;   /* prompt tokens that one step takes at most, 0: 256 */
    size_t draft_max; /* tokens drafted per stream and step, 0 to CART_DRAFT_MAX (engine/draft.h) */
    int kv;           /* type of the rows in pages: F32, F16 or BF16, each a class of answers of its
                       * own (model/kv.h); cartridges' rows are read as they are stored */
};
#define CART_SCHEDULER_OPTIONS                                                                     \
    {                                                                                              \
        8, 64, 0, 0, 0, 8, CART_F32                                                                \
    }

/* Reads "ROWS", "TYPE" or "TYPE:ROWS" into kv_rows and kv. CART_EUSAGE: it is none of these. */
int cart_scheduler_options_kv(struct cart_scheduler_options *o, const char *text,
                              struct cart_err *err) CART_MUST_USE;

/* Starts the thread. m, pool (used by the scheduler's thread alone from now on) and chat (whose
 * stop tokens end answers; may be NULL: the tokenizer's) are borrowed until cart_scheduler_free. */
int cart_scheduler_new(struct cart_scheduler **out, const struct cart_model *m,
                       struct cart_pool *pool, const struct cart_chat *chat,
                       const struct cart_scheduler_options *opt,
                       struct cart_err *err) CART_MUST_USE;
/* Bytes that it will take beside the model and a pool of threads. CART_ESYS: more than can be. */
int cart_scheduler_bytes(size_t *out, const struct cart_model *m,
                         const struct cart_scheduler_options *opt, size_t threads,
                         struct cart_err *err) CART_MUST_USE;

/* Refuses what is not begun from now on (CART_REFUSED_DRAINING); what was accepted goes on. */
void cart_scheduler_drain(struct cart_scheduler *s);
/* Cancels what is left (each gets its CART_EVENT_END), ends the thread. */
void cart_scheduler_free(struct cart_scheduler *s);

/* The vocabulary's trie for constraints (engine/constraint.h); for all threads, as long as s. */
const struct cart_lexicon *cart_scheduler_lexicon(const struct cart_scheduler *s);
size_t cart_scheduler_context(const struct cart_scheduler *s); /* rows a stream may have */
int cart_scheduler_kv(const struct cart_scheduler *s);         /* type of its rows */

/* ---- events ---- */

enum cart_event_type {
    CART_EVENT_START,  /* the prompt is about to be computed: cached is known. Once a request. */
    CART_EVENT_PROMPT, /* a prompt token and its logprob; choice 0 only, in order, before others */
    CART_EVENT_TOKEN,  /* one token of a choice */
    CART_EVENT_FINISH, /* a choice has ended: finish says why. The token that stopped it was no
                          CART_EVENT_TOKEN. */
    CART_EVENT_EMBEDDING,
    CART_EVENT_END, /* the request has ended; last event. usage is final */
};

enum cart_serve_finish {
    CART_SERVE_STOP,       /* a stop token, or the constraint is complete */
    CART_SERVE_LENGTH,     /* max_tokens or the end of the context */
    CART_SERVE_CALLER,     /* the event function said so (a stop string, say) */
    CART_SERVE_CANCELLED,  /* cart_scheduler_cancel, or the scheduler ends */
    CART_SERVE_NOT_FINITE, /* the model gave a NaN or an infinity: this choice is broken, others are
                              not */
    CART_SERVE_DEAD_END,   /* the constraint allows no token of this vocabulary */
    CART_SERVE_FAILED,     /* anything else, memory above all: err says what */
};

struct cart_logprob {
    uint32_t id;
    float logprob; /* natural, finite; of the model itself: before temperature, penalties, bias
                    * and constraint */
};

struct cart_usage {
    size_t prompt_tokens;
    size_t cached_tokens; /* of the prompt, whose rows were there already; < prompt_tokens */
    size_t cartridge_rows;
    size_t completion_tokens; /* sampled, over all choices; tokens that stopped one included */
    size_t drafted, accepted; /* speculation: tokens proposed, and right */
    double queued, prefill, decode; /* seconds; 0 for what did not happen */
};

/* Everything pointed to is valid during the call only. */
struct cart_event {
    enum cart_event_type type;
    uint64_t request;
    size_t choice;
    uint32_t id; /* PROMPT, TOKEN */
    struct cart_text
        bytes;    /* PROMPT, TOKEN: of that token; control tokens spell themselves: see control */
    bool control; /* PROMPT, TOKEN: a control token, no part of a plain text */
    bool has_logprob; /* PROMPT (not the first token behind nothing), TOKEN where asked for */
    float logprob;
    const struct cart_logprob *top; /* [n_top] falling, ties to the lower id */
    size_t n_top;
    enum cart_serve_finish finish; /* FINISH */
    const float *embedding;        /* EMBEDDING: [D], of length 1 */
    size_t D;
    const struct cart_usage *usage; /* START (so far), END */
    const struct cart_err *err;     /* FINISH with CART_SERVE_FAILED; else NULL */
};

/* Called in the scheduler's thread, so it must be quick and may never block; it may call
 * cart_scheduler_cancel and nothing else of this header. Returning false after a TOKEN ends that
 * choice (CART_SERVE_CALLER). Otherwise the value is not looked at. */
typedef bool cart_event_fn(void *ctx, const struct cart_event *e);

/* ---- requests ---- */

enum cart_serve_kind {
    CART_SERVE_GENERATE,
    CART_SERVE_EMBED, /* last hidden state after the final norm of the prompt, length 1 */
};

struct cart_serve_request {
    enum cart_serve_kind kind;
    struct cart_stack *stack; /* NULL: the bare model. Held by the scheduler while it needs it; the
                                 caller's own hold stays the caller's */
    const uint32_t *prompt;   /* [n_prompt] > 0; copied */
    size_t n_prompt;
    size_t n; /* choices, 1..CART_SERVE_CHOICES_MAX; choice i samples with counter i of seed */
    size_t max_tokens; /* of each choice; 0: score the prompt only; SIZE_MAX: what fits */
    double temperature, top_p, min_p; /* as struct cart_sampling */
    size_t top_k;
    uint64_t seed;
    struct cart_adjust adjust; /* penalties and bias; its list is copied */
    bool logprobs, prompt_logprobs;
    size_t top_logprobs;  /* 0..CART_SERVE_TOP_MAX */
    const uint32_t *stop; /* [n_stop] further ids that end a choice; copied */
    size_t n_stop;
    bool ignore_stop; /* the model's own stop tokens are tokens like others */
    /* NULL, or compiled for this request alone; the scheduler's once the request is accepted. */
    struct cart_constraint *constraint;
    bool begun; /* goes on with what was taken before: taken while draining too */
    cart_event_fn *on_event;
    void *ctx;
};
#define CART_SERVE_REQUEST                                                                         \
    {                                                                                              \
        .kind = CART_SERVE_GENERATE, .n = 1, .max_tokens = SIZE_MAX, .temperature = 1, .top_p = 1, \
        .adjust = CART_ADJUST_NONE                                                                 \
    }

enum cart_refusal {
    CART_REFUSED_NOT,
    CART_REFUSED_INVALID, /* a number out of its range, an id beyond the vocabulary; err names it */
    CART_REFUSED_CONTEXT, /* rows and prompt leave no room in the context; err has the numbers */
    CART_REFUSED_QUEUE,   /* try later */
    CART_REFUSED_DRAINING,
    CART_REFUSED_MEMORY,
};

/* 0 and an id > 0, or < 0 and the reason. Rows of the stack + n_prompt + 1 must fit the context; a
 * max_tokens that does not is cut to what does, and such a choice ends with CART_SERVE_LENGTH. */
int cart_scheduler_submit(struct cart_scheduler *s, const struct cart_serve_request *req,
                          uint64_t *id, enum cart_refusal *why, struct cart_err *err) CART_MUST_USE;

/* From any thread, also for what has ended or never was: takes effect before the next step. */
void cart_scheduler_cancel(struct cart_scheduler *s, uint64_t id);

/* Since the start, or (gauges) now. A consistent snapshot as of the last step. */
struct cart_scheduler_counts {
    uint64_t accepted, finished, cancelled, failed, refused_queue, refused_context;
    uint64_t prompt_tokens, cached_tokens, prefilled_tokens, generated_tokens, cartridge_rows;
    uint64_t drafted, draft_accepted, draft_steps;
    uint64_t steps, evicted_pages, embeddings;
    size_t running, waiting, slots;            /* gauges; choices at work, requests without one */
    size_t pages, pages_used, pages_committed; /* all; with rows; promised to streams at work */
    size_t page_bytes;
    double busy_seconds; /* in steps */
};
void cart_scheduler_counts(struct cart_scheduler *s, struct cart_scheduler_counts *out);

/* Plain text that an embedding's ends with, tokenised with it: a question for its topic. */
const char *cart_serve_topic_suffix(void);

#endif
