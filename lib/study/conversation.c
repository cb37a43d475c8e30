#include "study/conversation.h"

#include "study/corpus.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

static const char *const context_names[] = {"chunk", "document", "corpus"};

static const char *context_name(enum cart_context_kind kind)
{
    return context_names[kind];
}

void cart_conversation_init(struct cart_conversation *c)
{
    memset(c, 0, sizeof *c);
}

static void drop_json(struct cart_conversation *c)
{
    json_t **all[] = {&c->parts,    &c->round,          &c->target_doc,
                      &c->messages, &c->finish_reasons, &c->fields};

    for (size_t i = 0; i < CART_COUNTOF(all); i++) {
        json_decref(*all[i]);
        *all[i] = NULL;
    }
}

void cart_conversation_reset(struct cart_conversation *c)
{
    drop_json(c);
    c->n = 0;
    c->held_out = c->think = c->has_targets = false;
    c->seed_type = NULL;
    c->doc = 0;
    c->chunk = c->context_span = (struct cart_range){0, 0};
    c->context = CART_CONTEXT_CHUNK;
    c->T = c->n_supervised = c->R = c->E = 0;
}

void cart_conversation_release(struct cart_conversation *c)
{
    drop_json(c);
    free(c->ids);
    free(c->supervised);
    free(c->rows);
    free(c->offsets);
    free(c->target_ids);
    free(c->logprobs);
    free(c->entropy);
    cart_conversation_init(c);
}

