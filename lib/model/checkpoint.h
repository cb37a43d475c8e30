/* Where a model's weights lie: the tensors of a GGUF file, or those of a hub directory's
 * SafeTensors, mapped. Both are described in GGUF's words (types by its ids, dimensions innermost
 * first), under the names that they have in their files; model room only. Immutable after open. */
#ifndef CART_MODEL_CHECKPOINT_H
#define CART_MODEL_CHECKPOINT_H

#include "format/gguf.h"
#include "format/hub.h"

struct cart_checkpoint_shard;
struct cart_checkpoint_file;

/* Exactly one of gguf and hub is set. */
struct cart_checkpoint {
    struct cart_gguf *gguf;
    struct cart_hub *hub;
    struct cart_checkpoint_shard *shards; /* [hub->n_shards] */
    struct cart_gguf_tensor *list;        /* [n] of a hub directory, sorted by name */
    size_t n;                             /* tensors */
    struct cart_checkpoint_file *files;   /* [n_files] that are mapped, as they were before */
    size_t n_files;
};

/* Opens and checks the containers: a directory, or a JSON file in one, as the hub has it, all else
 * as GGUF. Each tensor of a directory is F32, F16 or BF16 of one or two dimensions, and lies in the
 * shard that the index names. On failure nothing is left to close. */
int cart_checkpoint_open(struct cart_checkpoint *c, const char *path,
                         struct cart_err *err) CART_MUST_USE;
void cart_checkpoint_close(struct cart_checkpoint *c); /* a zeroed one is fine */

/* CART_EAGAIN where a mapped file was written since, by its size and time. One that was replaced or
 * removed is not: the mapping keeps it as it was. *touched: the name, of c, of a file of which only
 * the time of its last change differs, as after a chmod, a renaming or a time of writing that was
 * put back, or NULL. */
int cart_checkpoint_unchanged(const struct cart_checkpoint *c, const char **touched,
                              struct cart_err *err) CART_MUST_USE;

/* All tensors, [n]; NULL if there are none. */
const struct cart_gguf_tensor *cart_checkpoint_tensors(const struct cart_checkpoint *c);
const struct cart_gguf_tensor *cart_checkpoint_find(const struct cart_checkpoint *c,
                                                    const char *name); /* or NULL */

#endif
