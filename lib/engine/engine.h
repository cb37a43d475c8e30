/* What every run of a model shares: the model, the pool, a workspace, and a cache of prefilled
 * prefixes. A prefix is the keys and values of some ids at the start of a context (a document in a
 * context turn), computed once and then read by any number of streams. One thread of control owns
 * an engine. No result depends on what the cache holds. */
#ifndef CART_ENGINE_ENGINE_H
#define CART_ENGINE_ENGINE_H

#include "model/forward.h"

#define CART_ENGINE_PIECE ((size_t)512) /* tokens of one forward call */

struct cart_engine;
struct cart_prefix;

/* m and pool are borrowed. kv: the type of the rows of prefixes and dialogues, F32, F16 or BF16,
 * each a class of results of its own (model/kv.h). cache_bytes: how much memory prefixes may keep
 * that nobody holds. */
int cart_engine_new(struct cart_engine **out, const struct cart_model *m, int kv,
                    struct cart_pool *pool, size_t cache_bytes, struct cart_err *err) CART_MUST_USE;
void cart_engine_free(struct cart_engine *e); /* every prefix has been released */

const struct cart_model *cart_engine_model(const struct cart_engine *e);
struct cart_pool *cart_engine_pool(const struct cart_engine *e);
int cart_engine_kv(const struct cart_engine *e);

/* cart_forward over the engine's workspace. */
int cart_engine_forward(struct cart_engine *e, const struct cart_span *spans, size_t n,
                        float *hidden, struct cart_err *err) CART_MUST_USE;

/* The prefix of ids [n], n > 0: prefilled now unless the cache has it. Each acquire needs a
 * release. CART_EUSAGE: longer than the model's context. */
int cart_prefix_acquire(struct cart_engine *e, const uint32_t *ids, size_t n,
                        struct cart_prefix **out, struct cart_err *err) CART_MUST_USE;
void cart_prefix_release(struct cart_engine *e, struct cart_prefix *p);   /* NULL is fine */
const struct cart_kv_part *cart_prefix_part(const struct cart_prefix *p); /* valid while held */

/* For reports: tokens prefilled into prefixes. An acquire that finds its prefix ready adds none. */
size_t cart_engine_prefilled(const struct cart_engine *e);

/* One stream: parts that it shares and rows of its own. */
struct cart_session {
    const struct cart_kv_part *const *parts; /* borrowed: array and parts */
    size_t n_parts;
    struct cart_kv_tail tail;
};

/* cap: rows of its own to begin with, of type dtype. */
int cart_session_init(struct cart_session *s, const struct cart_model *m, int dtype,
                      const struct cart_kv_part *const *parts, size_t n_parts, size_t cap,
                      struct cart_err *err) CART_MUST_USE;
void cart_session_release(struct cart_session *s);
/* Forgets its own rows and stands behind other parts from now on; memory is kept. */
void cart_session_restart(struct cart_session *s, const struct cart_kv_part *const *parts,
                          size_t n_parts);
/* Makes room for n more rows; what is there is kept. */
int cart_session_reserve(struct cart_session *s, const struct cart_model *m, size_t n,
                         struct cart_err *err) CART_MUST_USE;
struct cart_kv cart_session_kv(struct cart_session *s);
size_t cart_session_rows(const struct cart_session *s); /* parts and own */

#endif
