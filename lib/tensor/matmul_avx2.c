/* Tiles of the matrix products for AVX2: the sixteen lanes are two registers.
 *
 * Lanes are independent until the last sum, so a forward tile of 3 x 4 runs twice, first over lanes
 * 0 .. 7 and then over 8 .. 15: twelve accumulators, and seven loads for twelve instructions. A
 * backward tile runs twice over halves of its columns for the same reason. */
#include "tensor/matmul_kernels.h"

#include "tensor/variant.h"
#include "tensor/widen_x86_impl.h"

enum {
    LANES = CART_TILE_LANES,
    HALF = 8,
    COLS = CART_TILE_COLS,
    WIDE = CART_TILE_WIDE,
    ROWS = 3,
    FUSED_ROWS = 4,
    GEMV_COLS = 4
};

struct lanes {
    __m256 low, high;
};

CART_ALWAYS_INLINE struct lanes lanes_zero(void)
{
    return (struct lanes){_mm256_setzero_ps(), _mm256_setzero_ps()};
}

CART_ALWAYS_INLINE struct lanes lanes_load(const float *p)
{
    return (struct lanes){_mm256_loadu_ps(p), _mm256_loadu_ps(p + HALF)};
}

CART_ALWAYS_INLINE void lanes_store(float *out, struct lanes v)
{
    _mm256_storeu_ps(out, v.low);
    _mm256_storeu_ps(out + HALF, v.high);
}

/* --- sums of lanes --- */

/* The sums of four times eight lanes, in the reference's tree. */
CART_ALWAYS_INLINE __m128 sum_four(__m256 a, __m256 b, __m256 c, __m256 d)
{
    /* Four lanes each, a in the low half and c in the high half; then two; then one. */
    __m256 ac =
        _mm256_add_ps(_mm256_permute2f128_ps(a, c, 0x20), _mm256_permute2f128_ps(a, c, 0x31));
    __m256 bd =
        _mm256_add_ps(_mm256_permute2f128_ps(b, d, 0x20), _mm256_permute2f128_ps(b, d, 0x31));
    __m256 q = _mm256_add_ps(_mm256_shuffle_ps(ac, bd, 0x44), _mm256_shuffle_ps(ac, bd, 0xee));

    q = _mm256_add_ps(_mm256_shuffle_ps(q, q, 0x88), _mm256_shuffle_ps(q, q, 0xdd));
    return _mm_shuffle_ps(_mm256_castps256_ps128(q), _mm256_extractf128_ps(q, 1), 0x44);
}

/* Row r of a finished tile, whose lanes [4][16] are in halves, to y. */
CART_ALWAYS_INLINE void tile_finish(const struct cart_tile *t, size_t r, const float *lanes)
{
    float *y = t->y + r * t->ldy;
    __m256 sums[COLS];
    __m128 sum;

#pragma GCC unroll 4
    for (size_t j = 0; j < COLS; j++)
        sums[j] = _mm256_add_ps(_mm256_loadu_ps(lanes + j * LANES),
                                _mm256_loadu_ps(lanes + j * LANES + HALF));
    sum = sum_four(sums[0], sums[1], sums[2], sums[3]);
    if (t->bias)
        sum = _mm_add_ps(sum, _mm_loadu_ps(t->bias));
    if (t->add)
        sum = _mm_add_ps(_mm_loadu_ps(y), sum);
    _mm_storeu_ps(y, sum);
}

/* --- forward --- */

/* Eight of the sixteen lanes of R rows of x and a panel, from lane at. */
CART_ALWAYS_INLINE void half_chains(__m256 c[ROWS][COLS], const struct cart_tile *t, size_t R,
                                    size_t at)
{
    const float *x = t->x + at, *w = t->w + at;

#pragma GCC unroll 3
    for (size_t r = 0; r < R; r++)
#pragma GCC unroll 4
        for (size_t j = 0; j < COLS; j++)
            c[r][j] = _mm256_setzero_ps();
    if (t->resume)
#pragma GCC unroll 3
        for (size_t r = 0; r < R; r++)
#pragma GCC unroll 4
            for (size_t j = 0; j < COLS; j++)
                c[r][j] = _mm256_loadu_ps(t->lanes + (r * COLS + j) * LANES + at);
    for (size_t k = 0; k < t->k16; k++, x += LANES * R, w += LANES * COLS) {
        __m256 a[ROWS];

#pragma GCC unroll 3
        for (size_t r = 0; r < R; r++)
            a[r] = _mm256_loadu_ps(x + LANES * r);
#pragma GCC unroll 4
        for (size_t j = 0; j < COLS; j++) {
            __m256 b = _mm256_loadu_ps(w + LANES * j);

            __asm__("" : "+x"(b));
#pragma GCC unroll 3
            for (size_t r = 0; r < R; r++)
                c[r][j] = _mm256_fmadd_ps(a[r], b, c[r][j]);
        }
    }
}

