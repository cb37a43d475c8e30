/* How a failure travels: every function of lib/ that can fail returns 0 (or a count >= 0) or one of
 * the negative codes below, and describes the failure in a caller-owned struct cart_err (which may
 * be NULL). The message is a part of one sentence: no newline, no program name, "thing: part:
 * expected X, found Y". lib/ never prints, exits, or aborts on data; a tool turns the code into its
 * exit status in one place. */
#ifndef CART_BASE_ERR_H
#define CART_BASE_ERR_H

#include "base/attr.h"

#include <stdarg.h>

enum cart_code {
    CART_OK = 0,
    CART_EUSAGE = -1,  /* the caller broke the contract: bad option, bad combination   exit 2 */
    CART_EFORMAT = -2, /* malformed, unsupported or corrupt input                      exit 3 */
    CART_ETRUNC = -3,  /* input ends before its end                                    exit 3 */
    CART_EMATCH = -4,  /* well-formed, but of another model, tokenizer or run          exit 4 */
    CART_ESYS = -5,    /* I/O or memory; err->sys holds errno where there is one       exit 5 */
    CART_EAGAIN = -6,  /* interrupted or busy: run again                               exit 6 */
};

/* msg is always terminated, cut at the end if too long, and printable: control and non-UTF-8 bytes
 * of names in it are \xNN. */
struct cart_err {
    int code; /* enum cart_code */
    int sys;  /* errno at the failure, 0 if none */
    char msg[512];
};

/* Fill err (if not NULL) and return code, so that callers write: return cart_err_set(err,
 * CART_EFORMAT, ...); */
int cart_err_set(struct cart_err *err, int code, const char *fmt, ...) CART_PRINTF(3, 4);

/* As above with CART_ESYS and errno's text appended after ": ". */
int cart_err_sys(struct cart_err *err, const char *fmt, ...) CART_PRINTF(2, 3);

/* The one message for a failed allocation. what names the thing that did not fit; bytes may be 0 if
 * unknown. */
int cart_err_memory(struct cart_err *err, const char *what, size_t bytes);

/* Put "context: " in front of the message; returns code unchanged. */
int cart_err_wrap(struct cart_err *err, int code, const char *fmt, ...) CART_PRINTF(3, 4);

/* The exit status that cart(7) documents for a code. */
int cart_err_status(int code);

/* Length of the well-formed UTF-8 sequence at s (at most n bytes), 0 if there is none. */
size_t cart_utf8_length(const unsigned char *s, size_t n);
/* Whether all n bytes are well-formed. jansson tells text that is not from missing memory by
 * nothing: who may have either asks here first. */
bool cart_utf8_valid(const char *s, size_t n);

/* Copies at most cap-1 bytes of outside text into out, control and non-UTF-8 bytes as \xNN, an
 * ellipsis where it was cut; for names inside messages, so that a long one leaves room for the
 * rest, and inside what is no message. Returns out. */
char *cart_err_escape(char *out, size_t cap, const char *text, size_t n);

#endif
