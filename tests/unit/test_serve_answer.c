/* serve/answer.h: made-up tokens become answers. A stream, joined, is the answer without a stream;
 * characters are whole, stop strings never shown, marks told apart from text that spells them, and
 * every byte sent is valid JSON. */
#include "base/json.h"
#include "model/model.h"
#include "serve/answer.h"
#include "serve/metrics.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

#include <cmocka.h>

#define MODEL "tests/golden/tiny/qwen3.gguf"

#define PROMPT "caf\xc3\xa9 or tea"

/* Ids that stand for marks in these tests. */
enum { THINK = 300, END_THINK, CALL, END_CALL };

static struct cart_serve serve;
static struct cart_model *model;

static int setup(void **state)
{
    struct cart_err err = {0};
    (void)state;
    if (cart_model_open(&model, MODEL, NULL, &err) < 0 ||
        cart_metrics_new(&serve.metrics, &err) < 0)
        return -1;
    serve.model = model;
    serve.opt.name = "m";
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    cart_metrics_free(serve.metrics);
    cart_model_close(model);
    return 0;
}

static struct cart_exchange *exchange(void)
{
    struct cart_exchange *x = calloc(1, sizeof *x);
    assert_non_null(x);
    pthread_mutex_init(&x->lock, NULL);
    x->serve = &serve;
    x->holders = 1;
    x->record.finish = x->record.cartridges = "";
    strcpy(x->id, "req-test");
    return x;
}

struct made {
    char text[512], thought[512], finish[16];
    char name[64], arguments[256];
    size_t calls, logprobs, frames;
};

static void append(char *to, size_t cap, const json_t *v)
{
    size_t n = strlen(to);
    if (json_is_string(v)) {
        assert_true(n + json_string_length(v) < cap);
        memcpy(to + n, json_string_value(v), json_string_length(v) + 1);
    }
}

static void read_message(struct made *m, const json_t *choice, const json_t *message)
{
    const json_t *calls = json_object_get(message, "tool_calls");
    append(m->text, sizeof m->text, json_object_get(message, "content"));
    append(m->text, sizeof m->text, json_object_get(choice, "text"));
    append(m->thought, sizeof m->thought, json_object_get(message, "reasoning_content"));
    for (size_t i = 0; i < json_array_size(calls); i++) {
        const json_t *call = json_array_get(calls, i), *fn = json_object_get(call, "function");
        m->calls += json_object_get(call, "id") != NULL;
        append(m->name, sizeof m->name, json_object_get(fn, "name"));
        append(m->arguments, sizeof m->arguments, json_object_get(fn, "arguments"));
    }
    m->logprobs += json_array_size(json_object_get(json_object_get(choice, "logprobs"), "content"));
    m->logprobs += json_array_size(json_object_get(json_object_get(choice, "logprobs"), "tokens"));
    const json_t *finish = json_object_get(choice, "finish_reason");
    if (json_is_string(finish)) {
        assert_string_equal(m->finish, "");
        append(m->finish, sizeof m->finish, finish);
    }
}

static void read_whole(struct made *m, const struct cart_exchange *x)
{
    json_t *v = NULL;
    struct cart_err err = {0};
    if (cart_json_parse(&v, x->out.data, x->out.len, "answer", &err) < 0)
        fail_msg("%s", err.msg);
    const json_t *choice = json_array_get(json_object_get(v, "choices"), 0);
    read_message(m, choice, json_object_get(choice, "message"));
    json_decref(v);
}

