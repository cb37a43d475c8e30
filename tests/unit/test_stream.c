/* The record stream: what is written is read back, every truncation and every changed bit is
 * noticed, lying sizes cost no memory, and an unfinished stream goes on where it stopped. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "base/hash.h"
#include "base/io.h"
#include "stream/frame_impl.h"
#include "stream/kinds.h"
#include "base/sniff.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#define SHA256 "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"

/* --- helpers --- */

static json_t *make_head(const char *kind)
{
    json_t *h = json_pack("{s: s, s: [{s: s, s: s, s: {}}], s: {s: s, s: s}, s: i}", "kind", kind,
                          "history", "tool", "test", "version", "1", "options", "model", "geometry",
                          "00", "tokenizer", "11", "seed", 7);

    assert_non_null(h);
    return h;
}

/* A file without a name, at its start. */
static int scratch(void)
{
    FILE *f = tmpfile();

    assert_non_null(f);
    int fd = dup(fileno(f));
    fclose(f);
    return fd;
}

static void payload_of(struct cart_buf *b, int doc, const int32_t *tokens, size_t n)
{
    const struct cart_kind_record *d = cart_kind_record(cart_kind_find("tokens"), "DOC ");
    json_t *fields = json_pack("{s: i, s: s, s: i, s: s, s: f}", "doc", doc, "path", "a/\"b\".txt",
                               "bytes", 9, "sha256", SHA256, "x", 0.1);
    const void *data[] = {tokens};
    struct cart_err err;

    cart_buf_reset(b);
    assert_int_equal(cart_payload_build(b, d, fields, data, &n, &err), 0);
    json_decref(fields);
}

/* A tokens stream of n documents; document i has i * 40 tokens. */
static int sample(int docs, int level)
{
    int fd = scratch();
    struct cart_stream_writer *w;
    struct cart_buf b = CART_BUF_INIT;
    int32_t tokens[400];
    struct cart_err err;
    json_t *head = make_head("tokens");

    for (size_t i = 0; i < CART_COUNTOF(tokens); i++)
        tokens[i] = (int32_t)(i % 7);
    assert_int_equal(cart_stream_create(&w, fd, "sample", head, level, &err), 0);
    for (int i = 0; i < docs; i++) {
        payload_of(&b, i, tokens, (size_t)i * 40);
        assert_int_equal(cart_stream_write(w, "DOC ", b.data, b.len, &err), 0);
    }
    assert_int_equal(cart_stream_finish(w, &err), 0);
    json_decref(head);
    cart_buf_release(&b);
    return fd;
}

static void load(int fd, struct cart_buf *b)
{
    off_t size = lseek(fd, 0, SEEK_END);

    cart_buf_reset(b);
    assert_int_equal(cart_buf_reserve(b, (size_t)size, NULL), 0);
    assert_int_equal(pread(fd, b->data, (size_t)size, 0), size);
    b->len = (size_t)size;
}

/* Reads all of the bytes as a stream from a pipe or file; 0 or the first error. */
static int read_fd(int fd, const char *kind, int *records, struct cart_err *err)
{
    struct cart_stream_reader *r = NULL;
    struct cart_record rec;
    int e;

    *records = 0;
    lseek(fd, 0, SEEK_SET);
    if ((e = cart_stream_open_fd(&r, fd, "sample", kind, err)) < 0)
        return e;
    while ((e = cart_stream_read(r, &rec, err)) == 1) {
        assert_int_equal((uintptr_t)rec.payload % 8, 0);
        ++*records;
    }
    cart_stream_close(r);
    return e;
}

static int read_bytes(const void *p, size_t n, int *records, struct cart_err *err)
{
    static int fd = -1;

    if (fd < 0)
        fd = scratch();
    assert_int_equal(ftruncate(fd, 0), 0);
    assert_int_equal(pwrite(fd, p, n, 0), (ssize_t)n);
    return read_fd(fd, NULL, records, err);
}

/* A record made by hand, with right checksums. */
static void put_record(struct cart_buf *b, const char *type, unsigned flags, uint64_t raw,
                       const void *p, size_t n)
{
    struct cart_frame f = {.flags = flags, .stored = n, .raw = raw, .crc = cart_crc32(p, n)};
    unsigned char head[CART_FRAME_SIZE];

    memcpy(f.type, type, 4);
    cart_frame_encode(head, &f);
    assert_int_equal(cart_buf_add(b, head, sizeof head, NULL), 0);
    assert_int_equal(cart_buf_add(b, p, n, NULL), 0);
}

