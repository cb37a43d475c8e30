/* Constraints: which texts a schema lets through byte by byte, that masks say the same as bytes for
 * every token of the vocabulary, and that whatever random tokens make under a mask is a valid
 * value. */
#include "base/rng.h"
#include "engine/automaton_impl.h"
#include "helper/vocab.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static struct test_vocab vocab;
static struct cart_lexicon *lexicon;

static void need(int r, const struct cart_err *err)
{
    if (r < 0)
        fail_msg("%s", err->msg);
}

static struct cart_constraint *compile(const char *text)
{
    struct cart_err err = {0};
    struct cart_constraint *c;
    json_t *schema;

    need(cart_json_parse(&schema, text, strlen(text), "test", &err), &err);
    need(cart_constraint_schema(&c, lexicon, schema, "schema", &err), &err);
    json_decref(schema);
    return c;
}

/* 2: complete; 1: a beginning; 0: impossible. */
static int verdict(struct cart_constraint *c, const char *text)
{
    struct cart_err err = {0};
    uint32_t state = cart_constraint_start(c);
    const uint64_t *mask;
    bool complete;

    need(cart_constraint_feed(c, state, text, strlen(text), &state, &err), &err);
    if (state == CART_CONSTRAINT_DEAD)
        return 0;
    need(cart_constraint_mask(c, state, &mask, &complete, &err), &err);
    return complete ? 2 : 1;
}

struct text_case {
    const char *schema;
    const char *yes[8], *no[8];
};

