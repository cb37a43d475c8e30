#include "study/feed.h"

#include "base/hash.h"
#include "base/io.h"
#include "base/rng.h"
#include "study/target_batch.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct entry {
    size_t offset, size; /* in the spool */
};

struct cart_feed {
    struct cart_stream_reader *in;
    struct cart_corpus corpus;
    size_t V, context;
    size_t p; /* rows before each conversation, as far as is known */
    struct {
        uint64_t n;
        size_t tokens;
    } longest; /* conversation read */
    uint64_t seed;
    struct cart_conversation **held;
    size_t n_held, held_cap;
    struct cart_conversation_order order_read;
    bool at_end; /* END was read */

    int spool;
    size_t spool_size;
    struct entry *entries; /* training conversations read so far */
    size_t n, entries_cap;
    struct cart_hash *hash; /* over all conversation records read */
    struct cart_buf payload;

    uint64_t taken;
    size_t *order; /* shuffle of the epoch under way, [n]; NULL in epoch 1 */
    uint64_t order_epoch;
};

static int spool_add(struct cart_feed *f, const struct cart_record *rec, struct cart_err *err)
{
    int r = cart_array_reserve(&f->entries, &f->entries_cap, f->n + 1, sizeof *f->entries, err);
    if (r < 0 || (r = cart_io_write(f->spool, rec->payload, rec->size, "spool file", err)) < 0)
        return r;
    f->entries[f->n++] = (struct entry){f->spool_size, rec->size};
    f->spool_size += rec->size;
    return 0;
}

static int spool_read(struct cart_feed *f, size_t i, struct cart_conversation *c,
                      struct cart_err *err)
{
    struct entry e = f->entries[i];
    cart_buf_reset(&f->payload);
    int r = cart_buf_reserve(&f->payload, e.size, err);
    if (r < 0)
        return r;
    for (size_t done = 0; done < e.size;) {
        ssize_t got =
            pread(f->spool, f->payload.data + done, e.size - done, (off_t)(e.offset + done));
        if (got < 0 && errno == EINTR)
            continue;
        if (got < 0)
            return cart_err_sys(err, "spool file");
        if (got == 0)
            return cart_err_set(err, CART_ESYS, "spool file: ends early");
        done += (size_t)got;
    }
    struct cart_record rec = {"TARG", false, f->payload.data, e.size};
    return cart_conversation_parse(c, &rec, f->V, &f->corpus, cart_stream_name(f->in), err);
}

static int check_fit(const struct cart_feed *f, struct cart_err *err)
{
    if (f->longest.tokens <= f->context && f->p <= f->context - f->longest.tokens)
        return 0;
    return cart_err_set(err, CART_EUSAGE,
                        "%s: conversation %llu: p %zu and %zu tokens exceed the model's context of "
                        "%zu: a lower p leaves room for it",
                        cart_stream_name(f->in), (unsigned long long)f->longest.n, f->p,
                        f->longest.tokens, f->context);
}

static int accept(struct cart_feed *f, const struct cart_record *rec, struct cart_conversation *c,
                  struct cart_err *err)
{
    const char *name = cart_stream_name(f->in);
    int r = cart_conversation_parse(c, rec, f->V, &f->corpus, name, err);
    if (r < 0 || (r = cart_conversation_alone(c, name, err)) < 0)
        return r;
    if (!c->has_targets || c->R == 0)
        return cart_err_set(err, CART_EFORMAT, "%s: conversation %llu: no supervised token", name,
                            (unsigned long long)c->n);
    if (cart_target_tokens(c) > f->longest.tokens) {
        f->longest.n = c->n;
        f->longest.tokens = cart_target_tokens(c);
    }
    return check_fit(f, err);
}

static int keep_held_out(struct cart_feed *f, struct cart_conversation *c, struct cart_err *err)
{
    int r = cart_array_reserve(&f->held, &f->held_cap, f->n_held + 1, sizeof *f->held, err);
    if (r == 0)
        f->held[f->n_held++] = c;
    return r;
}

/* Takes a record: held-out ones are kept, training ones spooled. 1 where it was a training
 * conversation. */
