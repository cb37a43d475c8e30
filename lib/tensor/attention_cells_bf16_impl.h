/* What the tiles of attention multiply in the bf16 class: a cell is a pair of values, the even one
 * below the odd one, in the 32 bits of a float. Rounding is to nearest even, and subnormal values
 * become zeros. The control register flushes results, as VDPBF16PS does. Included once by each
 * attention variant of the class, before attention_impl.h; a fragment of code, not an interface. */
#ifndef CART_TENSOR_ATTENTION_CELLS_BF16_IMPL_H
#define CART_TENSOR_ATTENTION_CELLS_BF16_IMPL_H

#include "tensor/lanes_impl.h"

#define VALUES 2 /* of a cell */

/* cells_along: sixteen cells along VALUES * 16 values that follow each other.
 * cells_across: sixteen cells across sixteen values of each of VALUES rows.
 * cells_values: the values that sixteen cells hold along them, sixteen at a time.
 * cells_kept: the odd or the even values alone, zeros for the others.
 * cells_chain: one step of sixteen chains, the odd values first. */

#ifdef __AVX512BF16__

CART_ALWAYS_INLINE struct lanes cells_along(struct lanes v0, struct lanes v1)
{
    return LANES_OF((__m512)_mm512_cvtne2ps_pbh(v1.v, v0.v));
}

CART_ALWAYS_INLINE struct lanes cells_across(struct lanes even, struct lanes odd)
{
    const __m512i order =
        _mm512_set_epi16(31, 15, 30, 14, 29, 13, 28, 12, 27, 11, 26, 10, 25, 9, 24, 8, 23, 7, 22, 6,
                         21, 5, 20, 4, 19, 3, 18, 2, 17, 1, 16, 0);

    return LANES_OF(
        (__m512)_mm512_permutexvar_epi16(order, (__m512i)_mm512_cvtne2ps_pbh(odd.v, even.v)));
}

CART_ALWAYS_INLINE struct lanes cells_values(struct lanes cells, int half)
{
    __m512i all = _mm512_castps_si512(cells.v);
    __m256i some = half ? _mm512_extracti64x4_epi64(all, 1) : _mm512_castsi512_si256(all);

    return LANES_OF(_mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(some), 16)));
}

CART_ALWAYS_INLINE struct lanes cells_kept(struct lanes cells, bool odd)
{
    const __m512i mask = _mm512_set1_epi32((int)(odd ? 0xffff0000u : 0x0000ffffu));

    return LANES_OF(_mm512_castsi512_ps(_mm512_and_si512(_mm512_castps_si512(cells.v), mask)));
}

CART_ALWAYS_INLINE struct lanes cells_chain(struct lanes a, struct lanes b, struct lanes c)
{
    return LANES_OF(_mm512_dpbf16_ps(c.v, (__m512bh)a.v, (__m512bh)b.v));
}

#elif defined(__AVX2__) && defined(__FMA__)

/* Eight values in the upper halves of their lanes; the lower halves are zero. */
CART_ALWAYS_INLINE __m256i cells_rounded(__m256 a)
{
    __m256i u = _mm256_castps_si256(a), exponent = _mm256_set1_epi32(0x7f800000);
    __m256i small = _mm256_cmpeq_epi32(_mm256_and_si256(u, exponent), _mm256_setzero_si256());
    __m256i sign = _mm256_and_si256(u, _mm256_set1_epi32((int)0x80000000u));
    __m256i r = _mm256_slli_epi32(lanes_half_to_bf16(a), 16);

    return _mm256_blendv_epi8(r, sign, small);
}

/* Sixteen values to eight cells. */
CART_ALWAYS_INLINE __m256 cells_half(struct lanes v)
{
    __m256i r = _mm256_packus_epi32(_mm256_srli_epi32(cells_rounded(v.lo), 16),
                                    _mm256_srli_epi32(cells_rounded(v.hi), 16));

    return _mm256_castsi256_ps(_mm256_permute4x64_epi64(r, 0xd8));
}

CART_ALWAYS_INLINE struct lanes cells_along(struct lanes v0, struct lanes v1)
{
    return LANES_OF(cells_half(v0), cells_half(v1));
}

