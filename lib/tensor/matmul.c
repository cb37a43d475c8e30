/* y = x . W^T and dx += dy . W over weights in their own encoding; see matmul.h for the orders.
 *
 * Forward: x is packed into tiles first. A unit is a range of rows of a W by a range of rows of x.
 * Its rows of W are widened once, into panels that stay in the second-level cache; tiles of a few
 * rows of x stay in the first-level cache and meet every panel. One row of x (decoding) goes
 * another way: weights are widened into registers and used at once. Backward: a unit is a range of
 * columns of W by a range of rows; blocks of rows of W are widened in ascending order, and each
 * block continues the chains that dx holds. */
#include "tensor/matmul.h"

#include "tensor/dispatch.h"
#include "tensor/matmul_impl.h"
#include "tensor/matmul_kernels.h"

#include <assert.h>
#include <math.h>
#include <string.h>

#ifdef __SSE__
#include <xmmintrin.h>
#endif

enum {
    LANES = CART_TILE_LANES,
    COLS = CART_TILE_COLS,
    WIDE = CART_TILE_WIDE,
    PIECE = 1024, /* values of K that a tile of x keeps in the first-level cache, about */
    PIECE_MAX = 1280,
    K_MAX = 1 << 17,
    RANGE_MAX = 128, /* rows of W of a unit */
    BACKWARD_ROWS = CART_BACKWARD_SPAN,
    BACKWARD_PANELS = 4, /* 256 columns: one block of the K formats */
    SERIAL_FLOATS = 1 << 15,
    GEMV_UNITS = 16, /* of a worker, so that both end together */
    /* The scratch of a worker, in floats: four rows of K_MAX; lanes of a tile; the rest. */
    PANEL_FLOATS = 4 * K_MAX,
    LANE_FLOATS = RANGE_MAX * CART_TILE_ROWS * LANES,
    PACKED_FLOATS = (int)(CART_POOL_SCRATCH / sizeof(float)) - PANEL_FLOATS - LANE_FLOATS,
};

static const size_t panel_bytes = (size_t)512
                                  << 10; /* widened rows of a unit: half of a 1 MiB cache */

static size_t ceil_div(size_t a, size_t b)
{
    return (a + b - 1) / b;
}

static size_t round_up(size_t a, size_t b)
{
    return ceil_div(a, b) * b;
}

static size_t min_size(size_t a, size_t b)
{
    return a < b ? a : b;
}

static size_t max_size(size_t a, size_t b)
{
    return a > b ? a : b;
}

/* Results of the bf16 class are flushed: the control register does it for every path alike, as the
 * instruction does on its own. */
static unsigned flush_begin(size_t values)
{
#ifdef __SSE__
    unsigned old = _mm_getcsr();

    if (values == 2)
        _mm_setcsr(old | 0x8040U);
    return old;
#else
    (void)values;
    return 0;
#endif
}

static void flush_end(size_t values, unsigned old)
{
#ifdef __SSE__
    if (values == 2)
        _mm_setcsr(old);
#else
    (void)values;
    (void)old;
#endif
}

/* --- reference --- */

static float factor_ref(enum cart_precision precision, float v)
{
    return precision == CART_PRECISION_BF16 ? cart_bf16_to_f32(cart_bf16_flushed(v)) : v;
}

/* What a row of W or x holds behind its K values. */
static float padded(const float *v, size_t k, size_t K)
{
    return k < K ? v[k] : 0.0f;
}

/* Steps of 16 * values; wide and x have up to 256 values, the rest is zero. The values of a cell go
 * from the last to the first. */
static void chains_ref(enum cart_precision precision, float lane[LANES], const float *x,
                       const float *wide, size_t k)
{
    size_t values = precision == CART_PRECISION_BF16 ? 2 : 1;

    for (size_t k0 = 0; k0 < k; k0 += LANES * values) {
        for (size_t i = 0; i < LANES; i++) {
            for (size_t v = values; v-- > 0;) {
                size_t at = k0 + i * values + v;

                lane[i] = fmaf(factor_ref(precision, padded(x, at, k)),
                               factor_ref(precision, padded(wide, at, k)), lane[i]);
            }
        }
    }
}

