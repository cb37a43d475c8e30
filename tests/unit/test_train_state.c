/* The state of a training run: what is saved comes back, and no flipped bit does. On a tiny model
 * of tests/golden/tiny. */
#include "base/cpu.h"
#include "base/io.h"
#include "study/train_state.h"

#include <math.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <setjmp.h>

#include <cmocka.h>

#define P 5

static struct cart_model *model;
static struct cart_err err;
static char path[64];
static json_t *identity;

static void need(int r)
{
    if (r < 0)
        fail_msg("%s", err.msg);
}

static void fill(struct cart_trainable *t)
{
    for (size_t i = 0; i < t->n; i++) {
        t->x[i] = (float)i / 8.0f;
        t->m[i] = -(float)i;
        t->v[i] = (float)i * 0.5f;
    }
    for (size_t i = 0; i < t->n_sink; i++)
        t->sink[i] = 1.0f / (float)(i + 1);
}

static void add_line(struct cart_buf *b, const char *split, unsigned step)
{
    need(cart_buf_addf(b, &err,
                       "{\"conversations\":4,\"kl\":1.0,\"loss\":1.0,\"split\":\"%s\",\"step\":%u,"
                       "\"tokens\":9,\"top1\":0.5}\n",
                       split, step));
}

/* At step 12 of 60, evaluated at 0 and 10; t is filled. */
static void prepare(struct cart_trainable *t, struct cart_train_state *s)
{
    *s = (struct cart_train_state){.step = 12, .mark = {.taken = 48, .read = 30, .ended = true}};
    add_line(&s->metrics, "held-out", 0);
    for (unsigned i = 1; i <= 12; i++) {
        add_line(&s->metrics, "train", i);
        if (i == 10)
            add_line(&s->metrics, "held-out", i);
    }
    memset(s->mark.digest, 'a', sizeof s->mark.digest - 1);
    need(cart_trainable_init(t, model, P, 1, &err));
    fill(t);
}

static void release(struct cart_trainable *t, struct cart_train_state *s)
{
    cart_buf_release(&s->metrics);
    cart_trainable_release(t);
}

static void save(struct cart_buf *bytes)
{
    struct cart_trainable t;
    struct cart_train_state s;
    prepare(&t, &s);
    need(cart_train_state_save(path, &t, &s, identity, &err));
    release(&t, &s);
    need(cart_io_slurp(path, 1 << 24, bytes, &err));
}

static int load(struct cart_trainable *t, struct cart_train_state *s)
{
    *s = (struct cart_train_state){.step = 0};
    return cart_train_state_load(path, t, s, identity, &err);
}

static void comes_back(void **state)
{
    (void)state;
    struct cart_buf bytes = CART_BUF_INIT;
    struct cart_trainable t, want;
    struct cart_train_state s;
    save(&bytes);
    need(cart_trainable_init(&t, model, P, 1, &err));
    need(cart_trainable_init(&want, model, P, 1, &err));
    fill(&want);
    int r = load(&t, &s);
    need(r);
    assert_int_equal(r, 1);
    assert_int_equal(s.step, 12);
    assert_int_equal(s.mark.taken, 48);
    assert_int_equal(s.mark.read, 30);
    assert_true(s.mark.ended);
    struct cart_trainable other;
    struct cart_train_state saved;
    prepare(&other, &saved);
    assert_string_equal(s.metrics.data, saved.metrics.data);
    release(&other, &saved);
    assert_memory_equal(t.x, want.x, t.n * sizeof *t.x);
    assert_memory_equal(t.m, want.m, t.n * sizeof *t.m);
    assert_memory_equal(t.v, want.v, t.n * sizeof *t.v);
    assert_memory_equal(t.sink, want.sink, t.n_sink * sizeof *t.sink);
    cart_buf_release(&s.metrics);
    assert_int_equal(json_object_set_new(identity, "lr", json_real(0.25)), 0);
    assert_int_equal(load(&t, &s), CART_EMATCH);
    cart_buf_release(&s.metrics);
    assert_int_equal(json_object_del(identity, "lr"), 0);
    cart_trainable_release(&t);
    cart_trainable_release(&want);
    cart_buf_release(&bytes);
}