static void put_start(struct cart_buf *b, const char *head)
{
    cart_buf_reset(b);
    assert_int_equal(cart_buf_add(b, CART_STREAM_MAGIC, 8, NULL), 0);
    put_record(b, "HEAD", 0, strlen(head), head, strlen(head));
}

static void put_end(struct cart_buf *b, uint64_t records, const void *payloads, size_t n)
{
    unsigned char end[32];

    cart_put_u64(end, records);
    cart_put_u64(end + 8, n);
    cart_hash_bytes(payloads, n, end + 16);
    put_record(b, "END ", 0, sizeof end, end, sizeof end);
}

#define HEAD_JSON                                                                                  \
    "{\"history\":[],\"kind\":\"metrics\",\"limits\":{\"record\":1048576},\"version\":[1,0]}"

static void expect_error(const struct cart_buf *b, int code, const char *part)
{
    struct cart_err err = {0};
    int n;

    assert_int_equal(read_bytes(b->data, b->len, &n, &err), code);
    if (strstr(err.msg, part) == NULL)
        fail_msg("'%s' does not say '%s'", err.msg, part);
}

/* --- tests --- */

static void test_round_trip(void **state)
{
    (void)state;
    for (int level = 0; level <= 19; level += 19) {
        int fd = sample(6, level), docs = 0;
        struct cart_stream_reader *r;
        struct cart_record rec;
        struct cart_payload p;
        struct cart_err err;
        unsigned char digest[16];
        struct cart_hash *h = cart_hash_new();

        lseek(fd, 0, SEEK_SET);
        assert_int_equal(cart_stream_open_fd(&r, fd, "s", "tokens", &err), 0);
        assert_string_equal(cart_stream_kind(r), "tokens");
        assert_string_equal(cart_stream_name(r), "s");
        assert_int_equal(json_integer_value(json_object_get(cart_stream_head(r), "seed")), 7);
        while (cart_stream_read(r, &rec, &err) == 1) {
            assert_int_equal(cart_payload_parse(&p, cart_kind_find("tokens"), &rec, "s", &err), 0);
            assert_int_equal(cart_st_find(&p.st, "tokens")->shape[0], docs * 40);
            assert_int_equal(json_integer_value(json_object_get(p.fields, "doc")), docs);
            cart_payload_release(&p);
            cart_hash_add(h, rec.payload, rec.size);
            docs++;
        }
        assert_int_equal(docs, 6);
        assert_int_equal(cart_stream_read(r, &rec, &err), 0);
        unsigned char expected[16];
        cart_stream_digest(r, digest);
        cart_hash_final(h, expected);
        assert_memory_equal(digest, expected, 16);
        cart_hash_free(h);
        cart_stream_close(r);
        close(fd);
    }
}

static void test_compression_saves(void **state)
{
    int plain = sample(9, 0), small = sample(9, 3);

    (void)state;
    assert_true(lseek(small, 0, SEEK_END) < lseek(plain, 0, SEEK_END) * 3 / 4);
    close(plain);
    close(small);
}

static void test_every_truncation(void **state)
{
    struct cart_buf b = CART_BUF_INIT;

    (void)state;
    for (int level = 0; level <= 3; level += 3) {
        int fd = sample(3, level), n;
        struct cart_err err;

        load(fd, &b);
        assert_int_equal(read_bytes(b.data, b.len, &n, &err), 0);
        assert_int_equal(n, 3);
        for (size_t cut = 0; cut < b.len; cut++)
            assert_int_equal(read_bytes(b.data, cut, &n, &err), CART_ETRUNC);
        close(fd);
    }
    cart_buf_release(&b);
}

static void test_every_bit_flip(void **state)
{
    struct cart_buf b = CART_BUF_INIT;

    (void)state;
    for (int level = 0; level <= 3; level += 3) {
        int fd = sample(3, level), n;
        struct cart_err err;

        load(fd, &b);
        for (size_t bit = 0; bit < 8 * b.len; bit++) {
            b.data[bit / 8] = (char)(b.data[bit / 8] ^ 1 << bit % 8);
            int e = read_bytes(b.data, b.len, &n, &err);
            if (e != CART_EFORMAT && e != CART_ETRUNC)
                fail_msg("bit %zu: %d", bit, e);
            b.data[bit / 8] = (char)(b.data[bit / 8] ^ 1 << bit % 8);
        }
        close(fd);
    }
    cart_buf_release(&b);
}

