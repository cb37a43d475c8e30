/* The records of each kind, their text twins, the rules between records, and shards joined again.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "base/clock.h"
#include "stream/consistency.h"
#include "stream/frame_impl.h"
#include "stream/join.h"
#include "stream/listing.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* One line of each record type, in the form that listing writes. */
#define SHA "\"sha256\":\"0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef\""
#define DOC_REST "\"bytes\":9," SHA
#define DOC0                                                                                       \
    "{\"record\":\"doc\",\"bytes\":9,\"doc\":0,\"id\":\"a\",\"path\":\"d/"                         \
    "\\u0001\\\"\xc3\xa9.txt\"," SHA ",\"tokens\":[5,0,2147483647]}"
#define DOC1 "{\"record\":\"doc\",\"bytes\":0,\"doc\":1," SHA ",\"tokens\":[]}"
#define CONV_FIELDS                                                                                \
    "\"chunk\":[0,2],\"context\":\"chunk\",\"context_span\":[0,2],\"doc\":0,"                      \
    "\"finish_reasons\":[\"stop\"],\"messages\":[{\"content\":\"hi\",\"role\":\"user\"}],\"n\":3," \
    "\"parts\":[],\"round\":null,\"seed_type\":\"question\",\"split\":\"train\",\"think\":false"
#define CONV                                                                                       \
    "{\"record\":\"conv\"," CONV_FIELDS ",\"ids\":[1,2,3,4,5],\"supervised\":[[1,2],[3,5]]}"
#define TARG                                                                                       \
    "{\"record\":\"targ\"," CONV_FIELDS ",\"ids\":[1,2,3,4,5],\"supervised\":[[1,2],[3,5]],"       \
    "\"rows\":[1,3,4],\"offsets\":[0,2,2,3],\"target_ids\":[7,8,9],\"logprobs\":[-0.1,-2.5,-1e-"   \
    "07],"                                                                                         \
    "\"entropy\":[0.2957,0,-0.0]}"
#define METR                                                                                       \
    "{\"record\":\"metr\",\"conversations\":2,\"kl\":1e-05,\"loss\":0.1,\"split\":\"train\","      \
    "\"step\":4,\"tokens\":7,\"top1\":0.5,\"whole\":1.0}"
#define RNDS "{\"record\":\"rnds\"}"

static int from_text(const struct cart_kind *kind, const char *text, struct cart_buf *payload,
                     char type[5], struct cart_err *err)
{
    json_t *line;
    int r;

    if ((r = cart_json_parse(&line, text, strlen(text), "x", err)) < 0)
        return r;
    r = cart_kinds_from_json(kind, line, "x", payload, type, err);
    json_decref(line);
    return r;
}

static void there_and_back(const char *kind_name, const char *line)
{
    const struct cart_kind *kind = cart_kind_find(kind_name);
    struct cart_buf payload = CART_BUF_INIT, text = CART_BUF_INIT;
    struct cart_record rec = {.skippable = false};
    struct cart_err err = {0};

    assert_non_null(kind);
    if (from_text(kind, line, &payload, rec.type, &err) != 0)
        fail_msg("%s: %s", line, err.msg);
    rec.payload = payload.data;
    rec.size = payload.len;
    if (cart_kinds_to_json(kind, &rec, "x", &text, &err) != 0)
        fail_msg("%s: %s", line, err.msg);
    assert_string_equal(text.data, line);
    cart_buf_release(&payload);
    cart_buf_release(&text);
}

static void test_twins(void **state)
{
    (void)state;
    there_and_back("tokens", DOC0);
    there_and_back("tokens", DOC1);
    there_and_back("conversations", DOC0);
    there_and_back("conversations", CONV);
    there_and_back("targets", DOC1);
    there_and_back("targets", TARG);
    there_and_back("metrics", METR);
    there_and_back("rounds", RNDS);
    assert_null(cart_kind_find("nothing"));
}

static void test_twin_in_any_order(void **state)
{
    static const char line[] =
        " { \"tokens\" : [ 1 , 2 ],\"doc\":0 , \"record\":\"doc\" , " DOC_REST "}";
    struct cart_buf payload = CART_BUF_INIT, text = CART_BUF_INIT;
    struct cart_record rec = {.skippable = false};

    (void)state;
    assert_int_equal(from_text(cart_kind_find("tokens"), line, &payload, rec.type, NULL), 0);
    rec.payload = payload.data;
    rec.size = payload.len;
    assert_int_equal(cart_kinds_to_json(cart_kind_find("tokens"), &rec, "x", &text, NULL), 0);
    assert_string_equal(text.data,
                        "{\"record\":\"doc\",\"bytes\":9,\"doc\":0," SHA ",\"tokens\":[1,2]}");
    cart_buf_release(&payload);
    cart_buf_release(&text);
}

