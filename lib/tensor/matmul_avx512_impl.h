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

/* The cells from piece s on. */
CART_ALWAYS_INLINE __m512 widen_cell(int dtype, const uint8_t *b, const struct widen_state *st,
                                     const uint8_t *codes, size_t g, size_t s)
{
    return cell_of(widen_piece(dtype, b, st, codes, g, s),
                   VALUES == 1 ? _mm512_setzero_ps()
                               : widen_piece(dtype, b, st, codes, g, s + VALUES - 1));
}

/* As widen_rest, from piece s on. */
CART_ALWAYS_INLINE __m512 widen_rest_cell(int dtype, const uint8_t *b, const struct widen_state *st,
                                          size_t s, size_t left)
{
    return cell_of(widen_rest(dtype, b, st, s, left),
                   VALUES == 1 || left <= LANES ? _mm512_setzero_ps()
                                                : widen_rest(dtype, b, st, 1, left - LANES));
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
    const size_t group = widen_group(dtype), bytes = widen_bytes(dtype),
                 groups = WIDEN_SPAN / group;
    const bool near = widen_fetch_near(dtype, w->ahead);
    size_t off = widen_offset(dtype, w->k0), rest = w->k % WIDEN_SPAN;
    const uint8_t *row[CART_GEMV_ROWS], *next = (const uint8_t *)w->row[0] + w->ahead + off * C;
    struct widen_state st[CART_GEMV_ROWS];
    uint8_t codes[CART_GEMV_ROWS][64];
    __m512 v[CART_GEMV_ROWS];

#pragma GCC unroll 8
    for (size_t j = 0; j < C; j++)
        row[j] = w->row[j];
    for (size_t i = 0; i < w->k / WIDEN_SPAN; i++, off += bytes) {
        for (size_t j = 0; j < C; j++)
            widen_heads(dtype, row[j] + off, &st[j]);
        for (size_t g = 0; g < groups; g++, next += bytes * C / groups) {
            widen_fetch(next, bytes * C / groups, near);
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
    /* What is left of the row: blocks of 32, or values of a floating type. */
    for (size_t done = 0; !widen_is_k(dtype) && done < rest; done += LANES * VALUES) {
        size_t s = done / LANES % 2, left = rest - done;

#pragma GCC unroll 8
        for (size_t j = 0; j < C; j++) {
            const uint8_t *b = row[j] + off + done / 32 * (bytes / 8);

            if (s == 0)
                widen_head_one(dtype, b, &st[j]);
            v[j] = widen_rest_cell(dtype, b, &st[j], s, left);
        }
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

CART_ALWAYS_INLINE void widen_row(const void *row, size_t k0, size_t n, float *out, size_t step,
                                  int dtype)
{
    const size_t group = widen_group(dtype), bytes = widen_bytes(dtype);
    const uint8_t *b = (const uint8_t *)row + widen_offset(dtype, k0);
    struct widen_state st;

    for (; n >= WIDEN_SPAN; n -= WIDEN_SPAN, b += bytes) {
        widen_heads(dtype, b, &st);
        for (size_t g = 0; g < WIDEN_SPAN / group; g++) {
            uint8_t codes[64];

            widen_group_codes(dtype, widen_at(dtype, b, g), g, codes);
#pragma GCC unroll 4
            for (size_t s = 0; s < group / LANES; s += VALUES, out += step)
                _mm512_storeu_ps(out, widen_cell(dtype, widen_at(dtype, b, g), &st, codes, g, s));
        }
    }
    for (size_t done = 0; !widen_is_k(dtype) && done < n; done += LANES * VALUES, out += step) {
        const uint8_t *at = b + done / 32 * (bytes / 8);
        size_t s = done / LANES % 2;

        if (s == 0)
            widen_head_one(dtype, at, &st);
        _mm512_storeu_ps(out, widen_rest_cell(dtype, at, &st, s, n - done));
    }
}

/* One function per type and number of rows. */
#define INSTANCES(type)                                                                            \
    static void fused2_##type(const struct cart_tile *t, const struct cart_rows *w)                \
    {                                                                                              \
        fused_rows(t, w, CART_##type, 2);                                                          \
    }                                                                                              \
    static void fused3_##type(const struct cart_tile *t, const struct cart_rows *w)                \
    {                                                                                              \
        fused_rows(t, w, CART_##type, 3);                                                          \
    }                                                                                              \
    static void fused4_##type(const struct cart_tile *t, const struct cart_rows *w)                \
    {                                                                                              \
        fused_rows(t, w, CART_##type, 4);                                                          \
    }                                                                                              \
    static void gemv_##type(float *y, const float *x, const struct cart_rows *w)                   \
    {                                                                                              \
        gemv_rows(y, x, w, CART_##type);                                                           \
    }                                                                                              \
    static void widen_##type(const void *row, size_t k0, size_t n, float *out, size_t step)        \
    {                                                                                              \
        widen_row(row, k0, n, out, step, CART_##type);                                             \
    }

#define EACH_TYPE(f)                                                                               \
    f(F32) f(F16) f(BF16) f(Q8_0) f(Q4_0) f(Q4_1) f(Q5_0) f(Q5_1) f(Q2_K) f(Q3_K) f(Q4_K) f(Q5_K)  \
        f(Q6_K) f(IQ4_NL) f(IQ4_XS) f(MXFP4)

EACH_TYPE(INSTANCES)

typedef void fused_fn(const struct cart_tile *t, const struct cart_rows *w);

#define ENTRY(type)                                                                                \
    [CART_##type] = {{fused2_##type, fused3_##type, fused4_##type}, gemv_##type, widen_##type},

static const struct {
    fused_fn *fused[FUSED_ROWS - 1];
    void (*gemv)(float *y, const float *x, const struct cart_rows *w);
    void (*widen)(const void *row, size_t k0, size_t n, float *out, size_t step);
} entries[] = {EACH_TYPE(ENTRY)};

static void fused(const struct cart_tile *t, const struct cart_rows *w, size_t R)
{
    entries[w->dtype].fused[R - 2](t, w);
}

static void gemv(float *y, const float *x, const struct cart_rows *w)
{
    entries[w->dtype].gemv(y, x, w);
}

static void widen(int dtype, const void *row, size_t k0, size_t n, float *out, size_t step)
{
    entries[dtype].widen(row, k0, n, out, step);
}

/* --- backward --- */

CART_ALWAYS_INLINE void backward_rows(float *dx, size_t lddx, const float *dy, size_t lddy,
                                      const float *w, size_t ldw, size_t n, size_t R)
{
    enum { VECTORS = WIDE / LANES };
    __m512 c[ROWS][VECTORS];
    const float *g[ROWS];

#pragma GCC unroll 6
    for (size_t r = 0; r < R; r++) {
        g[r] = dy + r * lddy;
#pragma GCC unroll 4
        for (size_t v = 0; v < VECTORS; v++)
            c[r][v] = _mm512_loadu_ps(dx + r * lddx + LANES * v);
    }
    for (size_t i = 0; i < n; i++, w += ldw) {
        __m512 b[VECTORS];

#pragma GCC unroll 4
        for (size_t v = 0; v < VECTORS; v++)
            b[v] = _mm512_loadu_ps(w + LANES * v);
#pragma GCC unroll 6
        for (size_t r = 0; r < R; r++) {
            __m512 a = _mm512_set1_ps(g[r][i]);

            __asm__("" : "+v"(a));
#pragma GCC unroll 4
            for (size_t v = 0; v < VECTORS; v++)
                c[r][v] = chain(c[r][v], a, b[v]);
        }
    }
#pragma GCC unroll 6
    for (size_t r = 0; r < R; r++)
#pragma GCC unroll 4
        for (size_t v = 0; v < VECTORS; v++)
            _mm512_storeu_ps(dx + r * lddx + LANES * v, c[r][v]);
}

static void tile_backward(float *dx, size_t lddx, const float *dy, size_t lddy, const float *w,
                          size_t ldw, size_t n, size_t R)
{
    switch (R) {
    case 1:
        backward_rows(dx, lddx, dy, lddy, w, ldw, n, 1);
        break;
    case 2:
        backward_rows(dx, lddx, dy, lddy, w, ldw, n, 2);
        break;
    case 3:
        backward_rows(dx, lddx, dy, lddy, w, ldw, n, 3);
        break;
    case 4:
        backward_rows(dx, lddx, dy, lddy, w, ldw, n, 4);
        break;
    case 5:
        backward_rows(dx, lddx, dy, lddy, w, ldw, n, 5);
        break;
    default:
        backward_rows(dx, lddx, dy, lddy, w, ldw, n, 6);
        break;
    }
}

#endif
#endif
