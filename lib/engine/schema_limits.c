/* What a schema may have, counted before it is compiled. */
#include "engine/schema_impl.h"

#include <string.h>

#define CONSTANT_BYTES ((size_t)24) /* of a number or a word */

struct measure {
    struct cart_schema *k;
    size_t properties, required, constants, branches, bytes;
};

static bool is_branches(const char *key)
{
    return strcmp(key, "anyOf") == 0 || strcmp(key, "oneOf") == 0 || strcmp(key, "allOf") == 0 ||
           strcmp(key, "prefixItems") == 0;
}

static bool is_constant(const char *key)
{
    return strcmp(key, "enum") == 0 || strcmp(key, "const") == 0;
}

static int check(const struct measure *m)
{
    const struct {
        size_t n, most;
        const char *what;
    } limits[] = {
        {m->properties, CART_SCHEMA_PROPERTIES_MAX, "properties"},
        {m->required, CART_SCHEMA_REQUIRED_MAX, "names that are required"},
        {m->constants, CART_SCHEMA_CONSTANTS_MAX, "values of enum"},
        {m->branches, CART_SCHEMA_BRANCHES_MAX, "branches of anyOf, oneOf, allOf and prefixItems"},
        {m->bytes, CART_SCHEMA_BYTES_MAX, "bytes of names and constants"},
    };

    for (size_t i = 0; i < CART_COUNTOF(limits); i++) {
        if (limits[i].n > limits[i].most)
            return cart_err_set(m->k->err, CART_EFORMAT, "%s: expected at most %zu %s, found more",
                                m->k->what, limits[i].most, limits[i].what);
    }
    return 0;
}

/* A reference may lead anywhere, so that everything is counted by its key, wherever it stands.
 * constant: within a value that is written as it is. */
static int walk(struct measure *m, const json_t *v, bool constant, int depth)
{
    const char *key;
    json_t *member;
    size_t i;
    int r = check(m);

    if (r == 0 && depth > CART_JSON_DEPTH)
        r = cart_err_set(m->k->err, CART_EFORMAT, "%s: expected to be nested at most %d deep",
                         m->k->what, CART_JSON_DEPTH);
    if (r < 0)
        return r;
    if (constant)
        m->bytes += json_is_string(v) ? json_string_length(v) : CONSTANT_BYTES;
    json_array_foreach(v, i, member) {
        if ((r = walk(m, member, constant, depth + 1)) < 0)
            return r;
    }
    json_object_foreach((json_t *)v, key, member) {
        const char *name;
        json_t *named;
        m->bytes += constant ? strlen(key) : 0;
        m->branches += is_branches(key) ? json_array_size(member) : 0;
        m->constants += strcmp(key, "enum") == 0 ? json_array_size(member) : 0;
        m->required += strcmp(key, "required") == 0 ? json_array_size(member) : 0;
        if (strcmp(key, "properties") == 0) {
            m->properties += json_object_size(member);
            json_object_foreach(member, name, named)
                m->bytes += strlen(name);
        }
        if ((r = walk(m, member, constant || is_constant(key), depth + 1)) < 0)
            return r;
    }
    return check(m);
}

int cart_schema_measure(struct cart_schema *k, const json_t *document)
{
    struct measure m = {.k = k};

    return document != NULL ? walk(&m, document, false, 0) : 0;
}

int cart_schema_spend(struct cart_schema *k, size_t work)
{
    if (work > CART_SCHEMA_WORK_MAX - k->work) {
        k->work = CART_SCHEMA_WORK_MAX;
        return cart_err_set(
            k->err, CART_EFORMAT,
            "%s: expected branches and references that take at most %zu comparisons, found more",
            k->what, CART_SCHEMA_WORK_MAX);
    }
    k->work += work;
    return 0;
}
