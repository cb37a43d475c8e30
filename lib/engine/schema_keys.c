/* Keys of an object that are none of those that the schema names. */
#include "engine/schema_impl.h"

#include <stdlib.h>

/* The rest of a key once it has left all names: any characters that need no escape, then the quote.
 */
static uint32_t free_key(struct cart_constraint *c, uint32_t next)
{
    uint32_t loop = cart_grammar_loop(c);
    uint32_t plain = cart_grammar_bytes(c, " !#[]\x7f", loop);

    cart_grammar_close(c, loop, cart_grammar_either(c, plain, cart_json_multibyte(c, loop)),
                       cart_grammar_text(c, "\"", 1, next));
    return loop;
}

/* A place that some names go through, while the names below it are gone over. */
struct key_place {
    uint32_t any;               /* what leads on to longer names, or nowhere */
    struct cart_byte_set other; /* ASCII that no name goes on with */
    bool ends, wide;            /* a name ends here; one goes on with more than ASCII */
};

/* What all places share. */
struct key_ends {
    uint32_t end, leave,
        wide; /* the quote; the rest of a free key; its first character beyond ASCII */
};

static void open_place(struct key_place *p)
{
    *p = (struct key_place){.any = CART_GRAMMAR_NOWHERE};
    cart_byte_set_add(&p->other, ' ', '!');
    cart_byte_set_add(&p->other, '#', '[');
    cart_byte_set_add(&p->other, ']', 0x7f);
}

static uint32_t close_place(struct cart_constraint *c, const struct key_place *p,
                            const struct key_ends *e)
{
    uint32_t any = cart_grammar_either(c, p->any, cart_grammar_set(c, &p->other, e->leave));

    if (!p->wide)
        any = cart_grammar_either(c, any, e->wide);
    return p->ends ? any : cart_grammar_either(c, any, e->end);
}

/* How much of a name is a way of its own: up to more than ASCII, where no free key follows at all,
 * and up to what needs an escape, which no free key has. */
static size_t plain_length(const char *name)
{
    size_t n = 0;

    while ((unsigned char)name[n] >= ' ' && (unsigned char)name[n] < 0x80 && name[n] != '"' &&
           name[n] != '\\')
        n++;
    return n;
}

static size_t shared_length(const char *a, const char *b, size_t most)
{
    size_t n = 0;

    while (n < most && a[n] == b[n])
        n++;
    return n;
}

/* names are sorted, place [longest + 1]. */
static uint32_t other_key(struct cart_constraint *c, const char *const *names, size_t n,
                          struct key_place *place, uint32_t next)
{
    uint32_t leave = free_key(c, next);
    const struct key_ends ends = {cart_grammar_text(c, "\"", 1, next), leave,
                                  cart_json_multibyte(c, leave)};
    size_t open = 0; /* of the name before: the places of so many of its bytes are open */

    open_place(&place[0]);
    for (size_t i = 0; i <= n; i++) {
        size_t length = i < n ? plain_length(names[i]) : 0;
        size_t keep = i > 0 && i < n ? shared_length(names[i - 1], names[i], length) : 0;
        while (open > keep) {
            uint32_t done = close_place(c, &place[open], &ends);
            unsigned char b = (unsigned char)names[i - 1][--open];
            place[open].any =
                cart_grammar_either(c, place[open].any, cart_grammar_range(c, b, b, done));
        }
        if (i == n)
            break;
        for (; open < length; open++) {
            unsigned char b = (unsigned char)names[i][open];
            place[open].other.bits[b / 64] &= ~((uint64_t)1 << (b % 64));
            open_place(&place[open + 1]);
        }
        place[open].ends |= names[i][open] == '\0';
        place[open].wide |= (unsigned char)names[i][open] >= 0x80;
    }
    return close_place(c, &place[0], &ends);
}

int cart_schema_other_key(struct cart_schema *k, const char *const *names, size_t n, uint32_t next,
                          uint32_t *node)
{
    size_t longest = 0;

    for (size_t i = 0; i < n; i++) {
        size_t length = plain_length(names[i]);
        longest = length > longest ? length : longest;
    }
    struct key_place *place = calloc(longest + 1, sizeof *place);
    if (place == NULL)
        return cart_err_memory(k->err, "a schema", (longest + 1) * sizeof *place);
    *node = other_key(k->c, names, n, place, next);
    free(place);
    return 0;
}
