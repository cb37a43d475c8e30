#include "helper/hub_write.h"

#include "base/buf.h"
#include "format/gguf.h"
#include "stream/safetensors.h"
#include "tensor/dtype.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

struct job {
    const struct cart_gguf *g;
    const char *dir;
    const struct hub_form *form;
    char arch[16];
};

static void need(int r, const struct cart_err *err)
{
    if (r < 0) {
        fprintf(stderr, "hub_write: %s\n", err->msg);
        exit(5);
    }
}

static void write_file(const struct job *j, const char *name, const void *bytes, size_t n)
{
    char path[1024];
    snprintf(path, sizeof path, "%s/%s", j->dir, name);
    FILE *f = fopen(path, "wb");
    if (!f || fwrite(bytes, 1, n, f) != n || fclose(f) != 0) {
        perror(path);
        exit(5);
    }
}

static void write_json(const struct job *j, const char *name, json_t *v)
{
    char *text = json_dumps(v, JSON_INDENT(2) | JSON_ENCODE_ANY);
    write_file(j, name, text, strlen(text));
    free(text);
    json_decref(v);
}

static uint64_t number(const struct job *j, const char *suffix, uint64_t absent)
{
    char key[96];
    uint64_t v = absent;
    struct cart_err err;
    snprintf(key, sizeof key, "%s%s", suffix[0] == '.' ? j->arch : "", suffix);
    need(cart_gguf_u64_opt(j->g, key, UINT64_MAX, &v, &err), &err);
    return v;
}

static double real(const struct job *j, const char *suffix)
{
    char key[96];
    double v = 0;
    struct cart_err err;
    snprintf(key, sizeof key, "%s%s", j->arch, suffix);
    need(cart_gguf_real(j->g, key, &v, &err), &err);
    /* The shortest decimal that is this f32 again, as people write it. */
    char text[32];
    for (int digits = 1; digits < 10; digits++) {
        snprintf(text, sizeof text, "%.*g", digits, v);
        if ((double)(float)strtod(text, NULL) == v)
            break;
    }
    return strtod(text, NULL);
}

static void set(json_t *o, const char *key, json_t *v)
{
    if (json_object_set_new(o, key, v) < 0)
        exit(5);
}

static bool has(const struct job *j, const char *tensor)
{
    return cart_gguf_tensor(j->g, tensor) != NULL;
}

static void write_config(const struct job *j)
{
    bool llama = strcmp(j->arch, "llama") == 0;
    const char *const classes[] = {"LlamaForCausalLM", "Qwen2ForCausalLM", "Qwen3ForCausalLM"};
    const char *class = classes[llama ? 0 : j->arch[4] - '1'];
    uint64_t D = number(j, ".embedding_length", 0), H = number(j, ".attention.head_count", 1);
    json_t *c = json_pack(
        "{s:s, s:[s], s:s, s:I, s:I, s:I, s:I, s:I, s:I, s:I}", "model_type", j->arch,
        "architectures", class, "hidden_act", "silu", "hidden_size", (json_int_t)D,
        "num_hidden_layers", (json_int_t)number(j, ".block_count", 0), "intermediate_size",
        (json_int_t)number(j, ".feed_forward_length", 0), "num_attention_heads", (json_int_t)H,
        "num_key_value_heads", (json_int_t)number(j, ".attention.head_count_kv", H),
        "max_position_embeddings", (json_int_t)number(j, ".context_length", 0), "vocab_size",
        (json_int_t)cart_gguf_tensor(j->g, "token_embd.weight")->dims[1]);
    json_t *rope = json_pack("{s:s}", "rope_type", "default");
    if (has(j, "rope_freqs.weight")) {
        json_decref(rope);
        rope = json_pack("{s:s, s:f, s:f, s:f, s:i}", "rope_type", "llama3", "factor", 8.0,
                         "low_freq_factor", 1.0, "high_freq_factor", 4.0,
                         "original_max_position_embeddings", 64);
    }
    double theta = real(j, ".rope.freq_base");
    if (j->form->gathered) {
        set(rope, "rope_theta", json_real(theta));
        set(c, "rope_parameters", rope);
    } else {
        set(c, "rope_theta", json_real(theta));
        set(c, "rope_scaling", json_object_size(rope) > 1 ? json_incref(rope) : json_null());
        json_decref(rope);
    }
    if (number(j, ".attention.key_length", 0) > 0)
        set(c, "head_dim", json_integer((json_int_t)number(j, ".attention.key_length", 0)));
    set(c, "rms_norm_eps", json_real(real(j, ".attention.layer_norm_rms_epsilon")));
    set(c, "tie_word_embeddings", json_boolean(!has(j, "output.weight")));
    set(c, "attention_bias", json_false());
    set(c, "use_sliding_window", json_false());
    set(c, "sliding_window", json_integer(16));
    set(c, "bos_token_id", json_integer((json_int_t)number(j, "tokenizer.ggml.bos_token_id", 0)));
    set(c, "eos_token_id", json_integer((json_int_t)number(j, "tokenizer.ggml.eos_token_id", 0)));
    write_json(j, "config.json", c);
}

