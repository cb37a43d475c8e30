/* What a model is called where nobody gave it a name. */
#ifndef CART_SERVE_MODEL_NAME_H
#define CART_SERVE_MODEL_NAME_H

#include <stddef.h>

/* The name of a model's file without ".gguf", or of its directory, also where a file of JSON in it
 * was named. The result [*n] lies in path or, where that ends in "." or "..", in *real: the path it
 * was resolved to, which the caller frees; else *real stays as it was. */
const char *cart_serve_model_name(const char *path, size_t *n, char **real);

#endif
