#include "study/train_state.h"

#include "base/hash.h"
#include "base/io.h"
#include "stream/kinds.h"
#include "stream/safetensors.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#define STATE_VERSION "4"
#define SUM_OF "cart.sum." /* before the name of a tensor */

static struct cart_st_tensor tensor(const char *name, enum cart_st_dtype dtype, const void *data,
                                    size_t n)
{
    struct cart_st_tensor t = {.name = name,
                               .dtype = dtype,
                               .rank = 1,
                               .data = data,
                               .bytes = n * cart_st_dtype_size(dtype)};
    t.shape[0] = n;
    return t;
}

static json_t *number(uint64_t v)
{
    char text[24];
    snprintf(text, sizeof text, "%llu", (unsigned long long)v);
    return json_string(text);
}

/* The digest of all members but the digest itself, as canonical JSON. */
static int metadata_digest(const json_t *metadata, char out[33], struct cart_err *err)
{
    struct cart_buf text = CART_BUF_INIT;
    json_t *rest = cart_json_copy(metadata);
    unsigned char hash[16];
    int r = rest ? 0 : cart_err_memory(err, "state", 0);
    json_object_del(rest, "cart.sum");
    if (r == 0 && (r = cart_json_dump(rest, &text, err)) == 0) {
        cart_hash_bytes(text.data, text.len, hash);
        cart_hex(out, hash, sizeof hash);
    }
    json_decref(rest);
    cart_buf_release(&text);
    return r;
}

static int metadata_of(json_t **out, const struct cart_train_state *s, const json_t *identity,
                       const struct cart_st_tensor *tensors, size_t n, struct cart_err *err)
{
    struct cart_buf text = CART_BUF_INIT;
    json_t *m = NULL;
    char key[32], sum[33];
    int r = cart_json_dump(identity, &text, err);
    if (r < 0)
        goto out;
    m = json_pack("{s:s, s:o, s:o, s:o, s:o, s:s, s:s%}", "cart.optimizer", STATE_VERSION,
                  "cart.step", number(s->step), "cart.taken", number(s->mark.taken), "cart.read",
                  number(s->mark.read), "cart.ended", number(s->mark.ended), "cart.digest",
                  s->mark.digest, "cart.identity", text.data, text.len);
    if (!m)
        r = cart_err_memory(err, "state", text.len);
    for (size_t i = 0; i < n && r == 0; i++) {
        snprintf(key, sizeof key, SUM_OF "%s", tensors[i].name);
        if ((r = cart_st_digest(&tensors[i], 1, sum, err)) == 0 &&
            json_object_set_new(m, key, json_string(sum)) != 0)
            r = cart_err_memory(err, "state", 0);
    }
    if (r == 0 && (r = metadata_digest(m, sum, err)) == 0 &&
        json_object_set_new(m, "cart.sum", json_string(sum)) != 0)
        r = cart_err_memory(err, "state", 0);
out:
    cart_buf_release(&text);
    if (r < 0)
        json_decref(m);
    else
        *out = m;
    return r;
}

/* No row or moment that a run could go on from has another value. A second moment may have left the
 * range of f32: then its value stays where it is. */
static int check_values(const char *name, const void *data, size_t n, const char *what,
                        struct cart_err *err)
{
    bool moment2 = strcmp(name, "moment2") == 0;
    for (size_t i = 0; i < n; i++) {
        float x;
        memcpy(&x, (const char *)data + i * sizeof x, sizeof x);
        if (moment2 ? !(x >= 0) : !isfinite(x))
            return cart_err_set(err, CART_EFORMAT,
                                "%s: tensor %s: value %zu: expected %s, found %g", what, name, i,
                                moment2 ? "at least 0" : "a finite number", (double)x);
    }
    return 0;
}

