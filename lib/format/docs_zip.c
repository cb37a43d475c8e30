/* The directory at the end of a zip against the headers of its members. A zip says everything
 * twice, and readers differ in which they believe: where the two disagree, so would they.
 * libarchive takes names from the one and sizes from the other. */
#include "format/docs_impl.h"

#include <errno.h>
#include <string.h>
#include <unistd.h>

enum {
    END = 22,         /* the end record without its comment */
    END_MOST = 65535, /* its comment */
    LOCATOR = 20,     /* of the end record of a zip64 */
    END64 = 56,       /* that record's fixed part */
    ENTRY = 46,       /* of the directory */
    HEADER = 30,      /* of a member */
    ENCRYPTED = 1 << 0 | 1 << 6 | 1 << 13,
    SIZES_AFTER = 1 << 3, /* the member's sizes and CRC follow its data */
};

struct zip {
    int fd;
    uint64_t size;
    const char *shown;
    struct cart_err *err;
};

struct end {
    uint64_t n, first, bytes; /* entries, and where the directory lies */
};

static uint64_t number(const unsigned char *p, size_t n)
{
    uint64_t v = 0;

    while (n-- > 0)
        v = v << 8 | p[n];
    return v;
}

static int wrong(const struct zip *z, const char *expected, const char *found)
{
    return cart_err_set(z->err, CART_EFORMAT, "%s: archive: expected %s, found %s", z->shown,
                        expected, found);
}

/* n bytes at offset at; CART_EFORMAT where the file has fewer. */
static int read_at(const struct zip *z, uint64_t at, void *out, size_t n)
{
    unsigned char *p = out;

    if (at > z->size || n > z->size - at)
        return wrong(z, "a directory of places within the file", "one outside");
    for (size_t done = 0; done < n;) {
        ssize_t got = pread(z->fd, p + done, n - done, (off_t)(at + done));
        if (got < 0 && errno == EINTR)
            continue;
        if (got < 0)
            return cart_err_sys(z->err, "%s: reading", z->shown);
        if (got == 0)
            return wrong(z, "a file of the size that it had", "its end before");
        done += (size_t)got;
    }
    return 0;
}

/* What a zip64 says where the fields of the plain end record are too small. */
static int read_end64(const struct zip *z, uint64_t end_at, struct end *end)
{
    unsigned char b[END64];
    int r;

    if (end_at < LOCATOR)
        return wrong(z, "a zip64 directory", "none");
    if ((r = read_at(z, end_at - LOCATOR, b, LOCATOR)) < 0)
        return r;
    if (number(b, 4) != 0x07064b50)
        return 0; /* no zip64: the fields mean what they say */
    if ((r = read_at(z, number(b + 8, 8), b, END64)) < 0)
        return r;
    if (number(b, 4) != 0x06064b50)
        return wrong(z, "a zip64 directory", "none");
    *end = (struct end){number(b + 32, 8), number(b + 48, 8), number(b + 40, 8)};
    return 0;
}

/* The last end record whose comment ends with the file. */
static int find_end(const struct zip *z, struct end *end)
{
    struct cart_buf tail = CART_BUF_INIT;
    size_t n = z->size < END + END_MOST ? (size_t)z->size : END + END_MOST;
    size_t i = n < END ? 0 : n - END + 1;
    const unsigned char *b = NULL;
    int r = cart_buf_reserve(&tail, n, z->err);

    if (r < 0 || (r = read_at(z, z->size - n, tail.data, n)) < 0)
        goto out;
    while (!b && i-- > 0) {
        const unsigned char *p = (const unsigned char *)tail.data + i;
        if (number(p, 4) == 0x06054b50 && number(p + 20, 2) == n - END - i)
            b = p;
    }
    if (!b) {
        r = wrong(z, "a zip with its directory at the end",
                  "none: cut off, damaged or followed by something");
        goto out;
    }
    *end = (struct end){number(b + 10, 2), number(b + 16, 4), number(b + 12, 4)};
    if (end->n == UINT16_MAX || end->first == UINT32_MAX || end->bytes == UINT32_MAX)
        r = read_end64(z, z->size - n + i, end);
out:
    cart_buf_release(&tail);
    return r;
}

