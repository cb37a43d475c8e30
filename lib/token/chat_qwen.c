/* The templates of Qwen2.5 and Qwen3: ChatML with tools, and for Qwen3 with reasoning that is kept
 * only after the last question. */
#include "token/chat_impl.h"

#include <string.h>

static const char tools_intro[] =
    "# Tools\n\nYou may call one or more functions to assist with the user query.\n\n"
    "You are provided with function signatures within <tools></tools> XML tags:\n<tools>";
static const char tools_outro[] =
    "\n</tools>\n\nFor each function call, return a json object with function name and arguments "
    "within "
    "<tool_call></tool_call> XML tags:\n<tool_call>\n"
    "{\"name\": <function-name>, \"arguments\": <args-json-object>}\n</tool_call>";

static bool is(const struct cart_chat_message *m, const char *role)
{
    return strcmp(m->role, role) == 0;
}

static void write_json(struct cart_chat_job *job, const json_t *v)
{
    struct cart_buf b = CART_BUF_INIT;
    if (job->w.r == 0)
        job->w.r = cart_chat_tojson(v, &b, job->w.err);
    cart_chat_write_content(&job->w, b.data, b.len);
    cart_buf_release(&b);
}

/* The system turn: the first message's text or the default, then the tools. */
static void write_head(struct cart_chat_job *job)
{
    bool tools = json_array_size(job->o->tools) > 0;
    const struct cart_chat_message *first =
        job->n > 0 && is(&job->msgs[0], "system") ? &job->msgs[0] : NULL;
    const char *standard = job->o->behind ? NULL : job->profile->default_system;
    if (!tools && first == NULL && (standard == NULL || job->n == 0))
        return;
    cart_chat_write_open(job, "system");
    if (first != NULL)
        cart_chat_write_content(&job->w, first->content, first->n);
    else if (standard != NULL)
        cart_chat_write_structure(&job->w, standard);
    if (tools) {
        cart_chat_write_structure(&job->w, first != NULL || standard != NULL ? "\n\n" : "");
        cart_chat_write_structure(&job->w, tools_intro);
        for (size_t i = 0; i < json_array_size(job->o->tools); i++) {
            cart_chat_write_structure(&job->w, "\n");
            write_json(job, json_array_get(job->o->tools, i));
        }
        cart_chat_write_structure(&job->w, tools_outro);
    }
    cart_chat_write_close(job);
}

static int write_tool_call(struct cart_chat_job *job, const json_t *call, size_t i, size_t k,
                           struct cart_err *err)
{
    const json_t *function = json_object_get(call, "function");
    if (function != NULL)
        call = function;
    const json_t *name = json_object_get(call, "name");
    const json_t *arguments = json_object_get(call, "arguments");
    if (!json_is_string(name) || arguments == NULL)
        return cart_err_set(err, CART_EFORMAT,
                            "messages[%zu].tool_calls[%zu]: expected a name and arguments", i, k);
    cart_chat_write_structure(&job->w, "<tool_call>\n{\"name\": \"");
    cart_chat_write_content(&job->w, json_string_value(name), json_string_length(name));
    cart_chat_write_structure(&job->w, "\", \"arguments\": ");
    if (job->profile->thinking && json_is_string(arguments))
        cart_chat_write_content(&job->w, json_string_value(arguments),
                                json_string_length(arguments));
    else
        write_json(job, arguments);
    cart_chat_write_structure(&job->w, "}\n</tool_call>");
    return 0;
}

static int write_tool_calls(struct cart_chat_job *job, size_t i, bool break_first,
                            struct cart_err *err)
{
    const json_t *calls = job->msgs[i].tool_calls;
    int r = 0;
    for (size_t k = 0; k < json_array_size(calls) && r == 0; k++) {
        if (k > 0 || break_first)
            cart_chat_write_structure(&job->w, "\n");
        r = write_tool_call(job, json_array_get(calls, k), i, k, err);
    }
    return r;
}

/* Results of tools that follow each other share one user turn. */
static void write_tool(struct cart_chat_job *job, size_t i)
{
    const struct cart_chat_message *m = &job->msgs[i];
    if (i == 0 || !is(m - 1, "tool"))
        cart_chat_write_structure(&job->w, "<|im_start|>user");
    cart_chat_write_structure(&job->w, "\n<tool_response>\n");
    cart_chat_write_content(&job->w, m->content, m->n);
    cart_chat_write_structure(&job->w, "\n</tool_response>");
    if (i + 1 == job->n || !is(m + 1, "tool"))
        cart_chat_write_close(job);
}

static bool starts(struct cart_text s, const char *with)
{
    return s.n >= strlen(with) && memcmp(s.data, with, strlen(with)) == 0;
}

static bool ends(struct cart_text s, const char *with)
{
    return s.n >= strlen(with) && memcmp(s.data + s.n - strlen(with), with, strlen(with)) == 0;
}

