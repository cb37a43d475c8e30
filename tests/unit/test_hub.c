/* Models as directories of the hub: the bits of the same model as GGUF, and what must not be
 * loaded.
 *
 *     test_hub GGUF DIR [SHARDS [f32|bf16|f16]]
 *
 * writes a model as such a directory, for tests of the tools. */
#include "base/io.h"
#include "cartridge/trainable.h"
#include "helper/hub_write.h"
#include "helper/rotation.h"
#include "helper/vocab.h"
#include "model/backward.h"
#include "model/head.h"
#include "stream/safetensors.h"
#include "token/chat.h"
#include "token/tokenizer_json.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

enum { T = 40, PREFIX = 16 };

static char folder[64]; /* of this run */
static struct cart_pool *pool;

static void need(int r, const struct cart_err *err)
{
    if (r < 0)
        fail_msg("%s", err->msg);
}

static const char *in_folder(const char *name)
{
    static char path[256];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    return path;
}

static const char *tiny(const char *name)
{
    char path[128];
    snprintf(path, sizeof path, "tests/golden/tiny/%s.gguf", name);
    return test_root(path);
}

static void remove_tree(const char *dir)
{
    char command[300];
    snprintf(command, sizeof command, "rm -rf '%s'", dir);
    assert_int_equal(system(command), 0);
}

/* --- equal bits --- */

/* What a model computes: logits of all tokens, rows of each layer, and gradients of rows. */
struct results {
    struct cart_buf bytes;
};

static void keep(struct results *r, const float *x, size_t n)
{
    assert_int_equal(cart_buf_add(&r->bytes, x, n * sizeof *x, NULL), 0);
}

static void run_backward(const struct cart_model *m, const uint32_t *ids, struct cart_kv_tail *tail,
                         struct results *out)
{
    struct cart_err err;
    struct cart_kv_layer *layers = calloc(m->L, sizeof *layers);
    struct cart_kv_part part;
    struct cart_trainable rows;
    const struct cart_kv_part *parts = &rows.parts[0];
    struct cart_tape *tape = NULL;
    size_t want[4] = {3, 7, 8, T - PREFIX - 1}, D = m->D;
    struct cart_tape_limits lim = {.tokens = T, .convs = 1, .wants = 4, .prefix = PREFIX};
    struct cart_tape_conv conv = {ids + PREFIX, T - PREFIX, want, 4};
    float *hidden = calloc(4 * D, sizeof *hidden), *dhidden = calloc(4 * D, sizeof *dhidden);
    float **dk = calloc(m->L, sizeof *dk), **dv = calloc(m->L, sizeof *dv);
    cart_kv_part_of_tail(&part, layers, m, tail, 0, PREFIX);
    need(cart_trainable_init(&rows, m, PREFIX, 0, &err), &err);
    cart_trainable_set(&rows, m, &part, 1);
    keep(out, rows.x, rows.n);
    for (size_t i = 0; i < 4 * D; i++)
        dhidden[i] = (float)(int)(i * 2654435761u % 2001) / 1000 - 1;
    for (size_t l = 0; l < m->L; l++) {
        dk[l] = calloc(PREFIX * cart_layer_kv_width(&m->layers[l]), sizeof **dk);
        dv[l] = calloc(PREFIX * cart_layer_kv_width(&m->layers[l]), sizeof **dv);
    }
    need(cart_tape_new(&tape, m, &lim, &err), &err);
    need(cart_tape_forward(tape, &parts, 1, &conv, 1, hidden, pool, &err), &err);
    struct cart_kv_grad grad = {dk, dv};
    cart_tape_backward(tape, dhidden, &grad, pool);
    for (size_t l = 0; l < m->L; l++) {
        keep(out, dk[l], PREFIX * cart_layer_kv_width(&m->layers[l]));
        keep(out, dv[l], PREFIX * cart_layer_kv_width(&m->layers[l]));
        free(dk[l]);
        free(dv[l]);
    }
    cart_tape_free(tape);
    cart_trainable_release(&rows);
    free(dk);
    free(dv);
    free(hidden);
    free(dhidden);
    free(layers);
}

static struct results run(const struct cart_model *m)
{
    struct results out = {CART_BUF_INIT};
    struct cart_err err;
    struct cart_workspace *ws = NULL;
    struct cart_kv_tail tail;
    uint32_t ids[T];
    float *hidden = calloc(T * m->D, sizeof *hidden), *logits = calloc(T * m->V, sizeof *logits);
    for (size_t i = 0; i < T; i++)
        ids[i] = (uint32_t)(i * 7919 % 300);
    need(cart_workspace_new(&ws, m, T, &err), &err);
    need(cart_kv_tail_init(&tail, m, CART_F32, 0, T, &err), &err);
    struct cart_span span = {.ids = ids, .T = T, .kv = {.tail = &tail}, .n_want = T};
    need(cart_forward(m, ws, &span, 1, hidden, pool, &err), &err);
    cart_head_logits(m, hidden, T, logits, pool);
    keep(&out, logits, T * m->V);
    run_backward(m, ids, &tail, &out);
    cart_kv_tail_release(&tail);
    cart_workspace_free(ws);
    free(hidden);
    free(logits);
    return out;
}

