/* Checks and conversions of rows that opening and saving share. Internal to the room. */
#ifndef CART_CARTRIDGE_ROWS_H
#define CART_CARTRIDGE_ROWS_H

#include "cartridge/cartridge.h"
#include "stream/safetensors.h"

/* The four tensors of a layer; the first two hold keys. */
enum { CART_ROWS_K_SINK, CART_ROWS_K, CART_ROWS_V_SINK, CART_ROWS_V, CART_ROWS_TENSORS };
extern const char *const cart_rows_names[CART_ROWS_TENSORS];

/* "layers.<i>.<name>" without leading zeros; false for any other name, which no reader looks at. */
bool cart_rows_parse_name(const char *name, size_t *layer, size_t *which);

/* CART_F32, CART_F16 or CART_BF16; -1 for what rows cannot be. */
int cart_rows_dtype(enum cart_st_dtype t);

/* CART_EFORMAT naming layer, head and row of the first value of the part that is NaN or infinite;
 * row0 is the part's first row within the cartridge, what names the thing. */
int cart_rows_check_finite(const struct cart_model *m, const struct cart_kv_part *part, size_t row0,
                           const char *what, struct cart_err *err) CART_MUST_USE;

/* metadata gains "cart.data", the digest of the data of tensors [n], and "cart.sum", that of the
 * header. */
int cart_rows_seal(json_t *metadata, const struct cart_st_tensor *tensors, size_t n,
                   struct cart_err *err) CART_MUST_USE;
/* CART_EFORMAT where the header has another digest than its metadata states, or one of the two
 * digests stands alone. */
int cart_rows_check_header(const struct cart_st *st, struct cart_err *err) CART_MUST_USE;
/* The digest of the data into out; CART_EFORMAT where the metadata has another one. */
int cart_rows_check_data(const struct cart_st *st, char out[33],
                         struct cart_err *err) CART_MUST_USE;

/* *out is the draft_reference, or NULL where there is none. CART_EFORMAT: no I64 of one dimension,
 * or an entry that is no id below V. */
int cart_rows_check_draft(const struct cart_st *st, size_t V, const struct cart_st_tensor **out,
                          struct cart_err *err) CART_MUST_USE;

/* Copies keys [rows, HK, DH] of one layer from the other rotation order into the model's own: pairs
 * (2j, 2j + 1) become (j, j + n_rot / 2) of each head or the reverse. size: bytes of a value. src
 * may be unaligned and may not overlap dst. */
void cart_rows_reorder(void *dst, const void *src, size_t rows, const struct cart_layer *layer,
                       const struct cart_rope *rope, size_t size);

#endif
