/* Inside the document iterator: byte sources, the archive reader, classification. docs.c walks
 * inputs and directories, docs_source.c reads descriptors, docs_archive.c is the only file that
 * knows libarchive, docs_zip.c checks the directory of a zip, docs_text.c
 * decides what bytes are and turns them into text, docs_lines.c reads JSON Lines. */
#ifndef CART_FORMAT_DOCS_IMPL_H
#define CART_FORMAT_DOCS_IMPL_H

#include "base/buf.h"
#include "format/docs.h"

#include <sys/stat.h>

/* How much of an input is looked at to see what it is. */
#define CART_SOURCE_PEEK ((size_t)64 << 10)

/* Directories being walked: a stack of listings, each read whole, sorted and closed before anything
 * in it is opened. No recursion, no open directory, and an order that does not depend on the disk.
 */
struct cart_walk {
    struct cart_listing *stack;
    size_t depth, cap;
};
/* CART_ESYS with errno's text; a path that is too long for the system is cut to its beginning. */
int cart_walk_failure(const char *path, struct cart_err *err);
/* Enters a directory. CART_ESYS if it cannot be read. */
int cart_walk_push(struct cart_walk *w, const char *path, struct cart_err *err) CART_MUST_USE;
/* 1: *path (the caller frees it) and *name, its last part (inside *path), are next;
 * 0: a directory ended. depth must not be 0. */
int cart_walk_next(struct cart_walk *w, char **path, const char **name,
                   struct cart_err *err) CART_MUST_USE;
void cart_walk_release(struct cart_walk *w);

/* A sequence of bytes, read once from front to back, with a look ahead at its beginning. */
struct cart_source {
    /* Up to n > 0 bytes; 0 at the end. */
    ptrdiff_t (*read)(struct cart_source *s, void *out, size_t n, struct cart_err *err);
    void *ctx;
    int fd;               /* the descriptor's source only; -1 elsewhere */
    bool seekable;        /* fd is a regular file */
    uint64_t size;        /* of a regular file, else 0 */
    struct stat opened;   /* a regular file as it was at first, else zero */
    const char *shown;    /* for messages; borrowed */
    struct cart_buf head; /* bytes read ahead */
    size_t head_pos;
};

void cart_source_init_fd(struct cart_source *s, int fd, const char *shown);
/* Reads ahead until n bytes (or the input's end) are in s->head, of which none may have been
 * consumed yet. */
int cart_source_peek(struct cart_source *s, size_t n, struct cart_err *err) CART_MUST_USE;
ptrdiff_t cart_source_read(struct cart_source *s, void *out, size_t n,
                           struct cart_err *err) CART_MUST_USE;
/* CART_EAGAIN where the source is a regular file whose size or times are others than at first: what
 * was read of it may be a part of the one and a part of the other. */
int cart_source_unchanged(const struct cart_source *s, struct cart_err *err) CART_MUST_USE;
/* All that is left, into b (reset first). 1: whole; 0: more than cap bytes. */
int cart_source_read_all(struct cart_source *s, size_t cap, struct cart_buf *b,
                         struct cart_err *err) CART_MUST_USE;
/* All that is left of s, of at most cap bytes (more is CART_EFORMAT), into a scratch file, which
 * *spool then reads and can seek in. spool->fd is the caller's to close. */
int cart_source_spool(struct cart_source *s, uint64_t cap, struct cart_source *spool,
                      struct cart_err *err) CART_MUST_USE;
/* Forgets what was read ahead; keeps its memory. Does not close fd. */
void cart_source_reset(struct cart_source *s);
void cart_source_release(struct cart_source *s);

/* What the beginning of an input says it is. */
enum cart_content {
    CART_CONTENT_PLAIN, /* text, or something that only the whole can tell */
    CART_CONTENT_TAR,
    CART_CONTENT_ZIP,
    CART_CONTENT_COMPRESSED, /* a compressed file, which may hold a tar */
    CART_CONTENT_FOREIGN,    /* a document in another format: *advice says what to do */
};
/* *reason and *advice are set for FOREIGN only. */
enum cart_content cart_content_sniff(const char *head, size_t n, enum cart_docs_reason *reason,
                                     const char **advice);

/* What a whole document is: 1 text; 0 none, with reason and detail [cap] filled. */
int cart_content_judge(const char *bytes, size_t n, bool markup, enum cart_docs_reason *reason,
                       char *detail, size_t cap);
/* Also of none. */
bool cart_content_is_zeros(const char *bytes, size_t n);
/* Appends text with U+FFFD for each maximal ill-formed subpart; *count of them. */
int cart_content_replace(const char *text, size_t n, struct cart_buf *out, size_t *count,
                         struct cart_err *err) CART_MUST_USE;

/* An archive, or a compressed file, over a source that must outlive it. */
struct cart_archive;
struct cart_member {
    const char *name;           /* as stored, any bytes */
    enum cart_docs_reason skip; /* CART_DOCS_REASONS: readable; else why not */
    bool directory;
};
/* The one content of a compressed file, which cart_archive_source reads: whoever read it to its end
 * knows that every checksum held, and that nothing follows it. from must have been peeked. */
int cart_archive_unpack(struct cart_archive **out, struct cart_source *from,
                        const struct cart_docs_options *o, struct cart_err *err) CART_MUST_USE;
/* A tar or zip; from has been peeked only, and is seekable where it is a zip. below: what unpacks
 * from, or NULL. */
int cart_archive_open(struct cart_archive **out, struct cart_source *from, bool zip,
                      const struct cart_archive *below, const struct cart_docs_options *o,
                      struct cart_err *err) CART_MUST_USE;
/* Of an archive: 1: *m is the next member and cart_archive_source reads it; 0: no more. */
int cart_archive_next(struct cart_archive *a, struct cart_member *m,
                      struct cart_err *err) CART_MUST_USE;
struct cart_source *cart_archive_source(struct cart_archive *a);
void cart_archive_close(struct cart_archive *a);

/* The directory of the zip file behind fd against the members that it lists: CART_EFORMAT where one
 * has another name, method, size or CRC than the directory says, or there is no directory. Reads at
 * most max_members entries; fd's offset stays. */
int cart_zip_check(int fd, uint64_t size, size_t max_members, const char *shown,
                   struct cart_err *err) CART_MUST_USE;

/* JSON Lines over a source. */
struct cart_lines {
    struct cart_source *from; /* NULL: not active */
    size_t number;            /* of the line last read, from 1 */
    struct cart_buf line, pending;
    size_t pending_pos;
    bool ended;
    void *value; /* json_t that the last document's strings belong to */
};
void cart_lines_begin(struct cart_lines *l, struct cart_source *from);
/* 1: the next line that is not blank is l->line; 0: end; 2: a line of more than cap bytes was
 * passed over. */
int cart_lines_next(struct cart_lines *l, size_t cap, struct cart_err *err) CART_MUST_USE;
/* The document in l->line: *text [n], *id ("" if there is none; in scratch when a number). 1, or 0
 * with detail [cap]; CART_ESYS: no memory. */
int cart_lines_document(struct cart_lines *l, const struct cart_docs_options *o, const char **text,
                        size_t *n, const char **id, char scratch[64], char *detail, size_t cap,
                        struct cart_err *err) CART_MUST_USE;
/* 1 where the first line within head [n] that is not blank is an object with the text field as a
 * string, else 0; CART_ESYS: no memory. */
int cart_lines_sniff(const char *head, size_t n, const char *text_field,
                     struct cart_err *err) CART_MUST_USE;
void cart_lines_end(struct cart_lines *l);
void cart_lines_release(struct cart_lines *l);

#endif