static void compare(const char *name, const struct hub_form *form, const char *open_as)
{
    struct cart_err err;
    struct cart_model *a = NULL, *b = NULL;
    char dir[128], path[256];
    snprintf(dir, sizeof dir, "%s", in_folder("model"));
    snprintf(path, sizeof path, "%s%s", dir, open_as);
    hub_write_model(tiny(name), dir, form);
    need(cart_model_open(&a, tiny(name), NULL, &err), &err);
    need(cart_model_open(&b, path, NULL, &err), &err);
    assert_string_equal(a->fp.geometry, b->fp.geometry);
    assert_string_equal(a->fp.tokenizer, b->fp.tokenizer);
    assert_string_equal(a->fp.chat, b->fp.chat);
    if (form->dtype < 0)
        assert_string_equal(a->fp.weights, b->fp.weights);
    else
        assert_string_not_equal(a->fp.weights, b->fp.weights);
    assert_int_equal(b->layers[0].wq.dtype, form->dtype < 0 ? CART_F32 : form->dtype);
    struct results x = run(a), y = run(b);
    assert_int_equal(x.bytes.len, y.bytes.len);
    assert_memory_equal(x.bytes.data, y.bytes.data, x.bytes.len);
    cart_buf_release(&x.bytes);
    cart_buf_release(&y.bytes);
    cart_model_close(a);
    cart_model_close(b);
    remove_tree(dir);
}

/* The weights of the tiny models are exact in every type, so the bits must not change. */
static void test_equal_bits(void **state)
{
    static const char *const names[] = {"llama_tied", "llama3_untied", "qwen2", "qwen3"};
    static const struct hub_form forms[] = {{-1, 1, false, false, false},
                                            {CART_BF16, 3, true, true, false},
                                            {CART_F16, 2, true, false, false}};
    static const char *const open_as[] = {"", "/model.safetensors.index.json", "/config.json"};
    (void)state;
    for (size_t i = 0; i < CART_COUNTOF(names); i++)
        for (size_t k = 0; k < CART_COUNTOF(forms); k++)
            compare(names[i], &forms[k], open_as[k]);
}

static void test_tied_head_listed(void **state)
{
    static const struct hub_form form = {-1, 1, false, false, true};
    (void)state;
    compare("llama_tied", &form, "/");
}

/* --- what is refused --- */

static void slurp(const char *path, struct cart_buf *b)
{
    struct cart_err err;
    need(cart_io_slurp(path, 1 << 28, b, &err), &err);
}

static void spill(const char *path, const void *bytes, size_t n)
{
    FILE *f = fopen(path, "wb");
    assert_non_null(f);
    assert_int_equal(fwrite(bytes, 1, n, f), n);
    assert_int_equal(fclose(f), 0);
}

/* Sets what a path of keys and numbers ("model.vocab.a", "weights.0") leads to, or deletes it. */
static void set_path(json_t *root, const char *path, const char *value)
{
    char copy[128], *last = copy, *dot;
    snprintf(copy, sizeof copy, "%s", path);
    while ((dot = strchr(last, '.')) != NULL && strcmp(last, "model.norm.weight") != 0) {
        *dot = '\0';
        root = json_is_array(root) ? json_array_get(root, (size_t)atoi(last))
                                   : json_object_get(root, last);
        last = dot + 1;
    }
    json_t *v = value ? json_loads(value, JSON_DECODE_ANY | JSON_ALLOW_NUL, NULL) : NULL;
    assert_true(!value || v);
    if (!v)
        assert_int_equal(json_object_del(root, last), 0);
    else if (json_is_array(root) && strcmp(last, "+") == 0)
        assert_int_equal(json_array_append_new(root, v), 0);
    else if (json_is_array(root))
        assert_int_equal(json_array_set_new(root, (size_t)atoi(last), v), 0);
    else
        assert_int_equal(json_object_set_new(root, last, v), 0);
}

/* at NULL: value is the whole file, or the file is gone; at "=old": a first old becomes value, of
 * the same length; else a path of set_path. words NULL: the model opens. */
struct fault {
    const char *file, *at, *value;
    int status;
    const char *words;
};

static void spoil(const struct fault *f, const char *path, const struct cart_buf *whole)
{
    if (!f->at && !f->value) {
        assert_int_equal(unlink(path), 0);
    } else if (!f->at) {
        spill(path, f->value, strlen(f->value));
    } else if (f->at[0] == '=') {
        size_t n = strlen(f->value), i = 0;
        assert_int_equal(n, strlen(f->at + 1));
        while (i + n <= whole->len && memcmp(whole->data + i, f->at + 1, n) != 0)
            i++;
        assert_true(i + n <= whole->len);
        char *copy = malloc(whole->len);
        memcpy(copy, whole->data, whole->len);
        memcpy(copy + i, f->value, n);
        spill(path, copy, whole->len);
        free(copy);
    } else {
        json_t *root = json_loadb(whole->data, whole->len, 0, NULL);
        assert_non_null(root);
        set_path(root, f->at, f->value);
        char *text = json_dumps(root, 0);
        spill(path, text, strlen(text));
        free(text);
        json_decref(root);
    }
}

