/* A model file against its float64 golden (tests/golden/tiny/README tells what each tensor means):
 * logits, key and value rows, logits and gradients behind a prefix. Runs over every pair in
 * tests/golden/tiny, or over the pair that MODEL and GOLDEN name. Where the contract promises equal
 * bits, equal bits are asked for; against float64, the bounds below. */
#include "base/cpu.h"
#include "base/io.h"
#include "cartridge/trainable.h"
#include "model/backward.h"
#include "model/head.h"
#include "stream/safetensors.h"

#include <math.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <setjmp.h>

#include <cmocka.h>

#define LOGIT_BOUND                                                                                \
    1e-4                /* |difference|; a plain f32 forward elsewhere is off by 2.1e-5 at most    \
                         */
#define GRAD_BOUND 5e-5 /* relative to the largest entry of the tensor */

struct pair {
    char model[512], golden[512];
};

struct fixture {
    struct cart_model *m;
    struct cart_map map;
    struct cart_st st;
    struct cart_pool *pool;
    struct cart_workspace *ws;
    struct cart_err err;
    uint32_t ids[64];
    size_t T, prefix;
};

static void need(int r, const struct cart_err *err)
{
    if (r < 0)
        fail_msg("%s", err->msg);
}

static const float *golden(const struct fixture *f, const char *name, size_t n)
{
    const struct cart_st_tensor *t = cart_st_find(&f->st, name);
    if (!t)
        return NULL;
    assert_int_equal(t->bytes, n * sizeof(float));
    return t->data;
}

static void setup(struct fixture *f, const struct pair *p)
{
    memset(f, 0, sizeof *f);
    need(cart_model_open(&f->m, p->model, NULL, &f->err), &f->err);
    need(cart_map_open(&f->map, p->golden, &f->err), &f->err);
    need(cart_st_parse(&f->st, f->map.data, f->map.size, p->golden, &f->err), &f->err);
    need(cart_pool_new(&f->pool, 2, &f->err), &f->err);
    need(cart_workspace_new(&f->ws, f->m, 64, &f->err), &f->err);
    const struct cart_st_tensor *ids = cart_st_find(&f->st, "ids");
    assert_non_null(ids);
    f->T = ids->shape[0];
    f->prefix = 20;
    assert_true(f->T <= CART_COUNTOF(f->ids));
    memcpy(f->ids, ids->data, ids->bytes);
}

static void teardown(struct fixture *f)
{
    cart_workspace_free(f->ws);
    cart_pool_free(f->pool);
    cart_st_release(&f->st);
    cart_map_release(&f->map);
    cart_model_close(f->m);
}

static double worst(const float *a, const float *b, size_t n, double *scale)
{
    double w = 0, s = 0;
    for (size_t i = 0; i < n; i++) {
        double d = fabs((double)a[i] - (double)b[i]);
        w = d > w || isnan(d) ? d : w;
        s = fabs((double)b[i]) > s ? fabs((double)b[i]) : s;
    }
    if (scale)
        *scale = s;
    return w;
}

/* Logits of all T tokens by one unsplit forward; tail keeps the rows. */
static float *plain_logits(struct fixture *f, struct cart_kv_tail *tail)
{
    size_t D = f->m->D, V = f->m->V;
    float *hidden = calloc(f->T * D, sizeof *hidden), *logits = calloc(f->T * V, sizeof *logits);
    need(cart_kv_tail_init(tail, f->m, CART_F32, 0, f->T, &f->err), &f->err);
    struct cart_span span = {.ids = f->ids, .T = f->T, .kv = {.tail = tail}, .n_want = f->T};
    need(cart_forward(f->m, f->ws, &span, 1, hidden, f->pool, &f->err), &f->err);
    cart_head_logits(f->m, hidden, f->T, logits, f->pool);
    const float *last = golden(f, "hidden_last", D);
    if (last)
        assert_true(worst(hidden + (f->T - 1) * D, last, D, NULL) < LOGIT_BOUND);
    free(hidden);
    return logits;
}

