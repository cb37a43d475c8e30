#include "serve/calls.h"

#include "base/json.h"

#include <stdlib.h>
#include <string.h>

/* Bytes up to the arguments that are read as they come: each token has them read again. */
#define HEAD_MAX ((size_t)4096)

static bool blank(char c)
{
    return c == ' ' || c == '\n' || c == '\t' || c == '\r';
}

/* A place in the text: each step moves it past what it expects. 1: done, 0: the text ends first,
 * -1: something else is there. */
struct place {
    const char *p, *end;
};

static int literal(struct place *at, const char *word)
{
    while (at->p < at->end && blank(*at->p))
        at->p++;
    for (; *word; word++, at->p++) {
        if (at->p == at->end)
            return 0;
        if (*at->p != *word)
            return -1;
    }
    return 1;
}

/* A string with its quotes, from begin to at. */
static int string(struct place *at, const char **begin)
{
    int r = literal(at, "\"");
    *begin = at->p - 1;
    if (r <= 0)
        return r;
    for (; at->p < at->end; at->p++) {
        if (*at->p == '\\' && at->p + 1 < at->end)
            at->p++;
        else if (*at->p == '"') {
            at->p++;
            return 1;
        }
    }
    return 0;
}

static int head(struct cart_call_scan *s, struct cart_err *err)
{
    static const char *const words[] = {"{", "\"name\"", ":", NULL, ",", "\"arguments\"", ":", "{"};
    struct place at = {s->text.data, s->text.data + s->text.len};
    const char *name = NULL, *name_end = NULL;
    for (size_t i = 0; i < CART_COUNTOF(words); i++) {
        int r = words[i] ? literal(&at, words[i]) : string(&at, &name);
        s->foreign = r < 0;
        if (r <= 0)
            return 0;
        if (!words[i])
            name_end = at.p;
    }
    json_t *v = NULL;
    int r = cart_json_parse(&v, name, (size_t)(name_end - name), "name", err);
    if (r == CART_ESYS)
        return r;
    if (r < 0 || json_string_length(v) == 0) {
        s->foreign = true;
        json_decref(v);
        return 0;
    }
    r = cart_buf_add(&s->name, json_string_value(v), json_string_length(v), err);
    json_decref(v);
    s->at = (size_t)(at.p - 1 - s->text.data);
    s->seen = s->at;
    return r;
}

/* Moves seen over the arguments, up to the brace that closes them. */
static void follow(struct cart_call_scan *s)
{
    for (; s->seen < s->text.len && !s->complete; s->seen++) {
        char c = s->text.data[s->seen];
        if (s->quoted) {
            s->quoted = s->escaped || c != '"';
            s->escaped = !s->escaped && c == '\\';
        } else if (c == '"') {
            s->quoted = true;
        } else if (c == '{' || c == '[') {
            s->depth++;
        } else if ((c == '}' || c == ']') && s->depth > 0) {
            s->complete = --s->depth == 0;
        }
    }
}

int cart_call_push(struct cart_call_scan *s, const char *text, size_t n, struct cart_call_delta *d,
                   struct cart_err *err)
{
    *d = (struct cart_call_delta){false, NULL, 0};
    int r = n ? cart_buf_add(&s->text, text, n, err) : 0;
    if (r < 0 || s->foreign)
        return r;
    if (s->at == 0) {
        r = head(s, err);
        s->foreign |= s->at == 0 && s->text.len > HEAD_MAX;
        if (r < 0 || s->at == 0)
            return r;
        d->begun = true;
    }
    size_t from = s->seen;
    follow(s);
    d->arguments = s->text.data + from;
    d->n = s->seen - from;
    return 0;
}

/* The call as JSON in any order; its arguments in canonical form replace the text. */
static bool whole(struct cart_call_scan *s, struct cart_call_delta *d)
{
    json_t *v = NULL;
    if (cart_json_parse(&v, s->text.data, s->text.len, "call", NULL) < 0)
        return false;
    const json_t *name = json_object_get(v, "name"), *arguments = json_object_get(v, "arguments");
    struct cart_buf b = CART_BUF_INIT;
    bool ok = json_is_string(name) && json_string_length(name) > 0;
    if (ok && json_is_string(arguments))
        ok = cart_buf_add(&b, json_string_value(arguments), json_string_length(arguments), NULL) ==
             0;
    else if (ok)
        ok = json_is_object(arguments) ? cart_json_dump(arguments, &b, NULL) == 0
                                       : arguments == NULL && cart_buf_add(&b, "{}", 2, NULL) == 0;
    ok = ok && cart_buf_add(&s->name, json_string_value(name), json_string_length(name), NULL) == 0;
    json_decref(v);
    if (!ok) {
        cart_buf_release(&b);
        return false;
    }
    cart_buf_release(&s->text);
    s->text = b;
    *d = (struct cart_call_delta){true, s->text.data, s->text.len};
    return true;
}

bool cart_call_finish(struct cart_call_scan *s, bool closed, struct cart_call_delta *d)
{
    *d = (struct cart_call_delta){false, NULL, 0};
    if (s->at > 0)
        return true;
    return closed && s->text.len > 0 && whole(s, d);
}

void cart_call_reset(struct cart_call_scan *s)
{
    struct cart_buf text = s->text, name = s->name;
    cart_buf_reset(&text);
    cart_buf_reset(&name);
    *s = (struct cart_call_scan){.text = text, .name = name};
}

void cart_call_release(struct cart_call_scan *s)
{
    cart_buf_release(&s->text);
    cart_buf_release(&s->name);
    *s = (struct cart_call_scan){0};
}
