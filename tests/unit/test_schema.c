/* What a schema may have: each limit to the number, hostile schemas of every kind refused by the
 * name of the limit before they cost anything, large ones within the limits still taken, and what
 * is not enforced refused by name. */
#include "engine/automaton_impl.h"
#include "engine/schema_impl.h"
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
static struct cart_buf text; /* of the schema under way */

static void need(int r, const struct cart_err *err)
{
    if (r < 0)
        fail_msg("%s", err->msg);
}

static void add(const char *part)
{
    struct cart_err err = {0};

    need(cart_buf_add(&text, part, strlen(part), &err), &err);
}

/* n parts, the number i for %zu, with commas between them. */
#define LIST(n, ...)                                                                               \
    for (size_t i = 0; i < (n); i++) {                                                             \
        struct cart_err list_err = {0};                                                            \
        if (i > 0)                                                                                 \
            add(",");                                                                              \
        need(cart_buf_addf(&text, &list_err, __VA_ARGS__), &list_err);                             \
    }

/* A run of n bytes. */
static void run_of(char byte, size_t n)
{
    struct cart_err err = {0};

    need(cart_buf_reserve(&text, n, &err), &err);
    for (size_t i = 0; i < n; i++)
        need(cart_buf_add(&text, &byte, 1, &err), &err);
}

/* Compiles what has been written; names: what the refusal must name, NULL: it must be taken. The
 * first mask is made too. */
static void expect(const char *names)
{
    struct cart_err err = {0};
    struct cart_constraint *c = NULL;
    json_t *schema;

    need(cart_json_parse(&schema, text.data, text.len, "test", &err), &err);
    int r = cart_constraint_schema(&c, lexicon, schema, "schema", &err);
    json_decref(schema);
    if (names == NULL) {
        const uint64_t *mask;
        bool complete;
        need(r, &err);
        need(cart_constraint_mask(c, cart_constraint_start(c), &mask, &complete, &err), &err);
        cart_constraint_free(c);
    } else if (r != CART_EFORMAT || strstr(err.msg, names) == NULL) {
        fail_msg("%.60s...: code %d \"%s\" does not name %s", text.data, r, err.msg, names);
    }
    cart_buf_reset(&text);
}

static void limits_are_exact(void **state)
{
    (void)state;
    for (size_t more = 0; more < 2; more++) {
        add("{\"type\":\"object\",\"properties\":{");
        LIST(5000 + more, "\"p%zu\":{\"type\":\"string\"}", i)
        add("},\"additionalProperties\":true}");
        expect(more ? "at most 5000 properties" : NULL);
        add("{\"required\":[");
        LIST(5000 + more, "\"r%zu\"", i)
        add("]}");
        expect(more ? "at most 5000 names that are required" : NULL);
        add("{\"items\":{\"enum\":[");
        LIST(5000 + more, "\"value number %zu\"", i)
        add("]}}");
        expect(more ? "at most 5000 values of enum" : NULL);
        add("{\"oneOf\":[");
        LIST(1000 + more, "{\"const\":%zu}", i)
        add("]}");
        expect(more ? "at most 1000 branches" : NULL);
        add("{\"anyOf\":[{\"prefixItems\":[");
        LIST(999 + more, "{\"const\":%zu}", i)
        add("]}]}");
        expect(more ? "at most 1000 branches" : NULL);
        add("{\"properties\":{\"");
        run_of('a', 100000);
        add("\":{\"const\":\"");
        run_of('b', 20000 + more);
        add("\"}}}");
        expect(more ? "at most 120000 bytes of names and constants" : NULL);
    }
}

