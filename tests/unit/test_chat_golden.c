/* Chat profiles against rendered templates and the ids of the rendered text: exact, every case. */
#include "helper/vocab.h"
#include "token/chat.h"

#include "base/hash.h"
#include "base/io.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

struct score {
    size_t right, all;
};

static void report(const char *set, struct score s)
{
    printf("# %s: %zu of %zu\n", set, s.right, s.all);
    assert_int_equal(s.right, s.all);
}

static struct cart_chat *open_chat(const struct test_vocab *v, const char *profile,
                                   const char *expected)
{
    struct cart_err err = {0};
    struct cart_chat *c = NULL;
    if (cart_chat_new(&c, v->t, v->chat_template.data, v->chat_template.len, profile, &err) < 0)
        fail_msg("%s", err.msg);
    assert_string_equal(cart_chat_profile(c), expected);
    return c;
}

/* One golden case; the members that it lacks are not compared. */
struct expected {
    const json_t *messages, *text, *ids_special, *ids_plain;
};

static bool one(const struct cart_chat *c, const struct expected *e, struct cart_chat_options o,
                const char *label)
{
    struct cart_err err = {0};
    struct cart_chat_message *msgs = NULL;
    struct cart_buf text = CART_BUF_INIT;
    struct cart_ids plain = CART_IDS_INIT, special = CART_IDS_INIT;
    size_t n = 0;
    bool same = true;
    assert_int_equal(cart_chat_messages_parse(e->messages, &msgs, &n, "messages", &err), 0);
    assert_int_equal(cart_chat_render_text(c, msgs, n, &o, &text, &err), 0);
    if (e->text != NULL && strcmp(text.data, json_string_value(e->text)) != 0) {
        printf("# %s: expected\n# %s\n# found\n# %s\n", label, json_string_value(e->text),
               text.data);
        same = false;
    }
    assert_int_equal(cart_chat_render(c, msgs, n, &o, &plain, NULL, &err), 0);
    o.special_content = true;
    assert_int_equal(cart_chat_render(c, msgs, n, &o, &special, NULL, &err), 0);
    if (e->ids_special != NULL)
        same = test_ids_equal(&special, e->ids_special, label) && same;
    if (e->ids_plain != NULL)
        same = test_ids_equal(&plain, e->ids_plain, label) && same;
    cart_ids_release(&plain);
    cart_ids_release(&special);
    cart_buf_release(&text);
    free(msgs);
    return same;
}

static struct cart_chat_options options_of(const json_t *g)
{
    const json_t *think = json_object_get(g, "enable_thinking");
    const json_t *tools = json_object_get(g, "tools");
    return (struct cart_chat_options){
        .generation_prompt = json_is_true(json_object_get(g, "add_generation_prompt")),
        .think = json_is_true(think)    ? CART_THINK_ON
                 : json_is_false(think) ? CART_THINK_OFF
                                        : CART_THINK_AUTO,
        .tools = json_is_array(tools) ? tools : NULL,
    };
}

static void test_qwen3(void **state)
{
    struct test_vocab v;
    struct score s = {0, 0};
    (void)state;
    json_t *cases = test_json_lines(test_shared("qwen3-chat-golden.jsonl"));
    if (cases == NULL ||
        !test_vocab_open(&v, test_shared("qwen3-tokenizer/qwen3-vocab-tiny.gguf.zst"))) {
        json_decref(cases);
        skip();
    }
    struct cart_chat *c = open_chat(&v, NULL, "qwen3");
    for (size_t i = 0; i < json_array_size(cases); i++) {
        const json_t *g = json_array_get(cases, i);
        const json_t *plain = json_object_get(g, "ids_content_as_plain_text");
        struct expected e = {json_object_get(g, "messages"), json_object_get(g, "rendered"),
                             json_object_get(g, "ids"),
                             plain != NULL ? plain : json_object_get(g, "ids")};
        s.all++;
        s.right += one(c, &e, options_of(g), json_string_value(json_object_get(g, "id")));
    }
    cart_chat_free(c);
    test_vocab_close(&v);
    json_decref(cases);
    report("qwen3 chat: text, ids, ids with plain content", s);
    assert_int_equal(s.all, 16);
}

