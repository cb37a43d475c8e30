/* The tokenizer against ids that other implementations made: exact, every case. */
#include "helper/vocab.h"

#include "base/hash.h"
#include "base/io.h"
#include "token/tokenizer_json.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

struct score {
    size_t right, all;
};

static void report(const char *set, struct score s)
{
    printf("# %s: %zu of %zu\n", set, s.right, s.all);
    assert_int_equal(s.right, s.all);
}

static bool encode_equals(const struct cart_tokenizer *t, const char *text, size_t n,
                          unsigned flags, const json_t *expected, const char *label)
{
    struct cart_err err = {0};
    struct cart_ids ids = CART_IDS_INIT;
    assert_int_equal(cart_tokenizer_encode(t, text, n, flags, &ids, NULL, &err), 0);
    bool same = test_ids_equal(&ids, expected, label);
    cart_ids_release(&ids);
    return same;
}

static bool encode_json(const struct cart_tokenizer *t, const json_t *text, unsigned flags,
                        const json_t *expected, const char *label)
{
    return encode_equals(t, json_string_value(text), json_string_length(text), flags, expected,
                         label);
}

/* The texts that the golden file gives as a rule. */
static void repeat(struct cart_buf *b, const json_t *pair, json_int_t times)
{
    const json_t *s = json_array_get(pair, 0);
    for (json_int_t i = 0; i < times * json_integer_value(json_array_get(pair, 1)); i++)
        assert_int_equal(cart_buf_add(b, json_string_value(s), json_string_length(s), NULL), 0);
}

/* times: so often as long. */
static void long_text(struct cart_buf *b, const json_t *c, json_int_t times)
{
    const json_t *lcg = json_object_get(c, "lcg");
    const json_t *concat = json_object_get(c, "concat");
    if (json_object_get(c, "repeat") != NULL)
        repeat(b, json_object_get(c, "repeat"), times);
    for (size_t i = 0; i < json_array_size(concat); i++)
        repeat(b, json_array_get(concat, i), times);
    if (lcg == NULL)
        return;
    const char *alphabet = json_string_value(json_object_get(lcg, "alphabet"));
    uint64_t x = 1;
    for (json_int_t i = 0; i < times * json_integer_value(json_object_get(lcg, "count")); i++) {
        x = (x * 1103515245 + 12345) & 0x7fffffff;
        assert_int_equal(cart_buf_add(b, &alphabet[(x >> 16) % strlen(alphabet)], 1, NULL), 0);
    }
}

static bool long_case(const struct cart_tokenizer *t, const json_t *c, const char *label)
{
    struct cart_err err = {0};
    struct cart_buf text = CART_BUF_INIT, digits = CART_BUF_INIT;
    struct cart_ids ids = CART_IDS_INIT;
    unsigned char digest[32];
    char hex[65];
    long_text(&text, c, 1);
    assert_int_equal(cart_tokenizer_encode(t, text.data, text.len, 0, &ids, NULL, &err), 0);
    for (size_t i = 0; i < ids.n; i++)
        assert_int_equal(
            cart_buf_addf(&digits, NULL, "%s%u", i > 0 ? " " : "", (unsigned)ids.data[i]), 0);
    cart_sha256(digits.data, digits.len, digest);
    bool same =
        json_integer_value(json_object_get(c, "n_ids")) == (json_int_t)ids.n &&
        strcmp(cart_hex(hex, digest, 32), json_string_value(json_object_get(c, "ids_sha256"))) == 0;
    if (!same)
        printf("# %s: %zu ids, sha256 %s\n", label, ids.n, hex);
    cart_buf_release(&text);
    cart_buf_release(&digits);
    cart_ids_release(&ids);
    return same;
}

/* Steps of scanning and merging for the case made so many times as long. */
static size_t steps_of(const struct cart_tokenizer *t, const json_t *c, json_int_t times,
                       size_t *bytes)
{
    struct cart_buf text = CART_BUF_INIT;
    struct cart_ids ids = CART_IDS_INIT;
    struct cart_encode_stats s = {0, 0, 0, 0};
    long_text(&text, c, times);
    *bytes = text.len;
    assert_int_equal(cart_tokenizer_encode(t, text.data, text.len, 0, &ids, &s, NULL), 0);
    cart_buf_release(&text);
    cart_ids_release(&ids);
    return s.scan_steps + s.merge_steps;
}

