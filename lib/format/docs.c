/* The document iterator: which input is next, what it holds, and the document made of it. */
#include "format/docs.h"

#include "base/hash.h"
#include "base/io.h"
#include "format/docs_impl.h"
#include "format/text.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

struct cart_docs {
    const char *const *inputs;
    size_t n_inputs, next_input;
    struct cart_docs_options o;
    struct cart_docs_stats stats;
    struct cart_walk walk;
    int fd; /* the file being read, -1 if none */
    struct cart_source file;
    struct cart_source spool;     /* what a pipe gave, of a zip; its fd is -1 while there is none */
    struct cart_archive *unpack;  /* over file where that is compressed, or NULL */
    struct cart_archive *archive; /* over unpack or file, or NULL */
    size_t members;               /* of it, so far */
    struct cart_lines lines;      /* over file or a member; inactive when lines.from is NULL */
    struct cart_buf shown;        /* path of the input being read, escaped */
    struct cart_buf shown_doc;    /* path of the document, escaped */
    struct cart_buf words;        /* the same for messages, where it is on standard input */
    struct cart_buf raw, replaced;
    char scratch[64];
    unsigned char (*digests)[32]; /* open-addressed set: zero bytes mark a free place */
    size_t n_digests, digests_cap;
};

static const char *const reason_names[CART_DOCS_REASONS] = {
    [CART_DOCS_EMPTY] = "empty",
    [CART_DOCS_NOT_UTF8] = "not UTF-8",
    [CART_DOCS_BINARY] = "binary",
    [CART_DOCS_UTF16] = "UTF-16 or UTF-32",
    [CART_DOCS_CONVERT] = "to be converted to text first",
    [CART_DOCS_MARKUP] = "HTML",
    [CART_DOCS_LARGE] = "too large",
    [CART_DOCS_LINE] = "malformed",
    [CART_DOCS_ENCRYPTED] = "encrypted",
    [CART_DOCS_NESTED] = "nested",
    [CART_DOCS_LINK] = "linked",
    [CART_DOCS_SPECIAL] = "no regular file",
    [CART_DOCS_HIDDEN] = "hidden",
    [CART_DOCS_DUPLICATE] = "duplicate",
};

const char *cart_docs_reason_name(enum cart_docs_reason reason)
{
    return reason_names[reason];
}

size_t cart_docs_summary(const struct cart_docs_stats *stats, char *out, size_t cap)
{
    size_t total = 0, used = 0;

    out[0] = '\0';
    for (size_t reason = 0; reason < CART_DOCS_REASONS; reason++) {
        size_t count = stats->noted[reason];
        if (reason == CART_DOCS_DUPLICATE || count == 0)
            continue;
        total += count;
        int n = snprintf(out + used, cap - used, "%s%zu %s", used ? ", " : "", count,
                         reason_names[reason]);
        if (n > 0 && (size_t)n < cap - used)
            used += (size_t)n;
    }
    return total;
}

/* A path as messages show it: "-" and what follows it is of standard input while that is read. */
static const char *in_words(struct cart_docs *d, const char *path)
{
    if (d->fd != STDIN_FILENO || path[0] != '-')
        return path;
    cart_buf_reset(&d->words);
    return cart_buf_addf(&d->words, NULL, "standard input%s", path + 1) < 0 ? path : d->words.data;
}

static void note(struct cart_docs *d, enum cart_docs_reason reason, const char *path,
                 const char *detail)
{
    struct cart_docs_note n = {reason, in_words(d, path), detail};

    d->stats.noted[reason]++;
    if (d->o.report)
        d->o.report(d->o.report_ctx, &n);
}

/* Appends text as the documents' paths show it. */
static int add_escaped(struct cart_buf *b, const char *text, size_t n, struct cart_err *err)
{
    size_t cap = 4 * n + 1;
    int r = cart_buf_reserve(b, cap, err);

    if (r < 0)
        return r;
    cart_err_escape(b->data + b->len, cap, text, n);
    b->len += strlen(b->data + b->len);
    return 0;
}

static int set_escaped(struct cart_buf *b, const char *text, struct cart_err *err)
{
    cart_buf_reset(b);
    return add_escaped(b, text, strlen(text), err);
}