static const struct text_case cases[] = {
    {"{\"type\":\"object\",\"properties\":{\"a\":{\"type\":\"integer\"},\"b\":{\"type\":\"string\"}"
     "},"
     "\"required\":[\"a\"],\"additionalProperties\":false}",
     {"{\"a\":1}", "{ \"a\": -12 , \"b\": \"x\"}", "{\n  \"a\": 0\n}"},
     {"{}", "{\"b\":\"x\"}", "{\"a\":01}", "{\"a\":1,}", "{\"a\":1,\"a\":2}", "{\"a\":-0}",
      " {\"a\":1}", "{\"a\":1.0}"}},
    {"{\"properties\":{\"x\":{\"type\":\"boolean\"},\"y\":{\"type\":\"null\"}}}",
     {"{}", "{\"x\":true}", "{\"y\":null}", "{\"x\":false,\"y\":null}"},
     {"{\"y\":null,\"x\":true}", "{\"z\":1}", "{,\"x\":true}", "[]"}},
    {"{\"type\":\"object\",\"properties\":{\"ab\":{\"type\":\"integer\"}},\"additionalProperties\":"
     "{\"type\":\"string\"}}",
     {"{\"ab\":1,\"a\":\"\"}", "{\"abc\":\"\"}", "{\"\":\"\"}", "{\"b\":\"\",\"\xc3\xa9\":\"q\"}",
      "{}"},
     {"{\"ab\":\"x\"}", "{\"ab\":1,\"ab\":\"\"}", "{\"a\\u0062\":\"\"}", "{\"a\":1}"}},
    /* Names that a key without escapes cannot be take nothing from it, nor let it break off. */
    {"{\"properties\":{\"a\\\"b\":{},\"c\\\\d\":{},\"\\u0001\":{}},"
     "\"additionalProperties\":{\"type\":\"null\"}}",
     {"{\"a\":null,\"c\":null}", "{\"a\\\"b\":1,\"ab\":null}", "{\"cd\":null,\"\":null}"},
     {"{\"a\"b\":null}", "{\"c\\d\":null}", "{\"a\":1}", "{\"\x01\":null}"}},
    /* Names that begin alike, end within each other, and go beyond ASCII. */
    {"{\"properties\":{\"abc\":{},\"ab\":{},\"abd\":{},\"a\xc3\xa9\":{},\"b\":{}},\"required\":["
     "\"ab\"],"
     "\"additionalProperties\":{\"type\":\"null\"}}",
     {"{\"ab\":1,\"a\":null}", "{\"ab\":1,\"abcd\":null,\"abe\":null}",
      "{\"abc\":1,\"ab\":2,\"b\":3,\"ba\":null}", "{\"ab\":1,\"ac\":null,\"\xc3\xa9\":null}"},
     {"{\"ab\":1,\"abc\":null}", "{\"ab\":1,\"b\":null,\"abd\":null}", "{\"a\":null}",
      "{\"ab\":1,\"b\":1,\"a\xc3\xa9\":null}", "{\"ab\":1,}", "{\"abc\":1}"}},
    /* A name that is required twice comes once. */
    {"{\"required\":[\"a\",\"a\"]}", {"{\"a\":1}"}, {"{}", "{\"a\":1,\"a\":1}"}},
    {"{\"type\":\"array\",\"items\":{\"type\":\"string\",\"minLength\":2,\"maxLength\":2},"
     "\"minItems\":2,"
     "\"maxItems\":4}",
     {"[\"ab\",\"cd\"]", "[\"ab\",\"cd\",\"ef\",\"gh\"]"},
     {"[\"ab\"]", "[\"ab\",\"c\"]", "[\"ab\",\"cde\"]", "[\"ab\",\"cd\",\"ef\",\"gh\",\"ij\"]",
      "[]"}},
    {"{\"type\":\"object\",\"minProperties\":1}",
     {"{\"a\":1}", "{\"a\":1,\"b\":2,\"c\":3}"},
     {"{}", "{"}},
    {"{\"required\":[\"a\",\"b\"],\"minProperties\":2}",
     {"{\"a\":1,\"b\":2}"},
     {"{\"a\":1}", "{}"}},
    /* Bounds beyond the digits that answers have leave those that are within. */
    {"{\"type\":\"integer\",\"minimum\":999999999999998,\"maximum\":1e20}",
     {"999999999999998", "999999999999999"},
     {"99999999999999", "1000000000000000"}},
    /* Branches without a type whose answers are objects, told apart by a constant. */
    {"{\"oneOf\":[{\"properties\":{\"k\":{\"const\":1}},\"required\":[\"k\"]},"
     "{\"properties\":{\"k\":{\"const\":2}},\"required\":[\"k\"]}]}",
     {"{\"k\":1}", "{\"k\":2}"},
     {"{\"k\":3}", "{}", "1"}},
    {"{\"type\":\"string\",\"minLength\":2,\"maxLength\":3}",
     {"\"ab\"", "\"abc\"", "\"\xc3\xa9\xe2\x82\xac\"", "\"\\n\\u00e9\"", "\"\\ud83d\\ude00x\"",
      "\"\xf0\x9f\x98\x80x\""},
     {"\"a\"", "\"abcd\"", "\"\\ud83d\"", "\"\xed\xa0\x80x\"", "\"\xc0\x80x\"", "\"a\nb\"",
      "\"\\x41b\"", "\"\xff"}},
    {"{\"type\":\"array\",\"items\":{\"enum\":[1,\"two\",null,[3]]},\"minItems\":1,\"maxItems\":3}",
     {"[1]", "[\"two\", null]", "[[3],1,1]", "[ null ]"},
     {"[]", "[1,1,1,1]", "[2]", "[1,]", "[,1]"}},
    {"{\"type\":\"array\",\"prefixItems\":[{\"type\":\"integer\"},{\"type\":\"string\"}],\"items\":"
     "false,\"minItems\":1}",
     {"[1]", "[1,\"a\"]"},
     {"[]", "[\"a\"]", "[1,\"a\",2]", "[1,2]"}},
    {"{\"type\":\"integer\",\"minimum\":-7,\"exclusiveMaximum\":120}",
     {"0", "-7", "-1", "9", "10", "99", "100", "119"},
     {"-8", "120", "121", "-10", "1000", "00", "200", "+1"}},
    {"{\"type\":\"integer\",\"minimum\":38,\"maximum\":1205}",
     {"38", "39", "40", "99", "100", "999", "1000", "1205"},
     {"37", "1206", "1210", "1300", "2000", "4", "0", "-40"}},
    {"{\"type\":\"number\"}",
     {"0", "-0.5", "12e5", "1.25E-3", "7", "10.0"},
     {".5", "1.", "01", "1e", "--1", "1e123", "NaN", "+1"}},
    {"{\"type\":\"number\",\"minimum\":0,\"maximum\":1}",
     {"0", "1", "0.5", "1.0", "0.999999", "1.000"},
     {"-0.1", "1.01", "2", "1e0", "10", ".5"}},
    {"{\"type\":\"number\",\"minimum\":-20,\"maximum\":-3}",
     {"-3", "-3.5", "-20", "-20.0", "-19.99"},
     {"-2.9", "-20.1", "3", "-21", "0"}},
    {"{\"type\":\"string\",\"format\":\"date-time\"}",
     {"\"2024-02-28T23:59:59Z\"", "\"1999-12-31T00:00:00.25+05:30\"",
      "\"2024-11-30T09:10:11-00:00\""},
     {"\"2024-02-30T00:00:00Z\"", "\"2024-13-01T00:00:00Z\"", "\"2024-11-31T00:00:00Z\"",
      "\"2024-01-01T24:00:00Z\"", "\"2024-01-01\"", "\"2024-01-00T00:00:00Z\""}},
    {"{\"format\":\"uuid\"}",
     {"\"123e4567-e89b-12d3-a456-426614174000\""},
     {"\"123e4567e89b12d3a456426614174000\"", "\"\""}},
    {"{\"anyOf\":[{\"type\":\"integer\"},{\"const\":\"none\"},{\"type\":[\"boolean\",\"null\"]}]}",
     {"12", "\"none\"", "true", "null"},
     {"\"no\"", "1.5", "nul1", "\"nones\"", "{}"}},
    {"{\"$ref\":\"#/$defs/"
     "tree\",\"$defs\":{\"tree\":{\"type\":\"object\",\"properties\":{\"v\":{\"type\":\"integer\"},"
     "\"kids\":{\"type\":\"array\",\"items\":{\"$ref\":\"#/$defs/tree\"}}},\"required\":[\"v\"]}}}",
     {"{\"v\":1}", "{\"v\":1,\"kids\":[{\"v\":2,\"kids\":[]},{\"v\":3}]}"},
     {"{\"kids\":[]}", "{\"v\":1,\"kids\":[{}]}", "{\"v\":1,\"kids\":[1]}"}},
    {"{\"oneOf\":[{\"type\":\"object\",\"properties\":{\"k\":{\"const\":\"a\"},\"n\":{\"type\":"
     "\"integer\"}},"
     "\"required\":[\"k\",\"n\"]},{\"type\":\"object\",\"properties\":{\"k\":{\"const\":\"b\"}},"
     "\"required\":[\"k\"]}]}",
     {"{\"k\":\"a\",\"n\":4}", "{\"k\":\"b\"}"},
     {"{\"k\":\"a\"}", "{\"k\":\"b\",\"n\":4}", "{\"k\":\"c\"}"}},
    {"{\"type\":\"object\",\"minProperties\":1,\"maxProperties\":2}",
     {"{\"a\":{\"b\":[1,{}]}}", "{\"a\":1,\"b\":\"\"}"},
     {"{}", "{\"a\":1,\"b\":2,\"c\":3}"}},
    /* A value that would hold another like itself without end is never begun. */
    {"{\"type\":\"object\",\"properties\":{\"a\":{\"$ref\":\"#/$defs/"
     "x\"},\"b\":{\"type\":\"null\"}},\"$defs\":{\"x\":{\"type\":\"array\",\"items\":{\"$ref\":\"#/"
     "$defs/"
     "x\"},\"minItems\":1}}}",
     {"{\"b\":null}", "{}"},
     {"{\"a\":[]}", "{\"a\":[[]]}", "{\"a\":null}"}},
    {"{\"anyOf\":[{\"$ref\":\"#\"},{\"type\":\"null\"}]}", {"null"}, {"{}", "1"}},
    {"true",
     {"1", "\"a\"", "[{\"a\":[]},null]", "{\"a\":{\"b\":{}}}"},
     {"", "tru1", "[1}", "{\"a\"}", "{1:2}"}},
};

