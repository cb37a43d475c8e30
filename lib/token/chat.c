#include "token/chat_impl.h"

#include "base/hash.h"

#include <stdlib.h>
#include <string.h>

struct cart_chat {
    const struct cart_tokenizer *t;
    const struct cart_chat_profile *profile;
    char digest[65];
    struct cart_ids system_open, close;
    uint32_t think_open, think_close; /* or CART_TOKEN_NONE */
};

static void flush(struct cart_chat_writer *w)
{
    if (w->r == 0)
        w->r = cart_tokenizer_encode(w->t, w->run.data, w->run.len, 0, w->ids, w->stats, w->err);
    cart_buf_reset(&w->run);
}

static void add(struct cart_chat_writer *w, const char *text, size_t n)
{
    if (w->r == 0)
        w->r = cart_buf_add(w->text != NULL ? w->text : &w->run, text, n, w->err);
}

void cart_chat_write_structure(struct cart_chat_writer *w, const char *text)
{
    const char *end = text + strlen(text);
    while (text < end && w->r == 0) {
        uint32_t id;
        size_t len = 0, steps = 0;
        const char *q =
            w->text != NULL ? end : cart_special_find(w->t, text, end, &id, &len, &steps);
        add(w, text, (size_t)(q - text));
        if (q < end) {
            flush(w);
            if (w->r == 0)
                w->r = cart_ids_push(w->ids, id, w->err);
        }
        text = q + len;
    }
}

void cart_chat_write_content(struct cart_chat_writer *w, const char *text, size_t n)
{
    if (n > 0)
        add(w, text, n);
}

/* Tokenises the pending run; the last call of a writer, which releases its memory. */
static int writer_finish(struct cart_chat_writer *w)
{
    if (w->text == NULL)
        flush(w);
    cart_buf_release(&w->run);
    return w->r;
}

static struct cart_chat_job job_for(const struct cart_chat *c, const struct cart_chat_message *msgs,
                                    size_t n, const struct cart_chat_options *o,
                                    struct cart_err *err)
{
    return (struct cart_chat_job){.profile = c->profile,
                                  .msgs = msgs,
                                  .n = n,
                                  .o = o,
                                  .w = {.t = c->t, .run = CART_BUF_INIT, .err = err}};
}

static void write_bos(struct cart_chat_job *job)
{
    struct cart_chat_writer *w = &job->w;
    struct cart_text name = cart_tokenizer_string(w->t, cart_tokenizer_bos(w->t));
    if (w->text != NULL)
        add(w, name.data, name.n);
    else if (w->r == 0)
        w->r = cart_ids_push(w->ids, cart_tokenizer_bos(w->t), w->err);
}

/* Everything through the writer of the job, which says where it goes. */
static int render(struct cart_chat_job *job, struct cart_err *err)
{
    const struct cart_chat_options *o = job->o;
    int r = 0;
    if (json_array_size(o->tools) > 0 && !job->profile->tools)
        r = cart_err_set(err, CART_EFORMAT, "tools: chat template %s has none", job->profile->name);
    for (size_t i = 0; i < job->n && r == 0; i++)
        if (json_array_size(job->msgs[i].tool_calls) > 0 && !job->profile->tools)
            r = cart_err_set(err, CART_EFORMAT,
                             "messages[%zu].tool_calls: chat template %s has none", i,
                             job->profile->name);
    if (r == 0) {
        if (job->profile->starts_with_bos && !o->behind)
            write_bos(job);
        r = job->profile->render(job, err);
    }
    if (r == 0 && o->generation_prompt)
        cart_chat_write_generation_prompt(job, o->think);
    int finished = writer_finish(&job->w);
    return r < 0 ? r : finished;
}

int cart_chat_render_text(const struct cart_chat *c, const struct cart_chat_message *msgs, size_t n,
                          const struct cart_chat_options *o, struct cart_buf *out,
                          struct cart_err *err)
{
    struct cart_chat_job job = job_for(c, msgs, n, o, err);
    size_t before = out->len;
    job.w.text = out;
    int r = render(&job, err);
    if (r < 0)
        out->len = before;
    return r;
}

int cart_chat_render(const struct cart_chat *c, const struct cart_chat_message *msgs, size_t n,
                     const struct cart_chat_options *o, struct cart_ids *out,
                     struct cart_encode_stats *stats, struct cart_err *err)
{
    struct cart_chat_job job = job_for(c, msgs, n, o, err);
    size_t before = out->n;
    int r;
    if (o->special_content) {
        struct cart_buf text = CART_BUF_INIT;
        r = cart_chat_render_text(c, msgs, n, o, &text, err);
        if (r == 0)
            r = cart_tokenizer_encode(c->t, text.data, text.len, CART_ENCODE_SPECIAL, out, stats,
                                      err);
        cart_buf_release(&text);
    } else {
        job.w.ids = out;
        job.w.stats = stats;
        r = render(&job, err);
    }
    if (r < 0)
        out->n = before;
    return r;
}

