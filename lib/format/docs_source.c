/* Byte sources: a descriptor (or what another reader delivers) with a look ahead. */
#include "base/io.h"
#include "format/docs_impl.h"

#include <errno.h>
#include <inttypes.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define SPOOL_STEP ((size_t)64 << 10)

static ptrdiff_t read_fd(struct cart_source *s, void *out, size_t n, struct cart_err *err)
{
    ssize_t got;

    do
        got = read(s->fd, out, n < (size_t)1 << 30 ? n : (size_t)1 << 30);
    while (got < 0 && errno == EINTR);
    if (got < 0)
        return cart_io_read_failed(s->shown, err);
    return got;
}

void cart_source_init_fd(struct cart_source *s, int fd, const char *shown)
{
    struct stat st;
    struct cart_buf head = s->head;

    *s = (struct cart_source){.read = read_fd, .fd = fd, .shown = shown, .head = head};
    if (fstat(fd, &st) == 0 && S_ISREG(st.st_mode)) {
        /* Standard input may be a file that someone has read from: then it is read on, not sought
         * in. */
        s->seekable = lseek(fd, 0, SEEK_CUR) == 0;
        s->size = (uint64_t)st.st_size;
        s->opened = st;
    }
    cart_source_reset(s);
}

void cart_source_reset(struct cart_source *s)
{
    cart_buf_reset(&s->head);
    s->head_pos = 0;
}

void cart_source_release(struct cart_source *s)
{
    cart_buf_release(&s->head);
    s->head_pos = 0;
}

int cart_source_peek(struct cart_source *s, size_t n, struct cart_err *err)
{
    int r = cart_buf_reserve(&s->head, n, err);

    if (r < 0)
        return r;
    while (s->head.len < n) {
        ptrdiff_t got = s->read(s, s->head.data + s->head.len, n - s->head.len, err);
        if (got < 0)
            return (int)got;
        if (got == 0)
            break;
        s->head.len += (size_t)got;
    }
    return 0;
}

ptrdiff_t cart_source_read(struct cart_source *s, void *out, size_t n, struct cart_err *err)
{
    size_t ahead = s->head.len - s->head_pos;

    if (ahead == 0)
        return s->read(s, out, n, err);
    if (n > ahead)
        n = ahead;
    memcpy(out, s->head.data + s->head_pos, n);
    s->head_pos += n;
    return (ptrdiff_t)n;
}

int cart_source_spool(struct cart_source *s, uint64_t cap, struct cart_source *spool,
                      struct cart_err *err)
{
    struct cart_buf b = CART_BUF_INIT;
    uint64_t total = 0;
    ptrdiff_t got = 0;
    int fd = -1, r = cart_buf_reserve(&b, SPOOL_STEP, err);

    if (r == 0)
        r = cart_io_scratch(&fd, cart_io_scratch_dir(), err);
    while (r == 0 && (got = cart_source_read(s, b.data, SPOOL_STEP, err)) > 0) {
        total += (uint64_t)got;
        r = total > cap
                ? cart_err_set(err, CART_EFORMAT,
                               "%s: archive: expected at most %" PRIu64 " bytes, found more",
                               s->shown, cap)
                : cart_io_write(fd, b.data, (size_t)got, cart_io_scratch_dir(), err);
    }
    cart_buf_release(&b);
    if (r == 0 && got == 0 && lseek(fd, 0, SEEK_SET) < 0)
        r = cart_err_sys(err, "%s: seeking", cart_io_scratch_dir());
    if (r < 0 || got < 0) {
        if (fd >= 0)
            close(fd);
        return r < 0 ? r : (int)got;
    }
    cart_source_init_fd(spool, fd, s->shown);
    return 0;
}

static bool same_time(struct timespec a, struct timespec b)
{
    return a.tv_sec == b.tv_sec && a.tv_nsec == b.tv_nsec;
}

int cart_source_unchanged(const struct cart_source *s, struct cart_err *err)
{
    struct stat st;

    if (!S_ISREG(s->opened.st_mode) ||
        (fstat(s->fd, &st) == 0 && st.st_size == s->opened.st_size &&
         same_time(st.st_mtim, s->opened.st_mtim) && same_time(st.st_ctim, s->opened.st_ctim)))
        return 0;
    return cart_err_set(
        err, CART_EAGAIN,
        "%s: expected a file that stays as it is, found it changed while it was read", s->shown);
}

int cart_source_read_all(struct cart_source *s, size_t cap, struct cart_buf *b,
                         struct cart_err *err)
{
    enum { STEP = 64 << 10 };

    cart_buf_reset(b);
    for (;;) {
        int r = cart_buf_reserve(b, STEP, err);
        if (r < 0)
            return cart_err_wrap(err, r, "%s", s->shown);
        ptrdiff_t got = cart_source_read(s, b->data + b->len, b->cap - b->len - 1, err);
        if (got < 0)
            return (int)got;
        if (got == 0)
            break;
        b->len += (size_t)got;
        if (b->len > cap)
            return 0;
    }
    b->data[b->len] = '\0';
    return 1;
}
