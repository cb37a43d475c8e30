#include "helper/gguf_write.h"

#include "helper/bench_args.h"

#include "base/rng.h"
#include "tensor/dtype.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* What a writer appends to, and how much of it. */
struct out {
    FILE *f;
    const char *path;
    size_t at;
};

static void put(struct out *o, const void *p, size_t n)
{
    if (fwrite(p, 1, n, o->f) != n)
        bench_die(5, "%s: %s", o->path, strerror(errno));
    o->at += n;
}

static void put_u32(struct out *o, uint32_t v)
{
    put(o, &v, sizeof v);
}

static void put_u64(struct out *o, uint64_t v)
{
    put(o, &v, sizeof v);
}

static void put_str(struct out *o, const char *s, size_t n)
{
    put_u64(o, n);
    put(o, s, n);
}

static void key(struct out *o, const char *name, uint32_t type)
{
    put_str(o, name, strlen(name));
    put_u32(o, type);
}

static void key_u32(struct out *o, const char *name, uint32_t v)
{
    key(o, name, 4);
    put_u32(o, v);
}

static void key_f32(struct out *o, const char *name, float v)
{
    key(o, name, 6);
    put(o, &v, sizeof v);
}

static void key_str(struct out *o, const char *name, const char *v)
{
    key(o, name, 8);
    put_str(o, v, strlen(v));
}

static void arch_u32(struct out *o, const struct gguf_shape *s, const char *name, size_t v)
{
    char full[96];
    snprintf(full, sizeof full, "%s.%s", s->arch, name);
    key_u32(o, full, (uint32_t)v);
}

/* The printable alphabet of byte-level BPE: byte b as UTF-8 in out; returns its length. */
static size_t byte_symbol(unsigned b, char out[2])
{
    bool plain = (b >= 33 && b <= 126) || (b >= 161 && b <= 172) || b >= 174;
    unsigned c = b;
    if (!plain) {
        c = 256;
        for (unsigned i = 0; i < b; i++)
            if (!((i >= 33 && i <= 126) || (i >= 161 && i <= 172) || i >= 174))
                c++;
    }
    if (c < 128) {
        out[0] = (char)c;
        return 1;
    }
    out[0] = (char)(0xc0 | c >> 6);
    out[1] = (char)(0x80 | (c & 63));
    return 2;
}

static const char *const controls[] = {"<|endoftext|>", "<|im_start|>", "<|im_end|>"};

static void vocabulary(struct out *o, const struct gguf_shape *s)
{
    key_str(o, "tokenizer.ggml.model", "gpt2");
    key_str(o, "tokenizer.ggml.pre", strcmp(s->arch, "llama") == 0 ? "smollm" : "qwen2");
    key(o, "tokenizer.ggml.tokens", 9);
    put_u32(o, 8);
    put_u64(o, s->V);
    for (size_t i = 0; i < s->V; i++) {
        char word[32];
        size_t n = 0;
        if (i < 256)
            n = byte_symbol((unsigned)i, word);
        else if (i == 256)
            n = (size_t)snprintf(word, sizeof word, "ab");
        else if (i + 3 >= s->V)
            n = (size_t)snprintf(word, sizeof word, "%s", controls[i + 3 - s->V]);
        else
            n = (size_t)snprintf(word, sizeof word, "word%zu", i);
        put_str(o, word, n);
    }
    key(o, "tokenizer.ggml.token_type", 9);
    put_u32(o, 5);
    put_u64(o, s->V);
    for (size_t i = 0; i < s->V; i++)
        put_u32(o, i + 3 >= s->V ? 3 : 1);

    key(o, "tokenizer.ggml.merges", 9);
    put_u32(o, 8);
    put_u64(o, 1);
    put_str(o, "a b", 3);
    key_u32(o, "tokenizer.ggml.bos_token_id", (uint32_t)(s->V - 2));
    key_u32(o, "tokenizer.ggml.eos_token_id", (uint32_t)(s->V - 1));
    key_str(o, "tokenizer.chat_template",
            "{% for message in messages %}{{'<|im_start|>' + message['role'] + '\\n' + "
            "message['content'] + '<|im_end|>' + "
            "'\\n'}}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% "
            "endif %}");
}

