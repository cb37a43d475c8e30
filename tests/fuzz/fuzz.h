/* What the fuzz targets share. A target is one LLVMFuzzerTestOneInput: it gives bytes to a parser
 * and demands what the parser promises; a broken demand aborts, which libFuzzer and the replaying
 * driver report with the input. Targets keep their fixtures in static memory, for the life of the
 * process. One thread. */
#ifndef CART_TESTS_FUZZ_FUZZ_H
#define CART_TESTS_FUZZ_FUZZ_H

#include "base/buf.h"
#include "model/model.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

/* Prints what was expected and aborts unless it holds. */
void fuzz_demand(bool holds, const char *what);
bool fuzz_same(const struct cart_buf *a, const struct cart_buf *b); /* the same bytes */
/* r < 0 was returned with err: the code is one of ours and the same, and the message is one
 * printable line that is not empty. */
void fuzz_refused(int r, const struct cart_err *err);
/* r is no failure: for fixtures, and for what must work after a success. */
void fuzz_need(int r, const struct cart_err *err);

/* The bytes in memory that ends where they end, so that a read beyond them is found. The caller
 * frees it. */
void *fuzz_copy(const uint8_t *data, size_t n);

/* A file without a name on disk that holds the bytes, read from its start; the path it can be
 * opened by is static. There are FUZZ_SLOTS such files; the next call for a slot replaces what it
 * held. */
#define FUZZ_SLOTS 8
const char *fuzz_file(unsigned slot, const void *data, size_t n);
/* The descriptor of an emptied slot, to be written. */
int fuzz_output(unsigned slot);
/* Appends what a slot holds. */
void fuzz_contents(unsigned slot, struct cart_buf *b);

/* A model of one small layer with a byte vocabulary and ChatML's control tokens; and the same in a
 * slot. */
const struct cart_model *fuzz_model(void);
const char *fuzz_model_file(unsigned slot);
/* Every weight of a model that opened is inside its file, its heads are ones that the kernels have
 * room for, and a token runs through it: rows as f16 take other ways than rows as f32. */
void fuzz_forward(const struct cart_model *m);

#endif
