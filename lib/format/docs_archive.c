/* Members of archives and the content of compressed files, through libarchive, which this file
 * alone sees, but for gzip. Only the formats named in docs.h are read, nothing is extracted to
 * disk, and what an archive unpacks to is counted against caps while it is read: a small file that
 * claims to hold gigabytes stops with an error. A compressed archive is two of these, one over the
 * other. */
#include "base/gunzip.h"
#include "format/docs_impl.h"

#include <archive.h>
#include <archive_entry.h>

#include <errno.h>
#include <inttypes.h>
#include <locale.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define TAR_BLOCK ((size_t)512)
#define RATIO_FREE ((uint64_t)16 << 20) /* unpacked bytes that no ratio forbids */

struct cart_archive {
    struct archive *reader;
    struct archive_entry *entry;      /* ours, since libarchive would not check that it got one */
    struct cart_gunzip *gzip;         /* in place of the two, for gzip */
    const struct cart_archive *below; /* what unpacks from, or NULL */
    struct cart_source *from;
    bool from_ended;
    struct cart_source member; /* reads the current member */
    char chunk[64 << 10];      /* what the read callback hands to libarchive, ... */
    size_t n_chunk;            /* ... and how much of it */
    struct cart_err from_err;  /* of from, when a callback failed */
    uint64_t max_total, unpacked;
    uint64_t packed; /* how far from was read */
    size_t max_ratio, max_members, members;
    bool open_member; /* the current member may have unread data */
    locale_t
        utf8; /* names are converted to UTF-8 whatever the program's locale; 0 if there is none */
};

/* --- callbacks that libarchive pulls bytes through --- */

/* Chunks are full up to the last one, however little a pipe gives at a time, so that no block of a
 * tar lies in two. */
static la_ssize_t on_read(struct archive *reader, void *ctx, const void **out)
{
    struct cart_archive *a = ctx;
    ptrdiff_t got = 1;

    a->n_chunk = 0;
    while (got > 0 && a->n_chunk < sizeof a->chunk) {
        got = cart_source_read(a->from, a->chunk + a->n_chunk, sizeof a->chunk - a->n_chunk,
                               &a->from_err);
        a->n_chunk += got > 0 ? (size_t)got : 0;
    }
    if (got < 0) {
        archive_set_error(reader, EIO, "%s", a->from_err.msg);
        return -1;
    }
    a->packed += a->n_chunk;
    a->from_ended = a->n_chunk == 0;
    *out = a->chunk;
    return (la_ssize_t)a->n_chunk;
}

static la_int64_t on_seek(struct archive *reader, void *ctx, la_int64_t offset, int whence)
{
    struct cart_archive *a = ctx;
    off_t at = lseek(a->from->fd, (off_t)offset, whence);

    if (at < 0) {
        cart_err_sys(&a->from_err, "%s: seeking", a->from->shown);
        archive_set_error(reader, EIO, "%s", a->from_err.msg);
        return ARCHIVE_FATAL;
    }
    cart_source_reset(a->from);
    a->from_ended = false;
    a->packed = (uint64_t)at;
    a->n_chunk = 0;
    return (la_int64_t)at;
}

/* --- errors and caps --- */

/* libarchive's words, without the line end of some, and clearer ones for what says little. */
static const char *words_of(const char *text, char why[256])
{
    static const struct {
        const char *part, *words;
    } clearer[] = {
        {"No progress is possible", "expected the end of xz data, found the end of the file"},
        {"Line too long", "expected a sparse member's list of places, found no line end in it"},
    };
    for (size_t i = 0; text && i < CART_COUNTOF(clearer); i++)
        if (strstr(text, clearer[i].part))
            return clearer[i].words;
    if (!text)
        return "damaged archive";
    size_t n = strlen(text);
    while (n > 0 && text[n - 1] == '\n')
        n--;
    return cart_err_escape(why, 256, text, n);
}

/* errno is that of the failed call, before which it was 0: libarchive says of an archive that it is
 * damaged, or nothing, where a library below it had no memory. */
