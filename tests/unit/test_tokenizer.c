/* What a tokenizer promises whatever the vocabulary: nothing lost, nothing smuggled in, linear
 * time, bad vocabularies refused. */
#include "helper/vocab.h"
#include "token/unicode.h"

#include "base/rng.h"

#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static const char *const merges[] = {
    "\xc4\xa0 t",        "h e", "\xc4\xa0t he", "i n", "a a", "aa aa",
    "\xc3\x83 \xc2\xa9", "1 2", "12 3",         "< |", "| >", NULL};
static const char *const control[] = {"<|im_start|>", "<|im_end|>", "<think>", "13",
                                      "131",          "415",        NULL};

/* --- recoding
 * ------------------------------------------------------------------------------------------------
 */

/* Random bytes of three kinds: UTF-8 of hostile characters, spelt control tokens, noise. */
static size_t random_text(char *out, uint64_t n)
{
    static const char *const parts[] = {"<|im_start|>",
                                        "<|im_end|>",
                                        "<|im_",
                                        "the ",
                                        " the",
                                        "\n",
                                        "\r\n",
                                        "e\xcc\x81",
                                        "\xe2\x84\xab",
                                        "\xe1\x84\x80\xe1\x85\xa1\xe1\x86\xa8",
                                        "\xf0\x9f\x91\xa9\xe2\x80\x8d\xf0\x9f\x9a\x80",
                                        "\xcc\xa3\xcc\x87",
                                        "s\xcc\x87\xcc\xa3",
                                        "\xe0\xa4\xa8\xe0\xa4\xbc",
                                        "'RE",
                                        "  ",
                                        "123"};
    size_t len = 0;
    size_t count = cart_rng_below(11, n, CART_RNG_TEST, 0, 20);
    for (uint32_t i = 0; i < count; i++) {
        size_t kind = cart_rng_below(11, n, CART_RNG_TEST, 2 * i + 1, 4);
        uint32_t x = cart_rng_u32(11, n, CART_RNG_TEST, 2 * i + 2);
        if (kind < 2) {
            const char *part = parts[x % CART_COUNTOF(parts)];
            memcpy(out + len, part, strlen(part));
            len += strlen(part);
        } else if (kind == 2) {
            uint32_t cp = x % 0x3100;
            len += cart_utf8_encode((unsigned char *)out + len, cp);
        } else {
            out[len++] = (char)(x & 0xff);
        }
    }
    return len;
}

/* decode(encode(x)) = normalize(x), the streaming decoder agrees on UTF-8, and no control token
 * comes of plain text. */
static void check_texts(const struct cart_tokenizer *t, uint64_t n_texts)
{
    struct cart_buf norm = CART_BUF_INIT, back = CART_BUF_INIT;
    struct cart_ids ids = CART_IDS_INIT;
    char text[1024];
    size_t lookalikes = 0;
    for (uint64_t i = 0; i < n_texts; i++) {
        size_t n = random_text(text, i);
        struct cart_encode_stats stats = {0, 0, 0, 0};
        norm.len = back.len = ids.n = 0;
        assert_int_equal(cart_tokenizer_encode(t, text, n, 0, &ids, &stats, NULL), 0);
        assert_int_equal(cart_tokenizer_normalize(t, text, n, &norm, NULL), 0);
        assert_int_equal(cart_tokenizer_decode(t, ids.data, ids.n, false, &back, NULL), 0);
        assert_int_equal(back.len, norm.len);
        assert_memory_equal(back.data, norm.data, norm.len);
        for (size_t k = 0; k < ids.n; k++)
            assert_false(cart_tokenizer_is_special(t, ids.data[k]));
        lookalikes += stats.lookalikes;
        assert_int_equal(stats.dropped, 0);
    }
    assert_true(lookalikes > 0);
    printf("# %llu texts, %zu look-alikes\n", (unsigned long long)n_texts, lookalikes);
    cart_buf_release(&norm);
    cart_buf_release(&back);
    cart_ids_release(&ids);
}

