/* Text to token ids and back, exactly as the model was trained: byte-level BPE ("gpt2") with the
 * pre-tokenizers smollm, qwen2 and llama-bpe; Unicode 15.0 tables; NFC first where the family has
 * it (qwen2).
 *
 * A tokenizer is built from a vocabulary that the caller has read from a model file; its strings
 * are borrowed and must outlive it. After cart_tokenizer_new it is shared freely between threads.
 * No function adds a BOS: who wants one pushes cart_tokenizer_bos(). Time is linear in the text (n
 * log n within one piece), the stack constant, lengths size_t.
 *
 * Plain text never yields a control or unknown token, whatever it looks like, and a user-defined
 * one only where the vocabulary's own merges arrive at it: what looks like one of these is counted
 * (stats->lookalikes) and tokenised as text. With CART_ENCODE_SPECIAL such tokens are recognised in
 * one scan from left to right, the longest at each place. Bytes that are not UTF-8 are kept as they
 * are, one symbol each, so that decoding gives the normalised text back byte for byte; only a byte
 * that the vocabulary has no token for is lost (stats->dropped). Printable ASCII and the newline
 * always have one.
 */
#ifndef CART_TOKEN_TOKENIZER_H
#define CART_TOKEN_TOKENIZER_H

#include "base/buf.h"
#include "base/err.h"

#define CART_TOKENIZER_MAX_VOCAB ((size_t)1 << 22)
/* Bytes of a control, user-defined or unknown token. A text may begin one at each of its bytes, so
 * this bounds the work for each; those of real vocabularies are shorter by far. */
#define CART_TOKENIZER_MAX_SPECIAL ((size_t)256)
#define CART_TOKEN_NONE UINT32_MAX /* no such id */

/* A borrowed string; may hold any byte. */
struct cart_text {
    const char *data;
    size_t n;
};

enum cart_token_type {
    CART_TOKEN_NORMAL = 1,
    CART_TOKEN_UNKNOWN = 2,
    CART_TOKEN_CONTROL = 3,
    CART_TOKEN_USER_DEFINED = 4,
    CART_TOKEN_UNUSED = 5,
    CART_TOKEN_BYTE = 6,
};

/* What a model file says about its vocabulary. The strings (not the struct, nor its arrays) must
 * outlive the tokenizer. */
struct cart_vocab_source {
    const char *model; /* "gpt2" */
    const char *pre;   /* "smollm", "qwen2", "llama-bpe" or one of their known aliases */
    const struct cart_text *tokens; /* [n_tokens], in id order */
    size_t n_tokens;
    const int32_t *types; /* [n_tokens] of enum cart_token_type, or NULL */
    size_t n_types;       /* as found in the file; must equal n_tokens unless types is NULL */
    const struct cart_text *merges; /* [n_merges] "left right", by falling priority */
    size_t n_merges;
    /* Both lists again where the caller has them in one piece, each string behind its length in
     * eight bytes, little-endian, which is how the fingerprint takes them; or {NULL, 0}. */
    struct cart_text tokens_stored, merges_stored;
    int64_t bos, eos, eot, pad, unk; /* ids, or -1 */
    bool add_bos;                    /* raw prompts start with bos */
    const uint32_t *eog;             /* [n_eog] more ids that end a text, or NULL */
    size_t n_eog;
};

/* A growable array of ids. Start with CART_IDS_INIT. */
struct cart_ids {
    uint32_t *data;
    size_t n;
    size_t cap;
};

#define CART_IDS_INIT                                                                              \
    {                                                                                              \
        NULL, 0, 0                                                                                 \
    }

int cart_ids_push(struct cart_ids *ids, uint32_t id, struct cart_err *err) CART_MUST_USE;
int cart_ids_add(struct cart_ids *ids, const uint32_t *more, size_t n,
                 struct cart_err *err) CART_MUST_USE;
void cart_ids_release(struct cart_ids *ids);

struct cart_tokenizer;

/* Whether raw prompts start with bos where a file has one, names this pre-tokenizer and says
 * nothing. */
bool cart_tokenizer_family_adds_bos(const char *pre);

/* CART_EFORMAT: unknown model or pre-tokenizer (named), ids or types out of range, a token twice, a
 * byte without a token, a special token that is too long, a merge that is not two tokens and one
 * space or whose result is no ordinary token. */