static float dot_ref(enum cart_precision precision, const float *x, const struct cart_matrix *w,
                     size_t n)
{
    float lane[LANES] = {0}, wide[256];

    for (size_t k0 = 0; k0 < w->K; k0 += 256) {
        size_t k = min_size(w->K - k0, 256);

        cart_widen_ref(w->dtype, cart_matrix_row(w, n), k0, k, wide);
        chains_ref(precision, lane, x + k0, wide, k);
    }
    for (size_t half = LANES / 2; half > 0; half /= 2)
        for (size_t i = 0; i < half; i++)
            lane[i] += lane[i + half];
    return lane[0];
}

void cart_matmul_forward_ref(enum cart_precision precision, float *y, size_t ldy, const float *x,
                             size_t ldx, size_t M, const struct cart_matrix *w, const float *bias,
                             bool add)
{
    size_t values = precision == CART_PRECISION_BF16 ? 2 : 1;
    unsigned mode = flush_begin(values);

    for (size_t m = 0; m < M; m++) {
        for (size_t n = 0; n < w->N; n++) {
            float sum = dot_ref(precision, x + m * ldx, w, n);

            if (bias)
                sum += bias[n];
            y[m * ldy + n] = add ? y[m * ldy + n] + sum : sum;
        }
    }
    flush_end(values, mode);
}

/* Row n of W, from value k0 on; zeros behind the last row. */
static void row_ref(const struct cart_matrix *w, size_t n, size_t k0, size_t k, float *wide)
{
    memset(wide, 0, k * sizeof *wide);
    if (n < w->N)
        cart_widen_ref(w->dtype, cart_matrix_row(w, n), k0, k, wide);
}

void cart_matmul_backward_ref(enum cart_precision precision, float *dx, size_t lddx,
                              const float *dy, size_t lddy, size_t M, const struct cart_matrix *w)
{
    size_t values = precision == CART_PRECISION_BF16 ? 2 : 1;
    unsigned mode = flush_begin(values);
    float wide[256];

    for (size_t n0 = 0; n0 < w->N; n0 += values) {
        for (size_t n = n0 + values; n-- > n0;) {
            for (size_t k0 = 0; k0 < w->K; k0 += 256) {
                size_t k = min_size(w->K - k0, 256);

                row_ref(w, n, k0, k, wide);
                for (size_t m = 0; m < M; m++) {
                    float g = factor_ref(precision, padded(dy + m * lddy, n, w->N));

                    for (size_t i = 0; i < k; i++)
                        dx[m * lddx + k0 + i] =
                            fmaf(g, factor_ref(precision, wide[i]), dx[m * lddx + k0 + i]);
                }
            }
        }
    }
    flush_end(values, mode);
}

/* --- forward --- */

struct forward {
    const struct cart_matmul_kernels *kernels;
    struct cart_pool *pool;
    const struct cart_product *products; /* [n], all of K values */
    size_t n, K, M, ldx;
    const float *x;
    size_t n_range;          /* a unit is n_range rows of one matrix by one range of rows of x */
    size_t n_units;          /* along all matrices */
    size_t m_range, m_first; /* ranges of this round start at m_first; range i is packed in worker
                                i's scratch */
    size_t wide;             /* cells of a row: K filled up to whole steps */
    size_t piece;            /* values of K at a time, a multiple of 256 unless it is all of K */
};

/* The rows [n0, n1) of one matrix that a unit takes. */
struct unit {
    const struct cart_product *product;
    size_t n0, n1;
};

static struct unit unit_of(const struct forward *f, size_t u)
{
    const struct cart_product *p = f->products;

    for (size_t units; u >= (units = ceil_div(p->w->N, f->n_range)); p++)
        u -= units;
    return (struct unit){p, u * f->n_range, min_size((u + 1) * f->n_range, p->w->N)};
}

static size_t count_units(const struct forward *f)
{
    size_t units = 0;

    for (size_t i = 0; i < f->n; i++)
        units += ceil_div(f->products[i].w->N, f->n_range);
    return units;
}

