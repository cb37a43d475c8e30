#include "serve/prompt.h"

#include "model/model.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MESSAGES_MAX ((size_t)65536)
#define TOOLS_MAX ((size_t)128)

/* ---- messages ---- */

/* An array of text parts, joined; the text is kept by p. */
static bool join_parts(struct cart_prompt *p, const json_t *parts, size_t i,
                       struct cart_chat_message *m, struct cart_fault *f)
{
    char param[80];
    struct cart_buf *b = &p->texts[p->n_texts++];
    snprintf(param, sizeof param, "messages[%zu].content", i);
    if (json_array_size(parts) == 0)
        return cart_fault_value(f, param, "%s: expected at least one part, found none", param);
    for (size_t k = 0; k < json_array_size(parts); k++) {
        const json_t *part = json_array_get(parts, k), *text = json_object_get(part, "text");
        const char *type = cart_json_word(json_object_get(part, "type"));
        snprintf(param, sizeof param, "messages[%zu].content[%zu]", i, k);
        if (type && strcmp(type, "refusal") == 0)
            text = json_object_get(part, "refusal");
        else if (type && strcmp(type, "text") != 0) {
            char shown[48];
            return cart_fault_set(f, 400, "unsupported_feature", param,
                                  "%s.type: expected text, found '%s'", param,
                                  cart_err_escape(shown, sizeof shown, type, strlen(type)));
        }
        if (!type || !json_is_string(text))
            return cart_fault_found(
                f, param, type ? text : part,
                type ? "%s.text: expected a string" : "%s: expected a part of type text", param);
        if (cart_buf_add(b, json_string_value(text), json_string_length(text), NULL) < 0)
            return cart_fault_memory(f);
    }
    m->content = b->data ? b->data : "";
    m->n = b->len;
    return true;
}

static bool read_calls(const json_t *v, size_t i, struct cart_chat_message *m, struct cart_fault *f)
{
    const json_t *calls = cart_param(v, "tool_calls");
    char param[80];
    snprintf(param, sizeof param, "messages[%zu].tool_calls", i);
    if (!calls)
        return true;
    if (!json_is_array(calls) || json_array_size(calls) > TOOLS_MAX)
        return cart_fault_found(f, param, calls, "%s: expected an array of at most %zu calls",
                                param, TOOLS_MAX);
    for (size_t k = 0; k < json_array_size(calls); k++) {
        const json_t *fn = json_object_get(json_array_get(calls, k), "function");
        if (!json_is_string(json_object_get(fn, "name")) ||
            !json_is_string(json_object_get(fn, "arguments")))
            return cart_fault_found(f, param, fn,
                                    "%s[%zu].function: expected a name and arguments as a string",
                                    param, k);
    }
    if (json_array_size(calls) > 0)
        m->tool_calls = calls;
    return true;
}

static bool read_role(const json_t *v, size_t i, struct cart_chat_message *m, struct cart_fault *f)
{
    static const char *const roles[] = {"system", "user", "assistant", "tool"};
    const char *role = cart_json_word(json_object_get(v, "role"));
    char param[80], shown[48];
    snprintf(param, sizeof param, "messages[%zu].role", i);
    if (!role)
        return cart_fault_found(f, param, json_object_get(v, "role"), "%s: expected a string",
                                param);
    if (strcmp(role, "developer") == 0)
        role = "system";
    for (size_t k = 0; k < CART_COUNTOF(roles); k++)
        if (strcmp(roles[k], role) == 0)
            m->role = roles[k];
    return m->role ||
           cart_fault_value(f, param,
                            "%s: expected system, developer, user, assistant or tool, found '%s'",
                            param, cart_err_escape(shown, sizeof shown, role, strlen(role)));
}

static bool read_message(struct cart_prompt *p, const json_t *v, size_t i, struct cart_fault *f)
{
    struct cart_chat_message *m = &p->messages[i];
    const json_t *content = cart_param(v, "content"),
                 *reasoning = cart_param(v, "reasoning_content");
    char param[80];
    snprintf(param, sizeof param, "messages[%zu]", i);
    if (!json_is_object(v))
        return cart_fault_found(f, param, v, "%s: expected an object", param);
    if (!read_role(v, i, m, f))
        return false;
    bool assistant = strcmp(m->role, "assistant") == 0;
    if (assistant && !read_calls(v, i, m, f))
        return false;
    snprintf(param, sizeof param, "messages[%zu].content", i);
    if (json_is_array(content))
        return join_parts(p, content, i, m, f);
    /* What an assistant said may be nothing: null says so, and calls or reasoning in its place
     * do. */
    bool silent =
        assistant && !content && (json_object_get(v, "content") || m->tool_calls || reasoning);
    if (!json_is_string(content) && !silent)
        return cart_fault_found(f, param, json_object_get(v, "content"),
                                "%s: expected a string or an array of parts", param);
    m->content = content ? json_string_value(content) : "";
    m->n = content ? json_string_length(content) : 0;
    if (assistant && reasoning) {
        if (!json_is_string(reasoning))
            return cart_fault_found(f, param, reasoning,
                                    "messages[%zu].reasoning_content: expected a string", i);
        m->reasoning = json_string_value(reasoning);
        m->n_reasoning = json_string_length(reasoning);
    }
    return true;
}

