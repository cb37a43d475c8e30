#include "helper/workload.h"

#include "helper/bench_args.h"
#include "helper/limits.h"
#include "model/backward.h"
#include "model/head.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { TEXT = 48, STREAMS = 64, NUMBERS = 4, LARGEST = 1 << 20 };

/* The streams of a decode; the targets and the tape of a training step. */
struct state {
    char text[TEXT];
    size_t B, T, P, R;
    int kv;                     /* type of the rows */
    struct cart_kv_tail *tails; /* [B] */
    struct cart_kv_tail prefix;
    struct cart_kv_layer *layers; /* [L], of the prefix */
    struct cart_kv_part part;
    struct cart_tape *tape;
    bool by_rows; /* the prefix lies as a cartridge does */
    float *rows;  /* of such a prefix, and of the one in training */
    float **g;    /* [2 L], of the prefix */
    size_t *want, *offsets;
    uint32_t *ids;
    float *p, *hidden, *dhidden;
};

struct workloads {
    struct cart_model *m;
    struct cart_pool *pool;
    struct cart_workspace *ws;
    struct cart_head *head;
    float *logits;
    struct state kept[WORKLOAD_KEPT];
    size_t n;
};

static void need(int r, const struct cart_err *err)
{
    if (r < 0)
        bench_die(cart_err_status(r), "%s", err->msg);
}

static void *zeroed(size_t n, size_t size)
{
    void *p = calloc(n, size);
    if (p == NULL)
        bench_die(5, "out of memory");
    return p;
}

uint32_t workload_id(size_t i)
{
    return (uint32_t)(i * 37 % 251);
}

double workload_anonymous(void)
{
    char text[256];
    long kb = 0;
    FILE *f = fopen("/proc/self/status", "r");
    while (f && fgets(text, sizeof text, f))
        if (strncmp(text, "RssAnon:", 8) == 0)
            kb = strtol(text + 8, NULL, 10);
    if (f)
        fclose(f);
    return (double)kb * 1024;
}

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

double workload_median(double *t, size_t n)
{
    qsort(t, n, sizeof *t, by_value);
    return n % 2 ? t[n / 2] : (t[n / 2 - 1] + t[n / 2]) / 2;
}

double workload_linear(const struct cart_model *m)
{
    double n = 0;
    for (size_t l = 0; l < m->L; l++) {
        const struct cart_layer *y = &m->layers[l];
        n += (double)m->D * (double)(2 * y->H * y->DH + 2 * y->HK * y->DH + 3 * y->F);
    }
    return n;
}

static double weight_bytes(const struct cart_model *m)
{
    double n = (double)m->head.row_bytes * (double)m->head.N;
    for (size_t l = 0; l < m->L; l++) {
        const struct cart_layer *y = &m->layers[l];
        const struct cart_matrix *w[] = {&y->wq,     &y->wk,   &y->wv,    &y->wo,
                                         &y->w_gate, &y->w_up, &y->w_down};
        for (size_t i = 0; i < CART_COUNTOF(w); i++)
            n += (double)w[i]->row_bytes * (double)w[i]->N;
    }
    return n;
}

/* Of T queries behind P rows, forward. */
static double attention_flop(const struct cart_model *m, double T, double P)
{
    double n = 0;
    for (size_t l = 0; l < m->L; l++)
        n += 4 * (double)(m->layers[l].H * m->layers[l].DH) * (T * P + T * (T + 1) / 2);
    return n;
}

static double head_flop(const struct cart_model *m, double rows)
{
    return 2 * rows * (double)m->D * (double)m->V;
}

void workloads_open(struct workloads **out, const char *path, struct cart_pool *pool)
{
    struct workloads *w = zeroed(1, sizeof *w);
    struct cart_err err;
    w->pool = pool;
    need(cart_model_open(&w->m, path, NULL, &err), &err);
    need(cart_workspace_new(&w->ws, w->m, 512, &err), &err);
    need(cart_head_new(&w->head, w->m, CART_HEAD_ROWS, &err), &err);
    w->logits = zeroed(STREAMS * w->m->V, sizeof *w->logits);
    *out = w;
}