static void expect(const char *dir, const struct fault *f)
{
    char path[256];
    struct cart_buf whole = CART_BUF_INIT;
    struct cart_err err = {0};
    struct cart_model *m = NULL;
    snprintf(path, sizeof path, "%s/%s", dir, f->file);
    bool there = access(path, F_OK) == 0;
    if (there)
        slurp(path, &whole);
    spoil(f, path, &whole);
    int r = cart_model_open(&m, dir, NULL, &err);
    cart_model_close(m);
    if (there)
        spill(path, whole.data, whole.len);
    else
        unlink(path);
    cart_buf_release(&whole);
    if (!f->words && r < 0)
        fail_msg("%s: %s: %s", f->file, f->at ? f->at : "-", err.msg);
    if (!f->words)
        return;
    if (r == 0)
        fail_msg("%s: %s: %s: opened", f->file, f->at ? f->at : "-", f->value ? f->value : "-");
    if (r != f->status)
        fail_msg("%s: %s: status %d: %s", f->file, f->at ? f->at : "-", r, err.msg);
    if (!strstr(err.msg, f->words))
        fail_msg("%s: %s: expected '%s' in: %s", f->file, f->at ? f->at : "-", f->words, err.msg);
}

static void expect_all(const char *model, const struct hub_form *form, const struct fault *faults,
                       size_t n)
{
    char dir[128];
    snprintf(dir, sizeof dir, "%s", in_folder("faulty"));
    hub_write_model(tiny(model), dir, form);
    for (size_t i = 0; i < n; i++)
        expect(dir, &faults[i]);
    remove_tree(dir);
}

static void test_config(void **state)
{
    static const char file[] = "config.json";
    static const struct fault faults[] = {
        {file, NULL, NULL, CART_EFORMAT, "found no config.json"},
        {file, NULL, "", CART_EFORMAT, "JSON"},
        {file, NULL, "[]", CART_EFORMAT, "expected an object"},
        {file, NULL, "{\"model_type\": \"llama\", \"model_type\": \"llama\"}", CART_EFORMAT,
         "duplicate"},
        {file, "model_type", NULL, CART_EFORMAT, "model_type: expected a string, found nothing"},
        {file, "model_type", "\"mistral\"", CART_EFORMAT, "architecture 'mistral'"},
        {file, "model_type", "\"mamba\"", CART_EFORMAT, "recurrent state"},
        {file, "model_type", "\"qwen3\"", CART_EFORMAT, "architectures: expected Qwen3ForCausalLM"},
        {file, "architectures", "[\"LlamaForSequenceClassification\"]", CART_EFORMAT,
         "architectures: expected LlamaForCausalLM, found 'LlamaForSequenceClassification'"},
        {file, "architectures", NULL, 0, NULL},
        {file, "quantization_config", "{\"quant_method\": \"gptq\"}", CART_EFORMAT,
         "packed by 'gptq'"},
        {file, "quantization_config", "null", 0, NULL},
        {file, "num_hidden_layers", "0", CART_EFORMAT,
         "num_hidden_layers: expected 1 to 1024, found 0"},
        {file, "num_hidden_layers", "1025", CART_EFORMAT,
         "num_hidden_layers: expected an integer from 0 to 1024"},
        {file, "num_hidden_layers", "3", CART_EFORMAT, "tensor model.layers.3."},
        {file, "num_hidden_layers", "5", CART_EFORMAT,
         "tensor model.layers.4.input_layernorm.weight: missing"},
        {file, "hidden_size", "-64", CART_EFORMAT, "hidden_size"},
        {file, "hidden_size", "\"64\"", CART_EFORMAT,
         "hidden_size: expected an integer, found a string"},
        {file, "hidden_size", "60", CART_EFORMAT, "expected [60,"},
        {file, "num_attention_heads", "0", CART_EFORMAT, "num_attention_heads: expected 1 to"},
        {file, "num_attention_heads", "3", CART_EFORMAT,
         "num_key_value_heads: 3 query heads are no multiple of 2"},
        {file, "num_key_value_heads", "1", CART_EFORMAT,
         "k_proj.weight: expected [64, 16], found [64, 32"},
        {file, "head_dim", "15", CART_EFORMAT, "head_dim: expected an even number"},
        {file, "head_dim", "null", 0, NULL},
        {file, "head_dim", "16.5", CART_EFORMAT, "head_dim: expected an integer, found a real"},
        {file, "intermediate_size", "33", CART_EFORMAT, "gate_proj.weight: expected [64, 33]"},
        {file, "max_position_embeddings", "0", CART_EFORMAT, "max_position_embeddings"},
        {file, "rms_norm_eps", "0", CART_EFORMAT, "rms_norm_eps: expected above 0"},
        {file, "rms_norm_eps", "1.5", CART_EFORMAT, "rms_norm_eps"},
        {file, "rms_norm_eps", "1e-50", CART_EFORMAT, "rms_norm_eps: expected above 0"},
        {file, "rope_theta", "1e-38", CART_EFORMAT, "expected an angle below 2^31 at position"},
        {file, "rope_theta", "0", CART_EFORMAT, "rope_theta: expected above 0"},
        {file, "rope_theta", "\"10000\"", CART_EFORMAT, "rope_theta: expected a number"},
        {file, "rope_scaling", "{\"type\": \"yarn\", \"factor\": 4}", CART_EFORMAT, "found 'yarn'"},
        {file, "rope_scaling", "{\"type\": \"linear\", \"factor\": 0}", CART_EFORMAT,
         "factor: expected above 0"},
        {file, "rope_scaling", "{\"type\": \"linear\", \"factor\": 2}", 0, NULL},
        {file, "rope_scaling", "{\"rope_type\": \"llama3\", \"factor\": 8}", CART_EFORMAT,
         "low_freq_factor"},
        {file, "rope_scaling",
         "{\"rope_type\": \"llama3\", \"factor\": 8, \"low_freq_factor\": 4, \"high_freq_factor\": "
         "1, \"original_max_position_embeddings\": 64}",
         CART_EFORMAT, "high_freq_factor: expected above 4"},
        {file, "hidden_act", "\"gelu\"", CART_EFORMAT, "hidden_act: expected silu, found"},
        {file, "attention_bias", "true", CART_EFORMAT,
         "attention_bias: expected false, found true"},
        {file, "attention_bias", "\"false\"", CART_EFORMAT,
         "attention_bias: expected true or false, found a string"},
        {file, "hidden_act", "[\"silu\"]", CART_EFORMAT, "hidden_act: expected a string"},
        {file, "mlp_bias", "true", CART_EFORMAT, "mlp_bias: expected false, found true"},
        {file, "partial_rotary_factor", "0.5", CART_EFORMAT,
         "partial_rotary_factor: expected 1, found 0.5"},
        {file, "use_sliding_window", "true", CART_EFORMAT, "layers that see only 16 tokens"},
        {file, "layer_types", "[\"full_attention\", \"sliding_attention\"]", CART_EFORMAT,
         "layer_types: value 1"},
        {file, "layer_types", "\"sliding_attention\"", CART_EFORMAT,
         "layer_types: expected an array"},
        {file, "layer_types", "{}", CART_EFORMAT, "layer_types: expected an array"},
        {file, "layer_types", "null", 0, NULL},
        {file, "tie_word_embeddings", "false", CART_EFORMAT, "tensor lm_head.weight: missing"},
        {file, "tie_word_embeddings", "1", CART_EFORMAT, "tie_word_embeddings"},
        {file, "vocab_size", "319", CART_EFORMAT,
         "vocab_size: expected 320, the rows of the embedding"},
        {file, "eos_token_id", "[318, 320]", CART_EFORMAT,
         "eos_token_id: expected an id below 320"},
    };
    static const struct hub_form form = {-1, 1, false, false, false};
    (void)state;
    expect_all("llama_tied", &form, faults, CART_COUNTOF(faults));
}

