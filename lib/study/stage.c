#include "study/stage.h"

#include "base/hash.h"

#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static int digest(struct cart_stage *s, const struct cart_conversation *c,
                  struct cart_stage_digest *out, struct cart_err *err)
{
    cart_buf_reset(&s->payload);
    int r = cart_conversation_build(&s->payload, c, false, err);
    if (r == 0)
        cart_hash_bytes(s->payload.data, s->payload.len, out->bytes);
    return r;
}

/* Takes in one record of FILE.part: the documents must be this run's, the conversations must
 * ascend. */
static int replay(void *ctx, const struct cart_record *rec, struct cart_err *err)
{
    struct cart_stage *s = ctx;
    int r;

    if (strcmp(rec->type, "DOC ") == 0) {
        if (s->docs >= s->corpus->n_docs || s->corpus->docs[s->docs].payload_size != rec->size ||
            memcmp(s->corpus->docs[s->docs].payload, rec->payload, rec->size) != 0)
            return cart_err_set(err, CART_EMATCH,
                                "%s: it was begun with other documents: document %zu differs",
                                s->part, s->docs);
        s->docs++;
        return 0;
    }
    if ((r = cart_conversation_parse(&s->scratch, rec, SIZE_MAX, s->corpus, s->part, err)) < 0)
        return r;
    if ((r = cart_conversation_follow(&s->order, &s->scratch, s->part, err)) < 0)
        return r;
    if ((r = cart_array_reserve(&s->kept, &s->kept_cap, s->n_kept + 1, sizeof *s->kept, err)) < 0 ||
        (r = digest(s, &s->scratch, &s->kept[s->n_kept], err)) < 0)
        return r;
    s->n_kept++;
    s->next_n = s->scratch.n + 1;
    s->conversations++;
    return 0;
}

static int open_part(struct cart_stage *s, const char *path, struct cart_err *err)
{
    struct cart_buf part = CART_BUF_INIT;
    int r = cart_io_companion(&part, path, ".part", err);

    if (r == 0 && (s->path = strdup(path)) == NULL)
        r = cart_err_memory(err, "a file name", strlen(path));
    s->part = part.data;
    /* Nothing may fail between the claim and the look at what is there. */
    if (r == 0)
        r = cart_io_spare(err);
    return r == 0 ? cart_io_claim(&s->fd, s->part, err) : r;
}

int cart_stage_peek(const char *path, size_t *conversations, uint64_t *next_n, struct cart_err *err)
{
    struct cart_stream_reader *in = NULL;
    struct cart_conversation c;
    struct cart_buf part = CART_BUF_INIT;
    struct cart_record rec;
    int r = cart_io_is_direct(path) ? 0 : cart_io_companion(&part, path, ".part", err);

    *conversations = 0;
    *next_n = 0;
    cart_conversation_init(&c);
    if (r == 0 && part.len > 0 && access(part.data, F_OK) == 0)
        r = cart_stream_open(&in, part.data, NULL, err);
    while (in != NULL && r >= 0 && (r = cart_stream_read(in, &rec, err)) == 1) {
        if (strcmp(rec.type, "DOC ") == 0)
            continue;
        if ((r = cart_conversation_parse(&c, &rec, SIZE_MAX, NULL, part.data, err)) == 0) {
            ++*conversations;
            *next_n = c.n + 1;
        }
    }
    /* A run that was stopped has written no END, nor perhaps its last record whole: whoever goes on
     * begins there. */
    r = r == CART_ESYS ? r : 0;
    cart_stream_close(in);
    cart_conversation_release(&c);
    cart_buf_release(&part);
    return r;
}

int cart_stage_open(struct cart_stage *s, const struct cart_model *m, const char *path,
                    const json_t *head, int level, bool resume, const struct cart_corpus *corpus,
                    struct cart_err *err)
{
    int r;

