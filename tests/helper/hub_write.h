/* Writes a GGUF model as a directory of the hub: config.json, generation_config.json,
 * tokenizer.json, tokenizer_config.json and SafeTensors, with llama's rows in the order that the
 * hub has. For programs that may end when something fails: every function prints and exits. */
#ifndef CART_TEST_HUB_WRITE_H
#define CART_TEST_HUB_WRITE_H

#include <stdbool.h>
#include <stddef.h>

struct hub_form {
    int dtype;        /* F32, F16 or BF16, of all weights; -1: as they are, which is one of these */
    size_t shards;    /* 1: model.safetensors; more: as many files and an index */
    bool merge_pairs; /* merges as pairs, the newer form */
    bool gathered;    /* rope_parameters and chat_template.jinja, as newer versions write */
    bool head_as_well; /* a tied model lists its head again */
};

/* dir is made if it is not there. */
void hub_write_model(const char *gguf, const char *dir, const struct hub_form *form);

#endif
