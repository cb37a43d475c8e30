/* Storage types: conversions against exact neighbours, blocks against golden bits, and every
 * variant of widening against the plain definition. */
#include "tensor/dtype.h"

#include "base/json.h"
#include "helper/weights.h"
#include "tensor/dispatch.h"
#include "tensor/matmul_kernels.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static uint32_t bits_of(float x)
{
    uint32_t u;

    memcpy(&u, &x, sizeof u);
    return u;
}

static void test_info(void **state)
{
    (void)state;
    assert_null(cart_dtype_info(-1));
    assert_null(cart_dtype_info(4)); /* Q4_2, long gone */
    assert_null(cart_dtype_info(40));
    assert_null(cart_dtype_info(1 << 30));
    assert_string_equal(cart_dtype_info(CART_Q6_K)->name, "Q6_K");
    assert_int_equal(cart_dtype_info(CART_Q6_K)->block, 256);
    assert_int_equal(cart_dtype_info(CART_Q6_K)->bytes, 210);
}

/* All finite f16 by value, and the roundings on either side of each midpoint of neighbours. */
static void test_f16(void **state)
{
    (void)state;
    for (uint32_t h = 0; h < 0x7c00; h++) {
        int e = (int)(h >> 10);
        float value = e ? ldexpf((float)(0x400 | (h & 0x3ff)), e - 25) : ldexpf((float)h, -24);
        float next = h == 0x7bff ? 65536.0f : cart_f16_to_f32((uint16_t)(h + 1)),
              middle = (value + next) / 2;

        assert_true(bits_of(cart_f16_to_f32((uint16_t)h)) == bits_of(value));
        assert_true(bits_of(cart_f16_to_f32((uint16_t)(h | 0x8000))) == bits_of(-value));
        assert_int_equal(cart_f16_from_f32(value), h);
        assert_int_equal(cart_f16_from_f32(-value), h | 0x8000);
        assert_int_equal(cart_f16_from_f32(middle), h % 2 ? h + 1 : h);
        assert_int_equal(cart_f16_from_f32(nextafterf(middle, 0)), h);
        assert_int_equal(cart_f16_from_f32(nextafterf(middle, INFINITY)), h + 1);
    }
    assert_int_equal(cart_f16_from_f32(INFINITY), 0x7c00);
    assert_int_equal(cart_f16_from_f32(-1e30f), 0xfc00);
    assert_int_equal(cart_f16_from_f32(-1e-30f), 0x8000);
    assert_true(isinf(cart_f16_to_f32(0xfc00)));
    assert_true(isnan(cart_f16_to_f32(0x7c01)));
    assert_true((cart_f16_from_f32(NAN) & 0x7fff) > 0x7c00);
}

static void test_bf16(void **state)
{
    (void)state;
    for (uint32_t h = 0; h < 0x7f7f; h++) {
        float value = cart_bf16_to_f32((uint16_t)h);
        float middle;
        uint32_t u = h << 16 | 0x8000;

        memcpy(&middle, &u, sizeof middle);
        assert_true(bits_of(value) == h << 16);
        assert_int_equal(cart_bf16_from_f32(value), h);
        assert_int_equal(cart_bf16_from_f32(-middle), (h % 2 ? h + 1 : h) | 0x8000);
        assert_int_equal(cart_bf16_from_f32(nextafterf(middle, 0)), h);
        assert_int_equal(cart_bf16_from_f32(nextafterf(middle, INFINITY)), h + 1);
    }
    assert_int_equal(cart_bf16_from_f32(INFINITY), 0x7f80);
    assert_int_equal(cart_bf16_from_f32(3.4e38f), 0x7f80);
    assert_true((cart_bf16_from_f32(NAN) & 0x7fff) > 0x7f80);
}

static void expect_bits(const char *who, const float *got, const json_t *bits)
{
    for (size_t i = 0; i < json_array_size(bits); i++) {
        uint32_t want = (uint32_t)json_integer_value(json_array_get(bits, i));

        if (bits_of(got[i]) != want)
            fail_msg("%s: value %zu: expected %08x, found %08x", who, i, want, bits_of(got[i]));
    }
}

