/* What there is: models and cartridges, and loading and dropping the latter. */
#include "base/io.h"
#include "model/model.h"
#include "serve/params.h"
#include "serve/routes.h"
#include "serve/wire.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

/* ---- listings ---- */

static void reply(struct cart_exchange *x, struct cart_wire *w)
{
    if (w->r < 0)
        cart_exchange_error(x, 503, "out_of_memory", NULL, "no memory for the answer");
    else
        cart_exchange_reply(x, 200, "application/json", &w->b);
    cart_wire_release(w);
}

static void write_base(struct cart_wire *w, const struct cart_serve *s)
{
    const struct cart_model *m = s->model;
    cart_wire_add(w, "{\"id\":");
    cart_wire_quote(w, s->opt.name);
    cart_wire_f(
        w,
        ",\"object\":\"model\",\"created\":%ld,\"owned_by\":\"cart\",\"meta\":{\"architecture\":",
        s->created);
    cart_wire_quote(w, m->arch);
    cart_wire_add(w, ",\"name\":");
    cart_wire_quote(w, m->name);
    cart_wire_f(w,
                ",\"n_ctx\":%zu,\"n_ctx_train\":%zu,\"n_vocab\":%zu,\"n_embd\":%zu,\"n_layer\":%zu,"
                "\"fingerprint\":{",
                cart_scheduler_context(s->scheduler), m->context, m->V, m->D, m->L);
    cart_wire_f(
        w, "\"geometry\":\"%s\",\"tokenizer\":\"%s\",\"template\":\"%s\",\"weights\":\"%s\"}}}",
        m->fp.geometry, m->fp.tokenizer, m->fp.chat, m->fp.weights);
}

static void write_text(struct cart_wire *w, const char *key, const json_t *metadata,
                       const char *name)
{
    const char *v = json_string_value(json_object_get(metadata, name));
    cart_wire_f(w, ",\"%s\":", key);
    if (v)
        cart_wire_quote(w, v);
    else
        cart_wire_add(w, "null");
}

static void write_meta(struct cart_wire *w, const struct cart_stack_entry *e)
{
    const struct cart_cartridge *c = e->cartridge;
    cart_wire_f(w, "\"p\":%zu,\"frozen\":%zu,\"steps\":%llu,\"bytes\":%zu,\"draft_tokens\":%zu",
                c->p, c->frozen, (unsigned long long)c->steps, c->row_bytes, c->n_draft);
    write_text(w, "corpus", c->metadata, "cart.corpus");
    cart_wire_add(w, ",\"fingerprint\":{\"format\":\"xxh3-128\"");
    write_text(w, "geometry", c->metadata, "cart.geometry");
    write_text(w, "tokenizer", c->metadata, "cart.tokenizer");
    write_text(w, "template", c->metadata, "cart.template");
    write_text(w, "weights", c->metadata, "cart.weights");
    cart_wire_add(w, "}");
}

static void write_cartridge_model(struct cart_wire *w, const struct cart_serve *s,
                                  const struct cart_stack_entry *e)
{
    struct cart_wire id = CART_WIRE_INIT;
    cart_wire_add(&id, s->opt.name);
    cart_wire_add(&id, ":");
    cart_wire_add(&id, e->name);
    cart_wire_add(w, "{\"id\":");
    cart_wire_string(w, id.b.data, id.b.len);
    cart_wire_f(
        w, ",\"object\":\"model\",\"created\":%ld,\"owned_by\":\"cart\",\"parent\":", s->created);
    cart_wire_quote(w, s->opt.name);
    cart_wire_add(w, ",\"meta\":{\"cartridge\":");
    cart_wire_quote(w, e->name);
    cart_wire_add(w, ",");
    write_meta(w, e);
    cart_wire_add(w, "}}");
    cart_wire_release(&id);
}

static bool all(struct cart_exchange *x, struct cart_stack **out)
{
    struct cart_err err = {0};
    if (cart_stack_acquire_all(out, x->serve->registry, &err) == 0)
        return true;
    cart_exchange_error(x, 503, "out_of_memory", NULL, "%s", err.msg);
    return false;
}

