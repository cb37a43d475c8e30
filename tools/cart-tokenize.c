/* cart-tokenize: reads documents (files, directories, archives, JSON Lines, standard input) or,
 * with --chat, conversations; writes a token stream with one DOC record each. Text is text: what
 * looks like a control token in it never becomes one, unless --special. One document is held at a
 * time. */
#include "base/io.h"
#include "base/opt.h"
#include "format/docs_words.h"
#include "format/text.h"
#include "model/model.h"
#include "stream/stream.h"
#include "study/tokenize.h"

#include <string.h>
#include <unistd.h>

struct options {
    struct cart_common common;
    bool chat, special, generation_prompt, count;
    int invalid, think; /* enum cart_docs_invalid; enum cart_chat_think */
    const char *profile;
    struct cart_docs_options docs;
};

struct work {
    const struct options *o;
    struct cart_model *model;
    struct cart_tokenizing t;
    struct cart_output out;
    struct cart_stream_writer *writer;
    struct cart_docs_words words;
    uint64_t tokens, counts; /* bytes of the lines of --count */
};

static void say(enum cart_log_level level, const char *text)
{
    cart_log(level, "%s", text);
}

static const char *out_name(const struct work *w)
{
    return w->o->common.output ? w->o->common.output : "standard output";
}

static int report(const struct work *w, const struct cart_docs_stats *stats, struct cart_err *err)
{
    int r = cart_docs_words_end(&w->words, stats, w->tokens, err);

    if (r == 0 && w->t.stats.lookalikes > 0)
        cart_log(CART_LOG_NOTICE, "control tokens spelt in the text, taken as text: %zu",
                 w->t.stats.lookalikes);
    if (r == 0 && w->o->common.dry_run)
        cart_log(CART_LOG_NOTICE, "would write %s with about %llu bytes", out_name(w),
                 (unsigned long long)(w->writer ? cart_stream_size(w->writer) : w->counts));
    return r;
}

/* A record, or one JSON line with the counts only. */
static int write_document(struct work *w, const struct cart_document *doc, json_t *fields,
                          struct cart_err *err)
{
    struct cart_tokenizing *t = &w->t;
    int r;

    if (!w->o->count) {
        if ((r = cart_tokenizing_payload(t, fields, doc->shown, err)) < 0)
            return r;
        return cart_stream_write(w->writer, "DOC ", t->payload.data, t->payload.len, err);
    }
    cart_buf_reset(&t->payload);
    if (json_object_set_new(fields, "tokens", json_integer((json_int_t)t->ids.n)) < 0)
        return cart_err_memory(err, doc->shown, 0);
    if ((r = cart_json_dump(fields, &t->payload, err)) < 0 ||
        (r = cart_buf_add(&t->payload, "\n", 1, err)) < 0)
        return r;
    w->counts += t->payload.len;
    return cart_io_write(w->out.fd, t->payload.data, t->payload.len, out_name(w), err);
}

static int one_document(struct work *w, const struct cart_document *doc, struct cart_err *err)
{
    json_t *fields = NULL;
    int r = cart_tokenizing_next(&w->t, doc, &fields, err);

    if (r == 0) {
        w->tokens += w->t.ids.n;
        r = write_document(w, doc, fields, err);
    }
    json_decref(fields);
    return r;
}

/* The options that change results. */
static json_t *canonical_options(const struct options *o)
{
    static const char *const invalid[] = {"skip", "replace", "fail"};
    static const char *const think[] = {"auto", "on", "off"};
    json_t *v = json_pack("{s:b, s:b}", "chat", o->chat, "special", o->special);
    int bad = v ? 0 : -1;

    if (o->chat) {
        bad |= json_object_set_new(v, "generation_prompt", json_boolean(o->generation_prompt));
        bad |= json_object_set_new(v, "think", json_string(think[o->think]));
    } else {
        bad |= json_object_set_new(v, "invalid", json_string(invalid[o->invalid]));
        bad |= json_object_set_new(v, "jsonl", json_boolean(o->docs.jsonl));
        bad |= json_object_set_new(v, "markup", json_boolean(o->docs.markup));
        if (o->docs.text_field)
            bad |= json_object_set_new(v, "field", json_string(o->docs.text_field));
        if (o->docs.id_field)
            bad |= json_object_set_new(v, "id_field", json_string(o->docs.id_field));
    }
    if (o->docs.max_document)
        bad |=
            json_object_set_new(v, "max_document", json_integer((json_int_t)o->docs.max_document));
    if (o->profile)
        bad |= json_object_set_new(v, "profile", json_string(o->profile));
    if (bad)
        json_decref(v);
    return bad ? NULL : v;
}

