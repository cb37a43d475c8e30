/* Where a cartridge's rows come from before training: the model's own keys and values of p tokens,
 * read in one prefill.
 *
 *   spread  one closed system turn whose content is pieces of 16 corpus tokens at even distances,
 *           in order (the last piece may be shorter): what is left out is spread evenly between
 *           them
 *   corpus  one closed system turn whose content is the corpus from its start; with zero steps the
 *           cartridge answers exactly as the real prefill of these p tokens
 *   random  normal numbers with each layer's own deviation of keys and of values, as the bare
 *           system turn has them; row 0 is the model's own, since it is what the frozen sink is for
 *   FILE    a cartridge (its rows), a token stream or a text (as corpus)
 *
 * The turn's open and close ids count among the p rows. A corpus of N tokens gives at most N + open
 * + close rows; more is refused with that number. p 0 asks for CART_INIT_DEFAULT_P rows, or fewer
 * where the corpus is shorter (a cartridge gives the number that it has). */
#ifndef CART_STUDY_INIT_H
#define CART_STUDY_INIT_H

#include "cartridge/trainable.h"
#include "study/corpus.h"

#define CART_INIT_DEFAULT_P ((size_t)256)
#define CART_INIT_PIECE ((size_t)16)

struct cart_chat;
struct cart_ids;

enum cart_init_kind { CART_INIT_SPREAD, CART_INIT_CORPUS, CART_INIT_RANDOM, CART_INIT_FILE };

struct cart_init_options {
    const char *init; /* "spread", "corpus", "random" or the name of a file; NULL: spread */
    size_t p, frozen;
    uint64_t seed;            /* random rows */
    bool allow_other_weights; /* of a cartridge file */
};

/* Which of them init, as in the options, names. */
enum cart_init_kind cart_init_kind_of(const char *init);

/* What was made. */
struct cart_init {
    struct cart_trainable rows;
    json_t *recipe; /* {"init", "p", "frozen", and "init_seed" or "init_digest"}: what the rows are
                       a function of */
    /* Of rows from a file, the stream says nothing: */
    bool of_file;
    char corpus[33]; /* digest of what a token stream held, else "" */
    json_t *said;    /* metadata of the cartridge, or NULL where it was none */
    uint64_t steps;  /* of the cartridge, else 0; and so is the position of its first row */
    size_t first_position;
};

/* Makes rows for m. corpus: the documents of the stream. warning: see cart_cartridge_open.
 * CART_EUSAGE: p does not fit the corpus, the file or the context. */
int cart_init_make(struct cart_init *out, const struct cart_model *m,
                   const struct cart_init_options *opt, const struct cart_corpus *corpus,
                   struct cart_pool *pool, char *warning, size_t warning_cap,
                   struct cart_err *err) CART_MUST_USE;
void cart_init_release(struct cart_init *i);
/* Bytes that making p rows takes, most of which the rows keep. */
size_t cart_init_bytes(const struct cart_model *m, size_t p, size_t frozen);

/* Rows of ids [p] as they are, in no turn: a cartridge too small for one, which cart-equiv
 * judges. */
int cart_init_of_ids(struct cart_init *out, const struct cart_model *m, const uint32_t *ids,
                     size_t p, size_t frozen, struct cart_pool *pool,
                     struct cart_err *err) CART_MUST_USE;

/* The same rows again from the recipe of a cartridge; CART_EMATCH where the recipe needs a file, or
 * kernels or a precision that are not selected. */
int cart_init_remake(struct cart_init *out, const struct cart_model *m, const json_t *recipe,
                     const struct cart_corpus *corpus, struct cart_pool *pool,
                     struct cart_err *err) CART_MUST_USE;

/* Appends the ids of a closed system turn of exactly p ids over tokens [n]: spread, or the opening.
 */
int cart_init_ids(struct cart_ids *out, const struct cart_chat *chat, const uint32_t *tokens,
                  size_t n, size_t p, bool spread, struct cart_err *err) CART_MUST_USE;

/* Runs ids [n] through m and leaves their rows in tail, which is made here (the caller releases
 * it). */
int cart_init_prefill(struct cart_kv_tail *tail, const struct cart_model *m, const uint32_t *ids,
                      size_t n, struct cart_pool *pool, struct cart_err *err) CART_MUST_USE;
size_t cart_init_prefill_bytes(const struct cart_model *m, size_t n); /* while it runs */

/* Metadata of a cartridge of the rows of init after further steps on corpus: profile, wrapper text,
 * corpus digest, recipe, history. What the rows of a cartridge were before stays true of them:
 * steps add up, without any corpus and weights are the old ones, and profile, wrapper, first
 * position and a precision of bf16 stay. New reference. */
int cart_init_describe(json_t **out, const struct cart_model *m, const struct cart_corpus *corpus,
                       const struct cart_init *init, uint64_t steps, const json_t *recipe,
                       const json_t *history, struct cart_err *err) CART_MUST_USE;

/* All corpus tokens as I64, for draft_reference. *out is the caller's to free(). */
int cart_init_draft(int64_t **out, size_t *n, const struct cart_corpus *corpus,
                    struct cart_err *err) CART_MUST_USE;

#endif
