/* References, and branches of which no value matches two. */
#include "engine/schema_impl.h"

#include <stdlib.h>
#include <string.h>

/* ---- references ---- */

/* The value at a path of names, or NULL. Behind another $id the names would be those of another
 * document. */
static const json_t *look_up(const json_t *root, const char *path)
{
    const json_t *at = root;

    while (*path == '/' && at != NULL) {
        if (at != root && json_is_string(json_object_get(at, "$id")))
            return NULL;
        char name[256];
        size_t n = 0;
        for (path++; *path != '\0' && *path != '/' && n + 1 < sizeof name; path++) {
            bool escape = *path == '~' && (path[1] == '0' || path[1] == '1');
            name[n++] = escape ? (path[1] == '0' ? '~' : '/') : *path;
            path += escape;
        }
        name[n] = '\0';
        char *end;
        unsigned long index = strtoul(name, &end, 10);
        at = json_is_array(at) ? (*end == '\0' && n > 0 ? json_array_get(at, index) : NULL)
                               : json_object_get(at, name);
    }
    return *path == '\0' ? at : NULL;
}

int cart_schema_resolve(struct cart_schema *k, const json_t *schema, const json_t **out)
{
    *out = NULL;
    for (int hops = 0; hops < CART_SCHEMA_DEPTH_MAX && schema != NULL; hops++) {
        const json_t *v = json_object_get(schema, "$ref");
        const char *ref = cart_json_word(v);
        if (v == NULL) {
            *out = schema;
            return 0;
        }
        int r = ref != NULL ? cart_schema_spend(k, 1 + strlen(ref) / 16) : 0;
        if (r < 0)
            return r;
        /* Names in percent-encoding are not decoded, so none is looked up. */
        bool plain = ref != NULL && ref[0] == '#' && strchr(ref, '%') == NULL;
        schema = plain ? look_up(k->root, ref + 1) : NULL;
    }
    return 0;
}

/* ---- branches ---- */

/* As schemas compare: 1 and 1.0 are one number. */
static bool same_value(const json_t *a, const json_t *b)
{
    const char *key;
    json_t *v;
    size_t i;

    if (json_is_number(a) && json_is_number(b) && !(json_is_integer(a) && json_is_integer(b)))
        return json_number_value(a) == json_number_value(b);
    if (json_typeof(a) != json_typeof(b) || json_array_size(a) != json_array_size(b) ||
        json_object_size(a) != json_object_size(b))
        return false;
    if (!json_is_array(a) && !json_is_object(a))
        return json_equal(a, b);
    json_array_foreach(a, i, v) {
        if (!same_value(v, json_array_get(b, i)))
            return false;
    }
    json_object_foreach((json_t *)a, key, v) {
        const json_t *w = json_object_get(b, key);
        if (w == NULL || !same_value(v, w))
            return false;
    }
    return true;
}

static bool listed(const json_t *schema, const json_t *v)
{
    const json_t *one = json_object_get(schema, "const");
    const json_t *list = json_object_get(schema, "enum");
    size_t i;

    if (one != NULL)
        return same_value(one, v);
    json_array_foreach(list, i, one) {
        if (same_value(one, v))
            return true;
    }
    return false;
}

/* 1: both name their values, and have none in common. */
static int constants_differ(struct cart_schema *k, const json_t *a, const json_t *b)
{
    const json_t *one = json_object_get(a, "const");
    const json_t *list = json_object_get(a, "enum");
    const json_t *others = json_object_get(b, "enum");
    bool named = json_object_get(b, "const") != NULL || others != NULL;
    size_t i;

    if (!named || (one == NULL && list == NULL))
        return 0;
    int r = cart_schema_spend(k, (1 + json_array_size(list)) * (1 + json_array_size(others)));
    if (r < 0)
        return r;
    if (one != NULL)
        return !listed(b, one);
    json_array_foreach(list, i, one) {
        if (listed(b, one))
            return 0;
    }
    return 1;
}

static bool requires(const json_t *schema, const char *name)
{
    const json_t *v;
    size_t i;

    json_array_foreach(json_object_get(schema, "required"), i, v) {
        if (cart_json_word(v) != NULL && strcmp(cart_json_word(v), name) == 0)
            return true;
    }
    return false;
}

static int property(struct cart_schema *k, const json_t *schema, const char *name,
                    const json_t **out)
{
    const json_t *p = json_object_get(json_object_get(schema, "properties"), name);

    *out = NULL;
    return p != NULL ? cart_schema_resolve(k, p, out) : 0;
}

/* 1: two objects that both must have a property, which tells them apart by its constants. */
static int members_differ(struct cart_schema *k, const json_t *a, const json_t *b)
{
    const json_t *required = json_object_get(a, "required");
    const json_t *v;
    size_t i;
    int r = 0;

    json_array_foreach(required, i, v) {
        const char *name = cart_json_word(v);
        const json_t *p;
        const json_t *q;
        if (name == NULL)
            continue;
        if ((r = cart_schema_spend(k, 1 + json_array_size(json_object_get(b, "required")))) < 0 ||
            (r = property(k, a, name, &p)) < 0 || (r = property(k, b, name, &q)) < 0)
            return r;
        if (p != NULL && q != NULL && requires(b, name) && (r = constants_differ(k, p, q)) != 0)
            return r;
    }
    return 0;
}

struct branch {
    const json_t *schema; /* resolved, or NULL: nothing is known of it */
    int types;            /* that a value which matches may have */
    bool objects;         /* the answers that are made of it are objects */
};

/* 1: no value matches both. */
static int differ(struct cart_schema *k, const struct branch *a, const struct branch *b)
{
    int r = cart_schema_spend(k, 1);

    if (r < 0 || a->schema == NULL || b->schema == NULL)
        return r;
    if ((r = constants_differ(k, a->schema, b->schema)) != 0)
        return r;
    if ((a->types & b->types) == 0)
        return 1;
    return a->objects && b->objects ? members_differ(k, a->schema, b->schema) : 0;
}

/* Keywords imply a type of the answers, but what they do not speak of matches too. Types that are
 * malformed tell nothing: who compiles the branch complains. */
static int read_branch(struct cart_schema *k, const json_t *schema, struct branch *b)
{
    struct cart_schema quiet = *k;
    int r = cart_schema_resolve(k, schema, &b->schema);

    quiet.err = NULL;
    int made;

    b->types = CART_TYPE_ALL;
    if (r < 0 || b->schema == NULL || cart_schema_types(&quiet, b->schema, &made) < 0)
        return r;
    b->objects = made == CART_TYPE_OBJECT;
    if (json_object_get(b->schema, "type") != NULL)
        b->types = made & CART_TYPE_NUMBER ? made | CART_TYPE_INTEGER : made;
    return 0;
}

int cart_schema_exclusive(struct cart_schema *k, const json_t *branches)
{
    size_t n = json_array_size(branches);
    struct branch *list = calloc(n + 1, sizeof *list);
    int r = 0;

    if (list == NULL)
        return cart_err_memory(k->err, "a schema", n * sizeof *list);
    for (size_t i = 0; i < n && r == 0; i++)
        r = read_branch(k, json_array_get(branches, i), &list[i]);
    for (size_t i = 0; i < n && r >= 0; i++) {
        for (size_t j = i + 1; j < n && r >= 0; j++) {
            if ((r = differ(k, &list[i], &list[j])) == 0)
                r = cart_schema_complain(
                    k, "oneOf",
                    "supported where the branches differ by type or by constants; use anyOf");
        }
    }
    free(list);
    return r < 0 ? r : 0;
}
