#include "study/init.h"

#include "base/hash.h"
#include "base/io.h"
#include "format/text.h"
#include "base/rng.h"
#include "base/sniff.h"
#include "token/chat.h"
#include "study/kernels.h"

#include <math.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define PREFILL_TOKENS ((size_t)512)
#define TEXT_LIMIT ((size_t)1 << 30)

enum cart_init_kind cart_init_kind_of(const char *init)
{
    if (!init || strcmp(init, "spread") == 0)
        return CART_INIT_SPREAD;
    if (strcmp(init, "corpus") == 0)
        return CART_INIT_CORPUS;
    return strcmp(init, "random") == 0 ? CART_INIT_RANDOM : CART_INIT_FILE;
}

int cart_init_ids(struct cart_ids *out, const struct cart_chat *chat, const uint32_t *tokens,
                  size_t n, size_t p, bool spread, struct cart_err *err)
{
    size_t n_open, n_close;
    const uint32_t *open = cart_chat_system_open(chat, &n_open);
    const uint32_t *close = cart_chat_turn_close(chat, &n_close);
    size_t wrapper = n_open + n_close;
    if (p <= wrapper || p - wrapper > n)
        return cart_err_set(err, CART_EUSAGE,
                            "p %zu: expected %zu to %zu (a text of %zu tokens in a turn of %zu)", p,
                            wrapper + 1, wrapper + n, n, wrapper);
    size_t body = p - wrapper;
    size_t pieces = spread ? (body + CART_INIT_PIECE - 1) / CART_INIT_PIECE : 1;
    size_t length = spread ? CART_INIT_PIECE : body;
    size_t slack = n - body;
    int r = cart_ids_add(out, open, n_open, err);
    for (size_t i = 0; i < pieces && r == 0; i++) {
        size_t done = i * length;
        size_t take = body - done < length ? body - done : length;
        /* Both factors are far below 2^32: a corpus is limited by its records, pieces by p. */
        size_t gap = pieces > 1 ? (size_t)((uint64_t)slack * i / (pieces - 1)) : 0;
        r = cart_ids_add(out, tokens + done + gap, take, err);
    }
    return r < 0 ? r : cart_ids_add(out, close, n_close, err);
}

int cart_init_prefill(struct cart_kv_tail *tail, const struct cart_model *m, const uint32_t *ids,
                      size_t n, struct cart_pool *pool, struct cart_err *err)
{
    struct cart_workspace *ws = NULL;
    int r = cart_workspace_new(&ws, m, n < PREFILL_TOKENS ? n : PREFILL_TOKENS, err);
    if (r < 0)
        return r;
    if ((r = cart_kv_tail_init(tail, m, CART_F32, 0, n, err)) == 0) {
        struct cart_span span = {.ids = ids, .T = n, .kv = {NULL, 0, tail}};
        if ((r = cart_forward(m, ws, &span, 1, NULL, pool, err)) < 0)
            cart_kv_tail_release(tail);
    }
    cart_workspace_free(ws);
    return r;
}

size_t cart_init_prefill_bytes(const struct cart_model *m, size_t n)
{
    return cart_kv_tail_bytes(m, CART_F32, 0, n) +
           cart_workspace_bytes(m, n < PREFILL_TOKENS ? n : PREFILL_TOKENS);
}

size_t cart_init_bytes(const struct cart_model *m, size_t p, size_t frozen)
{
    return cart_trainable_bytes(m, p, frozen) + cart_init_prefill_bytes(m, p);
}

static int set_from_ids(struct cart_trainable *t, const struct cart_model *m, const uint32_t *ids,
                        size_t n, struct cart_pool *pool, struct cart_err *err)
{
    struct cart_kv_tail tail;
    struct cart_kv_part part;
    int r = cart_init_prefill(&tail, m, ids, n, pool, err);
    if (r < 0)
        return r;
    struct cart_kv_layer *layers = calloc(m->L, sizeof *layers);
    if (layers) {
        cart_kv_part_of_tail(&part, layers, m, &tail, 0, n);
        cart_trainable_set(t, m, &part, 1);
    } else {
        r = cart_err_memory(err, "layers", m->L * sizeof *layers);
    }
    free(layers);
    cart_kv_tail_release(&tail);
    return r;
}

