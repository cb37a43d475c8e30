#define _DEFAULT_SOURCE /* MAP_ANONYMOUS, MADV_HUGEPAGE */
#include "base/arena.h"

#include <assert.h>
#include <sys/mman.h>

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#define POISON(p, n) ASAN_POISON_MEMORY_REGION(p, n)
#define UNPOISON(p, n) ASAN_UNPOISON_MEMORY_REGION(p, n)
#else
#define POISON(p, n) ((void)(p), (void)(n))
#define UNPOISON(p, n) ((void)(p), (void)(n))
#endif

#define ARENA_ALIGN ((size_t)64)
/* An unused line between neighbours in every build, so that a layout measures the same with and
 * without ASan. */
#define ARENA_GAP ARENA_ALIGN
#define LARGE_PAGE ((size_t)2 << 20)

/* Bytes that n elements take: rounded up to the alignment, and the gap. */
static bool footprint(size_t n, size_t size, size_t *out)
{
    size_t bytes;
    if (!cart_size_mul(n, size, &bytes) ||
        !cart_size_add(bytes, ARENA_ALIGN - 1 + ARENA_GAP, &bytes))
        return false;
    *out = bytes & ~(ARENA_ALIGN - 1);
    return true;
}

void *cart_arena_push(struct cart_arena *a, size_t n, size_t size)
{
    size_t bytes;
    size_t used;
    if (!footprint(n, size, &bytes) || !cart_size_add(a->used, bytes, &used)) {
        assert(!a->base && "pushed more than was measured");
        a->overflow = true;
        return NULL;
    }
    if (!a->base) {
        a->used = used;
        return NULL;
    }
    assert(used <= a->cap && "pushed more than was measured");
    unsigned char *p = a->base + a->used;
    a->used = used;
    UNPOISON(p, n * size);
    return p;
}

static int reserve(struct cart_arena *a, size_t bytes, bool large, struct cart_err *err)
{
    assert(!a->base);
    size_t cap = bytes ? bytes : ARENA_ALIGN;
    if (a->overflow || (large && !cart_size_add(cap, LARGE_PAGE - 1, &cap)))
        return cart_err_memory(err, "arena", SIZE_MAX);
    if (large)
        cap &= ~(LARGE_PAGE - 1);
    void *p = mmap(NULL, cap, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (p == MAP_FAILED)
        return cart_err_memory(err, "arena", cap);
#ifdef MADV_HUGEPAGE
    if (large)
        madvise(p, cap, MADV_HUGEPAGE); /* a hint: failing costs only speed */
#endif
    POISON(p, cap);
    *a = (struct cart_arena){.base = p, .cap = cap};
    return 0;
}

int cart_arena_reserve(struct cart_arena *a, size_t bytes, struct cart_err *err)
{
    return reserve(a, bytes, false, err);
}

int cart_arena_reserve_dense(struct cart_arena *a, size_t bytes, struct cart_err *err)
{
    return reserve(a, bytes, bytes >= LARGE_PAGE / 2, err);
}

void cart_arena_release(struct cart_arena *a)
{
    if (a->base) {
        UNPOISON(a->base, a->cap);
        munmap(a->base, a->cap);
    }
    *a = (struct cart_arena)CART_ARENA_INIT;
}
