/* The cartridge file: what is saved comes back, the same content is the same bytes, and what a
 * hostile or foreign file claims is refused with the right code. On the tiny models of
 * tests/golden/tiny. */
#include "base/cpu.h"
#include "base/io.h"
#include "cartridge/convert.h"
#include "cartridge/trainable.h"
#include "helper/cartridge_save.h"
#include "stream/safetensors.h"

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
static char folder[64];

static void need(int r)
{
    if (r < 0)
        fail_msg("%s", err.msg);
}

static struct cart_model *tiny(const char *name)
{
    const char *root = getenv("CART_TEST_ROOT");
    struct cart_model *m;
    char path[1024];
    snprintf(path, sizeof path, "%s/tests/golden/tiny/%s.gguf", root ? root : ".", name);
    need(cart_model_open(&m, path, NULL, &err));
    return m;
}

static char *in_folder(char out[128], const char *name)
{
    snprintf(out, 128, "%s/%s", folder, name);
    return out;
}

/* Rows whose every value tells where it is. */
static void fill(struct cart_trainable *t, const struct cart_model *m)
{
    for (size_t l = 0; l < m->L; l++)
        for (size_t r = 0; r < t->p; r++)
            for (size_t i = 0; i < cart_layer_kv_width(&m->layers[l]); i++) {
                cart_trainable_k(t, m, l, r)[i] = (float)(l * 1000 + r * 100 + i) / 8.0f;
                cart_trainable_v(t, m, l, r)[i] = -(float)(l * 1000 + r * 100 + i) / 8.0f;
            }
}

static json_t *describe(const struct cart_model *m, size_t p, size_t frozen)
{
    json_t *o, *history = json_array(), *recipe = json_pack("{s:s}", "init", "corpus");
    struct cart_cartridge_about about = {.p = p,
                                         .frozen = frozen,
                                         .steps = 7,
                                         .profile = "chatml",
                                         .wrapper_open = "<",
                                         .wrapper_close = ">",
                                         .corpus = "0123456789abcdef0123456789abcdef",
                                         .recipe = recipe,
                                         .history = history};
    need(cart_cartridge_describe(&o, m, &about, &err));
    json_decref(history);
    json_decref(recipe);
    return o;
}

static void save(const char *path, const struct cart_model *m, size_t frozen)
{
    struct cart_trainable t;
    static const int64_t draft[] = {1, 2, 300};
    need(cart_trainable_init(&t, m, P, frozen, &err));
    fill(&t, m);
    json_t *o = describe(m, P, frozen);
    need(test_cartridge_save(path, m, t.parts, t.n_parts, frozen, o, draft, 3, &err));
    json_decref(o);
    cart_trainable_release(&t);
}

static void read_file(const char *path, struct cart_buf *b)
{
    memset(b, 0, sizeof *b);
    need(cart_io_slurp(path, 1 << 26, b, &err));
}

static void round_trip(void **state)
{
    (void)state;
    static const size_t frozen[] = {0, 1, P - 1, P};
    for (size_t i = 0; i < 4; i++) {
        char a[128], b[128], warning[200];
        struct cart_cartridge *c;
        struct cart_trainable t;
        save(in_folder(a, "a"), model, frozen[i]);
        need(cart_cartridge_open(&c, model, a, NULL, warning, sizeof warning, &err));
        assert_string_equal(warning, "");
        assert_int_equal(c->p, P);
        assert_int_equal(c->frozen, frozen[i]);
        assert_int_equal(c->steps, 7);
        assert_int_equal(c->dtype, CART_F32);
        assert_int_equal(c->n_draft, 3);
        assert_int_equal(c->draft[2], 300);
        assert_int_equal(c->n_parts, frozen[i] == 0 || frozen[i] == P ? 1 : 2);

        need(cart_trainable_init(&t, model, P, frozen[i], &err));
        cart_trainable_set(&t, model, c->parts, c->n_parts);
        for (size_t l = 0; l < model->L; l++)
            for (size_t r = 0; r < P; r++) {
                assert_true(cart_trainable_k(&t, model, l, r)[3] ==
                            (float)(l * 1000 + r * 100 + 3) / 8.0f);
                assert_true(cart_trainable_v(&t, model, l, r)[0] ==
                            -(float)(l * 1000 + r * 100) / 8.0f);
            }
        cart_trainable_release(&t);

        need(test_cartridge_save(in_folder(b, "b"), model, c->parts, c->n_parts, c->frozen,
                                 c->metadata, c->draft, c->n_draft, &err));
        struct cart_buf x, y;
        read_file(a, &x);
        read_file(b, &y);
        assert_int_equal(x.len, y.len);
        assert_memory_equal(x.data, y.data, x.len);
        cart_buf_release(&x);
        cart_buf_release(&y);
        cart_cartridge_close(c);
    }
}

