/* y = x . W^T over weights in their own encoding; see matmul.h for the order.
 *
 * x is packed into tiles first. A unit is a range of rows of a W by a range of rows of x. Its rows
 * of W are widened once, into panels that stay in the second-level cache; tiles of a few rows of x
 * stay in the first-level cache and meet every panel. One row of x (decoding) goes another way:
 * weights are widened into registers and used at once. Units that follow one another are of the
 * same worker, so that it reads weights on from where it has fetched them. */
#include "tensor/matmul_impl.h"
#include "tensor/matmul_kernels.h"
#include "tensor/matmul_split_impl.h"

#include <assert.h>

enum {
    LANES = CART_TILE_LANES,
    COLS = CART_TILE_COLS,
    PIECE = 1024, /* values of K that a tile of x keeps in the first-level cache, about */
    PIECE_MAX = 1280,
    K_MAX = 1 << 17,
    RANGE_MAX = 128, /* rows of W of a unit */
    SERIAL_FLOATS = 1 << 15,
    GEMV_UNITS = 16, /* of a worker, so that all end together */
    /* The scratch of a worker, in floats: four rows of K_MAX; lanes of a tile; the rest. */
    PANEL_FLOATS = 4 * K_MAX,
    LANE_FLOATS = RANGE_MAX * CART_TILE_ROWS * LANES,
    PACKED_FLOATS = (int)(CART_POOL_SCRATCH / sizeof(float)) - PANEL_FLOATS - LANE_FLOATS,
};

static const size_t panel_bytes = (size_t)512
                                  << 10; /* widened rows of a unit: half of a 1 MiB cache */

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
