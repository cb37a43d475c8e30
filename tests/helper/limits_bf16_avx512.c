#include "helper/limits.h"

#include <immintrin.h>

float limit_bf16_loop_avx512(long rounds)
{
    __m512 c[16];
    __m512bh a = (__m512bh)_mm512_set1_epi32(0x3f803f80),
             b = (__m512bh)_mm512_set1_epi32(0x30803080);
    for (int i = 0; i < 16; i++)
        c[i] = _mm512_setzero_ps();
    for (long r = 0; r < rounds; r++)
#pragma GCC unroll 16
        for (int i = 0; i < 16; i++)
            c[i] = _mm512_dpbf16_ps(c[i], a, b);
    for (int i = 1; i < 16; i++)
        c[0] = _mm512_add_ps(c[0], c[i]);
    return _mm512_reduce_add_ps(c[0]);
}
