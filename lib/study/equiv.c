#include "study/equiv.h"

#include "base/io.h"
#include "model/forward.h"
#include "model/head.h"
#include "study/init.h"
#include "token/chat.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define LOGIT_ROWS ((size_t)16) /* rows of both sides compared at a time */

/* One side: the stream, its suffix rows after the final norm, and what it decodes. */
struct side {
    struct cart_kv kv;
    struct cart_kv_tail tail;
    struct cart_workspace *ws;
    float *hidden;    /* [T, D] */
    uint32_t *greedy; /* [steps] */
};

static int side_init(struct side *s, const struct cart_model *m, size_t before, size_t cap,
                     size_t ws_tokens, size_t T, size_t steps, struct cart_err *err)
{
    memset(s, 0, sizeof *s);
    int r = cart_kv_tail_init(&s->tail, m, CART_F32, before, cap, err);
    if (r < 0)
        return r;
    s->kv.tail = &s->tail;
    s->hidden = calloc(T * m->D, sizeof *s->hidden);
    s->greedy = calloc(steps ? steps : 1, sizeof *s->greedy);
    if (!s->hidden || !s->greedy)
        return cart_err_memory(err, "suffix rows", T * m->D * sizeof *s->hidden);
    return cart_workspace_new(&s->ws, m, ws_tokens, err);
}

static void side_release(struct side *s)
{
    cart_workspace_free(s->ws);
    free(s->hidden);
    free(s->greedy);
    cart_kv_tail_release(&s->tail);
}

/* Feeds T ids; hidden rows of the last n_want go to out [n_want, D]. */
static int feed(struct side *s, const struct cart_model *m, const uint32_t *ids, size_t T,
                size_t n_want, float *out, struct cart_pool *pool, struct cart_err *err)
{
    size_t *want = malloc((n_want ? n_want : 1) * sizeof *want);
    if (!want)
        return cart_err_memory(err, "suffix", n_want * sizeof *want);
    for (size_t i = 0; i < n_want; i++)
        want[i] = T - n_want + i;
    struct cart_span span = {ids, T, s->kv, want, n_want};
    int r = cart_forward(m, s->ws, &span, 1, out, pool, err);
    free(want);
    return r;
}

/* Greedy tokens after the suffix. logits [V] is scratch. */
static int decode(struct side *s, const struct cart_model *m, size_t T, size_t steps, float *logits,
                  struct cart_pool *pool, struct cart_err *err)
{
    float *row = malloc(m->D * sizeof *row);
    if (!row)
        return cart_err_memory(err, "row", m->D * sizeof *row);
    memcpy(row, s->hidden + (T - 1) * m->D, m->D * sizeof *row);
    int r = 0;
    for (size_t i = 0; i < steps && r == 0; i++) {
        cart_head_logits(m, row, 1, logits, pool);
        s->greedy[i] = cart_vocab_argmax(logits, m->V);
        if (i + 1 < steps)
            r = feed(s, m, &s->greedy[i], 1, 1, row, pool, err);
    }
    free(row);
    return r;
}

static size_t frozen_of(const struct cart_equiv_options *opt)
{
    return opt->p > 1 ? 1 : 0;
}

/* Saves the prefix's rows in a file without a name, so that nothing stays whatever happens, and
 * maps it as any cartridge. */
static int save_and_map(struct cart_cartridge **out, const struct cart_model *m,
                        const struct cart_corpus *corpus, const struct cart_equiv_options *opt,
                        const uint32_t *ids, bool in_turn, struct cart_pool *pool,
                        struct cart_err *err)
{
    struct cart_init init = {.recipe = NULL};
    struct cart_init_options io = {"corpus", opt->p, frozen_of(opt), 0, false};
    json_t *metadata = NULL;
    int fd = -1;
    int r = in_turn ? cart_init_make(&init, m, &io, corpus, pool, NULL, 0, err)
                    : cart_init_of_ids(&init, m, ids, opt->p, io.frozen, pool, err);
    if (r < 0)
        return r;
    if ((r = cart_init_describe(&metadata, m, corpus, &init, 0, init.recipe, NULL, err)) < 0 ||
        (r = cart_io_scratch(&fd, opt->dir, err)) < 0)
        goto out;
    static const char name[] = "the file of rows";
    if ((r = cart_cartridge_write(fd, name, m, init.rows.parts, init.rows.n_parts, io.frozen,
                                  metadata, NULL, 0, err)) == 0)
        r = cart_cartridge_open_fd(out, m, fd, name, NULL, NULL, 0, err);
out:
    if (fd >= 0)
        (void)close(fd);
    json_decref(metadata);
    cart_init_release(&init);
    return r;
}

