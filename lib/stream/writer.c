#include "base/io.h"
#include "stream/frame_impl.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <zstd.h>

/* Payloads up to this size leave in one write with their head. */
#define JOINED ((size_t)1 << 16)

struct cart_stream_writer {
    int fd; /* borrowed */
    char *name;
    const struct cart_kind *kind;
    size_t limit;
    int level;
    struct cart_hash *hash;
    uint64_t records, bytes, written;
    struct cart_buf out;
    ZSTD_CCtx *zstd;
};

static int writer_new(struct cart_stream_writer **out, int fd, const char *name, int level,
                      struct cart_err *err)
{
    struct cart_stream_writer *w = calloc(1, sizeof *w);

    if (w != NULL) {
        w->fd = fd;
        w->name = strdup(name);
        w->level = level;
        w->hash = cart_hash_new();
        w->zstd = level != 0 ? ZSTD_createCCtx() : NULL;
    }
    if (w == NULL || w->name == NULL || w->hash == NULL || (level != 0 && w->zstd == NULL)) {
        cart_stream_abandon(w);
        return cart_err_memory(err, "a stream writer", sizeof *w);
    }
    if (w->zstd != NULL &&
        ZSTD_isError(ZSTD_CCtx_setParameter(w->zstd, ZSTD_c_compressionLevel, level))) {
        cart_stream_abandon(w);
        return cart_err_set(err, CART_EUSAGE, "%s: compression level %d: not one of zstd's", name,
                            level);
    }
    *out = w;
    return 0;
}

/* The compressed payload into w->out after room for the head; *stored is its size, or size where
 * zstd saves nothing. */
static int deflate_record(struct cart_stream_writer *w, const void *payload, size_t size,
                          size_t *stored, struct cart_err *err)
{
    size_t bound = ZSTD_compressBound(size);
    int r;

    *stored = size;
    if ((r = cart_buf_reserve(&w->out, CART_FRAME_SIZE + bound, err)) < 0)
        return r;
    size_t n = ZSTD_compress2(w->zstd, w->out.data + CART_FRAME_SIZE, bound, payload, size);
    if (ZSTD_isError(n))
        return cart_err_set(err, CART_ESYS, "%s: compressing: %s", w->name, ZSTD_getErrorName(n));
    if (n < size)
        *stored = n;
    return 0;
}

static int write_record(struct cart_stream_writer *w, const char type[4], unsigned flags,
                        const void *payload, size_t size, bool compress, struct cart_err *err)
{
    struct cart_frame f = {.flags = flags, .raw = size, .stored = size};
    unsigned char *head;
    size_t stored = size;
    int r;

    memcpy(f.type, type, 4);
    cart_buf_reset(&w->out);
    if (compress && (r = deflate_record(w, payload, size, &stored, err)) < 0)
        return r;
    bool joined = size <= JOINED;
    if ((r = cart_buf_reserve(&w->out, CART_FRAME_SIZE + (joined ? size : 0), err)) < 0)
        return r;
    head = (unsigned char *)w->out.data;
    if (stored < size) {
        f.flags |= CART_FRAME_ZSTD;
        f.stored = stored;
        payload = head + CART_FRAME_SIZE;
        joined = true;
    } else if (joined && size > 0) {
        memcpy(head + CART_FRAME_SIZE, payload, size);
    }
    f.crc = cart_crc32(size > 0 ? payload : "", stored);
    cart_frame_encode(head, &f);
    w->written += CART_FRAME_SIZE + stored;
    if (joined)
        return cart_io_write(w->fd, head, CART_FRAME_SIZE + stored, w->name, err);
    if ((r = cart_io_write(w->fd, head, CART_FRAME_SIZE, w->name, err)) < 0)
        return r;
    return cart_io_write(w->fd, payload, size, w->name, err);
}

static int write_head(struct cart_stream_writer *w, const struct cart_buf *head,
                      struct cart_err *err)
{
    int r = cart_io_write(w->fd, CART_STREAM_MAGIC, CART_STREAM_MAGIC_SIZE, w->name, err);

    w->written += CART_STREAM_MAGIC_SIZE;
    return r < 0 ? r : write_record(w, "HEAD", 0, head->data, head->len, false, err);
}

uint64_t cart_stream_size(const struct cart_stream_writer *w)
{
    return w->written;
}

int cart_stream_create(struct cart_stream_writer **out, int fd, const char *name,
                       const json_t *head, int level, struct cart_err *err)
{
    struct cart_buf text = CART_BUF_INIT;
    struct cart_stream_writer *w = NULL;
    int r;

    if ((r = writer_new(&w, fd, name, level, err)) == 0 &&
        (r = cart_head_build(&text, head, &w->limit, &w->kind, err)) == 0 &&
        (r = write_head(w, &text, err)) == 0)
        *out = w;
    else
        cart_stream_abandon(w);
    cart_buf_release(&text);
    return r;
}

int cart_stream_write_record(struct cart_stream_writer *w, const struct cart_record *rec,
                             struct cart_err *err)
{
    bool known = cart_kind_record(w->kind, rec->type) != NULL;
    int r;

