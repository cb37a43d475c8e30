/* Tensor values as JSON numbers and back, exactly: what is printed reads back as the same bits.
 * Floats take the fewest digits that do, from 7 on (F64 from 15, F16 from 4, BF16 from 3); -0.0
 * keeps its sign; what JSON cannot say is a string: "Infinity",
 * "-Infinity", "NaN:7fc00000" (the bits, for any NaN), and whole numbers beyond 2^63 - 1 in
 * decimal. A tensor of rank n is arrays nested n deep, one of rank 0 a number. */
#ifndef CART_STREAM_VALUES_H
#define CART_STREAM_VALUES_H

#include "stream/safetensors.h"

/* Appends the values of t (data may be unaligned). */
int cart_values_print(const struct cart_st_tensor *t, struct cart_buf *b,
                      struct cart_err *err) CART_MUST_USE;

/* Appends the bytes that v stands for and sets t->bytes; t->data is not touched. v's nesting must
 * be t's shape, whose first dimension is taken from v where free_first is set. Numbers that the
 * dtype cannot hold are CART_EFORMAT. what: for messages. */
int cart_values_parse(struct cart_st_tensor *t, bool free_first, const json_t *v,
                      struct cart_buf *b, const char *what, struct cart_err *err) CART_MUST_USE;

/* Least and greatest finite value, as JSON numbers (null where there is none), and whether all are
 * finite. New references. */
int cart_values_range(const struct cart_st_tensor *t, json_t **least, json_t **greatest,
                      bool *finite, struct cart_err *err) CART_MUST_USE;

#endif
