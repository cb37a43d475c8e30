/* GGUF containers: whatever is accepted can be walked whole. */
#include "format/gguf.h"
#include "fuzz/fuzz.h"

#include <stdlib.h>
#include <string.h>

static volatile unsigned sink;

static void touch(const void *p, size_t n)
{
    const unsigned char *s = p;
    unsigned sum = 0;
    for (size_t i = 0; i < n; i++)
        sum += s[i];
    sink += sum;
}

static void walk_array(const struct cart_gguf *g, const char *key)
{
    struct cart_err err = {0};
    struct cart_gguf_array a = {.data = NULL};
    int r = cart_gguf_array(g, key, CART_GGUF_SET_INT | CART_GGUF_SET(CART_GGUF_BOOL), &a, &err);
    for (size_t i = 0; r == 0 && i < a.n; i++)
        sink += (unsigned)cart_gguf_array_i64(&a, i);
    if (r < 0)
        fuzz_refused(r, &err);
    if ((r = cart_gguf_array(g, key, CART_GGUF_SET_REAL, &a, &err)) < 0)
        fuzz_refused(r, &err);
    else
        touch(a.data, a.bytes);
    if ((r = cart_gguf_array(g, key, CART_GGUF_SET(CART_GGUF_STRING), &a, &err)) < 0)
        fuzz_refused(r, &err);
    const unsigned char *cursor = a.data;
    for (size_t i = 0; r == 0 && i < a.n; i++) {
        struct cart_gguf_str s = cart_gguf_string_next(&cursor);
        touch(s.data, s.len);
    }
}

/* Every look-up of one key: it gives a value or a refusal. */
static void walk_key(const struct cart_gguf *g, const struct cart_gguf_key *k)
{
    struct cart_err err = {0};
    struct cart_gguf_str s;
    char name[128];
    uint64_t u;
    double x;
    bool b;
    int r;
    touch(k->name.data, k->name.len);
    touch(k->value, k->bytes);
    if (k->name.len >= sizeof name)
        return;
    for (size_t i = 0; i < k->name.len; i++) {
        /* A caller's word stands in messages as it is. */
        if ((unsigned char)k->name.data[i] < 0x20 || k->name.data[i] == 0x7f)
            return;
    }
    memcpy(name, k->name.data, k->name.len);
    name[k->name.len] = '\0';
    fuzz_demand(cart_gguf_find(g, name) == k, "a key to be found by its name");
    if ((r = cart_gguf_u64(g, name, 1000, &u, &err)) < 0)
        fuzz_refused(r, &err);
    else
        fuzz_demand(u <= 1000, "a number within its range");
    if ((r = cart_gguf_real(g, name, &x, &err)) < 0)
        fuzz_refused(r, &err);
    else
        fuzz_demand(x - x == 0, "a finite number");
    if ((r = cart_gguf_bool_opt(g, name, &b, &err)) < 0)
        fuzz_refused(r, &err);
    if ((r = cart_gguf_string(g, name, &s, &err)) < 0)
        fuzz_refused(r, &err);
    else
        touch(s.data, s.len);
    walk_array(g, name);
}

static void walk(const struct cart_gguf *g)
{
    size_t bytes;
    const unsigned char *header = cart_gguf_header(g, &bytes);
    touch(header, bytes);
    fuzz_demand(bytes <= cart_gguf_size(g), "a header inside the file");
    for (size_t i = 0; i < cart_gguf_n_keys(g); i++)
        walk_key(g, cart_gguf_key_at(g, i));
    for (size_t i = 0; i < cart_gguf_n_tensors(g); i++) {
        const struct cart_gguf_tensor *t = cart_gguf_tensor_at(g, i);
        char name[64];
        touch(t->data, t->bytes);
        fuzz_demand(t->name.len < sizeof name && cart_gguf_tensor_type(t->type) != NULL,
                    "a short name and a known type");
        memcpy(name, t->name.data, t->name.len);
        name[t->name.len] = '\0';
        fuzz_demand(cart_gguf_tensor(g, name) == t, "a tensor to be found by its name");
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    struct cart_err err = {0};
    struct cart_gguf *g;
    void *copy = fuzz_copy(data, n);
    int r = cart_gguf_parse(&g, copy, n, "input", &err);
    if (r < 0) {
        fuzz_refused(r, &err);
    } else {
        walk(g);
        cart_gguf_close(g);
    }
    free(copy);
    return 0;
}
