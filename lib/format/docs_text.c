/* What bytes are, and text out of them. Names never decide: a PDF called notes.txt is a PDF. */
#include "base/sniff.h"
#include "format/docs_impl.h"
#include "format/text.h"

#include <stdio.h>
#include <string.h>
#include <strings.h>

static bool starts(const char *p, size_t n, const char *magic, size_t len)
{
    return n >= len && memcmp(p, magic, len) == 0;
}

static bool holds(const char *p, size_t n, const char *word)
{
    size_t len = strlen(word);

    for (size_t i = 0; i + len <= n; i++) {
        const char *at = memchr(p + i, word[0], n - len - i + 1);
        if (!at)
            return false;
        i = (size_t)(at - p);
        if (memcmp(at, word, len) == 0)
            return true;
    }
    return false;
}

/* A zip file that is a document: what it says in its first members. NULL: an archive. */
static const char *zip_advice(const char *p, size_t n)
{
    enum { NAME_AT = 30 };
    size_t len = n > NAME_AT ? (size_t)(unsigned char)p[26] | (size_t)(unsigned char)p[27] << 8 : 0;
    const char *name = p + NAME_AT;

    if (len == 0 || len > n - NAME_AT)
        return NULL;
    if (len == 8 && memcmp(name, "mimetype", 8) == 0) {
        const char *type = name + len;
        size_t left = n - NAME_AT - len;
        if (holds(type, left < 256 ? left : 256, "application/epub+zip"))
            return "EPUB: convert it with pandoc -t plain";
        return "OpenDocument: convert it with pandoc -t plain";
    }
    bool office = (len == 19 && memcmp(name, "[Content_Types].xml", 19) == 0) ||
                  (len == 11 && memcmp(name, "_rels/.rels", 11) == 0) ||
                  (len >= 9 && memcmp(name, "docProps/", 9) == 0);
    if (!office)
        return NULL;
    if (holds(p, n, "word/"))
        return "DOCX: convert it with pandoc -t plain";
    if (holds(p, n, "xl/"))
        return "XLSX: export it as CSV";
    if (holds(p, n, "ppt/"))
        return "PPTX: export it as text";
    return "an Office document: convert it with pandoc or LibreOffice";
}

/* A tar header's checksum is the sum of its bytes with the checksum field read as spaces. */
static bool is_tar(const char *p, size_t n)
{
    enum { HEADER = 512, SUM_AT = 148, SUM_LEN = 8 };
    unsigned long sum = 0, stated = 0;

    if (n < HEADER || p[0] == '\0')
        return false;
    for (size_t i = 0; i < HEADER; i++)
        sum += i >= SUM_AT && i < SUM_AT + SUM_LEN ? ' ' : (unsigned char)p[i];
    size_t i = SUM_AT;
    while (i < SUM_AT + SUM_LEN && p[i] == ' ')
        i++;
    for (; i < SUM_AT + SUM_LEN && p[i] >= '0' && p[i] <= '7'; i++)
        stated = stated * 8 + (unsigned long)(p[i] - '0');
    return sum == stated;
}

static bool is_compressed(const char *p, size_t n)
{
    return starts(p, n, "\x1f\x8b\x08", 3) || starts(p, n, "\x28\xb5\x2f\xfd", 4) ||
           starts(p, n,
                  "\xfd"
                  "7zXZ\0",
                  6) ||
           (n >= 10 && starts(p, n, "BZh", 3) &&
            (memcmp(p + 4, "1AY&SY", 6) == 0 || memcmp(p + 4, "\x17rE8P\x90", 6) == 0));
}

bool cart_content_is_zeros(const char *bytes, size_t n)
{
    return n == 0 || (bytes[0] == '\0' && memcmp(bytes, bytes + 1, n - 1) == 0);
}

/* What our own tools make and read, put in a document's place; NULL: none of it, as is a text that
 * begins with the word GGUF: such a file has a small number behind it, in four bytes. */
