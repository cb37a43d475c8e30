/* Rows of W widened in registers for AVX-512, and used at once: for up to four rows of x, or the
 * first four of many. Included once for each precision behind matmul_avx512_impl.h, whose VALUES,
 * chain and cell_of it takes. One fragment of code, not an interface. */
#ifndef CART_TENSOR_MATMUL_FUSED_AVX512_IMPL_H
#define CART_TENSOR_MATMUL_FUSED_AVX512_IMPL_H
#ifdef __AVX512F__

#include "tensor/matmul_avx512_impl.h"

/* The cells from piece s on. */
CART_ALWAYS_INLINE __m512 widen_cell(int dtype, const uint8_t *b, const struct widen_state *st,
                                     const uint8_t *codes, size_t g, size_t s)
{
    return cell_of(widen_piece(dtype, b, st, codes, g, s),
                   VALUES == 1 ? _mm512_setzero_ps()
                               : widen_piece(dtype, b, st, codes, g, s + VALUES - 1));
}

/* As widen_rest. */
CART_ALWAYS_INLINE __m512 widen_rest_cell(int dtype, const uint8_t *b, size_t s, size_t left)
{
    return cell_of(widen_rest(dtype, b, s, left),
                   VALUES == 1 ? _mm512_setzero_ps() : widen_rest(dtype, b, s + VALUES - 1, left));
}

/* One step of C rows of W against R rows of x. */
CART_ALWAYS_INLINE void fused_step(__m512 c[FUSED_ROWS][CART_GEMV_ROWS], const float *x,
                                   const __m512 *v, float *panel, size_t R, size_t C)
{
    __m512 a[FUSED_ROWS];

#pragma GCC unroll 4
    for (size_t r = 0; r < R; r++)
        a[r] = _mm512_loadu_ps(x + LANES * r);
    if (R > 1 && panel)
#pragma GCC unroll 4
        for (size_t j = 0; j < C; j++)
            _mm512_storeu_ps(panel + LANES * j, v[j]);
#pragma GCC unroll 8
    for (size_t j = 0; j < C; j++)
#pragma GCC unroll 4
        for (size_t r = 0; r < R; r++)
            c[r][j] = chain(c[r][j], a[r], v[j]);
}

/* The chains of R rows of x with C rows of W, widened in registers. x [k16][R][16]; panel
 * [k16][C][16] or NULL. */
CART_ALWAYS_INLINE void fused_chains(__m512 c[FUSED_ROWS][CART_GEMV_ROWS], const float *x,
                                     float *panel, const struct cart_rows *w, int dtype, size_t R,
                                     size_t C)
{
    const size_t group = widen_group(dtype), fetch = widen_bytes(dtype) * C / (WIDEN_SPAN / group);
    const bool near = widen_fetch_near(dtype, w->ahead);
    size_t off = widen_offset(dtype, w->k0), k = w->k, n;
    const uint8_t *row[CART_GEMV_ROWS], *next = (const uint8_t *)w->row[0] + w->ahead + off * C;
    struct widen_state st[CART_GEMV_ROWS];
    uint8_t codes[CART_GEMV_ROWS][64];
    __m512 v[CART_GEMV_ROWS];

#pragma GCC unroll 8
    for (size_t j = 0; j < C; j++)
        row[j] = w->row[j];
    for (; (n = widen_groups(dtype, k)) > 0;
         off += widen_offset(dtype, n * group), k -= n * group) {
#pragma GCC unroll 8
        for (size_t j = 0; j < C; j++)
            widen_heads(dtype, row[j] + off, n, &st[j]);
        for (size_t g = 0; g < n; g++, next += fetch) {
            widen_fetch(next, fetch, near);
#pragma GCC unroll 8
            for (size_t j = 0; j < C; j++)
                widen_group_codes(dtype, widen_at(dtype, row[j] + off, g), g, codes[j]);
#pragma GCC unroll 4
            for (size_t s = 0; s < group / LANES; s += VALUES) {
#pragma GCC unroll 8
                for (size_t j = 0; j < C; j++)
                    v[j] =
                        widen_cell(dtype, widen_at(dtype, row[j] + off, g), &st[j], codes[j], g, s);
                fused_step(c, x, v, panel, R, C);
                x += LANES * R;
                if (panel)
                    panel += LANES * C;
            }
        }
    }
    for (size_t s = 0; widen_is_float(dtype) && LANES * s < k; s += VALUES) {
#pragma GCC unroll 8
        for (size_t j = 0; j < C; j++)
            v[j] = widen_rest_cell(dtype, row[j] + off, s, k);
        fused_step(c, x, v, panel, R, C);
        x += LANES * R;
        if (panel)
            panel += LANES * C;
    }
}

CART_ALWAYS_INLINE void fused_rows(const struct cart_tile *t, const struct cart_rows *w, int dtype,
                                   size_t R)
{
    __m512 c[FUSED_ROWS][CART_GEMV_ROWS], lanes[ROWS][COLS];

    lanes_load(lanes, t, R);
#pragma GCC unroll 4
    for (size_t r = 0; r < R; r++)
#pragma GCC unroll 4
        for (size_t j = 0; j < COLS; j++)
            c[r][j] = lanes[r][j];
    fused_chains(c, t->x, t->w, w, dtype, R, COLS);
#pragma GCC unroll 4
    for (size_t r = 0; r < R; r++)
#pragma GCC unroll 4
        for (size_t j = 0; j < COLS; j++)
            lanes[r][j] = c[r][j];
    lanes_store(lanes, t, R);
}

CART_ALWAYS_INLINE void gemv_rows(float *y, const float *x, const struct cart_rows *w, int dtype)
{
    __m512 c[FUSED_ROWS][CART_GEMV_ROWS];

#pragma GCC unroll 8
    for (size_t j = 0; j < CART_GEMV_ROWS; j++)
        c[0][j] = _mm512_setzero_ps();
    fused_chains(c, x, NULL, w, dtype, 1, CART_GEMV_ROWS);
    _mm_storeu_ps(y, sum_four(c[0][0], c[0][1], c[0][2], c[0][3]));
    _mm_storeu_ps(y + 4, sum_four(c[0][4], c[0][5], c[0][6], c[0][7]));
}

CART_ALWAYS_INLINE void widen_row(const void *row, size_t k0, size_t k, float *out, size_t step,
                                  int dtype)
{
    const size_t group = widen_group(dtype);
    const uint8_t *b = (const uint8_t *)row + widen_offset(dtype, k0);
    struct widen_state st;

    for (size_t n; (n = widen_groups(dtype, k)) > 0; k -= n * group) {
        widen_heads(dtype, b, n, &st);
        for (size_t g = 0; g < n; g++) {
            uint8_t codes[64];

            widen_group_codes(dtype, widen_at(dtype, b, g), g, codes);
#pragma GCC unroll 4
            for (size_t s = 0; s < group / LANES; s += VALUES, out += step)
                _mm512_storeu_ps(out, widen_cell(dtype, widen_at(dtype, b, g), &st, codes, g, s));
        }
        b += widen_offset(dtype, n * group);
    }
    for (size_t s = 0; widen_is_float(dtype) && LANES * s < k; s += VALUES, out += step)
        _mm512_storeu_ps(out, widen_rest_cell(dtype, b, s, k));
}

#include "tensor/matmul_types_impl.h"

#endif
#endif