static void test_cat_is_refused(void **state)
{
    struct cart_buf b = CART_BUF_INIT;
    int fd = sample(2, 0);

    (void)state;
    load(fd, &b);
    size_t n = b.len;
    assert_int_equal(cart_buf_reserve(&b, n, NULL), 0);
    memcpy(b.data + n, b.data, n);
    b.len = 2 * n;
    expect_error(&b, CART_EFORMAT, "cart-view --cat");
    b.len = n + 1;
    expect_error(&b, CART_EFORMAT, "bytes follow END");
    cart_buf_release(&b);
    close(fd);
}

static void test_versions_and_kinds(void **state)
{
    struct cart_buf b = CART_BUF_INIT;
    struct cart_err err;
    int n, fd;

    (void)state;
    put_start(&b,
              "{\"history\":[],\"kind\":\"metrics\",\"limits\":{\"record\":9},\"version\":[1,7]}");
    put_end(&b, 0, "", 0);
    assert_int_equal(read_bytes(b.data, b.len, &n, &err), 0);
    put_start(&b, "{\"history\":[],\"kind\":\"new\",\"limits\":{\"record\":9},\"version\":[2,3]}");
    expect_error(&b, CART_EFORMAT, "2.3");
    expect_error(&b, CART_EFORMAT, "1.0");
    put_start(&b, "{\"history\":[],\"kind\":\"new\",\"limits\":{\"record\":9},\"version\":[1,0]}");
    expect_error(&b, CART_EFORMAT, "unknown kind new");
    put_start(&b,
              "{\"history\":[], \"kind\":\"metrics\",\"limits\":{\"record\":9},\"version\":[1,0]}");
    expect_error(&b, CART_EFORMAT, "canonical");
    put_start(&b,
              "{\"history\":{},\"kind\":\"metrics\",\"limits\":{\"record\":9},\"version\":[1,0]}");
    expect_error(&b, CART_EFORMAT, "history");
    put_start(&b, "[]");
    expect_error(&b, CART_EFORMAT, "object");
    fd = sample(1, 0);
    assert_int_equal(read_fd(fd, "targets", &n, &err), CART_EFORMAT);
    assert_non_null(strstr(err.msg, "expected a targets stream, found a tokens stream"));
    close(fd);
    cart_buf_release(&b);
}

static void test_unknown_records(void **state)
{
    struct cart_buf b = CART_BUF_INIT;
    struct cart_stream_reader *r;
    struct cart_record rec;
    struct cart_err err;
    int n, fd = scratch();

    (void)state;
    put_start(&b, HEAD_JSON);
    put_record(&b, "XTRA", CART_FRAME_SKIPPABLE, 3, "abc", 3);
    put_end(&b, 1, "abc", 3);
    assert_int_equal(read_bytes(b.data, b.len, &n, &err), 0);
    assert_int_equal(n, 0);
    assert_int_equal(pwrite(fd, b.data, b.len, 0), (ssize_t)b.len);
    assert_int_equal(cart_stream_open_fd(&r, fd, "s", NULL, &err), 0);
    cart_stream_show_unknown(r);
    assert_int_equal(cart_stream_read(r, &rec, &err), 1);
    assert_true(rec.skippable);
    assert_memory_equal(rec.payload, "abc", 3);
    assert_int_equal(cart_stream_read(r, &rec, &err), 0);
    cart_stream_close(r);
    close(fd);

    put_start(&b, HEAD_JSON);
    put_record(&b, "XTRA", 0, 3, "abc", 3);
    expect_error(&b, CART_EFORMAT, "unknown record type");
    put_start(&b, HEAD_JSON);
    put_record(&b, "METR", CART_FRAME_SKIPPABLE, 3, "abc", 3);
    expect_error(&b, CART_EFORMAT, "must not be skippable");
    put_start(&b, HEAD_JSON);
    put_record(&b, "METR", 4, 3, "abc", 3);
    expect_error(&b, CART_EFORMAT, "reserved bits");
    put_start(&b, HEAD_JSON);
    put_record(&b, "METR", 0x10000, 3, "abc", 3);
    expect_error(&b, CART_EFORMAT, "reserved bits");
    put_start(&b, HEAD_JSON);
    put_record(&b, "me\x01r", 0, 3, "abc", 3);
    expect_error(&b, CART_EFORMAT, "a type is");
    put_start(&b, HEAD_JSON);
    put_record(&b, "HEAD", 0, strlen(HEAD_JSON), HEAD_JSON, strlen(HEAD_JSON));
    expect_error(&b, CART_EFORMAT, "second HEAD");
    cart_buf_release(&b);
}