/* The first rows of a tail as a cartridge has them. */
static void rows_of_tail(struct fixture *f, struct cart_trainable *rows,
                         const struct cart_kv_tail *tail, size_t n)
{
    struct cart_kv_layer *layers = calloc(f->m->L, sizeof *layers);
    struct cart_kv_part part;
    cart_kv_part_of_tail(&part, layers, f->m, tail, 0, n);
    need(cart_trainable_init(rows, f->m, n, 0, &f->err), &f->err);
    cart_trainable_set(rows, f->m, &part, 1);
    free(layers);
}

static void check_rows(struct fixture *f, const struct cart_kv_tail *tail)
{
    struct cart_trainable rows;
    rows_of_tail(f, &rows, tail, f->T);
    for (size_t l = 0; l < f->m->L; l++) {
        size_t width = cart_layer_kv_width(&f->m->layers[l]);
        for (int v = 0; v < 2; v++) {
            char name[64];
            snprintf(name, sizeof name, "%c.layer%zu", v ? 'v' : 'k', l);
            const float *want = golden(f, name, f->T * width);
            if (want)
                assert_true(worst((v ? cart_trainable_v : cart_trainable_k)(&rows, f->m, l, 0),
                                  want, f->T * width, NULL) < LOGIT_BOUND);
        }
    }
    cart_trainable_release(&rows);
}

/* Logits of the tokens after the prefix, behind a part. Cut at `cut` tokens a call. */
static float *behind(struct fixture *f, const struct cart_kv_part *part, size_t cut)
{
    size_t n = f->T - f->prefix, D = f->m->D;
    float *hidden = calloc(n * D, sizeof *hidden), *logits = calloc(n * f->m->V, sizeof *logits);
    struct cart_kv_tail tail;
    need(cart_kv_tail_init(&tail, f->m, CART_F32, part->rows, n, &f->err), &f->err);
    for (size_t at = 0; at < n; at += cut) {
        size_t T = n - at < cut ? n - at : cut;
        struct cart_span span = {.ids = f->ids + f->prefix + at,
                                 .T = T,
                                 .n_want = T,
                                 .kv = {.parts = &part, .n_parts = 1, .tail = &tail}};
        need(cart_forward(f->m, f->ws, &span, 1, hidden + at * D, f->pool, &f->err), &f->err);
    }
    cart_head_logits(f->m, hidden, n, logits, f->pool);
    cart_kv_tail_release(&tail);
    free(hidden);
    return logits;
}

/* Hidden rows of some tokens are those of all, whichever the others are: two streams side by side,
 * in pieces of ws. kv: the type of their rows, which are left in tails. */
static void forward_some(struct fixture *f, struct cart_workspace *ws, int kv, const size_t *want,
                         size_t n_want, float *hidden, struct cart_kv_tail tails[2])
{
    struct cart_span spans[2];
    for (int i = 0; i < 2; i++) {
        need(cart_kv_tail_init(&tails[i], f->m, kv, 0, f->T, &f->err), &f->err);
        spans[i] = (struct cart_span){f->ids, f->T, {.tail = &tails[i]}, want, n_want};
    }
    need(cart_forward(f->m, ws, spans, 2, hidden, f->pool, &f->err), &f->err);
}

static void check_wants(struct fixture *f)
{
    size_t D = f->m->D, some[] = {1, 2, 5, 6, f->T - 1};
    float *all = calloc(2 * f->T * D, sizeof *all), *got = calloc(2 * f->T * D, sizeof *got);
    struct cart_kv_tail tails[2];
    forward_some(f, f->ws, CART_F32, NULL, f->T, all, tails);
    cart_kv_tail_release(&tails[0]);
    cart_kv_tail_release(&tails[1]);
    for (size_t n = 0; n <= CART_COUNTOF(some); n++)
        for (size_t tokens = 1; tokens < 3 * f->T; tokens = 2 * tokens + 1) {
            struct cart_workspace *ws;
            need(cart_workspace_new(&ws, f->m, tokens, &f->err), &f->err);
            forward_some(f, ws, CART_F32, some, n, got, tails);
            for (size_t i = 0; i < 2 * n; i++)
                assert_memory_equal(got + i * D, all + some[i % n] * D, D * sizeof *got);
            cart_kv_tail_release(&tails[0]);
            cart_kv_tail_release(&tails[1]);
            cart_workspace_free(ws);
        }
    free(all);
    free(got);
}

