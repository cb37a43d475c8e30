/* JSON as a grammar: strings of valid UTF-8, numbers, values. */
#include "engine/schema_impl.h"

#include <stdio.h>
#include <string.h>

#define INDENT 40 /* spaces after a line break */

static uint32_t call(struct cart_constraint *c, uint32_t rule, uint32_t next)
{
    return cart_grammar_call(c, rule, next);
}

static uint32_t text(struct cart_constraint *c, const char *s, uint32_t next)
{
    return cart_grammar_text(c, s, strlen(s), next);
}

static void make_space(struct cart_constraint *c, uint32_t rule)
{
    uint32_t end = CART_GRAMMAR_RETURN;
    uint32_t indent = end;

    for (int i = 0; i < INDENT; i++)
        indent = cart_grammar_either(c, text(c, " ", indent), end);
    uint32_t some = cart_grammar_either(c, text(c, " ", end), text(c, "\n", indent));
    cart_grammar_define(c, rule, cart_grammar_either(c, some, end));
}

static uint32_t hex(struct cart_constraint *c, int n, uint32_t next)
{
    for (int i = 0; i < n; i++)
        next = cart_grammar_bytes(c, "09afAF", next);
    return next;
}

/* Four digits after \u: any character below the surrogates or above them, or a pair of surrogates.
 */
static uint32_t unicode_escape(struct cart_constraint *c, uint32_t end)
{
    uint32_t low = text(
        c, "\\u", cart_grammar_bytes(c, "ddDD", cart_grammar_bytes(c, "cfCF", hex(c, 2, end))));
    uint32_t high = cart_grammar_bytes(c, "89abAB", hex(c, 2, low));
    uint32_t d = cart_grammar_bytes(
        c, "ddDD", cart_grammar_either(c, cart_grammar_bytes(c, "07", hex(c, 2, end)), high));

    return cart_grammar_either(c, cart_grammar_bytes(c, "09acACefEF", hex(c, 3, end)), d);
}

static uint32_t continuation(struct cart_constraint *c, int n, uint32_t next)
{
    for (int i = 0; i < n; i++)
        next = cart_grammar_range(c, 0x80, 0xbf, next);
    return next;
}

uint32_t cart_json_multibyte(struct cart_constraint *c, uint32_t end)
{
    static const struct {
        unsigned char lo, hi, lo2, hi2;
        int more;
    } forms[] = {
        {0xe0, 0xe0, 0xa0, 0xbf, 1}, {0xe1, 0xec, 0x80, 0xbf, 1}, {0xed, 0xed, 0x80, 0x9f, 1},
        {0xee, 0xef, 0x80, 0xbf, 1}, {0xf0, 0xf0, 0x90, 0xbf, 2}, {0xf1, 0xf3, 0x80, 0xbf, 2},
        {0xf4, 0xf4, 0x80, 0x8f, 2},
    };
    uint32_t any = cart_grammar_range(c, 0xc2, 0xdf, continuation(c, 1, end));

    for (size_t i = 0; i < CART_COUNTOF(forms); i++) {
        uint32_t second =
            cart_grammar_range(c, forms[i].lo2, forms[i].hi2, continuation(c, forms[i].more, end));
        any = cart_grammar_either(c, any, cart_grammar_range(c, forms[i].lo, forms[i].hi, second));
    }
    return any;
}

static void make_character(struct cart_constraint *c, uint32_t rule)
{
    uint32_t end = CART_GRAMMAR_RETURN;
    uint32_t plain = cart_grammar_bytes(c, " !#[]\x7f", end);
    uint32_t shorthand = cart_grammar_bytes(c, "\"\"\\\\//bbffnnrrtt", end);
    uint32_t escaped =
        text(c, "\\", cart_grammar_either(c, shorthand, text(c, "u", unicode_escape(c, end))));

    cart_grammar_define(
        c, rule,
        cart_grammar_either(c, plain,
                            cart_grammar_either(c, escaped, cart_json_multibyte(c, end))));
}

/* Times of a repetition; SIZE_MAX: any number. */
static uint32_t times(size_t n)
{
    return n < CART_GRAMMAR_ANY ? (uint32_t)n : CART_GRAMMAR_ANY;
}

