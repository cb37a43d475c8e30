/* Tokens become an answer: text in whole characters, stop strings held back, reasoning and tool
 * calls taken apart, logprobs beside the text that they belong to; then JSON, at once or as frames.
 * The same path makes both, so a joined stream is the other answer's text. Internal to the room.
 *
 * All functions run in the scheduler's thread, one event after the other, but for new and free. */
#ifndef CART_SERVE_ANSWER_H
#define CART_SERVE_ANSWER_H

#include "serve/group.h"
#include "serve/calls.h"
#include "serve/stops.h"
#include "serve/wire.h"

struct cart_answer_options {
    bool chat; /* chat.completion, or text_completion */
    bool stream, include_usage;
    bool logprobs;
    bool marks; /* reasoning and calls are told apart (the profile has such marks) */
    bool calls; /* calls count as such */
    bool echo;  /* completions: the prompt comes first */
    size_t n;   /* choices of each prompt */
    const struct cart_stops *stops; /* borrowed from the request */
};

/* Bytes of text and logprobs that an answer may hold until they are sent: all of it where it is not
 * streamed. */
#define CART_ANSWER_MAX ((size_t)128 << 20)

#define CART_ANSWER_ID 56 /* "chatcmpl-" and the exchange's id */

struct cart_choice;

/* State of an exchange; first member so that the group is found by it. */
struct cart_answer {
    struct cart_group group;
    struct cart_answer_options opt;
    struct cart_sampling_params params; /* what opt.stops points into */
    struct cart_selection selection;    /* its stack is the group's */
    char id[CART_ANSWER_ID];
    long created;
    char fingerprint[32];
    struct cart_wire head; /* of every frame and of the answer: up to "choices":[ */
    struct cart_wire frame;
    struct cart_choice *choices; /* [prompts * n] */
    size_t n_choices;
    size_t held, most; /* bytes that wait to be sent, and how many may */
    uint32_t think_open, think_close, call_open, call_close; /* CART_TOKEN_NONE: no such mark */
};

/* For n_prompts prompts, which the caller fills in; params and selection (with its stack) become
 * the answer's, and the answer the exchange's state. False: no memory; what was given stays the
 * caller's. */
bool cart_answer_new(struct cart_answer **out, struct cart_exchange *x, size_t n_prompts,
                     const struct cart_answer_options *o, const struct cart_sampling_params *params,
                     const struct cart_selection *selection);

#endif
