#include "base/rng.h"

#include <assert.h>

#include "base/rng_impl.h"

/* Ten rounds of Philox4x32: multipliers and Weyl increments of the paper. */
void cart_philox4x32(const uint32_t counter[4], const uint32_t key[2], uint32_t out[4])
{
    uint32_t c0 = counter[0];
    uint32_t c1 = counter[1];
    uint32_t c2 = counter[2];
    uint32_t c3 = counter[3];
    uint32_t k0 = key[0];
    uint32_t k1 = key[1];
    for (int round = 0; round < 10; round++) {
        uint64_t p0 = (uint64_t)0xD2511F53 * c0;
        uint64_t p1 = (uint64_t)0xCD9E8D57 * c2;
        uint32_t n0 = (uint32_t)(p1 >> 32) ^ c1 ^ k0;
        uint32_t n2 = (uint32_t)(p0 >> 32) ^ c3 ^ k1;
        c1 = (uint32_t)p1;
        c3 = (uint32_t)p0;
        c0 = n0;
        c2 = n2;
        k0 += 0x9E3779B9;
        k1 += 0xBB67AE85;
    }
    out[0] = c0;
    out[1] = c1;
    out[2] = c2;
    out[3] = c3;
}

/* The key is the seed; the counter is (index, n, use and block), so that one record has 2^32
 * indices for each use. */
static void block(uint32_t out[4], uint64_t seed, uint64_t n, enum cart_rng_use use, uint32_t index,
                  uint32_t part)
{
    uint32_t counter[4] = {index, (uint32_t)n, (uint32_t)(n >> 32), (uint32_t)use << 8 | part};
    uint32_t key[2] = {(uint32_t)seed, (uint32_t)(seed >> 32)};
    cart_philox4x32(counter, key, out);
}

uint32_t cart_rng_u32(uint64_t seed, uint64_t n, enum cart_rng_use use, uint32_t index)
{
    uint32_t r[4];
    block(r, seed, n, use, index, 0);
    return r[0];
}

double cart_rng_uniform(uint64_t seed, uint64_t n, enum cart_rng_use use, uint32_t index)
{
    uint32_t r[4];
    block(r, seed, n, use, index, 0);
    uint64_t bits = (uint64_t)r[1] << 32 | r[2];
    return (double)(bits >> 11) * 0x1p-53;
}

size_t cart_rng_below(uint64_t seed, uint64_t n, enum cart_rng_use use, uint32_t index,
                      size_t bound)
{
    assert(bound > 0);
    uint32_t r[4];
    block(r, seed, n, use, index, 0);
    /* The upper half of a 128-bit product scales 96 random bits into the range without a division.
     */
    uint64_t high = (uint64_t)r[1] << 32 | r[2];
    unsigned __int128 product = (unsigned __int128)high * bound;
    unsigned __int128 low = (unsigned __int128)r[3] * bound >> 32;
    return (size_t)((product + low) >> 64);
}

double cart_rng_normal(uint64_t seed, uint64_t n, enum cart_rng_use use, uint32_t index)
{
    double sum = 0;
    for (uint32_t part = 1; part <= 3; part++) {
        uint32_t r[4];
        block(r, seed, n, use, index, part);
        for (int i = 0; i < 4; i++)
            sum += ((double)r[i] + 0.5) * 0x1p-32;
    }
    return sum - 6;
}
