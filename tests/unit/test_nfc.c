/* Normalization Form C against Unicode's own test file and against utf8proc on random strings. */
#include "token/tokenizer_impl.h"
#include "token/unicode.h"

#include "base/rng.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <archive.h>
#include <archive_entry.h>
#include <cmocka.h>
#include <utf8proc.h>

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

static void nfc(struct cart_buf *out, const char *text, size_t n)
{
    bool same;
    out->len = 0;
    assert_int_equal(cart_nfc(classes, text, n, out, &same, NULL), 0);
    if (same)
        assert_int_equal(cart_buf_add(out, text, n, NULL), 0);
}

static bool nfc_is(const char *text, size_t n, const char *expected, size_t n_expected)
{
    struct cart_buf out = CART_BUF_INIT;
    nfc(&out, text, n);
    bool same = out.len == n_expected && memcmp(out.data, expected, n_expected) == 0;
    cart_buf_release(&out);
    return same;
}

/* "0044 0307" up to a semicolon, as UTF-8; returns the place after the semicolon. */
static char *column(char *p, char *out, size_t *n)
{
    *n = 0;
    while (*p != ';') {
        *n += cart_utf8_encode((unsigned char *)out + *n, (uint32_t)strtoul(p, &p, 16));
        while (*p == ' ')
            p++;
    }
    return p + 1;
}

/* NFC of the first three columns is the second, of the last two the fourth. */
static void check_line(char *line, size_t *all, size_t *wrong)
{
    char c[5][128];
    size_t n[5];
    if (*line == '#' || *line == '@' || *line == '\0')
        return;
    for (size_t i = 0; i < 5; i++)
        line = column(line, c[i], &n[i]);
    for (size_t i = 0; i < 5; i++) {
        size_t k = i < 3 ? 1 : 3;
        ++*all;
        *wrong += !nfc_is(c[i], n[i], c[k], n[k]);
    }
}

static void test_unicode_file(void **state)
{
    static const char path[] = "/usr/share/unicode/NormalizationTest.txt.bz2";
    struct archive_entry *entry;
    struct cart_buf text = CART_BUF_INIT;
    char block[65536];
    size_t all = 0, wrong = 0;
    la_ssize_t n;
    (void)state;
    struct archive *a = archive_read_new();
    archive_read_support_filter_all(a);
    archive_read_support_format_raw(a);
    if (archive_read_open_filename(a, path, sizeof block) != ARCHIVE_OK ||
        archive_read_next_header(a, &entry) != ARCHIVE_OK) {
        printf("# %s is not there\n", path);
        archive_read_free(a);
        skip();
    }
    while ((n = archive_read_data(a, block, sizeof block)) > 0)
        assert_int_equal(cart_buf_add(&text, block, (size_t)n, NULL), 0);
    archive_read_free(a);
    if (strstr(text.data, "NormalizationTest-15.0.0") == NULL) {
        printf("# %s: of another Unicode than 15.0.0\n", path);
        cart_buf_release(&text);
        skip();
    }
    for (char *line = text.data; *line != '\0';) {
        char *next = line + strcspn(line, "\n");
        if (*next == '\n')
            *next++ = '\0';
        check_line(line, &all, &wrong);
        line = next;
    }
    cart_buf_release(&text);
    printf("# NormalizationTest: %zu of %zu\n", all - wrong, all);
    assert_int_equal(wrong, 0);
    assert_true(all > 90000);
}

static void test_against_utf8proc(void **state)
{
    static const uint32_t blocks[][2] = {
        {0x20, 0x60},   {0xc0, 0x1c0},  {0x300, 0x70},   {0x300, 0x70},  {0x370, 0x90},
        {0x900, 0x80},  {0x9b0, 0x50},  {0x1100, 0x100}, {0xac00, 0x60}, {0x1e00, 0x100},
        {0x2100, 0x40}, {0x3040, 0x60}, {0xf900, 0x80},  {0x1d15e, 8}};
    (void)state;
    for (uint64_t i = 0; i < 40000; i++) {
        char text[256];
        size_t n = 0;
        size_t count = cart_rng_below(3, i, CART_RNG_TEST, 0, 40);
        for (uint32_t k = 0; k < count; k++) {
            const uint32_t *block =
                blocks[cart_rng_below(3, i, CART_RNG_TEST, 2 * k + 1, CART_COUNTOF(blocks))];
            uint32_t cp =
                block[0] + (uint32_t)cart_rng_below(3, i, CART_RNG_TEST, 2 * k + 2, block[1]);
            n += cart_utf8_encode((unsigned char *)text + n, cp);
        }
        text[n] = '\0';
        utf8proc_uint8_t *expected = utf8proc_NFC((const utf8proc_uint8_t *)text);
        assert_non_null(expected);
        assert_true(nfc_is(text, n, (const char *)expected, strlen((const char *)expected)));
        free(expected);
    }
}

/* Bytes that are no UTF-8 stay where they are, and marks do not cross them. */
static void test_invalid(void **state)
{
    (void)state;
    assert_true(nfc_is("e\xff\xcc\x81", 4, "e\xff\xcc\x81", 4));
    assert_true(nfc_is("\xcc\xa3\xcc\x81\xe6\xad"
                       "e\xcc\x81\xcc",
                       10, "\xcc\xa3\xcc\x81\xe6\xad\xc3\xa9\xcc", 9));
    assert_true(nfc_is("\xcc\x81\xcc\xa3", 4, "\xcc\xa3\xcc\x81", 4));
    assert_true(nfc_is("a\0e\xcc\x81", 5, "a\0\xc3\xa9", 4));
    assert_true(nfc_is("", 0, "", 0));
}

/* 100,000 marks in falling order of class: an ordering by neighbours would take 5,000,000,000
 * steps. */
static void test_long_run(void **state)
{
    struct cart_buf text = CART_BUF_INIT, out = CART_BUF_INIT;
    (void)state;
    for (size_t i = 0; i < 50000; i++)
        assert_int_equal(cart_buf_add(&text, "\xcc\x81", 2, NULL), 0); /* class 230 */
    for (size_t i = 0; i < 50000; i++)
        assert_int_equal(cart_buf_add(&text, "\xcc\xa3", 2, NULL), 0); /* class 220 */
    nfc(&out, text.data, text.len);
    assert_int_equal(out.len, text.len);
    assert_memory_equal(out.data, "\xcc\xa3\xcc\xa3", 4);
    assert_memory_equal(out.data + out.len - 4, "\xcc\x81\xcc\x81", 4);
    cart_buf_release(&text);
    cart_buf_release(&out);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_unicode_file),
        cmocka_unit_test(test_against_utf8proc),
        cmocka_unit_test(test_invalid),
        cmocka_unit_test(test_long_run),
    };
    cmocka_set_message_output(CM_OUTPUT_TAP);
    return cmocka_run_group_tests_name("normalization", tests, setup, teardown);
}
