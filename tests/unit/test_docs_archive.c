/* Documents out of archives and compressed files: whole, nested, damaged and cut off. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "format/docs.h"
#include "helper/documents_impl.h"

#include <archive.h>
#include <archive_entry.h>
#include <zstd.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

/* --- archives --- */

/* All of a file of fewer than cap bytes. */
static size_t docs_slurp(const char *path, char *bytes, size_t cap)
{
    FILE *f = fopen(path, "rb");
    assert_non_null(f);
    size_t n = fread(bytes, 1, cap, f);
    assert_true(n < cap);
    fclose(f);
    return n;
}

static void test_archive_formats(void **state)
{
    static const struct {
        const char *name;
        enum packing packing;
    } kinds[] = {{"k.tar", PACK_TAR},
                 {"k.tar.gz", PACK_TAR_GZ},
                 {"k.tar.zst", PACK_TAR_ZST},
                 {"k.zip", PACK_ZIP}};
    static const struct {
        const char *name;
        enum packing packing;
    } singles[] = {{"s.gz", PACK_GZ}, {"s.xz", PACK_XZ}, {"s.zst", PACK_ZST}, {"s.bz2", PACK_BZ2}};
    char expected[1024];

    (void)state;
    for (size_t i = 0; i < CART_COUNTOF(kinds); i++) {
        struct archive *a = docs_pack_open(kinds[i].name, kinds[i].packing);
        docs_pack_text(a, "z.txt", "first");
        docs_pack_text(a, "dir/a.txt", "second");
        docs_pack_text(a, "dir/.git/x", "never");
        docs_pack_text(a, "data.jsonl", "{\"text\":\"line\"}\n");
        docs_pack_text(a, "last", "caf\xc3\xa9");
        docs_pack_close(a);
        const char *k = kinds[i].name;
        snprintf(expected, sizeof expected,
                 "%s/z.txt=first\n%s/dir/a.txt=second\n!hidden %s/dir/.git/x: hidden\n"
                 "%s/data.jsonl:1=line\n%s/last=caf\xc3\xa9\n",
                 k, k, k, k, k);
        docs_expect(k, docs_plain, expected);
    }
    for (size_t i = 0; i < CART_COUNTOF(singles); i++) {
        struct archive *a = docs_pack_open(singles[i].name, singles[i].packing);
        docs_pack_text(a, "x", "content of one file");
        docs_pack_close(a);
        snprintf(expected, sizeof expected, "%s=content of one file\n", singles[i].name);
        docs_expect(singles[i].name, docs_plain, expected);
    }
}

/* Formats whose reader takes memory by what a header claims are not read. */
static void test_archives_not_read(void **state)
{
    static const struct {
        const char *name;
        enum packing packing;
        const char *expected;
    } kinds[] = {{"k.7z", PACK_SEVEN, "!to be converted to text first k.7z: 7z: unpack it first\n"},
                 {"k.cpio", PACK_CPIO, "!binary k.cpio: binary: byte 111 is NUL\n"},
                 {"k.cpio.gz", PACK_CPIO_GZ, "!binary k.cpio.gz: binary: byte 111 is NUL\n"}};

    (void)state;
    for (size_t i = 0; i < CART_COUNTOF(kinds); i++) {
        struct archive *a = docs_pack_open(kinds[i].name, kinds[i].packing);
        docs_pack_text(a, "a", "first");
        docs_pack_close(a);
        docs_expect(kinds[i].name, docs_plain, kinds[i].expected);
    }
    static const struct {
        const char *bytes, *kind;
    } magics[] = {
        {"!<arch>\nfoo/            0           0     0     644     4         `\nabcd", "ar"},
        {"\x04\x22\x4d\x18 text", "lz4"},
        {"LZIP\x01 text", "lzip"},
        {"\x1f\x9d\x90 text", "compress"}};
    for (size_t i = 0; i < CART_COUNTOF(magics); i++) {
        char expected[100];
        docs_write_text("k", magics[i].bytes);
        snprintf(expected, sizeof expected,
                 "!to be converted to text first k: %s: unpack it first\n", magics[i].kind);
        docs_expect("k", docs_plain, expected);
    }
}

