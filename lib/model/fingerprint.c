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

static void hash_u64(struct cart_hash *h, uint64_t v)
{
    unsigned char bytes[8];
    for (size_t i = 0; i < sizeof bytes; i++)
        bytes[i] = (unsigned char)(v >> 8 * i);
    cart_hash_add(h, bytes, sizeof bytes);
}

/* n bytes of a matrix from byte at on, rows in the order that they are counted in. */
static void hash_part(struct cart_hash *h, const struct cart_matrix *w, size_t at, size_t n)
{
    while (n > 0) {
        size_t in_row = at % w->row_bytes, left = w->row_bytes - in_row, take = left < n ? left : n;
        cart_hash_add(h, cart_matrix_row(w, at / w->row_bytes) + in_row, take);
        at += take;
        n -= take;
    }
}

/* Type and shape, and the first, middle and last kibibyte. */
static void hash_matrix(struct cart_hash *h, const struct cart_matrix *w)
{
    enum { SAMPLE = 1024 };
    size_t bytes = w->N * w->row_bytes;
    hash_u64(h, (uint64_t)w->dtype);
    hash_u64(h, w->N);
    hash_u64(h, w->K);
    if (bytes <= 3 * SAMPLE) {
        hash_part(h, w, 0, bytes);
        return;
    }
    hash_part(h, w, 0, SAMPLE);
    hash_part(h, w, (bytes - SAMPLE) / 2, SAMPLE);
    hash_part(h, w, bytes - SAMPLE, SAMPLE);
}

/* Values as they are computed with, which files store as F32 or narrower. */
static void hash_vector(struct cart_hash *h, const float *v, size_t n)
{
    hash_u64(h, v ? n : 0);
    if (v)
        cart_hash_add(h, v, n * sizeof *v);
}

/* The bound weights, in an order of ours: the same for every file that holds them, whatever it is
 * called, says beside them, or keeps them in. */
int cart_fingerprint_weights(const struct cart_model *m, char out[33], struct cart_err *err)
{
    struct cart_hash *h = cart_hash_new();
    if (!h)
        return cart_err_memory(err, "hash state", 0);
    hash_matrix(h, &m->embed);
    hash_matrix(h, &m->head);
    hash_vector(h, m->out_norm, m->D);
    for (size_t i = 0; i < m->L; i++) {
        const struct cart_layer *l = &m->layers[i];
        const struct cart_matrix *const w[] = {&l->wq,     &l->wk,   &l->wv,    &l->wo,
                                               &l->w_gate, &l->w_up, &l->w_down};
        hash_vector(h, l->attn_norm, m->D);
        hash_vector(h, l->ffn_norm, m->D);
        hash_vector(h, l->q_norm, l->DH);
        hash_vector(h, l->k_norm, l->DH);
        hash_vector(h, l->q_bias, l->H * l->DH);
        hash_vector(h, l->k_bias, cart_layer_kv_width(l));
        hash_vector(h, l->v_bias, cart_layer_kv_width(l));
        for (size_t k = 0; k < CART_COUNTOF(w); k++)
            hash_matrix(h, w[k]);
    }
    unsigned char digest[16];
    cart_hash_final(h, digest);
    cart_hash_free(h);
    hex_of(digest, out);
    return 0;
}

/* Of a template, by its digest, as a profile writes it. */
static void template_of(const struct cart_chat *chat, const char *profile, char out[33])
{
    char text[128];
    unsigned char digest[16];
    int n = snprintf(text, sizeof text, "%s %s", cart_chat_digest(chat), profile);
    cart_hash_bytes(text, (size_t)n, digest);
    hex_of(digest, out);
}

/* The profile under which the model's template has this fingerprint, or NULL. */
static const char *profile_of(const struct cart_model *m, const char *found)
{
    const char *name = NULL;
    for (size_t i = 0; m->priv->chat && (name = cart_chat_profile_at(i)) != NULL; i++) {
        char of[33];
        template_of(m->priv->chat, name, of);
        if (strcmp(of, found) == 0)
            break;
    }
    return name;
}

int cart_fingerprints_make(struct cart_model *m, struct cart_err *err)
{
    snprintf(m->fp.tokenizer, sizeof m->fp.tokenizer, "%s",
             cart_tokenizer_fingerprint(m->priv->tokenizer));
    if (m->priv->chat)
        template_of(m->priv->chat, cart_chat_profile(m->priv->chat), m->fp.chat);
    return geometry(m, err);
}

int cart_fingerprints_hold(const struct cart_model *m, struct cart_err *err)
{
    char now[33];
    int r = cart_fingerprint_weights(m, now, err);
    return r < 0 ? r : strcmp(now, m->fp.weights) == 0;
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
        const char *profile = both && parts[i].mine == m->fp.chat ? profile_of(m, found) : NULL;
        if (profile && strcmp(found, parts[i].mine) != 0)
            return cart_err_set(err, CART_EMATCH,
                                "%s: made with another chat profile: expected %s, found %s, which "
                                "--profile %s asks for",
                                what, cart_chat_profile(m->priv->chat), profile, profile);
        if (both && parts[i].strict && strcmp(found, parts[i].mine) != 0)
            return cart_err_set(err, CART_EMATCH, "%s: %s: %s fingerprint: expected %s, found %s",
                                what, parts[i].hint, parts[i].key, parts[i].mine, found);
        if (!*found && i < 2)
            return cart_err_set(err, CART_EFORMAT, "%s: %s fingerprint: missing", what,
                                parts[i].key);
    }
    return 0;
}