static int archive_failure(struct cart_archive *a, struct cart_err *err)
{
    bool memory = errno == ENOMEM;
    char why[256];

    if (a->from_err.code < 0)
        return cart_err_set(err, a->from_err.code, "%s", a->from_err.msg);
    if (memory || archive_errno(a->reader) == ENOMEM)
        return cart_err_memory(err, a->from->shown, 0);
    return cart_err_set(err, CART_EFORMAT, "%s: archive: %s", a->from->shown,
                        words_of(archive_error_string(a->reader), why));
}

/* Bytes of the file itself. A pipe's size is unknown: what has come through so far stands for
 * it. */
static uint64_t packed_bytes(const struct cart_archive *a)
{
    if (a->below)
        return packed_bytes(a->below);
    if (a->from->size > 0)
        return a->from->size;
    return a->gzip ? cart_gunzip_packed(a->gzip) : a->packed;
}

/* Counts n unpacked bytes. */
static int charge(struct cart_archive *a, uint64_t n, struct cart_err *err)
{
    uint64_t packed = packed_bytes(a);

    a->unpacked += n;
    if (a->unpacked > a->max_total)
        return cart_err_set(err, CART_EFORMAT,
                            "%s: archive: expected to unpack to at most %llu bytes, found more",
                            a->from->shown, (unsigned long long)a->max_total);
    if (a->unpacked > RATIO_FREE && a->unpacked / a->max_ratio > packed)
        return cart_err_set(
            err, CART_EFORMAT,
            "%s: archive: expected to unpack to at most %zu times its %llu bytes, found more",
            a->from->shown, a->max_ratio, (unsigned long long)packed);
    return 0;
}

/* --- names in UTF-8 --- */

static locale_t enter(const struct cart_archive *a)
{
    return a->utf8 ? uselocale(a->utf8) : (locale_t)0;
}

static void leave(locale_t before)
{
    if (before)
        uselocale(before);
}

/* --- members --- */

static ptrdiff_t read_member(struct cart_source *s, void *out, size_t n, struct cart_err *err)
{
    struct cart_archive *a = s->ctx;
    errno = 0;
    la_ssize_t got = archive_read_data(a->reader, out, n);

    if (got < 0)
        return archive_failure(a, err);
    if (got == 0)
        a->open_member = false;
    int r = charge(a, (uint64_t)got, err);
    return r < 0 ? r : (ptrdiff_t)got;
}

/* At the end of what one filter unpacked. bzip2's takes whatever follows the last stream that it
 * knows for nothing. */
static int check_rest(struct cart_archive *a, struct cart_err *err)
{
    const void *rest;
    la_ssize_t more = a->from_ended ? 0 : on_read(a->reader, a, &rest);

    if (more < 0)
        return archive_failure(a, err);
    if (more > 0 || (uint64_t)archive_filter_bytes(a->reader, -1) != a->packed)
        return cart_err_set(err, CART_EFORMAT,
                            "%s: archive: expected compressed data up to its end, found something "
                            "else or less",
                            a->from->shown);
    return 0;
}

/* Of a compressed file. */
static ptrdiff_t read_packed(struct cart_source *s, void *out, size_t n, struct cart_err *err)
{
    struct cart_archive *a = s->ctx;
    ptrdiff_t got;

    if (a->gzip) {
        got = cart_gunzip_read(a->gzip, out, n, err);
        int r = got > 0 ? charge(a, (uint64_t)got, err) : 0;
        return r < 0 ? r : got;
    }
    if (!a->open_member)
        return 0;
    got = read_member(s, out, n, err);
    return got == 0 ? check_rest(a, err) : got;
}

/* Passes over what is left of a member. libarchive would read what unpacks it uncounted. */
static int finish_member(struct cart_archive *a, struct cart_err *err)
{
    char sink[16 << 10];

    cart_source_reset(&a->member);
    while (a->below && a->open_member) {
        ptrdiff_t got = read_member(&a->member, sink, sizeof sink, err);
        if (got < 0)
            return (int)got;
    }
    a->open_member = false;
    return 0;
}