static void test_archive_names(void **state)
{
    struct archive *a = docs_pack_open("n.tar", PACK_TAR);

    (void)state;
    docs_pack_text(a, "../escape", "up");
    docs_pack_text(a, "/etc/passwd", "root");
    docs_pack_text(a, "./dot", "here");
    docs_pack_text(a, "bell\x07\n\x1b[31m", "loud");
    docs_pack_text(a, "\xc3\xa9t\xc3\xa9", "summer");
    docs_pack_member(a, "link", AE_IFLNK, "", 0, 0);
    docs_pack_member(a, "device", AE_IFIFO, "", 0, 0);
    docs_pack_member(a, "folder", AE_IFDIR, "", 0, 0);
    docs_pack_close(a);
    docs_expect("n.tar", docs_plain,
                "n.tar/../escape=up\nn.tar//etc/passwd=root\nn.tar/dot=here\n"
                "n.tar/bell\\x07\\x0a\\x1b[31m=loud\nn.tar/\xc3\xa9t\xc3\xa9=summer\n"
                "!linked n.tar/link: no regular member\n"
                "!no regular file n.tar/device: no regular member\n");
    assert_int_equal(access("../escape", F_OK), -1);
    assert_int_equal(access("dot", F_OK), -1);
}

static void test_archive_nested_and_locked(void **state)
{
    char inner[4096];

    (void)state;
    struct archive *a = docs_pack_open("inner.zip", PACK_ZIP);
    docs_pack_text(a, "deep", "deep");
    docs_pack_close(a);
    FILE *f = fopen("inner.zip", "rb");
    assert_non_null(f);
    size_t n = fread(inner, 1, sizeof inner, f);
    fclose(f);
    a = docs_pack_open("outer.tar", PACK_TAR);
    docs_pack_member(a, "inner.zip", AE_IFREG, inner, n, 1);
    docs_pack_text(a, "after", "still read");
    docs_pack_close(a);
    docs_expect(
        "outer.tar", docs_plain,
        "!nested outer.tar/inner.zip: an archive or compressed file inside another: unpack it "
        "first\nouter.tar/after=still read\n");
    a = docs_pack_open("locked.zip", PACK_ZIP_LOCKED);
    docs_pack_text(a, "secret.txt", "hush");
    docs_pack_close(a);
    docs_expect("locked.zip", docs_plain,
                "!encrypted locked.zip/secret.txt: encrypted: unpack it first\n");
}

static void test_archive_bombs(void **state)
{
    enum { MIB = 1 << 20 };
    static const char *const names[] = {"b.zip", "b.gz", "b.tar.gz"};
    static const enum packing packings[] = {PACK_ZIP, PACK_GZ, PACK_TAR_GZ};
    char *zeros = calloc(1, MIB);

    (void)state;
    assert_non_null(zeros);
    memset(zeros, 'z', MIB);
    for (size_t i = 0; i < CART_COUNTOF(names); i++) {
        struct archive *a = docs_pack_open(names[i], packings[i]);
        docs_pack_member(a, "zeros", AE_IFREG, zeros, MIB, 40);
        docs_pack_close(a);
        struct stat st;
        char message[160];
        assert_int_equal(stat(names[i], &st), 0);
        snprintf(message, sizeof message,
                 "%s: archive: expected to unpack to at most 200 times its %lld bytes, found more",
                 names[i], (long long)st.st_size);
        docs_expect_error(names[i], docs_plain, CART_EFORMAT, message);
        struct cart_docs_options o = {.max_ratio = 2000, .max_archive = 4096};
        snprintf(message, sizeof message,
                 "%s: archive: expected to unpack to at most 4096 bytes, found more", names[i]);
        docs_expect_error(names[i], o, CART_EFORMAT, message);
    }
    /* A member beyond the cap is passed over, but not unpacked uncounted behind a compressor. */
    struct cart_docs_options small = {.max_document = MIB};
    struct stat st;
    char message[160];
    assert_int_equal(stat("b.tar.gz", &st), 0);
    snprintf(
        message, sizeof message,
        "b.tar.gz: archive: expected to unpack to at most 200 times its %lld bytes, found more",
        (long long)st.st_size);
    docs_expect_error("b.tar.gz", small, CART_EFORMAT, message);
    struct archive *a = docs_pack_open("many.tar", PACK_TAR);
    for (int i = 0; i < 4; i++)
        docs_pack_text(a, "m", "x");
    docs_pack_close(a);
    struct cart_docs_options few = {.max_members = 3};
    docs_expect_error("many.tar", few, CART_EFORMAT,
                      "many.tar: archive: expected at most 3 members, found more");
    free(zeros);
}

