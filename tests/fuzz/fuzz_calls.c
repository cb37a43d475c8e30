/* Tool calls as they come: the first byte sets the length of the pieces. However the text is cut,
 * the same call comes out, and the deltas are its arguments. */
#include "fuzz/fuzz.h"
#include "serve/calls.h"

#include <stdlib.h>
#include <string.h>

struct heard {
    struct cart_buf name, arguments, text;
    bool begun, call;
};

static void hear(struct heard *h, const struct cart_call_scan *s, const struct cart_call_delta *d)
{
    if (d->begun) {
        fuzz_demand(!h->begun && s->name.len > 0, "one beginning with a name");
        fuzz_demand(cart_buf_add(&h->name, s->name.data, s->name.len, NULL) == 0, "memory");
    }
    h->begun |= d->begun;
    fuzz_demand(d->n == 0 || h->begun, "a beginning before arguments");
    fuzz_demand(cart_buf_add(&h->arguments, d->arguments, d->n, NULL) == 0, "memory");
}

static void listen(struct heard *h, const char *text, size_t n, size_t piece, bool closed)
{
    struct cart_call_scan s = {0};
    struct cart_call_delta d;
    struct cart_err err = {0};
    for (size_t at = 0; at < n; at += piece) {
        fuzz_need(cart_call_push(&s, text + at, piece < n - at ? piece : n - at, &d, &err), &err);
        hear(h, &s, &d);
    }
    h->call = cart_call_finish(&s, closed, &d);
    if (h->call)
        hear(h, &s, &d);
    else
        fuzz_demand(!h->begun, "no call that was begun to be none");
    fuzz_demand(cart_buf_add(&h->text, s.text.data, s.text.len, NULL) == 0, "memory");
    cart_call_release(&s);
}

static void release(struct heard *h)
{
    cart_buf_release(&h->name);
    cart_buf_release(&h->arguments);
    cart_buf_release(&h->text);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    struct heard whole = {0}, cut = {0};
    if (n == 0)
        return 0;
    char *copy = fuzz_copy(data + 1, n - 1);
    bool closed = data[0] & 1;
    listen(&whole, copy, n - 1, n, closed);
    listen(&cut, copy, n - 1, 1 + (data[0] >> 1) % 16u, closed);
    fuzz_demand(whole.call == cut.call && fuzz_same(&whole.name, &cut.name) &&
                    fuzz_same(&whole.arguments, &cut.arguments) &&
                    fuzz_same(&whole.text, &cut.text),
                "the same call however it is cut");
    release(&whole);
    release(&cut);
    free(copy);
    return 0;
}
