/* Transcendental functions of our own: built from IEEE basic operations and fma alone, so that
 * every CPU, compiler and libm gives the same bits. Vector variants inside the kernels compute the
 * same steps per lane. */
#ifndef CART_TENSOR_MATHF_H
#define CART_TENSOR_MATHF_H

float cart_expf(float x); /* < 0.9 ulp; +0 for x < -87.3365, +inf above 88.7228, NaN stays NaN */
float cart_sigmoidf(float x); /* 1 / (1 + exp(-x)), < 2.6 ulp */
double cart_exp(double x);    /* < 1 ulp, as all of f64 here; for tables, schedules and losses */
double cart_ln(double x);     /* x > 0 */
double cart_pow(double x,
                double y); /* x > 0: exp(y log x) with the log in double-double; for RoPE tables */
void cart_sincos(double x, double *s, double *c); /* |x| < 2^31 */

#endif
