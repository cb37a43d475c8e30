#include "stream/consistency.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

struct cart_consistency {
    const struct cart_kind *kind;
    uint64_t records;
    size_t *doc_tokens; /* [n_docs] */
    size_t n_docs, docs_cap;
    uint64_t total; /* tokens of all documents */
    struct cart_conversation_order order;
};

static int broken(const struct cart_consistency *c, const struct cart_payload *p, const char *what,
                  struct cart_err *err, const char *fmt, ...) CART_PRINTF(5, 6);

static int broken(const struct cart_consistency *c, const struct cart_payload *p, const char *what,
                  struct cart_err *err, const char *fmt, ...)
{
    char why[200];
    va_list ap;

    va_start(ap, fmt);
    vsnprintf(why, sizeof why, fmt, ap);
    va_end(ap);
    return cart_err_set(err, CART_EFORMAT, "%s: record %llu (%s): %s", what,
                        (unsigned long long)c->records, p->desc->type, why);
}

static int32_t i32_at(const struct cart_st_tensor *t, size_t i)
{
    int32_t v;

    memcpy(&v, (const unsigned char *)t->data + 4 * i, sizeof v);
    return v;
}

static float f32_at(const struct cart_st_tensor *t, size_t i)
{
    float v;

    memcpy(&v, (const unsigned char *)t->data + 4 * i, sizeof v);
    return v;
}

static int check_ids(const struct cart_consistency *c, const struct cart_payload *p,
                     const char *tensor, const char *what, struct cart_err *err)
{
    const struct cart_st_tensor *t = cart_st_find(&p->st, tensor);

    for (size_t i = 0; i < t->shape[0]; i++)
        if (i32_at(t, i) < 0)
            return broken(c, p, what, err, "%s: value %zu is negative", tensor, i);
    return 0;
}

static uint64_t number(const struct cart_payload *p, const char *key)
{
    return (uint64_t)json_integer_value(json_object_get(p->fields, key));
}

static int add_doc(struct cart_consistency *c, const struct cart_payload *p, const char *what,
                   struct cart_err *err)
{
    const struct cart_st_tensor *t = cart_st_find(&p->st, "tokens");
    uint64_t doc = number(p, "doc");
    int r;

    if (c->order.any)
        return broken(c, p, what, err, "documents come before all other records");
    if ((r = check_ids(c, p, "tokens", what, err)) < 0)
        return r;
    if (doc != c->n_docs)
        return broken(c, p, what, err, "doc: expected %zu, found %llu", c->n_docs,
                      (unsigned long long)doc);
    r = cart_array_reserve(&c->doc_tokens, &c->docs_cap, c->n_docs + 1, sizeof *c->doc_tokens, err);
    if (r < 0)
        return r;
    c->doc_tokens[c->n_docs++] = t->shape[0];
    c->total += t->shape[0];
    return 0;
}

static int check_span(const struct cart_consistency *c, const struct cart_payload *p,
                      const char *key, uint64_t limit, const char *what, struct cart_err *err)
{
    json_int_t end = json_integer_value(json_array_get(json_object_get(p->fields, key), 1));

    if ((uint64_t)end > limit)
        return broken(c, p, what, err,
                      "%s: expected [first, end) within %llu tokens, found end %lld", key,
                      (unsigned long long)limit, (long long)end);
    return 0;
}

static int check_place(const struct cart_consistency *c, const struct cart_payload *p,
                       const char *what, struct cart_err *err)
{
    const char *context = json_string_value(json_object_get(p->fields, "context"));
    uint64_t doc = number(p, "doc");
    int r;

    if (doc >= c->n_docs)
        return broken(c, p, what, err, "doc: expected one of %zu documents, found %llu", c->n_docs,
                      (unsigned long long)doc);
    uint64_t inside = c->doc_tokens[doc];
    if ((r = check_span(c, p, "chunk", inside, what, err)) < 0)
        return r;
    if (strcmp(context, "corpus") == 0)
        inside = c->total;
    return check_span(c, p, "context_span", inside, what, err);
}

static uint64_t stated(const json_t *value, uint64_t otherwise)
{
    return json_is_integer(value) ? (uint64_t)json_integer_value(value) : otherwise;
}