/* p as asked, or the default where the text has room for it. */
static size_t choose_p(size_t p, const struct cart_chat *chat, size_t n)
{
    size_t n_open, n_close;
    cart_chat_system_open(chat, &n_open);
    cart_chat_turn_close(chat, &n_close);
    size_t most = n + n_open + n_close;
    return p ? p : most < CART_INIT_DEFAULT_P ? most : CART_INIT_DEFAULT_P;
}

static int rows_of_text(struct cart_init *out, const struct cart_model *m,
                        const struct cart_init_options *opt, const uint32_t *tokens, size_t n,
                        bool spread, struct cart_pool *pool, struct cart_err *err)
{
    const struct cart_chat *chat;
    struct cart_ids ids = CART_IDS_INIT;
    int r = cart_model_chat(m, &chat, err);
    if (r < 0)
        return r;
    size_t p = choose_p(opt->p, chat, n);
    if ((r = cart_init_ids(&ids, chat, tokens, n, p, spread, err)) == 0 &&
        (r = cart_trainable_init(&out->rows, m, p, opt->frozen, err)) == 0)
        r = set_from_ids(&out->rows, m, ids.data, ids.n, pool, err);
    cart_ids_release(&ids);
    return r;
}

static int rows_of_corpus(struct cart_init *out, const struct cart_model *m,
                          const struct cart_init_options *opt, const struct cart_corpus *corpus,
                          bool spread, struct cart_pool *pool, struct cart_err *err)
{
    uint32_t *tokens = malloc((corpus->tokens ? corpus->tokens : 1) * sizeof *tokens);
    if (!tokens)
        return cart_err_memory(err, "corpus tokens", corpus->tokens * sizeof *tokens);
    cart_corpus_copy(corpus, 0, corpus->tokens, tokens);
    int r = rows_of_text(out, m, opt, tokens, corpus->tokens, spread, pool, err);
    free(tokens);
    return r;
}

/* Root mean squares of the keys and the values of layer l, of its rows from the second on; of the
 * first where there is no other. k and v [HK, DH] are scratch. */
static void deviations(double out[2], const struct cart_kv_part *part, const struct cart_model *m,
                       size_t l, float *k, float *v)
{
    size_t width = cart_layer_kv_width(&m->layers[l]), first = part->rows > 1 ? 1 : 0;
    double sum[2] = {0};
    for (size_t row = first; row < part->rows; row++) {
        cart_kv_part_row(part, m, l, row, k, v);
        for (size_t i = 0; i < width; i++) {
            sum[0] += (double)k[i] * k[i];
            sum[1] += (double)v[i] * v[i];
        }
    }
    for (int i = 0; i < 2; i++)
        out[i] = sqrt(sum[i] / (double)((part->rows - first) * width));
}

static void fill_random(float *row, size_t r, size_t width, double scale, uint64_t seed,
                        size_t stream)
{
    for (size_t i = 0; i < width; i++)
        row[i] = (float)(scale *
                         cart_rng_normal(seed, stream, CART_RNG_INIT, (uint32_t)(r * width + i)));
}

/* The first row is that of the text, the others are as large as its others. */
static void fill_like(struct cart_trainable *t, const struct cart_model *m,
                      const struct cart_kv_part *text, uint64_t seed)
{
    for (size_t l = 0; l < m->L; l++) {
        size_t width = cart_layer_kv_width(&m->layers[l]);
        float *k = cart_trainable_k(t, m, l, 0), *v = cart_trainable_v(t, m, l, 0);
        double scale[2];
        deviations(scale, text, m, l, k, v);
        cart_kv_part_row(text, m, l, 0, k, v);
        for (size_t row = 1; row < t->p; row++) {
            fill_random(cart_trainable_k(t, m, l, row), row, width, scale[0], seed, 2 * l);
            fill_random(cart_trainable_v(t, m, l, row), row, width, scale[1], seed, 2 * l + 1);
        }
    }
}

