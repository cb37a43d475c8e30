/* The hub's tokenizer.json as a vocabulary source: byte-level BPE with the pre-tokenizers of
 * tokenizer.h, each recognised by its exact expression. What would tokenise another way than this
 * library does is refused by name: other models, normalizers, pre-tokenizers, post-processors and
 * decoders; a part of the model that is not plain BPE; added tokens that take white space or whole
 * words, or that are looked for in normalised text where the family normalises.
 *
 * Read as a converter to GGUF would write it, so that both forms of a model have one fingerprint:
 * ids that no token has are [PADn], unused; an added token is control where it is special, else
 * user-defined; merges are "left right" whether they come so or as pairs. truncation, padding,
 * unk_token and the trimming of offsets do not matter here. */
#ifndef CART_TOKEN_TOKENIZER_JSON_H
#define CART_TOKEN_TOKENIZER_JSON_H

#include "base/json.h"
#include "token/tokenizer.h"

struct cart_vocab_json {
    struct cart_vocab_source src; /* points into the rest; the special ids are -1, add_bos false */
    uint32_t first; /* the token that the post-processor puts before a text, or CART_TOKEN_NONE */
    struct cart_text *tokens, *merges;
    int32_t *types;
    char *text; /* the bytes of all strings */
};

/* root is the parsed file and may go afterwards; n_tokens the rows of the embedding, at most
 * CART_TOKENIZER_MAX_VOCAB, which every id must be below; what names the file in messages. On
 * success out is the caller's to release, after the tokenizer that is made from it. */
int cart_vocab_json_read(struct cart_vocab_json *out, const json_t *root, size_t n_tokens,
                         const char *what, struct cart_err *err) CART_MUST_USE;
void cart_vocab_json_release(struct cart_vocab_json *v); /* a zeroed one is fine */

/* The id of a token by its spelling, or CART_TOKEN_NONE; looks through all of them. */
uint32_t cart_vocab_json_find(const struct cart_vocab_json *v, const char *token);

#endif
