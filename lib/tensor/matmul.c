/* y = x . W^T and dx += dy . W over weights in their own encoding; see matmul.h for the orders.
 *
 * Forward: a unit is a range of rows of W by a range of rows of x. Its rows of W are widened once, into panels that
 * stay in the second-level cache; tiles of a few rows of x stay in the first-level cache and meet every panel. One
 * row of x (decoding) goes another way: the weights are widened into registers and used at once.
 * Backward: a unit is a range of columns of W by a range of rows; blocks of rows of W are widened in ascending
 * order, and each block continues the chains that dx holds. */
#include "tensor/matmul.h"

#include "tensor/dispatch.h"
#include "tensor/matmul_impl.h"
#include "tensor/matmul_kernels.h"

#include <assert.h>
#include <math.h>
#include <string.h>

enum {
    LANES = CART_TILE_LANES,
    COLS = CART_TILE_COLS,
    WIDE = CART_TILE_WIDE,
    PIECE = 1024,        /* values of K that a tile of x keeps in the first-level cache */
    RANGE_MAX = 128,     /* rows of W of a unit */
    BACKWARD_ROWS = 128, /* rows of W that the backward widens at once */
    BACKWARD_PANELS = 4, /* 256 columns: one block of the K formats */
};

static const size_t panel_bytes = (size_t)512 << 10; /* widened rows of a unit: half of a 1 MiB cache */

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

static const uint8_t *row_of(const struct cart_matrix *w, size_t n)
{
    return (const uint8_t *)w->data + n * w->row_bytes;
}

/* --- reference ------------------------------------------------------------------------------------------------ */

static float dot_ref(const float *x, const struct cart_matrix *w, size_t n)
{
    float lane[LANES] = {0}, wide[256];

    for (size_t k0 = 0; k0 < w->K; k0 += 256) {
        size_t k = min_size(w->K - k0, 256);

        cart_widen_ref(w->dtype, row_of(w, n), k0, k, wide);
        for (size_t i = 0; i < k; i++)
            lane[i % LANES] = fmaf(x[k0 + i], wide[i], lane[i % LANES]);
    }
    if (w->K % LANES) /* The zeros that fill up the last piece: they turn a lane of -0 into +0. */
        for (size_t i = w->K % LANES; i < LANES; i++)
            lane[i] = fmaf(0.0f, 0.0f, lane[i]);
    for (size_t half = LANES / 2; half > 0; half /= 2)
        for (size_t i = 0; i < half; i++)
            lane[i] += lane[i + half];
    return lane[0];
}

void cart_matmul_forward_ref(float *y, size_t ldy, const float *x, size_t ldx, size_t M, const struct cart_matrix *w,
                             const float *bias, bool add)
{
    for (size_t m = 0; m < M; m++) {
        for (size_t n = 0; n < w->N; n++) {
            float sum = dot_ref(x + m * ldx, w, n);

            if (bias)
                sum += bias[n];
            y[m * ldy + n] = add ? y[m * ldy + n] + sum : sum;
        }
    }
}

void cart_matmul_backward_ref(float *dx, size_t lddx, const float *dy, size_t lddy, size_t M,
                              const struct cart_matrix *w)
{
    float wide[256];

    for (size_t n = 0; n < w->N; n++) {
        for (size_t k0 = 0; k0 < w->K; k0 += 256) {
            size_t k = min_size(w->K - k0, 256);

            cart_widen_ref(w->dtype, row_of(w, n), k0, k, wide);
            for (size_t m = 0; m < M; m++)
                for (size_t i = 0; i < k; i++)
                    dx[m * lddx + k0 + i] = fmaf(dy[m * lddy + n], wide[i], dx[m * lddx + k0 + i]);
        }
    }
}

/* --- forward -------------------------------------------------------------------------------------------------- */

struct forward {
    const struct cart_matmul_kernels *kernels;
    struct cart_pool *pool;
    const struct cart_matrix *w;
    const float *x, *bias;
    float *y;
    size_t M, ldx, ldy;
    bool add;
    size_t n_range, m_range, n_units; /* a unit is n_range rows of W by m_range rows of x; n_units along N */
    size_t piece;                     /* values of K at a time, a multiple of 256 unless it is all of K */
    bool resident;                    /* the widened rows of a unit fit in the scratch */
};

/* The scratch of one worker. */
struct forward_scratch {
    float *panels; /* [n_range / 4][k16][4][16], or one piece of one panel if not resident */
    float *x;      /* [piece / 16][R][16] */
    float *lanes;  /* [n_range / 4][R][4][16] */
};