static int rows_at_random(struct cart_init *out, const struct cart_model *m,
                          const struct cart_init_options *opt, struct cart_pool *pool,
                          struct cart_err *err)
{
    const struct cart_chat *chat;
    struct cart_ids ids = CART_IDS_INIT;
    struct cart_kv_tail tail = {0};
    struct cart_kv_part part;
    struct cart_kv_layer *layers = calloc(m->L, sizeof *layers);
    size_t n_open, n_close, p = opt->p ? opt->p : CART_INIT_DEFAULT_P;
    int r = layers ? 0 : cart_err_memory(err, "layers", m->L * sizeof *layers);
    if (r < 0 || (r = cart_model_chat(m, &chat, err)) < 0 ||
        (r = cart_trainable_init(&out->rows, m, p, opt->frozen, err)) < 0)
        goto out;
    const uint32_t *open = cart_chat_system_open(chat, &n_open);
    const uint32_t *close = cart_chat_turn_close(chat, &n_close);
    if ((r = cart_ids_add(&ids, open, n_open, err)) == 0 &&
        (r = cart_ids_add(&ids, close, n_close, err)) == 0 &&
        (r = cart_init_prefill(&tail, m, ids.data, ids.n, pool, err)) == 0) {
        cart_kv_part_of_tail(&part, layers, m, &tail, 0, ids.n);
        fill_like(&out->rows, m, &part, opt->seed);
        cart_kv_tail_release(&tail);
    }
out:
    cart_ids_release(&ids);
    free(layers);
    return r;
}

/* A file that was opened once: all that is known of it is of the same bytes, whatever has its name
 * meanwhile. */
struct source {
    int fd;                /* -1: a pipe, read whole */
    struct cart_map map;   /* of fd */
    struct cart_buf piped; /* of a pipe */
    const void *bytes;     /* [n] of the one or the other */
    size_t n;
};

static int rows_of_cartridge(struct cart_init *out, const struct cart_model *m,
                             const struct cart_init_options *opt, const struct source *s,
                             char *warning, size_t warning_cap, struct cart_err *err)
{
    struct cart_cartridge *c;
    struct cart_cartridge_options co = {.allow_other_weights = opt->allow_other_weights};
    int r = cart_cartridge_open_fd(&c, m, s->fd, opt->init, &co, warning, warning_cap, err);
    if (r < 0)
        return r;
    if (opt->p && opt->p != c->p)
        r = cart_err_set(err, CART_EUSAGE, "p %zu: %s has %zu rows", opt->p, opt->init, c->p);
    else if (!(out->said = cart_json_copy(c->metadata)))
        r = cart_err_memory(err, "metadata", 0);
    else if ((r = cart_trainable_init(&out->rows, m, c->p, opt->frozen, err)) == 0)
        cart_trainable_set(&out->rows, m, c->parts, c->n_parts);
    out->steps = c->steps;
    out->first_position = c->first_position;
    cart_cartridge_close(c);
    return r;
}

static int rows_of_stream(struct cart_init *out, const struct cart_model *m,
                          const struct cart_init_options *opt, const struct source *s,
                          struct cart_pool *pool, struct cart_err *err)
{
    unsigned char first[CART_SNIFF_BYTES];
    struct cart_stream_reader *in = NULL;
    struct cart_corpus corpus = CART_CORPUS_INIT;
    int r = cart_sniff_read(s->fd, first, opt->init, err);
    if (r >= 0)
        r = cart_stream_open_ahead(&in, s->fd, opt->init, first, (size_t)r, "tokens", err);
    if (r == 0 && (r = cart_corpus_take(&corpus, in, m, err)) == 0 &&
        (r = cart_corpus_digest(&corpus, out->corpus, err)) == 0)
        r = rows_of_corpus(out, m, opt, &corpus, false, pool, err);
    cart_corpus_release(&corpus);
    cart_stream_close(in);
    return r;
}