void cart_conversation_order_init(struct cart_conversation_order *o, const json_t *head)
{
    const json_t *shard = json_object_get(head, "shard");
    const json_t *held = json_object_get(head, "held_out");
    uint64_t planned = stated(json_object_get(head, "conversations"), UINT64_MAX);

    *o = (struct cart_conversation_order){.first = stated(json_array_get(shard, 0), 0),
                                          .end = stated(json_array_get(shard, 1), planned),
                                          .held = stated(held, 0),
                                          .states_held = json_is_integer(held)};
}

const char *cart_conversation_order_fault(struct cart_conversation_order *o, uint64_t n,
                                          bool held_out)
{
    if (o->any && n <= o->last)
        return "n: expected more than that of the conversation before";
    if (held_out && o->training)
        return "split: held-out conversations come before the others";
    if (n < o->first || n >= o->end)
        return "n: HEAD does not have it among the conversations of this stream";
    if (o->states_held && held_out != (n < o->held))
        return "split: expected held-out where n is below the held_out of HEAD, and only there";
    o->last = n;
    o->any = true;
    o->training = !held_out;
    return NULL;
}

static int check_order(struct cart_consistency *c, const struct cart_payload *p, const char *what,
                       struct cart_err *err)
{
    const char *split = json_string_value(json_object_get(p->fields, "split"));
    unsigned long long n = number(p, "n"), last = c->order.last;
    bool any = c->order.any;
    const char *fault = cart_conversation_order_fault(&c->order, n, strcmp(split, "held-out") == 0);

    if (fault && !any)
        return broken(c, p, what, err, "n %llu: %s", n, fault);
    return fault ? broken(c, p, what, err, "n %llu after %llu: %s", n, last, fault) : 0;
}

static int check_supervised(const struct cart_consistency *c, const struct cart_payload *p,
                            const char *what, struct cart_err *err)
{
    const struct cart_st_tensor *t = cart_st_find(&p->st, "supervised");
    size_t T = cart_st_find(&p->st, "ids")->shape[0];
    int64_t at = 1; /* nothing stands before the first token to predict it from */

    for (size_t i = 0; i < t->shape[0]; i++) {
        int64_t first = i32_at(t, 2 * i), end = i32_at(t, 2 * i + 1);
        if (first < at || first >= end || (uint64_t)end > T)
            return broken(c, p, what, err,
                          "supervised: range %zu: expected rising ranges within 1 and %zu", i, T);
        at = end;
    }
    return 0;
}

/* rows lists exactly the supervised positions. */
static int check_rows(const struct cart_consistency *c, const struct cart_payload *p,
                      const char *what, struct cart_err *err)
{
    const struct cart_st_tensor *s = cart_st_find(&p->st, "supervised");
    const struct cart_st_tensor *rows = cart_st_find(&p->st, "rows");
    size_t k = 0;

    for (size_t i = 0; i < s->shape[0]; i++)
        for (int32_t at = i32_at(s, 2 * i); at < i32_at(s, 2 * i + 1); at++, k++)
            if (k >= rows->shape[0] || i32_at(rows, k) != at)
                return broken(c, p, what, err, "rows: value %zu: expected position %d", k, at);
    if (k != rows->shape[0])
        return broken(c, p, what, err, "rows: expected the %zu supervised positions, found %zu", k,
                      rows->shape[0]);
    return 0;
}

static int compare_ids(const void *a, const void *b)
{
    int32_t x, y;

    memcpy(&x, a, sizeof x);
    memcpy(&y, b, sizeof y);
    return (x > y) - (x < y);
}

/* Sorted, since a few compressed bytes can claim many rows of CART_TARGET_ROW_MAX entries. */
static bool id_twice(const unsigned char *ids, size_t n)
{
    int32_t sorted[CART_TARGET_ROW_MAX];

    memcpy(sorted, ids, n * sizeof *sorted);
    qsort(sorted, n, sizeof *sorted, compare_ids);
    for (size_t i = 1; i < n; i++)
        if (sorted[i - 1] == sorted[i])
            return true;
    return false;
}

