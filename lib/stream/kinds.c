#include "stream/kinds.h"

#include "stream/frame_impl.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MAX_TENSORS 8

static const struct cart_kind_tensor doc_tensors[] = {{"tokens", CART_ST_I32, 1, 0}};

/* A target record is a conversation record and more. */
static const struct cart_kind_tensor target_tensors[] = {
    {"ids", CART_ST_I32, 1, 0},        {"supervised", CART_ST_I32, 2, 2},
    {"rows", CART_ST_I32, 1, 0},       {"offsets", CART_ST_I32, 1, 0},
    {"target_ids", CART_ST_I32, 1, 0}, {"logprobs", CART_ST_F32, 1, 0},
    {"entropy", CART_ST_F32, 1, 0},
};
#define CONVERSATION_TENSORS 2

static const struct cart_kind_field doc_fields[] = {
    {"doc", CART_FIELD_NUMBER, true, UINT32_MAX, NULL},
    {"id", CART_FIELD_TEXT, false, 0, NULL},
    {"path", CART_FIELD_TEXT, false, 0, NULL},
    {"bytes", CART_FIELD_NUMBER, true, UINT64_MAX >> 12, NULL},
    {"sha256", CART_FIELD_SHA256, true, 0, NULL},
    {"text_bytes", CART_FIELD_NUMBER, false, UINT64_MAX >> 12, NULL},
    {"normalised", CART_FIELD_BOOL, false, 0, NULL},
    {"replaced", CART_FIELD_NUMBER, false, UINT64_MAX >> 12, NULL},
};

static const struct cart_kind_field conversation_fields[] = {
    {"n", CART_FIELD_NUMBER, true, INT64_MAX - 1, NULL},
    {"split", CART_FIELD_CHOICE, true, 0, "train|held-out"},
    {"seed_type", CART_FIELD_TEXT, true, 0, NULL},
    {"doc", CART_FIELD_NUMBER, true, UINT32_MAX, NULL},
    {"chunk", CART_FIELD_SPAN, true, INT32_MAX, NULL},
    {"context", CART_FIELD_CHOICE, true, 0, "chunk|document|corpus"},
    {"context_span", CART_FIELD_SPAN, true, INT32_MAX, NULL},
    {"parts", CART_FIELD_TEXTS, true, 0, NULL},
    {"round", CART_FIELD_NUMBER, false, INT64_MAX - 1, NULL},
    {"target_doc", CART_FIELD_NUMBER, false, UINT32_MAX, NULL},
    {"think", CART_FIELD_BOOL, false, 0, NULL},
    {"messages", CART_FIELD_MESSAGES, true, 0, NULL},
    {"finish_reasons", CART_FIELD_TEXTS, true, 0, NULL},
};
#define CONVERSATION_FIELDS conversation_fields, CART_COUNTOF(conversation_fields)

static const struct cart_kind_field metric_fields[] = {
    {"step", CART_FIELD_NUMBER, true, INT64_MAX - 1, NULL},
    {"split", CART_FIELD_CHOICE, true, 0, "train|held-out"},
    {"loss", CART_FIELD_REAL, true, 0, NULL},
    {"kl", CART_FIELD_REAL, true, 0, NULL},
    {"top1", CART_FIELD_REAL, true, 0, NULL},
    {"lr", CART_FIELD_REAL, false, 0, NULL},
    {"tokens", CART_FIELD_NUMBER, true, INT64_MAX - 1, NULL},
    {"conversations", CART_FIELD_NUMBER, true, INT64_MAX - 1, NULL},
};

#define DOC                                                                                        \
    {                                                                                              \
        "DOC ", doc_tensors, 1, doc_fields, CART_COUNTOF(doc_fields)                               \
    }

static const struct cart_kind_record tokens[] = {DOC};
static const struct cart_kind_record conversations[] = {
    DOC, {"CONV", target_tensors, CONVERSATION_TENSORS, CONVERSATION_FIELDS}};
static const struct cart_kind_record targets[] = {
    DOC, {"TARG", target_tensors, CART_COUNTOF(target_tensors), CONVERSATION_FIELDS}};
static const struct cart_kind_record rounds[] = {{"RNDS", NULL, 0, NULL, 0}};
static const struct cart_kind_record metrics[] = {
    {"METR", NULL, 0, metric_fields, CART_COUNTOF(metric_fields)}};

static const struct cart_kind kinds[] = {
    {"tokens", tokens, CART_COUNTOF(tokens), true},
    {"conversations", conversations, CART_COUNTOF(conversations), true},
    {"targets", targets, CART_COUNTOF(targets), true},
    {"rounds", rounds, CART_COUNTOF(rounds), false},
    {"metrics", metrics, CART_COUNTOF(metrics), false},
};

const struct cart_kind *cart_kind_find(const char *name)
{
    for (size_t i = 0; i < CART_COUNTOF(kinds); i++)
        if (strcmp(kinds[i].name, name) == 0)
            return &kinds[i];
    return NULL;
}

const struct cart_kind_record *cart_kind_record(const struct cart_kind *kind, const char *type)
{
    for (size_t i = 0; i < kind->n_records; i++)
        if (strcmp(kind->records[i].type, type) == 0)
            return &kind->records[i];
    return NULL;
}

static int check_finite(const struct cart_st_tensor *t, const char *what, struct cart_err *err)
{
    const unsigned char *p = t->data;

    for (size_t i = 0; i < t->bytes / 4; i++) {
        float x;
        memcpy(&x, p + 4 * i, sizeof x);
        if (!isfinite(x))
            return cart_err_set(err, CART_EFORMAT, "%s: tensor %s: value %zu is not finite", what,
                                t->name, i);
    }
    return 0;
}

