#include "study/corpus.h"

#include "base/hash.h"
#include "stream/kinds.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

static int fill_doc(struct cart_doc *doc, const struct cart_payload *p, size_t index, size_t V,
                    const char *what, struct cart_err *err)
{
    const json_t *f = p->fields;
    const char *id = json_string_value(json_object_get(f, "id"));
    const char *path = json_string_value(json_object_get(f, "path"));
    json_int_t number = json_integer_value(json_object_get(f, "doc"));
    int r;

    if ((size_t)number != index)
        return cart_err_set(err, CART_EFORMAT, "%s: document number: expected %zu, found %lld",
                            what, index, (long long)number);

    const struct cart_st_tensor *tokens;
    if ((r = cart_st_expect(&p->st, "tokens", CART_ST_I32, 1, &tokens, what, err)) < 0)
        return r;
    uint32_t *copy = malloc(tokens->bytes > 0 ? tokens->bytes : 1);
    if (copy == NULL)
        return cart_err_memory(err, "tokens of a document", tokens->bytes);
    doc->tokens = copy;
    doc->n = tokens->shape[0];
    if (doc->n > 0)
        memcpy(copy, tokens->data, tokens->bytes);
    for (size_t i = 0; i < doc->n; i++) {
        if (copy[i] >= V || copy[i] > INT32_MAX)
            return cart_err_set(err, CART_EFORMAT,
                                "%s: document %zu: token %zu: expected an id below %zu, found %lld",
                                what, index, i, V == SIZE_MAX ? (size_t)INT32_MAX : V,
                                (long long)(int32_t)copy[i]);
    }
    doc->bytes = (uint64_t)json_integer_value(json_object_get(f, "bytes"));
    doc->id = id ? id : "";
    doc->path = path ? path : "";
    doc->sha256 = json_string_value(json_object_get(f, "sha256"));
    return 0;
}

static void release_doc(struct cart_doc *doc)
{
    free((void *)doc->tokens);
    free((void *)doc->payload);
    json_decref(doc->fields);
}

/* Adds one DOC payload (copied); what names it in messages. */
static int add_record(struct cart_corpus *c, const struct cart_record *rec, size_t V,
                      const char *what, struct cart_err *err)
{
    struct cart_payload p;
    struct cart_doc doc = {0};
    int r = cart_array_reserve(&c->docs, &c->cap, c->n_docs + 1, sizeof *c->docs, err);

    if (r < 0)
        return r;
    if ((r = cart_payload_parse(&p, cart_kind_find("tokens"), rec, what, err)) < 0)
        return r;
    doc.fields = json_incref(p.fields);
    if ((r = fill_doc(&doc, &p, c->n_docs, V, what, err)) < 0)
        goto out;
    void *payload = malloc(rec->size);
    if (payload == NULL) {
        r = cart_err_memory(err, "a document", rec->size);
        goto out;
    }
    memcpy(payload, rec->payload, rec->size);
    doc.payload = payload;
    doc.payload_size = rec->size;
    doc.first = c->tokens;
    c->docs[c->n_docs++] = doc;
    c->tokens += doc.n;
out:
    cart_payload_release(&p);
    if (r < 0)
        release_doc(&doc);
    return r;
}

int cart_corpus_read(struct cart_corpus *c, struct cart_stream_reader *reader, size_t V,
                     struct cart_record *rec, struct cart_err *err)
{
    const char *what = cart_stream_name(reader);
    int r;

    while ((r = cart_stream_read(reader, rec, err)) > 0 && strcmp(rec->type, "DOC ") == 0) {
        if ((r = add_record(c, rec, V, what, err)) < 0)
            return r;
    }
    if (r < 0)
        return r;
    if (c->n_docs == 0)
        return cart_err_set(err, CART_EFORMAT, "%s: expected documents, found none", what);
    return r;
}

int cart_corpus_take(struct cart_corpus *c, struct cart_stream_reader *in,
                     const struct cart_model *m, struct cart_err *err)
{
    struct cart_record rec;
    int r;

    if ((r = cart_fingerprints_check(m, json_object_get(cart_stream_head(in), "model"), true,
                                     cart_stream_name(in), err)) < 0 ||
        (r = cart_corpus_read(c, in, m->V, &rec, err)) < 0)
        return r;
    return r == 0 ? 0
                  : cart_err_set(err, CART_EFORMAT, "%s: a record of type %s in a token stream",
                                 cart_stream_name(in), rec.type);
}

int cart_corpus_open(struct cart_corpus *c, struct cart_stream_reader **in, const char *path,
                     const struct cart_model *m, struct cart_err *err)
{
    int r = cart_stream_open(in, path, "tokens", err);

    return r < 0 ? r : cart_corpus_take(c, *in, m, err);
}

size_t cart_corpus_bytes(const struct cart_corpus *c)
{
    size_t bytes = c->tokens * sizeof *c->docs->tokens;

    for (size_t i = 0; i < c->n_docs; i++)
        bytes += c->docs[i].payload_size;
    return bytes;
}

void cart_corpus_release(struct cart_corpus *c)
{
    for (size_t i = 0; i < c->n_docs; i++)
        release_doc(&c->docs[i]);
    free(c->docs);
    *c = (struct cart_corpus)CART_CORPUS_INIT;
}

int cart_corpus_write(const struct cart_corpus *c, size_t first, struct cart_stream_writer *w,
                      struct cart_err *err)
{
    for (size_t i = first; i < c->n_docs; i++) {
        int r = cart_stream_write(w, "DOC ", c->docs[i].payload, c->docs[i].payload_size, err);
        if (r < 0)
            return r;
    }
    return 0;
}

int cart_corpus_digest(const struct cart_corpus *c, char out[33], struct cart_err *err)
{
    unsigned char digest[16];
    struct cart_hash *h = cart_hash_new();

    if (h == NULL)
        return cart_err_memory(err, "a digest", 0);
    for (size_t i = 0; i < c->n_docs; i++) {
        const struct cart_doc *doc = &c->docs[i];
        unsigned char le[8];

        for (size_t b = 0; b < 8; b++)
            le[b] = (unsigned char)((uint64_t)doc->n >> (8 * b));
        cart_hash_add(h, le, sizeof le);
        for (size_t t = 0; t < doc->n; t++) {
            for (size_t b = 0; b < 4; b++)
                le[b] = (unsigned char)(doc->tokens[t] >> (8 * b));
            cart_hash_add(h, le, 4);
        }
    }
    cart_hash_final(h, digest);
    cart_hash_free(h);
    cart_hex(out, digest, sizeof digest);
    return 0;
}

void cart_corpus_copy(const struct cart_corpus *c, size_t first, size_t end, uint32_t *out)
{
    assert(first <= end && end <= c->tokens);
    for (size_t i = 0; i < c->n_docs; i++) {
        const struct cart_doc *doc = &c->docs[i];
        size_t lo = first > doc->first ? first - doc->first : 0;
        size_t hi = end > doc->first ? end - doc->first : 0;

        if (hi > doc->n)
            hi = doc->n;
        if (lo < hi) {
            memcpy(out, doc->tokens + lo, (hi - lo) * sizeof *out);
            out += hi - lo;
        }
    }
}
