/* What the files of the scheduler share. Jobs are requests, slots are streams at work: one choice
 * of one job each. Everything but what is said to be guarded belongs to the scheduler's thread. */
#ifndef CART_SERVE_SCHEDULER_IMPL_H
#define CART_SERVE_SCHEDULER_IMPL_H

#include "base/arena.h"
#include "engine/constraint.h"
#include "engine/draft.h"
#include "engine/engine.h"
#include "engine/pages.h"
#include "engine/sampler.h"
#include "serve/scheduler.h"
#include "tensor/vocab.h"

#include <pthread.h>

struct job {
    uint64_t id;
    struct cart_serve_request req; /* its pointers lead to what the job owns */
    uint32_t *prompt, *stop;
    struct cart_bias *bias;
    uint64_t *key;  /* [stack->n] */
    size_t started; /* guarded: choices that have had a slot */
    size_t ended;   /* guarded */
    bool cancelled; /* guarded */
    bool dying;     /* cancelled, as the thread has seen it */
    bool announced; /* CART_EVENT_START has gone out */
    double submitted, opened, first_token;
    struct cart_usage usage;
    struct job *prev, *next; /* guarded */
};

/* What one step gave a slot. */
struct outcome {
    uint32_t ids[CART_DRAFT_MAX + 1];
    size_t n;    /* tokens sampled */
    bool silent; /* the last of them is a stop token, no part of the answer */
    bool ended;  /* after these tokens, if any, the choice ends as finish says */
    enum cart_serve_finish finish;
    struct cart_err err;
};

struct slot {
    struct job *job; /* NULL: free */
    size_t choice;
    uint32_t *ids; /* [n_prompt + max_tokens]: prompt, answer, and behind it what is drafted */
    size_t n_prompt, sampled, max_tokens;
    struct cart_lane lane;
    struct cart_tally *tally; /* NULL: not needed */
    struct cart_draft *draft; /* of prompt and answer; NULL: no speculation */
    size_t drafted, accepted; /* in the current window */
    size_t pause;             /* tokens to go without speculation */
    /* The request's for choice 0, a copy for another: what one costs is no other's. NULL: none. */
    struct cart_constraint *constraint;
    uint32_t state;     /* of the constraint */
    size_t n_draft;     /* proposed in this step */
    size_t row, n_rows; /* of this step's logits */
    size_t hidden;      /* first row of this step's hidden rows */
    size_t T;           /* tokens of this step's span; 0: not part of it */
    bool all_rows;      /* every row of the span is wanted */
    struct outcome out;
};

struct cart_scheduler {
    const struct cart_model *m;
    const struct cart_tokenizer *t;
    struct cart_pool *pool;
    struct cart_scheduler_options opt; /* with all defaults filled in */
    struct cart_engine *engine;
    struct cart_pages *pages;
    struct cart_lexicon *lexicon;
    uint32_t *stops; /* [n_stops] tokens that end an answer */
    size_t n_stops;
    size_t running;

    /* One step, in the arena. R: rows of logits at most, M: hidden rows at most. */
    struct cart_arena arena;
    size_t R, M, threads;
    struct slot *slots;       /* [opt.slots] */
    struct cart_span *spans;  /* [slots] */
    size_t *wants;            /* [slots] */
    struct slot **order;      /* [slots] */
    size_t *tokens;           /* [slots] prompt tokens of this step */
    float *hidden;            /* [M, D] */
    float *picked;            /* [R, D] rows to be sampled from */
    float *logits;            /* [R, V] */
    struct cart_logsum *sums; /* [R] */
    uint32_t *top_ids;        /* [R, CART_SERVE_TOP_MAX] */
    float *top_values;
    struct cart_logprob *top;               /* [CART_SERVE_TOP_MAX] */
    float *scratch;                         /* [threads, V] adjusted rows */
    struct cart_sampler_scratch **samplers; /* [threads] */

    struct cart_scheduler_counts counts; /* the thread's own */

    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t wake;
    /* Guarded. */
    struct job *jobs, *last; /* all that have not ended, by the time since which none of their
                                choices has been at work */
    size_t n_waiting;        /* of them, those without a choice at work */
    size_t at_work;          /* choices: each has a slot, or is about to end */
    uint64_t next_id;
    bool draining, quit;
    struct cart_scheduler_counts published;
};

/* scheduler.c: under the lock, behind all others; none of its choices is at work. */
void cart_scheduler_job_append(struct cart_scheduler *s, struct job *j);

/* scheduler_submit.c: all that the job owns; NULL is fine. */
void cart_scheduler_job_free(struct job *j);

/* scheduler_step.c: one forward for all slots, sampling, events. */
void cart_scheduler_step(struct cart_scheduler *s);

/* scheduler.c: a choice leaves its slot; the last one of a job ends the job. */
void cart_scheduler_finish(struct cart_scheduler *s, struct slot *slot, enum cart_serve_finish why,
                           const struct cart_err *err);
bool cart_scheduler_is_stop(const struct cart_scheduler *s, const struct job *j, uint32_t id);

#endif
