/* From the fields of a body to ids: messages through the chat profile, prompts and inputs through
 * the tokenizer. Internal to the room. */
#ifndef CART_SERVE_PROMPT_H
#define CART_SERVE_PROMPT_H

#include "serve/params.h"
#include "token/chat.h"

enum cart_tool_choice { CART_TOOLS_NONE, CART_TOOLS_AUTO, CART_TOOLS_REQUIRED, CART_TOOLS_NAMED };

/* A chat request's prompt, checked and ready to render. */
struct cart_prompt {
    struct cart_chat_message *messages; /* [n] */
    size_t n;
    struct cart_buf *texts; /* [n_texts] contents joined from parts, that messages borrow */
    size_t n_texts;
    struct cart_chat_options options;
    const json_t *tools; /* borrowed from the body; NULL: none to be used */
    enum cart_tool_choice choice;
    const char *named; /* CART_TOOLS_NAMED */
    size_t calls_most; /* 1 where parallel calls are not wanted */
};

/* behind: there are cartridges. */
bool cart_prompt_parse(struct cart_prompt *p, struct cart_serve *s, const json_t *body, bool behind,
                       struct cart_fault *f);
bool cart_prompt_render(const struct cart_prompt *p, struct cart_serve *s, struct cart_ids *out,
                        struct cart_fault *f);
void cart_prompt_release(struct cart_prompt *p);

/* How many prompts a field holds (a string, strings, ids, or lists of ids), 0 after a fault; most:
 * the cap. */
size_t cart_inputs_count(const json_t *v, const char *key, size_t most, struct cart_fault *f);
/* The i-th of them. suffix: plain text after it, or NULL. Text begins with a BOS where the model
 * wants one, unless behind. Ids are taken as they are without a suffix; with one they become what
 * their text would, or, where they are those of no text, are framed by BOS and suffix as it would
 * be. */
bool cart_inputs_encode(struct cart_serve *s, const json_t *v, const char *key, size_t i,
                        const char *suffix, bool behind, struct cart_ids *out,
                        struct cart_fault *f);

#endif
