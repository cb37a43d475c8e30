/* The products through OpenBLAS: rows of W are widened block by block into a worker's scratch, and
 * one sgemm of one thread multiplies the block. For CPUs that our own kernels do not serve well,
 * and as a second opinion in tests; OpenBLAS chooses its order of sums by CPU and shape, so these
 * are not the exact bits. */
#include "tensor/matmul_impl.h"

#include <cblas.h>
#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>

enum { ROWS_MAX = 128 };

static const size_t room = CART_POOL_SCRATCH / sizeof(float);

struct product {
    struct cart_pool *pool;
    const struct cart_matrix *w;
    const float *in, *bias; /* x, or dy */
    float *out;             /* y, or dx */
    size_t M, ld_in, ld_out, range, wide;
    bool add;
};

static size_t min_size(size_t a, size_t b)
{
    return a < b ? a : b;
}

static __typeof__(cblas_sgemm) *sgemm;

/* Loaded only when asked for: from its first moment the library starts threads that spin, and
 * without memory for them it never returns. */
int cart_matmul_blas_load(struct cart_err *err)
{
    static const char name[] = "libopenblas.so.0";
    void *library;

    if (sgemm)
        return 0;
    if (setenv("OPENBLAS_NUM_THREADS", "1", 1) != 0)
        return cart_err_sys(err, "environment");
    library = dlopen(name, RTLD_NOW | RTLD_LOCAL);
    if (library)
        *(void **)&sgemm = dlsym(library, "cblas_sgemm");
    return sgemm ? 0 : cart_err_set(err, CART_ESYS, "--kernels blas: %s", dlerror());
}

/* A unit is a range of rows of W; K goes in pieces of p->wide values. */
static void forward_unit(void *ctx, size_t unit, size_t worker)
{
    const struct product *p = ctx;
    float *wide = cart_pool_scratch(p->pool, worker);
    size_t n0 = unit * p->range, n = min_size(p->range, p->w->N - n0);

    for (size_t m = 0; m < p->M; m++) {
        for (size_t j = 0; j < n; j++) {
            float *y = p->out + m * p->ld_out + n0 + j;

            if (!p->add)
                *y = 0;
            if (p->bias)
                *y += p->bias[n0 + j];
        }
    }
    for (size_t k0 = 0; k0 < p->w->K; k0 += p->wide) {
        size_t k = min_size(p->wide, p->w->K - k0);

        for (size_t j = 0; j < n; j++)
            cart_widen(p->w->dtype, cart_matrix_row(p->w, n0 + j), k0, k, wide + j * k);
        sgemm(CblasRowMajor, CblasNoTrans, CblasTrans, (int)p->M, (int)n, (int)k, 1, p->in + k0,
              (int)p->ld_in, wide, (int)k, 1, p->out + n0, (int)p->ld_out);
    }
}

/* A unit is a range of columns of W; rows go in blocks that fit the scratch. */
static void backward_unit(void *ctx, size_t unit, size_t worker)
{
    const struct product *p = ctx;
    float *wide = cart_pool_scratch(p->pool, worker);
    size_t k0 = unit * p->range, k = min_size(p->range, p->w->K - k0);

    for (size_t n0 = 0; n0 < p->w->N; n0 += ROWS_MAX) {
        size_t n = min_size(ROWS_MAX, p->w->N - n0);

        for (size_t j = 0; j < n; j++)
            cart_widen(p->w->dtype, cart_matrix_row(p->w, n0 + j), k0, k, wide + j * k);
        sgemm(CblasRowMajor, CblasNoTrans, CblasNoTrans, (int)p->M, (int)k, (int)n, 1, p->in + n0,
              (int)p->ld_in, wide, (int)k, 1, p->out + k0, (int)p->ld_out);
    }
}

static size_t even_range(size_t n, size_t threads, size_t unit, size_t most)
{
    size_t range = (n + 2 * threads - 1) / (2 * threads);

    range = (range + unit - 1) / unit * unit;
    return min_size(range, most);
}

void cart_matmul_forward_blas(float *y, size_t ldy, const float *x, size_t ldx, size_t M,
                              const struct cart_matrix *w, const float *bias, bool add,
                              struct cart_pool *pool)
{
    struct product p = {.pool = pool,
                        .w = w,
                        .in = x,
                        .bias = bias,
                        .out = y,
                        .M = M,
                        .ld_in = ldx,
                        .ld_out = ldy,
                        .add = add};

    if (M == 0 || w->N == 0)
        return;
    p.range = even_range(w->N, cart_pool_threads(pool), 8, ROWS_MAX);
    p.wide = min_size(w->K, room / p.range / 256 * 256);
    cart_pool_run(pool, (w->N + p.range - 1) / p.range, forward_unit, &p);
}

void cart_matmul_backward_blas(float *dx, size_t lddx, const float *dy, size_t lddy, size_t M,
                               const struct cart_matrix *w, bool add, struct cart_pool *pool)
{
    struct product p = {
        .pool = pool, .w = w, .in = dy, .out = dx, .M = M, .ld_in = lddy, .ld_out = lddx};

    if (M == 0 || w->K == 0)
        return;
    for (size_t m = 0; m < M && !add; m++)
        memset(dx + m * lddx, 0, w->K * sizeof *dx);
    p.range = even_range(w->K, cart_pool_threads(pool), 256, room / ROWS_MAX / 256 * 256);
    cart_pool_run(pool, (w->K + p.range - 1) / p.range, backward_unit, &p);
}