/* Rows of 16 bits are the rounded ones (of the first layer, which reads none), and close. */
static void check_kv(struct fixture *f, const struct cart_kv_tail *tail)
{
    static const struct {
        int dtype;
        double bound;
    } kinds[] = {{CART_F16, 2e-2}, {CART_BF16, 2e-1}};
    size_t D = f->m->D, n = f->T * cart_layer_kv_width(&f->m->layers[0]), last = f->T - 1;
    float *whole = calloc(2 * D, sizeof *whole), *some = calloc(2 * D, sizeof *some);
    struct cart_kv_tail tails[2];
    struct cart_trainable plain, rounded;
    rows_of_tail(f, &plain, tail, f->T);
    forward_some(f, f->ws, CART_F32, &last, 1, whole, tails);
    cart_kv_tail_release(&tails[0]);
    cart_kv_tail_release(&tails[1]);
    for (size_t i = 0; i < CART_COUNTOF(kinds); i++) {
        double scale, w;
        bool f16 = kinds[i].dtype == CART_F16;
        forward_some(f, f->ws, kinds[i].dtype, &last, 1, some, tails);
        rows_of_tail(f, &rounded, &tails[1], f->T);
        /* Keys and values of a layer lie one behind the other. */
        for (size_t k = 0; k < 2 * n; k++)
            assert_true(rounded.x[k] == (f16 ? cart_f16_to_f32(cart_f16_from_f32(plain.x[k]))
                                             : cart_bf16_to_f32(cart_bf16_from_f32(plain.x[k]))));
        w = worst(some, whole, D, &scale);
        assert_true(w > 0 && w < kinds[i].bound * scale);
        cart_trainable_release(&rounded);
        cart_kv_tail_release(&tails[0]);
        cart_kv_tail_release(&tails[1]);
    }
    cart_trainable_release(&plain);
    free(whole);
    free(some);
}

static void scale_rows(struct fixture *f, struct cart_trainable *rows, float k, float v)
{
    for (size_t l = 0; l < f->m->L; l++)
        for (size_t i = 0; i < f->prefix * cart_layer_kv_width(&f->m->layers[l]); i++) {
            cart_trainable_k(rows, f->m, l, 0)[i] *= k;
            cart_trainable_v(rows, f->m, l, 0)[i] *= v;
        }
}

struct grads {
    struct cart_arena arena;
    float **dk, **dv; /* [L] */
    double loss;
};

static void layout_grads(struct grads *g, const struct cart_model *m, size_t rows)
{
    g->dk = cart_arena_push(&g->arena, m->L, sizeof *g->dk);
    g->dv = cart_arena_push(&g->arena, m->L, sizeof *g->dv);
    for (size_t l = 0; l < m->L; l++)
        for (int v = 0; v < 2; v++) {
            float *p =
                cart_arena_push(&g->arena, rows * cart_layer_kv_width(&m->layers[l]), sizeof *p);
            if (g->dk)
                (v ? g->dv : g->dk)[l] = p;
        }
}

