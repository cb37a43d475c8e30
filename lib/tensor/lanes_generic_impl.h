/* Lanes in plain C: what the other two must equal. Included by lanes_impl.h, which see. */
#ifndef CART_TENSOR_LANES_GENERIC_IMPL_H
#define CART_TENSOR_LANES_GENERIC_IMPL_H

#include "tensor/lanes_generic_memory_impl.h"

LANES_INLINE struct lanes lanes_add(struct lanes a, struct lanes b)
{
    LANES_EACH(a.x[i] + b.x[i]);
}

LANES_INLINE struct lanes lanes_sub(struct lanes a, struct lanes b)
{
    LANES_EACH(a.x[i] - b.x[i]);
}

LANES_INLINE struct lanes lanes_mul(struct lanes a, struct lanes b)
{
    LANES_EACH(a.x[i] * b.x[i]);
}

LANES_INLINE struct lanes lanes_div(struct lanes a, struct lanes b)
{
    LANES_EACH(a.x[i] / b.x[i]);
}

LANES_INLINE struct lanes lanes_fma(struct lanes a, struct lanes b, struct lanes c)
{
    LANES_EACH(__builtin_fmaf(a.x[i], b.x[i], c.x[i]));
}

LANES_INLINE struct lanes lanes_negate(struct lanes a)
{
    LANES_EACH(-a.x[i]);
}

LANES_INLINE struct lanes lanes_max(struct lanes a, struct lanes b)
{
    LANES_EACH(a.x[i] > b.x[i] ? a.x[i] : b.x[i]);
}

LANES_INLINE struct lanes lanes_keep(struct lanes a, size_t lo, size_t hi, float fill)
{
    LANES_EACH((size_t)i >= lo && (size_t)i < hi ? a.x[i] : fill);
}

LANES_INLINE struct lanes lanes_zero_below(struct lanes x, float bound, struct lanes a)
{
    LANES_EACH(x.x[i] < bound ? 0.0f : a.x[i]);
}

LANES_INLINE struct lanes lanes_if_above(struct lanes x, float bound, struct lanes a,
                                         struct lanes b)
{
    LANES_EACH(x.x[i] > bound ? a.x[i] : b.x[i]);
}

LANES_INLINE struct lanes lanes_power2(struct lanes t, uint32_t one)
{
    LANES_EACH(expf_from_bits((expf_to_bits(t.x[i]) << 23) + one));
}

LANES_INLINE unsigned lanes_not_le(struct lanes a, struct lanes b)
{
    unsigned mask = 0;

    for (int i = 0; i < LANES; i++)
        mask |= (unsigned)!(a.x[i] <= b.x[i]) << i;
    return mask;
}

LANES_INLINE unsigned lanes_equal(struct lanes a, struct lanes b)
{
    unsigned mask = 0;

    for (int i = 0; i < LANES; i++)
        mask |= (unsigned)(a.x[i] == b.x[i]) << i;
    return mask;
}

LANES_INLINE float lanes_sum(struct lanes a)
{
    for (int half = LANES / 2; half > 0; half /= 2)
        for (int i = 0; i < half; i++)
            a.x[i] += a.x[i + half];
    return a.x[0];
}

LANES_INLINE float lanes_top(struct lanes a)
{
    for (int i = 1; i < LANES; i++)
        a.x[0] = a.x[i] > a.x[0] ? a.x[i] : a.x[0];
    return a.x[0];
}

struct dlanes {
    double x[LANES];
};

LANES_INLINE struct dlanes dlanes_zero(void)
{
    return (struct dlanes){{0}};
}

LANES_INLINE struct dlanes dlanes_fma(struct lanes a, struct lanes b, struct dlanes c)
{
    for (int i = 0; i < LANES; i++)
        c.x[i] = __builtin_fma((double)a.x[i], (double)b.x[i], c.x[i]);
    return c;
}

LANES_INLINE struct dlanes dlanes_add(struct dlanes c, struct lanes a)
{
    for (int i = 0; i < LANES; i++)
        c.x[i] += (double)a.x[i];
    return c;
}

LANES_INLINE double dlanes_sum(struct dlanes c)
{
    for (int half = LANES / 2; half > 0; half /= 2)
        for (int i = 0; i < half; i++)
            c.x[i] += c.x[i + half];
    return c.x[0];
}

#endif
