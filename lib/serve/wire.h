/* JSON text written piece by piece, for answers that grow token by token. Everything appended is
 * valid JSON whatever the bytes and numbers are. Internal to the room. */
#ifndef CART_SERVE_WIRE_H
#define CART_SERVE_WIRE_H

#include "base/buf.h"

/* A buffer whose first failure sticks: writers need no check of each step. */
struct cart_wire {
    struct cart_buf b;
    int r; /* 0, or the first failure's code */
};

#define CART_WIRE_INIT                                                                             \
    {                                                                                              \
        CART_BUF_INIT, 0                                                                           \
    }

void cart_wire_add(struct cart_wire *w, const char *text); /* as it is */
void cart_wire_bytes(struct cart_wire *w, const char *text, size_t n);
void cart_wire_f(struct cart_wire *w, const char *fmt, ...) CART_PRINTF(2, 3);
/* In quotes; what is not UTF-8 becomes U+FFFD, one for each maximal part. */
void cart_wire_string(struct cart_wire *w, const char *text, size_t n);
void cart_wire_quote(struct cart_wire *w, const char *text); /* the same of a C string */
void cart_wire_real(struct cart_wire *w, double v); /* the shortest that reads back as this float */
void cart_wire_reset(struct cart_wire *w);          /* empty again, memory kept */
void cart_wire_release(struct cart_wire *w);

#endif
