/* The distillation of a real model against float64: loss, every kind of sum, gradients of all rows
 * and ten Adam steps (smollm2-golden g4 of the shared data; its README says how the numbers were
 * made). Skipped where model or goldens are absent. */
#include "base/cpu.h"
#include "base/io.h"
#include "base/json.h"
#include "study/distill.h"
#include "study/init.h"
#include "helper/vocab.h"

#include <math.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <setjmp.h>

#include <cmocka.h>

#define LOSS_BOUND 1e-6 /* |difference|; an f32 re-computation is off by 6e-9 */
#define GRAD_BOUND 1e-3 /* relative L2 distance; measured 1.3e-5 */
#define ROW_BOUND 1e-3  /* |difference| of a row's value after ten steps */

struct fixture {
    struct cart_model *m;
    struct cart_pool *pool;
    json_t *golden;
    struct cart_trainable rows;
    struct cart_distiller *d;
    struct cart_conversation convs[2];
    const struct cart_conversation *list[2];
    struct cart_err err;
    char folder[512];
};

static void need(int r, const struct cart_err *err)
{
    if (r < 0)
        fail_msg("%s", err->msg);
}

static uint32_t id_at(const json_t *array, size_t i)
{
    return (uint32_t)json_integer_value(json_array_get(array, i));
}

/* Conversation i of the golden: its prompt and answer, every answer token supervised. */
static void load_conversation(struct fixture *f, size_t i)
{
    struct cart_conversation *c = &f->convs[i];
    const json_t *o = json_array_get(json_object_get(f->golden, "convs"), i);
    const json_t *prompt = json_object_get(o, "student_prompt"),
                 *answer = json_object_get(o, "answer");
    const json_t *targets = json_object_get(o, "targets");
    size_t P = json_array_size(prompt), A = json_array_size(answer), E = 0;
    assert_true(A > 0 && json_array_size(targets) == A);
    cart_conversation_init(c);
    c->n = i;
    for (size_t k = 0; k < P + A; k++) {
        uint32_t id = k < P ? id_at(prompt, k) : id_at(answer, k - P);
        need(cart_conversation_push_ids(c, &id, 1, &f->err), &f->err);
    }
    for (size_t r = 0; r < A; r++)
        E += json_array_size(json_array_get(targets, r));
    need(cart_conversation_reserve_targets(c, A, E, &f->err), &f->err);
    for (size_t r = 0; r < A; r++) {
        const json_t *row = json_array_get(targets, r);
        c->rows[r] = (uint32_t)(P + r);
        c->offsets[r] = c->E;
        for (size_t e = 0; e < json_array_size(row); e++, c->E++) {
            c->target_ids[c->E] = id_at(json_array_get(row, e), 0);
            c->logprobs[c->E] = (float)json_number_value(json_array_get(json_array_get(row, e), 1));
        }
    }
    c->R = A;
    c->offsets[A] = c->E;
    c->has_targets = true;
    f->list[i] = c;
}

static bool setup(struct fixture *f, bool recompute)
{
    const char *shared = getenv("CART_SHARED"), *path = test_demo_model();
    memset(f, 0, sizeof *f);
    snprintf(f->folder, sizeof f->folder, "%s/data/smollm2-golden", shared ? shared : "../shared");
    FILE *there = fopen(path, "rb");
    if (!there) {
        print_message("# skipped: SmolLM2-135M-Instruct.Q4_1.gguf is not in the cache\n");
        return false;
    }
    fclose(there);
    struct cart_buf text = CART_BUF_INIT;
    char json[1100];
    snprintf(json, sizeof json, "%s/g4_distill.json", f->folder);
    if (cart_io_slurp(json, 1 << 24, &text, &f->err) < 0) {
        print_message("# skipped: %s\n", f->err.msg);
        return false;
    }
    need(cart_json_parse(&f->golden, text.data, text.len, "g4", &f->err), &f->err);
    cart_buf_release(&text);
    need(cart_model_open(&f->m, path, NULL, &f->err), &f->err);
    need(cart_pool_new(&f->pool, 2, &f->err), &f->err);
    for (size_t i = 0; i < 2; i++)
        load_conversation(f, i);

    const json_t *ids = json_object_get(f->golden, "init_ids");
    size_t p = json_array_size(ids);
    uint32_t *prefix = calloc(p, sizeof *prefix);
    for (size_t i = 0; i < p; i++)
        prefix[i] = id_at(ids, i);
    struct cart_kv_tail tail;
    struct cart_kv_part part;
    struct cart_kv_layer *layers = calloc(f->m->L, sizeof *layers);
    need(cart_init_prefill(&tail, f->m, prefix, p, f->pool, &f->err), &f->err);
    need(cart_trainable_init(&f->rows, f->m, p, 1, &f->err), &f->err);
    cart_kv_part_of_tail(&part, layers, f->m, &tail, 0, p);
    cart_trainable_set(&f->rows, f->m, &part, 1);
    cart_kv_tail_release(&tail);
    free(layers);
    free(prefix);
    struct cart_distill_options o = {recompute, true, 4096};
    need(cart_distiller_new(&f->d, f->m, &o, &f->err), &f->err);
    return true;
}

