/* cart-ask: asks a model, behind cartridges, behind a text in its context, or bare: one question,
 * or a chat line by line; with --compare the same question all three ways. Reads questions and
 * documents, writes text; changes nothing. */
#include "base/clock.h"
#include "base/opt.h"
#include "cartridge/cartridge.h"
#include "engine/compare.h"
#include "format/docs_words.h"
#include "format/text.h"
#include "study/context.h"

#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

struct options {
    struct cart_common common;
    struct cart_opt_list cartridges, texts;
    bool compare, other_weights;
    struct cart_sampling sampling;
    size_t max_tokens;
    int kv; /* by its place among the words */
    const char *profile, *question;
};

struct work {
    const struct options *o;
    struct cart_model *m;
    const struct cart_chat *chat;
    struct cart_pool *pool;
    struct cart_engine *e;
    struct cart_cartridge **cartridges; /* [o->cartridges.n] */
    const struct cart_kv_part **parts;  /* of all cartridges in order */
    size_t n_parts;
    struct cart_ids text; /* the context turn of --text */
    struct cart_prefix *prefix;
    const struct cart_kv_part *text_part;
};

/* ---- what stands before the question ---- */

static int open_cartridges(struct work *w, struct cart_err *err)
{
    size_t n = w->o->cartridges.n;
    const struct cart_cartridge_options co = {.allow_other_weights = w->o->other_weights};
    char warning[512];
    size_t p;
    int r = 0;
    w->cartridges = calloc(n + 1, sizeof(struct cart_cartridge *));
    w->parts = calloc(2 * n + 1, sizeof(struct cart_kv_part *));
    if (w->cartridges == NULL || w->parts == NULL)
        return cart_err_memory(err, "cartridges", 0);
    for (size_t i = 0; i < n; i++) {
        const char *path = w->o->cartridges.items[i];
        if ((r = cart_cartridge_open(&w->cartridges[i], w->m, path, &co, warning, sizeof warning,
                                     err)) < 0)
            return r;
        if (warning[0] != '\0')
            cart_log(CART_LOG_WARNING, "%s: %s", path, warning);
    }
    const struct cart_cartridge *const *list = (const struct cart_cartridge *const *)w->cartridges;
    if (n > 0 && (r = cart_cartridge_fit(w->m, list, n, 1, &p, err)) < 0)
        return r;
    w->n_parts = cart_cartridge_parts(list, n, w->parts);
    return 0;
}

static void say(enum cart_log_level level, const char *text)
{
    cart_log(level, "%s", text);
}

/* The context turn over all documents of --text. */
static int read_text(struct work *w, struct cart_err *err)
{
    struct cart_docs_words words = {.say = say, .brief = w->o->common.verbose == 0};
    const struct cart_docs_options o = {.report = cart_docs_words_note, .report_ctx = &words};
    struct cart_docs *docs = NULL;
    size_t tokens;
    int r;
    if ((r = cart_docs_open(&docs, w->o->texts.items, w->o->texts.n, &o, err)) == 0 &&
        (r = cart_context_read(&w->text, w->chat, cart_model_tokenizer(w->m), docs, &tokens,
                               err)) == 0)
        r = cart_docs_words_end(&words, cart_docs_stats(docs), tokens, err);
    cart_docs_close(docs);
    return r;
}

static int open_all(struct work *w, struct cart_err *err)
{
    int r;
    if ((r = cart_model_open_pooled(&w->m, &w->pool, w->o->common.model, w->o->profile,
                                    w->o->common.jobs, err)) < 0 ||
        (r = cart_model_chat(w->m, &w->chat, err)) < 0 ||
        (r = cart_engine_new(&w->e, w->m, cart_kv_type(w->o->kv), w->pool, 0, err)) < 0 ||
        (r = open_cartridges(w, err)) < 0)
        return r;
    return w->o->texts.n > 0 ? read_text(w, err) : 0;
}

