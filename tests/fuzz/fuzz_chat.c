/* Conversations through every chat profile: {"messages": [...], "tools": [...],
 * "add_generation_prompt", "behind"}. The ids spell what the template would write, and no message
 * makes a control token. */
#include "fuzz/fuzz.h"
#include "helper/vocab.h"
#include "token/chat.h"

#include <stdlib.h>
#include <string.h>

static const char *const profiles[] = {"chatml", "smollm2", "qwen2.5", "qwen3", "llama3"};
static const char *const merges[] = {"h i", "\xc4\x8a \xc4\x8a", "< |", NULL};
static const char *const control[] = {
    "<|im_start|>",      "<|im_end|>",        "<|endoftext|>",
    "<think>",           "</think>",          "<tool_call>",
    "</tool_call>",      "<|begin_of_text|>", "<|start_header_id|>",
    "<|end_header_id|>", "<|eot_id|>",        NULL};
static struct test_vocab vocab;
static struct cart_chat *chats[CART_COUNTOF(profiles)];

static void prepare(void)
{
    struct cart_err err = {0};
    test_vocab_small(&vocab, "qwen2", merges, control, CART_TOKEN_CONTROL);
    cart_tokenizer_free(vocab.t);
    vocab.src.bos = (int64_t)(256 + CART_COUNTOF(merges) - 1 + 7);
    fuzz_need(cart_tokenizer_new(&vocab.t, &vocab.src, &err), &err);
    for (size_t i = 0; i < CART_COUNTOF(profiles); i++)
        fuzz_need(cart_chat_new(&chats[i], vocab.t, NULL, 0, profiles[i], &err), &err);
}

static size_t count_special(const struct cart_ids *ids)
{
    size_t n = 0;
    for (size_t i = 0; i < ids->n; i++)
        n += cart_tokenizer_is_special(vocab.t, ids->data[i]);
    return n;
}

static void normalize(const struct cart_buf *text, struct cart_buf *out)
{
    struct cart_err err = {0};
    fuzz_need(cart_tokenizer_normalize(vocab.t, text->data ? text->data : "", text->len, out, &err),
              &err);
}

static void check(const struct cart_chat *c, const struct cart_chat_message *msgs, size_t n,
                  const struct cart_chat_options *o)
{
    struct cart_err err = {0};
    struct cart_ids ids = CART_IDS_INIT, full = CART_IDS_INIT;
    struct cart_buf text = CART_BUF_INIT, spelt = CART_BUF_INIT, a = CART_BUF_INIT,
                    b = CART_BUF_INIT;
    struct cart_encode_stats stats = {0};
    struct cart_chat_options special = *o;
    special.special_content = true;
    int r = cart_chat_render(c, msgs, n, o, &ids, &stats, &err);
    if (r < 0) {
        fuzz_refused(r, &err);
        fuzz_demand(ids.n == 0, "no ids of a conversation refused");
    } else {
        fuzz_need(cart_chat_render_text(c, msgs, n, o, &text, &err), &err);
        fuzz_need(cart_tokenizer_decode(vocab.t, ids.data, ids.n, true, &spelt, &err), &err);
        normalize(&text, &a);
        normalize(&spelt, &b);
        fuzz_demand(fuzz_same(&a, &b), "ids that spell the template's text");
        fuzz_need(cart_chat_render(c, msgs, n, &special, &full, NULL, &err), &err);
        fuzz_demand(count_special(&full) <= count_special(&ids) + stats.lookalikes,
                    "every control token that contents spell to be counted");
        ids.n = cart_chat_strip_thinking(c, ids.data, ids.n);
    }
    cart_buf_release(&a);
    cart_buf_release(&b);
    cart_buf_release(&spelt);
    cart_buf_release(&text);
    cart_ids_release(&full);
    cart_ids_release(&ids);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    struct cart_err err = {0};
    struct cart_chat_message *msgs = NULL;
    size_t n_msgs = 0;
    json_t *v;
    if (!vocab.t)
        prepare();
    char *copy = fuzz_copy(data, n);
    int r = cart_json_parse(&v, copy, n, "input", &err);
    free(copy);
    if (r < 0)
        return 0;
    r = cart_chat_messages_parse(json_object_get(v, "messages"), &msgs, &n_msgs, "input", &err);
    if (r < 0)
        fuzz_refused(r, &err);
    const json_t *tools = json_object_get(v, "tools");
    struct cart_chat_options o = {
        .generation_prompt = json_is_true(json_object_get(v, "add_generation_prompt")),
        .behind = json_is_true(json_object_get(v, "behind")),
        .think = json_is_true(json_object_get(v, "think")) ? CART_THINK_ON : CART_THINK_OFF,
        .tools = json_is_array(tools) ? tools : NULL};
    for (size_t i = 0; r == 0 && i < CART_COUNTOF(profiles); i++)
        check(chats[i], msgs, n_msgs, &o);
    free(msgs);
    json_decref(v);
    return 0;
}
