/* Which set of kernels this process runs. Decided once: the best that the CPU has, or what CART_CPU
 * (generic, avx2, avx512) names; naming one that the CPU lacks is an error. Results do not depend
 * on it. CART_CPU=baseline is generic as on a CPU without FMA: for tests, and very slow. */
#ifndef CART_BASE_CPU_H
#define CART_BASE_CPU_H

#include "base/err.h"

enum cart_cpu_path {
    CART_CPU_GENERIC, /* baseline x86-64; fmaf through the C library unless CPU has FMA */
    CART_CPU_AVX2,    /* AVX2, FMA, F16C */
    CART_CPU_AVX512,  /* AVX-512 F, BW, DQ, VL */
};

/* Reads CART_CPU and CPUID; call once at start, before threads. CART_EUSAGE for a bad or
 * unavailable name. */
int cart_cpu_init(struct cart_err *err) CART_MUST_USE;
enum cart_cpu_path cart_cpu_path(void); /* after cart_cpu_init; generic before */
bool cart_cpu_has_fma(void);            /* generic kernels pick their -mfma twin by this */
bool cart_cpu_has_bf16(void);           /* VDPBF16PS */
const char *cart_cpu_path_name(void);

/* CPUs this process may use: affinity mask and cgroup quota, at least 1. */
size_t cart_cpu_count(void);

#endif
