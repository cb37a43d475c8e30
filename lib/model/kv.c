/* Tails of streams and parts that borrow from them. */
#include "model/kv.h"

#include "tensor/dtype.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#define BLOCK CART_ATTN_BLOCK

size_t cart_kv_places(size_t before, size_t cap)
{
    size_t n;
    bool fits = cart_size_add(cap, before % BLOCK + BLOCK - 1, &n);
    return fits ? n / BLOCK * BLOCK : SIZE_MAX;
}

void cart_kv_tail_layout(struct cart_kv_tail *t, struct cart_arena *a, const struct cart_model *m,
                         int dtype, size_t cap)
{
    size_t size = cart_dtype_info(dtype)->bytes;
    t->places = cart_kv_places(0, cap);
    t->cap = cap;
    t->dtype = dtype;
    t->k = cart_arena_push(a, m->L, sizeof *t->k);
    t->v = cart_arena_push(a, m->L, sizeof *t->v);
    for (size_t l = 0; l < m->L; l++) {
        size_t n = 0;
        if (!cart_size_mul(t->places, cart_layer_kv_width(&m->layers[l]), &n))
            n = SIZE_MAX;
        void *k = cart_arena_push(a, n, size); /* [HK][places / BLOCK][DH, BLOCK] */
        void *v = cart_arena_push(a, n, size); /* [HK][places, DH] */
        if (t->k) {
            t->k[l] = k;
            t->v[l] = v;
        }
    }
}

int cart_kv_tail_init(struct cart_kv_tail *t, const struct cart_model *m, int dtype, size_t before,
                      size_t cap, struct cart_err *err)
{
    struct cart_kv_tail fresh = {.arena = CART_ARENA_INIT};
    size_t places = cart_kv_places(before, cap);
    cart_kv_tail_layout(&fresh, &fresh.arena, m, dtype, places);
    int r = cart_arena_reserve(&fresh.arena, fresh.arena.used, err);
    if (r < 0)
        return cart_err_wrap(err, r, "keys and values of %zu tokens", cap);
    cart_kv_tail_layout(&fresh, &fresh.arena, m, dtype, places);
    *t = fresh;
    t->cap = cap;
    return 0;
}

void cart_kv_tail_release(struct cart_kv_tail *t)
{
    cart_arena_release(&t->arena);
    memset(t, 0, sizeof *t);
}

size_t cart_kv_tail_bytes(const struct cart_model *m, int dtype, size_t before, size_t cap)
{
    struct cart_kv_tail t = {0};
    struct cart_arena a = CART_ARENA_INIT;
    cart_kv_tail_layout(&t, &a, m, dtype, cart_kv_places(before, cap));
    return a.overflow ? SIZE_MAX : a.used;
}

void cart_kv_tail_start(struct cart_kv_tail *t, size_t before)
{
    t->rows = 0;
    t->skip = before % BLOCK;
}

/* Of value `at` of rows of the type. */
static void *address(void *rows, int dtype, size_t at)
{
    return (char *)rows + at * cart_dtype_info(dtype)->bytes;
}

void cart_kv_part_of_tail(struct cart_kv_part *part, struct cart_kv_layer *layers,
                          const struct cart_model *m, const struct cart_kv_tail *t, size_t first,
                          size_t rows)
{
    size_t place = t->skip + first;
    for (size_t l = 0; l < m->L; l++) {
        size_t DH = m->layers[l].DH, block = place / BLOCK * BLOCK * DH;
        layers[l] = (struct cart_kv_layer){address(t->k[l], t->dtype, block),
                                           address(t->v[l], t->dtype, block), t->places * DH};
    }
    *part = (struct cart_kv_part){
        .rows = rows, .dtype = t->dtype, .layers = layers, .blocked = true, .skip = place % BLOCK};
}

