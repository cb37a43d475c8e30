/* The context turn: what stands before a conversation when the text itself is in the context. A
 * closed system turn of the chat profile whose content is the text's own token ids, inserted as
 * they are: open ids, tokens, close ids. A pure function of (profile, corpus, kind, span), so that
 * it is stored nowhere: self-study, teacher and evaluation make the same ids from the same record.
 */
#ifndef CART_STUDY_CONTEXT_H
#define CART_STUDY_CONTEXT_H

#include "study/conversation.h"
#include "study/corpus.h"

struct cart_chat;
struct cart_docs;
struct cart_ids;
struct cart_tokenizer;

/* Appends the turn's ids to out. doc is unused for CART_CONTEXT_CORPUS. span must lie within the
 * text (asserts): parsed conversations have been checked. */
int cart_context_build(struct cart_ids *out, const struct cart_chat *chat,
                       const struct cart_corpus *corpus, enum cart_context_kind kind, size_t doc,
                       struct cart_range span, struct cart_err *err) CART_MUST_USE;

/* The same for a conversation. */
int cart_context_of(struct cart_ids *out, const struct cart_chat *chat,
                    const struct cart_corpus *corpus, const struct cart_conversation *c,
                    struct cart_err *err) CART_MUST_USE;

/* The same turn over documents that no stream holds: reads docs to the end and appends the turn
 * over all of their text to out. *tokens: of the text. Errors as in cart_docs_next. */
int cart_context_read(struct cart_ids *out, const struct cart_chat *chat,
                      const struct cart_tokenizer *tokenizer, struct cart_docs *docs,
                      size_t *tokens, struct cart_err *err) CART_MUST_USE;

#endif
