#include "stream/join.h"

#include "stream/consistency.h"
#include "stream/frame_impl.h"

#include <stdlib.h>
#include <string.h>

/* The documents of one shard: how many, and the digest of their payloads. */
struct docs {
    uint64_t n;
    struct cart_hash *hash;
};

struct join {
    struct cart_stream_reader **in; /* [n] */
    size_t n;
    struct cart_stream_writer *w;
    const struct cart_kind *kind;
    struct cart_consistency *check;       /* of the file being read, by its own HEAD */
    struct cart_conversation_order order; /* of the joined stream, by its HEAD */
    struct cart_buf payload;
    struct docs first;
    uint64_t docs;
    bool gaps, sharded;
};

/* --- heads --- */

/* "shard" may be null as well as absent: the whole run either way. */
static bool is_sharded(const json_t *head)
{
    return json_is_array(json_object_get(head, "shard"));
}

static json_t *without_shard(const json_t *head)
{
    json_t *copy = cart_json_copy(head);

    if (copy != NULL)
        json_object_del(copy, "shard");
    return copy;
}

/* The shards' ranges must be one run; the joined head keeps it where it is not the whole. */
static int join_shards(const struct join *j, json_t *head, struct cart_err *err)
{
    uint64_t first = 0, end = 0, begin, next;

    for (size_t i = 0; i < j->n; i++) {
        const char *name = cart_stream_name(j->in[i]);
        const json_t *shard = json_object_get(cart_stream_head(j->in[i]), "shard");
        begin = (uint64_t)json_integer_value(json_array_get(shard, 0));
        next = (uint64_t)json_integer_value(json_array_get(shard, 1));
        if (i == 0)
            first = begin;
        else if (begin != end)
            return cart_err_set(err, CART_EMATCH,
                                "%s: shard: expected one that begins at %llu, found %llu", name,
                                (unsigned long long)end, (unsigned long long)begin);
        end = next;
    }
    if (first == 0 && end == (uint64_t)json_integer_value(json_object_get(head, "conversations")))
        return 0;
    if (json_object_set_new(head, "shard",
                            json_pack("[I, I]", (json_int_t)first, (json_int_t)end)) < 0)
        return cart_err_memory(err, "HEAD", 0);
    return 0;
}

static int join_heads(struct join *j, json_t **out, struct cart_err *err)
{
    json_t *head = without_shard(cart_stream_head(j->in[0]));
    int r = head != NULL ? 0 : cart_err_memory(err, "HEAD", 0);

    j->sharded = is_sharded(cart_stream_head(j->in[0]));
    for (size_t i = 1; i < j->n && r == 0; i++) {
        const json_t *other_head = cart_stream_head(j->in[i]);
        json_t *other = without_shard(other_head);
        if (other == NULL)
            r = cart_err_memory(err, "HEAD", 0);
        else if (!json_equal(head, other) || is_sharded(other_head) != j->sharded)
            r = cart_err_set(err, CART_EMATCH,
                             "%s: its HEAD differs from that of %s: not shards of one run",
                             cart_stream_name(j->in[i]), cart_stream_name(j->in[0]));
        json_decref(other);
    }
    if (r == 0 && j->sharded)
        r = join_shards(j, head, err);
    if (r == 0)
        *out = head;
    else
        json_decref(head);
    return r;
}

/* --- records --- */

/* A document of another token stream gets the next number of the joined one. */
static int put_token_doc(struct join *j, const struct cart_record *rec, struct cart_payload *p,
                         struct cart_err *err)
{
    const struct cart_st_tensor *t = cart_st_find(&p->st, "tokens");
    const void *data[] = {t->data};
    struct cart_record again = *rec;
    int r;

    cart_buf_reset(&j->payload);
    if (json_object_set_new(p->fields, "doc", json_integer((json_int_t)j->docs++)) < 0)
        return cart_err_memory(err, "a document", 0);
    if ((r = cart_payload_build(&j->payload, p->desc, p->fields, data, t->shape, err)) < 0)
        return r;
    again.payload = j->payload.data;
    again.size = j->payload.len;
    return cart_stream_write_record(j->w, &again, err);
}

/* Within a file its own order was followed, so what goes wrong here is between two. */
static int check_n(struct join *j, const struct cart_payload *p, bool first_of_file,
                   const char *what, struct cart_err *err)
{
    unsigned long long n = (unsigned long long)json_integer_value(json_object_get(p->fields, "n"));
    unsigned long long next = j->order.last + 1;
    const char *split = json_string_value(json_object_get(p->fields, "split"));

    if (j->order.any && n < next)
        return cart_err_set(err, CART_EMATCH,
                            "%s: n: expected at least %llu, found %llu: shards go in rising order, "
                            "each once",
                            what, next, n);
    if (j->order.any && first_of_file && n > next && !j->gaps && !j->sharded)
        return cart_err_set(err, CART_EMATCH,
                            "%s: n: expected %llu, found %llu: a shard is missing, or its first "
                            "conversations were skipped (--allow-gaps)",
                            what, next, n);
    const char *fault = cart_conversation_order_fault(&j->order, n, strcmp(split, "held-out") == 0);
    return fault ? cart_err_set(err, CART_EMATCH, "%s: n %llu: %s", what, n, fault) : 0;
}