struct tensor {
    char name[64];
    size_t K, N;
    int dtype;
};

static size_t tensors_of(const struct gguf_shape *s, struct tensor *t)
{
    size_t n = 0, q = s->H * s->DH, k = s->HK * s->DH;
    bool norms = strcmp(s->arch, "qwen3") == 0, biases = strcmp(s->arch, "qwen2") == 0;
    t[n++] = (struct tensor){"token_embd.weight", s->D, s->V, s->dtype};
    t[n++] = (struct tensor){"output_norm.weight", s->D, 1, CART_F32};
    if (!s->tied)
        t[n++] = (struct tensor){"output.weight", s->D, s->V, s->dtype};
    for (size_t l = 0; l < s->L; l++) {
        const struct {
            const char *name;
            size_t K, N;
            int dtype;
            bool here;
        } rows[] = {{"attn_norm.weight", s->D, 1, CART_F32, true},
                    {"attn_q.weight", s->D, q, s->dtype, true},
                    {"attn_k.weight", s->D, k, s->dtype, true},
                    {"attn_v.weight", s->D, k, s->dtype, true},
                    {"attn_output.weight", q, s->D, s->dtype, true},
                    {"ffn_norm.weight", s->D, 1, CART_F32, true},
                    {"ffn_gate.weight", s->D, s->F, s->dtype, true},
                    {"ffn_up.weight", s->D, s->F, s->dtype, true},
                    {"ffn_down.weight", s->F, s->D, s->dtype, true},
                    {"attn_q_norm.weight", s->DH, 1, CART_F32, norms},
                    {"attn_k_norm.weight", s->DH, 1, CART_F32, norms},
                    {"attn_q.bias", q, 1, CART_F32, biases},
                    {"attn_k.bias", k, 1, CART_F32, biases},
                    {"attn_v.bias", k, 1, CART_F32, biases}};
        for (size_t i = 0; i < CART_COUNTOF(rows); i++) {
            if (!rows[i].here)
                continue;
            snprintf(t[n].name, sizeof t[n].name, "blk.%zu.%s", l, rows[i].name);
            t[n].K = rows[i].K;
            t[n].N = rows[i].N;
            t[n++].dtype = rows[i].dtype;
        }
    }
    return n;
}

static size_t tensor_bytes(const struct tensor *t)
{
    const struct cart_dtype_info *d = cart_dtype_info(t->dtype);
    return t->K / d->block * d->bytes * t->N;
}

/* Random blocks whose scales are small finite f16 numbers: the bytes that are no scale may hold
 * anything. */
static void random_block(int dtype, unsigned char *b, size_t bytes, uint64_t r)
{
    static const struct {
        int dtype;
        size_t at[2];
        size_t n;
    } scales[] = {{CART_Q8_0, {0}, 1},    {CART_Q4_0, {0}, 1},    {CART_Q4_1, {0, 2}, 2},
                  {CART_Q5_0, {0}, 1},    {CART_Q5_1, {0, 2}, 2}, {CART_Q4_K, {0, 2}, 2},
                  {CART_Q5_K, {0, 2}, 2}, {CART_Q6_K, {208}, 1},  {CART_Q2_K, {80, 82}, 2},
                  {CART_Q3_K, {108}, 1},  {CART_IQ4_NL, {0}, 1},  {CART_IQ4_XS, {0}, 1}};
    for (size_t i = 0; i < bytes; i++) {
        r = r * 6364136223846793005u + 1442695040888963407u;
        b[i] = (unsigned char)(r >> 56);
    }
    for (size_t i = 0; i < CART_COUNTOF(scales); i++)
        for (size_t j = 0; scales[i].dtype == dtype && j < scales[i].n; j++) {
            uint16_t h = cart_f16_from_f32((j ? -1e-3f : 1e-3f) / (bytes > 100 ? 32.0f : 4.0f));
            memcpy(b + scales[i].at[j], &h, sizeof h);
        }
    if (dtype == CART_MXFP4)
        b[0] = (unsigned char)(118 + b[0] % 4); /* the scale is 2^(b[0] - 127) */
}

