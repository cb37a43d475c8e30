/* The teacher: the frozen model with the text really in its context, teacher-forced over
 * conversations. For each supervised token it keeps the most likely tokens of the row before it,
 * falling, ties to the lower id: the smallest prefix whose probability reaches mass (the crossing
 * entry included), at most top_k. Log-probabilities are not renormalised. A context turn is
 * prefilled once and shared by all conversations on it. What comes out does not depend on how many
 * conversations go through together. One thread of control. */
#ifndef CART_STUDY_TEACHER_H
#define CART_STUDY_TEACHER_H

#include "engine/engine.h"
#include "study/context.h"

#define CART_TEACHER_BATCH ((size_t)16) /* conversations in one forward */
#define CART_TEACHER_ROWS                                                                          \
    ((size_t)8192) /* rows of different context turns held at once, unless one alone has more */

struct cart_teacher_options {
    size_t top_k; /* 1 .. CART_TEACHER_MAX_K */
    double mass;  /* in (0, 1] */
};

#define CART_TEACHER_MAX_K ((size_t)256)
#define CART_TEACHER_DEFAULTS                                                                      \
    {                                                                                              \
        20, 0.99                                                                                   \
    }

struct cart_teacher;

/* Called with conversations that have their targets, in the order of cart_teacher_push; c is lent
 * for the call. */
typedef int cart_teacher_fn(void *ctx, const struct cart_conversation *c, struct cart_err *err);

/* e, chat and corpus are borrowed. */
int cart_teacher_new(struct cart_teacher **out, struct cart_engine *e, const struct cart_chat *chat,
                     const struct cart_corpus *corpus, const struct cart_teacher_options *opt,
                     cart_teacher_fn *fn, void *ctx, struct cart_err *err) CART_MUST_USE;
void cart_teacher_free(struct cart_teacher *t);

/* Takes c over (what c holds afterwards is empty and reusable); runs the batch when it is full.
 * CART_EUSAGE: a conversation that exceeds the model's context; CART_EFORMAT: logits that are not
 * finite (the conversation is named). */
int cart_teacher_push(struct cart_teacher *t, struct cart_conversation *c,
                      struct cart_err *err) CART_MUST_USE;
int cart_teacher_flush(struct cart_teacher *t, struct cart_err *err) CART_MUST_USE;

/* Memory beside the engine's and its cache, at most: of n conversations of up to longest tokens
 * each, whose context turns have so many rows that the cache does not keep. */
size_t cart_teacher_bytes(const struct cart_model *m, size_t n, size_t longest, size_t rows);

/* The options as the history of a stream states them. New reference. */
json_t *cart_teacher_options_json(const struct cart_teacher_options *opt);

#endif
