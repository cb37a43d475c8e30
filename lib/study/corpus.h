/* The documents of a stream, held in memory: the DOC records that come first in every stream and
 * pass through every stage once. A corpus is filled by cart_corpus_read, then read-only: any number
 * of threads may use it. Payloads are kept as they came, so that they are passed on byte for byte.
 */
#ifndef CART_STUDY_CORPUS_H
#define CART_STUDY_CORPUS_H

#include "model/model.h"
#include "stream/stream.h"

/* One document. All pointers are owned by the corpus. */
struct cart_doc {
    const char *id, *path; /* "" where the record has none */
    uint64_t bytes;        /* of the normalised text */
    const char *sha256;    /* of the normalised text, 64 hex digits */
    const uint32_t *tokens;
    size_t n;            /* tokens */
    size_t first;        /* tokens of the documents before it */
    const void *payload; /* as read */
    size_t payload_size;
    json_t *fields; /* the record's other fields */
};

struct cart_corpus {
    struct cart_doc *docs;
    size_t n_docs, cap;
    size_t tokens; /* of all documents */
};

#define CART_CORPUS_INIT                                                                           \
    {                                                                                              \
        NULL, 0, 0, 0                                                                              \
    }

/* Reads records up to the first that is no DOC. 1: that record is in *rec (valid until the next
 * read); 0: END came. Documents must be numbered from 0 and have ids below V (SIZE_MAX: not
 * checked); otherwise CART_EFORMAT. A stream without any document is CART_EFORMAT. The corpus must
 * be empty. */
int cart_corpus_read(struct cart_corpus *c, struct cart_stream_reader *r, size_t V,
                     struct cart_record *rec, struct cart_err *err) CART_MUST_USE;
/* The token stream at path ("-" is standard input), read whole: *in stays open for its head and
 * name, also after a failure where it is not NULL (*in is NULL before). CART_EMATCH: tokens of
 * another tokenizer than m's. */
int cart_corpus_open(struct cart_corpus *c, struct cart_stream_reader **in, const char *path,
                     const struct cart_model *m, struct cart_err *err) CART_MUST_USE;
/* The same of a token stream that is open; it stays the caller's. */
int cart_corpus_take(struct cart_corpus *c, struct cart_stream_reader *in,
                     const struct cart_model *m, struct cart_err *err) CART_MUST_USE;
void cart_corpus_release(struct cart_corpus *c);
/* Memory that it takes: the payloads, and the ids once more. */
size_t cart_corpus_bytes(const struct cart_corpus *c);

/* Writes the DOC records from document first on, as they came. */
int cart_corpus_write(const struct cart_corpus *c, size_t first, struct cart_stream_writer *w,
                      struct cart_err *err) CART_MUST_USE;

/* XXH3-128 over the documents in order: each one's token count and tokens, little-endian. Hex, with
 * a NUL. CART_ESYS: memory. */
int cart_corpus_digest(const struct cart_corpus *c, char out[33],
                       struct cart_err *err) CART_MUST_USE;

/* Copies tokens [first, end) of all documents, one after another, into out [end - first]. */
void cart_corpus_copy(const struct cart_corpus *c, size_t first, size_t end, uint32_t *out);

#endif