static void texts_match_their_schemas(void **state)
{
    (void)state;
    for (size_t i = 0; i < CART_COUNTOF(cases); i++) {
        struct cart_constraint *c = compile(cases[i].schema);
        for (size_t k = 0; k < 8 && cases[i].yes[k] != NULL; k++) {
            if (verdict(c, cases[i].yes[k]) != 2)
                fail_msg("schema %zu does not take %s", i, cases[i].yes[k]);
        }
        for (size_t k = 0; k < 8 && cases[i].no[k] != NULL; k++) {
            if (verdict(c, cases[i].no[k]) == 2)
                fail_msg("schema %zu takes %s", i, cases[i].no[k]);
        }
        cart_constraint_free(c);
    }
}

/* For every token: allowed by the mask if and only if its bytes lead somewhere. */
static void check_mask(struct cart_constraint *c, uint32_t state)
{
    struct cart_err err = {0};
    size_t V = cart_tokenizer_size(vocab.t);
    const uint64_t *borrowed;
    uint64_t *mask = malloc((V + 63) / 64 * sizeof *mask);
    bool complete;

    need(cart_constraint_mask(c, state, &borrowed, &complete, &err), &err);
    memcpy(mask, borrowed, (V + 63) / 64 * sizeof *mask);
    for (uint32_t id = 0; id < V; id++) {
        struct cart_text text = cart_tokenizer_bytes(vocab.t, id);
        uint32_t next = CART_CONSTRAINT_DEAD;
        if (cart_tokenizer_is_special(vocab.t, id)) {
            uint32_t other;
            need(cart_constraint_feed(c, state, "", 0, &other, &err), &err);
            need(cart_constraint_advance(c, other, id, &next, &err), &err);
        }
        if (!cart_tokenizer_is_special(vocab.t, id) && text.n > 0)
            need(cart_constraint_feed(c, state, text.data, text.n, &next, &err), &err);
        if ((next != CART_CONSTRAINT_DEAD) != (mask[id / 64] >> (id % 64) & 1))
            fail_msg("token %u: the mask says %d", id, (int)(mask[id / 64] >> (id % 64) & 1));
    }
    free(mask);
}