#define RESERVE(c, field, need, err)                                                               \
    cart_array_reserve(&(c)->field, &(c)->field##_cap, need, sizeof *(c)->field, err)

int cart_conversation_push_ids(struct cart_conversation *c, const uint32_t *ids, size_t n,
                               struct cart_err *err)
{
    int r = RESERVE(c, ids, c->T + n, err);

    if (r < 0)
        return r;
    if (n > 0)
        memcpy(c->ids + c->T, ids, n * sizeof *ids);
    c->T += n;
    return 0;
}

int cart_conversation_supervise(struct cart_conversation *c, size_t first, size_t end,
                                struct cart_err *err)
{
    int r = RESERVE(c, supervised, c->n_supervised + 1, err);

    if (r < 0)
        return r;
    c->supervised[c->n_supervised++] = (struct cart_range){first, end};
    return 0;
}

size_t cart_conversation_supervised(const struct cart_conversation *c)
{
    size_t n = 0;

    for (size_t i = 0; i < c->n_supervised; i++)
        n += c->supervised[i].end - c->supervised[i].first;
    return n;
}

int cart_conversation_reserve_targets(struct cart_conversation *c, size_t R, size_t E,
                                      struct cart_err *err)
{
    int r;

    if ((r = RESERVE(c, rows, R, err)) < 0 || (r = RESERVE(c, offsets, R + 1, err)) < 0 ||
        (r = RESERVE(c, entropy, R, err)) < 0 || (r = RESERVE(c, target_ids, E, err)) < 0 ||
        (r = RESERVE(c, logprobs, E, err)) < 0)
        return r;
    return 0;
}

/* ---- parsing ---- */

static struct cart_range range_of(const json_t *fields, const char *key)
{
    const json_t *pair = json_object_get(fields, key);

    return (struct cart_range){(size_t)json_integer_value(json_array_get(pair, 0)),
                               (size_t)json_integer_value(json_array_get(pair, 1))};
}

static json_t *number_of(const json_t *fields, const char *key)
{
    json_t *v = json_object_get(fields, key);

    return json_is_integer(v) ? json_incref(v) : NULL;
}

/* The payload's reader has checked that every field is there and of its type. */
static void take_fields(struct cart_conversation *c)
{
    const json_t *f = c->fields;
    const char *context = json_string_value(json_object_get(f, "context"));

    c->n = (uint64_t)json_integer_value(json_object_get(f, "n"));
    c->held_out = strcmp(json_string_value(json_object_get(f, "split")), "held-out") == 0;
    c->seed_type = json_string_value(json_object_get(f, "seed_type"));
    c->doc = (size_t)json_integer_value(json_object_get(f, "doc"));
    c->chunk = range_of(f, "chunk");
    c->context_span = range_of(f, "context_span");
    c->parts = json_incref(json_object_get(f, "parts"));
    c->round = number_of(f, "round");
    c->target_doc = number_of(f, "target_doc");
    c->think = json_is_true(json_object_get(f, "think"));
    c->messages = json_incref(json_object_get(f, "messages"));
    c->finish_reasons = json_incref(json_object_get(f, "finish_reasons"));
    for (size_t i = 0; i < CART_COUNTOF(context_names); i++)
        if (strcmp(context, context_names[i]) == 0)
            c->context = (enum cart_context_kind)i;
}

static int check_spans(const struct cart_conversation *c, const struct cart_corpus *corpus,
                       const char *what, struct cart_err *err)
{
    if (corpus == NULL)
        return 0;
    if (c->doc >= corpus->n_docs)
        return cart_err_set(err, CART_EFORMAT, "%s: doc: expected below %zu, found %zu", what,
                            corpus->n_docs, c->doc);
    size_t n = corpus->docs[c->doc].n;
    size_t limit = c->context == CART_CONTEXT_CORPUS ? corpus->tokens : n;
    if (c->chunk.end > n)
        return cart_err_set(err, CART_EFORMAT,
                            "%s: chunk: expected an end of at most %zu, found %zu", what, n,
                            c->chunk.end);
    if (c->context_span.end > limit)
        return cart_err_set(err, CART_EFORMAT,
                            "%s: context_span: expected an end of at most %zu, found %zu", what,
                            limit, c->context_span.end);
    return 0;
}

/* The I32 tensor of that name as numbers from 0 to below limit. *out is c's own array, reserved
 * before. */
static int copy_ids(const struct cart_payload *p, const char *name, size_t limit, uint32_t *out,
                    const char *what, struct cart_err *err)
{
    const struct cart_st_tensor *t = cart_st_find(&p->st, name);

    if (t->bytes > 0)
        memcpy(out, t->data, t->bytes);
    for (size_t i = 0; i < t->bytes / sizeof *out; i++) {
        if (out[i] > INT32_MAX || out[i] >= limit)
            return cart_err_set(err, CART_EFORMAT,
                                "%s: %s[%zu]: expected a number below %zu, found %lld", what, name,
                                i, limit, (long long)(int32_t)out[i]);
    }
    return 0;
}

static int parse_ids(struct cart_conversation *c, const struct cart_payload *p, size_t V,
                     const char *what, struct cart_err *err)
{
    const struct cart_st_tensor *s = cart_st_find(&p->st, "supervised");
    size_t last = 1;
    int r;

    c->T = cart_st_find(&p->st, "ids")->shape[0];
    if ((r = RESERVE(c, ids, c->T, err)) < 0 ||
        (r = copy_ids(p, "ids", V < INT32_MAX ? V : INT32_MAX, c->ids, what, err)) < 0 ||
        (r = RESERVE(c, supervised, s->shape[0], err)) < 0)
        return r;
    for (size_t i = 0; i < s->shape[0]; i++) {
        int32_t pair[2];
        memcpy(pair, (const char *)s->data + i * sizeof pair, sizeof pair);
        if (pair[0] < 0 || (size_t)pair[0] < last || pair[1] <= pair[0] || (size_t)pair[1] > c->T)
            return cart_err_set(
                err, CART_EFORMAT,
                "%s: supervised[%zu]: expected a rising range within 1 and %zu, found [%d, %d]",
                what, i, c->T, (int)pair[0], (int)pair[1]);
        c->supervised[i] = (struct cart_range){(size_t)pair[0], (size_t)pair[1]};
        last = (size_t)pair[1];
    }
    c->n_supervised = s->shape[0];
    return 0;
}

static int check_row(const struct cart_conversation *c, size_t row, const char *what,
                     struct cart_err *err)
{
    size_t at = c->offsets[row];
    const char *fault = cart_target_row_fault(c->target_ids + at, c->logprobs + at,
                                              c->offsets[row + 1] - at, c->entropy[row]);
    if (fault)
        return cart_err_set(err, CART_EFORMAT, "%s: row %zu: %s", what, row, fault);
    return 0;
}

static int parse_targets(struct cart_conversation *c, const struct cart_payload *p, size_t V,
                         const char *what, struct cart_err *err)
{
    const struct cart_st_tensor *lp = cart_st_find(&p->st, "logprobs");
    const struct cart_st_tensor *off = cart_st_find(&p->st, "offsets");
    const struct cart_st_tensor *ent = cart_st_find(&p->st, "entropy");
    size_t row = 0;
    int r;

    c->R = cart_st_find(&p->st, "rows")->shape[0];
    c->E = cart_st_find(&p->st, "target_ids")->shape[0];
    if (c->R != cart_conversation_supervised(c) || off->shape[0] != c->R + 1 ||
        ent->shape[0] != c->R || lp->shape[0] != c->E)
        return cart_err_set(err, CART_EFORMAT,
                            "%s: targets of %zu supervised tokens: found %zu rows, %zu offsets, "
                            "%zu entropies, %zu ids "
                            "and %zu log-probabilities",
                            what, cart_conversation_supervised(c), c->R, off->shape[0],
                            ent->shape[0], c->E, lp->shape[0]);
    if ((r = cart_conversation_reserve_targets(c, c->R, c->E, err)) < 0 ||
        (r = copy_ids(p, "rows", c->T, c->rows, what, err)) < 0 ||
        (r = copy_ids(p, "target_ids", V < INT32_MAX ? V : INT32_MAX, c->target_ids, what, err)) <
            0)
        return r;
    if (c->E > 0)
        memcpy(c->logprobs, lp->data, c->E * sizeof *c->logprobs);
    if (c->R > 0)
        memcpy(c->entropy, ent->data, c->R * sizeof *c->entropy);
    for (size_t i = 0; i <= c->R; i++) {
        int32_t o;
        memcpy(&o, (const char *)off->data + i * sizeof o, sizeof o);
        size_t least = i == 0 ? 0 : c->offsets[i - 1];
        if (o < 0 || (size_t)o < least || (size_t)o > c->E || (i == 0 && o != 0) ||
            (i == c->R && (size_t)o != c->E))
            return cart_err_set(err, CART_EFORMAT,
                                "%s: offsets[%zu]: expected rising from 0 to %zu, found %d", what,
                                i, c->E, (int)o);
        c->offsets[i] = (size_t)o;
    }
    for (size_t i = 0; i < c->n_supervised; i++) {
        for (size_t t = c->supervised[i].first; t < c->supervised[i].end; t++, row++) {
            if (c->rows[row] != t)
                return cart_err_set(err, CART_EFORMAT,
                                    "%s: rows[%zu]: expected supervised token %zu, found %u", what,
                                    row, t, (unsigned)c->rows[row]);
            if ((r = check_row(c, row, what, err)) < 0)
                return r;
        }
    }
    c->has_targets = true;
    return 0;
}

int cart_conversation_parse(struct cart_conversation *c, const struct cart_record *rec, size_t V,
                            const struct cart_corpus *corpus, const char *what,
                            struct cart_err *err)
{
    bool targets = strcmp(rec->type, "TARG") == 0;
    struct cart_payload p;
    char where[128];
    int r;

    cart_conversation_reset(c);
    if (!targets && strcmp(rec->type, "CONV") != 0)
        return cart_err_set(err, CART_EFORMAT,
                            "%s: expected a conversation, found a record of type %s", what,
                            rec->type);
    if ((r = cart_payload_parse(&p, cart_kind_find(targets ? "targets" : "conversations"), rec,
                                what, err)) < 0)
        return r;
    c->fields = json_incref(p.fields);
    take_fields(c);
    snprintf(where, sizeof where, "%.80s: conversation %llu", what, (unsigned long long)c->n);
    if ((r = check_spans(c, corpus, where, err)) < 0 || (r = parse_ids(c, &p, V, where, err)) < 0 ||
        (targets && (r = parse_targets(c, &p, V, where, err)) < 0))
        goto out;
out:
    cart_payload_release(&p);
    if (r < 0)
        cart_conversation_reset(c);
    return r;
}

int cart_conversation_follow(struct cart_conversation_order *order,
                             const struct cart_conversation *c, const char *what,
                             struct cart_err *err)
{
    unsigned long long last = order->last;
    bool any = order->any;
    const char *fault = cart_conversation_order_fault(order, c->n, c->held_out);

    if (fault && !any)
        return cart_err_set(err, CART_EFORMAT, "%s: conversation %llu: %s", what,
                            (unsigned long long)c->n, fault);
    if (fault)
        return cart_err_set(err, CART_EFORMAT, "%s: conversation %llu follows %llu: %s", what,
                            (unsigned long long)c->n, last, fault);
    return 0;
}

int cart_conversation_alone(const struct cart_conversation *c, const char *what,
                            struct cart_err *err)
{
    if (json_array_size(c->parts) > 0)
        return cart_err_set(err, CART_EFORMAT,
                            "%s: conversation %llu: of a fleet, not of one cartridge", what,
                            (unsigned long long)c->n);
    return 0;
}

/* ---- building ---- */

static json_t *value_or(json_t *v, json_t *other)
{
    if (v == NULL)
        return other;
    json_decref(other);
    return json_incref(v);
}

static json_t *range_json(struct cart_range r)
{
    return json_pack("[I,I]", (json_int_t)r.first, (json_int_t)r.end);
}

static int build_fields(json_t **out, const struct cart_conversation *c, struct cart_err *err)
{
    json_t *f = json_pack(
        "{s:I,s:s,s:s,s:I,s:o,s:s,s:o,s:o,s:o,s:o,s:b,s:o,s:o}", "n", (json_int_t)c->n, "split",
        c->held_out ? "held-out" : "train", "seed_type", c->seed_type != NULL ? c->seed_type : "",
        "doc", (json_int_t)c->doc, "chunk", range_json(c->chunk), "context",
        context_name(c->context), "context_span", range_json(c->context_span), "parts",
        value_or(c->parts, json_array()), "round", value_or(c->round, json_null()), "target_doc",
        value_or(c->target_doc, json_null()), "think", (int)c->think, "messages",
        value_or(c->messages, json_array()), "finish_reasons",
        value_or(c->finish_reasons, json_array()));

    if (f == NULL)
        return cart_err_memory(err, "fields of a conversation", 0);
    *out = f;
    return 0;
}

static int to_i32(int32_t *out, size_t v, struct cart_err *err)
{
    if (v > INT32_MAX)
        return cart_err_set(err, CART_EFORMAT,
                            "a conversation of more than 2^31 tokens or entries");
    *out = (int32_t)v;
    return 0;
}

int cart_conversation_build(struct cart_buf *payload, const struct cart_conversation *c,
                            bool targets, struct cart_err *err)
{
    const char *type = targets ? "TARG" : "CONV";
    const struct cart_kind *kind = cart_kind_find(targets ? "targets" : "conversations");
    const struct cart_kind_record *desc = NULL;
    size_t n_pairs = 2 * c->n_supervised;
    int32_t *numbers =
        malloc((n_pairs + c->R + 1) * sizeof *numbers); /* supervised, then offsets */
    json_t *fields = NULL;
    int r;

    if (numbers == NULL)
        return cart_err_memory(err, "a conversation", 0);
    for (size_t i = 0; i < c->n_supervised; i++) {
        if ((r = to_i32(&numbers[2 * i], c->supervised[i].first, err)) < 0 ||
            (r = to_i32(&numbers[2 * i + 1], c->supervised[i].end, err)) < 0)
            goto out;
    }
    for (size_t i = 0; targets && i <= c->R; i++) {
        if ((r = to_i32(&numbers[n_pairs + i], c->offsets[i], err)) < 0)
            goto out;
    }
    for (size_t i = 0; i < kind->n_records; i++) {
        if (strcmp(kind->records[i].type, type) == 0)
            desc = &kind->records[i];
    }
    assert(desc != NULL && (!targets || c->has_targets));
    if ((r = build_fields(&fields, c, err)) < 0)
        goto out;
    const void *data[] = {c->ids,        numbers,     c->rows,   numbers + n_pairs,
                          c->target_ids, c->logprobs, c->entropy};
    const size_t counts[] = {c->T, c->n_supervised, c->R, c->R + 1, c->E, c->E, c->R};
    assert(desc->n_tensors == (targets ? 7 : 2));
    r = cart_payload_build(payload, desc, fields, data, counts, err);
out:
    json_decref(fields);
    free(numbers);
    return r;
}
