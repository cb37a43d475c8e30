/* Cartridge files without their model: the checks that need none, and rows in another type. */
#ifndef CART_CARTRIDGE_CONVERT_H
#define CART_CARTRIDGE_CONVERT_H

#include "stream/safetensors.h"

/* Whether the image has rows, a tensor "layers.<i>.k", or says that it has. */
bool cart_rows_present(const struct cart_st *st);

/* The rules of cart-cartridge(5) that hold whatever the model: row tensors have rank 3, one
 * floating type and finite values; a layer's keys and values agree in heads and width; layers count
 * from 0 without a gap and have the same number of rows; a draft_reference holds token
 * ids; metadata is of this version and states that number; header and data have the digests that it
 * states. CART_EFORMAT. */
int cart_rows_check(const struct cart_st *st, const char *what, struct cart_err *err) CART_MUST_USE;

/* Writes the cartridge with its rows as to (F32, F16 or BF16) on fd, everything else as it was;
 * where anything changed, metadata gains "cart.dtype", new digests, and "cart.history" an entry.
 * CART_EFORMAT: no rows, or a value that becomes infinite. */
int cart_rows_convert(const struct cart_st *st, enum cart_st_dtype to, int fd, const char *out,
                      const char *what, struct cart_err *err) CART_MUST_USE;

#endif
