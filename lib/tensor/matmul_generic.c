/* Tiles of the matrix products in plain C over arrays of sixteen lanes: the baseline variant, and
 * its twin with FMA instructions, which gcc vectorises. Small tiles, because the baseline has few
 * registers. */
#include "tensor/matmul_kernels.h"

#include "tensor/dtype.h"
#include "tensor/variant.h"

#include <math.h>
#include <string.h>

enum { LANES = CART_TILE_LANES, COLS = CART_TILE_COLS, WIDE = CART_TILE_WIDE, ROWS = 2 };

static void widen(int dtype, const void *row, size_t k0, size_t n, float *out, size_t step)
{
    float wide[256];

    for (size_t k = 0; k < n; k += 256) {
        size_t count = n - k < 256 ? n - k : 256;

        cart_widen_ref(dtype, row, k0 + k, count, wide);
        for (size_t i = count; i % LANES; i++)
            wide[i] = 0;
        for (size_t i = 0; i < count; i += LANES, out += step)
            memcpy(out, wide + i, LANES * sizeof(float));
    }
}

static void pack(float *out, const float *x, size_t ldx, size_t R, size_t k)
{
    for (size_t k0 = 0; k0 < k; k0 += LANES) {
        size_t count = k - k0 < LANES ? k - k0 : LANES;

        for (size_t r = 0; r < R; r++, out += LANES) {
            memcpy(out, x + r * ldx + k0, count * sizeof(float));
            memset(out + count, 0, (LANES - count) * sizeof(float));
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

    memcpy(c, lanes, sizeof c);
    for (size_t k = 0; k < k16; k++, x += x_step, w += w_step)
        for (size_t i = 0; i < LANES; i++)
            c[i] = fmaf(x[i], w[i], c[i]);
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
    float wide[256];

    for (size_t j = 0; j < CART_GEMV_ROWS; j++) {
        float lanes[LANES] = {0};

        for (size_t k = 0; k < w->k; k += 256) {
            size_t count = w->k - k < 256 ? w->k - k : 256;

            widen(w->dtype, w->row[j], w->k0 + k, count, wide, LANES);
            chains(lanes, x + k, LANES, wide, LANES, (count + LANES - 1) / LANES);
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
            float g = dy[r * lddy + i];

            for (size_t k = 0; k < WIDE; k++)
                c[k] = fmaf(g, w[i * ldw + k], c[k]);
        }
        memcpy(dx + r * lddx, c, sizeof c);
    }
}

const struct cart_matmul_kernels CART_VARIANT(cart_matmul_kernels) = {
    .values = 1,
    .rows = ROWS,
    .fused_rows = 0,
    .widen = widen,
    .pack = pack,
    .tile = tile,
    .gemv = gemv,
    .tile_backward = tile_backward,
};