/* Whether each line of what was read is one of whole, or says what was passed over. */
static bool within(const char *whole, char *found)
{
    for (char *line = strtok(found, "\n"); line; line = strtok(NULL, "\n"))
        if (line[0] != '!' && !strstr(whole, line))
            return false;
    return true;
}

/* Every bit of bytes first to end - 1 of path flipped, one after another: it is refused, or what is
 * read is what the whole file holds; but for what is passed over and said, where a format has a
 * place without a checksum for that. Returns how many were refused. */
static size_t flip_bits(const char *path, size_t first, size_t end, bool passes_over)
{
    static char bytes[32768];
    struct cart_buf whole = CART_BUF_INIT, b = CART_BUF_INIT;
    struct cart_err err;
    size_t n = docs_slurp(path, bytes, sizeof bytes), refused = 0;

    assert_int_equal(docs_run(&whole, &path, 1, docs_plain, NULL, &err), 0);
    assert_non_null(strchr(whole.data, '='));
    for (size_t bit = 8 * first; bit < 8 * (end < n ? end : n); bit++) {
        bytes[bit / 8] ^= (char)(1 << bit % 8);
        docs_write_bytes(path, bytes, n);
        bytes[bit / 8] ^= (char)(1 << bit % 8);
        cart_buf_reset(&b);
        int r = docs_run(&b, &path, 1, docs_plain, NULL, &err);
        refused += r == CART_EFORMAT;
        if (r == CART_EFORMAT || (r == 0 && b.data && strcmp(b.data, whole.data) == 0))
            continue;
        if (r != 0 || !passes_over || !b.data || !within(whole.data, b.data))
            fail_msg("%s: bit %zu of byte %zu: status %d, %s", path, bit % 8, bit / 8, r,
                     b.data ? b.data : "nothing");
    }
    docs_write_bytes(path, bytes, n);
    cart_buf_release(&whole);
    cart_buf_release(&b);
    return refused;
}

/* zstd writes a checksum unless it is told not to; libarchive never does. */
static void write_zst(const char *path, const char *text)
{
    char bytes[512];
    ZSTD_CCtx *c = ZSTD_createCCtx();

    assert_non_null(c);
    ZSTD_CCtx_setParameter(c, ZSTD_c_checksumFlag, 1);
    size_t n = ZSTD_compress2(c, bytes, sizeof bytes, text, strlen(text));
    assert_false(ZSTD_isError(n));
    ZSTD_freeCCtx(c);
    docs_write_bytes(path, bytes, n);
}

static const char of_two[] = "the first of two, the first of two texts";