/* How a file is spoilt before it is opened. */
struct spoil {
    const char *name;
    int code;
    const char *message; /* a part of it */
    const char *drop, *rename_to;
    const char *key, *value; /* metadata changed; value NULL: removed */
    const char *tensor;      /* whose first dimension changes by rows */
    int rows;
    float poke;                                    /* written into the last value of layers.1.v */
    bool do_poke, no_metadata, other_type, sealed; /* sealed: the digests stay, of what was */
    size_t claim;  /* rows that tensor says it has, of no heads and so without bytes */
    int64_t draft; /* the last entry of the draft reference, from V on */
    bool do_draft;
    size_t value_bytes; /* of value, where it has a NUL */
};

static void write_spoilt(const char *path, const struct spoil *s, const struct cart_st *st)
{
    struct cart_st_tensor *t = calloc(st->n, sizeof *t);
    float *big = calloc(1 << 16, sizeof *big), *poked = calloc(1 << 16, sizeof *poked);
    json_t *metadata = json_copy(st->metadata);
    int64_t draft[3] = {0, 1, (int64_t)model->V + s->draft};
    size_t n = 0;
    if (!s->sealed) {
        json_object_del(metadata, "cart.data");
        json_object_del(metadata, "cart.sum");
    }
    if (s->key && s->value)
        json_object_set_new(
            metadata, s->key,
            json_stringn(s->value, s->value_bytes ? s->value_bytes : strlen(s->value)));
    else if (s->key)
        json_object_del(metadata, s->key);
    for (size_t i = 0; i < st->n; i++) {
        t[n] = st->tensors[i];
        if (s->drop && strcmp(t[n].name, s->drop) == 0) {
            if (!s->rename_to)
                continue;
            t[n].name = s->rename_to;
        }
        if (s->tensor && !s->claim && strcmp(t[n].name, s->tensor) == 0) {
            size_t row = t[n].bytes / t[n].shape[0];
            t[n].shape[0] = (size_t)((int)t[n].shape[0] + s->rows);
            t[n].bytes = row * t[n].shape[0];
            t[n].data = big;
        }
        if (s->tensor && s->claim && strcmp(t[n].name, s->tensor) == 0) {
            t[n].shape[0] = s->claim;
            t[n].shape[1] = t[n].bytes = 0;
        }
        if (s->do_draft && strcmp(t[n].name, "draft_reference") == 0)
            t[n].data = draft;
        if (s->do_poke && strcmp(t[n].name, "layers.1.v") == 0) {
            memcpy(poked, t[n].data, t[n].bytes);
            poked[t[n].bytes / sizeof *poked - 1] = s->poke;
            t[n].data = poked;
        }
        if (s->other_type && strcmp(t[n].name, "layers.2.k") == 0) {
            t[n].dtype = CART_ST_F16;
            t[n].bytes /= 2;
        }
        n++;
    }
    struct cart_buf b = CART_BUF_INIT;
    struct cart_output out;
    need(cart_st_build(&b, t, n, s->no_metadata ? NULL : metadata, &err));
    need(cart_output_open(&out, path, false, &err));
    need(cart_io_write(out.fd, b.data, b.len, path, &err));
    need(cart_output_commit(&out, &err));
    cart_buf_release(&b);
    json_decref(metadata);
    free(t);
    free(big);
    free(poked);
}

