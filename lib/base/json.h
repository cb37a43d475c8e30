/* jansson behind a strict front: duplicate keys refused, depth and size bounded, one message
 * grammar, and one canonical form (sorted keys, no spaces, shortest exact reals), so that equal
 * values are equal bytes. */
#ifndef CART_BASE_JSON_H
#define CART_BASE_JSON_H

#include "base/buf.h"
#include "base/err.h"

#include <jansson.h>

/* Far beyond what any format of ours nests, and small enough for recursion on a worker's stack. */
#define CART_JSON_DEPTH 128

/* Bytes of memory for the values of a text of n bytes: enough for lists of pairs of digits and for
 * a tokenizer.json without blanks; a text of nothing but {} asks for more than twice that. */
#define CART_JSON_DENSE(n) (((size_t)1 << 20) + 40 * (size_t)(n))

/* No file of a real model comes near: the largest tokenizer.json takes a fifth. */
#define CART_JSON_MEMORY ((size_t)1 << 30)

/* Parses one complete value. what names the source in messages, "" leaves that to the caller.
 * Caller owns *out (json_decref). Its values take at most the lesser of CART_JSON_DENSE and
 * CART_JSON_MEMORY, or most, a little overestimated and counted before they are made; more is
 * CART_EFORMAT, sys EFBIG. */
int cart_json_parse(json_t **out, const char *text, size_t n, const char *what,
                    struct cart_err *err) CART_MUST_USE;
int cart_json_parse_within(json_t **out, const char *text, size_t n, size_t most, const char *what,
                           struct cart_err *err) CART_MUST_USE;

/* A shallow copy of an object or array, or NULL: json_copy leaves out what it has no memory for. */
json_t *cart_json_copy(const json_t *v) CART_MUST_USE;

/* Appends the canonical form. */
int cart_json_dump(const json_t *v, struct cart_buf *b, struct cart_err *err) CART_MUST_USE;

/* Typed look-ups in an object; what is the path of obj in messages. Strings and objects are
 * borrowed from obj. The _opt forms leave *out untouched when the key is absent or null. A wrong
 * type or range is CART_EFORMAT. */
int cart_json_string(const json_t *obj, const char *key, const char **out, const char *what,
                     struct cart_err *err) CART_MUST_USE;
int cart_json_string_opt(const json_t *obj, const char *key, const char **out, const char *what,
                         struct cart_err *err) CART_MUST_USE;
int cart_json_u64(const json_t *obj, const char *key, uint64_t max, uint64_t *out, const char *what,
                  struct cart_err *err) CART_MUST_USE;
int cart_json_u64_opt(const json_t *obj, const char *key, uint64_t max, uint64_t *out,
                      const char *what, struct cart_err *err) CART_MUST_USE;
int cart_json_bool_opt(const json_t *obj, const char *key, bool *out, const char *what,
                       struct cart_err *err) CART_MUST_USE;
int cart_json_object(const json_t *obj, const char *key, json_t **out, const char *what,
                     struct cart_err *err) CART_MUST_USE;
int cart_json_array(const json_t *obj, const char *key, json_t **out, const char *what,
                    struct cart_err *err) CART_MUST_USE;

/* A string that is one for C too: NULL where v is no string or has a NUL in it, which would end
 * it. */
const char *cart_json_word(const json_t *v);

/* Whether v is a whole number from 0 to max: then it is *out, which else stays. */
bool cart_json_whole(const json_t *v, uint64_t max, uint64_t *out);

/* The first difference of two values, as "KEY: saved with VALUE, asked for VALUE" appended to why;
 * KEY is the innermost one, long values are cut. 1: there is one; 0: they are equal. */
int cart_json_difference(const json_t *saved, const json_t *asked, struct cart_buf *why,
                         struct cart_err *err) CART_MUST_USE;

/* A value as a message says what it found: a whole number, a short string, else its type; "nothing"
 * for NULL. Returns out. */
const char *cart_json_found(const json_t *v, char out[48]);

#endif