/* To be freed; the bytes are the file's. */
static struct cart_gguf_str *strings_of(const struct cart_gguf *g, const char *key, size_t *n)
{
    struct cart_gguf_array a = {.n = 0};
    struct cart_err err;
    need(cart_gguf_array_opt(g, key, CART_GGUF_SET(CART_GGUF_STRING), &a, &err), &err);
    struct cart_gguf_str *out = calloc(a.n + 1, sizeof *out);
    const unsigned char *cursor = a.data;
    for (size_t i = 0; i < a.n; i++)
        out[i] = cart_gguf_string_next(&cursor);
    *n = a.n;
    return out;
}

static json_t *text_of(struct cart_gguf_str s)
{
    return json_stringn(s.data, s.len);
}

static const char words[] =
    "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|%s| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|"
    "\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+";

static json_t *pre_tokenizer(const char *pre)
{
    char regex[256];
    if (strcmp(pre, "smollm") == 0)
        return json_pack("{s:s, s:[{s:s, s:b}, {s:s, s:b, s:b, s:b}]}", "type", "Sequence",
                         "pretokenizers", "type", "Digits", "individual_digits", 1, "type",
                         "ByteLevel", "add_prefix_space", 0, "trim_offsets", 1, "use_regex", 1);
    snprintf(regex, sizeof regex, words, pre[0] == 'q' ? "\\p{N}" : "\\p{N}{1,3}");
    return json_pack("{s:s, s:[{s:s, s:{s:s}, s:s, s:b}, {s:s, s:b, s:b, s:b}]}", "type",
                     "Sequence", "pretokenizers", "type", "Split", "pattern", "Regex", regex,
                     "behavior", "Isolated", "invert", 0, "type", "ByteLevel", "add_prefix_space",
                     0, "trim_offsets", 1, "use_regex", 0);
}

static json_t *merge_of(const struct job *j, struct cart_gguf_str m)
{
    const char *space = memchr(m.data, ' ', m.len);
    size_t left = (size_t)(space - m.data);
    if (!j->form->merge_pairs)
        return text_of(m);
    return json_pack("[o, o]", json_stringn(m.data, left),
                     json_stringn(space + 1, m.len - left - 1));
}

static void write_tokenizer(const struct job *j, const struct cart_gguf_str *tokens, size_t n)
{
    struct cart_gguf_str *merges = NULL, pre;
    struct cart_gguf_array types;
    struct cart_err err;
    size_t n_merges = 0;
    json_t *vocab = json_object(), *added = json_array(), *list = json_array();
    merges = strings_of(j->g, "tokenizer.ggml.merges", &n_merges);
    need(cart_gguf_array(j->g, "tokenizer.ggml.token_type", CART_GGUF_SET_INT, &types, &err), &err);
    need(cart_gguf_string(j->g, "tokenizer.ggml.pre", &pre, &err), &err);
    char name[32];
    snprintf(name, sizeof name, "%.*s", (int)pre.len, pre.data);
    for (size_t i = 0; i < n; i++) {
        int64_t type = cart_gguf_array_i64(&types, i);
        json_t *text = text_of(tokens[i]);
        if (type == 1)
            set(vocab, json_string_value(text), json_integer((json_int_t)i));
        else if (type != 5)
            json_array_append_new(added, json_pack("{s:I, s:O, s:b, s:b, s:b, s:b, s:b}", "id",
                                                   (json_int_t)i, "content", text, "single_word", 0,
                                                   "lstrip", 0, "rstrip", 0, "normalized", 0,
                                                   "special", type == 3));
        json_decref(text);
    }
    for (size_t i = 0; i < n_merges; i++)
        json_array_append_new(list, merge_of(j, merges[i]));
    free(merges);
    bool adds = false;
    need(cart_gguf_bool_opt(j->g, "tokenizer.ggml.add_bos_token", &adds, &err), &err);
    json_t *post = json_pack("{s:s, s:b}", "type", "ByteLevel", "trim_offsets", 0);
    if (adds)
        post =
            json_pack("{s:s, s:[o, {s:s, s:[{s:{s:o, s:i}}, {s:{s:s, s:i}}]}]}", "type", "Sequence",
                      "processors", post, "type", "TemplateProcessing", "single", "SpecialToken",
                      "id", text_of(tokens[number(j, "tokenizer.ggml.bos_token_id", 0)]), "type_id",
                      0, "Sequence", "id", "A", "type_id", 0);
    json_t *model = json_pack("{s:s, s:n, s:n, s:s, s:b, s:b, s:o, s:o}", "type", "BPE", "dropout",
                              "unk_token", "continuing_subword_prefix", "", "byte_fallback", 0,
                              "ignore_merges", name[0] == 'l', "vocab", vocab, "merges", list);
    json_t *t = json_pack("{s:s, s:o, s:o, s:o, s:{s:s}, s:o}", "version", "1.0", "added_tokens",
                          added, "pre_tokenizer", pre_tokenizer(name), "post_processor", post,
                          "decoder", "type", "ByteLevel", "model", model);
    set(t, "normalizer", name[0] == 'q' ? json_pack("{s:s}", "type", "NFC") : json_null());
    write_json(j, "tokenizer.json", t);
}

