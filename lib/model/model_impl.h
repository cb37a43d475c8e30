/* What the files of the model room share: the private half of a model, and the steps of opening
 * one. */
#ifndef CART_MODEL_MODEL_IMPL_H
#define CART_MODEL_MODEL_IMPL_H

#include "base/arena.h"
#include "format/gguf.h"
#include "model/model.h"
#include "token/chat.h"
#include "token/tokenizer.h"

struct cart_model_priv {
    struct cart_gguf *gguf;
    struct cart_tokenizer *tokenizer;
    struct cart_chat *chat; /* NULL: chat_err says why */
    struct cart_err chat_err;
    struct cart_arena arena; /* norms, biases and rotation factors as f32 */
    bool *used;              /* [tensors] bound so far */
    bool biases;             /* the family may have q, k, v biases */
    bool head_norms;         /* the family has q and k norms */
};

/* family.c: arch, L, D, V, context, eps, rope and each layer's widths from the keys; allocates
 * m->layers. */
int cart_family_read(struct cart_model *m, struct cart_err *err) CART_MUST_USE;

/* bind.c: every weight, with its exact shape; a tensor that nothing uses is an error. */
int cart_bind_weights(struct cart_model *m, struct cart_err *err) CART_MUST_USE;

/* vocabulary.c: tokenizer and chat profile from the keys. */
int cart_vocabulary_read(struct cart_model *m, const char *profile,
                         struct cart_err *err) CART_MUST_USE;

/* fingerprint.c. */
int cart_fingerprints_make(struct cart_model *m, struct cart_err *err) CART_MUST_USE;

#endif
