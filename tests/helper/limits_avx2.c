#include <immintrin.h>

#define LANES 8
#define CHAINS 12
#define FMA(a, b, c) _mm256_fmadd_ps(a, b, c)
#define REGISTER "x"
#define NAME(loop) limit_##loop##_loop_avx2
#include "helper/limits_impl.h"
