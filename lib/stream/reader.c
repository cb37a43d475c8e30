#include "base/io.h"
#include "stream/frame_impl.h"
#include "base/sniff.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zstd.h>

/* A payload's memory grows with what has truly arrived: a head that lies about its size costs no
 * more than this. */
#define GROWTH ((size_t)1 << 20)

enum { WINDOW_LOG_MIN = 23, WINDOW_LOG_MAX = 27 };

/* As cart_io_read, but the bytes that came ahead first. */
static int take(struct cart_stream_reader *r, void *out, size_t n, struct cart_err *err)
{
    size_t k = r->n_ahead < n ? r->n_ahead : n;
    int got;

    memcpy(out, r->ahead, k);
    r->ahead += k;
    r->n_ahead -= k;
    if (k == n)
        return 1;
    got = cart_io_read(r->fd, (unsigned char *)out + k, n - k, r->name, err);
    return got == 0 && k > 0 ? CART_ETRUNC : got;
}

static int cut_short(struct cart_stream_reader *r, struct cart_err *err)
{
    r->damaged = true;
    return cart_err_set(err, CART_ETRUNC,
                        "%s: ends after %llu whole records without END: it was cut off, or the "
                        "program that wrote it failed",
                        r->name, (unsigned long long)r->records);
}

static int damage(struct cart_stream_reader *r, const char *part, struct cart_err *err)
{
    r->damaged = true;
    return cart_err_set(err, CART_EFORMAT, "%s: record %llu: %s is damaged (checksum)", r->name,
                        (unsigned long long)r->records, part);
}

static int malformed(const struct cart_stream_reader *r, const struct cart_frame *f,
                     const char *why, struct cart_err *err)
{
    char type[24];

    return cart_err_set(err, CART_EFORMAT, "%s: record %llu (%s): %s", r->name,
                        (unsigned long long)r->records,
                        cart_err_escape(type, sizeof type, f->type, 4), why);
}

static int read_frame(struct cart_stream_reader *r, struct cart_frame *f, struct cart_err *err)
{
    unsigned char head[CART_FRAME_SIZE];
    int got = take(r, head, sizeof head, err);

    if (got == 0 || got == CART_ETRUNC)
        return cut_short(r, err);
    if (got < 0)
        return got;
    if (!cart_frame_decode(f, head))
        return damage(r, "its head", err);
    if (!cart_frame_type_ok(f->type))
        return malformed(r, f, "a type is capital letters, digits and final spaces", err);
    if (f->flags & ~(unsigned)CART_FRAME_FLAGS)
        return malformed(r, f, "reserved bits are set", err);
    return 0;
}

/* The record's sizes against each other and the limit, before anything is allocated. */
static int check_sizes(struct cart_stream_reader *r, const struct cart_frame *f, size_t limit,
                       struct cart_err *err)
{
    if (f->raw > limit)
        return cart_err_set(
            err, CART_EFORMAT, "%s: record %llu (%s): expected at most %zu bytes, found %llu",
            r->name, (unsigned long long)r->records, f->type, limit, (unsigned long long)f->raw);
    if (f->flags & CART_FRAME_ZSTD ? f->stored >= f->raw : f->stored != f->raw)
        return malformed(r, f, "its two sizes disagree", err);
    return 0;
}

static int read_stored(struct cart_stream_reader *r, struct cart_buf *b, size_t n,
                       struct cart_err *err)
{
    int e;

    cart_buf_reset(b);
    while (b->len < n) {
        size_t room = b->len > GROWTH ? b->len : GROWTH;
        if (room > n - b->len)
            room = n - b->len;
        if ((e = cart_buf_reserve(b, room, err)) < 0)
            return e;
        e = take(r, b->data + b->len, room, err);
        if (e == 0 || e == CART_ETRUNC)
            return cut_short(r, err);
        if (e < 0)
            return e;
        b->len += room;
    }
    return 0;
}

/* The largest window, as a power of two, that a record of so many bytes may ask for: it costs
 * memory that a few compressed bytes can claim. RFC 8878 expects of any decoder 2^23; 2^27 is the
 * most that zstd takes unasked. */