static void read_frames(struct made *m, const struct cart_exchange *x)
{
    const char *p = x->out.data, *end = p + x->out.len;
    bool done = false;
    while (p < end) {
        const char *stop = strstr(p, "\n\n");
        assert_non_null(stop);
        assert_memory_equal(p, "data: ", 6);
        assert_null(memchr(p, '\n', (size_t)(stop - p)));
        assert_false(done);
        done = strncmp(p, "data: [DONE]", 12) == 0;
        if (!done) {
            json_t *v = NULL;
            assert_int_equal(cart_json_parse(&v, p + 6, (size_t)(stop - p - 6), "frame", NULL), 0);
            const json_t *choice = json_array_get(json_object_get(v, "choices"), 0);
            read_message(m, choice, json_object_get(choice, "delta"));
            m->frames++;
            json_decref(v);
        }
        p = stop + 2;
    }
    assert_true(done);
}

/* The tokens of one choice; stops and marks as given. The value says whether a stop string came. */
static bool make(struct made *m, const uint32_t *ids, size_t n, bool stream, bool chat,
                 const char *stop, bool calls)
{
    struct cart_exchange *x = exchange();
    struct cart_sampling_params params = {.n = 1, .top_p = 1};
    struct cart_selection sel = {.model = "m", .how = "default"};
    struct cart_answer *a = NULL;
    const struct cart_answer_options o = {
        .chat = chat, .stream = stream, .logprobs = true, .marks = calls, .calls = calls, .n = 1};
    bool stopped = false;
    if (stop)
        params.stops = (struct cart_stops){.items = {{stop, strlen(stop)}}, .n = 1};
    assert_true(cart_answer_new(&a, x, 1, &o, &params, &sel));
    a->think_open = THINK;
    a->think_close = END_THINK;
    a->call_open = CALL;
    a->call_close = END_CALL;
    for (size_t i = 0; i < n && !stopped; i++) {
        struct cart_event e = {.type = CART_EVENT_TOKEN,
                               .id = ids[i],
                               .bytes = cart_tokenizer_bytes(cart_model_tokenizer(model), ids[i]),
                               .has_logprob = true,
                               .logprob = i == 1 ? -INFINITY : -0.5f};
        stopped = !a->group.on_event(&a->group, 0, &e);
    }
    const struct cart_event finish = {.type = CART_EVENT_FINISH,
                                      .finish = stopped ? CART_SERVE_CALLER : CART_SERVE_STOP};
    a->group.on_event(&a->group, 0, &finish);
    a->group.on_done(&a->group);
    memset(m, 0, sizeof *m);
    if (stream)
        read_frames(m, x);
    else
        read_whole(m, x);
    cart_exchange_release(x);
    return stopped;
}

static size_t encode(uint32_t *ids, const char *bytes, size_t n)
{
    const struct cart_tokenizer *t = cart_model_tokenizer(model);
    struct cart_ids out = CART_IDS_INIT;
    assert_int_equal(cart_tokenizer_encode(t, bytes, n, 0, &out, NULL, NULL), 0);
    memcpy(ids, out.data, out.n * sizeof *ids);
    n = out.n;
    cart_ids_release(&out);
    return n;
}

/* The same tokens with and without a stream; expected is the text. */
static void check_text(const char *bytes, const char *stop, const char *expected, bool stops)
{
    uint32_t ids[256];
    size_t n = encode(ids, bytes, strlen(bytes));
    for (int chat = 0; chat < 2; chat++) {
        struct made whole, streamed;
        assert_int_equal(make(&whole, ids, n, false, chat, stop, false), stops);
        assert_int_equal(make(&streamed, ids, n, true, chat, stop, false), stops);
        assert_string_equal(whole.text, expected);
        assert_string_equal(streamed.text, expected);
        assert_string_equal(whole.finish, "stop");
        assert_string_equal(streamed.finish, "stop");
        assert_int_equal(whole.logprobs, streamed.logprobs);
        assert_true(stops ? whole.logprobs < n : whole.logprobs == n);
    }
}