static void put_byte(size_t at, char c)
{
    FILE *f = fopen(path, "rb+");
    assert_non_null(f);
    assert_int_equal(fseek(f, (long)at, SEEK_SET), 0);
    assert_int_equal(fwrite(&c, 1, 1, f), 1);
    assert_int_equal(fclose(f), 0);
}

/* Of the header every bit, of the data some. */
static void no_flipped_bit_comes_back(void **state)
{
    (void)state;
    struct cart_buf bytes = CART_BUF_INIT;
    struct cart_trainable t;
    struct cart_train_state s;
    save(&bytes);
    need(cart_trainable_init(&t, model, P, 1, &err));
    size_t header = 8 + (unsigned char)bytes.data[0] + ((size_t)(unsigned char)bytes.data[1] << 8);
    assert_true(header > 500 && header < bytes.len);
    for (size_t bit = 0; bit < 8 * bytes.len; bit += bit / 8 < header ? 1 : 11) {
        put_byte(bit / 8, (char)(bytes.data[bit / 8] ^ (1 << bit % 8)));
        int r = load(&t, &s);
        if (r != CART_EFORMAT && r != CART_ETRUNC)
            fail_msg("bit %zu of byte %zu: status %d", bit % 8, bit / 8, r);
        if (strncmp(err.msg, path, strlen(path)) != 0)
            fail_msg("bit %zu of byte %zu: %s", bit % 8, bit / 8, err.msg);
        cart_buf_release(&s.metrics);
        put_byte(bit / 8, bytes.data[bit / 8]);
    }
    assert_int_equal(load(&t, &s), 1);
    cart_buf_release(&s.metrics);
    cart_trainable_release(&t);
    cart_buf_release(&bytes);
}

/* A message names the part that is damaged. */
static void parts_are_named(void **state)
{
    (void)state;
    struct cart_buf bytes = CART_BUF_INIT;
    struct cart_trainable t;
    struct cart_train_state s;
    char words[120];
    save(&bytes);
    need(cart_trainable_init(&t, model, P, 1, &err));
    put_byte(bytes.len - 1, (char)(bytes.data[bytes.len - 1] ^ 1));
    assert_int_equal(load(&t, &s), CART_EFORMAT);
    snprintf(words, sizeof words, "%s: tensor sink: expected the digest ", path);
    assert_int_equal(strncmp(err.msg, words, strlen(words)), 0);
    put_byte(bytes.len - 1, bytes.data[bytes.len - 1]);
    const char *step = strstr(bytes.data + 8, "\"cart.step\":\"12\"");
    assert_non_null(step);
    put_byte((size_t)(step - bytes.data) + 14, '3');
    assert_int_equal(load(&t, &s), CART_EFORMAT);
    snprintf(words, sizeof words, "%s: metadata: expected the digest ", path);
    assert_int_equal(strncmp(err.msg, words, strlen(words)), 0);
    cart_trainable_release(&t);
    cart_buf_release(&bytes);
}

/* What is saved with its right digests, and is the state of no run. */
static const struct place {
    uint64_t step, taken, read;
    bool open;           /* the stream had not ended */
    float moment2;       /* in place of one value, where not 0 */
    size_t lines;        /* bytes of metrics, where not 0 */
    const char *message; /* NULL: it can be */
} places[] = {
    {12, 48, 30, false, 0, 0, NULL},
    {12, 48, 48, true, 0, 0, NULL},
    {12, 48, 30, false, INFINITY, 0, NULL},
    {12, 48, 47, true, 0, 0, "cart.read: expected the 48 conversations taken, or the end of the"},
    {12, 48, 0, false, 0, 0, "cart.read: expected the 48 conversations taken"},
    {12, 0, 30, false, 0, 0, "cart.taken: expected 4 conversations for each of 12 steps, found 0"},
    {12, 49, 30, false, 0, 0, "cart.taken: expected 4 conversations for each of 12 steps"},
    {0, 0, 30, false, 0, 0, "cart.step: expected 1 to 60, found 0"},
    {61, 244, 30, false, 0, 0, "cart.step: expected 1 to 60, found 61"},
    {UINT64_C(1) << 63, 48, 30, false, 0, 0,
     "cart.step: expected 1 to 60, found 92233720368547758"},
    {11, 44, 30, false, 0, 0, "tensor metrics: expected 11 steps, found 12"},
    {12, 48, 30, false, 0, 250, "tensor metrics: line 3: expected its end"},
    {12, 48, 30, false, -1, 0, "tensor moment2: value 3: expected at least 0, found -1"},
    {12, 48, 30, false, NAN, 0, "tensor moment2: value 3: expected at least 0"},
};

