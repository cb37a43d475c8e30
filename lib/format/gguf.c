/* GGUF reader: one pass over the header with a bounds-checked cursor, then a sorted index of names
 * for look-ups and uniqueness. Sorting by (hash, name) costs n log n in the worst case whatever
 * names a file chooses, where a hash table could be driven into quadratic time. The typed look-ups
 * are in gguf_get.c. */
#include "format/gguf.h"

#include "base/sniff.h"
#include "base/buf.h"
#include "base/hash.h"
#include "base/io.h"
#include "format/gguf_impl.h"
#include "format/text.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

enum { KEY_MIN_BYTES = 13, TENSOR_MIN_BYTES = 24, KEY_MAX_NAME = 65535, TENSOR_MAX_NAME = 63 };
enum { ALIGN_DEFAULT = 32, ALIGN_MIN = 8, ALIGN_MAX = 65536 };
#define DIM_MAX (UINT64_C(1) << 48)

/* Smallest and only sizes of fixed values; 0 for strings and arrays. */
static const unsigned char value_bytes[] = {1, 1, 2, 2, 4, 4, 4, 1, 0, 0, 8, 8, 8};
static const char *const value_names[] = {"u8",   "i8",     "u16",   "i16", "u32", "i32", "f32",
                                          "bool", "string", "array", "u64", "i64", "f64"};

static const struct cart_gguf_type tensor_types[] = {
    [0] = {"F32", 1, 4},         [1] = {"F16", 1, 2},         [2] = {"Q4_0", 32, 18},
    [3] = {"Q4_1", 32, 20},      [6] = {"Q5_0", 32, 22},      [7] = {"Q5_1", 32, 24},
    [8] = {"Q8_0", 32, 34},      [9] = {"Q8_1", 32, 36},      [10] = {"Q2_K", 256, 84},
    [11] = {"Q3_K", 256, 110},   [12] = {"Q4_K", 256, 144},   [13] = {"Q5_K", 256, 176},
    [14] = {"Q6_K", 256, 210},   [15] = {"Q8_K", 256, 292},   [16] = {"IQ2_XXS", 256, 66},
    [17] = {"IQ2_XS", 256, 74},  [18] = {"IQ3_XXS", 256, 98}, [19] = {"IQ1_S", 256, 50},
    [20] = {"IQ4_NL", 32, 18},   [21] = {"IQ3_S", 256, 110},  [22] = {"IQ2_S", 256, 82},
    [23] = {"IQ4_XS", 256, 136}, [24] = {"I8", 1, 1},         [25] = {"I16", 1, 2},
    [26] = {"I32", 1, 4},        [27] = {"I64", 1, 8},        [28] = {"F64", 1, 8},
    [29] = {"IQ1_M", 256, 56},   [30] = {"BF16", 1, 2},       [34] = {"TQ1_0", 256, 54},
    [35] = {"TQ2_0", 256, 66},   [39] = {"MXFP4", 32, 17},
};

const struct cart_gguf_type *cart_gguf_tensor_type(int type)
{
    if (type < 0 || (size_t)type >= CART_COUNTOF(tensor_types) || !tensor_types[type].name)
        return NULL;
    return &tensor_types[type];
}

const char *cart_gguf_value_name(enum cart_gguf_value type)
{
    return (size_t)type < CART_COUNTOF(value_names) ? value_names[type] : "?";
}

size_t cart_gguf_value_bytes(enum cart_gguf_value type)
{
    return value_bytes[type];
}

/* Where parsing stands, and what it is parsing: every message is made from this. */
struct cursor {
    const unsigned char *bytes;
    size_t size, off;
    const char *shown;         /* escaped name of the file */
    const char *part;          /* "header", "key", "tensor" */
    size_t index;              /* of the key or tensor */
    struct cart_gguf_str name; /* empty until read */
    struct cart_err *err;
};

static int fail(const struct cursor *c, int code, const char *fmt, ...) CART_PRINTF(3, 4);