static int take(struct cart_feed *f, const struct cart_record *rec, struct cart_err *err)
{
    struct cart_conversation *c = malloc(sizeof *c);
    if (!c)
        return cart_err_memory(err, "conversation", sizeof *c);
    cart_conversation_init(c);
    int r = accept(f, rec, c, err);
    if (r == 0)
        r = cart_conversation_follow(&f->order_read, c, cart_stream_name(f->in), err);
    bool held = c->held_out;
    if (r == 0)
        r = held ? keep_held_out(f, c, err) : spool_add(f, rec, err);
    if (r == 0) {
        /* Only now, since a saved state tells the digest of what was taken. */
        uint64_t size = rec->size;
        cart_hash_add(f->hash, &size, sizeof size);
        cart_hash_add(f->hash, rec->payload, rec->size);
        if (held)
            return 0;
    }
    cart_conversation_release(c);
    free(c);
    return r < 0 ? r : 1;
}

/* Reads until one more training conversation is spooled. 1: it is; 0: END. */
static int read_one(struct cart_feed *f, struct cart_err *err)
{
    struct cart_record rec;
    int r = 0;
    while (r == 0 && !f->at_end) {
        r = cart_stream_read(f->in, &rec, err);
        if (r < 0)
            return r;
        f->at_end = r == 0;
        r = f->at_end ? 0 : take(f, &rec, err);
    }
    return r;
}

int cart_feed_open(struct cart_feed **out, const char *path, const struct cart_model *m,
                   const struct cart_feed_options *opt, struct cart_err *err)
{
    struct cart_record rec;
    struct cart_feed *f = calloc(1, sizeof *f);
    if (!f)
        return cart_err_memory(err, "feed", sizeof *f);
    f->spool = -1;
    f->V = m->V;
    f->context = m->context;
    f->seed = opt->seed;
    f->hash = cart_hash_new();
    int r = f->hash ? 0 : cart_err_memory(err, "digest", 0);
    if (r < 0 || (r = cart_io_scratch(&f->spool, opt->spool_dir, err)) < 0 ||
        (r = cart_stream_open(&f->in, path, "targets", err)) < 0 ||
        (r = cart_fingerprints_check(m, json_object_get(cart_stream_head(f->in), "model"),
                                     opt->allow_other_weights, cart_stream_name(f->in), err)) < 0 ||
        (r = cart_corpus_read(&f->corpus, f->in, m->V, &rec, err)) < 0)
        goto fail;
    f->at_end = r == 0;
    cart_conversation_order_init(&f->order_read, cart_stream_head(f->in));
    if (r == 1 && (r = take(f, &rec, err)) == 0)
        r = read_one(f, err);
    if (r < 0)
        goto fail;
    *out = f;
    return 0;
fail:
    cart_feed_close(f);
    return r;
}

void cart_feed_close(struct cart_feed *f)
{
    if (!f)
        return;
    for (size_t i = 0; i < f->n_held; i++) {
        cart_conversation_release(f->held[i]);
        free(f->held[i]);
    }
    free(f->held);
    if (f->spool >= 0)
        (void)close(f->spool);
    free(f->entries);
    free(f->order);
    cart_hash_free(f->hash);
    cart_buf_release(&f->payload);
    cart_corpus_release(&f->corpus);
    cart_stream_close(f->in);
    free(f);
}

int cart_feed_stand_behind(struct cart_feed *f, size_t p, struct cart_err *err)
{
    f->p = p;
    return check_fit(f, err);
}

const json_t *cart_feed_head(const struct cart_feed *f)
{
    return cart_stream_head(f->in);
}

const struct cart_corpus *cart_feed_corpus(const struct cart_feed *f)
{
    return &f->corpus;
}

const struct cart_conversation *const *cart_feed_held_out(const struct cart_feed *f, size_t *n)
{
    *n = f->n_held;
    return (const struct cart_conversation *const *)f->held;
}

size_t cart_feed_planned(const struct cart_feed *f)
{
    uint64_t all = 0, held = 0;
    json_int_t a, b;
    if (f->at_end)
        return f->n;
    if (cart_json_u64_opt(cart_feed_head(f), "conversations", SIZE_MAX, &all, "HEAD", NULL) < 0 ||
        cart_json_u64_opt(cart_feed_head(f), "held_out", SIZE_MAX, &held, "HEAD", NULL) < 0)
        return 0;
    /* A shard holds conversations [first, end) of all. */
    json_t *shard = json_object_get(cart_feed_head(f), "shard");
    uint64_t first = 0, end = all;
    if (shard && (json_unpack(shard, "[I,I]", &a, &b) < 0 || a < 0 || b < a || (uint64_t)b > all))
        return 0;
    if (shard) {
        first = (uint64_t)a;
        end = (uint64_t)b;
    }
    first = first > held ? first : held;
    return end > first ? (size_t)(end - first) : 0;
}