/* The last user turn that asks something, rather than handing over what a tool said; n - 1 if there
 * is none. */
static size_t last_query(const struct cart_chat_job *job)
{
    for (size_t i = job->n; i-- > 0;) {
        const struct cart_chat_message *m = &job->msgs[i];
        struct cart_text s = {m->content, m->n};
        if (is(m, "user") && !(starts(s, "<tool_response>") && ends(s, "</tool_response>")))
            return i;
    }
    return job->n - 1;
}

static struct cart_text strip_newlines(struct cart_text s, bool left, bool right)
{
    while (left && s.n > 0 && *s.data == '\n') {
        s.data++;
        s.n--;
    }
    while (right && s.n > 0 && s.data[s.n - 1] == '\n')
        s.n--;
    return s;
}

/* Where the first (or last) mark starts in s, or NULL. */
static const char *find(struct cart_text s, const char *mark, bool last)
{
    size_t n = strlen(mark);
    const char *found = NULL;
    for (size_t i = 0; i + n <= s.n; i++) {
        if (s.data[i] != mark[0] || memcmp(s.data + i, mark, n) != 0)
            continue;
        found = s.data + i;
        if (!last)
            break;
        i += n - 1; /* marks do not overlap, as in a split */
    }
    return found;
}

/* Takes the reasoning that a client left in the text out of it: before the first closing marker and
 * after the last opening one in there; the text is what follows the last closing marker. */
static void split_reasoning(struct cart_text *content, struct cart_text *reasoning)
{
    static const char open[] = "<think>", close[] = "</think>";
    const char *first = find(*content, close, false);
    if (first == NULL)
        return;
    const char *last = find(*content, close, true) + strlen(close);
    struct cart_text before = {content->data, (size_t)(first - content->data)};
    before = strip_newlines(before, false, true);
    const char *opening = find(before, open, true);
    if (opening != NULL) {
        size_t skip = (size_t)(opening - before.data) + strlen(open);
        before = (struct cart_text){before.data + skip, before.n - skip};
    }
    *reasoning = strip_newlines(before, true, false);
    content->n -= (size_t)(last - content->data);
    content->data = last;
    *content = strip_newlines(*content, true, false);
}

static int write_assistant_qwen3(struct cart_chat_job *job, size_t i, size_t query,
                                 struct cart_err *err)
{
    const struct cart_chat_message *m = &job->msgs[i];
    struct cart_text content = {m->content, m->n};
    struct cart_text reasoning = {m->reasoning, m->n_reasoning};
    if (m->reasoning == NULL)
        split_reasoning(&content, &reasoning);
    cart_chat_write_open(job, "assistant");
    bool more = content.n > 0;
    if (i > query && (i + 1 == job->n || reasoning.n > 0)) {
        reasoning = strip_newlines(reasoning, true, true);
        content = strip_newlines(content, true, false);
        cart_chat_write_structure(&job->w, "<think>\n");
        cart_chat_write_content(&job->w, reasoning.data, reasoning.n);
        cart_chat_write_structure(&job->w, "\n</think>\n\n");
    }
    cart_chat_write_content(&job->w, content.data, content.n);
    int r = write_tool_calls(job, i, more, err);
    cart_chat_write_close(job);
    return r;
}

static int write_assistant_qwen25(struct cart_chat_job *job, size_t i, struct cart_err *err)
{
    const struct cart_chat_message *m = &job->msgs[i];
    bool calls = json_array_size(m->tool_calls) > 0;
    cart_chat_write_structure(&job->w, "<|im_start|>assistant");
    if (!calls || m->n > 0) {
        cart_chat_write_structure(&job->w, "\n");
        cart_chat_write_content(&job->w, m->content, m->n);
    }
    int r = write_tool_calls(job, i, true, err);
    cart_chat_write_close(job);
    return r;
}

int cart_chat_render_qwen(struct cart_chat_job *job, struct cart_err *err)
{
    size_t query = last_query(job);
    int r = 0;
    write_head(job);
    for (size_t i = 0; i < job->n && r == 0; i++) {
        const struct cart_chat_message *m = &job->msgs[i];
        char shown[64];
        if (is(m, "user") || (is(m, "system") && i > 0)) {
            cart_chat_write_open(job, m->role);
            cart_chat_write_content(&job->w, m->content, m->n);
            cart_chat_write_close(job);
        } else if (is(m, "assistant")) {
            r = job->profile->thinking ? write_assistant_qwen3(job, i, query, err)
                                       : write_assistant_qwen25(job, i, err);
        } else if (is(m, "tool")) {
            write_tool(job, i);
        } else if (!is(m, "system")) {
            r = cart_err_set(
                err, CART_EFORMAT,
                "messages[%zu].role: expected system, user, assistant or tool, found '%s'", i,
                cart_err_escape(shown, sizeof shown, m->role, strlen(m->role)));
        }
    }
    return r;
}
