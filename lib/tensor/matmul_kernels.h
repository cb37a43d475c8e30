/* What a variant provides for the matrix products and dtype.c: register tiles over packed operands.
 * Private to lib/tensor and its tests.
 *
 * Packed operands are cells of four bytes. A cell is one f32 value in the f32 class, and a pair of
 * bf16 values in the bf16 class (values = 2), the even one in the low half: pairs along K in the
 * forward, along N in the backward.
 *
 * Forward. A tile is R rows of x (R <= rows) by four rows of W, sixteen lanes each:
 *   x      [k16][R][16]   packed activations, zero beyond K
 *   w      [k16][4][16]   a panel: four widened rows of W, zero beyond K and beyond N
 *   lanes  [R][4][16]     running lanes, where K is cut into pieces
 * The lane sums of a finished tile go to y, four columns wide.
 *
 * Backward. A tile is R rows by 64 columns of dx:
 *   dy     [R, n]         cells, rows lddy apart: in the f32 class where they lie
 *   w      [n, 64]        cells, widened, zero beyond K, rows ldw apart
 *   dx     [R, 64]        rows lddx apart, loaded first and stored last
 */
#ifndef CART_TENSOR_MATMUL_KERNELS_H
#define CART_TENSOR_MATMUL_KERNELS_H

#include "base/attr.h"

#define CART_TILE_LANES 16
#define CART_TILE_COLS 4       /* rows of W in a forward panel */
#define CART_TILE_WIDE 64      /* columns of a backward panel */
#define CART_TILE_ROWS 6       /* most rows of any variant */
#define CART_GEMV_ROWS 8       /* rows of W that one call of gemv does */
#define CART_BACKWARD_SPAN 128 /* rows of W that the backward takes at once */

/* One forward tile, or one piece of K of it. */
struct cart_tile {
    const float *x;
    float *w;     /* read by tile; written by fused unless NULL */
    size_t k16;   /* steps of sixteen cells in this piece */
    float *lanes; /* read if resume, written if not finish; else unused */
    bool resume, finish;
    float *y; /* [R, 4], rows ldy apart; written if finish */
    size_t ldy;
    const float *bias; /* [4] or NULL */
    bool add;
};

/* Rows of W in their own encoding, for fused and gemv: values [k0, k0 + k) of each; k0 a multiple
 * of 256, k of the block. Rows beyond N repeat an earlier row. ahead: how far behind each row its
 * successor in the next call lies; it is fetched into the cache meanwhile. */
struct cart_rows {
    int dtype;
    size_t ahead;
    const void *row[CART_GEMV_ROWS];
    size_t k0, k;
};

struct cart_matmul_kernels {
    size_t values;     /* of K (backward: of N) in a cell: 1, or 2 in the bf16 class */
    size_t rows;       /* most rows of a tile */
    size_t fused_rows; /* fused does 2 .. fused_rows rows; 0: there is no fused */

    /* Widens n values from value k0 of one row; see dtype.h. Piece i of sixteen cells goes to out +
     * i * step (step >= 16); the last piece is filled up with zeros. */
    void (*widen)(int dtype, const void *row, size_t k0, size_t n, float *out, size_t step);

    /* bf16 class: n <= 256 values of two rows (odd NULL: of zeros) to n cells, filled up to a
     * multiple of sixteen. */
    void (*widen_pair)(int dtype, const void *even, const void *odd, size_t k0, size_t n,
                       float *out);

    void (*pack)(float *out, const float *x, size_t ldx, size_t R,
                 size_t k); /* [R, k] -> [k16][R][16] cells */
    void (*tile)(const struct cart_tile *t, size_t R);

    /* As tile, but widens the panel on the way. */
    void (*fused)(const struct cart_tile *t, const struct cart_rows *w, size_t R);

    /* y [8] = the products of eight whole rows (k0 = 0) with one packed x [k16][16]. */
    void (*gemv)(float *y, const float *x, const struct cart_rows *w);

    void (*tile_backward)(float *dx, size_t lddx, const float *dy, size_t lddy, const float *w,
                          size_t ldw, size_t n, size_t R);
};

extern const struct cart_matmul_kernels cart_matmul_kernels_generic;
extern const struct cart_matmul_kernels cart_matmul_kernels_fma;
extern const struct cart_matmul_kernels cart_matmul_kernels_avx2;
extern const struct cart_matmul_kernels cart_matmul_kernels_avx512;

extern const struct cart_matmul_kernels cart_matmul_kernels_bf16_generic;
extern const struct cart_matmul_kernels cart_matmul_kernels_bf16_fma;
extern const struct cart_matmul_kernels cart_matmul_kernels_bf16_avx2;
extern const struct cart_matmul_kernels cart_matmul_kernels_bf16_avx512; /* needs VDPBF16PS */

#endif
