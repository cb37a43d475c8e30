/* JSON schemas compiled to constraints: {"schema": ..., "text": ..., "choices": ...}. A schema is
 * refused, or its automaton follows any text, masks agree with what may be fed, and an answer made
 * of allowed tokens is JSON. */
#include "engine/constraint.h"
#include "fuzz/fuzz.h"
#include "helper/vocab.h"

#include <stdlib.h>
#include <string.h>

#define STEPS_MAX ((size_t)64)

static const char *const merges[] = {"{ \"", "\" :", "t r", "u e", "tr ue", "1 2", "\" }", NULL};
static struct test_vocab vocab;
static struct cart_lexicon *lexicon;

static void prepare(void)
{
    struct cart_err err = {0};
    test_vocab_small(&vocab, "qwen2", merges, NULL, CART_TOKEN_NORMAL);
    fuzz_need(cart_lexicon_new(&lexicon, vocab.t, &err), &err);
}

/* JSON, though an automaton cannot see that a map repeats a name. */
static void check_answer(const char *text, size_t n)
{
    json_t *v = json_loadb(text, n, JSON_DECODE_ANY | JSON_ALLOW_NUL, NULL);
    fuzz_demand(v != NULL, "an answer in JSON");
    json_decref(v);
}

/* The text as bytes, as far as the automaton goes with it. */
static void feed(struct cart_constraint *c, const json_t *text)
{
    struct cart_err err = {0};
    uint32_t state = cart_constraint_start(c);
    const uint64_t *mask;
    bool complete = false;
    if (!json_is_string(text))
        return;
    int r = cart_constraint_feed(c, state, json_string_value(text), json_string_length(text),
                                 &state, &err);
    if (r < 0) {
        fuzz_refused(r, &err);
        return;
    }
    if (state == CART_CONSTRAINT_DEAD)
        return;
    if ((r = cart_constraint_mask(c, state, &mask, &complete, &err)) < 0)
        fuzz_refused(r, &err);
    else if (complete)
        check_answer(json_string_value(text), json_string_length(text));
}

/* The k-th allowed token counted from a place, or V. */
static size_t allowed(const uint64_t *mask, size_t from)
{
    size_t V = cart_tokenizer_size(vocab.t);
    for (size_t i = 0; i < V; i++) {
        size_t id = (from + i) % V;
        if (mask[id / 64] >> id % 64 & 1)
            return id;
    }
    return V;
}

/* An answer of allowed tokens, chosen by bytes. */
static void make(struct cart_constraint *c, const char *choices, size_t n)
{
    struct cart_err err = {0};
    struct cart_buf text = CART_BUF_INIT;
    uint32_t state = cart_constraint_start(c), next;
    const uint64_t *mask;
    bool complete = false;
    for (size_t i = 0; i < STEPS_MAX; i++) {
        int r = cart_constraint_mask(c, state, &mask, &complete, &err);
        if (r < 0) {
            fuzz_refused(r, &err);
            break;
        }
        size_t id = allowed(mask, i < n ? (unsigned char)choices[i] : 34);
        fuzz_demand(id < cart_tokenizer_size(vocab.t) || complete, "a way on, or an end");
        if (id == cart_tokenizer_size(vocab.t) || (complete && i >= n))
            break;
        fuzz_need(cart_constraint_advance(c, state, (uint32_t)id, &next, &err), &err);
        fuzz_demand(next != CART_CONSTRAINT_DEAD, "a state after a token of the mask");
        struct cart_text s = cart_tokenizer_bytes(vocab.t, (uint32_t)id);
        fuzz_demand(cart_buf_add(&text, s.data, s.n, NULL) == 0, "memory");
        state = next;
    }
    if (cart_constraint_mask(c, state, &mask, &complete, &err) == 0 && complete)
        check_answer(text.data ? text.data : "", text.len);
    cart_buf_release(&text);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    struct cart_err err = {0};
    struct cart_constraint *c;
    json_t *v;
    if (!lexicon)
        prepare();
    char *copy = fuzz_copy(data, n);
    int r = cart_json_parse(&v, copy, n, "input", &err);
    free(copy);
    if (r < 0)
        return 0;
    const json_t *choices = json_object_get(v, "choices"), *schema = json_object_get(v, "schema");
    if (schema) {
        r = cart_constraint_schema(&c, lexicon, schema, "schema", &err);
        if (r < 0) {
            fuzz_refused(r, &err);
        } else {
            feed(c, json_object_get(v, "text"));
            make(c, json_is_string(choices) ? json_string_value(choices) : "",
                 json_string_length(choices));
            cart_constraint_free(c);
        }
    }
    json_decref(v);
    return 0;
}