/* The suffix behind the cartridge in pieces of 1, 7 and the rest. */
static int feed_pieces(struct side *s, const struct cart_model *m, const uint32_t *suffix, size_t T,
                       struct cart_pool *pool, struct cart_err *err)
{
    static const size_t lengths[] = {1, 7, SIZE_MAX};
    size_t done = 0;
    int r = 0;
    for (size_t i = 0; i < CART_COUNTOF(lengths) && done < T && r == 0; i++) {
        size_t n = T - done < lengths[i] ? T - done : lengths[i];
        r = feed(s, m, suffix + done, n, n, s->hidden + done * m->D, pool, err);
        done += n;
    }
    return r;
}

static int compare(struct cart_equiv_result *out, const struct cart_model *m, const struct side *a,
                   const struct side *b, size_t T, size_t steps, struct cart_pool *pool,
                   struct cart_err *err)
{
    float *la = malloc(LOGIT_ROWS * m->V * sizeof *la),
          *lb = malloc(LOGIT_ROWS * m->V * sizeof *lb);
    int r = 0;
    if (!la || !lb)
        r = cart_err_memory(err, "logits", 2 * LOGIT_ROWS * m->V * sizeof *la);
    double max = 0.0;
    for (size_t i = 0; i < T && r == 0; i += LOGIT_ROWS) {
        size_t n = T - i < LOGIT_ROWS ? T - i : LOGIT_ROWS;
        cart_head_logits(m, a->hidden + i * m->D, n, la, pool);
        cart_head_logits(m, b->hidden + i * m->D, n, lb, pool);
        for (size_t k = 0; k < n * m->V; k++) {
            double d = fabs((double)la[k] - (double)lb[k]);
            max = isnan(d) ? INFINITY : d > max ? d : max;
        }
    }
    free(la);
    free(lb);
    if (r < 0)
        return r;
    size_t agreed = 0;
    while (agreed < steps && a->greedy[agreed] == b->greedy[agreed])
        agreed++;
    *out = (struct cart_equiv_result){T, max, agreed};
    return 0;
}

static int run_sides(struct cart_equiv_result *out, const struct cart_model *m,
                     const struct cart_corpus *corpus, const struct cart_equiv_options *opt,
                     const struct cart_ids *ids, size_t T, bool in_turn, struct cart_pool *pool,
                     struct cart_err *err)
{
    struct side plain = {.ws = NULL}, behind = {.ws = NULL};
    struct cart_cartridge *c = NULL;
    const struct cart_kv_part *parts[2];
    float *logits = malloc(m->V * sizeof *logits);
    const uint32_t *suffix = ids->data + opt->p;
    int r = logits ? 0 : cart_err_memory(err, "logits", m->V * sizeof *logits);
    if (r < 0 ||
        (r = side_init(&plain, m, 0, ids->n + opt->steps, ids->n, T, opt->steps, err)) < 0 ||
        (r = side_init(&behind, m, opt->p, T + opt->steps, T, T, opt->steps, err)) < 0)
        goto out;
    if ((r = feed(&plain, m, ids->data, ids->n, T, plain.hidden, pool, err)) < 0 ||
        (r = decode(&plain, m, T, opt->steps, logits, pool, err)) < 0)
        goto out;
    if ((r = save_and_map(&c, m, corpus, opt, ids->data, in_turn, pool, err)) < 0)
        goto out;
    behind.kv.n_parts = cart_cartridge_parts((const struct cart_cartridge *const *)&c, 1, parts);
    behind.kv.parts = parts;
    if ((r = feed_pieces(&behind, m, suffix, T, pool, err)) < 0 ||
        (r = decode(&behind, m, T, opt->steps, logits, pool, err)) < 0)
        goto out;
    r = compare(out, m, &plain, &behind, T, opt->steps, pool, err);
out:
    cart_cartridge_close(c);
    side_release(&plain);
    side_release(&behind);
    free(logits);
    return r;
}

