/* Stop strings in a text that comes in pieces: nothing of a stop string is ever shown,
 * everything before it is, and what only looked like the beginning of one is shown as soon as
 * that is known. Time is linear in the text, however much of a stop string repeats itself.
 * Internal to the room. */
#ifndef CART_SERVE_STOPS_H
#define CART_SERVE_STOPS_H

#include "base/buf.h"
#include "token/tokenizer.h"

#define CART_STOPS_MAX ((size_t)4)
#define CART_STOP_BYTES_MAX ((size_t)4096)

struct cart_stops {
    struct cart_text items[CART_STOPS_MAX]; /* borrowed, of 1 to CART_STOP_BYTES_MAX bytes */
    size_t n;
};

/* What is held back of one text: less than the longest stop string. Zero to begin with; the stop
 * strings stay the same. */
struct cart_stop_scan {
    struct cart_buf held;
    uint16_t *borders; /* of each byte of the stop strings; NULL before the first push */
    size_t agreed[CART_STOPS_MAX]; /* bytes of each that the text ends with */
    size_t steps;                  /* bytes compared so far */
};

/* Appends to out what may be shown after n more bytes. *hit: a stop string has come, the one that
 * is whole first, of several the longest, however the text was cut; out ends before it, and what
 * followed is dropped: the scan ends here. */
int cart_stop_push(struct cart_stop_scan *s, const struct cart_stops *stops, const char *text,
                   size_t n, struct cart_buf *out, bool *hit, struct cart_err *err) CART_MUST_USE;
/* The text has ended: what was held back is shown. */
int cart_stop_flush(struct cart_stop_scan *s, struct cart_buf *out,
                    struct cart_err *err) CART_MUST_USE;
void cart_stop_release(struct cart_stop_scan *s);

#endif