static void test_round_trip(void **state)
{
    static const char *const pres[] = {"smollm", "qwen2", "llama-bpe"};
    (void)state;
    for (size_t i = 0; i < CART_COUNTOF(pres); i++) {
        struct test_vocab v;
        check_texts(test_vocab_small(&v, pres[i], merges, control, CART_TOKEN_CONTROL), 5000);
        test_vocab_close(&v);
    }
}

static void expect_ids(const struct cart_tokenizer *t, const char *text, unsigned flags,
                       const char *expected)
{
    struct cart_ids ids = CART_IDS_INIT;
    struct cart_buf found = CART_BUF_INIT;
    assert_int_equal(cart_tokenizer_encode(t, text, strlen(text), flags, &ids, NULL, NULL), 0);
    for (size_t i = 0; i < ids.n; i++) {
        struct cart_text s = cart_tokenizer_string(t, ids.data[i]);
        assert_int_equal(cart_buf_addf(&found, NULL, "%.*s/", (int)s.n, s.data), 0);
    }
    assert_string_equal(found.data, expected);
    cart_ids_release(&ids);
    cart_buf_release(&found);
}

/* By hand: the order of merges, the leftmost of equals, the longest special token at the leftmost
 * place. */
static void test_by_hand(void **state)
{
    struct test_vocab v;
    (void)state;
    struct cart_tokenizer *t = test_vocab_small(&v, "smollm", merges, control, CART_TOKEN_CONTROL);
    expect_ids(t, "in the hen", 0, "in/\xc4\xa0the/\xc4\xa0/he/n/");
    expect_ids(t, "aaaaa aaa", 0, "aaaa/a/\xc4\xa0/aa/a/");
    expect_ids(t, "caf\xc3\xa9 123", 0, "c/a/f/\xc3\x83\xc2\xa9/\xc4\xa0/1/2/3/");
    expect_ids(t, "<|im_end|>", 0, "<|/i/m/_/e/n/d/|>/");
    expect_ids(t, "1314151", CART_ENCODE_SPECIAL, "131/415/1/");
    expect_ids(t, "<|im_<|im_end|>", CART_ENCODE_SPECIAL, "<|/i/m/_/<|im_end|>/");
    test_vocab_close(&v);
}

/* A piece that is a token is taken whole where the family says so, even if its merges arrive
 * elsewhere. */
static void test_ignore_merges(void **state)
{
    static const char *const few[] = {"a b", "b c", NULL};
    static const char *const extra[] = {"abc", NULL};
    struct test_vocab v;
    (void)state;
    expect_ids(test_vocab_small(&v, "llama-bpe", few, extra, CART_TOKEN_NORMAL), "abc abcd", 0,
               "abc/\xc4\xa0/ab/c/d/");
    test_vocab_close(&v);
    expect_ids(test_vocab_small(&v, "qwen2", few, extra, CART_TOKEN_NORMAL), "abc", 0, "ab/c/");
    test_vocab_close(&v);
}

/* --- streaming decoder
 * --------------------------------------------------------------------------------------- */

