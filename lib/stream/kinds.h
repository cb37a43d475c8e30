/* What the records of each kind hold, and their text twin. A payload is a safetensors image whose
 * tensors are listed here and whose __metadata__ has one key, "record", a canonical JSON object
 * with the other fields. The text twin of a record is one JSON line: the object's fields and the
 * tensors as (nested) arrays side by side, plus "record": the type in lower case.
 * cart_kinds_to_json and cart_kinds_from_json are exact inverses, byte for byte. */
#ifndef CART_STREAM_KINDS_H
#define CART_STREAM_KINDS_H

#include "stream/safetensors.h"
#include "stream/stream.h"

struct cart_kind_tensor {
    const char *name;
    enum cart_st_dtype dtype;
    size_t rank;
    size_t inner; /* fixed last dimension for rank 2 */
};

enum cart_field_type {
    CART_FIELD_NUMBER,   /* a whole number from 0 to most */
    CART_FIELD_REAL,     /* a number */
    CART_FIELD_BOOL,     /* true or false */
    CART_FIELD_TEXT,     /* a string without NUL */
    CART_FIELD_NAME,     /* the same, not empty */
    CART_FIELD_CHOICE,   /* one of the words "a|b|c" of choices */
    CART_FIELD_SHA256,   /* 64 hexadecimal digits in lower case */
    CART_FIELD_SPAN,     /* [first, end], whole numbers, first <= end <= most */
    CART_FIELD_TEXTS,    /* an array of strings */
    CART_FIELD_MESSAGES, /* an array of objects with the strings role and content */
    CART_FIELD_HISTORY,  /* an array of objects with the name tool */
    CART_FIELD_OBJECT,
};

struct cart_kind_field {
    const char *name;
    enum cart_field_type type;
    bool required; /* else it may be absent or null */
    uint64_t most;
    const char *choices;
};

struct cart_kind_record {
    const char *type;                       /* "DOC " */
    const struct cart_kind_tensor *tensors; /* in payload order */
    size_t n_tensors;
    const struct cart_kind_field *fields; /* others are let pass */
    size_t n_fields;
};

struct cart_kind {
    const char *name; /* "tokens" */
    const struct cart_kind_record *records;
    size_t n_records;
    bool of_model; /* HEAD must name the model, and a stream has documents */
};

/* Tensors in payload order (T ids, s ranges, R rows, E entries); the fields are the tables of
 * kinds.c, and cart-stream(5) lists both:
 *
 * DOC   in tokens; first in conversations and targets. tokens I32 [n].
 * CONV  in conversations. ids I32 [T], supervised I32 [s, 2] (half-open ranges of ids).
 * TARG  in targets. All of CONV, then rows I32 [R] (places in ids of the supervised tokens),
 *       offsets I32 [R + 1], target_ids I32 [E], logprobs F32 [E] (falling within a row),
 *       entropy F32 [R] (of the retained part: -sum p log p).
 * METR  in metrics. No tensors.
 * RNDS  in rounds. No tensors. */
const struct cart_kind *cart_kind_find(const char *name); /* NULL if unknown */

/* The first field of obj that is missing where it is required, or of another type or range than its
 * table says: code, "what: name: expected ..., found ...". */
int cart_fields_check(const json_t *obj, const struct cart_kind_field *fields, size_t n,
                      const char *what, int code, struct cart_err *err) CART_MUST_USE;

/* A record's payload parsed by its kind: exactly the listed tensors with the listed types, and the
 * fields object, whose fields are as their table says: who has parsed a payload may read them
 * without a check. st's tensors point into payload. Release with cart_payload_release. */
struct cart_payload {
    struct cart_st st;
    json_t *fields; /* owned */
    const struct cart_kind_record *desc;
};
int cart_payload_parse(struct cart_payload *p, const struct cart_kind *kind,
                       const struct cart_record *rec, const char *what,
                       struct cart_err *err) CART_MUST_USE;
void cart_payload_release(struct cart_payload *p);

/* Appends the payload for fields and tensors (data and counts; names and types from desc, in its
 * order). */
int cart_payload_build(struct cart_buf *b, const struct cart_kind_record *desc,
                       const json_t *fields, const void *const *data,
                       const size_t *counts /* first dimension of each */,
                       struct cart_err *err) CART_MUST_USE;

/* CART_EFORMAT unless the record's bytes are what cart_payload_build makes of p, that is, in
 * canonical form. */
int cart_payload_check(const struct cart_payload *p, const struct cart_record *rec,
                       const char *what, struct cart_err *err) CART_MUST_USE;

int cart_kinds_to_json(const struct cart_kind *kind, const struct cart_record *rec,
                       const char *what, struct cart_buf *line, struct cart_err *err) CART_MUST_USE;
/* line is parsed, an object; it loses its members on the way. */
int cart_kinds_from_json(const struct cart_kind *kind, json_t *line, const char *what,
                         struct cart_buf *payload, char type[5],
                         struct cart_err *err) CART_MUST_USE;

#endif