static void test_tokenizer(void **state)
{
    static const char file[] = "tokenizer.json";
    static const struct fault faults[] = {
        {file, NULL, NULL, CART_ESYS, "tokenizer.json: No such file"},
        {file, NULL, "{}", CART_EFORMAT, "model: expected an object, found nothing"},
        {file, "model.type", "\"Unigram\"", CART_EFORMAT, "expected BPE, found 'Unigram'"},
        {file, "model.dropout", "0.1", CART_EFORMAT, "model: dropout"},
        {file, "model.byte_fallback", "true", CART_EFORMAT, "model: byte_fallback"},
        {file, "model.end_of_word_suffix", "\"</w>\"", CART_EFORMAT, "model: end_of_word_suffix"},
        {file, "model.ignore_merges", "true", CART_EFORMAT, "ignore_merges: expected false"},
        {file, "model.vocab", "[]", CART_EFORMAT, "vocab: expected an object"},
        {file, "model.vocab.!", "320", CART_EFORMAT, "token '!': expected an id below 320"},
        {file, "model.vocab.!", "-1", CART_EFORMAT, "token '!': expected an id"},
        {file, "model.vocab.!", "0.5", CART_EFORMAT, "token '!': expected an id"},
        {file, "model.vocab.!", "1", CART_EFORMAT, "id 1: both '"},
        {file, "model.vocab.!", NULL, CART_EFORMAT, "byte 0x21 has no token"},
        {file, "model.vocab.What", NULL, CART_EFORMAT, "'W hat': its result is no token"},
        {file, "model.merges", "[]", CART_EFORMAT, "merges: expected 1 to"},
        {file, "model.merges.0", "[\"a\"]", CART_EFORMAT, "merges: value 0"},
        {file, "model.merges.0", "[\"a\", \"b c\"]", CART_EFORMAT, "merges: value 0"},
        {file, "model.merges.0", "7", CART_EFORMAT, "merges: value 0"},
        {file, "model.merges.0", "\"ab\"", CART_EFORMAT, "found no space"},
        {file, "model.merges.0", "[\"q\", \"zzz\"]", CART_EFORMAT, "its right part is no token"},
        {file, "normalizer", "null", CART_EFORMAT,
         "normalizer: expected NFC, as qwen2 has it, found null"},
        {file, "normalizer", "{\"type\": \"NFKC\"}", CART_EFORMAT, "found NFKC"},
        {file, "normalizer", "{\"type\": \"Sequence\", \"normalizers\": [{\"type\": \"NFC\"}]}", 0,
         NULL},
        {file, "pre_tokenizer", "null", CART_EFORMAT, "the steps of smollm, qwen2 or llama-bpe"},
        {file, "pre_tokenizer", "{\"type\": \"Whitespace\"}", CART_EFORMAT,
         "found {\"type\":\"Whitespace\"}"},
        {file, "pre_tokenizer.pretokenizers.0.behavior", "\"Removed\"", CART_EFORMAT,
         "pre_tokenizer"},
        {file, "pre_tokenizer.pretokenizers.0.invert", "true", CART_EFORMAT, "pre_tokenizer"},
        {file, "pre_tokenizer.pretokenizers.0.pattern.Regex", "\"\\\\s+\"", CART_EFORMAT,
         "pre_tokenizer"},
        {file, "pre_tokenizer.pretokenizers.1.use_regex", "true", CART_EFORMAT, "pre_tokenizer"},
        {file, "pre_tokenizer.pretokenizers.1.add_prefix_space", NULL, CART_EFORMAT,
         "pre_tokenizer"},
        {file, "decoder", "{\"type\": \"Metaspace\"}", CART_EFORMAT, "decoder: expected ByteLevel"},
        {file, "post_processor", "{\"type\": \"BertProcessing\"}", CART_EFORMAT, "post_processor"},
        {file, "post_processor", "null", 0, NULL},
        {file, "post_processor",
         "{\"type\": \"TemplateProcessing\", \"single\": [{\"Sequence\": {\"id\": \"A\"}}, "
         "{\"SpecialToken\": {\"id\": \"<|im_end|>\"}}]}",
         CART_EFORMAT, "post_processor: expected the text, or one special token"},
        {file, "added_tokens.0.lstrip", "true", CART_EFORMAT, "lstrip: expected false, found true"},
        {file, "added_tokens.0.single_word", "true", CART_EFORMAT, "single_word: expected false"},
        {file, "added_tokens.0.normalized", "true", CART_EFORMAT, "normalized: expected false"},
        {file, "added_tokens.0.id", "5", CART_EFORMAT, "id 5: both '"},
        {file, "added_tokens.1.content", "\"!\"", CART_EFORMAT, "both are '!'"},
        {file, "added_tokens.0.special", "false", 0, NULL},
        {file, "added_tokens.0.special", "null", 0, NULL},
        {file, "added_tokens.0.special", "\"x\"", CART_EFORMAT,
         "special: expected true or false, found a string"},
        {file, "added_tokens.0.lstrip", "\"true\"", CART_EFORMAT,
         "'<|endoftext|>': lstrip: expected true or false, found a string"},
        {file, "pre_tokenizer.pretokenizers.0.invert", "\"AAA\"", CART_EFORMAT,
         "tokenizer.json: pre_tokenizer: invert: expected true or false, found a string"},
        {file, "pre_tokenizer.pretokenizers.0.invert", "null", 0, NULL},
        {file, "pre_tokenizer.pretokenizers.1.add_prefix_space", "-1", CART_EFORMAT,
         "pre_tokenizer: add_prefix_space: expected true or false, found an integer"},
        {file, "pre_tokenizer.pretokenizers.1.use_regex", "{}", CART_EFORMAT,
         "pre_tokenizer: use_regex: expected true or false, found an object"},
        {file, "post_processor", "{\"type\": \"Sequence\", \"processors\": {}}", CART_EFORMAT,
         "post_processor: processors: expected an array, found an object"},
        {file, "decoder", "7", CART_EFORMAT, "decoder: expected an object, found an integer"},
        {file, "model.ignore_merges", "\"true\"", CART_EFORMAT,
         "model: ignore_merges: expected true or false"},
        {file, "model.dropout", "false", CART_EFORMAT, "model: dropout: expected a number"},
        {file, "model.dropout", "0.0", 0, NULL},
        {file, "model.unk_token", "{}", CART_EFORMAT, "model: unk_token: expected a string"},
        {file, "model.unk_token", "null", 0, NULL},
        {file, "truncation", "{\"max_length\": 5}", 0, NULL},
    };
    static const struct hub_form form = {CART_BF16, 1, true, false, false};
    (void)state;
    expect_all("qwen2", &form, faults, CART_COUNTOF(faults));
}