/* Random tokens under the mask, ending as soon as they may; the text, in out. */
static void wander(struct cart_constraint *c, uint64_t n, bool check, struct cart_buf *out)
{
    struct cart_err err = {0};
    size_t V = cart_tokenizer_size(vocab.t);
    uint32_t state = cart_constraint_start(c);

    for (uint32_t i = 0; i < 4000; i++) {
        const uint64_t *mask;
        bool complete;
        if (check && i < 12)
            check_mask(c, state);
        need(cart_constraint_mask(c, state, &mask, &complete, &err), &err);
        if (cart_constraint_finished(c, state) || (complete && i > 40))
            return;
        uint32_t allowed = 0;
        uint32_t id = 0;
        for (uint32_t k = 0; k < V; k++)
            allowed += mask[k / 64] >> (k % 64) & 1;
        if (allowed == 0 && complete)
            return;
        assert_true(allowed > 0);
        /* Rather end than go on: closing tokens every other time. */
        size_t want = cart_rng_below(5, n, CART_RNG_TEST, i, allowed);
        for (uint32_t k = 0; k < V; k++) {
            struct cart_text text = cart_tokenizer_bytes(vocab.t, k);
            if (!(mask[k / 64] >> (k % 64) & 1))
                continue;
            bool closes = text.n == 1 && strchr("\"]}", text.data[0]) != NULL;
            if (want-- == 0 || (closes && i % 2 == 0)) {
                id = k;
                break;
            }
        }
        struct cart_text text = cart_tokenizer_bytes(vocab.t, id);
        need(cart_buf_add(out, text.data, text.n, &err), &err);
        need(cart_constraint_advance(c, state, id, &state, &err), &err);
        assert_int_not_equal(state, CART_CONSTRAINT_DEAD);
    }
    fail_msg("no end: %.200s", out->data);
}

static void random_answers_are_json(void **state)
{
    (void)state;
    struct cart_err err = {0};

    for (size_t i = 0; i < CART_COUNTOF(cases); i++) {
        struct cart_constraint *c = compile(cases[i].schema);
        for (uint64_t n = 0; n < 20; n++) {
            struct cart_buf b = CART_BUF_INIT;
            struct cart_buf wrapped = CART_BUF_INIT;
            json_t *v = NULL;
            wander(c, 100 * i + n, n == 0, &b);
            need(cart_buf_addf(&wrapped, &err, "[%s]", b.data), &err);
            int r = cart_json_parse(&v, wrapped.data, wrapped.len, "answer", &err);
            /* A map may repeat a key, which our strict reader refuses. */
            if (r < 0 && strstr(err.msg, "duplicate") == NULL)
                fail_msg("schema %zu: %s: %s", i, b.data, err.msg);
            assert_int_equal(verdict(c, b.data), 2);
            json_decref(v);
            cart_buf_release(&b);
            cart_buf_release(&wrapped);
        }
        cart_constraint_free(c);
    }
}

static void tool_calls(void **state)
{
    (void)state;
    struct cart_err err = {0};
    struct cart_constraint *c;
    json_t *tools;
    static const char text[] = "[{\"type\":\"function\",\"function\":{\"name\":\"add\","
                               "\"parameters\":{\"type\":\"object\",\"properties\":{"
                               "\"x\":{\"type\":\"integer\"}},\"required\":[\"x\"]}}},{\"type\":"
                               "\"function\",\"function\":{\"name\":\"now\"}}]";
    struct cart_constraint_calls calls = {NULL, NULL, "<tool_call>\n", "\n</tool_call>", "\n", 2};
    uint32_t open = cart_tokenizer_find(vocab.t, "<tool_call>", 11);
    uint32_t close = cart_tokenizer_find(vocab.t, "</tool_call>", 12);

    need(cart_json_parse(&tools, text, strlen(text), "tools", &err), &err);
    calls.tools = tools;
    need(cart_constraint_tools(&c, lexicon, &calls, "tools", &err), &err);
    /* Only the token opens a call, never its spelling. */
    const uint64_t *mask;
    bool complete;
    uint32_t at = cart_constraint_start(c);
    need(cart_constraint_mask(c, at, &mask, &complete, &err), &err);
    size_t allowed = 0;
    for (size_t i = 0; i < cart_tokenizer_size(vocab.t); i++)
        allowed += mask[i / 64] >> (i % 64) & 1;
    assert_int_equal(allowed, 1);
    assert_true(mask[open / 64] >> (open % 64) & 1);
    for (int turn = 0; turn < 2; turn++) {
        static const char *const bodies[] = {"\n{\"name\": \"add\", \"arguments\": {\"x\": 4}}\n",
                                             "\n{\"name\": \"now\", \"arguments\": {}}\n"};
        need(cart_constraint_advance(c, at, open, &at, &err), &err);
        need(cart_constraint_feed(c, at, bodies[turn], strlen(bodies[turn]), &at, &err), &err);
        need(cart_constraint_advance(c, at, close, &at, &err), &err);
        assert_int_not_equal(at, CART_CONSTRAINT_DEAD);
        need(cart_constraint_mask(c, at, &mask, &complete, &err), &err);
        assert_true(complete);
        assert_int_equal(cart_constraint_finished(c, at), turn == 1);
        if (turn == 0)
            need(cart_constraint_feed(c, at, "\n", 1, &at, &err), &err);
    }
    cart_constraint_free(c);
    calls.only = "now";
    calls.most = 1;
    need(cart_constraint_tools(&c, lexicon, &calls, "tools", &err), &err);
    need(cart_constraint_advance(c, cart_constraint_start(c), open, &at, &err), &err);
    need(cart_constraint_feed(c, at, "\n{\"name\": \"add\"", 15, &at, &err), &err);
    assert_int_equal(at, CART_CONSTRAINT_DEAD);
    cart_constraint_free(c);
    calls.only = "later";
    assert_int_equal(cart_constraint_tools(&c, lexicon, &calls, "tools", &err), CART_EFORMAT);
    assert_non_null(strstr(err.msg, "later"));
    json_decref(tools);
}