static void one_model(struct cart_exchange *x, const struct cart_stack *stack)
{
    const struct cart_serve *s = x->serve;
    struct cart_wire w = CART_WIRE_INIT;
    struct cart_fault f;
    size_t base = strlen(s->opt.name);
    if (strcmp(x->argument, s->opt.name) == 0)
        write_base(&w, s);
    for (size_t i = 0; i < stack->n && w.b.len == 0; i++)
        if (strncmp(x->argument, s->opt.name, base) == 0 && x->argument[base] == ':' &&
            strcmp(x->argument + base + 1, stack->entries[i].name) == 0)
            write_cartridge_model(&w, s, &stack->entries[i]);
    if (w.b.len > 0 || w.r < 0) {
        reply(x, &w);
    } else {
        cart_fault_unknown(&f, x->serve, "model", x->argument);
        cart_fault_send(&f, x);
    }
}

void cart_route_models(struct cart_exchange *x)
{
    const struct cart_serve *s = x->serve;
    struct cart_stack *stack = NULL;
    struct cart_wire w = CART_WIRE_INIT;
    if (!all(x, &stack))
        return;
    if (x->argument[0]) {
        one_model(x, stack);
    } else {
        cart_wire_add(&w, "{\"object\":\"list\",\"data\":[");
        write_base(&w, s);
        for (size_t i = 0; i < stack->n; i++) {
            cart_wire_add(&w, ",");
            write_cartridge_model(&w, s, &stack->entries[i]);
        }
        cart_wire_add(&w, "]}");
        reply(x, &w);
    }
    cart_stack_release(stack);
}

static void write_entry(struct cart_wire *w, const struct cart_stack_entry *e)
{
    cart_wire_add(w, "{\"id\":");
    cart_wire_quote(w, e->name);
    cart_wire_add(w, ",\"object\":\"cartridge\",");
    write_meta(w, e);
    cart_wire_add(w, "}");
}

void cart_route_cartridges(struct cart_exchange *x)
{
    struct cart_stack *stack = NULL;
    struct cart_wire w = CART_WIRE_INIT;
    if (!all(x, &stack))
        return;
    cart_wire_add(&w, "{\"object\":\"list\",\"data\":[");
    for (size_t i = 0; i < stack->n; i++) {
        if (i)
            cart_wire_add(&w, ",");
        write_entry(&w, &stack->entries[i]);
    }
    cart_wire_add(&w, "]}");
    reply(x, &w);
    cart_stack_release(stack);
}

/* ---- changes ---- */

/* Who may call the server from elsewhere without a key may use it, not change it. */
static bool may_change(struct cart_exchange *x)
{
    if (x->serve->keys || x->serve->loopback)
        return true;
    cart_exchange_error(x, 403, "key_required", NULL,
                        "changing cartridges from other machines needs API keys");
    return false;
}

