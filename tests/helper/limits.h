/* What this machine allows, measured now: floating-point peak and read bandwidth of all threads of
 * a pool together. A rate is quoted as a share of these, taken in the same run. */
#ifndef CART_TEST_LIMITS_H
#define CART_TEST_LIMITS_H

#include "base/pool.h"

/* Seconds, for differences: of the CPU where one thread works, so that other programs do not
 * count. */
double limit_now(const struct cart_pool *pool);

double limit_fma(struct cart_pool *pool);  /* f32 FLOP/s of fused multiply-adds in registers, widest
                                              vectors of the CPU; 0 without FMA */
double limit_bf16(struct cart_pool *pool); /* FLOP/s of VDPBF16PS; 0 where the CPU has none */
double limit_read(struct cart_pool *pool); /* bytes/s summing 512 MiB */

/* What the CPUs of the machine have done, and this process with the children it has waited for:
 * ticks since their start. */
struct limit_load {
    double all, busy, own;
};

struct limit_load limit_load_now(void);
/* Says on standard error, if so, that since then others took more than 5 % of the machine. */
void limit_load_warn(const struct limit_load *since);

/* The loop of one worker: rounds of independent chains; returns a number so that nothing is
 * optimised away. */
float limit_fma_loop_avx512(long rounds);  /* 16 * 16 * 2 FLOP a round */
float limit_bf16_loop_avx512(long rounds); /* 16 * 32 * 2 FLOP a round */
float limit_fma_loop_avx2(long rounds);    /* 12 * 8 * 2 FLOP a round */
float limit_read_loop_avx512(const float *p, size_t n);
float limit_read_loop_avx2(const float *p, size_t n);

#endif
