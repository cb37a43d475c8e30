/* Tiles of the matrix products of the bf16 class in plain C: a cell is a pair of values, the even
 * one below the odd one. The caller has subnormal numbers flushed to zero, as the instruction does
 * whose results these are. */
#ifndef CART_TENSOR_MATMUL_BF16_IMPL_H
#define CART_TENSOR_MATMUL_BF16_IMPL_H

#include "tensor/matmul_kernels.h"

#include "tensor/dtype.h"
#include "tensor/variant.h"

#include <math.h>
#include <string.h>

enum {
    LANES = CART_TILE_LANES,
    COLS = CART_TILE_COLS,
    WIDE = CART_TILE_WIDE,
    VALUES = 2,
    ROWS = 2,
    PAIRED = 256 /* most values of a row that widen_pair is asked for */
};

CART_ALWAYS_INLINE float cell_odd(uint32_t cell)
{
    float v;

    cell &= 0xffff0000u;
    memcpy(&v, &cell, sizeof v);
    return v;
}

CART_ALWAYS_INLINE float cell_even(uint32_t cell)
{
    float v;

    cell <<= 16;
    memcpy(&v, &cell, sizeof v);
    return v;
}

static void cells_of(uint32_t *out, const float *even, const float *odd, size_t step, size_t n)
{
    for (size_t i = 0; i < n; i++)
        out[i] =
            (uint32_t)cart_bf16_flushed(odd[i * step]) << 16 | cart_bf16_flushed(even[i * step]);
}

static void widen(int dtype, const void *row, size_t k0, size_t n, float *out, size_t step)
{
    float wide[256];
    uint32_t cells[LANES];

    for (size_t k = 0; k < n; k += 256) {
        size_t count = n - k < 256 ? n - k : 256;

        cart_widen_ref(dtype, row, k0 + k, count, wide);
        for (size_t i = count; i % (LANES * VALUES); i++)
            wide[i] = 0;
        for (size_t i = 0; i < count; i += LANES * VALUES, out += step) {
            cells_of(cells, wide + i, wide + i + 1, VALUES, LANES);
            memcpy(out, cells, sizeof cells);
        }
    }
}

static void widen_pair(int dtype, const void *even, const void *odd, size_t k0, size_t n,
                       float *out)
{
    float wide[2][PAIRED] = {{0}};
    uint32_t cells[PAIRED];

    cart_widen_ref(dtype, even, k0, n, wide[0]);
    if (odd)
        cart_widen_ref(dtype, odd, k0, n, wide[1]);
    n = (n + LANES - 1) / LANES * LANES;
    cells_of(cells, wide[0], wide[1], 1, n);
    memcpy(out, cells, n * sizeof *cells);
}

static void pack(float *out, const float *x, size_t ldx, size_t R, size_t k)
{
    uint32_t cells[LANES];

    for (size_t k0 = 0; k0 < k; k0 += LANES * VALUES) {
        size_t count = k - k0 < LANES * VALUES ? k - k0 : LANES * VALUES;

        for (size_t r = 0; r < R; r++, out += LANES) {
            float v[LANES * VALUES] = {0};

            memcpy(v, x + r * ldx + k0, count * sizeof(float));
            cells_of(cells, v, v + 1, VALUES, LANES);
            memcpy(out, cells, sizeof cells);
        }
    }
}

static float lanes_sum(float *lane)
{
    for (size_t half = LANES / 2; half > 0; half /= 2)
        for (size_t i = 0; i < half; i++)
            lane[i] += lane[i + half];
    return lane[0];
}

/* One row of x against one row of the panel: sixteen chains. */
static void chains(float *restrict lanes, const float *restrict x, size_t x_step,
                   const float *restrict w, size_t w_step, size_t k16)
{
    float c[LANES];
    uint32_t a[LANES], b[LANES];

    memcpy(c, lanes, sizeof c);
    for (size_t k = 0; k < k16; k++, x += x_step, w += w_step) {
        memcpy(a, x, sizeof a);
        memcpy(b, w, sizeof b);
        for (size_t i = 0; i < LANES; i++) {
            c[i] = fmaf(cell_odd(a[i]), cell_odd(b[i]), c[i]);
            c[i] = fmaf(cell_even(a[i]), cell_even(b[i]), c[i]);
        }
    }
    memcpy(lanes, c, sizeof c);
}

static void tile(const struct cart_tile *t, size_t R)
{
    for (size_t r = 0; r < R; r++) {
        for (size_t j = 0; j < COLS; j++) {
            float lanes[LANES] = {0};
            float *saved = t->lanes + (r * COLS + j) * LANES;

            if (t->resume)
                memcpy(lanes, saved, sizeof lanes);
            chains(lanes, t->x + r * LANES, R * LANES, t->w + j * LANES, COLS * LANES, t->k16);
            if (t->finish) {
                float sum = lanes_sum(lanes);
                float *y = t->y + r * t->ldy + j;

                if (t->bias)
                    sum += t->bias[j];
                *y = t->add ? *y + sum : sum;
            } else {
                memcpy(saved, lanes, sizeof lanes);
            }
        }
    }
}

static void gemv(float *y, const float *x, const struct cart_rows *w)
{
    float cells[256 / VALUES];

    for (size_t j = 0; j < CART_GEMV_ROWS; j++) {
        float lanes[LANES] = {0};

        for (size_t k = 0; k < w->k; k += 256) {
            size_t count = w->k - k < 256 ? w->k - k : 256;

            widen(w->dtype, w->row[j], w->k0 + k, count, cells, LANES);
            chains(lanes, x + k / VALUES, LANES, cells, LANES,
                   (count + LANES * VALUES - 1) / (LANES * VALUES));
        }
        y[j] = lanes_sum(lanes);
    }
}

static void tile_backward(float *dx, size_t lddx, const float *dy, size_t lddy, const float *w,
                          size_t ldw, size_t n, size_t R)
{
    for (size_t r = 0; r < R; r++) {
        float c[WIDE];

        memcpy(c, dx + r * lddx, sizeof c);
        for (size_t i = 0; i < n; i++) {
            uint32_t g, b[WIDE];

            memcpy(&g, dy + r * lddy + i, sizeof g);
            memcpy(b, w + i * ldw, sizeof b);
            for (size_t k = 0; k < WIDE; k++) {
                c[k] = fmaf(cell_odd(g), cell_odd(b[k]), c[k]);
                c[k] = fmaf(cell_even(g), cell_even(b[k]), c[k]);
            }
        }
        memcpy(dx + r * lddx, c, sizeof c);
    }
}

#endif