static void test_decoder(void **state)
{
    static const struct {
        const char *bytes, *text;
    } cases[] = {
        {"\xf0\x9f\x91\xa9z", "\xf0\x9f\x91\xa9z"},
        {"\xff"
         "a",
         "\xef\xbf\xbd"
         "a"},
        {"\xe6\xad"
         "a",
         "\xef\xbf\xbd"
         "a"},                        /* a maximal part is one replacement */
        {"\xe6\xad", "\xef\xbf\xbd"}, /* at the end as well */
        {"\xf0\x9f\xf0\x9f\x9a\x80", "\xef\xbf\xbd\xf0\x9f\x9a\x80"},
        {"\xed\xa0\x80", "\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd"}, /* a surrogate is three */
        {"\xc0\xaf", "\xef\xbf\xbd\xef\xbf\xbd"},
        {"\xf4\x90\x80\x80", "\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd"},
        {"\xef\xbf\xbd", "\xef\xbf\xbd"},
    };
    struct test_vocab v;
    (void)state;
    struct cart_tokenizer *t = test_vocab_small(&v, "smollm", merges, control, CART_TOKEN_CONTROL);
    for (size_t i = 0; i < CART_COUNTOF(cases); i++) {
        struct cart_buf out = CART_BUF_INIT;
        struct cart_decoder d;
        cart_decoder_init(&d, t, false);
        for (const char *p = cases[i].bytes; *p != '\0'; p++)
            assert_int_equal(cart_decoder_push(&d, (unsigned char)*p, &out, NULL),
                             0); /* id = byte here */
        assert_int_equal(cart_decoder_finish(&d, &out, NULL), 0);
        assert_string_equal(out.data, cases[i].text);
        cart_buf_release(&out);
    }
    struct cart_buf out = CART_BUF_INIT;
    struct cart_decoder d;
    uint32_t end = cart_tokenizer_find(t, "<|im_end|>", 10);
    cart_decoder_init(&d, t, false);
    assert_int_equal(cart_decoder_push(&d, 0xc3, &out, NULL), 0);
    assert_int_equal(out.len, 0);
    assert_int_equal(cart_decoder_push(&d, end, &out, NULL), 0);
    assert_int_equal(cart_decoder_push(&d, 0xa9, &out, NULL), 0);
    d.special = true;
    assert_int_equal(cart_decoder_push(&d, end, &out, NULL), 0);
    assert_string_equal(out.data, "\xc3\xa9<|im_end|>");
    assert_int_equal(cart_decoder_push(&d, (uint32_t)cart_tokenizer_size(t), &out, NULL),
                     CART_EFORMAT);
    cart_buf_release(&out);
    test_vocab_close(&v);
}

/* --- time and stack
 * ------------------------------------------------------------------------------------------ */

static size_t work(const struct cart_tokenizer *t, const char *unit, size_t times)
{
    struct cart_buf text = CART_BUF_INIT;
    struct cart_ids ids = CART_IDS_INIT;
    struct cart_encode_stats s = {0, 0, 0, 0};
    for (size_t i = 0; i < times; i++)
        assert_int_equal(cart_buf_add(&text, unit, strlen(unit), NULL), 0);
    assert_int_equal(cart_tokenizer_encode(t, text.data, text.len, 0, &ids, &s, NULL), 0);
    cart_buf_release(&text);
    cart_ids_release(&ids);
    return s.scan_steps + s.merge_steps;
}

static void refused(const struct cart_vocab_source *src, const char *message)
{
    struct cart_err err = {0};
    struct cart_tokenizer *t = NULL;
    assert_int_equal(cart_tokenizer_new(&t, src, &err), CART_EFORMAT);
    assert_null(t);
    if (strstr(err.msg, message) == NULL)
        fail_msg("expected '%s', found '%s'", message, err.msg);
}

/* Runs that made others quadratic: the work is counted, so no clock is needed. */
static void test_linear(void **state)
{
    static const char *const units[] = {"_",
                                        "a",
                                        " ",
                                        "\n",
                                        "9",
                                        "\xe6\xbc\xa2",
                                        ".",
                                        "\xf0\x9f\x91\x8d",
                                        "e\xcc\x81",
                                        "'",
                                        "          \n",
                                        "us",
                                        "\xcc\x81\xcc\xa3",
                                        "<",
                                        "\xff"};
    static const char *const pres[] = {"smollm", "qwen2", "llama-bpe"};
    (void)state;
    for (size_t k = 0; k < CART_COUNTOF(pres); k++) {
        struct test_vocab v;
        struct cart_tokenizer *t =
            test_vocab_small(&v, pres[k], merges, control, CART_TOKEN_CONTROL);
        for (size_t i = 0; i < CART_COUNTOF(units); i++) {
            double w1 = (double)work(t, units[i], 20000);
            double w2 = (double)work(t, units[i], 40000);
            double w4 = (double)work(t, units[i], 80000);
            if (w2 > 2.3 * w1 || w4 > 2.3 * w2)
                fail_msg("%s, unit %zu: %.0f, %.0f, %.0f steps", pres[k], i, w1, w2, w4);
        }
        test_vocab_close(&v);
    }
}

/* A text that goes on as a special token does, but never ends as it: each byte costs no more than
 * the longest that is allowed. */