static int window_log(uint64_t raw)
{
    int log = WINDOW_LOG_MIN;

    while (log < WINDOW_LOG_MAX && (uint64_t)1 << log < raw)
        log++;
    return log;
}

/* r->stored into r->raw, which must become exactly raw bytes of one whole frame. */
static int inflate_record(struct cart_stream_reader *r, const struct cart_frame *f,
                          struct cart_err *err)
{
    ZSTD_inBuffer in = {r->stored.data, r->stored.len, 0};
    struct cart_buf *b = &r->raw;
    size_t left = 1;

    if (r->zstd == NULL && (r->zstd = ZSTD_createDCtx()) == NULL)
        return cart_err_memory(err, "the decompressor", 0);
    ZSTD_DCtx_reset(r->zstd, ZSTD_reset_session_only);
    size_t set = ZSTD_DCtx_setParameter(r->zstd, ZSTD_d_windowLogMax, window_log(f->raw));
    if (ZSTD_isError(set))
        return cart_err_set(err, CART_ESYS, "%s: decompressing: %s", r->name,
                            ZSTD_getErrorName(set));
    cart_buf_reset(b);
    while (left != 0) {
        size_t room = b->len > GROWTH ? b->len : GROWTH;
        if (room > f->raw - b->len)
            room = (size_t)f->raw - b->len;
        int e = cart_buf_reserve(b, room, err);
        if (e < 0)
            return e;
        ZSTD_outBuffer out = {b->data + b->len, room, 0};
        size_t before = in.pos;
        left = ZSTD_decompressStream(r->zstd, &out, &in);
        if (ZSTD_isError(left))
            return malformed(r, f, ZSTD_getErrorName(left), err);
        b->len += out.pos;
        if (left != 0 && out.pos == 0 && in.pos == before)
            return malformed(r, f, "its compressed bytes do not hold what its head says", err);
    }
    if (in.pos != in.size || b->len != f->raw)
        return malformed(r, f, "its compressed bytes do not hold what its head says", err);
    return 0;
}

/* The payload of f into rec. */
static int read_payload(struct cart_stream_reader *r, const struct cart_frame *f, size_t limit,
                        struct cart_record *rec, struct cart_err *err)
{
    static const uint64_t nothing;
    struct cart_buf *from = &r->raw;
    int e;

    if ((e = check_sizes(r, f, limit, err)) < 0)
        return e;
    struct cart_buf *into = f->flags & CART_FRAME_ZSTD ? &r->stored : &r->raw;
    if ((e = read_stored(r, into, (size_t)f->stored, err)) < 0)
        return e;
    if (cart_crc32(into->data ? into->data : "", into->len) != f->crc)
        return damage(r, "its payload", err);
    if (f->flags & CART_FRAME_ZSTD && (e = inflate_record(r, f, err)) < 0)
        return e;
    memcpy(rec->type, f->type, sizeof rec->type);
    rec->skippable = (f->flags & CART_FRAME_SKIPPABLE) != 0;
    rec->payload = from->len ? (const void *)from->data : &nothing;
    rec->size = from->len;
    return 0;
}

static int check_version(struct cart_stream_reader *r, struct cart_err *err)
{
    json_t *v = json_object_get(r->head, "version");
    uint64_t major, minor;

    if (json_array_size(v) != 2 || !cart_json_whole(json_array_get(v, 0), INT64_MAX, &major) ||
        !cart_json_whole(json_array_get(v, 1), INT64_MAX, &minor))
        return cart_err_set(err, CART_EFORMAT, "%s: HEAD: version: expected two numbers", r->name);
    if (major != CART_STREAM_MAJOR)
        return cart_err_set(err, CART_EFORMAT,
                            "%s: HEAD: format version: expected %d.x (this program writes %d.%d), "
                            "found %llu.%llu",
                            r->name, CART_STREAM_MAJOR, CART_STREAM_MAJOR, CART_STREAM_MINOR,
                            (unsigned long long)major, (unsigned long long)minor);
    return 0;
}

/* Something else than a stream of the kind: who makes one, where a tool does, unless there is a
 * hint that fits what was found better. */
