/* Plans of self-study (coverage, held-out regions, edges), speech (messages, answers, recitals),
 * seed weights, and conversations parsed and built. A tiny model gives tokenizer and chat profile.
 */
#include "base/cpu.h"
#include "base/hash.h"
#include "helper/vocab.h"
#include "model/model.h"
#include "study/estimate.h"
#include "study/plan.h"
#include "study/speech.h"
#include "token/chat.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <cmocka.h>

static struct cart_model *model;

static void need(int r, const struct cart_err *err)
{
    if (r < 0)
        fail_msg("%s", err->msg);
}

/* ---- plans ---- */

struct text {
    struct cart_doc docs[4];
    struct cart_corpus corpus;
    struct cart_ids ids[4];
};

static void make_text(struct text *t, const char *const *docs, const size_t *repeat, size_t n)
{
    struct cart_err err = {0};

    memset(t, 0, sizeof *t);
    t->corpus.docs = t->docs;
    t->corpus.n_docs = n;
    for (size_t i = 0; i < n; i++) {
        for (size_t k = 0; k < repeat[i]; k++)
            need(cart_tokenizer_encode(cart_model_tokenizer(model), docs[i], strlen(docs[i]), 0,
                                       &t->ids[i], NULL, &err),
                 &err);
        t->docs[i] = (struct cart_doc){
            .tokens = t->ids[i].data, .n = t->ids[i].n, .first = t->corpus.tokens};
        t->docs[i].path = "x";
        t->corpus.tokens += t->ids[i].n;
    }
}

static void release_text(struct text *t)
{
    for (size_t i = 0; i < 4; i++)
        cart_ids_release(&t->ids[i]);
}

static struct cart_plan_options options(size_t min, size_t max, size_t held_out)
{
    struct cart_plan_options o = {.chunk_min = min,
                                  .chunk_max = max,
                                  .held_out = held_out,
                                  .max_q = 8,
                                  .max_a = 8,
                                  .seed = 3};
    struct cart_err err = {0};

    need(cart_seed_weights_parse(o.weights, NULL, &err), &err);
    return o;
}

static const char *const prose = "The wheel of the mill turns at noon. Grüße gehen an "
                                 "日本語の人々。 Nobody counts 3.14 of them! ";

static bool continues_character(const struct cart_doc *d, size_t i)
{
    if (i == 0 || i >= d->n)
        return false;
    struct cart_text b = cart_tokenizer_bytes(cart_model_tokenizer(model), d->tokens[i]);
    return ((unsigned char)b.data[0] & 0xC0) == 0x80;
}

static void test_chunks(void **state)
{
    (void)state;
    static const size_t repeat[] = {40, 1, 7};
    const char *const docs[] = {prose, "Hi.", prose};
    struct cart_err err = {0};
    struct text t;
    struct cart_plan *p;
    struct cart_plan_options o = options(20, 60, 6);
    size_t clean = 0;

    make_text(&t, docs, repeat, 3);
    need(cart_plan_new(&p, &t.corpus, model, &o, &err), &err);
    assert_int_equal(cart_plan_regions(p), 6);
    bool *held = calloc(t.corpus.tokens, sizeof *held);
    for (uint64_t n = 0; n < 400; n++) {
        struct cart_plan_item a;
        struct cart_plan_item b;
        memset(&a, 0, sizeof a);
        memset(&b, 0, sizeof b);
        cart_plan_at(p, n, &a);
        cart_plan_at(p, n, &b);
        assert_memory_equal(&a, &b, sizeof a);
        const struct cart_doc *d = &t.docs[a.doc];
        size_t length = a.chunk.end - a.chunk.first;
        assert_true(a.chunk.first < a.chunk.end && a.chunk.end <= d->n && length <= 60);
        assert_true(length >= 17 || length == d->n || !a.held_out);
        assert_false(continues_character(d, a.chunk.first));
        assert_false(continues_character(d, a.chunk.end));
        assert_int_equal(a.held_out, n < 6);
        assert_false(a.held_out && a.seed == CART_SEED_RECITE);
        clean += a.starts_clean;
        for (size_t i = a.chunk.first; i < a.chunk.end; i++) {
            if (a.held_out)
                held[d->first + i] = true;
            else
                assert_false(held[d->first + i]);
        }
    }
    assert_true(clean > 80);
    free(held);
    cart_plan_free(p);
    release_text(&t);
}

