#include "study/speech.h"

#include "base/hash.h"
#include "base/rng.h"
#include "study/sentence.h"

#include <stdlib.h>
#include <string.h>

bool cart_speech_blank(const char *text, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        if (!cart_sentence_space(text[i]))
            return false;
    }
    return true;
}

/* The length of a mark of the list that text [n] begins (or, backwards, ends) with; 0 if none. */
static size_t mark_length(const char *text, size_t n, bool at_end, const char *const *marks)
{
    for (; *marks != NULL; marks++) {
        size_t k = strlen(*marks);
        if (k <= n && memcmp(at_end ? text + n - k : text, *marks, k) == 0)
            return k;
    }
    return 0;
}

static const char *const quote_marks[] = {
    "\"", "'", "`", "*", "\xE2\x80\x9C", "\xE2\x80\x9D", "\xE2\x80\x98", "\xE2\x80\x99", NULL};
static const char *const list_marks[] = {"-", "#", ">", "*", "\xE2\x80\xA2", NULL};

static struct cart_text trim(struct cart_text t)
{
    while (t.n > 0 && cart_sentence_space(t.data[0]))
        t = (struct cart_text){t.data + 1, t.n - 1};
    while (t.n > 0 && cart_sentence_space(t.data[t.n - 1]))
        t.n--;
    return t;
}

/* Quotation marks go in pairs, so that "the 'off' switch" keeps its own. */
static struct cart_text strip_marks(struct cart_text t)
{
    for (;;) {
        t = trim(t);
        size_t head = mark_length(t.data, t.n, false, list_marks);
        if (head > 0 && head < t.n && cart_sentence_space(t.data[head])) {
            t = (struct cart_text){t.data + head, t.n - head};
            continue;
        }
        head = mark_length(t.data, t.n, false, quote_marks);
        size_t tail = mark_length(t.data, t.n, true, quote_marks);
        if (head == 0 || tail == 0 || head + tail > t.n)
            return t;
        t = (struct cart_text){t.data + head, t.n - head - tail};
    }
}

void cart_speech_clean_message(struct cart_buf *text, bool cut_short)
{
    struct cart_text t = trim((struct cart_text){text->data, text->len});
    const char *line = t.n > 0 ? memchr(t.data, '\n', t.n) : NULL;
    size_t end = 0;
    size_t last = 0;

    if (line != NULL) {
        t.n = (size_t)(line - t.data);
        cut_short = false;
    }
    t = strip_marks(t);
    for (size_t i = 0; i < t.n; i++) {
        if (cart_sentence_ends(t.data, t.n, i, &end)) {
            last = end;
            if (t.data[i] == '?')
                break;
        }
    }
    if (last > 0 && (cut_short || t.data[last - 1] == '?'))
        t.n = last;
    t = strip_marks(t);
    if (t.n > 0)
        memmove(text->data, t.data, t.n);
    text->len = 0;
    for (size_t i = 0; i < t.n; i++) {
        if (text->data[i] != '\0')
            text->data[text->len++] = text->data[i];
    }
    if (text->data != NULL)
        text->data[text->len] = '\0';
}

/* ---- answers ---- */

/* The end of a sentence falls on the end of token k - 1: its last visible byte ends one, and white
 * space or the answer's end follows. */
static bool token_ends_sentence(const struct cart_tokenizer *t, const uint32_t *ids, size_t n,
                                size_t k)
{
    struct cart_text text = cart_tokenizer_bytes(t, ids[k - 1]);
    struct cart_text next = k < n ? cart_tokenizer_bytes(t, ids[k]) : (struct cart_text){NULL, 0};
    struct cart_text before =
        k > 1 ? cart_tokenizer_bytes(t, ids[k - 2]) : (struct cart_text){NULL, 0};
    char window[24];
    size_t end = 0;
    size_t m = 0;

    /* A few bytes around the token's end decide. */
    if (text.n == 0 || text.n > 12)
        return false;
    if (before.n > 0)
        window[m++] = before.data[before.n - 1];
    memcpy(window + m, text.data, text.n);
    m += text.n;
    size_t own = m;
    if (next.n > 0)
        window[m++] = next.data[0];
    for (size_t i = own; i > own - text.n; i--) {
        if (cart_sentence_space(window[i - 1]))
            continue;
        size_t mark = i;
        while (mark > 1 && strchr("\"')]*", window[mark - 1]) != NULL)
            mark--;
        return cart_sentence_ends(window, m, mark - 1, &end) && end >= i;
    }
    return false;
}