static int archive_new(struct cart_archive **out, struct cart_source *from,
                       const struct cart_docs_options *o, struct cart_err *err)
{
    struct cart_archive *a = calloc(1, sizeof *a);

    if (!a || !(a->reader = archive_read_new()) || !(a->entry = archive_entry_new2(a->reader))) {
        cart_archive_close(a);
        return cart_err_memory(err, from->shown, sizeof *a);
    }
    a->from = from;
    a->max_total = o->max_archive ? o->max_archive : CART_DOCS_MAX_ARCHIVE;
    a->max_ratio = o->max_ratio ? o->max_ratio : CART_DOCS_MAX_RATIO;
    a->max_members = o->max_members ? o->max_members : CART_DOCS_MAX_MEMBERS;
    a->member = (struct cart_source){.read = read_member, .ctx = a, .fd = -1, .shown = from->shown};
    archive_read_set_read_callback(a->reader, on_read);
    *out = a;
    return 0;
}

/* The reader as it was set up, over a->from. */
static int start(struct cart_archive *a, struct cart_err *err)
{
    errno = 0;
    a->utf8 = newlocale(LC_CTYPE_MASK, "C.UTF-8", (locale_t)0);
    if (!a->utf8 && errno == ENOMEM)
        return cart_err_memory(err, a->from->shown, 0);
    locale_t before = enter(a);
    errno = 0;
    int r = archive_read_set_callback_data(a->reader, a) == ARCHIVE_OK &&
                    archive_read_open1(a->reader) == ARCHIVE_OK
                ? 0
                : archive_failure(a, err);
    leave(before);
    return r;
}

/* One filter, chosen here: libarchive would take off a second one too. The raw content is one
 * member, or none where it is empty; it takes one whose very beginning is damaged for empty too,
 * but leaves the error behind. */
static int start_unpacking(struct cart_archive *a, struct cart_err *err)
{
    const char *head = a->from->head.data;
    int filter = head[0] == 'B'      ? ARCHIVE_FILTER_BZIP2
                 : head[0] == '\x28' ? ARCHIVE_FILTER_ZSTD
                                     : ARCHIVE_FILTER_XZ;
    errno = 0;
    if (archive_read_support_format_raw(a->reader) == ARCHIVE_FATAL ||
        archive_read_support_format_empty(a->reader) == ARCHIVE_FATAL ||
        archive_read_append_filter(a->reader, filter) == ARCHIVE_FATAL)
        return cart_err_memory(err, a->from->shown, 0);
    int r = start(a, err);
    if (r < 0)
        return r;
    if (archive_error_string(a->reader))
        return archive_failure(a, err);
    errno = 0;
    int got = archive_read_next_header2(a->reader, a->entry);
    if (got != ARCHIVE_OK && got != ARCHIVE_WARN && got != ARCHIVE_EOF)
        return archive_failure(a, err);
    a->open_member = got != ARCHIVE_EOF;
    return a->open_member ? 0 : check_rest(a, err);
}

static ptrdiff_t pull(void *ctx, void *out, size_t n, struct cart_err *err)
{
    return cart_source_read(ctx, out, n, err);
}

int cart_archive_unpack(struct cart_archive **out, struct cart_source *from,
                        const struct cart_docs_options *o, struct cart_err *err)
{
    struct cart_archive *a;
    int r = archive_new(&a, from, o, err);

    if (r < 0)
        return r;
    a->member.read = read_packed;
    r = from->head.data[0] == '\x1f' ? cart_gunzip_new(&a->gzip, pull, from, from->shown, err)
                                     : start_unpacking(a, err);
    if (r < 0)
        cart_archive_close(a);
    else
        *out = a;
    return r;
}

/* tar and zip only: the readers of 7z and cpio take memory by what a header claims, 9 GB for a file
 * of 2 KB. */
int cart_archive_open(struct cart_archive **out, struct cart_source *from, bool zip,
                      const struct cart_archive *below, const struct cart_docs_options *o,
                      struct cart_err *err)
{
    struct cart_archive *a;
    int r = archive_new(&a, from, o, err);

    if (r < 0)
        return r;
    a->below = below;
    if ((zip ? archive_read_support_format_zip : archive_read_support_format_tar)(a->reader) ==
        ARCHIVE_FATAL)
        r = cart_err_memory(err, from->shown, 0);
    if (r == 0 && zip)
        r = cart_zip_check(from->fd, from->size, a->max_members, from->shown, err);
    if (from->seekable)
        archive_read_set_seek_callback(a->reader, on_seek);
    if (r < 0 || (r = start(a, err)) < 0)
        cart_archive_close(a);
    else
        *out = a;
    return r;
}

