/* Constants, numbers, strings and arrays of a schema. */
#include "engine/schema_impl.h"

#include <math.h>
#include <string.h>

#define INTEGER_MAX ((int64_t)999999999999999) /* CART_SCHEMA_DIGITS nines */

/* ---- constants ---- */

static int type_of_value(const json_t *v)
{
    switch (json_typeof(v)) {
    case JSON_OBJECT:
        return CART_TYPE_OBJECT;
    case JSON_ARRAY:
        return CART_TYPE_ARRAY;
    case JSON_STRING:
        return CART_TYPE_STRING;
    case JSON_INTEGER:
        return CART_TYPE_INTEGER | CART_TYPE_NUMBER;
    case JSON_REAL:
        return json_real_value(v) == floor(json_real_value(v))
                   ? CART_TYPE_INTEGER | CART_TYPE_NUMBER
                   : CART_TYPE_NUMBER;
    case JSON_TRUE:
    case JSON_FALSE:
        return CART_TYPE_BOOLEAN;
    default:
        return CART_TYPE_NULL;
    }
}

static int literal(struct cart_schema *k, const json_t *value, uint32_t *node)
{
    struct cart_buf b = CART_BUF_INIT;
    int r = cart_json_dump(value, &b, k->err);

    if (r == 0)
        *node = cart_grammar_text(k->c, b.data, b.len, CART_GRAMMAR_RETURN);
    cart_buf_release(&b);
    return r;
}

static int constants(struct cart_schema *k, const json_t *schema, const json_t *list,
                     uint32_t *node)
{
    const json_t *v;
    size_t i;
    int types = CART_TYPE_ALL;
    bool any = false;
    int r = json_object_get(schema, "type") != NULL ? cart_schema_types(k, schema, &types) : 0;

    if (r < 0)
        return r;
    json_array_foreach(list, i, v) {
        uint32_t one;
        if ((type_of_value(v) & types) == 0)
            continue;
        if ((r = literal(k, v, &one)) < 0)
            return r;
        *node = any ? cart_grammar_either(k->c, *node, one) : one;
        any = true;
    }
    return any ? 0 : cart_schema_complain(k, "enum", "expected a value that the type allows");
}

int cart_schema_constants(struct cart_schema *k, const json_t *schema, uint32_t *node)
{
    const json_t *list = json_object_get(schema, "enum");
    const json_t *one = json_object_get(schema, "const");
    const char *key;
    json_t *value;

    json_object_foreach((json_t *)schema, key, value) {
        if (!cart_schema_is_annotation(key) && strcmp(key, "type") != 0 &&
            strcmp(key, list != NULL ? "enum" : "const") != 0)
            return cart_schema_complain(
                k, key, "not supported beside another constraint of the same value");
    }
    if (list != NULL)
        return json_is_array(list) ? constants(k, schema, list, node)
                                   : cart_schema_complain(k, "enum", "expected an array");
    json_t *wrapped = json_pack("[O]", one);
    if (wrapped == NULL)
        return cart_err_memory(k->err, "a schema", 0);
    int r = constants(k, schema, wrapped, node);
    json_decref(wrapped);
    return r;
}

/* ---- pieces that come again ---- */

/* The rule of a piece, made where there is no equal one. CART_EFORMAT, without a message: no such
 * format. */
static int piece(struct cart_schema *k, struct cart_schema_piece x, uint32_t *rule)
{
    uint32_t node;

    for (size_t i = 0; i < k->n_pieces; i++) {
        const struct cart_schema_piece *p = &k->pieces[i];
        bool same = x.format != NULL ? p->format != NULL && strcmp(p->format, x.format) == 0
                                     : p->format == NULL && p->lo == x.lo && p->hi == x.hi &&
                                           p->integer == x.integer;
        if (same) {
            *rule = p->rule;
            return 0;
        }
    }
    int r =
        cart_array_reserve(&k->pieces, &k->pieces_cap, k->n_pieces + 1, sizeof *k->pieces, k->err);
    if (r < 0)
        return r;
    if (x.format != NULL) {
        if (!cart_json_format(k->c, x.format, CART_GRAMMAR_RETURN, &node))
            return CART_EFORMAT;
    } else {
        node = x.integer ? cart_json_integers(k->c, x.lo, x.hi, CART_GRAMMAR_RETURN)
                         : cart_json_decimals(k->c, x.lo, x.hi, CART_GRAMMAR_RETURN);
    }
    *rule = x.rule = cart_grammar_rule(k->c);
    cart_grammar_define(k->c, x.rule, node);
    k->pieces[k->n_pieces++] = x;
    return 0;
}

