#include "study/plan.h"

#include "base/rng.h"
#include "model/model.h"
#include "study/sentence.h"
#include "token/chat.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

/* What may stand before token i of the corpus. */
enum { MARK_CHAR = 1, MARK_SENTENCE = 2 };

/* A stretch of one document that chunks may come from. */
struct piece {
    size_t doc, first, end;
    size_t before; /* tokens of the pieces before it */
};

struct pieces {
    struct piece *list;
    size_t n, cap, tokens;
};

struct cart_plan {
    const struct cart_corpus *corpus;
    struct cart_plan_options opt;
    size_t context; /* of the model */
    size_t wrapper; /* tokens around a text in its context turn */
    size_t room;    /* tokens beside a context turn */
    double held_weights[CART_SEEDS];
    unsigned char *marks;      /* [corpus tokens] */
    struct pieces train, held; /* held: the regions, empty where nothing is kept from training */
};

/* How far a chunk's edge moves to meet a sentence, in tokens, and at most a quarter of the chunk.
 */
#define SLACK ((size_t)48)
/* Tokens beside the limits: turns, opening words, a message tokenised anew, the instruction of bot
 * A. */
#define ROOM_FOR_TURNS ((size_t)96)

/* ---- marks ---- */

/* Where the white space after the last sentence or line begins; SIZE_MAX within a sentence. */
struct scan {
    size_t fresh, at;
};

/* Goes on to byte end of text. */
static void scan_to(struct scan *s, const struct cart_buf *text, size_t end)
{
    for (; s->at < end; s->at++) {
        char c = text->data[s->at];
        size_t after;

        if (c == '\n' && s->fresh == SIZE_MAX)
            s->fresh = s->at + 1;
        else if (cart_sentence_ends(text->data, text->len, s->at, &after))
            s->fresh = after;
        else if (!cart_sentence_space(c) && s->at >= s->fresh)
            s->fresh = SIZE_MAX; /* what stands before closes the sentence that has ended */
    }
}

/* text is scratch. */
static int mark_document(unsigned char *marks, const struct cart_doc *doc,
                         const struct cart_tokenizer *t, struct cart_buf *text,
                         struct cart_err *err)
{
    struct scan s = {0, 0};
    size_t first = 0;

    cart_buf_reset(text);
    for (size_t i = 0; i < doc->n; i++) {
        struct cart_text token = cart_tokenizer_bytes(t, doc->tokens[i]);
        int r = cart_buf_add(text, token.data, token.n, err);
        if (r < 0)
            return r;
    }
    for (size_t i = 0; i < doc->n; i++) {
        struct cart_text token = cart_tokenizer_bytes(t, doc->tokens[i]);

        if (token.n == 0 || ((unsigned char)token.data[0] & 0xC0) != 0x80)
            marks[i] |= MARK_CHAR;
        scan_to(&s, text, first);
        if (s.fresh <= first)
            marks[i] |= MARK_SENTENCE;
        first += token.n;
    }
    return 0;
}

static unsigned char mark_at(const struct cart_plan *p, size_t doc, size_t i)
{
    const struct cart_doc *d = &p->corpus->docs[doc];

    return i >= d->n ? MARK_CHAR | MARK_SENTENCE
           : i == 0  ? MARK_CHAR | MARK_SENTENCE
                     : p->marks[d->first + i];
}

/* The place at or before i where a sentence begins, if one is near (length: of the chunk) and not
 * below least; else the nearest character boundary above floor, else floor itself (a text that is
 * no UTF-8 may have none). */
static size_t align(const struct cart_plan *p, size_t doc, size_t i, size_t length, size_t least,
                    size_t floor)
{
    size_t slack = length / 4 < SLACK ? length / 4 : SLACK;

    for (size_t k = i; k >= least && i - k <= slack; k--) {
        if (mark_at(p, doc, k) & MARK_SENTENCE)
            return k;
        if (k == 0)
            break;
    }
    for (size_t k = i; k > floor; k--) {
        if (mark_at(p, doc, k) & MARK_CHAR)
            return k;
    }
    return floor;
}

/* ---- pieces ---- */

