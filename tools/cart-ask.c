/* cart-ask: asks a model, behind cartridges, behind a text in its context, or bare: one question,
 * or a chat line by line; with --compare the same question all three ways. Reads questions and
 * documents, writes text; changes nothing. */
#include "base/clock.h"
#include "base/columns.h"
#include "base/opt.h"
#include "cartridge/cartridge.h"
#include "engine/dialogue.h"
#include "format/docs.h"
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
    size_t text_tokens;
    struct cart_prefix *prefix;
    const struct cart_kv_part *text_part;
};

/* One way of answering. */
struct arm {
    const char *name;
    char why_not[512]; /* "" if there is an answer */
    struct cart_buf answer;
    struct cart_dialogue_answer a;
};

/* ---- what stands before the question ---- */

static int open_cartridges(struct work *w, struct cart_err *err)
{
    size_t n = w->o->cartridges.n;
    const struct cart_cartridge_options co = {w->o->other_weights};
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

/* The context turn with the tokens of all documents of --text. */
static int read_text(struct work *w, struct cart_err *err)
{
    const struct cart_docs_options none = {0};
    struct cart_docs *docs = NULL;
    struct cart_document doc;
    struct cart_corpus corpus = CART_CORPUS_INIT;
    struct cart_ids ids = CART_IDS_INIT;
    struct cart_doc all = {0};
    int r;
    if ((r = cart_docs_open(&docs, w->o->texts.items, w->o->texts.n, &none, err)) < 0)
        return r;
    while ((r = cart_docs_next(docs, &doc, err)) == 1) {
        r = cart_tokenizer_encode(cart_model_tokenizer(w->m), doc.text, doc.n_text, 0, &ids, NULL,
                                  err);
        if (r < 0)
            break;
    }
    if (r == 0 && ids.n == 0)
        r = cart_err_set(err, CART_EFORMAT, "%s: expected text, found none", w->o->texts.items[0]);
    if (r == 0) {
        all.tokens = ids.data;
        all.n = corpus.tokens = w->text_tokens = ids.n;
        corpus.docs = &all;
        corpus.n_docs = 1;
        r = cart_context_build(&w->text, w->chat, &corpus, CART_CONTEXT_DOCUMENT, 0,
                               (struct cart_range){0, ids.n}, err);
    }
    cart_docs_close(docs);
    cart_ids_release(&ids);
    return r;
}

static int open_all(struct work *w, struct cart_err *err)
{
    const struct cart_model_options mo = {w->o->profile};
    int r;
    if ((r = cart_model_open(&w->m, w->o->common.model, &mo, err)) < 0 ||
        (r = cart_model_chat(w->m, &w->chat, err)) < 0 ||
        (r = cart_pool_new(&w->pool, w->o->common.jobs, err)) < 0 ||
        (r = cart_engine_new(&w->e, w->m, w->pool, 0, err)) < 0 ||
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

static int print_text(void *ctx, const char *text, size_t n, struct cart_err *err)
{
    (void)ctx;
    if (fwrite(text, 1, n, stdout) != n || fflush(stdout) != 0)
        return cart_err_sys(err, "standard output");
    return 0;
}

static int answer(struct cart_dialogue *d, const struct options *o, const char *text, size_t n,
                  struct cart_err *err)
{
    struct cart_dialogue_answer a;
    int r = cart_dialogue_ask(d, text, n, &o->sampling, o->max_tokens, print_text, NULL, &a, err);
    if (r < 0 || (r = print_text(NULL, "\n", 1, err)) < 0)
        return r;
    if (a.finish == CART_FINISH_LENGTH)
        cart_log(CART_LOG_INFO, "the answer was cut after %zu tokens", a.tokens);
    cart_log(CART_LOG_INFO,
             "first token after %.2f s, %.1f tokens/s, %zu rows, %.1f MiB of keys and values",
             a.first, a.tokens > 1 ? (double)(a.tokens - 1) / (a.seconds - a.first) : 0.0, a.rows,
             (double)a.kv_bytes / 1048576.0);
    return 0;
}

static int chat(struct cart_dialogue *d, const struct options *o, struct cart_err *err)
{
    bool terminal = isatty(STDIN_FILENO) != 0;
    char *line = NULL;
    size_t cap = 0;
    ssize_t n;
    int r = 0;
    if (terminal)
        cart_log(CART_LOG_NOTICE, "one message a line; /quit ends");
    for (;;) {
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
        if (n > 0 && (r = answer(d, o, line, (size_t)n, err)) < 0)
            break;
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
    r = o->question != NULL ? answer(d, o, o->question, strlen(o->question), err) : chat(d, o, err);
    cart_dialogue_free(d);
    return r;
}

/* ---- side by side ---- */

static int collect(void *ctx, const char *text, size_t n, struct cart_err *err)
{
    return cart_buf_add(ctx, text, n, err);
}

/* A question that does not fit is a finding, not a failure. */
static int ask_arm(struct work *w, struct arm *arm, const struct cart_kv_part *const *parts,
                   size_t n_parts, bool behind, struct cart_err *err)
{
    const struct options *o = w->o;
    struct cart_dialogue *d = NULL;
    int r = cart_dialogue_new(&d, w->e, parts, n_parts, behind, err);
    if (r == 0)
        r = cart_dialogue_ask(d, o->question, strlen(o->question), &o->sampling, o->max_tokens,
                              collect, &arm->answer, &arm->a, err);
    cart_dialogue_free(d);
    return r;
}

static int excuse(struct arm *arm, int r, const struct cart_err *err)
{
    if (r != CART_EUSAGE)
        return r;
    snprintf(arm->why_not, sizeof arm->why_not, "%s", err->msg);
    return 0;
}

static size_t terminal_width(void)
{
    struct winsize size;
    if (!isatty(STDOUT_FILENO) || ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) < 0)
        return 0;
    return size.ws_col;
}

static const char *arm_text(const struct arm *a)
{
    return a->why_not[0] ? a->why_not : a->answer.len ? a->answer.data : "";
}
static void arm_figures(const struct arm *a, char *out, size_t cap)
{
    if (a->why_not[0] != '\0')
        snprintf(out, cap, "no answer");
    else
        snprintf(out, cap, "first token %.2f s, %.1f tokens/s, %zu rows, %.2f MiB", a->a.first,
                 a->a.tokens > 1 ? (double)(a->a.tokens - 1) / (a->a.seconds - a->a.first) : 0.0,
                 a->a.rows, (double)a->a.kv_bytes / 1048576.0);
}

static int print_columns(const struct arm *arms, size_t n, size_t width, struct cart_err *err)
{
    const char *names[3], *figures[3], *answers[3];
    char text[3][128];
    struct cart_buf out = CART_BUF_INIT;
    int r;
    for (size_t i = 0; i < n; i++) {
        arm_figures(&arms[i], text[i], sizeof text[i]);
        names[i] = arms[i].name;
        figures[i] = text[i];
        answers[i] = arm_text(&arms[i]);
    }
    if ((r = cart_columns_add(&out, names, n, width, err)) == 0 &&
        (r = cart_columns_add(&out, figures, n, width, err)) == 0 &&
        (r = cart_columns_add(&out, answers, n, width, err)) == 0)
        r = print_text(NULL, out.data, out.len, err);
    cart_buf_release(&out);
    return r;
}

static int compare(struct work *w, struct cart_err *err)
{
    struct arm arms[3] = {{.name = "bare"}};
    size_t n = 1;
    int r = excuse(&arms[0], ask_arm(w, &arms[0], NULL, 0, false, err), err);
    if (r == 0 && w->o->texts.n > 0) {
        struct arm *arm = &arms[n++];
        arm->name = "text in context";
        double start = cart_clock_now();
        r = put_text_in_context(w, err);
        double reading = cart_clock_now() - start;
        if (r == 0)
            r = ask_arm(w, arm, &w->text_part, 1, true, err);
        /* Reading the text is a part of the wait for the first token. */
        arm->a.first += reading;
        arm->a.seconds += reading;
        r = excuse(arm, r, err);
    }
    if (r == 0 && w->n_parts > 0) {
        arms[n].name = "cartridge";
        r = excuse(&arms[n], ask_arm(w, &arms[n], w->parts, w->n_parts, true, err), err);
        n++;
    }
    size_t width = terminal_width();
    if (r == 0 && width >= 40 * n && n > 1) {
        printf("%s\n\n", w->o->question);
        r = print_columns(arms, n, width, err);
    } else if (r == 0) {
        printf("%s\n", w->o->question);
        for (size_t i = 0; i < n; i++) {
            char figures[128];
            arm_figures(&arms[i], figures, sizeof figures);
            printf("\n[%s: %s]\n%s\n", arms[i].name, figures, arm_text(&arms[i]));
        }
    }
    for (size_t i = 0; i < n; i++)
        cart_buf_release(&arms[i].answer);
    return r;
}

static int run(const struct options *o, struct cart_err *err)
{
    struct work w = {.o = o};
    int r;
    if ((r = cart_kernels_select((enum cart_kernels)o->common.kernels, err)) == 0 &&
        (r = open_all(&w, err)) == 0)
        r = o->compare ? compare(&w, err) : converse(&w, err);
    close_all(&w);
    return r;
}

static int check(const struct options *o, struct cart_err *err)
{
    if (o->compare && o->question == NULL)
        return cart_err_set(err, CART_EUSAGE, "--compare: expected a question");
    if (!o->compare && o->cartridges.n > 0 && o->texts.n > 0)
        return cart_err_set(err, CART_EUSAGE, "-c and --text: expected one of them, or --compare");
    const struct cart_sampling *s = &o->sampling;
    if (s->temperature <= 0.0 && (s->top_k > 0 || s->top_p < 1.0 || s->min_p > 0.0 || s->seed > 0))
        return cart_err_set(err, CART_EUSAGE,
                            "--top-k, --top-p, --min-p and --seed go with a --temperature above 0");
    if (o->question != NULL && o->question[0] == '\0')
        return cart_err_set(err, CART_EUSAGE, "expected a question, found an empty one");
    return 0;
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
