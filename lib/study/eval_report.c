/* The evaluation as a table for people and as JSON for programs. */
#include "study/eval.h"

#include "base/log.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

/* 95 % of the shares that chance alone gives lie within 98 / sqrt(n) points of a half; wider than
 * so many points, a reader is warned. */
#define FEW 10.0

/* Width of the widest name, so that columns stand. */
static int name_width(const struct cart_eval *e)
{
    size_t w = 9;
    for (size_t i = 0; i < e->n; i++)
        w = strlen(e->arms[i].name) > w ? strlen(e->arms[i].name) : w;
    return (int)(w < 60 ? w : 60);
}

static int add_recall(struct cart_buf *out, const struct cart_eval_recall *r, struct cart_err *err)
{
    char right[16] = "-", answer[16] = "-";
    if (r->n > 0)
        snprintf(answer, sizeof answer, "%.3f", r->answer);
    if (r->judged > 0)
        snprintf(right, sizeof right, "%.1f%%", 100.0 * (double)r->right / (double)r->judged);
    return cart_buf_addf(out, err, " | %7s %8s", right, answer);
}

/* Where no cartridge divides the questions there is one group of columns. */
static size_t groups(const struct cart_eval *e)
{
    return e->questions == 0 ? 0 : e->opening == 0 ? 1 : 3;
}

static int add_arm(struct cart_buf *out, const struct cart_eval *e, const struct cart_eval_arm *a,
                   int w, struct cart_err *err)
{
    int r = cart_buf_addf(out, err, "%-*.60s %7zu %9.2f %8.4f %8.4f %6.1f%%", w, a->name, a->rows,
                          (double)a->bytes / 1048576.0, a->kl, a->ce, 100.0 * a->top1);
    const struct cart_eval_recall *parts[3] = {&a->all, &a->within, &a->beyond};
    for (size_t i = 0; i < groups(e) && r == 0; i++)
        r = add_recall(out, parts[i], err);
    return r < 0 ? r : cart_buf_addf(out, err, "\n");
}

/* Two lines: groups of columns, and columns. */
static int add_header(struct cart_buf *out, const struct cart_eval *e, int w, struct cart_err *err)
{
    char within[40];
    int r = 0;
    if (groups(e) == 3) {
        snprintf(within, sizeof within, "first %zu tokens", e->opening);
        r = cart_buf_addf(out, err, "%*s | %-16s | %-16s | %s\n", w + 44, "", "all questions",
                          within, "beyond them");
    }
    if (r == 0)
        r = cart_buf_addf(out, err, "%-*s %7s %9s %8s %8s %7s", w, "student", "rows", "MiB", "KL",
                          "CE", "top-1");
    for (size_t i = 0; i < groups(e) && r == 0; i++)
        r = cart_buf_addf(out, err, " | %7s %8s", "right", "log p");
    return r < 0 ? r : cart_buf_addf(out, err, "\n");
}

static int add_legend(struct cart_buf *out, const struct cart_eval *e, struct cart_err *err)
{
    int r = cart_buf_addf(out, err,
                          "\nKL: distance to the teacher, who reads the text; CE: KL plus the "
                          "teacher's own uncertainty. Nats a token, less is better.\n"
                          "top-1: tokens of which student and teacher think the same first.\n");
    if (r < 0 || e->questions == 0)
        return r;
    r = cart_buf_addf(out, err,
                      "right: questions whose answer is likelier than every wrong one; log p: of "
                      "the right answers, nats a token, nearer to 0 is better.\n");
    size_t judged = e->n > 0 ? e->arms[0].all.judged : 0;
    double about = judged > 0 ? 98.0 / sqrt((double)judged) : 0.0;
    if (r == 0 && about > FEW)
        r = cart_buf_addf(
            out, err,
            "%zu question%s with wrong answers %s few: right is known to within about %.0f "
            "points. Judge by log p, and by the intervals.\n",
            judged, CART_S(judged), judged == 1 ? "is" : "are", about < 50.0 ? about : 50.0);
    return r;
}

static int add_interval(struct cart_buf *out, const char *name, const struct cart_interval *i,
                        double scale, struct cart_err *err)
{
    return cart_buf_addf(out, err, "  %s %+.4g [%+.4g, %+.4g]%s", name, scale * i->mean,
                         scale * i->low, scale * i->high,
                         i->low <= 0.0 && i->high >= 0.0 ? " (unsure)" : "");
}

static int add_differences(struct cart_buf *out, const struct cart_eval *e, const char *arm,
                           const char *other, int w, const struct cart_eval_differences *d,
                           struct cart_err *err)
{
    if (!d->present)
        return 0;
    int r = cart_buf_addf(out, err, "%-*.60s - %s:", w, arm, other);
    if (r == 0 && d->has_kl)
        r = add_interval(out, "KL", &d->kl, 1.0, err);
    if (r == 0 && d->has_right)
        r = add_interval(out, "right, points", &d->right, 100.0, err);
    if (r == 0 && d->has_answer)
        r = add_interval(out, "log p", &d->answer, 1.0, err);
    if (r == 0 && d->has_beyond && groups(e) == 3)
        r = add_interval(out, "log p beyond", &d->answer_beyond, 1.0, err);
    return r < 0 ? r : cart_buf_addf(out, err, "\n");
}