static void test_twin_refused(void **state)
{
    static const char *const lines[] = {
        "{\"doc\":0," DOC_REST ",\"tokens\":[]}",
        "{\"record\":\"doc\",\"doc\":0," DOC_REST "}",
        "{\"record\":\"doc\",\"doc\":0," DOC_REST ",\"tokens\":[1.5]}",
        "{\"record\":\"doc\",\"doc\":0," DOC_REST ",\"tokens\":[[1]]}",
        "{\"record\":\"doc\",\"doc\":0," DOC_REST ",\"tokens\":[2147483648]}",
        "{\"record\":\"doc\",\"doc\":0," DOC_REST ",\"tokens\":[1],\"tokens\":[2]}",
        "{\"record\":\"conv\",\"doc\":0," DOC_REST ",\"tokens\":[1]}",
        "{\"record\":7,\"doc\":0," DOC_REST ",\"tokens\":[1]}",
        "[]",
        "",
        "{\"record\":\"doc\",\"doc\":0," DOC_REST ",\"tokens\":[1]} x",
    };
    struct cart_buf payload = CART_BUF_INIT;
    struct cart_err err;
    char type[5];

    (void)state;
    for (size_t i = 0; i < CART_COUNTOF(lines); i++)
        if (from_text(cart_kind_find("tokens"), lines[i], &payload, type, &err) != CART_EFORMAT)
            fail_msg("taken: %s", lines[i]);
    static const char pairs[] =
        "{\"record\":\"conv\"," CONV_FIELDS ",\"ids\":[1],\"supervised\":[[0,1,2]]}";
    assert_int_equal(from_text(cart_kind_find("conversations"), pairs, &payload, type, &err),
                     CART_EFORMAT);
    static const char nan[] =
        "{\"record\":\"targ\"," CONV_FIELDS ",\"ids\":[],\"supervised\":[],\"rows\":[],\"offsets\""
        ":[0],\"target_ids\":[],\"logprobs\":[\"Infinity\"],\"entropy\":[]}";
    struct cart_record rec = {.skippable = false};
    struct cart_payload p;
    cart_buf_reset(&payload);
    assert_int_equal(from_text(cart_kind_find("targets"), nan, &payload, rec.type, &err), 0);
    rec.payload = payload.data;
    rec.size = payload.len;
    assert_int_equal(cart_payload_parse(&p, cart_kind_find("targets"), &rec, "x", &err),
                     CART_EFORMAT);
    cart_buf_release(&payload);
}

#define GOOD_FIELDS "\"bytes\":9,\"doc\":0," SHA
#define GOOD "{" GOOD_FIELDS "}"

/* Payloads that are well-formed images but not those of the record. */
static void test_payloads_refused(void **state)
{
    static const int32_t one[2] = {1, 2};
    static const struct {
        struct cart_st_tensor t[2];
        size_t n;
        const char *record;
    } cases[] = {
        {{{"tokens", CART_ST_I32, 1, {1}, one, 4}}, 1, NULL},
        {{{"tokens", CART_ST_I32, 1, {1}, one, 4}}, 1, "[]"},
        {{{"tokens", CART_ST_I32, 1, {1}, one, 4}}, 1, "{"},
        {{{"tokens", CART_ST_I32, 1, {1}, one, 4}}, 1, "{\"record\":1}"},
        {{{"tokens", CART_ST_I32, 1, {1}, one, 4}}, 1, "{\"doc\":0," DOC_REST ",\"tokens\":1}"},
        {{{"tokens", CART_ST_F32, 1, {1}, one, 4}}, 1, GOOD},
        {{{"tokens", CART_ST_I32, 2, {1, 1}, one, 4}}, 1, GOOD},
        {{{"token", CART_ST_I32, 1, {1}, one, 4}}, 1, GOOD},
        {{{"tokens", CART_ST_I32, 1, {1}, one, 4}, {"x", CART_ST_I32, 1, {1}, one, 4}}, 2, GOOD},
    };
    struct cart_buf b = CART_BUF_INIT;
    struct cart_payload p;
    struct cart_err err;

    (void)state;
    for (size_t i = 0; i < CART_COUNTOF(cases); i++) {
        struct cart_record rec = {.type = "DOC "};
        json_t *meta = json_pack("{s: s*}", "record", cases[i].record);
        cart_buf_reset(&b);
        assert_int_equal(cart_st_build(&b, cases[i].t, cases[i].n, meta, &err), 0);
        rec.payload = b.data;
        rec.size = b.len;
        if (cart_payload_parse(&p, cart_kind_find("tokens"), &rec, "x", &err) != CART_EFORMAT)
            fail_msg("case %zu was taken", i);
        json_decref(meta);
    }
    /* Parsed, but not canonical: readers may take it, listings may not. */
    struct cart_record rec = {.type = "DOC "};
    json_t *meta = json_pack("{s: s}", "record", "{ " GOOD_FIELDS "}");
    cart_buf_reset(&b);
    assert_int_equal(cart_st_build(&b, cases[0].t, 1, meta, &err), 0);
    rec.payload = b.data;
    rec.size = b.len;
    assert_int_equal(cart_payload_parse(&p, cart_kind_find("tokens"), &rec, "x", &err), 0);
    assert_int_equal(cart_payload_check(&p, &rec, "x", &err), CART_EFORMAT);
    cart_payload_release(&p);
    json_decref(meta);
    cart_buf_release(&b);
}

