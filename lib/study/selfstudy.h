/* Self-study: the model interviews itself about chunks of a corpus. Bot A (sampled at
 * CART_SELFSTUDY_TEMPERATURE) sees the chunk and writes a message in the form of a seed type,
 * starting from given words; bot B (greedy) answers it with the context turn of the plan before it.
 * "recite" conversations need no decoding. Many conversations decode together; conversation n is a
 * function of (model, corpus, options, seed, n) alone. One thread of control. */
#ifndef CART_STUDY_SELFSTUDY_H
#define CART_STUDY_SELFSTUDY_H

#include "engine/draft.h"
#include "engine/engine.h"
#include "study/plan.h"

#define CART_SELFSTUDY_TEMPERATURE 0.6

struct cart_selfstudy_options {
    struct cart_plan_options plan;
    /* Neither changes a result. */
    size_t gen_batch; /* conversations decoded together */
    size_t spec_b; /* tokens of an answer guessed from the corpus and checked in one step, at most
                         CART_DRAFT_MAX; 0: none */
};

struct cart_selfstudy_counts {
    size_t written,
        empty; /* conversations emitted; those left out because message or answer was empty */
    size_t cut,
        unfinished; /* answers cut at a sentence end; answers that ran into the limit without one */
    size_t prefilled, decoded; /* tokens */
    size_t lost;               /* begun, and not emitted when the run was stopped */
    size_t guessed, right;     /* of the decoded: from the corpus, and as the model would have it */
};

struct cart_selfstudy;

/* Called in ascending n; c is lent for the call and may be taken over (then c must be left
 * initialised or reset). n: the conversation, c NULL: it came out empty. */
typedef int cart_selfstudy_fn(void *ctx, uint64_t n, struct cart_conversation *c,
                              struct cart_err *err);

/* e, corpus and plan are borrowed. */
int cart_selfstudy_new(struct cart_selfstudy **out, struct cart_engine *e,
                       const struct cart_corpus *corpus, const struct cart_plan *plan,
                       const struct cart_selfstudy_options *opt,
                       struct cart_err *err) CART_MUST_USE;
void cart_selfstudy_free(struct cart_selfstudy *s);
/* Tokens of a conversation, at most. */
size_t cart_selfstudy_longest(const struct cart_selfstudy_options *opt);
/* Memory beside the engine's: sessions, logits and the index of guesses. */
size_t cart_selfstudy_bytes(const struct cart_selfstudy *s);

/* Conversations [first, end). 0: all were emitted; 1: stopped by cart_interrupted() after some.
 * CART_EFORMAT: logits that are not finite (the conversation is named). */
int cart_selfstudy_run(struct cart_selfstudy *s, uint64_t first, uint64_t end,
                       cart_selfstudy_fn *fn, void *ctx, struct cart_err *err) CART_MUST_USE;

const struct cart_selfstudy_counts *cart_selfstudy_counts(const struct cart_selfstudy *s);

/* The options that change results, as the history of a stream states them. New reference. */
json_t *cart_selfstudy_options_json(const struct cart_selfstudy_options *opt, size_t n);

#endif
