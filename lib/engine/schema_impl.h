/* From JSON schemas to grammars: the pieces of JSON that schema.c puts together. Internal to the
 * room. */
#ifndef CART_ENGINE_SCHEMA_IMPL_H
#define CART_ENGINE_SCHEMA_IMPL_H

#include "engine/grammar_impl.h"

#define CART_SCHEMA_DIGITS                                                                         \
    15 /* of an integer; also after the point: every number is exact enough as f64 */

/* Rules that every schema shares, made once for a grammar. */
struct cart_json_rules {
    uint32_t space;     /* nothing, one space, or a line break and up to 40 spaces */
    uint32_t character; /* one character of a string, escaped or not */
    uint32_t string, number, integer, object, array, value;
};

void cart_json_rules_make(struct cart_json_rules *r, struct cart_constraint *c);

/* Integers lo..hi, |both| < 10^CART_SCHEMA_DIGITS, lo <= hi. */
uint32_t cart_json_integers(struct cart_constraint *c, int64_t lo, int64_t hi, uint32_t next);

/* Numbers lo..hi with at most as many digits after the point, without exponents. */
uint32_t cart_json_decimals(struct cart_constraint *c, int64_t lo, int64_t hi, uint32_t next);

/* A string of that format: date, time, date-time (with an offset), uuid. false: not one of these.
 */
bool cart_json_format(struct cart_constraint *c, const char *name, uint32_t next, uint32_t *node);

/* A string of least to most characters (SIZE_MAX: any number). */
uint32_t cart_json_string_sized(struct cart_constraint *c, const struct cart_json_rules *r,
                                size_t least, size_t most, uint32_t next);

/* One character beyond ASCII: no surrogates, nothing too long, nothing beyond U+10FFFF. */
uint32_t cart_json_multibyte(struct cart_constraint *c, uint32_t next);

/* A sequence "first (separator again)*" of least to most (SIZE_MAX: any) elements, each a call of
 * rule element. */
uint32_t cart_json_sequence(struct cart_constraint *c, const struct cart_json_rules *r,
                            uint32_t element, size_t least, size_t most, uint32_t next);

/* ws "," ws; ws ":" ws. */
uint32_t cart_json_comma(struct cart_constraint *c, const struct cart_json_rules *r, uint32_t next);
uint32_t cart_json_colon(struct cart_constraint *c, const struct cart_json_rules *r, uint32_t next);

/* ---- the compiler (schema.c) ---- */

/* What a schema may have; counted before any of it is compiled (schema_limits.c), wherever in the
 * document it stands. Everything that is then done is linear in these, or spends of a stock. */
#define CART_SCHEMA_PROPERTIES_MAX ((size_t)5000)
#define CART_SCHEMA_REQUIRED_MAX ((size_t)5000)
#define CART_SCHEMA_CONSTANTS_MAX ((size_t)5000) /* values of enum */
#define CART_SCHEMA_BRANCHES_MAX ((size_t)1000)  /* of anyOf, oneOf, allOf, prefixItems */
#define CART_SCHEMA_BYTES_MAX ((size_t)120000)   /* of names of properties, and constants */
#define CART_SCHEMA_DEPTH_MAX 64
#define CART_SCHEMA_REPEAT_MAX ((size_t)10000) /* minItems, maxLength and the like */
#define CART_SCHEMA_WORK_MAX ((size_t)1 << 20) /* comparisons of branches, steps of references */

struct cart_schema_rule {
    const json_t *schema;
    uint32_t rule;
};

/* A rule made for one of several equal pieces. */
struct cart_schema_piece {
    const char *format; /* a string's, or NULL: numbers lo to hi */
    int64_t lo, hi;
    bool integer;
    uint32_t rule;
};

struct cart_schema {
    struct cart_constraint *c;
    struct cart_json_rules json;
    const json_t *root;
    struct cart_schema_rule *made; /* [made_cap] by hash: schemas that have a rule, or are being
                                      made into one */
    size_t n_made, made_cap;
    struct cart_schema_piece *pieces;
    size_t n_pieces, pieces_cap;
    size_t work;          /* of CART_SCHEMA_WORK_MAX */
    struct cart_buf path; /* "properties.age" */
    const char *what;
    int depth;
    struct cart_err *err;
};

enum cart_schema_type {
    CART_TYPE_OBJECT = 1,
    CART_TYPE_ARRAY = 2,
    CART_TYPE_STRING = 4,
    CART_TYPE_NUMBER = 8,
    CART_TYPE_INTEGER = 16,
    CART_TYPE_BOOLEAN = 32,
    CART_TYPE_NULL = 64,
    CART_TYPE_ALL = 127,
};

int cart_schema_start(struct cart_schema *k, const struct cart_lexicon *l, const json_t *root,
                      const char *what, struct cart_err *err) CART_MUST_USE;
/* r: what became of it so far; on success *out is the constraint of the rule. Releases k. */
int cart_schema_end(struct cart_schema *k, int r, uint32_t rule,
                    struct cart_constraint **out) CART_MUST_USE;

/* CART_EFORMAT, naming the place. */
int cart_schema_complain(struct cart_schema *k, const char *key, const char *why);
int cart_schema_enter(struct cart_schema *k, const char *name, size_t *back) CART_MUST_USE;
void cart_schema_leave(struct cart_schema *k, size_t back);

/* The rule of a schema, made now unless there is one. */
int cart_schema_compile(struct cart_schema *k, const json_t *schema, uint32_t *rule) CART_MUST_USE;
bool cart_schema_is_annotation(const char *key);
int cart_schema_types(struct cart_schema *k, const json_t *schema, int *types) CART_MUST_USE;
/* A whole number within the limit; *out stays where the key is absent. */
int cart_schema_count(struct cart_schema *k, const json_t *schema, const char *key,
                      size_t *out) CART_MUST_USE;

/* No part of the document is too much: CART_EFORMAT names the limit. */
int cart_schema_measure(struct cart_schema *k, const json_t *document) CART_MUST_USE;
int cart_schema_spend(struct cart_schema *k, size_t work) CART_MUST_USE;

/* Where a chain of references leads to, or *out NULL. */
int cart_schema_resolve(struct cart_schema *k, const json_t *schema,
                        const json_t **out) CART_MUST_USE;
/* No value matches two of the branches, as far as types and constants tell. */
int cart_schema_exclusive(struct cart_schema *k, const json_t *branches) CART_MUST_USE;

/* What follows of a key, quote included, that is none of names [n], which are sorted; without
 * escapes. */
int cart_schema_other_key(struct cart_schema *k, const char *const *names, size_t n, uint32_t next,
                          uint32_t *node) CART_MUST_USE;

/* Nodes of values (schema_values.c, schema_object.c): *node leads from the value's first byte to a
 * return. */
int cart_schema_constants(struct cart_schema *k, const json_t *schema,
                          uint32_t *node) CART_MUST_USE;
int cart_schema_number(struct cart_schema *k, const json_t *schema, bool integer,
                       uint32_t *node) CART_MUST_USE;
int cart_schema_string(struct cart_schema *k, const json_t *schema, uint32_t *node) CART_MUST_USE;
int cart_schema_array(struct cart_schema *k, const json_t *schema, uint32_t *node) CART_MUST_USE;
int cart_schema_object(struct cart_schema *k, const json_t *schema, uint32_t *node) CART_MUST_USE;

#endif
