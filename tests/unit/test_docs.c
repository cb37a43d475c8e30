/* Documents in: files, directories, JSON Lines, standard input; archives are
 * test_docs_archive.c. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "format/docs_impl.h"
#include "helper/documents_impl.h"

#include <archive.h>
#include <archive_entry.h>

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* --- files and directories --- */

static void test_plain_files(void **state)
{
    (void)state;
    docs_write_text("a.txt", "one\r\ntwo\n");
    docs_expect("a.txt", docs_plain, "a.txt=one\r\ntwo\n\n");
    docs_write_text("bom.txt", "\xef\xbb\xbfwith mark");
    docs_expect("bom.txt", docs_plain, "bom.txt=with mark\n");
    docs_write_text("empty.txt", "");
    docs_expect("empty.txt", docs_plain, "!empty empty.txt: it is empty\n");
    docs_write_text(".hidden", "named, so taken");
    docs_expect(".hidden", docs_plain, ".hidden=named, so taken\n");
    docs_write_text("odd\xff\nname\x1b[2J", "text");
    docs_expect("odd\xff\nname\x1b[2J", docs_plain, "odd\\xff\\x0aname\\x1b[2J=text\n");
    docs_expect_error("missing.txt", docs_plain, CART_ESYS,
                      "missing.txt: No such file or directory");
}

static void test_directory(void **state)
{
    (void)state;
    assert_int_equal(mkdir("d", 0755), 0);
    assert_int_equal(mkdir("d/a", 0755), 0);
    assert_int_equal(mkdir("d/.git", 0755), 0);
    assert_int_equal(mkdir("d/CVS", 0755), 0);
    docs_write_text("d/a.txt", "2");
    docs_write_text("d/a/z", "3");
    docs_write_text("d/a0", "4");
    docs_write_text("d/B", "1");
    docs_write_text("d/.git/config", "no");
    docs_write_text("d/CVS/Root", "no");
    docs_write_text("d/\xc3\xa9", "5");
    assert_int_equal(symlink("..", "d/loop"), 0);
    assert_int_equal(symlink("/dev/zero", "d/zero"), 0);
    assert_int_equal(mkfifo("d/pipe", 0600), 0);
    /* Bytewise by whole path: '.' sorts before '/', which sorts before '0'. */
    docs_expect("d", docs_plain,
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
        docs_write_text(path, text);
    }
    assert_int_equal(docs_run(&first, inputs, 1, docs_plain, NULL, NULL), 0);
    assert_int_equal(docs_run(&second, inputs, 1, docs_plain, NULL, NULL), 0);
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
    docs_write_bytes("nul", "ab\0cdefg", 8);
    docs_expect("nul", docs_plain, "!binary nul: binary: byte 2 is NUL\n");
    memset(control, 1, sizeof control);
    docs_write_bytes("control", control, sizeof control);
    docs_expect("control", docs_plain, "!binary control: binary: many control bytes\n");
    docs_write_bytes("utf16", "\xff\xfeh\0i\0", 6);
    docs_expect("utf16", docs_plain,
                "!UTF-16 or UTF-32 utf16: UTF-16 text: convert it with iconv -f UTF-16 -t UTF-8\n");
    docs_write_bytes("utf16le", "h\0e\0l\0l\0o\0", 10);
    docs_expect(
        "utf16le", docs_plain,
        "!UTF-16 or UTF-32 utf16le: UTF-16LE text: convert it with iconv -f UTF-16LE -t UTF-8\n");
    docs_write_text("paper.txt", "%PDF-1.7 and so on");
    docs_expect(
        "paper.txt", docs_plain,
        "!to be converted to text first paper.txt: PDF: convert it with pdftotext -layout\n");
    docs_write_text("notes", "GGUF is a binary file format");
    docs_expect("notes", docs_plain, "notes=GGUF is a binary file format\n");
    docs_write_text("word", "GGUF");
    docs_expect("word", docs_plain, "word=GGUF\n");
    docs_write_bytes("model", "GGUF\3\0\0\0", 8);
    docs_expect("model", docs_plain, "!binary model: a GGUF file: a model goes with -m\n");
    docs_write_text("page", " <!-- c -->\n<!DOCTYPE HTML><p>x");
    docs_expect("page", docs_plain, "!HTML page: HTML: convert it with pandoc -t plain\n");
    struct cart_docs_options markup = {.markup = true};
    docs_expect("page", markup, "page= <!-- c -->\n<!DOCTYPE HTML><p>x\n");
    docs_write_text("code.c", "<stdio.h> is no page");
    docs_expect("code.c", docs_plain, "code.c=<stdio.h> is no page\n");
    struct archive *a = docs_pack_open("report.zip", PACK_ZIP);
    docs_pack_text(a, "[Content_Types].xml", "<x/>");
    docs_pack_text(a, "word/document.xml", "<x/>");
    docs_pack_close(a);
    docs_expect(
        "report.zip", docs_plain,
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
        docs_write_text("t", cases[i].bytes);
        snprintf(expected, sizeof expected,
                 "!not UTF-8 t: byte %zu is no UTF-8: convert it, with iconv -f ISO-8859-1 -t "
                 "UTF-8 if it is Latin-1\n",
                 cases[i].at);
        docs_expect("t", docs_plain, expected);
        snprintf(expected, sizeof expected, "t=%s\n", cases[i].replaced);
        docs_expect("t", replace, expected);
        snprintf(expected, sizeof expected, "t: expected UTF-8, found byte 0x%02x at offset %zu",
                 (unsigned char)cases[i].bytes[cases[i].at], cases[i].at);
        docs_expect_error("t", strict, CART_EFORMAT, expected);
    }
    docs_write_text("good", "\xf4\x8f\xbf\xbf\xed\x9f\xbf\xee\x80\x80\xc2\x80");
    docs_expect("good", strict, "good=\xf4\x8f\xbf\xbf\xed\x9f\xbf\xee\x80\x80\xc2\x80\n");
}

