/* A frozen language model: a descriptor read from its metadata and its weights, bound in place in
 * mapped files: a GGUF file, or a directory of the hub (config.json, tokenizer.json, SafeTensors).
 * Where both hold the same weights every result is the same, bit for bit. One forward and one
 * backward serve every family; a family is a reader of metadata (family.c) and, at most, a new
 * block. Read-only after cart_model_open: any number of threads and streams share it.
 * lib/model/README.md has the maths. */
#ifndef CART_MODEL_MODEL_H
#define CART_MODEL_MODEL_H

#include "base/json.h"
#include "base/pool.h"
#include "tensor/matmul.h"
#include "tensor/ops.h"

struct cart_tokenizer;
struct cart_chat;

/* One transformer layer. Weights are [out, in]; pointers that a family lacks are NULL. */
struct cart_layer {
    size_t H, HK, DH, F;               /* query heads, KV heads, head width, feed-forward width */
    size_t window;                     /* keys a query sees, itself included; 0: all */
    float scale;                       /* of q . k */
    const float *attn_norm, *ffn_norm; /* [D] */
    const float *q_norm, *k_norm;      /* [DH], per head */
    const float *q_bias, *k_bias, *v_bias;   /* [H DH], [HK DH], [HK DH] */
    struct cart_matrix wq, wk, wv, wo;       /* [H DH, D], [HK DH, D], [HK DH, D], [D, H DH] */
    struct cart_matrix w_gate, w_up, w_down; /* [F, D], [F, D], [D, F] */
};

struct cart_fingerprints {
    char geometry[33];  /* widths, heads, layers, rotation, vocabulary size: rows of one fit the
                           other */
    char tokenizer[33]; /* vocabulary, merges, types, special ids */
    char chat[33];      /* chat template text and profile */
    char weights[33];   /* type, shape and sampled blocks of each weight: cheap, not a hash of the
                           file, and the same for every file that holds them */
};

struct cart_model {
    const char *path, *arch, *name; /* owned; name is general.name or "" */
    size_t L, D, V, context;        /* context: trained length, in tokens */
    float eps;
    struct cart_rope rope;
    struct cart_layer *layers;      /* [L] */
    struct cart_matrix embed, head; /* [V, D]; head is embed where tied */
    const float *out_norm;          /* [D] */
    struct cart_fingerprints fp;
    struct cart_model_priv *priv;
};

struct cart_model_options {
    const char
        *profile; /* chat profile by name, in place of the one chosen by the template; NULL */
    struct cart_pool *pool; /* helps, where there is one: weights are mapped in while the vocabulary
                               is read; NULL */
};

/* Maps path (a GGUF file; a directory, its config.json or its index), reads and checks everything,
 * binds weights, builds tokenizer and rotation table. opt may be NULL. CART_EFORMAT names the file
 * and the key or tensor. */
int cart_model_open(struct cart_model **out, const char *path, const struct cart_model_options *opt,
                    struct cart_err *err) CART_MUST_USE;
void cart_model_close(struct cart_model *m);

/* As a tool begins: a pool of so many threads, and the model opened with its help. profile may be
 * NULL. */
int cart_model_open_pooled(struct cart_model **out, struct cart_pool **pool, const char *path,
                           const char *profile, size_t threads, struct cart_err *err) CART_MUST_USE;

/* CART_EAGAIN where a file of the weights was written since it was opened: what was computed with
 * them may be of neither. Whoever keeps a result under the model's fingerprints asks first. */
int cart_model_unchanged(const struct cart_model *m, struct cart_err *err) CART_MUST_USE;
/* What a run with m failed of: r, or CART_EAGAIN in place of CART_EFORMAT where the model is no
 * longer unchanged, since numbers that are not finite are then its fault and not the input's. m may
 * be NULL. */
int cart_model_cause(const struct cart_model *m, int r, struct cart_err *err) CART_MUST_USE;

const struct cart_tokenizer *cart_model_tokenizer(const struct cart_model *m);
/* The chat profile, or CART_EFORMAT with the fingerprint of a template that no profile knows. */
int cart_model_chat(const struct cart_model *m, const struct cart_chat **out,
                    struct cart_err *err) CART_MUST_USE;

/* Values per row of one layer's keys (or values): HK * DH. */
static inline size_t cart_layer_kv_width(const struct cart_layer *l)
{
    return l->HK * l->DH;
}

/* {"geometry": ..., "tokenizer": ..., "template": ..., "weights": ...} as streams and cartridges
 * carry it. New reference. */
json_t *cart_fingerprints_json(const struct cart_fingerprints *fp);

/* CART_EMATCH unless head["model"] (an object of the above) fits m: geometry and tokenizer always,
 * template where both have one, weights unless allow_other_weights. what names the input. */
int cart_fingerprints_check(const struct cart_model *m, const json_t *fp, bool allow_other_weights,
                            const char *what, struct cart_err *err) CART_MUST_USE;

#endif
