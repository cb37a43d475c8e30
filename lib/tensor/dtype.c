/* The storage types: sizes, conversions, and the plain definition of what each block holds. Formats
 * are GGUF's; a block is read byte by byte, so nothing here needs alignment. Products of a scale
 * and a code are exact in f32 (Q6_K's, too: 11 + 7 + 5 bits), and formats with a minimum round
 * once, where it is added. */
#include "tensor/dtype.h"

#include "tensor/dispatch.h"
#include "tensor/matmul_kernels.h"

#include <assert.h>
#include <string.h>

static const struct cart_dtype_info infos[] = {
    [CART_F32] = {"F32", 1, 4},         [CART_F16] = {"F16", 1, 2},
    [CART_Q4_0] = {"Q4_0", 32, 18},     [CART_Q4_1] = {"Q4_1", 32, 20},
    [CART_Q5_0] = {"Q5_0", 32, 22},     [CART_Q5_1] = {"Q5_1", 32, 24},
    [CART_Q8_0] = {"Q8_0", 32, 34},     [CART_Q2_K] = {"Q2_K", 256, 84},
    [CART_Q3_K] = {"Q3_K", 256, 110},   [CART_Q4_K] = {"Q4_K", 256, 144},
    [CART_Q5_K] = {"Q5_K", 256, 176},   [CART_Q6_K] = {"Q6_K", 256, 210},
    [CART_IQ4_NL] = {"IQ4_NL", 32, 18}, [CART_IQ4_XS] = {"IQ4_XS", 256, 136},
    [CART_BF16] = {"BF16", 1, 2},       [CART_MXFP4] = {"MXFP4", 32, 17},
};

const struct cart_dtype_info *cart_dtype_info(int dtype)
{
    if (dtype < 0 || (size_t)dtype >= CART_COUNTOF(infos) || infos[dtype].block == 0)
        return NULL;
    return &infos[dtype];
}

static uint32_t bits_of(float x)
{
    uint32_t u;

    memcpy(&u, &x, sizeof u);
    return u;
}

static float float_of(uint32_t u)
{
    float x;

    memcpy(&x, &u, sizeof x);
    return x;
}

uint16_t cart_f16_from_f32(float x)
{
    uint32_t u = bits_of(x);
    uint32_t sign = u >> 16 & 0x8000, mag = u & 0x7fffffff;

    if (mag > 0x7f800000)
        return (uint16_t)(sign | 0x7e00 | (mag >> 13 & 0x3ff));
    if (mag >= 0x477ff000)
        return (uint16_t)(sign | 0x7c00);
    if (mag < 0x38800000) /* Subnormal: adding 0.5 leaves the rounded value in the low bits of the
                             mantissa. */
        return (uint16_t)(sign | (bits_of(float_of(mag) + 0.5f) - bits_of(0.5f)));
    mag += 0xfff + (mag >> 13 & 1);
    return (uint16_t)(sign | (mag - 0x38000000) >> 13);
}

float cart_f16_to_f32(uint16_t h)
{
    uint32_t sign = (uint32_t)(h & 0x8000) << 16, mag = h & 0x7fff;

    if (mag > 0x7c00)
        return float_of(sign | 0x7fc00000 | mag << 13);
    if (mag == 0x7c00)
        return float_of(sign | 0x7f800000);
    if (mag >= 0x400)
        return float_of(sign | ((mag << 13) + 0x38000000));
    return float_of(sign | bits_of((float)mag * 0x1p-24f));
}

uint16_t cart_bf16_from_f32(float x)
{
    uint32_t u = bits_of(x);

    if ((u & 0x7fffffff) > 0x7f800000)
        return (uint16_t)(u >> 16 | 0x40);
    return (uint16_t)((u + 0x7fff + (u >> 16 & 1)) >> 16);
}

uint16_t cart_bf16_flushed(float x)
{
    uint32_t u = bits_of(x);

    return (u & 0x7f800000u) == 0 ? (uint16_t)(u >> 16 & 0x8000u) : cart_bf16_from_f32(x);
}

float cart_bf16_to_f32(uint16_t h)
{
    return float_of((uint32_t)h << 16);
}

static unsigned u16_at(const uint8_t *p)
{
    return (unsigned)(p[0] | p[1] << 8);
}