/* Counted wherever it stands: a reference may lead there. */
static void limits_hold_everywhere(void **state)
{
    (void)state;
    static const char *const places[] = {
        "{\"default\":%s,\"$ref\":\"#/default\"}",
        "{\"$defs\":{\"a\":%s},\"$ref\":\"#/$defs/a\"}",
        "{\"examples\":[[%s]],\"$ref\":\"#/examples/0/0\"}",
        "{\"properties\":{\"enum\":%s}}",
        "{\"properties\":{\"const\":%s}}",
        "{\"properties\":{\"properties\":%s}}",
        "{\"const\":%s}",
    };

    for (size_t k = 0; k < CART_COUNTOF(places); k++) {
        const char *hole = strstr(places[k], "%s");
        struct cart_err err = {0};
        need(cart_buf_add(&text, places[k], (size_t)(hole - places[k]), &err), &err);
        add("{\"type\":\"object\",\"properties\":{");
        LIST(5001, "\"p%zu\":{}", i)
        add("}}");
        add(hole + 2);
        expect("at most 5000 properties");
    }
}

/* What made the server stop or stand still: now taken, or refused by name, at once. */
static void hostile_schemas(void **state)
{
    (void)state;
    add("{\"type\":\"object\",\"properties\":{\"");
    run_of('a', 100000);
    add("\":{}},\"additionalProperties\":true}");
    expect(NULL);
    add("{\"type\":\"object\",\"properties\":{");
    LIST(4000, "\"a%zu\":{}", i)
    add("},\"required\":[");
    LIST(4000, "\"b%zu\"", i)
    add("]}");
    expect(NULL);
    add("{\"oneOf\":[{\"enum\":[");
    LIST(2500, "\"a%zu\"", i)
    add("]},{\"enum\":[");
    LIST(2500, "\"b%zu\"", i)
    add("]}]}");
    expect("comparisons");
    add("{\"oneOf\":[");
    LIST(40, "{\"required\":[\"k\"],\"properties\":{\"k\":{\"$ref\":\"#/x\"},\"n%zu\":{}}}", i)
    add("],\"$defs\":{\"");
    run_of('x', 60000);
    add("\":1}}");
    expect("oneOf");
    add("{\"type\":[");
    LIST(100000, "\"%s\"", i % 2 ? "null" : "string")
    add("]}");
    expect(NULL);
    add("{\"properties\":{");
    LIST(5000, "\"p%zu\":{\"type\":\"number\",\"minimum\":%zu}", i, i)
    add("}}");
    expect("at most 1048576 grammar nodes");
    add("{\"properties\":{");
    LIST(5000, "\"p%zu\":{\"format\":\"date-time\"}", i)
    add("}}");
    expect(NULL);
}

static void depth_has_a_limit(void **state)
{
    (void)state;
    for (size_t more = 0; more < 2; more++) {
        for (size_t i = 0; i < 63 + 2 * more; i++)
            add("{\"type\":\"array\",\"items\":");
        add("{\"type\":\"null\"}");
        run_of('}', 63 + 2 * more);
        expect(more ? "nested at most 64 deep" : NULL);
    }
    /* A chain of references nests as well. */
    add("{\"$ref\":\"#/$defs/0\",\"$defs\":{");
    LIST(100, "\"%zu\":{\"items\":{\"$ref\":\"#/$defs/%zu\"}}", i, i + 1)
    add(",\"100\":{}}}");
    expect("nested at most 64 deep");
}

/* Schemas as they are written by hand, beside the limits: nothing of them is lost. */
static void large_schemas_are_taken(void **state)
{
    (void)state;
    add("{\"type\":\"object\",\"properties\":{");
    LIST(5000, "\"a property named %06zu\":{}", i)
    add("},\"additionalProperties\":false,\"required\":[");
    LIST(5000, "\"a property named %06zu\"", i)
    add("]}");
    expect(NULL);
    add("{\"type\":\"object\",\"additionalProperties\":false,\"required\":[\"f0\"],\"properties\":"
        "{");
    LIST(300,
         "\"f%zu\":{\"type\":\"object\",\"description\":\"one of "
         "many\",\"properties\":{\"id\":{\"type\":"
         "\"integer\",\"minimum\":0},\"at\":{\"format\":\"date\"},\"kind\":{\"enum\":[\"x\",\"y%"
         "zu\"]},"
         "\"list\":{\"type\":\"array\",\"maxItems\":10000,\"items\":{\"type\":\"string\","
         "\"maxLength\":"
         "10000}}}}",
         i, i)
    add("}}");
    expect(NULL);
    add("{\"description\":\"");
    run_of('d', 500000);
    add("\",\"type\":\"null\"}");
    expect(NULL);
}

