/* For tests and benches of the kernels: reproducible random numbers, and random rows of weights of
 * any type. */
#ifndef CART_TESTS_HELPER_WEIGHTS_H
#define CART_TESTS_HELPER_WEIGHTS_H

#include "tensor/matmul.h"

uint32_t test_random(uint64_t *state);
float test_random_float(uint64_t *state); /* (-1, 1) */

/* A matrix of random blocks with scales of ordinary size; rows lie gap bytes apart and start at an
 * odd address if gap is odd. Free with test_weights_release. */
struct cart_matrix test_weights(int dtype, size_t N, size_t K, size_t gap, uint64_t seed);
void test_weights_release(struct cart_matrix *w);

/* All types, in the order of their ids. */
#define TEST_DTYPES 16
extern const int test_dtypes[TEST_DTYPES];

#endif