/* The work of every long case is linear: counted, so that no clock is needed. */
static void test_doubling(void **state)
{
    struct test_vocab v;
    size_t n = 0, bytes;
    (void)state;
    json_t *cases = test_json_lines(test_shared("qwen3-tokenizer-golden.jsonl"));
    if (cases == NULL ||
        !test_vocab_open(&v, test_shared("qwen3-tokenizer/qwen3-vocab-tiny.gguf.zst"))) {
        json_decref(cases);
        skip();
    }
    for (size_t i = 0; i < json_array_size(cases); i++) {
        const json_t *c = json_array_get(cases, i);
        const char *label = json_string_value(json_object_get(c, "id"));
        if (strncmp(label, "lg-", 3) != 0)
            continue;
        double four = (double)steps_of(v.t, c, 4, &bytes),
               two = (double)steps_of(v.t, c, 2, &bytes), one = (double)steps_of(v.t, c, 1, &bytes);
        printf("# %-9s %6zu bytes, %7.0f steps; doubled %.2f, and again %.2f\n", label, bytes, one,
               two / one, four / two);
        assert_true(two <= 2.3 * one && four <= 2.3 * two);
        n++;
    }
    assert_int_equal(n, 13);
    test_vocab_close(&v);
    json_decref(cases);
}

/* decode(encode(x)) is the normalised x. */
static bool round_trip(const struct cart_tokenizer *t, const json_t *text)
{
    struct cart_buf norm = CART_BUF_INIT, back = CART_BUF_INIT;
    struct cart_ids ids = CART_IDS_INIT;
    const char *s = json_string_value(text);
    assert_int_equal(cart_tokenizer_encode(t, s, json_string_length(text), 0, &ids, NULL, NULL), 0);
    assert_int_equal(cart_tokenizer_normalize(t, s, json_string_length(text), &norm, NULL), 0);
    assert_int_equal(cart_tokenizer_decode(t, ids.data, ids.n, false, &back, NULL), 0);
    bool same =
        norm.len == back.len && (norm.len == 0 || memcmp(norm.data, back.data, norm.len) == 0);
    cart_buf_release(&norm);
    cart_buf_release(&back);
    cart_ids_release(&ids);
    return same;
}

static void test_qwen3(void **state)
{
    struct test_vocab v;
    (void)state;
    json_t *cases = test_json_lines(test_shared("qwen3-tokenizer-golden.jsonl"));
    if (cases == NULL ||
        !test_vocab_open(&v, test_shared("qwen3-tokenizer/qwen3-vocab-tiny.gguf.zst"))) {
        json_decref(cases);
        skip();
    }
    struct score plain = {0, 0}, special = {0, 0}, back = {0, 0};
    for (size_t i = 0; i < json_array_size(cases); i++) {
        const json_t *c = json_array_get(cases, i);
        const char *label = json_string_value(json_object_get(c, "id"));
        const json_t *text = json_object_get(c, "text");
        const json_t *ids = json_object_get(c, "ids");
        const json_t *ids_special = json_object_get(c, "ids_special");
        plain.all++;
        if (text == NULL) {
            plain.right += long_case(v.t, c, label);
            continue;
        }
        plain.right += encode_json(v.t, text, 0, ids, label);
        special.all++;
        special.right += encode_json(v.t, text, CART_ENCODE_SPECIAL,
                                     ids_special != NULL ? ids_special : ids, label);
        back.all++;
        back.right += round_trip(v.t, text);
    }
    test_vocab_close(&v);
    json_decref(cases);
    report("qwen3, plain text", plain);
    report("qwen3, special tokens", special);
    report("qwen3, round trip", back);
    assert_int_equal(plain.all, 311);
}