static bool read_messages(struct cart_prompt *p, const json_t *body, struct cart_fault *f)
{
    const json_t *list = cart_param(body, "messages");
    size_t n = json_array_size(list);
    if (!json_is_array(list))
        return cart_fault_found(f, "messages", json_object_get(body, "messages"),
                                "messages: expected an array");
    if (n == 0 || n > MESSAGES_MAX)
        return cart_fault_value(f, "messages", "messages: expected 1 to %zu messages, found %zu",
                                MESSAGES_MAX, n);
    p->messages = calloc(n, sizeof *p->messages);
    p->texts = calloc(n, sizeof *p->texts);
    if (!p->messages || !p->texts)
        return cart_fault_memory(f);
    p->n = n;
    for (size_t i = 0; i < n; i++)
        if (!read_message(p, json_array_get(list, i), i, f))
            return false;
    return true;
}

/* ---- tools ---- */

static const json_t *find_tool(const json_t *tools, const char *name)
{
    for (size_t i = 0; i < json_array_size(tools); i++) {
        const json_t *fn = json_object_get(json_array_get(tools, i), "function");
        const char *is = cart_json_word(json_object_get(fn, "name"));
        if (is && strcmp(is, name) == 0)
            return fn;
    }
    return NULL;
}

static bool check_tools(const json_t *tools, struct cart_fault *f)
{
    char param[64], found[48];
    if (!json_is_array(tools) || json_array_size(tools) > TOOLS_MAX)
        return cart_fault_found(f, "tools", tools, "tools: expected an array of at most %zu",
                                TOOLS_MAX);
    for (size_t i = 0; i < json_array_size(tools); i++) {
        const json_t *t = json_array_get(tools, i), *fn = json_object_get(t, "function");
        const char *type = cart_json_word(json_object_get(t, "type"));
        const json_t *name = json_object_get(fn, "name"),
                     *parameters = cart_param(fn, "parameters");
        snprintf(param, sizeof param, "tools[%zu]", i);
        if (!type || strcmp(type, "function") != 0)
            return cart_fault_set(f, 400, "unsupported_feature", param,
                                  "%s.type: expected function, found %s", param,
                                  cart_json_found(json_object_get(t, "type"), found));
        if (!cart_json_word(name) || json_string_length(name) == 0 || json_string_length(name) > 64)
            return cart_fault_found(f, param, name,
                                    "%s.function.name: expected a string of 1 to 64 bytes", param);
        if (parameters && !json_is_object(parameters))
            return cart_fault_found(f, param, parameters,
                                    "%s.function.parameters: expected an object", param);
    }
    return true;
}

static bool read_choice(struct cart_prompt *p, const json_t *body, const json_t *tools,
                        struct cart_fault *f)
{
    static const char *const words[] = {"none", "auto", "required"};
    const json_t *v = cart_param(body, "tool_choice");
    const char *word = cart_json_word(v);
    bool any = json_array_size(tools) > 0;
    p->choice = any ? CART_TOOLS_AUTO : CART_TOOLS_NONE;
    if (!v)
        return true;
    if (word) {
        size_t i = 0;
        while (i < CART_COUNTOF(words) && strcmp(words[i], word) != 0)
            i++;
        if (i == CART_COUNTOF(words))
            return cart_fault_found(f, "tool_choice", v,
                                    "tool_choice: expected none, auto, required or a function");
        if (i == CART_TOOLS_REQUIRED && !any)
            return cart_fault_value(f, "tool_choice", "tool_choice: required goes with tools");
        p->choice = any ? (enum cart_tool_choice)i : CART_TOOLS_NONE;
        return true;
    }
    const char *type = cart_json_word(json_object_get(v, "type"));
    if (!type || strcmp(type, "function") != 0)
        return cart_fault_found(f, "tool_choice", v,
                                "tool_choice: expected none, auto, required or a function");
    const json_t *name = json_object_get(json_object_get(v, "function"), "name");
    p->named = cart_json_word(name);
    if (!p->named || !find_tool(tools, p->named))
        return cart_fault_found(f, "tool_choice", name,
                                "tool_choice.function.name: expected the name of one of tools");
    p->choice = CART_TOOLS_NAMED;
    return true;
}

