/* Bodies of requests: fields, messages, prompts, tools. Each is refused with a status of the
 * client's and a message, or becomes ids and limits within the model's. */
#include "base/cpu.h"
#include "fuzz/fuzz.h"
#include "serve/prompt.h"

#include <stdlib.h>
#include <string.h>

static struct cart_serve serve;

static void prepare(void)
{
    const struct cart_scheduler_options o = {1, 1, 0, 0, 0, 0, CART_F32};
    struct cart_err err = {0};
    struct cart_pool *pool;
    serve.model = fuzz_model();
    serve.opt.name = "m";
    fuzz_need(cart_cpu_init(&err), &err);
    fuzz_need(cart_model_chat(serve.model, &serve.chat, &err), &err);
    fuzz_need(cart_pool_new(&pool, 1, &err), &err);
    fuzz_need(cart_registry_new(&serve.registry, serve.model, false, &err), &err);
    fuzz_need(cart_scheduler_new(&serve.scheduler, serve.model, pool, serve.chat, &o, &err), &err);
}

static void refused(const struct cart_fault *f)
{
    fuzz_demand(f->status >= 400 && f->status < 500 && f->message[0], "a fault of the client's");
}

static void check_ids(const struct cart_ids *ids)
{
    for (size_t i = 0; i < ids->n; i++)
        fuzz_demand(ids->data[i] < serve.model->V, "ids of the vocabulary");
}

static void check_sampling(const json_t *o)
{
    struct cart_sampling_params p = {0};
    struct cart_fault f = {0};
    if (!cart_params_sampling(&serve, o, &p, &f))
        refused(&f);
    else
        fuzz_demand(p.n > 0 && p.temperature >= 0 && p.top_p > 0 && p.top_p <= 1,
                    "numbers within their ranges");
    cart_params_release(&p);
}

static void check_messages(const json_t *o, bool behind)
{
    struct cart_prompt p;
    struct cart_ids ids = CART_IDS_INIT;
    struct cart_fault f = {0};
    if (!cart_prompt_parse(&p, &serve, o, behind, &f) || !cart_prompt_render(&p, &serve, &ids, &f))
        refused(&f);
    else
        check_ids(&ids);
    cart_ids_release(&ids);
    cart_prompt_release(&p);
}

static void check_inputs(const json_t *o, bool behind)
{
    struct cart_fault f = {0};
    const json_t *v = cart_param(o, "prompt");
    size_t n = cart_inputs_count(v, "prompt", 16, &f);
    if (n == 0)
        refused(&f);
    for (size_t i = 0; i < n; i++) {
        struct cart_ids ids = CART_IDS_INIT;
        if (!cart_inputs_encode(&serve, v, "prompt", i, i ? NULL : "x", behind, &ids, &f))
            refused(&f);
        else
            check_ids(&ids);
        cart_ids_release(&ids);
    }
}

static void check_selection(const json_t *o)
{
    struct cart_selection sel = {0};
    struct cart_fault f = {0};
    if (!cart_params_select(&serve, o, &sel, &f))
        refused(&f);
    cart_stack_release(sel.stack);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    struct cart_err err = {0};
    json_t *o;
    if (!serve.model)
        prepare();
    char *copy = fuzz_copy(data, n);
    int r = cart_json_parse(&o, copy, n, "body", &err);
    free(copy);
    if (r < 0)
        return 0;
    if (json_is_object(o)) {
        check_selection(o);
        check_sampling(o);
        check_messages(o, json_is_true(json_object_get(o, "behind")));
        check_inputs(o, json_is_true(json_object_get(o, "behind")));
    }
    json_decref(o);
    return 0;
}