static size_t count_rows(const struct forward *f)
{
    size_t rows = 0;

    for (size_t i = 0; i < f->n; i++)
        rows += f->products[i].w->N;
    return rows;
}

/* The scratch of a worker: widened rows of its unit; lanes between pieces of K; then, written
 * before the units start and read by all of them, a range of packed rows of x. */
static float *panels_of(const struct forward *f, size_t worker) /* [n_range / 4][k16][4][16] */
{
    return cart_pool_scratch(f->pool, worker);
}

static float *lanes_of(const struct forward *f, size_t worker) /* [n_range / 4][R][4][16] */
{
    return panels_of(f, worker) + PANEL_FLOATS;
}

static float *packed_of(const struct forward *f, size_t range) /* tiles of [k16][R][16] */
{
    return panels_of(f, range) + PANEL_FLOATS + LANE_FLOATS;
}

static void plan_forward(struct forward *f)
{
    size_t T = cart_pool_threads(f->pool), N = count_rows(f), row_bytes = f->wide * sizeof(float);
    size_t most = max_size(min_size(panel_bytes / row_bytes, RANGE_MAX) / COLS, 1) * COLS;
    size_t least = min_size(f->M >= 32 ? 16 : 8, most);
    /* Every worker gets the same number of units, and several, so that a late one costs little. */
    size_t rounds = max_size(ceil_div(N, most * T), T > 1 ? 4 : 1);
    size_t m_units = ceil_div(f->M, PACKED_FLOATS / f->wide);

    f->n_range = min_size(max_size(round_up(ceil_div(N, rounds * T), COLS), least), most);
    f->n_units = count_units(f);
    if (T > 1 && f->n_units * m_units < 4 * T)
        m_units = max_size(m_units, min_size(ceil_div(4 * T, f->n_units), ceil_div(f->M, 48)));
    f->m_range = ceil_div(f->M, m_units);
    f->piece = f->K;
    if (f->wide > PIECE_MAX)
        f->piece = round_up(ceil_div(f->K, ceil_div(f->wide, PIECE)), 256);
}

/* Rows of the next tile when left remain. The first one of a range widens as it goes, with fewer
 * rows. */
static size_t tile_rows(const struct cart_matmul_kernels *kernels, size_t left, bool first)
{
    if (first && kernels->fused_rows) {
        if (left <= kernels->fused_rows)
            return left;
        return min_size(kernels->fused_rows, ceil_div(left, 2));
    }
    return ceil_div(left, ceil_div(left, kernels->rows));
}

static void pack_unit(void *ctx, size_t unit, size_t worker)
{
    const struct forward *f = ctx;
    size_t m0 = f->m_first + unit * f->m_range, count = min_size(f->m_range, f->M - m0), R;
    float *packed = packed_of(f, unit);

    (void)worker;
    for (size_t m = 0; m < count; m += R) {
        R = tile_rows(f->kernels, count - m, m == 0);
        f->kernels->pack(packed + m * f->wide, f->x + (m0 + m) * f->ldx, f->ldx, R, f->K);
    }
}

static void rows_set(struct cart_rows *rows, const struct cart_matrix *w, size_t n, size_t n_rows,
                     size_t count)
{
    rows->dtype = w->dtype;
    rows->ahead = (w->halves ? count / 2 : count) * w->row_bytes;
    for (size_t j = 0; j < count; j++)
        rows->row[j] = cart_matrix_row(w, n + min_size(j, n_rows - 1));
}

/* Columns of the last panel that exist: out [R, cols] to y. */
static void store_narrow(const struct cart_product *o, const float *out, size_t R, size_t m,
                         size_t n, size_t cols)
{
    for (size_t i = 0; i < R; i++) {
        for (size_t j = 0; j < cols; j++) {
            float sum = out[i * COLS + j];
            float *y = o->y + (m + i) * o->ldy + n + j;

            if (o->bias)
                sum += o->bias[n + j];
            *y = o->add ? *y + sum : sum;
        }
    }
}

/* What a tile needs of its panel: it is widened already; it is to be widened, and kept or not. */
enum stage { WIDENED, WIDEN_KEEP, WIDEN_ONCE };