/* The whole Qwen3 vocabulary: a forced call is the token, then JSON, then the token, and nothing
 * else; each state's mask is right for all of its tokens. */
static void qwen3_calls(void **state)
{
    (void)state;
    struct cart_err err = {0};
    struct test_vocab small = vocab;
    struct cart_lexicon *small_lexicon = lexicon;
    struct cart_constraint *c;
    struct cart_constraint_calls calls = {NULL, NULL, "<tool_call>\n", "\n</tool_call>", "\n", 1};
    static const char text[] = "[{\"name\":\"find\",\"parameters\":{\"type\":\"object\","
                               "\"properties\":{\"q\":{\"type\":\"string\","
                               "\"maxLength\":40},\"n\":{\"type\":\"integer\",\"minimum\":1,"
                               "\"maximum\":20}},\"required\":[\"q\",\"n\"]}}]";

    if (!test_vocab_open(&vocab, test_shared("qwen3-tokenizer/qwen3-vocab-tiny.gguf.zst"))) {
        vocab = small;
        skip();
    }
    need(cart_lexicon_new(&lexicon, vocab.t, &err), &err);
    json_t *tools;
    need(cart_json_parse(&tools, text, strlen(text), "tools", &err), &err);
    calls.tools = tools;
    need(cart_constraint_tools(&c, lexicon, &calls, "tools", &err), &err);
    for (uint64_t n = 0; n < 6; n++) {
        struct cart_buf b = CART_BUF_INIT;
        json_t *v = NULL;
        wander(c, 9000 + n, n == 0, &b);
        size_t open = strlen("<tool_call>\n");
        size_t close = strlen("\n</tool_call>");
        assert_true(b.len > open + close && memcmp(b.data, calls.open, open) == 0);
        assert_memory_equal(b.data + b.len - close, calls.close, close);
        need(cart_json_parse(&v, b.data + open, b.len - open - close, "call", &err), &err);
        assert_string_equal(json_string_value(json_object_get(v, "name")), "find");
        const json_t *arguments = json_object_get(v, "arguments");
        json_int_t count = json_integer_value(json_object_get(arguments, "n"));
        assert_true(json_is_string(json_object_get(arguments, "q")) && count >= 1 && count <= 20);
        json_decref(v);
        cart_buf_release(&b);
    }
    cart_constraint_free(c);
    json_decref(tools);
    cart_lexicon_free(lexicon);
    test_vocab_close(&vocab);
    vocab = small;
    lexicon = small_lexicon;
}

/* Deep nesting and long strings: states stay few, because stacks and states are kept once. */
static void automata_stay_small(void **state)
{
    (void)state;
    struct cart_err err = {0};
    struct cart_constraint *c;
    struct cart_buf b = CART_BUF_INIT;

    need(cart_constraint_object(&c, lexicon, &err), &err);
    need(cart_buf_addf(&b, &err, "{\"a\":"), &err);
    for (int i = 0; i < 1500; i++)
        need(cart_buf_addf(&b, &err, "["), &err);
    need(cart_buf_addf(&b, &err, "\""), &err);
    for (int i = 0; i < 20000; i++)
        need(cart_buf_addf(&b, &err, "text \xc3\xa9 "), &err);
    need(cart_buf_addf(&b, &err, "\""), &err);
    for (int i = 0; i < 1500; i++)
        need(cart_buf_addf(&b, &err, "]"), &err);
    need(cart_buf_addf(&b, &err, "}"), &err);
    assert_int_equal(verdict(c, b.data), 2);
    cart_buf_release(&b);
    cart_constraint_free(c);
}

/* [n] bytes of text, again and again. */
static void again(struct cart_buf *b, const char *text, size_t n)
{
    struct cart_err err = {0};

    for (size_t i = 0; i < n; i++)
        need(cart_buf_add(b, text, strlen(text), &err), &err);
}

/* first, text n times, last: the verdict. */
static int of_times(struct cart_constraint *c, const char *first, const char *text, size_t n,
                    const char *last)
{
    struct cart_buf b = CART_BUF_INIT;

    again(&b, first, 1);
    again(&b, text, n);
    again(&b, last, 1);
    int v = verdict(c, b.data);
    cart_buf_release(&b);
    return v;
}

