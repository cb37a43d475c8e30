/* A conversation with one user: turns are fed behind a session's parts, answers come out as whole
 * UTF-8 characters while they are decoded, and the keys and values of all that was said are kept
 * for the next turn. One thread of control. */
#ifndef CART_ENGINE_DIALOGUE_H
#define CART_ENGINE_DIALOGUE_H

#include "engine/batch.h"
#include "token/chat.h"

struct cart_dialogue;

/* Called with text as it becomes whole; < 0 ends the answer with that error. */
typedef int cart_dialogue_fn(void *ctx, const char *text, size_t n, struct cart_err *err);

struct cart_dialogue_answer {
    size_t prompt, tokens; /* fed before the first token; decoded */
    double first, seconds; /* until the first token; in all */
    size_t rows;           /* that the answer's last token could see: shared and own */
    size_t kv_bytes;       /* of those rows */
    enum cart_finish finish;
};

/* parts [n_parts] are borrowed until free. behind: they stand for the beginning of the conversation
 * (a cartridge, a context turn), so that no BOS and no default system turn is written. */
int cart_dialogue_new(struct cart_dialogue **out, struct cart_engine *e,
                      const struct cart_kv_part *const *parts, size_t n_parts, bool behind,
                      struct cart_err *err) CART_MUST_USE;
void cart_dialogue_free(struct cart_dialogue *d);

/* One turn of the user, one answer. sampling->n is set to the number of the turn. fn may be NULL.
 * CART_EUSAGE: the turn leaves no room in the model's context (what was said before is kept).
 * CART_EFORMAT: logits that are not finite. */
int cart_dialogue_ask(struct cart_dialogue *d, const char *text, size_t n,
                      const struct cart_sampling *sampling, size_t max_tokens, cart_dialogue_fn *fn,
                      void *ctx, struct cart_dialogue_answer *out,
                      struct cart_err *err) CART_MUST_USE;

#endif