/* The full stop of a number or of a list's item ends no sentence, for chunks as for answers: chunks
 * begin there only where the text does. */
static void test_numbers_end_no_sentence(void **state)
{
    (void)state;
    static const size_t repeat[] = {60};
    const char *const docs[] = {"in 1921. and 17. then 4. more of these words "};
    struct cart_err err = {0};
    struct text t;
    struct cart_plan *p;
    struct cart_plan_options o = options(20, 60, 0);

    make_text(&t, docs, repeat, 1);
    need(cart_plan_new(&p, &t.corpus, model, &o, &err), &err);
    for (uint64_t n = 0; n < 100; n++) {
        struct cart_plan_item item;
        cart_plan_at(p, n, &item);
        assert_int_equal(item.starts_clean, item.chunk.first == 0);
        assert_int_equal(item.ends_clean, item.chunk.end == t.docs[0].n);
    }
    cart_plan_free(p);
    release_text(&t);
}

static void test_even_at_every_prefix(void **state)
{
    (void)state;
    static const size_t repeat[] = {60};
    const char *const docs[] = {prose};
    struct cart_err err = {0};
    struct text t;
    struct cart_plan *p;
    struct cart_plan_options o = options(30, 30, 0);
    double share, times;

    make_text(&t, docs, repeat, 1);
    size_t needed = t.corpus.tokens / 30 + 1; /* chunks that cover it without overlap */
    for (o.seed = 0; o.seed < 8; o.seed++) {
        size_t kinds[CART_SEEDS] = {0};
        size_t thirds[3] = {0};
        need(cart_plan_new(&p, &t.corpus, model, &o, &err), &err);
        need(cart_plan_coverage(p, 0, needed, &share, &times, &err), &err);
        assert_true(share > 0.8); /* random places would cover 63 % */
        assert_true(times > 0.9 * (double)needed * 30 / (double)t.corpus.tokens);
        double once = times;
        need(cart_plan_coverage(p, 0, 3 * needed, &share, &times, &err), &err);
        assert_true(share > 0.99); /* and here 95 % */
        assert_true(times > 2.5 * once && times < 3.5 * once);
        for (uint64_t n = 0; n < 300; n++) {
            struct cart_plan_item item;
            cart_plan_at(p, n, &item);
            kinds[item.seed]++;
            thirds[item.chunk.first * 3 / t.corpus.tokens]++;
            if (n == 59)
                assert_true(kinds[CART_SEED_RECITE] >= 26 && kinds[CART_SEED_RECITE] <= 34);
        }
        assert_true(kinds[CART_SEED_RECITE] >= 145 && kinds[CART_SEED_RECITE] <= 155);
        for (size_t i = 0; i < 3; i++)
            assert_true(thirds[i] > 85 && thirds[i] < 115);
        cart_plan_free(p);
    }
    release_text(&t);
}

static void test_small_corpora(void **state)
{
    (void)state;
    static const size_t once[] = {1, 1};
    static const size_t never[] = {0};
    const char *const docs[] = {"Oh", "no"};
    struct cart_err err = {0};
    struct text t;
    struct cart_plan *p;
    struct cart_plan_options o = options(256, 512, 3);
    struct cart_plan_item item;
    bool seen[2] = {false, false};

    make_text(&t, docs, once, 2);
    need(cart_plan_new(&p, &t.corpus, model, &o, &err), &err);
    assert_int_equal(cart_plan_regions(p), 0);
    for (uint64_t n = 0; n < 16; n++) {
        cart_plan_at(p, n, &item);
        seen[item.doc] = true;
        assert_int_equal(item.chunk.first, 0);
        assert_int_equal(item.chunk.end, t.docs[item.doc].n);
        assert_int_equal(item.context, CART_CONTEXT_DOCUMENT);
    }
    assert_true(seen[0] && seen[1]);
    cart_plan_free(p);
    release_text(&t);
    make_text(&t, docs, never, 1);
    assert_int_equal(cart_plan_new(&p, &t.corpus, model, &o, &err), CART_EFORMAT);
    release_text(&t);
}

/* ---- speech ---- */

static void check_message(const char *in, bool cut, const char *want)
{
    struct cart_err err = {0};
    struct cart_buf b = CART_BUF_INIT;

    need(cart_buf_addf(&b, &err, "%s", in), &err);
    cart_speech_clean_message(&b, cut);
    assert_string_equal(b.data, want);
    cart_buf_release(&b);
}

