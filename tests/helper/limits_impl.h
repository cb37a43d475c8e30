/* The loops of limits.h for one instruction set. The file that includes this defines LANES (floats
 * of a vector), CHAINS (independent sums that hide the latency), FMA(a, b, c), REGISTER (the
 * constraint of a vector register) and NAME(loop). */
#include "helper/limits.h"

#include <string.h>

typedef float vec __attribute__((vector_size(4 * LANES)));

static float sum(vec v)
{
    float s = 0;

    for (int k = 0; k < LANES; k++)
        s += v[k];
    return s;
}

/* Every loop over the chains is unrolled, so that they stay in registers. */
float NAME(fma)(long rounds)
{
    vec c[CHAINS], a = (vec){0} + 1.0f, b = (vec){0} + 1e-9f;

#pragma GCC unroll 16
    for (int i = 0; i < CHAINS; i++)
        c[i] = (vec){0};
    for (long r = 0; r < rounds; r++) {
#pragma GCC unroll 16
        for (int i = 0; i < CHAINS; i++) {
            c[i] = FMA(a, b, c[i]);
            /* The chains are alike; nobody may make one of them. */
            __asm__ volatile("" : "+" REGISTER(c[i]));
        }
    }
#pragma GCC unroll 16
    for (int i = 1; i < CHAINS; i++)
        c[0] += c[i];
    return sum(c[0]);
}

float NAME(read)(const float *p, size_t n)
{
    enum { SUMS = 8 };
    vec s[SUMS], x;

#pragma GCC unroll 8
    for (int i = 0; i < SUMS; i++)
        s[i] = (vec){0};
    for (size_t k = 0; k + SUMS * LANES <= n; k += SUMS * LANES) {
#pragma GCC unroll 8
        for (int i = 0; i < SUMS; i++) {
            memcpy(&x, p + k + (size_t)i * LANES, sizeof x);
            s[i] += x;
        }
    }
#pragma GCC unroll 8
    for (int i = 1; i < SUMS; i++)
        s[0] += s[i];
    return sum(s[0]);
}
