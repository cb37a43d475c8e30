/* POST /v1/chat/completions, and the two routes that show what it would send to the model. */
#include "engine/constraint.h"
#include "model/model.h"
#include "serve/answer.h"
#include "serve/prompt.h"
#include "serve/routes.h"

#include <stdlib.h>
#include <string.h>

#define CALLS_MAX ((size_t)16) /* in one answer that must call */

static const char *const known[] = {"model",
                                    "cartridges",
                                    "fleet",
                                    "messages",
                                    "stream",
                                    "stream_options",
                                    "n",
                                    "max_tokens",
                                    "max_completion_tokens",
                                    "temperature",
                                    "top_p",
                                    "top_k",
                                    "min_p",
                                    "presence_penalty",
                                    "frequency_penalty",
                                    "repetition_penalty",
                                    "repeat_penalty",
                                    "logit_bias",
                                    "logprobs",
                                    "top_logprobs",
                                    "stop",
                                    "seed",
                                    "response_format",
                                    "tools",
                                    "tool_choice",
                                    "parallel_tool_calls",
                                    "functions",
                                    "function_call",
                                    "reasoning_effort",
                                    "chat_template_kwargs",
                                    "add_generation_prompt",
                                    "ignore_eos",
                                    "user",
                                    "metadata",
                                    "store",
                                    "service_tier",
                                    "prompt_cache_key",
                                    "prompt_cache_retention",
                                    "safety_identifier",
                                    "verbosity",
                                    "modalities",
                                    "audio",
                                    "prediction",
                                    "web_search_options",
                                    "cache_prompt",
                                    NULL};

struct request {
    json_t *body;
    struct cart_selection selection;
    struct cart_sampling_params params;
    struct cart_prompt prompt;
    struct cart_constraint *constraint;
    bool logprobs;
    size_t top;
};

static void release(struct request *r)
{
    cart_prompt_release(&r->prompt);
    cart_params_release(&r->params);
    cart_stack_release(r->selection.stack);
    cart_constraint_free(r->constraint);
    json_decref(r->body);
}

static bool read_logprobs(const json_t *o, struct request *r, struct cart_fault *f)
{
    if (!cart_param_bool(o, "logprobs", &r->logprobs, f) ||
        !cart_param_size(o, "top_logprobs", 0, CART_SERVE_TOP_MAX, &r->top, f))
        return false;
    return r->top == 0 || r->logprobs ||
           cart_fault_value(f, "top_logprobs", "top_logprobs: goes with logprobs: true only");
}

/* What asks for another kind of answer than text is refused; the rest of what OpenAI has is taken
 * and not needed. */
static bool check_kind(const json_t *o, struct cart_fault *f)
{
    const json_t *modalities = cart_param(o, "modalities");
    if (cart_param(o, "audio"))
        return cart_fault_set(f, 400, "unsupported_feature", "audio", "audio: answers are text");
    if (cart_param(o, "web_search_options"))
        return cart_fault_set(f, 400, "unsupported_feature", "web_search_options",
                              "web_search_options: there is none");
    for (size_t i = 0; i < json_array_size(modalities); i++) {
        const char *m = cart_json_word(json_array_get(modalities, i));
        if (!m || strcmp(m, "text") != 0)
            return cart_fault_set(f, 400, "unsupported_feature", "modalities",
                                  "modalities: answers are text");
    }
    return true;
}

static bool constraint_fault(struct cart_fault *f, const char *param, int r,
                             const struct cart_err *err)
{
    return r == CART_ESYS ? cart_fault_memory(f)
                          : cart_fault_set(f, 400, "unsupported_schema", param, "%s", err->msg);
}

static bool read_format(struct cart_serve *s, const json_t *o, struct request *r,
                        struct cart_fault *f)
{
    const json_t *v = cart_param(o, "response_format"), *inner = json_object_get(v, "json_schema");
    const char *type = cart_json_word(json_object_get(v, "type"));
    const struct cart_lexicon *lexicon = cart_scheduler_lexicon(s->scheduler);
    struct cart_err err = {0};
    int e = 0;
    if (!v)
        return true;
    if (!type || (strcmp(type, "text") != 0 && strcmp(type, "json_object") != 0 &&
                  strcmp(type, "json_schema") != 0))
        return cart_fault_found(f, "response_format", json_object_get(v, "type"),
                                "response_format.type: expected text, json_object or json_schema");
    if (strcmp(type, "text") == 0)
        return true;
    if (r->prompt.choice == CART_TOOLS_REQUIRED || r->prompt.choice == CART_TOOLS_NAMED)
        return cart_fault_value(f, "response_format",
                                "response_format: does not go with a tool_choice that must call");
    if (strcmp(type, "json_object") == 0) {
        e = cart_constraint_object(&r->constraint, lexicon, &err);
    } else {
        if (!json_is_object(inner))
            return cart_fault_found(f, "response_format", inner,
                                    "response_format.json_schema: expected an object");
        if (!json_is_string(json_object_get(inner, "name")))
            return cart_fault_found(f, "response_format", json_object_get(inner, "name"),
                                    "response_format.json_schema.name: expected a string");
        const json_t *schema = cart_param(inner, "schema");
        if (schema)
            e = cart_constraint_schema(&r->constraint, lexicon, schema,
                                       "response_format.json_schema.schema", &err);
        else
            e = cart_constraint_object(&r->constraint, lexicon, &err);
    }
    return e == 0 || constraint_fault(f, "response_format", e, &err);
}