/* Loss and unscaled gradients of `copies` equal conversations behind the part. */
static void train(struct fixture *f, const struct cart_kv_part *part, bool recompute, size_t copies,
                  struct grads *g)
{
    enum { WANTS = 20 };
    size_t T = f->T - f->prefix, want[WANTS], offsets[2 * WANTS + 1];
    uint32_t target[2 * WANTS];
    float p[2 * WANTS];
    for (size_t i = 0; i < WANTS; i++)
        want[i] = T - 1 - WANTS + i;
    for (size_t i = 0; i <= copies * WANTS; i++)
        offsets[i] = i;
    for (size_t i = 0; i < copies * WANTS; i++) {
        target[i] = f->ids[f->prefix + want[i % WANTS] + 1];
        p[i] = 1;
    }
    struct cart_tape_limits lim = {.tokens = copies * T,
                                   .convs = copies,
                                   .wants = copies * WANTS,
                                   .prefix = f->prefix,
                                   .recompute = recompute};
    struct cart_tape_conv convs[2] = {{f->ids + f->prefix, T, want, WANTS},
                                      {f->ids + f->prefix, T, want, WANTS}};
    struct cart_tape *tape = NULL;
    struct cart_head *head = NULL;
    need(cart_tape_new(&tape, f->m, &lim, &f->err), &f->err);
    need(cart_head_new(&head, f->m, 16, &f->err), &f->err);
    size_t n = copies * WANTS * f->m->D;
    float *hidden = calloc(n, sizeof *hidden), *dhidden = calloc(n, sizeof *dhidden);
    need(cart_tape_forward(tape, &part, 1, convs, copies, hidden, f->pool, &f->err), &f->err);
    struct cart_distill_sums sums = {0};
    struct cart_distill_target t = {offsets, target, p};
    cart_head_distill(head, hidden, copies * WANTS, &t, &sums, false, dhidden, f->pool);
    memset(g, 0, sizeof *g);
    layout_grads(g, f->m, f->prefix);
    need(cart_arena_reserve(&g->arena, g->arena.used, &f->err), &f->err);
    layout_grads(g, f->m, f->prefix);
    struct cart_kv_grad kg = {g->dk, g->dv};
    cart_tape_backward(tape, dhidden, &kg, f->pool);
    g->loss = sums.ce / (double)(copies * WANTS);
    free(hidden);
    free(dhidden);
    cart_head_free(head);
    cart_tape_free(tape);
}

static void check_grads(struct fixture *f, const struct grads *g)
{
    double worst_rel = 0;
    size_t checked = 0;
    for (size_t l = 0; l < f->m->L; l++) {
        size_t n = f->prefix * cart_layer_kv_width(&f->m->layers[l]);
        for (int v = 0; v < 2; v++) {
            char name[64];
            snprintf(name, sizeof name, "grad_%c.layer%zu", v ? 'v' : 'k', l);
            const float *want = golden(f, name, n);
            if (!want)
                continue;
            float *mine = calloc(n, sizeof *mine);
            for (size_t i = 0; i < n; i++)
                mine[i] = (v ? g->dv : g->dk)[l][i] / 20;
            double scale, w = worst(mine, want, n, &scale);
            worst_rel = w / scale > worst_rel ? w / scale : worst_rel;
            checked++;
            free(mine);
        }
    }
    print_message("# gradients: %zu tensors, worst %.2g relative\n", checked, worst_rel);
    assert_true(checked >= 2);
    assert_true(worst_rel < GRAD_BOUND);
}

/* One number moved both ways: the loss must follow the gradient. f32 logits limit what a difference
 * can resolve. */
static void check_difference(struct fixture *f, struct cart_trainable *rows, const struct grads *g)
{
    size_t l = f->m->L - 1, best = 0, n = f->prefix * cart_layer_kv_width(&f->m->layers[l]);
    for (size_t i = 1; i < n; i++)
        best = fabsf(g->dv[l][i]) > fabsf(g->dv[l][best]) ? i : best;
    float *moving = cart_trainable_v(rows, f->m, l, 0) + best, old = *moving;
    double h = 0.02, loss[2];
    for (int s = 0; s < 2; s++) {
        struct grads moved;
        *moving = old + (s ? (float)-h : (float)h);
        train(f, &rows->parts[0], false, 1, &moved);
        loss[s] = moved.loss;
        cart_arena_release(&moved.arena);
    }
    *moving = old;
    double slope = (loss[0] - loss[1]) / (2 * h), claimed = (double)g->dv[l][best] / 20;
    assert_true(fabs(slope - claimed) < 0.02 * fabs(claimed) + 1e-4);
}

static void same_bits(struct fixture *f, const struct grads *a, const struct grads *b)
{
    for (size_t l = 0; l < f->m->L; l++) {
        size_t n = f->prefix * cart_layer_kv_width(&f->m->layers[l]) * sizeof(float);
        assert_memory_equal(a->dk[l], b->dk[l], n);
        assert_memory_equal(a->dv[l], b->dv[l], n);
    }
}

