/* UTF-8 checks shared by the readers of this room. Valid means: shortest form, no surrogates,
 * nothing above U+10FFFF. NUL counts as a valid character; callers that forbid it look for it
 * themselves. */
#ifndef CART_FORMAT_TEXT_H
#define CART_FORMAT_TEXT_H

#include "base/err.h"

/* Bytes of s [n] before the first byte that does not begin or continue a valid character as the
 * standard orders it; n if all are valid. The result is the offset to report: where the ill-formed
 * sequence starts. */
size_t cart_text_valid(const char *s, size_t n);

/* CART_EFORMAT "what: expected UTF-8, found byte 0xNN at offset N" unless s [n] is valid. */
int cart_text_check(const char *what, const char *s, size_t n, struct cart_err *err) CART_MUST_USE;

/* Length of the maximal subpart of an ill-formed sequence at s [n], n > 0 (Unicode, chapter 3,
 * "U+FFFD substitution of maximal subparts"): 1 to 3 bytes that one U+FFFD stands for. s must be
 * where cart_text_valid stopped. */
size_t cart_text_subpart(const char *s, size_t n);

/* The text that a whole file is, by the rules for documents (format/docs.h; HTML is text here):
 * *text [*n_text] lies within bytes [n], after a byte order mark. CART_EFORMAT "what: expected
 * text, found ...": binary, UTF-16, a compressed file, another format, nothing, or no UTF-8. */
int cart_text_take(const char **text, size_t *n_text, const char *bytes, size_t n, const char *what,
                   struct cart_err *err) CART_MUST_USE;

#endif