static void close_all(struct work *w)
{
    cart_prefix_release(w->e, w->prefix);
    cart_ids_release(&w->text);
    for (size_t i = 0; w->cartridges != NULL && i < w->o->cartridges.n; i++) {
        if (w->cartridges[i] != NULL)
            cart_cartridge_close(w->cartridges[i]);
    }
    free(w->cartridges);
    free(w->parts);
    cart_engine_free(w->e);
    cart_pool_free(w->pool);
    cart_model_close(w->m);
}

static int put_text_in_context(struct work *w, struct cart_err *err)
{
    int r = cart_prefix_acquire(w->e, w->text.data, w->text.n, &w->prefix, err);
    if (r == 0)
        w->text_part = cart_prefix_part(w->prefix);
    return r;
}

/* ---- one answer, or a chat ---- */

/* The end of an answer, by which one that goes round in circles is known. */
struct tail {
    char text[240];
    size_t n;
};

static void tail_add(struct tail *t, const char *text, size_t n)
{
    size_t take = n < sizeof t->text ? n : sizeof t->text;
    size_t keep = t->n + take <= sizeof t->text ? t->n : sizeof t->text - take;
    memmove(t->text, t->text + t->n - keep, keep);
    memcpy(t->text + keep, text + n - take, take);
    t->n = keep + take;
}

/* Whether the last bytes are the same piece, three times and 24 bytes at least. */
static bool tail_repeats(const struct tail *t)
{
    for (size_t piece = 1; 3 * piece <= t->n; piece++) {
        size_t n = 3 * piece < 24 ? 24 : 3 * piece;
        if (n <= t->n && memcmp(t->text + t->n - n, t->text + t->n - n + piece, n - piece) == 0)
            return true;
    }
    return false;
}

static int print_text(void *ctx, const char *text, size_t n, struct cart_err *err)
{
    if (ctx != NULL)
        tail_add(ctx, text, n);
    if (fwrite(text, 1, n, stdout) != n || fflush(stdout) != 0)
        return cart_err_sys(err, "standard output");
    return 0;
}

static int unchanged(const struct work *w, struct cart_err *err)
{
    int r = cart_model_unchanged(w->m, err);
    if (r == 0)
        r = cart_cartridges_unchanged((const struct cart_cartridge *const *)w->cartridges,
                                      w->o->cartridges.n, err);
    return r;
}

/* What is said cannot be taken back: the files are looked at before, and again before the answer
 * counts as one. */
static int answer(struct cart_dialogue *d, const struct work *w, const char *text, size_t n,
                  struct cart_err *err)
{
    const struct options *o = w->o;
    struct cart_dialogue_answer a;
    struct tail tail = {.n = 0};
    char figures[128];
    int r = unchanged(w, err);
    if (r < 0 ||
        (r = cart_dialogue_ask(d, text, n, &o->sampling, o->max_tokens, print_text, &tail, &a,
                               err)) < 0 ||
        (r = print_text(NULL, "\n", 1, err)) < 0 || (r = unchanged(w, err)) < 0)
        return r;
    if (a.finish == CART_FINISH_LENGTH)
        cart_log(CART_LOG_NOTICE, "the answer was cut after %zu tokens: %s", a.tokens,
                 tail_repeats(&tail) ? "it repeats itself" : "--max-tokens allows more");
    cart_comparison_figures(&a, figures, sizeof figures);
    cart_log(CART_LOG_INFO, "%s", figures);
    return 0;
}

/* A message that cannot be answered ends a chat from a file; a person may try another. */
static int chat_line(struct cart_dialogue *d, const struct work *w, size_t number, const char *line,
                     size_t n, bool terminal, struct cart_err *err)
{
    char what[32];
    snprintf(what, sizeof what, "line %zu", number);
    int r = cart_text_check(what, line, n, err);
    if (r == 0 && (r = answer(d, w, line, n, err)) != CART_EUSAGE)
        return r;
    if (!terminal)
        return r;
    cart_log(CART_LOG_WARNING, "%s", err->msg);
    return 0;
}