/* The shuffle of one epoch (Fisher and Yates). */
static int shuffle(struct cart_feed *f, uint64_t epoch, struct cart_err *err)
{
    if (f->order && f->order_epoch == epoch)
        return 0;
    if (!f->order && !(f->order = calloc(f->n, sizeof *f->order)))
        return cart_err_memory(err, "order of conversations", f->n * sizeof *f->order);
    for (size_t i = 0; i < f->n; i++)
        f->order[i] = i;
    for (size_t i = f->n; i > 1; i--) {
        size_t k = cart_rng_below(f->seed, epoch, CART_RNG_ORDER, (uint32_t)i, i);
        size_t t = f->order[i - 1];
        f->order[i - 1] = f->order[k];
        f->order[k] = t;
    }
    f->order_epoch = epoch;
    return 0;
}

int cart_feed_next(struct cart_feed *f, struct cart_conversation *c, struct cart_err *err)
{
    int r;
    while (f->taken >= f->n && !f->at_end)
        if ((r = read_one(f, err)) < 0)
            return r;
    if (f->n == 0)
        return cart_err_set(err, CART_EFORMAT, "%s: no conversation to train on",
                            cart_stream_name(f->in));
    size_t i = (size_t)f->taken;
    if (f->taken >= f->n) {
        if ((r = shuffle(f, f->taken / f->n, err)) < 0)
            return r;
        i = f->order[f->taken % f->n];
    }
    if ((r = spool_read(f, i, c, err)) < 0)
        return r;
    f->taken++;
    return 0;
}

int cart_feed_finish(struct cart_feed *f, struct cart_err *err)
{
    int r = 0;
    while (!f->at_end && r >= 0)
        r = read_one(f, err);
    return r < 0 ? r : 0;
}

void cart_feed_tell(const struct cart_feed *f, struct cart_feed_mark *mark)
{
    unsigned char digest[16];
    mark->taken = f->taken;
    mark->read = f->n;
    mark->ended = f->at_end;
    cart_hash_final(f->hash, digest);
    cart_hex(mark->digest, digest, sizeof digest);
}

int cart_feed_seek(struct cart_feed *f, const struct cart_feed_mark *mark, struct cart_err *err)
{
    struct cart_feed_mark here;
    int r = 0;
    while (f->n < mark->read && !f->at_end && r >= 0)
        r = read_one(f, err);
    if (r < 0)
        return r;
    cart_feed_tell(f, &here);
    if (here.read != mark->read)
        return cart_err_set(
            err, CART_EMATCH,
            "%s: another stream: expected %llu training conversations at least, found %llu",
            cart_stream_name(f->in), (unsigned long long)mark->read, (unsigned long long)here.read);
    if (strcmp(here.digest, mark->digest) != 0)
        return cart_err_set(
            err, CART_EMATCH,
            "%s: another stream: its first %llu training conversations are not those of the run",
            cart_stream_name(f->in), (unsigned long long)here.read);
    /* The shuffles that the run went by are of all the stream that it knew. */
    if (mark->ended && (r = cart_feed_finish(f, err)) < 0)
        return r;
    if (mark->ended && f->n != mark->read)
        return cart_err_set(
            err, CART_EMATCH,
            "%s: another stream: it was whole with %llu training conversations, found %zu",
            cart_stream_name(f->in), (unsigned long long)mark->read, f->n);
    f->taken = mark->taken;
    return 0;
}

void cart_feed_rewind(struct cart_feed *f, uint64_t taken)
{
    f->taken = taken;
}

void cart_feed_digest(const struct cart_feed *f, char out[33])
{
    unsigned char digest[16];
    cart_stream_digest(f->in, digest);
    cart_hex(out, digest, sizeof digest);
}

size_t cart_feed_spooled(const struct cart_feed *f)
{
    return f->spool_size;
}
