/* Text to ids: for each pre-tokenizer, nothing is lost, nothing becomes a control token unasked,
 * ids are those of the plainest possible merge loop, and the streaming decoder agrees with the
 * whole one. */
#include "format/docs_impl.h"
#include "fuzz/fuzz.h"
#include "helper/vocab.h"
#include "token/split.h"
#include "token/unicode.h"

#include <stdlib.h>
#include <string.h>

static const char *const pres[] = {"smollm", "qwen2", "llama-bpe"};
static const char *const merges[] = {"\xc4\xa0 t",
                                     "h e",
                                     "\xc4\xa0t he",
                                     "i n",
                                     "a a",
                                     "aa aa",
                                     "aaaa aaaa",
                                     "\xc3\x83 \xc2\xa9",
                                     "1 2",
                                     "12 3",
                                     "< |",
                                     "| >",
                                     "\xc4\x8a \xc4\x8a",
                                     "\xc4\xa0 \xc4\xa0",
                                     "' s",
                                     "\xc3\xb0 \xc5\x81",
                                     "a b",
                                     "ab a",
                                     "b ab",
                                     NULL};
static const char *const control[] = {"<|im_start|>", "<|im_end|>", "<think>", "13", "131", NULL};
#define N_MERGES (CART_COUNTOF(merges) - 1)
static struct test_vocab vocabs[CART_COUNTOF(pres)];
static unsigned char *classes;
static uint32_t pairs[N_MERGES][2]; /* ids of what each merge joins */

/* Joins the leftmost pair of lowest rank until there is none: the definition. ids [n] in place. */
static size_t merge(uint32_t *ids, size_t n)
{
    for (;;) {
        size_t best = N_MERGES, at = 0;
        for (size_t i = 0; i + 1 < n; i++)
            for (size_t k = 0; k < best; k++)
                if (ids[i] == pairs[k][0] && ids[i + 1] == pairs[k][1]) {
                    best = k;
                    at = i;
                }
        if (best == N_MERGES)
            return n;
        ids[at] = (uint32_t)(256 + best);
        memmove(ids + at + 1, ids + at + 2, (n - at - 2) * sizeof *ids);
        n--;
    }
}

/* The ids of text without control tokens, by the definitions of pieces and merges. */
static void check_ids(enum cart_split kind, const struct cart_buf *norm,
                      const struct cart_ids *found)
{
    const unsigned char *p = (const unsigned char *)norm->data, *end = p + norm->len;
    uint32_t *ids = malloc((norm->len + 1) * sizeof *ids);
    size_t at = 0, steps = 0;
    fuzz_demand(ids != NULL, "memory");
    while (p < end) {
        size_t len = cart_split_next(kind, classes, p, end, &steps);
        fuzz_demand(len > 0 && len <= (size_t)(end - p), "a piece inside the text");
        for (size_t i = 0; i < len; i++)
            ids[i] = p[i]; /* the 256 bytes come first */
        size_t n = merge(ids, len);
        fuzz_demand(at + n <= found->n && memcmp(found->data + at, ids, n * sizeof *ids) == 0,
                    "the ids of the plain merge loop");
        at += n;
        p += len;
    }
    fuzz_demand(at == found->n, "no more ids than the text has");
    free(ids);
}

/* Whole characters, one id at a time, are the bytes of all ids with U+FFFD for what is none, as the
 * documents' reader puts it in. */
static void check_decoder(const struct cart_tokenizer *t, const struct cart_ids *ids,
                          const struct cart_buf *whole)
{
    struct cart_buf out = CART_BUF_INIT, expected = CART_BUF_INIT;
    struct cart_decoder d;
    size_t count;
    cart_decoder_init(&d, t, true);
    for (size_t i = 0; i < ids->n; i++)
        fuzz_demand(cart_decoder_push(&d, ids->data[i], &out, NULL) == 0, "memory");
    fuzz_demand(cart_decoder_finish(&d, &out, NULL) == 0 &&
                    cart_content_replace(whole->data ? whole->data : "", whole->len, &expected,
                                         &count, NULL) == 0,
                "memory");
    fuzz_demand(fuzz_same(&out, &expected), "the characters of the whole");
    cart_buf_release(&expected);
    cart_buf_release(&out);
}

static void check(size_t which, const char *text, size_t n)
{
    struct test_vocab *v = &vocabs[which];
    struct cart_err err = {0};
    struct cart_buf norm = CART_BUF_INIT, twice = CART_BUF_INIT, back = CART_BUF_INIT;
    struct cart_ids ids = CART_IDS_INIT;
    struct cart_encode_stats stats = {0};
    fuzz_need(cart_tokenizer_normalize(v->t, text, n, &norm, &err), &err);
    fuzz_need(cart_tokenizer_normalize(v->t, norm.data ? norm.data : "", norm.len, &twice, &err),
              &err);
    fuzz_demand(fuzz_same(&norm, &twice), "a normal form that stays");
    fuzz_need(cart_tokenizer_encode(v->t, text, n, 0, &ids, &stats, &err), &err);
    for (size_t i = 0; i < ids.n; i++)
        fuzz_demand(!cart_tokenizer_is_special(v->t, ids.data[i]), "plain tokens of plain text");
    check_ids((enum cart_split)which, &norm, &ids);
    fuzz_need(cart_tokenizer_decode(v->t, ids.data, ids.n, true, &back, &err), &err);
    fuzz_demand(fuzz_same(&back, &norm), "the text back");
    check_decoder(v->t, &ids, &back);
    ids.n = 0;
    fuzz_need(cart_tokenizer_encode(v->t, text, n, CART_ENCODE_SPECIAL, &ids, &stats, &err), &err);
    for (size_t i = 0; i < ids.n; i++)
        fuzz_demand(ids.data[i] < cart_tokenizer_size(v->t), "ids of the vocabulary");
    cart_ids_release(&ids);
    cart_buf_release(&back);
    cart_buf_release(&twice);
    cart_buf_release(&norm);
}

static void prepare(void)
{
    classes = cart_unicode_classes();
    fuzz_demand(classes != NULL, "memory");
    for (size_t i = 0; i < CART_COUNTOF(pres); i++)
        test_vocab_small(&vocabs[i], pres[i], merges, control, CART_TOKEN_CONTROL);
    for (size_t k = 0; k < N_MERGES; k++) {
        size_t left = strcspn(merges[k], " ");
        const char *right = merges[k] + left + 1;
        pairs[k][0] = cart_tokenizer_find(vocabs[0].t, merges[k], left);
        pairs[k][1] = cart_tokenizer_find(vocabs[0].t, right, strlen(right));
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    if (!classes)
        prepare();
    char *copy = fuzz_copy(data, n);
    for (size_t i = 0; i < CART_COUNTOF(pres); i++)
        check(i, copy, n);
    free(copy);
    return 0;
}
