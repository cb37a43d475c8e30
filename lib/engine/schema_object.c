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

/* The names that are required, as the keys of an object; *names is the caller's to release. */
static int required_names(struct cart_schema *k, const json_t *schema, json_t **names)
{
    const json_t *required = json_object_get(schema, "required");
    const json_t *v;
    size_t i;

    *names = json_object();
    if (*names == NULL)
        return cart_err_memory(k->err, "a schema", 0);
    if (required != NULL && !json_is_array(required))
        return cart_schema_complain(k, "required", "expected an array");
    json_array_foreach(required, i, v) {
        const char *name = cart_json_word(v);
        if (name == NULL)
            return cart_schema_complain(k, "required", "expected names");
        if (json_object_set_new(*names, name, json_true()) < 0)
            return cart_err_memory(k->err, "a schema", 0);
    }
    return 0;
}

static int named_members(struct cart_schema *k, const json_t *schema, const json_t *required,
                         struct members *m)
{
    json_t *properties = json_object_get(schema, "properties");
    const char *key;
    json_t *value;
    size_t back;
    int r = 0;

    if (properties != NULL && !json_is_object(properties))
        return cart_schema_complain(k, "properties", "expected an object");
    if ((r = cart_schema_enter(k, "properties", &back)) < 0)
        return r;
    json_object_foreach(properties, key, value) {
        if (r == 0)
            r = member_add(k, m, key, value, json_object_get(required, key) != NULL);
    }
    cart_schema_leave(k, back);
    return r;
}

/* Those that are required without a schema of their own. */
static int bare_members(struct cart_schema *k, const json_t *schema, json_t *required,
                        const json_t *others, struct members *m)
{
    const json_t *properties = json_object_get(schema, "properties");
    const char *key;
    json_t *value;
    int r = 0;

    json_object_foreach(required, key, value) {
        if (r < 0)
            return r;
        if (json_object_get(properties, key) != NULL)
            continue;
        if (json_is_false(others))
            return cart_schema_complain(
                k, "required", "a name that neither properties nor additionalProperties allow");
        r = member_add(k, m, key, others != NULL ? others : value, true);
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
    uint32_t key = 0;
    r = cart_schema_other_key(k, names, m->n, after, &key);
    cart_grammar_define(k->c, *rule, cart_grammar_text(k->c, "\"", 1, key));
    free(names);
    return r;
}

/* What the members of an object are followed by. */
struct ends {
    uint32_t close; /* the end */
    uint32_t other; /* rule of a member without a name of its own */
    bool others;    /* there may be such */
};

/* Members in the order of the schema, at least one: what stands at the first place. next leads to
 * any of the members that may come now, a comma having gone by where one is needed: every member is
 * in it once, and each place has one comma, so that the grammar grows with the members, not with
 * their pairs. */
static uint32_t chain(struct cart_schema *k, const struct members *m, const struct ends *e)
{
    struct cart_constraint *c = k->c;
    uint32_t written = e->close; /* after a member */
    uint32_t next = CART_GRAMMAR_NOWHERE;
    bool may_end = true;

    if (e->others) {
        written = cart_grammar_loop(c);
        next = cart_grammar_call(c, e->other, written);
        cart_grammar_close(c, written, cart_json_comma(c, &k->json, next), e->close);
    }
    for (size_t i = m->n; i > 0; i--) {
        const struct member *x = &m->list[i - 1];
        uint32_t member = cart_grammar_call(c, x->body, written);
        next = x->required ? member : cart_grammar_either(c, member, next);
        may_end = may_end && !x->required;
        written = cart_json_comma(c, &k->json, next);
        written = may_end ? cart_grammar_either(c, written, e->close) : written;
    }
    return may_end ? cart_grammar_either(c, next, e->close) : next;
}

/* How many members of different names every object has that has any. */
static size_t certain_members(const struct members *m)
{
    size_t n = m->n == 0;

    for (size_t i = 0; i < m->n; i++)
        n += m->list[i].required;
    return n;
}

/* Nodes from behind the brace. */
static int inside(struct cart_schema *k, const json_t *schema, const struct members *m,
                  const json_t *others, uint32_t *node)
{
    struct ends e = {.others = others == NULL ? m->n == 0 : !json_is_false(others)};
    size_t least = 0;
    size_t most = SIZE_MAX;
    int r;

    if ((r = cart_schema_count(k, schema, "minProperties", &least)) < 0 ||
        (r = cart_schema_count(k, schema, "maxProperties", &most)) < 0)
        return r;
    if (m->n > 0 && most != SIZE_MAX)
        return cart_schema_complain(k, "maxProperties", "not supported beside properties");
    if (least > most)
        return cart_schema_complain(k, "minProperties", "more than maxProperties");
    /* Keys that the schema does not name may be equal, and then count once. */
    if (least > certain_members(m))
        return cart_schema_complain(
            k, "minProperties",
            "supported up to the number of names that are required, or 1 where none is known");
    if (e.others && (r = other_member(k, m, others, &e.other)) < 0)
        return r;
    e.close = cart_grammar_call(k->c, k->json.space,
                                cart_grammar_text(k->c, "}", 1, CART_GRAMMAR_RETURN));
    if (m->n > 0)
        *node = chain(k, m, &e);
    else if (e.others)
        *node = cart_json_sequence(k->c, &k->json, e.other, least, most, e.close);
    else if (least > 0)
        return cart_schema_complain(k, "minProperties", "more than the object may have");
    else
        *node = e.close;
    return 0;
}

int cart_schema_object(struct cart_schema *k, const json_t *schema, uint32_t *node)
{
    const json_t *others = json_object_get(schema, "additionalProperties");
    struct members m = {NULL, 0, 0};
    json_t *required = NULL;
    int r;

    if (others != NULL && !json_is_boolean(others) && !json_is_object(others))
        return cart_schema_complain(k, "additionalProperties", "expected a schema");
    if ((r = required_names(k, schema, &required)) == 0 &&
        (r = named_members(k, schema, required, &m)) == 0 &&
        (r = bare_members(k, schema, required, others, &m)) == 0)
        r = inside(k, schema, &m, others, node);
    if (r == 0)
        *node = cart_grammar_text(k->c, "{", 1, cart_grammar_call(k->c, k->json.space, *node));
    free(m.list);
    json_decref(required);
    return r;
}