static void test_text(void **state)
{
    (void)state;
    check_text("plain", NULL, "plain", false);
    check_text("caf\xc3\xa9 \xf0\x9f\x98\x80\xe2\x80\x8d!", NULL,
               "caf\xc3\xa9 \xf0\x9f\x98\x80\xe2\x80\x8d!", false);
    check_text("a\xff"
               "b",
               NULL,
               "a\xef\xbf\xbd"
               "b",
               false);
    check_text("cut \xf0\x9f", NULL, "cut \xef\xbf\xbd", false);
    check_text("real \xef\xbf\xbd one", NULL, "real \xef\xbf\xbd one", false);
    check_text("line\n\nUser: hi", "\nUser:", "line\n", true);
    check_text("line\nUser; hi", "\nUser:", "line\nUser; hi", false);
    check_text("END", "END", "", true);
    check_text("spells <think> and <tool_call>", NULL, "spells <think> and <tool_call>", false);
    check_text("quotes \" and \\ and \t", NULL, "quotes \" and \\ and \t", false);
}

static void test_calls(void **state)
{
    static const char before[] = "Let me see.\n",
                      call[] = "\n{\"name\": \"f\", \"arguments\": {\"a\": \"\\u00e9}\"}}\n",
                      thought[] = "\nhm\nso\n";
    uint32_t ids[256];
    size_t n = 0;
    (void)state;
    ids[n++] = THINK;
    n += encode(ids + n, thought, strlen(thought));
    ids[n++] = END_THINK;
    n += encode(ids + n, "\n\n", 2);
    n += encode(ids + n, before, strlen(before));
    for (int i = 0; i < 2; i++) {
        ids[n++] = CALL;
        n += encode(ids + n, call, strlen(call));
        ids[n++] = END_CALL;
        n += encode(ids + n, "\n", 1);
    }
    for (int stream = 0; stream < 2; stream++) {
        struct made m;
        assert_false(make(&m, ids, n, stream, true, "}", true));
        assert_string_equal(m.thought, "hm\nso");
        assert_string_equal(m.text, "Let me see.");
        assert_string_equal(m.name, "ff");
        assert_string_equal(m.arguments, "{\"a\": \"\\u00e9}\"}{\"a\": \"\\u00e9}\"}");
        assert_int_equal(m.calls, 2);
        assert_string_equal(m.finish, "tool_calls");
        assert_int_equal(m.logprobs, n);
    }
}

/* What only begins like a call, or is none, is the client's to see. */
static void test_no_call(void **state)
{
    uint32_t ids[64];
    size_t n = 0;
    (void)state;
    n += encode(ids, "a\n", 2);
    ids[n++] = CALL;
    n += encode(ids + n, "nonsense", 8);
    ids[n++] = END_CALL;
    for (int stream = 0; stream < 2; stream++) {
        struct made m;
        make(&m, ids, n, stream, true, NULL, true);
        assert_string_equal(m.text, "a\n<tool_call>nonsense</tool_call>");
        assert_int_equal(m.calls, 0);
        assert_string_equal(m.finish, "stop");
        make(&m, ids, n - 1, stream, true, NULL, true);
        assert_string_equal(m.text, "a\n<tool_call>nonsense");
    }
}

/* What stands at the n-th character of UTF-8 text. */
static const char *character(const char *text, size_t n)
{
    for (; n > 0; n--)
        do
            text++;
        while (((unsigned char)*text & 0xc0) == 0x80);
    return text;
}

/* A token that is text of its own stands in the answer where its offset says, also behind bytes
 * that are no characters, one or several for a U+FFFD. */
