/* What a file is, from its first bytes: names of files never decide. */
#ifndef CART_BASE_SNIFF_H
#define CART_BASE_SNIFF_H

#include "base/err.h"

/* What cart-stream(5) begins with. */
#define CART_STREAM_MAGIC "\211CART\r\n\032"
#define CART_STREAM_MAGIC_SIZE ((size_t)8)

#define CART_SNIFF_BYTES 64 /* more than this is never looked at; fewer are fine */

enum cart_sniff {
    CART_SNIFF_EMPTY,
    CART_SNIFF_STREAM,      /* the whole magic of cart-stream(5) */
    CART_SNIFF_STREAM_CUT,  /* a proper beginning of the magic and nothing more */
    CART_SNIFF_STREAM_TEXT, /* the magic with its line ends changed */
    CART_SNIFF_SAFETENSORS,
    CART_SNIFF_GGUF,
    CART_SNIFF_GGML, /* a predecessor of GGUF */
    CART_SNIFF_JSON,
    CART_SNIFF_GZIP,
    CART_SNIFF_ZSTD,
    CART_SNIFF_XZ,
    CART_SNIFF_ZIP,
    CART_SNIFF_PDF,
    CART_SNIFF_HTML,
    CART_SNIFF_LFS, /* a Git LFS pointer instead of the file */
    CART_SNIFF_TEXT,
    CART_SNIFF_OTHER,
};

/* bytes: the first n of the file. */
enum cart_sniff cart_sniff(const void *bytes, size_t n);

/* "a GGUF file", "plain text", ...: for "expected ..., found %s". */
const char *cart_sniff_name(enum cart_sniff what);

/* Reads up to CART_SNIFF_BYTES of fd, fewer only where the input ends; returns how many, or < 0.
 * The bytes are taken from fd: hand them on to cart_stream_open_ahead. CART_EFORMAT: a
 * directory. */
int cart_sniff_read(int fd, unsigned char out[CART_SNIFF_BYTES], const char *name,
                    struct cart_err *err) CART_MUST_USE;

#endif