static void test_end_must_agree(void **state)
{
    struct cart_buf b = CART_BUF_INIT;

    (void)state;
    put_start(&b, HEAD_JSON);
    put_record(&b, "METR", 0, 3, "abc", 3);
    put_end(&b, 2, "abc", 3);
    expect_error(&b, CART_EFORMAT, "END: expected 2 records of 3 bytes, found 1 of 3");
    for (uint64_t bytes = 2; bytes <= 4; bytes += 2) {
        unsigned char end[32];
        char part[80];
        put_start(&b, HEAD_JSON);
        put_record(&b, "METR", 0, 3, "abc", 3);
        cart_put_u64(end, 1);
        cart_put_u64(end + 8, bytes);
        cart_hash_bytes("abc", 3, end + 16);
        put_record(&b, "END ", 0, sizeof end, end, sizeof end);
        snprintf(part, sizeof part, "END: expected 1 records of %d bytes, found 1 of 3",
                 (int)bytes);
        expect_error(&b, CART_EFORMAT, part);
    }
    put_start(&b, HEAD_JSON);
    put_record(&b, "METR", 0, 3, "abc", 3);
    put_end(&b, 1, "abd", 3);
    expect_error(&b, CART_EFORMAT, "END: its digest");
    put_start(&b, HEAD_JSON);
    put_record(&b, "END ", 0, 3, "abc", 3);
    expect_error(&b, CART_EFORMAT, "END: expected 32 bytes, found 3");
    put_start(&b, HEAD_JSON);
    put_record(&b, "END ", CART_FRAME_SKIPPABLE, 32, HEAD_JSON, 32);
    expect_error(&b, CART_EFORMAT, "no flags");
    cart_buf_release(&b);
}

/* A zstd frame made by hand: n times one byte in blocks of at most 128 KiB, for which it asks for a
 * window of 2^log bytes. */
static void put_zstd(struct cart_buf *b, int log, size_t n)
{
    unsigned char head[] = {0x28, 0xb5, 0x2f, 0xfd, 0, (unsigned char)((log - 10) << 3)};

    assert_int_equal(cart_buf_add(b, head, sizeof head, NULL), 0);
    while (n > 0) {
        size_t some = n < (size_t)1 << 17 ? n : (size_t)1 << 17;
        size_t block = some << 3 | 1 << 1 | (n == some);
        unsigned char bytes[] = {(unsigned char)block, (unsigned char)(block >> 8),
                                 (unsigned char)(block >> 16), 'a'};
        assert_int_equal(cart_buf_add(b, bytes, sizeof bytes, NULL), 0);
        n -= some;
    }
}

/* A stream whose one record says raw bytes, of which its frame has n, with more bytes behind the
 * frame. */
static void put_compressed(struct cart_buf *b, int log, size_t n, size_t raw, size_t more)
{
    struct cart_buf z = CART_BUF_INIT, plain = CART_BUF_INIT;

    put_start(b, "{\"history\":[],\"kind\":\"metrics\",\"limits\":{\"record\":1073741824},"
                 "\"version\":[1,0]}");
    put_zstd(&z, log, n);
    assert_int_equal(cart_buf_add(&z, "behind", more, NULL), 0);
    put_record(b, "METR", CART_FRAME_ZSTD, raw, z.data, z.len);
    assert_int_equal(cart_buf_reserve(&plain, raw, NULL), 0);
    memset(plain.data, 'a', raw);
    put_end(b, 1, plain.data, raw);
    cart_buf_release(&z);
    cart_buf_release(&plain);
}