static int rows_of_plain(struct cart_init *out, const struct cart_model *m,
                         const struct cart_init_options *opt, const void *bytes, size_t n,
                         struct cart_pool *pool, struct cart_err *err)
{
    struct cart_ids tokens = CART_IDS_INIT;
    const char *text;
    size_t n_text;
    if (n > TEXT_LIMIT)
        return cart_err_set(err, CART_EFORMAT, "text: expected at most %zu bytes, found %zu",
                            TEXT_LIMIT, n);
    int r = cart_text_take(&text, &n_text, n ? bytes : "", n, "text", err);
    if (r == 0)
        r = cart_tokenizer_encode(cart_model_tokenizer(m), text, n_text, 0, &tokens, NULL, err);
    if (r == 0)
        r = rows_of_text(out, m, opt, tokens.data, tokens.n, false, pool, err);
    cart_ids_release(&tokens);
    return r;
}

static int open_source(struct source *s, const char *path, struct cart_err *err)
{
    struct stat st = {.st_mode = 0};
    int r;
    if (stat(path, &st) < 0 && errno == ENOENT)
        return cart_err_set(
            err, CART_EUSAGE,
            "--init %s: expected spread, corpus, random or a file, found no such file", path);
    if (S_ISFIFO(st.st_mode)) {
        r = cart_io_slurp(path, TEXT_LIMIT, &s->piped, err);
        s->bytes = s->piped.data;
        s->n = s->piped.len;
    } else if ((s->fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK)) < 0) {
        r = cart_err_sys(err, "%s", path);
    } else {
        r = cart_map_fd(&s->map, s->fd, path, err);
        s->bytes = s->map.data;
        s->n = s->map.size;
    }
    return r < 0 ? cart_err_wrap(err, r, "--init") : 0;
}

static void release_source(struct source *s)
{
    cart_map_release(&s->map);
    cart_buf_release(&s->piped);
    if (s->fd >= 0)
        (void)close(s->fd);
}

/* digest: of the file, but of the corpus that a stream of it holds, however it is compressed. */
static int rows_of_file(struct cart_init *out, const struct cart_model *m,
                        const struct cart_init_options *opt, const char **kind, char digest[33],
                        struct cart_pool *pool, char *warning, size_t warning_cap,
                        struct cart_err *err)
{
    struct source s = {.fd = -1, .piped = CART_BUF_INIT};
    unsigned char hash[16];
    int r = open_source(&s, opt->init, err);
    if (r < 0)
        goto out;
    enum cart_sniff what = cart_sniff(s.bytes, s.n < CART_SNIFF_BYTES ? s.n : CART_SNIFF_BYTES);
    cart_hash_bytes(s.n ? s.bytes : "", s.n, hash);
    cart_hex(digest, hash, sizeof hash);
    out->of_file = true;
    if (s.fd < 0 && (what == CART_SNIFF_SAFETENSORS || what == CART_SNIFF_STREAM)) {
        r = cart_err_set(err, CART_EUSAGE, "expected a text through a pipe, found %s",
                         cart_sniff_name(what));
    } else if (what == CART_SNIFF_SAFETENSORS) {
        *kind = "cartridge";
        r = rows_of_cartridge(out, m, opt, &s, warning, warning_cap, err);
    } else if (what == CART_SNIFF_STREAM) {
        *kind = "tokens";
        r = rows_of_stream(out, m, opt, &s, pool, err);
        memcpy(digest, out->corpus, sizeof out->corpus);
    } else {
        *kind = "text";
        r = rows_of_plain(out, m, opt, s.bytes, s.n, pool, err);
    }
    /* Many messages begin with the name already. */
    size_t n_name = strlen(opt->init);
    if (r < 0 && err && strncmp(err->msg, opt->init, n_name) == 0 && err->msg[n_name] == ':')
        cart_err_wrap(err, r, "--init");
    else if (r < 0)
        cart_err_wrap(err, r, "--init %s", opt->init);
out:
    release_source(&s);
    return r;
}