static int fail(const struct cursor *c, int code, const char *fmt, ...)
{
    char text[256], name[65];
    va_list ap;

    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    if (c->name.len > 0) {
        cart_err_escape(name, sizeof name, c->name.data, c->name.len);
        return cart_err_set(c->err, code, "%s: %s %s: %s", c->shown, c->part, name, text);
    }
    if (strcmp(c->part, "header") == 0)
        return cart_err_set(c->err, code, "%s: %s: %s", c->shown, c->part, text);
    return cart_err_set(c->err, code, "%s: %s %zu: %s", c->shown, c->part, c->index, text);
}

static size_t left(const struct cursor *c)
{
    return c->size - c->off;
}

/* Points *out at the next n bytes and moves on. */
static int take(struct cursor *c, size_t n, const unsigned char **out, const char *what)
{
    if (n > left(c))
        return fail(c, CART_ETRUNC, "%s: expected %zu bytes at offset %zu, found %zu", what, n,
                    c->off, left(c));
    *out = c->bytes + c->off;
    c->off += n;
    return 0;
}

uint64_t cart_gguf_load(const unsigned char *p, size_t n)
{
    uint64_t v = 0;

    for (size_t i = n; i-- > 0;)
        v = v << 8 | p[i];
    return v;
}

static int take_u32(struct cursor *c, uint32_t *out, const char *what)
{
    const unsigned char *p = NULL;
    int r = take(c, 4, &p, what);

    if (r < 0)
        return r;
    *out = cart_gguf_load_u32(p);
    return 0;
}

static int take_u64(struct cursor *c, uint64_t *out, const char *what)
{
    const unsigned char *p = NULL;
    int r = take(c, 8, &p, what);

    if (r < 0)
        return r;
    *out = cart_gguf_load_u64(p);
    return 0;
}

/* A length and that many bytes, of at most cap. */
static int take_string(struct cursor *c, size_t cap, struct cart_gguf_str *out, const char *what)
{
    const unsigned char *p = NULL;
    uint64_t len;
    int r = take_u64(c, &len, what);

    if (r < 0)
        return r;
    if (len > left(c))
        return fail(c, CART_ETRUNC, "%s: expected %llu bytes at offset %zu, found %zu", what,
                    (unsigned long long)len, c->off, left(c));
    if (len > cap)
        return fail(c, CART_EFORMAT, "%s: expected at most %zu bytes, found %llu", what, cap,
                    (unsigned long long)len);
    if ((r = take(c, (size_t)len, &p, what)) < 0)
        return r;
    *out = (struct cart_gguf_str){(const char *)p, (size_t)len};
    return 0;
}

static int check_bools(const struct cursor *c, const unsigned char *p, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        if (p[i] > 1)
            return fail(c, CART_EFORMAT, "bool at offset %zu: expected 0 or 1, found %u",
                        (size_t)(p - c->bytes) + i, p[i]);
    }
    return 0;
}

static int take_type(struct cursor *c, enum cart_gguf_value *out, const char *what)
{
    uint32_t type;
    int r = take_u32(c, &type, what);

    if (r < 0)
        return r;
    if (type >= CART_COUNTOF(value_bytes))
        return fail(c, CART_EFORMAT, "%s: expected 0 to 12, found %u", what, type);
    *out = (enum cart_gguf_value)type;
    return 0;
}

/* Passes over n fixed-size values. */
static int skip_fixed(struct cursor *c, enum cart_gguf_value type, uint64_t n)
{
    size_t each = value_bytes[type];
    const unsigned char *p = NULL;
    int r;

    if (n > left(c) / each)
        return fail(c, CART_ETRUNC,
                    "expected %llu values of type %s at offset %zu, found %zu bytes",
                    (unsigned long long)n, value_names[type], c->off, left(c));
    if ((r = take(c, (size_t)n * each, &p, "value")) < 0)
        return r;
    return type == CART_GGUF_BOOL ? check_bools(c, p, (size_t)n) : 0;
}

