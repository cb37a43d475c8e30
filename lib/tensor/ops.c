/* Splits rows and runs of values over the pool, and makes rotation tables. See ops.h. */
#include "tensor/ops.h"

#include "tensor/dispatch.h"
#include "tensor/dtype.h"
#include "tensor/mathf.h"
#include "tensor/ops_kernels.h"

#include <string.h>

/* Values that one unit takes at least: less is not worth waking a thread for. */
#define UNIT_VALUES ((size_t)1 << 14)

typedef void span_fn(const void *ctx, size_t from, size_t to);

struct split {
    span_fn *fn;
    const void *ctx;
    size_t n, per_unit;
};

static void split_unit(void *ctx, size_t unit, size_t worker)
{
    const struct split *s = ctx;
    size_t from = unit * s->per_unit, left = s->n - from;

    (void)worker;
    s->fn(s->ctx, from, from + (left < s->per_unit ? left : s->per_unit));
}

/* Runs fn over [0, n) in spans; cost is the number of values that one step touches, and spans are
 * multiples of step. */
static void split_run(struct cart_pool *pool, size_t n, size_t cost, size_t step, span_fn *fn,
                      const void *ctx)
{
    struct split s = {fn, ctx, n, UNIT_VALUES / (cost ? cost : 1)};

    s.per_unit = (s.per_unit + step) / step * step;
    if (n == 0)
        return;
    if (n <= s.per_unit)
        fn(ctx, 0, n);
    else
        cart_pool_run(pool, (n + s.per_unit - 1) / s.per_unit, split_unit, &s);
}

static const struct cart_ops_kernels *kernels(void)
{
    return cart_tensor_kernels()->ops;
}

/* Norms: a whole row is a head norm with one head. */
struct norm {
    float *y;
    const float *dy, *x, *w;
    float *r_out;
    const float *r;
    size_t ldy, lddy, ldx, H, DH;
    float eps;
    const struct cart_ops_kernels *k;
};

static void norm_forward_span(const void *ctx, size_t from, size_t to)
{
    const struct norm *c = ctx;

    for (size_t m = from; m < to; m++)
        for (size_t h = 0; h < c->H; h++) {
            float r = c->k->norm_forward(c->y + m * c->ldy + h * c->DH,
                                         c->x + m * c->ldx + h * c->DH, c->w, c->DH, c->eps);

            if (c->r_out)
                c->r_out[m * c->H + h] = r;
        }
}

static void norm_backward_span(const void *ctx, size_t from, size_t to)
{
    const struct norm *c = ctx;

    for (size_t m = from; m < to; m++)
        for (size_t h = 0; h < c->H; h++)
            c->k->norm_backward(c->y + m * c->ldy + h * c->DH, c->dy + m * c->lddy + h * c->DH,
                                c->x + m * c->ldx + h * c->DH, c->r[m * c->H + h], c->w, c->DH);
}

void cart_headnorm_forward(float *y, size_t ldy, float *r, const float *x, size_t ldx,
                           const float *w, size_t M, size_t H, size_t DH, float eps,
                           struct cart_pool *pool)
{
    struct norm c = {.y = y,
                     .x = x,
                     .w = w,
                     .r_out = r,
                     .ldy = ldy,
                     .ldx = ldx,
                     .H = H,
                     .DH = DH,
                     .eps = eps,
                     .k = kernels()};

    split_run(pool, M, H * DH, 1, norm_forward_span, &c);
}

void cart_headnorm_backward(float *dx, size_t lddx, const float *dy, size_t lddy, const float *x,
                            size_t ldx, const float *r, const float *w, size_t M, size_t H,
                            size_t DH, struct cart_pool *pool)
{
    struct norm c = {.y = dx,
                     .dy = dy,
                     .x = x,
                     .w = w,
                     .r = r,
                     .ldy = lddx,
                     .lddy = lddy,
                     .ldx = ldx,
                     .H = H,
                     .DH = DH,
                     .k = kernels()};

    split_run(pool, M, H * DH, 1, norm_backward_span, &c);
}

void cart_rmsnorm_forward(float *y, size_t ldy, float *r, const float *x, size_t ldx,
                          const float *w, size_t M, size_t D, float eps, struct cart_pool *pool)
{
    cart_headnorm_forward(y, ldy, r, x, ldx, w, M, 1, D, eps, pool);
}

void cart_rmsnorm_backward(float *dx, size_t lddx, const float *dy, size_t lddy, const float *x,
                           size_t ldx, const float *r, const float *w, size_t M, size_t D,
                           struct cart_pool *pool)
{
    cart_headnorm_backward(dx, lddx, dy, lddy, x, ldx, r, w, M, 1, D, pool);
}

