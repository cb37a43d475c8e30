/* Inside of a tokenizer; only for the files of this room. Everything is immutable after
 * cart_tokenizer_new except the whole[] marks, which are idempotent and atomic. */
#ifndef CART_TOKEN_TOKENIZER_IMPL_H
#define CART_TOKEN_TOKENIZER_IMPL_H

#include "base/arena.h"
#include "token/split.h"
#include "token/tokenizer.h"

#include <stdatomic.h>

/* Open addressing with linear probing; 0 marks a free slot (ids are stored plus one). */
struct cart_string_slot {
    uint32_t tag; /* high half of the hash */
    uint32_t id1;
};

struct cart_string_table {
    struct cart_string_slot *slots;
    size_t mask;
};

struct cart_pair_slot {
    uint32_t left, right;
    uint32_t rank1; /* rank + 1, 0: free */
    uint32_t result;
};

struct cart_pair_table {
    struct cart_pair_slot *slots;
    size_t mask;
};

/* What is known about the pieces that are spelt like a token: whether the merges arrive at that one
 * token. */
enum { CART_WHOLE_UNKNOWN, CART_WHOLE_YES, CART_WHOLE_NO };

struct cart_tokenizer {
    struct cart_arena arena; /* from names to whole */
    const char *pre;         /* canonical name, static */
    enum cart_split split;
    bool nfc;           /* the family normalises */
    bool ignore_merges; /* a piece that is a token is taken whole */
    bool add_bos;
    size_t n;                          /* V */
    struct cart_text *names;           /* [V] vocabulary strings, borrowed from the caller */
    unsigned char *types;              /* [V] effective enum cart_token_type */
    char *bytes;                       /* decoded tokens, one after another */
    size_t *offsets;                   /* [V + 1] into bytes */
    struct cart_string_table by_name;  /* every token by its vocabulary string */
    struct cart_string_table by_bytes; /* ordinary byte-alphabet tokens by what they decode to */
    struct cart_pair_table pairs;
    _Atomic unsigned char *whole; /* [V] CART_WHOLE_* */
    size_t longest;               /* bytes of the longest ordinary token */
    uint32_t byte_id[256];        /* the token of each byte, or CART_TOKEN_NONE */
    uint32_t *specials; /* [n_specials] ids whose spelling is recognised, sorted by spelling */
    size_t n_specials;
    size_t special_first[257]; /* specials whose first byte is b: [special_first[b], special_first[b
                                  + 1]) */
    uint32_t *eog;
    size_t n_eog;
    uint32_t bos, eos, eot, pad, unk;
    unsigned char *classes; /* [CART_UNICODE_MAX] */
    char fingerprint[33];
};

/* The token of these bytes among the ordinary ones, or CART_TOKEN_NONE. */
uint32_t cart_token_by_bytes(const struct cart_tokenizer *t, const char *bytes, size_t n);

/* The merge of two tokens, or NULL. */
const struct cart_pair_slot *cart_token_pair(const struct cart_tokenizer *t, uint32_t left,
                                             uint32_t right);

/* Builds names, types, bytes, tables and merges from src. */
int cart_vocab_build(struct cart_tokenizer *t, const struct cart_vocab_source *src,
                     struct cart_err *err) CART_MUST_USE;

/* Whether the token is one of the known markers that end a turn or a text. */
bool cart_vocab_is_end_marker(const struct cart_tokenizer *t, uint32_t id);

/* Byte-level BPE of one piece of text (n >= 1 bytes). Scratch lives from one cart_tokenizer_encode
 * to its end. */
struct cart_bpe_scratch {
    void *memory;
    size_t cap;
};
int cart_bpe_encode(const struct cart_tokenizer *t, const unsigned char *piece, size_t n,
                    struct cart_ids *out, struct cart_bpe_scratch *scratch,
                    struct cart_encode_stats *stats, struct cart_err *err) CART_MUST_USE;

/* The next special token spelt in [p, end), leftmost, longest: where it starts, its id and bytes;
 * or end. Adds to *steps. */
const char *cart_special_find(const struct cart_tokenizer *t, const char *p, const char *end,
                              uint32_t *id, size_t *len, size_t *steps);

/* Appends text under NFC; a text that is in NFC already is not copied: *same is set instead. */
int cart_nfc(const unsigned char *classes, const char *text, size_t n, struct cart_buf *out,
             bool *same, struct cart_err *err) CART_MUST_USE;

#endif
