/* Between the two files that read tokenizer.json. */
#ifndef CART_TOKEN_TOKENIZER_JSON_IMPL_H
#define CART_TOKEN_TOKENIZER_JSON_IMPL_H

#include "token/tokenizer_json.h"

/* The name of the pre-tokenizer (static) that the normalizer, the pre-tokenizer and ignore_merges
 * of the file amount to; *nfc: the family normalises. */
int cart_vocab_json_family(const json_t *root, const char **pre, bool *nfc, const char *what,
                           struct cart_err *err) CART_MUST_USE;

/* The decoder must join bytes, and the post-processor may put one token before a text: *first is
 * its spelling, borrowed, or NULL. */
int cart_vocab_json_ends(const json_t *root, const char **first, const char *what,
                         struct cart_err *err) CART_MUST_USE;

#endif
