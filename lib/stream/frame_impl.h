/* The bytes of cart-stream(5) that reader, writer and resume share: the magic and the 32-byte head
 * of a record. */
#ifndef CART_STREAM_FRAME_IMPL_H
#define CART_STREAM_FRAME_IMPL_H

#include "base/hash.h"
#include "base/sniff.h"
#include "stream/kinds.h"
#include "stream/stream.h"

#define CART_FRAME_SIZE ((size_t)32)
#define CART_STREAM_MAX_HEAD ((size_t)4 << 20) /* bytes of the HEAD payload */
#define CART_STREAM_END_SIZE ((size_t)32)      /* u64 records, u64 bytes, digest[16] */

enum { CART_FRAME_ZSTD = 1, CART_FRAME_SKIPPABLE = 2, CART_FRAME_FLAGS = 3 };

struct cart_frame {
    char type[5];
    unsigned flags;
    uint64_t stored, raw; /* bytes in the file, bytes of the payload */
    uint32_t crc;         /* of the stored bytes */
};

uint64_t cart_get_u64(const unsigned char *p);
void cart_put_u64(unsigned char *p, uint64_t v);

void cart_frame_encode(unsigned char out[CART_FRAME_SIZE], const struct cart_frame *f);
/* false: the bytes were damaged (checksum). */
bool cart_frame_decode(struct cart_frame *f, const unsigned char in[CART_FRAME_SIZE]);

/* Four capital letters or digits, of which the last ones may be spaces: what a record type is. */
bool cart_frame_type_ok(const char *type);

/* What END would state now. */
void cart_stream_written(const struct cart_stream_writer *w, uint64_t *records, uint64_t *bytes,
                         unsigned char digest[16]);

/* The record's description in kind, or NULL. */
const struct cart_kind_record *cart_kind_record(const struct cart_kind *kind, const char *type);

/* The canonical HEAD bytes for head: version and limits added. *limit gets the largest record it
 * allows. CART_EUSAGE. */
int cart_head_build(struct cart_buf *b, const json_t *head, size_t *limit,
                    const struct cart_kind **kind, struct cart_err *err) CART_MUST_USE;

/* What HEAD must say beside version, kind and limits, by reader and writer: code, or 0. */
int cart_head_check(const json_t *head, const struct cart_kind *kind, const char *what, int code,
                    struct cart_err *err) CART_MUST_USE;

struct cart_stream_reader {
    int fd;
    bool owns_fd, show_unknown, ended, failed;
    bool damaged; /* the failure was a torn or corrupt record, not an unknown one */
    char *name;
    const unsigned char *ahead; /* bytes already taken from fd, in rest after open */
    size_t n_ahead;
    json_t *head;
    struct cart_buf head_bytes;
    const struct cart_kind *kind;
    size_t limit;
    struct cart_hash *hash;
    uint64_t records, bytes;
    uint64_t offset;      /* in the file, after the last whole record */
    struct cart_buf rest; /* what ahead points into after open */
    struct cart_buf stored, raw;
    void *zstd;
};

/* Opens at the descriptor's place (borrowed); kind as for cart_stream_open. */
int cart_stream_open_fd(struct cart_stream_reader **out, int fd, const char *name, const char *kind,
                        struct cart_err *err) CART_MUST_USE;

#endif