/* The special tokens, which three files speak of. */
static void test_special(void **state)
{
    static const char config[] = "tokenizer_config.json";
    static const struct fault faults[] = {
        {config, "eos_token", "7", CART_EFORMAT,
         "tokenizer_config.json: eos_token: expected a string, found an integer"},
        {config, "eos_token", "{\"content\": 7}", CART_EFORMAT,
         "tokenizer_config.json: eos_token: content: expected a string"},
        {config, "add_bos_token", "{}", CART_EFORMAT,
         "tokenizer_config.json: add_bos_token: expected true or false, found an object"},
        {config, "add_bos_token", "null", 0, NULL},
        {config, "chat_template", "7", CART_EFORMAT,
         "chat_template: expected a string or an array, found 7"},
        {config, "chat_template", "[{\"name\": \"default\"}]", CART_EFORMAT,
         "chat_template: value 0: expected an object with the strings name and template"},
        /* unk alone has no name, and its id counts. */
        {"config.json", "bos_token_id", "-1", 0, NULL},
        {"config.json", "bos_token_id", "[315]", 0, NULL},
        {"config.json", "bos_token_id", "null", 0, NULL},
        {"config.json", "pad_token_id", "[1, 2]", 0, NULL},
        {"config.json", "unk_token_id", "true", CART_EFORMAT,
         "unk_token_id: expected an id below 320, found true"},
        {"config.json", "unk_token_id", "-1", 0, NULL},
        {"config.json", "unk_token_id", "-2", CART_EFORMAT, "unk_token_id: expected an id"},
        {"config.json", "unk_token_id", "[1, 2]", CART_EFORMAT,
         "expected an id below 320, found an array"},
        {"config.json", "eos_token_id", "[318, 319]", 0, NULL},
        {"config.json", "eos_token_id", "-1", 0, NULL},
        {"generation_config.json", "eos_token_id", "-1", 0, NULL},
        {config, "eos_token", "\"<eos>\"", CART_EFORMAT, "eos_token: '<eos>' is no token"},
        {config, "eos_token", "null", 0, NULL},
        {config, NULL, NULL, 0, NULL},
        {config, NULL, "7", CART_EFORMAT, "expected an object"},
        {config, "add_bos_token", "true", 0, NULL},
        {"model.safetensors", "=self_attn.k_proj.bias", "self_attn.k_proj.bia~", CART_EFORMAT,
         "self_attn.k_proj.bias: missing"},
        {"generation_config.json", "eos_token_id", "[320]", CART_EFORMAT,
         "eos_token_id: expected an id below 320"},
        {"generation_config.json", "eos_token_id", "\"x\"", CART_EFORMAT,
         "eos_token_id: expected an id"},
        {"generation_config.json", NULL, NULL, 0, NULL},
    };
    static const struct hub_form form = {CART_BF16, 1, true, false, false};
    (void)state;
    expect_all("qwen2", &form, faults, CART_COUNTOF(faults));
}

