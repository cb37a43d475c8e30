#define _GNU_SOURCE /* program_invocation_short_name */
#include "helper/limits.h"

#include "base/clock.h"
#include "base/cpu.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/times.h>

/* One measurement: every worker runs the same loop. */
struct job {
    long rounds;
    const float *data;
    size_t per_unit;
    volatile float sink;
};

static bool wide(void)
{
    return __builtin_cpu_supports("avx512f");
}

double limit_now(const struct cart_pool *pool)
{
    return cart_pool_threads(pool) == 1 ? cart_clock_cpu() : cart_clock_now();
}

static void fma_unit(void *ctx, size_t unit, size_t worker)
{
    struct job *j = ctx;
    (void)unit;
    (void)worker;
    if (wide())
        j->sink = limit_fma_loop_avx512(j->rounds);
    else if (__builtin_cpu_supports("fma"))
        j->sink = limit_fma_loop_avx2(j->rounds);
}

static void read_unit(void *ctx, size_t unit, size_t worker)
{
    struct job *j = ctx;
    const float *p = j->data + unit * j->per_unit;
    (void)worker;
    if (wide()) {
        j->sink = limit_read_loop_avx512(p, j->per_unit);
    } else if (__builtin_cpu_supports("fma")) {
        j->sink = limit_read_loop_avx2(p, j->per_unit);
    } else {
        float s = 0;
        for (size_t i = 0; i < j->per_unit; i++)
            s += p[i];
        j->sink = s;
    }
}

static void bf16_unit(void *ctx, size_t unit, size_t worker)
{
    struct job *j = ctx;
    (void)unit;
    (void)worker;
    j->sink = limit_bf16_loop_avx512(j->rounds);
}

/* Best of several: what the machine can do, not what else it was doing. */
static double best_rate(struct cart_pool *pool, void (*unit)(void *, size_t, size_t), double flop)
{
    struct job j = {.rounds = 1000000};
    double best = 0;
    size_t T = cart_pool_threads(pool);
    for (int i = 0; i < 7; i++) {
        double t = limit_now(pool);
        cart_pool_run(pool, T, unit, &j);
        double rate = flop * (double)j.rounds * (double)T / (limit_now(pool) - t);
        best = rate > best ? rate : best;
    }
    return best;
}

double limit_fma(struct cart_pool *pool)
{
    if (!__builtin_cpu_supports("fma"))
        return 0;
    return best_rate(pool, fma_unit, wide() ? 512.0 : 192.0);
}

double limit_bf16(struct cart_pool *pool)
{
    return cart_cpu_has_bf16() ? best_rate(pool, bf16_unit, 1024.0) : 0;
}

double limit_read(struct cart_pool *pool)
{
    size_t bytes = (size_t)512 << 20, units = 64;
    float *data = aligned_alloc(64, bytes);
    if (!data) {
        perror("limit_read");
        exit(5);
    }
    memset(data, 1, bytes);
    struct job j = {.data = data, .per_unit = bytes / sizeof(float) / units};
    double best = 0;
    for (int i = 0; i < 9; i++) {
        double t = limit_now(pool);
        cart_pool_run(pool, units, read_unit, &j);
        double rate = (double)bytes / (limit_now(pool) - t);
        best = rate > best ? rate : best;
    }
    free(data);
    return best;
}

struct limit_load limit_load_now(void)
{
    /* user, nice, system, idle, iowait, irq, softirq, steal */
    double t[8] = {0}, all = 0;
    struct tms own;
    FILE *f = fopen("/proc/stat", "r");
    int n = f == NULL ? 0
                      : fscanf(f, "cpu %lf %lf %lf %lf %lf %lf %lf %lf", &t[0], &t[1], &t[2], &t[3],
                               &t[4], &t[5], &t[6], &t[7]);
    if (f != NULL)
        fclose(f);
    if (n < 5 || times(&own) == (clock_t)-1)
        return (struct limit_load){0, 0, 0};
    for (size_t i = 0; i < CART_COUNTOF(t); i++)
        all += t[i];
    return (struct limit_load){
        all, all - t[3] - t[4],
        (double)(own.tms_utime + own.tms_stime + own.tms_cutime + own.tms_cstime)};
}

void limit_load_warn(const struct limit_load *since)
{
    struct limit_load now = limit_load_now();
    double all = now.all - since->all;
    double others = (now.busy - since->busy - (now.own - since->own)) / all;
    /* Of a few ticks nothing can be said. */
    if (since->all > 0 && all > 50 && others > 0.05)
        fprintf(stderr,
                "%s: %.0f %% of the machine was used by others: figures are not comparable\n",
                program_invocation_short_name, 100 * others);
}
