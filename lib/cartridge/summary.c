#include "cartridge/summary.h"

#include "cartridge/convert.h"
#include "cartridge/rows.h"
#include "stream/summary.h"

#include <stdio.h>
#include <string.h>

#define MIB 1048576.0

static const char *text_of(const json_t *metadata, const char *key, const char *other)
{
    const char *s = json_string_value(json_object_get(metadata, key));

    return s ? s : other;
}

static size_t bytes_of(const struct cart_st *st)
{
    size_t bytes = 0;

    for (size_t i = 0; i < st->n; i++)
        bytes += st->tensors[i].bytes;
    return bytes;
}

static int put_rows(struct cart_buf *out, const struct cart_st *st, struct cart_err *err)
{
    const struct cart_st_tensor *k = NULL, *sink = NULL;
    size_t layers = 0, layer, which;

    for (size_t i = 0; i < st->n; i++) {
        const struct cart_st_tensor *t = &st->tensors[i];
        if (!cart_rows_parse_name(t->name, &layer, &which))
            continue;
        layers += which == CART_ROWS_K;
        if (layer == 0 && which == CART_ROWS_K)
            k = t;
        if (layer == 0 && which == CART_ROWS_K_SINK)
            sink = t;
    }
    size_t frozen = sink ? sink->shape[0] : 0;
    if (!k)
        return 0;
    return cart_summary_line(
        out, err, "rows", "p %zu, %zu of them frozen; %zu layers of %zu heads of %zu, %s, %.2f MiB",
        k->shape[0] + frozen, frozen, layers, k->shape[1], k->shape[2],
        cart_st_dtype_name(k->dtype), (double)bytes_of(st) / MIB);
}

/* JSON inside a metadata string; NULL where there is none or it is none. */
static json_t *inner(const json_t *metadata, const char *key)
{
    const char *text = text_of(metadata, key, "");
    json_t *v = NULL;

    return cart_json_parse(&v, text, strlen(text), key, NULL) < 0 ? NULL : v;
}

static int put_making(struct cart_buf *out, const json_t *m, struct cart_err *err)
{
    json_t *recipe = inner(m, "cart.recipe");
    const char *init = text_of(recipe, "init", NULL);
    char first[80] = "";

    if (init)
        snprintf(first, sizeof first, "init %.60s, ", init);
    int r = cart_summary_line(out, err, "made", "%s%s steps; %s; corpus %.8s", first,
                              text_of(m, "cart.steps", "0"), text_of(m, "cart.precision", "f32"),
                              text_of(m, "cart.corpus", "unknown"));
    json_decref(recipe);
    return r;
}

/* What cart-train goes on from (study/train_state.h): how far it is, and of what run. */
static int put_state(struct cart_buf *out, const struct cart_st *st, struct cart_err *err)
{
    json_t *identity = inner(st->metadata, "cart.identity");
    const json_t *recipe = json_object_get(identity, "recipe");
    json_int_t p = json_integer_value(json_object_get(recipe, "p"));
    json_int_t steps = json_integer_value(json_object_get(recipe, "steps"));
    int r =
        cart_summary_line(out, err, "made", "step %s of %lld; p %lld; corpus %.8s; %.2f MiB",
                          text_of(st->metadata, "cart.step", "?"), (long long)steps, (long long)p,
                          text_of(identity, "corpus", "unknown"), (double)bytes_of(st) / MIB);

    if (r == 0)
        r = cart_summary_model(out, json_object_get(identity, "model"), "", err);
    json_decref(identity);
    return r;
}

int cart_rows_summary(struct cart_buf *out, const struct cart_st *st, const char *what,
                      struct cart_err *err)
{
    bool rows = cart_rows_present(st);
    bool state = json_object_get(st->metadata, "cart.optimizer") != NULL;
    int r = rows ? cart_rows_check(st, what, err) : 0;

    if (r < 0 || (r = cart_buf_addf(out, err, "%s: %s\n", what,
                                    rows    ? "cartridge"
                                    : state ? "saved state of a training"
                                            : "safetensors file")) < 0)
        return r;
    if (state && !rows)
        return put_state(out, st, err);
    if (!rows)
        return cart_summary_line(out, err, "tensors", "%zu, %.2f MiB", st->n,
                                 (double)bytes_of(st) / MIB);
    if ((r = put_rows(out, st, err)) < 0)
        return r;
    if (json_object_get(st->metadata, "cart.version") == NULL)
        return cart_summary_line(out, err, "made",
                                 "by another program: it has no metadata of ours");
    json_t *history = inner(st->metadata, "cart.history");
    if ((r = cart_summary_model(out, st->metadata, "cart.", err)) == 0 &&
        (r = put_making(out, st->metadata, err)) == 0)
        r = cart_summary_history(out, history, err);
    json_decref(history);
    return r;
}
