/* For tests of documents: each runs in a folder of its own, runs the iterator over files that it
 * makes and compares a transcript: "path=text" for a document, "!reason path: detail" for what was
 * passed over. Archives are made by libarchive. Whoever includes it has included cmocka; it is no
 * unit of its own, since programs without cmocka are linked with those. */
#ifndef CART_TESTS_HELPER_DOCUMENTS_IMPL_H
#define CART_TESTS_HELPER_DOCUMENTS_IMPL_H

#include "base/buf.h"
#include "base/hash.h"
#include "format/docs.h"
#include "format/text.h"

#include <archive.h>
#include <archive_entry.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static char docs_home[4096], docs_folder[4096]; /* where the program started; where a test runs */

static inline int docs_enter_folder(void **state)
{
    const char *dir = getenv("TMPDIR");

    (void)state;
    snprintf(docs_folder, sizeof docs_folder, "%s/cart-docs-XXXXXX", dir && *dir ? dir : ".");
    return getcwd(docs_home, sizeof docs_home) && mkdtemp(docs_folder) && chdir(docs_folder) == 0
               ? 0
               : -1;
}

static inline int docs_leave_folder(void **state)
{
    char command[4200];

    (void)state;
    snprintf(command, sizeof command, "rm -rf -- '%s'", docs_folder);
    return chdir(docs_home) == 0 && system(command) == 0 ? 0 : -1;
}

static inline void docs_write_bytes(const char *path, const void *bytes, size_t n)
{
    FILE *f = fopen(path, "wb");

    assert_non_null(f);
    assert_int_equal(fwrite(bytes, 1, n, f), n);
    assert_int_equal(fclose(f), 0);
}

static inline void docs_write_text(const char *path, const char *text)
{
    docs_write_bytes(path, text, strlen(text));
}

static inline void docs_on_note(void *ctx, const struct cart_docs_note *n)
{
    assert_int_equal(cart_buf_addf(ctx, NULL, "!%s %s: %s\n", cart_docs_reason_name(n->reason),
                                   n->path, n->detail),
                     0);
}

/* Runs the iterator over inputs; returns its last status. */
static inline int docs_run(struct cart_buf *b, const char *const *inputs, size_t n,
                           struct cart_docs_options o, struct cart_docs_stats *stats,
                           struct cart_err *err)
{
    struct cart_docs *d;
    struct cart_document doc;
    size_t index = 0;
    int r;

    o.report = docs_on_note;
    o.report_ctx = b;
    assert_int_equal(cart_docs_open(&d, inputs, n, &o, err), 0);
    while ((r = cart_docs_next(d, &doc, err)) == 1) {
        unsigned char sha[32];
        assert_int_equal(doc.index, index++);
        cart_sha256(doc.bytes, doc.size, sha);
        assert_memory_equal(sha, doc.sha256, 32);
        assert_int_equal(cart_text_valid(doc.text, doc.n_text), doc.n_text);
        assert_int_equal(cart_buf_addf(b, NULL, "%s", doc.path), 0);
        if (strcmp(doc.path, doc.id) != 0)
            assert_int_equal(cart_buf_addf(b, NULL, "(%s)", doc.id), 0);
        assert_int_equal(
            cart_buf_addf(b, NULL, "=%.*s\n", doc.n_text < 200 ? (int)doc.n_text : 200, doc.text),
            0);
    }
    if (stats)
        *stats = *cart_docs_stats(d);
    cart_docs_close(d);
    return r;
}

static inline void docs_expect(const char *input, struct cart_docs_options o,
                               const char *transcript)
{
    struct cart_buf b = CART_BUF_INIT;
    struct cart_err err = {0};

    int r = docs_run(&b, &input, 1, o, NULL, &err);
    if (r != 0)
        fail_msg("%s: status %d: %s", input, r, err.msg);
    assert_string_equal(b.data ? b.data : "", transcript);
    cart_buf_release(&b);
}

static inline void docs_expect_error(const char *input, struct cart_docs_options o, int code,
                                     const char *message)
{
    struct cart_buf b = CART_BUF_INIT;
    struct cart_err err = {0};

    assert_int_equal(docs_run(&b, &input, 1, o, NULL, &err), code);
    assert_string_equal(err.msg, message);
    cart_buf_release(&b);
}

static const struct cart_docs_options docs_plain; /* the defaults */

/* --- archives --- */

enum packing {
    PACK_TAR,
    PACK_TAR_GZ,
    PACK_TAR_ZST,
    PACK_ZIP,
    PACK_SEVEN,
    PACK_CPIO,
    PACK_CPIO_GZ,
    PACK_GZ,
    PACK_XZ,
    PACK_ZST,
    PACK_BZ2,
    PACK_ZIP_LOCKED
};

static inline struct archive *docs_pack_open(const char *path, enum packing p)
{
    struct archive *a = archive_write_new();

    if (p == PACK_TAR || p == PACK_TAR_GZ || p == PACK_TAR_ZST)
        assert_int_equal(archive_write_set_format_pax_restricted(a), ARCHIVE_OK);
    else if (p == PACK_ZIP || p == PACK_ZIP_LOCKED)
        assert_int_equal(archive_write_set_format_zip(a), ARCHIVE_OK);
    else if (p == PACK_SEVEN)
        assert_int_equal(archive_write_set_format_7zip(a), ARCHIVE_OK);
    else if (p == PACK_CPIO || p == PACK_CPIO_GZ)
        assert_int_equal(archive_write_set_format_cpio_newc(a), ARCHIVE_OK);
    else
        assert_int_equal(archive_write_set_format_raw(a), ARCHIVE_OK);
    if (p == PACK_TAR_GZ || p == PACK_CPIO_GZ || p == PACK_GZ)
        assert_int_equal(archive_write_add_filter_gzip(a), ARCHIVE_OK);
    if (p == PACK_TAR_ZST || p == PACK_ZST)
        assert_int_equal(archive_write_add_filter_zstd(a), ARCHIVE_OK);
    if (p == PACK_XZ)
        assert_int_equal(archive_write_add_filter_xz(a), ARCHIVE_OK);
    if (p == PACK_BZ2)
        assert_int_equal(archive_write_add_filter_bzip2(a), ARCHIVE_OK);
    if (p == PACK_ZIP_LOCKED) {
        assert_int_equal(archive_write_set_options(a, "zip:encryption=traditional"), ARCHIVE_OK);
        assert_int_equal(archive_write_set_passphrase(a, "secret"), ARCHIVE_OK);
    }
    assert_int_equal(archive_write_open_filename(a, path), ARCHIVE_OK);
    return a;
}

static inline void docs_pack_member(struct archive *a, const char *name, unsigned type,
                                    const char *bytes, size_t n, size_t times)
{
    struct archive_entry *e = archive_entry_new();

    archive_entry_set_pathname(e, name);
    archive_entry_set_filetype(e, type);
    archive_entry_set_perm(e, 0644);
    archive_entry_set_size(e, (la_int64_t)(n * times));
    if (type == AE_IFLNK)
        archive_entry_set_symlink(e, "/etc/passwd");
    assert_true(archive_write_header(a, e) >= ARCHIVE_WARN);
    for (size_t i = 0; i < times; i++)
        assert_int_equal(archive_write_data(a, bytes, n), n);
    archive_entry_free(e);
}

static inline void docs_pack_text(struct archive *a, const char *name, const char *text)
{
    docs_pack_member(a, name, AE_IFREG, text, strlen(text), 1);
}

static inline void docs_pack_close(struct archive *a)
{
    assert_int_equal(archive_write_close(a), ARCHIVE_OK);
    archive_write_free(a);
}

#endif