static struct forward_scratch scratch_of(const struct forward *f, size_t worker)
{
    struct forward_scratch s;
    float *base = cart_pool_scratch(f->pool, worker);

    s.x = base;
    s.lanes = s.x + CART_TILE_ROWS * (PIECE + 256);
    s.panels = s.lanes + RANGE_MAX * CART_TILE_ROWS * LANES;
    return s;
}

static void plan_ranges(struct forward *f)
{
    size_t T = cart_pool_threads(f->pool), N = f->w->N;
    size_t row_bytes = round_up(f->w->K, LANES) * sizeof(float);
    size_t most = min_size(max_size(panel_bytes / row_bytes, 8), RANGE_MAX) / COLS * COLS;
    size_t least = f->M >= 32 ? 32 : CART_GEMV_ROWS;
    /* Every worker gets the same number of units, and several, so that a late one costs little. */
    size_t rounds = max_size(ceil_div(N, most * T), T > 1 ? 4 : 1);
    size_t m_units = 1;

    f->resident = 8 * row_bytes <= CART_POOL_SCRATCH / 2;
    f->n_range = min_size(max_size(round_up(ceil_div(N, rounds * T), COLS), least), most);
    f->n_units = ceil_div(N, f->n_range);
    if (f->n_units < 4 * T && T > 1)
        m_units = min_size(ceil_div(4 * T, f->n_units), ceil_div(f->M, 48));
    f->m_range = ceil_div(f->M, m_units);
    f->piece = f->w->K;
    if (f->piece > PIECE + 256)
        f->piece = round_up(ceil_div(f->w->K, ceil_div(f->w->K, PIECE)), 256);
}

/* Rows of the next tile when left remain. The first one of a unit widens as it goes, with fewer rows. */
static size_t tile_rows(const struct cart_matmul_kernels *kernels, size_t left, bool first)
{
    if (first && kernels->fused_rows) {
        if (left <= kernels->fused_rows)
            return left;
        return min_size(kernels->fused_rows, ceil_div(left, 2));
    }
    return ceil_div(left, ceil_div(left, kernels->rows));
}

static void rows_set(struct cart_rows *rows, const struct cart_matrix *w, size_t n, size_t n_rows, size_t count)
{
    rows->dtype = w->dtype;
    for (size_t j = 0; j < count; j++)
        rows->row[j] = row_of(w, n + min_size(j, n_rows - 1));
}

/* Columns of the last panel that exist: out [R, cols] to y. */
static void store_narrow(const struct forward *f, const float *out, size_t R, size_t m, size_t n, size_t cols)
{
    for (size_t i = 0; i < R; i++) {
        for (size_t j = 0; j < cols; j++) {
            float sum = out[i * COLS + j];
            float *y = f->y + (m + i) * f->ldy + n + j;

            if (f->bias)
                sum += f->bias[n + j];
            *y = f->add ? *y + sum : sum;
        }
    }
}

/* One piece of K of one tile. stage says what the panel needs: it is widened already, or is to be widened here. */
enum stage { WIDENED, WIDEN };

static bool fuses(const struct forward *f, size_t R)
{
    return R > 1 && R <= f->kernels->fused_rows;
}

static void run_tile(const struct forward *f, struct cart_tile *t, struct cart_rows *rows, enum stage stage, size_t R)
{
    if (stage == WIDEN && fuses(f, R)) {
        f->kernels->fused(t, rows, R);
        return;
    }
    if (stage == WIDEN)
        for (size_t j = 0; j < COLS; j++)
            f->kernels->widen(rows->dtype, rows->row[j], rows->k0, rows->k, t->w + j * LANES, COLS * LANES);
    f->kernels->tile(t, R);
}

/* R rows of x from m against rows n0 .. n1 of W. keep: the panels will be read again. */
static void run_rows(const struct forward *f, const struct forward_scratch *s, size_t m, size_t R, size_t n0, size_t n1,
                     enum stage stage, bool keep)
{
    size_t K = f->w->K, k16 = ceil_div(K, LANES);
    float narrow[CART_TILE_ROWS * COLS];