CART_ALWAYS_INLINE __m256 cells_joined(__m256 even, __m256 odd)
{
    return _mm256_castsi256_ps(
        _mm256_or_si256(_mm256_srli_epi32(cells_rounded(even), 16), cells_rounded(odd)));
}

CART_ALWAYS_INLINE struct lanes cells_across(struct lanes even, struct lanes odd)
{
    return LANES_OF(cells_joined(even.lo, odd.lo), cells_joined(even.hi, odd.hi));
}

CART_ALWAYS_INLINE struct lanes cells_values(struct lanes cells, int half)
{
    __m256i some = _mm256_castps_si256(half ? cells.hi : cells.lo);
    __m256i lo = _mm256_cvtepu16_epi32(_mm256_castsi256_si128(some));
    __m256i hi = _mm256_cvtepu16_epi32(_mm256_extracti128_si256(some, 1));

    return LANES_OF(_mm256_castsi256_ps(_mm256_slli_epi32(lo, 16)),
                    _mm256_castsi256_ps(_mm256_slli_epi32(hi, 16)));
}

CART_ALWAYS_INLINE __m256 cells_odd(__m256 cells)
{
    return _mm256_and_ps(cells, _mm256_castsi256_ps(_mm256_set1_epi32((int)0xffff0000u)));
}

CART_ALWAYS_INLINE __m256 cells_even(__m256 cells)
{
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_castps_si256(cells), 16));
}

CART_ALWAYS_INLINE struct lanes cells_kept(struct lanes cells, bool odd)
{
    __m256 mask = _mm256_castsi256_ps(_mm256_set1_epi32((int)(odd ? 0xffff0000u : 0x0000ffffu)));

    return LANES_OF(_mm256_and_ps(cells.lo, mask), _mm256_and_ps(cells.hi, mask));
}

CART_ALWAYS_INLINE struct lanes cells_chain(struct lanes a, struct lanes b, struct lanes c)
{
    c.lo = _mm256_fmadd_ps(cells_odd(a.lo), cells_odd(b.lo), c.lo);
    c.hi = _mm256_fmadd_ps(cells_odd(a.hi), cells_odd(b.hi), c.hi);
    c.lo = _mm256_fmadd_ps(cells_even(a.lo), cells_even(b.lo), c.lo);
    c.hi = _mm256_fmadd_ps(cells_even(a.hi), cells_even(b.hi), c.hi);
    return c;
}

#else

CART_ALWAYS_INLINE float cell_odd(float cell)
{
    return expf_from_bits(expf_to_bits(cell) & 0xffff0000u);
}

CART_ALWAYS_INLINE float cell_even(float cell)
{
    return expf_from_bits(expf_to_bits(cell) << 16);
}

CART_ALWAYS_INLINE float cell_of(float even, float odd)
{
    return expf_from_bits((uint32_t)cart_bf16_flushed(odd) << 16 | cart_bf16_flushed(even));
}

LANES_INLINE struct lanes cells_along(struct lanes v0, struct lanes v1)
{
    LANES_EACH(i < 8 ? cell_of(v0.x[2 * i], v0.x[2 * i + 1])
                     : cell_of(v1.x[2 * i - 16], v1.x[2 * i - 15]));
}

LANES_INLINE struct lanes cells_across(struct lanes even, struct lanes odd)
{
    LANES_EACH(cell_of(even.x[i], odd.x[i]));
}

LANES_INLINE struct lanes cells_values(struct lanes cells, int half)
{
    LANES_EACH(i % 2 ? cell_odd(cells.x[8 * half + i / 2]) : cell_even(cells.x[8 * half + i / 2]));
}

LANES_INLINE struct lanes cells_kept(struct lanes cells, bool odd)
{
    LANES_EACH(expf_from_bits(expf_to_bits(cells.x[i]) & (odd ? 0xffff0000u : 0x0000ffffu)));
}

LANES_INLINE struct lanes cells_chain(struct lanes a, struct lanes b, struct lanes c)
{
    LANES_EACH(__builtin_fmaf(cell_even(a.x[i]), cell_even(b.x[i]),
                              __builtin_fmaf(cell_odd(a.x[i]), cell_odd(b.x[i]), c.x[i])));
}

#endif
#endif