static void test_compressed_frames(void **state)
{
    struct cart_buf b = CART_BUF_INIT;
    struct cart_err err;
    int n;

    (void)state;
    put_compressed(&b, 17, 100, 100, 0);
    assert_int_equal(read_bytes(b.data, b.len, &n, &err), 0);
    put_compressed(&b, 17, 100, 100, 1);
    expect_error(&b, CART_EFORMAT, "do not hold what its head says");
    put_compressed(&b, 17, 99, 100, 0);
    expect_error(&b, CART_EFORMAT, "do not hold what its head says");
    put_compressed(&b, 17, 101, 100, 0);
    expect_error(&b, CART_EFORMAT, "do not hold what its head says");
    /* Memory is not asked for that the record would not need. */
    put_compressed(&b, 23, 100, 100, 0);
    assert_int_equal(read_bytes(b.data, b.len, &n, &err), 0);
    put_compressed(&b, 24, 100, 100, 0);
    expect_error(&b, CART_EFORMAT, "too much memory");
    put_compressed(&b, 24, (size_t)9 << 20, (size_t)9 << 20, 0);
    assert_int_equal(read_bytes(b.data, b.len, &n, &err), 0);
    put_compressed(&b, 25, (size_t)9 << 20, (size_t)9 << 20, 0);
    expect_error(&b, CART_EFORMAT, "too much memory");
    cart_buf_release(&b);
}

/* HEAD has its own limit. */
static void test_longest_head(void **state)
{
    static const char start[] = "{\"a\":\"",
                      rest[] = "\",\"history\":[],\"kind\":\"metrics\",\"limits\":"
                               "{\"record\":9},\"version\":[1,0]}";
    struct cart_buf b = CART_BUF_INIT, head = CART_BUF_INIT;
    struct cart_err err;
    int n;

    (void)state;
    for (size_t more = 0; more < 2; more++) {
        size_t fill = CART_STREAM_MAX_HEAD + more - (sizeof start - 1) - (sizeof rest - 1);
        cart_buf_reset(&head);
        assert_int_equal(cart_buf_add(&head, start, sizeof start - 1, NULL), 0);
        assert_int_equal(cart_buf_reserve(&head, fill, NULL), 0);
        memset(head.data + head.len, 'x', fill);
        head.len += fill;
        assert_int_equal(cart_buf_add(&head, rest, sizeof rest - 1, NULL), 0);
        put_start(&b, head.data);
        put_end(&b, 0, "", 0);
        if (more == 0)
            assert_int_equal(read_bytes(b.data, b.len, &n, &err), 0);
        else
            expect_error(&b, CART_EFORMAT, "expected at most 4194304 bytes, found 4194305");
    }
    cart_buf_release(&head);
    cart_buf_release(&b);
}

/* Heads that promise far more than follows, with right checksums: refused, and without the memory
 * they ask for. */
static void test_lying_sizes(void **state)
{
    struct cart_buf b = CART_BUF_INIT;
    struct cart_frame f = {.type = "METR"};
    unsigned char head[CART_FRAME_SIZE];
    struct rlimit old, tight;
    int n;
    struct cart_err err;

    (void)state;
    put_start(&b, HEAD_JSON);
    put_record(&b, "METR", 0, 1048577, "abc", 3);
    expect_error(&b, CART_EFORMAT, "at most 1048576 bytes, found 1048577");
    put_start(&b, HEAD_JSON);
    put_record(&b, "METR", 0, UINT64_MAX, "abc", 3);
    expect_error(&b, CART_EFORMAT, "at most 1048576 bytes");
    put_start(&b, HEAD_JSON);
    put_record(&b, "METR", 0, 4, "abc", 3);
    expect_error(&b, CART_EFORMAT, "two sizes disagree");
    put_start(&b, HEAD_JSON);
    put_record(&b, "METR", CART_FRAME_ZSTD, 3, "abc", 3);
    expect_error(&b, CART_EFORMAT, "two sizes disagree");
    put_start(&b, HEAD_JSON);
    put_record(&b, "METR", CART_FRAME_ZSTD, 1000, "abc", 3);
    expect_error(&b, CART_EFORMAT, "METR");

    put_start(&b, "{\"history\":[],\"kind\":\"metrics\",\"limits\":{\"record\":1073741824},"
                  "\"version\":[1,0]}");
    f.raw = f.stored = (uint64_t)1 << 30;
    cart_frame_encode(head, &f);
    assert_int_equal(cart_buf_add(&b, head, sizeof head, NULL), 0);
    /* Sanitizers map terabytes of their own: the limit would stop them, not us. */
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
    assert_int_equal(getrlimit(RLIMIT_AS, &old), 0);
    tight = old;
    tight.rlim_cur = (rlim_t)256 << 20;
    assert_int_equal(setrlimit(RLIMIT_AS, &tight), 0);
#else
    (void)old;
    (void)tight;
#endif
    assert_int_equal(read_bytes(b.data, b.len, &n, &err), CART_ETRUNC);
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
    assert_int_equal(setrlimit(RLIMIT_AS, &old), 0);
#endif
    put_start(&b, "{\"history\":[],\"kind\":\"metrics\",\"limits\":{\"record\":1073741825},"
                  "\"version\":[1,0]}");
    expect_error(&b, CART_EFORMAT, "1073741824");
    cart_buf_release(&b);
}

