#include "engine/engine.h"

#include "base/hash.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

struct cart_prefix {
    unsigned char key[16]; /* digest of the ids */
    size_t n, holders, bytes;
    unsigned long long used; /* the engine's clock at the last acquire */
    struct cart_kv_tail tail;
    struct cart_kv_layer *layers;
    struct cart_kv_part part;
};

struct cart_engine {
    const struct cart_model *m;
    int kv; /* the type of rows */
    struct cart_pool *pool;
    struct cart_workspace *ws;
    struct cart_prefix **prefixes;
    size_t n_prefixes, prefixes_cap;
    size_t cache_bytes, idle_bytes; /* allowed, and kept, of prefixes without a holder */
    unsigned long long clock;
    size_t prefilled;
};

int cart_engine_new(struct cart_engine **out, const struct cart_model *m, int kv,
                    struct cart_pool *pool, size_t cache_bytes, struct cart_err *err)
{
    struct cart_engine *e = calloc(1, sizeof *e);

    if (e == NULL)
        return cart_err_memory(err, "an engine", sizeof *e);
    e->m = m;
    e->kv = kv;
    e->pool = pool;
    e->cache_bytes = cache_bytes;
    int r = cart_workspace_new(&e->ws, m, CART_ENGINE_PIECE, err);
    if (r < 0) {
        free(e);
        return r;
    }
    *out = e;
    return 0;
}

static void prefix_free(struct cart_prefix *p)
{
    cart_kv_tail_release(&p->tail);
    free(p->layers);
    free(p);
}

void cart_engine_free(struct cart_engine *e)
{
    if (e == NULL)
        return;
    for (size_t i = 0; i < e->n_prefixes; i++)
        prefix_free(e->prefixes[i]);
    free(e->prefixes);
    cart_workspace_free(e->ws);
    free(e);
}

const struct cart_model *cart_engine_model(const struct cart_engine *e)
{
    return e->m;
}

struct cart_pool *cart_engine_pool(const struct cart_engine *e)
{
    return e->pool;
}

int cart_engine_kv(const struct cart_engine *e)
{
    return e->kv;
}

int cart_engine_forward(struct cart_engine *e, const struct cart_span *spans, size_t n,
                        float *hidden, struct cart_err *err)
{
    return cart_forward(e->m, e->ws, spans, n, hidden, e->pool, err);
}

/* ---- prefixes ---- */

/* Frees the prefixes without a holder that were used longest ago until the rest fits. */
static void evict(struct cart_engine *e)
{
    while (e->idle_bytes > e->cache_bytes) {
        size_t oldest = SIZE_MAX;
        for (size_t i = 0; i < e->n_prefixes; i++) {
            if (e->prefixes[i]->holders == 0 &&
                (oldest == SIZE_MAX || e->prefixes[i]->used < e->prefixes[oldest]->used))
                oldest = i;
        }
        assert(oldest != SIZE_MAX);
        e->idle_bytes -= e->prefixes[oldest]->bytes;
        prefix_free(e->prefixes[oldest]);
        e->prefixes[oldest] = e->prefixes[--e->n_prefixes];
    }
}

static int prefix_new(struct cart_engine *e, const uint32_t *ids, size_t n,
                      struct cart_prefix **out, struct cart_err *err)
{
    if (n > e->m->context)
        return cart_err_set(err, CART_EUSAGE,
                            "a context turn of %zu tokens exceeds the model's context of %zu", n,
                            e->m->context);
    struct cart_prefix *p = calloc(1, sizeof *p);
    if (p == NULL)
        return cart_err_memory(err, "a prefix", sizeof *p);
    p->layers = calloc(e->m->L, sizeof *p->layers);
    int r = p->layers != NULL ? cart_kv_tail_init(&p->tail, e->m, e->kv, 0, n, err)
                              : cart_err_memory(err, "a prefix", 0);
    if (r == 0) {
        const struct cart_kv kv = {NULL, 0, &p->tail};
        const struct cart_span span = {ids, n, kv, NULL, 0};
        r = cart_forward(e->m, e->ws, &span, 1, NULL, e->pool, err);
    }
    if (r < 0) {
        prefix_free(p);
        return r;
    }
    cart_kv_part_of_tail(&p->part, p->layers, e->m, &p->tail, 0, n);
    p->n = n;
    p->bytes = cart_kv_tail_bytes(e->m, e->kv, 0, n);
    e->prefilled += n;
    *out = p;
    return 0;
}