/* Three conversations, the middle one without a wanted row. want [n] of the first and the last,
 * dhidden [2 n, D]; hidden [2 n, D] is what the tape gives. */
static void tape_run(struct fixture *f, const struct cart_kv_part *part, const size_t *want,
                     size_t n, const float *dhidden, float *hidden, struct grads *g)
{
    size_t T = f->T - f->prefix;
    const uint32_t *ids = f->ids + f->prefix;
    struct cart_tape_limits lim = {3 * T, 3, 2 * n, f->prefix, false};
    struct cart_tape_conv convs[3] = {{ids, T, want, n}, {ids, T, NULL, 0}, {ids, T, want, n}};
    struct cart_tape *tape = NULL;
    need(cart_tape_new(&tape, f->m, &lim, &f->err), &f->err);
    need(cart_tape_forward(tape, &part, 1, convs, 3, hidden, f->pool, &f->err), &f->err);
    memset(g, 0, sizeof *g);
    layout_grads(g, f->m, f->prefix);
    need(cart_arena_reserve(&g->arena, g->arena.used, &f->err), &f->err);
    layout_grads(g, f->m, f->prefix);
    struct cart_kv_grad kg = {g->dk, g->dv};
    cart_tape_backward(tape, dhidden, &kg, f->pool);
    cart_tape_free(tape);
}

/* Rows that nobody wants change neither those that are wanted nor a gradient: some with gaps,
 * against all with a gradient of zero. */
static void check_gaps(struct fixture *f, const struct cart_kv_part *part)
{
    enum { SOME = 3, ALL = 12 };
    static const size_t some[SOME] = {3, 4, 9};
    size_t D = f->m->D, all[ALL];
    float *hidden[2], *dhidden[2];
    struct grads g[2];
    for (int i = 0; i < 2; i++) {
        hidden[i] = calloc(2 * ALL * D, sizeof *hidden[i]);
        dhidden[i] = calloc(2 * ALL * D, sizeof *dhidden[i]);
    }
    for (size_t i = 0; i < ALL; i++)
        all[i] = i;
    for (size_t c = 0; c < 2; c++)
        for (size_t i = 0; i < SOME * D; i++)
            dhidden[0][c * SOME * D + i] = dhidden[1][(c * ALL + some[i / D]) * D + i % D] =
                (float)((i * 7 + c) % 13) - 6;
    tape_run(f, part, some, SOME, dhidden[0], hidden[0], &g[0]);
    tape_run(f, part, all, ALL, dhidden[1], hidden[1], &g[1]);
    for (size_t c = 0; c < 2; c++)
        for (size_t i = 0; i < SOME; i++)
            assert_memory_equal(hidden[0] + (c * SOME + i) * D, hidden[1] + (c * ALL + some[i]) * D,
                                D * sizeof(float));
    for (size_t l = 0; l < f->m->L; l++) {
        size_t bytes = f->prefix * cart_layer_kv_width(&f->m->layers[l]) * sizeof(float);
        assert_memory_equal(g[0].dk[l], g[1].dk[l], bytes);
        assert_memory_equal(g[0].dv[l], g[1].dv[l], bytes);
    }
    for (int i = 0; i < 2; i++) {
        free(hidden[i]);
        free(dhidden[i]);
        cart_arena_release(&g[i].arena);
    }
}

static void check_training(struct fixture *f, struct cart_trainable *rows)
{
    const struct cart_kv_part *part = &rows->parts[0];
    struct grads one, again, two;
    train(f, part, false, 1, &one);
    train(f, part, true, 1, &again);
    const float *loss = golden(f, "loss", 1);
    print_message("# loss %.9g, golden %.9g\n", one.loss, loss ? (double)*loss : NAN);
    assert_non_null(loss);
    assert_true(fabs(one.loss - (double)*loss) < 1e-5);
    check_grads(f, &one);
    assert_true(one.loss == again.loss);
    same_bits(f, &one, &again);
    /* A conversation packed with its twin: each partial sum starts from zero, so the total is
     * exactly twice. */
    train(f, part, false, 2, &two);
    for (size_t l = 0; l < f->m->L; l++)
        for (size_t i = 0; i < f->prefix * cart_layer_kv_width(&f->m->layers[l]); i++) {
            assert_true(two.dk[l][i] == one.dk[l][i] + one.dk[l][i]);
            assert_true(two.dv[l][i] == one.dv[l][i] + one.dv[l][i]);
        }
    check_difference(f, rows, &one);
    cart_arena_release(&one.arena);
    cart_arena_release(&again.arena);
    cart_arena_release(&two.arena);
}

