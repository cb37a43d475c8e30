#define _GNU_SOURCE /* sched_getaffinity */
#include "base/cpu.h"

#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#if defined(__x86_64__)
#include <cpuid.h>
#endif

static const char *const names[] = {
    [CART_CPU_GENERIC] = "generic",
    [CART_CPU_AVX2] = "avx2",
    [CART_CPU_AVX512] = "avx512",
};

static enum cart_cpu_path path = CART_CPU_GENERIC;
static bool fma_on;
static bool bf16_on;

struct features {
    bool fma, avx2, avx512, bf16;
};

#if defined(__x86_64__)
/* Which register states the system saves (XCR0): a CPU flag alone does not mean that the registers
 * survive. */
static unsigned saved_states(void)
{
    unsigned low;
    unsigned high;
    __asm__("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
    (void)high;
    return low;
}

static struct features detect(void)
{
    struct features f = {false, false, false, false};
    unsigned a;
    unsigned b;
    unsigned c;
    unsigned d;
    if (!__get_cpuid(1, &a, &b, &c, &d) || !(c & bit_OSXSAVE) || !(c & bit_AVX))
        return f;
    unsigned states = saved_states();
    if ((states & 0x06) != 0x06)
        return f;
    f.fma = (c & bit_FMA) != 0;
    bool f16c = (c & bit_F16C) != 0;
    if (!__get_cpuid_count(7, 0, &a, &b, &c, &d))
        return f;
    unsigned leaves = a;
    unsigned wanted = bit_AVX512F | bit_AVX512BW | bit_AVX512DQ | bit_AVX512VL;
    f.avx2 = f.fma && f16c && (b & bit_AVX2);
    f.avx512 = f.avx2 && (b & wanted) == wanted && (states & 0xe6) == 0xe6;
    if (f.avx512 && leaves >= 1 && __get_cpuid_count(7, 1, &a, &b, &c, &d))
        f.bf16 = (a & bit_AVX512BF16) != 0;
    return f;
}
#else
static struct features detect(void)
{
    return (struct features){false, false, false, false};
}
#endif

int cart_cpu_init(struct cart_err *err)
{
    struct features f = detect();
    enum cart_cpu_path best = f.avx512 ? CART_CPU_AVX512
                              : f.avx2 ? CART_CPU_AVX2
                                       : CART_CPU_GENERIC;
    enum cart_cpu_path chosen = best;
    const char *wish = getenv("CART_CPU");
    if (wish && strcmp(wish, "baseline") == 0) {
        chosen = CART_CPU_GENERIC;
        f.fma = false;
    } else if (wish && *wish) {
        size_t i = 0;
        while (i < CART_COUNTOF(names) && strcmp(wish, names[i]) != 0)
            i++;
        char shown[64];
        cart_err_escape(shown, sizeof shown, wish, strlen(wish));
        if (i == CART_COUNTOF(names))
            return cart_err_set(err, CART_EUSAGE,
                                "CART_CPU: expected generic, avx2 or avx512, found %s", shown);
        chosen = (enum cart_cpu_path)i;
        if (chosen > best)
            return cart_err_set(
                err, CART_EUSAGE,
                "CART_CPU: expected a path that this CPU has (%s at most), found %s", names[best],
                shown);
    }
    path = chosen;
    fma_on = f.fma;
    bf16_on = f.bf16 && chosen == CART_CPU_AVX512;
    return 0;
}

enum cart_cpu_path cart_cpu_path(void)
{
    return path;
}

bool cart_cpu_has_fma(void)
{
    return fma_on;
}

bool cart_cpu_has_bf16(void)
{
    return bf16_on;
}

const char *cart_cpu_path_name(void)
{
    return names[path];
}

static size_t affinity_count(void)
{
    cpu_set_t set;
    if (sched_getaffinity(0, sizeof set, &set) == 0 && CPU_COUNT(&set) > 0)
        return (size_t)CPU_COUNT(&set);
    long n = sysconf(_SC_NPROCESSORS_ONLN);
    return n > 0 ? (size_t)n : 1;
}

/* Whole CPUs that a quota of so many microseconds per period is worth, rounded up; limit if there
 * is none. */
static size_t apply_quota(size_t limit, double quota, double period)
{
    if (!(quota > 0) || !(period > 0))
        return limit;
    double cpus = quota / period;
    size_t whole = cpus >= (double)limit ? limit : (size_t)cpus;
    if ((double)whole < cpus && whole < limit)
        whole++;
    return whole > 0 ? whole : 1;
}

/* cpu.max of one control group, "QUOTA PERIOD" or "max PERIOD". */
static size_t quota_of(const char *group, size_t limit)
{
    char name[4096];
    double quota;
    double period;
    int n = snprintf(name, sizeof name, "/sys/fs/cgroup%s/cpu.max", group);
    if (n < 0 || (size_t)n >= sizeof name)
        return limit;
    FILE *f = fopen(name, "r");
    if (!f)
        return limit;
    if (fscanf(f, "%lf %lf", &quota, &period) == 2)
        limit = apply_quota(limit, quota, period);
    fclose(f);
    return limit;
}

size_t cart_cpu_count(void)
{
    size_t limit = affinity_count();
    char line[2048] = "";
    FILE *f = fopen("/proc/self/cgroup", "r");
    if (!f)
        return limit;
    /* Version 2 has the one line "0::/path"; every group up to the root may set a quota. */
    while (fgets(line, sizeof line, f) && strncmp(line, "0::/", 4) != 0)
        line[0] = '\0';
    fclose(f);
    if (line[0] == '\0')
        return limit;
    char *group = line + 3;
    group[strcspn(group, "\n")] = '\0';
    for (;;) {
        limit = quota_of(group, limit);
        char *slash = strrchr(group, '/');
        if (!slash)
            break;
        *slash = '\0';
    }
    return limit;
}
