#include "serve/stops.h"

#include <string.h>

/* Whether the text from at agrees with the stop string as far as both go. */
static bool agrees(const struct cart_buf *text, size_t at, struct cart_text stop)
{
    size_t n = text->len - at < stop.n ? text->len - at : stop.n;
    return memcmp(text->data + at, stop.data, n) == 0;
}

int cart_stop_push(struct cart_stop_scan *s, const struct cart_stops *stops, const char *text,
                   size_t n, struct cart_buf *out, bool *hit, struct cart_err *err)
{
    *hit = false;
    if (stops->n == 0)
        return n ? cart_buf_add(out, text, n, err) : 0;
    int r = n ? cart_buf_add(&s->held, text, n, err) : 0;
    if (r < 0)
        return r;
    size_t whole = s->held.len, part = s->held.len;
    for (size_t at = 0; at < s->held.len && whole == s->held.len; at++)
        for (size_t i = 0; i < stops->n; i++) {
            if (!agrees(&s->held, at, stops->items[i]))
                continue;
            if (s->held.len - at >= stops->items[i].n)
                whole = at;
            else if (at < part)
                part = at;
        }
    *hit = whole < s->held.len;
    size_t show = *hit ? whole : part;
    if (show > 0 && (r = cart_buf_add(out, s->held.data, show, err)) < 0)
        return r;
    size_t keep = *hit ? 0 : s->held.len - show;
    if (keep > 0)
        memmove(s->held.data, s->held.data + show, keep);
    s->held.len = keep;
    return 0;
}

int cart_stop_flush(struct cart_stop_scan *s, struct cart_buf *out, struct cart_err *err)
{
    int r = s->held.len ? cart_buf_add(out, s->held.data, s->held.len, err) : 0;
    cart_buf_reset(&s->held);
    return r;
}

void cart_stop_release(struct cart_stop_scan *s)
{
    cart_buf_release(&s->held);
}
