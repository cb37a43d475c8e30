/* A file of ours whose kind its first bytes tell: a stream, left to be read on from there, or an
 * artifact with all its bytes in memory (mapped where it is a file, else at most 1 GiB). */
#ifndef CART_BASE_INPUT_H
#define CART_BASE_INPUT_H

#include "base/io.h"
#include "base/sniff.h"

struct cart_input {
    int fd;           /* borrowed for standard input, else ours; -1 when closed */
    const char *name; /* for messages; borrowed path, or "standard input" */
    enum cart_sniff kind;
    unsigned char ahead[CART_SNIFF_BYTES]; /* what was read to know it */
    size_t n_ahead;
    struct cart_map map;
    struct cart_buf buf;
    const void *bytes; /* [size], of an artifact; 8-byte aligned */
    size_t size;
};

/* path "-": standard input. CART_SNIFF_STREAM, SAFETENSORS or GGUF; anything else is CART_EFORMAT
 * (CART_ETRUNC where it is the beginning of a stream), which says what it seems to be. Release in
 * either case. */
int cart_input_open(struct cart_input *in, const char *path, struct cart_err *err) CART_MUST_USE;
void cart_input_release(struct cart_input *in);

#endif