static bool read_tools(struct cart_prompt *p, struct cart_serve *s, const json_t *body,
                       struct cart_fault *f)
{
    const json_t *tools = cart_param(body, "tools");
    bool parallel = true;
    if (cart_param(body, "functions") || cart_param(body, "function_call"))
        return cart_fault_set(f, 400, "unsupported_feature", "functions",
                              "functions: expected tools instead");
    if ((tools && !check_tools(tools, f)) || !read_choice(p, body, tools, f) ||
        !cart_param_bool(body, "parallel_tool_calls", &parallel, f))
        return false;
    p->calls_most = parallel ? 0 : 1;
    if (p->choice == CART_TOOLS_NONE)
        return true;
    if (strncmp(cart_chat_profile(s->chat), "qwen", 4) != 0)
        return cart_fault_set(f, 400, "unsupported_feature", "tools",
                              "tools: the chat template of this model (%s) has none",
                              cart_chat_profile(s->chat));
    p->tools = tools;
    p->options.tools = tools;
    return true;
}

static bool read_thinking(struct cart_prompt *p, struct cart_serve *s, const json_t *body,
                          struct cart_fault *f)
{
    const json_t *kwargs = cart_param(body, "chat_template_kwargs");
    const char *effort = NULL;
    bool on = false;
    if (!cart_param_string(body, "reasoning_effort", &effort, f))
        return false;
    if (effort)
        on = strcmp(effort, "none") != 0 && strcmp(effort, "minimal") != 0;
    if (kwargs && !json_is_object(kwargs))
        return cart_fault_found(f, "chat_template_kwargs", kwargs,
                                "chat_template_kwargs: expected an object");
    if (kwargs && !cart_param_bool(kwargs, "enable_thinking", &on, f))
        return false;
    p->options.think = on && cart_chat_has_thinking(s->chat) ? CART_THINK_ON : CART_THINK_OFF;
    return true;
}

bool cart_prompt_parse(struct cart_prompt *p, struct cart_serve *s, const json_t *body, bool behind,
                       struct cart_fault *f)
{
    *p = (struct cart_prompt){.options = {.generation_prompt = true, .behind = behind}};
    if (!s->chat)
        return cart_fault_set(f, 400, "unsupported_feature", NULL, "%s", s->chat_err.msg);
    return read_messages(p, body, f) && read_tools(p, s, body, f) && read_thinking(p, s, body, f) &&
           cart_param_bool(body, "add_generation_prompt", &p->options.generation_prompt, f);
}

bool cart_prompt_render(const struct cart_prompt *p, struct cart_serve *s, struct cart_ids *out,
                        struct cart_fault *f)
{
    struct cart_err err = {0};
    int r = cart_chat_render(s->chat, p->messages, p->n, &p->options, out, NULL, &err);
    if (r == 0 && out->n > 0)
        return true;
    if (r == CART_ESYS)
        return cart_fault_memory(f);
    return cart_fault_value(f, "messages", "%s",
                            r < 0 ? err.msg : "messages: expected some text, found none");
}

void cart_prompt_release(struct cart_prompt *p)
{
    for (size_t i = 0; i < p->n_texts; i++)
        cart_buf_release(&p->texts[i]);
    free(p->texts);
    free(p->messages);
    *p = (struct cart_prompt){0};
}

/* ---- prompts and inputs ---- */

static bool is_ids(const json_t *v)
{
    return json_is_array(v) && json_is_integer(json_array_get(v, 0));
}

size_t cart_inputs_count(const json_t *v, const char *key, size_t most, struct cart_fault *f)
{
    size_t n = json_is_string(v) || is_ids(v) ? 1 : json_array_size(v);
    if (n >= 1 && n <= most)
        return n;
    cart_fault_found(
        f, key, v,
        "%s: expected a string, an array of strings or token ids, or 1 to %zu such arrays", key,
        most);
    return 0;
}

static bool copy_ids(struct cart_serve *s, const json_t *v, const char *key, struct cart_ids *out,
                     struct cart_fault *f)
{
    for (size_t i = 0; i < json_array_size(v); i++) {
        uint64_t id;
        if (!cart_json_whole(json_array_get(v, i), s->model->V - 1, &id))
            return cart_fault_found(f, key, json_array_get(v, i),
                                    "%s: expected token ids from 0 to %zu", key, s->model->V - 1);
        if (cart_ids_push(out, (uint32_t)id, NULL) < 0)
            return cart_fault_memory(f);
    }
    return true;
}

