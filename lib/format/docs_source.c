/* Byte sources: a descriptor (or what another reader delivers) with a look ahead. */
#include "base/io.h"
#include "format/docs_impl.h"

#include <errno.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

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
