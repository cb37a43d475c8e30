/* JSON schemas to grammars. Each schema becomes a rule, once, so that references may go in circles.
 */
#include "engine/automaton_impl.h"
#include "engine/schema_impl.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- places and complaints ---- */

int cart_schema_complain(struct cart_schema *k, const char *key, const char *why)
{
    char shown[96];
    bool inside = k->path.len > 0, named = key[0] != '\0';

    return cart_err_set(k->err, CART_EFORMAT, "%s%s%s%s%s: %s", k->what,
                        inside || named ? ": " : "", inside ? k->path.data : "",
                        inside && named ? "." : "",
                        cart_err_escape(shown, sizeof shown, key, strlen(key)), why);
}

int cart_schema_enter(struct cart_schema *k, const char *name, size_t *back)
{
    char shown[96];

    *back = k->path.len;
    if (++k->depth > CART_SCHEMA_DEPTH_MAX) {
        snprintf(shown, sizeof shown, "expected to be nested at most %d deep",
                 CART_SCHEMA_DEPTH_MAX);
        return cart_schema_complain(k, name, shown);
    }
    return cart_buf_addf(&k->path, k->err, "%s%s", k->path.len > 0 ? "." : "",
                         cart_err_escape(shown, sizeof shown, name, strlen(name)));
}

void cart_schema_leave(struct cart_schema *k, size_t back)
{
    k->depth--;
    k->path.len = back;
    if (k->path.data != NULL)
        k->path.data[back] = '\0';
}

static bool is_one_of(const char *key, const char *const *list, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        if (strcmp(key, list[i]) == 0)
            return true;
    }
    return false;
}

static const char *const annotations[] = {"$schema",     "$id",         "$comment",     "title",
                                          "description", "default",     "examples",     "example",
                                          "strict",      "deprecated",  "readOnly",     "writeOnly",
                                          "$defs",       "definitions", "discriminator"};
static const char *const keywords[] = {
    "type",        "enum",     "const",    "properties",           "required",         "items",
    "prefixItems", "minItems", "maxItems", "additionalProperties", "minLength",        "format",
    "maxLength",   "minimum",  "maximum",  "exclusiveMinimum",     "exclusiveMaximum", "anyOf",
    "oneOf",       "allOf",    "$ref",     "minProperties",        "maxProperties"};

bool cart_schema_is_annotation(const char *key)
{
    return is_one_of(key, annotations, CART_COUNTOF(annotations));
}

/* Every key is known; of those in `only` (may be NULL) no other constrains beside it. */
static int check_keys(struct cart_schema *k, const json_t *schema, const char *only)
{
    const char *key;
    json_t *value;

    json_object_foreach((json_t *)schema, key, value) {
        if (cart_schema_is_annotation(key))
            continue;
        if (strcmp(key, "uniqueItems") == 0 && json_is_false(value))
            continue;
        if (!is_one_of(key, keywords, CART_COUNTOF(keywords)))
            return cart_schema_complain(k, key, "this keyword is not supported");
        if (only != NULL && strcmp(key, only) != 0)
            return cart_schema_complain(
                k, key, "not supported beside another constraint of the same value");
    }
    return 0;
}

int cart_schema_count(struct cart_schema *k, const json_t *schema, const char *key, size_t *out)
{
    const json_t *v = json_object_get(schema, key);

    if (v == NULL)
        return 0;
    double x = json_is_number(v) ? json_number_value(v) : -1;
    if (!(x >= 0) || x != floor(x))
        return cart_schema_complain(k, key, "expected a whole number");
    if (x > (double)CART_SCHEMA_REPEAT_MAX)
        return cart_schema_complain(k, key, "expected at most 10000");
    *out = (size_t)x;
    return 0;
}

/* ---- types ---- */

static int type_named(const char *s)
{
    static const struct {
        const char *name;
        int type;
    } names[] = {{"object", CART_TYPE_OBJECT},   {"array", CART_TYPE_ARRAY},
                 {"string", CART_TYPE_STRING},   {"number", CART_TYPE_NUMBER},
                 {"integer", CART_TYPE_INTEGER}, {"boolean", CART_TYPE_BOOLEAN},
                 {"null", CART_TYPE_NULL}};

    for (size_t i = 0; s != NULL && i < CART_COUNTOF(names); i++) {
        if (strcmp(s, names[i].name) == 0)
            return names[i].type;
    }
    return 0;
}