static void test_offsets(void **state)
{
    static const char bytes[] = "h\xc3\xa9\xff"
                                "a\xe2\x82"
                                "b\xe2\x82\xac\xf0\x9f\x98\x80!\x80\x81z";
    struct cart_exchange *x = exchange();
    struct cart_sampling_params params = {.n = 1, .top_p = 1};
    struct cart_selection sel = {.model = "m", .how = "default"};
    const struct cart_answer_options o = {.logprobs = true, .echo = true, .n = 1};
    struct cart_answer *a = NULL;
    json_t *v = NULL;
    uint32_t ids[64];
    size_t n = encode(ids, bytes, sizeof bytes - 1), whole = 0;
    (void)state;
    assert_true(cart_answer_new(&a, x, 1, &o, &params, &sel));
    for (size_t i = 0; i < 2 * n; i++) {
        const uint32_t id = ids[i % n];
        struct cart_event e = {.type = i < n ? CART_EVENT_PROMPT : CART_EVENT_TOKEN,
                               .id = id,
                               .bytes = cart_tokenizer_bytes(cart_model_tokenizer(model), id),
                               .has_logprob = true,
                               .logprob = -1};
        assert_true(a->group.on_event(&a->group, 0, &e));
    }
    const struct cart_event finish = {.type = CART_EVENT_FINISH, .finish = CART_SERVE_LENGTH};
    a->group.on_event(&a->group, 0, &finish);
    a->group.on_done(&a->group);
    assert_int_equal(cart_json_parse(&v, x->out.data, x->out.len, "answer", NULL), 0);
    const json_t *choice = json_array_get(json_object_get(v, "choices"), 0);
    const json_t *logprobs = json_object_get(choice, "logprobs");
    const char *text = json_string_value(json_object_get(choice, "text"));
    for (size_t i = 0; i < 2 * n; i++) {
        const char *t = json_string_value(json_array_get(json_object_get(logprobs, "tokens"), i));
        json_int_t at =
            json_integer_value(json_array_get(json_object_get(logprobs, "text_offset"), i));
        if (strncmp(t, "bytes:", 6) == 0)
            continue;
        assert_memory_equal(character(text, (size_t)at), t, strlen(t));
        whole++;
    }
    assert_true(whole >= 2 * 5 && whole < 2 * n);
    json_decref(v);
    cart_exchange_release(x);
}

/* What is sent at its end has a bound; a stream has its reader's. */
static void test_large_answer(void **state)
{
    uint32_t ids[256];
    size_t n = encode(ids, "some words that are said again and again", 40);
    (void)state;
    for (int stream = 0; stream < 2; stream++) {
        struct cart_exchange *x = exchange();
        struct cart_sampling_params params = {.n = 1, .top_p = 1};
        struct cart_selection sel = {.model = "m", .how = "default"};
        const struct cart_answer_options o = {.stream = stream, .n = 1};
        struct cart_answer *a = NULL;
        size_t said = 0;
        assert_true(cart_answer_new(&a, x, 1, &o, &params, &sel));
        a->most = 400;
        for (bool go_on = true; go_on && said < 1000; said += go_on) {
            const uint32_t id = ids[said % n];
            struct cart_event e = {.type = CART_EVENT_TOKEN,
                                   .id = id,
                                   .bytes = cart_tokenizer_bytes(cart_model_tokenizer(model), id)};
            go_on = a->group.on_event(&a->group, 0, &e);
        }
        if (stream) {
            assert_int_equal(said, 1000);
        } else {
            assert_in_range(said, 400 / 40, 400);
            assert_int_equal(x->status, 400);
            assert_non_null(strstr(x->out.data, "answer_too_large"));
        }
        cart_exchange_release(x);
    }
}

/* The prompt repeated with logprobs in a stream, n choices: a token at a time goes out as there is
 * enough for a frame, and no more than that waits. read: the client takes all that there is. The
 * value is how many tokens went in. */
