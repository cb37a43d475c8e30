/* How good cartridges are, beside what they replace. Every arm answers the same conversations and
 * questions:
 *
 *   bare        no rows
 *   whole text  the corpus as a closed system turn, where it fits the model's context
 *   text P      the opening of the corpus, cut so that the turn takes the cartridge's p rows
 *   untrained   the cartridge before its first step, remade from its recipe
 *   cartridges  the given ones, each alone
 *
 * Of the conversations: KL to the teacher, cross-entropy and top-1 agreement, per supervised token.
 * Of the questions: recall, the share answered right (the answer's mean log-probability per token
 * above that of every wrong one), and the mean over questions of the answer's mean log-probability,
 * also split by whether the text that answers lies within the opening p tokens of the corpus (p of
 * the first cartridge) or beyond. Differences to bare and to untrained come with paired bootstrap
 * intervals. */
#ifndef CART_STUDY_EVAL_H
#define CART_STUDY_EVAL_H

#include "cartridge/cartridge.h"
#include "study/bootstrap.h"
#include "study/corpus.h"
#include "study/questions.h"

struct cart_eval_recall {
    size_t n, judged, right; /* questions; those with wrong options; of these, answered right */
    double answer;           /* mean log-probability; 0 where n is 0 */
};

struct cart_eval_differences { /* this arm minus the other; present: the other is in the table and
                                  not this one */
    bool present;
    struct cart_interval kl, right, answer, answer_beyond;
    bool has_kl, has_right, has_answer, has_beyond;
};

struct cart_eval_arm {
    char *name; /* owned */
    size_t rows, bytes;
    double kl, ce, top1;
    struct cart_eval_recall all, within, beyond;
    struct cart_eval_differences to_bare, to_untrained;
};

struct cart_eval {
    struct cart_eval_arm *arms; /* [n] */
    size_t n, cap;
    size_t conversations, tokens; /* supervised tokens */
    bool held_out; /* the conversations are the held-out ones; else all of the stream */
    size_t questions, within, beyond, unlocated, opening; /* opening: tokens that count as within */
    size_t other_corpus; /* cartridges made of another corpus than the stream's */
    uint64_t seed;
    struct cart_buf notes; /* lines about arms that are missing, and why */
};

struct cart_eval_options {
    const struct cart_cartridge *const *cartridges; /* [n_cartridges] */
    size_t n_cartridges;
    const char *questions; /* file, or NULL */
    uint64_t seed;         /* of the resamples */
    bool allow_other_weights;
};

/* Called before each arm. */
typedef void cart_eval_progress_fn(void *ctx, const char *arm);

/* input: a target stream, read to its END before anything is computed. */
int cart_eval_run(struct cart_eval *out, const struct cart_model *m, const char *input,
                  const struct cart_eval_options *opt, cart_eval_progress_fn *progress, void *ctx,
                  struct cart_pool *pool, struct cart_err *err) CART_MUST_USE;
void cart_eval_release(struct cart_eval *e);

/* What cart_eval_run would take: the stream is read, and one batch of it run for its time. */
struct cart_eval_need {
    size_t students, conversations, questions;
    size_t read;           /* tokens of rows that a prefill gives, of all students */
    size_t judged;         /* tokens of conversations and options, of each student */
    size_t memory;         /* bytes beside the model */
    double seconds;        /* about */
    double share;          /* as cart_lap_end has it (study/estimate.h) */
    struct cart_buf notes; /* as in cart_eval; the caller's to release */
};
int cart_eval_need(struct cart_eval_need *out, const struct cart_model *m, const char *input,
                   const struct cart_eval_options *opt, struct cart_pool *pool,
                   struct cart_err *err) CART_MUST_USE;

/* The table for people, and the same as one JSON object (new reference). */
int cart_eval_table(const struct cart_eval *e, struct cart_buf *out,
                    struct cart_err *err) CART_MUST_USE;
int cart_eval_json(json_t **out, const struct cart_eval *e, struct cart_err *err) CART_MUST_USE;

#endif