static void tensor_data(struct out *o, const struct tensor *t, uint64_t seed, size_t index)
{
    const struct cart_dtype_info *d = cart_dtype_info(t->dtype);
    size_t row = t->K / d->block * d->bytes;
    bool norm = strstr(t->name, "norm") != NULL;
    unsigned char *buf = malloc(row);
    for (size_t n = 0; n < t->N; n++) {
        uint64_t r = ((uint64_t)cart_rng_u32(seed, index, CART_RNG_TEST, (uint32_t)n) << 32) | n;
        for (size_t i = 0; i < t->K / d->block; i++) {
            unsigned char *b = buf + i * d->bytes;
            r = r * 6364136223846793005u + 1442695040888963407u;
            float x = (float)(int32_t)(r >> 32) * 0x1p-31f * 0.05f;
            if (norm)
                x = 1.0f + 4.0f * x;
            uint16_t h = t->dtype == CART_F16 ? cart_f16_from_f32(x) : cart_bf16_from_f32(x);
            if (t->dtype == CART_F32)
                memcpy(b, &x, sizeof x);
            else if (t->dtype == CART_F16 || t->dtype == CART_BF16)
                memcpy(b, &h, sizeof h);
            else
                random_block(t->dtype, b, d->bytes, r);
        }
        put(o, buf, row);
    }
    free(buf);
}

static void pad(struct out *o)
{
    static const char zero[32];
    if (o->at % 32)
        put(o, zero, 32 - o->at % 32);
}

void gguf_write_model(const char *path, const struct gguf_shape *s)
{
    struct out o = {fopen(path, "wb"), path, 0};
    struct tensor *t = calloc(3 + 14 * s->L, sizeof *t);
    if (!o.f || !t)
        bench_die(5, "%s: %s", path, strerror(errno));
    size_t n = tensors_of(s, t), at = 0;
    put(&o, "GGUF", 4);
    put_u32(&o, 3);
    put_u64(&o, n);
    put_u64(&o, 19);
    key_str(&o, "general.architecture", s->arch);
    char name[96];
    arch_u32(&o, s, "block_count", s->L);
    arch_u32(&o, s, "context_length", s->context);
    arch_u32(&o, s, "embedding_length", s->D);
    arch_u32(&o, s, "feed_forward_length", s->F);
    arch_u32(&o, s, "attention.head_count", s->H);
    arch_u32(&o, s, "attention.head_count_kv", s->HK);
    arch_u32(&o, s, "attention.key_length", s->DH);
    arch_u32(&o, s, "attention.value_length", s->DH);
    snprintf(name, sizeof name, "%s.attention.layer_norm_rms_epsilon", s->arch);
    key_f32(&o, name, 1e-6f);
    snprintf(name, sizeof name, "%s.rope.freq_base", s->arch);
    key_f32(&o, name, (float)s->rope_base);
    vocabulary(&o, s);
    for (size_t i = 0; i < n; i++) {
        put_str(&o, t[i].name, strlen(t[i].name));
        put_u32(&o, t[i].N == 1 ? 1 : 2);
        put_u64(&o, t[i].K);
        if (t[i].N != 1)
            put_u64(&o, t[i].N);
        put_u32(&o, (uint32_t)t[i].dtype);
        put_u64(&o, at);
        at += (tensor_bytes(&t[i]) + 31) / 32 * 32;
    }
    for (size_t i = 0; i < n; i++) {
        pad(&o);
        tensor_data(&o, &t[i], s->seed, i);
    }
    pad(&o);
    free(t);
    if (fclose(o.f) != 0)
        bench_die(5, "%s: %s", path, strerror(errno));
}