/* ---- numbers ---- */

static int bound(struct cart_schema *k, const json_t *schema, const char *key, bool upper,
                 bool exclusive, int64_t *out)
{
    const json_t *v = json_object_get(schema, key);

    if (v == NULL)
        return 0;
    if (!json_is_number(v))
        return cart_schema_complain(k, key, "expected a number");
    double x = json_number_value(v);
    x = upper ? floor(x) - (exclusive && x == floor(x)) : ceil(x) + (exclusive && x == ceil(x));
    if (upper ? x < -(double)INTEGER_MAX : x > (double)INTEGER_MAX)
        return cart_schema_complain(k, key, "no number of 15 digits lies within");
    if (upper ? x < (double)*out : x > (double)*out)
        *out = (int64_t)x;
    return 0;
}

int cart_schema_number(struct cart_schema *k, const json_t *schema, bool integer, uint32_t *node)
{
    static const char *const bounds[] = {"minimum", "maximum", "exclusiveMinimum",
                                         "exclusiveMaximum"};
    int64_t lo = -INTEGER_MAX;
    int64_t hi = INTEGER_MAX;
    bool bounded = false;
    int r;

    for (size_t i = 0; i < CART_COUNTOF(bounds); i++) {
        if (json_object_get(schema, bounds[i]) == NULL)
            continue;
        double x = json_number_value(json_object_get(schema, bounds[i]));
        if (!integer && (i >= 2 || x != floor(x)))
            return cart_schema_complain(k, bounds[i],
                                        "of a number: supported where whole and inclusive");
        bounded = true;
    }
    if (!bounded) {
        *node = cart_grammar_call(k->c, integer ? k->json.integer : k->json.number,
                                  CART_GRAMMAR_RETURN);
        return 0;
    }
    if ((r = bound(k, schema, "minimum", false, false, &lo)) < 0 ||
        (r = bound(k, schema, "maximum", true, false, &hi)) < 0 ||
        (r = bound(k, schema, "exclusiveMinimum", false, true, &lo)) < 0 ||
        (r = bound(k, schema, "exclusiveMaximum", true, true, &hi)) < 0)
        return r;
    if (lo > hi)
        return cart_schema_complain(k, "minimum", "no number lies between the bounds");
    uint32_t rule;
    if ((r = piece(k, (struct cart_schema_piece){NULL, lo, hi, integer, 0}, &rule)) == 0)
        *node = cart_grammar_call(k->c, rule, CART_GRAMMAR_RETURN);
    return r;
}

/* ---- strings and arrays ---- */

int cart_schema_string(struct cart_schema *k, const json_t *schema, uint32_t *node)
{
    size_t least = 0;
    size_t most = SIZE_MAX;
    int r;

    if ((r = cart_schema_count(k, schema, "minLength", &least)) < 0 ||
        (r = cart_schema_count(k, schema, "maxLength", &most)) < 0)
        return r;
    const json_t *format = json_object_get(schema, "format");
    if (format != NULL) {
        if (least > 0 || most != SIZE_MAX)
            return cart_schema_complain(k, "format", "not supported beside minLength or maxLength");
        struct cart_schema_piece x = {cart_json_word(format), 0, 0, false, 0};
        uint32_t rule;
        r = x.format != NULL ? piece(k, x, &rule) : CART_EFORMAT;
        if (r == CART_EFORMAT)
            return cart_schema_complain(k, "format", "supported: date, time, date-time, uuid");
        if (r == 0)
            *node = cart_grammar_call(k->c, rule, CART_GRAMMAR_RETURN);
        return r;
    }
    if (least > most)
        return cart_schema_complain(k, "minLength", "more than maxLength");
    *node = cart_json_string_sized(k->c, &k->json, least, most, CART_GRAMMAR_RETURN);
    return 0;
}

