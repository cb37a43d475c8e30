/* Which chunk, which kind of message and which context conversation n has: a pure function of
 * (corpus, options, seed, n), so that shards, batches and the number of conversations change
 * nothing. Places and kinds follow a two-dimensional low-discrepancy sequence (additive, by the
 * golden ratio and the root of 2), so that every beginning of the run covers the corpus evenly, and
 * each kind of message too. A chunk lies inside one document, never splits a character, and begins
 * and ends at a sentence or line where one is near.
 *
 * Conversations 0 .. held_out - 1 are held out. Where the corpus has at least eight times chunk_max
 * tokens, regions of chunk_max tokens at even distances, together at most an eighth of it, are kept
 * for them: no training chunk touches those (a document that serves whole as a context still shows
 * them, but is never asked about them). On a shorter corpus they are held out by their questions
 * only. Held-out conversations are of the other kinds in their mix than recite, unless there is no
 * other. */
#ifndef CART_STUDY_PLAN_H
#define CART_STUDY_PLAN_H

#include "study/conversation.h"
#include "study/corpus.h"
#include "study/seeds.h"

struct cart_model;
struct cart_plan;

enum cart_context_choice {
    CART_CHOOSE_AUTO,
    CART_CHOOSE_CHUNK,
    CART_CHOOSE_DOCUMENT,
    CART_CHOOSE_CORPUS
};

struct cart_plan_options {
    size_t chunk_min, chunk_max; /* tokens, 1 <= min <= max */
    size_t held_out;
    size_t max_q,
        max_a; /* tokens of bot A's message and of the answer: what must fit beside the context */
    uint64_t seed;
    double weights[CART_SEEDS];
    enum cart_context_choice context; /* auto: the document where it fits, else the chunk */
};

struct cart_plan_item {
    uint64_t n;
    bool held_out;
    enum cart_seed seed;
    size_t doc;
    struct cart_range chunk; /* tokens of doc, not empty */
    enum cart_context_kind context;
    struct cart_range context_span;
    bool starts_clean,
        ends_clean; /* the chunk begins, ends at a sentence, a line, or the document's edge */
};

/* corpus is borrowed. CART_EUSAGE where a context cannot fit the model's context (numbers in the
 * message); CART_EFORMAT for a corpus without a token. */
int cart_plan_new(struct cart_plan **out, const struct cart_corpus *corpus,
                  const struct cart_model *m, const struct cart_plan_options *opt,
                  struct cart_err *err) CART_MUST_USE;
void cart_plan_free(struct cart_plan *p);

void cart_plan_at(const struct cart_plan *p, uint64_t n, struct cart_plan_item *item);

/* How many regions are kept for the held-out conversations; 0: held out by questions only. */
size_t cart_plan_regions(const struct cart_plan *p);

/* Coverage of conversations [first, end): the share of the corpus in at least one of their chunks,
 * and in how many chunks a token of the corpus is on average. */
int cart_plan_coverage(const struct cart_plan *p, uint64_t first, uint64_t end, double *share,
                       double *times, struct cart_err *err) CART_MUST_USE;

#endif