void cart_rope_table(float *cos, float *sin, size_t pos0, size_t n, const struct cart_rope *rope)
{
    size_t half = rope->n_rot / 2;

    for (size_t j = 0; j < half; j++) {
        double frequency = cart_pow(rope->base, -2.0 * (double)j / (double)rope->n_rot);
        double factor = rope->factor ? (double)rope->factor[j] : 1.0;

        for (size_t i = 0; i < n; i++) {
            double c, s;

            cart_sincos((double)(pos0 + i) * rope->scale * frequency / factor, &s, &c);
            cos[i * half + j] = (float)c;
            sin[i * half + j] = (float)s;
        }
    }
}

struct rotation {
    float *x;
    size_t ldx, H, DH;
    const uint32_t *pos;
    const float *cos, *sin;
    const struct cart_rope *rope;
    bool inverse;
    const struct cart_ops_kernels *k;
};

static void rope_span(const void *ctx, size_t from, size_t to)
{
    const struct rotation *c = ctx;
    size_t half = c->rope->n_rot / 2;

    for (size_t m = from; m < to; m++)
        c->k->rope(c->x + m * c->ldx, c->H, c->DH, c->cos + c->pos[m] * half,
                   c->sin + c->pos[m] * half, c->rope->n_rot, c->rope->order, c->inverse);
}

void cart_rope_apply(float *x, size_t ldx, size_t M, size_t H, size_t DH, const uint32_t *pos,
                     const float *cos, const float *sin, const struct cart_rope *rope, bool inverse,
                     struct cart_pool *pool)
{
    struct rotation c = {x, ldx, H, DH, pos, cos, sin, rope, inverse, kernels()};

    split_run(pool, M, H * DH, 1, rope_span, &c);
}

/* Elementwise steps: up to five arrays of n values each. */
struct element {
    float *a, *b, *c, *d;
    const float *x, *y, *z;
    float s;
    const struct cart_adam *adam;
    const struct cart_ops_kernels *k;
};

static void swiglu_forward_span(const void *ctx, size_t from, size_t to)
{
    const struct element *e = ctx;

    e->k->swiglu_forward(e->a + from, e->x + from, e->y + from, to - from);
}

void cart_swiglu_forward(float *out, const float *gate, const float *up, size_t n,
                         struct cart_pool *pool)
{
    struct element e = {.a = out, .x = gate, .y = up, .k = kernels()};

    split_run(pool, n, 3, 16, swiglu_forward_span, &e);
}

static void swiglu_backward_span(const void *ctx, size_t from, size_t to)
{
    const struct element *e = ctx;

    e->k->swiglu_backward(e->a + from, e->b + from, e->x + from, e->y + from, e->z + from,
                          to - from);
}

void cart_swiglu_backward(float *dgate, float *dup, const float *dout, const float *gate,
                          const float *up, size_t n, struct cart_pool *pool)
{
    struct element e = {.a = dgate, .b = dup, .x = dout, .y = gate, .z = up, .k = kernels()};

    split_run(pool, n, 5, 16, swiglu_backward_span, &e);
}

static void add_span(const void *ctx, size_t from, size_t to)
{
    const struct element *e = ctx;

    e->k->add(e->a + from, e->x + from, to - from);
}

void cart_add(float *y, const float *x, size_t n, struct cart_pool *pool)
{
    struct element e = {.a = y, .x = x, .k = kernels()};

    split_run(pool, n, 2, 16, add_span, &e);
}

bool cart_all_finite(const float *x, size_t n)
{
    return kernels()->all_finite(x, n);
}

void cart_narrow(void *out, int dtype, const float *x, size_t n)
{
    if (dtype == CART_F32)
        memcpy(out, x, n * sizeof *x);
    else
        kernels()->narrow(out, dtype == CART_F16, x, n);
}

static void adam_span(const void *ctx, size_t from, size_t to)
{
    const struct element *e = ctx;

    e->k->adam_step(e->a + from, e->b + from, e->c + from, e->d + from, e->s, to - from, e->adam);
}

void cart_adam_step(float *x, float *m, float *v, float *grad, float grad_scale, size_t n,
                    const struct cart_adam *a, struct cart_pool *pool)
{
    struct element e = {
        .a = x, .b = m, .c = v, .d = grad, .s = grad_scale, .adam = a, .k = kernels()};

    split_run(pool, n, 4, 16, adam_span, &e);
}
