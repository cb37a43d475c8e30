#include "base/sniff.h"

#include "base/io.h"

#include <string.h>

static bool starts(const unsigned char *p, size_t n, const char *with, size_t len)
{
    return n >= len && memcmp(p, with, len) == 0;
}

/* A length that a header may have, followed by what opens a JSON object. */
static bool is_safetensors(const unsigned char *p, size_t n)
{
    uint64_t length = 0;

    if (n < 9)
        return false;
    for (int i = 7; i >= 0; i--)
        length = length << 8 | p[i];
    return length >= 2 && length <= 100000000 && strchr("{ \t\r\n", p[8]) != NULL && p[8] != '\0';
}

static enum cart_sniff sniff_text(const unsigned char *p, size_t n)
{
    size_t i = 0;

    while (i < n && (p[i] == ' ' || p[i] == '\t' || p[i] == '\r' || p[i] == '\n'))
        i++;
    if (i < n && (p[i] == '{' || p[i] == '['))
        return CART_SNIFF_JSON;
    if (i < n && p[i] == '<')
        return CART_SNIFF_HTML;
    if (starts(p, n, "version https://git-lfs", 23))
        return CART_SNIFF_LFS;
    for (i = 0; i < n; i++)
        if (p[i] == 0x7f || (p[i] < 0x20 && strchr("\t\n\f\r", p[i]) == NULL) || p[i] == 0)
            return CART_SNIFF_OTHER;
    return CART_SNIFF_TEXT;
}

enum cart_sniff cart_sniff(const void *bytes, size_t n)
{
    const unsigned char *p = bytes;

    if (n == 0)
        return CART_SNIFF_EMPTY;
    if (starts(p, n, CART_STREAM_MAGIC, CART_STREAM_MAGIC_SIZE))
        return CART_SNIFF_STREAM;
    if (n < CART_STREAM_MAGIC_SIZE && memcmp(p, CART_STREAM_MAGIC, n) == 0)
        return CART_SNIFF_STREAM_CUT;
    if (starts(p, n, "\211CART", 5) || starts(p, n, "\011CART", 5))
        return CART_SNIFF_STREAM_TEXT;
    if (starts(p, n, "GGUF", 4))
        return CART_SNIFF_GGUF;
    if (starts(p, n, "lmgg", 4) || starts(p, n, "fmgg", 4) || starts(p, n, "tjgg", 4) ||
        starts(p, n, "algg", 4) || starts(p, n, "nsgg", 4))
        return CART_SNIFF_GGML;
    if (starts(p, n, "%PDF-", 5))
        return CART_SNIFF_PDF;
    if (starts(p, n, "\x1f\x8b", 2))
        return CART_SNIFF_GZIP;
    if (starts(p, n, "\x28\xb5\x2f\xfd", 4))
        return CART_SNIFF_ZSTD;
    if (starts(p, n, "\3757zXZ", 5))
        return CART_SNIFF_XZ;
    if (starts(p, n, "PK\x03\x04", 4))
        return CART_SNIFF_ZIP;
    if (is_safetensors(p, n))
        return CART_SNIFF_SAFETENSORS;
    return sniff_text(p, n);
}

const char *cart_sniff_name(enum cart_sniff what)
{
    static const char *const names[] = {
        [CART_SNIFF_EMPTY] = "nothing (did the program before it fail?)",
        [CART_SNIFF_STREAM] = "a cart stream",
        [CART_SNIFF_STREAM_CUT] = "the first bytes of a cart stream, cut off",
        [CART_SNIFF_STREAM_TEXT] = "a cart stream damaged by a transfer in text mode",
        [CART_SNIFF_SAFETENSORS] = "a safetensors file",
        [CART_SNIFF_GGUF] = "a GGUF file",
        [CART_SNIFF_GGML] = "a GGML file, from before GGUF",
        [CART_SNIFF_JSON] = "JSON text",
        [CART_SNIFF_GZIP] = "gzip-compressed data",
        [CART_SNIFF_ZSTD] = "zstd-compressed data",
        [CART_SNIFF_XZ] = "xz-compressed data",
        [CART_SNIFF_ZIP] = "a zip archive",
        [CART_SNIFF_PDF] = "a PDF document",
        [CART_SNIFF_HTML] = "an HTML or XML page (did a download fail?)",
        [CART_SNIFF_LFS] = "a Git LFS pointer (fetch the file itself with git lfs pull)",
        [CART_SNIFF_TEXT] = "plain text",
        [CART_SNIFF_OTHER] = "an unknown format",
    };

    return names[what];
}

int cart_sniff_read(int fd, unsigned char out[CART_SNIFF_BYTES], const char *name,
                    struct cart_err *err)
{
    int n = 0;

    /* Byte by byte: the input may end anywhere, and a pipe must not be waited on beyond its first
     * line. */
    while (n < CART_SNIFF_BYTES) {
        int r = cart_io_read(fd, out + n, 1, name, err);
        if (r < 0)
            return r;
        if (r == 0)
            break;
        n++;
    }
    return n;
}
