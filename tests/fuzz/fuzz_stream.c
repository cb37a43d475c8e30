/* Record streams. Input that begins with the magic's first byte is a stream as it stands. Other
 * input is a list of records that this target frames and seals with the right checksums, counts and
 * digest, so that what lies behind them is reached: type[4], a byte of flags, three bytes of
 * length, (where the flags say zstd) four bytes of the length unpacked, the payload. The last
 * record's END is added where the list has none.
 *
 * What the listing accepts becomes text lines, packs again into a stream that lists the same, and
 * the readers behind it accept what they should. */
#include "base/hash.h"
#include "fuzz/fuzz.h"
#include "stream/listing.h"
#include "study/conversation.h"
#include "study/corpus.h"

#include <fcntl.h>
#include <stdlib.h>
#include <string.h>

#define FLAG_ZSTD 1u

static void put(struct cart_buf *b, uint64_t v, size_t bytes)
{
    unsigned char le[8];
    for (size_t i = 0; i < bytes; i++)
        le[i] = (unsigned char)(v >> 8 * i);
    fuzz_demand(cart_buf_add(b, le, bytes, NULL) == 0, "memory");
}

static void put_frame(struct cart_buf *b, const void *type, unsigned flags, const void *payload,
                      size_t stored, uint64_t raw)
{
    size_t at = b->len;
    fuzz_demand(cart_buf_add(b, type, 4, NULL) == 0, "memory");
    put(b, flags, 2);
    put(b, 0, 2);
    put(b, stored, 8);
    put(b, raw, 8);
    put(b, cart_crc32(stored ? payload : "", stored), 4);
    put(b, cart_crc32(b->data + at, b->len - at), 4);
    fuzz_demand(cart_buf_add(b, payload, stored, NULL) == 0, "memory");
}

static void put_end(struct cart_buf *b, struct cart_hash *h, uint64_t records, uint64_t bytes)
{
    struct cart_buf end = CART_BUF_INIT;
    unsigned char digest[16];
    put(&end, records, 8);
    put(&end, bytes, 8);
    cart_hash_final(h, digest);
    fuzz_demand(cart_buf_add(&end, digest, sizeof digest, NULL) == 0, "memory");
    put_frame(b, "END ", 0, end.data, end.len, end.len);
    cart_buf_release(&end);
}

static void seal(struct cart_buf *b, const uint8_t *p, size_t n)
{
    struct cart_hash *h = cart_hash_new();
    uint64_t records = 0, bytes = 0;
    bool ended = false;
    fuzz_demand(h && cart_buf_add(b, "\211CART\r\n\032", 8, NULL) == 0, "memory");
    for (bool first = true; n >= 8; first = false) {
        const uint8_t *type = p;
        unsigned flags = p[4];
        size_t stored = p[5] | (size_t)p[6] << 8 | (size_t)p[7] << 16, raw, at = 8;
        if (flags & FLAG_ZSTD && n < 12)
            break;
        if (flags & FLAG_ZSTD)
            at = 12;
        if (stored > n - at)
            stored = n - at;
        raw = flags & FLAG_ZSTD
                  ? p[8] | (size_t)p[9] << 8 | (size_t)p[10] << 16 | (size_t)p[11] << 24
                  : stored;
        put_frame(b, type, flags, p + at, stored, raw);
        ended = memcmp(type, "END ", 4) == 0;
        if (!first && !ended) {
            cart_hash_add(h, p + at, stored);
            records++;
            bytes += stored;
        }
        p += at + stored;
        n -= at + stored;
    }
    if (!ended)
        put_end(b, h, records, bytes);
    cart_hash_free(h);
}

static int open_stream(struct cart_stream_reader **r, const struct cart_buf *b,
                       struct cart_err *err)
{
    static int nothing = -1;
    if (nothing < 0)
        nothing = open("/dev/null", O_RDONLY | O_CLOEXEC);
    return cart_stream_open_ahead(r, nothing, "input", b->data ? b->data : "", b->len, NULL, err);
}

/* 1: the stream is whole and consistent. fd < 0: checks only. */
static bool list(const struct cart_buf *b, int fd)
{
    struct cart_err err = {0};
    struct cart_stream_reader *r;
    int e = open_stream(&r, b, &err);
    if (e == 0) {
        e = cart_listing_stream(r, fd, "lines", &err);
        cart_stream_close(r);
    }
    if (e < 0)
        fuzz_refused(e, &err);
    return e == 0;
}

/* The readers of the stages: whatever the stream holds they accept or refuse. */
static void consume(const struct cart_buf *b)
{
    struct cart_err err = {0};
    struct cart_stream_reader *r;
    struct cart_corpus corpus = CART_CORPUS_INIT;
    struct cart_conversation c;
    struct cart_buf again = CART_BUF_INIT;
    struct cart_record rec;
    char digest[33];
    if (open_stream(&r, b, &err) < 0)
        return;
    cart_conversation_init(&c);
    int e = cart_corpus_read(&corpus, r, 300, &rec, &err);
    if (e >= 0)
        fuzz_need(cart_corpus_digest(&corpus, digest, &err), &err);
    for (; e == 1; e = cart_stream_read(r, &rec, &err)) {
        int parsed = cart_conversation_parse(&c, &rec, 300, &corpus, "input", &err);
        if (parsed < 0) {
            fuzz_refused(parsed, &err);
            continue;
        }
        cart_buf_reset(&again);
        fuzz_need(cart_conversation_build(&again, &c, c.has_targets, &err), &err);
    }
    if (e < 0)
        fuzz_refused(e, &err);
    cart_buf_release(&again);
    cart_conversation_release(&c);
    cart_corpus_release(&corpus);
    cart_stream_close(r);
}

/* Lines of a whole stream, packed, are a stream with the same lines. */
static void round_trip(const struct cart_buf *b)
{
    struct cart_err err = {0};
    struct cart_buf lines = CART_BUF_INIT, packed = CART_BUF_INIT, again = CART_BUF_INIT;
    struct cart_jsonl *l;
    const char *record;
    json_t *head;
    fuzz_demand(list(b, fuzz_output(0)), "lines of a stream that was whole");
    fuzz_contents(0, &lines);
    fuzz_need(cart_jsonl_open(&l, fuzz_file(0, lines.data, lines.len), &err), &err);
    fuzz_demand(cart_jsonl_next(l, &head, &record, &err) == 1 && strcmp(record, "head") == 0,
                "a head line");
    fuzz_demand(cart_listing_pack(l, head, fuzz_output(1), "packed", 0, &err) == 0,
                "lines that pack into what they say");
    json_decref(head);
    cart_jsonl_close(l);
    fuzz_contents(1, &packed);
    fuzz_demand(list(&packed, fuzz_output(0)), "a packed stream that is whole");
    fuzz_contents(0, &again);
    fuzz_demand(fuzz_same(&again, &lines), "the same lines");
    cart_buf_release(&again);
    cart_buf_release(&packed);
    cart_buf_release(&lines);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    struct cart_buf b = CART_BUF_INIT;
    if (n > 0 && data[0] == 0x89)
        fuzz_demand(cart_buf_add(&b, data, n, NULL) == 0, "memory");
    else
        seal(&b, data, n);
    if (list(&b, -1))
        round_trip(&b);
    consume(&b);
    cart_buf_release(&b);
    return 0;
}