/* Thousands of times, to the very number, by states that are few. */
static void counts_are_exact(void **state)
{
    (void)state;
    struct cart_constraint *c =
        compile("{\"type\":\"string\",\"minLength\":2500,\"maxLength\":10000}");

    assert_int_equal(of_times(c, "\"", "a", 2499, "\""), 0);
    assert_int_equal(of_times(c, "\"", "\xc3\xa9", 2500, "\""), 2);
    assert_int_equal(of_times(c, "\"", "\\u00e9", 10000, "\""), 2);
    assert_int_equal(of_times(c, "\"", "a", 10000, ""), 1);
    assert_int_equal(of_times(c, "\"", "a", 10001, ""), 0);
    cart_constraint_free(c);
    c = compile("{\"type\":\"array\",\"items\":{\"type\":\"integer\"},\"minItems\":2000,"
                "\"maxItems\":3000}");
    assert_int_equal(of_times(c, "[7", ", 12", 1998, "]"), 0);
    assert_int_equal(of_times(c, "[7", ", 12", 1999, "]"), 2);
    assert_int_equal(of_times(c, "[7", ", 12", 2999, "]"), 2);
    assert_int_equal(of_times(c, "[7", ", 12", 3000, "]"), 0);
    cart_constraint_free(c);
    c = compile(
        "{\"type\":\"array\",\"minItems\":9999,\"maxItems\":9999,\"items\":{\"type\":\"array\","
        "\"items\":{\"const\":1},\"minItems\":3,\"maxItems\":4}}");
    assert_int_equal(of_times(c, "[[1,1,1]", ",[1,1,1,1]", 9998, "]"), 2);
    assert_int_equal(of_times(c, "[[1,1,1]", ",[1,1,1,1]", 9999, "]"), 0);
    assert_int_equal(of_times(c, "[[1,1,1]", ",[1,1]", 1, ""), 0);
    assert_true(c->n_nodes < 2000);
    cart_constraint_free(c);
}

/* Around each bound a token sees it coming: masks against bytes, at every place. */
static void masks_see_bounds(void **state)
{
    (void)state;
    static const struct {
        const char *schema, *text;
    } walks[] = {
        {"{\"type\":\"string\",\"minLength\":9,\"maxLength\":14}", "\"tru e\xc3\xa9tr12\\nu1\""},
        {"{\"type\":\"array\",\"items\":{\"enum\":[1,12,\"t\"]},\"minItems\":8,\"maxItems\":11}",
         "[1,12, \"t\",1,1,12,1,1 ,1,1,12]"},
        {"{\"type\":\"array\",\"items\":{\"type\":\"array\",\"minItems\":1,\"maxItems\":2},"
         "\"maxItems\":9}",
         "[[1],[1,[]],[\"\"],[1],[1],[1],[1],[1],[1,true]]"},
        {"{\"anyOf\":[{\"type\":\"string\",\"minLength\":6},{\"type\":\"string\",\"maxLength\":7}]"
         "}",
         "\"tr12 tru\""},
        {"{\"type\":\"object\",\"minProperties\":1,\"maxProperties\":6,\"additionalProperties\":{"
         "\"type\":"
         "\"boolean\"}}",
         "{\"\":true,\"tr\":true,\"\":true,\"1\":true,\"12\":true,\"}\":true}"},
    };

    assert_true(lexicon->max_depth >= 2 && lexicon->max_depth < 8);
    for (size_t i = 0; i < CART_COUNTOF(walks); i++) {
        struct cart_err err = {0};
        struct cart_constraint *c = compile(walks[i].schema);
        uint32_t at = cart_constraint_start(c);
        for (const char *p = walks[i].text; *p != '\0'; p++) {
            check_mask(c, at);
            need(cart_constraint_feed(c, at, p, 1, &at, &err), &err);
            assert_int_not_equal(at, CART_CONSTRAINT_DEAD);
        }
        assert_true(cart_constraint_finished(c, at));
        cart_constraint_free(c);
    }
}

/* The next token of a walk, the same for the same mask. */
static uint32_t pick(const uint64_t *mask, uint64_t n, uint32_t i)
{
    size_t V = cart_tokenizer_size(vocab.t);
    size_t from = cart_rng_below(5, n, CART_RNG_TEST, i, (uint32_t)V);

    for (size_t k = 0; k < V; k++) {
        uint32_t id = (uint32_t)((from + k) % V);
        if (mask[id / 64] >> (id % 64) & 1)
            return id;
    }
    return UINT32_MAX;
}

/* One walk with an automaton that forgets at every step and one that does not: the same masks, also
 * of places that were passed long before. */
