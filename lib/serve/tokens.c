/* POST /tokenize and /detokenize, in the shapes of llama-server (content, with_pieces) and of vLLM
 * (prompt, count). */
#include "model/model.h"
#include "serve/prompt.h"
#include "serve/routes.h"
#include "serve/wire.h"

#include <string.h>

static void write_piece(struct cart_wire *w, const struct cart_tokenizer *t, uint32_t id)
{
    struct cart_text bytes = cart_tokenizer_bytes(t, id);
    struct cart_wire piece = CART_WIRE_INIT;
    cart_wire_string(&piece, bytes.data, bytes.n);
    cart_wire_f(w, "{\"id\":%u,\"piece\":", id);
    /* A piece that is no text of its own is the list of its bytes. */
    if (piece.r == 0 && !strstr(piece.b.data, "\xef\xbf\xbd")) {
        cart_wire_bytes(w, piece.b.data, piece.b.len);
    } else {
        for (size_t i = 0; i < bytes.n; i++)
            cart_wire_f(w, "%s%u", i ? "," : "[", (unsigned)(unsigned char)bytes.data[i]);
        cart_wire_add(w, "]");
    }
    cart_wire_add(w, "}");
    cart_wire_release(&piece);
}

static void write_tokens(struct cart_serve *s, struct cart_wire *w, const struct cart_ids *ids,
                         bool pieces)
{
    const struct cart_tokenizer *t = cart_model_tokenizer(s->model);
    cart_wire_add(w, "{\"tokens\":[");
    for (size_t i = 0; i < ids->n; i++) {
        if (i)
            cart_wire_add(w, ",");
        if (pieces)
            write_piece(w, t, ids->data[i]);
        else
            cart_wire_f(w, "%u", ids->data[i]);
    }
    cart_wire_f(w, "],\"count\":%zu,\"max_model_len\":%zu}", ids->n,
                cart_scheduler_context(s->scheduler));
}

static bool encode(struct cart_serve *s, const json_t *o, struct cart_ids *ids, bool *pieces,
                   struct cart_fault *f)
{
    const struct cart_tokenizer *t = cart_model_tokenizer(s->model);
    bool special = false, bos = false;
    struct cart_err err = {0};
    const char *key = cart_param(o, "content") ? "content" : "prompt";
    const json_t *text = cart_param(o, key);
    if (!cart_param_bool(o, "parse_special", &special, f) ||
        !cart_param_bool(o, "with_pieces", pieces, f) ||
        !cart_param_bool(o, "add_special_tokens", &bos, f) ||
        !cart_param_bool(o, "add_special", &bos, f))
        return false;
    if (!json_is_string(text))
        return cart_fault_found(f, key, text, "%s: expected a string", key);
    int r = 0;
    if (bos && cart_tokenizer_adds_bos(t) && cart_tokenizer_bos(t) != CART_TOKEN_NONE)
        r = cart_ids_push(ids, cart_tokenizer_bos(t), &err);
    if (r == 0)
        r = cart_tokenizer_encode(t, json_string_value(text), json_string_length(text),
                                  special ? CART_ENCODE_SPECIAL : 0, ids, NULL, &err);
    return r == 0 || (r == CART_ESYS ? cart_fault_memory(f)
                                     : cart_fault_value(f, key, "%s: %s", key, err.msg));
}

void cart_route_tokenize(struct cart_exchange *x)
{
    struct cart_fault f = {0};
    struct cart_ids ids = CART_IDS_INIT;
    struct cart_wire w = CART_WIRE_INIT;
    json_t *body = NULL;
    bool pieces = false;
    bool ok = cart_params_body(x, &body, &f) && encode(x->serve, body, &ids, &pieces, &f);
    if (ok)
        write_tokens(x->serve, &w, &ids, pieces);
    cart_fault_or_reply(x, ok, &w, &f);
    cart_ids_release(&ids);
    json_decref(body);
}

static bool decode(struct cart_serve *s, const json_t *o, struct cart_buf *text,
                   struct cart_fault *f)
{
    const struct cart_tokenizer *t = cart_model_tokenizer(s->model);
    const json_t *list = cart_param(o, "tokens");
    if (!json_is_array(list))
        return cart_fault_found(f, "tokens", list, "tokens: expected an array of token ids");
    for (size_t i = 0; i < json_array_size(list); i++) {
        uint64_t v;
        if (!cart_json_whole(json_array_get(list, i), s->model->V - 1, &v))
            return cart_fault_found(f, "tokens", json_array_get(list, i),
                                    "tokens: expected token ids from 0 to %zu", s->model->V - 1);
        uint32_t id = (uint32_t)v;
        if (cart_tokenizer_decode(t, &id, 1, true, text, NULL) < 0)
            return cart_fault_memory(f);
    }
    return true;
}

void cart_route_detokenize(struct cart_exchange *x)
{
    struct cart_fault f = {0};
    struct cart_buf text = CART_BUF_INIT;
    struct cart_wire w = CART_WIRE_INIT;
    json_t *body = NULL;
    bool ok = cart_params_body(x, &body, &f) && decode(x->serve, body, &text, &f);
    if (ok) {
        cart_wire_add(&w, "{\"content\":");
        cart_wire_string(&w, text.data, text.len);
        cart_wire_add(&w, ",\"prompt\":");
        cart_wire_string(&w, text.data, text.len);
        cart_wire_add(&w, "}");
    }
    cart_fault_or_reply(x, ok, &w, &f);
    cart_buf_release(&text);
    json_decref(body);
}