static void no_impossible_place_comes_back(void **state)
{
    (void)state;
    for (size_t i = 0; i < CART_COUNTOF(places); i++) {
        const struct place *p = &places[i];
        struct cart_trainable t;
        struct cart_train_state s, found;
        prepare(&t, &s);
        s.step = p->step;
        s.mark.taken = p->taken;
        s.mark.read = p->read;
        s.mark.ended = !p->open;
        t.v[3] = p->moment2 != 0 ? p->moment2 : t.v[3];
        s.metrics.len = p->lines ? p->lines : s.metrics.len;
        need(cart_train_state_save(path, &t, &s, identity, &err));
        int r = load(&t, &found);
        if (r != (p->message ? CART_EFORMAT : 1) || (r < 0 && !strstr(err.msg, p->message)))
            fail_msg("%zu: status %d: %s", i, r, err.msg);
        cart_buf_release(&found.metrics);
        release(&t, &s);
    }
}

/* Lines that were written twice, out of turn, or by nobody. */
static void metrics_are_of_the_steps(void **state)
{
    (void)state;
    static const struct {
        const char *split;
        unsigned step;
        const char *message;
    } lines[] = {{"train", 12, "line 15: expected step 13, found train of step 12"},
                 {"train", 14, "line 15: expected step 13, found train of step 14"},
                 {"held-out", 11, "line 15: expected step 12, found held-out of step 11"},
                 {"nobody", 12, "line 15: split: expected one of train|held-out"}};
    for (size_t i = 0; i < CART_COUNTOF(lines); i++) {
        struct cart_trainable t;
        struct cart_train_state s, found;
        prepare(&t, &s);
        add_line(&s.metrics, lines[i].split, lines[i].step);
        need(cart_train_state_save(path, &t, &s, identity, &err));
        assert_int_equal(load(&t, &found), CART_EFORMAT);
        if (!strstr(err.msg, lines[i].message))
            fail_msg("%zu: %s", i, err.msg);
        release(&t, &s);
    }
}

/* The good state stays. */
static void rows_that_are_not_finite_are_not_saved(void **state)
{
    (void)state;
    struct cart_buf bytes = CART_BUF_INIT;
    struct cart_trainable t;
    struct cart_train_state s, found;
    save(&bytes);
    prepare(&t, &s);
    t.x[7] = NAN;
    assert_int_equal(cart_train_state_save(path, &t, &s, identity, &err), CART_EFORMAT);
    assert_non_null(strstr(err.msg, "tensor rows: value 7: expected a finite number"));
    assert_int_equal(load(&t, &found), 1);
    cart_buf_release(&found.metrics);
    release(&t, &s);
    cart_buf_release(&bytes);
}

static int set_up(void **state)
{
    (void)state;
    const char *root = getenv("CART_TEST_ROOT");
    char file[1024];
    snprintf(file, sizeof file, "%s/tests/golden/tiny/llama_tied.gguf", root ? root : ".");
    snprintf(path, sizeof path, "/tmp/test-train-state-XXXXXX");
    int fd = mkstemp(path);
    if (fd < 0 || close(fd) < 0 || cart_cpu_init(&err) < 0 ||
        cart_model_open(&model, file, NULL, &err) < 0)
        return -1;
    identity = json_pack("{s:s, s:{s:i, s:i}}", "corpus", "00", "recipe", "accum", 4, "steps", 60);
    return identity ? 0 : -1;
}

static int tear_down(void **state)
{
    (void)state;
    json_decref(identity);
    cart_model_close(model);
    return unlink(path);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(comes_back),
        cmocka_unit_test(no_flipped_bit_comes_back),
        cmocka_unit_test(parts_are_named),
        cmocka_unit_test(no_impossible_place_comes_back),
        cmocka_unit_test(metrics_are_of_the_steps),
        cmocka_unit_test(rows_that_are_not_finite_are_not_saved),
    };
    cmocka_set_message_output(CM_OUTPUT_TAP);
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