/* The line's record with one field set to value (taken over; NULL: without it), by its reader. */
static int parse_with(const char *kind_name, const char *line, const char *field, json_t *value,
                      struct cart_err *err)
{
    const struct cart_kind *kind = cart_kind_find(kind_name);
    struct cart_buf payload = CART_BUF_INIT, text = CART_BUF_INIT;
    struct cart_record rec = {.skippable = false};
    struct cart_payload p;

    assert_int_equal(from_text(kind, line, &payload, rec.type, err), 0);
    rec.payload = payload.data;
    rec.size = payload.len;
    assert_int_equal(cart_payload_parse(&p, kind, &rec, "x", err), 0);
    json_t *fields = json_deep_copy(p.fields);
    json_object_del(fields, field);
    if (value)
        json_object_set_new(fields, field, value);
    assert_int_equal(cart_json_dump(fields, &text, err), 0);
    json_t *meta = json_pack("{s: s}", "record", text.data);
    struct cart_buf image = CART_BUF_INIT;
    assert_int_equal(cart_st_build(&image, p.st.tensors, p.st.n, meta, err), 0);
    cart_payload_release(&p);
    rec.payload = image.data;
    rec.size = image.len;
    int r = cart_payload_parse(&p, kind, &rec, "x", err);
    if (r == 0)
        cart_payload_release(&p);
    json_decref(meta);
    json_decref(fields);
    cart_buf_release(&image);
    cart_buf_release(&text);
    cart_buf_release(&payload);
    return r;
}

static void refuses(const char *kind, const char *line, const char *field, const char *json)
{
    struct cart_err err = {0};
    json_t *v = NULL;

    if (json)
        assert_int_equal(cart_json_parse(&v, json, strlen(json), "x", &err), 0);
    if (parse_with(kind, line, field, v, &err) != CART_EFORMAT || !strstr(err.msg, field))
        fail_msg("%s %s: '%s'", field, json ? json : "absent", err.msg);
}

/* Every field of every record: absent, null and of every wrong type. */
static void test_fields(void **state)
{
    static const struct {
        const char *kind, *line;
    } records[] = {{"tokens", DOC0}, {"conversations", CONV}, {"targets", TARG}, {"metrics", METR}};
    static const char *const wrong[][6] = {
        [CART_FIELD_NUMBER] = {"-1", "1.5", "\"1\"", "true", "[]", "{}"},
        [CART_FIELD_REAL] = {"\"1\"", "true", "[]", "{}"},
        [CART_FIELD_BOOL] = {"0", "\"true\"", "[]", "{}"},
        [CART_FIELD_TEXT] = {"0", "true", "[]", "{}", "\"a\\u0000b\""},
        [CART_FIELD_CHOICE] = {"0", "\"\"", "\"trai\"", "\"train|held-out\"", "[\"train\"]"},
        [CART_FIELD_SHA256] = {"0", "\"\"", "\"00\"", "[]"},
        [CART_FIELD_SPAN] = {"0", "[0]", "[0,1,2]", "[2,1]", "[-1,1]", "[0,2147483648]"},
        [CART_FIELD_TEXTS] = {"\"a\"", "[1]", "{}", "[\"a\",null]"},
        [CART_FIELD_MESSAGES] = {"{}", "[1]", "[{}]", "[{\"role\":\"user\"}]",
                                 "[{\"role\":\"user\",\"content\":[]}]"},
    };
    struct cart_err err = {0};

    (void)state;
    for (size_t i = 0; i < CART_COUNTOF(records); i++) {
        const struct cart_kind *kind = cart_kind_find(records[i].kind);
        const struct cart_kind_record *d = &kind->records[kind->n_records - 1];
        assert_true(d->n_fields >= 8);
        for (size_t k = 0; k < d->n_fields; k++) {
            const struct cart_kind_field *f = &d->fields[k];
            const char *line = records[i].line;
            for (size_t w = 0; w < 6 && wrong[f->type][w]; w++)
                refuses(records[i].kind, line, f->name, wrong[f->type][w]);
            if (f->required) {
                refuses(records[i].kind, line, f->name, NULL);
                refuses(records[i].kind, line, f->name, "null");
            } else {
                assert_int_equal(parse_with(records[i].kind, line, f->name, NULL, &err), 0);
                assert_int_equal(parse_with(records[i].kind, line, f->name, json_null(), &err), 0);
            }
        }
    }
    refuses("tokens", DOC0, "doc", "4294967296");
    refuses("tokens", DOC0, "bytes", "4503599627370496");
    refuses("conversations", CONV, "n", "9223372036854775807");
    assert_int_equal(parse_with("tokens", DOC0, "odd", json_integer(1), &err), 0);
}