static void run_tile(const struct forward *f, struct cart_tile *t, const struct cart_rows *rows,
                     enum stage stage, size_t R)
{
    if (stage != WIDENED && R > 1 && R <= f->kernels->fused_rows) {
        if (stage == WIDEN_ONCE)
            t->w = NULL;
        f->kernels->fused(t, rows, R);
        return;
    }
    if (stage != WIDENED)
        for (size_t j = 0; j < COLS; j++)
            f->kernels->widen(rows->dtype, rows->row[j], rows->k0, rows->k, t->w + j * LANES,
                              COLS * LANES);
    f->kernels->tile(t, R);
}

/* R rows of x from m, packed, against a unit's rows of W. */
static void run_rows(const struct forward *f, size_t worker, const float *packed, size_t m,
                     size_t R, const struct unit *u, enum stage stage)
{
    float narrow[CART_TILE_ROWS * COLS];
    const struct cart_product *o = u->product;
    size_t values = f->kernels->values;

    for (size_t k0 = 0; k0 < f->K; k0 += f->piece) {
        size_t k = min_size(f->piece, f->K - k0);

        for (size_t n = u->n0; n < u->n1; n += COLS) {
            size_t p = (n - u->n0) / COLS, cols = min_size(COLS, u->n1 - n);
            struct cart_rows rows = {.k0 = k0, .k = k};
            struct cart_tile t = {
                .x = packed + k0 / values * R,
                .w = panels_of(f, worker) + (p * f->wide + k0 / values) * COLS,
                .k16 = ceil_div(k, LANES * values),
                .lanes = lanes_of(f, worker) + p * R * COLS * LANES,
                .resume = k0 > 0,
                .finish = k0 + k == f->K,
                .y = cols < COLS ? narrow : o->y + m * o->ldy + n,
                .ldy = cols < COLS ? COLS : o->ldy,
                .bias = cols < COLS || !o->bias ? NULL : o->bias + n,
                .add = cols == COLS && o->add,
            };

            if (stage != WIDENED)
                rows_set(&rows, o->w, n, cols, COLS);
            run_tile(f, &t, &rows, stage, R);
            if (t.finish && cols < COLS)
                store_narrow(o, narrow, R, m, n, cols);
        }
    }
}

static void forward_unit(void *ctx, size_t unit, size_t worker)
{
    const struct forward *f = ctx;
    struct unit u = unit_of(f, unit % f->n_units);
    size_t range = unit / f->n_units, m0 = f->m_first + range * f->m_range;
    size_t count = min_size(f->m_range, f->M - m0), R;
    unsigned mode = flush_begin(f->kernels->values);

    for (size_t m = 0; m < count; m += R) {
        enum stage stage = WIDENED;

        R = tile_rows(f->kernels, count - m, m == 0);
        if (m == 0)
            stage = R < count ? WIDEN_KEEP : WIDEN_ONCE;
        run_rows(f, worker, packed_of(f, range) + m * f->wide, m0 + m, R, &u, stage);
    }
    flush_end(f->kernels->values, mode);
}

/* As many ranges of rows as there are workers are packed at a time: by the caller if that is quick,
 * else by all. */
static void forward_rows(struct forward *f)
{
    size_t T = cart_pool_threads(f->pool);

    plan_forward(f);
    for (; f->m_first < f->M; f->m_first += T * f->m_range) {
        size_t ranges = min_size(ceil_div(f->M - f->m_first, f->m_range), T);

        if (ranges == 1 || f->m_range * ranges * f->wide < SERIAL_FLOATS)
            for (size_t i = 0; i < ranges; i++)
                pack_unit(f, i, 0);
        else
            cart_pool_run(f->pool, ranges, pack_unit, f);
        cart_pool_run_ranges(f->pool, f->n_units * ranges, forward_unit, f);
    }
}

/* A row of whole f32 steps is packed as it stands. */
static bool one_in_place(const struct forward *f)
{
    return f->kernels->values == 1 && f->wide == f->K;
}