static void test_duplicates_and_counts(void **state)
{
    const char *inputs[] = {"x", "y", "z", "x"};
    struct cart_buf b = CART_BUF_INIT;
    struct cart_docs_stats stats;

    (void)state;
    docs_write_text("x", "same");
    docs_write_text("y", "same");
    docs_write_text("z", "");
    assert_int_equal(docs_run(&b, inputs, 4, docs_plain, &stats, NULL), 0);
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
    docs_write_text("ten", "0123456789");
    docs_expect("ten", o, "ten=0123456789\n");
    docs_write_text("eleven", "0123456789a");
    docs_expect("eleven", o, "!too large eleven: expected at most 10 bytes, found more\n");
}

/* --- JSON Lines --- */

static void test_lines(void **state)
{
    (void)state;
    docs_write_text("c.jsonl", "{\"id\":\"first\",\"text\":\"one\"}\n"
                               "\n"
                               "{\"text\":\"two \\u00e9\"}\r\n"
                               "not json\n"
                               "[1]\n"
                               "{\"text\":5}\n"
                               "{\"id\":7,\"text\":\"\"}\n"
                               "{\"id\":7,\"text\":\"seven\"}");
    docs_expect(
        "c.jsonl", docs_plain,
        "c.jsonl:1(first)=one\nc.jsonl:3=two \xc3\xa9\n"
        "!malformed c.jsonl:4: JSON: column 1: expected a value, found 'not json'\n"
        "!malformed c.jsonl:5: expected an object with a string \"text\", found no object\n"
        "!malformed c.jsonl:6: expected an object with a string \"text\", found another type\n"
        "!empty c.jsonl:7: it is empty\n"
        "c.jsonl:8(7)=seven\n");
    struct cart_docs_options strict = {.invalid = CART_DOCS_FAIL};
    docs_expect_error("c.jsonl", strict, CART_EFORMAT,
                      "c.jsonl:4: JSON: column 1: expected a value, found 'not json'");
    struct cart_docs_options fields = {.text_field = "body", .id_field = "key", .jsonl = true};
    docs_write_text("d.txt", "{\"key\":\"k\",\"body\":\"b\"}\n");
    docs_expect("d.txt", fields, "d.txt:1(k)=b\n");
    docs_expect("d.txt", docs_plain, "d.txt={\"key\":\"k\",\"body\":\"b\"}\n\n");
    docs_write_text("keys.jsonl", "{\"key\":\"k\",\"bo\\u0007dy\":\"b\"}\n{}\n");
    docs_expect("keys.jsonl", docs_plain,
                "!malformed keys.jsonl:1: expected an object with a string \"text\", found only "
                "key, bo\\x07dy\n"
                "!malformed keys.jsonl:2: expected an object with a string \"text\", found none\n");
    docs_write_text("prose.txt", "no brace");
    docs_expect("prose.txt", fields, "prose.txt=no brace\n");
    struct archive *a = docs_pack_open("e.ndjson.gz", PACK_GZ);
    docs_pack_text(a, "x", "{\"text\":\"packed\"}\n");
    docs_pack_close(a);
    docs_expect("e.ndjson.gz", docs_plain, "e.ndjson.gz:1=packed\n");
    struct archive *z = docs_pack_open("mixed.tar", PACK_TAR);
    docs_pack_text(z, "page.jsonl", "{\"text\":\"\\ufeff<html>\\u0001\"}\n");
    docs_pack_close(z);
    docs_expect("mixed.tar", docs_plain, "mixed.tar/page.jsonl:1=\xef\xbb\xbf<html>\x01\n");
    struct cart_docs_options whole = {.whole_lines = true};
    docs_write_text("g.txt", "{\"messages\":[]}\n\nnot JSON\n");
    docs_expect("g.txt", whole, "g.txt:1={\"messages\":[]}\ng.txt:3=not JSON\n");
    struct cart_docs_options small = {.max_document = 24};
    docs_write_text("f.jsonl", "{\"text\":\"this line is too long\"}\n{\"text\":\"short\"}\n");
    docs_expect("f.jsonl", small,
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
    docs_expect("-", docs_plain, transcript);
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
    expect_stdin("\n \r\n{\"text\":\"a\"}\n", 17, "-:3=a\n");
    expect_stdin("{\"other\":1}\n", 12, "-={\"other\":1}\n\n");
    struct archive *a = docs_pack_open("t.tar.gz", PACK_TAR_GZ);
    docs_pack_text(a, "in", "inside");
    docs_pack_close(a);
    FILE *f = fopen("t.tar.gz", "rb");
    assert_non_null(f);
    size_t n = fread(bytes, 1, sizeof bytes, f);
    fclose(f);
    expect_stdin(bytes, n, "-/in=inside\n");
}

#define CHANGED ": expected a file that stays as it is, found it changed while it was read"

/* A file is told to have changed where it became shorter, and only then. */
static void test_changed(void **state)
{
    static char text[200000];
    struct cart_source s = {0};
    struct cart_buf all = CART_BUF_INIT;
    struct cart_err err = {0};

    (void)state;
    memset(text, 'a', sizeof text);
    docs_write_bytes("f", text, sizeof text);
    int fd = open("f", O_RDWR);
    cart_source_init_fd(&s, fd, "f");
    assert_int_equal(cart_source_peek(&s, CART_SOURCE_PEEK, &err), 0);
    assert_int_equal(ftruncate(fd, 100000), 0);
    assert_int_equal(cart_source_read_all(&s, sizeof text, &all, &err), 1);
    assert_int_equal(cart_source_unchanged(&s, &err), CART_EAGAIN);
    assert_string_equal(err.msg, "f" CHANGED);
    lseek(fd, 0, SEEK_SET);
    cart_source_init_fd(&s, fd, "f");
    assert_int_equal(cart_source_read_all(&s, sizeof text, &all, &err), 1);
    assert_int_equal(cart_source_unchanged(&s, &err), 0);
    close(fd);
    cart_source_release(&s);
    cart_buf_release(&all);
}

/* A byte at offset at of the file is written over in place, and its old time set again where
 * keep_time, after the first document of name: there is no end. */
static void expect_changed(const char *name, off_t at, bool keep_time)
{
    const struct timespec old[2] = {{1000000000, 0}, {1000000000, 0}};
    const struct timespec tick = {0, 30000000}; /* of the clock that files' times are taken from */
    char message[200];
    struct cart_docs *d;
    struct cart_document doc;
    struct cart_err err = {0};
    int r;

    assert_int_equal(utimensat(AT_FDCWD, name, old, 0), 0);
    assert_int_equal(cart_docs_open(&d, &name, 1, &docs_plain, &err), 0);
    assert_int_equal(cart_docs_next(d, &doc, &err), 1);
    int fd = open(name, O_WRONLY);
    nanosleep(&tick, NULL);
    assert_int_equal(pwrite(fd, "x", 1, at), 1);
    close(fd);
    if (keep_time)
        assert_int_equal(utimensat(AT_FDCWD, name, old, 0), 0);
    do
        r = cart_docs_next(d, &doc, &err);
    while (r == 1);
    assert_int_equal(r, CART_EAGAIN);
    snprintf(message, sizeof message, "%s" CHANGED, name);
    assert_string_equal(err.msg, message);
    cart_docs_close(d);
}

static void test_written_over(void **state)
{
    (void)state;
    for (int keep_time = 0; keep_time < 2; keep_time++) {
        docs_write_text("l.jsonl", "{\"text\":\"a\"}\n{\"text\":\"b\"}\n");
        expect_changed("l.jsonl", 9, keep_time);
        struct archive *a = docs_pack_open("t.tar.gz", PACK_TAR_GZ);
        docs_pack_text(a, "one", "first");
        docs_pack_text(a, "two", "second");
        docs_pack_close(a);
        expect_changed("t.tar.gz", 9, keep_time);
        /* What looks like damage now, the header of a second member, is none. */
        static char text[200000];
        memset(text, 'a', sizeof text);
        a = docs_pack_open("t.tar", PACK_TAR);
        docs_pack_text(a, "one", "first");
        docs_pack_member(a, "two", AE_IFREG, text, sizeof text, 1);
        docs_pack_text(a, "three", "third");
        docs_pack_close(a);
        expect_changed("t.tar", 2048 + 200192 - 512 + 5, keep_time);
    }
}

int main(void)
{
#define TEST(f) cmocka_unit_test_setup_teardown(f, docs_enter_folder, docs_leave_folder)
    const struct CMUnitTest tests[] = {
        TEST(test_plain_files), TEST(test_directory),    TEST(test_hidden_order),
        TEST(test_not_text),    TEST(test_invalid_utf8), TEST(test_duplicates_and_counts),
        TEST(test_large),       TEST(test_lines),        TEST(test_stdin),
        TEST(test_changed),     TEST(test_written_over),
    };

    cmocka_set_message_output(CM_OUTPUT_TAP);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