static void test_long_special(void **state)
{
    enum { N = 20000, MOST = CART_TOKENIZER_MAX_SPECIAL };
    char text[MOST + 2] = "";
    const char *const extra[] = {text, NULL};
    struct test_vocab v;
    (void)state;
    memset(text, 'a', MOST - 1);
    text[MOST - 1] = '!';
    struct cart_tokenizer *t = test_vocab_small(&v, "smollm", merges, extra, CART_TOKEN_CONTROL);
    size_t plain = work(t, "b", N), steps = work(t, "a", N);
    assert_true(plain < 100 * (size_t)N);
    assert_in_range(steps, (MOST - 1) * (size_t)(N - MOST), (MOST + 100) * (size_t)N);
    assert_true(work(t, "a", 2 * N) < 2.3 * (double)steps);
    text[MOST] = '!';
    v.tokens[v.src.n_tokens - 1] = (struct cart_text){text, MOST + 1};
    refused(&v.src, "special token 267: expected at most 256 bytes, found 257");
    v.types[v.src.n_tokens - 1] = CART_TOKEN_USER_DEFINED;
    refused(&v.src, "special token 267: expected at most 256 bytes, found 257");
    v.types[v.src.n_tokens - 1] = CART_TOKEN_NORMAL;
    assert_int_equal(cart_tokenizer_new(&t, &v.src, NULL), 0);
    cart_tokenizer_free(t);
    test_vocab_close(&v);
}

static void *long_runs(void *t)
{
    static const char *const units[] = {"A",    " ", "\n", "us", "\xe6\xbc\xa2", "\xcc\x81\xcc\xa3",
                                        "<|im_"};
    for (size_t i = 0; i < CART_COUNTOF(units); i++)
        work(t, units[i], 300000);
    return t;
}

/* A thread of 256 KiB splits, normalises and merges runs of hundreds of thousands. */
static void test_small_stack(void **state)
{
    struct test_vocab v;
    pthread_t thread;
    pthread_attr_t attr;
    void *result = NULL;
    (void)state;
    struct cart_tokenizer *t = test_vocab_small(&v, "qwen2", merges, control, CART_TOKEN_CONTROL);
    assert_int_equal(pthread_attr_init(&attr), 0);
    assert_int_equal(pthread_attr_setstacksize(&attr, 256 * 1024), 0);
    assert_int_equal(pthread_create(&thread, &attr, long_runs, t), 0);
    assert_int_equal(pthread_join(thread, &result), 0);
    assert_ptr_equal(result, t);
    pthread_attr_destroy(&attr);
    test_vocab_close(&v);
}

/* --- vocabularies
 * -------------------------------------------------------------------------------------------- */

/* The first steps of the tokenizer's own hash of a string of eight bytes, so that strings can be
 * chosen to collide: where that changes, they must be chosen anew. */
static uint64_t hash_of_eight(const char *s)
{
    uint32_t half[2];
    memcpy(half, s, sizeof half);
    uint64_t h = 0x9e3779b97f4a7c15u ^ 8;
    h = (h ^ ((uint64_t)half[0] << 32 | half[1])) * 0xc4ceb9fe1a85ec53u;
    h ^= h >> 29;
    h *= 0xff51afd7ed558ccdu;
    return h ^ h >> 32;
}

/* Strings that were chosen to share a place would make loading, and every look-up, quadratic. */
static void test_chosen_strings(void **state)
{
    enum { CHOSEN = 1100, PLACES = 2048 };
    static char texts[CHOSEN][9];
    static const char *const one[] = {"a b", NULL};
    struct test_vocab v;
    (void)state;
    for (size_t n = 0, i = 0; n < CHOSEN; i++) {
        snprintf(texts[n], sizeof texts[n], "%08zx", i);
        n += hash_of_eight(texts[n]) % PLACES == 0;
    }
    test_vocab_small(&v, "smollm", one, NULL, 0);
    struct cart_vocab_source s = v.src;
    struct cart_text *tokens = calloc(s.n_tokens + CHOSEN, sizeof *tokens);
    memcpy(tokens, s.tokens, s.n_tokens * sizeof *tokens);
    for (size_t i = 0; i < CHOSEN; i++)
        tokens[s.n_tokens + i] = (struct cart_text){texts[i], 8};
    s.tokens = tokens;
    s.types = NULL;
    s.n_types = 0;
    s.n_tokens += CHOSEN;
    refused(&s, "too many strings of one hash");
    free(tokens);
    test_vocab_close(&v);
}