static void write_tokenizer_config(const struct job *j, const struct cart_gguf_str *tokens)
{
    static const char *const names[][2] = {{"bos_token", "tokenizer.ggml.bos_token_id"},
                                           {"eos_token", "tokenizer.ggml.eos_token_id"},
                                           {"pad_token", "tokenizer.ggml.padding_token_id"},
                                           {"unk_token", "tokenizer.ggml.unknown_token_id"}};
    struct cart_gguf_str text = {"", 0};
    struct cart_err err;
    bool adds = false;
    json_t *c = json_object();
    for (size_t i = 0; i < 4; i++) {
        uint64_t id = number(j, names[i][1], UINT64_MAX);
        json_t *token = id == UINT64_MAX ? json_null() : text_of(tokens[id]);
        set(c, names[i][0], i == 1 ? json_pack("{s:o}", "content", token) : token);
    }
    need(cart_gguf_bool_opt(j->g, "tokenizer.ggml.add_bos_token", &adds, &err), &err);
    if (!adds)
        set(c, "add_bos_token", json_false());
    need(cart_gguf_string_opt(j->g, "tokenizer.chat_template", &text, &err), &err);
    if (j->form->gathered)
        write_file(j, "chat_template.jinja", text.data, text.len);
    else
        set(c, "chat_template", text_of(text));
    write_json(j, "tokenizer_config.json", c);
    uint64_t eos = number(j, "tokenizer.ggml.eos_token_id", 0);
    write_json(j, "generation_config.json", json_pack("{s:[I]}", "eos_token_id", (json_int_t)eos));
}

/* --- weights --- */

static void hub_name(const char *gguf, char out[96])
{
    static const char *const names[][2] = {{"token_embd.weight", "model.embed_tokens.weight"},
                                           {"output_norm.weight", "model.norm.weight"},
                                           {"output.weight", "lm_head.weight"},
                                           {"attn_norm.", "input_layernorm."},
                                           {"attn_q.", "self_attn.q_proj."},
                                           {"attn_k.", "self_attn.k_proj."},
                                           {"attn_v.", "self_attn.v_proj."},
                                           {"attn_output.", "self_attn.o_proj."},
                                           {"attn_q_norm.", "self_attn.q_norm."},
                                           {"attn_k_norm.", "self_attn.k_norm."},
                                           {"ffn_norm.", "post_attention_layernorm."},
                                           {"ffn_gate.", "mlp.gate_proj."},
                                           {"ffn_up.", "mlp.up_proj."},
                                           {"ffn_down.", "mlp.down_proj."}};
    const char *part = gguf;
    int layer = -1, at = 0;
    if (sscanf(gguf, "blk.%d.%n", &layer, &at) == 1)
        part += at;
    for (size_t i = 0; i < CART_COUNTOF(names); i++) {
        size_t n = strlen(names[i][0]);
        if (strncmp(part, names[i][0], n) != 0)
            continue;
        if (layer < 0)
            snprintf(out, 96, "%s", names[i][1]);
        else
            snprintf(out, 96, "model.layers.%d.%s%s", layer, names[i][1], part + n);
        return;
    }
    fprintf(stderr, "hub_write: tensor %s: no name for it\n", gguf);
    exit(5);
}

/* The bytes of a row of n values in the wanted type. */
static void put_row(int dtype, const struct cart_gguf_tensor *t, const unsigned char *row, size_t n,
                    unsigned char *out)
{
    float *x = malloc(n * sizeof *x);
    cart_widen(t->type, row, 0, n, x);
    for (size_t i = 0; i < n; i++) {
        uint16_t h = dtype == CART_F16 ? cart_f16_from_f32(x[i]) : cart_bf16_from_f32(x[i]);
        if (dtype == CART_F32)
            memcpy(out + 4 * i, &x[i], 4);
        else
            memcpy(out + 2 * i, &h, 2);
    }
    free(x);
}