static int not_a_stream(const char *name, const char *kind, int code, const char *found,
                        const char *hint, struct cart_err *err)
{
    static const struct {
        const char *kind, *made;
    } makers[] = {
        {"tokens", " (cart-tokenize makes one of documents)"},
        {"conversations", " (cart-selfstudy makes one of tokens)"},
        {"targets", " (cart-teacher makes one of conversations)"},
    };

    for (size_t i = 0; i < CART_COUNTOF(makers) && kind != NULL && !hint[0]; i++)
        if (strcmp(kind, makers[i].kind) == 0)
            hint = makers[i].made;
    return cart_err_set(err, code, "%s: expected a %s stream, found %s%s", name,
                        kind != NULL ? kind : "cart", found, hint);
}

static int check_head(struct cart_stream_reader *r, const char *kind, struct cart_err *err)
{
    char what[300], shown[60];
    const char *name;
    json_t *limits;
    uint64_t record;
    int e;

    if ((e = check_version(r, err)) < 0)
        return e;
    snprintf(what, sizeof what, "%.280s: HEAD", r->name);
    if ((e = cart_json_string(r->head, "kind", &name, what, err)) < 0 ||
        (e = cart_json_object(r->head, "limits", &limits, what, err)) < 0 ||
        (e = cart_json_u64(limits, "record", CART_STREAM_MAX_RECORD, &record, what, err)) < 0)
        return e;
    r->limit = (size_t)record;
    if (json_object_get(r->head, "record") != NULL)
        return cart_err_set(err, CART_EFORMAT, "%s: a field may not be called record", what);
    if ((r->kind = cart_kind_find(name)) == NULL)
        return cart_err_set(err, CART_EFORMAT, "%s: HEAD: kind: unknown kind %s", r->name,
                            cart_err_escape(shown, sizeof shown, name, strlen(name)));
    if (kind != NULL && strcmp(kind, name) != 0) {
        snprintf(shown, sizeof shown, "a %s stream", name);
        return not_a_stream(r->name, kind, CART_EFORMAT, shown, "", err);
    }
    return cart_head_check(r->head, r->kind, what, CART_EFORMAT, err);
}

static int read_head(struct cart_stream_reader *r, const char *kind, struct cart_err *err)
{
    struct cart_buf canonical = CART_BUF_INIT;
    struct cart_frame f;
    struct cart_record rec;
    char what[300];
    int e;

    if ((e = read_frame(r, &f, err)) < 0)
        return e;
    if (strcmp(f.type, "HEAD") != 0 || f.flags != 0)
        return malformed(r, &f, "expected a plain HEAD record first", err);
    if ((e = read_payload(r, &f, CART_STREAM_MAX_HEAD, &rec, err)) < 0)
        return e;
    snprintf(what, sizeof what, "%.280s: HEAD", r->name);
    if ((e = cart_json_parse(&r->head, rec.payload, rec.size, what, err)) < 0)
        return e;
    if (!json_is_object(r->head))
        return cart_err_set(err, CART_EFORMAT, "%s: expected an object", what);
    if ((e = check_head(r, kind, err)) == 0 &&
        (e = cart_json_dump(r->head, &canonical, err)) == 0 &&
        (canonical.len != rec.size || memcmp(canonical.data, rec.payload, rec.size) != 0))
        e = cart_err_set(err, CART_EFORMAT, "%s: its JSON is not in canonical form", what);
    if (e == 0)
        e = cart_buf_add(&r->head_bytes, rec.payload, rec.size, err);
    cart_buf_release(&canonical);
    r->offset = CART_STREAM_MAGIC_SIZE + CART_FRAME_SIZE + f.stored;
    return e;
}

/* r->ahead: what was read before, at most CART_SNIFF_BYTES of which are looked at to name another
 * format. */
