#include "study/metrics.h"

#include "base/io.h"
#include "stream/kinds.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct cart_metrics {
    char *path;             /* NULL: none */
    struct cart_output out; /* of a device or FIFO, which has no FILE.part */
    struct cart_buf part;   /* FILE.part */
    struct cart_buf lines;
    size_t written;               /* bytes of lines that the file has */
    struct cart_stream_writer *w; /* NULL for JSON lines */
    int fd;                       /* out's, or of FILE.part */
};

static bool ends_with(const char *s, const char *end)
{
    size_t n = strlen(s), k = strlen(end);
    return n >= k && strcmp(s + n - k, end) == 0;
}

/* One line, with its newline, to the file. */
static int emit(struct cart_metrics *m, const char *line, size_t n, struct cart_err *err)
{
    if (!m->path)
        return 0;
    if (!m->w)
        return cart_io_write(m->fd, line, n, m->part.data, err);
    struct cart_buf payload = CART_BUF_INIT;
    json_t *fields = NULL;
    const struct cart_kind *kind = cart_kind_find("metrics");
    int r = cart_json_parse(&fields, line, n - 1, "metrics", err);
    if (r == 0 &&
        (r = cart_payload_build(&payload, &kind->records[0], fields, NULL, NULL, err)) == 0)
        r = cart_stream_write(m->w, "METR", payload.data, payload.len, err);
    json_decref(fields);
    cart_buf_release(&payload);
    return r;
}

/* 1 where fd holds what a killed run can have left: nothing, or the beginning of its metrics; 0: it
 * is somebody's. */
static int is_leftover(int fd, const char *name, bool text, struct cart_err *err)
{
    static const char first[] = "{\"conversations\":"; /* member of a line */
    char found[sizeof first - 1];
    struct cart_stream_reader *in = NULL;
    ssize_t n = pread(fd, found, sizeof found, 0);
    if (n < 0)
        return cart_err_sys(err, "%s: reading", name);
    if (n == 0 || text)
        return memcmp(found, first, (size_t)n) == 0;
    /* One cut within its HEAD says nothing of its kind, and has nothing that could be lost. */
    int r = cart_stream_open(&in, name, "metrics", err);
    cart_stream_close(in);
    return r == CART_ESYS ? r : r == 0 || r == CART_ETRUNC;
}

/* FILE.part, locked. What it holds is about to be lost. */
static int claim(struct cart_metrics *m, bool text, struct cart_err *err)
{
    int fd, r = cart_io_claim(&fd, m->part.data, err);
    if (r < 0)
        return r;
    if ((r = is_leftover(fd, m->part.data, text, err)) == 1) {
        m->fd = fd;
        return 0;
    }
    (void)close(fd);
    return r < 0 ? r
                 : cart_err_set(err, CART_EUSAGE,
                                "%s: expected the metrics of a run that was killed, or no file, "
                                "found something else: the metrics are kept there meanwhile",
                                m->part.data);
}

/* FILE.part, or what stands under path where that is no file. */
static int open_file(struct cart_metrics *m, const char *path, const json_t *head,
                     struct cart_err *err)
{
    int r = 0;
    bool text = ends_with(path, ".jsonl"), direct = cart_io_is_direct(path);
    m->path = strdup(path);
    if (!m->path)
        return cart_err_memory(err, "path", strlen(path));
    r = direct ? cart_buf_addf(&m->part, err, "%s", path)
               : cart_io_companion(&m->part, path, ".part", err);
    if (r < 0)
        return r;
    if (direct) {
        if ((r = cart_output_open(&m->out, path, text, err)) < 0)
            return r;
        m->fd = m->out.fd;
    } else if ((r = claim(m, text, err)) < 0) {
        return r;
    } else if (ftruncate(m->fd, 0) < 0) {
        return cart_err_sys(err, "%s", m->part.data);
    }
    return text ? 0 : cart_stream_create(&m->w, m->fd, m->part.data, head, 0, err);
}

int cart_metrics_open(struct cart_metrics **out, const char *path, const json_t *head,
                      const char *lines, size_t n, struct cart_err *err)
{
    struct cart_metrics *m = calloc(1, sizeof *m);
    if (!m)
        return cart_err_memory(err, "metrics", sizeof *m);
    m->fd = -1;
    int r = path ? open_file(m, path, head, err) : 0;
    if (r < 0 || (n > 0 && (r = cart_buf_add(&m->lines, lines, n, err)) < 0) ||
        (r = cart_metrics_flush(m, err)) < 0) {
        cart_metrics_close(m);
        return r;
    }
    *out = m;
    return 0;
}

int cart_metrics_add(struct cart_metrics *m, const json_t *fields, struct cart_err *err)
{
    size_t at = m->lines.len;
    int r = cart_json_dump(fields, &m->lines, err);
    if (r == 0)
        r = cart_buf_add(&m->lines, "\n", 1, err);
    if (r < 0) {
        m->lines.len = at;
        return r;
    }
    return 0;
}

int cart_metrics_flush(struct cart_metrics *m, struct cart_err *err)
{
    int r = 0;
    while (m->written < m->lines.len && r == 0) {
        const char *line = m->lines.data + m->written;
        const char *end = memchr(line, '\n', m->lines.len - m->written);
        size_t n = (size_t)(end - line) + 1;
        if ((r = emit(m, line, n, err)) == 0)
            m->written += n;
    }
    return r;
}

const struct cart_buf *cart_metrics_lines(const struct cart_metrics *m)
{
    return &m->lines;
}

int cart_metrics_finish(struct cart_metrics *m, struct cart_err *err)
{
    int r = 0;
    if (m->w) {
        r = cart_stream_finish(m->w, err);
        m->w = NULL;
    }
    if (m->out.fd > 0) {
        m->fd = -1;
        r = r < 0 ? r : cart_output_commit(&m->out, err);
    } else if (m->path && r == 0 && (r = cart_io_publish(m->fd, m->part.data, m->path, err)) == 0) {
        (void)close(m->fd);
        m->fd = -1;
    }
    return r;
}

void cart_metrics_close(struct cart_metrics *m)
{
    if (!m)
        return;
    if (m->w)
        cart_stream_abandon(m->w);
    if (m->out.fd > 0) {
        cart_output_abandon(&m->out);
    } else if (m->fd >= 0) {
        if (cart_io_is_at(m->fd, m->part.data))
            (void)unlink(m->part.data);
        (void)close(m->fd);
    }
    free(m->path);
    cart_buf_release(&m->part);
    cart_buf_release(&m->lines);
    free(m);
}