/* Feeds lines to the checker; the last one must break a rule whose message says part (NULL: all are
 * fine). */
static void rules_of(const json_t *head, const char *kind_name, const char *part,
                     const char *const *lines)
{
    const struct cart_kind *kind = cart_kind_find(kind_name);
    struct cart_consistency *c;
    struct cart_buf payload = CART_BUF_INIT;
    struct cart_err err = {0};

    assert_int_equal(cart_consistency_new(&c, kind, head, &err), 0);
    for (; *lines != NULL; lines++) {
        struct cart_record rec = {.skippable = false};
        struct cart_payload p;
        cart_buf_reset(&payload);
        if (from_text(kind, *lines, &payload, rec.type, &err) < 0)
            fail_msg("%s", err.msg);
        rec.payload = payload.data;
        rec.size = payload.len;
        assert_int_equal(cart_payload_parse(&p, kind, &rec, "x", &err), 0);
        int r = cart_consistency_add(c, &p, "x", &err);
        cart_payload_release(&p);
        if (lines[1] != NULL || part == NULL) {
            if (r != 0)
                fail_msg("%s: %s", *lines, err.msg);
        } else if (r != CART_EFORMAT || strstr(err.msg, part) == NULL) {
            fail_msg("%s: '%s' does not say '%s'", *lines, err.msg, part);
        }
    }
    cart_consistency_free(c);
    cart_buf_release(&payload);
}

#define RULES(kind, part, ...) rules_of(NULL, kind, part, (const char *const[]){__VA_ARGS__, NULL})
#define PLACE(doc, chunk, context, span)                                                           \
    "\"chunk\":" chunk ",\"context\":\"" context "\",\"context_span\":" span ",\"doc\":" #doc ","
#define AT PLACE(0, "[0,2]", "chunk", "[0,2]")
#define ELSE(n, split)                                                                             \
    "\"finish_reasons\":[],\"messages\":[],\"n\":" #n                                              \
    ",\"parts\":[],\"seed_type\":\"\",\"split\":\"" split "\","
#define C_AT(n, split, at, rest) "{\"record\":\"conv\"," at ELSE(n, split) rest "}"
#define C(n, split, rest) C_AT(n, split, AT, rest)
#define IDS "\"ids\":[1,2,3],\"supervised\":[]"
#define T(rows, offsets, logprobs)                                                                 \
    "{\"record\":\"targ\"," AT ELSE(0, "train") "\"ids\":[1,2,3],\"supervised\":[[1,3]],"          \
                                                "\"rows\":" rows ",\"offsets\":" offsets           \
                                                ",\"target_ids\":[4,5],\"logprobs\":" logprobs     \
                                                ",\"entropy\":[0.3679,0.2707]}"

#define TWICE                                                                                      \
    "{\"record\":\"targ\"," AT ELSE(0, "train") "\"ids\":[1,2,3],\"supervised\":[[1,2]],"          \
                                                "\"rows\":[1],\"offsets\":[0,2],\"target_ids\":["  \
                                                "4,4],\"logprobs\":[-1,-2],\"entropy\":[0]}"

