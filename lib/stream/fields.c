/* One value against its type and range, and the message that names both: the rule that readers,
 * writers and cart-view --check share. */
#include "stream/kinds.h"

#include <stdio.h>
#include <string.h>

static bool is_text(const json_t *v)
{
    return json_is_string(v) && strlen(json_string_value(v)) == json_string_length(v);
}

static bool is_span(const json_t *v, uint64_t most)
{
    uint64_t first, end;

    return json_array_size(v) == 2 && cart_json_whole(json_array_get(v, 0), most, &first) &&
           cart_json_whole(json_array_get(v, 1), most, &end) && first <= end;
}

static bool is_choice(const json_t *v, const char *choices)
{
    const char *text = json_string_value(v);
    size_t n = text ? strlen(text) : 0;

    for (const char *p = choices; text && *p; p += strcspn(p, "|"), p += *p == '|')
        if (strcspn(p, "|") == n && memcmp(p, text, n) == 0)
            return is_text(v);
    return false;
}

static bool is_sha256(const json_t *v)
{
    return is_text(v) && json_string_length(v) == 64 &&
           strspn(json_string_value(v), "0123456789abcdef") == 64;
}

static bool is_message(const json_t *v)
{
    return json_is_string(json_object_get(v, "role")) &&
           json_is_string(json_object_get(v, "content"));
}

static bool is_stage(const json_t *v)
{
    return is_text(json_object_get(v, "tool"));
}

static bool is_any_string(const json_t *v)
{
    return json_is_string(v);
}

static bool all(const json_t *v, bool (*is)(const json_t *))
{
    for (size_t i = 0; i < json_array_size(v); i++)
        if (!is(json_array_get(v, i)))
            return false;
    return json_is_array(v);
}

static bool fits(const json_t *v, const struct cart_kind_field *f)
{
    uint64_t number;

    switch (f->type) {
    case CART_FIELD_NUMBER:
        return cart_json_whole(v, f->most, &number);
    case CART_FIELD_REAL:
        return json_is_number(v);
    case CART_FIELD_BOOL:
        return json_is_boolean(v);
    case CART_FIELD_TEXT:
        return is_text(v);
    case CART_FIELD_NAME:
        return is_text(v) && json_string_length(v) > 0;
    case CART_FIELD_CHOICE:
        return is_choice(v, f->choices);
    case CART_FIELD_SHA256:
        return is_sha256(v);
    case CART_FIELD_SPAN:
        return is_span(v, f->most);
    case CART_FIELD_TEXTS:
        return all(v, is_any_string);
    case CART_FIELD_MESSAGES:
        return all(v, is_message);
    case CART_FIELD_HISTORY:
        return all(v, is_stage);
    case CART_FIELD_OBJECT:
        return json_is_object(v);
    }
    return false;
}

static const char *expected(const struct cart_kind_field *f, char text[160])
{
    static const char *const words[] = {
        [CART_FIELD_REAL] = "a number",
        [CART_FIELD_BOOL] = "true or false",
        [CART_FIELD_TEXT] = "a string without NUL",
        [CART_FIELD_NAME] = "a string that is not empty",
        [CART_FIELD_SHA256] = "64 hexadecimal digits",
        [CART_FIELD_TEXTS] = "an array of strings",
        [CART_FIELD_MESSAGES] = "an array of objects with the strings role and content",
        [CART_FIELD_HISTORY] = "an array of objects with the string tool",
        [CART_FIELD_OBJECT] = "an object",
    };
    unsigned long long most = f->most;

    if (f->type == CART_FIELD_NUMBER)
        snprintf(text, 160, "a whole number from 0 to %llu", most);
    else if (f->type == CART_FIELD_SPAN)
        snprintf(text, 160, "[first, end] with 0 <= first <= end <= %llu", most);
    else if (f->type == CART_FIELD_CHOICE)
        snprintf(text, 160, "one of %s", f->choices);
    else
        snprintf(text, 160, "%s", words[f->type]);
    return text;
}

int cart_fields_check(const json_t *obj, const struct cart_kind_field *fields, size_t n,
                      const char *what, int code, struct cart_err *err)
{
    for (size_t i = 0; i < n; i++) {
        const struct cart_kind_field *f = &fields[i];
        const json_t *v = json_object_get(obj, f->name);
        char text[160], found[48];
        if (fits(v, f) || (!f->required && (v == NULL || json_is_null(v))))
            continue;
        return cart_err_set(err, code, "%s: %s: expected %s, found %s", what, f->name,
                            expected(f, text), cart_json_found(v, found));
    }
    return 0;
}
