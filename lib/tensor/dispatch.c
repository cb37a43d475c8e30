/* Picks the kernels of this process. See dispatch.h. */
#include "tensor/dispatch.h"

#include "base/cpu.h"
#include "tensor/attention_kernels.h"
#include "tensor/matmul_kernels.h"
#include "tensor/ops_kernels.h"
#include "tensor/vocab_kernels.h"

#define SET(variant)                                                                               \
    {                                                                                              \
#variant, &cart_matmul_kernels_##variant, &cart_matmul_kernels_bf16_##variant,             \
            &cart_attention_kernels_##variant, &cart_attention_kernels_bf16_##variant,             \
            &cart_ops_kernels_##variant, &cart_vocab_kernels_##variant                             \
    }

static const struct cart_tensor_kernels sets[] = {
    SET(generic),
    SET(fma),
    SET(avx2),
    SET(avx512),
    /* AVX-512 without VDPBF16PS. */
    {"avx512", &cart_matmul_kernels_avx512, &cart_matmul_kernels_bf16_avx2,
     &cart_attention_kernels_avx512, &cart_attention_kernels_bf16_avx2, &cart_ops_kernels_avx512,
     &cart_vocab_kernels_avx512},
};

const struct cart_tensor_kernels *cart_tensor_kernels(void)
{
    switch (cart_cpu_path()) {
    case CART_CPU_AVX512:
        return &sets[cart_cpu_has_bf16() ? 3 : 4];
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
        out[n++] = &sets[__builtin_cpu_supports("avx512bf16") ? 3 : 4];
    return n;
}
