/* Models: metadata, weights, vocabulary and template of a GGUF file. What opens names every weight it has. */
#include "fuzz/fuzz.h"
#include "token/chat.h"
#include "token/tokenizer.h"

#include <string.h>

static volatile float sink;

static void touch(const struct cart_matrix *w)
{
    const unsigned char *p = w->data;
    size_t bytes = w->row_bytes * w->N;
    sink += (float)(p[0] + p[bytes - 1]);
}

static void walk(const struct cart_model *m)
{
    const struct cart_chat *chat;
    struct cart_ids ids = CART_IDS_INIT;
    struct cart_err err = {0};
    touch(&m->embed);
    touch(&m->head);
    for (size_t l = 0; l < m->L; l++) {
        const struct cart_layer *y = &m->layers[l];
        const struct cart_matrix *all[] = {&y->wq,     &y->wk,   &y->wv,    &y->wo,
                                           &y->w_gate, &y->w_up, &y->w_down};
        for (size_t i = 0; i < CART_COUNTOF(all); i++)
            touch(all[i]);
        fuzz_demand(y->H % y->HK == 0 && y->DH > 0 && y->F > 0, "heads that fit each other");
        sink += y->attn_norm[m->D - 1] + y->ffn_norm[0];
    }
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
