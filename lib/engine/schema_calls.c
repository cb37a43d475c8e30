/* Tool calls as constraints. */
#include "engine/schema_impl.h"

#include <string.h>

/* One call of a tool, as a node that leads to next. */
static int one_call(struct cart_schema *k, const json_t *tool, const char *name, uint32_t next,
                    uint32_t *node)
{
    const json_t *f =
        json_object_get(tool, "function") != NULL ? json_object_get(tool, "function") : tool;
    const json_t *parameters = json_object_get(f, "parameters");
    struct cart_buf key = CART_BUF_INIT;
    uint32_t arguments = k->json.object;
    json_t *text = json_string(name);
    int r =
        text != NULL ? cart_json_dump(text, &key, k->err) : cart_err_memory(k->err, "a tool", 0);

    json_decref(text);
    k->root = parameters;
    if (r == 0 && parameters != NULL && !json_is_null(parameters) &&
        json_object_size(parameters) > 0)
        r = cart_schema_compile(k, parameters, &arguments);
    if (r == 0) {
        uint32_t at = cart_grammar_call(k->c, arguments, cart_grammar_text(k->c, "}", 1, next));
        at = cart_json_comma(
            k->c, &k->json,
            cart_grammar_text(k->c, "\"arguments\"", 11, cart_json_colon(k->c, &k->json, at)));
        at = cart_json_colon(k->c, &k->json, cart_grammar_text(k->c, key.data, key.len, at));
        *node = cart_grammar_text(k->c, "{\"name\"", 7, at);
    }
    cart_buf_release(&key);
    return r;
}

/* open (call of any tool that may be called) close. */
static int any_call(struct cart_schema *k, const struct cart_constraint_calls *calls,
                    uint32_t *rule)
{
    const json_t *tool;
    uint32_t close = cart_grammar_marked(k->c, calls->close, CART_GRAMMAR_RETURN);
    uint32_t any = 0;
    bool found = false;
    size_t i;

    json_array_foreach(calls->tools, i, tool) {
        const json_t *f =
            json_object_get(tool, "function") != NULL ? json_object_get(tool, "function") : tool;
        const char *name = cart_json_word(json_object_get(f, "name"));
        uint32_t node = 0;
        size_t back;
        if (name == NULL)
            return cart_schema_complain(k, "name", "expected a string");
        if (calls->only != NULL && strcmp(calls->only, name) != 0)
            continue;
        int r = cart_schema_enter(k, name, &back);
        if (r == 0)
            r = one_call(k, tool, name, close, &node);
        cart_schema_leave(k, back);
        if (r < 0)
            return r;
        any = found ? cart_grammar_either(k->c, any, node) : node;
        found = true;
    }
    if (!found)
        return cart_schema_complain(k, calls->only != NULL ? calls->only : "", "no such tool");
    *rule = cart_grammar_rule(k->c);
    cart_grammar_define(k->c, *rule, cart_grammar_marked(k->c, calls->open, any));
    return 0;
}

int cart_constraint_tools(struct cart_constraint **out, const struct cart_lexicon *l,
                          const struct cart_constraint_calls *calls, const char *what,
                          struct cart_err *err)
{
    struct cart_schema k;
    uint32_t call = 0;
    uint32_t rule = 0;
    int r = cart_schema_start(&k, l, calls->tools, what, err);

    if (r < 0)
        return r;
    r = any_call(&k, calls, &call);
    if (r == 0) {
        uint32_t most =
            (uint32_t)(calls->most < CART_SCHEMA_REPEAT_MAX ? calls->most : CART_SCHEMA_REPEAT_MAX);
        uint32_t again = cart_grammar_rule(k.c);
        cart_grammar_define(k.c, again,
                            cart_grammar_marked(k.c, calls->separator,
                                                cart_grammar_call(k.c, call, CART_GRAMMAR_RETURN)));
        uint32_t rest =
            cart_grammar_repeat(k.c, again, 0, most > 0 ? most - 1 : 0, CART_GRAMMAR_RETURN);
        rule = cart_grammar_rule(k.c);
        cart_grammar_define(k.c, rule, cart_grammar_call(k.c, call, rest));
    }
    return cart_schema_end(&k, r, rule, out);
}