static size_t repeat_prompt(size_t tokens, size_t n, bool read, struct cart_exchange *x)
{
    struct cart_sampling_params params = {.n = n, .top_p = 1};
    struct cart_selection sel = {.model = "m", .how = "default"};
    const struct cart_answer_options o = {.stream = true, .logprobs = true, .echo = true, .n = n};
    struct cart_logprob top[CART_SERVE_TOP_MAX];
    struct cart_answer *a = NULL;
    uint32_t ids[64];
    size_t n_ids = encode(ids, PROMPT, strlen(PROMPT)), i = 0;
    for (uint32_t k = 0; k < CART_SERVE_TOP_MAX; k++)
        top[k] = (struct cart_logprob){40 + k, -0.25f};
    assert_true(cart_answer_new(&a, x, 1, &o, &params, &sel));
    for (bool go_on = true; i < tokens && go_on; i += go_on) {
        const uint32_t id = ids[i % n_ids];
        const struct cart_event e = {.type = CART_EVENT_PROMPT,
                                     .id = id,
                                     .bytes = cart_tokenizer_bytes(cart_model_tokenizer(model), id),
                                     .has_logprob = i > 0,
                                     .logprob = -1,
                                     .top = top,
                                     .n_top = i > 0 ? CART_SERVE_TOP_MAX : 0};
        go_on = a->group.on_event(&a->group, 0, &e);
        assert_true(!go_on || a->held < n * 20000);
        x->sent = read ? x->out.len : 0;
    }
    if (i == tokens) {
        for (size_t k = 0; k < n; k++) {
            const struct cart_event finish = {
                .type = CART_EVENT_FINISH, .choice = k, .finish = CART_SERVE_LENGTH};
            assert_true(a->group.on_event(&a->group, 0, &finish));
        }
        assert_int_equal(a->held, 0);
        a->group.on_done(&a->group);
    }
    return i;
}

static void test_long_prompt(void **state)
{
    (void)state;
    struct cart_exchange *x = exchange();
    struct made m = {0};
    uint32_t ids[64];
    char expected[512] = "";
    size_t tokens = 40 * encode(ids, PROMPT, strlen(PROMPT));
    for (int i = 0; i < 40; i++)
        strcat(expected, PROMPT);
    assert_int_equal(repeat_prompt(tokens, 1, false, x), tokens);
    read_frames(&m, x);
    assert_int_equal(m.logprobs, tokens);
    assert_in_range(m.frames, 4, 40);
    assert_string_equal(m.text, expected);
    assert_string_equal(m.finish, "length");
    cart_exchange_release(x);
    /* Who reads is never cut off, whoever does not is. */
    x = exchange();
    assert_int_equal(repeat_prompt(12000, 4, true, x), 12000);
    cart_exchange_release(x);
    x = exchange();
    assert_in_range(repeat_prompt(12000, 4, false, x), 500, 11999);
    assert_true(x->out.len <= CART_EXCHANGE_BACKLOG + 100000);
    assert_true(cart_buf_add(&x->out, "", 1, NULL) == 0);
    assert_non_null(strstr(x->out.data, "reader_too_slow"));
    cart_exchange_release(x);
}

/* An error of a stream that there is no memory for leaves it without its end. */
static void test_error_without_memory(void **state)
{
    (void)state;
    size_t n = (size_t)64 << 20;
    char *message = malloc(n);
    struct rlimit limit;
    assert_non_null(message);
    struct cart_exchange *x = exchange();
    static const char frame[] = "data: 1\n\n";
    memset(message, 'm', n - 1);
    message[n - 1] = '\0';
    assert_true(cart_exchange_push(x, frame, sizeof frame - 1));
    assert_int_equal(getrlimit(RLIMIT_AS, &limit), 0);
    const struct rlimit none = {1 << 20, limit.rlim_max};
    assert_int_equal(setrlimit(RLIMIT_AS, &none), 0);
    cart_exchange_error_with(x, 500, "failed", NULL, NULL, message);
    assert_int_equal(setrlimit(RLIMIT_AS, &limit), 0);
    assert_true(x->ended);
    assert_int_equal(x->out.len, sizeof frame - 1);
    free(message);
    cart_exchange_release(x);
}

