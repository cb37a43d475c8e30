/* One question asked in several ways, and the answers side by side: what stands before the question
 * differs, nothing else. One thread of control. */
#ifndef CART_ENGINE_COMPARE_H
#define CART_ENGINE_COMPARE_H

#include "base/buf.h"
#include "engine/dialogue.h"

#define CART_COMPARE_MAX 3 /* ways in one comparison */

struct cart_comparison; /* the question and the ways of answering it so far */

/* e and question (UTF-8, NUL-terminated) are borrowed until free; sampling is copied. */
int cart_comparison_new(struct cart_comparison **out, struct cart_engine *e, const char *question,
                        const struct cart_sampling *sampling, size_t max_tokens,
                        struct cart_err *err) CART_MUST_USE;
void cart_comparison_free(struct cart_comparison *c); /* NULL is fine */

/* Answers behind parts [n_parts], as cart_dialogue_new has them; name is borrowed. wait: seconds
 * that were spent on the parts and count as waiting for the first token. A question that does not
 * fit the context is a finding, not a failure. At most CART_COMPARE_MAX calls. */
int cart_comparison_ask(struct cart_comparison *c, const char *name,
                        const struct cart_kv_part *const *parts, size_t n_parts, bool behind,
                        double wait, struct cart_err *err) CART_MUST_USE;

/* Notes a way that could not be tried: why stands in place of its answer. */
void cart_comparison_excuse(struct cart_comparison *c, const char *name, const char *why);

/* Appends question, and the figures and the answer of each way: as columns where width is enough
 * for them (0: a file), else one after another. */
int cart_comparison_print(const struct cart_comparison *c, size_t width, struct cart_buf *out,
                          struct cart_err *err) CART_MUST_USE;

/* "first token 0.10 s, 31.0 tokens/s, 290 rows, 3.20 MiB of keys and values" */
void cart_comparison_figures(const struct cart_dialogue_answer *a, char *out, size_t cap);

#endif