int cart_eval_table(const struct cart_eval *e, struct cart_buf *out, struct cart_err *err)
{
    int w = name_width(e), r;
    size_t unquoted = e->questions - e->within - e->beyond - e->unlocated;
    r = cart_buf_addf(out, err, "%zu %s conversation%s, %zu supervised token%s", e->conversations,
                      e->held_out ? "held-out" : "(none held out: all)", CART_S(e->conversations),
                      e->tokens, CART_S(e->tokens));
    if (r == 0 && e->questions > 0)
        r = cart_buf_addf(out, err, "; %zu question%s", e->questions, CART_S(e->questions));
    if (r == 0 && groups(e) == 3)
        r = cart_buf_addf(out, err, ": %zu within the first %zu token%s, %zu beyond", e->within,
                          e->opening, CART_S(e->opening), e->beyond);
    if (r == 0 && groups(e) == 3 && unquoted > 0)
        r = cart_buf_addf(out, err, ", %zu with no quote", unquoted);
    if (r == 0 && e->unlocated > 0)
        r = cart_buf_addf(out, err, ", %zu with a quote that the corpus does not hold",
                          e->unlocated);
    if (r == 0)
        r = cart_buf_addf(out, err, "\n\n");
    if (r == 0)
        r = add_header(out, e, w, err);
    for (size_t i = 0; i < e->n && r == 0; i++)
        r = add_arm(out, e, &e->arms[i], w, err);
    if (r == 0)
        r = add_legend(out, e, err);
    if (r == 0)
        r = cart_buf_addf(out, err,
                          "\nDifferences, with 95 %% intervals of a paired bootstrap (%zu "
                          "resamples, seed %llu); unsure: the interval holds 0:\n",
                          CART_BOOTSTRAP_RESAMPLES, (unsigned long long)e->seed);
    for (size_t i = 0; i < e->n && r == 0; i++) {
        r = add_differences(out, e, e->arms[i].name, "bare", w, &e->arms[i].to_bare, err);
        if (r == 0 && strcmp(e->arms[i].name, "bare") != 0)
            r = add_differences(out, e, e->arms[i].name, "untrained", w, &e->arms[i].to_untrained,
                                err);
    }
    if (r == 0 && e->notes.len > 0)
        r = cart_buf_addf(out, err, "\n%s", e->notes.data);
    return r;
}

/* A share of nothing and a mean over nothing are no numbers: null, where the table has a dash. */
static json_t *recall_json(const struct cart_eval_recall *r)
{
    return json_pack("{s:I, s:I, s:o, s:o}", "questions", (json_int_t)r->n, "judged",
                     (json_int_t)r->judged, "right",
                     r->judged > 0 ? json_real((double)r->right / (double)r->judged) : json_null(),
                     "answer", r->n > 0 ? json_real(r->answer) : json_null());
}

static json_t *interval_json(bool has, const struct cart_interval *i)
{
    return has ? json_pack("[f, f, f]", i->mean, i->low, i->high) : json_null();
}

/* Each [difference, low, high]. */
static json_t *differences_json(const struct cart_eval_differences *d)
{
    if (!d->present)
        return json_null();
    return json_pack("{s:o, s:o, s:o, s:o}", "kl", interval_json(d->has_kl, &d->kl), "right",
                     interval_json(d->has_right, &d->right), "answer",
                     interval_json(d->has_answer, &d->answer), "answer_beyond",
                     interval_json(d->has_beyond, &d->answer_beyond));
}

static json_t *arm_json(const struct cart_eval *e, const struct cart_eval_arm *a)
{
    json_t *o = json_pack("{s:s, s:I, s:I, s:f, s:f, s:f, s:o, s:o}", "name", a->name, "rows",
                          (json_int_t)a->rows, "bytes", (json_int_t)a->bytes, "kl", a->kl, "ce",
                          a->ce, "top1", a->top1, "to_bare", differences_json(&a->to_bare),
                          "to_untrained", differences_json(&a->to_untrained));
    if (o && e->questions > 0 &&
        (json_object_set_new(o, "recall", recall_json(&a->all)) != 0 ||
         json_object_set_new(o, "recall_within", recall_json(&a->within)) != 0 ||
         json_object_set_new(o, "recall_beyond", recall_json(&a->beyond)) != 0)) {
        json_decref(o);
        return NULL;
    }
    return o;
}

int cart_eval_json(json_t **out, const struct cart_eval *e, struct cart_err *err)
{
    json_t *arms = json_array();
    bool ok = arms != NULL;
    for (size_t i = 0; i < e->n && ok; i++)
        ok = json_array_append_new(arms, arm_json(e, &e->arms[i])) == 0;
    json_t *o = NULL;
    if (ok)
        o = json_pack("{s:I, s:I, s:b, s:I, s:I, s:I, s:s, s:O}", "conversations",
                      (json_int_t)e->conversations, "tokens", (json_int_t)e->tokens, "held_out",
                      (int)e->held_out, "questions", (json_int_t)e->questions, "opening",
                      (json_int_t)e->opening, "seed", (json_int_t)e->seed, "notes",
                      e->notes.data ? e->notes.data : "", "arms", arms);
    json_decref(arms);
    if (!o)
        return cart_err_memory(err, "report", 0);
    *out = o;
    return 0;
}
