/* What is done to the words of the bots, as pure functions on text and ids: a message of bot A made
 * presentable, an answer of bot B cut where it may end, a sentence of a chunk picked for reciting.
 */
#ifndef CART_STUDY_SPEECH_H
#define CART_STUDY_SPEECH_H

#include "study/conversation.h"
#include "token/chat.h"

/* Cleans a message in place: its first line that is not blank, without white space, quotation marks
 * and list marks around it, without NUL; ended after the first question mark where one ends a
 * sentence, and, where it was cut short by its limit, after its last whole sentence if it has one.
 * Empty: nothing was left. */
void cart_speech_clean_message(struct cart_buf *text, bool cut_short);

/* True if the ids end in a loop: the last tokens, at least 24 of them, are three rounds or more of
 * the same 1 to 40. A small model that falls into one never leaves it. */
bool cart_speech_looping(const uint32_t *ids, size_t n);

/* How many of the answer's ids [n] to keep: all that stand before the first control token and
 * before the first sentence that was said already; of a loop at the end, one round; and of these,
 * where the answer is incomplete (no end of turn came, or one of these cuts was made), up to the
 * last end of a sentence, if there is one. CART_ESYS: memory. */
struct cart_speech_cut {
    size_t n;
    bool complete; /* the end of turn follows */
    bool sentence; /* incomplete, but ends with a sentence */
};
int cart_speech_cut_answer(struct cart_speech_cut *out, const struct cart_tokenizer *t,
                           const uint32_t *ids, size_t n, bool stopped,
                           struct cart_err *err) CART_MUST_USE;

/* A sentence (or line) within text, and the first words of it that are quoted. */
struct cart_speech_recital {
    struct cart_text sentence, quote; /* within text */
};

/* Picks from text by the random numbers of (seed, n, CART_RNG_SEED, index..index + 1): among its
 * sentences of at least five words and at most max_bytes; else its longest sentence, cut at
 * max_bytes. starts_clean, ends_clean: whether the first and the last sentence are whole. false:
 * the text is blank. */
bool cart_speech_pick_sentence(const char *text, size_t n, bool starts_clean, bool ends_clean,
                               size_t max_bytes, uint64_t seed, uint64_t conversation,
                               uint32_t index, struct cart_speech_recital *out);

/* True if text is nothing but white space. */
bool cart_speech_blank(const char *text, size_t n);

#endif
