/* The scheduler's requests behind one exchange: one for each prompt. A long list goes in as room
 * comes, a few at a time, so that one client's list does not fill the queue. Lives as part of the
 * exchange's state, and as long; each request at work and each job of a worker holds the exchange.
 * Internal to the room. */
#ifndef CART_SERVE_GROUP_H
#define CART_SERVE_GROUP_H

#include "serve/exchange.h"
#include "serve/params.h"

struct cart_group;

struct cart_group_prompt {
    struct cart_group *group;
    size_t index;
    struct cart_ids ids;
};

struct cart_group {
    struct cart_exchange *x;
    struct cart_serve_request
        request; /* what all share; prompt, on_event and ctx are the group's to set */
    struct cart_constraint
        *constraint; /* of the only prompt, or NULL; the scheduler's once that is accepted */
    struct cart_group_prompt *prompts; /* [n] */
    size_t n;
    struct cart_usage usage; /* sums over the ended ones */
    double first_token;      /* seconds after the exchange began, 0: none yet */

    /* In the scheduler's thread, as cart_event_fn; END is for the group alone. */
    bool (*on_event)(struct cart_group *b, size_t prompt, const struct cart_event *e);
    /* All have ended, none was refused, the client is there: writes the end of the answer. In a
     * worker, or the loader. */
    void (*on_done)(struct cart_group *b);

    pthread_mutex_t lock;
    size_t next, running;
    bool feeding; /* a worker hands prompts over */
    bool failed, finished;
};

/* n prompts, empty. False: no memory. */
bool cart_group_init(struct cart_group *b, struct cart_exchange *x, size_t n);
/* Starts it; in a worker, with the state already in x. A refusal becomes the exchange's error, and
 * so do files of cartridges that are no longer what they were: asked here, and before on_done. */
void cart_group_run(struct cart_group *b);
/* No further prompts, and those at work are cancelled; on_done will not come. The error is the
 * caller's to send. */
void cart_group_fail(struct cart_group *b);
void cart_group_release(struct cart_group *b); /* also of a zeroed one */

#endif