static int chat(struct cart_dialogue *d, const struct work *w, struct cart_err *err)
{
    bool terminal = isatty(STDIN_FILENO) != 0;
    char *line = NULL;
    size_t cap = 0;
    ssize_t n;
    int r = 0;
    if (terminal)
        cart_log(CART_LOG_NOTICE, "one message a line; /quit ends");
    for (size_t number = 1; r == 0; number++) {
        if (terminal) {
            fputs("> ", stderr);
            fflush(stderr);
        }
        if ((n = getline(&line, &cap, stdin)) < 0)
            break;
        while (n > 0 && (line[n - 1] == '\n' || line[n - 1] == '\r'))
            n--;
        if (n == 5 && memcmp(line, "/quit", 5) == 0)
            break;
        if (n > 0)
            r = chat_line(d, w, number, line, (size_t)n, terminal, err);
    }
    if (r == 0 && ferror(stdin))
        r = cart_err_sys(err, "standard input");
    free(line);
    return r;
}

static int converse(struct work *w, struct cart_err *err)
{
    const struct options *o = w->o;
    struct cart_dialogue *d = NULL;
    bool text = o->texts.n > 0;
    int r = text ? put_text_in_context(w, err) : 0;
    if (r < 0 || (r = cart_dialogue_new(&d, w->e, text ? &w->text_part : w->parts,
                                        text ? 1 : w->n_parts, text || w->n_parts > 0, err)) < 0)
        return r;
    r = o->question != NULL ? answer(d, w, o->question, strlen(o->question), err) : chat(d, w, err);
    cart_dialogue_free(d);
    return r;
}

/* ---- side by side ---- */

static size_t terminal_width(void)
{
    struct winsize size;
    if (!isatty(STDOUT_FILENO) || ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) < 0)
        return 0;
    return size.ws_col;
}

/* Reading the text is a part of the wait for the first token; a text that does not fit is a
 * finding. */
static int compare_text(struct work *w, struct cart_comparison *c, struct cart_err *err)
{
    static const char name[] = "text in context";
    double start = cart_clock_now();
    int r = put_text_in_context(w, err);
    double reading = cart_clock_now() - start;
    if (r != CART_EUSAGE)
        return r < 0 ? r : cart_comparison_ask(c, name, &w->text_part, 1, true, reading, err);
    cart_comparison_excuse(c, name, err->msg);
    return 0;
}

static int compare(struct work *w, struct cart_err *err)
{
    const struct options *o = w->o;
    struct cart_comparison *c = NULL;
    struct cart_buf out = CART_BUF_INIT;
    int r;
    if ((r = cart_comparison_new(&c, w->e, o->question, &o->sampling, o->max_tokens, err)) < 0)
        return r;
    r = cart_comparison_ask(c, "bare", NULL, 0, false, 0.0, err);
    if (r == 0 && o->texts.n > 0)
        r = compare_text(w, c, err);
    if (r == 0 && w->n_parts > 0)
        r = cart_comparison_ask(c, "cartridge", w->parts, w->n_parts, true, 0.0, err);
    if (r == 0)
        r = unchanged(w, err);
    if (r == 0 && (r = cart_comparison_print(c, terminal_width(), &out, err)) == 0)
        r = print_text(NULL, out.data, out.len, err);
    cart_buf_release(&out);
    cart_comparison_free(c);
    return r;
}

static int run(const struct options *o, struct cart_err *err)
{
    struct work w = {.o = o};
    int r;
    if ((r = cart_kernels_select((enum cart_kernels)o->common.kernels,
                                 (enum cart_precision)o->common.precision, err)) == 0 &&
        (r = open_all(&w, err)) == 0) {
        cart_trace("ready", NULL); /* bench_start: everything is mapped, no token is computed yet */
        r = o->compare ? compare(&w, err) : converse(&w, err);
        r = cart_model_cause(w.m, r, err);
        r = cart_cartridges_cause((const struct cart_cartridge *const *)w.cartridges,
                                  o->cartridges.n, r, err);
    }
    close_all(&w);
    return r;
}

