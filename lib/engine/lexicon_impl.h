/* The trie of a vocabulary, as constraints walk it. Internal to the room. */
#ifndef CART_ENGINE_LEXICON_IMPL_H
#define CART_ENGINE_LEXICON_IMPL_H

#include "engine/constraint.h"

/* Nodes in preorder: the children of node i begin at i + 1, the node after its whole subtree is
 * skip[i]. Node i is reached from its parent (depth[i] - 1) by byte[i]; tokens that end there are
 * tokens[first[i] .. first[i + 1]). Special tokens (control, unknown, user-defined) are none of it:
 * text never spells them. */
struct cart_lexicon {
    const struct cart_tokenizer *t;
    size_t V, n, max_depth;
    uint8_t *byte;   /* [n] */
    uint16_t *depth; /* [n] from 1 */
    uint32_t *skip;  /* [n] */
    uint32_t *first; /* [n + 1] */
    uint32_t *tokens;
    uint32_t *special; /* [n_special] rising */
    size_t n_special;
};

#endif