static const struct spoil spoils[] = {
    {.name = "as it was", .code = 0},
    {.name = "no metadata", .code = 0, .no_metadata = true, .message = "no cart metadata"},
    {.name = "unknown key",
     .code = 0,
     .key = "cart.flavour",
     .value = "x",
     .message = "cart.flavour"},
    {.name = "unknown tensor",
     .code = 0,
     .drop = "draft_reference",
     .rename_to = "extra",
     .message = "extra"},
    {.name = "NaN",
     .code = CART_EFORMAT,
     .do_poke = true,
     .poke = NAN,
     .message = "layers.1.v: row 4, head 1"},
    {.name = "infinity",
     .code = CART_EFORMAT,
     .do_poke = true,
     .poke = -INFINITY,
     .message = "row 4"},
    {.name = "a layer too few",
     .code = CART_EFORMAT,
     .drop = "layers.3.v",
     .message = "layers.3.v is missing"},
    {.name = "a layer too few, no metadata",
     .code = CART_EMATCH,
     .drop = "layers.3.v",
     .no_metadata = true,
     .message = "layers.3.v is missing"},
    {.name = "a layer too many",
     .code = CART_EMATCH,
     .drop = "draft_reference",
     .rename_to = "layers.4.k",
     .message = "has 4 layers"},
    {.name = "sink of one layer alone",
     .code = CART_EFORMAT,
     .drop = "layers.2.k_sink",
     .message = "layers.2.k_sink is missing"},
    {.name = "rows of one layer",
     .code = CART_EFORMAT,
     .tensor = "layers.2.k",
     .rows = 1,
     .message = "expected 4 rows, found 5"},
    {.name = "frozen of one layer",
     .code = CART_EFORMAT,
     .tensor = "layers.1.v_sink",
     .rows = 2,
     .message = "layers.1.v_sink: expected 1 rows, found 3"},
    {.name = "type of one layer", .code = CART_EFORMAT, .other_type = true, .message = "found F16"},
    {.name = "p lies", .code = CART_EFORMAT, .key = "cart.p", .value = "6", .message = "says p 6"},
    {.name = "p is no number",
     .code = CART_EFORMAT,
     .key = "cart.p",
     .value = "5 ",
     .message = "cart.p"},
    {.name = "p with a zero before",
     .code = CART_EFORMAT,
     .key = "cart.p",
     .value = "05",
     .message = "cart.p"},
    {.name = "p is huge",
     .code = CART_EFORMAT,
     .key = "cart.p",
     .value = "99999999999999999999999",
     .message = "cart.p"},
    {.name = "frozen lies",
     .code = CART_EFORMAT,
     .key = "cart.frozen",
     .value = "2",
     .message = "frozen 2"},
    {.name = "no p", .code = CART_EFORMAT, .key = "cart.p", .message = "cart.p is missing"},
    {.name = "version",
     .code = CART_EFORMAT,
     .key = "cart.version",
     .value = "2",
     .message = "reads \"1\""},
    {.name = "rotation",
     .code = CART_EFORMAT,
     .key = "cart.rope_order",
     .value = "sideways",
     .message = "cart.rope_order"},
    {.name = "geometry",
     .code = CART_EMATCH,
     .key = "cart.geometry",
     .value = "0123456789abcdef0123456789abcdef",
     .message = "geometry"},
    {.name = "tokenizer",
     .code = CART_EMATCH,
     .key = "cart.tokenizer",
     .value = "0123456789abcdef0123456789abcdef",
     .message = "tokenizer"},
    {.name = "weights",
     .code = CART_EMATCH,
     .key = "cart.weights",
     .value = "0123456789abcdef0123456789abcdef",
     .message = "--allow-other-weights"},
    {.name = "fingerprint of another form",
     .code = CART_EFORMAT,
     .key = "cart.weights",
     .value = "0123456789abcdef0123456789abcdeg",
     .message = "cart.weights: expected 32 hexadecimal digits"},
    {.name = "no weights",
     .code = CART_EFORMAT,
     .key = "cart.weights",
     .message = "cart.weights is missing"},
    {.name = "no steps",
     .code = CART_EFORMAT,
     .key = "cart.steps",
     .message = "cart.steps is missing"},
    {.name = "no first position",
     .code = CART_EFORMAT,
     .key = "cart.first_position",
     .message = "cart.first_position is missing"},
    {.name = "no rotation",
     .code = CART_EFORMAT,
     .key = "cart.rope_order",
     .message = "cart.rope_order is missing"},
    {.name = "precision",
     .code = CART_EFORMAT,
     .key = "cart.precision",
     .value = "f16",
     .message = "cart.precision: expected f32 or bf16"},
    {.name = "history of numbers",
     .code = CART_EFORMAT,
     .key = "cart.history",
     .value = "[5]",
     .message = "metadata: cart.history: expected an array of objects with the string tool"},
    {.name = "history that is no JSON",
     .code = CART_EFORMAT,
     .key = "cart.history",
     .value = "x",
     .message = "metadata: cart.history: JSON"},
    {.name = "recipe",
     .code = CART_EFORMAT,
     .key = "cart.recipe",
     .value = "null",
     .message = "metadata: cart.recipe: expected an object, found null"},
    {.name = "corpus",
     .code = CART_EFORMAT,
     .key = "cart.corpus",
     .value = "0123456789ABCDEF0123456789ABCDEF",
     .message = "cart.corpus: expected 32 hexadecimal digits"},
    {.name = "profile",
     .code = CART_EFORMAT,
     .key = "cart.profile",
     .value = "\033[1m",
     .message = "cart.profile: expected the name of a chat profile"},
    {.name = "type",
     .code = CART_EFORMAT,
     .key = "cart.dtype",
     .value = "F32",
     .message = "cart.dtype: expected f32, f16 or bf16"},
    {.name = "the other rotation, with its digests",
     .code = CART_EFORMAT,
     .sealed = true,
     .key = "cart.rope_order",
     .value = "half",
     .message = "header: expected the digest"},
    {.name = "steps, with their digests",
     .code = CART_EFORMAT,
     .sealed = true,
     .key = "cart.steps",
     .value = "8",
     .message = "header: expected the digest"},
    {.name = "other weights, with their digests",
     .code = CART_EFORMAT,
     .sealed = true,
     .key = "cart.weights",
     .value = "0123456789abcdef0123456789abcdef",
     .message = "header: expected the digest"},
    {.name = "another tensor name, with its digests",
     .code = CART_EFORMAT,
     .sealed = true,
     .drop = "draft_reference",
     .rename_to = "draft_referencd",
     .message = "header: expected the digest"},
    {.name = "one digest alone",
     .code = CART_EFORMAT,
     .sealed = true,
     .key = "cart.sum",
     .message = "expected cart.data and cart.sum, or neither"},
    {.name = "the other digest alone",
     .code = CART_EFORMAT,
     .sealed = true,
     .key = "cart.data",
     .message = "expected cart.data and cart.sum, or neither"},
    {.name = "a NUL behind the number",
     .code = CART_EFORMAT,
     .key = "cart.p",
     .value = "5\0x",
     .value_bytes = 3,
     .message = "cart.p: expected text without NUL"},
    {.name = "a NUL behind the version",
     .code = CART_EFORMAT,
     .key = "cart.version",
     .value = "1\0",
     .value_bytes = 2,
     .message = "cart.version: expected text without NUL"},
    {.name = "as many rows as may be, of no heads",
     .code = CART_EMATCH,
     .tensor = "layers.0.k",
     .claim = CART_CARTRIDGE_MAX_P - 1,
     .message = "layers.0.k: expected"},
    {.name = "a row too many",
     .code = CART_EFORMAT,
     .tensor = "layers.0.k",
     .claim = CART_CARTRIDGE_MAX_P,
     .message = "expected at most 1048576 rows, found more"},
    {.name = "a frozen row too many",
     .code = CART_EFORMAT,
     .tensor = "layers.0.k_sink",
     .claim = CART_CARTRIDGE_MAX_P + 1,
     .message = "expected at most 1048576 rows, found more"},
    {.name = "the last token in the draft", .code = 0, .do_draft = true, .draft = -1},
    {.name = "a token too many in the draft",
     .code = CART_EFORMAT,
     .do_draft = true,
     .draft = 0,
     .message = "draft_reference: entry 2 is no token id"},
    {.name = "no tokenizer",
     .code = CART_EFORMAT,
     .key = "cart.tokenizer",
     .message = "cart.tokenizer"},
};

