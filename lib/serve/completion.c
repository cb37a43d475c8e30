/* POST /v1/completions: raw prompts, as text or as ids, one or many. */
#include "serve/answer.h"
#include "serve/prompt.h"
#include "serve/routes.h"

#include <string.h>

#define PROMPTS_MAX ((size_t)2048)
#define TOKENS_DEFAULT ((size_t)16) /* OpenAI's, where a request has no max_tokens */

static const char *const known[] = {"model",
                                    "cartridges",
                                    "fleet",
                                    "prompt",
                                    "stream",
                                    "stream_options",
                                    "n",
                                    "best_of",
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
                                    "stop",
                                    "seed",
                                    "echo",
                                    "suffix",
                                    "ignore_eos",
                                    "user",
                                    "cache_prompt",
                                    NULL};

struct request {
    json_t *body;
    struct cart_selection selection;
    struct cart_sampling_params params;
    size_t logprobs, prompts;
    bool echo, has_logprobs;
};

static bool parse(struct cart_exchange *x, struct request *r, struct cart_fault *f)
{
    struct cart_serve *s = x->serve;
    size_t best = 0;
    const char *suffix = NULL;
    if (!cart_params_body(x, &r->body, f))
        return false;
    const json_t *o = r->body;
    if (!cart_params_unknown(s, o, known, f) || !cart_params_sampling(s, o, &r->params, f) ||
        !cart_param_bool(o, "echo", &r->echo, f) ||
        !cart_param_size(o, "logprobs", 0, CART_SERVE_TOP_MAX, &r->logprobs, f) ||
        !cart_param_size(o, "best_of", 1, CART_SERVE_CHOICES_MAX, &best, f) ||
        !cart_param_string(o, "suffix", &suffix, f))
        return false;
    r->has_logprobs = cart_param(o, "logprobs") != NULL;
    if (best > 0 && best != r->params.n)
        return cart_fault_set(f, 400, "unsupported_feature", "best_of",
                              "best_of: expected as many as n, %zu, found %zu", r->params.n, best);
    if (suffix && *suffix)
        return cart_fault_set(f, 400, "unsupported_feature", "suffix",
                              "suffix: this server only continues text");
    if (!r->params.has_max)
        r->params.max_tokens = TOKENS_DEFAULT;
    r->prompts = cart_inputs_count(cart_param(o, "prompt"), "prompt", PROMPTS_MAX, f);
    if (r->prompts == 0)
        return false;
    if (r->prompts * r->params.n > PROMPTS_MAX)
        return cart_fault_value(
            f, "n", "n times prompts: expected at most %zu answers, found %zu times %zu",
            PROMPTS_MAX, r->params.n, r->prompts);
    return cart_params_select(s, o, &r->selection, f);
}

static bool fill(struct cart_exchange *x, struct cart_answer *a, const json_t *body,
                 struct cart_fault *f)
{
    const json_t *prompt = cart_param(body, "prompt");
    bool behind = a->selection.stack != NULL;
    for (size_t i = 0; i < a->group.n; i++)
        if (!cart_inputs_encode(x->serve, prompt, "prompt", i, NULL, behind,
                                &a->group.prompts[i].ids, f))
            return false;
    return true;
}

void cart_route_completion(struct cart_exchange *x)
{
    struct request r = {0};
    struct cart_fault f = {0};
    struct cart_answer *a = NULL;
    bool ok = parse(x, &r, &f);
    if (ok) {
        const struct cart_answer_options o = {.stream = r.params.stream,
                                              .include_usage = r.params.include_usage,
                                              .logprobs = r.has_logprobs,
                                              .echo = r.echo,
                                              .n = r.params.n};
        ok =
            cart_answer_new(&a, x, r.prompts, &o, &r.params, &r.selection) || cart_fault_memory(&f);
    }
    if (!a) {
        cart_params_release(&r.params);
        cart_stack_release(r.selection.stack);
    }
    ok = ok && fill(x, a, r.body, &f);
    json_decref(r.body);
    if (!ok) {
        cart_fault_send(&f, x);
        return;
    }
    a->group.request.top_logprobs = r.logprobs;
    cart_group_run(&a->group);
}
