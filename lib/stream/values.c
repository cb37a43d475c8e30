#include "stream/values.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define TEXT 40 /* the longest value with its NUL */

static bool is_real(enum cart_st_dtype d)
{
    return d == CART_ST_F32 || d == CART_ST_F16 || d == CART_ST_BF16 || d == CART_ST_F64;
}

/* The bits of one value, in the low bytes. */
static uint64_t load_bits(enum cart_st_dtype d, const unsigned char *p)
{
    uint64_t bits = 0;

    for (size_t i = cart_st_dtype_size(d); i-- > 0;)
        bits = bits << 8 | p[i];
    return bits;
}

static float float_of_bits(uint32_t bits)
{
    float x;

    memcpy(&x, &bits, sizeof x);
    return x;
}

static double half_value(unsigned h)
{
    int e = h >> 10 & 31;
    double m = h & 1023;

    if (e == 31)
        m = m != 0 ? NAN : INFINITY;
    else
        m = e == 0 ? ldexp(m, -24) : ldexp(m + 1024, e - 25);
    return h & 0x8000 ? -m : m;
}

static double real_of_bits(enum cart_st_dtype d, uint64_t bits)
{
    double x;

    if (d == CART_ST_F16)
        return half_value((unsigned)bits);
    if (d == CART_ST_BF16)
        return float_of_bits((uint32_t)bits << 16);
    if (d == CART_ST_F32)
        return float_of_bits((uint32_t)bits);
    memcpy(&x, &bits, sizeof x);
    return x;
}

/* The whole number that bits stand for: sign-extended, or as it is. */
static int64_t whole_of_bits(enum cart_st_dtype d, uint64_t bits)
{
    switch (d) {
    case CART_ST_I8:
        return (int8_t)bits;
    case CART_ST_I16:
        return (int16_t)bits;
    case CART_ST_I32:
        return (int32_t)bits;
    default:
        return (int64_t)bits;
    }
}

static unsigned half_of(double x)
{
    unsigned sign = signbit(x) ? 0x8000 : 0;
    double a = fabs(x);
    int e;

    if (a == 0)
        return sign;
    frexp(a, &e);
    /* Steps of the half's last place: 2^-24 among the subnormals, else 11 significant bits. */
    int place = e - 11 < -24 ? -24 : e - 11;
    double steps = nearbyint(ldexp(a, -place));
    if (ldexp(steps, place) >= 65536)
        return sign | 0x7c00;
    if (steps < 1024)
        return sign | (unsigned)steps;
    if (steps == 2048) {
        steps = 1024;
        place++;
    }
    return sign | ((unsigned)(place + 25) << 10) | ((unsigned)steps - 1024);
}

static uint32_t bits_of_float(float x)
{
    uint32_t bits;

    memcpy(&bits, &x, sizeof bits);
    return bits;
}

static uint64_t bits_of_real(enum cart_st_dtype d, double x)
{
    uint64_t bits;

    if (d == CART_ST_F16)
        return half_of(x);
    if (d == CART_ST_F32)
        return bits_of_float((float)x);
    if (d == CART_ST_BF16) {
        float near = (float)x;
        uint32_t f = bits_of_float(near);
        /* Rounded once: what the float made a tie still lies on its own side. */
        if ((f & 0xffff) == 0x8000 && (double)near != x)
            f += fabs(x) > fabs((double)near) ? 1u : -1u;
        return (uint32_t)(f + 0x7fff + (f >> 16 & 1)) >> 16;
    }
    memcpy(&bits, &x, sizeof bits);
    return bits;
}

static void print_real(char out[TEXT], enum cart_st_dtype d, uint64_t bits)
{
    double x = real_of_bits(d, bits);
    int digits = d == CART_ST_F64 ? 15 : d == CART_ST_F32 ? 7 : d == CART_ST_F16 ? 4 : 3;

    if (isnan(x)) {
        snprintf(out, TEXT, "\"NaN:%0*" PRIx64 "\"", (int)(2 * cart_st_dtype_size(d)), bits);
        return;
    }
    if (isinf(x)) {
        snprintf(out, TEXT, x > 0 ? "\"Infinity\"" : "\"-Infinity\"");
        return;
    }
    if (x == 0) {
        snprintf(out, TEXT, signbit(x) ? "-0.0" : "0");
        return;
    }
    do
        snprintf(out, TEXT, "%.*g", digits++, x);
    while (bits_of_real(d, strtod(out, NULL)) != bits);
}