    for (size_t k0 = 0; k0 < K; k0 += f->piece) {
        size_t k = min_size(f->piece, K - k0);

        f->kernels->pack(s->x, f->x + m * f->ldx + k0, f->ldx, R, k);
        for (size_t n = n0; n < n1; n += COLS) {
            size_t p = (n - n0) / COLS, cols = min_size(COLS, n1 - n);
            float *panel = s->panels + (f->resident ? p * k16 * COLS * LANES + k0 * COLS : 0);
            struct cart_rows rows = {.k0 = k0, .k = k};
            struct cart_tile t = {
                .x = s->x,
                .w = panel,
                .k16 = ceil_div(k, LANES),
                .lanes = s->lanes + p * R * COLS * LANES,
                .resume = k0 > 0,
                .finish = k0 + k == K,
                .y = cols < COLS ? narrow : f->y + m * f->ldy + n,
                .ldy = cols < COLS ? COLS : f->ldy,
                .bias = cols < COLS || !f->bias ? NULL : f->bias + n,
                .add = cols == COLS && f->add,
            };

            rows_set(&rows, f->w, n, cols, COLS);
            if (stage == WIDEN && !keep && fuses(f, R))
                t.w = NULL;
            run_tile(f, &t, &rows, stage, R);
            if (t.finish && cols < COLS)
                store_narrow(f, narrow, R, m, n, cols);
        }
    }
}

static void forward_unit(void *ctx, size_t unit, size_t worker)
{
    const struct forward *f = ctx;
    struct forward_scratch s = scratch_of(f, worker);
    size_t n0 = unit % f->n_units * f->n_range, n1 = min_size(n0 + f->n_range, f->w->N);
    size_t m0 = unit / f->n_units * f->m_range, m1 = min_size(m0 + f->m_range, f->M);
    size_t R;

    for (size_t m = m0; m < m1; m += R) {
        enum stage stage = m == m0 || !f->resident ? WIDEN : WIDENED;

        R = tile_rows(f->kernels, m1 - m, stage == WIDEN);
        run_rows(f, &s, m, R, n0, n1, stage, f->resident && m + R < m1);
    }
}

static void gemv_unit(void *ctx, size_t unit, size_t worker)
{
    const struct forward *f = ctx;
    float *x = cart_pool_scratch(f->pool, worker);
    size_t n0 = unit * f->n_range, n1 = min_size(n0 + f->n_range, f->w->N);
    float sums[CART_GEMV_ROWS];
    struct cart_rows rows = {.k0 = 0, .k = f->w->K};

    f->kernels->pack(x, f->x, f->ldx, 1, f->w->K);
    for (size_t n = n0; n < n1; n += CART_GEMV_ROWS) {
        size_t count = min_size(CART_GEMV_ROWS, n1 - n);

        rows_set(&rows, f->w, n, count, CART_GEMV_ROWS);
        f->kernels->gemv(sums, x, &rows);
        for (size_t j = 0; j < count; j++) {
            float sum = f->bias ? sums[j] + f->bias[n + j] : sums[j];

            f->y[n + j] = f->add ? f->y[n + j] + sum : sum;
        }
    }
}

void cart_matmul_forward_with(const struct cart_matmul_kernels *kernels, float *y, size_t ldy, const float *x, size_t ldx,
                              size_t M, const struct cart_matrix *w, const float *bias, bool add,
                              struct cart_pool *pool)
{
    struct forward f = {.kernels = kernels, .pool = pool, .w = w, .x = x, .bias = bias, .y = y, .M = M, .ldx = ldx,
                        .ldy = ldy, .add = add};
    size_t T = cart_pool_threads(pool);

    if (M == 0 || w->N == 0)
        return;
    if (M == 1 && w->K <= CART_POOL_SCRATCH / sizeof(float) - LANES) {
        f.n_range = min_size(max_size(round_up(ceil_div(w->N, 8 * T), CART_GEMV_ROWS), 16), 512);
        cart_pool_run(pool, ceil_div(w->N, f.n_range), gemv_unit, &f);
        return;
    }
    plan_ranges(&f);
    cart_pool_run(pool, f.n_units * ceil_div(M, f.m_range), forward_unit, &f);
}

/* --- backward ------------------------------------------------------------------------------------------------- */

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
    b->k_range = (cart_dtype_info(b->w->dtype)->block > WIDE ? BACKWARD_PANELS : ceil_div(panels, ranges)) * WIDE;
    b->k_units = ceil_div(b->w->K, b->k_range);
    if (T > 1 && b->k_units < 4 * T)
        m_units = min_size(ceil_div(4 * T, b->k_units), ceil_div(b->M, 48));
    b->m_range = ceil_div(b->M, m_units);
}

/* The last panel of a row may be narrower than 64 columns: it is worked on in a copy. */
static void backward_narrow(const struct backward *b, size_t m, size_t R, size_t n0, size_t rows, size_t k0,
                            const float *panel)
{
    float copy[CART_TILE_ROWS * WIDE] = {0};
    size_t k = b->w->K - k0;

    for (size_t i = 0; i < R; i++)
        memcpy(copy + i * WIDE, b->dx + (m + i) * b->lddx + k0, k * sizeof(float));
    b->kernels->tile_backward(copy, WIDE, b->dy + m * b->lddy + n0, b->lddy, panel, rows, R);
    for (size_t i = 0; i < R; i++)
        memcpy(b->dx + (m + i) * b->lddx + k0, copy + i * WIDE, k * sizeof(float));
}