static void test_weights(void **state)
{
    static const char file[] = "model.safetensors";
    static const struct fault faults[] = {
        {file, NULL, NULL, CART_EFORMAT,
         "expected model.safetensors or model.safetensors.index.json"},
        {file, NULL, "", CART_ETRUNC, "at least 8 bytes"},
        {file, NULL, "version https://git-lfs.github.com/spec/v1", CART_EFORMAT,
         "safetensors header"},
        {file, "=model.norm.weight", "model.norm.weighs", CART_EFORMAT,
         "tensor model.norm.weight: missing"},
        {file, "=self_attn.q_norm.weight", "self_attn.q_norm.weighs", CART_EFORMAT,
         "q_norm.weight: missing"},
        {file, "=\"F32\"", "\"I32\"", CART_EFORMAT,
         "type I32 is not supported: expected F32, F16 or BF16"},
        {file, "=[320,64]", "[64,320]", CART_EFORMAT, "tensor model.embed_tokens.weight: expected"},
        {"config.json", "rope_parameters", "{\"full_attention\": {}}", CART_EFORMAT,
         "rope_theta: expected a number"},
        {"config.json", "rope_parameters", "7", CART_EFORMAT,
         "rope_parameters: expected an object, found 7"},
        {"config.json", "rope_theta", "7", 0, NULL},
        {"config.json", "rope_scaling", "{\"rope_type\": \"linear\", \"factor\": 2}", CART_EFORMAT,
         "rope_scaling: expected what rope_parameters says, or nothing"},
        {"config.json", "rope_scaling", "7", CART_EFORMAT,
         "rope_scaling: expected what rope_parameters says"},
        {"config.json", "rope_scaling", "null", 0, NULL},
        {"config.json", "rope_scaling", "{\"rope_type\": \"default\"}", 0, NULL},
        {file, "=[128,64]", "[64,128]", CART_EFORMAT,
         "q_proj.weight: expected [64, 128], found [128, 64"},
    };
    static const struct hub_form form = {-1, 1, true, true, false};
    (void)state;
    expect_all("qwen3", &form, faults, CART_COUNTOF(faults));
}

