#include "helper/pools.h"

#include "base/cpu.h"

struct cart_pool *test_pools[TEST_POOLS];

int test_pools_open(void **state)
{
    struct cart_err err;

    (void)state;
    if (cart_cpu_init(&err) < 0)
        return -1;
    for (size_t i = 0; i < TEST_POOLS; i++)
        if (cart_pool_new(&test_pools[i], i + 1, &err) < 0)
            return -1;
    return 0;
}

int test_pools_close(void **state)
{
    (void)state;
    for (size_t i = 0; i < TEST_POOLS; i++)
        cart_pool_free(test_pools[i]);
    return 0;
}
