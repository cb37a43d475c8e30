/* What the files of the model room share: the private half of a model, and the steps of opening
 * one. */
#ifndef CART_MODEL_MODEL_IMPL_H
#define CART_MODEL_MODEL_IMPL_H

#include "base/arena.h"
#include "model/checkpoint.h"
#include "model/model.h"
#include "tensor/attention.h"
#include "token/chat.h"
#include "token/tokenizer_json.h"

struct cart_model_priv {
    struct cart_checkpoint source;
    struct cart_vocab_json vocab; /* of a hub directory; else zero */
    struct cart_tokenizer *tokenizer;
    struct cart_chat *chat; /* NULL: chat_err says why */
    struct cart_err chat_err;
    struct cart_arena arena; /* norms, biases and rotation factors as f32 */
    float *factors;          /* [n_rot / 2] rotation factors of a hub directory, or NULL */
    bool *used;              /* [tensors] bound so far */
    bool biases;             /* the family may have q, k, v biases */
    bool head_norms;         /* the family has q and k norms */
    bool tied;               /* a hub directory says that the head is the embedding */
};

/* What a family is beside its widths. Adding one: a row in families[] of family.c. */
struct cart_family {
    const char *arch, *hub_class; /* "llama", "LlamaForCausalLM" */
    enum cart_rope_order rope;
    bool biases, head_norms;
};

/* Limits on what a file may ask for; real models are far below. */
enum { CART_MAX_LAYERS = 1024, CART_MAX_HEADS = 1024, CART_MAX_HEAD_DIM = CART_ATTN_HEAD_MAX };
#define CART_MAX_WIDTH ((uint64_t)1 << 20)
#define CART_MAX_CONTEXT ((uint64_t)1 << 24)

/* The family of that name: sets m->arch and what the family decides. CART_EFORMAT names another. */
int cart_family_find(struct cart_model *m, const char *arch, size_t n,
                     const struct cart_family **out, struct cart_err *err) CART_MUST_USE;

/* family.c and family_hub.c: arch, L, D, context, eps, rope and each layer's widths from the keys
 * of a GGUF file, or from config.json; allocate m->layers. */
int cart_family_read(struct cart_model *m, struct cart_err *err) CART_MUST_USE;
int cart_family_read_hub(struct cart_model *m, struct cart_err *err) CART_MUST_USE;

/* bind.c: V, which the rows of the embedding say; then every weight, with its exact shape; a tensor
 * that nothing uses is an error. */
int cart_bind_size(struct cart_model *m, struct cart_err *err) CART_MUST_USE;
int cart_bind_weights(struct cart_model *m, struct cart_err *err) CART_MUST_USE;

/* vocabulary.c and vocabulary_hub.c: tokenizer and chat profile from the keys, or from
 * tokenizer.json, tokenizer_config.json and generation_config.json. */
int cart_vocabulary_read(struct cart_model *m, const char *profile,
                         struct cart_err *err) CART_MUST_USE;
int cart_vocabulary_read_hub(struct cart_model *m, const char *profile,
                             struct cart_err *err) CART_MUST_USE;

/* The end of both: the chat profile of a template (n bytes; NULL: there is none). */
int cart_vocabulary_chat(struct cart_model *m, const char *text, size_t n, const char *profile,
                         struct cart_err *err) CART_MUST_USE;

/* fingerprint.c: that of the weights, once they are bound; then the others. */
int cart_fingerprint_weights(const struct cart_model *m, char out[33],
                             struct cart_err *err) CART_MUST_USE;
int cart_fingerprints_make(struct cart_model *m, struct cart_err *err) CART_MUST_USE;
/* Whether (1 or 0) the weights, as they are mapped now, still have their fingerprint. */
int cart_fingerprints_hold(const struct cart_model *m, struct cart_err *err) CART_MUST_USE;

#endif