uint32_t cart_json_string_sized(struct cart_constraint *c, const struct cart_json_rules *r,
                                size_t least, size_t most, uint32_t next)
{
    return text(
        c, "\"",
        cart_grammar_repeat(c, r->character, times(least), times(most), text(c, "\"", next)));
}

/* Up to n more digits. */
static uint32_t digits(struct cart_constraint *c, int n, uint32_t next)
{
    uint32_t at = next;

    for (int i = 0; i < n; i++)
        at = cart_grammar_either(c, cart_grammar_bytes(c, "09", at), next);
    return at;
}

static void make_numbers(struct cart_constraint *c, const struct cart_json_rules *r)
{
    uint32_t end = CART_GRAMMAR_RETURN;
    int most = CART_SCHEMA_DIGITS - 1;
    uint32_t whole = cart_grammar_either(c, text(c, "0", end),
                                         cart_grammar_bytes(c, "19", digits(c, most, end)));

    /* No minus before a bare 0. */
    uint32_t below = text(c, "-", cart_grammar_bytes(c, "19", digits(c, most, end)));
    cart_grammar_define(c, r->integer, cart_grammar_either(c, whole, below));
    uint32_t power = cart_grammar_bytes(c, "09", digits(c, 1, end));
    uint32_t sign = cart_grammar_either(c, cart_grammar_bytes(c, "++--", power), power);
    uint32_t exponent = cart_grammar_either(c, cart_grammar_bytes(c, "eeEE", sign), end);
    uint32_t point = text(c, ".", cart_grammar_bytes(c, "09", digits(c, most, exponent)));
    uint32_t rest = cart_grammar_either(c, point, exponent);
    uint32_t head = cart_grammar_either(c, text(c, "0", rest),
                                        cart_grammar_bytes(c, "19", digits(c, most, rest)));
    cart_grammar_define(c, r->number, cart_grammar_either(c, head, text(c, "-", head)));
}

uint32_t cart_json_comma(struct cart_constraint *c, const struct cart_json_rules *r, uint32_t next)
{
    return call(c, r->space, text(c, ",", call(c, r->space, next)));
}

uint32_t cart_json_colon(struct cart_constraint *c, const struct cart_json_rules *r, uint32_t next)
{
    return call(c, r->space, text(c, ":", call(c, r->space, next)));
}

uint32_t cart_json_sequence(struct cart_constraint *c, const struct cart_json_rules *r,
                            uint32_t element, size_t least, size_t most, uint32_t next)
{
    if (most == 0)
        return next;
    uint32_t again = cart_grammar_rule(c);
    cart_grammar_define(c, again, cart_json_comma(c, r, call(c, element, CART_GRAMMAR_RETURN)));
    uint32_t rest =
        cart_grammar_repeat(c, again, times(least > 0 ? least - 1 : 0),
                            most == SIZE_MAX ? CART_GRAMMAR_ANY : times(most - 1), next);
    uint32_t at = call(c, element, rest);
    return least > 0 ? at : cart_grammar_either(c, at, next);
}

static void make_values(struct cart_constraint *c, const struct cart_json_rules *r)
{
    uint32_t end = CART_GRAMMAR_RETURN;
    uint32_t member = cart_grammar_rule(c);

    cart_grammar_define(c, r->string, cart_json_string_sized(c, r, 0, SIZE_MAX, end));
    cart_grammar_define(c, member,
                        call(c, r->string, cart_json_colon(c, r, call(c, r->value, end))));
    uint32_t close = call(c, r->space, text(c, "}", end));
    cart_grammar_define(
        c, r->object,
        text(c, "{", call(c, r->space, cart_json_sequence(c, r, member, 0, SIZE_MAX, close))));
    close = call(c, r->space, text(c, "]", end));
    cart_grammar_define(
        c, r->array,
        text(c, "[", call(c, r->space, cart_json_sequence(c, r, r->value, 0, SIZE_MAX, close))));
    uint32_t word =
        cart_grammar_either(c, text(c, "true", end),
                            cart_grammar_either(c, text(c, "false", end), text(c, "null", end)));
    uint32_t nested = cart_grammar_either(c, call(c, r->object, end), call(c, r->array, end));
    uint32_t scalar = cart_grammar_either(c, call(c, r->string, end), call(c, r->number, end));
    cart_grammar_define(c, r->value,
                        cart_grammar_either(c, word, cart_grammar_either(c, nested, scalar)));
}

