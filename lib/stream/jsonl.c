#include "stream/jsonl.h"

#include "base/io.h"
#include "base/sniff.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MAX_LINE ((size_t)1 << 30)

struct cart_jsonl {
    FILE *in;
    bool owned;
    char *name;
    struct cart_buf line, where;
    unsigned long number;
};

int cart_jsonl_open(struct cart_jsonl **out, const char *path, struct cart_err *err)
{
    bool standard = strcmp(path, "-") == 0;
    struct cart_jsonl *l = calloc(1, sizeof *l);

    if (l == NULL || (l->name = strdup(standard ? "standard input" : path)) == NULL) {
        cart_jsonl_close(l);
        return cart_err_memory(err, "a line reader", sizeof *l);
    }
    l->owned = !standard;
    if ((l->in = standard ? stdin : fopen(path, "rb")) == NULL) {
        cart_err_sys(err, "%s", path);
        cart_jsonl_close(l);
        return CART_ESYS;
    }
    *out = l;
    return 0;
}

/* 1 with a line (its end taken off), 0 at the end of the input. */
static int read_line(struct cart_jsonl *l, struct cart_err *err)
{
    int c, r;

    cart_buf_reset(&l->line);
    cart_buf_reset(&l->where);
    l->number++;
    if ((r = cart_buf_addf(&l->where, err, "%s: line %lu", l->name, l->number)) < 0)
        return r;
    while ((c = getc_unlocked(l->in)) != EOF && c != '\n') {
        if (l->line.len >= MAX_LINE)
            return cart_err_set(err, CART_EFORMAT, "%s: expected at most %zu bytes", l->where.data,
                                MAX_LINE);
        if (l->line.len + 1 >= l->line.cap && (r = cart_buf_reserve(&l->line, 1, err)) < 0)
            return r;
        l->line.data[l->line.len++] = (char)c;
    }
    if (l->line.len > 0)
        l->line.data[l->line.len] = '\0';
    if (ferror(l->in))
        return cart_io_read_failed(l->name, err);
    return c == '\n' || l->line.len > 0;
}

static int parse_line(struct cart_jsonl *l, json_t **v, const char **record, struct cart_err *err)
{
    enum cart_sniff what = cart_sniff(l->line.data, l->line.len);
    json_t *line;
    int r;

    if (what != CART_SNIFF_JSON)
        return cart_err_set(err, CART_EFORMAT, "%s: expected a JSON object, found %s",
                            l->where.data, cart_sniff_name(what));
    /* The tokens of one long document may take more than CART_JSON_MEMORY. */
    if ((r = cart_json_parse_within(&line, l->line.data, l->line.len, CART_JSON_DENSE(l->line.len),
                                    l->where.data, err)) < 0)
        return r;
    if ((r = cart_json_string(line, "record", record, l->where.data, err)) < 0) {
        json_decref(line);
        return r;
    }
    *v = line;
    return 1;
}

int cart_jsonl_next(struct cart_jsonl *l, json_t **v, const char **record, struct cart_err *err)
{
    int r;

    while ((r = read_line(l, err)) == 1)
        if (l->line.len > 0 && strspn(l->line.data, " \t\r") < l->line.len)
            return parse_line(l, v, record, err);
    return r;
}

const char *cart_jsonl_where(const struct cart_jsonl *l)
{
    return l->where.data;
}

void cart_jsonl_close(struct cart_jsonl *l)
{
    if (l == NULL)
        return;
    if (l->owned && l->in != NULL)
        fclose(l->in);
    cart_buf_release(&l->line);
    cart_buf_release(&l->where);
    free(l->name);
    free(l);
}

int cart_jsonl_add(struct cart_buf *line, const char *record, const json_t *fields,
                   struct cart_err *err)
{
    int r = cart_buf_addf(line, err, "{\"record\":\"%s\"", record);
    size_t at = line->len;

    if (r < 0 || (r = cart_json_dump(fields, line, err)) < 0)
        return r;
    if (json_object_size(fields) == 0) {
        line->len = at;
        return cart_buf_add(line, "}", 1, err);
    }
    /* The object's own brace becomes the comma after the record's name. */
    line->data[at] = ',';
    return 0;
}

int cart_jsonl_put(struct cart_buf *line, int fd, const char *out, struct cart_err *err)
{
    int r = cart_buf_add(line, "\n", 1, err);

    if (r == 0 && fd >= 0)
        r = cart_io_write(fd, line->data, line->len, out, err);
    cart_buf_reset(line);
    return r;
}