/* Texts stand between separator lines, one line of ids answers each. */
static void test_llama_cpp_qwen2(void **state)
{
    static const char separator[] = "\n__ggml_vocab_test__\n";
    struct test_vocab v;
    struct cart_buf in = CART_BUF_INIT, out = CART_BUF_INIT;
    (void)state;
    if (!test_vocab_open(&v, test_shared("qwen3-tokenizer/qwen3-vocab-tiny.gguf.zst")))
        skip();
    assert_int_equal(cart_io_slurp(test_shared("ggml-vocab/common.gguf.inp"), 1 << 20, &in, NULL),
                     0);
    assert_int_equal(
        cart_io_slurp(test_shared("ggml-vocab/ggml-vocab-qwen2.gguf.out"), 1 << 20, &out, NULL), 0);
    struct score s = {0, 0};
    char *text = in.data;
    char *line = out.data;
    while (s.all < 47) {
        char *end = strstr(text, separator);
        char label[32];
        json_t *ids = json_array();
        size_t n = end == NULL ? strlen(text) : (size_t)(end - text);
        char *stop = line + strcspn(line, "\n");
        while (line < stop) {
            char *next;
            long long id = strtoll(line, &next, 10);
            if (next == line || next > stop)
                break;
            json_array_append_new(ids, json_integer(id));
            line = next;
        }
        line = *stop == '\0' ? stop : stop + 1;
        snprintf(label, sizeof label, "text %zu", s.all);
        s.all++;
        s.right += encode_equals(v.t, text, n, 0, ids, label);
        json_decref(ids);
        if (end == NULL)
            break;
        text = end + strlen(separator);
    }
    test_vocab_close(&v);
    cart_buf_release(&in);
    cart_buf_release(&out);
    report("qwen2 by llama.cpp", s);
    assert_int_equal(s.all, 47);
}

static void test_smollm2(void **state)
{
    struct test_vocab v;
    struct score s = {0, 0};
    (void)state;
    json_t *cases = test_json(test_shared("smollm2-golden/g5_tok_smollm2.json"));
    if (cases == NULL || !test_vocab_open(&v, test_demo_model())) {
        json_decref(cases);
        skip();
    }
    for (size_t i = 0; i < json_array_size(cases); i++) {
        const json_t *c = json_array_get(cases, i);
        const json_t *text = json_object_get(c, "text");
        s.all += 2;
        s.right += encode_json(v.t, text, 0, json_object_get(c, "plain"), json_string_value(text));
        s.right += encode_json(v.t, text, CART_ENCODE_SPECIAL, json_object_get(c, "special"),
                               json_string_value(text));
    }
    test_vocab_close(&v);
    json_decref(cases);
    report("smollm2, plain and special", s);
}

static const char *tiny(const char *name)
{
    static char path[1100];
    snprintf(path, sizeof path, "tests/golden/tiny/%s", name);
    return test_root(path);
}

static void test_tiny(void **state)
{
    static const char *const names[] = {"llama_tied", "llama3_untied", "qwen3"};
    (void)state;
    json_t *golden = test_json(test_root("tests/golden/token/tokenizers.golden.json"));
    assert_non_null(golden);
    for (size_t k = 0; k < CART_COUNTOF(names); k++) {
        struct test_vocab v;
        char file[64];
        struct score s = {0, 0};
        const json_t *g = json_object_get(golden, names[k]);
        const json_t *texts = json_object_get(g, "texts");
        const json_t *eog = json_object_get(g, "llama_cpp_eog");
        snprintf(file, sizeof file, "%s.gguf", names[k]);
        assert_true(test_vocab_open(&v, tiny(file)));
        for (size_t i = 0; i < json_array_size(texts); i++) {
            const json_t *c = json_array_get(texts, i);
            s.all++;
            s.right += encode_json(v.t, json_object_get(c, "text"), CART_ENCODE_SPECIAL,
                                   json_object_get(c, "ids"), names[k]);
        }
        struct cart_ids ends = CART_IDS_INIT;
        for (uint32_t id = 0; id < cart_tokenizer_size(v.t); id++)
            if (cart_tokenizer_is_eog(v.t, id))
                assert_int_equal(cart_ids_add(&ends, &id, 1, NULL), 0);
        s.all++;
        s.right += test_ids_equal(&ends, eog, "end markers");
        cart_ids_release(&ends);
        assert_int_equal(cart_tokenizer_adds_bos(v.t),
                         json_is_true(json_object_get(g, "llama_cpp_add_bos")));
        test_vocab_close(&v);
        report(names[k], s);
    }
    json_decref(golden);
}