static const char *ours_advice(const char *p, size_t n)
{
    switch (cart_sniff(p, n < CART_SNIFF_BYTES ? n : CART_SNIFF_BYTES)) {
    case CART_SNIFF_STREAM:
        return holds(p, n, "\"kind\":\"tokens\"") ? "a tokens stream, which goes to cart-selfstudy"
               : holds(p, n, "\"kind\":\"conversations\"")
                   ? "a conversations stream, which goes to cart-teacher"
               : holds(p, n, "\"kind\":\"targets\"") ? "a targets stream, which goes to cart-train"
                                                     : "a cart stream";
    case CART_SNIFF_GGUF:
        return n >= 8 && memchr(p + 4, 0, 4) ? "a GGUF file: a model goes with -m" : NULL;
    case CART_SNIFF_SAFETENSORS:
        return "a safetensors file: a model goes with -m, a cartridge to cart-ask with -c";
    default:
        return NULL;
    }
}

enum cart_content cart_content_sniff(const char *head, size_t n, enum cart_docs_reason *reason,
                                     const char **advice)
{
    static const struct {
        const char *magic;
        size_t len;
        const char *advice;
    } foreign[] = {
        {"%PDF-", 5, "PDF: convert it with pdftotext -layout"},
        {"{\\rtf", 5, "RTF: convert it with pandoc -t plain"},
        {"%!PS", 4, "PostScript: convert it with ps2ascii"},
        {"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1", 8,
         "an old Office document: convert it with LibreOffice"},
        {"Rar!\x1a\x07", 6, "RAR: unpack it first"},
        {"7z\xbc\xaf\x27\x1c", 6, "7z: unpack it first"},
        {"\x04\x22\x4d\x18", 4, "lz4: unpack it first"},
        {"LZIP\x01", 5, "lzip: unpack it first"},
        {"\x1f\x9d", 2, "compress: unpack it first"},
        {"!<arch>\n", 8, "ar: unpack it first"},
    };

    *reason = CART_DOCS_BINARY;
    const char *ours = ours_advice(head, n);
    if (ours != NULL) {
        *advice = ours;
        return CART_CONTENT_FOREIGN;
    }
    *reason = CART_DOCS_CONVERT;
    for (size_t i = 0; i < CART_COUNTOF(foreign); i++) {
        if (starts(head, n, foreign[i].magic, foreign[i].len)) {
            *advice = foreign[i].advice;
            return CART_CONTENT_FOREIGN;
        }
    }
    if (starts(head, n, "PK\x03\x04", 4)) {
        const char *said = zip_advice(head, n);
        if (!said)
            return CART_CONTENT_ZIP;
        *advice = said;
        return CART_CONTENT_FOREIGN;
    }
    if (starts(head, n, "PK\x05\x06", 4))
        return CART_CONTENT_ZIP;
    if (is_tar(head, n))
        return CART_CONTENT_TAR;
    return is_compressed(head, n) ? CART_CONTENT_COMPRESSED : CART_CONTENT_PLAIN;
}

static bool word_at(const char *p, size_t n, const char *word)
{
    size_t len = strlen(word);

    return n >= len && strncasecmp(p, word, len) == 0;
}

/* HTML as it begins a file: after white space, comments and an XML declaration. */
static bool is_html(const char *p, size_t n)
{
    const char *end = p + (n < 4096 ? n : 4096);

    while (p < end) {
        size_t left = (size_t)(end - p);
        if (*p == ' ' || *p == '\t' || *p == '\r' || *p == '\n') {
            p++;
        } else if (word_at(p, left, "<!--") || word_at(p, left, "<?xml")) {
            if (!(p = memchr(p, '>', left)))
                return false;
            p++;
        } else {
            return word_at(p, left, "<!doctype html") || word_at(p, left, "<html") ||
                   word_at(p, left, "<head>") || word_at(p, left, "<body>");
        }
    }
    return false;
}

/* Every second byte mostly zero: UTF-16 of western text without a byte order mark. */
static bool looks_utf16(const char *p, size_t n)
{
    size_t zero[2] = {0, 0};

    if (n > 4096)
        n = 4096;
    if (n < 4)
        return false;
    for (size_t i = 0; i < n; i++)
        zero[i & 1] += p[i] == '\0';
    return (zero[0] > n / 4 && zero[1] == 0) || (zero[1] > n / 4 && zero[0] == 0);
}

