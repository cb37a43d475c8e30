/* The mark of results that are not those of the exact kernels in f32. */
#ifndef CART_STUDY_KERNELS_H
#define CART_STUDY_KERNELS_H

#include "base/json.h"

/* Adds "kernels":"blas" and "precision":"bf16" to the options that a history or a recipe shows,
 * where they were selected; what is the default needs no mark. Takes options over: returns them, or
 * NULL where they were NULL or memory ran out. */
json_t *cart_kernels_mark(json_t *options) CART_MUST_USE;

/* CART_EMATCH where options bear the mark of other kernels or another precision than the selected
 * ones. */
int cart_kernels_match(const json_t *options, struct cart_err *err) CART_MUST_USE;

#endif
