/* The inside of one tool call as the model writes it: {"name": NAME, "arguments": {…}}, read
 * while it comes, so that a client can follow the arguments. Internal to the room. */
#ifndef CART_SERVE_CALLS_H
#define CART_SERVE_CALLS_H

#include "base/buf.h"

struct cart_call_scan {
    struct cart_buf text; /* of the call so far */
    struct cart_buf name; /* once it is known */
    size_t at;            /* where the arguments begin in text, 0: not known yet */
    size_t seen;          /* of text, looked at for the end of the arguments */
    size_t depth;
    bool foreign; /* not in this order, with a long name, or not JSON: read as a whole at the end */
    bool quoted, escaped, complete;
};

/* What has become known: begun (once a call): the name is in s->name; arguments: further bytes of
 * them, borrowed until the next call of a function of s. */
struct cart_call_delta {
    bool begun;
    const char *arguments;
    size_t n;
};

int cart_call_push(struct cart_call_scan *s, const char *text, size_t n, struct cart_call_delta *d,
                   struct cart_err *err) CART_MUST_USE;
/* The closing marker has come (or, not closed, the answer ended). True: a call, whose last delta is
 * d; false: no call at all (or none that there is memory to read), and s->text is plain text. */
bool cart_call_finish(struct cart_call_scan *s, bool closed, struct cart_call_delta *d);
void cart_call_reset(struct cart_call_scan *s);
void cart_call_release(struct cart_call_scan *s);

#endif
