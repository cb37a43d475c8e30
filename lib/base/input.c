#include "base/input.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* What is left in a pipe, after the bytes that were taken to know its kind. */
static int read_rest(struct cart_input *in, struct cart_err *err)
{
    enum { STEP = 1 << 20, LIMIT = 1 << 30 };
    int r = cart_buf_add(&in->buf, in->ahead, in->n_ahead, err);

    while (r == 0 && (r = cart_buf_reserve(&in->buf, STEP, err)) == 0) {
        ssize_t got = read(in->fd, in->buf.data + in->buf.len, STEP);
        if (got < 0 && errno == EINTR)
            continue;
        if (got < 0)
            r = cart_io_read_failed(in->name, err);
        if (got <= 0)
            break;
        in->buf.len += (size_t)got;
        if (in->buf.len > LIMIT)
            r = cart_err_set(err, CART_EFORMAT,
                             "%s: expected at most %d bytes through a pipe, found more: name the "
                             "file",
                             in->name, LIMIT);
    }
    in->bytes = in->buf.data;
    in->size = in->buf.len;
    return r;
}

static int load(struct cart_input *in, struct cart_err *err)
{
    struct stat st;
    int r;

    if (in->fd == STDIN_FILENO || fstat(in->fd, &st) < 0 || !S_ISREG(st.st_mode))
        return read_rest(in, err);
    if ((r = cart_map_fd(&in->map, in->fd, in->name, err)) < 0)
        return r;
    in->bytes = in->map.data;
    in->size = in->map.size;
    return 0;
}

int cart_input_open(struct cart_input *in, const char *path, struct cart_err *err)
{
    bool standard = strcmp(path, "-") == 0;
    int n;

    *in = (struct cart_input){.fd = standard ? STDIN_FILENO : open(path, O_RDONLY | O_CLOEXEC),
                              .name = standard ? "standard input" : path};
    if (in->fd < 0)
        return cart_err_sys(err, "%s", path);
    if ((n = cart_sniff_read(in->fd, in->ahead, in->name, err)) < 0)
        return n;
    in->n_ahead = (size_t)n;
    in->kind = cart_sniff(in->ahead, in->n_ahead);
    if (in->kind == CART_SNIFF_STREAM)
        return 0;
    if (in->kind == CART_SNIFF_SAFETENSORS || in->kind == CART_SNIFF_GGUF)
        return load(in, err);
    bool cut = in->kind == CART_SNIFF_EMPTY || in->kind == CART_SNIFF_STREAM_CUT;
    return cart_err_set(err, cut ? CART_ETRUNC : CART_EFORMAT,
                        "%s: expected a cart stream, safetensors or GGUF file, found %s", in->name,
                        cart_sniff_name(in->kind));
}

void cart_input_release(struct cart_input *in)
{
    if (in->fd > STDERR_FILENO)
        close(in->fd);
    in->fd = -1;
    cart_map_release(&in->map);
    cart_buf_release(&in->buf);
}
