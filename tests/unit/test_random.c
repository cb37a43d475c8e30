/* base/rng.h, base/hash.h, base/cpu.h: published known answers, and what the callers rely on. */
#include "base/cpu.h"
#include "base/hash.h"
#include "base/rng.h"
#include "base/rng_impl.h"

#include <math.h>
#include <setjmp.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

/* The known answers that the paper's authors publish for philox4x32, 10 rounds. */
static void test_philox(void **state)
{
    (void)state;
    static const struct {
        uint32_t counter[4];
        uint32_t key[2];
        uint32_t expected[4];
    } cases[] = {
        {{0, 0, 0, 0}, {0, 0}, {0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}},
        {{0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff},
         {0xffffffff, 0xffffffff},
         {0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}},
        {{0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344},
         {0xa4093822, 0x299f31d0},
         {0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}},
    };
    for (size_t i = 0; i < CART_COUNTOF(cases); i++) {
        uint32_t out[4];
        cart_philox4x32(cases[i].counter, cases[i].key, out);
        assert_memory_equal(out, cases[i].expected, sizeof out);
    }
}

static void test_keys_are_separate(void **state)
{
    (void)state;
    uint32_t base = cart_rng_u32(1, 2, CART_RNG_TEST, 3);
    assert_int_equal(base, cart_rng_u32(1, 2, CART_RNG_TEST, 3));
    assert_int_not_equal(base, cart_rng_u32(2, 2, CART_RNG_TEST, 3));
    assert_int_not_equal(base, cart_rng_u32(1 + (1ULL << 32), 2, CART_RNG_TEST, 3));
    assert_int_not_equal(base, cart_rng_u32(1, 3, CART_RNG_TEST, 3));
    assert_int_not_equal(base, cart_rng_u32(1, 2 + (1ULL << 32), CART_RNG_TEST, 3));
    assert_int_not_equal(base, cart_rng_u32(1, 2, CART_RNG_CHUNK, 3));
    assert_int_not_equal(base, cart_rng_u32(1, 2, CART_RNG_TEST, 4));
}

static void test_distributions(void **state)
{
    (void)state;
    enum { N = 200000, BINS = 10 };
    size_t bins[BINS] = {0};
    double sum = 0;
    double normal = 0;
    double normal2 = 0;
    for (uint32_t i = 0; i < N; i++) {
        double u = cart_rng_uniform(42, 0, CART_RNG_TEST, i);
        assert_true(u >= 0 && u < 1);
        sum += u;
        size_t b = cart_rng_below(42, 1, CART_RNG_TEST, i, BINS);
        assert_true(b < BINS);
        bins[b]++;
        double g = cart_rng_normal(42, 2, CART_RNG_TEST, i);
        assert_true(g >= -6 && g <= 6);
        normal += g;
        normal2 += g * g;
    }
    /* Five standard errors of each mean. */
    assert_true(fabs(sum / N - 0.5) < 5 * 0.2887 / sqrt(N));
    assert_true(fabs(normal / N) < 5 / sqrt(N));
    assert_true(fabs(normal2 / N - 1) < 5 * 1.42 / sqrt(N));
    for (size_t b = 0; b < BINS; b++)
        assert_true(fabs((double)bins[b] - N / BINS) < 5 * sqrt(N * 0.1 * 0.9));
    assert_int_equal(cart_rng_below(1, 1, CART_RNG_TEST, 1, 1), 0);
    assert_true(cart_rng_below(1, 1, CART_RNG_TEST, 1, SIZE_MAX) > 0);
}

/* Fixed values: a change of any of them would change every result made with a seed. */
static void test_numbers_never_change(void **state)
{
    (void)state;
    assert_int_equal(cart_rng_u32(7, 11, CART_RNG_TEST, 13), 1675467090U);
    assert_true(cart_rng_uniform(7, 11, CART_RNG_TEST, 13) == 0x1.dda17d6dfbafap-1);
    assert_int_equal(cart_rng_below(7, 11, CART_RNG_TEST, 13, 1000), 932);
    assert_true(cart_rng_normal(7, 11, CART_RNG_TEST, 13) == -0x1.5423b5f6p+0);
}

static void check_hex(const unsigned char *bytes, size_t n, const char *expected)
{
    char hex[129];
    assert_string_equal(cart_hex(hex, bytes, n), expected);
}

static void test_digests(void **state)
{
    (void)state;
    unsigned char d[32];
    cart_sha256("abc", 3, d);
    check_hex(d, 32, "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
    cart_sha256(NULL, 0, d);
    check_hex(d, 32, "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
    assert_int_equal(cart_crc32("123456789", 9), 0xcbf43926U);
    assert_int_equal(cart_crc32(NULL, 0), 0);
    cart_hash_bytes(NULL, 0, d);
    check_hex(d, 16, "99aa06d3014798d86001c324468d497f");
}

static void test_streaming_hash(void **state)
{
    (void)state;
    enum { N = 10000 };
    unsigned char *bytes = malloc(N);
    unsigned char whole[16];
    unsigned char parts[16];
    assert_non_null(bytes);
    for (size_t i = 0; i < N; i++)
        bytes[i] = (unsigned char)(i * 31 >> 3);
    cart_hash_bytes(bytes, N, whole);
    struct cart_hash *h = cart_hash_new();
    assert_non_null(h);
    for (size_t at = 0, step = 0; at < N; at += step, step = at < N / 4 ? step % 97 + 1 : 3 * step)
        cart_hash_add(h, bytes + at, at + step < N ? step : N - at);
    cart_hash_final(h, parts);
    assert_memory_equal(whole, parts, 16);
    cart_hash_add(h, "x", 1);
    cart_hash_final(h, parts);
    assert_memory_not_equal(whole, parts, 16);
    cart_hash_free(h);
    cart_hash_free(NULL);
    free(bytes);
}

static void test_cpu_choice(void **state)
{
    (void)state;
    struct cart_err err = {0};
    unsetenv("CART_CPU");
    assert_int_equal(cart_cpu_init(&err), 0);
    enum cart_cpu_path best = cart_cpu_path();
    bool fma = cart_cpu_has_fma();
    const char *const names[] = {"generic", "avx2", "avx512"};
    for (int i = 0; i < 3; i++) {
        setenv("CART_CPU", names[i], 1);
        int r = cart_cpu_init(&err);
        assert_int_equal(r, i <= (int)best ? 0 : CART_EUSAGE);
        if (r == 0)
            assert_string_equal(cart_cpu_path_name(), names[i]);
    }
    setenv("CART_CPU", "generic", 1);
    assert_int_equal(cart_cpu_init(&err), 0);
    assert_int_equal(cart_cpu_has_fma(), fma);
    assert_false(cart_cpu_has_bf16());
    setenv("CART_CPU", "baseline", 1);
    assert_int_equal(cart_cpu_init(&err), 0);
    assert_int_equal(cart_cpu_path(), CART_CPU_GENERIC);
    assert_false(cart_cpu_has_fma());
    setenv("CART_CPU", "sse9", 1);
    assert_int_equal(cart_cpu_init(&err), CART_EUSAGE);
    assert_non_null(strstr(err.msg, "sse9"));
    unsetenv("CART_CPU");
    assert_true(cart_cpu_count() >= 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_philox),        cmocka_unit_test(test_keys_are_separate),
        cmocka_unit_test(test_distributions), cmocka_unit_test(test_numbers_never_change),
        cmocka_unit_test(test_digests),       cmocka_unit_test(test_streaming_hash),
        cmocka_unit_test(test_cpu_choice),
    };
    cmocka_set_message_output(CM_OUTPUT_TAP);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
