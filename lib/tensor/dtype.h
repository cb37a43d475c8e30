/* The storage types of weights and rows. Values are GGUF's type ids. Everything here is block-wise:
 * a row of n values (n a multiple of block) is n / block blocks of bytes bytes. */
#ifndef CART_TENSOR_DTYPE_H
#define CART_TENSOR_DTYPE_H

#include "base/attr.h"

enum cart_dtype {
    CART_F32 = 0,
    CART_F16 = 1,
    CART_Q4_0 = 2,
    CART_Q4_1 = 3,
    CART_Q5_0 = 6,
    CART_Q5_1 = 7,
    CART_Q8_0 = 8,
    CART_Q2_K = 10,
    CART_Q3_K = 11,
    CART_Q4_K = 12,
    CART_Q5_K = 13,
    CART_Q6_K = 14,
    CART_IQ4_NL = 20,
    CART_IQ4_XS = 23,
    CART_BF16 = 30,
    CART_MXFP4 = 39,
};

struct cart_dtype_info {
    const char *name; /* "Q4_K", as GGUF spells it */
    size_t block;     /* values per block; 0 marks an id that is not supported */
    size_t bytes;     /* bytes per block */
};

/* NULL for an unknown or unsupported id. */
const struct cart_dtype_info *cart_dtype_info(int dtype);

/* Widens n values of a row starting at value k0 (both multiples of the block size) into out [n];
 * exactly the values of the format's definition (data order, f32 arithmetic, one rounding where a
 * minimum is subtracted). */
void cart_widen(int dtype, const void *row, size_t k0, size_t n, float *out);
void cart_widen_ref(int dtype, const void *row, size_t k0, size_t n, float *out);

/* Round to nearest even. NaN stays NaN, overflow becomes infinity. */
uint16_t cart_f16_from_f32(float x);
float cart_f16_to_f32(uint16_t h);
uint16_t cart_bf16_from_f32(float x);
float cart_bf16_to_f32(uint16_t h);
uint16_t cart_bf16_flushed(float x); /* as VCVTNE2PS2BF16: subnormal numbers become zeros */

#endif