static void test_messages(void **state)
{
    (void)state;
    check_message("  \"What is it?\" \n", false, "What is it?");
    check_message("What is it? It is a wheel.", false, "What is it?");
    check_message("- List the parts.\n2. More", false, "List the parts.");
    check_message("Tell me of the wheel. And of the", true, "Tell me of the wheel.");
    check_message("Tell me of the wheel. And of the", false, "Tell me of the wheel. And of the");
    check_message("How far is 3.5 miles", true, "How far is 3.5 miles");
    check_message("\xE2\x80\x9CWhy?\xE2\x80\x9D", false, "Why?");
    check_message("the 'off' switch", false, "the 'off' switch");
    check_message(" \n \"\" ", false, "");
}

static size_t cut(const char *text, bool stopped, struct cart_speech_cut *c)
{
    struct cart_err err = {0};
    struct cart_ids ids = CART_IDS_INIT;
    struct cart_buf b = CART_BUF_INIT;
    const struct cart_tokenizer *t = cart_model_tokenizer(model);

    need(cart_tokenizer_encode(t, text, strlen(text), CART_ENCODE_SPECIAL, &ids, NULL, &err), &err);
    need(cart_speech_cut_answer(c, t, ids.data, ids.n, stopped, &err), &err);
    need(cart_tokenizer_decode(t, ids.data, c->n, true, &b, &err), &err);
    size_t n = b.len;
    cart_buf_release(&b);
    cart_ids_release(&ids);
    return n;
}

static void test_answers(void **state)
{
    (void)state;
    struct cart_speech_cut c;

    assert_int_equal(cut("It turns. It is", true, &c), 15);
    assert_true(c.complete);
    assert_int_equal(cut("It turns. It is", false, &c), 9);
    assert_true(!c.complete && c.sentence);
    assert_int_equal(cut("It has 3.14 of them", false, &c), 19);
    assert_true(!c.complete && !c.sentence);
    assert_int_equal(cut("It turns!", false, &c), 9);
    assert_true(c.sentence);
    assert_int_equal(cut("Yes. No <|im_start|>user", true, &c), 4);
    assert_true(!c.complete && c.sentence);
    assert_int_equal(cut("", false, &c), 0);
    /* Said twice, and a loop without sentences. */
    assert_int_equal(cut("It turns. It is so. It turns. It ends.", true, &c), 19);
    assert_true(!c.complete && c.sentence);
    assert_int_equal(cut("ab: xyz,xyz,xyz,xyz,xyz,xyz,xyz,xyz,xyz,xyz,xyz,xyz,", false, &c), 8);
    assert_true(!c.complete && !c.sentence);
}

/* A sentence is compared with all before it, which must not take the time of all pairs. */
static void test_long_answer(void **state)
{
    enum { SENTENCES = 30000 };
    struct cart_speech_cut c;
    struct cart_buf b = CART_BUF_INIT;
    clock_t start = clock();

    (void)state;
    for (int i = 0; i < SENTENCES; i++)
        need(cart_buf_addf(&b, NULL, "%c%c%c%c. ", 'a' + i % 26, 'a' + i / 26 % 26,
                           'a' + i / 676 % 26, 'a' + i / 17576),
             NULL);
    size_t n = b.len - 1;
    b.data[n] = '\0';
    assert_int_equal(cut(b.data, true, &c), n);
    assert_true(c.complete);
    b.len = n;
    need(cart_buf_addf(&b, NULL, " news. laga."), NULL);
    assert_int_equal(cut(b.data, true, &c), n + 6);
    assert_true(!c.complete && c.sentence);
    cart_buf_release(&b);
    assert_true((double)(clock() - start) / CLOCKS_PER_SEC < 20.0);
}

static void test_loops(void **state)
{
    (void)state;
    uint32_t ids[64];

    for (size_t q = 1; q <= 20; q++) {
        for (size_t i = 0; i < 64; i++)
            ids[i] = (uint32_t)(100 + i % q);
        assert_true(cart_speech_looping(ids, 64));
        assert_false(cart_speech_looping(ids, 23));
        ids[63] = 7;
        assert_false(cart_speech_looping(ids, 64));
    }
    for (size_t i = 0; i < 64; i++)
        ids[i] = (uint32_t)i;
    assert_false(cart_speech_looping(ids, 64));
}