static int add_piece(struct pieces *ps, size_t doc, size_t first, size_t end, struct cart_err *err)
{
    if (first >= end)
        return 0;
    int r = cart_array_reserve(&ps->list, &ps->cap, ps->n + 1, sizeof *ps->list, err);
    if (r < 0)
        return r;
    ps->list[ps->n++] = (struct piece){doc, first, end, ps->tokens};
    ps->tokens += end - first;
    return 0;
}

/* The document that holds token at of the corpus. */
static size_t find_doc(const struct cart_corpus *c, size_t at)
{
    size_t lo = 0;
    size_t hi = c->n_docs;

    while (hi - lo > 1) {
        size_t mid = lo + (hi - lo) / 2;
        if (c->docs[mid].first <= at)
            lo = mid;
        else
            hi = mid;
    }
    return lo;
}

static int keep_regions(struct cart_plan *p, struct cart_err *err)
{
    const struct cart_corpus *c = p->corpus;
    size_t length = p->opt.chunk_max;
    size_t fit = c->tokens / 8 / length;
    size_t n = p->opt.held_out < fit ? p->opt.held_out : fit;

    for (size_t i = 0; i < n; i++) {
        /* The middle of the i-th of n equal parts; the products stay below 2^64 for any corpus in
         * memory. */
        size_t at = c->tokens / n * i + c->tokens / n / 2;
        size_t doc = find_doc(c, at);
        const struct cart_doc *d = &c->docs[doc];
        size_t local = at - d->first;
        size_t first = local > length / 2 ? local - length / 2 : 0;

        if (d->n <= length)
            first = 0;
        else if (first > d->n - length)
            first = d->n - length;
        size_t end = d->n < length ? d->n : first + length;
        first = align(p, doc, first, length, 0, 0);
        end = align(p, doc, end, length, end - (end - first) / 2, first + 1);
        int r = add_piece(&p->held, doc, first, end, err);
        if (r < 0)
            return r;
    }
    return 0;
}

static int collect_training(struct cart_plan *p, struct cart_err *err)
{
    size_t region = 0; /* regions ascend */
    int r = 0;

    for (size_t doc = 0; doc < p->corpus->n_docs && r == 0; doc++) {
        size_t at = 0;
        for (; region < p->held.n && p->held.list[region].doc == doc && r == 0; region++) {
            r = add_piece(&p->train, doc, at, p->held.list[region].first, err);
            at = p->held.list[region].end;
        }
        if (r == 0)
            r = add_piece(&p->train, doc, at, p->corpus->docs[doc].n, err);
    }
    return r;
}

/* ---- making ---- */

static int check_fit(const struct cart_plan *p, const struct cart_model *m, struct cart_err *err)
{
    size_t longest = 0;
    size_t longest_doc = 0;

    for (size_t i = 0; i < p->corpus->n_docs; i++) {
        size_t n = p->corpus->docs[i].n;
        if (n > longest) {
            longest = n;
            longest_doc = i;
        }
    }
    size_t chunk = longest < p->opt.chunk_max ? longest : p->opt.chunk_max;
    if (p->wrapper + chunk + p->room > m->context)
        return cart_err_set(err, CART_EUSAGE,
                            "chunks of up to %zu tokens and %zu tokens for turns, question and "
                            "answer exceed the model's "
                            "context of %zu: lower --chunk, --max-q or --max-a",
                            chunk, p->wrapper + p->room, m->context);
    if (p->opt.context == CART_CHOOSE_DOCUMENT && p->wrapper + longest + p->room > m->context)
        return cart_err_set(err, CART_EUSAGE,
                            "document %zu (%s): %zu tokens and %zu for turns, question and answer "
                            "exceed the model's "
                            "context of %zu: --context auto falls back to chunks",
                            longest_doc, p->corpus->docs[longest_doc].path, longest,
                            p->wrapper + p->room, m->context);
    if (p->opt.context == CART_CHOOSE_CORPUS &&
        p->wrapper + p->corpus->tokens + p->room > m->context)
        return cart_err_set(err, CART_EUSAGE,
                            "the corpus of %zu tokens and %zu for turns, question and answer "
                            "exceed the model's context "
                            "of %zu: --context auto falls back to documents and chunks",
                            p->corpus->tokens, p->wrapper + p->room, m->context);
    return 0;
}