/* The elements after the prefix, at least min - n_prefix and at most max - n_prefix, first with a
 * comma unless there is no prefix. */
static uint32_t tail_elements(struct cart_schema *k, uint32_t element, size_t n_prefix,
                              size_t least, size_t most, uint32_t close)
{
    size_t lo = least > n_prefix ? least - n_prefix : 0;
    size_t hi = most == SIZE_MAX ? SIZE_MAX : most > n_prefix ? most - n_prefix : 0;

    if (n_prefix == 0)
        return cart_json_sequence(k->c, &k->json, element, lo, hi, close);
    if (hi == 0)
        return close;
    uint32_t some = cart_json_comma(
        k->c, &k->json, cart_json_sequence(k->c, &k->json, element, lo > 0 ? lo : 1, hi, close));
    return lo > 0 ? some : cart_grammar_either(k->c, some, close);
}

static int prefix_items(struct cart_schema *k, const json_t *prefix, size_t least, uint32_t rest,
                        uint32_t close, uint32_t *node)
{
    size_t back;
    int r = cart_schema_enter(k, "prefixItems", &back);

    /* From the last to the first; the array may end before an element that minItems does not ask
     * for. */
    for (size_t i = json_array_size(prefix); i > 0 && r == 0; i--) {
        uint32_t element;
        if ((r = cart_schema_compile(k, json_array_get(prefix, i - 1), &element)) < 0)
            break;
        rest = cart_grammar_call(k->c, element, rest);
        if (i > 1)
            rest = cart_json_comma(k->c, &k->json, rest);
        if (i - 1 >= least)
            rest = cart_grammar_either(k->c, rest, close);
    }
    cart_schema_leave(k, back);
    *node = rest;
    return r;
}

int cart_schema_array(struct cart_schema *k, const json_t *schema, uint32_t *node)
{
    const json_t *items = json_object_get(schema, "items");
    const json_t *prefix = json_object_get(schema, "prefixItems");
    size_t n_prefix = json_array_size(prefix);
    size_t least = 0;
    size_t most = SIZE_MAX;
    uint32_t element = k->json.value;
    size_t back;
    int r;

    if (prefix != NULL && !json_is_array(prefix))
        return cart_schema_complain(k, "prefixItems", "expected an array");
    if ((r = cart_schema_count(k, schema, "minItems", &least)) < 0 ||
        (r = cart_schema_count(k, schema, "maxItems", &most)) < 0)
        return r;
    if (json_is_false(items))
        most = most < n_prefix ? most : n_prefix;
    if (least > most)
        return cart_schema_complain(k, "minItems", "more than the array may have");
    if (items != NULL && !json_is_boolean(items)) {
        if ((r = cart_schema_enter(k, "items", &back)) < 0)
            return r;
        r = cart_schema_compile(k, items, &element);
        cart_schema_leave(k, back);
    }
    if (r == 0 && most < n_prefix)
        r = cart_schema_complain(k, "maxItems", "less than prefixItems has");
    if (r < 0)
        return r;
    uint32_t close = cart_grammar_call(k->c, k->json.space,
                                       cart_grammar_text(k->c, "]", 1, CART_GRAMMAR_RETURN));
    uint32_t inside = tail_elements(k, element, n_prefix, least, most, close);
    if (n_prefix > 0 && (r = prefix_items(k, prefix, least, inside, close, &inside)) < 0)
        return r;
    *node = cart_grammar_text(k->c, "[", 1, cart_grammar_call(k->c, k->json.space, inside));
    return 0;
}
