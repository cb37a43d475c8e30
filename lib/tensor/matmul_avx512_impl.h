/* Tiles of the matrix products for AVX-512: the sixteen lanes are one register. Included once for
 * each precision; the file that includes it defines
 *   VALUES             values of K in one lane of a cell, 1 or 2
 *   chain(c, a, b)     one step of sixteen lanes
 *   cell_of(v0, v1)    sixteen cells of two pieces of sixteen values (f32: of the first)
 *
 * A forward tile is 6 x 4: 24 accumulators, six rows of x, one of W. The register of W passes
 * through an empty asm, so that gcc keeps it in a register and does not fold its load into each of
 * the six instructions that use it.
 * One fragment of code, not an interface: all its tiles share one chain and one cell. */
#ifndef CART_TENSOR_MATMUL_AVX512_IMPL_H
#define CART_TENSOR_MATMUL_AVX512_IMPL_H
#ifdef __AVX512F__

#include "tensor/matmul_kernels.h"

#include "tensor/variant.h"
#include "tensor/widen_avx512_impl.h"

enum {
    LANES = CART_TILE_LANES,
    COLS = CART_TILE_COLS,
    WIDE = CART_TILE_WIDE,
    ROWS = 6,
    FUSED_ROWS = 4
};

/* --- sums of lanes --- */

/* The lane sums of four accumulators; halves are added first, so that the tree is the reference's.
 */
CART_ALWAYS_INLINE __m128 sum_four(__m512 a, __m512 b, __m512 c, __m512 d)
{
    /* [a0+8 | b0+8]: eight lanes each, then four lanes each of a, b, c, d. */
    __m512 ab = _mm512_add_ps(_mm512_shuffle_f32x4(a, b, 0x44), _mm512_shuffle_f32x4(a, b, 0xee));
    __m512 cd = _mm512_add_ps(_mm512_shuffle_f32x4(c, d, 0x44), _mm512_shuffle_f32x4(c, d, 0xee));
    __m512 q =
        _mm512_add_ps(_mm512_shuffle_f32x4(ab, cd, 0x88), _mm512_shuffle_f32x4(ab, cd, 0xdd));

    q = _mm512_add_ps(q, _mm512_permute_ps(q, 0x4e));
    q = _mm512_add_ps(q, _mm512_permute_ps(q, 0xb1));
    return _mm512_castps512_ps128(_mm512_permutexvar_ps(
        _mm512_setr_epi32(0, 4, 8, 12, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0), q));
}

CART_ALWAYS_INLINE void lanes_load(__m512 c[ROWS][COLS], const struct cart_tile *t, size_t R)
{
#pragma GCC unroll 6
    for (size_t r = 0; r < R; r++)
#pragma GCC unroll 4
        for (size_t j = 0; j < COLS; j++)
            c[r][j] = _mm512_setzero_ps();
    if (t->resume)
#pragma GCC unroll 6
        for (size_t r = 0; r < R; r++)
#pragma GCC unroll 4
            for (size_t j = 0; j < COLS; j++)
                c[r][j] = _mm512_loadu_ps(t->lanes + (r * COLS + j) * LANES);
}

CART_ALWAYS_INLINE void lanes_store(__m512 c[ROWS][COLS], const struct cart_tile *t, size_t R)
{
    if (!t->finish) {
#pragma GCC unroll 6
        for (size_t r = 0; r < R; r++)
#pragma GCC unroll 4
            for (size_t j = 0; j < COLS; j++)
                _mm512_storeu_ps(t->lanes + (r * COLS + j) * LANES, c[r][j]);
        return;
    }
#pragma GCC unroll 6
    for (size_t r = 0; r < R; r++) {
        __m128 sum = sum_four(c[r][0], c[r][1], c[r][2], c[r][3]);
        float *y = t->y + r * t->ldy;

        if (t->bias)
            sum = _mm_add_ps(sum, _mm_loadu_ps(t->bias));
        if (t->add)
            sum = _mm_add_ps(_mm_loadu_ps(y), sum);
        _mm_storeu_ps(y, sum);
    }
}

/* --- forward --- */

CART_ALWAYS_INLINE void tile_rows(const struct cart_tile *t, size_t R)
{
    __m512 c[ROWS][COLS];
    const float *x = t->x, *w = t->w;

    lanes_load(c, t, R);
    for (size_t k = 0; k < t->k16; k++, x += LANES * R, w += LANES * COLS) {
        __m512 a[ROWS];

#pragma GCC unroll 6
        for (size_t r = 0; r < R; r++)
            a[r] = _mm512_loadu_ps(x + LANES * r);
#pragma GCC unroll 4
        for (size_t j = 0; j < COLS; j++) {
            __m512 b = _mm512_loadu_ps(w + LANES * j);

            __asm__("" : "+v"(b));
#pragma GCC unroll 6
            for (size_t r = 0; r < R; r++)
                c[r][j] = chain(c[r][j], a[r], b);
        }
    }
    lanes_store(c, t, R);
}

static void tile(const struct cart_tile *t, size_t R)
{
    switch (R) {
    case 1:
        tile_rows(t, 1);
        break;
    case 2:
        tile_rows(t, 2);
        break;
    case 3:
        tile_rows(t, 3);
        break;
    case 4:
        tile_rows(t, 4);
        break;
    case 5:
        tile_rows(t, 5);
        break;
    default:
        tile_rows(t, 6);
        break;
    }
}

/* The first left of sixteen values, zeros behind them. */
CART_ALWAYS_INLINE __m512 load_left(const float *x, size_t left)
{
    return _mm512_maskz_loadu_ps((__mmask16)(left < LANES ? (1u << left) - 1 : 0xffff), x);
}

static void pack(float *out, const float *x, size_t ldx, size_t R, size_t k)
{
    size_t k0 = 0;

    for (; k0 + LANES * VALUES <= k; k0 += LANES * VALUES)
        for (size_t r = 0; r < R; r++, out += LANES)
            _mm512_storeu_ps(out,
                             cell_of(_mm512_loadu_ps(x + r * ldx + k0),
                                     _mm512_loadu_ps(x + r * ldx + k0 + (VALUES - 1) * LANES)));
    for (size_t r = 0; k0 < k && r < R; r++, out += LANES) {
        const float *from = x + r * ldx + k0;
        size_t left = k - k0;

        _mm512_storeu_ps(out, left > LANES ? cell_of(_mm512_loadu_ps(from),
                                                     load_left(from + LANES, left - LANES))
                                           : cell_of(load_left(from, left), _mm512_setzero_ps()));
    }
}

#endif
#endif