/* Columns k0 .. k1 of rows n0 .. n0 + rows of W into panels [rows][64]. */
static void widen_columns(const struct backward *b, float *panels, size_t n0, size_t rows, size_t k0, size_t k1)
{
    for (size_t n = 0; n < rows; n++) {
        for (size_t k = k0; k < k1; k += 256) { /* 256: what every block size divides; four panels */
            size_t count = min_size(k1 - k, 256);
            float wide[256];
            float *to = panels + (k - k0) * rows + n * WIDE;

            if (count <= WIDE) {
                b->kernels->widen(b->w->dtype, row_of(b->w, n0 + n), k, count, to, LANES);
                if (round_up(count, LANES) < WIDE)
                    memset(to + round_up(count, LANES), 0, (WIDE - round_up(count, LANES)) * sizeof(float));
                continue;
            }
            b->kernels->widen(b->w->dtype, row_of(b->w, n0 + n), k, count, wide, LANES);
            if (count < 256)
                memset(wide + round_up(count, LANES), 0, (256 - round_up(count, LANES)) * sizeof(float));
            for (size_t i = 0; i < count; i += WIDE)
                memcpy(to + i * rows, wide + i, WIDE * sizeof(float));
        }
    }
}

static void backward_unit(void *ctx, size_t unit, size_t worker)
{
    const struct backward *b = ctx;
    float *panels = cart_pool_scratch(b->pool, worker);
    size_t k0 = unit % b->k_units * b->k_range, k1 = min_size(k0 + b->k_range, b->w->K);
    size_t m0 = unit / b->k_units * b->m_range, m1 = min_size(m0 + b->m_range, b->M);
    size_t R;

    for (size_t n0 = 0; n0 < b->w->N; n0 += BACKWARD_ROWS) {
        size_t rows = min_size(BACKWARD_ROWS, b->w->N - n0);

        widen_columns(b, panels, n0, rows, k0, k1);
        for (size_t m = m0; m < m1; m += R) {
            R = tile_rows(b->kernels, m1 - m, false);
            for (size_t k = k0; k < k1; k += WIDE) {
                const float *panel = panels + (k - k0) * rows;

                if (k1 - k < WIDE)
                    backward_narrow(b, m, R, n0, rows, k, panel);
                else
                    b->kernels->tile_backward(b->dx + m * b->lddx + k, b->lddx, b->dy + m * b->lddy + n0, b->lddy,
                                              panel, rows, R);
            }
        }
    }
}

void cart_matmul_backward_with(const struct cart_matmul_kernels *kernels, float *dx, size_t lddx, const float *dy,
                               size_t lddy, size_t M, const struct cart_matrix *w, struct cart_pool *pool)
{
    struct backward b = {.kernels = kernels, .pool = pool, .w = w, .dy = dy, .dx = dx, .M = M, .lddx = lddx,
                         .lddy = lddy};

    if (M == 0 || w->K == 0)
        return;
    plan_backward(&b);
    cart_pool_run(pool, b.k_units * ceil_div(M, b.m_range), backward_unit, &b);
}

/* --- selection ------------------------------------------------------------------------------------------------ */

static enum cart_kernels selected = CART_KERNELS_AUTO;

void cart_kernels_select(enum cart_kernels kernels)
{
    selected = kernels;
    if (kernels == CART_KERNELS_BLAS)
        cart_matmul_blas_init();
}

enum cart_kernels cart_kernels_selected(void)
{
    return selected;
}

void cart_matmul_forward(float *y, size_t ldy, const float *x, size_t ldx, size_t M, const struct cart_matrix *w,
                         const float *bias, bool add, struct cart_pool *pool)
{
    if (selected == CART_KERNELS_BLAS)
        cart_matmul_forward_blas(y, ldy, x, ldx, M, w, bias, add, pool);
    else
        cart_matmul_forward_with(cart_tensor_kernels()->matmul, y, ldy, x, ldx, M, w, bias, add, pool);
}

void cart_matmul_backward(float *dx, size_t lddx, const float *dy, size_t lddy, size_t M, const struct cart_matrix *w,
                          struct cart_pool *pool)
{
    if (selected == CART_KERNELS_BLAS)
        cart_matmul_backward_blas(dx, lddx, dy, lddy, M, w, pool);
    else
        cart_matmul_backward_with(cart_tensor_kernels()->matmul, dx, lddx, dy, lddy, M, w, pool);
}