static void describe(struct archive_entry *e, struct cart_member *m)
{
    *m = (struct cart_member){.name = archive_entry_pathname(e), .skip = CART_DOCS_REASONS};
    if (!m->name)
        m->name = archive_entry_pathname_utf8(e);
    if (!m->name)
        m->name = "";
    m->directory = archive_entry_filetype(e) == AE_IFDIR;
    if (m->directory)
        return;
    if (archive_entry_filetype(e) == AE_IFLNK || archive_entry_hardlink(e))
        m->skip = CART_DOCS_LINK;
    else if (archive_entry_filetype(e) != AE_IFREG && archive_entry_filetype(e) != 0)
        m->skip = CART_DOCS_SPECIAL;
    else if (archive_entry_is_data_encrypted(e) > 0)
        m->skip = CART_DOCS_ENCRYPTED;
}

/* After the end of a tar, which libarchive takes a single block of zeros for and looks behind no
 * further: documents may follow one that damage or another archive has put there. */
static int check_zeros(struct cart_archive *a, struct cart_err *err)
{
    uint64_t left = a->packed - (uint64_t)archive_filter_bytes(a->reader, 0);
    const void *rest = a->chunk;
    la_ssize_t more = 1;

    if (a->from_ended)
        return cart_err_set(err, CART_EFORMAT,
                            "%s: archive: expected the two blocks of zeros that end a tar, found "
                            "the end of the file",
                            a->from->shown);
    for (size_t at = left < a->n_chunk ? a->n_chunk - (size_t)left : 0; more > 0; at = 0) {
        if (!cart_content_is_zeros(a->chunk + at, a->n_chunk - at))
            return cart_err_set(err, CART_EFORMAT,
                                "%s: archive: expected nothing but zeros after the first block of "
                                "them, which ends a tar, found more",
                                a->from->shown);
        more = on_read(a->reader, a, &rest);
    }
    if (more < 0)
        return archive_failure(a, err);
    /* Bytes are missing, or too many: a member may have been lost with them. */
    if (a->packed % TAR_BLOCK != 0)
        return cart_err_set(err, CART_EFORMAT,
                            "%s: archive: expected a tar of whole blocks of %zu bytes, found "
                            "%" PRIu64 " bytes",
                            a->from->shown, TAR_BLOCK, a->packed);
    return 0;
}

/* After the last member. What unpacks a tar has checksums at its own end, which this reads up
 * to. */
static int finish(struct cart_archive *a, struct cart_err *err)
{
    return (archive_format(a->reader) & ARCHIVE_FORMAT_BASE_MASK) == ARCHIVE_FORMAT_TAR
               ? check_zeros(a, err)
               : 0;
}

int cart_archive_next(struct cart_archive *a, struct cart_member *m, struct cart_err *err)
{
    struct archive_entry *e = a->entry;
    int r = finish_member(a, err);

    if (r < 0)
        return r;
    locale_t before = enter(a);
    errno = 0;
    int got = archive_read_next_header2(a->reader, e);
    if (got == ARCHIVE_EOF)
        r = finish(a, err);
    else if (got != ARCHIVE_OK && got != ARCHIVE_WARN)
        r = archive_failure(a, err); /* also an archive whose very names are encrypted */
    else if (++a->members > a->max_members)
        r = cart_err_set(err, CART_EFORMAT, "%s: archive: expected at most %zu members, found more",
                         a->from->shown, a->max_members);
    else
        r = 1;
    if (r == 1) {
        describe(e, m);
        a->open_member = true;
    }
    leave(before);
    return r;
}

struct cart_source *cart_archive_source(struct cart_archive *a)
{
    return &a->member;
}

void cart_archive_close(struct cart_archive *a)
{
    if (!a)
        return;
    archive_entry_free(a->entry);
    archive_read_free(a->reader);
    cart_gunzip_free(a->gzip);
    cart_source_release(&a->member);
    if (a->utf8)
        freelocale(a->utf8);
    free(a);
}
