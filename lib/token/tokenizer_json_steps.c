/* The steps around the merges of a tokenizer.json: which of the known families they are. */
#include "token/tokenizer_json_impl.h"

#include <stdio.h>
#include <string.h>

/* The expressions of token/split.h as the files spell them. */
#define WORDS "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|"
#define REST "| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"
static const char qwen2_split[] = WORDS "\\p{N}" REST;
static const char llama_split[] = WORDS "\\p{N}{1,3}" REST;

static int refused(const char *what, const char *part, const char *expected, const char *found,
                   struct cart_err *err)
{
    char shown[160];
    return cart_err_set(err, CART_EFORMAT, "%s: %s: expected %s, found %s", what, part, expected,
                        cart_err_escape(shown, sizeof shown, found, strlen(found)));
}

/* The "type" of a step; "null" for a step that is absent. */
static const char *type_of(const json_t *step)
{
    const char *type = json_string_value(json_object_get(step, "type"));
    if (!step || json_is_null(step))
        return "null";
    return type ? type : "no type";
}

static bool is_type(const json_t *step, const char *type)
{
    return strcmp(type_of(step), type) == 0;
}

/* A flag of a step, with the value that the format gives to an absent one. */
static bool flag(const json_t *step, const char *key, bool absent)
{
    const json_t *v = json_object_get(step, key);
    return v && !json_is_null(v) ? json_is_true(v) : absent;
}

/* A step's members are of their types, and those of the steps that it is a sequence of: one that is
 * not would pass for an absent one. */
static int check_step(const json_t *step, const char *list, const char *what, struct cart_err *err)
{
    static const char *const flags[] = {"add_prefix_space", "use_regex", "trim_offsets", "invert",
                                        "individual_digits"};
    json_t *inner = NULL;
    bool unused;
    int r = 0;
    for (size_t i = 0; i < CART_COUNTOF(flags) && r == 0; i++)
        r = cart_json_bool_opt(step, flags[i], &unused, what, err);
    if (r == 0 && is_type(step, "Sequence"))
        r = cart_json_array(step, list, &inner, what, err);
    for (size_t i = 0; i < json_array_size(inner) && r == 0; i++)
        r = check_step(json_array_get(inner, i), list, what, err);
    return r;
}

static int check_steps(const json_t *root, const char *what, struct cart_err *err)
{
    static const char *const parts[][2] = {{"normalizer", "normalizers"},
                                           {"pre_tokenizer", "pretokenizers"},
                                           {"post_processor", "processors"},
                                           {"decoder", "decoders"}};
    char path[320];
    int r = 0;
    for (size_t i = 0; i < CART_COUNTOF(parts) && r == 0; i++) {
        const json_t *step = json_object_get(root, parts[i][0]);
        snprintf(path, sizeof path, "%.280s: %s", what, parts[i][0]);
        if (step && !json_is_null(step))
            r = check_step(step, parts[i][1], path, err);
    }
    return r;
}

/* A sequence of one step is that step, one of none is no step. */
static const json_t *unwrap(const json_t *step, const char *list)
{
    const json_t *inner = json_object_get(step, list);
    if (!is_type(step, "Sequence") || !json_is_array(inner) || json_array_size(inner) > 1)
        return step;
    return json_array_get(inner, 0);
}

static bool is_byte_level(const json_t *step, bool use_regex)
{
    return is_type(step, "ByteLevel") && !flag(step, "add_prefix_space", true) &&
           flag(step, "use_regex", true) == use_regex;
}

static bool is_split(const json_t *step, const char *pattern)
{
    const char *regex =
        json_string_value(json_object_get(json_object_get(step, "pattern"), "Regex"));
    const char *behavior = json_string_value(json_object_get(step, "behavior"));
    return is_type(step, "Split") && regex && strcmp(regex, pattern) == 0 && behavior &&
           strcmp(behavior, "Isolated") == 0 && !flag(step, "invert", false);
}