static int skip_array(struct cursor *c)
{
    enum cart_gguf_value type = CART_GGUF_U8;
    struct cart_gguf_str s;
    uint64_t n = 0;
    int r;

    if ((r = take_type(c, &type, "element type")) < 0 || (r = take_u64(c, &n, "element count")) < 0)
        return r;
    if (type == CART_GGUF_ARRAY)
        return fail(c, CART_EFORMAT, "element type: expected no array, found array");
    if (type != CART_GGUF_STRING)
        return skip_fixed(c, type, n);
    if (n > left(c) / 8)
        return fail(c, CART_ETRUNC, "expected %llu strings at offset %zu, found %zu bytes",
                    (unsigned long long)n, c->off, left(c));
    for (uint64_t i = 0; i < n; i++) {
        if ((r = take_string(c, CART_GGUF_MAX_STRING, &s, "string")) < 0)
            return r;
    }
    return 0;
}

static int read_key(struct cursor *c, struct cart_gguf_key *key)
{
    struct cart_gguf_str s;
    int r = take_string(c, KEY_MAX_NAME, &s, "name");

    if (r < 0)
        return r;
    if (s.len == 0)
        return fail(c, CART_EFORMAT, "name: expected 1 to %d bytes, found 0", KEY_MAX_NAME);
    c->name = s;
    size_t valid = cart_text_valid(s.data, s.len);
    if (valid < s.len)
        return fail(c, CART_EFORMAT,
                    "name: expected UTF-8, found an ill-formed sequence at byte %zu", valid);
    if (memchr(s.data, 0, s.len))
        return fail(c, CART_EFORMAT, "name: expected no NUL, found one");
    key->name = s;
    if ((r = take_type(c, &key->type, "value type")) < 0)
        return r;
    size_t start = c->off;
    if (key->type == CART_GGUF_ARRAY)
        r = skip_array(c);
    else if (key->type == CART_GGUF_STRING)
        r = take_string(c, CART_GGUF_MAX_STRING, &s, "string");
    else
        r = skip_fixed(c, key->type, 1);
    if (r < 0)
        return r;
    key->value = c->bytes + start;
    key->bytes = c->off - start;
    return 0;
}

/* Size of t in bytes from its type and dimensions, all of it checked. */
static int measure_tensor(const struct cursor *c, struct cart_gguf_tensor *t)
{
    const struct cart_gguf_type *type = cart_gguf_tensor_type(t->type);
    size_t bytes;

    if (t->dims[0] % type->block != 0)
        return fail(c, CART_EFORMAT, "row: expected a multiple of %zu values (%s), found %llu",
                    type->block, type->name, (unsigned long long)t->dims[0]);
    bool fits = cart_size_mul((size_t)t->dims[0] / type->block, type->bytes, &bytes);
    for (unsigned d = 1; d < t->n_dims; d++)
        fits = fits && cart_size_mul(bytes, (size_t)t->dims[d], &bytes);
    if (!fits || bytes > c->size)
        return fail(c, fits ? CART_ETRUNC : CART_EFORMAT,
                    "dimensions: expected a size within the file's %zu bytes, found "
                    "%llu x %llu x %llu x %llu of %s",
                    c->size, (unsigned long long)t->dims[0], (unsigned long long)t->dims[1],
                    (unsigned long long)t->dims[2], (unsigned long long)t->dims[3], type->name);
    t->bytes = bytes;
    return 0;
}

/* Reads one entry of the tensor table. *offset: where its bytes are said to lie in the data
 * section. */
static int read_tensor(struct cursor *c, struct cart_gguf_tensor *t, uint64_t *offset)
{
    uint32_t n_dims, type;
    int r = take_string(c, SIZE_MAX, &t->name, "name");

    if (r < 0)
        return r;
    if (t->name.len == 0 || t->name.len > TENSOR_MAX_NAME)
        return fail(c, CART_EFORMAT, "name: expected 1 to %d bytes, found %zu", TENSOR_MAX_NAME,
                    t->name.len);
    c->name = t->name;
    if (memchr(t->name.data, 0, t->name.len))
        return fail(c, CART_EFORMAT, "name: expected no NUL, found one");
    if ((r = take_u32(c, &n_dims, "dimension count")) < 0)
        return r;
    if (n_dims < 1 || n_dims > CART_GGUF_MAX_DIMS)
        return fail(c, CART_EFORMAT, "dimension count: expected 1 to %d, found %u",
                    CART_GGUF_MAX_DIMS, n_dims);
    t->n_dims = n_dims;
    for (unsigned d = 0; d < CART_GGUF_MAX_DIMS; d++) {
        t->dims[d] = 1;
        if (d >= n_dims)
            continue;
        if ((r = take_u64(c, &t->dims[d], "dimension")) < 0)
            return r;
        if (t->dims[d] < 1 || t->dims[d] > DIM_MAX)
            return fail(c, CART_EFORMAT, "dimension %u: expected 1 to 2^48, found %llu", d,
                        (unsigned long long)t->dims[d]);
    }
    if ((r = take_u32(c, &type, "type")) < 0)
        return r;
    if (type > INT32_MAX || !cart_gguf_tensor_type((int)type))
        return fail(c, CART_EFORMAT, "type: expected a known tensor type, found %u", type);
    t->type = (int)type;
    if ((r = take_u64(c, offset, "offset")) < 0)
        return r;
    return measure_tensor(c, t);
}

