/* Picks the kernels of this process. See dispatch.h. */
#include "tensor/dispatch.h"

#include "base/cpu.h"
#include "tensor/attention_kernels.h"
#include "tensor/matmul_kernels.h"
#include "tensor/ops_kernels.h"
#include "tensor/vocab_kernels.h"

#define SET(variant)                                                                               \
    {                                                                                              \
#variant, &cart_matmul_kernels_##variant, &cart_attention_kernels_##variant,               \
            &cart_ops_kernels_##variant, &cart_vocab_kernels_##variant                             \
    }

static const struct cart_tensor_kernels sets[CART_TENSOR_SETS] = {
    SET(generic),
    SET(fma),
    SET(avx2),
    SET(avx512),
};

const struct cart_tensor_kernels *cart_tensor_kernels(void)
{
    switch (cart_cpu_path()) {
    case CART_CPU_AVX512:
        return &sets[3];
    case CART_CPU_AVX2:
        return &sets[2];
    case CART_CPU_GENERIC:
        break;
    }
    return &sets[cart_cpu_has_fma() ? 1 : 0];
}

size_t cart_tensor_kernels_usable(const struct cart_tensor_kernels *out[CART_TENSOR_SETS])
{
    size_t n = 0;

    out[n++] = &sets[0];
    if (__builtin_cpu_supports("fma"))
        out[n++] = &sets[1];
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"))
        out[n++] = &sets[2];
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
        __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl"))
        out[n++] = &sets[3];
    return n;
}
