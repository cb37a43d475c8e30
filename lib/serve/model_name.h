/* What a model is called where nobody gave it a name. */
#ifndef CART_SERVE_MODEL_NAME_H
#define CART_SERVE_MODEL_NAME_H

#include "base/err.h"

/* Writes the id of the base model to out [cap]: the one given, or where that is NULL the name of
 * the model's file without ".gguf", or of its directory, also where a file of JSON in it was named
 * or path ends in "." or "..", with '-' for what an id cannot have. That is a blank, a control
 * character, the colon before a cartridge's name, and a slash that a path of the server would
 * lose, at an end or behind another. CART_EUSAGE: the given one has such, is no UTF-8, empty or
 * too long. */
int cart_serve_base_name(char *out, size_t cap, const char *given, const char *path,
                         struct cart_err *err) CART_MUST_USE;

#endif