static int compare_entries(const void *a, const void *b)
{
    const struct cart_gguf_entry *x = a, *y = b;

    if (x->hash != y->hash)
        return x->hash < y->hash ? -1 : 1;
    if (x->name.len != y->name.len)
        return x->name.len < y->name.len ? -1 : 1;
    return memcmp(x->name.data, y->name.data, x->name.len);
}

static uint64_t hash_name(const char *name, size_t n)
{
    unsigned char digest[16];

    cart_hash_bytes(name, n, digest);
    return cart_gguf_load(digest, 8);
}

/* Fills index [n] from names that lie stride bytes apart, sorts it, and refuses equal names. */
static int build_index(struct cursor *c, struct cart_gguf_entry *index,
                       const struct cart_gguf_str *names, size_t stride, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        const struct cart_gguf_str *name =
            (const struct cart_gguf_str *)(const void *)((const char *)names + i * stride);
        index[i] = (struct cart_gguf_entry){hash_name(name->data, name->len), *name, i};
    }
    qsort(index, n, sizeof *index, compare_entries);
    for (size_t i = 1; i < n; i++) {
        if (compare_entries(&index[i - 1], &index[i]) == 0) {
            c->name = index[i].name;
            return fail(c, CART_EFORMAT, "name: expected each once, found it twice");
        }
    }
    return 0;
}

static const struct cart_gguf_entry *search(const struct cart_gguf_entry *index, size_t n,
                                            const char *name)
{
    size_t len = strlen(name);
    struct cart_gguf_entry probe = {hash_name(name, len), {name, len}, 0};

    return n > 0 ? bsearch(&probe, index, n, sizeof *index, compare_entries) : NULL;
}

static int read_header(struct cursor *c, struct cart_gguf *g, uint64_t *n_tensors, uint64_t *n_keys)
{
    int r;

    enum cart_sniff what =
        cart_sniff(c->bytes, c->size < CART_SNIFF_BYTES ? c->size : CART_SNIFF_BYTES);
    if (what == CART_SNIFF_OTHER) {
        char magic[32];
        cart_err_escape(magic, sizeof magic, (const char *)c->bytes, c->size < 4 ? c->size : 4);
        return fail(c, CART_EFORMAT, "magic: expected \"GGUF\", found \"%s\"", magic);
    }
    if (what != CART_SNIFF_GGUF)
        return fail(c, what == CART_SNIFF_EMPTY ? CART_ETRUNC : CART_EFORMAT,
                    "expected a GGUF file, found %s%s", cart_sniff_name(what),
                    what == CART_SNIFF_SAFETENSORS
                        ? " (a cartridge goes with -c, weights by the name of their directory)"
                        : "");
    c->off = 4;
    uint32_t version;
    if ((r = take_u32(c, &version, "version")) < 0)
        return r;
    if (version != 0 && (version & 0xFFFF) == 0)
        return fail(c, CART_EFORMAT, "expected little-endian data, found a big-endian file");
    if (version != 2 && version != 3)
        return fail(c, CART_EFORMAT, "version: expected 2 or 3, found %u", version);
    g->version = version;
    if ((r = take_u64(c, n_tensors, "tensor count")) < 0 ||
        (r = take_u64(c, n_keys, "key count")) < 0)
        return r;
    if (*n_keys > CART_GGUF_MAX_KEYS || *n_keys > left(c) / KEY_MIN_BYTES)
        return fail(c, CART_EFORMAT, "key count: expected at most %zu (limit %zu), found %llu",
                    left(c) / KEY_MIN_BYTES, CART_GGUF_MAX_KEYS, (unsigned long long)*n_keys);
    if (*n_tensors > CART_GGUF_MAX_TENSORS || *n_tensors > left(c) / TENSOR_MIN_BYTES)
        return fail(c, CART_EFORMAT, "tensor count: expected at most %zu (limit %zu), found %llu",
                    left(c) / TENSOR_MIN_BYTES, CART_GGUF_MAX_TENSORS,
                    (unsigned long long)*n_tensors);
    return 0;
}

