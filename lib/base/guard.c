#define _DEFAULT_SOURCE /* MAP_ANONYMOUS */
#include "base/guard.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

/* A signal handler walks the list while others change it: so a guard stays in it for good, and one
 * that is free is taken again. */
struct cart_guard {
    atomic_uintptr_t begin, end; /* end 0: free, or guards nothing */
    atomic_bool broken;
    bool taken; /* under the lock */
    struct cart_guard *next;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct cart_guard *_Atomic all;

int cart_guard_new(struct cart_guard **out, const struct cart_map *map, struct cart_err *err)
{
    pthread_mutex_lock(&lock);
    struct cart_guard *g = atomic_load(&all);
    while (g && g->taken)
        g = g->next;
    if (!g && (g = calloc(1, sizeof *g))) {
        g->next = atomic_load(&all);
        atomic_store(&all, g);
    }
    if (g) {
        g->taken = true;
        atomic_store(&g->broken, false);
        atomic_store(&g->begin, (uintptr_t)map->data);
        atomic_store(&g->end, map->data ? (uintptr_t)map->data + map->size : 0);
    }
    pthread_mutex_unlock(&lock);
    if (!g)
        return cart_err_memory(err, "a guard of a mapped file", sizeof *g);
    *out = g;
    return 0;
}

void cart_guard_free(struct cart_guard *g)
{
    if (!g)
        return;
    pthread_mutex_lock(&lock);
    atomic_store(&g->end, 0);
    g->taken = false;
    pthread_mutex_unlock(&lock);
}

bool cart_guard_broken(const struct cart_guard *g)
{
    return g && atomic_load(&g->broken);
}

bool cart_guard_fill(const void *at)
{
    uintptr_t p = (uintptr_t)at, page = (uintptr_t)sysconf(_SC_PAGESIZE);
    for (struct cart_guard *g = atomic_load(&all); g; g = g->next) {
        uintptr_t end = atomic_load(&g->end), from = p - p % page;
        if (p < atomic_load(&g->begin) || p >= end)
            continue;
        atomic_store(&g->broken, true);
        /* mmap is a plain system call where this runs, though POSIX does not list it as safe
         * here. */
        return mmap((void *)from, end - from, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED,
                    -1, 0) != MAP_FAILED;
    }
    return false;
}
