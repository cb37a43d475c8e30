/* Documents in: each test makes files in a folder of its own, runs the iterator over them and
 * compares a transcript: "path=text" for a document, "!reason path: detail" for what was passed
 * over. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "base/buf.h"
#include "base/hash.h"
#include "format/docs_impl.h"
#include "format/text.h"

#include <archive.h>
#include <archive_entry.h>

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static char home[4096], folder[4096]; /* where the program started; where a test runs */

static int enter_folder(void **state)
{
    const char *dir = getenv("TMPDIR");

    (void)state;
    snprintf(folder, sizeof folder, "%s/cart-docs-XXXXXX", dir && *dir ? dir : ".");
    return getcwd(home, sizeof home) && mkdtemp(folder) && chdir(folder) == 0 ? 0 : -1;
}

static int leave_folder(void **state)
{
    char command[4200];

    (void)state;
    snprintf(command, sizeof command, "rm -rf -- '%s'", folder);
    return chdir(home) == 0 && system(command) == 0 ? 0 : -1;
}

static void write_bytes(const char *path, const void *bytes, size_t n)
{
    FILE *f = fopen(path, "wb");

    assert_non_null(f);
    assert_int_equal(fwrite(bytes, 1, n, f), n);
    assert_int_equal(fclose(f), 0);
}

static void write_text(const char *path, const char *text)
{
    write_bytes(path, text, strlen(text));
}

static void on_note(void *ctx, const struct cart_docs_note *n)
{
    assert_int_equal(cart_buf_addf(ctx, NULL, "!%s %s: %s\n", cart_docs_reason_name(n->reason),
                                   n->path, n->detail),
                     0);
}

/* Runs the iterator over inputs; returns its last status. */
static int run(struct cart_buf *b, const char *const *inputs, size_t n, struct cart_docs_options o,
               struct cart_docs_stats *stats, struct cart_err *err)
{
    struct cart_docs *d;
    struct cart_document doc;
    size_t index = 0;
    int r;

    o.report = on_note;
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

static void expect(const char *input, struct cart_docs_options o, const char *transcript)
{
    struct cart_buf b = CART_BUF_INIT;
    struct cart_err err = {0};

    int r = run(&b, &input, 1, o, NULL, &err);
    if (r != 0)
        fail_msg("%s: status %d: %s", input, r, err.msg);
    assert_string_equal(b.data ? b.data : "", transcript);
    cart_buf_release(&b);
}

static void expect_error(const char *input, struct cart_docs_options o, int code,
                         const char *message)
{
    struct cart_buf b = CART_BUF_INIT;
    struct cart_err err = {0};

    assert_int_equal(run(&b, &input, 1, o, NULL, &err), code);
    assert_string_equal(err.msg, message);
    cart_buf_release(&b);
}

static const struct cart_docs_options plain;

/* --- archives made here --- */

enum packing { TAR, TAR_GZ, TAR_ZST, ZIP, SEVEN, CPIO, CPIO_GZ, GZ, XZ, ZST, BZ2, ZIP_LOCKED };

static struct archive *pack_open(const char *path, enum packing p)
{
    struct archive *a = archive_write_new();

