/* The HEAD record: what a writer puts there, and the history that grows by one entry a stage. */
#include "base/opt.h"
#include "stream/frame_impl.h"
#include "stream/kinds.h"

#include <stdio.h>
#include <string.h>

static int head_limit(const json_t *head, size_t *limit, struct cart_err *err)
{
    json_t *limits = json_object_get(head, "limits");
    uint64_t record = CART_STREAM_MAX_RECORD;
    int r;

    if (limits != NULL &&
        (r = cart_json_u64(limits, "record", CART_STREAM_MAX_RECORD, &record, "limits", err)) < 0)
        return cart_err_wrap(err, CART_EUSAGE, "HEAD");
    *limit = (size_t)record;
    return 0;
}

static const struct cart_kind_field head_fields[] = {
    {"history", CART_FIELD_HISTORY, true, 0, NULL},
    {"model", CART_FIELD_OBJECT, false, 0, NULL},
    {"conversations", CART_FIELD_NUMBER, false, INT64_MAX - 1, NULL},
    {"held_out", CART_FIELD_NUMBER, false, INT64_MAX - 1, NULL},
    {"shard", CART_FIELD_SPAN, false, INT64_MAX - 1, NULL},
};

/* Not every model has a chat template, and tokens do not depend on weights. */
static const struct cart_kind_field model_fields[] = {
    {"geometry", CART_FIELD_NAME, true, 0, NULL},
    {"tokenizer", CART_FIELD_NAME, true, 0, NULL},
    {"template", CART_FIELD_TEXT, false, 0, NULL},
    {"weights", CART_FIELD_TEXT, false, 0, NULL},
};

int cart_head_check(const json_t *head, const struct cart_kind *kind, const char *what, int code,
                    struct cart_err *err)
{
    const json_t *model = json_object_get(head, "model");
    json_int_t planned = json_integer_value(json_object_get(head, "conversations"));
    json_int_t held = json_integer_value(json_object_get(head, "held_out"));
    json_int_t end = json_integer_value(json_array_get(json_object_get(head, "shard"), 1));
    char path[320];
    int r = cart_fields_check(head, head_fields, CART_COUNTOF(head_fields), what, code, err);

    if (r < 0)
        return r;
    if (held > planned || end > planned)
        return cart_err_set(err, code,
                            "%s: %s: expected at most the %lld conversations, found %lld", what,
                            held > planned ? "held_out" : "shard", (long long)planned,
                            (long long)(held > planned ? held : end));
    snprintf(path, sizeof path, "%.300s: model", what);
    if (!json_is_object(model))
        return kind->of_model
                   ? cart_err_set(err, code, "%s: expected fingerprints, found nothing", path)
                   : 0;
    return cart_fields_check(model, model_fields, CART_COUNTOF(model_fields), path, code, err);
}

static int add_fixed(json_t *head, struct cart_err *err)
{
    const json_t *given = json_object_get(head, "version");
    uint64_t major, minor;

    /* A copy of what a later minor version wrote stays of that version: its members and skippable
     * records are copied too. */
    if (given != NULL && (json_array_size(given) != 2 ||
                          !cart_json_whole(json_array_get(given, 0), INT64_MAX, &major) ||
                          !cart_json_whole(json_array_get(given, 1), INT64_MAX, &minor) ||
                          major != CART_STREAM_MAJOR))
        return cart_err_set(err, CART_EUSAGE, "HEAD: version: expected [%d,MINOR] or none",
                            CART_STREAM_MAJOR);
    if (given == NULL &&
        json_object_set_new(head, "version",
                            json_pack("[i, i]", CART_STREAM_MAJOR, CART_STREAM_MINOR)) < 0)
        return cart_err_memory(err, "HEAD", 0);
    if (json_object_get(head, "limits") == NULL &&
        json_object_set_new(head, "limits",
                            json_pack("{s: I}", "record", (json_int_t)CART_STREAM_MAX_RECORD)) < 0)
        return cart_err_memory(err, "HEAD", 0);
    return 0;
}

int cart_head_build(struct cart_buf *b, const json_t *given, size_t *limit,
                    const struct cart_kind **kind, struct cart_err *err)
{
    const char *name;
    json_t *head, *history;
    char shown[80];
    int r;

    if ((r = cart_json_string(given, "kind", &name, "HEAD", err)) < 0 ||
        (r = cart_json_array(given, "history", &history, "HEAD", err)) < 0) {
        if (err != NULL)
            err->code = CART_EUSAGE;
        return CART_EUSAGE;
    }
    if (json_object_get(given, "record") != NULL)
        return cart_err_set(err, CART_EUSAGE, "HEAD: a field may not be called record");
    if ((*kind = cart_kind_find(name)) == NULL)
        return cart_err_set(err, CART_EUSAGE, "HEAD: kind: unknown kind %s",
                            cart_err_escape(shown, sizeof shown, name, strlen(name)));
    if ((r = cart_head_check(given, *kind, "HEAD", CART_EUSAGE, err)) < 0)
        return r;
    if ((head = cart_json_copy(given)) == NULL)
        return cart_err_memory(err, "HEAD", 0);
    if ((r = add_fixed(head, err)) == 0 && (r = head_limit(head, limit, err)) == 0)
        r = cart_json_dump(head, b, err);
    if (r == 0 && b->len > CART_STREAM_MAX_HEAD)
        r = cart_err_set(err, CART_EUSAGE, "HEAD: expected at most %zu bytes, found %zu",
                         CART_STREAM_MAX_HEAD, b->len);
    json_decref(head);
    return r;
}

json_t *cart_history_extend(const json_t *upstream_head, const char *tool, json_t *options,
                            json_t *extra, struct cart_err *err)
{
    json_t *old = json_object_get(upstream_head, "history");
    json_t *history, *entry;

    if (old != NULL && !json_is_array(old)) {
        cart_err_set(err, CART_EFORMAT, "HEAD: history: expected an array");
        return NULL;
    }
    history = old ? cart_json_copy(old) : json_array();
    entry = json_pack("{s: s, s: s, s: O}", "tool", tool, "version", cart_version(), "options",
                      options);
    if (history == NULL || entry == NULL || (extra && json_object_update(entry, extra) < 0) ||
        json_array_append(history, entry) < 0) {
        cart_err_memory(err, "history", 0);
        json_decref(history);
        history = NULL;
    }
    json_decref(entry);
    return history;
}