/* n values from value `at` on, `step` apart, as f32. */
static void read_values(float *out, const void *rows, int dtype, size_t at, size_t step, size_t n)
{
    const float *f = (const float *)rows + at;
    const uint16_t *h = (const uint16_t *)rows + at;
    if (dtype == CART_F32)
        for (size_t i = 0; i < n; i++)
            out[i] = f[i * step];
    else if (dtype == CART_F16)
        for (size_t i = 0; i < n; i++)
            out[i] = cart_f16_to_f32(h[i * step]);
    else
        for (size_t i = 0; i < n; i++)
            out[i] = cart_bf16_to_f32(h[i * step]);
}

void cart_kv_part_row(const struct cart_kv_part *part, const struct cart_model *m, size_t l,
                      size_t row, float *k, float *v)
{
    const struct cart_kv_layer *kv = &part->layers[l];
    size_t HK = m->layers[l].HK, DH = m->layers[l].DH, place = part->skip + row;
    if (!part->blocked) {
        read_values(k, kv->k, part->dtype, row * kv->stride, 1, HK * DH);
        read_values(v, kv->v, part->dtype, row * kv->stride, 1, HK * DH);
    }
    for (size_t h = 0; part->blocked && h < HK; h++) {
        size_t head = h * kv->stride, key = head + cart_attn_blocked_key(place, DH);
        read_values(k + h * DH, kv->k, part->dtype, key, BLOCK, DH);
        read_values(v + h * DH, kv->v, part->dtype, head + place * DH, 1, DH);
    }
}

/* One key to its column of a block. */
static void write_key(void *column, int dtype, const float *k, size_t DH)
{
    uint16_t narrow[CART_ATTN_HEAD_MAX];
    if (dtype == CART_F32) {
        for (size_t c = 0; c < DH; c++)
            ((float *)column)[c * BLOCK] = k[c];
        return;
    }
    cart_narrow(narrow, dtype, k, DH);
    for (size_t c = 0; c < DH; c++)
        ((uint16_t *)column)[c * BLOCK] = narrow[c];
}

void cart_kv_tail_write(const struct cart_kv_tail *t, const struct cart_model *m, size_t l,
                        size_t at, const float *k, const float *v, size_t n)
{
    const struct cart_layer *layer = &m->layers[l];
    size_t HK = layer->HK, DH = layer->DH;
    assert(t->skip + at + n <= t->places);
    for (size_t h = 0; h < HK; h++)
        for (size_t j = 0; j < n; j++) {
            size_t place = t->skip + at + j, head = h * t->places * DH, from = (j * HK + h) * DH;
            write_key(address(t->k[l], t->dtype, head + cart_attn_blocked_key(place, DH)), t->dtype,
                      k + from, DH);
            cart_narrow(address(t->v[l], t->dtype, head + place * DH), t->dtype, v + from, DH);
        }
}

/* Places [to, to + n) of a head from places [from, from + n), in one block each. */
static void copy_places(struct cart_kv_tail *dst, size_t to, const struct cart_kv_tail *src,
                        size_t from, size_t n, size_t l, size_t h, size_t DH)
{
    size_t size = cart_dtype_info(dst->dtype)->bytes;
    size_t out = h * dst->places * DH, in = h * src->places * DH;
    char *k = address(dst->k[l], dst->dtype, out + cart_attn_blocked_key(to, DH));
    const char *k0 = address(src->k[l], src->dtype, in + cart_attn_blocked_key(from, DH));
    if (n == BLOCK)
        memcpy(k, k0, n * DH * size);
    for (size_t c = 0; n < BLOCK && c < DH; c++)
        memcpy(k + c * BLOCK * size, k0 + c * BLOCK * size, n * size);
    memcpy(address(dst->v[l], dst->dtype, out + to * DH),
           address(src->v[l], src->dtype, in + from * DH), n * DH * size);
}

