#include "study/context.h"

#include "format/docs.h"
#include "token/chat.h"
#include "token/tokenizer.h"

#include <assert.h>

int cart_context_build(struct cart_ids *out, const struct cart_chat *chat,
                       const struct cart_corpus *corpus, enum cart_context_kind kind, size_t doc,
                       struct cart_range span, struct cart_err *err)
{
    size_t n_open;
    size_t n_close;
    const uint32_t *open = cart_chat_system_open(chat, &n_open);
    const uint32_t *close = cart_chat_turn_close(chat, &n_close);
    size_t first = span.first;
    size_t end = span.end;
    int r;

    if (kind != CART_CONTEXT_CORPUS) {
        assert(doc < corpus->n_docs && end <= corpus->docs[doc].n);
        first += corpus->docs[doc].first;
        end += corpus->docs[doc].first;
    }
    assert(first <= end && end <= corpus->tokens);
    if ((r = cart_ids_add(out, open, n_open, err)) < 0)
        return r;
    r = cart_array_reserve(&out->data, &out->cap, out->n + (end - first), sizeof *out->data, err);
    if (r < 0)
        return r;
    cart_corpus_copy(corpus, first, end, out->data + out->n);
    out->n += end - first;
    return cart_ids_add(out, close, n_close, err);
}

int cart_context_of(struct cart_ids *out, const struct cart_chat *chat,
                    const struct cart_corpus *corpus, const struct cart_conversation *c,
                    struct cart_err *err)
{
    return cart_context_build(out, chat, corpus, c->context, c->doc, c->context_span, err);
}

int cart_context_read(struct cart_ids *out, const struct cart_chat *chat,
                      const struct cart_tokenizer *tokenizer, struct cart_docs *docs,
                      size_t *tokens, struct cart_err *err)
{
    size_t n_open;
    size_t n_close;
    const uint32_t *open = cart_chat_system_open(chat, &n_open);
    const uint32_t *close = cart_chat_turn_close(chat, &n_close);
    struct cart_document doc;
    int r;

    if ((r = cart_ids_add(out, open, n_open, err)) < 0)
        return r;
    size_t first = out->n;
    while ((r = cart_docs_next(docs, &doc, err)) == 1) {
        r = cart_tokenizer_encode(tokenizer, doc.text, doc.n_text, 0, out, NULL, err);
        if (r < 0)
            return r;
    }
    *tokens = out->n - first;
    return r < 0 ? r : cart_ids_add(out, close, n_close, err);
}