/* The ids of prefix and suffix, and what they are. */
struct layout {
    struct cart_ids ids; /* [p + T] */
    size_t T;            /* of the suffix */
    bool in_turn;        /* the prefix is a system turn; else p is too small for one */
};

static int lay_out(struct layout *l, const struct cart_model *m, const struct cart_corpus *corpus,
                   const struct cart_equiv_options *opt, struct cart_err *err)
{
    const struct cart_chat *chat;
    size_t n_open, n_close, n = corpus->tokens;
    int r = cart_model_chat(m, &chat, err);
    if (r < 0)
        return r;
    uint32_t *tokens = malloc((n ? n : 1) * sizeof *tokens);
    if (!tokens)
        return cart_err_memory(err, "corpus tokens", n * sizeof *tokens);
    cart_corpus_copy(corpus, 0, n, tokens);
    cart_chat_system_open(chat, &n_open);
    cart_chat_turn_close(chat, &n_close);
    l->in_turn = opt->p > n_open + n_close;
    size_t used = l->in_turn ? opt->p - n_open - n_close : opt->p;
    r = l->in_turn ? cart_init_ids(&l->ids, chat, tokens, n, opt->p, false, err)
                   : cart_ids_add(&l->ids, tokens, used < n ? used : n, err);
    if (r < 0)
        goto out;
    size_t left = used < n ? n - used : 0;
    l->T = left < opt->suffix_max ? left : opt->suffix_max;
    if (l->T == 0)
        r = cart_err_set(err, CART_EUSAGE,
                         "p %zu takes all %zu tokens of the corpus: none is left to compare",
                         opt->p, n);
    else if (opt->p + l->T > m->context || opt->steps > m->context - opt->p - l->T)
        r = cart_err_set(
            err, CART_EUSAGE,
            "%zu rows, %zu suffix tokens and %zu steps exceed the model's context of %zu", opt->p,
            l->T, opt->steps, m->context);
    else
        r = cart_ids_add(&l->ids, tokens + used, l->T, err);
out:
    free(tokens);
    return r;
}

int cart_equiv_need(struct cart_equiv_need *out, const struct cart_model *m,
                    const struct cart_corpus *corpus, const struct cart_equiv_options *opt,
                    struct cart_err *err)
{
    struct layout l = {.ids = CART_IDS_INIT};
    int r = lay_out(&l, m, corpus, opt, err);
    if (r == 0) {
        size_t n = l.ids.n, T = l.T;
        size_t sides = cart_kv_tail_bytes(m, CART_F32, 0, n + opt->steps) +
                       cart_kv_tail_bytes(m, CART_F32, opt->p, T + opt->steps) +
                       cart_workspace_bytes(m, n) + cart_workspace_bytes(m, T) +
                       2 * T * m->D * sizeof(float);
        size_t logits = 2 * LOGIT_ROWS * m->V * sizeof(float);
        /* The rows are made while both sides stand, and let go before logits are compared. */
        size_t making = cart_init_bytes(m, opt->p, frozen_of(opt));
        *out = (struct cart_equiv_need){.suffix = T,
                                        .memory = sides + (making > logits ? making : logits),
                                        .disk = opt->p * cart_kv_row_width(m) * sizeof(float),
                                        .reads = n + opt->p + T,
                                        .decodes = 2 * opt->steps};
    }
    cart_ids_release(&l.ids);
    return r;
}

int cart_equiv_run(struct cart_equiv_result *out, const struct cart_model *m,
                   const struct cart_corpus *corpus, const struct cart_equiv_options *opt,
                   struct cart_pool *pool, struct cart_err *err)
{
    struct layout l = {.ids = CART_IDS_INIT};
    int r = lay_out(&l, m, corpus, opt, err);
    if (r == 0)
        r = run_sides(out, m, corpus, opt, &l.ids, l.T, l.in_turn, pool, err);
    cart_ids_release(&l.ids);
    return r;
}
