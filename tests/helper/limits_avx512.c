#include "helper/limits.h"

#include <immintrin.h>

float limit_fma_loop_avx512(long rounds)
{
    __m512 c[16], a = _mm512_set1_ps(1.0f), b = _mm512_set1_ps(1e-9f);
    for (int i = 0; i < 16; i++)
        c[i] = _mm512_setzero_ps();
    for (long r = 0; r < rounds; r++)
#pragma GCC unroll 16
        for (int i = 0; i < 16; i++)
            c[i] = _mm512_fmadd_ps(a, b, c[i]);
    for (int i = 1; i < 16; i++)
        c[0] = _mm512_add_ps(c[0], c[i]);
    return _mm512_reduce_add_ps(c[0]);
}

float limit_read_loop_avx512(const float *p, size_t n)
{
    __m512 s[8];
    for (int i = 0; i < 8; i++)
        s[i] = _mm512_setzero_ps();
    for (size_t k = 0; k + 128 <= n; k += 128)
#pragma GCC unroll 8
        for (int i = 0; i < 8; i++)
            s[i] = _mm512_add_ps(s[i], _mm512_loadu_ps(p + k + 16 * i));
    for (int i = 1; i < 8; i++)
        s[0] = _mm512_add_ps(s[0], s[i]);
    return _mm512_reduce_add_ps(s[0]);
}
