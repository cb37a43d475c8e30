#include "base/json.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

json_t *cart_json_copy(const json_t *v)
{
    /* jansson takes no const, but only reads. */
    json_t *from = (json_t *)(uintptr_t)v;
    json_t *copy = json_is_array(v) ? json_array() : json_object();
    int bad = json_is_array(v) ? json_array_extend(copy, from) : json_object_update(copy, from);
    if (bad) {
        json_decref(copy);
        return NULL;
    }
    return copy;
}

static int dump_string(const char *s, size_t n, struct cart_buf *b, struct cart_err *err)
{
    static const char digits[] = "0123456789abcdef";
    int r = cart_buf_reserve(b, n + 2, err);
    if (r < 0 || (r = cart_buf_add(b, "\"", 1, err)) < 0)
        return r;
    size_t start = 0;
    for (size_t i = 0; i <= n; i++) {
        unsigned char c = i < n ? (unsigned char)s[i] : 0;
        if (i < n && c >= 0x20 && c != '"' && c != '\\')
            continue;
        if ((r = cart_buf_add(b, s + start, i - start, err)) < 0)
            return r;
        start = i + 1;
        if (i == n)
            break;
        char esc[6] = {'\\', 'u', '0', '0', digits[c >> 4], digits[c & 15]};
        const char *shorts = c ? strchr("\"\"\\\\\bb\ff\nn\rr\tt", c) : NULL;
        if (shorts)
            esc[1] = shorts[1];
        if ((r = cart_buf_add(b, esc, shorts ? 2 : 6, err)) < 0)
            return r;
    }
    return cart_buf_add(b, "\"", 1, err);
}

/* The fewest digits that read back as the same double, with a point or exponent so that it stays a
 * real. */
static int dump_real(double x, struct cart_buf *b, struct cart_err *err)
{
    char text[40];
    size_t n = 0;
    /* 15 digits survive decimal to double to decimal, so any shorter form is this one without its
     * zeros. */
    for (int digits = 15; digits <= 17; digits++) {
        n = (size_t)snprintf(text, sizeof text, "%.*g", digits, x);
        if (strtod(text, NULL) == x)
            break;
    }
    int r = cart_buf_add(b, text, n, err);
    return r < 0 || strpbrk(text, ".e") ? r : cart_buf_add(b, ".0", 2, err);
}

