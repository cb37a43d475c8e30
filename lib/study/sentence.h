/* Where sentences end: the one rule by which chunks are cut, answers ended and sentences
 * recited. */
#ifndef CART_STUDY_SENTENCE_H
#define CART_STUDY_SENTENCE_H

#include "base/attr.h"

#include <stdbool.h>
#include <stddef.h>

/* White space between sentences; NUL counts. */
bool cart_sentence_space(char c);

/* Whether a sentence ends after byte i of text [n]: . ! ? or the ideographic full stop, with
 * closing marks, before white space or the end. A full stop after a digit is taken for a number's
 * or a list's unless its line ends there. *end is where the sentence ends. */
bool cart_sentence_ends(const char *text, size_t n, size_t i, size_t *end);

#endif