static int family_of(const json_t *pre, const char **name, const char *what, struct cart_err *err)
{
    const json_t *steps = json_object_get(pre, "pretokenizers");
    const json_t *a = json_array_get(steps, 0), *b = json_array_get(steps, 1);
    if (is_type(pre, "Sequence") && json_array_size(steps) == 2) {
        if (is_type(a, "Digits") && flag(a, "individual_digits", false) && is_byte_level(b, true))
            *name = "smollm";
        else if (is_split(a, qwen2_split) && is_byte_level(b, false))
            *name = "qwen2";
        else if (is_split(a, llama_split) && is_byte_level(b, false))
            *name = "llama-bpe";
    }
    if (*name)
        return 0;
    struct cart_buf shown = CART_BUF_INIT;
    int r = pre ? cart_json_dump(pre, &shown, err) : 0;
    if (r == 0)
        r = refused(what, "pre_tokenizer", "the steps of smollm, qwen2 or llama-bpe",
                    shown.data ? shown.data : "none", err);
    cart_buf_release(&shown);
    return r;
}

int cart_vocab_json_family(const json_t *root, const char **pre, bool *nfc, const char *what,
                           struct cart_err *err)
{
    const char *name = NULL;
    int r = check_steps(root, what, err);
    if (r < 0 || (r = family_of(json_object_get(root, "pre_tokenizer"), &name, what, err)) < 0)
        return r;
    const json_t *normalizer = unwrap(json_object_get(root, "normalizer"), "normalizers");
    bool qwen2 = strcmp(name, "qwen2") == 0, llama = strcmp(name, "llama-bpe") == 0;
    if (!is_type(normalizer, qwen2 ? "NFC" : "null"))
        return refused(what, "normalizer", qwen2 ? "NFC, as qwen2 has it" : "none",
                       type_of(normalizer), err);
    bool ignore = flag(json_object_get(root, "model"), "ignore_merges", false);
    if (ignore != llama)
        return refused(what, "model: ignore_merges", llama ? "true, as llama-bpe has it" : "false",
                       ignore ? "true" : "false", err);
    *pre = name;
    *nfc = qwen2;
    return 0;
}

/* A template of the text alone, or of one special token and the text. */
static int template_first(const json_t *template, const char **first, const char *what,
                          struct cart_err *err)
{
    const json_t *single = json_object_get(template, "single");
    size_t n = json_array_size(single);
    const json_t *special = json_object_get(json_array_get(single, 0), "SpecialToken");
    const json_t *text = json_object_get(json_array_get(single, n - 1), "Sequence");
    const char *id = json_string_value(json_object_get(special, "id"));
    if (!json_is_array(single) || n < 1 || n > 2 || !json_is_object(text) || (n == 2 && !id))
        return cart_err_set(err, CART_EFORMAT,
                            "%s: post_processor: expected the text, or one special token and the "
                            "text",
                            what);
    if (n == 2)
        *first = id;
    return 0;
}

int cart_vocab_json_ends(const json_t *root, const char **first, const char *what,
                         struct cart_err *err)
{
    const json_t *decoder = unwrap(json_object_get(root, "decoder"), "decoders");
    if (!is_type(decoder, "ByteLevel"))
        return refused(what, "decoder", "ByteLevel", type_of(decoder), err);
    const json_t *post = json_object_get(root, "post_processor");
    const json_t *steps = is_type(post, "Sequence") ? json_object_get(post, "processors") : NULL;
    size_t n = is_type(post, "Sequence") ? json_array_size(steps) : 1;
    *first = NULL;
    for (size_t i = 0; i < n; i++) {
        const json_t *step = steps ? json_array_get(steps, i) : post;
        if (is_type(step, "null") || is_type(step, "ByteLevel"))
            continue;
        if (!is_type(step, "TemplateProcessing") || *first)
            return refused(what, "post_processor", "ByteLevel or one TemplateProcessing",
                           type_of(step), err);
        int r = template_first(step, first, what, err);
        if (r < 0)
            return r;
    }
    return 0;
}
