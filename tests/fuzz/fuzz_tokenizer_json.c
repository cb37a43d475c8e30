/* tokenizer.json: {"tokenizer": the file, "rows": tokens of the embedding, "text": ...}. The 256
 * bytes are put into its vocabulary where they are missing, so that small inputs reach far. A file
 * is refused, or it is a vocabulary that gives text back. */
#include "base/json.h"
#include "fuzz/fuzz.h"
#include "helper/vocab.h"
#include "token/tokenizer_json.h"

#include <stdlib.h>
#include <string.h>

static struct test_vocab bytes; /* where the spelling of the 256 bytes comes from */

static void add_bytes(json_t *root)
{
    json_t *vocab = json_object_get(json_object_get(root, "model"), "vocab");
    for (size_t i = 0; json_is_object(vocab) && i < 256; i++) {
        char name[4] = {0};
        memcpy(name, bytes.tokens[i].data, bytes.tokens[i].n);
        if (!json_object_get(vocab, name))
            json_object_set_new(vocab, name, json_integer((json_int_t)i));
    }
}

static void check_text(const struct cart_tokenizer *t, const json_t *text)
{
    struct cart_err err = {0};
    struct cart_buf norm = CART_BUF_INIT, back = CART_BUF_INIT;
    struct cart_ids ids = CART_IDS_INIT;
    struct cart_encode_stats stats = {0};
    const char *s = json_is_string(text) ? json_string_value(text) : "a b";
    size_t n = json_is_string(text) ? json_string_length(text) : 3;
    fuzz_need(cart_tokenizer_encode(t, s, n, 0, &ids, &stats, &err), &err);
    fuzz_need(cart_tokenizer_normalize(t, s, n, &norm, &err), &err);
    fuzz_need(cart_tokenizer_decode(t, ids.data, ids.n, true, &back, &err), &err);
    fuzz_demand(back.len + stats.dropped == norm.len, "all bytes, but for those dropped");
    fuzz_demand(stats.dropped > 0 || fuzz_same(&back, &norm), "the text back");
    ids.n = 0;
    fuzz_need(cart_tokenizer_encode(t, s, n, CART_ENCODE_SPECIAL, &ids, NULL, &err), &err);
    cart_ids_release(&ids);
    cart_buf_release(&back);
    cart_buf_release(&norm);
}

static void check_vocabulary(const struct cart_vocab_json *v, const json_t *text)
{
    struct cart_err err = {0};
    struct cart_tokenizer *t;
    fuzz_demand(v->first == CART_TOKEN_NONE || v->first < v->src.n_tokens,
                "an id of the vocabulary");
    int r = cart_tokenizer_new(&t, &v->src, &err);
    if (r < 0) {
        fuzz_refused(r, &err);
        return;
    }
    check_text(t, text);
    cart_tokenizer_free(t);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    static const char *const one[] = {"a b", NULL};
    struct cart_vocab_json vocab = {0};
    struct cart_err err = {0};
    uint64_t rows = 300;
    json_t *v;
    if (!bytes.t)
        test_vocab_small(&bytes, "smollm", one, NULL, CART_TOKEN_NORMAL);
    char *copy = fuzz_copy(data, n);
    int r = cart_json_parse(&v, copy, n, "input", &err);
    free(copy);
    if (r < 0)
        return 0;
    json_t *root = json_object_get(v, "tokenizer");
    if (root && cart_json_u64_opt(v, "rows", 4096, &rows, "input", NULL) == 0) {
        add_bytes(root);
        r = cart_vocab_json_read(&vocab, root, (size_t)rows, "input", &err);
        if (r < 0) {
            fuzz_refused(r, &err);
        } else {
            const json_t *text = json_object_get(v, "text");
            check_vocabulary(&vocab, text);
            cart_vocab_json_release(&vocab);
        }
    }
    json_decref(v);
    return 0;
}
