#include "format/docs_words.h"

#include <stdio.h>

static void say(const struct cart_docs_words *w, enum cart_log_level level, const char *fmt, ...)
    CART_PRINTF(3, 4);

static void say(const struct cart_docs_words *w, enum cart_log_level level, const char *fmt, ...)
{
    char text[1024];
    va_list ap;

    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    w->say(level, text);
}

void cart_docs_words_note(void *ctx, const struct cart_docs_note *n)
{
    struct cart_docs_words *w = ctx;
    bool duplicate = n->reason == CART_DOCS_DUPLICATE;
    bool named = !duplicate && n->reason != CART_DOCS_HIDDEN && w->named++ < CART_DOCS_NAMED_MAX;

    const char *advice = w->advice && w->advice[n->reason] ? w->advice[n->reason] : "";

    if (named && w->named == 1)
        snprintf(w->first, sizeof w->first, "%s: %s%s", n->path, n->detail, advice);
    say(w, named && !w->brief ? CART_LOG_WARNING : CART_LOG_INFO, "%s: %s%s%s", n->path,
        duplicate ? "" : "passed over: ", n->detail, advice);
}

int cart_docs_words_end(const struct cart_docs_words *w, const struct cart_docs_stats *stats,
                        uint64_t tokens, struct cart_err *err)
{
    char skipped[512];
    size_t n = cart_docs_summary(stats, skipped, sizeof skipped);

    if (stats->documents == 0 && n == 1 && w->first[0])
        return cart_err_set(err, CART_EFORMAT, "expected a document, found none: %s", w->first);
    if (stats->documents == 0)
        return cart_err_set(err, CART_EFORMAT, "expected at least one document, found none%s%s%s",
                            n ? " (passed over: " : "", skipped, n ? ")" : "");
    say(w, CART_LOG_NOTICE, "%zu document%s, %llu bytes, %llu tokens", stats->documents,
        CART_S(stats->documents), (unsigned long long)stats->bytes, (unsigned long long)tokens);
    if (n > 0)
        say(w, CART_LOG_NOTICE, "passed over %zu: %s%s", n, skipped,
            w->named > (w->brief ? 0 : CART_DOCS_NAMED_MAX) ? " (-v names them all)" : "");
    if (stats->noted[CART_DOCS_DUPLICATE] > 0)
        say(w, CART_LOG_INFO, "%zu hold the same bytes as an earlier one",
            stats->noted[CART_DOCS_DUPLICATE]);
    return 0;
}