static int by_key(const void *a, const void *b)
{
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

static int dump_value(const json_t *v, int depth, struct cart_buf *b, struct cart_err *err);

static int dump_object(const json_t *v, int depth, struct cart_buf *b, struct cart_err *err)
{
    size_t n = json_object_size(v);
    const char **keys = malloc((n ? n : 1) * sizeof *keys);
    if (!keys)
        return cart_err_memory(err, "JSON", n * sizeof *keys);
    size_t i = 0;
    /* jansson's iterators take no const, but only walk. */
    json_t *obj = (json_t *)(uintptr_t)v;
    for (void *it = json_object_iter(obj); it; it = json_object_iter_next(obj, it))
        keys[i++] = json_object_iter_key(it);
    qsort(keys, n, sizeof *keys, by_key);
    int r = cart_buf_add(b, "{", 1, err);
    for (i = 0; i < n && r >= 0; i++) {
        if (i > 0 && (r = cart_buf_add(b, ",", 1, err)) < 0)
            break;
        if ((r = dump_string(keys[i], strlen(keys[i]), b, err)) < 0 ||
            (r = cart_buf_add(b, ":", 1, err)) < 0)
            break;
        r = dump_value(json_object_get(v, keys[i]), depth + 1, b, err);
    }
    free(keys);
    return r < 0 ? r : cart_buf_add(b, "}", 1, err);
}

static int dump_array(const json_t *v, int depth, struct cart_buf *b, struct cart_err *err)
{
    int r = cart_buf_add(b, "[", 1, err);
    for (size_t i = 0; i < json_array_size(v) && r >= 0; i++) {
        if (i > 0 && (r = cart_buf_add(b, ",", 1, err)) < 0)
            return r;
        r = dump_value(json_array_get(v, i), depth + 1, b, err);
    }
    return r < 0 ? r : cart_buf_add(b, "]", 1, err);
}

static int dump_value(const json_t *v, int depth, struct cart_buf *b, struct cart_err *err)
{
    char text[32];
    if (depth > CART_JSON_DEPTH)
        return cart_err_set(err, CART_EFORMAT, "JSON: nested deeper than %d", CART_JSON_DEPTH);
    switch (json_typeof(v)) {
    case JSON_OBJECT:
        return dump_object(v, depth, b, err);
    case JSON_ARRAY:
        return dump_array(v, depth, b, err);
    case JSON_STRING:
        return dump_string(json_string_value(v), json_string_length(v), b, err);
    case JSON_INTEGER:
        snprintf(text, sizeof text, "%" JSON_INTEGER_FORMAT, json_integer_value(v));
        return cart_buf_add(b, text, strlen(text), err);
    case JSON_REAL:
        return dump_real(json_real_value(v), b, err);
    case JSON_TRUE:
        return cart_buf_add(b, "true", 4, err);
    case JSON_FALSE:
        return cart_buf_add(b, "false", 5, err);
    case JSON_NULL:
        break;
    }
    return cart_buf_add(b, "null", 4, err);
}

int cart_json_dump(const json_t *v, struct cart_buf *b, struct cart_err *err)
{
    if (!v)
        return cart_err_memory(err, "JSON", 0);
    size_t start = b->len;
    int r = dump_value(v, 1, b, err);
    if (r < 0 && b->data) {
        b->len = start;
        b->data[start] = '\0';
    }
    return r;
}

static const char *type_name(const json_t *v)
{
    static const char *const names[] = {
        [JSON_OBJECT] = "an object",   [JSON_ARRAY] = "an array", [JSON_STRING] = "a string",
        [JSON_INTEGER] = "an integer", [JSON_REAL] = "a real",    [JSON_TRUE] = "true",
        [JSON_FALSE] = "false",        [JSON_NULL] = "null",
    };
    return v ? names[json_typeof(v)] : "nothing";
}

const char *cart_json_word(const json_t *v)
{
    const char *s = json_string_value(v);
    return s && strlen(s) == json_string_length(v) ? s : NULL;
}

const char *cart_json_found(const json_t *v, char out[48])
{
    if (json_is_integer(v))
        snprintf(out, 48, "%" JSON_INTEGER_FORMAT, json_integer_value(v));
    else if (json_is_string(v)) {
        char text[40];
        cart_err_escape(text, sizeof text, json_string_value(v), json_string_length(v));
        snprintf(out, 48, "\"%s\"", text);
    } else
        snprintf(out, 48, "%s", type_name(v));
    return out;
}

static int wrong(const json_t *v, const char *key, const char *expected, const char *what,
                 struct cart_err *err)
{
    return cart_err_set(err, CART_EFORMAT, "%s: %s: expected %s, found %s", what, key, expected,
                        type_name(v));
}

/* The value under key: NULL with *r = 0 where it is absent or null and may be, else *r < 0. */
static json_t *find(const json_t *obj, const char *key, bool optional, const char *expected,
                    const char *what, struct cart_err *err, int *r)
{
    *r = 0;
    if (!json_is_object(obj)) {
        *r = cart_err_set(err, CART_EFORMAT, "%s: expected an object, found %s", what,
                          type_name(obj));
        return NULL;
    }
    json_t *v = json_object_get(obj, key);
    if (optional && (!v || json_is_null(v)))
        return NULL;
    if (!v)
        *r = wrong(NULL, key, expected, what, err);
    return v;
}

static int get_string(const json_t *obj, const char *key, bool optional, const char **out,
                      const char *what, struct cart_err *err)
{
    int r;
    json_t *v = find(obj, key, optional, "a string", what, err, &r);
    if (!v)
        return r;
    if (!json_is_string(v))
        return wrong(v, key, "a string", what, err);
    const char *s = json_string_value(v);
    if (strlen(s) != json_string_length(v))
        return cart_err_set(err, CART_EFORMAT, "%s: %s: expected a string without NUL, found one",
                            what, key);
    *out = s;
    return 0;
}

int cart_json_string(const json_t *obj, const char *key, const char **out, const char *what,
                     struct cart_err *err)
{
    return get_string(obj, key, false, out, what, err);
}

int cart_json_string_opt(const json_t *obj, const char *key, const char **out, const char *what,
                         struct cart_err *err)
{
    return get_string(obj, key, true, out, what, err);
}

bool cart_json_whole(const json_t *v, uint64_t max, uint64_t *out)
{
    json_int_t i = json_integer_value(v);
    if (!json_is_integer(v) || i < 0 || (uint64_t)i > max)
        return false;
    *out = (uint64_t)i;
    return true;
}

static int get_u64(const json_t *obj, const char *key, bool optional, uint64_t max, uint64_t *out,
                   const char *what, struct cart_err *err)
{
    int r;
    json_t *v = find(obj, key, optional, "an integer", what, err, &r);
    if (!v)
        return r;
    if (!json_is_integer(v))
        return wrong(v, key, "an integer", what, err);
    if (!cart_json_whole(v, max, out))
        return cart_err_set(err, CART_EFORMAT,
                            "%s: %s: expected an integer from 0 to %llu, found %lld", what, key,
                            (unsigned long long)max, (long long)json_integer_value(v));
    return 0;
}

int cart_json_u64(const json_t *obj, const char *key, uint64_t max, uint64_t *out, const char *what,
                  struct cart_err *err)
{
    return get_u64(obj, key, false, max, out, what, err);
}

int cart_json_u64_opt(const json_t *obj, const char *key, uint64_t max, uint64_t *out,
                      const char *what, struct cart_err *err)
{
    return get_u64(obj, key, true, max, out, what, err);
}

int cart_json_bool_opt(const json_t *obj, const char *key, bool *out, const char *what,
                       struct cart_err *err)
{
    int r;
    json_t *v = find(obj, key, true, "true or false", what, err, &r);
    if (!v)
        return r;
    if (!json_is_boolean(v))
        return wrong(v, key, "true or false", what, err);
    *out = json_is_true(v);
    return 0;
}

int cart_json_object(const json_t *obj, const char *key, json_t **out, const char *what,
                     struct cart_err *err)
{
    int r;
    json_t *v = find(obj, key, false, "an object", what, err, &r);
    if (!v)
        return r;
    if (!json_is_object(v))
        return wrong(v, key, "an object", what, err);
    *out = v;
    return 0;
}

int cart_json_array(const json_t *obj, const char *key, json_t **out, const char *what,
                    struct cart_err *err)
{
    int r;
    json_t *v = find(obj, key, false, "an array", what, err, &r);
    if (!v)
        return r;
    if (!json_is_array(v))
        return wrong(v, key, "an array", what, err);
    *out = v;
    return 0;
}

static int add_difference(const char *key, const json_t *saved, const json_t *asked,
                          struct cart_buf *why, struct cart_err *err)
{
    struct cart_buf a = CART_BUF_INIT, b = CART_BUF_INIT;
    int r = 0;
    if ((!saved || (r = cart_json_dump(saved, &a, err)) == 0) &&
        (!asked || (r = cart_json_dump(asked, &b, err)) == 0))
        r = cart_buf_addf(why, err, "%s: saved with %.120s, asked for %.120s", key,
                          saved ? a.data : "none", asked ? b.data : "none");
    cart_buf_release(&a);
    cart_buf_release(&b);
    return r < 0 ? r : 1;
}

static int difference(const char *key, const json_t *saved, const json_t *asked,
                      struct cart_buf *why, struct cart_err *err)
{
    const char *k;
    json_t *v;
    int r = 0;
    if (json_equal(saved, asked))
        return 0;
    if (json_is_object(saved) && json_is_object(asked)) {
        json_object_foreach((json_t *)(uintptr_t)asked, k, v) {
            if (r == 0)
                r = difference(k, json_object_get(saved, k), v, why, err);
        }
        json_object_foreach((json_t *)(uintptr_t)saved, k, v) {
            if (r == 0 && !json_object_get(asked, k))
                r = add_difference(k, v, NULL, why, err);
        }
        return r;
    }
    if (json_is_array(saved) && json_array_size(saved) == json_array_size(asked)) {
        for (size_t i = 0; i < json_array_size(saved) && r == 0; i++)
            r = difference(key, json_array_get(saved, i), json_array_get(asked, i), why, err);
        return r;
    }
    return add_difference(key, saved, asked, why, err);
}

int cart_json_difference(const json_t *saved, const json_t *asked, struct cart_buf *why,
                         struct cart_err *err)
{
    return difference("value", saved, asked, why, err);
}