/* How long the loop is that the ids end in; 0: none. */
static size_t loop_period(const uint32_t *ids, size_t n)
{
    enum { PERIODS = 40, LEAST = 24 };

    for (size_t q = 1; q <= PERIODS; q++) {
        size_t need = 2 * q > LEAST - q ? 2 * q : LEAST - q;
        size_t same = 0;
        while (same < need && same + q < n && ids[n - 1 - same] == ids[n - 1 - same - q])
            same++;
        if (same == need)
            return q;
    }
    return 0;
}

bool cart_speech_looping(const uint32_t *ids, size_t n)
{
    return loop_period(ids, n) > 0;
}

/* Where the second and later rounds of a loop at the end begin; n if there is none. */
static size_t before_loop(const uint32_t *ids, size_t n)
{
    size_t q = loop_period(ids, n);
    size_t at = n;

    while (q > 0 && at > q && ids[at - 1] == ids[at - 1 - q])
        at--;
    return at;
}

static size_t sentence_end(const struct cart_tokenizer *t, const uint32_t *ids, size_t n,
                           size_t first)
{
    for (size_t k = first + 1; k <= n; k++) {
        if (token_ends_sentence(t, ids, n, k))
            return k;
    }
    return n;
}

/* A sentence that was said: its words, whatever white space stands before them, and where it
 * begins. */
struct saying {
    unsigned char digest[16];
    size_t at;
};

static int by_words(const void *a, const void *b)
{
    const struct saying *x = a;
    const struct saying *y = b;
    int c = memcmp(x->digest, y->digest, sizeof x->digest);

    return c != 0 ? c : x->at < y->at ? -1 : x->at > y->at;
}

/* words: memory to use. */
static int take_saying(struct saying *out, const struct cart_tokenizer *t, const uint32_t *ids,
                       size_t first, size_t end, struct cart_buf *words, struct cart_err *err)
{
    int r = 0;

    cart_buf_reset(words);
    for (size_t k = first; k < end && r == 0; k++) {
        struct cart_text text = cart_tokenizer_bytes(t, ids[k]);
        while (words->len == 0 && text.n > 0 && cart_sentence_space(text.data[0]))
            text = (struct cart_text){text.data + 1, text.n - 1};
        r = cart_buf_add(words, text.data, text.n, err);
    }
    cart_hash_bytes(words->len > 0 ? words->data : "", words->len, out->digest);
    out->at = first;
    return r;
}

/* *out is where the first sentence begins that stood before; n if none does. */
static int before_repeat(size_t *out, const struct cart_tokenizer *t, const uint32_t *ids, size_t n,
                         struct cart_err *err)
{
    struct saying *said = NULL;
    struct cart_buf words = CART_BUF_INIT;
    size_t count = 0;
    size_t cap = 0;
    int r = 0;

    for (size_t at = 0, end = 0; at < n && r == 0; at = end) {
        end = sentence_end(t, ids, n, at);
        if ((r = cart_array_reserve(&said, &cap, count + 1, sizeof *said, err)) == 0)
            r = take_saying(&said[count++], t, ids, at, end, &words, err);
    }
    if (count > 0)
        qsort(said, count, sizeof *said, by_words);
    *out = n;
    for (size_t i = 1; i < count; i++) {
        bool again = memcmp(said[i - 1].digest, said[i].digest, sizeof said->digest) == 0;
        if (again && said[i].at < *out)
            *out = said[i].at;
    }
    free(said);
    cart_buf_release(&words);
    return r;
}

int cart_speech_cut_answer(struct cart_speech_cut *out, const struct cart_tokenizer *t,
                           const uint32_t *ids, size_t n, bool stopped, struct cart_err *err)
{
    struct cart_speech_cut cut = {n, stopped, false};
    int r;

    for (size_t i = 0; i < cut.n; i++) {
        if (cart_tokenizer_is_control(t, ids[i]))
            cut.n = i;
    }
    cut.n = before_loop(ids, cut.n);
    if ((r = before_repeat(&cut.n, t, ids, cut.n, err)) < 0)
        return r;
    if (cut.n < n)
        cut.complete = false;
    for (size_t k = cut.n; k > 0 && !cut.complete && !cut.sentence; k--) {
        if (token_ends_sentence(t, ids, cut.n, k)) {
            cut.n = k;
            cut.sentence = true;
        }
    }
    *out = cut;
    return 0;
}

/* ---- recitals ---- */

struct sentences {
    const char *text;
    size_t n, at;
};

/* Whether the line break at i ends more than the line: before an empty line, a list item, a
 * heading, a quotation or a table row, and after a heading or a table row. Elsewhere a paragraph
 * goes on. */
