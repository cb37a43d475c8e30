/* Tails of streams and parts that borrow from them. */
#include "model/kv.h"

#include "tensor/dtype.h"

#include <assert.h>
#include <string.h>

void cart_kv_tail_layout(struct cart_kv_tail *t, struct cart_arena *a, const struct cart_model *m,
                         int dtype, size_t cap)
{
    size_t size = cart_dtype_info(dtype)->bytes;
    t->cap = cap;
    t->dtype = dtype;
    t->k = cart_arena_push(a, m->L, sizeof *t->k);
    t->v = cart_arena_push(a, m->L, sizeof *t->v);
    for (size_t l = 0; l < m->L; l++) {
        size_t width = cart_layer_kv_width(&m->layers[l]);
        size_t n = 0;
        if (!cart_size_mul(cap, width, &n))
            n = SIZE_MAX;
        void *k = cart_arena_push(a, n, size); /* [cap, HK, DH] */
        void *v = cart_arena_push(a, n, size);
        if (t->k) {
            t->k[l] = k;
            t->v[l] = v;
        }
    }
}

int cart_kv_tail_init(struct cart_kv_tail *t, const struct cart_model *m, int dtype, size_t cap,
                      struct cart_err *err)
{
    struct cart_kv_tail fresh = {.arena = CART_ARENA_INIT};
    cart_kv_tail_layout(&fresh, &fresh.arena, m, dtype, cap);
    int r = cart_arena_reserve(&fresh.arena, fresh.arena.used, err);
    if (r < 0)
        return cart_err_wrap(err, r, "keys and values of %zu tokens", cap);
    cart_kv_tail_layout(&fresh, &fresh.arena, m, dtype, cap);
    *t = fresh;
    return 0;
}

void cart_kv_tail_release(struct cart_kv_tail *t)
{
    cart_arena_release(&t->arena);
    memset(t, 0, sizeof *t);
}

size_t cart_kv_tail_bytes(const struct cart_model *m, int dtype, size_t cap)
{
    struct cart_kv_tail t = {0};
    struct cart_arena a = CART_ARENA_INIT;
    cart_kv_tail_layout(&t, &a, m, dtype, cap);
    return a.overflow ? SIZE_MAX : a.used;
}

/* Row `row` of a layer's keys or values. */
static void *row_of(const struct cart_kv_tail *t, void *rows, size_t width, size_t row)
{
    return (char *)rows + row * width * cart_dtype_info(t->dtype)->bytes;
}

void cart_kv_part_of_tail(struct cart_kv_part *part, struct cart_kv_layer *layers,
                          const struct cart_model *m, const struct cart_kv_tail *t, size_t first,
                          size_t rows)
{
    for (size_t l = 0; l < m->L; l++) {
        size_t width = cart_layer_kv_width(&m->layers[l]);
        layers[l] = (struct cart_kv_layer){row_of(t, t->k[l], width, first),
                                           row_of(t, t->v[l], width, first), width};
    }
    *part = (struct cart_kv_part){.rows = rows, .dtype = t->dtype, .layers = layers};
}

void cart_kv_tail_write(const struct cart_kv_tail *t, const struct cart_model *m, size_t l,
                        size_t at, const float *k, const float *v, size_t n)
{
    size_t width = cart_layer_kv_width(&m->layers[l]);
    cart_narrow(row_of(t, t->k[l], width, at), t->dtype, k, n * width);
    cart_narrow(row_of(t, t->v[l], width, at), t->dtype, v, n * width);
}

void cart_kv_tail_copy(const struct cart_kv_tail *dst, size_t to, const struct cart_kv_tail *src,
                       size_t from, size_t n, const struct cart_model *m)
{
    size_t size = cart_dtype_info(dst->dtype)->bytes;
    assert(dst->dtype == src->dtype);
    for (size_t l = 0; l < m->L && n > 0; l++) {
        size_t width = cart_layer_kv_width(&m->layers[l]);
        memcpy(row_of(dst, dst->k[l], width, to), row_of(src, src->k[l], width, from),
               n * width * size);
        memcpy(row_of(dst, dst->v[l], width, to), row_of(src, src->v[l], width, from),
               n * width * size);
    }
}

size_t cart_kv_rows(const struct cart_kv *kv)
{
    size_t rows = kv->tail ? kv->tail->rows : 0;
    for (size_t i = 0; i < kv->n_parts; i++)
        rows += kv->parts[i]->rows;
    return rows;
}

size_t cart_kv_row_width(const struct cart_model *m)
{
    size_t width = 0;
    for (size_t l = 0; l < m->L; l++)
        width += 2 * cart_layer_kv_width(&m->layers[l]);
    return width;
}

size_t cart_kv_part_bytes(const struct cart_model *m, const struct cart_kv_part *part)
{
    return part->rows * cart_kv_row_width(m) * cart_dtype_info(part->dtype)->bytes;
}
