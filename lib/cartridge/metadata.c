#include "cartridge/metadata.h"

#include "stream/kinds.h"
#include "tensor/matmul.h"

#include <stdio.h>
#include <string.h>

static const char *const known_keys[] = {
    "cart.version", "cart.geometry",       "cart.tokenizer",     "cart.template", "cart.weights",
    "cart.profile", "cart.wrapper_open",   "cart.wrapper_close", "cart.p",        "cart.frozen",
    "cart.corpus",  "cart.first_position", "cart.rope_order",    "cart.recipe",   "cart.precision",
    "cart.steps",   "cart.history",        "cart.dtype",         "cart.data",     "cart.sum",
};

void cart_note_add(struct cart_note *n, const char *fmt, ...)
{
    if (!n || !n->text || n->cap == 0)
        return;
    size_t len = strlen(n->text);
    if (len > 0 && len + 2 < n->cap) {
        memcpy(n->text + len, "; ", 3);
        len += 2;
    }
    va_list args;
    va_start(args, fmt);
    vsnprintf(n->text + len, n->cap - len, fmt, args);
    va_end(args);
}

/* Strict decimal text of at most max. */
static int parse_number(const json_t *metadata, const char *key, uint64_t max, bool required,
                        uint64_t *out, struct cart_err *err)
{
    const char *s = json_string_value(json_object_get(metadata, key));
    if (!s)
        return required ? cart_err_set(err, CART_EFORMAT, "metadata: %s is missing", key) : 0;
    uint64_t v = 0;
    size_t i = 0;
    for (; s[i] >= '0' && s[i] <= '9' && i < 20; i++) {
        uint64_t digit = (uint64_t)(s[i] - '0');
        if (v > (max - digit) / 10)
            break;
        v = v * 10 + digit;
    }
    if (i == 0 || s[i] != '\0' || (s[0] == '0' && i > 1)) {
        char shown[40];
        return cart_err_set(
            err, CART_EFORMAT, "metadata: %s: expected a number up to %llu, found \"%s\"", key,
            (unsigned long long)max, cart_err_escape(shown, sizeof shown, s, strlen(s)));
    }
    *out = v;
    return 0;
}

static int refused(const char *key, const char *expected, const char *found, struct cart_err *err)
{
    char shown[48];
    return cart_err_set(err, CART_EFORMAT, "metadata: %s: expected %s, found \"%s\"", key, expected,
                        cart_err_escape(shown, sizeof shown, found, strlen(found)));
}

static bool is_hash(const char *s)
{
    return strlen(s) == 32 && strspn(s, "0123456789abcdef") == 32;
}

