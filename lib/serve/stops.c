#include "serve/stops.h"

#include <stdlib.h>
#include <string.h>

/* After Knuth, Morris and Pratt. border[j]: how many bytes of the beginning of the stop string its
 * first j + 1 bytes end with, all of them excepted. */
static void find_borders(uint16_t *border, struct cart_text stop)
{
    size_t k = 0;
    border[0] = 0;
    for (size_t j = 1; j < stop.n; j++) {
        while (k > 0 && stop.data[j] != stop.data[k])
            k = border[k - 1];
        k += stop.data[j] == stop.data[k];
        border[j] = (uint16_t)k;
    }
}

static int make_borders(struct cart_stop_scan *s, const struct cart_stops *stops,
                        struct cart_err *err)
{
    size_t total = 0, at = 0;
    for (size_t i = 0; i < stops->n; i++)
        total += stops->items[i].n;
    s->borders = malloc(total * sizeof *s->borders);
    if (!s->borders)
        return cart_err_memory(err, "stop strings", total * sizeof *s->borders);
    for (size_t i = 0; i < stops->n; at += stops->items[i++].n)
        find_borders(s->borders + at, stops->items[i]);
    return 0;
}

/* How many bytes of the stop string a text ends with after one more, where it ended with k < n. */
static size_t agree(const uint16_t *border, struct cart_text stop, size_t k, char c, size_t *steps)
{
    for (; k > 0 && stop.data[k] != c; k = border[k - 1])
        ++*steps;
    ++*steps;
    return k + (stop.data[k] == c);
}

/* One more byte: the length of the longest stop string that is whole with it, or 0. *part: how much
 * of the text's end may be the beginning of one. */
static size_t scan(struct cart_stop_scan *s, const struct cart_stops *stops, char c, size_t *part)
{
    const uint16_t *border = s->borders;
    size_t whole = 0;
    *part = 0;
    for (size_t i = 0; i < stops->n; border += stops->items[i++].n) {
        size_t k = agree(border, stops->items[i], s->agreed[i], c, &s->steps);
        if (k == stops->items[i].n && k > whole)
            whole = k;
        s->agreed[i] = k;
        *part = k > *part ? k : *part;
    }
    return whole;
}

int cart_stop_push(struct cart_stop_scan *s, const struct cart_stops *stops, const char *text,
                   size_t n, struct cart_buf *out, bool *hit, struct cart_err *err)
{
    *hit = false;
    if (stops->n == 0)
        return n ? cart_buf_add(out, text, n, err) : 0;
    int r = s->borders ? 0 : make_borders(s, stops, err);
    size_t at = s->held.len, whole = 0, part = 0;
    if (r == 0 && n)
        r = cart_buf_add(&s->held, text, n, err);
    if (r < 0 || n == 0)
        return r;
    while (at < s->held.len && whole == 0)
        whole = scan(s, stops, s->held.data[at++], &part);
    *hit = whole > 0;
    if (*hit)
        memset(s->agreed, 0, sizeof s->agreed);
    size_t show = at - (*hit ? whole : part);
    if (show > 0 && (r = cart_buf_add(out, s->held.data, show, err)) < 0)
        return r;
    size_t keep = *hit ? 0 : part;
    if (keep > 0)
        memmove(s->held.data, s->held.data + show, keep);
    s->held.len = keep;
    return 0;
}

int cart_stop_flush(struct cart_stop_scan *s, struct cart_buf *out, struct cart_err *err)
{
    int r = s->held.len ? cart_buf_add(out, s->held.data, s->held.len, err) : 0;
    cart_buf_reset(&s->held);
    memset(s->agreed, 0, sizeof s->agreed);
    return r;
}

void cart_stop_release(struct cart_stop_scan *s)
{
    cart_buf_release(&s->held);
    free(s->borders);
    s->borders = NULL;
}
