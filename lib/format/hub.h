/* A model directory as the hub keeps it: config.json, tokenizer.json, its companions, and weights
 * in model.safetensors or in the shards that model.safetensors.index.json names. This finds the
 * files and parses the JSON, each within a limit of its own; what the values mean is the model
 * room's, and the tensors are too (the container is the stream room's).
 *
 * The names of shards come from a file that someone else wrote: only plain names that end in
 * .safetensors are followed, so no path leads out of the directory (a link in it may, as the hub's
 * own cache has them). Immutable after open. */
#ifndef CART_FORMAT_HUB_H
#define CART_FORMAT_HUB_H

#include "base/json.h"

#define CART_HUB_MAX_SHARDS 1024

struct cart_hub {
    char *dir;          /* without a slash at its end, unless it is the root */
    char *config_path;  /* for messages */
    json_t *config;     /* config.json, an object */
    json_t *generation; /* generation_config.json, an object; NULL where absent, as the next */
    json_t *tokenizer_config;      /* tokenizer_config.json */
    struct cart_buf template_text; /* chat_template.jinja; data NULL where absent */
    json_t *index; /* the object "weight_map" of the index: tensor to shard; NULL where
                                 there is none */
    char **shards; /* [n_shards] plain names, sorted */
    size_t n_shards;
};

/* Whether path is for this reader: a directory, or a file of JSON in one (its config.json or the
 * index). False for all else, also for what does not exist. */
bool cart_hub_is(const char *path);

/* CART_ESYS: a file that must be there cannot be read; CART_EFORMAT: not JSON, too long, or a shard
 * with a name that is none. */
int cart_hub_open(struct cart_hub **out, const char *path, struct cart_err *err) CART_MUST_USE;
void cart_hub_close(struct cart_hub *h); /* NULL is fine */

/* "DIR/NAME". Owned by the caller; NULL when out of memory. */
char *cart_hub_path(const struct cart_hub *h, const char *name);

/* tokenizer.json, parsed; new reference. It is large: not kept. */
int cart_hub_tokenizer(const struct cart_hub *h, json_t **out, struct cart_err *err) CART_MUST_USE;

#endif