/* What a schema without "type" is about: the type that its keywords speak of. */
static int type_implied(const json_t *schema)
{
    static const struct {
        const char *key;
        int type;
    } hints[] = {{"properties", CART_TYPE_OBJECT},
                 {"required", CART_TYPE_OBJECT},
                 {"additionalProperties", CART_TYPE_OBJECT},
                 {"minProperties", CART_TYPE_OBJECT},
                 {"maxProperties", CART_TYPE_OBJECT},
                 {"items", CART_TYPE_ARRAY},
                 {"prefixItems", CART_TYPE_ARRAY},
                 {"minItems", CART_TYPE_ARRAY},
                 {"maxItems", CART_TYPE_ARRAY},
                 {"minLength", CART_TYPE_STRING},
                 {"format", CART_TYPE_STRING},
                 {"maxLength", CART_TYPE_STRING},
                 {"minimum", CART_TYPE_INTEGER},
                 {"maximum", CART_TYPE_INTEGER},
                 {"exclusiveMinimum", CART_TYPE_INTEGER},
                 {"exclusiveMaximum", CART_TYPE_INTEGER}};

    for (size_t i = 0; i < CART_COUNTOF(hints); i++) {
        if (json_object_get(schema, hints[i].key) != NULL)
            return hints[i].type;
    }
    return CART_TYPE_ALL;
}

int cart_schema_types(struct cart_schema *k, const json_t *schema, int *types)
{
    const json_t *type = json_object_get(schema, "type");
    const json_t *one;
    size_t i;

    *types = type == NULL ? type_implied(schema) : 0;
    if (json_is_string(type))
        *types = type_named(cart_json_word(type));
    json_array_foreach(type, i, one) {
        int t = type_named(cart_json_word(one));
        if (t == 0)
            return cart_schema_complain(k, "type", "expected names of JSON types");
        *types |= t;
    }
    if (*types == 0)
        return cart_schema_complain(
            k, "type", "expected object, array, string, number, integer, boolean or null");
    if (*types & CART_TYPE_NUMBER)
        *types &= ~CART_TYPE_INTEGER; /* a number may be whole */
    return 0;
}

/* ---- alternatives and references ---- */

static int alternatives(struct cart_schema *k, const json_t *schema, const char *key,
                        uint32_t *node)
{
    const json_t *list = json_object_get(schema, key);
    size_t n = json_array_size(list);
    size_t back;
    int r = check_keys(k, schema, key);

    if (r < 0)
        return r;
    if (n == 0)
        return cart_schema_complain(k, key, "expected an array of schemas");
    if (strcmp(key, "allOf") == 0 && n > 1)
        return cart_schema_complain(k, key, "supported with one schema only");
    if (strcmp(key, "oneOf") == 0 && (r = cart_schema_exclusive(k, list)) < 0)
        return r;
    if ((r = cart_schema_enter(k, key, &back)) < 0)
        return r;
    for (size_t i = 0; i < n && r == 0; i++) {
        uint32_t rule;
        if ((r = cart_schema_compile(k, json_array_get(list, i), &rule)) < 0)
            break;
        uint32_t one = cart_grammar_call(k->c, rule, CART_GRAMMAR_RETURN);
        *node = i == 0 ? one : cart_grammar_either(k->c, *node, one);
    }
    cart_schema_leave(k, back);
    return r;
}

static int reference(struct cart_schema *k, const json_t *schema, uint32_t *node)
{
    const json_t *target;
    uint32_t rule;
    int r = check_keys(k, schema, "$ref");

    if (r < 0 || (r = cart_schema_resolve(k, schema, &target)) < 0)
        return r;
    if (target == NULL)
        return cart_schema_complain(
            k, "$ref",
            "expected # and the path of a place in this document, that does not lead back here");
    if ((r = cart_schema_compile(k, target, &rule)) < 0)
        return r;
    *node = cart_grammar_call(k->c, rule, CART_GRAMMAR_RETURN);
    return 0;
}

static int by_types(struct cart_schema *k, const json_t *schema, uint32_t *node)
{
    bool any = false;
    int types;
    int r = cart_schema_types(k, schema, &types);

    for (int t = CART_TYPE_OBJECT; t <= CART_TYPE_NULL && r == 0; t *= 2) {
        uint32_t one = 0;
        if ((types & t) == 0)
            continue;
        if (t == CART_TYPE_OBJECT)
            r = cart_schema_object(k, schema, &one);
        else if (t == CART_TYPE_ARRAY)
            r = cart_schema_array(k, schema, &one);
        else if (t == CART_TYPE_STRING)
            r = cart_schema_string(k, schema, &one);
        else if (t == CART_TYPE_NUMBER || t == CART_TYPE_INTEGER)
            r = cart_schema_number(k, schema, t == CART_TYPE_INTEGER, &one);
        else if (t == CART_TYPE_BOOLEAN)
            one = cart_grammar_either(k->c, cart_grammar_text(k->c, "true", 4, CART_GRAMMAR_RETURN),
                                      cart_grammar_text(k->c, "false", 5, CART_GRAMMAR_RETURN));
        else
            one = cart_grammar_text(k->c, "null", 4, CART_GRAMMAR_RETURN);
        *node = any ? cart_grammar_either(k->c, *node, one) : one;
        any = true;
    }
    return r;
}