static void forgetting_changes_nothing(void **state)
{
    (void)state;
    struct cart_err err = {0};
    size_t bytes = (cart_tokenizer_size(vocab.t) + 63) / 64 * sizeof(uint64_t);

    for (size_t i = 0; i < CART_COUNTOF(cases); i++) {
        struct cart_constraint *c[2] = {compile(cases[i].schema), compile(cases[i].schema)};
        uint32_t at[2][100] = {{c[0]->start}, {c[1]->start}};
        size_t n = 0;
        for (size_t step = 0; step < 200; step++) {
            /* Then the places of the first hundred once more. */
            size_t now = step < 100 ? n : step - 100;
            const uint64_t *mask[2];
            bool complete[2];
            if (now > n)
                break;
            for (int k = 0; k < 2; k++) {
                c[1]->forget_states = 0;
                need(cart_constraint_mask(c[k], at[k][now], &mask[k], &complete[k], &err), &err);
            }
            assert_int_equal(complete[0], complete[1]);
            assert_memory_equal(mask[0], mask[1], bytes);
            uint32_t id = pick(mask[0], i, (uint32_t)step);
            if (step >= 99 || id == UINT32_MAX) {
                step = step < 100 ? 99 : step;
                continue;
            }
            for (int k = 0; k < 2; k++) {
                uint32_t other; /* which goes on, so that the place behind it stays one */
                c[1]->forget_states = 0;
                need(cart_constraint_feed(c[k], at[k][n], "", 0, &other, &err), &err);
                need(cart_constraint_advance(c[k], other, id, &at[k][n + 1], &err), &err);
            }
            n++;
        }
        assert_true(n > 0 && c[1]->state_index.n <= c[0]->state_index.n);
        cart_constraint_free(c[0]);
        cart_constraint_free(c[1]);
    }
}

/* An answer through thousands of places, which an automaton of a bounded size cannot remember
 * all. */
static void long_answers_have_no_limit_of_states(void **state)
{
    (void)state;
    struct cart_err err = {0};
    struct cart_buf schema = CART_BUF_INIT;
    const uint64_t *mask;
    bool complete;
    size_t before = 0;
    size_t forgot = 0;

    again(&schema, "{\"type\":\"object\",\"additionalProperties\":false,\"properties\":{", 1);
    for (int i = 0; i < 1500; i++)
        need(cart_buf_addf(&schema, &err, "%s\"p%d\":{\"type\":\"string\",\"maxLength\":40}",
                           i > 0 ? "," : "", i),
             &err);
    again(&schema, "}}", 1);
    struct cart_constraint *c = compile(schema.data);
    uint32_t at = cart_constraint_start(c);
    for (int i = 0; i < 1500; i++) {
        char text[64];
        int n = snprintf(text, sizeof text, "%s\"p%d\": \"tru\xc3\xa9", i > 0 ? ",\n " : "{", i);
        need(cart_constraint_feed(c, at, text, (size_t)n, &at, &err), &err);
        assert_int_not_equal(at, CART_CONSTRAINT_DEAD);
        need(cart_constraint_mask(c, at, &mask, &complete, &err), &err);
        forgot += c->n_configs < before;
        before = c->n_configs;
        need(cart_constraint_feed(c, at, "\"", 1, &at, &err), &err);
    }
    need(cart_constraint_feed(c, at, "}", 1, &at, &err), &err);
    assert_true(cart_constraint_finished(c, at));
    assert_true(forgot >= 5);
    cart_constraint_free(c);
    cart_buf_release(&schema);
}

/* A token that would take more steps than there are left ends the answer, for good and not for lack
 * of memory; the next token's budget is another. */
static void work_has_a_budget(void **state)
{
    (void)state;
    struct cart_err err = {0};
    struct cart_constraint *c = compile("{\"type\":\"object\"}");
    const uint64_t *mask;
    bool complete;
    uint32_t at;

    need(cart_constraint_feed(c, c->start, "{\"", 2, &at, &err), &err);
    c->left = 100;
    assert_int_equal(cart_constraint_mask(c, at, &mask, &complete, &err), CART_EFORMAT);
    assert_non_null(strstr(err.msg, "steps for one token"));
    need(cart_constraint_feed(c, at, "a", 1, &at, &err), &err);
    need(cart_constraint_mask(c, at, &mask, &complete, &err), &err);
    check_mask(c, at);
    cart_constraint_free(c);
}

/* A copy begins where the grammar begins, whatever has come of the other, and neither costs the
 * other anything. */
static void copies_are_their_own(void **state)
{
    (void)state;
    struct cart_err err = {0};
    for (size_t i = 0; i < CART_COUNTOF(cases); i++) {
        struct cart_constraint *c = compile(cases[i].schema);
        struct cart_constraint *k;
        const uint64_t *mask;
        bool complete;
        assert_int_equal(verdict(c, cases[i].yes[0]), 2);
        need(cart_constraint_copy(&k, c, &err), &err);
        c->left = 0;
        assert_true(k->left > CART_AUTOMATON_BUDGET);
        for (size_t j = 0; j < 8 && cases[i].yes[j] != NULL; j++)
            assert_int_equal(verdict(k, cases[i].yes[j]), 2);
        for (size_t j = 0; j < 8 && cases[i].no[j] != NULL; j++)
            assert_int_not_equal(verdict(k, cases[i].no[j]), 2);
        cart_constraint_free(c);
        check_mask(k, cart_constraint_start(k));
        need(cart_constraint_mask(k, cart_constraint_start(k), &mask, &complete, &err), &err);
        cart_constraint_free(k);
    }
}