const struct cart_model *workloads_model(const struct workloads *w)
{
    return w->m;
}

static void release(struct state *s, const struct cart_model *m)
{
    for (size_t i = 0; s->tails != NULL && i < s->B; i++)
        cart_kv_tail_release(&s->tails[i]);
    for (size_t l = 0; s->g != NULL && l < 2 * m->L; l++)
        free(s->g[l]);
    if (s->layers != NULL)
        cart_kv_tail_release(&s->prefix);
    cart_tape_free(s->tape);
    free(s->tails), free(s->layers), free(s->g), free(s->want), free(s->offsets);
    free(s->ids), free(s->p), free(s->hidden), free(s->dhidden), free(s->rows);
}

void workloads_close(struct workloads *w)
{
    for (size_t i = 0; i < w->n; i++)
        release(&w->kept[i], w->m);
    free(w->logits);
    cart_head_free(w->head);
    cart_workspace_free(w->ws);
    cart_model_close(w->m);
    free(w);
}

/* Rows as a forward would leave them: memory that was never written is one page of zeros, which is
 * read from the nearest cache. */
static void fill(struct cart_kv_tail *t, const struct cart_model *m, size_t before, size_t rows,
                 size_t seed)
{
    uint32_t r = (uint32_t)seed + 1;
    cart_kv_tail_start(t, before);
    for (size_t l = 0; l < m->L; l++) {
        size_t n = cart_layer_kv_width(&m->layers[l]);
        float *x = zeroed(2 * n, sizeof *x);
        for (size_t row = 0; row < rows; row++) {
            for (size_t i = 0; i < 2 * n; i++) {
                r = r * 1664525 + 1013904223;
                x[i] = (float)(int32_t)r * 0x1p-31f;
            }
            cart_kv_tail_write(t, m, l, row, x, x + n, 1);
        }
        free(x);
    }
    t->rows = rows;
}

/* The P rows of the first ids. */
static void make_prefix(struct workloads *w, struct state *s)
{
    struct cart_err err;
    need(cart_kv_tail_init(&s->prefix, w->m, s->kv, 0, s->P, &err), &err);
    s->layers = zeroed(w->m->L, sizeof *s->layers);
    const struct cart_span span = {.ids = s->ids, .T = s->P, .kv = {.tail = &s->prefix}};
    need(cart_forward(w->m, w->ws, &span, 1, NULL, w->pool, &err), &err);
    cart_kv_part_of_tail(&s->part, s->layers, w->m, &s->prefix, 0, s->P);
}

/* The prefix as a cartridge has it, all rows of a layer's keys and then of its values. */
static void lay_by_rows(struct workloads *w, struct state *s)
{
    struct cart_kv_layer *layers = zeroed(w->m->L, sizeof *layers);
    float *at = s->rows = zeroed(s->P * cart_kv_row_width(w->m), sizeof *s->rows);
    for (size_t l = 0; l < w->m->L; l++) {
        size_t n = cart_layer_kv_width(&w->m->layers[l]);
        layers[l] = (struct cart_kv_layer){at, at + s->P * n, n};
        for (size_t r = 0; r < s->P; r++, at += n)
            cart_kv_part_row(&s->part, w->m, l, r, at, at + s->P * n);
        at += s->P * n;
    }
    free(s->layers);
    s->layers = layers;
    s->part = (struct cart_kv_part){.rows = s->P, .dtype = CART_F32, .layers = layers};
}

static void prefill(struct workloads *w, struct state *s, struct workload_run *out)
{
    struct cart_kv_tail *tail = &s->tails[0];
    struct cart_err err;
    const struct cart_span span = {
        .ids = s->ids, .T = s->T, .kv = {.tail = tail}, .want = s->want, .n_want = 1};
    tail->rows = 0;
    double start = limit_now(w->pool);
    need(cart_forward(w->m, w->ws, &span, 1, s->hidden, w->pool, &err), &err);
    cart_head_logits(w->m, s->hidden, 1, w->logits, w->pool);
    out->seconds = limit_now(w->pool) - start;
    out->tokens = (double)s->T;
    out->flop = 2 * out->tokens * workload_linear(w->m) + attention_flop(w->m, out->tokens, 0) +
                head_flop(w->m, 1);
    out->rows = (double)cart_kv_tail_bytes(w->m, s->kv, 0, s->T);
    out->value = w->logits[0];
    for (size_t i = 1; i < w->m->V; i++)
        out->value = w->logits[i] > out->value ? w->logits[i] : out->value;
}