static uint64_t hash_of_pair(uint32_t left, uint32_t right)
{
    uint64_t h = ((uint64_t)left << 32 | right) * 0x9e3779b97f4a7c15u;
    h ^= h >> 32;
    h *= 0xff51afd7ed558ccdu;
    return h ^ h >> 29;
}

/* The same of merges: pairs of bytes whose places all lie at the beginning of the table. */
static void test_chosen_pairs(void **state)
{
    enum { MOST = 1300, PLACES = 2048, FIRST = 38 };
    static char texts[MOST][2][8]; /* the merge, and the token that it makes */
    static const char *const one[] = {"a b", NULL};
    struct test_vocab v;
    size_t n = 0;
    (void)state;
    test_vocab_small(&v, "smollm", one, NULL, 0);
    struct cart_vocab_source s = v.src;
    struct cart_text *tokens = calloc(256 + MOST, sizeof *tokens),
                     *pairs = calloc(MOST, sizeof *pairs);
    memcpy(tokens, s.tokens, 256 * sizeof *tokens);
    for (uint32_t i = 0; i < 65536 && n < MOST; i++) {
        struct cart_text a = tokens[i / 256], b = tokens[i % 256];
        if (hash_of_pair(i / 256, i % 256) % PLACES >= FIRST)
            continue;
        size_t len =
            (size_t)snprintf(texts[n][0], 8, "%.*s %.*s", (int)a.n, a.data, (int)b.n, b.data);
        pairs[n] = (struct cart_text){texts[n][0], len};
        memcpy(texts[n][1], a.data, a.n);
        memcpy(texts[n][1] + a.n, b.data, b.n);
        tokens[256 + n] = (struct cart_text){texts[n][1], len - 1};
        n++;
    }
    assert_in_range(n, 1100, MOST - 1); /* which a table of PLACES holds */
    s.tokens = tokens;
    s.n_tokens = 256 + n;
    s.types = NULL;
    s.n_types = 0;
    s.merges = pairs;
    s.n_merges = n;
    refused(&s, "too many pairs of one hash");
    free(tokens);
    free(pairs);
    test_vocab_close(&v);
}

static void with_merge(struct test_vocab *v, const char *text, const char *message)
{
    struct cart_text old = v->merges[1];
    v->merges[1] = (struct cart_text){text, strlen(text)};
    refused(&v->src, message);
    v->merges[1] = old;
}

static void test_refusals(void **state)
{
    struct test_vocab v;
    (void)state;
    test_vocab_small(&v, "smollm", merges, control, CART_TOKEN_CONTROL);
    struct cart_vocab_source s = v.src;
    s.pre = "zzz";
    refused(&s, "'zzz'");
    s.pre = NULL;
    refused(&s, "pre-tokenizer");
    s = v.src;
    s.model = "llama";
    refused(&s, "'llama'");
    s = v.src;
    s.eos = (int64_t)s.n_tokens;
    refused(&s, "eos id");
    s.eos = -2;
    refused(&s, "eos id");
    s = v.src;
    s.add_bos = true;
    refused(&s, "bos");
    s = v.src;
    s.n_types--;
    refused(&s, "types");
    s = v.src;
    s.n_merges = 0;
    refused(&s, "merges");
    s = v.src;
    s.n_tokens = 0;
    refused(&s, "tokens");
    with_merge(&v, "he", "no space");
    with_merge(&v, " he", "one space");
    with_merge(&v, "h  e", "one space");
    with_merge(&v, "h ", "one space");
    with_merge(&v, "hh e", "left part");
    with_merge(&v, "h ee", "right part");
    with_merge(&v, "x y", "no token");
    with_merge(&v, "1 3", "control token");
    struct cart_text third = v.merges[2];
    v.merges[2] = (struct cart_text){"he", 2};
    with_merge(&v, "h ee", "merge 1 'h ee': its right part");
    with_merge(&v, "h  e", "merge 1 'h  e'");
    with_merge(&v, "h e", "merge 2 'he'");
    v.merges[2] = third;
    v.types[3] = 7;
    refused(&v.src, "type of token 3");
    v.types[3] = 1;
    struct cart_text old = v.tokens[270];
    v.tokens[270] = v.tokens[64];
    refused(&v.src, "tokens 64 and 270: both are '@'");
    v.tokens[270] = (struct cart_text){"\xff", 1};
    refused(&v.src, "not UTF-8");
    v.tokens[270] = old;
    old = v.tokens['q'];
    v.tokens['q'] = (struct cart_text){"\xc4\x80\xc4\x80\xc4\x80", 6};
    refused(&v.src, "byte 0x71 has no token");
    v.tokens['q'] = old;
    test_vocab_close(&v);
}

