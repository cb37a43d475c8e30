/* Typed look-ups in a parsed GGUF file: the caller says which type it wants, and gets that or an
 * error that names the key, what was expected and what is there. */
#include "format/gguf_impl.h"

#include <assert.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

unsigned cart_gguf_version(const struct cart_gguf *g)
{
    return g->version;
}

size_t cart_gguf_alignment(const struct cart_gguf *g)
{
    return g->alignment;
}

size_t cart_gguf_size(const struct cart_gguf *g)
{
    return g->size;
}

const unsigned char *cart_gguf_header(const struct cart_gguf *g, size_t *bytes)
{
    *bytes = g->header_bytes;
    return g->bytes;
}

size_t cart_gguf_n_keys(const struct cart_gguf *g)
{
    return g->n_keys;
}

const struct cart_gguf_key *cart_gguf_key_at(const struct cart_gguf *g, size_t i)
{
    assert(i < g->n_keys);
    return &g->keys[i];
}

size_t cart_gguf_n_tensors(const struct cart_gguf *g)
{
    return g->n_tensors;
}

const struct cart_gguf_tensor *cart_gguf_tensor_at(const struct cart_gguf *g, size_t i)
{
    assert(i < g->n_tensors);
    return &g->tensors[i];
}

/* An integer of any width as an unsigned value; false if it is negative. */
static bool load_unsigned(const unsigned char *p, enum cart_gguf_value type, uint64_t *out)
{
    size_t n = cart_gguf_value_bytes(type);
    uint64_t v = n == 4 ? cart_gguf_load_u32(p) : cart_gguf_load(p, n);
    bool is_signed = type == CART_GGUF_I8 || type == CART_GGUF_I16 || type == CART_GGUF_I32 ||
                     type == CART_GGUF_I64;

    *out = v;
    return !is_signed || (v >> (8 * n - 1)) == 0;
}

static double load_real(const unsigned char *p, enum cart_gguf_value type)
{
    if (type == CART_GGUF_F32) {
        uint32_t bits = (uint32_t)cart_gguf_load(p, 4);
        float f;
        memcpy(&f, &bits, sizeof f);
        return (double)f;
    }
    uint64_t bits = cart_gguf_load(p, 8);
    double d;
    memcpy(&d, &bits, sizeof d);
    return d;
}

static int wrong_type(const struct cart_gguf *g, const char *key, const char *expected,
                      const struct cart_gguf_key *k, struct cart_err *err)
{
    return cart_err_set(err, CART_EFORMAT, "%s: key %s: expected %s, found %s", g->shown, key,
                        expected, cart_gguf_value_name(k->type));
}

/* 1 and *out: found; 0: absent and allowed to be. */
static int look_up(const struct cart_gguf *g, const char *key, bool required, const char *expected,
                   const struct cart_gguf_key **out, struct cart_err *err)
{
    *out = cart_gguf_find(g, key);
    if (*out)
        return 1;
    if (!required)
        return 0;
    return cart_err_set(err, CART_EFORMAT, "%s: key %s: expected %s, found none", g->shown, key,
                        expected);
}

static int get_u64(const struct cart_gguf *g, const char *key, bool required, uint64_t max,
                   uint64_t *out, struct cart_err *err)
{
    const struct cart_gguf_key *k;
    uint64_t v;
    int r = look_up(g, key, required, "an integer", &k, err);

    if (r <= 0)
        return r;
    if (!(CART_GGUF_SET(k->type) & CART_GGUF_SET_INT))
        return wrong_type(g, key, "an integer", k, err);
    if (!load_unsigned(k->value, k->type, &v))
        return cart_err_set(err, CART_EFORMAT,
                            "%s: key %s: expected 0 to %llu, found a negative value", g->shown, key,
                            (unsigned long long)max);
    if (v > max)
        return cart_err_set(err, CART_EFORMAT, "%s: key %s: expected 0 to %llu, found %llu",
                            g->shown, key, (unsigned long long)max, (unsigned long long)v);
    *out = v;
    return 0;
}

int cart_gguf_u64(const struct cart_gguf *g, const char *key, uint64_t max, uint64_t *out,
                  struct cart_err *err)
{
    return get_u64(g, key, true, max, out, err);
}

int cart_gguf_u64_opt(const struct cart_gguf *g, const char *key, uint64_t max, uint64_t *out,
                      struct cart_err *err)
{
    return get_u64(g, key, false, max, out, err);
}

static int get_real(const struct cart_gguf *g, const char *key, bool required, double *out,
                    struct cart_err *err)
{
    const struct cart_gguf_key *k;
    int r = look_up(g, key, required, "f32 or f64", &k, err);

    if (r <= 0)
        return r;
    if (!(CART_GGUF_SET(k->type) & CART_GGUF_SET_REAL))
        return wrong_type(g, key, "f32 or f64", k, err);
    double v = load_real(k->value, k->type);
    if (!isfinite(v))
        return cart_err_set(err, CART_EFORMAT, "%s: key %s: expected a finite number, found %g",
                            g->shown, key, v);
    *out = v;
    return 0;
}

