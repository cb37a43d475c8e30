/* The pre-tokenizers against the published regular expressions, run by PCRE2 on random hostile
 * strings. */
#include "token/split.h"
#include "token/unicode.h"

#include "base/rng.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#if defined(__has_include)
#if __has_include(<pcre2.h>)
#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>
#define HAVE_PCRE2 1
#endif
#endif

static unsigned char *classes;

static int setup(void **state)
{
    (void)state;
    classes = cart_unicode_classes();
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    free(classes);
    return 0;
}

/* Cuts text and writes the pieces with bars between. */
static void cut(enum cart_split kind, const char *text, char *out)
{
    const unsigned char *p = (const unsigned char *)text;
    const unsigned char *end = p + strlen(text);
    size_t steps = 0;
    while (p < end) {
        size_t n = cart_split_next(kind, classes, p, end, &steps);
        memcpy(out, p, n);
        out += n;
        *out++ = '|';
        p += n;
    }
    *out = '\0';
}

static void test_by_hand(void **state)
{
    static const struct {
        enum cart_split kind;
        const char *text, *pieces;
    } cases[] = {
        {CART_SPLIT_SMOLLM, "in 2024, 12 apples", "in| |2|0|2|4|,| |1|2| apples|"},
        {CART_SPLIT_SMOLLM, "I'll we'RE\t\tx", "I|'ll| we|'|RE|\t|\t|x|"},
        {CART_SPLIT_SMOLLM, "a  \n\n1.\n", "a|  \n\n|1|.|\n|"},
        {CART_SPLIT_SMOLLM, "\xc2\xbd \xe2\x85\xa7", "\xc2\xbd| |\xe2\x85\xa7|"},
        {CART_SPLIT_QWEN2, "in 2024, we'RE", "in| |2|0|2|4|,| we|'RE|"},
        {CART_SPLIT_QWEN2, "it'\xc5\xbf (x)\r\n\r\n  y  ", "it|'\xc5\xbf| (|x|)\r\n\r\n| | y|  |"},
        {CART_SPLIT_QWEN2, " \n \t\n  z", " \n \t\n| | z|"},
        {CART_SPLIT_QWEN2, "k   =1", "k|  | =|1|"},
        {CART_SPLIT_LLAMA_BPE, "1234567 89", "123|456|7| |89|"},
        {CART_SPLIT_LLAMA_BPE,
         "\xff\xfe"
         "a",
         "\xff\xfe|a|"},
    };
    (void)state;
    for (size_t i = 0; i < CART_COUNTOF(cases); i++) {
        char out[128];
        cut(cases[i].kind, cases[i].text, out);
        assert_string_equal(out, cases[i].pieces);
    }
}

/* The White_Space property has 25 members; look-alikes are none. */
static void test_white_space(void **state)
{
    static const uint32_t not_space[] = {0x180e, 0x200b, 0x200c, 0x200d,
                                         0x2060, 0xfeff, 0x1c,   0x1f};
    size_t n = 0;
    (void)state;
    for (size_t i = 0; i < CART_UNICODE_MAX; i++)
        n += (classes[i] & CART_UNICODE_SPACE) != 0;
    assert_int_equal(n, 25);
    for (size_t i = 0; i < CART_COUNTOF(not_space); i++)
        assert_false(classes[not_space[i]] & CART_UNICODE_SPACE);
    assert_true(classes[0x85] & CART_UNICODE_SPACE);
}

#ifdef HAVE_PCRE2
#define QWEN2(digits)                                                                              \
    "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}" digits                     \
    "| ?[^\\p{wspace}\\p{L}\\p{N}]+[\\r\\n]*|\\p{wspace}*[\\r\\n]+|\\p{wspace}+(?!\\P{wspace})"    \
    "|\\p{wspace}+"

/* smollm's first pass, the numbers cut out, is said by the look-ahead: a number ends the text
 * before it. */
static const char *const patterns[] = {
    "\\p{N}|'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?[^\\p{wspace}\\p{L}\\p{N}]+"
    "|\\p{wspace}+(?![^\\p{wspace}\\p{N}])|\\p{wspace}+",
    QWEN2(""),
    QWEN2("{1,3}"),
};