static int allocate(void *out, size_t n, size_t size, const char *what, struct cart_err *err)
{
    void *p = NULL;

    if (n > 0 && !(p = calloc(n, size)))
        return cart_err_memory(err, what, n * size);
    memcpy(out, &p, sizeof p);
    return 0;
}

static int read_keys(struct cursor *c, struct cart_gguf *g, size_t n)
{
    int r;

    if ((r = allocate(&g->keys, n, sizeof *g->keys, "GGUF keys", c->err)) < 0 ||
        (r = allocate(&g->key_index, n, sizeof *g->key_index, "GGUF key index", c->err)) < 0)
        return r;
    c->part = "key";
    for (c->index = 0; c->index < n; c->index++) {
        c->name.len = 0;
        if ((r = read_key(c, &g->keys[c->index])) < 0)
            return r;
    }
    g->n_keys = n;
    return n > 0 ? build_index(c, g->key_index, &g->keys[0].name, sizeof *g->keys, n) : 0;
}

static int read_alignment(struct cursor *c, struct cart_gguf *g)
{
    const struct cart_gguf_key *key = cart_gguf_find(g, "general.alignment");

    g->alignment = ALIGN_DEFAULT;
    if (!key)
        return 0;
    c->name = key->name;
    if (key->type != CART_GGUF_U32)
        return fail(c, CART_EFORMAT, "expected u32, found %s", cart_gguf_value_name(key->type));
    uint64_t a = cart_gguf_load(key->value, 4);
    if (a < ALIGN_MIN || a > ALIGN_MAX || (a & (a - 1)) != 0)
        return fail(c, CART_EFORMAT, "expected a power of two from %d to %d, found %llu", ALIGN_MIN,
                    ALIGN_MAX, (unsigned long long)a);
    g->alignment = (size_t)a;
    return 0;
}

/* Rounds x, which is at most the file's size, up to the alignment: cannot wrap for any mapping. */
static size_t padded(const struct cart_gguf *g, size_t x)
{
    return (x + g->alignment - 1) & ~(g->alignment - 1);
}

/* Every tensor starts where the one before, padded, ended; and its bytes are inside the file. */
static int place_tensors(struct cursor *c, struct cart_gguf *g, const uint64_t *offsets)
{
    size_t data_off = padded(g, g->header_bytes), next = 0;

    if (g->n_tensors == 0)
        return 0;
    c->part = "header";
    c->name.len = 0;
    if (data_off > g->size)
        return fail(c, CART_ETRUNC, "expected data from offset %zu, found the end at %zu", data_off,
                    g->size);
    size_t room = g->size - data_off;
    c->part = "tensor";
    for (c->index = 0; c->index < g->n_tensors; c->index++) {
        struct cart_gguf_tensor *t = &g->tensors[c->index];
        unsigned long long off = offsets[c->index];
        c->name = t->name;
        if (off % g->alignment != 0)
            return fail(c, CART_EFORMAT, "offset %llu: expected a multiple of %zu", off,
                        g->alignment);
        if (off != next)
            return fail(c, CART_EFORMAT,
                        "offset %llu: expected %zu, where the tensor before it ends", off, next);
        if (next > room || t->bytes > room - next)
            return fail(c, CART_ETRUNC, "expected %zu bytes at offset %zu of the file, found %zu",
                        t->bytes, data_off + next, next > room ? 0 : room - next);
        t->data = c->bytes + data_off + next;
        next = padded(g, next + t->bytes);
    }
    return 0;
}