/* T: rows of its own that each stream has; P: rows that all share. */
static void decode(struct workloads *w, struct state *s, struct workload_run *out)
{
    const struct cart_model *m = w->m;
    const struct cart_kv_part *parts[] = {&s->part};
    struct cart_span *spans = zeroed(s->B, sizeof *spans);
    struct cart_err err;
    double t[WORKLOAD_STEPS];
    for (size_t b = 0; b < s->B; b++) {
        s->tails[b].rows = s->T;
        spans[b] = (struct cart_span){
            .ids = s->ids + b, .T = 1, .kv = {parts, s->P > 0 ? 1 : 0, &s->tails[b]}, .n_want = 1};
    }
    for (size_t i = 0; i < WORKLOAD_STEPS; i++) {
        double start = limit_now(w->pool);
        need(cart_forward(m, w->ws, spans, s->B, s->hidden, w->pool, &err), &err);
        cart_head_logits(m, s->hidden, s->B, w->logits, w->pool);
        t[i] = limit_now(w->pool) - start;
    }
    free(spans);
    double B = (double)s->B, depth = (double)s->T + WORKLOAD_STEPS / 2;
    out->seconds = workload_median(t, WORKLOAD_STEPS);
    out->tokens = B;
    out->flop = 2 * B * workload_linear(m) + head_flop(m, B) +
                B * attention_flop(m, 1, depth + (double)s->P);
    out->rows = B * (double)cart_kv_tail_bytes(m, s->kv, s->P, s->T + WORKLOAD_STEPS) +
                (s->P > 0 ? (double)cart_kv_tail_bytes(m, s->kv, 0, s->P) : 0);
    out->bytes = weight_bytes(m) + (s->kv == CART_F32 ? 4 : 2) * (double)cart_kv_row_width(m) *
                                       (B * depth + (double)s->P);
}

static void teacher(struct workloads *w, struct state *s, struct workload_run *out)
{
    const struct cart_model *m = w->m;
    struct cart_span *spans = zeroed(s->B, sizeof *spans);
    struct cart_err err;
    double sum = 0;
    for (size_t b = 0; b < s->B; b++) {
        s->tails[b].rows = 0;
        spans[b] = (struct cart_span){.ids = s->ids + b,
                                      .T = s->T,
                                      .kv = {.tail = &s->tails[b]},
                                      .want = s->want,
                                      .n_want = s->R};
    }
    double start = limit_now(w->pool);
    need(cart_forward(m, w->ws, spans, s->B, s->hidden, w->pool, &err), &err);
    cart_head_topk(w->head, s->hidden, s->B * s->R, WORKLOAD_TOPK, s->ids + s->B + s->T, s->p,
                   w->pool);
    out->seconds = limit_now(w->pool) - start;
    for (size_t i = 0; i < s->B * s->R; i++)
        sum += (double)s->p[i * WORKLOAD_TOPK];
    free(spans);
    double B = (double)s->B, T = (double)s->T;
    out->tokens = B * T;
    out->flop = 2 * B * T * workload_linear(m) + B * attention_flop(m, T, 0) +
                head_flop(m, B * (double)s->R);
    out->rows = B * (double)cart_kv_tail_bytes(m, s->kv, 0, s->T);
    out->value = sum / (B * (double)s->R);
}