/* A byte that the vocabulary lacks is left out and counted; printable ASCII it must have. */
static void test_dropped(void **state)
{
    struct test_vocab v;
    struct cart_tokenizer *t = NULL;
    struct cart_ids ids = CART_IDS_INIT;
    struct cart_encode_stats s = {0, 0, 0, 0};
    (void)state;
    test_vocab_small(&v, "smollm", merges, NULL, 0);
    v.tokens[4] = (struct cart_text){"xyzzy", 5};
    assert_int_equal(cart_tokenizer_new(&t, &v.src, NULL), 0);
    assert_int_equal(cart_tokenizer_encode(t, "a\x04z\x04", 4, 0, &ids, &s, NULL), 0);
    assert_int_equal(ids.n, 2);
    assert_int_equal(s.dropped, 2);
    cart_ids_release(&ids);
    cart_tokenizer_free(t);
    test_vocab_close(&v);
}

/* The fingerprint follows every part of the vocabulary. */
static void test_fingerprint(void **state)
{
    struct test_vocab v, w;
    struct cart_tokenizer *t = NULL;
    (void)state;
    test_vocab_small(&v, "smollm", merges, control, CART_TOKEN_CONTROL);
    test_vocab_small(&w, "qwen2", merges, control, CART_TOKEN_CONTROL);
    assert_int_equal(strlen(cart_tokenizer_fingerprint(v.t)), 32);
    assert_string_not_equal(cart_tokenizer_fingerprint(v.t), cart_tokenizer_fingerprint(w.t));
    for (int i = 0; i < 4; i++) {
        struct cart_vocab_source s = w.src;
        w.types[266] = i == 0 ? CART_TOKEN_USER_DEFINED : w.types[266];
        s.bos = i == 1 ? 3 : -1;
        s.n_merges -= i == 2;
        s.n_tokens -= i == 3;
        s.n_types = s.n_tokens;
        assert_int_equal(cart_tokenizer_new(&t, &s, NULL), 0);
        assert_string_not_equal(cart_tokenizer_fingerprint(w.t), cart_tokenizer_fingerprint(t));
        cart_tokenizer_free(t);
        w.types[266] = CART_TOKEN_NORMAL;
    }
    test_vocab_close(&v);
    test_vocab_close(&w);
}

/* Lists that come in one piece as well have the fingerprint that they have without. */
static void test_stored(void **state)
{
    struct test_vocab v;
    struct cart_tokenizer *t = NULL;
    struct cart_buf tokens = CART_BUF_INIT, merged = CART_BUF_INIT;
    (void)state;
    test_vocab_small(&v, "smollm", merges, control, CART_TOKEN_CONTROL);
    struct cart_vocab_source s = v.src;
    for (size_t i = 0; i < s.n_tokens; i++)
        assert_int_equal(cart_buf_add(&tokens, &(uint64_t){s.tokens[i].n}, 8, NULL) |
                             cart_buf_add(&tokens, s.tokens[i].data, s.tokens[i].n, NULL),
                         0);
    for (size_t i = 0; i < s.n_merges; i++)
        assert_int_equal(cart_buf_add(&merged, &(uint64_t){s.merges[i].n}, 8, NULL) |
                             cart_buf_add(&merged, s.merges[i].data, s.merges[i].n, NULL),
                         0);
    for (int i = 0; i < 3; i++) {
        s.tokens_stored = (struct cart_text){i != 1 ? tokens.data : NULL, i != 1 ? tokens.len : 0};
        s.merges_stored = (struct cart_text){i != 0 ? merged.data : NULL, i != 0 ? merged.len : 0};
        assert_int_equal(cart_tokenizer_new(&t, &s, NULL), 0);
        assert_string_equal(cart_tokenizer_fingerprint(t), cart_tokenizer_fingerprint(v.t));
        cart_tokenizer_free(t);
    }
    cart_buf_release(&tokens);
    cart_buf_release(&merged);
    test_vocab_close(&v);
}

