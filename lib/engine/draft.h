/* Guesses of what comes next, from text that is at hand: the reference of a cartridge, or a
 * stream's own prompt and answer. An index finds where the last tokens of a context occurred
 * before, the longest such place (the latest, of equal ones), and proposes what followed there. A
 * guess only saves time: each proposed token is checked against the model's own choice, so that an
 * answer never depends on an index.
 *
 * An index that no longer grows is shared by all threads. */
#ifndef CART_ENGINE_DRAFT_H
#define CART_ENGINE_DRAFT_H

#include "base/err.h"

#define CART_DRAFT_KEY ((size_t)3)  /* tokens that must agree at least */
#define CART_DRAFT_MAX ((size_t)32) /* tokens proposed at most */

struct cart_draft;

int cart_draft_new(struct cart_draft **out, struct cart_err *err) CART_MUST_USE;
void cart_draft_free(struct cart_draft *d);

/* Appends ids [n] to the text. On failure (memory) the index is as it was, or holds the first of
 * them. */
int cart_draft_add(struct cart_draft *d, const uint32_t *ids, size_t n,
                   struct cart_err *err) CART_MUST_USE;

size_t cart_draft_bytes(const struct cart_draft *d);

/* Proposes at most max (<= CART_DRAFT_MAX) tokens to follow context [n], into out; returns how
 * many. *matched: how many tokens before agree. */
size_t cart_draft_find(const struct cart_draft *d, const uint32_t *context, size_t n, size_t max,
                       uint32_t *out, size_t *matched);

#endif