/* The longest x-request-id is in the answer's id whole. */
static void test_id(void **state)
{
    (void)state;
    for (int chat = 0; chat < 2; chat++) {
        struct cart_exchange *x = exchange();
        struct cart_sampling_params params = {.n = 1, .top_p = 1};
        struct cart_selection sel = {.model = "m", .how = "default"};
        const struct cart_answer_options o = {.chat = chat, .n = 1};
        struct cart_answer *a = NULL;
        char expected[64];
        memset(x->id, 'i', sizeof x->id - 1);
        x->id[sizeof x->id - 2] = 'z';
        assert_true(cart_answer_new(&a, x, 1, &o, &params, &sel));
        snprintf(expected, sizeof expected, "%s-%s", chat ? "chatcmpl" : "cmpl", x->id);
        assert_string_equal(a->id, expected);
        cart_exchange_release(x);
    }
}

/* A reader that takes nothing has a bounded backlog; then the answer is cut off, and says so. */
static void test_slow_reader(void **state)
{
    struct cart_exchange *x = exchange();
    static char block[65536];
    size_t n = 0;
    (void)state;
    memset(block, 'x', sizeof block);
    while (cart_exchange_push(x, block, sizeof block))
        assert_true(++n < 1000);
    assert_true(n * sizeof block >= CART_EXCHANGE_BACKLOG);
    assert_true(x->out.len <= CART_EXCHANGE_BACKLOG + 2 * sizeof block);
    cart_exchange_error(x, 503, "reader_too_slow", NULL, "slow");
    assert_true(x->ended);
    static const char tail[] = "\n\ndata: [DONE]\n\n";
    assert_memory_equal(x->out.data + x->out.len - (sizeof tail - 1), tail, sizeof tail - 1);
    cart_exchange_release(x);
}

/* What a schema asks too much for fails alike every time; what there was no memory for may not. */
static void test_failures(void **state)
{
    static const struct {
        int code;
        unsigned status;
        const char *name;
        bool no_retry;
    } cases[] = {{CART_EFORMAT, 400, "\"unsupported_schema\"", true},
                 {CART_ESYS, 500, "\"failed\"", false}};
    (void)state;
    for (size_t i = 0; i < CART_COUNTOF(cases); i++) {
        struct cart_exchange *x = exchange();
        struct cart_sampling_params params = {.n = 1, .top_p = 1};
        struct cart_selection sel = {.model = "m", .how = "default"};
        struct cart_answer *a = NULL;
        const struct cart_answer_options o = {.chat = true, .n = 1};
        const struct cart_err err = {.code = cases[i].code, .msg = "what it was"};
        const struct cart_event finish = {
            .type = CART_EVENT_FINISH, .finish = CART_SERVE_FAILED, .err = &err};
        assert_true(cart_answer_new(&a, x, 1, &o, &params, &sel));
        a->group.on_event(&a->group, 0, &finish);
        a->group.on_done(&a->group);
        assert_int_equal(x->status, cases[i].status);
        assert_int_equal(x->no_retry, cases[i].no_retry);
        assert_true(cart_buf_add(&x->out, "", 1, NULL) == 0);
        assert_non_null(strstr(x->out.data, cases[i].name));
        assert_non_null(strstr(x->out.data, "what it was"));
        cart_exchange_release(x);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_text),         cmocka_unit_test(test_calls),
        cmocka_unit_test(test_no_call),      cmocka_unit_test(test_offsets),
        cmocka_unit_test(test_large_answer), cmocka_unit_test(test_slow_reader),
        cmocka_unit_test(test_failures),     cmocka_unit_test(test_long_prompt),
        cmocka_unit_test(test_id),           cmocka_unit_test(test_error_without_memory),
    };
    /* The last one needs a limit of addresses, which sanitizers cannot live under. */
    size_t n = CART_COUNTOF(tests) - (getenv("CART_SANITIZED") != NULL);
    cmocka_set_message_output(CM_OUTPUT_TAP);
    return _cmocka_run_group_tests("tests", tests, n, setup, teardown);
}