void cart_kv_tail_copy(struct cart_kv_tail *dst, size_t to, const struct cart_kv_tail *src,
                       size_t from, size_t n, const struct cart_model *m)
{
    if (n == 0)
        return;
    if (to == 0)
        cart_kv_tail_start(dst, src->skip + from);
    to += dst->skip;
    from += src->skip;
    assert(dst->dtype == src->dtype && to % BLOCK == from % BLOCK && to + n <= dst->places);
    for (size_t done = 0, take; done < n; done += take) {
        size_t left = BLOCK - (to + done) % BLOCK;
        take = left < n - done ? left : n - done;
        for (size_t l = 0; l < m->L; l++)
            for (size_t h = 0; h < m->layers[l].HK; h++)
                copy_places(dst, to + done, src, from + done, take, l, h, m->layers[l].DH);
    }
}

struct copying {
    const struct cart_kv_tail *to;
    const struct cart_model *m;
    const struct cart_kv_part *const *parts;
    size_t n_parts, width; /* of the widest layer's row */
    float *rows;           /* [threads][2][width] */
};

static void copy_layer(void *ctx, size_t l, size_t worker)
{
    const struct copying *g = ctx;
    size_t width = cart_layer_kv_width(&g->m->layers[l]), at = 0;
    float *k = g->rows + worker * 2 * g->width, *v = k + g->width;
    for (size_t i = 0; i < g->n_parts; at += g->parts[i++]->rows) {
        const struct cart_kv_part *part = g->parts[i];
        const struct cart_kv_layer *kv = &part->layers[l];
        if (part->dtype == CART_F32 && !part->blocked && kv->stride == width) {
            cart_kv_tail_write(g->to, g->m, l, at, kv->k, kv->v, part->rows);
            continue;
        }
        for (size_t row = 0; row < part->rows; row++) {
            cart_kv_part_row(part, g->m, l, row, k, v);
            cart_kv_tail_write(g->to, g->m, l, at + row, k, v, 1);
        }
    }
}

static int copy_all(struct cart_kv_copy *c, struct copying *g, struct cart_pool *pool,
                    struct cart_err *err)
{
    const struct cart_kv kv = {g->parts, g->n_parts, NULL};
    const struct cart_model *m = g->m;
    size_t rows = cart_kv_rows(&kv), threads = pool ? cart_pool_threads(pool) : 1;
    for (size_t l = 0; l < m->L; l++) {
        size_t width = cart_layer_kv_width(&m->layers[l]);
        g->width = width > g->width ? width : g->width;
    }
    g->rows = calloc(threads * 2 * g->width, sizeof *g->rows);
    c->layers = calloc(m->L, sizeof *c->layers);
    if (g->rows == NULL || c->layers == NULL)
        return cart_err_memory(err, "a copy of rows", g->width * sizeof *g->rows);
    int r = cart_kv_tail_init(&c->rows, m, g->parts[0]->dtype, 0, rows, err);
    if (r < 0)
        return r;
    g->to = &c->rows;
    if (pool)
        cart_pool_run(pool, m->L, copy_layer, g);
    for (size_t l = 0; pool == NULL && l < m->L; l++)
        copy_layer(g, l, 0);
    c->rows.rows = rows;
    cart_kv_part_of_tail(&c->part, c->layers, m, &c->rows, 0, rows);
    return 0;
}

int cart_kv_copy_new(struct cart_kv_copy **out, const struct cart_model *m,
                     const struct cart_kv_part *const *parts, size_t n_parts,
                     struct cart_pool *pool, struct cart_err *err)
{
    struct copying g = {.m = m, .parts = parts, .n_parts = n_parts};
    struct cart_kv_copy *c = calloc(1, sizeof *c);
    if (c == NULL)
        return cart_err_memory(err, "a copy of rows", sizeof *c);
    int r = copy_all(c, &g, pool, err);
    free(g.rows);
    if (r < 0)
        cart_kv_copy_free(c);
    else
        *out = c;
    return r;
}

void cart_kv_copy_free(struct cart_kv_copy *c)
{
    if (c == NULL)
        return;
    cart_kv_tail_release(&c->rows);
    free(c->layers);
    free(c);
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