static bool break_ends(const char *text, size_t n, size_t i)
{
    size_t start = i;
    size_t next = i + 1;

    while (start > 0 && text[start - 1] != '\n')
        start--;
    while (start < i && (text[start] == ' ' || text[start] == '\t'))
        start++;
    if (start == i || text[start] == '#' || text[start] == '|')
        return true;
    while (next < n && (text[next] == ' ' || text[next] == '\t' || text[next] == '\r'))
        next++;
    if (next == n || strchr("\n#-*+|>", text[next]) != NULL)
        return true;
    while (next < n && text[next] >= '0' && text[next] <= '9')
        next++;
    return next > i + 1 && next < n && text[next - 1] >= '0' && text[next - 1] <= '9' &&
           (text[next] == '.' || text[next] == ')');
}

/* The next sentence, heading or item; ended: by its own end, not by that of the text. false: none
 * is left. */
static bool next_sentence(struct sentences *s, struct cart_text *out, bool *ended)
{
    size_t first = s->at;

    if (s->at >= s->n)
        return false;
    *ended = false;
    for (size_t i = s->at; i < s->n; i++) {
        size_t end = i + 1;
        if ((s->text[i] == '\n' && break_ends(s->text, s->n, i)) ||
            cart_sentence_ends(s->text, s->n, i, &end)) {
            *ended = true;
            s->at = end;
            *out = (struct cart_text){s->text + first, end - first};
            return true;
        }
    }
    s->at = s->n;
    *out = (struct cart_text){s->text + first, s->n - first};
    return true;
}

static size_t count_words(struct cart_text t)
{
    size_t words = 0;

    for (size_t i = 0; i < t.n; i++)
        words += !cart_sentence_space(t.data[i]) && (i == 0 || cart_sentence_space(t.data[i - 1]));
    return words;
}

/* At most max bytes, whole characters, whole words where there is more than one. */
static struct cart_text shorten(struct cart_text t, size_t max)
{
    if (t.n <= max)
        return t;
    size_t k = max;
    while (k > 0 && !cart_sentence_space(t.data[k]))
        k--;
    if (k == 0) {
        k = max;
        while (k > 0 && ((unsigned char)t.data[k] & 0xC0) == 0x80)
            k--;
    }
    return trim((struct cart_text){t.data, k});
}

/* The first words: some three to six, but leaving at least as much again unsaid; a third of the
 * characters of a text without spaces. */
static struct cart_text opening(struct cart_text t, size_t words)
{
    size_t total = count_words(t);

    if (total < 2) {
        size_t k = t.n / 3 > 0 ? t.n / 3 : t.n;
        while (k < t.n && ((unsigned char)t.data[k] & 0xC0) == 0x80)
            k++;
        return (struct cart_text){t.data, k};
    }
    if (words > total / 2)
        words = total / 2;
    size_t seen = 0;
    for (size_t i = 0; i < t.n; i++) {
        bool begins =
            !cart_sentence_space(t.data[i]) && (i == 0 || cart_sentence_space(t.data[i - 1]));
        if (begins && seen++ == words)
            return trim((struct cart_text){t.data, i});
    }
    return t;
}

#define ENOUGH_WORDS 5

bool cart_speech_pick_sentence(const char *text, size_t n, bool starts_clean, bool ends_clean,
                               size_t max_bytes, uint64_t seed, uint64_t conversation,
                               uint32_t index, struct cart_speech_recital *out)
{
    struct cart_text longest = {NULL, 0};
    struct cart_text pick = {NULL, 0};
    size_t candidates = 0;

    /* The first pass counts, the second picks. */
    for (int pass = 0; pass < 2; pass++) {
        struct sentences s = {text, n, 0};
        struct cart_text t;
        bool ended;
        size_t want = pass == 1 && candidates > 0
                          ? cart_rng_below(seed, conversation, CART_RNG_SEED, index, candidates)
                          : 0;
        candidates = 0;
        while (next_sentence(&s, &t, &ended)) {
            bool whole = (t.data > text || starts_clean) && (ended || ends_clean);
            t = strip_marks(t);
            if (t.n > longest.n)
                longest = t;
            if (whole && t.n <= max_bytes && count_words(t) >= ENOUGH_WORDS && candidates++ == want)
                pick = t;
        }
    }
    if (candidates == 0)
        pick = longest;
    pick = shorten(pick, max_bytes);
    if (pick.n == 0)
        return false;
    out->sentence = pick;
    out->quote = opening(pick, 3 + cart_rng_below(seed, conversation, CART_RNG_SEED, index + 1, 4));
    return true;
}
