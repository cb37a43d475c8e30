/* A document made into tokens: the ids of its text, or of the conversation that it is, and the
 * fields and payload of its DOC record. One thread. */
#ifndef CART_STUDY_TOKENIZE_H
#define CART_STUDY_TOKENIZE_H

#include "base/json.h"
#include "format/docs.h"
#include "token/chat.h"
#include "token/tokenizer.h"

struct cart_tokenizing {
    const struct cart_tokenizer *tokenizer;
    const struct cart_chat *chat; /* not NULL: every document is a conversation */
    bool special;                 /* control tokens spelt in text count as such */
    bool generation_prompt;       /* unless a conversation's line says otherwise, as think */
    enum cart_chat_think think;
    struct cart_encode_stats stats; /* of all documents so far */
    /* Of the document made last: */
    struct cart_ids ids;
    struct cart_buf text, payload;
    char number[24]; /* an id that is one */
};

/* Makes doc into t->ids and *fields, a new reference to its record's fields. A conversation that is
 * none is CART_EFORMAT. */
int cart_tokenizing_next(struct cart_tokenizing *t, const struct cart_document *doc,
                         json_t **fields, struct cart_err *err) CART_MUST_USE;

/* The payload of the DOC record of these fields and t->ids, in t->payload. CART_EFORMAT where it is
 * larger than a record may be; what names the document. */
int cart_tokenizing_payload(struct cart_tokenizing *t, const json_t *fields, const char *what,
                            struct cart_err *err) CART_MUST_USE;

void cart_tokenizing_release(struct cart_tokenizing *t); /* what it owns: ids, text, payload */

#endif
