/* Questions on a corpus, for recall: JSON Lines, one object each:
 *
 *   question, answer   texts
 *   wrong              other answers, an array of texts; optional
 *   stem               how the assistant's answer begins, given to it; optional
 *   quote, path        a text of the corpus that holds the answer, and the document it is in;
 *                      optional
 *   at                 the same as a token position in the corpus, in place of quote; optional
 *   _anything          the author's own, passed over; any other key is refused
 *
 * The question is a user turn behind the rows that are judged. An option (the answer or a wrong
 * one) is scored by the mean log-probability of its tokens after generation prompt and stem; a
 * space is put between stem and option where neither has white space there. */
#ifndef CART_STUDY_QUESTIONS_H
#define CART_STUDY_QUESTIONS_H

#include "base/buf.h"
#include "model/model.h"
#include "study/corpus.h"

struct cart_option {
    uint32_t *ids; /* [T] prompt and option */
    size_t T, n_scored;
};

struct cart_question {
    struct cart_option *options; /* [n]; the first is the right one */
    size_t n;
    bool located;
    size_t at; /* tokens of the corpus up to the end of the text that holds the answer */
};

struct cart_questions {
    struct cart_question *items;
    size_t n, cap;
    size_t options;   /* of all */
    size_t unlocated; /* with a quote that the corpus does not hold */
    size_t too_long;  /* left out: an option that exceeds the model's context */
    /* Their lines in the file, for people: "5, 9, 12". */
    struct cart_buf unlocated_lines, too_long_lines;
};

/* Empty lines and a byte order mark at the beginning are passed over. CART_EFORMAT names file, line
 * and field. */
int cart_questions_read(struct cart_questions *out, const char *path, const struct cart_model *m,
                        const struct cart_corpus *corpus, struct cart_err *err) CART_MUST_USE;
void cart_questions_release(struct cart_questions *q);

#endif
