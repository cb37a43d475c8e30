/* JSON Lines: one object a line, one document an object. */
#include "format/docs_impl.h"

#include "base/json.h"

#include <stdio.h>
#include <string.h>

void cart_lines_begin(struct cart_lines *l, struct cart_source *from)
{
    l->from = from;
    l->number = 0;
    l->ended = false;
    l->pending_pos = 0;
    cart_buf_reset(&l->pending);
}

/* Refills l->pending, which is all consumed; 0 at the end. */
static int refill(struct cart_lines *l, struct cart_err *err)
{
    enum { STEP = 256 << 10 };
    int r = cart_buf_reserve(&l->pending, STEP, err);

    if (r < 0)
        return r;
    ptrdiff_t got = cart_source_read(l->from, l->pending.data, STEP, err);
    if (got < 0)
        return (int)got;
    l->pending.len = (size_t)got;
    l->pending_pos = 0;
    return got > 0;
}

/* One line without its end into l->line, at most cap bytes of it. 1; 0 at the end of the input; 2:
 * it was longer. */
static int read_line(struct cart_lines *l, size_t cap, struct cart_err *err)
{
    bool any = false, longer = false;

    cart_buf_reset(&l->line);
    while (!l->ended) {
        if (l->pending_pos == l->pending.len) {
            int r = refill(l, err);
            if (r < 0)
                return r;
            if (r == 0) {
                l->ended = true;
                break;
            }
        }
        any = true;
        const char *start = l->pending.data + l->pending_pos;
        size_t left = l->pending.len - l->pending_pos;
        const char *end = memchr(start, '\n', left);
        size_t n = end ? (size_t)(end - start) : left;
        longer = longer || n > cap - l->line.len;
        if (!longer) {
            int r = cart_buf_add(&l->line, start, n, err);
            if (r < 0)
                return r;
        }
        l->pending_pos += n + (end != NULL);
        if (end)
            break;
    }
    l->number += any;
    return any ? (longer ? 2 : 1) : 0;
}

int cart_lines_next(struct cart_lines *l, size_t cap, struct cart_err *err)
{
    for (;;) {
        int r = read_line(l, cap, err);
        if (r != 1)
            return r;
        if (l->number == 1 && l->line.len >= 3 && memcmp(l->line.data, "\xef\xbb\xbf", 3) == 0) {
            memmove(l->line.data, l->line.data + 3, l->line.len - 3 + 1);
            l->line.len -= 3;
        }
        if (l->line.len > 0 && strspn(l->line.data, " \t\r") < l->line.len)
            return 1;
    }
}

/* "no object", "another type", or the keys that are there, as many as fit. */
static void found_instead(const json_t *v, bool there, char *out, size_t cap)
{
    const char *key;
    json_t *each,
        *walked = (json_t *)(uintptr_t)v; /* jansson's iterators take no const, but only walk */
    size_t used = 0;

    snprintf(out, cap, "%s", !json_is_object(v) ? "no object" : there ? "another type" : "none");
    if (!json_is_object(v) || there)
        return;
    json_object_foreach(walked, key, each) {
        char shown[40];
        cart_err_escape(shown, sizeof shown, key, strlen(key));
        int n = snprintf(out + used, cap - used, "%s%s", used ? ", " : "only ", shown);
        if (n < 0 || (size_t)n >= cap - used) {
            snprintf(out + used, cap - used, ",...");
            return;
        }
        used += (size_t)n;
    }
}

int cart_lines_document(struct cart_lines *l, const struct cart_docs_options *o, const char **text,
                        size_t *n, const char **id, char scratch[64], char *detail, size_t cap,
                        struct cart_err *err)
{
    const char *field = o->text_field ? o->text_field : "text";
    json_t *v = NULL;
    struct cart_err why;

    json_decref(l->value);
    l->value = NULL;
    int r = cart_json_parse(&v, l->line.data, l->line.len, "", &why);
    if (r == CART_ESYS)
        return cart_err_set(err, r, "%s", why.msg);
    if (r < 0) {
        snprintf(detail, cap, "%s", why.msg);
        return 0;
    }
    l->value = v;
    json_t *t = json_object_get(v, field);
    if (!json_is_string(t)) {
        char found[120];
        found_instead(v, t != NULL, found, sizeof found);
        snprintf(detail, cap, "expected an object with a string \"%s\", found %s", field, found);
        return 0;
    }
    json_t *i = json_object_get(v, o->id_field ? o->id_field : "id");
    scratch[0] = '\0';
    if (json_is_integer(i))
        snprintf(scratch, 64, "%" JSON_INTEGER_FORMAT, json_integer_value(i));
    if (strlen(json_is_string(i) ? json_string_value(i) : "") != json_string_length(i)) {
        snprintf(detail, cap, "expected an id without NUL");
        return 0;
    }
    *id = json_is_string(i) ? json_string_value(i) : scratch;
    *text = json_string_value(t);
    *n = json_string_length(t);
    return 1;
}

int cart_lines_sniff(const char *head, size_t n, const char *text_field, struct cart_err *err)
{
    if (n >= 3 && memcmp(head, "\xef\xbb\xbf", 3) == 0) {
        head += 3;
        n -= 3;
    }
    while (n > 0 && memchr(" \t\r\n", head[0], 4)) {
        head++;
        n--;
    }
    /* Without a line end, the line goes to the end of the input, or further than head: then it is
     * no whole object. */
    const char *end = n > 0 ? memchr(head, '\n', n) : NULL;
    size_t length = end ? (size_t)(end - head) : n;
    json_t *v = NULL;

    struct cart_err why;
    int r = n > 0 && head[0] == '{' ? cart_json_parse(&v, head, length, "", &why) : CART_EFORMAT;
    if (r < 0)
        return r == CART_ESYS ? cart_err_set(err, r, "%s", why.msg) : 0;
    bool found = json_is_string(json_object_get(v, text_field ? text_field : "text"));
    json_decref(v);
    return found;
}

void cart_lines_end(struct cart_lines *l)
{
    json_decref(l->value);
    l->value = NULL;
    l->from = NULL;
}

void cart_lines_release(struct cart_lines *l)
{
    cart_lines_end(l);
    cart_buf_release(&l->line);
    cart_buf_release(&l->pending);
}