CART_ALWAYS_INLINE void tile_rows(const struct cart_tile *t, size_t R)
{
    float own[ROWS * COLS * LANES], *lanes = t->finish ? own : t->lanes;

    for (size_t at = 0; at < LANES; at += HALF) {
        __m256 c[ROWS][COLS];

        half_chains(c, t, R, at);
#pragma GCC unroll 3
        for (size_t r = 0; r < R; r++)
#pragma GCC unroll 4
            for (size_t j = 0; j < COLS; j++)
                _mm256_storeu_ps(lanes + (r * COLS + j) * LANES + at, c[r][j]);
    }
    for (size_t r = 0; t->finish && r < R; r++)
        tile_finish(t, r, lanes + r * COLS * LANES);
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
    default:
        tile_rows(t, 3);
        break;
    }
}

static void pack(float *out, const float *x, size_t ldx, size_t R, size_t k)
{
    size_t k0 = 0;

    for (; k0 + LANES <= k; k0 += LANES) {
        for (size_t r = 0; r < R; r++, out += LANES) {
            _mm256_storeu_ps(out, _mm256_loadu_ps(x + r * ldx + k0));
            _mm256_storeu_ps(out + HALF, _mm256_loadu_ps(x + r * ldx + k0 + HALF));
        }
    }
    for (size_t r = 0; k0 < k && r < R; r++, out += LANES) {
        memcpy(out, x + r * ldx + k0, (k - k0) * sizeof(float));
        memset(out + (k - k0), 0, (LANES - (k - k0)) * sizeof(float));
    }
}

/* --- widening --- */

CART_ALWAYS_INLINE __m256 half_value(int dtype, __m128i codes, __m256 scale, __m256 min)
{
    __m256 code = _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(codes));

    return widen_has_min(dtype) ? _mm256_fmadd_ps(scale, code, min) : _mm256_mul_ps(scale, code);
}

CART_ALWAYS_INLINE __m256 half_float(int dtype, const uint8_t *b) /* eight values */
{
    if (dtype == CART_F32)
        return _mm256_loadu_ps((const void *)b);
    if (dtype == CART_F16)
        return _mm256_cvtph_ps(load_bytes(b));
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(load_bytes(b)), 16));
}

/* Sixteen values: piece s of group g; b = widen_at(). */
CART_ALWAYS_INLINE struct lanes widen_piece(int dtype, const uint8_t *b,
                                            const struct widen_state *st, size_t g, size_t s)
{
    struct lanes v;
    __m256 scale, min = _mm256_setzero_ps();
    __m128i codes;

    if (widen_is_float(dtype)) {
        size_t bytes = widen_bytes(dtype) / 32;

        v.low = half_float(dtype, b + 2 * s * bytes);
        v.high = half_float(dtype, b + 2 * s * bytes + bytes);
        return v;
    }
    codes = widen_codes(dtype, b, g, s);
    if (dtype == CART_Q8_0)
        scale = _mm256_broadcastss_ps(load_f16(b, 0));
    else
        scale = _mm256_set1_ps(*widen_scale(dtype, st, g, s));
    if (widen_has_min(dtype))
        min = _mm256_set1_ps(*widen_min(dtype, st, g, s));
    v.low = half_value(dtype, codes, scale, min);
    v.high = half_value(dtype, _mm_srli_si128(codes, 8), scale, min);
    return v;
}

/* Piece s of the left < 32 values at b of a floating type; zeros behind them. */
CART_ALWAYS_INLINE struct lanes widen_rest(int dtype, const uint8_t *b, size_t s, size_t left)
{
    uint8_t copy[2 * LANES * sizeof(float)] = {0};

    memcpy(copy, b, left * (widen_bytes(dtype) / WIDEN_SPAN));
    return widen_piece(dtype, copy, NULL, 0, s);
}