static void set_held_weights(struct cart_plan *p)
{
    double others = 0;

    for (size_t i = 0; i < CART_SEEDS; i++)
        others += i == CART_SEED_RECITE ? 0 : p->opt.weights[i];
    for (size_t i = 0; i < CART_SEEDS; i++)
        p->held_weights[i] = !(others > 0)           ? p->opt.weights[i]
                             : i == CART_SEED_RECITE ? 0
                                                     : p->opt.weights[i] / others;
}

int cart_plan_new(struct cart_plan **out, const struct cart_corpus *corpus,
                  const struct cart_model *m, const struct cart_plan_options *opt,
                  struct cart_err *err)
{
    const struct cart_chat *chat;
    int r = cart_model_chat(m, &chat, err);

    if (r < 0)
        return r;
    if (opt->chunk_min == 0 || opt->chunk_min > opt->chunk_max)
        return cart_err_set(err, CART_EUSAGE, "chunk: expected 1 <= MIN <= MAX, found %zu:%zu",
                            opt->chunk_min, opt->chunk_max);
    if (corpus->tokens == 0)
        return cart_err_set(err, CART_EFORMAT, "the corpus has no text");
    struct cart_plan *p = calloc(1, sizeof *p);
    if (p == NULL)
        return cart_err_memory(err, "a plan", sizeof *p);
    struct cart_buf text = CART_BUF_INIT;
    size_t n_open;
    size_t n_close;
    cart_chat_system_open(chat, &n_open);
    cart_chat_turn_close(chat, &n_close);
    p->corpus = corpus;
    p->opt = *opt;
    p->context = m->context;
    p->wrapper = n_open + n_close;
    p->room = opt->max_q + opt->max_a + ROOM_FOR_TURNS;
    set_held_weights(p);
    p->marks = calloc(corpus->tokens, 1);
    if (p->marks == NULL) {
        r = cart_err_memory(err, "marks of the corpus", corpus->tokens);
        goto out;
    }
    for (size_t i = 0; i < corpus->n_docs; i++)
        if ((r = mark_document(p->marks + corpus->docs[i].first, &corpus->docs[i],
                               cart_model_tokenizer(m), &text, err)) < 0)
            goto out;
    if ((r = check_fit(p, m, err)) < 0 || (r = keep_regions(p, err)) < 0 ||
        (r = collect_training(p, err)) < 0)
        goto out;
out:
    cart_buf_release(&text);
    if (r < 0)
        cart_plan_free(p);
    else
        *out = p;
    return r;
}

void cart_plan_free(struct cart_plan *p)
{
    if (p == NULL)
        return;
    free(p->marks);
    free(p->train.list);
    free(p->held.list);
    free(p);
}

size_t cart_plan_regions(const struct cart_plan *p)
{
    return p->held.n;
}

/* ---- conversation n ---- */

/* 2^64 times the golden ratio less 1, the most even step there is in one dimension, and times the
 * root of 2 less 1, which keeps no step with it; odd, so that no point repeats. */
#define STEP_PLACE UINT64_C(0x9E3779B97F4A7C15)
#define STEP_KIND UINT64_C(0x6A09E667F3BCC909)

/* Point i of a sequence as a 64-bit fraction; which picks its start from the seed. */
static uint64_t sequence(uint64_t seed, uint32_t which, uint64_t step, uint64_t i)
{
    uint64_t start = (uint64_t)cart_rng_u32(seed, UINT64_MAX, CART_RNG_CHUNK, 2 * which) << 32 |
                     cart_rng_u32(seed, UINT64_MAX, CART_RNG_CHUNK, 2 * which + 1);

    return start + i * step;
}

/* floor(fraction / 2^64 * bound), exactly. */
static size_t scale(uint64_t fraction, size_t bound)
{
    uint64_t hi = fraction >> 32;
    uint64_t lo = fraction & UINT32_MAX;
    uint64_t b_hi = (uint64_t)bound >> 32;
    uint64_t b_lo = (uint64_t)bound & UINT32_MAX;
    uint64_t mid = (lo * b_lo >> 32) + (hi * b_lo & UINT32_MAX) + (lo * b_hi & UINT32_MAX);

    return (size_t)(hi * b_hi + (hi * b_lo >> 32) + (lo * b_hi >> 32) + (mid >> 32));
}