/* A name that listings pass over. */
static bool is_hidden(const char *name, size_t n)
{
    static const char *const vcs[] = {"CVS", "_darcs", "__MACOSX"};

    if (n > 0 && name[0] == '.' && !(n == 1 || (n == 2 && name[1] == '.')))
        return true;
    for (size_t i = 0; i < CART_COUNTOF(vcs); i++) {
        if (strlen(vcs[i]) == n && memcmp(vcs[i], name, n) == 0)
            return true;
    }
    return false;
}

static bool has_hidden_part(const char *path)
{
    for (;;) {
        size_t n = strcspn(path, "/");
        if (is_hidden(path, n))
            return true;
        if (path[n] == '\0')
            return false;
        path += n + 1;
    }
}

/* --- duplicates --- */

static unsigned char *digest_place(struct cart_docs *d, const unsigned char digest[32], bool *found)
{
    static const unsigned char none[32];
    size_t i = 0;

    for (size_t k = 0; k < 8; k++)
        i = i << 8 | digest[k];
    for (;; i++) {
        unsigned char *place = d->digests[i & (d->digests_cap - 1)];
        *found = memcmp(place, digest, 32) == 0;
        if (*found || memcmp(place, none, 32) == 0)
            return place;
    }
}

/* 1 if the digest was seen before, else remembers it. */
static int seen_before(struct cart_docs *d, const unsigned char digest[32], struct cart_err *err)
{
    bool found;

    if (2 * (d->n_digests + 1) > d->digests_cap) {
        size_t cap = d->digests_cap ? 2 * d->digests_cap : 256, old_cap = d->digests_cap;
        unsigned char(*old)[32] = d->digests;
        unsigned char(*bigger)[32] = calloc(cap, sizeof *bigger);
        static const unsigned char none[32];
        if (!bigger)
            return cart_err_memory(err, "digests of documents", cap * sizeof *bigger);
        d->digests = bigger;
        d->digests_cap = cap;
        for (size_t i = 0; i < old_cap; i++) {
            if (memcmp(old[i], none, 32) != 0)
                memcpy(digest_place(d, old[i], &found), old[i], 32);
        }
        free(old);
    }
    unsigned char *place = digest_place(d, digest, &found);
    if (!found) {
        memcpy(place, digest, 32);
        d->n_digests++;
    }
    return found;
}

/* --- one document --- */

/* Accepts a document: counts it and fills what follows from its bytes. */
static int finish_document(struct cart_docs *d, struct cart_document *made,
                           struct cart_document *doc, struct cart_err *err)
{
    cart_sha256(made->bytes, made->size, made->sha256);
    int r = seen_before(d, made->sha256, err);
    if (r < 0)
        return r;
    if (r > 0)
        note(d, CART_DOCS_DUPLICATE, made->path, "the same bytes as an earlier document");
    made->index = d->stats.documents++;
    made->shown = in_words(d, made->path);
    d->stats.bytes += made->size;
    *doc = *made;
    return 1;
}

/* A line's text is text already, whatever it holds: 1 and *doc, or 0 when it is empty. */
static int make_line_document(struct cart_docs *d, const char *path, const char *id,
                              const char *text, size_t n, struct cart_document *doc,
                              struct cart_err *err)
{
    struct cart_document made = {
        .path = path, .id = id, .bytes = text, .size = n, .text = text, .n_text = n};

    if (n > 0)
        return finish_document(d, &made, doc, err);
    note(d, CART_DOCS_EMPTY, path, "it is empty");
    return 0;
}

/* Text that is not UTF-8 from byte valid of made->text on: 1 when it was replaced, 0 when the
 * document is passed over. */