static void test_recitals(void **state)
{
    (void)state;
    static const char text[] =
        "end of one that began before. The wheel of the mill turns at noon. Short one. "
        "The door of the mill is green and old. And this one has no";
    struct cart_speech_recital r;
    size_t seen[2] = {0, 0};

    for (uint64_t n = 0; n < 40; n++) {
        assert_true(cart_speech_pick_sentence(text, strlen(text), false, false, 200, 1, n, 2, &r));
        bool wheel = memcmp(r.sentence.data, "The wheel", 9) == 0;
        assert_true(wheel || memcmp(r.sentence.data, "The door", 8) == 0);
        assert_int_equal(r.sentence.data[r.sentence.n - 1], '.');
        assert_ptr_equal(r.quote.data, r.sentence.data);
        assert_true(r.quote.n >= 9 && r.quote.n < r.sentence.n);
        seen[wheel]++;
    }
    assert_true(seen[0] > 5 && seen[1] > 5);
    assert_true(cart_speech_pick_sentence("Oh no", 5, true, true, 200, 1, 0, 2, &r));
    assert_int_equal(r.quote.n, 2);
    const char *word = "日本語";
    assert_true(cart_speech_pick_sentence(word, strlen(word), true, true, 200, 1, 0, 2, &r));
    assert_int_equal(r.quote.n, 3);
    assert_true(cart_speech_pick_sentence(word, strlen(word), true, true, 4, 1, 0, 2, &r));
    assert_int_equal(r.sentence.n, 3);
    assert_false(cart_speech_pick_sentence(" \n\t", 3, true, true, 200, 1, 0, 2, &r));
}

static void test_weights(void **state)
{
    (void)state;
    struct cart_err err = {0};
    double w[CART_SEEDS];

    need(cart_seed_weights_parse(w, NULL, &err), &err);
    assert_true(w[CART_SEED_RECITE] == 0.5 && w[CART_SEED_QUESTION] == 1.0 / 14);
    need(cart_seed_weights_parse(w, "recite:3,question", &err), &err);
    assert_true(w[CART_SEED_RECITE] == 0.75 && w[CART_SEED_QUESTION] == 0.25 &&
                w[CART_SEED_CREATIVE] == 0);
    assert_int_equal(cart_seed_at(w, 0.2), CART_SEED_QUESTION);
    assert_int_equal(cart_seed_at(w, 0.26), CART_SEED_RECITE);
    const char *const bad[] = {
        "",         "poem",       "recite,recite", "recite:", "recite:x", "recite:-1",
        "recite:0", "recite:1e9", "recite:inf",    ",recite", "recite,"};
    for (size_t i = 0; i < CART_COUNTOF(bad); i++)
        assert_int_equal(cart_seed_weights_parse(w, bad[i], &err), CART_EUSAGE);
}

/* ---- conversations ---- */

static void fill(struct cart_conversation *c)
{
    static const uint32_t ids[] = {5, 6, 7, 8, 9};
    struct cart_err err = {0};

    cart_conversation_init(c);
    c->n = 4;
    c->held_out = true;
    c->seed_type = "question";
    c->chunk = c->context_span = (struct cart_range){0, 2};
    c->messages = json_pack("[{s:s,s:s}]", "role", "user", "content", "Why?");
    need(cart_conversation_push_ids(c, ids, 5, &err), &err);
    need(cart_conversation_supervise(c, 3, 5, &err), &err);
    need(cart_conversation_reserve_targets(c, 2, 3, &err), &err);
    c->has_targets = true;
    c->R = 2;
    c->E = 3;
    memcpy(c->rows, (const uint32_t[]){3, 4}, 2 * sizeof *c->rows);
    memcpy(c->offsets, (const size_t[]){0, 2, 3}, 3 * sizeof *c->offsets);
    memcpy(c->target_ids, (const uint32_t[]){8, 1, 9}, 3 * sizeof *c->target_ids);
    memcpy(c->logprobs, (const float[]){-0.5f, -1.5f, 0.0f}, 3 * sizeof *c->logprobs);
    memcpy(c->entropy, (const float[]){0.638f, 0.0f}, 2 * sizeof *c->entropy);
}

static int round_trip(const struct cart_conversation *c, struct cart_conversation *out, size_t V,
                      struct cart_err *err)
{
    struct cart_buf a = CART_BUF_INIT;
    struct cart_buf b = CART_BUF_INIT;

