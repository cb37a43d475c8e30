/* Models: metadata, weights, vocabulary and template of a GGUF file. What opens names every weight
 * it has. */
#include "fuzz/fuzz.h"
#include "token/chat.h"
#include "token/tokenizer.h"

#include <string.h>

static void walk(const struct cart_model *m)
{
    const struct cart_chat *chat;
    struct cart_ids ids = CART_IDS_INIT;
    struct cart_err err = {0};
    fuzz_forward(m);
    fuzz_demand(cart_tokenizer_size(cart_model_tokenizer(m)) == m->V, "one token a row");
    fuzz_need(cart_tokenizer_encode(cart_model_tokenizer(m), "Hi <|im_end|>", 13,
                                    CART_ENCODE_SPECIAL, &ids, NULL, &err),
              &err);
    for (size_t i = 0; i < ids.n; i++)
        fuzz_demand(ids.data[i] < m->V, "ids of the vocabulary");
    int r = cart_model_chat(m, &chat, &err);
    if (r < 0)
        fuzz_refused(r, &err);
    cart_ids_release(&ids);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    struct cart_err err = {0};
    struct cart_model *m;
    int r = cart_model_open(&m, fuzz_file(0, data, n), NULL, &err);
    if (r < 0) {
        fuzz_refused(r, &err);
        return 0;
    }
    walk(m);
    cart_model_close(m);
    return 0;
}
