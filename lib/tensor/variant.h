/* One kernel source, several variants. File names decide the compiler flags:
 *   x_generic.c   compiled twice: plain (baseline x86-64) and with -mfma -DCART_FMA=1;
 *                 its external names go through CART_VARIANT: f_generic and f_fma
 *   x_avx2.c      -mavx2 -mfma -mf16c; external names end in _avx2
 *   x_avx512.c    -mavx512f -mavx512bw -mavx512dq -mavx512vl as well; external names end in _avx512
 * Each variant file exports one thing: a const struct of function pointers
 * (cart_matmul_kernels_avx2, ...), which dispatch.c puts into the set of its CPU path. Everything
 * else in it is static. Baseline files never call a function of a variant file by name. */
#ifndef CART_TENSOR_VARIANT_H
#define CART_TENSOR_VARIANT_H

#define CART_VARIANT_PASTE(name, suffix) name##_##suffix
#ifdef CART_FMA
#define CART_VARIANT(name) CART_VARIANT_PASTE(name, fma)
#else
#define CART_VARIANT(name) CART_VARIANT_PASTE(name, generic)
#endif

/* Kernels are templates: an inline function with constant arguments, and one small function per
 * instance. */
#define CART_ALWAYS_INLINE static inline __attribute__((always_inline))

#endif