static float f16_at(const uint8_t *p)
{
    return cart_f16_to_f32((uint16_t)u16_at(p));
}

/* The non-linear code of IQ4_NL and IQ4_XS. */
static const int8_t iq4_values[16] = {-127, -104, -83, -65, -49, -35, -22, -10,
                                      1,    13,   25,  38,  53,  69,  89,  113};

/* Twice the values of E2M1. Code 8 is +0. */
static const int8_t e2m1_doubled[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};

static unsigned nibble(const uint8_t *p, size_t i) /* value i of 32 in sixteen bytes */
{
    return i < 16 ? p[i] & 15 : p[i - 16] >> 4;
}

static unsigned bit(const uint8_t *p, size_t i)
{
    return p[i / 8] >> i % 8 & 1;
}

static void widen_q4_0(const uint8_t *b, float *out)
{
    float d = f16_at(b);

    for (size_t i = 0; i < 32; i++)
        out[i] = d * (float)((int)nibble(b + 2, i) - 8);
}

static void widen_q4_1(const uint8_t *b, float *out)
{
    float d = f16_at(b), m = f16_at(b + 2);

    for (size_t i = 0; i < 32; i++)
        out[i] = d * (float)nibble(b + 4, i) + m;
}

static void widen_q5_0(const uint8_t *b, float *out)
{
    float d = f16_at(b);

    for (size_t i = 0; i < 32; i++)
        out[i] = d * (float)((int)(nibble(b + 6, i) | bit(b + 2, i) << 4) - 16);
}

static void widen_q5_1(const uint8_t *b, float *out)
{
    float d = f16_at(b), m = f16_at(b + 2);

    for (size_t i = 0; i < 32; i++)
        out[i] = d * (float)(nibble(b + 8, i) | bit(b + 4, i) << 4) + m;
}

static void widen_q8_0(const uint8_t *b, float *out)
{
    float d = f16_at(b);

    for (size_t i = 0; i < 32; i++)
        out[i] = d * (float)(int8_t)b[2 + i];
}

static void widen_iq4_nl(const uint8_t *b, float *out)
{
    float d = f16_at(b);

    for (size_t i = 0; i < 32; i++)
        out[i] = d * (float)iq4_values[nibble(b + 2, i)];
}

static void widen_mxfp4(const uint8_t *b, float *out)
{
    /* 2^(e - 128), half the scale because the codes are doubled; subnormal for e < 2. */
    float d = float_of(b[0] < 2 ? 0x00200000u << b[0] : (uint32_t)(b[0] - 1) << 23);

    for (size_t i = 0; i < 32; i++)
        out[i] = d * (float)e2m1_doubled[nibble(b + 1, i)];
}

/* The K formats: 256 values. In Q2_K and Q3_K value 128 n + 32 j + l is in bits 2 j of byte 32 n +
 * l. */
static void widen_q2_k(const uint8_t *b, float *out)
{
    const uint8_t *q = b + 16;
    float d = f16_at(b + 80), m = f16_at(b + 82);

    for (size_t i = 0; i < 256; i++) {
        unsigned sc = b[i / 16], code = q[i / 128 * 32 + i % 32] >> 2 * (i % 128 / 32) & 3;

        out[i] = d * (float)(sc & 15) * (float)code - m * (float)(sc >> 4);
    }
}

/* Sixteen scales of six bits in twelve bytes. */
static int q3_k_scale(const uint8_t *s, size_t i)
{
    unsigned low = i < 8 ? s[i] & 15 : s[i - 8] >> 4;
    unsigned high = s[8 + i % 4] >> 2 * (i / 4) & 3;

    return (int)(low | high << 4) - 32;
}

static void widen_q3_k(const uint8_t *b, float *out)
{
    const uint8_t *high = b, *q = b + 32;
    float d = f16_at(b + 108);

    for (size_t i = 0; i < 256; i++) {
        int code = q[i / 128 * 32 + i % 32] >> 2 * (i % 128 / 32) & 3;

        if (!(high[i % 32] >> i / 32 & 1))
            code -= 4;
        out[i] = d * (float)q3_k_scale(b + 96, i / 16) * (float)code;
    }
}

