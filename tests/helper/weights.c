/* Random weights. See weights.h. */
#include "helper/weights.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

const int test_dtypes[TEST_DTYPES] = {
    CART_F32,  CART_F16,  CART_Q4_0, CART_Q4_1, CART_Q5_0,   CART_Q5_1,   CART_Q8_0, CART_Q2_K,
    CART_Q3_K, CART_Q4_K, CART_Q5_K, CART_Q6_K, CART_IQ4_NL, CART_IQ4_XS, CART_BF16, CART_MXFP4,
};

uint32_t test_random(uint64_t *state)
{
    uint64_t z = *state += 0x9e3779b97f4a7c15;

    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9;
    z = (z ^ z >> 27) * 0x94d049bb133111eb;
    return (uint32_t)(z >> 32);
}

float test_random_float(uint64_t *state)
{
    return (float)((int32_t)test_random(state) >> 7) * 0x1p-24f;
}

static void put_u16(uint8_t *p, uint16_t v)
{
    p[0] = (uint8_t)v;
    p[1] = (uint8_t)(v >> 8);
}

/* Any sign and mantissa, exponents 2^-9 .. 2^-4. */
static uint16_t random_scale(uint64_t *state)
{
    uint32_t r = test_random(state);

    return (uint16_t)((r & 0x83ff) | (6 + (r >> 16) % 6) << 10);
}

static void fill_block(int dtype, uint8_t *b, size_t bytes, uint64_t *state)
{
    float x = test_random_float(state);
    int scale = 0, min = -1;

    switch (dtype) {
    case CART_F32:
        memcpy(b, &x, sizeof x);
        return;
    case CART_F16:
        put_u16(b, cart_f16_from_f32(x));
        return;
    case CART_BF16:
        put_u16(b, cart_bf16_from_f32(x));
        return;
    case CART_Q4_1:
    case CART_Q5_1:
    case CART_Q4_K:
    case CART_Q5_K:
        min = 2;
        break;
    case CART_Q2_K:
        scale = 80;
        min = 82;
        break;
    case CART_Q3_K:
        scale = 108;
        break;
    case CART_Q6_K:
        scale = 208;
        break;
    default:
        break;
    }
    for (size_t i = 0; i < bytes; i++)
        b[i] = (uint8_t)test_random(state);
    if (dtype == CART_MXFP4) {
        b[0] = (uint8_t)(118 + b[0] % 8);
        return;
    }
    put_u16(b + scale, random_scale(state));
    if (min >= 0)
        put_u16(b + min, random_scale(state));
}

struct cart_matrix test_weights(int dtype, size_t N, size_t K, size_t gap, uint64_t seed)
{
    const struct cart_dtype_info *info = cart_dtype_info(dtype);
    struct cart_matrix w = {
        .dtype = dtype, .N = N, .K = K, .row_bytes = K / info->block * info->bytes + gap};
    uint8_t *bytes = malloc(N * w.row_bytes + 1);

    if (!bytes) {
        fprintf(stderr, "no memory for %zu x %zu weights\n", N, K);
        exit(99);
    }
    /* The rows end where the allocation ends, so that a sanitizer sees every read beyond them. */
    w.data = bytes + gap % 2;
    for (size_t n = 0; n < N; n++) {
        uint8_t *row = bytes + gap % 2 + n * w.row_bytes;

        for (size_t k = 0; k < K; k += info->block, row += info->bytes)
            fill_block(dtype, row, info->bytes, &seed);
    }
    return w;
}

void test_weights_release(struct cart_matrix *w)
{
    free((uint8_t *)(uintptr_t)w->data - (w->row_bytes - w->K / cart_dtype_info(w->dtype)->block *
                                                             cart_dtype_info(w->dtype)->bytes) %
                                             2);
    w->data = NULL;
}