static void test_shards(void **state)
{
    static const char index[] = "model.safetensors.index.json";
    static const char name[] = "model-00002-of-00002.safetensors";
    static const struct fault faults[] = {
        {index, NULL, "{}", CART_EFORMAT, "weight_map: expected an object, found nothing"},
        {index, "weight_map", "{}", CART_EFORMAT, "weight_map: no tensors"},
        {index, "weight_map.model.norm.weight", NULL, CART_EFORMAT,
         "tensor model.norm.weight: not in the index"},
        {index, "weight_map.model.norm.weight", "\"model-00001-of-00002.safetensors\"",
         CART_EFORMAT,
         "tensor model.norm.weight: the index has it in model-00001-of-00002.safetensors"},
        {index, "weight_map.more", "\"model-00001-of-00002.safetensors\"", CART_EFORMAT,
         "model-00001-of-00002.safetensors: tensor more: the index has it here"},
        {index, "weight_map.more", "\"model-00003-of-00002.safetensors\"", CART_ESYS,
         "model-00003-of-00002.safetensors: No such file"},
        {index, "weight_map.more", "\"../model.safetensors\"", CART_EFORMAT,
         "tensor more: expected the name"},
        {index, "weight_map.more", "\"a/b.safetensors\"", CART_EFORMAT, "found 'a/b.safetensors'"},
        {index, "weight_map.more", "\".safetensors\"", CART_EFORMAT,
         "tensor more: expected the name"},
        {index, "weight_map.more", "\"config.json\"", CART_EFORMAT,
         "tensor more: expected the name"},
        {index, "weight_map.more", "\"a\\u0000.safetensors\"", CART_EFORMAT,
         "tensor more: expected the name"},
        {index, "weight_map.more", "\"\\na.safetensors\"", CART_EFORMAT,
         "found '\\x0aa.safetensors'"},
        {index, "weight_map.more", "7", CART_EFORMAT, "tensor more: expected the name"},
        {name, NULL, NULL, CART_ESYS, "model-00002-of-00002.safetensors: No such file"},
        {name, "=model.norm.weight", "model.nxrm.weight", CART_EFORMAT,
         "tensor model.nxrm.weight: not in the"},
    };
    static const struct hub_form form = {-1, 2, false, true, false};
    (void)state;
    expect_all("llama3_untied", &form, faults, CART_COUNTOF(faults));
}

/* llama_tied with up to three members of its config set, or deleted; status and words as in a
 * fault. */
struct configured {
    const char *at[3], *value[3];
    int status;
    const char *words;
};

static struct cart_model *open_configured(const struct configured *c)
{
    static const struct hub_form form = {-1, 1, false, false, false};
    char dir[128], path[200];
    struct cart_buf whole = CART_BUF_INIT;
    struct cart_err err = {0};
    struct cart_model *m = NULL;
    snprintf(dir, sizeof dir, "%s", in_folder("configured"));
    snprintf(path, sizeof path, "%s/config.json", dir);
    hub_write_model(tiny("llama_tied"), dir, &form);
    slurp(path, &whole);
    json_t *root = json_loadb(whole.data, whole.len, 0, NULL);
    for (size_t i = 0; i < CART_COUNTOF(c->at) && c->at[i]; i++)
        set_path(root, c->at[i], c->value[i]);
    char *text = json_dumps(root, 0);
    spill(path, text, strlen(text));
    int r = cart_model_open(&m, dir, NULL, &err);
    free(text);
    json_decref(root);
    cart_buf_release(&whole);
    remove_tree(dir);
    if (r != c->status || (c->words && !strstr(err.msg, c->words)))
        fail_msg("%s: status %d: %s", c->at[0], r, err.msg);
    return m;
}

/* A head width that no key states is the quotient, and bounded all the same. */
static void test_derived_heads(void **state)
{
    static const struct configured rows[] = {
        {{"head_dim", "hidden_size"},
         {"null", "4096"},
         CART_EFORMAT,
         "expected [4096, 320], found"},
        {{"head_dim", "hidden_size"},
         {"null", "4104"},
         CART_EFORMAT,
         "head_dim: expected an even number up to 1024, found 1026"},
        {{"head_dim", "hidden_size"},
         {"null", "66"},
         CART_EFORMAT,
         "a multiple of 4 heads, found 66"},
        {{"head_dim", "hidden_size"},
         {"null", "60"},
         CART_EFORMAT,
         "even number up to 1024, found 15"},
        {{"num_key_value_heads"}, {"3"}, CART_EFORMAT, "4 query heads are no multiple of 3"},
        {{"num_key_value_heads"}, {"8"}, CART_EFORMAT, "4 query heads are no multiple of 8"},
        {{"rope_theta"}, {"1e30"}, CART_EFORMAT, "rope_theta: expected above 0 and below 1e+30"},
        {{"rope_scaling"}, {"{\"type\": \"linear\"}"}, CART_EFORMAT, "factor: expected a number"},
    };
    (void)state;
    for (size_t i = 0; i < CART_COUNTOF(rows); i++)
        cart_model_close(open_configured(&rows[i]));
}

static void test_rotation_keys(void **state)
{
    static const struct {
        struct configured c;
        double base, scale;
    } rows[] = {
        {{{"rope_theta"}, {NULL}, 0, NULL}, 10000, 1},
        {{{"rope_theta"}, {"500"}, 0, NULL}, 500, 1},
        {{{"rope_scaling"}, {"{\"type\": \"linear\", \"factor\": 4}"}, 0, NULL}, 10000, 0.25},
        {{{"rope_scaling"}, {"{\"rope_type\": \"linear\", \"factor\": 2}"}, 0, NULL}, 10000, 0.5},
        {{{"rope_theta", "rope_parameters"},
          {NULL, "{\"rope_type\": \"linear\", \"factor\": 8, \"rope_theta\": 600}"},
          0,
          NULL},
         600,
         0.125},
    };
    (void)state;
    for (size_t i = 0; i < CART_COUNTOF(rows); i++) {
        struct cart_model *m = open_configured(&rows[i].c);
        if (!test_rotation(m, rows[i].base, rows[i].scale, pool))
            fail_msg("row %zu: %s", i, rows[i].c.at[0]);
        cart_model_close(m);
    }
}