/* More than one byte in twenty is a control character that text does not hold. */
static bool mostly_control(const char *p, size_t n)
{
    size_t control = 0;

    for (size_t i = 0; i < n; i++) {
        unsigned char c = (unsigned char)p[i];
        control +=
            c < 0x20 && c != '\t' && c != '\n' && c != '\r' && c != '\f' && c != '\b' && c != 0x1b;
    }
    return control > n / 20;
}

int cart_content_judge(const char *bytes, size_t n, bool markup, enum cart_docs_reason *reason,
                       char *detail, size_t cap)
{
    const char *nul;

    if (n >= 1024 && n % 512 == 0 && bytes[0] == '\0' && memcmp(bytes, bytes + 1, n - 1) == 0) {
        *reason = CART_DOCS_EMPTY;
        snprintf(detail, cap, "NUL bytes only, as an archive without members");
    } else if (n == 0 || (n == 3 && memcmp(bytes, "\xef\xbb\xbf", 3) == 0)) {
        *reason = CART_DOCS_EMPTY;
        snprintf(detail, cap, "it is empty");
    } else if (starts(bytes, n, "\xff\xfe\0\0", 4) || starts(bytes, n, "\0\0\xfe\xff", 4)) {
        *reason = CART_DOCS_UTF16;
        snprintf(detail, cap, "UTF-32 text: convert it with iconv -f UTF-32 -t UTF-8");
    } else if (starts(bytes, n, "\xff\xfe", 2) || starts(bytes, n, "\xfe\xff", 2)) {
        *reason = CART_DOCS_UTF16;
        snprintf(detail, cap, "UTF-16 text: convert it with iconv -f UTF-16 -t UTF-8");
    } else if (looks_utf16(bytes, n)) {
        *reason = CART_DOCS_UTF16;
        snprintf(detail, cap, "UTF-16%s text: convert it with iconv -f UTF-16%s -t UTF-8",
                 bytes[0] ? "LE" : "BE", bytes[0] ? "LE" : "BE");
    } else if ((nul = memchr(bytes, 0, n))) {
        *reason = CART_DOCS_BINARY;
        snprintf(detail, cap, "binary: byte %zu is NUL", (size_t)(nul - bytes));
    } else if (mostly_control(bytes, n)) {
        *reason = CART_DOCS_BINARY;
        snprintf(detail, cap, "binary: many control bytes");
    } else if (!markup && is_html(bytes, n)) {
        *reason = CART_DOCS_MARKUP;
        snprintf(detail, cap, "HTML: convert it with pandoc -t plain");
    } else {
        return 1;
    }
    return 0;
}

int cart_content_replace(const char *text, size_t n, struct cart_buf *out, size_t *count,
                         struct cart_err *err)
{
    size_t done = 0;

    *count = 0;
    for (;;) {
        size_t good = cart_text_valid(text + done, n - done);
        int r = cart_buf_add(out, text + done, good, err);
        if (r < 0)
            return r;
        done += good;
        if (done == n)
            return 0;
        if ((r = cart_buf_add(out, "\xef\xbf\xbd", 3, err)) < 0)
            return r;
        done += cart_text_subpart(text + done, n - done);
        (*count)++;
    }
}

int cart_text_take(const char **text, size_t *n_text, const char *bytes, size_t n, const char *what,
                   struct cart_err *err)
{
    enum cart_docs_reason reason;
    const char *advice = "an archive or compressed file: unpack it first";
    char detail[256];
    enum cart_content content = cart_content_sniff(bytes, n, &reason, &advice);

    if (content != CART_CONTENT_PLAIN)
        return cart_err_set(err, CART_EFORMAT, "%s: expected text, found %s", what, advice);
    if (!cart_content_judge(bytes, n, true, &reason, detail, sizeof detail))
        return cart_err_set(err, CART_EFORMAT, "%s: expected text, found %s", what,
                            reason == CART_DOCS_EMPTY ? "none" : detail);
    size_t mark = n >= 3 && memcmp(bytes, "\xef\xbb\xbf", 3) == 0 ? 3 : 0;
    int r = cart_text_check(what, bytes, n, err);
    if (r == 0) {
        *text = bytes + mark;
        *n_text = n - mark;
    }
    return r;
}