int cart_tokenizer_new(struct cart_tokenizer **out, const struct cart_vocab_source *src,
                       struct cart_err *err) CART_MUST_USE;
void cart_tokenizer_free(struct cart_tokenizer *t);

enum {
    CART_ENCODE_SPECIAL = 1
}; /* recognise control, user-defined and unknown tokens in the text */

/* Each call adds to the counts; zero it first. */
struct cart_encode_stats {
    size_t lookalikes;  /* special tokens spelt in plain text and neutralised */
    size_t scan_steps;  /* code points looked at by the pre-tokenizer, and bytes that agree with the
                           beginning of a special token */
    size_t merge_steps; /* pair look-ups and queue moves of the merge loop */
    size_t
        dropped; /* bytes that the vocabulary has no token for; they are left out, as in training */
};

/* Appends the ids of text [n bytes]. stats may be NULL. On failure (CART_ESYS: memory;
 * CART_EFORMAT: one piece of 2 GiB or more) out is as it was. */
int cart_tokenizer_encode(const struct cart_tokenizer *t, const char *text, size_t n,
                          unsigned flags, struct cart_ids *out, struct cart_encode_stats *stats,
                          struct cart_err *err) CART_MUST_USE;

/* Appends the text that encode works on: NFC where the family normalises, the text itself
 * elsewhere. Decoding the (plain) ids of a text gives exactly this. */
int cart_tokenizer_normalize(const struct cart_tokenizer *t, const char *text, size_t n,
                             struct cart_buf *out, struct cart_err *err) CART_MUST_USE;

/* Appends the bytes of ids one after the other, nothing added or cleaned. Control tokens give
 * nothing unless special; their spelling otherwise. Ids out of range are CART_EFORMAT. */
int cart_tokenizer_decode(const struct cart_tokenizer *t, const uint32_t *ids, size_t n,
                          bool special, struct cart_buf *out, struct cart_err *err) CART_MUST_USE;

/* The bytes one token stands for (a control token: its spelling); borrowed, not terminated. {NULL,
 * 0} if out of range. */
struct cart_text cart_tokenizer_bytes(const struct cart_tokenizer *t, uint32_t id);
/* The string as the vocabulary spells it (byte alphabet); borrowed. {NULL, 0} if out of range. */
struct cart_text cart_tokenizer_string(const struct cart_tokenizer *t, uint32_t id);
/* The id whose vocabulary string is exactly s, or CART_TOKEN_NONE. */
uint32_t cart_tokenizer_find(const struct cart_tokenizer *t, const char *s, size_t n);

size_t cart_tokenizer_size(const struct cart_tokenizer *t);   /* V */
uint32_t cart_tokenizer_bos(const struct cart_tokenizer *t);  /* or CART_TOKEN_NONE */
bool cart_tokenizer_adds_bos(const struct cart_tokenizer *t); /* a raw prompt starts with bos */
bool cart_tokenizer_is_control(const struct cart_tokenizer *t,
                               uint32_t id); /* control or unknown */
bool cart_tokenizer_is_special(const struct cart_tokenizer *t,
                               uint32_t id); /* control, unknown or user-defined */
/* Ends a generation: eos, eot, what else the source lists, and the known end markers of the
 * vocabulary. */
bool cart_tokenizer_is_eog(const struct cart_tokenizer *t, uint32_t id);

/* XXH3-128 over model, pre-tokenizer, tokens, types, merges and special ids: 32 hex digits,
 * borrowed. Control and user-defined are one type there, since converters differ in which of the
 * two a special token is, and listed ids count only where nothing else makes them end a text. */
const char *cart_tokenizer_fingerprint(const struct cart_tokenizer *t);

/* Ids to valid UTF-8, one at a time: an unfinished character (at most 3 bytes) is held back until
 * the next token ends it; what can never become a character comes out as U+FFFD at once. */
struct cart_decoder {
    const struct cart_tokenizer *t; /* borrowed */
    bool special;                   /* spell control tokens */
    unsigned char held[4];
    size_t n_held;
};

void cart_decoder_init(struct cart_decoder *d, const struct cart_tokenizer *t, bool special);
int cart_decoder_push(struct cart_decoder *d, uint32_t id, struct cart_buf *out,
                      struct cart_err *err) CART_MUST_USE;
int cart_decoder_finish(struct cart_decoder *d, struct cart_buf *out,
                        struct cart_err *err) CART_MUST_USE; /* and start anew */

#endif