    if (known == rec->skippable || strcmp(rec->type, "HEAD") == 0 || strcmp(rec->type, "END ") == 0)
        return cart_err_set(err, CART_EUSAGE, "%s: a %s stream has no record of type %s%s", w->name,
                            w->kind->name, rec->type, known ? " that may be skipped" : "");
    if (rec->size > w->limit)
        return cart_err_set(err, CART_EFORMAT,
                            "%s: record %llu (%s): at most %zu bytes fit the stream's limit, "
                            "found %zu",
                            w->name, (unsigned long long)w->records, rec->type, w->limit,
                            rec->size);
    r = write_record(w, rec->type, rec->skippable ? CART_FRAME_SKIPPABLE : 0, rec->payload,
                     rec->size, w->level != 0, err);
    if (r < 0)
        return r;
    cart_hash_add(w->hash, rec->payload, rec->size);
    w->records++;
    w->bytes += rec->size;
    return 0;
}

int cart_stream_write(struct cart_stream_writer *w, const char type[4], const void *payload,
                      size_t size, struct cart_err *err)
{
    struct cart_record rec = {.payload = payload, .size = size};

    memcpy(rec.type, type, 4);
    return cart_stream_write_record(w, &rec, err);
}

void cart_stream_written(const struct cart_stream_writer *w, uint64_t *records, uint64_t *bytes,
                         unsigned char digest[16])
{
    *records = w->records;
    *bytes = w->bytes;
    cart_hash_final(w->hash, digest);
}

int cart_stream_finish(struct cart_stream_writer *w, struct cart_err *err)
{
    unsigned char end[CART_STREAM_END_SIZE];
    uint64_t records, bytes;
    int r;

    cart_stream_written(w, &records, &bytes, end + 16);
    cart_put_u64(end, records);
    cart_put_u64(end + 8, bytes);
    r = write_record(w, "END ", 0, end, sizeof end, false, err);
    cart_stream_abandon(w);
    return r;
}

void cart_stream_abandon(struct cart_stream_writer *w)
{
    if (w == NULL)
        return;
    cart_hash_free(w->hash);
    ZSTD_freeCCtx(w->zstd);
    cart_buf_release(&w->out);
    free(w->name);
    free(w);
}

/* Reads the whole records of an unfinished stream into w's counts and hash; *keep is where the next
 * record goes. */
static int replay(struct cart_stream_writer *w, struct cart_stream_reader *reader,
                  cart_stream_replay_fn *fn, void *ctx, uint64_t *keep, struct cart_err *err)
{
    struct cart_record rec;
    int r;

    cart_stream_show_unknown(reader);
    while ((r = cart_stream_read(reader, &rec, err)) == 1) {
        cart_hash_add(w->hash, rec.payload, rec.size);
        w->records++;
        w->bytes += rec.size;
        if (fn != NULL && (r = fn(ctx, &rec, err)) < 0)
            return r;
    }
    /* END and a torn or damaged record alike are taken off: the writer goes on before them. */
    *keep = reader->offset;
    return r < 0 && !reader->damaged && !reader->ended ? r : 0;
}

/* head: the text of the HEAD that was asked for. */
static int other_head(const struct cart_stream_writer *w, const struct cart_stream_reader *reader,
                      const struct cart_buf *head, struct cart_err *err)
{
    struct cart_buf why = CART_BUF_INIT;
    json_t *asked = NULL;
    int r = cart_json_parse(&asked, head->data, head->len, w->name, err);

    if (r == 0)
        r = cart_json_difference(cart_stream_head(reader), asked, &why, err);
    if (r >= 0)
        r = cart_err_set(err, CART_EMATCH, "%s: it was begun with other inputs or options: %s",
                         w->name, r == 1 ? why.data : "its HEAD has another form");
    json_decref(asked);
    cart_buf_release(&why);
    return r;
}

static int reopen(struct cart_stream_writer *w, const struct cart_buf *head,
                  cart_stream_replay_fn *fn, void *ctx, uint64_t *keep, struct cart_err *err)
{
    struct cart_stream_reader *reader = NULL;
    struct cart_err why = {0};
    int r = cart_stream_open_fd(&reader, w->fd, w->name, w->kind->name, &why);

    *keep = 0;
    if (r == CART_ETRUNC)
        return 0; /* not even HEAD was whole: begin again */
    if (r < 0)
        return cart_err_set(err, r, "%s", why.msg);
    if (reader->head_bytes.len != head->len ||
        memcmp(reader->head_bytes.data, head->data, head->len) != 0)
        r = other_head(w, reader, head, err);
    else
        r = replay(w, reader, fn, ctx, keep, err);
    cart_stream_close(reader);
    return r;
}

int cart_stream_resume(struct cart_stream_writer **out, int fd, const char *name,
                       const json_t *head, int level, cart_stream_replay_fn *fn, void *ctx,
                       struct cart_err *err)
{
    struct cart_buf text = CART_BUF_INIT;
    struct cart_stream_writer *w = NULL;
    uint64_t keep;
    int r;

    if ((r = writer_new(&w, fd, name, level, err)) < 0 ||
        (r = cart_head_build(&text, head, &w->limit, &w->kind, err)) < 0)
        goto out;
    if (lseek(fd, 0, SEEK_SET) < 0) {
        r = cart_err_sys(err, "%s", name);
        goto out;
    }
    if ((r = reopen(w, &text, fn, ctx, &keep, err)) < 0)
        goto out;
    if (ftruncate(fd, (off_t)keep) < 0 || lseek(fd, (off_t)keep, SEEK_SET) < 0) {
        r = cart_err_sys(err, "%s", name);
        goto out;
    }
    if (keep == 0)
        r = write_head(w, &text, err);
    if (r == 0) {
        *out = w;
        w = NULL;
    }
out:
    cart_stream_abandon(w);
    cart_buf_release(&text);
    return r;
}
