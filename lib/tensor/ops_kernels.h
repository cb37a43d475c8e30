/* What a variant provides for ops.c: the formulas of ops.h for one row or one run of values.
 * ops_ref.c holds their definition as one more set. Private to lib/tensor and its tests. */
#ifndef CART_TENSOR_OPS_KERNELS_H
#define CART_TENSOR_OPS_KERNELS_H

#include "tensor/ops.h"

struct cart_ops_kernels {
    /* One row of D values; returns r. y may be x; w may be NULL. */
    float (*norm_forward)(float *y, const float *x, const float *w, size_t D, float eps);
    void (*norm_backward)(float *dx, const float *dy, const float *x, float r, const float *w,
                          size_t D);

    /* H heads of DH values by one row of the table. */
    void (*rope)(float *x, size_t H, size_t DH, const float *cos, const float *sin, size_t n_rot,
                 enum cart_rope_order order, bool inverse);

    void (*swiglu_forward)(float *out, const float *gate, const float *up, size_t n);
    void (*swiglu_backward)(float *dgate, float *dup, const float *dout, const float *gate,
                            const float *up, size_t n);
    void (*add)(float *y, const float *x, size_t n);
    bool (*all_finite)(const float *x, size_t n);
    void (*narrow)(uint16_t *out, bool f16, const float *x, size_t n);
    void (*adam_step)(float *x, float *m, float *v, float *grad, float grad_scale, size_t n,
                      const struct cart_adam *a);
};

extern const struct cart_ops_kernels cart_ops_kernels_ref;
extern const struct cart_ops_kernels cart_ops_kernels_generic;
extern const struct cart_ops_kernels cart_ops_kernels_fma;
extern const struct cart_ops_kernels cart_ops_kernels_avx2;
extern const struct cart_ops_kernels cart_ops_kernels_avx512;

#endif