static void test_rules(void **state)
{
    (void)state;
    RULES("tokens", NULL, DOC0, DOC1);
    RULES("tokens", "doc: expected 0, found 1", DOC1);
    RULES("tokens", "doc: expected 1, found 0", DOC0, DOC0);
    RULES("tokens", "negative", "{\"record\":\"doc\",\"doc\":0," DOC_REST ",\"tokens\":[3,-1]}");
    RULES("conversations", NULL, DOC0, DOC1, C(0, "held-out", IDS), C(2, "train", IDS), CONV);
    RULES("conversations", "before all other", DOC0, CONV, DOC1);
    RULES("conversations", "n 3 after 3: n: expected more", DOC0, CONV, CONV);
    RULES("conversations", "held-out", DOC0, C(0, "train", IDS), C(1, "held-out", IDS));
    RULES("conversations", "doc: expected one of 1", DOC0,
          C_AT(0, "train", PLACE(1, "[0,2]", "chunk", "[0,2]"), IDS));
    RULES("conversations", "chunk: expected", DOC0,
          C_AT(0, "train", PLACE(0, "[0,4]", "chunk", "[0,2]"), IDS));
    RULES("conversations", "context_span", DOC0,
          C_AT(0, "train", PLACE(0, "[0,2]", "chunk", "[0,4]"), IDS));
    RULES("conversations", "context_span", DOC0, DOC1,
          C_AT(0, "train", PLACE(0, "[0,2]", "corpus", "[0,4]"), IDS));
    RULES("conversations", NULL, DOC0, DOC1,
          C_AT(0, "train", PLACE(1, "[0,0]", "corpus", "[0,3]"), IDS));
    RULES("conversations", "supervised", DOC0,
          C(0, "train", "\"ids\":[1,2],\"supervised\":[[1,3]]"));
    RULES("conversations", "supervised", DOC0,
          C(0, "train", "\"ids\":[1,2],\"supervised\":[[1,1]]"));
    RULES("conversations", "supervised", DOC0,
          C(0, "train", "\"ids\":[1,2],\"supervised\":[[1,2],[0,1]]"));
    RULES("conversations", "ids: value 1 is negative", DOC0,
          C(0, "train", "\"ids\":[1,-2],\"supervised\":[]"));
    RULES("targets", NULL, DOC0, TARG);
    RULES("targets", NULL, DOC0, T("[1,2]", "[0,1,2]", "[-1,-2]"));
    RULES("targets", "rows: value 1: expected position 2", DOC0, T("[1,1]", "[0,1,2]", "[-1,-2]"));
    RULES("targets", "rows: value 1", DOC0, T("[1]", "[0,2]", "[-1,-2]"));
    RULES("targets", "lengths", DOC0, T("[1,2]", "[0,2]", "[-1,-2]"));
    RULES("targets", "offsets: expected 0 first", DOC0, T("[1,2]", "[0,1,3]", "[-1,-2]"));
    RULES("targets", "offsets: value 1", DOC0, T("[1,2]", "[0,3,2]", "[-1,-2]"));
    RULES("targets", "logprobs", DOC0, T("[1,2]", "[0,2,2]", "[-2,-1]"));
    RULES("targets", "logprobs", DOC0, T("[1,2]", "[0,1,2]", "[-1,0.5]"));
    RULES("targets", "logprobs", DOC0, T("[1,2]", "[0,1,2]", "[-1,0.0005]"));
    RULES("targets", "row 0: target_ids", DOC0, TWICE);
    RULES("conversations", "supervised", DOC0,
          C(0, "train", "\"ids\":[1,2],\"supervised\":[[0,1]]"));
}

static void test_head_binds(void **state)
{
    (void)state;
    json_t *whole = json_pack("{s:i,s:i}", "conversations", 3, "held_out", 1);
    json_t *shard =
        json_pack("{s:i,s:i,s:[i,i]}", "conversations", 9, "held_out", 4, "shard", 3, 6);
    json_t *quiet = json_pack("{s:i,s:n}", "conversations", 3, "shard");
#define UNDER(head, part, ...)                                                                     \
    rules_of(head, "conversations", part, (const char *const[]){DOC0, __VA_ARGS__, NULL})
    UNDER(whole, NULL, C(0, "held-out", IDS), C(1, "train", IDS), C(2, "train", IDS));
    UNDER(whole, "n: HEAD does not have it", C(0, "held-out", IDS), C(3, "train", IDS));
    UNDER(whole, "split: expected held-out", C(0, "train", IDS));
    UNDER(whole, "split: expected held-out", C(0, "held-out", IDS), C(1, "held-out", IDS));
    UNDER(shard, NULL, C(3, "held-out", IDS), C(5, "train", IDS));
    UNDER(shard, "n: HEAD does not have it", C(2, "held-out", IDS));
    UNDER(shard, "n: HEAD does not have it", C(6, "train", IDS));
    UNDER(quiet, NULL, C(0, "held-out", IDS), C(1, "held-out", IDS), C(2, "train", IDS));
    UNDER(quiet, "n: HEAD does not have it", C(3, "train", IDS));
    json_decref(whole);
    json_decref(shard);
    json_decref(quiet);
}

/* --- shards --- */

static const char *folder(void)
{
    return getenv("TMPDIR") != NULL ? getenv("TMPDIR") : "/tmp";
}