static void gemv_unit(void *ctx, size_t unit, size_t worker)
{
    const struct forward *f = ctx;
    struct unit u = unit_of(f, unit);
    const struct cart_product *o = u.product;
    const float *x = one_in_place(f) ? f->x : packed_of(f, 0);
    unsigned mode = flush_begin(f->kernels->values);
    float sums[CART_GEMV_ROWS];
    struct cart_rows rows = {.k0 = 0, .k = f->K};

    (void)worker;
    for (size_t n = u.n0; n < u.n1; n += CART_GEMV_ROWS) {
        size_t count = min_size(CART_GEMV_ROWS, u.n1 - n);

        rows_set(&rows, o->w, n, count, CART_GEMV_ROWS);
        f->kernels->gemv(sums, x, &rows);
        for (size_t j = 0; j < count; j++) {
            float sum = o->bias ? sums[j] + o->bias[n + j] : sums[j];

            o->y[n + j] = o->add ? o->y[n + j] + sum : sum;
        }
    }
    flush_end(f->kernels->values, mode);
}

/* One row of x: no panels. */
static void forward_one(struct forward *f)
{
    size_t T = cart_pool_threads(f->pool), N = count_rows(f);

    if (!one_in_place(f))
        f->kernels->pack(packed_of(f, 0), f->x, f->ldx, 1, f->K);
    f->n_range = min_size(max_size(round_up(ceil_div(N, GEMV_UNITS * T), CART_GEMV_ROWS), 16), 512);
    cart_pool_run_ranges(f->pool, count_units(f), gemv_unit, f);
}

void cart_matmul_products_with(const struct cart_matmul_kernels *kernels,
                               const struct cart_product *products, size_t n, const float *x,
                               size_t ldx, size_t M, struct cart_pool *pool)
{
    size_t K = products[0].w->K;
    struct forward f = {.kernels = kernels,
                        .pool = pool,
                        .products = products,
                        .n = n,
                        .K = K,
                        .M = M,
                        .ldx = ldx,
                        .x = x,
                        .wide = round_up(K, LANES * kernels->values) / kernels->values};
    enum cart_precision class = kernels->values == 2 ? CART_PRECISION_BF16 : CART_PRECISION_F32;

    assert(K > 0);
    for (size_t i = 0; i < n; i++)
        assert(products[i].w->K == K);
    if (M == 0 || count_rows(&f) == 0)
        return;
    if (K > K_MAX) /* Beyond any model; the same bits, slowly. */
        for (const struct cart_product *o = products; o < products + n; o++)
            cart_matmul_forward_ref(class, o->y, o->ldy, x, ldx, M, o->w, o->bias, o->add);
    else if (M == 1)
        forward_one(&f);
    else
        forward_rows(&f);
}

void cart_matmul_forward_with(const struct cart_matmul_kernels *kernels, float *y, size_t ldy,
                              const float *x, size_t ldx, size_t M, const struct cart_matrix *w,
                              const float *bias, bool add, struct cart_pool *pool)
{
    const struct cart_product one = {w, bias, y, ldy, add};

    cart_matmul_products_with(kernels, &one, 1, x, ldx, M, pool);
}

/* --- backward --- */

struct backward {
    const struct cart_matmul_kernels *kernels;
    struct cart_pool *pool;
    const struct cart_matrix *w;
    const float *dy;
    float *dx;
    size_t M, lddx, lddy;
    size_t k_range, m_range, k_units; /* a unit is k_range columns by m_range rows */
};

static void plan_backward(struct backward *b)
{
    size_t T = cart_pool_threads(b->pool), panels = ceil_div(b->w->K, WIDE);
    size_t ranges = ceil_div(panels, BACKWARD_PANELS), m_units = 1;

    /* Blocks of 256 values are not cut; other formats share the columns evenly. */
    b->k_range =
        (cart_dtype_info(b->w->dtype)->block > WIDE ? BACKWARD_PANELS : ceil_div(panels, ranges)) *
        WIDE;
    b->k_units = ceil_div(b->w->K, b->k_range);
    if (T > 1 && b->k_units < 4 * T)
        m_units = min_size(ceil_div(4 * T, b->k_units), ceil_div(b->M, 48));
    b->m_range = ceil_div(b->M, m_units);
}