static void teardown(struct fixture *f)
{
    cart_distiller_free(f->d);
    cart_trainable_release(&f->rows);
    for (size_t i = 0; i < 2 && f->m; i++)
        cart_conversation_release(&f->convs[i]);
    cart_pool_free(f->pool);
    cart_model_close(f->m);
    json_decref(f->golden);
}

static struct cart_distill_sums run(struct fixture *f)
{
    struct cart_distill_sums each[2], sum = {0};
    need(cart_distiller_run(f->d, &f->rows, f->list, 2, each, f->pool, &f->err), &f->err);
    for (size_t i = 0; i < 2; i++) {
        sum.ce += each[i].ce;
        sum.kl += each[i].kl;
        sum.entries += each[i].entries;
        sum.rows += each[i].rows;
        sum.top1 += each[i].top1;
    }
    return sum;
}

static double number(const json_t *o, const char *key)
{
    assert_true(json_is_number(json_object_get(o, key)));
    return json_number_value(json_object_get(o, key));
}

static void near(const char *what, double found, double expected, double bound)
{
    if (!(fabs(found - expected) <= bound))
        fail_msg("%s: expected %.9g, found %.9g", what, expected, found);
}

/* The golden holds [head][row 1 ..][value]; ours is [row][head][value] without the frozen one. */
static void check_grad(struct fixture *f, const char *kind, size_t layer, const float *g,
                       double scale)
{
    char path[1100];
    struct cart_map map;
    const struct cart_layer *l = &f->m->layers[layer];
    size_t rows = f->rows.p - 1;
    snprintf(path, sizeof path, "%s/g4_grad_%s%zu.f32", f->folder, kind, layer);
    need(cart_map_open(&map, path, &f->err), &f->err);
    assert_int_equal(map.size, rows * l->HK * l->DH * sizeof(float));
    const float *want = (const float *)(const void *)map.data;
    double off = 0, norm = 0;
    for (size_t h = 0; h < l->HK; h++)
        for (size_t r = 0; r < rows; r++)
            for (size_t d = 0; d < l->DH; d++) {
                double e = want[(h * rows + r) * l->DH + d],
                       x = g[(r * l->HK + h) * l->DH + d] * scale;
                off += (x - e) * (x - e);
                norm += e * e;
            }
    print_message("# gradient %s of layer %zu: relative distance %.2g\n", kind, layer,
                  sqrt(off / norm));
    assert_true(sqrt(off / norm) < GRAD_BOUND);
    cart_map_release(&map);
}