/* CRC-32 of the ids of each string under each pre-tokenizer, as the package tokenizers finds
 * them. */
static struct score hostile(const struct test_vocab *v, const char *pre, const json_t *lines)
{
    struct score s = {0, 0};
    struct cart_vocab_source src = v->src;
    struct cart_tokenizer *t;
    struct cart_ids ids = CART_IDS_INIT;
    struct cart_err err = {0};
    src.pre = pre;
    assert_int_equal(cart_tokenizer_new(&t, &src, &err), 0);
    for (size_t i = 0; i < json_array_size(lines); i++) {
        const json_t *line = json_array_get(lines, i), *text = json_object_get(line, "text");
        const char *expected = json_string_value(json_object_get(line, pre));
        char found[9];
        ids.n = 0;
        assert_int_equal(cart_tokenizer_encode(t, json_string_value(text), json_string_length(text),
                                               0, &ids, NULL, &err),
                         0);
        snprintf(found, sizeof found, "%08x",
                 (unsigned)cart_crc32(ids.data, ids.n * sizeof *ids.data));
        if (strcmp(found, expected) != 0)
            printf("# string %zu under %s: expected %s, found %s\n", i, pre, expected, found);
        s.right += strcmp(found, expected) == 0;
        s.all++;
    }
    cart_ids_release(&ids);
    cart_tokenizer_free(t);
    return s;
}

static void test_hostile(void **state)
{
    static const char *const pres[] = {"smollm", "qwen2", "llama-bpe"};
    struct test_vocab v;
    (void)state;
    json_t *lines = test_json_lines(test_root("tests/golden/token/hostile.jsonl"));
    assert_non_null(lines);
    if (!test_vocab_open(&v, test_demo_model())) {
        json_decref(lines);
        skip();
    }
    for (size_t i = 0; i < CART_COUNTOF(pres); i++)
        report(pres[i], hostile(&v, pres[i], lines));
    test_vocab_close(&v);
    json_decref(lines);
}

/* The real tokenizer.json of Qwen3 is the vocabulary of the GGUF that the goldens run on. */
static void test_qwen3_json(void **state)
{
    struct test_vocab v;
    struct cart_vocab_json json;
    struct cart_buf text = CART_BUF_INIT;
    struct cart_tokenizer *t = NULL;
    struct cart_err err;
    json_t *root = NULL;
    char path[512];
    (void)state;
    snprintf(path, sizeof path, "%s", test_shared("qwen3-tokenizer/tokenizer.json.zst"));
    if (access(path, R_OK) != 0 ||
        !test_vocab_open(&v, test_shared("qwen3-tokenizer/qwen3-vocab-tiny.gguf.zst")))
        skip();
    test_unpack(&text, path);
    assert_int_equal(cart_json_parse(&root, text.data, text.len, path, &err), 0);
    assert_int_equal(cart_vocab_json_read(&json, root, v.src.n_tokens, path, &err), 0);
    json_decref(root);
    json.src.bos = v.src.bos;
    json.src.eos = v.src.eos;
    json.src.pad = v.src.pad;
    assert_int_equal(cart_tokenizer_new(&t, &json.src, &err), 0);
    assert_string_equal(cart_tokenizer_fingerprint(t), cart_tokenizer_fingerprint(v.t));
    for (size_t i = 0; i < v.src.n_tokens; i++)
        assert_int_equal(json.types[i], v.types[i]);
    cart_tokenizer_free(t);
    cart_vocab_json_release(&json);
    cart_buf_release(&text);
    test_vocab_close(&v);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_qwen3),
        cmocka_unit_test(test_doubling),
        cmocka_unit_test(test_llama_cpp_qwen2),
        cmocka_unit_test(test_smollm2),
        cmocka_unit_test(test_tiny),
        cmocka_unit_test(test_hostile),
        cmocka_unit_test(test_qwen3_json),
    };
    cmocka_set_message_output(CM_OUTPUT_TAP);
    return cmocka_run_group_tests_name("tokenizer goldens", tests, NULL, NULL);
}
