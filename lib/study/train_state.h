/* A training run at rest: C.optimizer.safetensors beside the cartridge C. One file, renamed into
 * place, so that it is whole at any moment: rows (the f32 masters), moments, step, place in the
 * data, metrics so far, and what the run is a function of, all under digests. A run that goes on
 * from it ends in the bytes of a run that never stopped. */
#ifndef CART_STUDY_TRAIN_STATE_H
#define CART_STUDY_TRAIN_STATE_H

#include "cartridge/trainable.h"
#include "stream/safetensors.h"
#include "study/feed.h"

struct cart_train_state {
    uint64_t step;
    struct cart_feed_mark mark;
    struct cart_buf metrics; /* JSON lines, owned */
};

/* identity: a JSON object whose recipe says steps and accum. t's rows and moments, state and
 * identity go to path. CART_EFORMAT: rows that are not finite; path stays as it is. */
int cart_train_state_save(const char *path, const struct cart_trainable *t,
                          const struct cart_train_state *state, const json_t *identity,
                          struct cart_err *err) CART_MUST_USE;

/* 1: t and state were filled (t has its size; release state->metrics); 0: there is no such file.
 * CART_EMATCH names the first key of identity that differs; CART_EFORMAT the damaged part of a
 * file. */
int cart_train_state_load(const char *path, struct cart_trainable *t,
                          struct cart_train_state *state, const json_t *identity,
                          struct cart_err *err) CART_MUST_USE;

/* Whether the image says that it is such a state; and whether all of its digests hold and a run of
 * its identity can be where it says: CART_EFORMAT names the part. */
bool cart_train_state_is(const struct cart_st *st);
int cart_train_state_check(const struct cart_st *st, const char *what,
                           struct cart_err *err) CART_MUST_USE;

#endif
