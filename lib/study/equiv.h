/* The acceptance gate: an untrained cartridge is the real prefill. One side is a single unsplit
 * forward of prefix and suffix that touches no cartridge code. The other captures the prefix's
 * rows, saves them, maps the file again, and feeds the suffix behind it in pieces of 1, 7 and the
 * rest. Both then decode greedily. */
#ifndef CART_STUDY_EQUIV_H
#define CART_STUDY_EQUIV_H

#include "model/model.h"
#include "study/corpus.h"

struct cart_equiv_options {
    /* Rows: the corpus opening in its system turn, as --init corpus; where p has no room for the
     * turn, the first p tokens of the corpus without it. */
    size_t p;
    size_t suffix_max; /* corpus tokens after it, as many as there are up to this */
    size_t steps;      /* greedy tokens of each side */
    const char *dir;   /* where the cartridge is saved, in a file without a name */
};

struct cart_equiv_result {
    size_t suffix;    /* tokens compared */
    double max_delta; /* largest |difference| of a logit; infinite if one side has NaN where the
                         other has not */
    size_t agreed;    /* greedy tokens up to the first that differs */
};

/* What a run takes. */
struct cart_equiv_need {
    size_t suffix;         /* tokens compared */
    size_t memory, disk;   /* bytes beside the model; of the file in dir */
    size_t reads, decodes; /* tokens of all forwards of many, and of one */
};

/* CART_EUSAGE, here and of the run: p leaves no suffix, or all of it exceeds the context. */
int cart_equiv_need(struct cart_equiv_need *out, const struct cart_model *m,
                    const struct cart_corpus *corpus, const struct cart_equiv_options *opt,
                    struct cart_err *err) CART_MUST_USE;
int cart_equiv_run(struct cart_equiv_result *out, const struct cart_model *m,
                   const struct cart_corpus *corpus, const struct cart_equiv_options *opt,
                   struct cart_pool *pool, struct cart_err *err) CART_MUST_USE;

#endif
