/* Documents in: files, directories, archives, compressed files, JSON Lines and standard input as
 * one sequence of texts with provenance. Nothing is unpacked to disk, and no name found inside an
 * archive is used as a path.
 *
 * Inputs, in the order given:
 *   file        one document; "-" is standard input. A pipe may be named (process substitution), a
 *               device not.
 *   directory   its files, recursively, in bytewise order of their whole paths. Hidden names
 *               (leading dot) and CVS, _darcs, __MACOSX are passed over unless named as an input;
 *               symbolic links inside are never followed (so there are no loops), pipes, sockets
 *               and devices are never opened.
 *   archive     zip, or tar, also gzip, bzip2, xz or zstd compressed, recognised by content:
 *               its regular members in archive order, as ARCHIVE/MEMBER, hidden names passed over
 *               too. A zip that comes through a pipe is kept in a scratch file while it is read,
 *               since its directory is at its end. An archive inside an archive is not opened, nor
 *               what was compressed twice.
 *               One that is damaged or cut off is an error wherever its format has a checksum; so
 *               is a file with the name of one that does not begin like any.
 *   compressed  a single gzip, bzip2, xz or zstd file is the document it holds.
 *   JSON Lines  one document a line, from the fields named in the options. A file is JSON Lines if
 *               its name ends in .jsonl or .ndjson (before .gz etc.), if options->jsonl is set and
 *               it begins with "{", or if it is standard input and its first line that is not
 *               blank is an object with the text field. Blank lines are ignored; odd ones follow
 *               options->invalid.
 *
 * A file's text is valid UTF-8 without byte order mark; line ends stay as they are. What is no text
 * is passed over with a reason, reported through options->report and counted; see enum
 * cart_docs_reason. The text field of a JSON line is text as it stands, whatever characters it
 * holds. Memory: one document (and, with a replacement, its text), the listings of the directories
 * above it, at most 128 bytes per document for the duplicates. */
#ifndef CART_FORMAT_DOCS_H
#define CART_FORMAT_DOCS_H

#include "base/err.h"

/* Default caps: bytes of one document; bytes that one archive unpacks to; unpacked bytes for each
 * packed one, beyond the first 16 MiB; members of one archive. */
#define CART_DOCS_MAX_DOCUMENT ((size_t)256 << 20)
#define CART_DOCS_MAX_ARCHIVE ((uint64_t)16 << 30)
#define CART_DOCS_MAX_RATIO 200
#define CART_DOCS_MAX_MEMBERS ((size_t)1 << 20)

/* What to do with text that is not UTF-8 and with lines that are not the objects they should be. */
enum cart_docs_invalid {
    CART_DOCS_SKIP,    /* pass over the document, report it */
    CART_DOCS_REPLACE, /* U+FFFD for each maximal ill-formed subpart; odd lines as with SKIP */
    CART_DOCS_FAIL,    /* CART_EFORMAT */
};

enum cart_docs_reason {
    CART_DOCS_EMPTY,     /* no text */
    CART_DOCS_NOT_UTF8,  /* with the byte offset */
    CART_DOCS_BINARY,    /* NUL, or many control bytes; a stream, a model, a cartridge */
    CART_DOCS_UTF16,     /* UTF-16 or UTF-32 text */
    CART_DOCS_CONVERT,   /* PDF, Office, EPUB, RTF, PostScript: names a converter; RAR, 7z, ar,
                            lz4, lzip, compress */
    CART_DOCS_MARKUP,    /* HTML, unless options->markup */
    CART_DOCS_LARGE,     /* more than options->max_document */
    CART_DOCS_LINE,      /* a line of JSON Lines that is no document */
    CART_DOCS_ENCRYPTED, /* a member that needs a password */
    CART_DOCS_NESTED,    /* an archive or compressed file inside another */
    CART_DOCS_LINK,      /* symbolic link in a directory, any link in an archive */
    CART_DOCS_SPECIAL,   /* pipe, socket, device */
    CART_DOCS_HIDDEN,    /* hidden name in a directory or archive */
    CART_DOCS_DUPLICATE, /* kept: the bytes of an earlier document; a note only */
    CART_DOCS_REASONS,
};

/* One report: a document passed over (or, DUPLICATE, kept). path and detail are escaped for people,
 * valid during the call. */
struct cart_docs_note {
    enum cart_docs_reason reason;
    const char *path;
    const char *detail; /* "byte 17 is no UTF-8", "PDF: convert it with pdftotext" */
};
typedef void cart_docs_report_fn(void *ctx, const struct cart_docs_note *note);

struct cart_docs_options {
    enum cart_docs_invalid invalid;
    bool jsonl, markup;
    bool whole_lines; /* every line of every text is a document as it stands, unchecked */
    const char *text_field, *id_field;           /* NULL: "text", "id" */
    size_t max_document, max_members, max_ratio; /* 0: the defaults above */
    uint64_t max_archive;
    const char
        *output; /* the file that is made of them, or NULL: found in a directory, CART_EUSAGE */
    cart_docs_report_fn *report; /* may be NULL */
    void *report_ctx;
};

/* Everything points into the iterator and is valid until the next call. */
struct cart_document {
    size_t index;   /* 0, 1, ... */
    const char *id; /* the id field of a JSON line (numbers as text), else path */
    const char
        *path; /* as reached from the input; "FILE:LINE" for JSON Lines, "-" for standard input;
                  always UTF-8: bytes that are not, and control characters, stand as \xNN */
    const char *shown; /* path in messages: standard input has no name there */
    const char
        *bytes; /* [size] the document as found; for JSON Lines the value of the text field */
    size_t size;
    unsigned char sha256[32]; /* of bytes */
    const char *text;         /* [n_text] UTF-8, without byte order mark */
    size_t n_text;
    size_t replaced; /* U+FFFD put in */
};

struct cart_docs_stats {
    size_t documents;
    uint64_t bytes;                  /* of documents, as found */
    size_t noted[CART_DOCS_REASONS]; /* DUPLICATE counts kept documents, the others what was passed
                                        over */
};

struct cart_docs;

/* inputs [n] and options are borrowed until close. */
int cart_docs_open(struct cart_docs **out, const char *const *inputs, size_t n,
                   const struct cart_docs_options *options, struct cart_err *err) CART_MUST_USE;

/* 1: *doc is the next document; 0: no more; CART_ESYS: an input or something in a directory cannot
 * be read; CART_EAGAIN: a file changed while it was read; CART_EFORMAT: a damaged archive or
 * one beyond the caps, or what options->invalid makes an error. After an error only close is
 * left. */
int cart_docs_next(struct cart_docs *d, struct cart_document *doc,
                   struct cart_err *err) CART_MUST_USE;

const struct cart_docs_stats *cart_docs_stats(const struct cart_docs *d);
/* "2 binary, 1 empty" in out, cut at cap > 0 bytes; returns how many were passed over. */
size_t cart_docs_summary(const struct cart_docs_stats *stats, char *out, size_t cap);
const char *cart_docs_reason_name(enum cart_docs_reason reason); /* "not UTF-8", for a summary */

void cart_docs_close(struct cart_docs *d); /* NULL is fine */

#endif
