#include "cartridge/trainable.h"

#include "cartridge/rows.h"

#include <assert.h>
#include <string.h>

enum { SINKS, ROWS };

/* Run twice: measures, then hands out. */
static void layout(struct cart_trainable *t, struct cart_arena *a)
{
    t->x = cart_arena_push(a, t->n, sizeof *t->x);
    t->g = cart_arena_push(a, t->n, sizeof *t->g);
    t->m = cart_arena_push(a, t->n, sizeof *t->m);
    t->v = cart_arena_push(a, t->n, sizeof *t->v);
    t->sink = cart_arena_push(a, t->n_sink, sizeof *t->sink);
    for (size_t i = 0; i < 2; i++)
        t->layers[i] = cart_arena_push(a, t->L, sizeof **t->layers);
    t->dk = cart_arena_push(a, t->L, sizeof *t->dk);
    t->dv = cart_arena_push(a, t->L, sizeof *t->dv);
}

static void measure(struct cart_trainable *t, const struct cart_model *m, size_t p, size_t frozen)
{
    *t = (struct cart_trainable){.L = m->L,
                                 .p = p,
                                 .frozen = frozen,
                                 .n = (p - frozen) * cart_kv_row_width(m),
                                 .n_sink = frozen * cart_kv_row_width(m),
                                 .arena = CART_ARENA_INIT};
    layout(t, &t->arena);
}

size_t cart_trainable_bytes(const struct cart_model *m, size_t p, size_t frozen)
{
    struct cart_trainable t;
    measure(&t, m, p, frozen);
    return t.arena.used;
}

static void bind(struct cart_trainable *t, const struct cart_model *m)
{
    float *x = t->x, *g = t->g, *sink = t->sink;
    size_t rows = t->p - t->frozen;
    for (size_t i = 0; i < m->L; i++) {
        size_t w = cart_layer_kv_width(&m->layers[i]);
        t->layers[ROWS][i] = (struct cart_kv_layer){x, x + rows * w, w};
        t->dk[i] = g;
        t->dv[i] = g + rows * w;
        t->layers[SINKS][i] = (struct cart_kv_layer){sink, sink + t->frozen * w, w};
        x += 2 * rows * w;
        g += 2 * rows * w;
        sink += 2 * t->frozen * w;
    }
    if (t->frozen > 0) {
        t->grads[t->n_parts] = (struct cart_kv_grad){NULL, NULL};
        t->parts[t->n_parts++] =
            (struct cart_kv_part){.rows = t->frozen, .dtype = CART_F32, .layers = t->layers[SINKS]};
    }
    if (rows > 0) {
        t->grads[t->n_parts] = (struct cart_kv_grad){t->dk, t->dv};
        t->parts[t->n_parts++] =
            (struct cart_kv_part){.rows = rows, .dtype = CART_F32, .layers = t->layers[ROWS]};
    }
}

int cart_trainable_init(struct cart_trainable *t, const struct cart_model *m, size_t p,
                        size_t frozen, struct cart_err *err)
{
    if (p == 0 || p >= m->context || frozen > p)
        return cart_err_set(
            err, CART_EUSAGE,
            "p %zu, frozen %zu: expected 1 <= p < %zu (the model's context), frozen <= p", p,
            frozen, m->context);
    measure(t, m, p, frozen);
    if (t->arena.overflow)
        return cart_err_memory(err, "trainable rows", 0);
    int r = cart_arena_reserve(&t->arena, t->arena.used, err);
    if (r < 0)
        return r;
    layout(t, &t->arena);
    bind(t, m);
    return 0;
}

void cart_trainable_release(struct cart_trainable *t)
{
    cart_arena_release(&t->arena);
    *t = (struct cart_trainable){.arena = CART_ARENA_INIT};
}

static float *row_of(const struct cart_trainable *t, const struct cart_model *m, size_t layer,
                     size_t r, bool values)
{
    assert(r < t->p && layer < t->L);
    const struct cart_kv_layer *l = &t->layers[r < t->frozen ? SINKS : ROWS][layer];
    size_t at = (r < t->frozen ? r : r - t->frozen) * cart_layer_kv_width(&m->layers[layer]);
    return (float *)(values ? l->v : l->k) + at;
}

float *cart_trainable_k(const struct cart_trainable *t, const struct cart_model *m, size_t layer,
                        size_t r)
{
    return row_of(t, m, layer, r, false);
}

float *cart_trainable_v(const struct cart_trainable *t, const struct cart_model *m, size_t layer,
                        size_t r)
{
    return row_of(t, m, layer, r, true);
}

void cart_trainable_set(struct cart_trainable *t, const struct cart_model *m,
                        const struct cart_kv_part *parts, size_t n_parts)
{
    size_t row = 0;
    for (size_t i = 0; i < n_parts; i++)
        for (size_t r = 0; r < parts[i].rows; r++, row++)
            for (size_t l = 0; l < m->L; l++)
                cart_kv_part_row(&parts[i], m, l, r, row_of(t, m, l, row, false),
                                 row_of(t, m, l, row, true));
    assert(row == t->p);
}

/* base^n by squaring: the same bits everywhere. */
static double power(double base, uint64_t n)
{
    double y = 1.0;
    for (; n > 0; n >>= 1, base *= base)
        if (n & 1)
            y *= base;
    return y;
}

void cart_trainable_step(struct cart_trainable *t, uint64_t step, double lr, double grad_scale,
                         struct cart_pool *pool)
{
    /* The corrections use the betas as f32 rounds them: with 0.999 itself, the first steps would be
     * off by 2e-5 of their length. */
    struct cart_adam adam = {.lr = (float)lr, .beta1 = 0.9f, .beta2 = 0.999f, .eps = 1e-8f};
    adam.c1 = 1.0 - power((double)adam.beta1, step);
    adam.c2 = 1.0 - power((double)adam.beta2, step);
    cart_adam_step(t->x, t->m, t->v, t->g, (float)grad_scale, t->n, &adam, pool);
}
