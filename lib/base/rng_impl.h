/* The bare generator under base/rng.h, for its known-answer tests. */
#ifndef CART_BASE_RNG_IMPL_H
#define CART_BASE_RNG_IMPL_H

#include "base/attr.h"

/* out[4] = Philox4x32-10 of a 128-bit counter under a 64-bit key, least significant words first. */
void cart_philox4x32(const uint32_t counter[4], const uint32_t key[2], uint32_t out[4]);

#endif
