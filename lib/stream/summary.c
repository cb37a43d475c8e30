#include "stream/summary.h"

#include "stream/consistency.h"

#include <stdio.h>
#include <string.h>

struct counts {
    uint64_t docs, tokens, bytes;
    uint64_t conversations, held_out, ids, supervised, entries;
    uint64_t others;
};

int cart_summary_line(struct cart_buf *out, struct cart_err *err, const char *label,
                      const char *fmt, ...)
{
    char text[512], safe[1024];
    va_list ap;

    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    return cart_buf_addf(out, err, "  %-14s %s\n", label,
                         cart_err_escape(safe, sizeof safe, text, strlen(text)));
}

/* A few digits tell two fingerprints apart. */
static const char *short_of(const json_t *fingerprints, const char *prefix, const char *name,
                            char out[12])
{
    char key[40];

    snprintf(key, sizeof key, "%s%s", prefix, name);
    const char *s = json_string_value(json_object_get(fingerprints, key));
    snprintf(out, 12, "%.8s", s && *s ? s : "none");
    return out;
}

int cart_summary_model(struct cart_buf *out, const json_t *fingerprints, const char *prefix,
                       struct cart_err *err)
{
    char g[12], t[12], c[12], w[12];

    if (fingerprints == NULL)
        return 0;
    return cart_summary_line(out, err, "model",
                             "geometry %s, tokenizer %s, template %s, weights %s",
                             short_of(fingerprints, prefix, "geometry", g),
                             short_of(fingerprints, prefix, "tokenizer", t),
                             short_of(fingerprints, prefix, "template", c),
                             short_of(fingerprints, prefix, "weights", w));
}

int cart_summary_history(struct cart_buf *out, const json_t *history, struct cart_err *err)
{
    int r = 0;

    for (size_t i = 0; i < json_array_size(history) && r == 0; i++) {
        const json_t *stage = json_array_get(history, i);
        const char *tool = json_string_value(json_object_get(stage, "tool"));
        const char *version = json_string_value(json_object_get(stage, "version"));
        const json_t *seed = json_object_get(stage, "seed");
        char seeded[40] = "";
        if (json_is_integer(seed))
            snprintf(seeded, sizeof seeded, ", seed %lld", (long long)json_integer_value(seed));
        r = cart_summary_line(out, err, i == 0 ? "history" : "", "%s %s%s", tool ? tool : "?",
                              version ? version : "", seeded);
    }
    return r;
}

static uint64_t sum_of(const json_t *fields, const char *key)
{
    return (uint64_t)json_integer_value(json_object_get(fields, key));
}

static void count(struct counts *c, const struct cart_payload *p)
{
    const struct cart_st_tensor *t = cart_st_find(&p->st, "tokens");

    if (t != NULL) {
        c->docs++;
        c->tokens += t->shape[0];
        c->bytes += sum_of(p->fields, "bytes");
        return;
    }
    if ((t = cart_st_find(&p->st, "ids")) == NULL) {
        c->others++;
        return;
    }
    c->conversations++;
    c->held_out += strcmp(json_string_value(json_object_get(p->fields, "split")), "held-out") == 0;
    c->ids += t->shape[0];
    t = cart_st_find(&p->st, "supervised");
    for (size_t i = 0; i < t->shape[0]; i++) {
        int32_t range[2];
        memcpy(range, (const char *)t->data + i * sizeof range, sizeof range);
        c->supervised += (uint64_t)(range[1] - range[0]);
    }
    if ((t = cart_st_find(&p->st, "target_ids")) != NULL)
        c->entries += t->shape[0];
}

static int read_all(struct counts *c, struct cart_stream_reader *reader, struct cart_err *err)
{
    const char *what = cart_stream_name(reader);
    const struct cart_kind *kind = cart_kind_find(cart_stream_kind(reader));
    struct cart_consistency *check = NULL;
    struct cart_record rec;
    int r = cart_consistency_new(&check, kind, cart_stream_head(reader), err);

    while (r == 0 && (r = cart_stream_read(reader, &rec, err)) == 1) {
        struct cart_payload p;
        if ((r = cart_payload_parse(&p, kind, &rec, what, err)) < 0)
            break;
        if ((r = cart_consistency_add(check, &p, what, err)) == 0)
            count(c, &p);
        cart_payload_release(&p);
    }
    if (r == 0)
        r = cart_consistency_end(check, what, err);
    cart_consistency_free(check);
    return r;
}

static int put_conversations(struct cart_buf *out, const struct counts *c, const json_t *head,
                             struct cart_err *err)
{
    unsigned long long planned = sum_of(head, "conversations");
    char text[80] = "", entries[60] = "";

    if (planned > 0)
        snprintf(text, sizeof text, " of %llu planned", planned);
    if (c->entries > 0)
        snprintf(entries, sizeof entries, ", %llu targets", (unsigned long long)c->entries);
    return cart_summary_line(
        out, err, "conversations", "%llu%s, %llu held out; %llu tokens, %llu supervised%s",
        (unsigned long long)c->conversations, text, (unsigned long long)c->held_out,
        (unsigned long long)c->ids, (unsigned long long)c->supervised, entries);
}

int cart_summary_stream(struct cart_buf *out, struct cart_stream_reader *reader,
                        struct cart_err *err)
{
    const json_t *head = cart_stream_head(reader);
    const char *kind = cart_stream_kind(reader);
    struct counts c = {0};
    int r = read_all(&c, reader, err);

    if (r == 0)
        r = cart_buf_addf(out, err, "%s: %s stream, whole\n", cart_stream_name(reader), kind);
    if (r == 0 && c.docs > 0)
        r = cart_summary_line(out, err, "documents", "%llu; %llu tokens, %llu bytes",
                              (unsigned long long)c.docs, (unsigned long long)c.tokens,
                              (unsigned long long)c.bytes);
    if (r == 0 && (strcmp(kind, "conversations") == 0 || strcmp(kind, "targets") == 0))
        r = put_conversations(out, &c, head, err);
    if (r == 0 && c.others > 0)
        r = cart_summary_line(out, err, "records", "%llu", (unsigned long long)c.others);
    if (r == 0)
        r = cart_summary_model(out, json_object_get(head, "model"), "", err);
    return r < 0 ? r : cart_summary_history(out, json_object_get(head, "history"), err);
}
