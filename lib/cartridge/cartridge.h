/* The cartridge file of cart-cartridge(5): keys and values of p virtual tokens, for every layer of
 * one model, in a safetensors file that any reader opens. Opened read-only and mapped: the rows are
 * used in place by any number of streams and threads. A file whose rows can't be used as they lie
 * (unaligned, or in the other rotation order) is copied.
 *
 * A cartridge is one or two parts: the frozen rows ("sinks", first in order) and the trainable
 * ones. Real tokens behind a list of cartridges stand at the sum of their p, whatever positions the
 * rows were made at. */
#ifndef CART_CARTRIDGE_CARTRIDGE_H
#define CART_CARTRIDGE_CARTRIDGE_H

#include "model/kv.h"

#define CART_CARTRIDGE_VERSION "1"
#define CART_CARTRIDGE_MAX_P ((size_t)1 << 20) /* rows; also the cap on what a file may claim */

struct cart_cartridge_priv;

/* Read-only after cart_cartridge_open; everything is owned by the cartridge. */
struct cart_cartridge {
    const char *path;
    size_t p, frozen;             /* rows in all, and how many of them, from the first, are sinks */
    size_t first_position;        /* position of row 0 when the rows were made */
    uint64_t steps;               /* optimizer steps that made it; 0: untrained */
    int dtype;                    /* CART_F32, CART_F16 or CART_BF16 */
    size_t row_bytes;             /* bytes of all rows */
    struct cart_kv_part parts[2]; /* in order: sinks, trainable rows; those with rows */
    size_t n_parts;
    const int64_t *draft; /* [n_draft] token ids of the corpus, or NULL */
    size_t n_draft;
    const json_t *metadata; /* object of strings, as in the file */
    char digest[33];        /* of the data of the file's tensors: equal, and answers are equal */
    struct cart_cartridge_priv *priv;
};

struct cart_cartridge_options {
    bool allow_other_weights; /* another quantisation or fine-tune of the same geometry and
                                 tokenizer */
    bool guarded; /* a file that becomes shorter does not end the program (base/guard.h) */
};

/* Opens path for model m. CART_EFORMAT: not a cartridge, rows that are not finite, shapes that
 * contradict each other; CART_EMATCH: well-formed, but of another model or geometry. warning (at
 * least 1 byte, may be NULL) receives one sentence part about what was accepted with doubt (no
 * metadata, other weights, unknown keys), or "". opt may be NULL. */
int cart_cartridge_open(struct cart_cartridge **out, const struct cart_model *m, const char *path,
                        const struct cart_cartridge_options *opt, char *warning, size_t warning_cap,
                        struct cart_err *err) CART_MUST_USE;
/* The same of a descriptor, which stays the caller's; name stands for its path. */
int cart_cartridge_open_fd(struct cart_cartridge **out, const struct cart_model *m, int fd,
                           const char *name, const struct cart_cartridge_options *opt,
                           char *warning, size_t warning_cap, struct cart_err *err) CART_MUST_USE;
void cart_cartridge_close(struct cart_cartridge *c);

/* Whether a guarded file has become shorter, so that rows may have been read as zeros. Any
 * thread. */
bool cart_cartridge_is_short(const struct cart_cartridge *c);
/* Whether the data still have their digest: reads all of them. Any thread. */
bool cart_cartridge_is_intact(const struct cart_cartridge *c);
/* CART_EAGAIN if one of n is not intact: what was made with it counts for nothing. */
int cart_cartridges_unchanged(const struct cart_cartridge *const *list, size_t n,
                              struct cart_err *err) CART_MUST_USE;
/* As cart_model_cause (model/model.h) of n cartridges. */
int cart_cartridges_cause(const struct cart_cartridge *const *list, size_t n, int r,
                          struct cart_err *err) CART_MUST_USE;

/* The parts of n cartridges in list order, as struct cart_kv wants them: out [2 n] receives
 * borrowed pointers, the count is returned. */
size_t cart_cartridge_parts(const struct cart_cartridge *const *list, size_t n,
                            const struct cart_kv_part **out);

/* Rows of n cartridges together, checked to leave room in the model's context: CART_EUSAGE with the
 * numbers where p and need further tokens exceed it. */
int cart_cartridge_fit(const struct cart_model *m, const struct cart_cartridge *const *list,
                       size_t n, size_t need, size_t *p, struct cart_err *err) CART_MUST_USE;

/* Writes what cart-cartridge(5) says to a descriptor; name is for messages. parts as in struct
 * cart_cartridge: dense rows (stride HK * DH), one type; frozen rows in the first part if frozen >
 * 0. metadata: an object of strings. draft [n_draft] may be NULL. Equal content is equal bytes. */
int cart_cartridge_write(int fd, const char *name, const struct cart_model *m,
                         const struct cart_kv_part *parts, size_t n_parts, size_t frozen,
                         const json_t *metadata, const int64_t *draft, size_t n_draft,
                         struct cart_err *err) CART_MUST_USE;

/* What a new cartridge says of itself. Strings borrowed; NULL leaves the key out. */
struct cart_cartridge_about {
    size_t p, frozen, first_position;
    uint64_t steps;
    const char *weights;   /* fingerprint; NULL: the model's */
    const char *precision; /* NULL: that of the kernels selected */
    const char *profile, *wrapper_open,
        *wrapper_close;             /* chat profile and the text around the rows */
    const char *corpus;             /* digest */
    const json_t *recipe, *history; /* object, array; written in canonical form */
};

/* The metadata object for rows made by m. New reference. */
int cart_cartridge_describe(json_t **out, const struct cart_model *m,
                            const struct cart_cartridge_about *about,
                            struct cart_err *err) CART_MUST_USE;

#endif
