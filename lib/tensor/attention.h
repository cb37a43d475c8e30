/* Causal attention over a list of key/value segments (sink rows, trainable rows, further parts,
 * shared pages, own tokens). The *logical key index* counts rows across segments in order; query t
 * of an item has logical index pos0 + t and sees keys j with j <= pos0 + t and, if window > 0,
 * (pos0 + t) - j < window.
 *
 * Order of the sums (the contract; _ref is its definition).
 *
 * Forward:
 * - score: s[j] = scale * c, c = one fmaf chain over d ascending from +0.
 * - blocks of CART_ATTN_BLOCK keys by logical index (block b holds keys 64 b .. 64 b + 63, of which
 *   the visible ones count): m_new = max(m, block max) + 0.0f (a NaN is no maximum),
 *   alpha = exp(m - m_new), p[j] = exp(s[j] - m_new); block sum: 16 lanes by j mod 16 in ascending
 *   j, tree of halves; l = fmaf(l, alpha, sum); o[d] = o[d] * alpha, then one
 *   fmaf(p[j], v[j][d], o[d]) per visible key in ascending j.
 * - spans of CART_ATTN_SPAN keys: each starts anew from m = -inf, l = 0, o = 0, so that many
 *   threads can share one long row. The first span with a visible key gives M, L, O; each later one
 *   is joined in ascending order: M_new = max(M, m), a = exp(M - M_new), b = exp(m - M_new),
 *   L = fmaf(L, a, l * b), O[d] = fmaf(O[d], a, o[d] * b).
 * - at the end: out[d] = O[d] / L + 0.0f (which makes the sign of zero regular).
 *
 * Backward, with the saved M and L:
 * - p[j] = exp(s[j] - M) * (1 / L).
 * - delta = the sum of dout * out: 16 lanes by d mod 16 (DH filled up with zeros to a multiple of
 *   16, one fmaf each, ascending), tree of halves.
 * - dp[j] = fmaf chain over d ascending of dout * v[j]; ds[j] = (p[j] * (dp[j] - delta)) * scale.
 * - dq[d]: chain over visible j ascending of fmaf(ds[j], k[j][d], dq[d]).
 * - dk[j][d], dv[j][d]: chains over queries ascending, then head in group, of fmaf(ds, q[d], .) and
 *   fmaf(p, dout[d], .), each continuing from the value that the buffer held.
 *
 * The bf16 class multiplies pairs of values, as its matrix products do (matmul.h): both factors are
 * rounded to bf16, of a pair (2 i, 2 i + 1) the odd one goes first, one fmaf each, and whatever is
 * subnormal is zero, in all that is computed here.
 * - scores and dp: pairs of d; behind an odd DH follows a zero.
 * - forward: p is rounded to bf16 before it is summed, so that weights are divided by the sum of
 *   themselves. o: pairs of keys by logical index.
 * - delta: of dout as rounded, which dp is of too, and out as it is.
 * - dq: pairs of keys, of ds and k. dk, dv: pairs of rows of the item, of ds and q, p and dout;
 *   row r is query r / G, head r % G in its group of G = H / HK. So queries cut into several calls
 *   give the same bits where each but the last has an even number of rows.
 * - of a pair whose one part is not seen, that part counts as two zeros; a pair that is not seen at
 *   all does not count.
 * All else is as above.
 *
 * So a row's bits do not depend on how its keys are stored, how the prompt was cut, or what is
 * computed beside it. Rows that a query does not see never touch its result, whatever they hold. A
 * NaN or infinity in what it does see gives NaN (equal as NaN; sign and payload are not part of the
 * contract). */
#ifndef CART_TENSOR_ATTENTION_H
#define CART_TENSOR_ATTENTION_H

#include "base/pool.h"
#include "tensor/dtype.h"
#include "tensor/precision.h"

#define CART_ATTN_BLOCK 64
#define CART_ATTN_SPAN 512
#define CART_ATTN_HEAD_MAX 1024 /* widest head */

/* Keys and values in place, F32, F16 or BF16, in one of two layouts. By rows: row i is [HK, DH],
 * stride values (>= HK * DH) behind row i - 1. Blocked, which a forward reads without a copy or a
 * transposition: stride values from one KV head to the next; row i has place skip + i of its head,
 * skip < CART_ATTN_BLOCK. Values are [place, DH]; keys are blocks of CART_ATTN_BLOCK places, [DH,
 * CART_ATTN_BLOCK] each, so that keys stand side by side. To be read in place, skip must be the
 * logical index of the first row mod CART_ATTN_BLOCK. Places without a row are read, but count for
 * nothing, whatever they hold. */
struct cart_kv_segment {
    const void *k, *v;
    size_t rows, stride;
    int dtype;
    bool blocked;
    size_t skip;
};

/* Where the first value of a place's key lies in its head; the others follow CART_ATTN_BLOCK values
 * apart. */
static inline size_t cart_attn_blocked_key(size_t place, size_t DH)
{
    return place / CART_ATTN_BLOCK * CART_ATTN_BLOCK * DH + place % CART_ATTN_BLOCK;
}

struct cart_attn_dims {
    size_t H, HK;  /* H a multiple of HK; query head h reads KV head h / (H / HK) */
    size_t DH;     /* any from 1 to CART_ATTN_HEAD_MAX; multiples of 16 are fastest */
    size_t window; /* 0: none */
    float scale;
};

/* One stream's queries. The segments hold at least pos0 + T rows; rows beyond are not read. */
struct cart_attn_item {
    const float *q; /* [T, H, DH], rows ldq floats apart */
    float *out;     /* [T, H, DH], rows ldo apart; may not overlap q */
    float *stats;   /* [T, H, 2]: M and L, kept for the backward; may be NULL */
    const struct cart_kv_segment *segs;
    size_t n_segs, T, pos0, ldq, ldo;
};

/* Items are independent. Neighbours with few queries whose leading segments are the same memory
 * share the reading of it, so put streams behind one prefix side by side. */
void cart_attention_forward(const struct cart_attn_item *items, size_t n,
                            const struct cart_attn_dims *d, struct cart_pool *pool);
void cart_attention_forward_ref(enum cart_precision precision, const struct cart_attn_item *items,
                                size_t n, const struct cart_attn_dims *d);

/* Gradients of one item. The segments must be F32 by rows here. dk/dv [rows, HK, DH] parallel to
 * the item's segments, dense (stride HK * DH); a NULL entry means that gradient is not wanted. Adds
 * into dq, dk, dv. Different items of one call must not share dk/dv buffers. */
struct cart_attn_grad {
    const float *dout; /* [T, H, DH], rows lddo apart */
    float *dq;         /* [T, H, DH], rows lddq apart */
    float *const *dk, *const *dv;
    size_t lddo, lddq;
};

void cart_attention_backward(const struct cart_attn_item *items, const struct cart_attn_grad *grads,
                             size_t n, const struct cart_attn_dims *d, struct cart_pool *pool);
void cart_attention_backward_ref(enum cart_precision precision, const struct cart_attn_item *items,
                                 const struct cart_attn_grad *grads, size_t n,
                                 const struct cart_attn_dims *d);

#endif
