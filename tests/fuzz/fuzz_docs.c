/* Documents: a first byte of options, then a file: text, JSON Lines, an archive, a compressed file.
 * Every document is UTF-8 (but for whole lines, which stand as they are) within the caps, with the
 * digest of its bytes. */
#include "base/hash.h"
#include "format/docs.h"
#include "format/text.h"
#include "fuzz/fuzz.h"

#include <string.h>

#define DOCUMENT_MAX ((size_t)64 << 10)

static void on_note(void *ctx, const struct cart_docs_note *n)
{
    (void)ctx;
    fuzz_demand(n->reason < CART_DOCS_REASONS, "a reason");
    for (const char *p = n->path; *p; p++)
        fuzz_demand((unsigned char)*p >= 0x20 && *p != 0x7f, "an escaped path");
    for (const char *p = n->detail; *p; p++)
        fuzz_demand((unsigned char)*p >= 0x20 && *p != 0x7f, "an escaped detail");
}

static void check(const struct cart_document *d, size_t index, bool whole_lines)
{
    unsigned char sha[32];
    fuzz_demand(d->index == index, "documents in order");
    fuzz_demand(d->size <= DOCUMENT_MAX, "a document within its cap");
    fuzz_demand(whole_lines || cart_text_valid(d->text, d->n_text) == d->n_text, "text in UTF-8");
    fuzz_demand(cart_text_valid(d->path, strlen(d->path)) == strlen(d->path), "a path in UTF-8");
    fuzz_demand(d->id && *d->id, "an id");
    cart_sha256(d->bytes, d->size, sha);
    fuzz_demand(memcmp(sha, d->sha256, sizeof sha) == 0, "the digest of the bytes");
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    struct cart_err err = {0};
    struct cart_docs *docs;
    struct cart_document d;
    size_t count = 0;
    if (n == 0)
        return 0;
    const char *path = fuzz_file(0, data + 1, n - 1);
    const struct cart_docs_options o = {.invalid = (enum cart_docs_invalid)(data[0] & 3) % 3,
                                        .jsonl = data[0] >> 2 & 1,
                                        .markup = data[0] >> 3 & 1,
                                        .whole_lines = data[0] >> 4 & 1,
                                        .max_document = DOCUMENT_MAX,
                                        .max_members = 64,
                                        .max_ratio = 4,
                                        .max_archive = 1 << 20,
                                        .report = on_note};
    int r = cart_docs_open(&docs, &path, 1, &o, &err);
    fuzz_need(r, &err);
    while ((r = cart_docs_next(docs, &d, &err)) == 1)
        check(&d, count++, o.whole_lines);
    if (r < 0)
        fuzz_refused(r, &err);
    fuzz_demand(cart_docs_stats(docs)->documents == count, "a count of the documents");
    cart_docs_close(docs);
    return 0;
}
