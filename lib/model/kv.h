/* Keys and values of a stream: shared immutable parts in order (cartridges, prefilled documents),
 * then a tail of its own that the forward appends to. A part's rows were rotated when they were
 * made and are never touched again; the position of a stream's next token is the number of rows
 * before it. */
#ifndef CART_MODEL_KV_H
#define CART_MODEL_KV_H

#include "base/arena.h"
#include "base/pool.h"
#include "model/model.h"
#include "tensor/attention.h"

/* As struct cart_kv_segment has them: stride is from row to row, or, blocked, from head to head. */
struct cart_kv_layer {
    const void *k, *v;
    size_t stride;
};

/* Rows for every layer, by rows as a cartridge has them, or blocked as a tail has them. All memory
 * borrowed. */
struct cart_kv_part {
    size_t rows;
    int dtype;                          /* F32, F16 or BF16 */
    const struct cart_kv_layer *layers; /* [L] */
    bool blocked;
    size_t skip; /* blocked: places before the first row's, below CART_ATTN_BLOCK */
};

/* A stream's own rows: cap rows reserved, rows used. Owned by whoever made it. They lie blocked, so
 * that attention reads them as they are (tensor/attention.h); the first forward or copy that writes
 * to an empty tail decides where in a block they begin: at their logical index. Their type is a
 * class of results of its own (--kv): a row of F16 or BF16 is rounded once, when it is written
 * (nearest, ties to even; after head norm and rotation), and widened exactly whenever it is read,
 * also by the tokens beside it in one forward. So within a class nothing depends on how rows came
 * to be there. */
struct cart_kv_tail {
    size_t cap, rows;
    size_t skip, places; /* row i has place skip + i of `places` */
    int dtype;           /* F32, F16 or BF16 */
    void **k, **v;       /* [L] -> [HK] blocks of places */
    struct cart_arena arena;
};

/* The type of rows that --kv names, by the place of the word in f32|f16|bf16. */
static inline int cart_kv_type(int choice)
{
    return choice == 0 ? CART_F32 : choice == 1 ? CART_F16 : CART_BF16;
}

struct cart_kv {
    const struct cart_kv_part *const *parts;
    size_t n_parts;
    struct cart_kv_tail *tail;
};

/* Room for cap rows behind `before` others, in whole blocks; CART_KV_ANYWHERE where it is not known
 * yet behind how many. */
#define CART_KV_ANYWHERE ((size_t)CART_ATTN_BLOCK - 1)
int cart_kv_tail_init(struct cart_kv_tail *t, const struct cart_model *m, int dtype, size_t before,
                      size_t cap, struct cart_err *err) CART_MUST_USE;
void cart_kv_tail_release(struct cart_kv_tail *t);
size_t cart_kv_tail_bytes(const struct cart_model *m, int dtype, size_t before, size_t cap);
/* How many rows' memory such a tail takes; SIZE_MAX if that cannot be. */
size_t cart_kv_places(size_t before, size_t cap);
/* The layout function of a tail that lies in its owner's arena, one of many: such a tail is not
 * released. It has cap places, filled up to whole blocks, so room for cap rows only where they
 * begin at the beginning of a block. */
void cart_kv_tail_layout(struct cart_kv_tail *t, struct cart_arena *a, const struct cart_model *m,
                         int dtype, size_t cap);

/* A part that borrows rows [first, first + rows) of a tail; layers [L] is the caller's storage and
 * must outlive the part. */
void cart_kv_part_of_tail(struct cart_kv_part *part, struct cart_kv_layer *layers,
                          const struct cart_model *m, const struct cart_kv_tail *t, size_t first,
                          size_t rows);

/* One row of layer l as f32, k and v [HK, DH]. */
void cart_kv_part_row(const struct cart_kv_part *part, const struct cart_model *m, size_t l,
                      size_t row, float *k, float *v);

/* Where an empty tail's rows will begin: behind `before` others. */
void cart_kv_tail_start(struct cart_kv_tail *t, size_t before);

/* Writes rows [at, at + n) of layer l from k and v [n, HK, DH]. */
void cart_kv_tail_write(const struct cart_kv_tail *t, const struct cart_model *m, size_t l,
                        size_t at, const float *k, const float *v, size_t n);

/* Rows [from, from + n) of src to rows [to, to + n) of dst, of the same type and with the same
 * logical indices; a dst whose rows begin with these (to is 0) takes over where in a block they
 * stand. */
void cart_kv_tail_copy(struct cart_kv_tail *dst, size_t to, const struct cart_kv_tail *src,
                       size_t from, size_t n, const struct cart_model *m);

/* All rows of parts [n_parts], copied so that attention reads them as they lie, where by rows it
 * transposes them at every step: one part, of the same results. The parts are of one type and begin
 * a context. pool may be NULL. */
struct cart_kv_copy {
    struct cart_kv_part part;
    struct cart_kv_tail rows;
    struct cart_kv_layer *layers;
};
int cart_kv_copy_new(struct cart_kv_copy **out, const struct cart_model *m,
                     const struct cart_kv_part *const *parts, size_t n_parts,
                     struct cart_pool *pool, struct cart_err *err) CART_MUST_USE;
void cart_kv_copy_free(struct cart_kv_copy *c); /* NULL is fine */

size_t cart_kv_rows(const struct cart_kv *kv); /* parts and tail */
/* Values of one row: keys and values of every layer. */
size_t cart_kv_row_width(const struct cart_model *m);
size_t cart_kv_part_bytes(const struct cart_model *m, const struct cart_kv_part *part);

#endif