static int refuse_name(const char *name, struct cart_err *err)
{
    char list[100], shown[64];
    size_t at = 0;
    for (size_t i = 0; cart_chat_profile_at(i) != NULL && at < sizeof list; i++)
        at += (size_t)snprintf(list + at, sizeof list - at, "%s%s",
                               i == 0                                ? ""
                               : cart_chat_profile_at(i + 1) != NULL ? ", "
                                                                     : " or ",
                               cart_chat_profile_at(i));
    return cart_err_set(err, CART_EUSAGE, "chat profile: expected %s, found '%s'", list,
                        cart_err_escape(shown, sizeof shown, name, strlen(name)));
}

static int choose(struct cart_chat *c, const char *text, size_t n, const char *name,
                  struct cart_err *err)
{
    if (text != NULL) {
        unsigned char digest[32];
        cart_sha256(text, n, digest);
        cart_hex(c->digest, digest, sizeof digest);
    }
    if (name != NULL) {
        c->profile = cart_chat_profile_by_name(name);
        return c->profile != NULL ? 0 : refuse_name(name, err);
    }
    if (text == NULL)
        return cart_err_set(err, CART_EFORMAT, "no chat template; --profile NAME names one");
    c->profile = cart_chat_profile_by_digest(c->digest);
    if (c->profile == NULL)
        return cart_err_set(err, CART_EFORMAT,
                            "unsupported chat template: sha256 %s; --profile NAME names one",
                            c->digest);
    return 0;
}

/* The control tokens of the profile, each one token of the vocabulary; code where that lacks
 * one. */
static int check_controls(const struct cart_chat *c, int code, struct cart_err *err)
{
    const char *const texts[] = {c->profile->open, c->profile->opened, c->profile->end};
    for (size_t i = 0; i < CART_COUNTOF(texts); i++) {
        if (texts[i][0] != '<')
            continue;
        size_t n = (size_t)(strchr(texts[i], '>') - texts[i]) + 1;
        if (!cart_tokenizer_is_special(c->t, cart_tokenizer_find(c->t, texts[i], n)))
            return cart_err_set(err, code,
                                "chat profile %s: the vocabulary has no control token %.*s",
                                c->profile->name, (int)n, texts[i]);
    }
    if (c->profile->starts_with_bos && cart_tokenizer_bos(c->t) == CART_TOKEN_NONE)
        return cart_err_set(err, code, "chat profile %s: the vocabulary names no bos token",
                            c->profile->name);
    return 0;
}

/* The fixed pieces, rendered once. */
static int precompute(struct cart_chat *c, struct cart_err *err)
{
    static const struct cart_chat_options none = {.generation_prompt = false};
    struct cart_ids *const out[] = {&c->system_open, &c->close};
    for (size_t i = 0; i < CART_COUNTOF(out); i++) {
        struct cart_chat_job job = job_for(c, NULL, 0, &none, err);
        job.w.ids = out[i];
        if (i == 0 && c->profile->starts_with_bos)
            write_bos(&job);
        if (i == 0)
            cart_chat_write_open(&job, "system");
        else
            cart_chat_write_close(&job);
        int r = writer_finish(&job.w);
        if (r < 0)
            return r;
    }
    c->think_open = cart_tokenizer_find(c->t, "<think>", 7);
    c->think_close = cart_tokenizer_find(c->t, "</think>", 8);
    if (!cart_tokenizer_is_special(c->t, c->think_open) ||
        !cart_tokenizer_is_special(c->t, c->think_close))
        c->think_open = c->think_close = CART_TOKEN_NONE;
    return 0;
}

int cart_chat_new(struct cart_chat **out, const struct cart_tokenizer *t, const char *template_text,
                  size_t n, const char *profile, struct cart_err *err)
{
    struct cart_chat *c = calloc(1, sizeof *c);
    if (c == NULL)
        return cart_err_memory(err, "chat template", sizeof *c);
    c->t = t;
    int r = choose(c, template_text, n, profile, err);
    if (r == 0)
        r = check_controls(c, profile != NULL ? CART_EUSAGE : CART_EFORMAT, err);
    if (r == 0)
        r = precompute(c, err);
    if (r < 0)
        cart_chat_free(c);
    else
        *out = c;
    return r;
}

void cart_chat_free(struct cart_chat *c)
{
    if (c == NULL)
        return;
    cart_ids_release(&c->system_open);
    cart_ids_release(&c->close);
    free(c);
}

const char *cart_chat_profile(const struct cart_chat *c)
{
    return c->profile->name;
}

const char *cart_chat_digest(const struct cart_chat *c)
{
    return c->digest;
}

bool cart_chat_has_thinking(const struct cart_chat *c)
{
    return c->profile->thinking;
}

