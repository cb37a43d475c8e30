#include "token/chat_impl.h"

#include <string.h>

static int value(const json_t *v, int depth, struct cart_buf *b, struct cart_err *err);

static int member(const char *key, const json_t *v, bool first, int depth, struct cart_buf *b,
                  struct cart_err *err)
{
    json_t *name = json_string(key);
    if (name == NULL)
        return cart_err_memory(err, "JSON", strlen(key));
    int r = first ? 0 : cart_buf_add(b, ", ", 2, err);
    if (r == 0)
        r = cart_json_dump(name, b, err);
    if (r == 0)
        r = cart_buf_add(b, ": ", 2, err);
    json_decref(name);
    return r == 0 ? value(v, depth, b, err) : r;
}

static int object(const json_t *v, int depth, struct cart_buf *b, struct cart_err *err)
{
    /* jansson's iterators take no const, but only walk. */
    json_t *o = (json_t *)(uintptr_t)v;
    bool first = true;
    int r = cart_buf_add(b, "{", 1, err);
    for (void *it = json_object_iter(o); it != NULL && r == 0; it = json_object_iter_next(o, it)) {
        r = member(json_object_iter_key(it), json_object_iter_value(it), first, depth, b, err);
        first = false;
    }
    return r == 0 ? cart_buf_add(b, "}", 1, err) : r;
}

static int array(const json_t *v, int depth, struct cart_buf *b, struct cart_err *err)
{
    int r = cart_buf_add(b, "[", 1, err);
    for (size_t i = 0; i < json_array_size(v) && r == 0; i++) {
        if (i > 0)
            r = cart_buf_add(b, ", ", 2, err);
        if (r == 0)
            r = value(json_array_get(v, i), depth, b, err);
    }
    return r == 0 ? cart_buf_add(b, "]", 1, err) : r;
}

static int value(const json_t *v, int depth, struct cart_buf *b, struct cart_err *err)
{
    if (depth > CART_JSON_DEPTH)
        return cart_err_set(err, CART_EFORMAT, "JSON: nested deeper than %d", CART_JSON_DEPTH);
    if (json_is_object(v))
        return object(v, depth + 1, b, err);
    if (json_is_array(v))
        return array(v, depth + 1, b, err);
    return cart_json_dump(v, b, err);
}

int cart_chat_tojson(const json_t *v, struct cart_buf *b, struct cart_err *err)
{
    return value(v, 0, b, err);
}