static void test_archive_bit_flips(void **state)
{
    static const struct {
        const char *name;
        enum packing packing;
        size_t refused; /* at least: of a gzip header, say, hardly any bit matters */
    } kinds[] = {{"f.gz", PACK_GZ, 300}, {"f.tar.gz", PACK_TAR_GZ, 1000}, {"f.bz2", PACK_BZ2, 450},
                 {"f.xz", PACK_XZ, 700}, {"f.zip", PACK_ZIP, 1500},       {"f.tar", PACK_TAR, 0}};

    (void)state;
    for (size_t i = 0; i < CART_COUNTOF(kinds); i++) {
        struct archive *a = docs_pack_open(kinds[i].name, kinds[i].packing);
        docs_pack_text(a, "one.txt", of_two);
        if (kinds[i].packing == PACK_TAR || kinds[i].packing == PACK_TAR_GZ ||
            kinds[i].packing == PACK_ZIP)
            docs_pack_text(a, "two.txt", "the second");
        docs_pack_close(a);
        if (kinds[i].packing != PACK_TAR)
            assert_true(flip_bits(kinds[i].name, 0, SIZE_MAX, kinds[i].packing == PACK_ZIP) >
                        kinds[i].refused);
    }
    /* Of a tar the headers and what ends it have checksums; texts have none. */
    assert_true(flip_bits("f.tar", 0, 512, false) > 4000);
    assert_true(flip_bits("f.tar", 1024, 1536, false) > 4000);
    assert_true(flip_bits("f.tar", 2048, 2560, false) > 4000);
    write_zst("f.zst", of_two);
    assert_true(flip_bits("f.zst", 0, SIZE_MAX, false) > 300);
}

/* A file of two compressed ones, one after the other. */
static void join_files(const char *path, const char *a, const char *b, size_t more)
{
    char bytes[8192] = "";
    size_t n = docs_slurp(a, bytes, sizeof bytes);

    n += docs_slurp(b, bytes + n, sizeof bytes - n);
    docs_write_bytes(path, bytes, n + more); /* the rest is zero */
}

static void test_compressed_ends(void **state)
{
    static const struct {
        const char *name;
        enum packing packing;
    } kinds[] = {{"a.gz", PACK_GZ}, {"a.bz2", PACK_BZ2}, {"a.xz", PACK_XZ}, {"a.zst", PACK_ZST}};
    char bytes[8192], transcript[200];

    (void)state;
    for (size_t i = 0; i < CART_COUNTOF(kinds); i++) {
        const char *name = kinds[i].name;
        struct archive *a = docs_pack_open(name, kinds[i].packing);
        docs_pack_text(a, "a", "one and ");
        docs_pack_close(a);
        size_t n = docs_slurp(name, bytes, sizeof bytes);
        join_files(name, name, name, 0);
        snprintf(transcript, sizeof transcript, "%s=one and one and \n", name);
        docs_expect(name, docs_plain, transcript);
        /* The second cut off anywhere, from its first byte on; and something else in its place. */
        for (size_t cut = n + 1; cut < 2 * n; cut++) {
            struct cart_buf b = CART_BUF_INIT;
            struct cart_err err = {0};
            memcpy(bytes + n, bytes, n);
            docs_write_bytes(name, bytes, cut);
            assert_int_equal(docs_run(&b, &name, 1, docs_plain, NULL, &err), CART_EFORMAT);
            bytes[n] ^= 1;
            docs_write_bytes(name, bytes, 2 * n);
            assert_int_equal(docs_run(&b, &name, 1, docs_plain, NULL, &err), CART_EFORMAT);
            cart_buf_release(&b);
        }
        /* Compressed again, it is one inside another, not opened however alike the two are. */
        docs_write_bytes("inner", bytes, n);
        a = docs_pack_open(name, kinds[i].packing);
        docs_pack_member(a, "a", AE_IFREG, bytes, n, 1);
        docs_pack_close(a);
        snprintf(transcript, sizeof transcript,
                 "!nested %s: an archive or compressed file inside another: unpack it first\n",
                 name);
        docs_expect(name, docs_plain, transcript);
    }
    struct archive *a = docs_pack_open("z.gz", PACK_GZ);
    docs_pack_text(a, "a", "padded");
    docs_pack_close(a);
    docs_write_bytes("none", "", 0);
    join_files("z.gz", "z.gz", "none", 600);
    docs_expect("z.gz", docs_plain, "z.gz=padded\n");
    /* Behind zeros there is nothing, be it another whole member. */
    size_t n = docs_slurp("z.gz", bytes, sizeof bytes), member = n - 600;
    memcpy(bytes + n, bytes, member);
    docs_write_bytes("z.gz", bytes, n + member);
    struct cart_buf b = CART_BUF_INIT;
    struct cart_err err = {0};
    const char *name = "z.gz";
    assert_int_equal(docs_run(&b, &name, 1, docs_plain, NULL, &err), CART_EFORMAT);
    assert_non_null(strstr(err.msg, "more than zeros after the end"));
    cart_buf_release(&b);
}

