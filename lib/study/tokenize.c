#include "study/tokenize.h"

#include "base/hash.h"
#include "stream/kinds.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int encode_text(struct cart_tokenizing *t, const struct cart_document *doc,
                       struct cart_err *err)
{
    unsigned flags = t->special ? CART_ENCODE_SPECIAL : 0;
    int r;

    cart_buf_reset(&t->text);
    if ((r = cart_tokenizer_normalize(t->tokenizer, doc->text, doc->n_text, &t->text, err)) < 0)
        return r;
    return cart_tokenizer_encode(t->tokenizer, doc->text, doc->n_text, flags, &t->ids, &t->stats,
                                 err);
}

/* The fields of a line that say how it is rendered win over the options. */
static int chat_options(const struct cart_tokenizing *t, const json_t *line,
                        struct cart_chat_options *co, const char *what, struct cart_err *err)
{
    bool think = false;
    int r;

    *co = (struct cart_chat_options){.generation_prompt = t->generation_prompt,
                                     .special_content = t->special,
                                     .think = t->think};
    if ((r = cart_json_bool_opt(line, "add_generation_prompt", &co->generation_prompt, what, err)) <
            0 ||
        (r = cart_json_bool_opt(line, "enable_thinking", &think, what, err)) < 0)
        return r;
    if (json_is_boolean(json_object_get(line, "enable_thinking")))
        co->think = think ? CART_THINK_ON : CART_THINK_OFF;
    const json_t *tools = json_object_get(line, "tools");
    if (tools && !json_is_null(tools)) {
        if (!json_is_array(tools))
            return cart_err_set(err, CART_EFORMAT, "%s: tools: expected an array", what);
        co->tools = tools;
    }
    return 0;
}

/* *id: the id field, a string or a whole number, borrowed from line or t. */
static int chat_id(struct cart_tokenizing *t, const json_t *line, const char **id, const char *what,
                   struct cart_err *err)
{
    const json_t *v = json_object_get(line, "id");

    if (!json_is_integer(v))
        return cart_json_string_opt(line, "id", id, what, err);
    snprintf(t->number, sizeof t->number, "%" JSON_INTEGER_FORMAT, json_integer_value(v));
    *id = t->number;
    return 0;
}

/* Renders the conversation of one line, which the caller releases; *id as above. */
static int encode_chat(struct cart_tokenizing *t, const struct cart_document *doc, json_t **line,
                       const char **id, struct cart_err *err)
{
    struct cart_chat_message *msgs = NULL;
    struct cart_chat_options co;
    json_t *array = NULL;
    char what[300];
    size_t n = 0;
    int r;

    if ((r = cart_json_parse(line, doc->text, doc->n_text, doc->shown, err)) < 0)
        return r;
    if (!json_is_object(*line))
        return cart_err_set(err, CART_EFORMAT, "%s: expected an object with \"messages\"",
                            doc->shown);
    snprintf(what, sizeof what, "%.280s: messages", doc->shown);
    if ((r = cart_json_array(*line, "messages", &array, doc->shown, err)) < 0 ||
        (r = chat_id(t, *line, id, doc->shown, err)) < 0 ||
        (r = chat_options(t, *line, &co, doc->shown, err)) < 0 ||
        (r = cart_chat_messages_parse(array, &msgs, &n, what, err)) < 0)
        return r;
    r = cart_chat_render(t->chat, msgs, n, &co, &t->ids, &t->stats, err);
    if (r < 0)
        r = cart_err_wrap(err, r, "%s", doc->shown);
    free(msgs);
    return r;
}

static int make_fields(const struct cart_tokenizing *t, const struct cart_document *doc,
                       const char *id, json_t **out, struct cart_err *err)
{
    char sha[65];
    json_t *f = json_pack("{s:I, s:s, s:s, s:I, s:s}", "doc", (json_int_t)doc->index, "id", id,
                          "path", doc->path, "bytes", (json_int_t)doc->size, "sha256",
                          cart_hex(sha, doc->sha256, 32));
    int bad = f ? 0 : -1;
    bool normalised = !t->chat && (t->text.len != doc->n_text ||
                                   memcmp(t->text.data, doc->text, doc->n_text) != 0);

    if (!t->chat)
        bad |= json_object_set_new(f, "text_bytes", json_integer((json_int_t)t->text.len));
    if (normalised)
        bad |= json_object_set_new(f, "normalised", json_true());
    if (doc->replaced > 0)
        bad |= json_object_set_new(f, "replaced", json_integer((json_int_t)doc->replaced));
    if (bad) {
        json_decref(f);
        return cart_err_memory(err, doc->shown, 0);
    }
    *out = f;
    return 0;
}

int cart_tokenizing_next(struct cart_tokenizing *t, const struct cart_document *doc,
                         json_t **fields, struct cart_err *err)
{
    const char *id = doc->id;
    json_t *line = NULL;

    t->ids.n = 0;
    int r = t->chat ? encode_chat(t, doc, &line, &id, err) : encode_text(t, doc, err);
    if (r == 0)
        r = make_fields(t, doc, id, fields, err);
    json_decref(line);
    return r;
}

int cart_tokenizing_payload(struct cart_tokenizing *t, const json_t *fields, const char *what,
                            struct cart_err *err)
{
    const struct cart_kind *kind = cart_kind_find("tokens");
    const void *data[] = {t->ids.data};
    const size_t counts[] = {t->ids.n};
    int r;

    cart_buf_reset(&t->payload);
    if ((r = cart_payload_build(&t->payload, &kind->records[0], fields, data, counts, err)) < 0)
        return cart_err_wrap(err, r, "%s", what);
    if (t->payload.len > CART_STREAM_MAX_RECORD)
        return cart_err_set(err, CART_EFORMAT,
                            "%s: expected a record of at most %zu bytes, found %zu", what,
                            CART_STREAM_MAX_RECORD, t->payload.len);
    return 0;
}

void cart_tokenizing_release(struct cart_tokenizing *t)
{
    cart_ids_release(&t->ids);
    cart_buf_release(&t->text);
    cart_buf_release(&t->payload);
}