/* Eight scales and eight minima of six bits in twelve bytes. */
static void q4_k_scale(const uint8_t *s, size_t i, unsigned *scale, unsigned *min)
{
    if (i < 4) {
        *scale = s[i] & 63;
        *min = s[i + 4] & 63;
    } else {
        *scale = (s[i + 4] & 15u) | (s[i - 4] >> 6) << 4;
        *min = s[i + 4] >> 4 | (s[i] >> 6) << 4;
    }
}

static void widen_q45_k(const uint8_t *b, const uint8_t *high, const uint8_t *q, float *out)
{
    float d = f16_at(b), m = f16_at(b + 2);

    for (size_t i = 0; i < 256; i++) {
        unsigned scale, min, code = q[i / 64 * 32 + i % 32] >> 4 * (i % 64 / 32) & 15;

        if (high && high[i % 32] >> i / 32 & 1)
            code += 16;
        q4_k_scale(b + 4, i / 32, &scale, &min);
        out[i] = d * (float)scale * (float)code - m * (float)min;
    }
}

static void widen_q6_k(const uint8_t *b, float *out)
{
    const uint8_t *low = b, *high = b + 128;
    float d = f16_at(b + 208);

    for (size_t i = 0; i < 256; i++) {
        size_t n = i / 128, j = i % 128 / 32, l = i % 32;
        int code = (low[64 * n + 32 * (j % 2) + l] >> 4 * (j / 2) & 15) |
                   (high[32 * n + l] >> 2 * j & 3) << 4;

        out[i] = d * (float)(int8_t)b[192 + i / 16] * (float)(code - 32);
    }
}

static void widen_iq4_xs(const uint8_t *b, float *out)
{
    float d = f16_at(b);
    unsigned high = u16_at(b + 2);

    for (size_t i = 0; i < 256; i++) {
        size_t s = i / 32;
        int scale = (int)((b[4 + s / 2] >> 4 * (s % 2) & 15) | (high >> 2 * s & 3) << 4) - 32;

        out[i] = d * (float)scale * (float)iq4_values[nibble(b + 8 + 16 * s, i % 32)];
    }
}

static void widen_block(int dtype, const uint8_t *b, float *out)
{
    switch (dtype) {
    case CART_F32:
        memcpy(out, b, sizeof *out);
        return;
    case CART_F16:
        *out = f16_at(b);
        return;
    case CART_BF16:
        *out = cart_bf16_to_f32((uint16_t)u16_at(b));
        return;
    case CART_Q4_0:
        widen_q4_0(b, out);
        return;
    case CART_Q4_1:
        widen_q4_1(b, out);
        return;
    case CART_Q5_0:
        widen_q5_0(b, out);
        return;
    case CART_Q5_1:
        widen_q5_1(b, out);
        return;
    case CART_Q8_0:
        widen_q8_0(b, out);
        return;
    case CART_Q2_K:
        widen_q2_k(b, out);
        return;
    case CART_Q3_K:
        widen_q3_k(b, out);
        return;
    case CART_Q4_K:
        widen_q45_k(b, NULL, b + 16, out);
        return;
    case CART_Q5_K:
        widen_q45_k(b, b + 16, b + 48, out);
        return;
    case CART_Q6_K:
        widen_q6_k(b, out);
        return;
    case CART_IQ4_NL:
        widen_iq4_nl(b, out);
        return;
    case CART_IQ4_XS:
        widen_iq4_xs(b, out);
        return;
    case CART_MXFP4:
        widen_mxfp4(b, out);
        return;
    default:
        assert(!"a supported dtype");
    }
}

void cart_widen_ref(int dtype, const void *row, size_t k0, size_t n, float *out)
{
    const struct cart_dtype_info *info = cart_dtype_info(dtype);
    const uint8_t *b = row;

    assert(info && k0 % info->block == 0 && n % info->block == 0);
    for (b += k0 / info->block * info->bytes; n > 0; n -= info->block) {
        widen_block(dtype, b, out);
        b += info->bytes;
        out += info->block;
    }
}

void cart_widen(int dtype, const void *row, size_t k0, size_t n, float *out)
{
    size_t whole =
        n / CART_TILE_LANES * CART_TILE_LANES; /* widen fills up its last piece; out ends at n */

    cart_tensor_kernels()->matmul->widen(dtype, row, k0, whole, out, CART_TILE_LANES);
    cart_widen_ref(dtype, row, k0 + whole, n - whole, out + whole);
}
