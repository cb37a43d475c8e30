/* Texts side by side for a terminal: words wrapped, columns divided by bars. A character counts as
 * one place. */
#ifndef CART_BASE_COLUMNS_H
#define CART_BASE_COLUMNS_H

#include "base/buf.h"

/* Appends the n >= 1 texts (UTF-8, with newlines) as columns that fill width places together; each
 * line ends with a newline. Columns have at least one place. */
int cart_columns_add(struct cart_buf *out, const char *const *texts, size_t n, size_t width,
                     struct cart_err *err) CART_MUST_USE;

#endif
