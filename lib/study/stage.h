/* Where a long stage of the pipeline writes its stream: to standard output as it comes, or to
 * FILE.part, which becomes FILE when END is written and from which a stopped run goes on. */
#ifndef CART_STUDY_STAGE_H
#define CART_STUDY_STAGE_H

#include "base/io.h"
#include "study/conversation.h"
#include "study/corpus.h"

struct cart_stage_digest {
    unsigned char bytes[16];
};

struct cart_stage {
    struct cart_stream_writer *w;
    struct cart_output out; /* standard output; unused with a file */
    char *path, *part;      /* FILE and FILE.part, owned; NULL for standard output */
    int fd;
    bool resumed; /* FILE.part was there and was to be gone on with */
    /* What FILE.part held already. */
    size_t docs, conversations;
    uint64_t next_n;                /* one more than the last conversation's n; 0 without one */
    struct cart_stage_digest *kept; /* [n_kept] of its conversations without their targets */
    size_t n_kept, kept_cap, skipped;
    /* During the call that replays FILE.part. */
    const struct cart_corpus *corpus;
    const struct cart_model *model; /* that makes the conversations */
    struct cart_conversation_order order;
    struct cart_conversation scratch;
    struct cart_buf payload; /* scratch of cart_stage_write */
};

/* How many conversations path's FILE.part holds that can be gone on from, for who would know before
 * (0 where there is none), and one more than the last one's n. Nothing is claimed or changed. */
int cart_stage_peek(const char *path, size_t *conversations, uint64_t *next_n,
                    struct cart_err *err) CART_MUST_USE;

/* m, borrowed like corpus, is what the conversations are made with. path NULL or "-": standard
 * output, refused when it is a terminal. head: as for cart_stream_create. resume: goes on from
 * FILE.part where there is one: its HEAD and documents must be those of this run (CART_EMATCH).
 * CART_EAGAIN: another process is writing FILE.part. Writes the documents that are not there
 * yet. */
int cart_stage_open(struct cart_stage *s, const struct cart_model *m, const char *path,
                    const json_t *head, int level, bool resume, const struct cart_corpus *corpus,
                    struct cart_err *err) CART_MUST_USE;

/* For a stage that makes each of its input's conversations into one of its own: 1 where FILE.part
 * already holds the next one, c, 0 where all that it holds were skipped. CART_EMATCH: it holds
 * another in c's place, or (c NULL: the input has ended) more than the input. */
int cart_stage_skip(struct cart_stage *s, const struct cart_conversation *c,
                    struct cart_err *err) CART_MUST_USE;

/* One conversation, as TARG where it has targets. CART_EAGAIN where the model was changed
 * meanwhile: it may have been made with something else. */
int cart_stage_write(struct cart_stage *s, const struct cart_conversation *c,
                     struct cart_err *err) CART_MUST_USE;

/* END, fsync, rename. Releases s, also on failure (FILE.part then stays). */
int cart_stage_commit(struct cart_stage *s, struct cart_err *err) CART_MUST_USE;

/* No END. FILE.part stays if keep and it holds a conversation or was there before: true. Safe on a
 * zeroed or released stage. */
bool cart_stage_abandon(struct cart_stage *s, bool keep);

#endif