static int mend(struct cart_docs *d, struct cart_document *made, size_t valid, struct cart_err *err)
{
    size_t at = valid + (size_t)(made->text - made->bytes);
    char detail[128];
    int r;

    if (d->o.invalid == CART_DOCS_FAIL)
        return cart_text_check(in_words(d, made->path), made->bytes, made->size, err);
    if (d->o.invalid == CART_DOCS_SKIP) {
        snprintf(
            detail, sizeof detail,
            "byte %zu is no UTF-8: convert it, with iconv -f ISO-8859-1 -t UTF-8 if it is Latin-1",
            at);
        note(d, CART_DOCS_NOT_UTF8, made->path, detail);
        return 0;
    }
    cart_buf_reset(&d->replaced);
    r = cart_content_replace(made->text, made->n_text, &d->replaced, &made->replaced, err);
    if (r < 0)
        return cart_err_wrap(err, r, "%s", in_words(d, made->path));
    made->text = d->replaced.data;
    made->n_text = d->replaced.len;
    return 1;
}

/* A file's bytes to a document: 1 and *doc, or 0 when they were passed over. */
static int make_document(struct cart_docs *d, const char *path, const char *bytes, size_t size,
                         struct cart_document *doc, struct cart_err *err)
{
    struct cart_document made = {
        .path = path, .id = path, .bytes = bytes, .size = size, .text = bytes, .n_text = size};
    enum cart_docs_reason reason;
    char detail[256];
    int r = 1;

    if (!cart_content_judge(bytes, size, d->o.markup, &reason, detail, sizeof detail)) {
        note(d, reason, path, detail);
        return 0;
    }
    if (size >= 3 && memcmp(bytes, "\xef\xbb\xbf", 3) == 0) {
        made.text += 3;
        made.n_text -= 3;
    }
    size_t valid = cart_text_valid(made.text, made.n_text);
    if (valid < made.n_text)
        r = mend(d, &made, valid, err);
    return r <= 0 ? r : finish_document(d, &made, doc, err);
}

/* The next document of the JSON Lines being read: 1, or 0 at their end. shown_doc keeps the path of
 * their file; ":LINE" is written behind its end anew each time. */
static int next_line(struct cart_docs *d, struct cart_document *doc, struct cart_err *err)
{
    size_t base = d->shown_doc.len;
    char detail[256];
    int r;

    while ((r = cart_lines_next(&d->lines, d->o.max_document, err)) > 0) {
        const char *text, *id;
        size_t n;
        int added = cart_buf_addf(&d->shown_doc, err, ":%zu", d->lines.number);
        if (added < 0)
            return added;
        const char *path = d->shown_doc.data;
        d->shown_doc.len = base;
        if (r == 2) {
            snprintf(detail, sizeof detail, "expected at most %zu bytes, found more",
                     d->o.max_document);
            note(d, CART_DOCS_LARGE, path, detail);
        } else if (d->o.whole_lines) {
            r = make_line_document(d, path, path, d->lines.line.data, d->lines.line.len, doc, err);
            if (r != 0)
                return r;
        } else if ((r = cart_lines_document(&d->lines, &d->o, &text, &n, &id, d->scratch, detail,
                                            sizeof detail, err)) < 0) {
            return cart_err_wrap(err, r, "%s", in_words(d, path));
        } else if (r == 1) {
            r = make_line_document(d, path, id[0] ? id : path, text, n, doc, err);
            if (r != 0)
                return r;
        } else if (d->o.invalid == CART_DOCS_FAIL) {
            return cart_err_set(err, CART_EFORMAT, "%s: %s", in_words(d, path), detail);
        } else {
            note(d, CART_DOCS_LINE, path, detail);
        }
    }
    return r;
}

/* --- one file --- */

static bool has_suffix(const char *name, size_t n, const char *suffix)
{
    size_t len = strlen(suffix);

    return n >= len && memcmp(name + n - len, suffix, len) == 0;
}

/* The length of name [n] without the ending of one compressed file. */
static size_t without_packer(const char *name, size_t n)
{
    static const char *const packers[] = {".gz", ".bz2", ".xz", ".zst"};

    for (size_t i = 0; i < CART_COUNTOF(packers); i++)
        if (has_suffix(name, n, packers[i]))
            return n - strlen(packers[i]);
    return n;
}

static bool named_as_lines(const char *name)
{
    size_t n = without_packer(name, strlen(name));

    return has_suffix(name, n, ".jsonl") || has_suffix(name, n, ".ndjson");
}

/* Whether a name promises an archive or compressed file; unpacked: what a compressed one of that
 * name holds. Content decides what a file is, but its first bytes are what a file lacks that was
 * cut off within them, or damaged there. */