static void test_archive_cut(void **state)
{
    static const char *const names[] = {"c.tar", "c.tar.gz", "c.zip", "c.tgz"};
    static const enum packing packings[] = {PACK_TAR, PACK_TAR_GZ, PACK_ZIP, PACK_TAR_GZ};
    static char bytes[16384];

    (void)state;
    docs_write_text("beside", "another document");
    for (size_t i = 0; i < CART_COUNTOF(names); i++) {
        const char *inputs[] = {"beside", names[i]};
        struct archive *a = docs_pack_open(names[i], packings[i]);
        docs_pack_text(a, "one", "the first text");
        docs_pack_text(a, "two", "the second text");
        docs_pack_close(a);
        size_t n = docs_slurp(names[i], bytes, sizeof bytes),
               last = packings[i] == PACK_TAR ? 2048 : n;
        /* Between two members too, where a tar without its end looks whole. */
        for (size_t cut = 1; cut < last; cut += cut < 40 ? 1 : 8) {
            struct cart_buf b = CART_BUF_INIT;
            struct cart_err err = {0};
            docs_write_bytes(names[i], bytes, cut);
            int r = docs_run(&b, inputs, 2, docs_plain, NULL, &err);
            if (r != CART_EFORMAT || strncmp(err.msg, names[i], strlen(names[i])) != 0)
                fail_msg("%s cut to %zu of %zu bytes: status %d, %s", names[i], cut, n, r,
                         b.data ? b.data : "");
            cart_buf_release(&b);
        }
    }
    struct archive *a = docs_pack_open("c.tar", PACK_TAR);
    docs_pack_text(a, "one", "the first text");
    docs_pack_close(a);
    docs_write_bytes("c.tar", bytes, 0);
    docs_expect("c.tar", docs_plain, "!empty c.tar: it is empty\n");
    docs_write_text("c.zip", "PK");
    docs_expect_error(
        "c.zip", docs_plain, CART_EFORMAT,
        "c.zip: archive: expected what its name says, found the beginning of none: cut off "
        "or damaged");
}

/* bytes [n] as a tar and as what is in a t.gz, refused with words. */
static void expect_no_tar(const char *bytes, size_t n, const char *words)
{
    char message[200];

    docs_write_bytes("t.tar", bytes, n);
    snprintf(message, sizeof message, "t.tar: archive: %s", words);
    docs_expect_error("t.tar", docs_plain, CART_EFORMAT, message);
    struct archive *a = docs_pack_open("t.tar.gz", PACK_GZ);
    docs_pack_member(a, "t.tar", AE_IFREG, bytes, n, 1);
    docs_pack_close(a);
    snprintf(message, sizeof message, "t.tar.gz: archive: %s", words);
    docs_expect_error("t.tar.gz", docs_plain, CART_EFORMAT, message);
}

