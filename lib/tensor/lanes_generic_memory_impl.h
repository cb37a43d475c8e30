/* Lanes as arrays, and how they come from memory and go there. Included by lanes_generic_impl.h. */
#ifndef CART_TENSOR_LANES_GENERIC_MEMORY_IMPL_H
#define CART_TENSOR_LANES_GENERIC_MEMORY_IMPL_H

#define LANES_TILE 1

/* Sanitizers look at every access to the arrays: inlined many times over, these would take minutes
 * to compile. */
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define LANES_INLINE static __attribute__((noinline, unused))
#else
#define LANES_INLINE CART_ALWAYS_INLINE
#endif

struct lanes {
    float x[LANES];
};

/* Runs one statement for each lane i of a new struct lanes r and returns it. */
#define LANES_EACH(expr)                                                                           \
    struct lanes r;                                                                                \
                                                                                                   \
    for (int i = 0; i < LANES; i++)                                                                \
        r.x[i] = (expr);                                                                           \
    return r

LANES_INLINE struct lanes lanes_set(float x)
{
    LANES_EACH(x);
}

LANES_INLINE void lanes_pin(struct lanes *a)
{
    (void)a;
}

LANES_INLINE struct lanes lanes_load(const float *p)
{
    LANES_EACH(p[i]);
}

LANES_INLINE void lanes_store(float *p, struct lanes a)
{
    for (int i = 0; i < LANES; i++)
        p[i] = a.x[i];
}

LANES_INLINE struct lanes lanes_load_n(const float *p, size_t n)
{
    LANES_EACH((size_t)i < n ? p[i] : 0.0f);
}

LANES_INLINE void lanes_store_n(float *p, struct lanes a, size_t n)
{
    for (size_t i = 0; i < n; i++)
        p[i] = a.x[i];
}

LANES_INLINE struct lanes lanes_load_f16(const uint16_t *p)
{
    LANES_EACH(cart_f16_to_f32(p[i]));
}

LANES_INLINE struct lanes lanes_load_bf16(const uint16_t *p)
{
    LANES_EACH(cart_bf16_to_f32(p[i]));
}

LANES_INLINE void lanes_store_f16(uint16_t *p, struct lanes a)
{
    for (int i = 0; i < LANES; i++)
        p[i] = cart_f16_from_f32(a.x[i]);
}

LANES_INLINE void lanes_store_bf16(uint16_t *p, struct lanes a)
{
    for (int i = 0; i < LANES; i++)
        p[i] = cart_bf16_from_f32(a.x[i]);
}

LANES_INLINE void lanes_transpose(const struct lanes in[LANES], float *out, size_t ldo)
{
    for (int i = 0; i < LANES; i++)
        for (int d = 0; d < LANES; d++)
            out[(size_t)d * ldo + (size_t)i] = in[i].x[d];
}

#endif
