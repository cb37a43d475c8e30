/* Pre-tokenizers: where a text is cut into pieces before merging. Each is a hand-written scanner
 * for a published regular expression, where \s is the White_Space property, alternatives are tried
 * in order and (?i) knows simple case folding (U+017F folds to s); one alternative a line:
 *
 *   smollm     \p{N} is cut out first, one by one; between:
 *              's|'t|'re|'ve|'m|'ll|'d
 *              | ?\p{L}+
 *              | ?[^\s\p{L}\p{N}]+
 *              |\s+(?!\S)
 *              |\s+
 *   qwen2      (?i:'s|'t|'re|'ve|'m|'ll|'d)
 *              |[^\r\n\p{L}\p{N}]?\p{L}+
 *              |\p{N}
 *              | ?[^\s\p{L}\p{N}]+[\r\n]*
 *              |\s*[\r\n]+
 *              |\s+(?!\S)
 *              |\s+
 *   llama-bpe  the same with \p{N}{1,3}
 *
 * No recursion, no backtracking over more than one code point except the white space run under the
 * scanner. */
#ifndef CART_TOKEN_SPLIT_H
#define CART_TOKEN_SPLIT_H

#include "base/attr.h"

enum cart_split { CART_SPLIT_SMOLLM, CART_SPLIT_QWEN2, CART_SPLIT_LLAMA_BPE };

/* Bytes of the piece that starts at p (p < end); adds the code points looked at to *steps. classes
 * is the table of token/unicode.h. */
size_t cart_split_next(enum cart_split kind, const unsigned char *classes, const unsigned char *p,
                       const unsigned char *end, size_t *steps);

#endif