static const struct {
    const char *schema, *names;
} refused[] = {
    {"{\"type\":\"string\",\"pattern\":\"a+\"}", "schema: pattern"},
    {"{\"type\":\"string\",\"format\":\"email\"}", "schema: format"},
    {"{\"properties\":{\"age\":{\"type\":\"number\",\"multipleOf\":5}}}",
     "properties.age.multipleOf"},
    {"{\"type\":\"number\",\"minimum\":0.5}", "schema: minimum"},
    {"{\"type\":\"number\",\"exclusiveMinimum\":0}", "schema: exclusiveMinimum"},
    {"{\"type\":\"array\",\"uniqueItems\":true}", "uniqueItems"},
    {"{\"type\":\"array\",\"items\":{\"not\":{}}}", "items.not"},
    {"{\"type\":\"thing\"}", "type"},
    {"{\"type\":\"string\",\"minLength\":-1}", "minLength"},
    {"{\"type\":\"string\",\"maxLength\":1e9}", "maxLength"},
    {"{\"type\":\"string\",\"minLength\":3,\"maxLength\":2}", "minLength"},
    {"{\"$ref\":\"#/$defs/none\"}", "$ref"},
    {"{\"$ref\":\"https://example.org/x\"}", "$ref"},
    {"{\"anyOf\":[]}", "anyOf"},
    {"{\"oneOf\":[{\"type\":\"string\"},{\"type\":\"string\"}]}", "oneOf"},
    /* What a keyword does not speak of matches it: a string both branches. */
    {"{\"oneOf\":[{\"type\":\"string\"},{\"properties\":{\"a\":{}},\"required\":[\"a\"]}]}",
     "oneOf"},
    {"{\"oneOf\":[{\"minLength\":1},{\"minimum\":1}]}", "oneOf"},
    {"{\"oneOf\":[{\"const\":1},{\"const\":1.0}]}", "oneOf"},
    {"{\"oneOf\":[{\"const\":{\"a\":[1.0]}},{\"enum\":[2,{\"a\":[1]}]}]}", "oneOf"},
    {"{\"oneOf\":[{\"properties\":{\"k\":{\"const\":1}},\"required\":[\"k\"]},"
     "{\"properties\":{\"k\":{\"const\":1.0}},\"required\":[\"k\"]}]}",
     "oneOf"},
    {"{\"type\":\"integer\",\"minimum\":1000000000000000}", "minimum"},
    {"{\"type\":\"number\",\"minimum\":1e15}", "minimum"},
    {"{\"type\":\"integer\",\"exclusiveMinimum\":999999999999999}", "exclusiveMinimum"},
    {"{\"type\":\"integer\",\"maximum\":-1e300}", "maximum"},
    {"{\"type\":\"integer\",\"exclusiveMaximum\":-999999999999999}", "exclusiveMaximum"},
    /* A key that comes twice counts once. */
    {"{\"type\":\"object\",\"minProperties\":2}", "minProperties"},
    {"{\"properties\":{\"a\":{}},\"minProperties\":1}", "minProperties"},
    {"{\"required\":[\"a\",\"a\"],\"minProperties\":2}", "minProperties"},
    /* References that other readers follow elsewhere. */
    {"{\"$ref\":\"#/$defs/a%20b\",\"$defs\":{\"a b\":{},\"a%20b\":{\"type\":\"null\"}}}", "$ref"},
    {"{\"properties\":{\"a\":{\"$id\":\"x\",\"$ref\":\"#/$defs/b\",\"$defs\":{\"b\":{}}}},"
     "\"$defs\":{\"b\":{\"type\":\"null\"}}}",
     "properties.a.$id"},
    {"{\"$ref\":\"#/$defs/b/"
     "items\",\"$defs\":{\"b\":{\"$id\":\"x\",\"items\":{\"type\":\"null\"}}}}",
     "$ref"},
    {"{\"allOf\":[{},{}]}", "allOf"},
    {"{\"anyOf\":[{}],\"type\":\"string\"}", "type"},
    {"{\"enum\":[1],\"type\":\"string\"}", "enum"},
    {"{\"enum\":[\"a\"],\"maxLength\":3}", "maxLength"},
    {"{\"required\":[\"z\"],\"additionalProperties\":false}", "required"},
    {"{\"type\":\"integer\",\"minimum\":5,\"maximum\":4}", "minimum"},
    {"{\"$ref\":\"#\"}", "schema"},
    {"{\"type\":\"array\",\"items\":{\"type\":\"string\",\"minLength\":9999},\"minItems\":9999}",
     NULL},
    {"{\"properties\":{\"a\":{\"$ref\":\"#/properties/a\"}},\"required\":[\"a\"]}", NULL},
    {"[]", "schema: expected a schema"},
    {"{\"minProperties\":1,\"additionalProperties\":false}", "minProperties"},
    {"{\"minProperties\":3,\"maxProperties\":2}", "minProperties"},
    {"{\"$ref\":\"#\"}", "$ref"},
    {"{\"$ref\":7}", "$ref"},
    {"{\"$ref\":\"#/$defs/a\",\"$defs\":{\"a\":{\"$ref\":\"#/$defs/b\"},\"b\":{\"$ref\":\"#/$defs/"
     "a\"}}}",
     "$ref"},
    {"{\"anyOf\":[{\"$ref\":\"#\"}]}", "nothing can match"},
    {"{\"type\":\"object\",\"properties\":{\"a\":{\"$ref\":\"#\"}},\"required\":[\"a\"]}",
     "nothing can match"},
    {"{\"type\":\"array\",\"items\":{\"$ref\":\"#\"},\"minItems\":1}", "nothing can match"},
    {"{\"type\":\"string\\u0000\"}", "type"},
    {"{\"format\":\"date\\u0000\"}", "format"},
};