static void print_value(char out[TEXT], enum cart_st_dtype d, const unsigned char *p)
{
    uint64_t bits = load_bits(d, p);

    if (is_real(d))
        print_real(out, d, bits);
    else if (d == CART_ST_U64 && bits > INT64_MAX)
        snprintf(out, TEXT, "\"%" PRIu64 "\"", bits);
    else
        snprintf(out, TEXT, "%" PRId64, whole_of_bits(d, bits));
}

static int print_level(const struct cart_st_tensor *t, size_t level, const unsigned char **p,
                       struct cart_buf *b, struct cart_err *err)
{
    char text[TEXT];
    int r;

    if (level == t->rank) {
        print_value(text, t->dtype, *p);
        *p += cart_st_dtype_size(t->dtype);
        return cart_buf_add(b, text, strlen(text), err);
    }
    if ((r = cart_buf_add(b, "[", 1, err)) < 0)
        return r;
    for (size_t i = 0; i < t->shape[level]; i++)
        if ((i > 0 && (r = cart_buf_add(b, ",", 1, err)) < 0) ||
            (r = print_level(t, level + 1, p, b, err)) < 0)
            return r;
    return cart_buf_add(b, "]", 1, err);
}

/* An empty tensor may have huge dimensions before the zero one: nothing may loop over those. */
static bool has_zero(const struct cart_st_tensor *t)
{
    for (size_t i = 0; i < t->rank; i++)
        if (t->shape[i] == 0)
            return true;
    return false;
}

int cart_values_print(const struct cart_st_tensor *t, struct cart_buf *b, struct cart_err *err)
{
    const unsigned char *p = t->data;

    if (has_zero(t))
        return cart_buf_add(b, "[]", 2, err);
    return print_level(t, 0, &p, b, err);
}

static bool parse_real_text(enum cart_st_dtype d, const char *s, uint64_t *bits)
{
    char *end;

    if (strcmp(s, "Infinity") == 0 || strcmp(s, "-Infinity") == 0) {
        *bits = bits_of_real(d, s[0] == '-' ? -INFINITY : INFINITY);
        return true;
    }
    if (strncmp(s, "NaN:", 4) != 0 || strlen(s) != 4 + 2 * cart_st_dtype_size(d) ||
        strspn(s + 4, "0123456789abcdef") != strlen(s + 4))
        return false;
    *bits = strtoull(s + 4, &end, 16);
    return isnan(real_of_bits(d, *bits));
}

static bool parse_whole_text(enum cart_st_dtype d, const char *s, uint64_t *bits)
{
    char *end;

    if (d != CART_ST_U64 || s[0] < '1' || s[0] > '9')
        return false;
    errno = 0;
    *bits = strtoull(s, &end, 10);
    return errno == 0 && *end == '\0';
}

static bool parse_value(enum cart_st_dtype d, const json_t *v, uint64_t *bits)
{
    static const int64_t least[] = {[CART_ST_I64] = INT64_MIN,
                                    [CART_ST_I32] = INT32_MIN,
                                    [CART_ST_I16] = INT16_MIN,
                                    [CART_ST_I8] = INT8_MIN,
                                    [CART_ST_BOOL] = 0};
    static const int64_t most[] = {
        [CART_ST_I64] = INT64_MAX,  [CART_ST_I32] = INT32_MAX, [CART_ST_I16] = INT16_MAX,
        [CART_ST_I8] = INT8_MAX,    [CART_ST_U64] = INT64_MAX, [CART_ST_U32] = UINT32_MAX,
        [CART_ST_U16] = UINT16_MAX, [CART_ST_U8] = UINT8_MAX,  [CART_ST_BOOL] = UINT8_MAX};

    if (is_real(d)) {
        if (json_is_string(v))
            return parse_real_text(d, json_string_value(v), bits);
        if (!json_is_number(v))
            return false;
        *bits = bits_of_real(d, json_number_value(v));
        return isfinite(real_of_bits(d, *bits));
    }
    if (json_is_string(v))
        return parse_whole_text(d, json_string_value(v), bits);
    if (!json_is_integer(v))
        return false;
    int64_t i = json_integer_value(v);
    *bits = (uint64_t)i;
    return i >= least[d] && i <= most[d];
}