static void hostile_files(void **state)
{
    (void)state;
    char good[128], bad[128], warning[300];
    struct cart_map map;
    struct cart_st st;
    save(in_folder(good, "good"), model, 1);
    need(cart_map_open(&map, good, &err));
    need(cart_st_parse(&st, map.data, map.size, good, &err));
    in_folder(bad, "bad");
    for (size_t i = 0; i < CART_COUNTOF(spoils); i++) {
        struct cart_cartridge *c = NULL;
        write_spoilt(bad, &spoils[i], &st);
        int r = cart_cartridge_open(&c, model, bad, NULL, warning, sizeof warning, &err);
        if (r != spoils[i].code)
            fail_msg("%s: expected %d, found %d (%s)", spoils[i].name, spoils[i].code, r,
                     r < 0 ? err.msg : warning);
        if (spoils[i].message && !strstr(r < 0 ? err.msg : warning, spoils[i].message))
            fail_msg("%s: expected \"%s\" in \"%s\"", spoils[i].name, spoils[i].message,
                     r < 0 ? err.msg : warning);
        cart_cartridge_close(c);
    }
    cart_st_release(&st);
    cart_map_release(&map);
}

/* As cart-view --check reads it: every bit of the header counts. */
static void no_flipped_bit_of_the_header_passes(void **state)
{
    (void)state;
    char path[128];
    struct cart_buf b;
    struct cart_st st;
    save(in_folder(path, "good"), model, 1);
    read_file(path, &b);
    size_t header = 8 + (unsigned char)b.data[0] + 256 * (size_t)(unsigned char)b.data[1];
    for (size_t bit = 0; bit <= 8 * header; bit++) {
        if (bit < 8 * header)
            b.data[bit / 8] ^= (char)(1 << bit % 8);
        int r = cart_st_parse(&st, b.data, b.len, "flips", &err);
        if (r == 0) {
            r = cart_rows_present(&st) ? cart_rows_check(&st, "flips", &err) : 0;
            cart_st_release(&st);
        }
        if (bit == 8 * header)
            assert_int_equal(r, 0);
        else if (r != CART_EFORMAT && r != CART_ETRUNC)
            fail_msg("bit %zu of byte %zu: found %d", bit % 8, bit / 8, r);
        if (bit < 8 * header)
            b.data[bit / 8] ^= (char)(1 << bit % 8);
    }
    cart_buf_release(&b);
}