static json_t *recipe_of(const char *kind, const struct cart_init *i,
                         const struct cart_init_options *opt, const char *digest)
{
    json_t *o = json_pack("{s:s, s:I, s:I}", "init", kind, "p", (json_int_t)i->rows.p, "frozen",
                          (json_int_t)i->rows.frozen);
    int bad = 0;
    if (o && digest[0])
        bad = json_object_set_new(o, "init_digest", json_string(digest));
    if (o && strcmp(kind, "random") == 0)
        bad = json_object_set_new(o, "init_seed", json_integer((json_int_t)opt->seed));
    if (!bad)
        return cart_kernels_mark(o);
    json_decref(o);
    return NULL;
}

int cart_init_make(struct cart_init *out, const struct cart_model *m,
                   const struct cart_init_options *opt, const struct cart_corpus *corpus,
                   struct cart_pool *pool, char *warning, size_t warning_cap, struct cart_err *err)
{
    struct cart_init made = {.recipe = NULL};
    char digest[33] = "";
    const char *kind = opt->init ? opt->init : "spread";
    int r = 0;
    if (warning && warning_cap > 0)
        warning[0] = '\0';
    switch (cart_init_kind_of(opt->init)) {
    case CART_INIT_SPREAD:
    case CART_INIT_CORPUS:
        r = rows_of_corpus(&made, m, opt, corpus, cart_init_kind_of(opt->init) == CART_INIT_SPREAD,
                           pool, err);
        break;
    case CART_INIT_RANDOM:
        r = rows_at_random(&made, m, opt, pool, err);
        break;
    case CART_INIT_FILE:
        r = rows_of_file(&made, m, opt, &kind, digest, pool, warning, warning_cap, err);
        break;
    }
    if (r == 0 && !(made.recipe = recipe_of(kind, &made, opt, digest)))
        r = cart_err_memory(err, "recipe", 0);
    if (r < 0) {
        cart_init_release(&made);
        return r;
    }
    *out = made;
    return 0;
}

void cart_init_release(struct cart_init *i)
{
    cart_trainable_release(&i->rows);
    json_decref(i->recipe);
    json_decref(i->said);
    i->recipe = i->said = NULL;
}

int cart_init_of_ids(struct cart_init *out, const struct cart_model *m, const uint32_t *ids,
                     size_t p, size_t frozen, struct cart_pool *pool, struct cart_err *err)
{
    static const struct cart_init_options none = {.p = 0};
    struct cart_init made = {.recipe = NULL};
    int r = cart_trainable_init(&made.rows, m, p, frozen, err);
    if (r == 0 && (r = set_from_ids(&made.rows, m, ids, p, pool, err)) == 0 &&
        !(made.recipe = recipe_of("ids", &made, &none, "")))
        r = cart_err_memory(err, "recipe", 0);
    if (r < 0) {
        cart_init_release(&made);
        return r;
    }
    *out = made;
    return 0;
}

int cart_init_remake(struct cart_init *out, const struct cart_model *m, const json_t *recipe,
                     const struct cart_corpus *corpus, struct cart_pool *pool, struct cart_err *err)
{
    const char *kind = "";
    uint64_t p = 0, frozen = 0, seed = 0;
    int r;
    if ((r = cart_json_string(recipe, "init", &kind, "recipe", err)) < 0 ||
        (r = cart_json_u64(recipe, "p", CART_CARTRIDGE_MAX_P, &p, "recipe", err)) < 0 ||
        (r = cart_json_u64(recipe, "frozen", CART_CARTRIDGE_MAX_P, &frozen, "recipe", err)) < 0 ||
        (r = cart_json_u64_opt(recipe, "init_seed", INT64_MAX, &seed, "recipe", err)) < 0)
        return r;
    if (strcmp(kind, "spread") != 0 && strcmp(kind, "corpus") != 0 && strcmp(kind, "random") != 0)
        return cart_err_set(err, CART_EMATCH, "its first rows came from a file (%.20s)", kind);
    if ((r = cart_kernels_match(recipe, err)) < 0)
        return cart_err_wrap(err, r, "its first rows");
    struct cart_init_options opt = {kind, (size_t)p, (size_t)frozen, seed, false};
    return cart_init_make(out, m, &opt, corpus, pool, NULL, 0, err);
}

