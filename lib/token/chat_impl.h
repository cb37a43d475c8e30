/* Inside of the chat profiles; only for chat*.c. A profile writes a conversation through a writer,
 * piece by piece, as its template would: structure with cart_chat_write_structure, what messages
 * hold with cart_chat_write_content. */
#ifndef CART_TOKEN_CHAT_IMPL_H
#define CART_TOKEN_CHAT_IMPL_H

#include "token/chat.h"
#include "token/tokenizer_impl.h"

/* Where a conversation goes: ids (text NULL), or text. The first failure stays in r and makes all
 * further writes do nothing. */
struct cart_chat_writer {
    const struct cart_tokenizer *t;
    struct cart_ids *ids;
    struct cart_buf *text;
    struct cart_buf run; /* text since the last control token, to be tokenised as one string */
    struct cart_encode_stats *stats;
    struct cart_err *err;
    int r;
};

/* What the template itself writes: its control tokens are recognised. */
void cart_chat_write_structure(struct cart_chat_writer *w, const char *text);
/* What came from outside: plain text, whatever it spells. */
void cart_chat_write_content(struct cart_chat_writer *w, const char *text, size_t n);

/* A conversation being rendered by a profile. */
struct cart_chat_job {
    const struct cart_chat_profile *profile;
    const struct cart_chat_message *msgs;
    size_t n;
    const struct cart_chat_options *o;
    struct cart_chat_writer w;
};

struct cart_chat_profile {
    const char *name;
    const char *
        digests[4]; /* SHA-256 of the template texts that it renders, in hex; NULL after the last */
    const char
        *default_system; /* content of the system turn that stands in for a missing one, or NULL */
    const char *open, *opened; /* around the role: "<|im_start|>" and "\n" */
    const char *end,
        *after; /* around what ends a turn: the control token, and the text that follows */
    bool starts_with_bos;
    bool tools, thinking;
    int (*render)(struct cart_chat_job *job,
                  struct cart_err *err); /* all but BOS and generation prompt */
};

const struct cart_chat_profile *cart_chat_profile_by_name(const char *name);
const struct cart_chat_profile *cart_chat_profile_by_digest(const char *hex);

/* "<open>role<opened>" and "<end><after>". */
void cart_chat_write_open(struct cart_chat_job *job, const char *role);
void cart_chat_write_close(struct cart_chat_job *job);
/* The opened assistant turn that a generation continues. */
void cart_chat_write_generation_prompt(struct cart_chat_job *job, enum cart_chat_think think);

int cart_chat_render_qwen(struct cart_chat_job *job, struct cart_err *err) CART_MUST_USE;

/* Appends v as the templates' tojson writes it: keys in the order given, ", " and ": ", no escapes
 * beyond JSON's own. */
int cart_chat_tojson(const json_t *v, struct cart_buf *b, struct cart_err *err) CART_MUST_USE;

#endif
