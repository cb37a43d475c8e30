/* Objects of a schema: named members in order, and others. */
#include "engine/schema_impl.h"

#include <stdlib.h>
#include <string.h>

struct member {
    const char *name;
    uint32_t body; /* rule: key, colon, value */
    bool required;
};

struct members {
    struct member *list;
    size_t n, cap;
};

static int member_add(struct cart_schema *k, struct members *m, const char *name,
                      const json_t *schema, bool required)
{
    struct cart_buf key = CART_BUF_INIT;
    json_t *text = json_string(name);
    uint32_t value;
    size_t back;
    int r = cart_array_reserve(&m->list, &m->cap, m->n + 1, sizeof *m->list, k->err);

    if (r == 0)
        r = text != NULL ? cart_json_dump(text, &key, k->err)
                         : cart_err_memory(k->err, "a schema", 0);
    json_decref(text);
    if (r == 0 && (r = cart_schema_enter(k, name, &back)) == 0) {
        r = cart_schema_compile(k, schema, &value);
        cart_schema_leave(k, back);
    }
    if (r == 0) {
        uint32_t body = cart_grammar_rule(k->c);
        uint32_t after =
            cart_json_colon(k->c, &k->json, cart_grammar_call(k->c, value, CART_GRAMMAR_RETURN));
        cart_grammar_define(k->c, body, cart_grammar_text(k->c, key.data, key.len, after));
        m->list[m->n++] = (struct member){name, body, required};
    }
    cart_buf_release(&key);
    return r;
}

static int collect(struct cart_schema *k, const json_t *schema, const json_t *others,
                   struct members *m)
{
    const json_t *required = json_object_get(schema, "required");
    json_t *properties = json_object_get(schema, "properties");
    const json_t *v;
    json_t *value;
    const char *key;
    size_t back;
    size_t i;
    int r = 0;

    if (properties != NULL && !json_is_object(properties))
        return cart_schema_complain(k, "properties", "expected an object");
    if (required != NULL && !json_is_array(required))
        return cart_schema_complain(k, "required", "expected an array");
    if ((r = cart_schema_enter(k, "properties", &back)) < 0)
        return r;
    json_object_foreach(properties, key, value) {
        if (r == 0)
            r = member_add(k, m, key, value, cart_schema_requires(required, key));
    }
    cart_schema_leave(k, back);
    json_array_foreach(required, i, v) {
        if (r < 0)
            return r;
        const char *name = cart_json_word(v);
        if (name == NULL)
            return cart_schema_complain(k, "required", "expected names");
        if (json_object_get(properties, name) != NULL)
            continue;
        if (json_is_false(others))
            return cart_schema_complain(
                k, "required", "a name that neither properties nor additionalProperties allow");
        json_t *any = others == NULL ? json_true() : NULL;
        r = member_add(k, m, name, any != NULL ? any : others, true);
    }
    return r;
}

static int by_name(const void *a, const void *b)
{
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

/* A rule for one member that has none of the names. */
static int other_member(struct cart_schema *k, const struct members *m, const json_t *others,
                        uint32_t *rule)
{
    uint32_t value = k->json.value;
    size_t back;
    int r = 0;

    if (json_is_object(others) && (r = cart_schema_enter(k, "additionalProperties", &back)) == 0) {
        r = cart_schema_compile(k, others, &value);
        cart_schema_leave(k, back);
    }
    if (r < 0)
        return r;
    uint32_t after =
        cart_json_colon(k->c, &k->json, cart_grammar_call(k->c, value, CART_GRAMMAR_RETURN));
    *rule = cart_grammar_rule(k->c);
    if (m->n == 0) {
        cart_grammar_define(k->c, *rule, cart_grammar_call(k->c, k->json.string, after));
        return 0;
    }
    const char **names = malloc(m->n * sizeof *names);
    if (names == NULL)
        return cart_err_memory(k->err, "a schema", 0);
    for (size_t i = 0; i < m->n; i++)
        names[i] = m->list[i].name;
    qsort(names, m->n, sizeof *names, by_name);
    uint32_t key = cart_json_other_key(k->c, names, m->n, 0, after);
    cart_grammar_define(k->c, *rule, cart_grammar_text(k->c, "\"", 1, key));
    free(names);
    return 0;
}

/* Members in the order of the schema. Two ways run side by side: nothing has been written yet, and
 * something has, which asks for a comma before the next. */
static uint32_t chain(struct cart_schema *k, const struct members *m, uint32_t fresh,
                      uint32_t written)
{
    for (size_t i = m->n; i > 0; i--) {
        const struct member *x = &m->list[i - 1];
        uint32_t first = cart_grammar_call(k->c, x->body, written);
        uint32_t later = cart_json_comma(k->c, &k->json, cart_grammar_call(k->c, x->body, written));
        fresh = x->required ? first : cart_grammar_either(k->c, first, fresh);
        written = x->required ? later : cart_grammar_either(k->c, later, written);
    }
    return fresh;
}

int cart_schema_object(struct cart_schema *k, const json_t *schema, uint32_t *node)
{
    const json_t *others = json_object_get(schema, "additionalProperties");
    struct members m = {NULL, 0, 0};
    size_t least = 0;
    size_t most = SIZE_MAX;
    uint32_t close = cart_grammar_call(k->c, k->json.space,
                                       cart_grammar_text(k->c, "}", 1, CART_GRAMMAR_RETURN));
    uint32_t fresh = close;
    uint32_t written = close;
    int r;

    if (others != NULL && !json_is_boolean(others) && !json_is_object(others))
        return cart_schema_complain(k, "additionalProperties", "expected a schema");
    if ((r = collect(k, schema, others, &m)) < 0 ||
        (r = cart_schema_count(k, schema, "minProperties", &least)) < 0 ||
        (r = cart_schema_count(k, schema, "maxProperties", &most)) < 0)
        goto out;
    if (m.n > 0 && (least > 0 || most != SIZE_MAX)) {
        r = cart_schema_complain(k, least > 0 ? "minProperties" : "maxProperties",
                                 "not supported beside properties");
        goto out;
    }
    if ((others == NULL && m.n == 0) || (others != NULL && !json_is_false(others))) {
        uint32_t other;
        if ((r = other_member(k, &m, others, &other)) < 0)
            goto out;
        fresh = cart_json_sequence(k->c, &k->json, other, least, most, close);
        uint32_t loop = cart_grammar_loop(k->c);
        cart_grammar_close(k->c, loop,
                           cart_json_comma(k->c, &k->json, cart_grammar_call(k->c, other, loop)),
                           close);
        written = loop;
    }
    uint32_t inside = chain(k, &m, fresh, written);
    *node = cart_grammar_text(k->c, "{", 1, cart_grammar_call(k->c, k->json.space, inside));
out:
    free(m.list);
    return r;
}