static void test_foreign_formats(void **state)
{
    static const struct {
        const char *bytes;
        size_t n;
        const char *says;
    } cases[] = {
        {"", 0, "found nothing"},
        {"GGUF\3\0\0\0\0\0\0\0", 12, "a GGUF file"},
        {"\x02\0\0\0\0\0\0\0{}", 10, "a safetensors file"},
        {"{\"record\":\"head\"}", 17, "--pack"},
        {"\x1f\x8b\x08\0", 4, "gzip"},
        {"\x28\xb5\x2f\xfd\0", 5, "zstd"},
        {"PK\3\4aaaa", 8, "zip"},
        {"version https://git-lfs.github.com/spec/v1\n", 43, "Git LFS"},
        {"<!DOCTYPE html>", 15, "HTML"},
        {"hello\n", 6, "plain text"},
        {"\211CART\n\032\n\0\0\0", 11, "text mode"},
        {"\1\2\3\4\5", 5, "unknown format"},
    };
    struct cart_err err;
    int n;

    (void)state;
    for (size_t i = 0; i < CART_COUNTOF(cases); i++) {
        assert_true(read_bytes(cases[i].bytes, cases[i].n, &n, &err) < 0);
        assert_int_equal(cart_err_status(err.code), 3);
        if (strstr(err.msg, cases[i].says) == NULL)
            fail_msg("'%s' does not say '%s'", err.msg, cases[i].says);
    }
}

static void test_writer_refuses(void **state)
{
    struct cart_stream_writer *w;
    struct cart_err err;
    int fd = scratch();
    json_t *head = make_head("metrics"), *bad = make_head("nonsense");

    (void)state;
    assert_int_equal(cart_stream_create(&w, fd, "s", bad, 0, &err), CART_EUSAGE);
    json_object_set_new(bad, "kind", json_string("metrics"));
    json_object_set_new(bad, "version", json_string("x"));
    assert_int_equal(cart_stream_create(&w, fd, "s", bad, 0, &err), CART_EUSAGE);
    json_object_del(bad, "version");
    json_object_set_new(bad, "limits", json_pack("{s: i}", "record", 8));
    assert_int_equal(cart_stream_create(&w, fd, "s", bad, 0, &err), 0);
    assert_int_equal(cart_stream_write(w, "METR", "123456789", 9, &err), CART_EFORMAT);
    assert_int_equal(cart_stream_write(w, "METR", "12345678", 8, &err), 0);
    assert_int_equal(cart_stream_write(w, "DOC ", "1", 1, &err), CART_EUSAGE);
    cart_stream_abandon(w);
    assert_int_equal(cart_stream_create(&w, fd, "s", head, 99, &err), 0);
    cart_stream_abandon(w);
    json_decref(head);
    json_decref(bad);
    close(fd);
}

static int count_records(void *ctx, const struct cart_record *rec, struct cart_err *err)
{
    (void)err;
    assert_string_equal(rec->type, "DOC ");
    ++*(int *)ctx;
    return 0;
}

/* From every place at which a writer may have died, going on gives the bytes of one that never did.
 */