static bool force_call(struct cart_serve *s, struct request *r, struct cart_fault *f)
{
    const struct cart_prompt *p = &r->prompt;
    struct cart_err err = {0};
    if (p->choice != CART_TOOLS_REQUIRED && p->choice != CART_TOOLS_NAMED)
        return true;
    const struct cart_constraint_calls calls = {.tools = p->tools,
                                                .only = p->named,
                                                .open = "<tool_call>\n",
                                                .close = "\n</tool_call>",
                                                .separator = "\n",
                                                .most =
                                                    p->named || p->calls_most == 1 ? 1 : CALLS_MAX};
    int e = cart_constraint_tools(&r->constraint, cart_scheduler_lexicon(s->scheduler), &calls,
                                  "tools", &err);
    return e == 0 || constraint_fault(f, "tools", e, &err);
}

static bool parse(struct cart_exchange *x, struct request *r, struct cart_fault *f)
{
    struct cart_serve *s = x->serve;
    if (!cart_params_body(x, &r->body, f) || !cart_params_unknown(s, r->body, known, f))
        return false;
    return cart_params_sampling(s, r->body, &r->params, f) && read_logprobs(r->body, r, f) &&
           check_kind(r->body, f) && cart_params_select(s, r->body, &r->selection, f) &&
           cart_prompt_parse(&r->prompt, s, r->body, r->selection.stack != NULL, f) &&
           read_format(s, r->body, r, f) && force_call(s, r, f);
}

void cart_route_chat(struct cart_exchange *x)
{
    struct request r = {0};
    struct cart_fault f = {0};
    struct cart_ids ids = CART_IDS_INIT;
    struct cart_answer *a = NULL;
    bool ok = parse(x, &r, &f) && cart_prompt_render(&r.prompt, x->serve, &ids, &f);
    if (ok) {
        const struct cart_answer_options o = {.chat = true,
                                              .stream = r.params.stream,
                                              .include_usage = r.params.include_usage,
                                              .logprobs = r.logprobs,
                                              .marks = cart_chat_has_thinking(x->serve->chat) ||
                                                       r.prompt.tools,
                                              .calls = r.prompt.tools != NULL,
                                              .n = r.params.n};
        ok = cart_answer_new(&a, x, 1, &o, &r.params, &r.selection) || cart_fault_memory(&f);
    }
    if (!ok) {
        cart_ids_release(&ids);
        cart_fault_send(&f, x);
        release(&r);
        return;
    }
    /* They are the answer's now. */
    a->group.request.top_logprobs = r.top;
    a->group.prompts[0].ids = ids;
    a->group.constraint = r.constraint;
    r.constraint = NULL;
    r.selection.stack = NULL;
    r.params = (struct cart_sampling_params){0};
    release(&r);
    cart_group_run(&a->group);
}

/* The prompt of a chat request without an answer: parsed alike, so that it is what the model would
 * get. */
static bool prompt_only(struct cart_exchange *x, struct request *r, struct cart_fault *f)
{
    struct cart_serve *s = x->serve;
    return cart_params_body(x, &r->body, f) && cart_params_select(s, r->body, &r->selection, f) &&
           cart_prompt_parse(&r->prompt, s, r->body, r->selection.stack != NULL, f);
}

void cart_route_template(struct cart_exchange *x)
{
    struct request r = {0};
    struct cart_fault f = {0};
    struct cart_buf text = CART_BUF_INIT;
    struct cart_wire w = CART_WIRE_INIT;
    struct cart_err err = {0};
    bool ok = prompt_only(x, &r, &f);
    if (ok && cart_chat_render_text(x->serve->chat, r.prompt.messages, r.prompt.n,
                                    &r.prompt.options, &text, &err) < 0)
        ok = cart_fault_value(&f, "messages", "%s", err.msg);
    if (ok) {
        cart_wire_add(&w, "{\"prompt\":");
        cart_wire_string(&w, text.data, text.len);
        cart_wire_add(&w, "}");
    }
    cart_fault_or_reply(x, ok, &w, &f);
    cart_buf_release(&text);
    release(&r);
}

void cart_route_count(struct cart_exchange *x)
{
    struct request r = {0};
    struct cart_fault f = {0};
    struct cart_ids ids = CART_IDS_INIT;
    struct cart_wire w = CART_WIRE_INIT;
    bool ok = prompt_only(x, &r, &f) && cart_prompt_render(&r.prompt, x->serve, &ids, &f);
    if (ok) {
        cart_wire_f(
            &w,
            "{\"object\":\"response.input_tokens\",\"input_tokens\":%zu,\"cartridge_tokens\":%zu}",
            ids.n, r.selection.stack ? r.selection.stack->rows : 0);
    }
    cart_fault_or_reply(x, ok, &w, &f);
    cart_ids_release(&ids);
    release(&r);
}