static void test_loss_and_gradients(bool recompute)
{
    struct fixture f;
    if (!setup(&f, recompute)) {
        teardown(&f);
        skip();
    }
    struct cart_distill_sums s = run(&f);
    const json_t *eval = json_object_get(f.golden, "eval");
    double scale = 1.0 / (double)s.entries;
    assert_int_equal(s.entries, (long)number(f.golden, "entries"));
    assert_int_equal(s.rows, (long)number(f.golden, "tokens"));
    assert_int_equal(s.top1, (long)number(eval, "top1"));
    print_message("# loss off by %.2g\n", fabs(s.ce * scale - number(f.golden, "loss")));
    near("loss", s.ce * scale, number(f.golden, "loss"), LOSS_BOUND);
    near("loss by token", s.ce / (double)s.rows, number(f.golden, "loss_token_norm"), 1e-5);
    near("ce", s.ce, number(eval, "ce"), 1e-4);
    near("kl", s.kl, number(eval, "kl"), 1e-4);
    static const size_t layers[] = {0, 15, 29};
    for (size_t i = 0; i < 3; i++) {
        check_grad(&f, "k", layers[i], f.rows.dk[layers[i]], scale);
        check_grad(&f, "v", layers[i], f.rows.dv[layers[i]], scale);
    }
    for (size_t l = 0; l < f.m->L; l++) {
        double nk = 0, nv = 0;
        size_t n = (f.rows.p - 1) * cart_layer_kv_width(&f.m->layers[l]);
        for (size_t i = 0; i < n; i++) {
            nk += pow(f.rows.dk[l][i] * scale, 2);
            nv += pow(f.rows.dv[l][i] * scale, 2);
        }
        double ek = json_number_value(json_array_get(json_object_get(f.golden, "grad_norm_k"), l));
        double ev = json_number_value(json_array_get(json_object_get(f.golden, "grad_norm_v"), l));
        near("norm of a layer's key gradient", sqrt(nk), ek, 1e-3 * ek);
        near("norm of a layer's value gradient", sqrt(nv), ev, 1e-3 * ev);
    }
    teardown(&f);
}

static void loss_and_gradients(void **state)
{
    (void)state;
    test_loss_and_gradients(false);
}

static void loss_and_gradients_recomputed(void **state)
{
    (void)state;
    test_loss_and_gradients(true);
}

static void check_rows_after(struct fixture *f)
{
    const char *layer;
    json_t *value;
    json_object_foreach(json_object_get(f->golden, "rows_after_10"), layer, value) {
        size_t l = (size_t)strtoul(layer, NULL, 10);
        for (size_t r = 1; r <= 2; r++)
            for (size_t i = 0; i < f->m->layers[l].DH; i++) {
                const json_t *k = json_array_get(json_object_get(value, "k"), r - 1);
                const json_t *v = json_array_get(json_object_get(value, "v"), r - 1);
                near("key after ten steps", cart_trainable_k(&f->rows, f->m, l, r)[i],
                     json_number_value(json_array_get(k, i)), ROW_BOUND);
                near("value after ten steps", cart_trainable_v(&f->rows, f->m, l, r)[i],
                     json_number_value(json_array_get(v, i)), ROW_BOUND);
            }
    }
}

static void ten_adam_steps(void **state)
{
    (void)state;
    struct fixture f;
    if (!setup(&f, false)) {
        teardown(&f);
        skip();
    }
    const json_t *losses = json_object_get(f.golden, "adam_losses");
    double worst = 0;
    size_t width = cart_layer_kv_width(&f.m->layers[0]);
    float *sink = malloc(width * sizeof *sink);
    memcpy(sink, cart_trainable_k(&f.rows, f.m, 0, 0), width * sizeof *sink);
    for (unsigned step = 0; step <= 10; step++) {
        char key[8];
        snprintf(key, sizeof key, "%u", step);
        struct cart_distill_sums s = run(&f);
        double loss = s.ce / (double)s.entries;
        worst = fmax(worst, fabs(loss - number(losses, key)));
        near("loss after Adam steps", loss, number(losses, key), LOSS_BOUND);
        if (step < 10)
            cart_trainable_step(&f.rows, step + 1, number(f.golden, "lr"), 1.0 / (double)s.entries,
                                f.pool);
    }
    print_message("# losses of ten steps off by %.2g at most\n", worst);
    check_rows_after(&f);
    assert_memory_equal(sink, cart_trainable_k(&f.rows, f.m, 0, 0), width * sizeof *sink);
    free(sink);
    teardown(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(loss_and_gradients),
        cmocka_unit_test(loss_and_gradients_recomputed),
        cmocka_unit_test(ten_adam_steps),
    };
    struct cart_err err;
    if (cart_cpu_init(&err) < 0)
        return 2;
    cmocka_set_message_output(CM_OUTPUT_TAP);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