    int built = cart_conversation_build(&a, c, true, err);
    if (built < 0)
        return built;
    const struct cart_record rec = {.type = "TARG", .payload = a.data, .size = a.len};
    int r = cart_conversation_parse(out, &rec, V, NULL, "test", err);
    if (r == 0) {
        need(cart_conversation_build(&b, out, true, err), err);
        assert_int_equal(a.len, b.len);
        assert_memory_equal(a.data, b.data, a.len);
    }
    cart_buf_release(&a);
    cart_buf_release(&b);
    return r;
}

static void test_conversations(void **state)
{
    (void)state;
    struct cart_err err = {0};
    struct cart_conversation c;
    struct cart_conversation d;

    cart_conversation_init(&d);
    fill(&c);
    need(round_trip(&c, &d, 10, &err), &err);
    assert_int_equal(d.n, 4);
    assert_int_equal(d.supervised[0].first, 3);
    assert_true(d.logprobs[1] == -1.5f);
    assert_int_equal(round_trip(&c, &d, 9, &err), CART_EFORMAT); /* id 9 of a vocabulary of 9 */
#define REFUSED(change)                                                                            \
    do {                                                                                           \
        cart_conversation_release(&c);                                                             \
        fill(&c);                                                                                  \
        change;                                                                                    \
        assert_int_equal(round_trip(&c, &d, 10, &err), CART_EFORMAT);                              \
    } while (0)
    REFUSED(c.supervised[0].first = 0);
    REFUSED(c.supervised[0].end = 6);
    REFUSED(c.supervised[0].end = 4);
    REFUSED(c.rows[1] = 3);
    REFUSED(c.offsets[1] = 4);
    REFUSED(c.target_ids[1] = 8);
    REFUSED(c.logprobs[1] = 0.5f);
    REFUSED(c.logprobs[1] = -0.125f);
    REFUSED(c.logprobs[1] = -0.75f); /* 0.61 + 0.47 */
    REFUSED(c.logprobs[0] = (float)strtod("nan", NULL));
    REFUSED(c.entropy[0] = -1);
    REFUSED(c.entropy[0] = 0.64f);
    cart_conversation_release(&c);
    fill(&c);
    c.chunk = (struct cart_range){1, 0};
    assert_int_equal(round_trip(&c, &d, 10, &err), CART_EUSAGE); /* no reader would take it */
    cart_conversation_release(&c);
    cart_conversation_release(&d);
}

static void test_lap(void **state)
{
    (void)state;
    const struct timespec rest = {0, 120000000};
    struct cart_lap lap;
    double share = 1.0;
    char words[256];

    assert_false(cart_busy_words(share, words, sizeof words));
    /* A process that is kept waiting runs as one that sleeps: its work takes the time it ran. */
    cart_lap_begin(&lap, 1);
    nanosleep(&rest, NULL);
    double seconds = cart_lap_end(&lap, &share);
    assert_true(seconds >= 0 && seconds < 0.06);
    assert_true(share < 0.5);
    assert_true(cart_busy_words(share, words, sizeof words));
    assert_non_null(strstr(words, "an idle machine"));
    /* The lowest of all laps stays. */
    double before = share;
    cart_lap_begin(&lap, 1);
    (void)cart_lap_end(&lap, &share);
    assert_true(share == before);
}

int main(void)
{
    struct cart_err err = {0};
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_lap),
        cmocka_unit_test(test_chunks),
        cmocka_unit_test(test_numbers_end_no_sentence),
        cmocka_unit_test(test_even_at_every_prefix),
        cmocka_unit_test(test_small_corpora),
        cmocka_unit_test(test_messages),
        cmocka_unit_test(test_answers),
        cmocka_unit_test(test_long_answer),
        cmocka_unit_test(test_loops),
        cmocka_unit_test(test_recitals),
        cmocka_unit_test(test_weights),
        cmocka_unit_test(test_conversations),
    };

    if (cart_cpu_init(&err) < 0 ||
        cart_model_open(&model, test_root("tests/golden/tiny/llama_tied.gguf"), NULL, &err) < 0) {
        printf("Bail out! %s\n", err.msg);
        return 2;
    }
    cmocka_set_message_output(CM_OUTPUT_TAP);
    int failed = cmocka_run_group_tests_name("study", tests, NULL, NULL);
    cart_model_close(model);
    return failed;
}