/* text, the suffix if there is one, and a BOS before them where bos says so. */
static int encode_text(const struct cart_tokenizer *t, const char *text, size_t n,
                       const char *suffix, bool bos, struct cart_ids *out, struct cart_err *err)
{
    struct cart_buf b = CART_BUF_INIT;
    int r = bos ? cart_ids_push(out, cart_tokenizer_bos(t), err) : 0;
    if (r == 0)
        r = cart_buf_add(&b, text, n, err);
    if (r == 0 && suffix)
        r = cart_buf_add(&b, suffix, strlen(suffix), err);
    if (r == 0)
        r = cart_tokenizer_encode(t, b.data, b.len, 0, out, NULL, err);
    cart_buf_release(&b);
    return r;
}

static int add_ids(struct cart_ids *out, const uint32_t *ids, size_t n, struct cart_err *err)
{
    int r = 0;
    for (size_t i = 0; i < n && r == 0; i++)
        r = cart_ids_push(out, ids[i], err);
    return r;
}

/* 1: the ids are those of a text, which is added to out; 0: of none. */
static int spell(const struct cart_tokenizer *t, const uint32_t *ids, size_t n,
                 struct cart_buf *out, struct cart_err *err)
{
    struct cart_ids again = CART_IDS_INIT;
    int r = 0;
    for (size_t i = 0; i < n && r == 0; i++) {
        struct cart_text bytes = cart_tokenizer_bytes(t, ids[i]);
        r = cart_buf_add(out, bytes.data, bytes.n, err);
    }
    if (r == 0)
        r = cart_tokenizer_encode(t, out->data, out->len, 0, &again, NULL, err);
    if (r == 0)
        r = again.n == n && (n == 0 || memcmp(again.data, ids, n * sizeof *ids) == 0);
    cart_ids_release(&again);
    return r;
}

/* Ids with a suffix behind them become what their text with the suffix would be; those that are
 * of no text are followed by the suffix's own. A BOS that the client put before them is not one
 * more. */
static int follow_ids(const struct cart_tokenizer *t, const struct cart_ids *ids,
                      const char *suffix, bool bos, struct cart_ids *out, struct cart_err *err)
{
    size_t skip = ids->data[0] == cart_tokenizer_bos(t) && cart_tokenizer_adds_bos(t);
    const uint32_t *own = ids->data + skip;
    struct cart_buf text = CART_BUF_INIT;
    int r = spell(t, own, ids->n - skip, &text, err);
    if (r > 0) {
        r = encode_text(t, text.data ? text.data : "", text.len, suffix, bos, out, err);
    } else if (r == 0) {
        r = bos ? cart_ids_push(out, cart_tokenizer_bos(t), err) : 0;
        if (r == 0)
            r = add_ids(out, own, ids->n - skip, err);
        if (r == 0)
            r = cart_tokenizer_encode(t, suffix, strlen(suffix), 0, out, NULL, err);
    }
    cart_buf_release(&text);
    return r;
}

bool cart_inputs_encode(struct cart_serve *s, const json_t *v, const char *key, size_t i,
                        const char *suffix, bool behind, struct cart_ids *out, struct cart_fault *f)
{
    const struct cart_tokenizer *t = cart_model_tokenizer(s->model);
    const json_t *item = json_is_string(v) || is_ids(v) ? v : json_array_get(v, i);
    bool bos = !behind && cart_tokenizer_adds_bos(t) && cart_tokenizer_bos(t) != CART_TOKEN_NONE;
    struct cart_ids ids = CART_IDS_INIT;
    struct cart_err err = {0};
    int r = 0;
    if (json_is_string(item)) {
        r = encode_text(t, json_string_value(item), json_string_length(item), suffix, bos, out,
                        &err);
    } else if (!json_is_array(item) || json_array_size(item) == 0) {
        return cart_fault_found(f, key, item,
                                "%s[%zu]: expected a string, or an array of token ids", key, i);
    } else if (!suffix) {
        return copy_ids(s, item, key, out, f);
    } else if (copy_ids(s, item, key, &ids, f)) {
        r = follow_ids(t, &ids, suffix, bos, out, &err);
        cart_ids_release(&ids);
    } else {
        cart_ids_release(&ids);
        return false;
    }
    if (r < 0)
        return r == CART_ESYS ? cart_fault_memory(f)
                              : cart_fault_value(f, key, "%s: %s", key, err.msg);
    return out->n > 0 || cart_fault_value(f, key, "%s: expected some text, found none", key);
}