const uint32_t *cart_chat_system_open(const struct cart_chat *c, size_t *n)
{
    *n = c->system_open.n;
    return c->system_open.data;
}

const uint32_t *cart_chat_turn_close(const struct cart_chat *c, size_t *n)
{
    *n = c->close.n;
    return c->close.data;
}

uint32_t cart_chat_end_of_turn(const struct cart_chat *c)
{
    return c->close.data[0];
}

bool cart_chat_is_stop(const struct cart_chat *c, uint32_t id)
{
    return id == c->close.data[0] || cart_tokenizer_is_eog(c->t, id);
}

static bool only_newlines(const struct cart_chat *c, uint32_t id)
{
    struct cart_text s = cart_tokenizer_bytes(c->t, id);
    for (size_t i = 0; i < s.n; i++)
        if (s.data[i] != '\n')
            return false;
    return s.n > 0;
}

size_t cart_chat_strip_thinking(const struct cart_chat *c, uint32_t *ids, size_t n)
{
    size_t kept = 0;
    size_t opened =
        0; /* what stays if a closing marker comes: nothing, unless a span was opened later */
    bool inside = false;
    if (c->think_close == CART_TOKEN_NONE)
        return n;
    for (size_t i = 0; i < n; i++) {
        if (ids[i] == c->think_open && !inside) {
            inside = true;
            opened = kept;
        } else if (ids[i] == c->think_close) {
            kept = inside ? opened : 0;
            inside = false;
            while (i + 1 < n && only_newlines(c, ids[i + 1]))
                i++;
        } else {
            ids[kept++] = ids[i];
        }
    }
    return inside ? opened : kept;
}

/* One of the roles that templates know; a client's developer is what they call system. NULL:
 * none. */
static const char *known_role(const json_t *v)
{
    static const char *const roles[] = {"system", "user", "assistant", "tool"};
    const char *role = json_string_value(v);
    if (role == NULL || strlen(role) != json_string_length(v))
        return NULL;
    if (strcmp(role, "developer") == 0)
        return roles[0];
    for (size_t i = 0; i < CART_COUNTOF(roles); i++)
        if (strcmp(roles[i], role) == 0)
            return roles[i];
    return NULL;
}

static int parse_message(const json_t *m, size_t i, struct cart_chat_message *out, const char *what,
                         struct cart_err *err)
{
    const char *role = known_role(json_object_get(m, "role"));
    const json_t *content = json_object_get(m, "content");
    const json_t *reasoning = json_object_get(m, "reasoning_content");
    const json_t *calls = json_object_get(m, "tool_calls");
    char found[48];
    if (role == NULL)
        return cart_err_set(err, CART_EFORMAT,
                            "%s[%zu].role: expected system, developer, user, assistant or tool, "
                            "found %s",
                            what, i, cart_json_found(json_object_get(m, "role"), found));
    /* An answer of calls alone has no words. */
    bool wordless = json_array_size(calls) > 0 && (content == NULL || json_is_null(content));
    if (!json_is_string(content) && !wordless)
        return cart_err_set(err, CART_EFORMAT, "%s[%zu].content: expected a string, found %s", what,
                            i, cart_json_found(content, found));
    if (reasoning != NULL && !json_is_string(reasoning) && !json_is_null(reasoning))
        return cart_err_set(err, CART_EFORMAT,
                            "%s[%zu].reasoning_content: expected a string or null", what, i);
    if (calls != NULL && !json_is_array(calls) && !json_is_null(calls))
        return cart_err_set(err, CART_EFORMAT, "%s[%zu].tool_calls: expected an array or null",
                            what, i);
    *out = (struct cart_chat_message){
        .role = role,
        .content = json_is_string(content) ? json_string_value(content) : "",
        .n = json_string_length(content),
        .reasoning = json_string_value(reasoning),
        .n_reasoning = json_string_length(reasoning),
        .tool_calls = json_is_array(calls) ? calls : NULL,
    };
    return 0;
}

int cart_chat_messages_parse(const json_t *array, struct cart_chat_message **out, size_t *n,
                             const char *what, struct cart_err *err)
{
    if (!json_is_array(array))
        return cart_err_set(err, CART_EFORMAT, "%s: expected an array", what);
    size_t count = json_array_size(array);
    if (count == 0)
        return cart_err_set(err, CART_EFORMAT, "%s: expected at least one message, found none",
                            what);
    struct cart_chat_message *msgs = calloc(count + 1, sizeof *msgs);
    if (msgs == NULL)
        return cart_err_memory(err, what, (count + 1) * sizeof *msgs);
    int r = 0;
    for (size_t i = 0; i < count && r == 0; i++)
        r = parse_message(json_array_get(array, i), i, &msgs[i], what, err);
    if (r < 0) {
        free(msgs);
        return r;
    }
    *out = msgs;
    *n = count;
    return 0;
}
