/* What training eats: the conversations of a target stream, in an order that is a function of the
 * stream and the seed. Held-out conversations come first in a stream and are kept. Epoch 1 is in
 * stream order, as the stream arrives; every record is also spooled to an unlinked file, from which
 * each further epoch is read in a shuffle of its own (seed, epoch). The sequence of epochs never
 * ends: groups may straddle two of them. */
#ifndef CART_STUDY_FEED_H
#define CART_STUDY_FEED_H

#include "model/model.h"
#include "study/conversation.h"
#include "study/corpus.h"

struct cart_feed_options {
    const char *spool_dir; /* folder of the spool file */
    uint64_t seed;         /* of the shuffles */
    bool allow_other_weights;
};

struct cart_feed;

/* Opens the stream ("-": standard input), reads its documents and held-out conversations.
 * CART_EMATCH: targets of another model; CART_EFORMAT: a conversation of a fleet, or one without
 * supervised tokens. */
int cart_feed_open(struct cart_feed **out, const char *path, const struct cart_model *m,
                   const struct cart_feed_options *opt, struct cart_err *err) CART_MUST_USE;
void cart_feed_close(struct cart_feed *f);

/* Says how many rows stand before each conversation. CART_EUSAGE, here of those read already and
 * later of any that is read: one does not fit the model's context behind them. */
int cart_feed_stand_behind(struct cart_feed *f, size_t p, struct cart_err *err) CART_MUST_USE;

/* All borrowed. */
const json_t *cart_feed_head(const struct cart_feed *f);
const struct cart_corpus *cart_feed_corpus(const struct cart_feed *f);
const struct cart_conversation *const *cart_feed_held_out(const struct cart_feed *f, size_t *n);

/* Training conversations that HEAD announces, or that were read if END has come; 0: unknown. */
size_t cart_feed_planned(const struct cart_feed *f);

/* The next training conversation into c. CART_ETRUNC where the stream ends without END. */
int cart_feed_next(struct cart_feed *f, struct cart_conversation *c,
                   struct cart_err *err) CART_MUST_USE;

/* Reads on to END (spooling), so that everything after it may be published. */
int cart_feed_finish(struct cart_feed *f, struct cart_err *err) CART_MUST_USE;

/* Where the sequence stands: conversations taken, records read, whether END was, and the digest of
 * those records. */
struct cart_feed_mark {
    uint64_t taken, read;
    bool ended;
    char digest[33];
};
void cart_feed_tell(const struct cart_feed *f, struct cart_feed_mark *mark);
/* Goes on from a mark of an earlier run on the same stream; call before the first cart_feed_next.
 * CART_EMATCH where the records are others. */
int cart_feed_seek(struct cart_feed *f, const struct cart_feed_mark *mark,
                   struct cart_err *err) CART_MUST_USE;

/* Puts the sequence back to an earlier number of conversations taken by this run. */
void cart_feed_rewind(struct cart_feed *f, uint64_t taken);

/* Digest of the whole stream, after END. Hex. */
void cart_feed_digest(const struct cart_feed *f, char out[33]);

size_t cart_feed_spooled(const struct cart_feed *f); /* bytes */

#endif