/* Nothing is lost behind what looks like the end of a tar. */
static void test_tar_ends(void **state)
{
    enum { FAR = 300 << 10 };
    static const char more[] =
        "expected nothing but zeros after the first block of them, which ends a tar, found more";
    static char bytes[FAR + 16384], text[100 << 10];

    (void)state;
    memset(text, 'a', sizeof text);
    struct archive *a = docs_pack_open("t.tar", PACK_TAR);
    docs_pack_member(a, "one", AE_IFREG, text, sizeof text, 1);
    docs_pack_text(a, "two", "the second text");
    docs_pack_close(a);
    size_t n = docs_slurp("t.tar", bytes, sizeof bytes), second = 512 + sizeof text,
           end = second + 1024;
    /* Zeros may follow, as many as there are; nothing else, however far behind. The long member is
     * passed over with a seek. */
    struct cart_docs_options small = {.max_document = 1000};
    docs_write_bytes("t.tar", bytes, FAR);
    docs_expect("t.tar", small,
                "!too large t.tar/one: expected at most 1000 bytes, found more\n"
                "t.tar/two=the second text\n");
    docs_write_bytes("t.tar", bytes, end + 1024);
    docs_expect("t.tar", small,
                "!too large t.tar/one: expected at most 1000 bytes, found more\n"
                "t.tar/two=the second text\n");
    const size_t places[] = {end + 512, end + 1023, end + 1024, n + 1, FAR};
    for (size_t i = 0; i < CART_COUNTOF(places); i++) {
        bytes[places[i]] = 'x';
        expect_no_tar(bytes, places[i] < n ? n : places[i] + 1, more);
        bytes[places[i]] = 0;
    }
    /* A second one behind it. */
    memcpy(bytes + end + 1024, bytes + second, 2048);
    expect_no_tar(bytes, end + 3072, more);
    /* A hole where the second member begins, and one at the very beginning. */
    memset(bytes + second - 512, 0, 1024);
    expect_no_tar(bytes, n, more);
    memset(bytes, 0, 70 << 10);
    expect_no_tar(bytes, n,
                  "expected what its name says, found the beginning of none: cut off or damaged");
}

/* What the directory of a zip says of a member against what the member says of itself. */
static void test_zip_directory(void **state)
{
#define OF_HEADER(what)                                                                            \
    "member good: expected what the directory says, found another " what " in its header"
    /* A changed bit in the member's header at the start, or so many bytes before the file's end. */
    static const struct {
        size_t at;
        bool from_end;
        char flip;
        const char *says;
    } lies[] = {
        {6, false, 1, OF_HEADER("statement of encryption")},
        {6, false, 64, OF_HEADER("statement of encryption")},
        {7, false, 32, OF_HEADER("statement of encryption")},
        {8, false, 1, OF_HEADER("method of compression")},
        {14, false, 1, OF_HEADER("CRC")},
        {17, false, 64, OF_HEADER("CRC")},
        {18, false, 1, OF_HEADER("size")},
        {22, false, 1, OF_HEADER("size")},
        {26, false, 1, OF_HEADER("name")},
        {10, true, 1, "expected a zip directory of the length that its end says, found another"},
        {9, true, 1, "expected a zip directory of the length that its end says, found another"},
    };
    char bytes[4096];

    (void)state;
    struct archive *a = docs_pack_open("lie.zip", PACK_ZIP);
    docs_pack_text(a, "good", "text");
    docs_pack_close(a);
    size_t n = docs_slurp("lie.zip", bytes, sizeof bytes);
    docs_expect("lie.zip", docs_plain, "lie.zip/good=text\n");
    memcpy(bytes + 30, "evil", 4);
    docs_write_bytes("lie.zip", bytes, n);
    docs_expect_error(
        "lie.zip", docs_plain, CART_EFORMAT,
        "lie.zip: archive: member good: expected what the directory says, found another "
        "name in its header");
    memcpy(bytes + 30, "good", 4);
    /* Made to say CRC and sizes in the header too, not behind the data. */
    size_t entry = (unsigned char)bytes[n - 6] + 256 * (size_t)(unsigned char)bytes[n - 5];
    assert_memory_equal(bytes + entry, "PK\1\2", 4);
    bytes[6] &= ~8;
    bytes[entry + 8] &= ~8;
    memcpy(bytes + 14, bytes + entry + 16, 12);
    docs_write_bytes("lie.zip", bytes, n);
    docs_expect("lie.zip", docs_plain, "lie.zip/good=text\n");
    for (size_t i = 0; i < CART_COUNTOF(lies); i++) {
        size_t at = lies[i].from_end ? n - lies[i].at : lies[i].at;
        char message[200];
        bytes[at] = (char)(bytes[at] ^ lies[i].flip);
        docs_write_bytes("lie.zip", bytes, n);
        snprintf(message, sizeof message, "lie.zip: archive: %s", lies[i].says);
        docs_expect_error("lie.zip", docs_plain, CART_EFORMAT, message);
        bytes[at] = (char)(bytes[at] ^ lies[i].flip);
    }
    docs_write_bytes("lie.zip", bytes, n - 22);
    docs_expect_error(
        "lie.zip", docs_plain, CART_EFORMAT,
        "lie.zip: archive: expected a zip with its directory at the end, found none: cut "
        "off, damaged or followed by something");
    /* A comment, and what someone has put after it. */
    bytes[n - 2] = 3;
    memcpy(bytes + n, "hi!\n", 4);
    docs_write_bytes("lie.zip", bytes, n + 3);
    docs_expect("lie.zip", docs_plain, "lie.zip/good=text\n");
    docs_write_bytes("lie.zip", bytes, n + 4);
    docs_expect_error(
        "lie.zip", docs_plain, CART_EFORMAT,
        "lie.zip: archive: expected a zip with its directory at the end, found none: cut "
        "off, damaged or followed by something");
}

