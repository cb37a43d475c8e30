/* Members of archives and the content of compressed files, through libarchive; this file alone sees
 * it. Only the formats and filters named in docs.h are enabled, nothing is extracted to disk, and
 * what an archive unpacks to is counted against caps while it is read: a small file that claims to
 * hold gigabytes stops with an error. */
#include "format/docs_impl.h"

#include <archive.h>
#include <archive_entry.h>

#include <errno.h>
#include <locale.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define RATIO_FREE ((uint64_t)16 << 20) /* unpacked bytes that no ratio forbids */

struct cart_archive {
    struct archive *reader;
    struct archive_entry *entry; /* ours, since libarchive would not check that it got one */
    struct cart_source *from;
    struct cart_source member; /* reads the current member */
    char chunk[64 << 10];      /* what the read callback hands to libarchive */
    struct cart_err from_err;  /* of from, when a callback failed */
    uint64_t max_total, packed, unpacked;
    size_t max_ratio, max_members, members;
    bool compressed;
    bool open_member; /* the current member may have unread data */
    locale_t
        utf8; /* names are converted to UTF-8 whatever the program's locale; 0 if there is none */
};

/* --- callbacks that libarchive pulls bytes through --- */

static la_ssize_t on_read(struct archive *reader, void *ctx, const void **out)
{
    struct cart_archive *a = ctx;
    ptrdiff_t got = cart_source_read(a->from, a->chunk, sizeof a->chunk, &a->from_err);

    if (got < 0) {
        archive_set_error(reader, EIO, "%s", a->from_err.msg);
        return -1;
    }
    a->packed += (uint64_t)got;
    *out = a->chunk;
    return (la_ssize_t)got;
}

static la_int64_t on_seek(struct archive *reader, void *ctx, la_int64_t offset, int whence)
{
    struct cart_archive *a = ctx;
    off_t at = lseek(a->from->fd, (off_t)offset, whence);

    if (at < 0) {
        archive_set_error(reader, errno, "seeking");
        return ARCHIVE_FATAL;
    }
    cart_source_reset(a->from);
    return (la_int64_t)at;
}

/* --- errors and caps --- */

/* errno is that of the failed call, before which it was 0: libarchive says of an archive that it is
 * damaged, or nothing, where a library below it had no memory. */
static int archive_failure(struct cart_archive *a, struct cart_err *err)
{
    bool memory = errno == ENOMEM;
    char why[256];
    const char *text = archive_error_string(a->reader);

    if (a->from_err.code < 0)
        return cart_err_set(err, a->from_err.code, "%s", a->from_err.msg);
    if (memory || archive_errno(a->reader) == ENOMEM)
        return cart_err_memory(err, a->from->shown, 0);
    if (!text)
        text = "damaged archive";
    cart_err_escape(why, sizeof why, text, strlen(text));
    return cart_err_set(err, CART_EFORMAT, "%s: archive: %s", a->from->shown, why);
}