const char *cart_target_row_fault(const void *ids, const void *logprobs, size_t n, float entropy)
{
    const unsigned char *q = logprobs;
    float last = 0.0f, x;
    double mass = 0, h = 0;

    if (n > CART_TARGET_ROW_MAX)
        return "offsets: more than 4096 entries in a row";
    for (size_t i = 0; i < n; i++, last = x) {
        memcpy(&x, q + 4 * i, sizeof x);
        if (!(x <= last) || x < -1e30f)
            return "logprobs: expected falling ones of at most 0 in a row";
        mass += exp((double)x);
        h -= exp((double)x) * (double)x;
    }
    if (id_twice(ids, n))
        return "target_ids: a token occurs twice in a row";
    if (mass > CART_TARGET_MASS_MAX)
        return "logprobs: probabilities of more than 1 together in a row";
    if (!(entropy >= 0.0f && fabs((double)entropy - h) <= CART_TARGET_ENTROPY_APART))
        return "entropy: expected that of the row's entries";
    return NULL;
}

static int check_entries(const struct cart_consistency *c, const struct cart_payload *p,
                         const char *what, struct cart_err *err)
{
    const struct cart_st_tensor *offsets = cart_st_find(&p->st, "offsets");
    const struct cart_st_tensor *logprobs = cart_st_find(&p->st, "logprobs");
    const struct cart_st_tensor *ids = cart_st_find(&p->st, "target_ids");
    const struct cart_st_tensor *entropy = cart_st_find(&p->st, "entropy");
    size_t R = cart_st_find(&p->st, "rows")->shape[0], E = logprobs->shape[0];

    if (offsets->shape[0] != R + 1 || entropy->shape[0] != R || ids->shape[0] != E)
        return broken(c, p, what, err, "the lengths of its target tensors disagree");
    if (i32_at(offsets, 0) != 0 || i32_at(offsets, R) < 0 || (size_t)i32_at(offsets, R) != E)
        return broken(c, p, what, err, "offsets: expected 0 first and %zu last", E);
    for (size_t i = 0; i < R; i++) {
        int32_t first = i32_at(offsets, i), end = i32_at(offsets, i + 1);
        if (first > end || (size_t)end > E)
            return broken(c, p, what, err, "offsets: value %zu: expected rising ones", i + 1);
        const char *fault =
            cart_target_row_fault((const unsigned char *)ids->data + 4 * (size_t)first,
                                  (const unsigned char *)logprobs->data + 4 * (size_t)first,
                                  (size_t)(end - first), f32_at(entropy, i));
        if (fault)
            return broken(c, p, what, err, "row %zu: %s", i, fault);
    }
    return 0;
}

static int add_conversation(struct cart_consistency *c, const struct cart_payload *p,
                            const char *what, struct cart_err *err)
{
    int r;

    if ((r = check_order(c, p, what, err)) < 0 || (r = check_place(c, p, what, err)) < 0 ||
        (r = check_ids(c, p, "ids", what, err)) < 0 || (r = check_supervised(c, p, what, err)) < 0)
        return r;
    if (strcmp(p->desc->type, "TARG") != 0)
        return 0;
    if ((r = check_ids(c, p, "target_ids", what, err)) < 0 || (r = check_rows(c, p, what, err)) < 0)
        return r;
    return check_entries(c, p, what, err);
}

int cart_consistency_new(struct cart_consistency **out, const struct cart_kind *kind,
                         const json_t *head, struct cart_err *err)
{
    struct cart_consistency *c = calloc(1, sizeof *c);

    if (c == NULL)
        return cart_err_memory(err, "the checker", sizeof *c);
    c->kind = kind;
    cart_conversation_order_init(&c->order, head);
    *out = c;
    return 0;
}

int cart_consistency_add(struct cart_consistency *c, const struct cart_payload *p, const char *what,
                         struct cart_err *err)
{
    int r = 0;

    if (strcmp(p->desc->type, "DOC ") == 0)
        r = add_doc(c, p, what, err);
    else if (strcmp(p->desc->type, "CONV") == 0 || strcmp(p->desc->type, "TARG") == 0)
        r = add_conversation(c, p, what, err);
    c->records++;
    return r;
}

int cart_consistency_end(const struct cart_consistency *c, const char *what, struct cart_err *err)
{
    if (c->kind->of_model && c->n_docs == 0)
        return cart_err_set(err, CART_EFORMAT, "%s: expected documents, found none", what);
    return 0;
}

void cart_consistency_free(struct cart_consistency *c)
{
    if (c == NULL)
        return;
    free(c->doc_tokens);
    free(c);
}