static int parse_level(const struct cart_st_tensor *t, size_t level, const json_t *v,
                       struct cart_buf *b, const char *what, struct cart_err *err)
{
    int r;

    if (level == t->rank) {
        unsigned char bytes[8];
        uint64_t bits;
        if (!parse_value(t->dtype, v, &bits))
            return cart_err_set(err, CART_EFORMAT, "%s: tensor %s: a value is not one of %s", what,
                                t->name, cart_st_dtype_name(t->dtype));
        for (size_t i = 0; i < sizeof bytes; i++)
            bytes[i] = (unsigned char)(bits >> (8 * i));
        return cart_buf_add(b, bytes, cart_st_dtype_size(t->dtype), err);
    }
    if (!json_is_array(v) || json_array_size(v) != t->shape[level])
        return cart_err_set(err, CART_EFORMAT,
                            "%s: tensor %s: dimension %zu: expected an array of %zu, found %s%zu",
                            what, t->name, level, t->shape[level],
                            json_is_array(v) ? "" : "no array but ", json_array_size(v));
    for (size_t i = 0; i < t->shape[level]; i++)
        if ((r = parse_level(t, level + 1, json_array_get(v, i), b, what, err)) < 0)
            return r;
    return 0;
}

int cart_values_parse(struct cart_st_tensor *t, bool free_first, const json_t *v,
                      struct cart_buf *b, const char *what, struct cart_err *err)
{
    size_t start = b->len;
    int r;

    if (free_first)
        t->shape[0] = json_array_size(v);
    t->bytes = 0;
    if (has_zero(t)) {
        if (!json_is_array(v) || json_array_size(v) != 0)
            return cart_err_set(err, CART_EFORMAT, "%s: tensor %s: expected an empty array", what,
                                t->name);
        return 0;
    }
    if ((r = parse_level(t, 0, v, b, what, err)) < 0)
        return r;
    t->bytes = b->len - start;
    return 0;
}

static bool less(enum cart_st_dtype d, uint64_t a, uint64_t b)
{
    if (is_real(d))
        return real_of_bits(d, a) < real_of_bits(d, b);
    return d == CART_ST_U64 ? a < b : whole_of_bits(d, a) < whole_of_bits(d, b);
}

int cart_values_range(const struct cart_st_tensor *t, json_t **least, json_t **greatest,
                      bool *finite, struct cart_err *err)
{
    const size_t size = cart_st_dtype_size(t->dtype);
    const unsigned char *p = t->data, *low = NULL, *high = NULL;
    char text[2][TEXT] = {"null", "null"};
    int r;

    *finite = true;
    for (size_t at = 0; at < t->bytes; at += size) {
        uint64_t bits = load_bits(t->dtype, p + at);
        if (is_real(t->dtype) && !isfinite(real_of_bits(t->dtype, bits))) {
            *finite = false;
            continue;
        }
        if (low == NULL || less(t->dtype, bits, load_bits(t->dtype, low)))
            low = p + at;
        if (high == NULL || less(t->dtype, load_bits(t->dtype, high), bits))
            high = p + at;
    }
    if (low != NULL) {
        print_value(text[0], t->dtype, low);
        print_value(text[1], t->dtype, high);
    }
    if ((r = cart_json_parse(least, text[0], strlen(text[0]), t->name, err)) < 0)
        return r;
    if ((r = cart_json_parse(greatest, text[1], strlen(text[1]), t->name, err)) < 0)
        json_decref(*least);
    return r;
}