static size_t hex_bytes(uint8_t *out, const char *hex)
{
    size_t n = strlen(hex) / 2;

    for (size_t i = 0; i < n; i++) {
        unsigned v;

        assert_int_equal(sscanf(hex + 2 * i, "%2x", &v), 1);
        out[i] = (uint8_t)v;
    }
    return n;
}

static void check_golden(const json_t *line)
{
    const struct cart_tensor_kernels *sets[CART_TENSOR_SETS];
    int id = (int)json_integer_value(json_object_get(line, "id"));
    const json_t *bits = json_object_get(line, "f32_bits");
    const struct cart_dtype_info *info = cart_dtype_info(id);
    uint8_t block[256];
    float out[256];

    assert_non_null(info);
    assert_int_equal(json_array_size(bits), info->block);
    assert_int_equal(hex_bytes(block, json_string_value(json_object_get(line, "hex"))),
                     info->bytes);
    cart_widen_ref(id, block, 0, info->block, out);
    expect_bits("ref", out, bits);
    for (size_t s = cart_tensor_kernels_usable(sets); s-- > 0;) {
        memset(out, 0xff, sizeof out);
        sets[s]->matmul->widen(id, block, 0, info->block, out, CART_TILE_LANES);
        expect_bits(sets[s]->name, out, bits);
    }
    cart_widen(id, block, 0, info->block, out);
    expect_bits("cart_widen", out, bits);
}

static void test_golden(void **state)
{
    const char *root = getenv("CART_TEST_ROOT");
    char path[4096], line[16384];
    struct cart_err err;
    size_t n = 0;
    FILE *f;

    (void)state;
    snprintf(path, sizeof path, "%s/tests/golden/dequant/blocks.jsonl", root ? root : ".");
    f = fopen(path, "r");
    assert_non_null(f);
    for (; fgets(line, sizeof line, f); n++) {
        json_t *v;

        assert_int_equal(cart_json_parse(&v, line, strlen(line), path, &err), 0);
        check_golden(v);
        json_decref(v);
    }
    fclose(f);
    assert_int_equal(n, 39);
}

/* Any stretch of a row, any step, rows at odd addresses: the bits of the plain definition, and
 * zeros that fill up the last piece. */
static void test_variants(void **state)
{
    const struct cart_tensor_kernels *sets[CART_TENSOR_SETS];
    size_t n_sets = cart_tensor_kernels_usable(sets);

    (void)state;
    for (size_t t = 0; t < TEST_DTYPES; t++) {
        const struct cart_dtype_info *info = cart_dtype_info(test_dtypes[t]);
        size_t block = info->block, K = block == 1 ? 83 : 6 * block;
        struct cart_matrix w = test_weights(test_dtypes[t], 3, K, 1, 7 + t);
        float *want = calloc(K, sizeof *want), *got = calloc(4 * (K + 16), sizeof *got);

        for (size_t k0 = 0; k0 < K; k0 += block == 1 ? 13 : block) {
            for (size_t n = block; k0 + n <= K; n += block == 1 ? 7 : block) {
                const uint8_t *row = (const uint8_t *)w.data + 2 * w.row_bytes;

                cart_widen_ref(w.dtype, row, k0, n, want);
                cart_widen(w.dtype, row, k0, n, got);
                assert_memory_equal(got, want, n * sizeof *want);
                for (size_t s = 0; s < n_sets; s++) {
                    sets[s]->matmul->widen(w.dtype, row, k0, n, got, 64);
                    for (size_t i = 0; i < (n + 15) / 16 * 16; i++)
                        if (bits_of(got[i / 16 * 64 + i % 16]) != (i < n ? bits_of(want[i]) : 0))
                            fail_msg("%s: %s: %zu values from %zu: value %zu", sets[s]->name,
                                     info->name, n, k0, i);
                }
            }
        }
        free(want);
        free(got);
        test_weights_release(&w);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_info),   cmocka_unit_test(test_f16),      cmocka_unit_test(test_bf16),
        cmocka_unit_test(test_golden), cmocka_unit_test(test_variants),
    };

    cmocka_set_message_output(CM_OUTPUT_TAP);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