static void every_cut_is_refused(void **state)
{
    (void)state;
    char good[128], bad[128];
    struct cart_buf whole;
    save(in_folder(good, "good"), model, 1);
    read_file(good, &whole);
    in_folder(bad, "cut");
    for (size_t n = 0; n < whole.len; n += 1 + n / 37) {
        FILE *f = fopen(bad, "wb");
        struct cart_cartridge *c = NULL;
        assert_non_null(f);
        assert_int_equal(fwrite(whole.data, 1, n, f), n);
        fclose(f);
        int r = cart_cartridge_open(&c, model, bad, NULL, NULL, 0, &err);
        if (r != CART_EFORMAT && r != CART_ETRUNC)
            fail_msg("cut at %zu: %d", n, r);
    }
    cart_buf_release(&whole);
}

static void other_weights_and_models(void **state)
{
    (void)state;
    char path[128], warning[300];
    struct cart_cartridge *c;
    struct cart_cartridge_options allow = {.allow_other_weights = true};
    struct cart_model *quantised = tiny("llama_tied.q8_0"), *other = tiny("qwen2");
    save(in_folder(path, "a"), model, 1);
    assert_int_equal(cart_cartridge_open(&c, quantised, path, NULL, warning, sizeof warning, &err),
                     CART_EMATCH);
    need(cart_cartridge_open(&c, quantised, path, &allow, warning, sizeof warning, &err));
    assert_non_null(strstr(warning, "other weights"));
    cart_cartridge_close(c);
    assert_int_equal(cart_cartridge_open(&c, other, path, &allow, warning, sizeof warning, &err),
                     CART_EMATCH);
    cart_model_close(quantised);
    cart_model_close(other);
}