static int read_tensors(struct cursor *c, struct cart_gguf *g, size_t n)
{
    uint64_t *offsets = NULL;
    int r;

    if ((r = allocate(&g->tensors, n, sizeof *g->tensors, "GGUF tensors", c->err)) < 0 ||
        (r = allocate(&g->tensor_index, n, sizeof *g->tensor_index, "GGUF index", c->err)) < 0 ||
        (r = allocate(&offsets, n, sizeof *offsets, "GGUF offsets", c->err)) < 0)
        goto out;
    c->part = "tensor";
    for (c->index = 0; c->index < n; c->index++) {
        c->name.len = 0;
        if ((r = read_tensor(c, &g->tensors[c->index], &offsets[c->index])) < 0)
            goto out;
    }
    g->n_tensors = n;
    g->header_bytes = c->off;
    if (n > 0 &&
        (r = build_index(c, g->tensor_index, &g->tensors[0].name, sizeof *g->tensors, n)) < 0)
        goto out;
    r = place_tensors(c, g, offsets);
out:
    free(offsets);
    return r;
}

static int parse(struct cart_gguf *g, const unsigned char *bytes, size_t size, struct cart_err *err)
{
    struct cursor c = {
        .bytes = bytes, .size = size, .shown = g->shown, .part = "header", .err = err};
    uint64_t n_tensors = 0, n_keys = 0;
    int r;

    g->bytes = bytes;
    g->size = size;
    if ((r = read_header(&c, g, &n_tensors, &n_keys)) < 0 ||
        (r = read_keys(&c, g, (size_t)n_keys)) < 0 || (r = read_alignment(&c, g)) < 0)
        return r;
    return read_tensors(&c, g, (size_t)n_tensors);
}

static int make(struct cart_gguf **out, const char *path, struct cart_err *err)
{
    struct cart_gguf *g = calloc(1, sizeof *g);

    if (!g)
        return cart_err_memory(err, "GGUF reader", sizeof *g);
    cart_err_escape(g->shown, sizeof g->shown, path, strlen(path));
    *out = g;
    return 0;
}

/* A file that was cut short between its stat and its mapping would end in a signal when read. */
static int check_size(const struct cart_gguf *g, const char *path, struct cart_err *err)
{
    struct stat st;

    if (stat(path, &st) < 0)
        return cart_err_sys(err, "%s", path);
    if ((uintmax_t)st.st_size < g->map.size)
        return cart_err_set(err, CART_ETRUNC, "%s: expected %zu bytes, found %lld", g->shown,
                            g->map.size, (long long)st.st_size);
    return 0;
}

int cart_gguf_open(struct cart_gguf **out, const char *path, struct cart_err *err)
{
    struct cart_gguf *g = NULL;
    int r = make(&g, path, err);

    if (r < 0)
        return r;
    if ((r = cart_map_open(&g->map, path, err)) < 0 || (r = check_size(g, path, err)) < 0 ||
        (r = parse(g, g->map.data, g->map.size, err)) < 0) {
        cart_gguf_close(g);
        return r;
    }
    *out = g;
    return 0;
}

int cart_gguf_parse(struct cart_gguf **out, const void *bytes, size_t size, const char *what,
                    struct cart_err *err)
{
    struct cart_gguf *g = NULL;
    int r = make(&g, what, err);

    if (r < 0)
        return r;
    if ((r = parse(g, bytes, size, err)) < 0) {
        cart_gguf_close(g);
        return r;
    }
    *out = g;
    return 0;
}

void cart_gguf_close(struct cart_gguf *g)
{
    if (!g)
        return;
    cart_map_release(&g->map);
    free(g->keys);
    free(g->key_index);
    free(g->tensors);
    free(g->tensor_index);
    free(g);
}

const struct cart_gguf_key *cart_gguf_find(const struct cart_gguf *g, const char *key)
{
    const struct cart_gguf_entry *e = search(g->key_index, g->n_keys, key);

    return e ? &g->keys[e->index] : NULL;
}

const struct cart_gguf_tensor *cart_gguf_tensor(const struct cart_gguf *g, const char *name)
{
    const struct cart_gguf_entry *e = search(g->tensor_index, g->n_tensors, name);

    return e ? &g->tensors[e->index] : NULL;
}