int cart_train_state_save(const char *path, const struct cart_trainable *t,
                          const struct cart_train_state *state, const json_t *identity,
                          struct cart_err *err)
{
    struct cart_output out;
    json_t *metadata;
    const struct cart_st_tensor tensors[] = {
        tensor("metrics", CART_ST_U8, state->metrics.data, state->metrics.len),
        tensor("moment1", CART_ST_F32, t->m, t->n),
        tensor("moment2", CART_ST_F32, t->v, t->n),
        tensor("rows", CART_ST_F32, t->x, t->n),
        tensor("sink", CART_ST_F32, t->sink, t->n_sink),
    };
    int r;
    /* In the place of the last good state. */
    if ((r = check_values("rows", t->x, t->n, path, err)) < 0 ||
        (r = metadata_of(&metadata, state, identity, tensors, CART_COUNTOF(tensors), err)) < 0)
        return r;
    if ((r = cart_output_open(&out, path, false, err)) == 0) {
        if ((r = cart_st_write(out.fd, tensors, CART_COUNTOF(tensors), metadata, path, err)) < 0)
            cart_output_abandon(&out);
        else
            r = cart_output_commit(&out, err);
    }
    json_decref(metadata);
    return r;
}

static int match_identity(const json_t *now, const json_t *then, struct cart_err *err)
{
    struct cart_buf why = CART_BUF_INIT;
    int r = cart_json_difference(then, now, &why, err);
    if (r == 1)
        r = cart_err_set(err, CART_EMATCH,
                         "it was begun with other inputs or options: %s; remove it to begin anew",
                         why.data);
    cart_buf_release(&why);
    return r;
}

static int get_number(const json_t *metadata, const char *key, uint64_t *out, const char *what,
                      struct cart_err *err)
{
    const char *s = cart_json_word(json_object_get(metadata, key));
    char text[24], shown[40];
    if (!s)
        s = "nothing";
    *out = strtoull(s, NULL, 10);
    snprintf(text, sizeof text, "%llu", (unsigned long long)*out);
    if (strcmp(s, text) != 0)
        return cart_err_set(err, CART_EFORMAT, "%s: %s: expected a number, found %s", what, key,
                            cart_err_escape(shown, sizeof shown, s, strlen(s)));
    return 0;
}

/* part against the digest that the metadata has under key. */
static int check_sum(const json_t *metadata, const char *key, const char *found, const char *what,
                     const char *part, struct cart_err *err)
{
    const char *sum = json_string_value(json_object_get(metadata, key));
    if (sum && strcmp(sum, found) == 0)
        return 0;
    return cart_err_set(err, CART_EFORMAT,
                        "%s: %s: expected the digest %.32s, found %s: the file is damaged", what,
                        part, sum ? sum : "none", found);
}

bool cart_train_state_is(const struct cart_st *st)
{
    return json_object_get(st->metadata, "cart.optimizer") != NULL;
}

/* Metadata and every tensor as they were written: a run that goes on from a flipped bit would end
 * well and be wrong. */
static int check_digests(const struct cart_st *st, const char *what, struct cart_err *err)
{
    char key[80], part[80], sum[33];
    int r = metadata_digest(st->metadata, sum, err);
    if (r < 0 || (r = check_sum(st->metadata, "cart.sum", sum, what, "metadata", err)) < 0)
        return r;
    for (size_t i = 0; i < st->n && r == 0; i++) {
        char shown[60];
        const char *name = st->tensors[i].name;
        cart_err_escape(shown, sizeof shown, name, strlen(name));
        snprintf(key, sizeof key, SUM_OF "%s", shown);
        snprintf(part, sizeof part, "tensor %s", shown);
        if ((r = cart_st_digest(&st->tensors[i], 1, sum, err)) == 0)
            r = check_sum(st->metadata, key, sum, what, part, err);
    }
    return r;
}

/* Where a run of that identity can be: it has taken a group a step, and what it has not read it
 * took only of a stream that had ended. */
static int check_place(const struct cart_train_state *s, const json_t *identity, const char *what,
                       struct cart_err *err)
{
    uint64_t steps = 0, accum = 1;
    const json_t *recipe = json_object_get(identity, "recipe");
    int r;
    if ((r = cart_json_u64(recipe, "steps", INT64_MAX, &steps, "recipe", err)) < 0 ||
        (r = cart_json_u64(recipe, "accum", INT64_MAX, &accum, "recipe", err)) < 0)
        return cart_err_wrap(err, r, "%s: cart.identity", what);
    if (s->step < 1 || s->step > steps)
        return cart_err_set(err, CART_EFORMAT, "%s: cart.step: expected 1 to %llu, found %llu",
                            what, (unsigned long long)steps, (unsigned long long)s->step);
    if (accum < 1 || s->mark.taken % accum != 0 || s->mark.taken / accum != s->step)
        return cart_err_set(err, CART_EFORMAT,
                            "%s: cart.taken: expected %llu conversations for each of %llu steps, "
                            "found %llu in all",
                            what, (unsigned long long)accum, (unsigned long long)s->step,
                            (unsigned long long)s->mark.taken);
    if (s->mark.read < 1 || (s->mark.taken > s->mark.read && !s->mark.ended))
        return cart_err_set(err, CART_EFORMAT,
                            "%s: cart.read: expected the %llu conversations taken, or the end of "
                            "the stream, found %llu",
                            what, (unsigned long long)s->mark.taken,
                            (unsigned long long)s->mark.read);
    return 0;
}