static int check(const struct options *o, struct cart_err *err)
{
    if (o->compare && o->question == NULL)
        return cart_err_set(err, CART_EUSAGE, "--compare: expected a question");
    if (o->compare && o->cartridges.n == 0 && o->texts.n == 0)
        return cart_err_set(err, CART_EUSAGE,
                            "--compare: expected -c or --text to compare the bare model with");
    if (!o->compare && o->cartridges.n > 0 && o->texts.n > 0)
        return cart_err_set(err, CART_EUSAGE, "-c and --text: expected one of them, or --compare");
    if (o->other_weights && o->cartridges.n == 0)
        return cart_err_set(err, CART_EUSAGE, "--allow-other-weights goes with -c");
    const struct cart_sampling *s = &o->sampling;
    if (s->temperature <= 0.0 && (s->top_k > 0 || s->top_p < 1.0 || s->min_p > 0.0 || s->seed > 0))
        return cart_err_set(err, CART_EUSAGE,
                            "--top-k, --top-p, --min-p and --seed go with a --temperature above 0");
    if (o->question != NULL && o->question[0] == '\0')
        return cart_err_set(err, CART_EUSAGE, "expected a question, found an empty one");
    return o->question ? cart_text_check("question", o->question, strlen(o->question), err) : 0;
}

int main(int argc, char **argv)
{
    struct options o = {.sampling = {.top_p = 1.0, .use = CART_RNG_ASK}, .max_tokens = 256};
    struct cart_err err = {0};
    const struct cart_opt table[] = {
        CART_OPT_LIST('c', "cartridge", &o.cartridges, "CARTRIDGE",
                      "answer behind it; several stand one after another"),
        CART_OPT_LIST(0, "text", &o.texts, "FILE",
                      "answer with this file, directory or archive in the context"),
        CART_OPT_FLAG(0, "compare", &o.compare, "bare, text in context and cartridge side by side"),
        CART_OPT_REAL(0, "temperature", &o.sampling.temperature, 0, 100, "T",
                      "of sampling (default: 0, the likeliest token)"),
        CART_OPT_SIZE(0, "top-k", &o.sampling.top_k, 0, 1 << 20, "K",
                      "sample among the K likeliest (default: 0, all)"),
        CART_OPT_REAL(0, "top-p", &o.sampling.top_p, 1e-6, 1, "P",
                      "sample among the likeliest that reach P (default: 1)"),
        CART_OPT_REAL(0, "min-p", &o.sampling.min_p, 0, 1, "P",
                      "leave out tokens less than P times as likely as the likeliest (default: 0)"),
        CART_OPT_U64(0, "seed", &o.sampling.seed, 0, 9007199254740991.0, "S",
                     "seed of sampling (default: 0)"),
        CART_OPT_SIZE(0, "max-tokens", &o.max_tokens, 1, 1 << 20, "N",
                      "tokens of an answer, at most (default: 256)"),
        CART_OPT_ENUM(0, "kv", &o.kv, "f32|f16|bf16",
                      "how keys and values are kept; 16 bits take half the memory"),
        CART_OPT_FLAG(0, "allow-other-weights", &o.other_weights,
                      "cartridges made by other weights of this model"),
        CART_OPT_STRING(0, "profile", &o.profile, "NAME",
                        "chat profile in place of the one that the template chooses"),
        CART_OPT_END,
    };
    const struct cart_tool tool = {"cart-ask",
                                   "ask a model behind a cartridge",
                                   "[QUESTION]",
                                   table,
                                   CART_USES_JOBS | CART_USES_MODEL | CART_USES_KERNELS,
                                   &o.common};
    int first;
    bool done = false;
    int r = cart_opt_parse(&tool, argc, argv, &first, &done, &err);
    if (r == 0 && !done && argc - first > 1)
        r = cart_err_set(&err, CART_EUSAGE, "expected one question, found %d operands: quote it",
                         argc - first);
    if (r == 0 && !done) {
        o.question = first < argc ? argv[first] : NULL;
        if ((r = check(&o, &err)) == 0)
            r = run(&o, &err);
    }
    free(o.cartridges.items);
    free(o.texts.items);
    return cart_main_end(r, 0, &err);
}