static void test_resume_from_anywhere(void **state)
{
    struct cart_buf whole = CART_BUF_INIT, again = CART_BUF_INIT, b = CART_BUF_INIT;
    int32_t tokens[400];
    int fd = sample(4, 0);
    json_t *head = make_head("tokens"), *other = make_head("tokens");
    struct cart_stream_writer *w;
    struct cart_err err;

    (void)state;
    for (size_t i = 0; i < CART_COUNTOF(tokens); i++)
        tokens[i] = (int32_t)(i % 7);
    load(fd, &whole);
    json_object_set_new(other, "seed", json_integer(8));
    for (size_t cut = 0; cut <= whole.len; cut++) {
        int n = 0;
        assert_int_equal(ftruncate(fd, 0), 0);
        assert_int_equal(pwrite(fd, whole.data, cut, 0), (ssize_t)cut);
        if (cut == whole.len / 2) {
            int r = cart_stream_resume(&w, fd, "s", other, 0, NULL, NULL, &err);
            assert_int_equal(r, CART_EMATCH);
            assert_int_equal(lseek(fd, 0, SEEK_END), cut);
        }
        assert_int_equal(cart_stream_resume(&w, fd, "s", head, 0, count_records, &n, &err), 0);
        for (; n < 4; n++) {
            payload_of(&b, n, tokens, (size_t)n * 40);
            assert_int_equal(cart_stream_write(w, "DOC ", b.data, b.len, &err), 0);
        }
        assert_int_equal(cart_stream_finish(w, &err), 0);
        load(fd, &again);
        assert_int_equal(again.len, whole.len);
        assert_memory_equal(again.data, whole.data, whole.len);
    }
    /* Not ours to overwrite. */
    assert_int_equal(ftruncate(fd, 0), 0);
    assert_int_equal(pwrite(fd, "GGUF....", 8, 0), 8);
    assert_int_equal(cart_stream_resume(&w, fd, "s", head, 0, NULL, NULL, &err), CART_EFORMAT);
    assert_int_equal(lseek(fd, 0, SEEK_END), 8);
    json_decref(head);
    json_decref(other);
    cart_buf_release(&whole);
    cart_buf_release(&again);
    cart_buf_release(&b);
    close(fd);
}

static void test_history(void **state)
{
    json_t *head = make_head("tokens");
    json_t *options = json_pack("{s: i}", "k", 3), *extra = json_pack("{s: i}", "seed", 5);
    struct cart_err err;
    json_t *h = cart_history_extend(head, "cart-test", options, extra, &err);

    (void)state;
    assert_int_equal(json_array_size(h), 2);
    assert_int_equal(json_array_size(json_object_get(head, "history")), 1);
    json_t *e = json_array_get(h, 1);
    assert_string_equal(json_string_value(json_object_get(e, "tool")), "cart-test");
    assert_int_equal(json_integer_value(json_object_get(e, "seed")), 5);
    assert_true(json_equal(json_object_get(e, "options"), options));
    assert_true(json_is_string(json_object_get(e, "version")));
    json_decref(h);
    h = cart_history_extend(NULL, "cart-test", options, NULL, &err);
    assert_int_equal(json_array_size(h), 1);
    json_decref(h);
    json_object_set_new(head, "history", json_integer(1));
    assert_null(cart_history_extend(head, "cart-test", options, NULL, &err));
    assert_int_equal(err.code, CART_EFORMAT);
    json_decref(head);
    json_decref(options);
    json_decref(extra);
}

/* A slow pipe that delivers a byte at a time is the same stream. */
static void test_pipe(void **state)
{
    struct cart_buf b = CART_BUF_INIT;
    int fd = sample(3, 3), ends[2], n;
    struct cart_err err;

    (void)state;
    load(fd, &b);
    assert_true(b.len < 60000);
    assert_int_equal(pipe(ends), 0);
    for (size_t i = 0; i < b.len; i++)
        assert_int_equal(write(ends[1], b.data + i, 1), 1);
    close(ends[1]);
    assert_int_equal(read_fd(ends[0], "tokens", &n, &err), 0);
    assert_int_equal(n, 3);
    close(ends[0]);
    close(fd);
    cart_buf_release(&b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_round_trip),        cmocka_unit_test(test_compression_saves),
        cmocka_unit_test(test_every_truncation),  cmocka_unit_test(test_every_bit_flip),
        cmocka_unit_test(test_cat_is_refused),    cmocka_unit_test(test_versions_and_kinds),
        cmocka_unit_test(test_unknown_records),   cmocka_unit_test(test_end_must_agree),
        cmocka_unit_test(test_lying_sizes),       cmocka_unit_test(test_foreign_formats),
        cmocka_unit_test(test_writer_refuses),    cmocka_unit_test(test_resume_from_anywhere),
        cmocka_unit_test(test_history),           cmocka_unit_test(test_pipe),
        cmocka_unit_test(test_compressed_frames), cmocka_unit_test(test_longest_head),
    };

    cmocka_set_message_output(CM_OUTPUT_TAP);
    return cmocka_run_group_tests_name("stream", tests, NULL, NULL);
}