/* Counts n unpacked bytes. */
static int charge(struct cart_archive *a, uint64_t n, struct cart_err *err)
{
    /* A pipe's size is unknown: what has come through so far stands for it. */
    uint64_t packed = a->from->size > 0 ? a->from->size : a->packed;

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

/* Passes over what is left of a member. Behind a compressor libarchive would unpack it uncounted.
 */
static int finish_member(struct cart_archive *a, struct cart_err *err)
{
    char sink[16 << 10];

    cart_source_reset(&a->member);
    while (a->compressed && a->open_member) {
        ptrdiff_t got = read_member(&a->member, sink, sizeof sink, err);
        if (got < 0)
            return (int)got;
    }
    a->open_member = false;
    return 0;
}

/* tar and zip only: the readers of 7z and cpio take memory by what a header claims, 9 GB for a file
 * of 2 KB. False: no memory. A format left out for that would be read as another. */
static bool enable(struct archive *reader, bool compressed)
{
    static int (*const plain[])(struct archive *) = {archive_read_support_format_tar,
                                                     archive_read_support_format_zip, NULL};
    static int (*const packed[])(struct archive *) = {
        archive_read_support_format_tar,   archive_read_support_format_raw,
        archive_read_support_format_empty, archive_read_support_filter_gzip,
        archive_read_support_filter_bzip2, archive_read_support_filter_xz,
        archive_read_support_filter_zstd,  NULL};
    bool all = true;
    for (int (*const *support)(struct archive *) = compressed ? packed : plain; *support; support++)
        all = (*support)(reader) != ARCHIVE_FATAL && all;
    return all;
}

int cart_archive_open(struct cart_archive **out, struct cart_source *from, bool compressed,
                      const struct cart_docs_options *o, struct cart_err *err)
{
    struct cart_archive *a = calloc(1, sizeof *a);

    if (!a || !(a->reader = archive_read_new()) || !(a->entry = archive_entry_new2(a->reader))) {
        cart_archive_close(a);
        return cart_err_memory(err, from->shown, sizeof *a);
    }
    a->from = from;
    a->compressed = compressed;
    a->max_total = o->max_archive ? o->max_archive : CART_DOCS_MAX_ARCHIVE;
    a->max_ratio = o->max_ratio ? o->max_ratio : CART_DOCS_MAX_RATIO;
    a->max_members = o->max_members ? o->max_members : CART_DOCS_MAX_MEMBERS;
    a->member = (struct cart_source){.read = read_member, .ctx = a, .fd = -1, .shown = from->shown};
    errno = 0;
    a->utf8 = newlocale(LC_CTYPE_MASK, "C.UTF-8", (locale_t)0);
    if ((!a->utf8 && errno == ENOMEM) || !enable(a->reader, compressed)) {
        int r = cart_err_memory(err, from->shown, 0);
        cart_archive_close(a);
        return r;
    }
    archive_read_set_read_callback(a->reader, on_read);
    if (from->seekable)
        archive_read_set_seek_callback(a->reader, on_seek);
    locale_t before = enter(a);
    errno = 0;
    int r = archive_read_set_callback_data(a->reader, a) == ARCHIVE_OK &&
                    archive_read_open1(a->reader) == ARCHIVE_OK
                ? 0
                : archive_failure(a, err);
    leave(before);
    if (r < 0) {
        cart_archive_close(a);
        return r;
    }
    *out = a;
    return 0;
}

static void describe(struct cart_archive *a, struct archive_entry *e, struct cart_member *m)
{
    bool raw = archive_format(a->reader) == ARCHIVE_FORMAT_RAW;

    *m = (struct cart_member){.name = raw ? NULL : archive_entry_pathname(e),
                              .skip = CART_DOCS_REASONS};
    if (!raw && !m->name)
        m->name = archive_entry_pathname_utf8(e);
    if (!raw && !m->name)
        m->name = "";
    m->directory = archive_entry_filetype(e) == AE_IFDIR;
    if (raw || m->directory)
        return;
    if (archive_entry_filetype(e) == AE_IFLNK || archive_entry_hardlink(e))
        m->skip = CART_DOCS_LINK;
    else if (archive_entry_filetype(e) != AE_IFREG && archive_entry_filetype(e) != 0)
        m->skip = CART_DOCS_SPECIAL;
    else if (archive_entry_is_data_encrypted(e) > 0)
        m->skip = CART_DOCS_ENCRYPTED;
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
        r = 0;
    else if (got != ARCHIVE_OK && got != ARCHIVE_WARN)
        r = archive_failure(a, err); /* also an archive whose very names are encrypted */
    else if (++a->members > a->max_members)
        r = cart_err_set(err, CART_EFORMAT, "%s: archive: expected at most %zu members, found more",
                         a->from->shown, a->max_members);
    else
        r = 1;
    if (r == 1) {
        describe(a, e, m);
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
    cart_source_release(&a->member);
    if (a->utf8)
        freelocale(a->utf8);
    free(a);
}