int cart_prefix_acquire(struct cart_engine *e, const uint32_t *ids, size_t n,
                        struct cart_prefix **out, struct cart_err *err)
{
    unsigned char key[16];

    assert(n > 0);
    cart_hash_bytes(ids, n * sizeof *ids, key);
    for (size_t i = 0; i < e->n_prefixes; i++) {
        struct cart_prefix *p = e->prefixes[i];
        if (p->n == n && memcmp(p->key, key, sizeof key) == 0) {
            if (p->holders++ == 0)
                e->idle_bytes -= p->bytes;
            p->used = ++e->clock;
            *out = p;
            return 0;
        }
    }
    int r = cart_array_reserve(&e->prefixes, &e->prefixes_cap, e->n_prefixes + 1,
                               sizeof *e->prefixes, err);
    struct cart_prefix *p = NULL;
    if (r < 0 || (r = prefix_new(e, ids, n, &p, err)) < 0)
        return r;
    memcpy(p->key, key, sizeof key);
    p->holders = 1;
    p->used = ++e->clock;
    e->prefixes[e->n_prefixes++] = p;
    *out = p;
    return 0;
}

void cart_prefix_release(struct cart_engine *e, struct cart_prefix *p)
{
    if (p == NULL)
        return;
    assert(p->holders > 0);
    if (--p->holders == 0) {
        e->idle_bytes += p->bytes;
        evict(e);
    }
}

const struct cart_kv_part *cart_prefix_part(const struct cart_prefix *p)
{
    return &p->part;
}

size_t cart_engine_prefilled(const struct cart_engine *e)
{
    return e->prefilled;
}

/* ---- sessions ---- */

int cart_session_init(struct cart_session *s, const struct cart_model *m, int dtype,
                      const struct cart_kv_part *const *parts, size_t n_parts, size_t cap,
                      struct cart_err *err)
{
    s->parts = parts;
    s->n_parts = n_parts;
    return cart_kv_tail_init(&s->tail, m, dtype, CART_KV_ANYWHERE, cap, err);
}

void cart_session_release(struct cart_session *s)
{
    cart_kv_tail_release(&s->tail);
}

void cart_session_restart(struct cart_session *s, const struct cart_kv_part *const *parts,
                          size_t n_parts)
{
    s->parts = parts;
    s->n_parts = n_parts;
    s->tail.rows = 0;
}

int cart_session_reserve(struct cart_session *s, const struct cart_model *m, size_t n,
                         struct cart_err *err)
{
    struct cart_kv_tail more;

    if (n <= s->tail.cap - s->tail.rows)
        return 0;
    int r = cart_kv_tail_init(&more, m, s->tail.dtype, CART_KV_ANYWHERE, s->tail.rows + n, err);
    if (r < 0)
        return r;
    cart_kv_tail_copy(&more, 0, &s->tail, 0, s->tail.rows, m);
    more.rows = s->tail.rows;
    cart_kv_tail_release(&s->tail);
    s->tail = more;
    return 0;
}

struct cart_kv cart_session_kv(struct cart_session *s)
{
    return (struct cart_kv){s->parts, s->n_parts, &s->tail};
}

size_t cart_session_rows(const struct cart_session *s)
{
    size_t rows = s->tail.rows;

    for (size_t i = 0; i < s->n_parts; i++)
        rows += s->parts[i]->rows;
    return rows;
}