static int read_magic(struct cart_stream_reader *r, const char *kind, struct cart_err *err)
{
    unsigned char magic[CART_STREAM_MAGIC_SIZE];
    enum cart_sniff what = cart_sniff(r->ahead, r->n_ahead);
    bool cut = what == CART_SNIFF_EMPTY || what == CART_SNIFF_STREAM_CUT;

    const char *hint = "";
    if (what == CART_SNIFF_JSON)
        hint = " (cart-view --pack makes a stream of JSON Lines)";
    else if (what == CART_SNIFF_SAFETENSORS && kind != NULL && strcmp(kind, "targets") == 0)
        hint = " (cart-eval takes a cartridge with -c, cart-train with --init)";
    if (what != CART_SNIFF_STREAM)
        return not_a_stream(r->name, kind, cut ? CART_ETRUNC : CART_EFORMAT, cart_sniff_name(what),
                            hint, err);
    return take(r, magic, sizeof magic, err);
}

static int reader_new(struct cart_stream_reader **out, int fd, bool owns_fd, const char *name,
                      struct cart_err *err)
{
    struct cart_stream_reader *r = calloc(1, sizeof *r);

    if (r != NULL) {
        r->fd = fd;
        r->owns_fd = owns_fd;
        r->name = strdup(name);
        r->hash = cart_hash_new();
    }
    if (r == NULL || r->name == NULL || r->hash == NULL) {
        if (owns_fd && r == NULL)
            close(fd);
        cart_stream_close(r);
        return cart_err_memory(err, "a stream reader", sizeof *r);
    }
    *out = r;
    return 0;
}

static int open_reader(struct cart_stream_reader **out, struct cart_stream_reader *r,
                       const void *ahead, size_t n, const char *kind, struct cart_err *err)
{
    int e;

    r->ahead = ahead;
    r->n_ahead = n;
    if ((e = read_magic(r, kind, err)) >= 0)
        e = read_head(r, kind, err);
    /* What is left of ahead belongs to the records; it must live on with the reader. */
    if (e >= 0 && (e = cart_buf_add(&r->rest, r->ahead, r->n_ahead, err)) == 0)
        r->ahead = (const unsigned char *)r->rest.data;
    if (e < 0) {
        cart_stream_close(r);
        return e;
    }
    *out = r;
    return 0;
}

int cart_stream_open_ahead(struct cart_stream_reader **out, int fd, const char *name,
                           const void *ahead, size_t n, const char *kind, struct cart_err *err)
{
    struct cart_stream_reader *r;
    int e;

    if ((e = reader_new(&r, fd, false, name, err)) < 0)
        return e;
    return open_reader(out, r, ahead, n, kind, err);
}

static int open_fd(struct cart_stream_reader **out, int fd, bool owns_fd, const char *name,
                   const char *kind, struct cart_err *err)
{
    unsigned char first[CART_SNIFF_BYTES];
    struct cart_stream_reader *r;
    struct stat st;
    int e;

    if ((e = reader_new(&r, fd, owns_fd, name, err)) < 0)
        return e;
    if (fstat(fd, &st) == 0 && S_ISDIR(st.st_mode))
        e = not_a_stream(name, kind, CART_EFORMAT, "a directory", "", err);
    else
        e = cart_sniff_read(fd, first, name, err);
    if (e < 0) {
        cart_stream_close(r);
        return e;
    }
    return open_reader(out, r, first, (size_t)e, kind, err);
}

int cart_stream_open_fd(struct cart_stream_reader **out, int fd, const char *name, const char *kind,
                        struct cart_err *err)
{
    return open_fd(out, fd, false, name, kind, err);
}

int cart_stream_open(struct cart_stream_reader **out, const char *path, const char *kind,
                     struct cart_err *err)
{
    int fd;

    if (path == NULL || strcmp(path, "-") == 0)
        return open_fd(out, STDIN_FILENO, false, "standard input", kind, err);
    if ((fd = open(path, O_RDONLY | O_CLOEXEC)) < 0)
        return cart_err_sys(err, "%s", path);
    return open_fd(out, fd, true, path, kind, err);
}

/* END's statement against what was read, and the end of the input after it. */
static int check_end(struct cart_stream_reader *r, const struct cart_record *rec,
                     struct cart_err *err)
{
    unsigned char digest[16], next[CART_STREAM_MAGIC_SIZE];
    const unsigned char *p = rec->payload;
    int e;

