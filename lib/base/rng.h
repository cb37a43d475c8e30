/* Counter-based random numbers (Philox4x32-10; Salmon et al., "Parallel random numbers: as easy as
 * 1, 2, 3", SC 2011): a number is a function of its key alone, so splitting work among processes
 * changes nothing. */
#ifndef CART_BASE_RNG_H
#define CART_BASE_RNG_H

#include "base/attr.h"

/* Which use a number serves; part of the key, so that uses never share numbers. Values are part of
 * the results: append only. */
enum cart_rng_use {
    CART_RNG_CHUNK = 1, /* position and length of a chunk */
    CART_RNG_SEED = 2,  /* seed type and its wording */
    CART_RNG_BOT_A = 3, /* sampled tokens of bot A */
    CART_RNG_BOT_B = 4,
    CART_RNG_INIT = 5,      /* random rows */
    CART_RNG_ORDER = 6,     /* order of epochs after the first */
    CART_RNG_ASK = 7,       /* sampled answers of cart-ask and the server */
    CART_RNG_BOOTSTRAP = 8, /* resamples of cart-eval */
    CART_RNG_TEST = 99,
};

uint32_t cart_rng_u32(uint64_t seed, uint64_t n, enum cart_rng_use use, uint32_t index);
double cart_rng_uniform(uint64_t seed, uint64_t n, enum cart_rng_use use,
                        uint32_t index); /* [0, 1), 53 bits */
size_t cart_rng_below(uint64_t seed, uint64_t n, enum cart_rng_use use, uint32_t index,
                      size_t bound); /* bound > 0; no bias above 2^-32 */
double cart_rng_normal(uint64_t seed, uint64_t n, enum cart_rng_use use,
                       uint32_t index); /* sum of 12 uniforms - 6: no libm */

#endif