/* Packs a listing into a new file; the caller frees the name. */
static char *pack(const char *text)
{
    static int number;
    char listing[512], *name = malloc(512);
    struct cart_jsonl *l;
    const char *record;
    json_t *head;
    struct cart_err err = {0};

    snprintf(listing, sizeof listing, "%s/kinds-%d-%d.jsonl", folder(), (int)getpid(), number);
    snprintf(name, 512, "%s/kinds-%d-%d.cart", folder(), (int)getpid(), number++);
    FILE *f = fopen(listing, "w"), *out = fopen(name, "w");
    assert_true(f != NULL && out != NULL);
    fputs(text, f);
    fclose(f);
    assert_int_equal(cart_jsonl_open(&l, listing, &err), 0);
    assert_int_equal(cart_jsonl_next(l, &head, &record, &err), 1);
    assert_string_equal(record, "head");
    if (cart_listing_pack(l, head, fileno(out), name, 0, &err) != 0)
        fail_msg("%s", err.msg);
    json_decref(head);
    cart_jsonl_close(l);
    fclose(out);
    unlink(listing);
    return name;
}

/* Joins the listings; 0 and the listing of the result in *text (caller frees), or the error. */
static int join(const char *a, const char *b, bool gaps, char **text, struct cart_err *err)
{
    char *names[2] = {pack(a), pack(b)};
    FILE *joined = tmpfile(), *list = tmpfile();
    int r = cart_stream_join((const char *const *)names, 2, fileno(joined), "joined", 0, gaps, err);

    if (r >= 0) {
        struct cart_stream_reader *in;
        lseek(fileno(joined), 0, SEEK_SET);
        assert_int_equal(cart_stream_open_fd(&in, fileno(joined), "joined", NULL, err), 0);
        assert_int_equal(cart_listing_stream(in, fileno(list), "list", err), 0);
        cart_stream_close(in);
        off_t n = lseek(fileno(list), 0, SEEK_END);
        *text = calloc(1, (size_t)n + 1);
        assert_int_equal(pread(fileno(list), *text, (size_t)n, 0), n);
        /* The end line's digest is not at issue here. */
        *strstr(*text, "{\"record\":\"end\"") = '\0';
    }
    for (int i = 0; i < 2; i++) {
        unlink(names[i]);
        free(names[i]);
    }
    fclose(joined);
    fclose(list);
    return r;
}

static void join_gives(const char *a, const char *b, bool gaps, const char *expected)
{
    struct cart_err err = {0};
    char *text;

    int r = join(a, b, gaps, &text, &err);
    if (r < 0)
        fail_msg("%s", err.msg);
    assert_int_equal(r, strstr(expected, "\"shard\":[") != NULL);
    assert_string_equal(text, expected);
    free(text);
}

static void join_fails(const char *a, const char *b, int code, const char *part)
{
    struct cart_err err = {0};
    char *text;

    assert_int_equal(join(a, b, false, &text, &err), code);
    if (strstr(err.msg, part) == NULL)
        fail_msg("'%s' does not say '%s'", err.msg, part);
}

#define HEAD(kind, more)                                                                           \
    "{\"record\":\"head\"," more "\"history\":[],\"kind\":\"" kind                                 \
    "\",\"limits\":{\"record\":1073741824},\"model\":{\"geometry\":\"0\",\"tokenizer\":\"1\"}"
#define V ",\"version\":[1,0]}\n"
#define MODEL ",\"model\":{\"geometry\":\"0\",\"tokenizer\":\"1\"}"
#define SHARD(a, b) ",\"shard\":[" #a "," #b "]"
#define END "{\"record\":\"end\"}\n"
#define N(n) C(n, "train", IDS) "\n"
#define D DOC0 "\n" DOC1 "\n"
#define CONVS HEAD("conversations", "\"conversations\":6,")

static int pack_text(const char *text, struct cart_err *err);

/* HEAD as it is without the model, and with odd members. */
static void test_heads(void **state)
{
    static const char *const bad[][2] = {
        {"\"model\"", ""},
        {"\"model\"", ",\"model\":7"},
        {"model: geometry", ",\"model\":{\"tokenizer\":\"1\"}"},
        {"model: tokenizer", ",\"model\":{\"geometry\":\"0\",\"tokenizer\":\"\"}"},
        {"model: weights", ",\"model\":{\"geometry\":\"0\",\"tokenizer\":\"1\",\"weights\":5}"},
        {"history", ",\"history\":7" MODEL},
        {"history", ",\"history\":[{\"version\":\"1\"}]" MODEL},
        {"conversations", ",\"conversations\":-1" MODEL},
        {"held_out", ",\"conversations\":3,\"held_out\":4" MODEL},
        {"shard", ",\"conversations\":3,\"shard\":[1,4]" MODEL},
        {"shard", ",\"conversations\":3,\"shard\":[2,1]" MODEL},
    };

    (void)state;
    for (size_t i = 0; i < CART_COUNTOF(bad); i++) {
        struct cart_buf text = CART_BUF_INIT;
        struct cart_err err = {0};
        const char *history = strstr(bad[i][1], "history") ? "" : ",\"history\":[]";
        assert_int_equal(cart_buf_addf(&text, &err,
                                       "{\"record\":\"head\",\"kind\":\"targets\"%s%s}\n%s",
                                       history, bad[i][1], END),
                         0);
        int r = pack_text(text.data, &err);
        const char *part = bad[i][0][0] == '"' ? "model: expected" : bad[i][0];
        if (r != CART_EFORMAT || !strstr(err.msg, part))
            fail_msg("%s: %d '%s'", bad[i][1], r, err.msg);
        cart_buf_release(&text);
    }
}