    memset(s, 0, sizeof *s);
    s->fd = -1;
    s->corpus = corpus;
    s->model = m;
    cart_conversation_init(&s->scratch);
    cart_conversation_order_init(&s->order, head);
    if (cart_io_is_direct(path)) {
        if ((r = cart_output_open(&s->out, path, false, err)) == 0)
            r = cart_stream_create(&s->w, s->out.fd, path != NULL ? path : "standard output", head,
                                   level, err);
    } else if ((r = open_part(s, path, err)) == 0) {
        struct stat st;
        bool some = fstat(s->fd, &st) == 0 && st.st_size > 0;
        s->resumed = some;
        if (some && !resume)
            r = cart_err_set(err, CART_EUSAGE,
                             "%s holds the beginning of an earlier run: --resume goes on from it; "
                             "remove it to begin anew",
                             s->part);
        else
            r = cart_stream_resume(&s->w, s->fd, s->part, head, level, replay, s, err);
        if (some && resume && (r == CART_EFORMAT || r == CART_EMATCH)) {
            struct cart_err was = *err;
            r = cart_err_set(err, r, "%s; remove it to begin anew", was.msg);
        }
    }
    if (r == 0)
        r = cart_corpus_write(corpus, s->docs, s->w, err);
    if (r < 0)
        cart_stage_abandon(s, resume || s->resumed);
    return r;
}

int cart_stage_skip(struct cart_stage *s, const struct cart_conversation *c, struct cart_err *err)
{
    struct cart_stage_digest own;
    int r;

    if (s->skipped == s->n_kept)
        return 0;
    if (c == NULL)
        return cart_err_set(
            err, CART_EMATCH,
            "%s: it was begun with other conversations: it holds %zu, and the input %zu; remove it "
            "to begin anew",
            s->part, s->n_kept, s->skipped);
    if ((r = digest(s, c, &own, err)) < 0)
        return r;
    if (memcmp(own.bytes, s->kept[s->skipped].bytes, sizeof own.bytes) != 0)
        return cart_err_set(err, CART_EMATCH,
                            "%s: it was begun with other conversations: conversation %llu differs; "
                            "remove it to begin anew",
                            s->part, (unsigned long long)c->n);
    s->skipped++;
    return 1;
}

int cart_stage_write(struct cart_stage *s, const struct cart_conversation *c, struct cart_err *err)
{
    int r;

    cart_buf_reset(&s->payload);
    if ((r = cart_model_unchanged(s->model, err)) < 0 ||
        (r = cart_conversation_build(&s->payload, c, c->has_targets, err)) < 0 ||
        (r = cart_stream_write(s->w, c->has_targets ? "TARG" : "CONV", s->payload.data,
                               s->payload.len, err)) < 0)
        return r;
    s->conversations++;
    s->next_n = c->n + 1;
    return 0;
}

static void release(struct cart_stage *s)
{
    if (s->fd >= 0)
        close(s->fd);
    free(s->path);
    free(s->part);
    free(s->kept);
    cart_conversation_release(&s->scratch);
    cart_buf_release(&s->payload);
    memset(s, 0, sizeof *s);
    s->fd = -1;
}

int cart_stage_commit(struct cart_stage *s, struct cart_err *err)
{
    int r = cart_stream_finish(s->w, err);

    s->w = NULL;
    if (s->path == NULL && r == 0)
        r = cart_output_commit(&s->out, err);
    else if (s->path == NULL)
        cart_output_abandon(&s->out);
    else if (r == 0)
        r = cart_io_publish(s->fd, s->part, s->path, err);
    release(s);
    return r;
}

bool cart_stage_abandon(struct cart_stage *s, bool keep)
{
    bool part = s->path != NULL && s->fd >= 0;
    bool stays = part && keep && (s->resumed || s->conversations > 0);

    if (s->w != NULL)
        cart_stream_abandon(s->w);
    if (s->path == NULL)
        cart_output_abandon(&s->out);
    else if (stays)
        fsync(s->fd);
    else if (part && cart_io_is_at(s->fd, s->part))
        unlink(s->part);
    release(s);
    return stays;
}