/* The gradients of one tile: cells of dy [R, n]. */
struct gradients {
    const float *dy;
    size_t lddy, n;
};

/* Where dy is not of the cells' class, they are made in cells [CART_TILE_ROWS][BACKWARD_ROWS]. */
static struct gradients gradients_of(const struct backward *b, size_t m, size_t R, size_t n0,
                                     size_t rows, float *cells)
{
    const float *dy = b->dy + m * b->lddy + n0;

    if (b->kernels->values == 1)
        return (struct gradients){dy, b->lddy, rows};
    for (size_t r = 0; r < R; r++)
        b->kernels->pack(cells + r * BACKWARD_ROWS, dy + r * b->lddy, b->lddy, 1, rows);
    return (struct gradients){cells, BACKWARD_ROWS, ceil_div(rows, b->kernels->values)};
}

/* The last panel of a row may be narrower than 64 columns: it is worked on in a copy. */
static void backward_narrow(const struct backward *b, const struct gradients *g, size_t m, size_t R,
                            size_t k0, const float *panel)
{
    float copy[CART_TILE_ROWS * WIDE] = {0};
    size_t k = b->w->K - k0;

    for (size_t i = 0; i < R; i++)
        memcpy(copy + i * WIDE, b->dx + (m + i) * b->lddx + k0, k * sizeof(float));
    b->kernels->tile_backward(copy, WIDE, g->dy, g->lddy, panel, b->k_range, g->n, R);
    for (size_t i = 0; i < R; i++)
        memcpy(b->dx + (m + i) * b->lddx + k0, copy + i * WIDE, k * sizeof(float));
}

/* Columns k0 .. k1 of rows n0 .. n0 + rows of W into panel [rows / values][b->k_range], zeros up to
 * a multiple of 64 columns. */
static void widen_columns(const struct backward *b, float *panel, size_t n0, size_t rows, size_t k0,
                          size_t k1)
{
    size_t wide = round_up(k1 - k0, LANES), whole = round_up(k1 - k0, WIDE);

    for (size_t n = 0; n < rows; n += b->kernels->values, panel += b->k_range) {
        const void *row = cart_matrix_row(b->w, n0 + n);

        if (b->kernels->values == 2)
            b->kernels->widen_pair(b->w->dtype, row,
                                   n + 1 < rows ? cart_matrix_row(b->w, n0 + n + 1) : NULL, k0,
                                   k1 - k0, panel);
        else
            b->kernels->widen(b->w->dtype, row, k0, k1 - k0, panel, LANES);
        for (size_t k = wide; k < whole; k++)
            panel[k] = 0;
    }
}

/* Asks for columns k0 .. k1 of rows n0 .. n1 of W in the second-level cache. */
static void fetch_columns(const struct backward *b, size_t n0, size_t n1, size_t k0, size_t k1)
{
    const struct cart_dtype_info *info = cart_dtype_info(b->w->dtype);
    size_t from = k0 / info->block * info->bytes, to = k1 / info->block * info->bytes;

    for (size_t n = n0; n < n1; n++)
        for (size_t at = from; at < to; at += 64)
            __builtin_prefetch(cart_matrix_row(b->w, n) + at, 0, 2);
}

