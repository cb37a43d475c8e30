/* What became of documents, in words for people: the same in every tool that reads documents. Notes
 * go in as they come (cart_docs_words_note is a cart_docs_report_fn over a struct cart_docs_words),
 * the summary once at the end; lines go out through say, as base/log.h has them. One thread. */
#ifndef CART_FORMAT_DOCS_WORDS_H
#define CART_FORMAT_DOCS_WORDS_H

#include "base/log.h"
#include "format/docs.h"

/* Documents passed over that are named at once; of more only their number is told, and, as INFO,
 * their names. */
#define CART_DOCS_NAMED_MAX ((size_t)20)

/* One line; text is valid during the call. */
typedef void cart_docs_say_fn(enum cart_log_level level, const char *text);

struct cart_docs_words {
    cart_docs_say_fn *say;
    bool brief; /* all of them as INFO: where documents are not what the tool is about */
    const char *const *advice; /* [CART_DOCS_REASONS] what the tool's options can do about each,
                                  said after the detail; NULL where nothing */
    size_t named;              /* of the documents passed over */
    char first[400];           /* what was said of the first of them */
};

/* ctx: a struct cart_docs_words. */
void cart_docs_words_note(void *ctx, const struct cart_docs_note *note);

/* After the last document: how many there were, with that many tokens, and what was passed over.
 * CART_EFORMAT: there was none, and what was passed over instead. */
int cart_docs_words_end(const struct cart_docs_words *w, const struct cart_docs_stats *stats,
                        uint64_t tokens, struct cart_err *err) CART_MUST_USE;

#endif
