/* Loss and gradient of a group of conversations behind trainable rows: one packed forward, only
 * supervised rows through the output head, one backward. Sums and gradients are those of the
 * conversations one by one, added in order: packing, micro-batches and recompute change neither.
 * Memory grows to the largest group seen. */
#ifndef CART_STUDY_DISTILL_H
#define CART_STUDY_DISTILL_H

#include "cartridge/trainable.h"
#include "model/head.h"
#include "study/conversation.h"

struct cart_distill_options {
    bool recompute;    /* keep each layer's input alone and run the layer again on the way back */
    bool pack;         /* several conversations in one forward; else one by one */
    size_t max_tokens; /* of one forward; a group beyond it goes in micro-batches (one conversation
                          may be longer) */
};

struct cart_distiller;

int cart_distiller_new(struct cart_distiller **out, const struct cart_model *m,
                       const struct cart_distill_options *opt, struct cart_err *err) CART_MUST_USE;
void cart_distiller_free(struct cart_distiller *d);

/* sums [n]: each conversation's, overwritten. Adds the gradient of the unscaled loss (ce) into
 * t->g. CART_EFORMAT where a loss or gradient is not finite, naming the conversation; CART_EUSAGE
 * where one exceeds the context. t's rows are only read; after a failure t->g is unspecified. */
int cart_distiller_run(struct cart_distiller *d, struct cart_trainable *t,
                       const struct cart_conversation *const *convs, size_t n,
                       struct cart_distill_sums *sums, struct cart_pool *pool,
                       struct cart_err *err) CART_MUST_USE;

size_t cart_distiller_bytes(const struct cart_distiller *d); /* held now */

#endif