static bool named_as_archive(const char *name, bool unpacked)
{
    static const char *const packed_tars[] = {".tgz", ".tbz2", ".txz", ".tzst"};
    size_t n = strlen(name), bare = without_packer(name, n);

    for (size_t i = 0; i < CART_COUNTOF(packed_tars); i++)
        if (has_suffix(name, n, packed_tars[i]))
            return true;
    return has_suffix(name, bare, ".tar") ||
           (!unpacked && (bare < n || has_suffix(name, n, ".zip")));
}

static int is_lines(const struct cart_docs *d, const char *name, const struct cart_buf *head,
                    struct cart_err *err)
{
    if (d->o.whole_lines || named_as_lines(name))
        return 1;
    int r =
        strcmp(name, "-") == 0 ? cart_lines_sniff(head->data, head->len, d->o.text_field, err) : 0;
    if (r != 0)
        return r;
    size_t bom = head->len >= 3 && memcmp(head->data, "\xef\xbb\xbf", 3) == 0 ? 3 : 0;
    size_t space = strspn(head->data + bom, " \t\r\n");
    return d->o.jsonl && head->data[bom + space] == '{';
}

/* Where the content of a source is from. */
enum layer { LAYER_FILE, LAYER_UNPACKED, LAYER_MEMBER };

static int take(struct cart_docs *d, struct cart_source *s, const char *name, enum layer layer,
                struct cart_document *doc, struct cart_err *err);

/* Opens an archive or compressed file, or passes over one that is inside another: as take. */
static int take_archive(struct cart_docs *d, struct cart_source *s, const char *name,
                        enum cart_content content, enum layer layer, struct cart_document *doc,
                        struct cart_err *err)
{
    int r;

    if (layer == LAYER_FILE && content == CART_CONTENT_COMPRESSED) {
        if ((r = cart_archive_unpack(&d->unpack, s, &d->o, err)) < 0)
            return r;
        return take(d, cart_archive_source(d->unpack), name, LAYER_UNPACKED, doc, err);
    }
    if (layer == LAYER_FILE || (layer == LAYER_UNPACKED && content == CART_CONTENT_TAR)) {
        d->members = 0;
        /* A zip's directory is at its end, and what it does not confirm may be lost or forged. */
        if (content == CART_CONTENT_ZIP && !s->seekable) {
            uint64_t most = d->o.max_archive ? d->o.max_archive : CART_DOCS_MAX_ARCHIVE;
            if ((r = cart_source_spool(s, most, &d->spool, err)) < 0)
                return r;
            s = &d->spool;
        }
        return cart_archive_open(&d->archive, s, content == CART_CONTENT_ZIP, d->unpack, &d->o,
                                 err);
    }
    note(d, CART_DOCS_NESTED, d->shown_doc.data,
         "an archive or compressed file inside another: unpack it first");
    return 0;
}

/* Of what is named as an archive. An empty one is passed over as that, and so is a tar of nothing
 * but its end. */
static int no_archive(struct cart_docs *d, const char *path, struct cart_err *err)
{
    return cart_err_set(err, CART_EFORMAT,
                        "%s: archive: expected what its name says, found the beginning of none: "
                        "cut off or damaged",
                        in_words(d, path));
}

/* Takes what s holds, whose path is d->shown_doc: 1 and *doc; 0 when it was passed over, or will
 * come as an archive or as lines. name decides about JSON Lines, and whether an archive was to be
 * expected. */
static int take(struct cart_docs *d, struct cart_source *s, const char *name, enum layer layer,
                struct cart_document *doc, struct cart_err *err)
{
    const char *path = d->shown_doc.data, *advice = "";
    enum cart_docs_reason reason;
    int r = cart_source_peek(s, CART_SOURCE_PEEK, err);