/* A file in the other rotation order is converted: (j, j + n/2) of a head against (2 j, 2 j + 1).
 */
static void rotation_order(void **state)
{
    (void)state;
    char a[128], b[128];
    struct cart_map map;
    struct cart_st st;
    struct cart_cartridge *c;
    struct spoil half = {.key = "cart.rope_order", .value = "half"};
    save(in_folder(a, "a"), model, 1);
    need(cart_map_open(&map, a, &err));
    need(cart_st_parse(&st, map.data, map.size, a, &err));
    write_spoilt(in_folder(b, "b"), &half, &st);
    need(cart_cartridge_open(&c, model, b, NULL, NULL, 0, &err));
    assert_int_equal(model->rope.order, CART_ROPE_INTERLEAVED);
    size_t DH = model->layers[0].DH, n = model->rope.n_rot;
    const float *k = c->parts[1].layers[2].k, *v = c->parts[1].layers[2].v;
    for (size_t h = 0; h < 2; h++)
        for (size_t j = 0; j < n / 2; j++) {
            assert_true(k[h * DH + 2 * j] == (float)(2000 + 100 + h * DH + j) / 8.0f);
            assert_true(k[h * DH + 2 * j + 1] == (float)(2000 + 100 + h * DH + j + n / 2) / 8.0f);
            assert_true(v[h * DH + j] == -(float)(2000 + 100 + h * DH + j) / 8.0f);
        }
    cart_cartridge_close(c);
    cart_st_release(&st);
    cart_map_release(&map);
}

static void lists_and_room(void **state)
{
    (void)state;
    char a[128], b[128];
    struct cart_cartridge *list[2];
    const struct cart_kv_part *parts[4];
    size_t p;
    save(in_folder(a, "a"), model, 1);
    save(in_folder(b, "b"), model, 0);
    need(cart_cartridge_open(&list[0], model, a, NULL, NULL, 0, &err));
    need(cart_cartridge_open(&list[1], model, b, NULL, NULL, 0, &err));
    const struct cart_cartridge *const *l = (const struct cart_cartridge *const *)list;
    assert_int_equal(cart_cartridge_parts(l, 2, parts), 3);
    assert_int_equal(parts[0]->rows, 1);
    assert_int_equal(parts[1]->rows, P - 1);
    assert_ptr_equal(parts[2], &list[1]->parts[0]);
    need(cart_cartridge_fit(model, l, 2, model->context - 2 * P, &p, &err));
    assert_int_equal(p, 2 * P);
    assert_int_equal(cart_cartridge_fit(model, l, 2, model->context - 2 * P + 1, &p, &err),
                     CART_EUSAGE);
    cart_cartridge_close(list[0]);
    cart_cartridge_close(list[1]);
}

/* A flipped bit of a row is another finite row as a rule: only the digest tells. */
static void flipped_bits_are_refused(void **state)
{
    (void)state;
    char a[128];
    struct cart_buf file;
    struct cart_cartridge *c;
    save(in_folder(a, "a"), model, 1);
    read_file(a, &file);
    size_t data = 8 + (unsigned char)file.data[0] + ((size_t)(unsigned char)file.data[1] << 8);
    FILE *f = fopen(a, "rb+");
    assert_non_null(f);
    setvbuf(f, NULL, _IONBF, 0);
    for (size_t bit = 8 * data; bit < 8 * file.len; bit += 29) {
        char flipped = (char)(file.data[bit / 8] ^ (1 << bit % 8));
        assert_int_equal(fseek(f, (long)(bit / 8), SEEK_SET), 0);
        assert_int_equal(fwrite(&flipped, 1, 1, f), 1);
        assert_int_equal(cart_cartridge_open(&c, model, a, NULL, NULL, 0, &err), CART_EFORMAT);
        assert_int_equal(fseek(f, (long)(bit / 8), SEEK_SET), 0);
        assert_int_equal(fwrite(&file.data[bit / 8], 1, 1, f), 1);
    }
    fclose(f);
    need(cart_cartridge_open(&c, model, a, NULL, NULL, 0, &err));
    cart_cartridge_close(c);
    cart_buf_release(&file);
}