void cart_json_rules_make(struct cart_json_rules *r, struct cart_constraint *c)
{
    *r = (struct cart_json_rules){
        .space = cart_grammar_rule(c),
        .character = cart_grammar_rule(c),
        .string = cart_grammar_rule(c),
        .number = cart_grammar_rule(c),
        .integer = cart_grammar_rule(c),
        .object = cart_grammar_rule(c),
        .array = cart_grammar_rule(c),
        .value = cart_grammar_rule(c),
    };
    make_space(c, r->space);
    make_character(c, r->character);
    make_numbers(c, r);
    make_values(c, r);
}

/* ---- ranges of integers ---- */

/* Numbers of n digits between lo and hi, both of n digits; with_lo, with_hi: whether the digits so
 * far are theirs. */
static uint32_t between(struct cart_constraint *c, const char *lo, const char *hi, size_t n,
                        bool with_lo, bool with_hi, uint32_t next)
{
    if (n == 0)
        return next;
    if (!with_lo && !with_hi) {
        for (size_t i = 0; i < n; i++)
            next = cart_grammar_bytes(c, "09", next);
        return next;
    }
    unsigned char a = (unsigned char)(with_lo ? lo[0] : '0');
    unsigned char b = (unsigned char)(with_hi ? hi[0] : '9');
    if (a == b)
        return cart_grammar_range(c, a, a,
                                  between(c, lo + 1, hi + 1, n - 1, with_lo, with_hi, next));
    uint32_t low =
        cart_grammar_range(c, a, a, between(c, lo + 1, hi + 1, n - 1, with_lo, false, next));
    uint32_t high =
        cart_grammar_range(c, b, b, between(c, lo + 1, hi + 1, n - 1, false, with_hi, next));
    uint32_t both = cart_grammar_either(c, low, high);
    if (b - a < 2)
        return both;
    uint32_t mid = cart_grammar_range(c, (unsigned char)(a + 1), (unsigned char)(b - 1),
                                      between(c, lo + 1, hi + 1, n - 1, false, false, next));
    return cart_grammar_either(c, both, mid);
}

/* Whole numbers lo..hi without a sign, length by length. */
static uint32_t naturals(struct cart_constraint *c, uint64_t lo, uint64_t hi, uint32_t next)
{
    uint32_t any = 0;
    bool first = true;

    for (uint64_t begin = 0, end = 9; begin <= hi; begin = end + 1, end = end * 10 + 9) {
        uint64_t a = lo > begin ? lo : begin;
        uint64_t b = hi < end ? hi : end;
        char x[24];
        char y[24];
        if (a > b)
            continue;
        int n = snprintf(x, sizeof x, "%llu", (unsigned long long)a);
        snprintf(y, sizeof y, "%llu", (unsigned long long)b);
        uint32_t some = between(c, x, y, (size_t)n, true, true, next);
        any = first ? some : cart_grammar_either(c, any, some);
        first = false;
    }
    return any;
}

uint32_t cart_json_integers(struct cart_constraint *c, int64_t lo, int64_t hi, uint32_t next)
{
    uint32_t above = 0;
    uint32_t below = 0;

    if (hi >= 0)
        above = naturals(c, lo > 0 ? (uint64_t)lo : 0, (uint64_t)hi, next);
    if (lo < 0)
        below = text(c, "-", naturals(c, hi < 0 ? (uint64_t)-hi : 1, (uint64_t)-lo, next));
    if (hi < 0)
        return below;
    return lo < 0 ? cart_grammar_either(c, above, below) : above;
}

/* Magnitudes lo..hi with digits after the point: whole parts below hi with any, hi itself with
 * zeros. */
static uint32_t magnitudes(struct cart_constraint *c, uint64_t lo, uint64_t hi, uint32_t next)
{
    uint32_t zeros = next;

    for (int i = 0; i < CART_SCHEMA_DIGITS; i++)
        zeros = cart_grammar_either(c, text(c, "0", zeros), next);
    uint32_t bare = cart_grammar_either(c, text(c, ".0", zeros), next);
    uint32_t most = naturals(c, hi, hi, bare);
    if (lo == hi)
        return most;
    uint32_t some = digits(c, CART_SCHEMA_DIGITS - 1, next);
    uint32_t fraction = text(c, ".", cart_grammar_bytes(c, "09", some));
    return cart_grammar_either(c, naturals(c, lo, hi - 1, cart_grammar_either(c, fraction, next)),
                               most);
}

