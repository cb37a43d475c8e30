#include "helper/limits.h"

#include <immintrin.h>

static float sum(__m256 v)
{
    float f[8], s = 0;
    _mm256_storeu_ps(f, v);
    for (int i = 0; i < 8; i++)
        s += f[i];
    return s;
}

float limit_fma_loop_avx2(long rounds)
{
    __m256 c[12], a = _mm256_set1_ps(1.0f), b = _mm256_set1_ps(1e-9f);
    for (int i = 0; i < 12; i++)
        c[i] = _mm256_setzero_ps();
    for (long r = 0; r < rounds; r++)
#pragma GCC unroll 12
        for (int i = 0; i < 12; i++)
            c[i] = _mm256_fmadd_ps(a, b, c[i]);
    for (int i = 1; i < 12; i++)
        c[0] = _mm256_add_ps(c[0], c[i]);
    return sum(c[0]);
}

float limit_read_loop_avx2(const float *p, size_t n)
{
    __m256 s[8];
    for (int i = 0; i < 8; i++)
        s[i] = _mm256_setzero_ps();
    for (size_t k = 0; k + 64 <= n; k += 64)
#pragma GCC unroll 8
        for (int i = 0; i < 8; i++)
            s[i] = _mm256_add_ps(s[i], _mm256_loadu_ps(p + k + 8 * i));
    for (int i = 1; i < 8; i++)
        s[0] = _mm256_add_ps(s[0], s[i]);
    return sum(s[0]);
}
