/* For tests: a tokenizer, its chat template and the bytes behind both, from a GGUF file (plain, or
 * zstd as the data sets ship it), without a model. */
#ifndef CART_TESTS_HELPER_VOCAB_H
#define CART_TESTS_HELPER_VOCAB_H

#include "base/buf.h"
#include "base/json.h"
#include "format/gguf.h"
#include "token/tokenizer.h"

struct test_vocab {
    struct cart_buf image; /* the unpacked file, when it was packed */
    struct cart_gguf *gguf;
    struct cart_vocab_source src;
    struct cart_text *tokens, *merges;
    int32_t *types;
    char model[32], pre[32];
    struct cart_tokenizer *t;
    struct cart_gguf_str chat_template;
};

/* false (with a note on standard output) if the file is not there; a test program ends on anything
 * else. */
bool test_vocab_open(struct test_vocab *v, const char *path);
void test_vocab_close(struct test_vocab *v);

/* The bytes of a zstd file at path, which exists, into an empty image. */
void test_unpack(struct cart_buf *image, const char *path);

/* A vocabulary of the 256 bytes, then the results of merges in order, then extra strings of the
 * given type; all static memory of the caller. merges is a list "a b" in the byte alphabet, ended
 * by NULL. */
struct cart_tokenizer *test_vocab_small(struct test_vocab *v, const char *pre,
                                        const char *const *merges, const char *const *extra,
                                        int32_t type);

/* ${CART_SHARED:-../shared}/data/NAME, ${CART_TEST_ROOT:-.}/NAME, the demo model; static buffers,
 * the next call of the same kind overwrites. */
const char *test_shared(const char *name);
const char *test_root(const char *name);
const char *test_demo_model(void);

/* One JSON value, or one a line; NULL (with a note) if the file is not there. json_decref. */
json_t *test_json(const char *path);
json_t *test_json_lines(const char *path);

/* Whether ids equals the JSON array; the first difference goes to standard output. */
bool test_ids_equal(const struct cart_ids *ids, const json_t *expected, const char *label);

#endif