static void what_is_not_enforced_is_refused(void **state)
{
    (void)state;
    for (size_t i = 0; i < CART_COUNTOF(refused); i++) {
        struct cart_err err = {0};
        struct cart_constraint *c = NULL;
        json_t *schema;
        need(cart_json_parse(&schema, refused[i].schema, strlen(refused[i].schema), "test", &err),
             &err);
        int r = cart_constraint_schema(&c, lexicon, schema, "schema", &err);
        json_decref(schema);
        if (refused[i].names == NULL) {
            /* Large or without an end: either is fine, as long as it ends in an error or in a
             * constraint. */
            cart_constraint_free(r == 0 ? c : NULL);
            continue;
        }
        if (r == 0)
            fail_msg("%s is taken", refused[i].schema);
        assert_int_equal(r, CART_EFORMAT);
        if (strstr(err.msg, refused[i].names) == NULL)
            fail_msg("%s: \"%s\" does not name %s", refused[i].schema, err.msg, refused[i].names);
    }
}

int main(void)
{
    static const char *const merges[] = {"{ \"", "\" :", "\" }", "t r", "tr u", NULL};
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(limits_are_exact),
        cmocka_unit_test(limits_hold_everywhere),
        cmocka_unit_test(hostile_schemas),
        cmocka_unit_test(depth_has_a_limit),
        cmocka_unit_test(large_schemas_are_taken),
        cmocka_unit_test(what_is_not_enforced_is_refused),
    };
    struct cart_err err = {0};

    test_vocab_small(&vocab, "qwen2", merges, NULL, CART_TOKEN_NORMAL);
    need(cart_lexicon_new(&lexicon, vocab.t, &err), &err);
    cmocka_set_message_output(CM_OUTPUT_TAP);
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    cart_lexicon_free(lexicon);
    test_vocab_close(&vocab);
    cart_buf_release(&text);
    return failed;
}