    if (rec->size != CART_STREAM_END_SIZE)
        return cart_err_set(err, CART_EFORMAT, "%s: END: expected %zu bytes, found %zu", r->name,
                            CART_STREAM_END_SIZE, rec->size);
    cart_hash_final(r->hash, digest);
    if (cart_get_u64(p) != r->records || cart_get_u64(p + 8) != r->bytes)
        return cart_err_set(
            err, CART_EFORMAT, "%s: END: expected %llu records of %llu bytes, found %llu of %llu",
            r->name, (unsigned long long)cart_get_u64(p), (unsigned long long)cart_get_u64(p + 8),
            (unsigned long long)r->records, (unsigned long long)r->bytes);
    if (memcmp(p + 16, digest, sizeof digest) != 0)
        return cart_err_set(err, CART_EFORMAT, "%s: END: its digest is not that of the records",
                            r->name);
    e = take(r, next, sizeof next, err);
    if (e == 1 && memcmp(next, CART_STREAM_MAGIC, sizeof next) == 0)
        return cart_err_set(err, CART_EFORMAT,
                            "%s: another stream follows END: streams are joined by cart-view "
                            "--cat, not by cat",
                            r->name);
    if (e == 1 || e == CART_ETRUNC)
        return cart_err_set(err, CART_EFORMAT, "%s: bytes follow END, expected none", r->name);
    return e;
}

static int read_record(struct cart_stream_reader *r, struct cart_record *rec, struct cart_err *err)
{
    struct cart_frame f;
    int e;

    for (;;) {
        if ((e = read_frame(r, &f, err)) < 0)
            return e;
        bool end = strcmp(f.type, "END ") == 0;
        bool known = end || cart_kind_record(r->kind, f.type) != NULL;
        if (end && f.flags != 0)
            return malformed(r, &f, "expected no flags on END", err);
        if (strcmp(f.type, "HEAD") == 0)
            return malformed(r, &f, "a second HEAD", err);
        if (known && f.flags & CART_FRAME_SKIPPABLE)
            return malformed(r, &f, "a known record must not be skippable", err);
        if (!known && !(f.flags & CART_FRAME_SKIPPABLE))
            return malformed(r, &f, "unknown record type, and it may not be skipped", err);
        if ((e = read_payload(r, &f, end ? CART_STREAM_END_SIZE : r->limit, rec, err)) < 0)
            return e;
        if (end) {
            r->ended = true;
            return check_end(r, rec, err);
        }
        cart_hash_add(r->hash, rec->payload, rec->size);
        r->records++;
        r->bytes += rec->size;
        r->offset += CART_FRAME_SIZE + f.stored;
        if (known || r->show_unknown)
            return 1;
    }
}

int cart_stream_read(struct cart_stream_reader *r, struct cart_record *rec, struct cart_err *err)
{
    int e;

    if (r->failed)
        return cart_err_set(err, CART_EUSAGE, "%s: read on after an error", r->name);
    if (r->ended)
        return 0;
    e = read_record(r, rec, err);
    r->failed = e < 0;
    return e;
}

void cart_stream_show_unknown(struct cart_stream_reader *r)
{
    r->show_unknown = true;
}

const char *cart_stream_kind(const struct cart_stream_reader *r)
{
    return r->kind->name;
}

const char *cart_stream_name(const struct cart_stream_reader *r)
{
    return r->name;
}

const json_t *cart_stream_head(const struct cart_stream_reader *r)
{
    return r->head;
}

uint64_t cart_stream_records(const struct cart_stream_reader *r)
{
    return r->records;
}

uint64_t cart_stream_bytes(const struct cart_stream_reader *r)
{
    return r->bytes;
}

void cart_stream_digest(const struct cart_stream_reader *r, unsigned char out[16])
{
    assert(r->ended && !r->failed);
    cart_hash_final(r->hash, out);
}

void cart_stream_close(struct cart_stream_reader *r)
{
    if (r == NULL)
        return;
    if (r->owns_fd)
        close(r->fd);
    ZSTD_freeDCtx(r->zstd);
    cart_hash_free(r->hash);
    cart_buf_release(&r->head_bytes);
    cart_buf_release(&r->rest);
    cart_buf_release(&r->stored);
    cart_buf_release(&r->raw);
    json_decref(r->head);
    free(r->name);
    free(r);
}
