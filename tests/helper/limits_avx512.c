#include <immintrin.h>

#define LANES 16
#define CHAINS 16
#define FMA(a, b, c) _mm512_fmadd_ps(a, b, c)
#define REGISTER "v"
#define NAME(loop) limit_##loop##_loop_avx512
#include "helper/limits_impl.h"