static bool is_name(const char *s)
{
    size_t n = strspn(s, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-");
    return n > 0 && n < 64 && s[n] == '\0';
}

static bool is_order(const char *s)
{
    return strcmp(s, "interleaved") == 0 || strcmp(s, "half") == 0;
}

static bool is_precision(const char *s)
{
    return strcmp(s, "f32") == 0 || strcmp(s, "bf16") == 0;
}

static bool is_dtype(const char *s)
{
    return is_precision(s) || strcmp(s, "f16") == 0;
}

/* The members that are neither numbers nor free text. Not every model has a template, and not of
 * all rows is a corpus known. */
static int check_words(const json_t *metadata, struct cart_err *err)
{
    static const struct {
        const char *key;
        bool required;
        bool (*is)(const char *);
        const char *expected;
    } words[] = {
        {"cart.geometry", true, is_hash, "32 hexadecimal digits"},
        {"cart.tokenizer", true, is_hash, "32 hexadecimal digits"},
        {"cart.weights", true, is_hash, "32 hexadecimal digits"},
        {"cart.template", false, is_hash, "32 hexadecimal digits"},
        {"cart.corpus", false, is_hash, "32 hexadecimal digits"},
        {"cart.profile", false, is_name, "the name of a chat profile"},
        {"cart.dtype", false, is_dtype, "f32, f16 or bf16"},
        {"cart.rope_order", true, is_order, "interleaved or half"},
        {"cart.precision", true, is_precision, "f32 or bf16"},
    };
    for (size_t i = 0; i < CART_COUNTOF(words); i++) {
        const char *s = json_string_value(json_object_get(metadata, words[i].key));
        if (!s && words[i].required)
            return cart_err_set(err, CART_EFORMAT, "metadata: %s is missing", words[i].key);
        if (s && !words[i].is(s))
            return refused(words[i].key, words[i].expected, s, err);
    }
    return 0;
}

/* A member that is JSON inside its string. */
static int check_json(const json_t *metadata, const struct cart_kind_field *field,
                      struct cart_err *err)
{
    const json_t *text = json_object_get(metadata, field->name);
    char what[40];
    json_t *v = NULL;
    if (!text)
        return 0;
    snprintf(what, sizeof what, "metadata: %s", field->name);
    int r = cart_json_parse(&v, json_string_value(text), json_string_length(text), what, err);
    if (r < 0)
        return r;
    json_t *o = json_pack("{s:o}", field->name, v);
    r = o ? cart_fields_check(o, field, 1, "metadata", CART_EFORMAT, err)
          : cart_err_memory(err, "metadata", 0);
    json_decref(o);
    return r;
}

/* Whether each member of ours has the form that cart-cartridge(5) gives it. None has a NUL, which
 * would hide what is behind it. */
static int check_forms(const json_t *metadata, struct cart_err *err)
{
    static const struct cart_kind_field inner[] = {
        {"cart.recipe", CART_FIELD_OBJECT, true, 0, NULL},
        {"cart.history", CART_FIELD_HISTORY, true, 0, NULL},
    };
    int r = 0;
    for (size_t i = 0; i < CART_COUNTOF(known_keys); i++) {
        const json_t *v = json_object_get(metadata, known_keys[i]);
        if (v && !cart_json_word(v))
            return cart_err_set(err, CART_EFORMAT,
                                "metadata: %s: expected text without NUL, found one",
                                known_keys[i]);
    }
    if ((r = check_words(metadata, err)) < 0)
        return r;
    for (size_t i = 0; i < CART_COUNTOF(inner) && r == 0; i++)
        r = check_json(metadata, &inner[i], err);
    return r;
}

static void note_unknown(const json_t *metadata, struct cart_note *note)
{
    const char *key;
    json_t *value;
    json_object_foreach((json_t *)metadata, key, value) {
        bool known = strncmp(key, "cart.", 5) != 0;
        for (size_t i = 0; i < CART_COUNTOF(known_keys) && !known; i++)
            known = strcmp(key, known_keys[i]) == 0;
        if (!known) {
            char shown[60];
            cart_note_add(note, "unknown metadata %s ignored",
                          cart_err_escape(shown, sizeof shown, key, strlen(key)));
        }
    }
}

int cart_claims_parse(struct cart_claims *c, const json_t *metadata, struct cart_note *note,
                      struct cart_err *err)
{
    *c = (struct cart_claims){.metadata = metadata};
    const char *version = json_string_value(json_object_get(metadata, "cart.version"));
    if (!version)
        return 0;
    c->described = true;
    if (strcmp(version, CART_CARTRIDGE_VERSION) != 0) {
        char shown[40];
        return cart_err_set(
            err, CART_EFORMAT, "metadata: cart.version is \"%s\", this program reads \"%s\"",
            cart_err_escape(shown, sizeof shown, version, strlen(version)), CART_CARTRIDGE_VERSION);
    }
    uint64_t p = 0, frozen = 0, first = 0;
    int r = check_forms(metadata, err);
    if (r < 0)
        return r;
    if ((r = parse_number(metadata, "cart.p", CART_CARTRIDGE_MAX_P, true, &p, err)) < 0 ||
        (r = parse_number(metadata, "cart.frozen", CART_CARTRIDGE_MAX_P, true, &frozen, err)) < 0 ||
        (r = parse_number(metadata, "cart.first_position", UINT32_MAX, true, &first, err)) < 0 ||
        (r = parse_number(metadata, "cart.steps", INT64_MAX, true, &c->steps, err)) < 0)
        return r;
    c->p = (size_t)p;
    c->frozen = (size_t)frozen;
    c->first_position = (size_t)first;
    const char *order = json_string_value(json_object_get(metadata, "cart.rope_order"));
    c->rope_order = order[0] == 'h' ? CART_ROPE_HALF : CART_ROPE_INTERLEAVED;
    note_unknown(metadata, note);
    return 0;
}

int cart_claims_check_rows(const struct cart_claims *c, size_t p, size_t frozen,
                           struct cart_err *err)
{
    if (!c->described || (c->p == p && c->frozen == frozen))
        return 0;
    return cart_err_set(
        err, CART_EFORMAT,
        "metadata says p %zu, frozen %zu; the tensors hold %zu rows, %zu of them frozen", c->p,
        c->frozen, p, frozen);
}

int cart_claims_match(const struct cart_claims *c, const struct cart_model *m,
                      bool allow_other_weights, struct cart_note *note, struct cart_err *err)
{
    static const char *const keys[][2] = {{"geometry", "cart.geometry"},
                                          {"tokenizer", "cart.tokenizer"},
                                          {"template", "cart.template"},
                                          {"weights", "cart.weights"}};
    json_t *fp = json_object();
    if (!fp)
        return cart_err_memory(err, "fingerprints", 0);
    int r = 0;
    for (size_t i = 0; i < CART_COUNTOF(keys) && r == 0; i++) {
        json_t *value = json_object_get(c->metadata, keys[i][1]);
        if (value && json_object_set(fp, keys[i][0], value) != 0)
            r = cart_err_memory(err, "fingerprints", 0);
    }
    if (r == 0)
        r = cart_fingerprints_check(m, fp, allow_other_weights, "cartridge", err);
    const char *weights = json_string_value(json_object_get(fp, "weights"));
    if (r == 0 && weights && strcmp(weights, m->fp.weights) != 0)
        cart_note_add(note, "made by other weights (%.8s, not %.8s)", weights, m->fp.weights);
    json_decref(fp);
    return r;
}

/* A key of text; NULL leaves it out. */
static bool set_text(json_t *o, const char *key, const char *text)
{
    return !text || json_object_set_new(o, key, json_string(text)) == 0;
}

static bool set_number(json_t *o, const char *key, uint64_t v)
{
    char text[24];
    snprintf(text, sizeof text, "%llu", (unsigned long long)v);
    return set_text(o, key, text);
}

/* A JSON value as canonical text. */
static int set_json(json_t *o, const char *key, const json_t *value, struct cart_err *err)
{
    if (!value)
        return 0;
    struct cart_buf b = CART_BUF_INIT;
    int r = cart_json_dump(value, &b, err);
    if (r == 0 && json_object_set_new(o, key, json_stringn(b.data, b.len)) != 0)
        r = cart_err_memory(err, "metadata", b.len);
    cart_buf_release(&b);
    return r;
}

int cart_cartridge_describe(json_t **out, const struct cart_model *m,
                            const struct cart_cartridge_about *about, struct cart_err *err)
{
    const char *selected = cart_precision_selected() == CART_PRECISION_BF16 ? "bf16" : "f32";
    json_t *o = json_object();
    if (!o)
        return cart_err_memory(err, "metadata", 0);
    bool ok =
        set_text(o, "cart.version", CART_CARTRIDGE_VERSION) &&
        set_text(o, "cart.geometry", m->fp.geometry) &&
        set_text(o, "cart.tokenizer", m->fp.tokenizer) &&
        set_text(o, "cart.template", m->fp.chat[0] ? m->fp.chat : NULL) &&
        set_text(o, "cart.weights", about->weights ? about->weights : m->fp.weights) &&
        set_text(o, "cart.profile", about->profile) &&
        set_text(o, "cart.wrapper_open", about->wrapper_open) &&
        set_text(o, "cart.wrapper_close", about->wrapper_close) &&
        set_text(o, "cart.corpus", about->corpus) && set_number(o, "cart.p", about->p) &&
        set_number(o, "cart.frozen", about->frozen) &&
        set_number(o, "cart.first_position", about->first_position) &&
        set_number(o, "cart.steps", about->steps) &&
        set_text(o, "cart.precision", about->precision ? about->precision : selected) &&
        set_text(o, "cart.rope_order", m->rope.order == CART_ROPE_HALF ? "half" : "interleaved");
    int r = ok ? 0 : cart_err_memory(err, "metadata", 0);
    if (r == 0)
        r = set_json(o, "cart.recipe", about->recipe, err);
    if (r == 0)
        r = set_json(o, "cart.history", about->history, err);
    if (r < 0) {
        json_decref(o);
        return r;
    }
    *out = o;
    return 0;
}