static bool file_name(const char *name)
{
    static const char fine[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-";
    return *name && *name != '.' && strlen(name) <= CART_CARTRIDGE_NAME_MAX + 32 &&
           strspn(name, fine) == strlen(name);
}

/* The file of a cartridge in the served directory: the one that is named, or NAME with an ending of
 * cartridges. Never a path. */
static bool find_file(struct cart_exchange *x, const char *name, const char *asked,
                      struct cart_buf *file, struct cart_fault *f)
{
    static const char *const endings[] = {".cartridge.safetensors", ".safetensors"};
    const char *directory = x->serve->opt.directory;
    struct stat st;
    bool found = false, memory = true;
    if (!directory)
        return cart_fault_set(f, 400, "no_directory", NULL,
                              "this server has no directory of cartridges (--directory)");
    for (size_t i = 0; i < (asked ? 1 : CART_COUNTOF(endings)) && memory && !found; i++) {
        cart_buf_reset(file);
        char *path =
            cart_buf_addf(file, NULL, "%s%s", asked ? asked : name, asked ? "" : endings[i]) == 0
                ? cart_io_join(directory, file->data)
                : NULL;
        memory = path != NULL;
        found = memory && stat(path, &st) == 0 && S_ISREG(st.st_mode);
        free(path);
    }
    if (!memory)
        return cart_fault_memory(f);
    if (!found && asked)
        return cart_fault_set(f, 404, "cartridge_not_found", "file",
                              "the served directory has no file %s", asked);
    return found || cart_fault_set(f, 404, "cartridge_not_found", "name",
                                   "the served directory has neither %s%s nor %s%s", name,
                                   endings[0], name, endings[1]);
}

static bool add_file(struct cart_exchange *x, const char *name, const char *file,
                     struct cart_wire *w, struct cart_fault *f)
{
    struct cart_registry *registry = x->serve->registry;
    char warning[256] = "";
    struct cart_stack *stack = NULL;
    struct cart_err err = {0};
    int r = cart_registry_add_file(registry, name, x->serve->opt.directory, file, warning,
                                   sizeof warning, &err);
    if (r < 0)
        cart_net_note(x->serve, CART_LOG_WARNING, "cartridge %s: not loaded: %s", name, err.msg);
    if (r == CART_ESYS)
        return cart_fault_set(f, 503, "cannot_read", NULL, "cartridge %s: cannot be read: %s", name,
                              err.msg);
    if (r < 0)
        return cart_fault_set(f, 400,
                              r == CART_EMATCH ? "cartridge_model_mismatch" : "invalid_cartridge",
                              "name", "%s", err.msg);
    r = cart_stack_acquire(&stack, registry, &name, 1, NULL, &err);
    if (r == CART_EUSAGE)
        return cart_fault_set(f, 404, "cartridge_not_found", "name",
                              "cartridge %s: it was dropped meanwhile", name);
    if (r < 0)
        return cart_fault_memory(f);
    write_entry(w, &stack->entries[0]);
    cart_net_note(x->serve, CART_LOG_NOTICE, "cartridge %s: loaded%s%s", name, *warning ? ": " : "",
                  warning);
    cart_stack_release(stack);
    return true;
}

static bool load(struct cart_exchange *x, const json_t *o, struct cart_wire *w,
                 struct cart_fault *f)
{
    const char *name = NULL, *asked = NULL;
    struct cart_buf file = CART_BUF_INIT;
    if (!cart_param_string(o, "name", &name, f) || !cart_param_string(o, "file", &asked, f))
        return false;
    if (!name || !file_name(name) || strlen(name) > CART_CARTRIDGE_NAME_MAX)
        return cart_fault_found(f, "name", cart_param(o, "name"),
                                "name: expected letters, digits, '.', '_' and '-'");
    if (asked && !file_name(asked) && x->serve->opt.directory)
        return cart_fault_found(f, "file", cart_param(o, "file"),
                                "file: expected the name of a file in the served directory");
    bool ok = find_file(x, name, asked, &file, f) && add_file(x, name, file.data, w, f);
    cart_buf_release(&file);
    return ok;
}

void cart_route_cartridge_load(struct cart_exchange *x)
{
    struct cart_fault f = {0};
    struct cart_wire w = CART_WIRE_INIT;
    json_t *body = NULL;
    if (!may_change(x))
        return;
    if (cart_params_body(x, &body, &f) && load(x, body, &w, &f))
        reply(x, &w);
    else
        cart_fault_send(&f, x);
    cart_wire_release(&w);
    json_decref(body);
}

void cart_route_cartridge_drop(struct cart_exchange *x)
{
    struct cart_err err = {0};
    struct cart_fault f;
    struct cart_wire w = CART_WIRE_INIT;
    if (!may_change(x))
        return;
    if (cart_registry_drop(x->serve->registry, x->argument, &err) < 0) {
        cart_fault_unknown(&f, x->serve, "cartridges", x->argument);
        snprintf(f.param, sizeof f.param, "name");
        cart_fault_send(&f, x);
        return;
    }
    cart_net_note(x->serve, CART_LOG_NOTICE, "cartridge %s: dropped", x->argument);
    cart_wire_add(&w, "{\"id\":");
    cart_wire_quote(&w, x->argument);
    cart_wire_add(&w, ",\"object\":\"cartridge\",\"deleted\":true}");
    reply(x, &w);
}

void cart_route_cartridge_reload(struct cart_exchange *x)
{
    struct cart_wire w = CART_WIRE_INIT, refused = CART_WIRE_INIT;
    if (!may_change(x))
        return;
    if (!x->serve->opt.directory) {
        cart_exchange_error(x, 400, "no_directory", NULL,
                            "this server has no directory of cartridges (--directory)");
        return;
    }
    if (cart_net_load_directory(x->serve, &refused)) {
        cart_wire_f(&w, "{\"object\":\"reload\",\"cartridges\":%zu,\"refused\":[",
                    cart_registry_counts(x->serve->registry).cartridges);
        cart_wire_bytes(&w, refused.b.data, refused.b.len);
        cart_wire_add(&w, "]}");
        w.r = w.r ? w.r : refused.r;
        reply(x, &w);
    } else {
        cart_exchange_error(x, 503, "cannot_read", NULL,
                            "the directory of cartridges cannot be read");
    }
    cart_wire_release(&refused);
}