static void backward_unit(void *ctx, size_t unit, size_t worker)
{
    const struct backward *b = ctx;
    float *panel = cart_pool_scratch(b->pool, worker);
    size_t k0 = unit % b->k_units * b->k_range, k1 = min_size(k0 + b->k_range, b->w->K);
    size_t m0 = unit / b->k_units * b->m_range, m1 = min_size(m0 + b->m_range, b->M);
    /* Each tile asks for its share of the rows that are widened next. */
    size_t share = ceil_div(BACKWARD_ROWS, ceil_div(m1 - m0, b->kernels->rows));
    float cells[CART_TILE_ROWS * BACKWARD_ROWS];
    unsigned mode = flush_begin(b->kernels->values);
    size_t R;

    for (size_t n0 = 0; n0 < b->w->N; n0 += BACKWARD_ROWS) {
        size_t rows = min_size(BACKWARD_ROWS, b->w->N - n0), next = n0 + rows;

        widen_columns(b, panel, n0, rows, k0, k1);
        for (size_t m = m0; m < m1; m += R) {
            R = tile_rows(b->kernels, m1 - m, false);
            struct gradients g = gradients_of(b, m, R, n0, rows, cells);
            fetch_columns(b, next, min_size(next + share, b->w->N), k0, k1);
            next = min_size(next + share, b->w->N);
            for (size_t k = k0; k < k1; k += WIDE) {
                if (k1 - k < WIDE)
                    backward_narrow(b, &g, m, R, k, panel + k - k0);
                else
                    b->kernels->tile_backward(b->dx + m * b->lddx + k, b->lddx, g.dy, g.lddy,
                                              panel + k - k0, b->k_range, g.n, R);
            }
        }
    }
    flush_end(b->kernels->values, mode);
}

void cart_matmul_backward_with(const struct cart_matmul_kernels *kernels, float *dx, size_t lddx,
                               const float *dy, size_t lddy, size_t M, const struct cart_matrix *w,
                               struct cart_pool *pool)
{
    struct backward b = {.kernels = kernels,
                         .pool = pool,
                         .w = w,
                         .dy = dy,
                         .dx = dx,
                         .M = M,
                         .lddx = lddx,
                         .lddy = lddy};

    if (M == 0 || w->K == 0)
        return;
    plan_backward(&b);
    cart_pool_run(pool, b.k_units * ceil_div(M, b.m_range), backward_unit, &b);
}

/* --- selection --- */

static enum cart_kernels selected = CART_KERNELS_AUTO;
static enum cart_precision selected_class = CART_PRECISION_F32;

int cart_kernels_select(enum cart_kernels kernels, enum cart_precision class, struct cart_err *err)
{
    int r = 0;

#ifndef __SSE__
    if (class == CART_PRECISION_BF16)
        return cart_err_set(err, CART_EUSAGE, "--precision bf16: expected an x86-64 machine");
#endif
    if (class == CART_PRECISION_BF16 && kernels == CART_KERNELS_BLAS)
        return cart_err_set(err, CART_EUSAGE, "--precision bf16: not with --kernels blas");
    if (kernels == CART_KERNELS_BLAS)
        r = cart_matmul_blas_load(err);
    if (r == 0) {
        selected = kernels;
        selected_class = class;
    }
    return r;
}

enum cart_kernels cart_kernels_selected(void)
{
    return selected;
}

enum cart_precision cart_precision_selected(void)
{
    return selected_class;
}

static const struct cart_matmul_kernels *kernels_of_class(void)
{
    const struct cart_tensor_kernels *set = cart_tensor_kernels();

    return selected_class == CART_PRECISION_BF16 ? set->matmul_bf16 : set->matmul;
}

void cart_matmul_products(const struct cart_product *products, size_t n, const float *x, size_t ldx,
                          size_t M, struct cart_pool *pool)
{
    if (selected != CART_KERNELS_BLAS) {
        cart_matmul_products_with(kernels_of_class(), products, n, x, ldx, M, pool);
        return;
    }
    for (const struct cart_product *o = products; o < products + n; o++)
        cart_matmul_forward_blas(o->y, o->ldy, x, ldx, M, o->w, o->bias, o->add, pool);
}

void cart_matmul_forward(float *y, size_t ldy, const float *x, size_t ldx, size_t M,
                         const struct cart_matrix *w, const float *bias, bool add,
                         struct cart_pool *pool)
{
    const struct cart_product one = {w, bias, y, ldy, add};

    cart_matmul_products(&one, 1, x, ldx, M, pool);
}

void cart_matmul_backward(float *dx, size_t lddx, const float *dy, size_t lddy, size_t M,
                          const struct cart_matrix *w, struct cart_pool *pool)
{
    if (selected == CART_KERNELS_BLAS)
        cart_matmul_backward_blas(dx, lddx, dy, lddy, M, w, pool);
    else
        cart_matmul_backward_with(kernels_of_class(), dx, lddx, dy, lddy, M, w, pool);
}
