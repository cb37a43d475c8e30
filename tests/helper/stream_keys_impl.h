/* What streams for the tests of attention are made of: shapes, numbers, keys and values in segments
 * of any kind, and the class of compute. Included once through helper/streams_impl.h; a fragment of
 * code, not an interface. */
#ifndef CART_TEST_STREAM_KEYS_IMPL_H
#define CART_TEST_STREAM_KEYS_IMPL_H

#include "tensor/attention.h"

#include "base/cpu.h"
#include "helper/pools.h"
#include "helper/weights.h"
#include "tensor/attention_kernels.h"
#include "tensor/dispatch.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { SEGMENTS = 8, GAP = 3 };

static enum cart_precision class;

/* The state of a test is its class. */
static void choose(void **state)
{
    class = *(const enum cart_precision *)*state;
}

static const struct cart_attention_kernels *of_class(const struct cart_tensor_kernels *set)
{
    return class == CART_PRECISION_BF16 ? set->attention_bf16 : set->attention;
}

struct shape {
    size_t H, HK, DH, window, T, pos0;
};

/* Heads alone and in groups, widths of every remainder, windows inside, across and beyond blocks
 * and spans; rows of even and odd number that are the first to see a block. */
static const struct shape shapes[] = {
    {3, 1, 64, 0, 5, 0},      {9, 3, 64, 0, 70, 130},    {4, 4, 16, 0, 33, 64},
    {8, 2, 80, 17, 150, 7},   {6, 2, 128, 64, 140, 500}, {2, 1, 256, 0, 9, 520},
    {5, 5, 7, 3, 20, 1},      {2, 2, 24, 1, 80, 0},      {12, 1, 32, 0, 130, 63},
    {4, 2, 65, 100, 3, 1100}, {1, 1, 1, 0, 65, 0},       {3, 3, 64, 512, 2, 1500},
    {3, 1, 64, 0, 1, 1535},   {3, 1, 64, 700, 1, 1536},  {9, 3, 48, 0, 1, 1090},
    {4, 1, 33, 0, 17, 47},    {4, 1, 256, 0, 60, 70},    {1, 1, 1000, 0, 60, 3},
    {6, 2, 64, 0, 75, 21},    {3, 3, 40, 60, 150, 33},
};

static void *room(size_t n, size_t size)
{
    void *p = calloc(n ? n : 1, size);

    assert_non_null(p);
    return p;
}

/* Multiples of 1/64 below 2, which F16 and BF16 hold exactly. */
static float *grid(size_t n, uint64_t seed)
{
    float *x = room(n, sizeof *x);

    for (size_t i = 0; i < n; i++)
        x[i] = (float)((int)(test_random(&seed) % 255) - 127) / 64.0f;
    return x;
}

static float *filled(size_t n, float value)
{
    float *x = room(n, sizeof *x);

    for (size_t i = 0; i < n; i++)
        x[i] = value;
    return x;
}

/* Keys and values of one stream: as one array each, and as segments in which they lie with gaps of
 * NaN. */
struct keys {
    size_t rows, width, DH; /* width = HK * DH */
    float *k, *v;           /* [rows][width] */
    struct cart_kv_segment segs[SEGMENTS];
    size_t n_segs;
    void *memory[2 * SEGMENTS];
    size_t n_memory;
};

static struct keys keys_make(size_t rows, const struct shape *s, uint64_t seed)
{
    size_t width = s->HK * s->DH;

    return (struct keys){.rows = rows,
                         .width = width,
                         .DH = s->DH,
                         .k = grid(rows * width, seed),
                         .v = grid(rows * width, seed + 1)};
}

static void keys_clear(struct keys *k)
{
    for (size_t i = 0; i < k->n_memory; i++)
        free(k->memory[i]);
    k->n_segs = k->n_memory = 0;
}

static void keys_release(struct keys *k)
{
    keys_clear(k);
    free(k->k);
    free(k->v);
}

/* Takes the floats. */
static void *narrowed(float *f, size_t n, int dtype)
{
    uint16_t *h;

    if (dtype == CART_F32)
        return f;
    h = room(n, sizeof *h);
    for (size_t i = 0; i < n; i++)
        h[i] = dtype == CART_F16 ? cart_f16_from_f32(f[i]) : cart_bf16_from_f32(f[i]);
    free(f);
    return h;
}

static void *lay_out(const float *rows, size_t n, size_t width, size_t stride, int dtype)
{
    size_t total = (n + 2) * stride;
    float *f = filled(total, NAN);

    for (size_t r = 0; r < n; r++)
        memcpy(f + r * stride, rows + r * width, width * sizeof *f);
    return narrowed(f, total, dtype);
}

/* Head by head in blocks; keys or values. */
static void *lay_out_blocked(const float *rows, const struct cart_kv_segment *s, size_t width,
                             size_t DH, bool values)
{
    size_t total = width / DH * s->stride;
    float *f = filled(total, NAN);

    for (size_t r = 0; r < s->rows; r++)
        for (size_t c = 0; c < width; c++) {
            size_t place = s->skip + r, head = c / DH * s->stride;

            f[head + (values ? place * DH + c % DH
                             : cart_attn_blocked_key(place, DH) + c % DH * CART_ATTN_BLOCK)] =
                rows[r * width + c];
        }
    return narrowed(f, total, s->dtype);
}

/* Cuts the rows at the given places (increasing, ended by 0); a segment's type, layout and gap
 * follow from mix: 0 is f32 by rows. Blocked ones stand where they can be read in place, or not. */
static void keys_cut(struct keys *k, const size_t *cuts, unsigned mix)
{
    static const int types[] = {CART_F32, CART_F16, CART_BF16};
    size_t from = 0;

    keys_clear(k);
    for (size_t i = 0; from < k->rows || i == 0; i++) {
        size_t to = cuts[i] && cuts[i] < k->rows ? cuts[i] : k->rows, layout = (mix / 2 + i) % 3;
        const float *rows[2] = {k->k + from * k->width, k->v + from * k->width};
        struct cart_kv_segment s = {.rows = to - from,
                                    .stride = k->width + (mix + i) % 2 * GAP,
                                    .dtype = mix ? types[(mix + i) % 3] : CART_F32,
                                    .blocked = mix && layout > 0};
        void *memory[2];

        if (s.blocked) {
            s.skip = (from + (layout == 1 ? 0 : 7)) % CART_ATTN_BLOCK;
            s.stride =
                (s.skip + s.rows + CART_ATTN_BLOCK) / CART_ATTN_BLOCK * CART_ATTN_BLOCK * k->DH;
        }
        assert_true(k->n_segs < SEGMENTS);
        for (int v = 0; v < 2; v++) {
            memory[v] = s.blocked ? lay_out_blocked(rows[v], &s, k->width, k->DH, v)
                                  : lay_out(rows[v], s.rows, k->width, s.stride, s.dtype);
            k->memory[k->n_memory++] = memory[v];
        }
        s.k = memory[0];
        s.v = memory[1];
        k->segs[k->n_segs++] = s;
        from = to;
    }
}

static const size_t whole[] = {0};

#endif