static int check_docs(const struct join *j, const struct docs *d, const char *what,
                      struct cart_err *err)
{
    unsigned char a[16], b[16];

    cart_hash_final(j->first.hash, a);
    cart_hash_final(d->hash, b);
    if (d->n != j->first.n || memcmp(a, b, sizeof a) != 0)
        return cart_err_set(err, CART_EMATCH,
                            "%s: its documents differ from those of %s: not shards of one run",
                            what, cart_stream_name(j->in[0]));
    return 0;
}

static int join_record(struct join *j, size_t i, const struct cart_record *rec, struct docs *docs,
                       bool *first_of_file, struct cart_err *err)
{
    const char *what = cart_stream_name(j->in[i]);
    bool doc = strcmp(rec->type, "DOC ") == 0;
    struct cart_payload p;
    int r;

    if (rec->skippable)
        return cart_stream_write_record(j->w, rec, err);
    if ((r = cart_payload_parse(&p, j->kind, rec, what, err)) < 0)
        return r;
    if ((r = cart_consistency_add(j->check, &p, what, err)) == 0)
        r = cart_payload_check(&p, rec, what, err);
    if (r < 0) {
        cart_payload_release(&p);
        return r;
    }
    if (doc && strcmp(j->kind->name, "tokens") == 0) {
        r = put_token_doc(j, rec, &p, err);
    } else if (doc) {
        docs->n++;
        cart_hash_add(docs->hash, rec->payload, rec->size);
        if (i == 0)
            r = cart_stream_write_record(j->w, rec, err);
    } else {
        if (*first_of_file)
            r = check_docs(j, docs, what, err);
        if (r == 0 && j->kind->of_model)
            r = check_n(j, &p, *first_of_file, what, err);
        if (r == 0)
            r = cart_stream_write_record(j->w, rec, err);
        *first_of_file = false;
    }
    cart_payload_release(&p);
    return r;
}

static int join_stream(struct join *j, size_t i, struct cart_err *err)
{
    struct docs own = {0}, *docs = i == 0 ? &j->first : &own;
    bool first_of_file = true;
    const char *what = cart_stream_name(j->in[i]);
    struct cart_record rec;
    int r;

    cart_consistency_free(j->check);
    j->check = NULL;
    if ((r = cart_consistency_new(&j->check, j->kind, cart_stream_head(j->in[i]), err)) < 0)
        return r;
    if ((docs->hash = cart_hash_new()) == NULL)
        return cart_err_memory(err, "a digest", 0);
    cart_stream_show_unknown(j->in[i]);
    while ((r = cart_stream_read(j->in[i], &rec, err)) == 1)
        if ((r = join_record(j, i, &rec, docs, &first_of_file, err)) < 0)
            break;
    if (r == 0)
        r = cart_consistency_end(j->check, what, err);
    if (r == 0 && strcmp(j->kind->name, "tokens") != 0)
        r = check_docs(j, docs, what, err);
    cart_hash_free(own.hash);
    return r;
}

static int open_all(struct join *j, const char *const *paths, struct cart_err *err)
{
    int r;

    if ((j->in = calloc(j->n, sizeof(struct cart_stream_reader *))) == NULL)
        return cart_err_memory(err, "the shards", j->n);
    for (size_t i = 0; i < j->n; i++) {
        const char *kind = i == 0 ? NULL : cart_stream_kind(j->in[0]);
        r = cart_stream_open(&j->in[i], paths[i], kind, err);
        if (r < 0)
            return r;
    }
    j->kind = cart_kind_find(cart_stream_kind(j->in[0]));
    return 0;
}

int cart_stream_join(const char *const *paths, size_t n_paths, int fd, const char *out, int level,
                     bool gaps, struct cart_err *err)
{
    struct join j = {.n = n_paths, .gaps = gaps};
    json_t *head = NULL;
    int r;

    if (n_paths == 0)
        return cart_err_set(err, CART_EUSAGE, "expected at least one stream to join");
    if ((r = open_all(&j, paths, err)) < 0 || (r = join_heads(&j, &head, err)) < 0 ||
        (r = cart_stream_create(&j.w, fd, out, head, level, err)) < 0)
        goto done;
    cart_conversation_order_init(&j.order, head);
    for (size_t i = 0; i < j.n; i++)
        if ((r = join_stream(&j, i, err)) < 0)
            goto done;
    r = cart_stream_finish(j.w, err);
    j.w = NULL;
    if (r == 0 && is_sharded(head))
        r = 1;
done:
    cart_stream_abandon(j.w);
    cart_consistency_free(j.check);
    cart_hash_free(j.first.hash);
    cart_buf_release(&j.payload);
    for (size_t i = 0; i < j.n && j.in != NULL; i++)
        cart_stream_close(j.in[i]);
    free(j.in);
    json_decref(head);
    return r;
}