static void test_path(void **state)
{
    struct cart_err err = {0};
    struct cart_model *m = NULL;
    (void)state;
    assert_int_equal(cart_model_open(&m, folder, NULL, &err), CART_EFORMAT);
    assert_non_null(strstr(err.msg, "expected a GGUF file, or a directory with config.json"));
    assert_int_equal(cart_model_open(&m, in_folder("absent"), NULL, &err), CART_ESYS);
    assert_non_null(strstr(err.msg, "No such file"));
}

/* A write to any shard shows; another file in its place does not, being another. */
static void test_changed(void **state)
{
    static const struct hub_form form = {-1, 2, false, false, false};
    static const char *const shards[] = {"model-00001-of-00002.safetensors",
                                         "model-00002-of-00002.safetensors"};
    struct cart_err err;
    char dir[128], path[200], other[220];
    (void)state;
    snprintf(dir, sizeof dir, "%s", in_folder("model"));
    hub_write_model(tiny("llama_tied"), dir, &form);
    for (size_t i = 0; i < 2 * CART_COUNTOF(shards); i++) {
        struct cart_model *m = NULL;
        struct cart_buf whole = CART_BUF_INIT;
        snprintf(path, sizeof path, "%s/%s", dir, shards[i / 2]);
        snprintf(other, sizeof other, "%s.other", path);
        slurp(path, &whole);
        need(cart_model_open(&m, dir, NULL, &err), &err);
        need(cart_model_unchanged(m, &err), &err);
        if (i % 2) {
            spill(other, whole.data, whole.len);
            assert_int_equal(rename(other, path), 0);
            need(cart_model_unchanged(m, &err), &err);
        } else {
            spill(path, whole.data, whole.len);
            assert_int_equal(cart_model_unchanged(m, &err), CART_EAGAIN);
            assert_non_null(strstr(err.msg, shards[i / 2]));
        }
        cart_model_close(m);
        cart_buf_release(&whole);
    }
    remove_tree(dir);
}

/* --- vocabulary --- */

/* Ids that end a text: what generation_config.json lists counts, and makes another tokenizer only
 * where nothing else makes it end. */
static void test_end_tokens(void **state)
{
    static const struct hub_form form = {-1, 1, false, false, false};
    struct cart_err err;
    struct cart_model *plain = NULL, *known = NULL, *more = NULL;
    char dir[128], path[160];
    (void)state;
    snprintf(dir, sizeof dir, "%s", in_folder("ends"));
    snprintf(path, sizeof path, "%s/generation_config.json", dir);
    hub_write_model(tiny("qwen3"), dir, &form);
    need(cart_model_open(&plain, dir, NULL, &err), &err);
    spill(path, "{\"eos_token_id\": [319, 317]}", 28);
    need(cart_model_open(&known, dir, NULL, &err), &err);
    spill(path, "{\"eos_token_id\": [319, 7]}", 26);
    need(cart_model_open(&more, dir, NULL, &err), &err);
    assert_true(cart_tokenizer_is_eog(cart_model_tokenizer(known), 317));
    assert_false(cart_tokenizer_is_eog(cart_model_tokenizer(known), 7));
    assert_true(cart_tokenizer_is_eog(cart_model_tokenizer(more), 7));
    assert_string_equal(plain->fp.tokenizer, known->fp.tokenizer);
    assert_string_not_equal(plain->fp.tokenizer, more->fp.tokenizer);
    cart_model_close(plain);
    cart_model_close(known);
    cart_model_close(more);
    remove_tree(dir);
}

static int write_directory(int argc, char **argv)
{
    struct hub_form form = {-1, argc > 3 ? (size_t)atoi(argv[3]) : 1, true, true, false};
    if (argc > 4)
        form.dtype = argv[4][0] == 'b' ? CART_BF16 : argv[4][1] == '3' ? CART_F32 : CART_F16;
    hub_write_model(argv[1], argv[2], &form);
    return 0;
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_equal_bits),    cmocka_unit_test(test_tied_head_listed),
        cmocka_unit_test(test_config),        cmocka_unit_test(test_tokenizer),
        cmocka_unit_test(test_special),       cmocka_unit_test(test_weights),
        cmocka_unit_test(test_shards),        cmocka_unit_test(test_derived_heads),
        cmocka_unit_test(test_rotation_keys), cmocka_unit_test(test_path),
        cmocka_unit_test(test_end_tokens),    cmocka_unit_test(test_changed),
    };
    if (argc > 2)
        return write_directory(argc, argv);
    struct cart_err err;
    snprintf(folder, sizeof folder, "%s", "/tmp/cart-hub-XXXXXX");
    if (!mkdtemp(folder) || cart_pool_new(&pool, 2, &err) < 0)
        return 99;
    cmocka_set_message_output(CM_OUTPUT_TAP);
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    cart_pool_free(pool);
    remove_tree(folder);
    return failed;
}