CART_ALWAYS_INLINE void widen_row(const void *row, size_t k0, size_t k, float *out, size_t step,
                                  int dtype)
{
    const size_t group = widen_group(dtype);
    const uint8_t *b = (const uint8_t *)row + widen_offset(dtype, k0);
    struct widen_state st;

    for (size_t n; (n = widen_groups(dtype, k)) > 0; k -= n * group) {
        widen_heads(dtype, b, n, &st);
        for (size_t g = 0; g < n; g++)
#pragma GCC unroll 4
            for (size_t s = 0; s < group / LANES; s++, out += step)
                lanes_store(out, widen_piece(dtype, widen_at(dtype, b, g), &st, g, s));
        b += widen_offset(dtype, n * group);
    }
    for (size_t s = 0; widen_is_float(dtype) && LANES * s < k; s++, out += step)
        lanes_store(out, widen_rest(dtype, b, s, k));
}

/* --- rows of W widened in registers --- */

/* One step of C rows of W against R rows of x. */
CART_ALWAYS_INLINE void fused_step(struct lanes c[FUSED_ROWS][GEMV_COLS], const float *x,
                                   const struct lanes *v, size_t R, size_t C)
{
#pragma GCC unroll 4
    for (size_t r = 0; r < R; r++) {
        __m256 low = _mm256_loadu_ps(x + LANES * r), high = _mm256_loadu_ps(x + LANES * r + HALF);

#pragma GCC unroll 4
        for (size_t j = 0; j < C; j++) {
            c[r][j].low = _mm256_fmadd_ps(low, v[j].low, c[r][j].low);
            c[r][j].high = _mm256_fmadd_ps(high, v[j].high, c[r][j].high);
        }
    }
}

CART_ALWAYS_INLINE void panel_store(float *panel, const struct lanes *v, size_t C)
{
    if (panel)
#pragma GCC unroll 4
        for (size_t j = 0; j < C; j++)
            lanes_store(panel + LANES * j, v[j]);
}

/* The chains of R rows of x with C rows of W. x [k16][R][16]; panel: these columns of [k16][4][16],
 * or NULL. Rows that come next lie ahead bytes behind; see widen_fetch. */
CART_ALWAYS_INLINE void fused_chains(struct lanes c[FUSED_ROWS][GEMV_COLS], const float *x,
                                     float *panel, const struct cart_rows *w, size_t first,
                                     size_t ahead, int dtype, size_t R, size_t C)
{
    const size_t group = widen_group(dtype), fetch = widen_bytes(dtype) * C / (WIDEN_SPAN / group),
                 step = panel ? LANES * COLS : 0;
    const bool near = widen_fetch_near(dtype, 2 * ahead);
    size_t off = widen_offset(dtype, w->k0), k = w->k, n;
    const uint8_t *row[GEMV_COLS], *next = (const uint8_t *)w->row[first] + ahead + off * C;
    struct widen_state st[GEMV_COLS];
    struct lanes v[GEMV_COLS];

#pragma GCC unroll 4
    for (size_t j = 0; j < C; j++)
        row[j] = w->row[first + j];
    for (; (n = widen_groups(dtype, k)) > 0;
         off += widen_offset(dtype, n * group), k -= n * group) {
#pragma GCC unroll 4
        for (size_t j = 0; j < C; j++)
            widen_heads(dtype, row[j] + off, n, &st[j]);
        for (size_t g = 0; g < n; g++, next += fetch) {
            widen_fetch(next, fetch, near);
#pragma GCC unroll 4
            for (size_t s = 0; s < group / LANES; s++, x += LANES * R, panel += step) {
#pragma GCC unroll 4
                for (size_t j = 0; j < C; j++)
                    v[j] = widen_piece(dtype, widen_at(dtype, row[j] + off, g), &st[j], g, s);
                panel_store(panel, v, C);
                fused_step(c, x, v, R, C);
            }
        }
    }
    for (size_t s = 0; widen_is_float(dtype) && LANES * s < k; s++, x += LANES * R, panel += step) {
#pragma GCC unroll 4
        for (size_t j = 0; j < C; j++)
            v[j] = widen_rest(dtype, row[j] + off, s, k);
        panel_store(panel, v, C);
        fused_step(c, x, v, R, C);
    }
}

/* Four rows take one row of W at a time, fewer take two: eight chains and more hide the latency of
 * one, and all stay in registers. */
