/* The record stream of cart-stream(5): magic, HEAD, framed records with checksums, END. No END, no
 * result: a reader that has not seen END has seen nothing that may be published. */
#ifndef CART_STREAM_STREAM_H
#define CART_STREAM_STREAM_H

#include "base/buf.h"
#include "base/json.h"

#define CART_STREAM_MAJOR 1
#define CART_STREAM_MINOR 0
#define CART_STREAM_MAX_RECORD ((size_t)1 << 30) /* the reader's own cap on a record */

/* Four letters as a string: "DOC ", "CONV", "TARG", "METR", "RNDS". */
struct cart_record {
    char type[5];
    bool skippable;      /* an unknown type may be passed over */
    const void *payload; /* 8-byte aligned; valid until the next read */
    size_t size;
};

struct cart_stream_reader;
struct cart_stream_writer;

/* path "-" or NULL: standard input. Reads and checks magic, version and HEAD. kind: the one
 * expected ("tokens", ...), or NULL for any. A stream of another kind, a file of another format
 * (safetensors, GGUF, text: named) is CART_EFORMAT. */
int cart_stream_open(struct cart_stream_reader **out, const char *path, const char *kind,
                     struct cart_err *err) CART_MUST_USE;
/* The same from a descriptor (borrowed) of which the first n bytes were already read into ahead
 * (copied as needed). */
int cart_stream_open_ahead(struct cart_stream_reader **out, int fd, const char *name,
                           const void *ahead, size_t n, const char *kind,
                           struct cart_err *err) CART_MUST_USE;
/* Skippable records of unknown type are passed over (and count for END); after this call they are
 * handed out too. */
void cart_stream_show_unknown(struct cart_stream_reader *r);
const char *cart_stream_kind(const struct cart_stream_reader *r);
const char *cart_stream_name(
    const struct cart_stream_reader *r); /* for messages: the path or "standard input" */
const json_t *cart_stream_head(const struct cart_stream_reader *r); /* borrowed */

/* 1: a record; 0: END was read and agreed with all that came before (and nothing follows); < 0:
 * error. */
int cart_stream_read(struct cart_stream_reader *r, struct cart_record *rec,
                     struct cart_err *err) CART_MUST_USE;
/* XXH3-128 over all raw payloads; after END. Two streams with equal records have equal digests. */
void cart_stream_digest(const struct cart_stream_reader *r, unsigned char out[16]);
/* Records and payload bytes handed out so far; after END those of the whole stream, as END states
 * them. */
uint64_t cart_stream_records(const struct cart_stream_reader *r);
uint64_t cart_stream_bytes(const struct cart_stream_reader *r);
void cart_stream_close(struct cart_stream_reader *r); /* at any time; NULL is fine */

/* Writes to fd (borrowed). head: an object with at least "kind" and "history" (array); major.minor
 * (of which a higher minor one stays) and limits are added. level: zstd, 0 for none. name for
 * messages. Writes magic and HEAD at once, so that a consumer can start. */
int cart_stream_create(struct cart_stream_writer **out, int fd, const char *name,
                       const json_t *head, int level, struct cart_err *err) CART_MUST_USE;
int cart_stream_write(struct cart_stream_writer *w, const char type[4], const void *payload,
                      size_t size, struct cart_err *err) CART_MUST_USE;
/* The same for a record that says itself whether it is skippable, which a type unknown to the kind
 * must be. */
int cart_stream_write_record(struct cart_stream_writer *w, const struct cart_record *rec,
                             struct cart_err *err) CART_MUST_USE;
/* Bytes written so far, heads of records and all. */
uint64_t cart_stream_size(const struct cart_stream_writer *w);
/* Writes END and flushes. Frees w on success and failure. */
int cart_stream_finish(struct cart_stream_writer *w, struct cart_err *err) CART_MUST_USE;
void cart_stream_abandon(struct cart_stream_writer *w); /* no END; frees w */

/* A long writer's FILE.part goes on: reads the records that are whole in path (a stream of this
 * head without END), cuts a torn last one off, counts them through fn (may be NULL), and opens w
 * for appending to the same descriptor. CART_EMATCH if the HEAD differs. */
typedef int cart_stream_replay_fn(void *ctx, const struct cart_record *rec, struct cart_err *err);
int cart_stream_resume(struct cart_stream_writer **out, int fd, const char *name,
                       const json_t *head, int level, cart_stream_replay_fn *fn, void *ctx,
                       struct cart_err *err) CART_MUST_USE;

/* A new history array: that of upstream_head (may be NULL) plus one entry
 * {"tool","version","options",...}. options: an object of the options that change results, in
 * canonical form, or NULL where there was no memory for it; extra (may be NULL): fields merged into
 * the entry, such as seed and input digests. Both are borrowed (their values are shared, not
 * copied). New reference; NULL with err set when upstream_head's history is no array (CART_EFORMAT)
 * or memory ran out. */
json_t *cart_history_extend(const json_t *upstream_head, const char *tool, json_t *options,
                            json_t *extra, struct cart_err *err);

#endif