/* The place of a member's header, from the zip64 field of its entry where that has it. */
static uint64_t header_at(const unsigned char *entry, const unsigned char *extra, size_t n)
{
    uint64_t at = number(entry + 42, 4);
    size_t skip = (number(entry + 24, 4) == UINT32_MAX ? 8u : 0u) +
                  (number(entry + 20, 4) == UINT32_MAX ? 8u : 0u);

    for (size_t i = 0; at == UINT32_MAX && i + 4 <= n;) {
        size_t len = (size_t)number(extra + i + 2, 2);
        if (number(extra + i, 2) == 1 && skip + 8 <= len && i + 4 + len <= n)
            return number(extra + i + 4 + skip, 8);
        i += 4 + len;
    }
    return at;
}

/* A size in both places; 2^32 - 1 stands for one that a zip64 field has. */
static bool same_size(const unsigned char *a, const unsigned char *b)
{
    return memcmp(a, b, 4) == 0 || number(a, 4) == UINT32_MAX || number(b, 4) == UINT32_MAX;
}

/* What differs between the entry and the header, or NULL. */
static const char *difference(const unsigned char *entry, const unsigned char *header)
{
    uint64_t flags = number(header + 6, 2);

    if (number(header, 4) != 0x04034b50)
        return "no header in its place";
    if ((flags & ENCRYPTED) != (number(entry + 8, 2) & ENCRYPTED))
        return "another statement of encryption";
    if (memcmp(header + 8, entry + 10, 2) != 0)
        return "another method of compression";
    if (memcmp(header + 26, entry + 28, 2) != 0)
        return "another name";
    if (flags & SIZES_AFTER)
        return NULL;
    if (memcmp(header + 14, entry + 16, 4) != 0)
        return "another CRC";
    return same_size(header + 18, entry + 20) && same_size(header + 22, entry + 24)
               ? NULL
               : "another size";
}

/* One entry at *at, which moves to the next; b holds its variable part, then the header's name. */
static int check_entry(const struct zip *z, uint64_t *at, struct cart_buf *b)
{
    unsigned char entry[ENTRY], header[HEADER];
    int r = read_at(z, *at, entry, ENTRY);

    if (r < 0)
        return r;
    if (number(entry, 4) != 0x02014b50)
        return wrong(z, "an entry of the zip directory", "something else: damaged");
    size_t n_name = (size_t)number(entry + 28, 2), n_extra = (size_t)number(entry + 30, 2);
    cart_buf_reset(b);
    if ((r = cart_buf_reserve(b, 2 * n_name + n_extra + 1, z->err)) < 0 ||
        (r = read_at(z, *at + ENTRY, b->data, n_name + n_extra)) < 0)
        return r;
    uint64_t place = header_at(entry, (const unsigned char *)b->data + n_name, n_extra);
    if ((r = read_at(z, place, header, HEADER)) < 0)
        return r;
    const char *found = difference(entry, header);
    char *own = b->data + n_name + n_extra;
    if (!found && (r = read_at(z, place + HEADER, own, n_name)) < 0)
        return r;
    if (!found && memcmp(own, b->data, n_name) != 0)
        found = "another name";
    if (found) {
        char shown[120];
        return cart_err_set(
            z->err, CART_EFORMAT,
            "%s: archive: member %s: expected what the directory says, found %s in its header",
            z->shown, cart_err_escape(shown, sizeof shown, b->data, n_name), found);
    }
    *at += ENTRY + n_name + n_extra + number(entry + 32, 2);
    return 0;
}

int cart_zip_check(int fd, uint64_t size, size_t max_members, const char *shown,
                   struct cart_err *err)
{
    const struct zip z = {fd, size, shown, err};
    struct cart_buf b = CART_BUF_INIT;
    struct end end = {0, 0, 0};
    int r = find_end(&z, &end);

    if (r == 0 && end.n > max_members)
        r = cart_err_set(err, CART_EFORMAT, "%s: archive: expected at most %zu members, found more",
                         shown, max_members);
    uint64_t at = end.first;
    for (uint64_t i = 0; r == 0 && i < end.n; i++)
        r = check_entry(&z, &at, &b);
    if (r == 0 && at - end.first != end.bytes)
        r = wrong(&z, "a zip directory of the length that its end says", "another");
    cart_buf_release(&b);
    return r;
}
