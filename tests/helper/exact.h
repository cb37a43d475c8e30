/* All that a model computes, done in a given way: for the test that no way changes a bit. Any
 * failure prints and ends the program. */
#ifndef CART_TESTS_HELPER_EXACT_H
#define CART_TESTS_HELPER_EXACT_H

#include <stdbool.h>
#include <stddef.h>

struct cart_model;

/* How. width: streams in one forward and one batch, conversations of the teacher and of a packed
 * forward. split: tokens of a piece of prefill; 0: whole prompts. */
struct exact_way {
    size_t threads, width, split;
    bool pack, recompute;
    int kv; /* type of the rows that streams append */
};

enum exact_part {
    EXACT_ROWS,     /* keys and values of a prefill */
    EXACT_LOGITS,   /* behind those rows, of every token of sixteen prompts */
    EXACT_GREEDY,   /* tokens decoded after these prompts */
    EXACT_TARGETS,  /* of the teacher */
    EXACT_LOSS,     /* of conversations with these targets behind the rows */
    EXACT_GRADIENT, /* with respect to the rows */
    EXACT_STEPS,    /* rows and moments after three steps of the optimizer */
    EXACT_PARTS
};

extern const char *const exact_part_names[EXACT_PARTS];

/* A digest of each part. */
struct exact_result {
    unsigned char digest[EXACT_PARTS][16];
};

/* rows: of the prefill that everything else stands behind. */
void exact_run(struct exact_result *out, const struct cart_model *m, size_t rows,
               const struct exact_way *way);

#endif