/* One line of the metrics: *step counts those of steps, *held tells whether the one before was an
 * evaluation. */
static int check_line(const char *line, size_t n, uint64_t *step, bool *held, const char *part,
                      struct cart_err *err)
{
    const struct cart_kind_record *of = &cart_kind_find("metrics")->records[0];
    json_t *v = NULL;
    int r = cart_json_parse(&v, line, n, part, err);
    if (r == 0)
        r = cart_fields_check(v, of->fields, of->n_fields, part, CART_EFORMAT, err);
    if (r == 0) {
        const char *split = json_string_value(json_object_get(v, "split"));
        uint64_t found = (uint64_t)json_integer_value(json_object_get(v, "step"));
        bool train = strcmp(split, "train") == 0;
        *step += train;
        if (found != *step || (!train && *held))
            r = cart_err_set(err, CART_EFORMAT, "%s: expected step %llu, found %s of step %llu",
                             part, (unsigned long long)*step + (!train && *held), split,
                             (unsigned long long)found);
        *held = !train;
    }
    json_decref(v);
    return r;
}

/* Whether the lines are those of a run that is at step: each step in turn, with evaluations
 * between. */
static int check_metrics(const struct cart_st_tensor *lines, uint64_t step, const char *what,
                         struct cart_err *err)
{
    const char *p = lines->data, *end = p + lines->bytes;
    uint64_t reached = 0;
    bool held = false;
    char part[320];
    int r = 0;
    for (size_t number = 1; p < end && r == 0; number++) {
        const char *newline = memchr(p, '\n', (size_t)(end - p));
        snprintf(part, sizeof part, "%.256s: tensor metrics: line %zu", what, number);
        if (!newline)
            return cart_err_set(err, CART_EFORMAT, "%s: expected its end, found none", part);
        r = check_line(p, (size_t)(newline - p), &reached, &held, part, err);
        p = newline + 1;
    }
    if (r == 0 && reached != step)
        r = cart_err_set(err, CART_EFORMAT, "%s: tensor metrics: expected %llu steps, found %llu",
                         what, (unsigned long long)step, (unsigned long long)reached);
    return r;
}

/* Rows and moments, and as many of one as of the other. */
static int check_floats(const struct cart_st *st, const char *what, struct cart_err *err)
{
    static const char *const names[] = {"rows", "moment1", "moment2", "sink"};
    const struct cart_st_tensor *t, *rows = NULL;
    int r = 0;
    for (size_t i = 0; i < CART_COUNTOF(names) && r == 0; i++) {
        if ((r = cart_st_expect(st, names[i], CART_ST_F32, 1, &t, what, err)) < 0)
            return r;
        rows = i == 0 ? t : rows;
        if (i < 3 && t->shape[0] != rows->shape[0])
            return cart_err_set(err, CART_EFORMAT,
                                "%s: tensor %s: expected %zu values as in rows, found %zu", what,
                                names[i], rows->shape[0], t->shape[0]);
        r = check_values(names[i], t->data, t->shape[0], what, err);
    }
    return r;
}