static void test_join(void **state)
{
    (void)state;
    join_gives(CONVS V D N(0) N(1) END, CONVS V D N(2) N(4) END, false,
               CONVS V D N(0) N(1) N(2) N(4));
    join_gives(CONVS V D N(0) END, CONVS V D N(2) END, true, CONVS V D N(0) N(2));
    join_gives(CONVS V D END, CONVS V D N(2) END, false, CONVS V D N(2));
    join_gives(HEAD("metrics", "") V METR "\n" END, HEAD("metrics", "") V METR "\n" END, false,
               HEAD("metrics", "") V METR "\n" METR "\n");
    join_gives(HEAD("tokens", "") V DOC0 "\n" END,
               HEAD("tokens", "") V "{\"record\":\"doc\",\"doc\":0,\"bytes\":0," SHA
                                    ",\"tokens\":[]}\n" END,
               false, HEAD("tokens", "") V D);
    join_fails(CONVS V D N(0) END, CONVS V D N(2) END, CART_EMATCH, "--allow-gaps");
    join_fails(CONVS V D N(2) END, CONVS V D N(0) END, CART_EMATCH, "rising order");
    join_fails(CONVS V D N(2) END, CONVS V D N(2) END, CART_EMATCH, "each once");
    join_fails(CONVS V D N(0) END, CONVS V DOC0 "\n" N(1) END, CART_EMATCH, "documents differ");
    join_fails(CONVS V D N(0) END, CONVS V DOC0 "\n" END, CART_EMATCH, "documents differ");
    join_fails(CONVS V D N(0) END, HEAD("conversations", "") V D N(1) END, CART_EMATCH,
               "its HEAD differs");
    join_fails(CONVS V D N(0) END, HEAD("metrics", "") V END, CART_EFORMAT,
               "expected a conversations stream");
}

static void test_join_by_range(void **state)
{
    (void)state;
    join_gives(CONVS SHARD(0, 3) V D N(0) END, CONVS SHARD(3, 6) V D N(4) END, false,
               CONVS V D N(0) N(4));
    join_gives(CONVS SHARD(1, 3) V D N(1) END, CONVS SHARD(3, 6) V D N(4) END, false,
               CONVS SHARD(1, 6) V D N(1) N(4));
    join_fails(CONVS SHARD(0, 3) V D N(0) END, CONVS SHARD(4, 6) V D N(4) END, CART_EMATCH,
               "begins at 3, found 4");
    join_fails(CONVS SHARD(0, 3) V D N(0) END, CONVS V D N(4) END, CART_EMATCH, "its HEAD differs");
}

/* --- listings --- */

static int pack_text(const char *text, struct cart_err *err)
{
    FILE *out = tmpfile();
    char name[512];
    struct cart_jsonl *l;
    const char *record;
    json_t *head;

    snprintf(name, sizeof name, "%s/kinds-%d.jsonl", folder(), (int)getpid());
    FILE *f = fopen(name, "w");
    fputs(text, f);
    fclose(f);
    assert_int_equal(cart_jsonl_open(&l, name, err), 0);
    int r = cart_jsonl_next(l, &head, &record, err);
    if (r == 1) {
        r = cart_listing_pack(l, head, fileno(out), "out", 0, err);
        json_decref(head);
    }
    cart_jsonl_close(l);
    fclose(out);
    unlink(name);
    return r;
}