/* The status and transcript of bytes [n] under name, as a file or through a pipe of that name. */
static int run_as(const char *name, const char *bytes, size_t n, bool pipe, struct cart_buf *b)
{
    struct cart_err err = {0};
    pid_t writer = 0;

    unlink(name);
    if (pipe) {
        assert_int_equal(mkfifo(name, 0600), 0);
        writer = fork();
    } else {
        docs_write_bytes(name, bytes, n);
    }
    if (pipe && writer == 0) {
        int fd = open(name, O_WRONLY);
        _exit(fd >= 0 && write(fd, bytes, n) == (ssize_t)n ? 0 : 1);
    }
    assert_true(writer >= 0);
    cart_buf_reset(b);
    int r = docs_run(b, &name, 1, docs_plain, NULL, &err);
    if (r < 0)
        assert_int_equal(cart_buf_addf(b, NULL, "%s", err.msg), 0);
    if (pipe)
        assert_int_equal(waitpid(writer, NULL, 0), writer);
    return r;
}

/* What damage does to a file it does to the same bytes from a pipe: no member is lost there. */
static void test_zip_pipe(void **state)
{
    struct cart_buf file = CART_BUF_INIT, pipe = CART_BUF_INIT;
    char bytes[4096];

    (void)state;
    struct archive *a = docs_pack_open("p.zip", PACK_ZIP);
    docs_pack_text(a, "one", "the first");
    docs_pack_text(a, "two", "the second");
    docs_pack_close(a);
    size_t n = docs_slurp("p.zip", bytes, sizeof bytes), second = 1;
    assert_int_equal(run_as("p.zip", bytes, n, true, &pipe), 0);
    assert_string_equal(pipe.data, "p.zip/one=the first\np.zip/two=the second\n");
    while (memcmp(bytes + second, "PK\x03\x04", 4) != 0)
        second++;
    bytes[second + 3] ^= 1;
    assert_int_equal(run_as("p.zip", bytes, n, true, &pipe), CART_EFORMAT);
    bytes[second + 3] ^= 1;
    for (size_t bit = 0; bit < 8 * n; bit += 11) {
        bytes[bit / 8] ^= (char)(1 << bit % 8);
        int r = run_as("p.zip", bytes, n, false, &file);
        assert_int_equal(run_as("p.zip", bytes, n, true, &pipe), r);
        assert_string_equal(pipe.data, file.data);
        bytes[bit / 8] ^= (char)(1 << bit % 8);
    }
    cart_buf_release(&file);
    cart_buf_release(&pipe);
}

int main(void)
{
#define TEST(f) cmocka_unit_test_setup_teardown(f, docs_enter_folder, docs_leave_folder)
    const struct CMUnitTest tests[] = {
        TEST(test_archive_formats), TEST(test_archives_not_read),
        TEST(test_archive_names),   TEST(test_archive_nested_and_locked),
        TEST(test_archive_bombs),   TEST(test_archive_bit_flips),
        TEST(test_compressed_ends), TEST(test_archive_cut),
        TEST(test_zip_directory),   TEST(test_tar_ends),
        TEST(test_zip_pipe),
    };

    cmocka_set_message_output(CM_OUTPUT_TAP);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