/* What merges make need not stand in their order: here it stands in the opposite one, and then as
 * it was but for one that is elsewhere. */
static void test_any_order(void **state)
{
    static const char text[] = " the in aaaa \xc3\xa9 123 the<|";
    enum { N = CART_COUNTOF(merges) - 1 };
    struct test_vocab v;
    struct cart_ids plain = CART_IDS_INIT, ids = CART_IDS_INIT;
    (void)state;
    test_vocab_small(&v, "smollm", merges, NULL, 0);
    assert_int_equal(cart_tokenizer_encode(v.t, text, strlen(text), 0, &plain, NULL, NULL), 0);
    for (int way = 0; way < 2; way++) {
        struct cart_tokenizer *t = NULL;
        struct cart_text tokens[256 + N];
        memcpy(tokens, v.src.tokens, sizeof tokens);
        uint32_t place[N];
        for (uint32_t i = 0; i < N; i++)
            place[i] = way == 0 ? N - 1 - i : i == 2 ? N - 1 : i == N - 1 ? 2 : i;
        for (uint32_t i = 0; i < N; i++)
            tokens[256 + place[i]] = v.src.tokens[256 + i];
        struct cart_vocab_source s = v.src;
        s.tokens = tokens;
        assert_int_equal(cart_tokenizer_new(&t, &s, NULL), 0);
        ids.n = 0;
        assert_int_equal(cart_tokenizer_encode(t, text, strlen(text), 0, &ids, NULL, NULL), 0);
        assert_int_equal(ids.n, plain.n);
        for (size_t i = 0; i < ids.n; i++)
            assert_int_equal(ids.data[i], plain.data[i] < 256 ? plain.data[i]
                                                              : 256 + place[plain.data[i] - 256]);
        cart_tokenizer_free(t);
    }
    cart_ids_release(&plain);
    cart_ids_release(&ids);
    test_vocab_close(&v);
}

/* End markers count although the file lists them as ordinary text. */
static void test_end_markers(void **state)
{
    struct test_vocab v;
    size_t n = 0;
    (void)state;
    struct cart_tokenizer *t = test_vocab_small(&v, "smollm", merges, control, CART_TOKEN_NORMAL);
    uint32_t end = cart_tokenizer_find(t, "<|im_end|>", 10);
    assert_true(cart_tokenizer_is_eog(t, end) && cart_tokenizer_is_control(t, end));
    for (uint32_t i = 0; i < cart_tokenizer_size(t); i++)
        n += cart_tokenizer_is_eog(t, i);
    assert_int_equal(n, 1);
    assert_false(cart_tokenizer_is_eog(t, cart_tokenizer_find(t, "<|im_start|>", 12)));
    assert_false(cart_tokenizer_is_eog(t, CART_TOKEN_NONE));
    expect_ids(t, "<|im_end|>", CART_ENCODE_SPECIAL, "<|im_end|>/");
    test_vocab_close(&v);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_round_trip),    cmocka_unit_test(test_by_hand),
        cmocka_unit_test(test_ignore_merges), cmocka_unit_test(test_decoder),
        cmocka_unit_test(test_linear),        cmocka_unit_test(test_refusals),
        cmocka_unit_test(test_dropped),       cmocka_unit_test(test_fingerprint),
        cmocka_unit_test(test_stored),        cmocka_unit_test(test_any_order),
        cmocka_unit_test(test_end_markers),   cmocka_unit_test(test_small_stack),
        cmocka_unit_test(test_long_special),  cmocka_unit_test(test_chosen_strings),
        cmocka_unit_test(test_chosen_pairs),
    };
    cmocka_set_message_output(CM_OUTPUT_TAP);
    return cmocka_run_group_tests_name("tokenizer", tests, NULL, NULL);
}