uint32_t cart_json_decimals(struct cart_constraint *c, int64_t lo, int64_t hi, uint32_t next)
{
    uint32_t above = 0;
    uint32_t below = 0;

    if (hi >= 0)
        above = magnitudes(c, lo > 0 ? (uint64_t)lo : 0, (uint64_t)hi, next);
    if (lo < 0)
        below = text(c, "-", magnitudes(c, hi < 0 ? (uint64_t)-hi : 0, (uint64_t)-lo, next));
    if (hi < 0)
        return below;
    return lo < 0 ? cart_grammar_either(c, above, below) : above;
}

/* ---- formats of strings ---- */

static uint32_t repeat(struct cart_constraint *c, const char *ranges, int n, uint32_t next)
{
    for (int i = 0; i < n; i++)
        next = cart_grammar_bytes(c, ranges, next);
    return next;
}

/* 01 to 28 and, where most is more, up to 30 or 31. */
static uint32_t day(struct cart_constraint *c, int most, uint32_t next)
{
    uint32_t any = cart_grammar_either(c, text(c, "0", cart_grammar_bytes(c, "19", next)),
                                       text(c, "1", cart_grammar_bytes(c, "09", next)));

    any = cart_grammar_either(c, any,
                              text(c, "2", cart_grammar_bytes(c, most > 28 ? "09" : "08", next)));
    if (most > 28)
        any = cart_grammar_either(
            c, any, text(c, "3", cart_grammar_bytes(c, most > 30 ? "01" : "00", next)));
    return any;
}

/* The 29th of February is left out: whether it exists depends on the year. */
static uint32_t date(struct cart_constraint *c, uint32_t next)
{
    uint32_t long_day = text(c, "-", day(c, 31, next));
    uint32_t short_day = text(c, "-", day(c, 30, next));
    uint32_t early = cart_grammar_either(c, cart_grammar_bytes(c, "11335578", long_day),
                                         cart_grammar_bytes(c, "446699", short_day));
    uint32_t late = cart_grammar_either(c, cart_grammar_bytes(c, "0022", long_day),
                                        cart_grammar_bytes(c, "11", short_day));

    early = cart_grammar_either(c, early, text(c, "2-", day(c, 28, next)));
    uint32_t month = cart_grammar_either(c, text(c, "0", early), text(c, "1", late));
    return repeat(c, "09", 4, text(c, "-", month));
}

static uint32_t hours_minutes(struct cart_constraint *c, uint32_t next)
{
    uint32_t minutes = text(c, ":", cart_grammar_bytes(c, "05", cart_grammar_bytes(c, "09", next)));

    return cart_grammar_either(c, cart_grammar_bytes(c, "01", cart_grammar_bytes(c, "09", minutes)),
                               text(c, "2", cart_grammar_bytes(c, "03", minutes)));
}

static uint32_t clock_time(struct cart_constraint *c, uint32_t next)
{
    uint32_t offset = cart_grammar_either(c, text(c, "Z", next),
                                          cart_grammar_bytes(c, "++--", hours_minutes(c, next)));
    uint32_t part = text(c, ".", cart_grammar_bytes(c, "09", digits(c, 5, offset)));
    uint32_t seconds = cart_grammar_bytes(
        c, "05", cart_grammar_bytes(c, "09", cart_grammar_either(c, part, offset)));

    return hours_minutes(c, text(c, ":", seconds));
}

bool cart_json_format(struct cart_constraint *c, const char *name, uint32_t next, uint32_t *node)
{
    uint32_t close = text(c, "\"", next);
    uint32_t at;

    if (strcmp(name, "date") == 0) {
        at = date(c, close);
    } else if (strcmp(name, "time") == 0) {
        at = clock_time(c, close);
    } else if (strcmp(name, "date-time") == 0) {
        at = date(c, text(c, "T", clock_time(c, close)));
    } else if (strcmp(name, "uuid") == 0) {
        at = repeat(c, "09af", 12, close);
        for (int i = 0; i < 3; i++)
            at = repeat(c, "09af", 4, text(c, "-", at));
        at = repeat(c, "09af", 8, text(c, "-", at));
    } else {
        return false;
    }
    *node = text(c, "\"", at);
    return true;
}
