/* What a variant provides for attention.c: the work of one unit. Private to lib/tensor and its
 * tests. A *row* is one query of one head: row r of an item is query r / G, head r % G of the G = H
 * / HK heads that read one KV head. */
#ifndef CART_TENSOR_ATTENTION_KERNELS_H
#define CART_TENSOR_ATTENTION_KERNELS_H

#include "tensor/attention.h"

/* Kernels use the first part of a worker's scratch; attention.c keeps the rest for what units
 * share. */
#define CART_ATTN_SCRATCH ((size_t)3 << 20)

/* Most rows of one forward unit: their state fits into the scratch, and where heads are not very
 * wide into a cache. */
static inline size_t cart_attn_rows_fit(size_t DH)
{
    return DH <= 128 ? 384 : 144;
}

/* Rows r0 .. r1 - 1 of one item; or, where n_items > 1, all rows of each item (r0 = 0, r1 their
 * sum). The first shared keys (a multiple of CART_ATTN_BLOCK) of the items are the same memory. */
struct cart_attn_forward_work {
    const struct cart_attn_item *items;
    size_t n_items, r0, r1, shared;
};

struct cart_attn_backward_work {
    const struct cart_attn_item *item;
    const struct cart_attn_grad *grad;
    size_t r0, r1; /* rows */
    size_t b0, b1; /* blocks of keys */
    bool dq, dkv;  /* which gradients this unit adds to */
};

struct cart_attention_kernels {
    size_t
        values; /* of a cell: 1 in the f32 class, 2 in the bf16 class, whose results are flushed */

    /* One KV head; r1 - r0 <= cart_attn_rows_fit(DH). */
    void (*forward)(const struct cart_attn_forward_work *w, const struct cart_attn_dims *d,
                    size_t kv, void *scratch);

    /* One span of keys alone, for a few rows of one item: part [r1 - r0][DHp + 2] holds o, m and l
     * of each row; l = 0 says that no key of the span is visible. Then join takes n_spans such
     * parts, laid one after another, and finishes the rows. The two together give the bits of
     * forward. */
    void (*forward_span)(const struct cart_attn_forward_work *w, const struct cart_attn_dims *d,
                         size_t kv, size_t span, float *part, void *scratch);
    void (*join)(const struct cart_attn_forward_work *w, const struct cart_attn_dims *d, size_t kv,
                 size_t n_spans, const float *parts, void *scratch);

    void (*backward)(const struct cart_attn_backward_work *w, const struct cart_attn_dims *d,
                     size_t kv, void *scratch);
};

/* DHp: DH filled up to whole vectors. */
static inline size_t cart_attn_padded(size_t DH)
{
    return (DH + 15) / 16 * 16;
}

/* The first key that position pos sees. */
static inline size_t cart_attn_first_key(const struct cart_attn_dims *d, size_t pos)
{
    return d->window && pos >= d->window ? pos + 1 - d->window : 0;
}

/* The functions of attention.h with a chosen variant. */
void cart_attention_forward_with(const struct cart_attention_kernels *kernels,
                                 const struct cart_attn_item *items, size_t n,
                                 const struct cart_attn_dims *d, struct cart_pool *pool);
void cart_attention_backward_with(const struct cart_attention_kernels *kernels,
                                  const struct cart_attn_item *items,
                                  const struct cart_attn_grad *grads, size_t n,
                                  const struct cart_attn_dims *d, struct cart_pool *pool);

extern const struct cart_attention_kernels cart_attention_kernels_generic;
extern const struct cart_attention_kernels cart_attention_kernels_fma;
extern const struct cart_attention_kernels cart_attention_kernels_avx2;
extern const struct cart_attention_kernels cart_attention_kernels_avx512;
extern const struct cart_attention_kernels cart_attention_kernels_bf16_generic;
extern const struct cart_attention_kernels cart_attention_kernels_bf16_fma;
extern const struct cart_attention_kernels cart_attention_kernels_bf16_avx2;
extern const struct cart_attention_kernels cart_attention_kernels_bf16_avx512;

#endif
