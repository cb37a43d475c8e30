/* Cheap identities: a start must not hash gigabytes, and a run must not mix models. */
#include "base/hash.h"
#include "model/model_impl.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

static void hex_of(const unsigned char digest[16], char out[33])
{
    cart_hex(out, digest, 16);
}

/* Whatever decides the shape and meaning of a KV row, as text. */
static int geometry(struct cart_model *m, struct cart_err *err)
{
    struct cart_buf b = CART_BUF_INIT;
    uint64_t base = 0, scale = 0;
    memcpy(&base, &m->rope.base, sizeof base);
    memcpy(&scale, &m->rope.scale, sizeof scale);
    int r = cart_buf_addf(
        &b, err, "%s L %zu D %zu V %zu eps %a rope %zu base %" PRIx64 " scale %" PRIx64 "\n",
        m->arch, m->L, m->D, m->V, (double)m->eps, m->rope.n_rot, base, scale);
    for (size_t j = 0; r == 0 && m->rope.factor && j < m->rope.n_rot / 2; j++)
        r = cart_buf_addf(&b, err, "factor %a\n", (double)m->rope.factor[j]);
    for (size_t i = 0; r == 0 && i < m->L; i++) {
        const struct cart_layer *l = &m->layers[i];
        r = cart_buf_addf(&b, err, "H %zu HK %zu DH %zu window %zu\n", l->H, l->HK, l->DH,
                          l->window);
    }
    if (r == 0) {
        unsigned char digest[16];
        cart_hash_bytes(b.data, b.len, digest);
        hex_of(digest, m->fp.geometry);
    }
    cart_buf_release(&b);
    return r;
}

/* Keys and tensor table, and of each tensor the first, middle and last kibibyte. */
static int weights(struct cart_model *m, struct cart_err *err)
{
    enum { SAMPLE = 1024 };
    const struct cart_gguf *g = m->priv->gguf;
    struct cart_hash *h = cart_hash_new();
    if (!h)
        return cart_err_memory(err, "hash state", 0);
    size_t n = 0;
    const unsigned char *header = cart_gguf_header(g, &n);
    cart_hash_add(h, header, n);
    for (size_t i = 0; i < cart_gguf_n_tensors(g); i++) {
        const struct cart_gguf_tensor *t = cart_gguf_tensor_at(g, i);
        if (t->bytes <= 3 * SAMPLE) {
            cart_hash_add(h, t->data, t->bytes);
            continue;
        }
        cart_hash_add(h, t->data, SAMPLE);
        cart_hash_add(h, t->data + (t->bytes - SAMPLE) / 2, SAMPLE);
        cart_hash_add(h, t->data + t->bytes - SAMPLE, SAMPLE);
    }
    unsigned char digest[16];
    cart_hash_final(h, digest);
    cart_hash_free(h);
    hex_of(digest, m->fp.weights);
    return 0;
}

int cart_fingerprints_make(struct cart_model *m, struct cart_err *err)
{
    snprintf(m->fp.tokenizer, sizeof m->fp.tokenizer, "%s",
             cart_tokenizer_fingerprint(m->priv->tokenizer));
    if (m->priv->chat) {
        char text[128];
        int n = snprintf(text, sizeof text, "%s %s", cart_chat_digest(m->priv->chat),
                         cart_chat_profile(m->priv->chat));
        unsigned char digest[16];
        cart_hash_bytes(text, (size_t)n, digest);
        hex_of(digest, m->fp.chat);
    }
    int r = geometry(m, err);
    return r < 0 ? r : weights(m, err);
}

json_t *cart_fingerprints_json(const struct cart_fingerprints *fp)
{
    return json_pack("{s:s, s:s, s:s, s:s}", "geometry", fp->geometry, "tokenizer", fp->tokenizer,
                     "template", fp->chat, "weights", fp->weights);
}

int cart_fingerprints_check(const struct cart_model *m, const json_t *fp, bool allow_other_weights,
                            const char *what, struct cart_err *err)
{
    const struct {
        const char *key, *mine, *hint;
        bool strict;
    } parts[] = {
        {"geometry", m->fp.geometry, "made for another model", true},
        {"tokenizer", m->fp.tokenizer, "made with another tokenizer", true},
        {"template", m->fp.chat, "made with another chat template", true},
        {"weights", m->fp.weights,
         "made with other weights of this model (--allow-other-weights accepts them)",
         !allow_other_weights},
    };
    if (!json_is_object(fp))
        return cart_err_set(err, CART_EFORMAT, "%s: no fingerprints of a model", what);
    for (size_t i = 0; i < CART_COUNTOF(parts); i++) {
        const char *found = "";
        int r = cart_json_string_opt(fp, parts[i].key, &found, what, err);
        if (r < 0)
            return r;
        bool both = *found && *parts[i].mine;
        if (both && parts[i].strict && strcmp(found, parts[i].mine) != 0)
            return cart_err_set(err, CART_EMATCH, "%s: %s: %s fingerprint: expected %s, found %s",
                                what, parts[i].hint, parts[i].key, parts[i].mine, found);
        if (!*found && i < 2)
            return cart_err_set(err, CART_EFORMAT, "%s: %s fingerprint: missing", what,
                                parts[i].key);
    }
    return 0;
}