static void not_finite_is_not_saved(void **state)
{
    (void)state;
    char path[128];
    struct cart_trainable t;
    need(cart_trainable_init(&t, model, P, 1, &err));
    cart_trainable_k(&t, model, 2, 3)[17] = INFINITY;
    json_t *o = describe(model, P, 1);
    assert_int_equal(test_cartridge_save(in_folder(path, "never"), model, t.parts, t.n_parts, 1, o,
                                         NULL, 0, &err),
                     CART_EFORMAT);
    assert_non_null(strstr(err.msg, "layers.2.k: row 3, head 1"));
    assert_int_not_equal(access(path, F_OK), 0);
    json_decref(o);
    cart_trainable_release(&t);
}

/* One step of Adam from zero moments moves every value by lr against the sign of its gradient;
 * sinks stay. */
static void optimizer_step(void **state)
{
    (void)state;
    struct cart_trainable t;
    struct cart_pool *pool;
    need(cart_pool_new(&pool, 2, &err));
    need(cart_trainable_init(&t, model, P, 1, &err));
    fill(&t, model);
    float sink = cart_trainable_k(&t, model, 1, 0)[2], before = t.x[0], before1 = t.x[1];
    t.g[0] = 4.0f;
    t.g[1] = -0.5f;
    cart_trainable_step(&t, 1, 0.25, 0.125, pool);
    assert_true(fabs((double)t.x[0] - (before - 0.25)) < 1e-6);
    assert_true(fabs((double)t.x[1] - (before1 + 0.25)) < 1e-6);
    assert_true(t.x[2] == (float)(100 + 2) / 8.0f);
    assert_true(t.g[0] == 0.0f && t.g[1] == 0.0f);
    assert_true(fabs((double)t.m[0] - 0.1 * 0.5) < 1e-7);
    assert_true(fabs((double)t.v[0] - 0.001 * 0.25) < 1e-7);
    assert_true(cart_trainable_k(&t, model, 1, 0)[2] == sink);
    cart_trainable_release(&t);
    assert_int_equal(cart_trainable_init(&t, model, model->context, 1, &err), CART_EUSAGE);
    assert_int_equal(cart_trainable_init(&t, model, 4, 5, &err), CART_EUSAGE);
    cart_pool_free(pool);
}

static int set_up(void **state)
{
    (void)state;
    snprintf(folder, sizeof folder, "/tmp/test-cartridge-XXXXXX");
    if (!mkdtemp(folder) || cart_cpu_init(&err) < 0)
        return -1;
    model = tiny("llama_tied");
    return 0;
}

static int tear_down(void **state)
{
    (void)state;
    static const char *const names[] = {"a", "b", "good", "bad", "cut"};
    char path[128];
    for (size_t i = 0; i < CART_COUNTOF(names); i++)
        (void)unlink(in_folder(path, names[i]));
    cart_model_close(model);
    return rmdir(folder);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(round_trip),
        cmocka_unit_test(hostile_files),
        cmocka_unit_test(no_flipped_bit_of_the_header_passes),
        cmocka_unit_test(every_cut_is_refused),
        cmocka_unit_test(other_weights_and_models),
        cmocka_unit_test(rotation_order),
        cmocka_unit_test(lists_and_room),
        cmocka_unit_test(flipped_bits_are_refused),
        cmocka_unit_test(not_finite_is_not_saved),
        cmocka_unit_test(optimizer_step),
    };
    cmocka_set_message_output(CM_OUTPUT_TAP);
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
