#include "base/clock.h"

#include <time.h>

static double read_clock(clockid_t id)
{
    struct timespec ts;
    if (clock_gettime(id, &ts) != 0)
        return 0;
    return (double)ts.tv_sec + 1e-9 * (double)ts.tv_nsec;
}

double cart_clock_now(void)
{
    return read_clock(CLOCK_MONOTONIC);
}

double cart_clock_cpu(void)
{
    return read_clock(CLOCK_PROCESS_CPUTIME_ID);
}