static int begin_stream(struct work *w, struct cart_err *err)
{
    json_t *options = canonical_options(w->o), *history = NULL, *head = NULL;
    int r = options ? 0 : cart_err_memory(err, "options", 0);

    if (r == 0 && !(history = cart_history_extend(NULL, "cart-tokenize", options, NULL, err)))
        r = err->code;
    if (r == 0 && !(head = json_pack("{s:s, s:O, s:o}", "kind", "tokens", "history", history,
                                     "model", cart_fingerprints_json(&w->model->fp))))
        r = cart_err_memory(err, "stream head", 0);
    if (r == 0)
        r = cart_stream_create(&w->writer, w->out.fd, out_name(w), head, (int)w->o->common.compress,
                               err);
    json_decref(head);
    json_decref(history);
    json_decref(options);
    return r;
}

static int all_documents(struct work *w, struct cart_docs *docs, struct cart_err *err)
{
    struct cart_progress progress;
    struct cart_document doc;
    int r;

    cart_progress_start(&progress, (enum cart_progress_mode)w->o->common.progress, "documents", 0);
    while ((r = cart_docs_next(docs, &doc, err)) == 1) {
        if ((r = one_document(w, &doc, err)) < 0)
            break;
        cart_progress_update(&progress, (double)(doc.index + 1), doc.shown);
    }
    cart_progress_end(&progress);
    return r;
}

/* What an option can do about a document that was passed over. */
static const char *const advice[CART_DOCS_REASONS] = {
    [CART_DOCS_LARGE] = ": --max-document allows more",
    [CART_DOCS_MARKUP] = ", or take it as it is with --markup",
};

static int run(struct options *o, const char *const *inputs, size_t n, struct cart_err *err)
{
    struct work w = {.o = o,
                     .t = {.special = o->special,
                           .generation_prompt = o->generation_prompt,
                           .think = (enum cart_chat_think)o->think},
                     .words = {.say = say, .advice = advice}};
    struct cart_docs *docs = NULL;
    struct cart_model_options mo = {.profile = o->profile};
    int r;

    o->docs.invalid = (enum cart_docs_invalid)o->invalid;
    o->docs.whole_lines = o->chat;
    o->docs.output =
        o->common.output && strcmp(o->common.output, "-") != 0 ? o->common.output : "/dev/stdout";
    o->docs.report = cart_docs_words_note;
    o->docs.report_ctx = &w.words;
    if ((r = cart_model_open(&w.model, o->common.model, &mo, err)) < 0 ||
        (o->chat && (r = cart_model_chat(w.model, &w.t.chat, err)) < 0))
        goto out;
    w.t.tokenizer = cart_model_tokenizer(w.model);
    if ((r = cart_docs_open(&docs, inputs, n, &o->docs, err)) < 0)
        goto out;
    /* What a dry run would write goes nowhere, and is as long. */
    const char *path = o->common.dry_run ? "/dev/null" : o->common.output;
    if ((r = cart_output_open(&w.out, path, o->count, err)) < 0 ||
        (!o->count && (r = begin_stream(&w, err)) < 0) || (r = all_documents(&w, docs, err)) < 0 ||
        (r = report(&w, cart_docs_stats(docs), err)) < 0 ||
        (r = cart_model_unchanged(w.model, err)) < 0)
        goto out;
    if (w.writer) {
        struct cart_stream_writer *writer = w.writer;
        w.writer = NULL;
        r = cart_stream_finish(writer, err);
    }
    if (r == 0)
        r = cart_output_commit(&w.out, err);
    if (r == 0 && !o->common.dry_run)
        cart_log_wrote(o->common.output, "%zu document%s", cart_docs_stats(docs)->documents,
                       CART_S(cart_docs_stats(docs)->documents));
out:
    if (w.writer)
        cart_stream_abandon(w.writer);
    cart_output_abandon(&w.out);
    cart_docs_close(docs);
    cart_tokenizing_release(&w.t);
    cart_model_close(w.model);
    return r;
}