static void train(struct workloads *w, struct state *s, struct workload_run *out)
{
    const struct cart_model *m = w->m;
    const struct cart_kv_part *parts[] = {&s->part};
    const struct cart_distill_target target = {s->offsets, s->ids + s->B + s->T, s->p};
    const struct cart_kv_grad grad = {s->g, s->g + m->L};
    struct cart_tape_conv *convs = zeroed(s->B, sizeof *convs);
    struct cart_distill_sums sums = {0};
    struct cart_err err;
    size_t rows = s->B * s->R;
    for (size_t b = 0; b < s->B; b++)
        convs[b] = (struct cart_tape_conv){s->ids + b, s->T, s->want, s->R};
    double start = limit_now(w->pool);
    need(cart_tape_forward(s->tape, parts, 1, convs, s->B, s->hidden, w->pool, &err), &err);
    memset(s->dhidden, 0, rows * m->D * sizeof *s->dhidden);
    cart_head_distill(w->head, s->hidden, rows, &target, &sums, false, s->dhidden, w->pool);
    cart_tape_backward(s->tape, s->dhidden, &grad, w->pool);
    out->seconds = limit_now(w->pool) - start;
    free(convs);
    double B = (double)s->B, T = (double)s->T;
    out->tokens = B * T;
    /* Forward and dX of every matrix, forward and backward of the head, attention forward and 2.5
     * times that backward. */
    out->flop = 4 * B * T * workload_linear(m) + 2 * head_flop(m, (double)rows) +
                3.5 * B * attention_flop(m, T, (double)s->P);
    out->value = sums.ce / (double)rows;
}

/* Training goes on behind rows as a cartridge has them. */
static void prefix_by_rows(const struct cart_model *m, struct state *s)
{
    struct cart_kv_layer *layers = zeroed(m->L, sizeof *layers);
    float *at = s->rows = zeroed(s->P * cart_kv_row_width(m), sizeof *s->rows);
    for (size_t l = 0; l < m->L; l++) {
        size_t width = cart_layer_kv_width(&m->layers[l]);
        float *k = at, *v = at + s->P * width;
        for (size_t row = 0; row < s->P; row++)
            cart_kv_part_row(&s->part, m, l, row, k + row * width, v + row * width);
        layers[l] = (struct cart_kv_layer){k, v, width};
        at += 2 * s->P * width;
    }
    free(s->layers);
    s->layers = layers;
    s->part = (struct cart_kv_part){.rows = s->P, .dtype = CART_F32, .layers = layers};
    cart_kv_tail_release(&s->prefix);
}

static void make_training(struct workloads *w, struct state *s, bool recompute)
{
    const struct cart_model *m = w->m;
    size_t rows = s->B * s->R;
    const struct cart_tape_limits lim = {s->B * s->T, s->B, rows, s->P, recompute};
    struct cart_err err;
    prefix_by_rows(m, s);
    need(cart_tape_new(&s->tape, m, &lim, &err), &err);
    s->g = zeroed(2 * m->L, sizeof *s->g);
    for (size_t l = 0; l < 2 * m->L; l++)
        s->g[l] = zeroed(s->P * cart_layer_kv_width(&m->layers[l % m->L]), sizeof **s->g);
    s->dhidden = zeroed(rows * m->D, sizeof *s->dhidden);
    s->offsets = zeroed(rows + 1, sizeof *s->offsets);
    for (size_t r = 0; r <= rows; r++)
        s->offsets[r] = r * WORKLOAD_ENTRIES;
    for (size_t i = 0; i < rows * WORKLOAD_ENTRIES; i++) {
        s->ids[s->B + s->T + i] = (uint32_t)(i % WORKLOAD_ENTRIES);
        s->p[i] = 0.9f / WORKLOAD_ENTRIES;
    }
}

static const struct kind {
    const char *name;
    void (*run)(struct workloads *w, struct state *s, struct workload_run *out);
    int numbers;
} kinds[] = {{"prefill", prefill, 1},   {"decode", decode, 2},     {"shared", decode, 2},
             {"decode-f16", decode, 2}, {"shared-f16", decode, 2}, {"cartridge", decode, 2},
             {"teacher", teacher, 3},   {"train", train, 4},       {"recompute", train, 4}};

