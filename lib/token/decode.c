/* From ids to bytes, whole or as they come. */
#include "token/tokenizer_impl.h"
#include "token/unicode.h"

#include <string.h>

static int id_refused(const struct cart_tokenizer *t, uint32_t id, struct cart_err *err)
{
    return cart_err_set(err, CART_EFORMAT, "token id: expected less than %zu, found %u", t->n,
                        (unsigned)id);
}

int cart_tokenizer_decode(const struct cart_tokenizer *t, const uint32_t *ids, size_t n,
                          bool special, struct cart_buf *out, struct cart_err *err)
{
    size_t before = out->len;
    int r = 0;
    for (size_t i = 0; i < n && r == 0; i++) {
        if (ids[i] >= t->n) {
            r = id_refused(t, ids[i], err);
        } else if (special || !cart_tokenizer_is_control(t, ids[i])) {
            struct cart_text s = cart_tokenizer_bytes(t, ids[i]);
            r = cart_buf_add(out, s.data, s.n, err);
        }
    }
    if (r < 0)
        out->len = before;
    return r;
}

void cart_decoder_init(struct cart_decoder *d, const struct cart_tokenizer *t, bool special)
{
    *d = (struct cart_decoder){t, special, {0}, 0};
}

/* Moves what is decided from p [n] to out, U+FFFD for each maximal part that is no character; the
 * number of bytes at the end that may still become one is returned in *rest. */
static int emit(const unsigned char *p, size_t n, struct cart_buf *out, size_t *rest,
                struct cart_err *err)
{
    const unsigned char *end = p + n;
    *rest = 0;
    while (p < end) {
        uint32_t cp;
        size_t want;
        bool cut;
        size_t len = cart_utf8_sequence(p, end, &cp, &want, &cut);
        if (len == 0 && cut) {
            *rest = (size_t)(end - p);
            return 0;
        }
        int r =
            len > 0 ? cart_buf_add(out, p, len, err) : cart_buf_add(out, "\xef\xbf\xbd", 3, err);
        if (r < 0)
            return r;
        p += len > 0 ? len : want;
    }
    return 0;
}

int cart_decoder_push(struct cart_decoder *d, uint32_t id, struct cart_buf *out,
                      struct cart_err *err)
{
    if (id >= d->t->n)
        return id_refused(d->t, id, err);
    if (!d->special && cart_tokenizer_is_control(d->t, id))
        return 0;
    struct cart_text s = cart_tokenizer_bytes(d->t, id);
    size_t before = out->len;
    size_t taken = 0;
    int r = 0;
    while (d->n_held > 0 && taken < s.n && r == 0) {
        /* The held bytes are the beginning of a character: one more byte ends it, continues it or
         * breaks it. */
        size_t rest;
        unsigned char bytes[5];
        memcpy(bytes, d->held, d->n_held);
        bytes[d->n_held] = (unsigned char)s.data[taken++];
        r = emit(bytes, d->n_held + 1, out, &rest, err);
        if (r == 0) {
            memmove(d->held, bytes + d->n_held + 1 - rest, rest);
            d->n_held = rest;
        }
    }
    if (r == 0 && taken < s.n) {
        size_t rest;
        r = emit((const unsigned char *)s.data + taken, s.n - taken, out, &rest, err);
        if (r == 0) {
            memcpy(d->held, s.data + s.n - rest, rest);
            d->n_held = rest;
        }
    }
    if (r < 0)
        out->len = before;
    return r;
}

int cart_decoder_finish(struct cart_decoder *d, struct cart_buf *out, struct cart_err *err)
{
    int r = d->n_held > 0 ? cart_buf_add(out, "\xef\xbf\xbd", 3, err) : 0;
    d->n_held = 0;
    return r;
}