static int check_tensors(const struct cart_st *st, const struct cart_kind_record *d,
                         const char *what, struct cart_err *err)
{
    const struct cart_st_tensor *t;
    int r;

    for (size_t i = 0; i < d->n_tensors; i++) {
        const struct cart_kind_tensor *want = &d->tensors[i];
        if ((r = cart_st_expect(st, want->name, want->dtype, want->rank, &t, what, err)) < 0)
            return r;
        if (want->rank == 2 && t->shape[1] != want->inner)
            return cart_err_set(err, CART_EFORMAT,
                                "%s: tensor %s: expected [n,%zu], found [%zu,%zu]", what,
                                want->name, want->inner, t->shape[0], t->shape[1]);
        if (want->dtype == CART_ST_F32 && (r = check_finite(t, what, err)) < 0)
            return r;
    }
    if (st->n != d->n_tensors)
        return cart_err_set(err, CART_EFORMAT, "%s: expected %zu tensors, found %zu", what,
                            d->n_tensors, st->n);
    return 0;
}

/* A field must not hide a tensor or the record's type in the text twin. */
static int check_fields(const json_t *fields, const struct cart_kind_record *d, const char *what,
                        int code, struct cart_err *err)
{
    if (!json_is_object(fields))
        return cart_err_set(err, code, "%s: record: expected an object", what);
    if (json_object_get(fields, "record") != NULL)
        return cart_err_set(err, code, "%s: record: a field may not be called record", what);
    for (size_t i = 0; i < d->n_tensors; i++)
        if (json_object_get(fields, d->tensors[i].name) != NULL)
            return cart_err_set(err, code, "%s: record: %s is a tensor, not a field", what,
                                d->tensors[i].name);
    /* The first field is the record's number, by which people find it. */
    char numbered[432];
    const json_t *number = d->n_fields > 0 ? json_object_get(fields, d->fields[0].name) : NULL;
    snprintf(numbered, sizeof numbered, "%.400s", what);
    if (json_is_integer(number))
        snprintf(numbered, sizeof numbered, "%.400s: %s %lld", what, d->fields[0].name,
                 (long long)json_integer_value(number));
    return cart_fields_check(fields, d->fields, d->n_fields, numbered, code, err);
}

int cart_payload_parse(struct cart_payload *out, const struct cart_kind *kind,
                       const struct cart_record *rec, const char *what, struct cart_err *err)
{
    struct cart_payload p = {.desc = cart_kind_record(kind, rec->type)};
    const char *text;
    char path[400];
    int r;

    if (p.desc == NULL)
        return cart_err_set(err, CART_EFORMAT, "%s: a %s stream has no record of type %s", what,
                            kind->name, rec->type);
    snprintf(path, sizeof path, "%.380s: %.*s", what, (int)strcspn(rec->type, " "), rec->type);
    if ((r = cart_st_parse(&p.st, rec->payload, rec->size, path, err)) < 0)
        return r;
    if ((r = check_tensors(&p.st, p.desc, path, err)) < 0 ||
        (r = cart_json_string(p.st.metadata, "record", &text, path, err)) < 0)
        goto out;
    if (json_object_size(p.st.metadata) != 1) {
        r = cart_err_set(err, CART_EFORMAT, "%s: __metadata__: expected record alone", path);
        goto out;
    }
    if ((r = cart_json_parse(&p.fields, text, strlen(text), path, err)) < 0 ||
        (r = check_fields(p.fields, p.desc, path, CART_EFORMAT, err)) < 0)
        goto out;
    *out = p;
    return 0;
out:
    cart_payload_release(&p);
    return r;
}

void cart_payload_release(struct cart_payload *p)
{
    cart_st_release(&p->st);
    json_decref(p->fields);
    *p = (struct cart_payload){0};
}

int cart_payload_build(struct cart_buf *b, const struct cart_kind_record *desc,
                       const json_t *fields, const void *const *data, const size_t *counts,
                       struct cart_err *err)
{
    struct cart_st_tensor tensors[MAX_TENSORS] = {0};
    struct cart_buf text = CART_BUF_INIT;
    json_t *meta = NULL;
    char type[5];
    int r;

    snprintf(type, sizeof type, "%.*s", (int)strcspn(desc->type, " "), desc->type);
    if ((r = check_fields(fields, desc, type, CART_EUSAGE, err)) < 0)
        return r;
    for (size_t i = 0; i < desc->n_tensors; i++) {
        const struct cart_kind_tensor *d = &desc->tensors[i];
        struct cart_st_tensor *t = &tensors[i];
        *t = (struct cart_st_tensor){.name = d->name,
                                     .dtype = d->dtype,
                                     .rank = d->rank,
                                     .shape = {counts[i], d->inner},
                                     .data = data[i]};
        if (!cart_size_mul(counts[i], cart_st_dtype_size(d->dtype) * (d->rank == 2 ? d->inner : 1),
                           &t->bytes))
            return cart_err_set(err, CART_EUSAGE, "%s: tensor %s: the byte count overflows",
                                desc->type, d->name);
    }
    if ((r = cart_json_dump(fields, &text, err)) < 0)
        goto out;
    if ((meta = json_pack("{s: s%}", "record", text.data, text.len)) == NULL) {
        r = cart_err_memory(err, "a record's fields", text.len);
        goto out;
    }
    r = cart_st_build(b, tensors, desc->n_tensors, meta, err);
out:
    json_decref(meta);
    cart_buf_release(&text);
    return r;
}
