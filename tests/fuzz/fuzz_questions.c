/* Questions on a corpus, JSON Lines: what is read has options with tokens, and places inside the
 * corpus. */
#include "fuzz/fuzz.h"
#include "stream/kinds.h"
#include "study/questions.h"

static struct cart_corpus corpus = CART_CORPUS_INIT;

/* Two documents of bytes, as a stream brings them. */
static void make_corpus(const struct cart_model *m)
{
    static const int32_t ids[] = {71, 72, 73, 220, 71, 72, 75, 198};
    static const char sha[] = "0000000000000000000000000000000000000000000000000000000000000000";
    const struct cart_kind *kind = cart_kind_find("tokens");
    const void *data[] = {ids};
    const size_t counts[] = {CART_COUNTOF(ids)};
    struct cart_buf b = CART_BUF_INIT;
    struct cart_err err = {0};
    struct cart_stream_writer *w;
    struct cart_stream_reader *r;
    struct cart_record rec;
    json_t *head = json_pack("{s:s, s:[], s:o}", "kind", "tokens", "history", "model",
                             cart_fingerprints_json(&m->fp));
    fuzz_need(cart_stream_create(&w, fuzz_output(0), "corpus", head, 0, &err), &err);
    for (int i = 0; i < 2; i++) {
        json_t *fields = json_pack("{s:i, s:s, s:s, s:i, s:s}", "doc", i, "id", i ? "b" : "a",
                                   "path", i ? "two/b.txt" : "a.txt", "bytes", 8, "sha256", sha);
        cart_buf_reset(&b);
        fuzz_need(cart_payload_build(&b, &kind->records[0], fields, data, counts, &err), &err);
        fuzz_need(cart_stream_write(w, "DOC ", b.data, b.len, &err), &err);
        json_decref(fields);
    }
    fuzz_need(cart_stream_finish(w, &err), &err);
    cart_buf_reset(&b);
    fuzz_contents(0, &b);
    fuzz_need(cart_stream_open(&r, fuzz_file(0, b.data, b.len), "tokens", &err), &err);
    fuzz_need(cart_corpus_read(&corpus, r, m->V, &rec, &err), &err);
    cart_stream_close(r);
    json_decref(head);
    cart_buf_release(&b);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    const struct cart_model *m = fuzz_model();
    struct cart_questions q;
    struct cart_err err = {0};
    if (corpus.n_docs == 0)
        make_corpus(m);
    int r = cart_questions_read(&q, fuzz_file(0, data, n), m, &corpus, &err);
    if (r < 0) {
        fuzz_refused(r, &err);
        return 0;
    }
    size_t options = 0;
    for (size_t i = 0; i < q.n; i++) {
        options += q.items[i].n;
        fuzz_demand(q.items[i].n > 0, "an option");
        fuzz_demand(!q.items[i].located || (q.items[i].at > 0 && q.items[i].at <= corpus.tokens),
                    "a place inside the corpus");
        for (size_t k = 0; k < q.items[i].n; k++) {
            const struct cart_option *o = &q.items[i].options[k];
            fuzz_demand(o->n_scored > 0 && o->n_scored < o->T && o->T <= m->context,
                        "an option with tokens");
        }
    }
    fuzz_demand(options == q.options, "a count of the options");
    cart_questions_release(&q);
    return 0;
}
