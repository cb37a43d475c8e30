/* libarchive, loaded with the first archive: it brings nine libraries along, which are half of what a
 * program takes to begin, and most programs never meet an archive. */
#ifndef CART_FORMAT_DOCS_LIBARCHIVE_H
#define CART_FORMAT_DOCS_LIBARCHIVE_H

#include "base/err.h"

#include <archive.h>
#include <archive_entry.h>

#define CART_LIBARCHIVE(X)                                                                         \
    X(archive_entry_filetype)                                                                      \
    X(archive_entry_free)                                                                          \
    X(archive_entry_hardlink)                                                                      \
    X(archive_entry_is_data_encrypted)                                                             \
    X(archive_entry_new2)                                                                          \
    X(archive_entry_pathname)                                                                      \
    X(archive_entry_pathname_utf8)                                                                 \
    X(archive_errno)                                                                               \
    X(archive_error_string)                                                                        \
    X(archive_filter_bytes)                                                                        \
    X(archive_format)                                                                              \
    X(archive_read_append_filter)                                                                  \
    X(archive_read_data)                                                                           \
    X(archive_read_free)                                                                           \
    X(archive_read_new)                                                                            \
    X(archive_read_next_header2)                                                                   \
    X(archive_read_open1)                                                                          \
    X(archive_read_set_callback_data)                                                              \
    X(archive_read_set_read_callback)                                                              \
    X(archive_read_set_seek_callback)                                                              \
    X(archive_read_support_format_empty)                                                           \
    X(archive_read_support_format_raw)                                                             \
    X(archive_read_support_format_tar)                                                             \
    X(archive_read_support_format_zip)                                                             \
    X(archive_set_error)

/* Its functions under their own names. */
struct cart_libarchive {
#define CART_LIBARCHIVE_FIELD(name) __typeof__(name) *(name);
    CART_LIBARCHIVE(CART_LIBARCHIVE_FIELD)
#undef CART_LIBARCHIVE_FIELD
};

/* *out stays until the program ends. CART_ESYS: it is not installed, or there is no memory for it. Any
 * thread. */
int cart_libarchive(const struct cart_libarchive **out, struct cart_err *err) CART_MUST_USE;

#endif
