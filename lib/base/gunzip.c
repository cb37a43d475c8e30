#include "base/gunzip.h"

#include <stdlib.h>
#include <string.h>
#include <zlib.h>

#define GZIP_ONLY (15 + 16) /* zlib's window bits for gzip, not its own format */

struct cart_gunzip {
    cart_gunzip_fn *fn;
    void *ctx;
    const char *name;
    z_stream z;
    bool between; /* before a member, or at the end */
    bool padding; /* zeros have followed a member: only zeros may come */
    bool ended;
    unsigned char chunk[64 << 10];
    uint64_t packed;
};

int cart_gunzip_new(struct cart_gunzip **out, cart_gunzip_fn *fn, void *ctx, const char *name,
                    struct cart_err *err)
{
    struct cart_gunzip *g = calloc(1, sizeof *g);

    if (!g || inflateInit2(&g->z, GZIP_ONLY) != Z_OK) {
        free(g);
        return cart_err_memory(err, name, sizeof *g);
    }
    g->fn = fn;
    g->ctx = ctx;
    g->name = name;
    *out = g;
    return 0;
}

/* 0 at the end of the file. */
static ptrdiff_t refill(struct cart_gunzip *g, struct cart_err *err)
{
    ptrdiff_t got = g->fn(g->ctx, g->chunk, sizeof g->chunk, err);

    if (got > 0) {
        g->z.next_in = g->chunk;
        g->z.avail_in = (uInt)got;
        g->packed += (uint64_t)got;
    }
    return got;
}

static int damaged(const struct cart_gunzip *g, const char *found, struct cart_err *err)
{
    return cart_err_set(err, CART_EFORMAT,
                        "%s: expected sound gzip data, found damage before byte %llu: %s", g->name,
                        (unsigned long long)(g->packed - g->z.avail_in), found);
}

/* Between two members: the next one begins, or zeros fill the rest, as on a tape. */
static int enter_member(struct cart_gunzip *g, struct cart_err *err)
{
    while (g->z.avail_in > 0 && *g->z.next_in == 0) {
        g->padding = true;
        g->z.next_in++;
        g->z.avail_in--;
    }
    if (g->z.avail_in == 0)
        return 0;
    if (g->padding)
        return damaged(g, "more than zeros after the end", err);
    g->between = false;
    return inflateReset(&g->z) == Z_OK ? 0 : cart_err_memory(err, g->name, 0);
}

static int inflate_some(struct cart_gunzip *g, struct cart_err *err)
{
    int z = inflate(&g->z, Z_NO_FLUSH);

    if (z == Z_STREAM_END)
        g->between = true;
    else if (z == Z_MEM_ERROR)
        return cart_err_memory(err, g->name, 0);
    else if (z == Z_BUF_ERROR)
        return cart_err_set(err, CART_EFORMAT,
                            "%s: expected the end of gzip data, found the end of the file",
                            g->name);
    else if (z != Z_OK)
        return damaged(g, g->z.msg ? g->z.msg : "a preset dictionary", err);
    return 0;
}

ptrdiff_t cart_gunzip_read(struct cart_gunzip *g, void *out, size_t n, struct cart_err *err)
{
    uInt room = n < (size_t)1 << 30 ? (uInt)n : (uInt)1 << 30;

    g->z.next_out = out;
    g->z.avail_out = room;
    while (!g->ended && g->z.avail_out == room) {
        ptrdiff_t got = g->z.avail_in > 0 ? 1 : refill(g, err);
        if (got < 0)
            return got;
        g->ended = got == 0 && g->between;
        int r = g->ended ? 0 : g->between ? enter_member(g, err) : inflate_some(g, err);
        if (r < 0)
            return r;
    }
    return (ptrdiff_t)(room - g->z.avail_out);
}

uint64_t cart_gunzip_packed(const struct cart_gunzip *g)
{
    return g->packed;
}

void cart_gunzip_free(struct cart_gunzip *g)
{
    if (!g)
        return;
    inflateEnd(&g->z);
    free(g);
}