    if (r < 0)
        return r;
    s->head.data[s->head.len] = '\0';
    enum cart_content content = cart_content_sniff(s->head.data, s->head.len, &reason, &advice);
    if (content == CART_CONTENT_FOREIGN) {
        note(d, reason, path, advice);
        return 0;
    }
    if (content != CART_CONTENT_PLAIN)
        return take_archive(d, s, name, content, layer, doc, err);
    bool archive = layer != LAYER_MEMBER && named_as_archive(name, layer == LAYER_UNPACKED);
    if (archive && !cart_content_is_zeros(s->head.data, s->head.len))
        return no_archive(d, path, err);
    if ((r = is_lines(d, name, &s->head, err)) == 1)
        cart_lines_begin(&d->lines, s);
    if (r != 0)
        return r < 0 ? r : 0;
    if ((r = cart_source_read_all(s, d->o.max_document, &d->raw, err)) < 0)
        return r;
    int same = layer == LAYER_MEMBER ? 0 : cart_source_unchanged(&d->file, err);
    if (same < 0)
        return same;
    if (archive && !cart_content_is_zeros(d->raw.data, d->raw.len))
        return no_archive(d, path, err);
    if (r == 0) {
        char detail[128];
        snprintf(detail, sizeof detail, "expected at most %zu bytes, found more",
                 d->o.max_document);
        note(d, CART_DOCS_LARGE, path, detail);
        return 0;
    }
    return make_document(d, path, d->raw.data, d->raw.len, doc, err);
}

static void close_file(struct cart_docs *d)
{
    cart_lines_end(&d->lines);
    cart_archive_close(d->archive);
    cart_archive_close(d->unpack);
    d->archive = d->unpack = NULL;
    if (d->spool.fd >= 0)
        close(d->spool.fd);
    d->spool.fd = -1;
    if (d->fd > STDIN_FILENO)
        close(d->fd);
    d->fd = -1;
}

/* The next member of the open archive; closes the archive after the last one. */
static int next_member(struct cart_docs *d, struct cart_document *doc, struct cart_err *err)
{
    struct cart_member m;
    int r = cart_archive_next(d->archive, &m, err);

    if (r == 0) {
        if (d->members == 0)
            note(d, CART_DOCS_EMPTY, d->shown.data, "an archive without members");
        r = cart_source_unchanged(&d->file, err);
        close_file(d);
    }
    if (r <= 0)
        return r;
    d->members++;
    if (m.directory)
        return 0;
    if ((r = set_escaped(&d->shown_doc, d->shown.data, err)) < 0)
        return r;
    const char *name = m.name;
    while (name[0] == '.' && name[1] == '/')
        name += 2;
    if ((r = cart_buf_add(&d->shown_doc, "/", 1, err)) < 0 ||
        (r = add_escaped(&d->shown_doc, name, strlen(name), err)) < 0)
        return r;
    const char *path = d->shown_doc.data;
    if (m.skip != CART_DOCS_REASONS)
        note(d, m.skip, path,
             m.skip == CART_DOCS_ENCRYPTED ? "encrypted: unpack it first" : "no regular member");
    else if (has_hidden_part(name))
        note(d, CART_DOCS_HIDDEN, path, "hidden");
    else
        return take(d, cart_archive_source(d->archive), path, LAYER_MEMBER, doc, err);
    return 0;
}

static int open_file(struct cart_docs *d, int fd, const char *path, struct cart_document *doc,
                     struct cart_err *err)
{
    int r;

    d->fd = fd;
    if ((r = set_escaped(&d->shown, path, err)) < 0 ||
        (r = set_escaped(&d->shown_doc, path, err)) < 0)
        return r;
    cart_source_init_fd(&d->file, fd, fd == STDIN_FILENO ? "standard input" : d->shown.data);
    return take(d, &d->file, d->shown.data, LAYER_FILE, doc, err);
}

/* --- inputs and directories --- */

static int note_path(struct cart_docs *d, enum cart_docs_reason reason, const char *path,
                     const char *detail, struct cart_err *err)
{
    int r = set_escaped(&d->shown_doc, path, err);

    if (r == 0)
        note(d, reason, d->shown_doc.data, detail);
    return r;
}

/* Opens what was named (links are followed, a pipe is read) or found in a directory (neither). */
static int visit(struct cart_docs *d, const char *path, bool named, struct cart_document *doc,
                 struct cart_err *err)
{
    struct stat st;