static int wrapper_text(struct cart_buf *b, const struct cart_model *m, const uint32_t *ids,
                        size_t n, struct cart_err *err)
{
    int r = cart_tokenizer_decode(cart_model_tokenizer(m), ids, n, true, b, err);
    return r < 0 ? r : cart_buf_add(b, "", 0, err);
}

/* What the cartridge says that the rows are of; otherwise for rows of other origin. */
static const char *said(const struct cart_init *i, const char *key, const char *otherwise)
{
    return i->said ? json_string_value(json_object_get(i->said, key)) : otherwise;
}

/* Rows that bf16 had a part in stay of bf16. */
static const char *precision_of(const struct cart_init *i, uint64_t steps)
{
    const char *before = said(i, "cart.precision", NULL);
    return before && (steps == 0 || strcmp(before, "bf16") == 0) ? before : NULL;
}

int cart_init_describe(json_t **out, const struct cart_model *m, const struct cart_corpus *corpus,
                       const struct cart_init *init, uint64_t steps, const json_t *recipe,
                       const json_t *history, struct cart_err *err)
{
    const struct cart_chat *chat;
    struct cart_buf open = CART_BUF_INIT, close = CART_BUF_INIT;
    char digest[33];
    size_t n_open, n_close;
    int r = cart_model_chat(m, &chat, err);
    if (r < 0)
        return r;
    const uint32_t *open_ids = cart_chat_system_open(chat, &n_open);
    const uint32_t *close_ids = cart_chat_turn_close(chat, &n_close);
    if ((r = wrapper_text(&open, m, open_ids, n_open, err)) == 0 &&
        (r = wrapper_text(&close, m, close_ids, n_close, err)) == 0 &&
        (r = cart_corpus_digest(corpus, digest, err)) == 0) {
        bool of_stream = steps > 0 || !init->of_file;
        struct cart_cartridge_about about = {
            .p = init->rows.p,
            .frozen = init->rows.frozen,
            .first_position = init->first_position,
            .steps = steps < INT64_MAX - init->steps ? init->steps + steps : INT64_MAX,
            .weights = steps == 0 ? said(init, "cart.weights", NULL) : NULL,
            .precision = precision_of(init, steps),
            .profile = said(init, "cart.profile", cart_chat_profile(chat)),
            .wrapper_open = said(init, "cart.wrapper_open", open.data),
            .wrapper_close = said(init, "cart.wrapper_close", close.data),
            .corpus = of_stream ? digest
                                : said(init, "cart.corpus", init->corpus[0] ? init->corpus : NULL),
            .recipe = recipe,
            .history = history};
        r = cart_cartridge_describe(out, m, &about, err);
    }
    cart_buf_release(&open);
    cart_buf_release(&close);
    return r;
}

int cart_init_draft(int64_t **out, size_t *n, const struct cart_corpus *corpus,
                    struct cart_err *err)
{
    size_t count = corpus->tokens, at = 0;
    int64_t *ids = malloc((count ? count : 1) * sizeof *ids);
    if (!ids)
        return cart_err_memory(err, "draft reference", count * sizeof *ids);
    for (size_t d = 0; d < corpus->n_docs; d++)
        for (size_t i = 0; i < corpus->docs[d].n; i++)
            ids[at++] = corpus->docs[d].tokens[i];
    *out = ids;
    *n = count;
    return 0;
}