int cart_gguf_real(const struct cart_gguf *g, const char *key, double *out, struct cart_err *err)
{
    return get_real(g, key, true, out, err);
}

int cart_gguf_real_opt(const struct cart_gguf *g, const char *key, double *out,
                       struct cart_err *err)
{
    return get_real(g, key, false, out, err);
}

int cart_gguf_bool_opt(const struct cart_gguf *g, const char *key, bool *out, struct cart_err *err)
{
    const struct cart_gguf_key *k;
    int r = look_up(g, key, false, "bool", &k, err);

    if (r <= 0)
        return r;
    if (k->type != CART_GGUF_BOOL)
        return wrong_type(g, key, "bool", k, err);
    *out = k->value[0] == 1;
    return 0;
}

struct cart_gguf_str cart_gguf_string_next(const unsigned char **cursor)
{
    size_t len = (size_t)cart_gguf_load_u64(*cursor);
    struct cart_gguf_str s = {(const char *)*cursor + 8, len};

    *cursor += 8 + len;
    return s;
}

static int get_string(const struct cart_gguf *g, const char *key, bool required,
                      struct cart_gguf_str *out, struct cart_err *err)
{
    const struct cart_gguf_key *k;
    int r = look_up(g, key, required, "string", &k, err);

    if (r <= 0)
        return r;
    if (k->type != CART_GGUF_STRING)
        return wrong_type(g, key, "string", k, err);
    const unsigned char *cursor = k->value;
    *out = cart_gguf_string_next(&cursor);
    return 0;
}

int cart_gguf_string(const struct cart_gguf *g, const char *key, struct cart_gguf_str *out,
                     struct cart_err *err)
{
    return get_string(g, key, true, out, err);
}

int cart_gguf_string_opt(const struct cart_gguf *g, const char *key, struct cart_gguf_str *out,
                         struct cart_err *err)
{
    return get_string(g, key, false, out, err);
}

/* "array of i32 or u32" for a set of element types. */
static void describe_set(unsigned set, char *out, size_t cap)
{
    size_t used = (size_t)snprintf(out, cap, "array of");

    for (unsigned type = 0, n = 0; type <= CART_GGUF_F64; type++) {
        if (!(set & CART_GGUF_SET(type)) || used >= cap)
            continue;
        used += (size_t)snprintf(out + used, cap - used, "%s %s", n++ ? " or" : "",
                                 cart_gguf_value_name((enum cart_gguf_value)type));
    }
}

static int get_array(const struct cart_gguf *g, const char *key, bool required, unsigned set,
                     struct cart_gguf_array *out, struct cart_err *err)
{
    enum { HEAD = 12 }; /* element type and count before the elements */
    const struct cart_gguf_key *k;
    char expected[128];

    describe_set(set, expected, sizeof expected);
    int r = look_up(g, key, required, expected, &k, err);
    if (r <= 0)
        return r;
    if (k->type != CART_GGUF_ARRAY)
        return wrong_type(g, key, expected, k, err);
    enum cart_gguf_value type = (enum cart_gguf_value)cart_gguf_load(k->value, 4);
    if (!(set & CART_GGUF_SET(type)))
        return cart_err_set(err, CART_EFORMAT, "%s: key %s: expected %s, found array of %s",
                            g->shown, key, expected, cart_gguf_value_name(type));
    *out = (struct cart_gguf_array){type, (size_t)cart_gguf_load(k->value + 4, 8), k->value + HEAD,
                                    k->bytes - HEAD};
    return 0;
}

int cart_gguf_array(const struct cart_gguf *g, const char *key, unsigned set,
                    struct cart_gguf_array *out, struct cart_err *err)
{
    return get_array(g, key, true, set, out, err);
}

int cart_gguf_array_opt(const struct cart_gguf *g, const char *key, unsigned set,
                        struct cart_gguf_array *out, struct cart_err *err)
{
    return get_array(g, key, false, set, out, err);
}

int64_t cart_gguf_array_i64(const struct cart_gguf_array *a, size_t i)
{
    size_t n = cart_gguf_value_bytes(a->type);
    uint64_t v;

    assert(i < a->n);
    assert(CART_GGUF_SET(a->type) & (CART_GGUF_SET_INT | CART_GGUF_SET(CART_GGUF_BOOL)));
    if (load_unsigned(a->data + i * n, a->type, &v))
        return v > INT64_MAX ? INT64_MAX : (int64_t)v;
    /* Sign-extend: the complement of a negative number is small and positive. */
    uint64_t mask = n == 8 ? UINT64_MAX : (UINT64_C(1) << (8 * n)) - 1;
    return -(int64_t)(~v & mask) - 1;
}
