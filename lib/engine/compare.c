#include "engine/compare.h"

#include "base/columns.h"
#include "base/log.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* A column narrower than this is no reading matter. */
#define COLUMN_MIN 40

struct arm {
    const char *name;
    char why_not[512]; /* "" if there is an answer */
    char figures[128];
    struct cart_buf text;
};

struct cart_comparison {
    struct cart_engine *e;
    const char *question;
    struct cart_sampling sampling;
    size_t max_tokens, n;
    struct arm arms[CART_COMPARE_MAX];
};

int cart_comparison_new(struct cart_comparison **out, struct cart_engine *e, const char *question,
                        const struct cart_sampling *sampling, size_t max_tokens,
                        struct cart_err *err)
{
    struct cart_comparison *c = calloc(1, sizeof *c);

    if (c == NULL)
        return cart_err_memory(err, "a comparison", sizeof *c);
    c->e = e;
    c->question = question;
    c->sampling = *sampling;
    c->max_tokens = max_tokens;
    *out = c;
    return 0;
}

void cart_comparison_free(struct cart_comparison *c)
{
    for (size_t i = 0; c != NULL && i < c->n; i++)
        cart_buf_release(&c->arms[i].text);
    free(c);
}

static struct arm *next_arm(struct cart_comparison *c, const char *name)
{
    assert(c->n < CART_COMPARE_MAX);
    struct arm *a = &c->arms[c->n++];
    *a = (struct arm){.name = name, .figures = "no answer", .text = CART_BUF_INIT};
    return a;
}

void cart_comparison_excuse(struct cart_comparison *c, const char *name, const char *why)
{
    struct arm *a = next_arm(c, name);

    snprintf(a->why_not, sizeof a->why_not, "%s", why);
}

static int collect(void *ctx, const char *text, size_t n, struct cart_err *err)
{
    return cart_buf_add(ctx, text, n, err);
}

int cart_comparison_ask(struct cart_comparison *c, const char *name,
                        const struct cart_kv_part *const *parts, size_t n_parts, bool behind,
                        double wait, struct cart_err *err)
{
    struct arm *a = next_arm(c, name);
    struct cart_dialogue *d = NULL;
    struct cart_dialogue_answer figures;
    struct cart_err why = {0};
    int r = cart_dialogue_new(&d, c->e, parts, n_parts, behind, &why);

    if (r == 0)
        r = cart_dialogue_ask(d, c->question, strlen(c->question), &c->sampling, c->max_tokens,
                              collect, &a->text, &figures, &why);
    cart_dialogue_free(d);
    if (r == CART_EUSAGE) {
        snprintf(a->why_not, sizeof a->why_not, "%s", why.msg);
        return 0;
    }
    if (r < 0) {
        if (err != NULL)
            *err = why;
        return r;
    }
    figures.first += wait;
    figures.seconds += wait;
    cart_comparison_figures(&figures, a->figures, sizeof a->figures);
    if (figures.finish == CART_FINISH_LENGTH) {
        size_t n = strlen(a->figures);
        snprintf(a->figures + n, sizeof a->figures - n, ", cut after %zu token%s", figures.tokens,
                 CART_S(figures.tokens));
    }
    return 0;
}

void cart_comparison_figures(const struct cart_dialogue_answer *a, char *out, size_t cap)
{
    double rate = a->tokens > 1 ? (double)(a->tokens - 1) / (a->seconds - a->first) : 0.0;

    snprintf(out, cap, "first token %.2f s, %.1f tokens/s, %zu rows, %.2f MiB of keys and values",
             a->first, rate, a->rows, (double)a->kv_bytes / 1048576.0);
}

static const char *arm_text(const struct arm *a)
{
    return a->why_not[0] != '\0' ? a->why_not : a->text.len > 0 ? a->text.data : "";
}

static int print_columns(const struct cart_comparison *c, size_t width, struct cart_buf *out,
                         struct cart_err *err)
{
    const char *lines[3][CART_COMPARE_MAX]; /* names, figures, answers */
    int r = cart_buf_addf(out, err, "%s\n\n", c->question);

    for (size_t i = 0; i < c->n; i++) {
        lines[0][i] = c->arms[i].name;
        lines[1][i] = c->arms[i].figures;
        lines[2][i] = arm_text(&c->arms[i]);
    }
    for (size_t k = 0; k < 3 && r == 0; k++)
        r = cart_columns_add(out, lines[k], c->n, width, err);
    return r;
}

int cart_comparison_print(const struct cart_comparison *c, size_t width, struct cart_buf *out,
                          struct cart_err *err)
{
    if (width >= COLUMN_MIN * c->n && c->n > 1)
        return print_columns(c, width, out, err);
    int r = cart_buf_addf(out, err, "%s\n", c->question);
    for (size_t i = 0; i < c->n && r == 0; i++)
        r = cart_buf_addf(out, err, "\n[%s: %s]\n%s\n", c->arms[i].name, c->arms[i].figures,
                          arm_text(&c->arms[i]));
    return r;
}