/* All but rows and moments: s->metrics is left alone. New reference to identity. */
static int read_state(const struct cart_st *st, struct cart_train_state *s, json_t **identity,
                      const char *what, struct cart_err *err)
{
    const char *version = cart_json_word(json_object_get(st->metadata, "cart.optimizer"));
    const char *then = cart_json_word(json_object_get(st->metadata, "cart.identity"));
    const char *digest = cart_json_word(json_object_get(st->metadata, "cart.digest"));
    const struct cart_st_tensor *lines;
    json_t *of = NULL;
    uint64_t ended;
    int r;
    if (!version || !then || !digest || strlen(digest) != 32)
        return cart_err_set(err, CART_EFORMAT, "%s: not the state of a training run", what);
    if (strcmp(version, STATE_VERSION) != 0) {
        char shown[40];
        return cart_err_set(err, CART_EFORMAT,
                            "%s: state version %s, this program reads " STATE_VERSION, what,
                            cart_err_escape(shown, sizeof shown, version, strlen(version)));
    }
    memcpy(s->mark.digest, digest, sizeof s->mark.digest);
    if ((r = check_digests(st, what, err)) < 0 ||
        (r = get_number(st->metadata, "cart.step", &s->step, what, err)) < 0 ||
        (r = get_number(st->metadata, "cart.taken", &s->mark.taken, what, err)) < 0 ||
        (r = get_number(st->metadata, "cart.read", &s->mark.read, what, err)) < 0 ||
        (r = get_number(st->metadata, "cart.ended", &ended, what, err)) < 0)
        return r;
    if (ended > 1)
        return cart_err_set(err, CART_EFORMAT, "%s: cart.ended: expected 0 or 1, found %llu", what,
                            (unsigned long long)ended);
    s->mark.ended = ended == 1;
    if ((r = cart_json_parse(&of, then, strlen(then), what, err)) < 0)
        return r;
    if ((r = check_place(s, of, what, err)) == 0 && (r = check_floats(st, what, err)) == 0 &&
        (r = cart_st_expect(st, "metrics", CART_ST_U8, 1, &lines, what, err)) == 0)
        r = check_metrics(lines, s->step, what, err);
    if (r < 0)
        json_decref(of);
    else
        *identity = of;
    return r;
}

int cart_train_state_check(const struct cart_st *st, const char *what, struct cart_err *err)
{
    struct cart_train_state s = {.step = 0};
    json_t *identity = NULL;
    int r = read_state(st, &s, &identity, what, err);
    json_decref(identity);
    return r;
}

/* Into out [n]. */
static int get_floats(const struct cart_st *st, const char *name, float *out, size_t n,
                      const char *what, struct cart_err *err)
{
    const struct cart_st_tensor *t = cart_st_find(st, name);
    if (t->shape[0] != n)
        return cart_err_set(err, CART_EFORMAT, "%s: tensor %s: expected %zu values, found %zu",
                            what, name, n, t->shape[0]);
    if (n > 0)
        memcpy(out, t->data, n * sizeof *out);
    return 0;
}

static int load_parsed(const struct cart_st *st, struct cart_trainable *t,
                       struct cart_train_state *s, const json_t *identity, const char *what,
                       struct cart_err *err)
{
    json_t *old = NULL;
    int r = read_state(st, s, &old, what, err);
    if (r == 0 && (r = match_identity(identity, old, err)) < 0)
        cart_err_wrap(err, r, "%s", what);
    json_decref(old);
    if (r < 0 || (r = get_floats(st, "moment1", t->m, t->n, what, err)) < 0 ||
        (r = get_floats(st, "moment2", t->v, t->n, what, err)) < 0 ||
        (r = get_floats(st, "rows", t->x, t->n, what, err)) < 0 ||
        (r = get_floats(st, "sink", t->sink, t->n_sink, what, err)) < 0)
        return r;
    const struct cart_st_tensor *lines = cart_st_find(st, "metrics");
    return cart_buf_add(&s->metrics, lines->data, lines->bytes, err);
}

int cart_train_state_load(const char *path, struct cart_trainable *t,
                          struct cart_train_state *state, const json_t *identity,
                          struct cart_err *err)
{
    struct cart_map map = {NULL, 0};
    struct cart_st st = {0};
    struct stat at;
    /* A link to nothing, or what is not to be reached, is not no state. */
    if (lstat(path, &at) < 0 && errno == ENOENT)
        return 0;
    int r = cart_map_open(&map, path, err);
    if (r < 0)
        return r;
    if ((r = cart_st_parse(&st, map.data, map.size, path, err)) == 0) {
        *state = (struct cart_train_state){.metrics = CART_BUF_INIT};
        r = load_parsed(&st, t, state, identity, path, err);
        cart_st_release(&st);
    }
    cart_map_release(&map);
    return r < 0 ? r : 1;
}