CART_ALWAYS_INLINE void fused_rows(const struct cart_tile *t, const struct cart_rows *w, int dtype,
                                   size_t R)
{
    const size_t C = R < FUSED_ROWS ? 2 : 1;
    float own[FUSED_ROWS * COLS * LANES], *lanes = t->finish ? own : t->lanes;
    struct lanes c[FUSED_ROWS][GEMV_COLS];

    for (size_t j0 = 0; j0 < COLS; j0 += C) {
#pragma GCC unroll 4
        for (size_t r = 0; r < R; r++)
#pragma GCC unroll 2
            for (size_t j = 0; j < C; j++)
                c[r][j] =
                    t->resume ? lanes_load(t->lanes + (r * COLS + j0 + j) * LANES) : lanes_zero();
        fused_chains(c, t->x, t->w ? t->w + j0 * LANES : NULL, w, j0, w->ahead / (COLS / C), dtype,
                     R, C);
#pragma GCC unroll 4
        for (size_t r = 0; r < R; r++)
#pragma GCC unroll 2
            for (size_t j = 0; j < C; j++)
                lanes_store(lanes + (r * COLS + j0 + j) * LANES, c[r][j]);
    }
    for (size_t r = 0; t->finish && r < R; r++)
        tile_finish(t, r, lanes + r * COLS * LANES);
}

CART_ALWAYS_INLINE void gemv_half(float *y, const float *x, const struct cart_rows *w, size_t first,
                                  int dtype)
{
    struct lanes c[FUSED_ROWS][GEMV_COLS];

#pragma GCC unroll 4
    for (size_t j = 0; j < GEMV_COLS; j++)
        c[0][j] = lanes_zero();
    fused_chains(c, x, NULL, w, first, w->ahead / 2, dtype, 1, GEMV_COLS);
    _mm_storeu_ps(y, sum_four(_mm256_add_ps(c[0][0].low, c[0][0].high),
                              _mm256_add_ps(c[0][1].low, c[0][1].high),
                              _mm256_add_ps(c[0][2].low, c[0][2].high),
                              _mm256_add_ps(c[0][3].low, c[0][3].high)));
}

CART_ALWAYS_INLINE void gemv_rows(float *y, const float *x, const struct cart_rows *w, int dtype)
{
    gemv_half(y, x, w, 0, dtype);
    gemv_half(y + GEMV_COLS, x, w, GEMV_COLS, dtype);
}

#include "tensor/matmul_types_impl.h"

/* --- backward --- */

CART_ALWAYS_INLINE void backward_rows(float *dx, size_t lddx, const float *dy, size_t lddy,
                                      const float *w, size_t ldw, size_t n, size_t R)
{
    enum { VECTORS = 4 };

    for (size_t at = 0; at < WIDE; at += VECTORS * HALF) {
        const float *from = w + at;
        __m256 c[ROWS][VECTORS];

#pragma GCC unroll 3
        for (size_t r = 0; r < R; r++)
#pragma GCC unroll 4
            for (size_t v = 0; v < VECTORS; v++)
                c[r][v] = _mm256_loadu_ps(dx + r * lddx + at + HALF * v);
        for (size_t i = 0; i < n; i++, from += ldw) {
            __m256 a[ROWS];

#pragma GCC unroll 3
            for (size_t r = 0; r < R; r++)
                a[r] = _mm256_broadcast_ss(dy + r * lddy + i);
#pragma GCC unroll 4
            for (size_t v = 0; v < VECTORS; v++) {
                __m256 b = _mm256_loadu_ps(from + HALF * v);

                __asm__("" : "+x"(b));
#pragma GCC unroll 3
                for (size_t r = 0; r < R; r++)
                    c[r][v] = _mm256_fmadd_ps(a[r], b, c[r][v]);
            }
        }
#pragma GCC unroll 3
        for (size_t r = 0; r < R; r++)
#pragma GCC unroll 4
            for (size_t v = 0; v < VECTORS; v++)
                _mm256_storeu_ps(dx + r * lddx + at + HALF * v, c[r][v]);
    }
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
    default:
        backward_rows(dx, lddx, dy, lddy, w, ldw, n, 3);
        break;
    }
}

const struct cart_matmul_kernels cart_matmul_kernels_avx2 = {
    .values = 1,
    .rows = ROWS,
    .fused_rows = FUSED_ROWS,
    .widen = widen,
    .pack = pack,
    .tile = tile,
    .fused = fused,
    .gemv = gemv,
    .tile_backward = tile_backward,
};
