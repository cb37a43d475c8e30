#include "model/model_impl.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

static int read_name(struct cart_model *m, struct cart_err *err)
{
    struct cart_gguf_str name = {"", 0};
    const struct cart_gguf *g = m->priv->source.gguf;
    int r = g ? cart_gguf_string_opt(g, "general.name", &name, err) : 0;
    if (r < 0)
        return r;
    m->name = strndup(name.data, name.len);
    return m->name ? 0 : cart_err_memory(err, "model name", name.len);
}

/* What can be read side by side. */
enum { VOCABULARY, WEIGHTS, N_PARTS };

struct parts {
    struct cart_model *m;
    const char *profile;
    bool ahead;        /* there is another thread */
    atomic_bool ready; /* the vocabulary is: nothing is done ahead any more */
    int r[N_PARTS];
    struct cart_err err[N_PARTS];
};

/* Pages that a matrix lies on are mapped by reading from each. */
static void touch(const struct cart_matrix *w, atomic_bool *until)
{
    enum { PAGE = 4096 };
    const volatile unsigned char *bytes = w->data;
    size_t n = w->N * w->row_bytes;
    for (size_t i = 0; i < n && !atomic_load_explicit(until, memory_order_relaxed); i += PAGE)
        (void)bytes[i];
}

/* The first forward would wait for every page of the weights, which is a tenth of the time of a
 * short prompt: a thread that has nothing else to do maps them, in the order of their use. */
static void touch_weights(const struct cart_model *m, atomic_bool *until)
{
    for (size_t i = 0; i < m->L; i++) {
        const struct cart_layer *l = &m->layers[i];
        const struct cart_matrix *const w[] = {&l->wq,     &l->wk,   &l->wv,    &l->wo,
                                               &l->w_gate, &l->w_up, &l->w_down};
        for (size_t k = 0; k < CART_COUNTOF(w); k++)
            touch(w[k], until);
    }
    touch(&m->head, until);
}

static void read_part(void *ctx, size_t unit, size_t worker)
{
    struct parts *p = ctx;
    struct cart_model *m = p->m;
    struct cart_err *err = &p->err[unit];
    (void)worker;
    if (unit == VOCABULARY) {
        p->r[unit] = m->priv->source.hub ? cart_vocabulary_read_hub(m, p->profile, err)
                                         : cart_vocabulary_read(m, p->profile, err);
        atomic_store(&p->ready, true);
        return;
    }
    p->r[unit] = cart_bind_weights(m, err);
    if (p->r[unit] == 0)
        p->r[unit] = cart_fingerprint_weights(m, m->fp.weights, err);
    if (p->r[unit] == 0 && p->ahead)
        touch_weights(m, &p->ready);
}

static int read_parts(struct cart_model *m, const struct cart_model_options *opt,
                      struct cart_err *err)
{
    struct cart_pool *pool = opt ? opt->pool : NULL;
    struct parts p = {
        .m = m, .profile = opt ? opt->profile : NULL, .ahead = pool && cart_pool_threads(pool) > 1};
    if (p.ahead) {
        cart_pool_run(pool, N_PARTS, read_part, &p);
    } else {
        read_part(&p, WEIGHTS, 0);
        if (p.r[WEIGHTS] == 0)
            read_part(&p, VOCABULARY, 0);
    }
    size_t failed = p.r[WEIGHTS] < 0 ? WEIGHTS : VOCABULARY;
    if (p.r[failed] < 0 && err)
        *err = p.err[failed];
    return p.r[failed];
}

static int open_parts(struct cart_model *m, const struct cart_model_options *opt,
                      struct cart_err *err)
{
    int r = cart_checkpoint_open(&m->priv->source, m->path, err);
    if (r < 0)
        return r;
    r = m->priv->source.hub ? cart_family_read_hub(m, err) : cart_family_read(m, err);
    if (r == 0)
        r = read_name(m, err);
    if (r == 0)
        r = cart_bind_size(m, err);
    if (r == 0)
        r = read_parts(m, opt, err);
    if (r == 0)
        r = cart_fingerprints_make(m, err);
    return r;
}

int cart_model_open(struct cart_model **out, const char *path, const struct cart_model_options *opt,
                    struct cart_err *err)
{
    struct cart_model *m = calloc(1, sizeof *m);
    if (m) {
        m->priv = calloc(1, sizeof *m->priv);
        m->path = strdup(path);
    }
    if (!m || !m->priv || !m->path) {
        cart_model_close(m);
        return cart_err_memory(err, "model", sizeof *m);
    }
    struct cart_err why;
    const char *touched;
    int r = open_parts(m, opt, err);
    if (r == CART_EFORMAT &&
        cart_checkpoint_unchanged(&m->priv->source, &touched, &why) == CART_EAGAIN)
        r = cart_err_set(err, CART_EAGAIN, "%s", why.msg);
    if (r < 0) {
        cart_model_close(m);
        return r;
    }
    *out = m;
    return 0;
}

int cart_model_open_pooled(struct cart_model **out, struct cart_pool **pool, const char *path,
                           const char *profile, size_t threads, struct cart_err *err)
{
    struct cart_model_options opt = {.profile = profile};
    int r = cart_pool_new(&opt.pool, threads, err);
    if (r < 0)
        return r;
    if ((r = cart_model_open(out, path, &opt, err)) < 0)
        cart_pool_free(opt.pool);
    else
        *pool = opt.pool;
    return r;
}

void cart_model_close(struct cart_model *m)
{
    if (!m)
        return;
    if (m->priv) {
        cart_chat_free(m->priv->chat);
        cart_tokenizer_free(m->priv->tokenizer);
        cart_arena_release(&m->priv->arena);
        cart_vocab_json_release(&m->priv->vocab);
        free(m->priv->factors);
        free(m->priv->used);
        cart_checkpoint_close(&m->priv->source);
    }
    free(m->priv);
    free(m->layers);
    free((char *)m->name);
    free((char *)m->path);
    free(m);
}

int cart_model_unchanged(const struct cart_model *m, struct cart_err *err)
{
    const char *touched;
    int r = cart_checkpoint_unchanged(&m->priv->source, &touched, err);
    /* A new name, owner or mode is no change; a time that was set back is, where it can be seen. */
    if (r == 0 && touched && (r = cart_fingerprints_hold(m, err)) == 0)
        return cart_err_set(err, CART_EAGAIN, "%s: changed while it was used", touched);
    return r < 0 ? r : 0;
}

int cart_model_cause(const struct cart_model *m, int r, struct cart_err *err)
{
    struct cart_err why;
    if (!m || r != CART_EFORMAT || cart_model_unchanged(m, &why) != CART_EAGAIN)
        return r;
    return cart_err_set(err, CART_EAGAIN, "%s", why.msg);
}

const struct cart_tokenizer *cart_model_tokenizer(const struct cart_model *m)
{
    return m->priv->tokenizer;
}

int cart_model_chat(const struct cart_model *m, const struct cart_chat **out, struct cart_err *err)
{
    if (!m->priv->chat) {
        if (err)
            *err = m->priv->chat_err;
        return cart_err_wrap(err, m->priv->chat_err.code, "%s", m->path);
    }
    *out = m->priv->chat;
    return 0;
}
