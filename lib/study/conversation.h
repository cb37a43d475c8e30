/* A conversation: CONV and TARG records of stream/kinds.h parsed, and built. The student's side is
 * ids: a user turn (no BOS, no system turn: a cartridge or a context turn stands before it), the
 * generation prompt, and the answer with its end-of-turn token where the answer is complete. Only
 * tokens inside supervised ranges are learnt; token t is predicted by the row of token t - 1, so no
 * range may begin at 0.
 *
 * HEAD of a conversation or target stream: "conversations": how many records are planned over all
 * shards (records whose answer came out empty are missing, so there may be fewer), "held_out": how
 * many of them are held out; those are the first, n = 0 .. held_out - 1. Records ascend in n. */
#ifndef CART_STUDY_CONVERSATION_H
#define CART_STUDY_CONVERSATION_H

#include "stream/consistency.h"

struct cart_corpus;

struct cart_range { /* half-open */
    size_t first, end;
};

/* What the bots and the teacher see before the conversation. */
enum cart_context_kind {
    CART_CONTEXT_CHUNK,    /* tokens context_span of document doc: the chunk */
    CART_CONTEXT_DOCUMENT, /* tokens context_span of document doc: all of it */
    CART_CONTEXT_CORPUS,   /* tokens context_span of all documents one after another */
};

/* Arrays are owned, and reused from record to record; json values are owned references (or NULL).
 */
struct cart_conversation {
    uint64_t n;
    bool held_out, think;
    const char *seed_type; /* borrowed: from fields (parsed) or the caller (built) */
    size_t doc;
    struct cart_range chunk; /* tokens of doc */
    enum cart_context_kind context;
    struct cart_range context_span;
    json_t *parts; /* array of strings: cartridges visible to the student; empty outside fleets */
    json_t *round; /* integer or null */
    json_t *target_doc; /* integer or null: the document whose cartridge is trained; null outside
                           fleets */
    json_t *messages;   /* array of {"role", "content"} */
    json_t *finish_reasons; /* array of strings, one for each message: "stop", "length", "cut",
                               "given" */

    uint32_t *ids; /* [T] */
    size_t T, ids_cap;
    struct cart_range
        *supervised; /* [n_supervised], ascending, disjoint, not empty, 1 <= first, end <= T */
    size_t n_supervised, supervised_cap;

    /* Targets, where has_targets. Row r supervises token rows[r] of ids; its entries are
     * [offsets[r], offsets[r + 1]). */
    bool has_targets;
    size_t R, E;
    uint32_t *rows;       /* [R], ascending: exactly the supervised tokens */
    size_t *offsets;      /* [R + 1] */
    uint32_t *target_ids; /* [E], distinct within a row */
    float *logprobs;      /* [E], falling within a row, <= 0 */
    float *entropy;       /* [R]: -sum p log p over the row's entries */
    size_t rows_cap, offsets_cap, target_ids_cap, logprobs_cap, entropy_cap;

    json_t *fields; /* of the parsed record; NULL when built */
};

void cart_conversation_init(
    struct cart_conversation *c); /* all empty: parts [], messages NULL, no targets */
void cart_conversation_release(struct cart_conversation *c);

/* Empties c for the next record; memory is kept. */
void cart_conversation_reset(struct cart_conversation *c);

int cart_conversation_push_ids(struct cart_conversation *c, const uint32_t *ids, size_t n,
                               struct cart_err *err) CART_MUST_USE;
int cart_conversation_supervise(struct cart_conversation *c, size_t first, size_t end,
                                struct cart_err *err) CART_MUST_USE;
size_t cart_conversation_supervised(const struct cart_conversation *c); /* tokens */

/* Room for R rows and E entries; existing ones are kept. */
int cart_conversation_reserve_targets(struct cart_conversation *c, size_t R, size_t E,
                                      struct cart_err *err) CART_MUST_USE;

/* Fills c from a CONV or TARG record (c was initialised; what it held is replaced). Everything that
 * the comments above state is checked, ids against V (SIZE_MAX: not), documents and spans against
 * corpus (NULL: not): CART_EFORMAT. what names the stream. */
int cart_conversation_parse(struct cart_conversation *c, const struct cart_record *rec, size_t V,
                            const struct cart_corpus *corpus, const char *what,
                            struct cart_err *err) CART_MUST_USE;

/* Takes c in as the next conversation of what: CART_EFORMAT where it may not follow the one before
 * (stream/consistency.h). */
int cart_conversation_follow(struct cart_conversation_order *order,
                             const struct cart_conversation *c, const char *what,
                             struct cart_err *err) CART_MUST_USE;

/* CART_EFORMAT where c is for a student with several cartridges before it, and not with one. */
int cart_conversation_alone(const struct cart_conversation *c, const char *what,
                            struct cart_err *err) CART_MUST_USE;

/* Appends the payload: of TARG where targets is set (c must have them), else of CONV. */
int cart_conversation_build(struct cart_buf *payload, const struct cart_conversation *c,
                            bool targets, struct cart_err *err) CART_MUST_USE;

#endif