static void test_qwen25(void **state)
{
    struct test_vocab v;
    struct score s = {0, 0};
    struct cart_buf text = CART_BUF_INIT;
    (void)state;
    json_t *cases = test_json_lines(test_shared("qwen2.5-chat/golden.jsonl"));
    if (cases == NULL ||
        !test_vocab_open(&v, test_shared("qwen3-tokenizer/qwen3-vocab-tiny.gguf.zst"))) {
        json_decref(cases);
        skip();
    }
    assert_int_equal(cart_io_slurp(test_shared("qwen2.5-chat/qwen2.5-chat-template.jinja"), 1 << 20,
                                   &text, NULL),
                     0);
    v.chat_template = (struct cart_gguf_str){text.data, text.len};
    /* Qwen2.5's vocabulary is Qwen3's without its last four tokens. */
    for (size_t i = 151665; i < v.src.n_types; i++)
        v.types[i] = CART_TOKEN_UNUSED;
    cart_tokenizer_free(v.t);
    assert_int_equal(cart_tokenizer_new(&v.t, &v.src, NULL), 0);
    struct cart_chat *c = open_chat(&v, NULL, "qwen2.5");
    for (size_t i = 0; i < json_array_size(cases); i++) {
        const json_t *g = json_array_get(cases, i);
        const char *label = json_string_value(json_object_get(g, "id"));
        bool injected = strcmp(label, "control-in-content") == 0;
        struct expected e = {json_object_get(g, "messages"), json_object_get(g, "rendered"),
                             json_object_get(g, "ids"),
                             injected ? NULL : json_object_get(g, "ids")};
        s.all++;
        s.right += one(c, &e, options_of(g), label);
    }
    cart_chat_free(c);
    test_vocab_close(&v);
    cart_buf_release(&text);
    json_decref(cases);
    report("qwen2.5 chat: text, ids", s);
    assert_int_equal(s.all, 9);
}

static void test_smollm2(void **state)
{
    struct test_vocab v;
    struct score s = {0, 0};
    (void)state;
    json_t *cases = test_json(test_shared("smollm2-golden/g5_chat_smollm2.json"));
    if (cases == NULL || !test_vocab_open(&v, test_demo_model())) {
        json_decref(cases);
        skip();
    }
    struct cart_chat *c = open_chat(&v, NULL, "smollm2");
    for (size_t i = 0; i < json_array_size(cases); i++) {
        const json_t *g = json_array_get(cases, i);
        char label[32];
        snprintf(label, sizeof label, "case %zu", i);
        struct expected e = {json_object_get(g, "messages"), json_object_get(g, "text"),
                             json_object_get(g, "ids_special"),
                             json_object_get(g, "ids_content_as_text")};
        s.all++;
        s.right += one(c, &e, options_of(g), label);
    }
    cart_chat_free(c);
    test_vocab_close(&v);
    json_decref(cases);
    report("smollm2 chat: text, ids, ids with plain content", s);
    assert_int_equal(s.all, 6);
}

/* The conversation behind the "chat" texts of the tiny models. */
static const char tiny_messages[] =
    "[{\"role\":\"user\",\"content\":\"What is the capital of France?\"},"
    "{\"role\":\"assistant\",\"content\":\"Paris.\"},"
    "{\"role\":\"user\",\"content\":\"Thanks!\\nBye\"}]";

static void test_tiny(void **state)
{
    static const char *const names[] = {"llama_tied", "llama3_untied", "qwen3"};
    static const char *const profiles[] = {"chatml", "llama3", "chatml"};
    struct score s = {0, 0};
    json_t *messages = NULL;
    (void)state;
    assert_int_equal(
        cart_json_parse(&messages, tiny_messages, strlen(tiny_messages), "messages", NULL), 0);
    json_t *golden = test_json(test_root("tests/golden/token/tokenizers.golden.json"));
    for (size_t k = 0; k < CART_COUNTOF(names); k++) {
        struct test_vocab v;
        char file[128];
        snprintf(file, sizeof file, "tests/golden/tiny/%s.gguf", names[k]);
        assert_true(test_vocab_open(&v, test_root(file)));
        struct cart_chat *c = open_chat(&v, NULL, profiles[k]);
        struct expected e = {messages, json_object_get(json_object_get(golden, names[k]), "chat"),
                             NULL, NULL};
        const json_t *texts = json_object_get(json_object_get(golden, names[k]), "texts");
        for (size_t i = 0; i < json_array_size(texts); i++) {
            const json_t *t = json_array_get(texts, i);
            if (json_equal(json_object_get(t, "text"), e.text))
                e.ids_special = e.ids_plain = json_object_get(t, "ids");
        }
        s.all++;
        s.right += one(c, &e, (struct cart_chat_options){.generation_prompt = true}, names[k]) &&
                   e.ids_plain != NULL;
        cart_chat_free(c);
        test_vocab_close(&v);
    }
    json_decref(messages);
    json_decref(golden);
    report("tiny models' chat: text, ids", s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_qwen3),
        cmocka_unit_test(test_qwen25),
        cmocka_unit_test(test_smollm2),
        cmocka_unit_test(test_tiny),
    };
    cmocka_set_message_output(CM_OUTPUT_TAP);
    return cmocka_run_group_tests_name("chat goldens", tests, NULL, NULL);
}
