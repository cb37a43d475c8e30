/* What bot A is asked for: the eight kinds of conversation. A seed type fixes the form of a message
 * and never its content, which the chunk alone decides. Each has wordings of the instruction and
 * opening words that bot A's message begins with (a small model paraphrases its instruction unless
 * its first words are given). "recite" has no bot A: the user quotes the first words of a sentence
 * and the answer is that sentence. */
#ifndef CART_STUDY_SEEDS_H
#define CART_STUDY_SEEDS_H

#include "base/err.h"

enum cart_seed {
    CART_SEED_STRUCTURING,
    CART_SEED_SUMMARISATION,
    CART_SEED_QUESTION,
    CART_SEED_USE_CASE,
    CART_SEED_CREATIVE,
    CART_SEED_MECHANISM,
    CART_SEED_VERBATIM,
    CART_SEED_RECITE,
    CART_SEEDS,
};

struct cart_seed_type {
    const char *name;
    const char *const *instructions; /* ended by NULL */
    const char *const *openings;     /* ended by NULL */
};

const struct cart_seed_type *cart_seed_type(enum cart_seed seed);

/* The user's message of a recite conversation around a quotation: wordings with one %s. Ended by
 * NULL. */
const char *const *cart_seed_recite_wordings(void);

/* Parses "question,recite:3,mechanism:0.5": types with optional weights (1 where not given) into
 * weights [CART_SEEDS], scaled to sum 1. list NULL: half recite, the other half spread evenly.
 * CART_EUSAGE: unknown or repeated type, bad weight. */
int cart_seed_weights_parse(double weights[CART_SEEDS], const char *list,
                            struct cart_err *err) CART_MUST_USE;

/* The type at place u, in [0, 1), of the weights laid end to end. */
enum cart_seed cart_seed_at(const double weights[CART_SEEDS], double u);

#endif