const char workload_forms[] = "prefill T, decode B DEPTH, shared B P, decode-f16 B DEPTH, "
                              "shared-f16 B P, cartridge B P, teacher B T R, train B T P R, "
                              "recompute B T P R (R <= T; B of streams <= 64)";

/* Exactly n numbers from 1 to LARGEST, each behind one blank. */
static bool numbers(size_t *a, int n, const char *text)
{
    for (int i = 0; i < n; i++, text += strspn(text, "0123456789")) {
        if (*text++ != ' ' || strspn(text, "0123456789") - 1 > 6)
            return false;
        a[i] = strtoul(text, NULL, 10);
        if (a[i] < 1 || a[i] > LARGEST)
            return false;
    }
    return *text == '\0';
}

/* NULL: it is none. */
static const struct kind *parse(struct state *s, const char *text)
{
    size_t a[NUMBERS] = {0}, name = strcspn(text, " ");
    const struct kind *k = kinds;
    while (strlen(k->name) != name || strncmp(k->name, text, name) != 0)
        if (++k == kinds + CART_COUNTOF(kinds))
            return NULL;
    if (strlen(text) >= TEXT || !numbers(a, k->numbers, text + name))
        return NULL;
    snprintf(s->text, TEXT, "%s", text);
    s->B = k->run == prefill ? 1 : a[0];
    s->T = k->run == prefill ? a[0] : a[1];
    s->R = 1;
    if (k->run == teacher)
        s->R = a[2];
    if (k->run == train)
        s->P = a[2], s->R = a[3];
    s->kv = strstr(k->name, "-f16") ? CART_F16 : CART_F32;
    s->by_rows = k->name[0] == 'c';
    if (strncmp(k->name, "shared", 6) == 0 || s->by_rows)
        s->P = a[1], s->T = 0;
    return (k->run == decode ? s->B > STREAMS : s->R > s->T) ? NULL : k;
}

bool workload_known(const char *text)
{
    struct state s = {0};
    return parse(&s, text) != NULL;
}

/* ids holds those of the streams and, behind them, those of targets and results. */
static void make(struct workloads *w, struct state *s, const struct kind *k)
{
    const struct cart_model *m = w->m;
    size_t rows = s->B * s->R, ids = s->B + (s->T > s->P ? s->T : s->P), entries = rows * 32;
    struct cart_err err;
    s->ids = zeroed(ids + entries, sizeof *s->ids);
    for (size_t i = 0; i < ids; i++)
        s->ids[i] = workload_id(i);
    s->p = zeroed(entries, sizeof *s->p);
    s->hidden = zeroed(rows * m->D, sizeof *s->hidden);
    s->want = zeroed(s->R, sizeof *s->want);
    for (size_t r = 0; r < s->R && s->T > 0; r++)
        s->want[r] = s->T - s->R + r;
    if (s->P > 0)
        make_prefix(w, s);
    if (s->by_rows)
        lay_by_rows(w, s);
    if (k->run == train) {
        make_training(w, s, k->name[0] == 'r');
        return;
    }
    s->tails = zeroed(s->B, sizeof *s->tails);
    for (size_t b = 0; b < s->B; b++) {
        need(cart_kv_tail_init(&s->tails[b], m, s->kv, s->P, s->T + WORKLOAD_STEPS, &err), &err);
        if (k->run == decode)
            fill(&s->tails[b], m, s->P, s->T, b);
    }
}

void workload(struct workloads *w, const char *text, struct workload_run *out)
{
    struct state asked = {0};
    const struct kind *k = parse(&asked, text);
    struct state *s = NULL;
    if (k == NULL)
        bench_die(2, "workload: expected one of %s, found '%s'", workload_forms, text);
    *out = (struct workload_run){0};
    for (size_t i = 0; i < w->n; i++)
        if (strcmp(w->kept[i].text, text) == 0)
            s = &w->kept[i];
    if (s == NULL) {
        if (w->n == WORKLOAD_KEPT)
            bench_die(2, "'%s': expected at most %d workloads, found more", text, WORKLOAD_KEPT);
        s = &w->kept[w->n++];
        *s = asked;
        make(w, s, k);
    }
    k->run(w, s, out);
}
