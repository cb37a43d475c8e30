/* Conversations to ids: the chat templates that we know, each written out by hand as a profile and
 * chosen by the SHA-256 of the template text in the model file. A template that nobody checked is
 * refused, unless a profile is named.
 *
 * Ids are rendered, not text: what the template writes may become control tokens, what a message
 * holds is plain text and can never become one (unless options->special_content). Each run of text
 * between two control tokens is tokenised as one string, so the ids are those of the rendered text
 * wherever the contents spell no control token.
 *
 * Profiles: "chatml" (bare), "smollm2", "qwen2.5", "qwen3", "llama3" (headers; BOS first; contents
 * trimmed). */
#ifndef CART_TOKEN_CHAT_H
#define CART_TOKEN_CHAT_H

#include "base/json.h"
#include "token/tokenizer.h"

struct cart_chat;

/* Picks the profile. template_text (n bytes; NULL: the file has none) is only digested, never run,
 * and not kept. profile NULL: by the digest; a name: that one whatever the text. t is borrowed and
 * must outlive the chat. CART_EFORMAT: unknown template ("unsupported chat template: sha256 ...;
 * --profile NAME names one"), no template, a vocabulary without the profile's control tokens;
 * CART_EUSAGE: a name of no profile, or of one whose control tokens the vocabulary lacks. */
int cart_chat_new(struct cart_chat **out, const struct cart_tokenizer *t, const char *template_text,
                  size_t n, const char *profile, struct cart_err *err) CART_MUST_USE;
void cart_chat_free(struct cart_chat *c);

const char *cart_chat_profile(const struct cart_chat *c); /* its name */
const char *cart_chat_profile_at(size_t i);               /* names of all; NULL after the last */
const char *cart_chat_digest(
    const struct cart_chat *c); /* SHA-256 of the template text in hex, "" if there was none */
bool cart_chat_has_thinking(const struct cart_chat *c); /* the profile knows reasoning spans */

/* All borrowed for the call. content NULL counts as empty. */
struct cart_chat_message {
    const char *
        role; /* "system", "user", "assistant", "tool"; chatml, smollm2 and llama3 pass others on */
    const char *content;
    size_t n;
    const char *reasoning; /* reasoning_content of an assistant turn (qwen3), or NULL */
    size_t n_reasoning;
    const json_t *tool_calls; /* array of {name, arguments} or {function: {name, arguments}}, or
                                 NULL (qwen2.5, qwen3) */
};

enum cart_chat_think {
    CART_THINK_AUTO,
    CART_THINK_ON,
    CART_THINK_OFF
}; /* auto: as the template does when not told */

struct cart_chat_options {
    bool generation_prompt; /* open an assistant turn at the end */
    bool behind;            /* behind a cartridge: no BOS, no default system turn */
    bool special_content;   /* contents may spell control tokens */
    enum cart_chat_think
        think;           /* qwen3: OFF puts an empty reasoning block into the generation prompt */
    const json_t *tools; /* array of tool definitions, or NULL (qwen2.5, qwen3) */
};

/* Appends the ids of the conversation. stats (may be NULL) counts neutralised look-alikes. On
 * failure out is as it was. CART_EFORMAT: a role the template does not know, malformed tool calls,
 * tools for a profile without them; no message and no generation prompt is fine and gives what the
 * template gives. */
int cart_chat_render(const struct cart_chat *c, const struct cart_chat_message *msgs, size_t n,
                     const struct cart_chat_options *o, struct cart_ids *out,
                     struct cart_encode_stats *stats, struct cart_err *err) CART_MUST_USE;
/* The same as text, as the template would write it. Not for tokenising: the difference between
 * structure and content is lost. */
int cart_chat_render_text(const struct cart_chat *c, const struct cart_chat_message *msgs, size_t n,
                          const struct cart_chat_options *o, struct cart_buf *out,
                          struct cart_err *err) CART_MUST_USE;

/* What stands around a system turn that opens a prompt: "<|im_start|>system\n" (after the BOS where
 * the template writes one) and "<|im_end|>\n". Rows of a cartridge are open + corpus ids + close.
 * Borrowed, in this order of ids. */
const uint32_t *cart_chat_system_open(const struct cart_chat *c, size_t *n);
const uint32_t *cart_chat_turn_close(const struct cart_chat *c,
                                     size_t *n); /* of any turn; its first id ends an answer */
uint32_t cart_chat_end_of_turn(const struct cart_chat *c); /* what a finished answer ends with */
bool cart_chat_is_stop(const struct cart_chat *c,
                       uint32_t id); /* end of turn, or any of cart_tokenizer_is_eog */

/* Removes reasoning from an answer, in place: from an opening marker up to its closing one, or to
 * the end if it is never closed; up to a closing marker that nothing opened (the prompt did); and
 * the newlines after a closing one. Markers are the tokens "<think>" and "</think>", so text that
 * merely spells them stays. Returns the new length; n where the vocabulary has no such tokens. */
size_t cart_chat_strip_thinking(const struct cart_chat *c, uint32_t *ids, size_t n);

/* A JSON array of {"role", "content", "reasoning_content"?, "tool_calls"?} as messages that borrow
 * from it. There is at least one; role is system, developer (which becomes system), user, assistant
 * or tool; content is a string, and may be null or absent beside tool_calls only. *out is the
 * caller's to free(). what names the array in messages. */
int cart_chat_messages_parse(const json_t *array, struct cart_chat_message **out, size_t *n,
                             const char *what, struct cart_err *err) CART_MUST_USE;

#endif