static int body(struct cart_schema *k, const json_t *schema, uint32_t *node)
{
    static const char *const lists[] = {"anyOf", "oneOf", "allOf"};
    int r;

    if (json_object_get(schema, "$ref") != NULL)
        return reference(k, schema, node);
    for (size_t i = 0; i < CART_COUNTOF(lists); i++) {
        if (json_object_get(schema, lists[i]) != NULL)
            return alternatives(k, schema, lists[i], node);
    }
    if ((r = check_keys(k, schema, NULL)) < 0)
        return r;
    if (json_object_get(schema, "enum") != NULL || json_object_get(schema, "const") != NULL)
        return cart_schema_constants(k, schema, node);
    return by_types(k, schema, node);
}

/* Room for one more schema among those that have a rule. */
static int grow_made(struct cart_schema *k)
{
    if (2 * (k->n_made + 1) <= k->made_cap)
        return 0;
    size_t cap = k->made_cap > 0 ? 2 * k->made_cap : 64;
    struct cart_schema_rule *made = calloc(cap, sizeof *made);
    if (made == NULL)
        return cart_err_memory(k->err, "a schema", cap * sizeof *made);
    for (size_t i = 0; i < k->made_cap; i++) {
        if (k->made[i].schema == NULL)
            continue;
        size_t at = cart_index_mix(1, (uintptr_t)k->made[i].schema) & (cap - 1);
        while (made[at].schema != NULL)
            at = (at + 1) & (cap - 1);
        made[at] = k->made[i];
    }
    free(k->made);
    k->made = made;
    k->made_cap = cap;
    return 0;
}

/* Whether the schema has a rule; otherwise it gets one, to be defined. */
static int find_made(struct cart_schema *k, const json_t *schema, uint32_t *rule, bool *found)
{
    int r = grow_made(k);

    if (r < 0)
        return r;
    size_t at = cart_index_mix(1, (uintptr_t)schema) & (k->made_cap - 1);
    while (k->made[at].schema != NULL && k->made[at].schema != schema)
        at = (at + 1) & (k->made_cap - 1);
    *found = k->made[at].schema != NULL;
    if (!*found) {
        k->made[at] = (struct cart_schema_rule){schema, cart_grammar_rule(k->c)};
        k->n_made++;
    }
    *rule = k->made[at].rule;
    return 0;
}

int cart_schema_compile(struct cart_schema *k, const json_t *schema, uint32_t *rule)
{
    uint32_t node = 0;
    bool found;
    int r;

    if (cart_grammar_failed(k->c))
        return cart_err_wrap(k->err, cart_grammar_finish(k->c, 0, k->err), "%s", k->what);
    if (json_is_true(schema) || (json_is_object(schema) && json_object_size(schema) == 0)) {
        *rule = k->json.value;
        return 0;
    }
    if (!json_is_object(schema))
        return cart_schema_complain(k, "", "expected a schema");
    if ((r = find_made(k, schema, rule, &found)) < 0 || found)
        return r;
    /* It would change where the references below it lead. */
    if (schema != k->root && json_object_get(schema, "$id") != NULL)
        return cart_schema_complain(k, "$id", "supported at the root only");
    if ((r = body(k, schema, &node)) == 0)
        cart_grammar_define(k->c, *rule, node);
    return r;
}

/* ---- the way in ---- */

int cart_schema_start(struct cart_schema *k, const struct cart_lexicon *l, const json_t *root,
                      const char *what, struct cart_err *err)
{
    *k = (struct cart_schema){.root = root, .what = what, .err = err};
    int r = cart_schema_measure(k, root);
    if (r == 0)
        r = cart_grammar_new(&k->c, l, err);
    if (r == 0)
        cart_json_rules_make(&k->json, k->c);
    return r;
}

int cart_schema_end(struct cart_schema *k, int r, uint32_t rule, struct cart_constraint **out)
{
    if (r == 0 && (r = cart_grammar_finish(k->c, rule, k->err)) < 0)
        r = cart_err_wrap(k->err, r, "%s", k->what);
    if (r == 0)
        *out = k->c;
    else
        cart_constraint_free(k->c);
    cart_buf_release(&k->path);
    free(k->made);
    free(k->pieces);
    return r;
}

int cart_constraint_schema(struct cart_constraint **out, const struct cart_lexicon *l,
                           const json_t *schema, const char *what, struct cart_err *err)
{
    struct cart_schema k;
    uint32_t rule = 0;
    int r = cart_schema_start(&k, l, schema, what, err);

    if (r < 0)
        return r;
    r = cart_schema_compile(&k, schema, &rule);
    return cart_schema_end(&k, r, rule, out);
}

int cart_constraint_object(struct cart_constraint **out, const struct cart_lexicon *l,
                           struct cart_err *err)
{
    struct cart_schema k;
    int r = cart_schema_start(&k, l, NULL, "json_object", err);

    if (r < 0)
        return r;
    return cart_schema_end(&k, 0, k.json.object, out);
}
