/* The templates that only put marks around turns: bare ChatML, SmolLM2, and Llama 3 headers; and
 * the table of all. */
#include "token/chat_impl.h"
#include "token/unicode.h"

#include <string.h>

void cart_chat_write_open(struct cart_chat_job *job, const char *role)
{
    cart_chat_write_structure(&job->w, job->profile->open);
    cart_chat_write_content(&job->w, role, strlen(role));
    cart_chat_write_structure(&job->w, job->profile->opened);
}

void cart_chat_write_close(struct cart_chat_job *job)
{
    cart_chat_write_structure(&job->w, job->profile->end);
    cart_chat_write_structure(&job->w, job->profile->after);
}

void cart_chat_write_generation_prompt(struct cart_chat_job *job, enum cart_chat_think think)
{
    cart_chat_write_open(job, "assistant");
    if (job->profile->thinking && think == CART_THINK_OFF)
        cart_chat_write_structure(&job->w, "<think>\n\n</think>\n\n");
}

static int render_chatml(struct cart_chat_job *job, struct cart_err *err)
{
    (void)err;
    if (job->profile->default_system != NULL && !job->o->behind && job->n > 0 &&
        strcmp(job->msgs[0].role, "system") != 0) {
        cart_chat_write_open(job, "system");
        cart_chat_write_structure(&job->w, job->profile->default_system);
        cart_chat_write_close(job);
    }
    for (size_t i = 0; i < job->n; i++) {
        cart_chat_write_open(job, job->msgs[i].role);
        cart_chat_write_content(&job->w, job->msgs[i].content, job->msgs[i].n);
        cart_chat_write_close(job);
    }
    return 0;
}

/* White space as the templates' trim knows it: Unicode's, and the four separators U+001C to U+001F.
 */
static bool trimmed(const struct cart_tokenizer *t, uint32_t cp)
{
    return (t->classes[cp] & CART_UNICODE_SPACE) || (cp >= 0x1c && cp <= 0x1f);
}

static struct cart_text trim(const struct cart_tokenizer *t, struct cart_text s)
{
    const unsigned char *p = (const unsigned char *)s.data;
    const unsigned char *end = p + s.n;
    const unsigned char *first = NULL;
    const unsigned char *last = p;
    while (p < end) {
        uint32_t cp;
        size_t len = cart_utf8_decode(p, end, &cp);
        if (!trimmed(t, cp)) {
            first = first == NULL ? p : first;
            last = p + len;
        }
        p += len;
    }
    if (first == NULL)
        return (struct cart_text){s.data, 0};
    return (struct cart_text){(const char *)first, (size_t)(last - first)};
}

static int render_llama3(struct cart_chat_job *job, struct cart_err *err)
{
    (void)err;
    for (size_t i = 0; i < job->n; i++) {
        struct cart_text s = {job->msgs[i].content, job->msgs[i].n};
        s = s.n > 0 ? trim(job->w.t, s) : s;
        cart_chat_write_open(job, job->msgs[i].role);
        cart_chat_write_content(&job->w, s.data, s.n);
        cart_chat_write_close(job);
    }
    return 0;
}

static const struct cart_chat_profile profiles[] = {
    {.name = "chatml",
     .digests = {"153280e3ff55d19da1398bdb3914ee2a51b80429bfaedde11d7d216c39db80f3"},
     .open = "<|im_start|>",
     .opened = "\n",
     .end = "<|im_end|>",
     .after = "\n",
     .render = render_chatml},
    {.name = "smollm2",
     .digests = {"872be49dbb638044ad01b60388f48d469ff2980e5f0dccdc22ec907db54d0788"},
     .default_system = "You are a helpful AI assistant named SmolLM, trained by Hugging Face",
     .open = "<|im_start|>",
     .opened = "\n",
     .end = "<|im_end|>",
     .after = "\n",
     .render = render_chatml},
    {.name = "qwen2.5",
     .digests = {"cd8e9439f0570856fd70470bf8889ebd8b5d1107207f67a5efb46e342330527f"},
     .default_system = "You are Qwen, created by Alibaba Cloud. You are a helpful assistant.",
     .open = "<|im_start|>",
     .opened = "\n",
     .end = "<|im_end|>",
     .after = "\n",
     .tools = true,
     .render = cart_chat_render_qwen},
    {.name = "qwen3",
     .digests = {"87a2728cb8dc9fe424d624542f6060ec05a1d285ebbec578bb078900e33396b5"},
     .open = "<|im_start|>",
     .opened = "\n",
     .end = "<|im_end|>",
     .after = "\n",
     .tools = true,
     .thinking = true,
     .render = cart_chat_render_qwen},
    {.name = "llama3",
     .digests = {"c4b949bca331afa7cf5dd66ef647890be7648ff538b969e1678f0131ca35654d"},
     .open = "<|start_header_id|>",
     .opened = "<|end_header_id|>\n\n",
     .end = "<|eot_id|>",
     .after = "",
     .starts_with_bos = true,
     .render = render_llama3},
};

const char *cart_chat_profile_at(size_t i)
{
    return i < CART_COUNTOF(profiles) ? profiles[i].name : NULL;
}

const struct cart_chat_profile *cart_chat_profile_by_name(const char *name)
{
    for (size_t i = 0; i < CART_COUNTOF(profiles); i++)
        if (strcmp(profiles[i].name, name) == 0)
            return &profiles[i];
    return NULL;
}

const struct cart_chat_profile *cart_chat_profile_by_digest(const char *hex)
{
    for (size_t i = 0; i < CART_COUNTOF(profiles); i++)
        for (size_t k = 0; k < CART_COUNTOF(profiles[i].digests) && profiles[i].digests[k] != NULL;
             k++)
            if (strcmp(profiles[i].digests[k], hex) == 0)
                return &profiles[i];
    return NULL;
}
