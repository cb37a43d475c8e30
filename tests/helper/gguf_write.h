/* Writes GGUF files for tests and benches: keys as given, tensors filled with small random numbers
 * (norms: around one) in any storage type. For programs that may end when something fails: every
 * function prints and exits. */
#ifndef CART_TEST_GGUF_WRITE_H
#define CART_TEST_GGUF_WRITE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* The shape of a llama, qwen2 or qwen3 model with a byte-level vocabulary: 256 bytes, one merge,
 * V - 260 made-up words that no text yields, and the three ChatML control tokens at the end. */
struct gguf_shape {
    const char *arch;
    size_t L, D, H, HK, DH, F, V, context;
    double rope_base;
    int dtype; /* of every matrix */
    bool tied; /* no output.weight */
    uint64_t seed;
};

void gguf_write_model(const char *path, const struct gguf_shape *s);

#endif