static struct cart_st_tensor tensor_of(const struct job *j, const struct cart_gguf_tensor *t,
                                       char name[96])
{
    char gguf[64];
    snprintf(gguf, sizeof gguf, "%.*s", (int)t->name.len, t->name.data);
    hub_name(gguf, name);
    int dtype = j->form->dtype < 0 ? t->type : j->form->dtype;
    bool turned = strcmp(j->arch, "llama") == 0 &&
                  (strstr(gguf, "attn_q.weight") || strstr(gguf, "attn_k.weight"));
    size_t K = (size_t)t->dims[0], N = (size_t)t->dims[1], bytes = cart_dtype_info(dtype)->bytes;
    uint64_t heads = number(j, ".attention.head_count", 1),
             width = number(j, ".embedding_length", 2);
    width = number(j, ".attention.key_length", width / heads);
    size_t half = (size_t)number(j, ".rope.dimension_count", width) / 2;
    unsigned char *data = malloc(N * K * bytes);
    for (size_t n = 0; n < N; n++) {
        size_t head = n / (2 * half), i = n % (2 * half);
        size_t to = turned ? head * 2 * half + i % 2 * half + i / 2 : n;
        put_row(dtype, t, t->data + n * (t->bytes / N), K, data + to * K * bytes);
    }
    struct cart_st_tensor out = {.name = name,
                                 .dtype = dtype == CART_F32   ? CART_ST_F32
                                          : dtype == CART_F16 ? CART_ST_F16
                                                              : CART_ST_BF16,
                                 .rank = t->n_dims,
                                 .shape = {t->n_dims == 1 ? K : N, K},
                                 .data = data,
                                 .bytes = N * K * bytes};
    return out;
}

static void write_shard(const struct job *j, const char *name, const struct cart_st_tensor *t,
                        size_t n, json_t *map)
{
    struct cart_buf b = CART_BUF_INIT;
    struct cart_err err;
    json_t *meta = json_pack("{s:s}", "format", "pt");
    need(cart_st_build(&b, t, n, meta, &err), &err);
    write_file(j, name, b.data, b.len);
    for (size_t i = 0; i < n; i++)
        set(map, t[i].name, json_string(name));
    json_decref(meta);
    cart_buf_release(&b);
}

static void write_weights(const struct job *j)
{
    size_t n = cart_gguf_n_tensors(j->g), k = 0, shards = j->form->shards;
    struct cart_st_tensor *t = calloc(n + 1, sizeof *t);
    char(*names)[96] = calloc(n + 1, sizeof *names);
    json_t *map = json_object();
    for (size_t i = 0; i < n; i++) {
        const struct cart_gguf_tensor *g = cart_gguf_tensor_at(j->g, i);
        if (g->name.len == 17 && memcmp(g->name.data, "rope_freqs.weight", 17) == 0)
            continue;
        t[k] = tensor_of(j, g, names[k]);
        k++;
    }
    if (j->form->head_as_well) {
        t[k] = tensor_of(j, cart_gguf_tensor(j->g, "token_embd.weight"), names[k]);
        t[k++].name = "lm_head.weight";
    }
    for (size_t s = 0; s < shards; s++) {
        char name[64];
        snprintf(name, sizeof name, "model-%05zu-of-%05zu.safetensors", s + 1, shards);
        size_t from = k * s / shards, to = k * (s + 1) / shards;
        write_shard(j, shards == 1 ? "model.safetensors" : name, t + from, to - from, map);
    }
    if (shards > 1)
        write_json(j, "model.safetensors.index.json",
                   json_pack("{s:{}, s:O}", "metadata", "weight_map", map));
    json_decref(map);
    for (size_t i = 0; i < k; i++)
        free((void *)(uintptr_t)t[i].data);
    free(t);
    free(names);
}

void hub_write_model(const char *gguf, const char *dir, const struct hub_form *form)
{
    struct job j = {.dir = dir, .form = form};
    struct cart_gguf *g = NULL;
    struct cart_gguf_str arch, *tokens = NULL;
    struct cart_err err;
    size_t n = 0;
    need(cart_gguf_open(&g, gguf, &err), &err);
    j.g = g;
    need(cart_gguf_string(g, "general.architecture", &arch, &err), &err);
    snprintf(j.arch, sizeof j.arch, "%.*s", (int)arch.len, arch.data);
    if (mkdir(dir, 0777) < 0 && errno != EEXIST) {
        perror(dir);
        exit(5);
    }
    tokens = strings_of(g, "tokenizer.ggml.tokens", &n);
    write_config(&j);
    write_tokenizer(&j, tokens, n);
    write_tokenizer_config(&j, tokens);
    write_weights(&j);
    free(tokens);
    cart_gguf_close(g);
}
