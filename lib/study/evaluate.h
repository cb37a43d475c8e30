/* How near a student is to its teacher: the distillation sums of conversations behind any rows,
 * without gradient. The numbers of one conversation don't depend on the others. */
#ifndef CART_STUDY_EVALUATE_H
#define CART_STUDY_EVALUATE_H

#include "model/forward.h"
#include "model/head.h"
#include "study/conversation.h"

struct cart_evaluator;

/* tokens: held at a time, a bound on memory (a longer conversation goes alone; a short one counts
 * as the memory of its rows does, in whole blocks). */
int cart_evaluator_new(struct cart_evaluator **out, const struct cart_model *m, size_t tokens,
                       struct cart_err *err) CART_MUST_USE;
void cart_evaluator_free(struct cart_evaluator *e);
/* What one takes while it runs, where the longest conversation or text has `longest` tokens. */
size_t cart_evaluator_bytes(const struct cart_model *m, size_t tokens, size_t longest);

/* sums [n]: each conversation's, overwritten. parts [n_parts] stand before every conversation.
 * CART_EFORMAT: what the rows give is not a finite number; also of the scores below. */
int cart_evaluator_targets(struct cart_evaluator *e, const struct cart_kv_part *const *parts,
                           size_t n_parts, const struct cart_conversation *const *convs, size_t n,
                           struct cart_distill_sums *sums, struct cart_pool *pool,
                           struct cart_err *err) CART_MUST_USE;

/* One text to score: log-probabilities of the last n_scored tokens of ids [T], each given all
 * before it (T > n_scored). */
struct cart_score {
    const uint32_t *ids;
    size_t T, n_scored;
    double sum; /* out: of the log-probabilities */
};
int cart_evaluator_scores(struct cart_evaluator *e, const struct cart_kv_part *const *parts,
                          size_t n_parts, struct cart_score *scores, size_t n,
                          struct cart_pool *pool, struct cart_err *err) CART_MUST_USE;

#endif