/* Characters that the patterns care about, then whole blocks that Unicode 14 and 15 agree on. */
static size_t random_text(unsigned char *out, uint64_t seed, uint64_t n)
{
    static const uint32_t marked[] = {
        ' ',      ' ',    ' ',    '\n',   '\r',   '\t',   '\'',   's',   'S',    't',
        'T',      'r',    'e',    'E',    'v',    'l',    'L',    'm',   'd',    0x17f,
        0x85,     0xa0,   0x3000, 0x2028, 0x200b, 0xfeff, 0x180e, '1',   '2',    0xbd,
        0x661,    0x2167, '.',    '!',    0x301,  0x300,  0x93f,  0x915, 0x4e2d, 0x1f600,
        0x10ffff, 0xe000, 0x1e9e, 0x130,  0x212a, 0x200d};
    static const uint32_t blocks[][2] = {{0x20, 0x60},    {0xa0, 0x160},  {0x370, 0x90},
                                         {0x2000, 0x70},  {0x2150, 0x40}, {0xfe00, 0x80},
                                         {0x1d400, 0x400}};
    size_t count = 1 + cart_rng_below(seed, n, CART_RNG_TEST, 0, 24);
    size_t len = 0;
    for (size_t i = 0; i < count; i++) {
        uint32_t index = (uint32_t)i * 4;
        size_t times = cart_rng_below(seed, n, CART_RNG_TEST, index + 1, 16) == 0 ? 4 : 1;
        size_t k = cart_rng_below(seed, n, CART_RNG_TEST, index + 2, CART_COUNTOF(marked) * 3 / 2);
        uint32_t cp;
        if (k < CART_COUNTOF(marked)) {
            cp = marked[k];
        } else {
            const uint32_t *block = blocks[k % CART_COUNTOF(blocks)];
            cp = block[0] + (uint32_t)cart_rng_below(seed, n, CART_RNG_TEST, index + 3, block[1]);
        }
        for (size_t m = 0; m < times; m++)
            len += cart_utf8_encode(out + len, cp);
    }
    return len;
}

static size_t compare(enum cart_split kind, const pcre2_code *code, pcre2_match_data *match,
                      const unsigned char *text, size_t n)
{
    size_t at = 0, pieces = 0, steps = 0;
    while (at < n) {
        size_t len = cart_split_next(kind, classes, text + at, text + n, &steps);
        int r = pcre2_match(code, text, n, at, PCRE2_ANCHORED, match, NULL);
        size_t expected = r > 0 ? pcre2_get_ovector_pointer(match)[1] - at : 0;
        if (len != expected) {
            printf("# kind %d, byte %zu: expected %zu, found %zu:", (int)kind, at, expected, len);
            for (size_t i = 0; i < n; i++)
                printf(" %02x", text[i]);
            printf("\n");
        }
        assert_int_equal(len, expected);
        at += len;
        pieces++;
    }
    return pieces;
}

static void test_against_pcre2(void **state)
{
    unsigned char text[512];
    (void)state;
    for (size_t k = 0; k < CART_COUNTOF(patterns); k++) {
        int code;
        size_t where, pieces = 0;
        pcre2_code *re = pcre2_compile((PCRE2_SPTR)patterns[k], PCRE2_ZERO_TERMINATED,
                                       PCRE2_UTF | PCRE2_UCP, &code, &where, NULL);
        if (re == NULL)
            skip(); /* an older PCRE2 does not know \p{wspace} */
        pcre2_match_data *match = pcre2_match_data_create_from_pattern(re, NULL);
        for (uint64_t i = 0; i < 40000; i++)
            pieces += compare((enum cart_split)k, re, match, text, random_text(text, 7, i));
        printf("# pattern %zu: 40000 texts, %zu pieces equal\n", k, pieces);
        pcre2_match_data_free(match);
        pcre2_code_free(re);
    }
}
#else
static void test_against_pcre2(void **state)
{
    (void)state;
    printf("# pcre2.h is not there\n");
    skip();
}
#endif

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_by_hand),
        cmocka_unit_test(test_white_space),
        cmocka_unit_test(test_against_pcre2),
    };
    cmocka_set_message_output(CM_OUTPUT_TAP);
    return cmocka_run_group_tests_name("pre-tokenizers", tests, setup, teardown);
}