/* anyOf of n strings, each with another bound, over the vocabulary of the day: how many of its
 * first tokens have a mask. */
static size_t strings_side_by_side(size_t n, size_t tokens)
{
    struct cart_err err = {0};
    struct cart_buf b = CART_BUF_INIT;
    const uint64_t *mask;
    bool complete;
    size_t done = 0;

    for (size_t i = 0; i < n; i++)
        need(cart_buf_addf(&b, &err, "%s{\"type\":\"string\",\"maxLength\":%zu}",
                           i > 0 ? "," : "{\"anyOf\":[", 60 + i),
             &err);
    again(&b, "]}", 1);
    struct cart_constraint *c = compile(b.data);
    uint32_t at = cart_constraint_start(c);
    int r = cart_constraint_feed(c, at, "\"", 1, &at, &err);
    while (r == 0 && done < tokens &&
           (r = cart_constraint_mask(c, at, &mask, &complete, &err)) == 0) {
        done++;
        r = cart_constraint_feed(c, at, "a", 1, &at, &err);
    }
    assert_true(r == 0 || (r == CART_EFORMAT && done < tokens));
    cart_constraint_free(c);
    cart_buf_release(&b);
    return done;
}

/* Strings of a thousand least lengths stay possible side by side: what the first tokens may take is
 * soon spent, for others wait meanwhile. */
static void thousand_places_end_soon(void **state)
{
    (void)state;
    struct cart_err err = {0};
    struct cart_buf b = CART_BUF_INIT;
    const uint64_t *mask;
    bool complete;
    size_t done = 0;
    int r = 0;

    for (size_t i = 0; i < 999; i++)
        need(cart_buf_addf(&b, &err,
                           "%s{\"type\":\"string\",\"maxLength\":10000,\"minLength\":%zu}",
                           i > 0 ? "," : "{\"anyOf\":[", i),
             &err);
    again(&b, "]}", 1);
    struct cart_constraint *c = compile(b.data);
    uint32_t at = cart_constraint_start(c);
    while (done < 60 && (r = cart_constraint_mask(c, at, &mask, &complete, &err)) == 0 &&
           (r = cart_constraint_feed(c, at, done == 0 ? "\"" : "a", 1, &at, &err)) == 0)
        done++;
    assert_int_equal(r, CART_EFORMAT);
    assert_true(done < 10);
    cart_constraint_free(c);
    cart_buf_release(&b);
}

static void qwen3_alternatives(void **state)
{
    (void)state;
    struct cart_err err = {0};
    struct test_vocab small = vocab;
    struct cart_lexicon *small_lexicon = lexicon;

    if (!test_vocab_open(&vocab, test_shared("qwen3-tokenizer/qwen3-vocab-tiny.gguf.zst"))) {
        vocab = small;
        skip();
    }
    need(cart_lexicon_new(&lexicon, vocab.t, &err), &err);
    size_t few = strings_side_by_side(90, 20);
    size_t many = strings_side_by_side(1000, 20);
    cart_lexicon_free(lexicon);
    test_vocab_close(&vocab);
    vocab = small;
    lexicon = small_lexicon;
    assert_int_equal(few, 20);
    assert_true(many < 20);
}

int main(void)
{
    static const char *const merges[] = {"{ \"", "\" :", "\" }", "t r", "tr u", "tru e", ": Ġ",
                                         "\" ,", "] }",  "[ [",  "Ã ©", "1 2",  "\\ u",  NULL};
    static const char *const extra[] = {"<tool_call>", "</tool_call>", NULL};
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(texts_match_their_schemas),
        cmocka_unit_test(random_answers_are_json),
        cmocka_unit_test(tool_calls),
        cmocka_unit_test(qwen3_calls),
        cmocka_unit_test(automata_stay_small),
        cmocka_unit_test(counts_are_exact),
        cmocka_unit_test(masks_see_bounds),
        cmocka_unit_test(forgetting_changes_nothing),
        cmocka_unit_test(long_answers_have_no_limit_of_states),
        cmocka_unit_test(work_has_a_budget),
        cmocka_unit_test(copies_are_their_own),
        cmocka_unit_test(thousand_places_end_soon),
        cmocka_unit_test(qwen3_alternatives),
    };
    struct cart_err err = {0};

    test_vocab_small(&vocab, "qwen2", merges, extra, CART_TOKEN_USER_DEFINED);
    need(cart_lexicon_new(&lexicon, vocab.t, &err), &err);
    cmocka_set_message_output(CM_OUTPUT_TAP);
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    cart_lexicon_free(lexicon);
    test_vocab_close(&vocab);
    return failed;
}