/* An option that would change nothing is a mistake; then the defaults of those not given. */
static int check(struct options *o, bool nothing, struct cart_err *err)
{
    if (nothing)
        return cart_err_set(err, CART_EUSAGE,
                            "expected documents: name files, or give text on standard input");
    if (!o->chat && (o->generation_prompt || o->think >= 0))
        return cart_err_set(err, CART_EUSAGE, "--generation-prompt and --think go with --chat");
    if (o->chat && (o->invalid >= 0 || o->docs.jsonl || o->docs.text_field || o->docs.id_field ||
                    o->docs.markup))
        return cart_err_set(err, CART_EUSAGE,
                            "--chat: no --invalid, --jsonl, --field, --id-field, --markup");
    const char *const fields[] = {o->docs.text_field, o->docs.id_field};
    for (size_t i = 0; i < CART_COUNTOF(fields); i++)
        if (fields[i] && cart_text_check("name", fields[i], strlen(fields[i]), err) < 0)
            return cart_err_wrap(err, CART_EUSAGE, i == 0 ? "--field" : "--id-field");
    if (o->count && o->common.compress > 0)
        return cart_err_set(err, CART_EUSAGE, "--compress: not with --count, which writes text");
    o->invalid = o->invalid < 0 ? CART_DOCS_SKIP : o->invalid;
    o->think = o->think < 0 ? CART_THINK_OFF : o->think;
    return 0;
}

int main(int argc, char **argv)
{
    struct options o = {.invalid = -1, .think = -1};
    struct cart_err err = {0};
    const struct cart_opt table[] = {
        CART_OPT_ENUM(0, "invalid", &o.invalid, "skip|replace|fail",
                      "text that is not UTF-8 (default: skip)"),
        CART_OPT_FLAG(0, "special", &o.special, "control tokens spelt in text count as such"),
        CART_OPT_FLAG(0, "jsonl", &o.docs.jsonl, "input that begins with { is JSON Lines"),
        CART_OPT_STRING(0, "field", &o.docs.text_field, "NAME",
                        "text field of JSON Lines (default: text)"),
        CART_OPT_STRING(0, "id-field", &o.docs.id_field, "NAME",
                        "id field of JSON Lines (default: id)"),
        CART_OPT_FLAG(0, "markup", &o.docs.markup, "take HTML as it is"),
        CART_OPT_SIZE(0, "max-document", &o.docs.max_document, 1, 1 << 30, "BYTES",
                      "pass over larger documents (default: 256M)"),
        CART_OPT_FLAG(0, "chat", &o.chat,
                      "each line is a conversation, rendered by the model's template"),
        CART_OPT_FLAG(0, "generation-prompt", &o.generation_prompt,
                      "with --chat: open an assistant turn at the end"),
        CART_OPT_ENUM(0, "think", &o.think, "auto|on|off", "with --chat: reasoning (default: off)"),
        CART_OPT_STRING(0, "profile", &o.profile, "NAME",
                        "chat profile in place of the template's own"),
        CART_OPT_FLAG(0, "count", &o.count, "write one JSON line of counts a document, no stream"),
        CART_OPT_END,
    };
    const unsigned uses = CART_USES_OUTPUT | CART_USES_MODEL | CART_USES_COMPRESS |
                          CART_USES_DRY_RUN | CART_USES_PROGRESS;
    const struct cart_tool tool = {
        "cart-tokenize", "documents to tokens", "[FILE|DIR|ARCHIVE|-]...", table, uses, &o.common};
    static const char *const standard_input[] = {"-"};
    int first = argc;
    bool done = false;
    int r = cart_opt_parse(&tool, argc, argv, &first, &done, &err);

    if (r == 0 && !done)
        r = check(&o, first == argc && isatty(STDIN_FILENO), &err);
    if (r == 0 && !done)
        r = run(&o, first < argc ? (const char *const *)&argv[first] : standard_input,
                first < argc ? (size_t)(argc - first) : 1, &err);
    return cart_main_end(r, 0, &err);
}
