/* What answer.c (tokens to text) and answer_json.c (text to JSON) share. */
#ifndef CART_SERVE_ANSWER_IMPL_H
#define CART_SERVE_ANSWER_IMPL_H

#include "serve/answer.h"

enum { CART_LP_ENTRY, CART_LP_VALUE, CART_LP_TOP, CART_LP_OFFSET, CART_LP_COLUMNS };

/* A token whose text is still held back, or only in part shown. */
struct cart_pending {
    size_t start; /* in the text that is shown, in bytes: where its own begins */
    size_t from[CART_LP_COLUMNS +
                1]; /* its JSON in choice.pending_text: columns one after the other */
};

enum cart_mode { CART_MODE_CONTENT, CART_MODE_REASONING, CART_MODE_CALL };

struct cart_choice {
    struct cart_decoder decoder;
    struct cart_stop_scan scan;
    struct cart_call_scan call;
    enum cart_mode mode;
    bool began;     /* its first frame is out */
    bool lead;      /* line breaks are dropped until something else comes */
    size_t breaks;  /* line breaks held back: dropped before a mark, shown before text */
    size_t decoded; /* bytes of content that have come */
    size_t shown;   /* bytes of it that are out */
    size_t chars;   /* characters of what has come, for text_offset */
    size_t n_calls;
    bool call_open; /* the call at work has an entry in the answer already */
    bool stopped;   /* by a stop string */
    const char *finish;
    size_t tokens, reasoning_tokens;

    /* What is new since the last frame; all there is where nothing is streamed. */
    struct cart_wire content, reasoning;  /* plain text */
    struct cart_wire calls;               /* JSON: entries, or deltas of them */
    struct cart_wire arguments;           /* plain text of the call at work */
    struct cart_wire lp[CART_LP_COLUMNS]; /* JSON elements separated by commas */

    struct cart_wire pending_text;
    struct cart_pending *pending;
    size_t n_pending, cap_pending, first_pending;
};

/* answer_json.c */
void cart_answer_head(struct cart_answer *a);
void cart_answer_frame(struct cart_answer *a,
                       size_t i); /* what is new of choice i, if anything is */
void cart_answer_finish(struct cart_answer *a, size_t i); /* its last frame */
void cart_answer_done(struct cart_group *b);
/* Adds a token's logprob to the pending ones. */
void cart_answer_logprob(struct cart_answer *a, struct cart_choice *c, const struct cart_event *e,
                         size_t start);
void cart_answer_release_logprobs(struct cart_choice *c, bool all);
bool cart_answer_ok(const struct cart_choice *c); /* nothing of it has run out of memory */

#endif
