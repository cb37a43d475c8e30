/* A GGUF file as JSON Lines, for cart-view: {"record":"gguf",...}, its keys, its tensors,
 * {"record":"end",...}. */
#ifndef CART_MODEL_LISTING_H
#define CART_MODEL_LISTING_H

#include "base/buf.h"
#include "format/gguf.h"
#include "model/model.h"

/* Lists g on fd (out names it in messages). Arrays of more than eight values are cut to those
 * unless whole is set; "count" is always the true length. Text that is not UTF-8 is shown with \xNN
 * for its other bytes. */
int cart_model_listing(const struct cart_gguf *g, bool whole, int fd, const char *out,
                       struct cart_err *err) CART_MUST_USE;

/* Appends a few lines for people: architecture, sizes, types; what names the file. */
int cart_model_summary(struct cart_buf *out, const struct cart_gguf *g, const char *what,
                       struct cart_err *err) CART_MUST_USE;
/* The same of a model from a directory, with its fingerprints. */
int cart_model_summary_open(struct cart_buf *out, const struct cart_model *m,
                            struct cart_err *err) CART_MUST_USE;

#endif