static const struct piece *find_piece(const struct pieces *ps, size_t at)
{
    size_t lo = 0;
    size_t hi = ps->n;

    while (hi - lo > 1) {
        size_t mid = lo + (hi - lo) / 2;
        if (ps->list[mid].before <= at)
            lo = mid;
        else
            hi = mid;
    }
    return &ps->list[lo];
}

static void choose_chunk(const struct cart_plan *p, const struct pieces *ps, uint64_t fraction,
                         struct cart_plan_item *item)
{
    const struct cart_plan_options *o = &p->opt;
    size_t at = scale(fraction, ps->tokens);
    const struct piece *piece = find_piece(ps, at);
    size_t length = o->chunk_min + cart_rng_below(o->seed, item->n, CART_RNG_CHUNK, 0,
                                                  o->chunk_max - o->chunk_min + 1);
    size_t first = piece->first;
    size_t end = piece->end;

    item->doc = piece->doc;
    if (end - first > length) {
        size_t local = piece->first + (at - piece->before);
        /* The place is the chunk's middle, so that chunks are as even as the places are. */
        first = local - piece->first > length / 2 ? local - length / 2 : piece->first;
        if (first > piece->end - length)
            first = piece->end - length;
        first = align(p, item->doc, first, length, piece->first, piece->first);
        end = first + length;
        /* The end moves back for a sentence only as far as the shortest chunk allows. */
        end = align(p, item->doc, end, length, first + o->chunk_min, first + 1);
    }
    item->chunk = (struct cart_range){first, end};
    item->starts_clean = (mark_at(p, item->doc, first) & MARK_SENTENCE) != 0;
    item->ends_clean = (mark_at(p, item->doc, end) & MARK_SENTENCE) != 0;
}

static void choose_context(const struct cart_plan *p, struct cart_plan_item *item)
{
    size_t n = p->corpus->docs[item->doc].n;
    bool whole = p->opt.context == CART_CHOOSE_DOCUMENT ||
                 (p->opt.context == CART_CHOOSE_AUTO && p->wrapper + n + p->room <= p->context);

    if (p->opt.context == CART_CHOOSE_CORPUS) {
        item->context = CART_CONTEXT_CORPUS;
        item->context_span = (struct cart_range){0, p->corpus->tokens};
    } else if (whole) {
        item->context = CART_CONTEXT_DOCUMENT;
        item->context_span = (struct cart_range){0, n};
    } else {
        item->context = CART_CONTEXT_CHUNK;
        item->context_span = item->chunk;
    }
}

void cart_plan_at(const struct cart_plan *p, uint64_t n, struct cart_plan_item *item)
{
    bool held_out = n < p->opt.held_out;
    const struct pieces *ps = held_out && p->held.n > 0 ? &p->held : &p->train;
    /* The two splits have sequences of their own. */
    uint64_t i = held_out ? n : n - p->opt.held_out;
    uint32_t which = held_out ? 2 : 0;
    uint64_t kind = sequence(p->opt.seed, which + 1, STEP_KIND, i);

    item->n = n;
    item->held_out = held_out;
    item->seed =
        cart_seed_at(held_out ? p->held_weights : p->opt.weights, (double)(kind >> 11) * 0x1p-53);
    choose_chunk(p, ps, sequence(p->opt.seed, which, STEP_PLACE, i), item);
    choose_context(p, item);
}

int cart_plan_coverage(const struct cart_plan *p, uint64_t first, uint64_t end, double *share,
                       double *times, struct cart_err *err)
{
    size_t n = p->corpus->tokens;
    int32_t *edges = calloc(n + 1, sizeof *edges); /* +1 where a chunk begins, -1 where one ends */
    size_t covered = 0;
    int64_t depth = 0;
    double sum = 0;

    if (edges == NULL)
        return cart_err_memory(err, "the coverage of the corpus", (n + 1) * sizeof *edges);
    for (uint64_t i = first; i < end; i++) {
        struct cart_plan_item item;
        cart_plan_at(p, i, &item);
        size_t base = p->corpus->docs[item.doc].first;
        edges[base + item.chunk.first]++;
        edges[base + item.chunk.end]--;
    }
    for (size_t i = 0; i < n; i++) {
        depth += edges[i];
        covered += depth > 0;
        sum += (double)depth;
    }
    free(edges);
    *times = sum / (double)n;
    *share = (double)covered / (double)n;
    return 0;
}
