/* Pools of 1 .. TEST_POOLS threads for the tests of kernels: set-up and tear-down of a group. */
#ifndef CART_TESTS_HELPER_POOLS_H
#define CART_TESTS_HELPER_POOLS_H

#include "base/pool.h"

enum { TEST_POOLS = 4 };
extern struct cart_pool *test_pools[TEST_POOLS];

/* Chooses the kernels of the CPU, too. */
int test_pools_open(void **state);
int test_pools_close(void **state);

#endif
