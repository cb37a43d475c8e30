/* Continuous batches: any mix of prompts being prefilled and streams being decoded goes through one
 * forward call per step; streams join and leave between steps. A stream's tokens depend on its own
 * session, prompt and sampling alone, never on its company. One thread of control owns a batch; the
 * pool does the work. */
#ifndef CART_ENGINE_BATCH_H
#define CART_ENGINE_BATCH_H

#include "engine/engine.h"
#include "engine/sampler.h"

struct cart_chat;
struct cart_draft;
struct cart_batch;

enum cart_finish {
    CART_FINISH_STOP,       /* a stop token came; it is the last of ids */
    CART_FINISH_LENGTH,     /* max_tokens, or the end of the model's context */
    CART_FINISH_ENDED,      /* on_token asked for the end */
    CART_FINISH_NOT_FINITE, /* the logits had a NaN or an infinity: the stream is broken */
};

/* What came of a request. ids [n] are valid during the callback. The session holds rows for the
 * prompt and for all ids but the last one: whoever goes on from here begins the next prompt with
 * it. */
struct cart_generation {
    const uint32_t *ids;
    size_t n;
    enum cart_finish finish;
};

/* Both may be NULL. on_token: called with the tokens so far, the last of them just sampled; < 0
 * ends the step with that error, 1 ends the stream. on_done: the stream has left the batch; new
 * requests may be added from here. */
typedef int cart_batch_token_fn(void *ctx, const uint32_t *ids, size_t n, struct cart_err *err);
typedef int cart_batch_done_fn(void *ctx, const struct cart_generation *g, struct cart_err *err);

struct cart_request {
    struct cart_session *session; /* borrowed until done; one request at a time */
    const uint32_t *prompt;       /* [n_prompt], at least one token; copied */
    size_t n_prompt, max_tokens;
    struct cart_sampling sampling;
    const struct cart_draft *draft; /* guesses of what comes next, borrowed until done; NULL: none.
                                       Its ids are below V. It changes no token */
    cart_batch_token_fn *on_token;
    cart_batch_done_fn *on_done;
    void *ctx;
};

/* slots: streams at work together, at least 1. ahead: guessed tokens that a step checks for one
 * stream, at most CART_DRAFT_MAX; 0: no speculation. stop: the profile whose stop tokens end a
 * stream; borrowed. */
int cart_batch_new(struct cart_batch **out, struct cart_engine *e, const struct cart_chat *stop,
                   size_t slots, size_t ahead, struct cart_err *err) CART_MUST_USE;
void cart_batch_free(struct cart_batch *b);
/* Without the sessions. */
size_t cart_batch_bytes(const struct cart_model *m, size_t slots, size_t ahead);

/* CART_EAGAIN: no slot is free. CART_EUSAGE: rows and prompt leave no room for a token in the
 * model's context (numbers in the message). Makes room in the session for prompt and max_tokens. */
int cart_batch_add(struct cart_batch *b, const struct cart_request *req,
                   struct cart_err *err) CART_MUST_USE;

size_t cart_batch_active(const struct cart_batch *b);

/* One forward: every decoding stream gets its next token, and more where guesses were right;
 * prompts go on as far as CART_ENGINE_PIECE tokens allow. */
int cart_batch_step(struct cart_batch *b, struct cart_err *err) CART_MUST_USE;

/* Tokens so far, for reports. */
size_t cart_batch_prefilled(const struct cart_batch *b);
size_t cart_batch_decoded(const struct cart_batch *b);
size_t cart_batch_guessed(const struct cart_batch *b);
size_t cart_batch_right(const struct cart_batch *b); /* of the guessed */

#endif