static void test_pair(void **state)
{
    const struct pair *p = *state;
    struct fixture f;
    setup(&f, p);
    size_t V = f.m->V, n = f.T - f.prefix;
    struct cart_kv_tail tail;
    float *logits = plain_logits(&f, &tail);
    const float *want = golden(&f, "logits", f.T * V);
    assert_non_null(want);
    double w = worst(logits, want, f.T * V, NULL);
    print_message("# logits: worst %.2g\n", w);
    assert_true(w < LOGIT_BOUND);
    check_rows(&f, &tail);
    check_wants(&f);
    check_kv(&f, &tail);

    struct cart_kv_layer *layers = calloc(f.m->L, sizeof *layers);
    struct cart_kv_part part;
    cart_kv_part_of_tail(&part, layers, f.m, &tail, 0, f.prefix);
    size_t cuts[] = {n, 1, 7};
    for (size_t c = 0; c < CART_COUNTOF(cuts); c++) {
        float *b = behind(&f, &part, cuts[c]);
        assert_memory_equal(b, logits + f.prefix * V, n * V * sizeof *b);
        free(b);
    }
    struct cart_trainable rows;
    rows_of_tail(&f, &rows, &tail, f.prefix);
    check_training(&f, &rows);
    check_gaps(&f, &rows.parts[0]);
    scale_rows(&f, &rows, 0.9f, 1.1f);
    const float *scaled = golden(&f, "logits_prefix_k0.9_v1.1", n * V);
    if (scaled) {
        float *b = behind(&f, &rows.parts[0], n);
        assert_true(worst(b, scaled, n * V, NULL) < LOGIT_BOUND);
        free(b);
    }
    cart_trainable_release(&rows);
    free(layers);
    free(logits);
    cart_kv_tail_release(&tail);
    teardown(&f);
}

int main(void)
{
    static const char *const names[] = {"llama_tied",       "llama_tied.q8_0",
                                        "llama_tied.mix",   "llama3_untied",
                                        "llama_d256.kmix",  "llama_d256.q4_k_m",
                                        "llama_d256.mxfp4", "qwen2",
                                        "qwen2.mix",        "qwen3",
                                        "qwen3_d256.kmix"};
    static struct pair pairs[CART_COUNTOF(names)];
    static struct CMUnitTest tests[CART_COUNTOF(names)];
    const char *root = getenv("CART_TEST_ROOT"), *model = getenv("MODEL"), *gold = getenv("GOLDEN");
    size_t n = model && gold ? 1 : CART_COUNTOF(names);
    struct cart_err err;
    if (cart_cpu_init(&err) < 0) {
        printf("Bail out! %s\n", err.msg);
        return 1;
    }
    for (size_t i = 0; i < n; i++) {
        if (model && gold) {
            snprintf(pairs[i].model, sizeof pairs[i].model, "%s", model);
            snprintf(pairs[i].golden, sizeof pairs[i].golden, "%s", gold);
        } else {
            snprintf(pairs[i].model, sizeof pairs[i].model, "%s/tests/golden/tiny/%s.gguf",
                     root ? root : ".", names[i]);
            snprintf(pairs[i].golden, sizeof pairs[i].golden,
                     "%s/tests/golden/tiny/%s.golden.safetensors", root ? root : ".", names[i]);
        }
        tests[i] = (struct CMUnitTest){
            .name = model ? model : names[i], .test_func = test_pair, .initial_state = &pairs[i]};
    }
    cmocka_set_message_output(CM_OUTPUT_TAP);
    return _cmocka_run_group_tests("golden models", tests, n, NULL, NULL);
}