    if ((named ? stat(path, &st) : lstat(path, &st)) < 0)
        return !named && errno == ENOENT ? 0 : cart_walk_failure(path, err);
    if (S_ISDIR(st.st_mode))
        return cart_walk_push(&d->walk, path, err);
    if (S_ISLNK(st.st_mode))
        return note_path(d, CART_DOCS_LINK, path, "a symbolic link inside a directory", err);
    if (d->o.output && cart_io_same_file(path, d->o.output))
        return cart_err_set(err, CART_EUSAGE, "%s: among the documents, and what is written", path);
    bool fifo = named && S_ISFIFO(st.st_mode);
    if (!S_ISREG(st.st_mode) && !fifo)
        return note_path(d, CART_DOCS_SPECIAL, path, "no regular file", err);
    /* What lstat saw may have been replaced: neither follow a link nor wait for a pipe's writer. */
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOCTTY | (named ? 0 : O_NOFOLLOW) |
                            (fifo ? 0 : O_NONBLOCK));
    if (fd < 0)
        return cart_walk_failure(path, err);
    if (!fifo && (fstat(fd, &st) < 0 || !S_ISREG(st.st_mode))) {
        close(fd);
        return note_path(d, CART_DOCS_SPECIAL, path, "no regular file", err);
    }
    return open_file(d, fd, path, doc, err);
}

static int visit_next(struct cart_docs *d, struct cart_document *doc, struct cart_err *err)
{
    const char *name;
    char *path;

    if (d->walk.depth == 0) {
        const char *input = d->inputs[d->next_input++];
        return strcmp(input, "-") == 0 ? open_file(d, STDIN_FILENO, input, doc, err)
                                       : visit(d, input, true, doc, err);
    }
    int r = cart_walk_next(&d->walk, &path, &name, err);
    if (r <= 0)
        return r;
    r = is_hidden(name, strlen(name)) ? note_path(d, CART_DOCS_HIDDEN, path, "hidden", err)
                                      : visit(d, path, false, doc, err);
    free(path);
    return r;
}

/* --- the interface --- */

int cart_docs_open(struct cart_docs **out, const char *const *inputs, size_t n,
                   const struct cart_docs_options *options, struct cart_err *err)
{
    struct cart_docs *d = calloc(1, sizeof *d);

    if (!d)
        return cart_err_memory(err, "documents", sizeof *d);
    d->inputs = inputs;
    d->n_inputs = n;
    d->o = *options;
    if (d->o.max_document == 0)
        d->o.max_document = CART_DOCS_MAX_DOCUMENT;
    d->fd = d->spool.fd = -1;
    *out = d;
    return 0;
}

static int next_document(struct cart_docs *d, struct cart_document *doc, struct cart_err *err)
{
    for (;;) {
        int r;
        if (d->lines.from) {
            r = next_line(d, doc, err);
            if (r == 0) {
                cart_lines_end(&d->lines);
                r = d->archive ? 0 : cart_source_unchanged(&d->file, err);
            }
        } else if (d->archive) {
            r = next_member(d, doc, err);
        } else {
            close_file(d);
            if (d->walk.depth == 0 && d->next_input == d->n_inputs)
                return 0;
            r = visit_next(d, doc, err);
        }
        if (r != 0)
            return r;
    }
}

int cart_docs_next(struct cart_docs *d, struct cart_document *doc, struct cart_err *err)
{
    int r = next_document(d, doc, err);

    /* What looks like damage in a file that someone writes is none. */
    if (r == CART_EFORMAT && d->fd >= 0) {
        struct cart_err changed;
        if (cart_source_unchanged(&d->file, &changed) < 0) {
            *err = changed;
            return changed.code;
        }
    }
    return r;
}

const struct cart_docs_stats *cart_docs_stats(const struct cart_docs *d)
{
    return &d->stats;
}

void cart_docs_close(struct cart_docs *d)
{
    if (!d)
        return;
    close_file(d);
    cart_walk_release(&d->walk);
    cart_source_release(&d->file);
    cart_source_release(&d->spool);
    cart_lines_release(&d->lines);
    cart_buf_release(&d->shown);
    cart_buf_release(&d->shown_doc);
    cart_buf_release(&d->words);
    cart_buf_release(&d->raw);
    cart_buf_release(&d->replaced);
    free(d->digests);
    free(d);
}