static void test_pack(void **state)
{
    static const struct {
        const char *text;
        int code;
        const char *says;
    } cases[] = {
        {HEAD("tokens", "") V "\n  \r\n" D END, 0, ""},
        {HEAD("tokens", "") V D "{\"record\":\"end\",\"records\":2}", 0, ""},
        {HEAD("tokens", "") V D "{\"record\":\"end\",\"records\":3}\n", 1, ""},
        {HEAD("tokens", "") V D "{\"record\":\"end\",\"digest\":\"00\"}\n", 1, ""},
        {HEAD("tokens", "") V D, CART_ETRUNC, "no line has \"record\":\"end\""},
        {HEAD("tokens", "") V END D, CART_EFORMAT, "line 3: a line follows the end line"},
        {HEAD("tokens", "") V CONV "\n" END, CART_EFORMAT, "line 2"},
        {HEAD("tokens", "") V "hello\n" END, CART_EFORMAT, "line 2: expected a JSON object"},
        {HEAD("tokens", "") V "{\"record\":\"skippable\",\"type\":\"ABCD\",\"hex\":\"00ff\"}\n" END,
         0, ""},
        {HEAD("tokens", "") V "{\"record\":\"skippable\",\"type\":\"DOC \",\"hex\":\"00ff\"}\n" END,
         CART_EFORMAT, "DOC "},
        {HEAD("tokens", "") V "{\"record\":\"skippable\",\"type\":\"abcd\",\"hex\":\"\"}\n" END,
         CART_EFORMAT, "type"},
        {HEAD("tokens", "") V "{\"record\":\"skippable\",\"type\":\"ABCD\",\"hex\":\"0\"}\n" END,
         CART_EFORMAT, "hex"},
        {"{\"record\":\"head\",\"kind\":\"tokens\"}\n" END, CART_EFORMAT, "history"},
        {"{\"record\":\"head\",\"kind\":\"x\",\"history\":[]}\n" END, CART_EFORMAT, "unknown kind"},
        {"{\"record\":\"head\",\"kind\":\"tokens\",\"history\":[],\"model\":{\"geometry\":\"0\","
         "\"tokenizer\":\"1\"},\"version\":[2,0]}\n" END,
         CART_EFORMAT, "version"},
    };

    (void)state;
    for (size_t i = 0; i < CART_COUNTOF(cases); i++) {
        struct cart_err err = {0};
        int r = pack_text(cases[i].text, &err);
        if (r != cases[i].code || strstr(err.msg, cases[i].says) == NULL)
            fail_msg("case %zu: %d '%s'", i, r, err.msg);
    }
}

/* A row of n entries as likely as each other. */
static const char *row_fault(int32_t *ids, float *logprobs, size_t n)
{
    for (size_t i = 0; i < n; i++)
        logprobs[i] = (float)-log((double)n);
    return cart_target_row_fault(ids, logprobs, n, (float)log((double)n));
}

/* A token stands once in a row, wherever the other would be; and that costs no comparison of all
 * with all. */
static void test_rows_name_tokens_once(void **state)
{
    enum { MOST = CART_TARGET_ROW_MAX, ROWS = 300 };
    static const size_t sizes[] = {2, 3, 20, 33, 1000, MOST};
    int32_t *ids = malloc((MOST + 1) * sizeof *ids);
    float *logprobs = malloc((MOST + 1) * sizeof *logprobs);

    (void)state;
    assert_true(ids && logprobs);
    for (size_t i = 0; i <= MOST; i++)
        ids[i] = (int32_t)((i * 2654435761u) & 0x7fffffff);
    for (size_t s = 0; s < CART_COUNTOF(sizes); s++) {
        size_t n = sizes[s];
        for (size_t k = 0; k < 50; k++) {
            size_t a = k * 7 % n, b = (a + 1 + k * 13 % (n - 1)) % n;
            int32_t was = ids[b];
            assert_null(row_fault(ids, logprobs, n));
            ids[b] = ids[a];
            assert_string_equal(row_fault(ids, logprobs, n),
                                "target_ids: a token occurs twice in a row");
            ids[b] = was;
        }
    }
    assert_string_equal(row_fault(ids, logprobs, MOST + 1),
                        "offsets: more than 4096 entries in a row");
    double start = cart_clock_cpu();
    for (size_t i = 0; i < ROWS; i++)
        assert_null(row_fault(ids, logprobs, MOST));
    double seconds = cart_clock_cpu() - start;
    print_message("# %d rows of %d in %.3f s\n", ROWS, MOST, seconds);
    assert_true(seconds < 1.0);
    free(ids);
    free(logprobs);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_rows_name_tokens_once),
        cmocka_unit_test(test_twins),
        cmocka_unit_test(test_twin_in_any_order),
        cmocka_unit_test(test_twin_refused),
        cmocka_unit_test(test_payloads_refused),
        cmocka_unit_test(test_fields),
        cmocka_unit_test(test_heads),
        cmocka_unit_test(test_rules),
        cmocka_unit_test(test_join),
        cmocka_unit_test(test_join_by_range),
        cmocka_unit_test(test_pack),
        cmocka_unit_test(test_head_binds),
    };

    cmocka_set_message_output(CM_OUTPUT_TAP);
    return cmocka_run_group_tests_name("kinds", tests, NULL, NULL);
}
