/* How long a stage will take: a short calibration on the machine at hand. Words for people, never
 * part of a result. */
#ifndef CART_STUDY_ESTIMATE_H
#define CART_STUDY_ESTIMATE_H

#include "engine/engine.h"
#include "study/conversation.h"
#include "study/corpus.h"
#include "study/plan.h"

/* A stretch of work, timed beside other programs. */
struct cart_lap {
    double wall, cpu; /* clocks at its beginning */
    double threads;   /* that can run at a time */
};
void cart_lap_begin(struct cart_lap *l, size_t threads);
/* The seconds since begin: by the wall clock, or, where the threads ran for less than
 * CART_BUSY_SHARE of those, the CPU time that each took, which is the time on an idle machine.
 * *share: lowered to the share of the time for which they ran; begin it with 1. */
double cart_lap_end(const struct cart_lap *l, double *share);

#define CART_BUSY_SHARE 0.75

/* What to say to a user of times measured with that share; false: nothing. */
bool cart_busy_words(double share, char *out, size_t cap);

struct cart_rates {
    double prefill; /* tokens a second, one stream */
    double decode;  /* tokens a second over all streams together, logits included */
    double share;   /* as cart_lap_end has it */
};

/* Runs one prompt of at most 256 tokens (fewer where the model's context is shorter, or time runs
 * away) and some decode steps of `streams` streams behind it. Takes about a second on the models of
 * the demo, a few on a busy machine. */
int cart_estimate_rates(struct cart_engine *e, size_t streams, struct cart_rates *out,
                        struct cart_err *err) CART_MUST_USE;

/* Contexts of conversations: a document or the corpus is read once and its rows stay in the cache,
 * however many conversations see it; a chunk is read for each. */
struct cart_contexts {
    const struct cart_corpus *corpus;
    bool *seen;  /* [n_docs + 1], the last of the corpus */
    size_t kept; /* rows of documents and the corpus, each once, as their memory has room for */
};
int cart_contexts_init(struct cart_contexts *c, const struct cart_corpus *corpus,
                       struct cart_err *err) CART_MUST_USE;
void cart_contexts_release(struct cart_contexts *c);
/* One more conversation. */
void cart_contexts_add(struct cart_contexts *c, enum cart_context_kind context, size_t doc,
                       struct cart_range span);
/* Bytes of their rows in a cache that may take limit; also after the release. */
size_t cart_contexts_bytes(const struct cart_contexts *c, const struct cart_model *m, size_t limit);

/* What self-study of conversations [first, end) of a plan of opt would do, and with targets the
 * teacher after it. */
struct cart_study_work {
    double spoken;                 /* conversations that are decoded */
    double read, written;          /* tokens */
    size_t chunk;                  /* tokens of the longest chunk that is decoded about */
    size_t chunks;                 /* tokens of all chunks that are the teacher's context */
    struct cart_contexts contexts; /* released */
};
int cart_estimate_study(struct cart_study_work *out, const struct cart_plan *plan,
                        const struct cart_plan_options *opt, const struct cart_corpus *corpus,
                        uint64_t first, uint64_t end, bool targets,
                        struct cart_err *err) CART_MUST_USE;
/* Bytes of the chunks that batch conversations are decoded about together, at most. */
size_t cart_study_chunk_bytes(const struct cart_study_work *w, const struct cart_model *m,
                              size_t batch);

#endif