    if (p == TAR || p == TAR_GZ || p == TAR_ZST)
        assert_int_equal(archive_write_set_format_pax_restricted(a), ARCHIVE_OK);
    else if (p == ZIP || p == ZIP_LOCKED)
        assert_int_equal(archive_write_set_format_zip(a), ARCHIVE_OK);
    else if (p == SEVEN)
        assert_int_equal(archive_write_set_format_7zip(a), ARCHIVE_OK);
    else if (p == CPIO || p == CPIO_GZ)
        assert_int_equal(archive_write_set_format_cpio_newc(a), ARCHIVE_OK);
    else
        assert_int_equal(archive_write_set_format_raw(a), ARCHIVE_OK);
    if (p == TAR_GZ || p == CPIO_GZ || p == GZ)
        assert_int_equal(archive_write_add_filter_gzip(a), ARCHIVE_OK);
    if (p == TAR_ZST || p == ZST)
        assert_int_equal(archive_write_add_filter_zstd(a), ARCHIVE_OK);
    if (p == XZ)
        assert_int_equal(archive_write_add_filter_xz(a), ARCHIVE_OK);
    if (p == BZ2)
        assert_int_equal(archive_write_add_filter_bzip2(a), ARCHIVE_OK);
    if (p == ZIP_LOCKED) {
        assert_int_equal(archive_write_set_options(a, "zip:encryption=traditional"), ARCHIVE_OK);
        assert_int_equal(archive_write_set_passphrase(a, "secret"), ARCHIVE_OK);
    }
    assert_int_equal(archive_write_open_filename(a, path), ARCHIVE_OK);
    return a;
}

static void pack_member(struct archive *a, const char *name, unsigned type, const char *bytes,
                        size_t n, size_t times)
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

static void pack_text(struct archive *a, const char *name, const char *text)
{
    pack_member(a, name, AE_IFREG, text, strlen(text), 1);
}

static void pack_close(struct archive *a)
{
    assert_int_equal(archive_write_close(a), ARCHIVE_OK);
    archive_write_free(a);
}

/* --- files and directories --- */

static void test_plain_files(void **state)
{
    (void)state;
    write_text("a.txt", "one\r\ntwo\n");
    expect("a.txt", plain, "a.txt=one\r\ntwo\n\n");
    write_text("bom.txt", "\xef\xbb\xbfwith mark");
    expect("bom.txt", plain, "bom.txt=with mark\n");
    write_text("empty.txt", "");
    expect("empty.txt", plain, "!empty empty.txt: it is empty\n");
    write_text(".hidden", "named, so taken");
    expect(".hidden", plain, ".hidden=named, so taken\n");
    write_text("odd\xff\nname\x1b[2J", "text");
    expect("odd\xff\nname\x1b[2J", plain, "odd\\xff\\x0aname\\x1b[2J=text\n");
    expect_error("missing.txt", plain, CART_ESYS, "missing.txt: No such file or directory");
}

static void test_directory(void **state)
{
    (void)state;
    assert_int_equal(mkdir("d", 0755), 0);
    assert_int_equal(mkdir("d/a", 0755), 0);
    assert_int_equal(mkdir("d/.git", 0755), 0);
    assert_int_equal(mkdir("d/CVS", 0755), 0);
    write_text("d/a.txt", "2");
    write_text("d/a/z", "3");
    write_text("d/a0", "4");
    write_text("d/B", "1");
    write_text("d/.git/config", "no");
    write_text("d/CVS/Root", "no");
    write_text("d/\xc3\xa9", "5");
    assert_int_equal(symlink("..", "d/loop"), 0);
    assert_int_equal(symlink("/dev/zero", "d/zero"), 0);
    assert_int_equal(mkfifo("d/pipe", 0600), 0);
    /* Bytewise by whole path: '.' sorts before '/', which sorts before '0'. */
    expect("d", plain,
           "!hidden d/.git: hidden\nd/B=1\n!hidden d/CVS: hidden\n"
           "d/a.txt=2\nd/a/z=3\nd/a0=4\n"
           "!linked d/loop: a symbolic link inside a directory\n"
           "!no regular file d/pipe: no regular file\n"
           "!linked d/zero: a symbolic link inside a directory\n"
           "d/\xc3\xa9=5\n");
}

static void test_hidden_order(void **state)
{
    struct cart_buf first = CART_BUF_INIT, second = CART_BUF_INIT;
    const char *inputs[] = {"many"};

    (void)state;
    assert_int_equal(mkdir("many", 0755), 0);
    for (int i = 0; i < 300; i++) {
        char path[32], text[16];
        snprintf(path, sizeof path, "many/%d", i * 7919 % 1000);
        snprintf(text, sizeof text, "%d", i);
        write_text(path, text);
    }
    assert_int_equal(run(&first, inputs, 1, plain, NULL, NULL), 0);
    assert_int_equal(run(&second, inputs, 1, plain, NULL, NULL), 0);
    assert_string_equal(first.data, second.data);
    const char *last = "";
    size_t lines = 0;
    for (char *line = strtok(first.data, "\n"); line; line = strtok(NULL, "\n")) {
        *strchr(line, '=') = '\0';
        assert_true(strcmp(last, line) < 0);
        last = line;
        lines++;
    }
    assert_int_equal(lines, 300);
    cart_buf_release(&first);
    cart_buf_release(&second);
}

static void test_not_text(void **state)
{
    char control[400];

    (void)state;
    write_bytes("nul", "ab\0cdefg", 8);
    expect("nul", plain, "!binary nul: binary: byte 2 is NUL\n");
    memset(control, 1, sizeof control);
    write_bytes("control", control, sizeof control);
    expect("control", plain, "!binary control: binary: many control bytes\n");
    write_bytes("utf16", "\xff\xfeh\0i\0", 6);
    expect("utf16", plain,
           "!UTF-16 or UTF-32 utf16: UTF-16 text: convert it with iconv -f UTF-16 -t UTF-8\n");
    write_bytes("utf16le", "h\0e\0l\0l\0o\0", 10);
    expect(
        "utf16le", plain,
        "!UTF-16 or UTF-32 utf16le: UTF-16LE text: convert it with iconv -f UTF-16LE -t UTF-8\n");
    write_text("paper.txt", "%PDF-1.7 and so on");
    expect("paper.txt", plain,
           "!to be converted to text first paper.txt: PDF: convert it with pdftotext -layout\n");
    write_text("page", " <!-- c -->\n<!DOCTYPE HTML><p>x");
    expect(
        "page", plain,
        "!HTML page: HTML: convert it with pandoc -t plain, or take it as it is with --markup\n");
    struct cart_docs_options markup = {.markup = true};
    expect("page", markup, "page= <!-- c -->\n<!DOCTYPE HTML><p>x\n");
    write_text("code.c", "<stdio.h> is no page");
    expect("code.c", plain, "code.c=<stdio.h> is no page\n");
    struct archive *a = pack_open("report.zip", ZIP);
    pack_text(a, "[Content_Types].xml", "<x/>");
    pack_text(a, "word/document.xml", "<x/>");
    pack_close(a);
    expect("report.zip", plain,
           "!to be converted to text first report.zip: DOCX: convert it with pandoc -t plain\n");
}

static void test_invalid_utf8(void **state)
{
    /* Each ill-formed sequence with what stands for it when replaced: the standard's maximal
     * subparts. */
    static const struct {
        const char *bytes;
        const char *replaced;
        size_t at;
    } cases[] = {
        {"ab\x80"
         "c",
         "ab\xef\xbf\xbd"
         "c",
         2},                                         /* a lone continuation */
        {"\xc0\xaf", "\xef\xbf\xbd\xef\xbf\xbd", 0}, /* overlong */
        {"x\xe0\x80\xaf", "x\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd", 1},
        {"\xed\xa0\x80", "\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd", 0}, /* a surrogate */
        {"\xf4\x90\x80\x80", "\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd", 0},
        {"\xe2\x82", "\xef\xbf\xbd", 0}, /* cut short */
        {"\xf0\x9f\x98"
         "A",
         "\xef\xbf\xbd"
         "A",
         0},
        {"12345678\xff", "12345678\xef\xbf\xbd", 8},
        {"\xef\xbb\xbf"
         "a\xff",
         "a\xef\xbf\xbd", 4},
    };
    struct cart_docs_options replace = {.invalid = CART_DOCS_REPLACE};
    struct cart_docs_options strict = {.invalid = CART_DOCS_FAIL};
    char expected[256];

    (void)state;
    for (size_t i = 0; i < CART_COUNTOF(cases); i++) {
        write_text("t", cases[i].bytes);
        snprintf(expected, sizeof expected,
                 "!not UTF-8 t: byte %zu is no UTF-8: convert it with iconv -t UTF-8\n",
                 cases[i].at);
        expect("t", plain, expected);
        snprintf(expected, sizeof expected, "t=%s\n", cases[i].replaced);
        expect("t", replace, expected);
        snprintf(expected, sizeof expected, "t: expected UTF-8, found byte 0x%02x at offset %zu",
                 (unsigned char)cases[i].bytes[cases[i].at], cases[i].at);
        expect_error("t", strict, CART_EFORMAT, expected);
    }
    write_text("good", "\xf4\x8f\xbf\xbf\xed\x9f\xbf\xee\x80\x80\xc2\x80");
    expect("good", strict, "good=\xf4\x8f\xbf\xbf\xed\x9f\xbf\xee\x80\x80\xc2\x80\n");
}

static void test_duplicates_and_counts(void **state)
{
    const char *inputs[] = {"x", "y", "z", "x"};
    struct cart_buf b = CART_BUF_INIT;
    struct cart_docs_stats stats;

    (void)state;
    write_text("x", "same");
    write_text("y", "same");
    write_text("z", "");
    assert_int_equal(run(&b, inputs, 4, plain, &stats, NULL), 0);
    assert_string_equal(b.data, "x=same\n"
                                "!duplicate y: the same bytes as an earlier document\ny=same\n"
                                "!empty z: it is empty\n"
                                "!duplicate x: the same bytes as an earlier document\nx=same\n");
    assert_int_equal(stats.documents, 3);
    assert_int_equal(stats.bytes, 12);
    assert_int_equal(stats.noted[CART_DOCS_DUPLICATE], 2);
    assert_int_equal(stats.noted[CART_DOCS_EMPTY], 1);
    cart_buf_release(&b);
}

static void test_large(void **state)
{
    struct cart_docs_options o = {.max_document = 10};

    (void)state;
    write_text("ten", "0123456789");
    expect("ten", o, "ten=0123456789\n");
    write_text("eleven", "0123456789a");
    expect("eleven", o, "!too large eleven: expected at most 10 bytes, found more\n");
}

/* --- JSON Lines --- */

static void test_lines(void **state)
{
    (void)state;
    write_text("c.jsonl", "{\"id\":\"first\",\"text\":\"one\"}\n"
                          "\n"
                          "{\"text\":\"two \\u00e9\"}\r\n"
                          "not json\n"
                          "[1]\n"
                          "{\"text\":5}\n"
                          "{\"id\":7,\"text\":\"\"}\n"
                          "{\"id\":7,\"text\":\"seven\"}");
    expect("c.jsonl", plain,
           "c.jsonl:1(first)=one\nc.jsonl:3=two \xc3\xa9\n"
           "!malformed c.jsonl:4: JSON: column 1: expected a value, found 'not json'\n"
           "!malformed c.jsonl:5: expected an object with a string \"text\", found no object\n"
           "!malformed c.jsonl:6: expected an object with a string \"text\", found another type\n"
           "!empty c.jsonl:7: it is empty\n"
           "c.jsonl:8(7)=seven\n");
    struct cart_docs_options strict = {.invalid = CART_DOCS_FAIL};
    expect_error("c.jsonl", strict, CART_EFORMAT,
                 "c.jsonl:4: JSON: column 1: expected a value, found 'not json'");
    struct cart_docs_options fields = {.text_field = "body", .id_field = "key", .jsonl = true};
    write_text("d.txt", "{\"key\":\"k\",\"body\":\"b\"}\n");
    expect("d.txt", fields, "d.txt:1(k)=b\n");
    expect("d.txt", plain, "d.txt={\"key\":\"k\",\"body\":\"b\"}\n\n");
    write_text("prose.txt", "no brace");
    expect("prose.txt", fields, "prose.txt=no brace\n");
    struct archive *a = pack_open("e.ndjson.gz", GZ);
    pack_text(a, "x", "{\"text\":\"packed\"}\n");
    pack_close(a);
    expect("e.ndjson.gz", plain, "e.ndjson.gz:1=packed\n");
    struct archive *z = pack_open("mixed.tar", TAR);
    pack_text(z, "page.jsonl", "{\"text\":\"\\ufeff<html>\\u0001\"}\n");
    pack_close(z);
    expect("mixed.tar", plain, "mixed.tar/page.jsonl:1=\xef\xbb\xbf<html>\x01\n");
    struct cart_docs_options whole = {.whole_lines = true};
    write_text("g.txt", "{\"messages\":[]}\n\nnot JSON\n");
    expect("g.txt", whole, "g.txt:1={\"messages\":[]}\ng.txt:3=not JSON\n");
    struct cart_docs_options small = {.max_document = 24};
    write_text("f.jsonl", "{\"text\":\"this line is too long\"}\n{\"text\":\"short\"}\n");
    expect("f.jsonl", small,
           "!too large f.jsonl:1: expected at most 24 bytes, found more\nf.jsonl:2=short\n");
}

/* Runs with standard input from a pipe that holds text. */
static void expect_stdin(const char *bytes, size_t n, const char *transcript)
{
    int ends[2], saved = dup(STDIN_FILENO);

    assert_int_equal(pipe(ends), 0);
    assert_int_equal(write(ends[1], bytes, n), n);
    close(ends[1]);
    assert_int_equal(dup2(ends[0], STDIN_FILENO), STDIN_FILENO);
    close(ends[0]);
    expect("-", plain, transcript);
    if (saved >= 0) {
        dup2(saved, STDIN_FILENO);
        close(saved);
    }
}

static void test_stdin(void **state)
{
    char bytes[16 << 10];

    (void)state;
    expect_stdin("just text", 9, "-=just text\n");
    expect_stdin("", 0, "!empty standard input: it is empty\n");
    expect_stdin("{\"text\":\"a\"}\n{\"text\":\"b\"}\n", 26, "-:1=a\n-:2=b\n");
    expect_stdin("{\"other\":1}\n", 12, "-={\"other\":1}\n\n");
    struct archive *a = pack_open("t.tar.gz", TAR_GZ);
    pack_text(a, "in", "inside");
    pack_close(a);
    FILE *f = fopen("t.tar.gz", "rb");
    assert_non_null(f);
    size_t n = fread(bytes, 1, sizeof bytes, f);
    fclose(f);
    expect_stdin(bytes, n, "-/in=inside\n");
}

/* --- archives --- */

static void test_archive_formats(void **state)
{
    static const struct {
        const char *name;
        enum packing packing;
    } kinds[] = {{"k.tar", TAR}, {"k.tar.gz", TAR_GZ}, {"k.tar.zst", TAR_ZST}, {"k.zip", ZIP}};
    static const struct {
        const char *name;
        enum packing packing;
    } singles[] = {{"s.gz", GZ}, {"s.xz", XZ}, {"s.zst", ZST}, {"s.bz2", BZ2}};
    char expected[1024];

    (void)state;
    for (size_t i = 0; i < CART_COUNTOF(kinds); i++) {
        struct archive *a = pack_open(kinds[i].name, kinds[i].packing);
        pack_text(a, "z.txt", "first");
        pack_text(a, "dir/a.txt", "second");
        pack_text(a, "dir/.git/x", "never");
        pack_text(a, "data.jsonl", "{\"text\":\"line\"}\n");
        pack_text(a, "last", "caf\xc3\xa9");
        pack_close(a);
        const char *k = kinds[i].name;
        snprintf(expected, sizeof expected,
                 "%s/z.txt=first\n%s/dir/a.txt=second\n!hidden %s/dir/.git/x: hidden\n"
                 "%s/data.jsonl:1=line\n%s/last=caf\xc3\xa9\n",
                 k, k, k, k, k);
        expect(k, plain, expected);
    }
    for (size_t i = 0; i < CART_COUNTOF(singles); i++) {
        struct archive *a = pack_open(singles[i].name, singles[i].packing);
        pack_text(a, "x", "content of one file");
        pack_close(a);
        snprintf(expected, sizeof expected, "%s=content of one file\n", singles[i].name);
        expect(singles[i].name, plain, expected);
    }
}

/* Formats whose reader takes memory by what a header claims are not read. */
static void test_archives_not_read(void **state)
{
    static const struct {
        const char *name;
        enum packing packing;
        const char *expected;
    } kinds[] = {{"k.7z", SEVEN, "!to be converted to text first k.7z: 7z: unpack it first\n"},
                 {"k.cpio", CPIO, "!binary k.cpio: binary: byte 111 is NUL\n"},
                 {"k.cpio.gz", CPIO_GZ, "!binary k.cpio.gz: binary: byte 111 is NUL\n"}};

    (void)state;
    for (size_t i = 0; i < CART_COUNTOF(kinds); i++) {
        struct archive *a = pack_open(kinds[i].name, kinds[i].packing);
        pack_text(a, "a", "first");
        pack_close(a);
        expect(kinds[i].name, plain, kinds[i].expected);
    }
}

static void test_archive_names(void **state)
{
    struct archive *a = pack_open("n.tar", TAR);

    (void)state;
    pack_text(a, "../escape", "up");
    pack_text(a, "/etc/passwd", "root");
    pack_text(a, "./dot", "here");
    pack_text(a, "bell\x07\n\x1b[31m", "loud");
    pack_text(a, "\xc3\xa9t\xc3\xa9", "summer");
    pack_member(a, "link", AE_IFLNK, "", 0, 0);
    pack_member(a, "device", AE_IFIFO, "", 0, 0);
    pack_member(a, "folder", AE_IFDIR, "", 0, 0);
    pack_close(a);
    expect("n.tar", plain,
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
    struct archive *a = pack_open("inner.zip", ZIP);
    pack_text(a, "deep", "deep");
    pack_close(a);
    FILE *f = fopen("inner.zip", "rb");
    assert_non_null(f);
    size_t n = fread(inner, 1, sizeof inner, f);
    fclose(f);
    a = pack_open("outer.tar", TAR);
    pack_member(a, "inner.zip", AE_IFREG, inner, n, 1);
    pack_text(a, "after", "still read");
    pack_close(a);
    expect("outer.tar", plain,
           "!nested outer.tar/inner.zip: an archive or compressed file inside another: unpack it "
           "first\nouter.tar/after=still read\n");
    a = pack_open("locked.zip", ZIP_LOCKED);
    pack_text(a, "secret.txt", "hush");
    pack_close(a);
    expect("locked.zip", plain, "!encrypted locked.zip/secret.txt: encrypted: unpack it first\n");
}

/* A file that someone makes shorter while it is read is no document of what was left. */
static void test_shorter(void **state)
{
    static char text[200000];
    struct cart_source s = {0};
    struct cart_buf all = CART_BUF_INIT;
    struct cart_err err = {0};

    (void)state;
    memset(text, 'a', sizeof text);
    write_bytes("f", text, sizeof text);
    int fd = open("f", O_RDWR);
    cart_source_init_fd(&s, fd, "f");
    assert_int_equal(cart_source_peek(&s, CART_SOURCE_PEEK, &err), 0);
    assert_int_equal(ftruncate(fd, 100000), 0);
    assert_int_equal(cart_source_read_all(&s, sizeof text, &all, &err), CART_EAGAIN);
    assert_string_equal(err.msg, "f: it became shorter while it was read: expected 200000 bytes, "
                                 "found 100000");
    lseek(fd, 0, SEEK_SET);
    cart_source_init_fd(&s, fd, "f");
    assert_int_equal(cart_source_read_all(&s, sizeof text, &all, &err), 1);
    close(fd);
    cart_source_release(&s);
    cart_buf_release(&all);
}

static void test_archive_bombs(void **state)
{
    enum { MIB = 1 << 20 };
    static const char *const names[] = {"b.zip", "b.gz", "b.tar.gz"};
    static const enum packing packings[] = {ZIP, GZ, TAR_GZ};
    char *zeros = calloc(1, MIB);

    (void)state;
    assert_non_null(zeros);
    memset(zeros, 'z', MIB);
    for (size_t i = 0; i < CART_COUNTOF(names); i++) {
        struct archive *a = pack_open(names[i], packings[i]);
        pack_member(a, "zeros", AE_IFREG, zeros, MIB, 40);
        pack_close(a);
        struct stat st;
        char message[160];
        assert_int_equal(stat(names[i], &st), 0);
        snprintf(message, sizeof message,
                 "%s: archive: expected to unpack to at most 200 times its %lld bytes, found more",
                 names[i], (long long)st.st_size);
        expect_error(names[i], plain, CART_EFORMAT, message);
        struct cart_docs_options o = {.max_ratio = 2000, .max_archive = 4096};
        snprintf(message, sizeof message,
                 "%s: archive: expected to unpack to at most 4096 bytes, found more", names[i]);
        expect_error(names[i], o, CART_EFORMAT, message);
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
    expect_error("b.tar.gz", small, CART_EFORMAT, message);
    struct archive *a = pack_open("many.tar", TAR);
    for (int i = 0; i < 4; i++)
        pack_text(a, "m", "x");
    pack_close(a);
    struct cart_docs_options few = {.max_members = 3};
    expect_error("many.tar", few, CART_EFORMAT,
                 "many.tar: archive: expected at most 3 members, found more");
    free(zeros);
}

static void test_archive_damaged(void **state)
{
    char bytes[8192];
    struct cart_buf b = CART_BUF_INIT;
    const char *inputs[] = {"cut.tar.gz"};
    struct cart_err err;

    (void)state;
    struct archive *a = pack_open("whole.tar.gz", TAR_GZ);
    pack_text(a, "one", "some text that is long enough to be cut in two");
    pack_close(a);
    FILE *f = fopen("whole.tar.gz", "rb");
    assert_non_null(f);
    size_t n = fread(bytes, 1, sizeof bytes, f);
    fclose(f);
    /* Cut in the gzip header nothing says gzip any more; from there on every cut must be an error.
     */
    for (size_t cut = 20; cut < n - 1; cut += 3) {
        write_bytes("cut.tar.gz", bytes, cut);
        cart_buf_reset(&b);
        int r = run(&b, inputs, 1, plain, NULL, &err);
        if (r != CART_EFORMAT)
            fail_msg("cut to %zu of %zu bytes: status %d, %s", cut, n, r, b.data ? b.data : "");
        assert_int_equal(strncmp(err.msg, "cut.tar.gz: archive: ", 21), 0);
    }
    cart_buf_release(&b);
}

int main(void)
{
#define TEST(f) cmocka_unit_test_setup_teardown(f, enter_folder, leave_folder)
    const struct CMUnitTest tests[] = {
        TEST(test_plain_files),
        TEST(test_directory),
        TEST(test_hidden_order),
        TEST(test_not_text),
        TEST(test_invalid_utf8),
        TEST(test_duplicates_and_counts),
        TEST(test_large),
        TEST(test_lines),
        TEST(test_stdin),
        TEST(test_archive_formats),
        TEST(test_archives_not_read),
        TEST(test_archive_names),
        TEST(test_archive_nested_and_locked),
        TEST(test_shorter),
        TEST(test_archive_bombs),
        TEST(test_archive_damaged),
    };

    cmocka_set_message_output(CM_OUTPUT_TAP);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
