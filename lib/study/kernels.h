/* The mark of results that left the numeric contract. */
#ifndef CART_STUDY_KERNELS_H
#define CART_STUDY_KERNELS_H

#include "base/json.h"

/* Adds "kernels":"blas" to the options that a history or a recipe shows, where such kernels were
 * selected; the exact ones need no mark. Takes options over: returns them, or NULL where they were
 * NULL or memory ran out. */
json_t *cart_kernels_mark(json_t *options) CART_MUST_USE;

#endif
