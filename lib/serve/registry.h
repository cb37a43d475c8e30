/* The cartridges that a server has, by name. Any thread may look up, list, add, drop and reload
 * while requests run: a request stands behind a cart_stack, the list of cartridges as they were
 * when it was made, and a cartridge is closed when the registry and the last stack have let go of
 * it. Opening (and refusing) happens in the thread that asks, one after another, while lookups go
 * on; a name is never seen before its rows can be used.
 *
 * Names are [A-Za-z0-9._-]+, not beginning with a dot, at most CART_CARTRIDGE_NAME_MAX bytes. */
#ifndef CART_SERVE_REGISTRY_H
#define CART_SERVE_REGISTRY_H

#include "cartridge/cartridge.h"

#define CART_CARTRIDGE_NAME_MAX ((size_t)128)
/* Rows are copied into memory as attention reads them fastest (cart_kv_copy_new) while the copies
 * take no more than this together, those that only requests still hold included; rows of further
 * cartridges are read in their files until there is room: as the next one is added, a directory is
 * read again, or cart_registry_copy is called. */
#define CART_REGISTRY_COPIES ((size_t)256 << 20)
#define CART_STACK_MAX ((size_t)64) /* cartridges of one request */

struct cart_draft;
struct cart_registry;

/* m is borrowed and outlives the registry. */
int cart_registry_new(struct cart_registry **out, const struct cart_model *m,
                      bool allow_other_weights, struct cart_err *err) CART_MUST_USE;
void cart_registry_free(struct cart_registry *r); /* stacks in use stay valid */

/* Opens path under name; a cartridge of that name is replaced in one step. warning as in
 * cart_cartridge_open. CART_EUSAGE: not a name; CART_EMATCH: another model; CART_EFORMAT: no
 * cartridge. Whatever fails leaves the registry as it was. */
int cart_registry_add(struct cart_registry *r, const char *name, const char *path, char *warning,
                      size_t warning_cap, struct cart_err *err) CART_MUST_USE;
/* The same for a file of a directory (no path), which cart_registry_load of that directory then
 * takes care of, whatever the name. */
int cart_registry_add_file(struct cart_registry *r, const char *name, const char *dir,
                           const char *file, char *warning, size_t warning_cap,
                           struct cart_err *err) CART_MUST_USE;
/* CART_EUSAGE: no such name. */
int cart_registry_drop(struct cart_registry *r, const char *name,
                       struct cart_err *err) CART_MUST_USE;

/* What became of one file of a directory: err is NULL where it was loaded (warning may be ""), else
 * the reason why not. Called in the order of names, and may look up and list, but not load. */
typedef void cart_registry_report_fn(void *ctx, const char *name, const char *warning,
                                     const struct cart_err *err);

/* Makes the cartridges that came from this directory those that are in it now:
 * NAME.cartridge.safetensors or NAME.safetensors, regular files (a symbolic link counts as what it
 * leads to), and those that cart_registry_add_file gave another name, as long as their files are
 * there. Files that did not change (device, inode, size, times) are kept as they are, names that
 * were given win over those of files, what cart_registry_add opened by its path stays as it is, and
 * a file that is refused leaves the cartridge that had its name in place. Not recursive. CART_ESYS:
 * the directory cannot be read. */
int cart_registry_load(struct cart_registry *r, const char *dir, cart_registry_report_fn *report,
                       void *ctx, struct cart_err *err) CART_MUST_USE;

/* Cartridges in use, in order: what a request stands behind. Shared by counting, and
 * then immutable. */
struct cart_stack_entry {
    const char *name;
    const struct cart_cartridge *cartridge;
    uint64_t id;                    /* of these data, as they are known to be without a gap; never
                                     * given again in this process */
    const struct cart_draft *draft; /* index of its draft reference, or NULL */
};
struct cart_stack {
    const struct cart_stack_entry *entries;  /* [n] */
    size_t n, rows;                          /* rows: the sum of p, where real tokens start */
    const struct cart_kv_part *const *parts; /* [n_parts] as struct cart_kv wants them */
    size_t n_parts;
    struct cart_stack_priv *priv;
};

/* The named cartridges in this order; n may be 0 (the bare model). CART_EUSAGE: a name that is not
 * there (*missing, may be NULL, is then its index in names), or more than CART_STACK_MAX. */
int cart_stack_acquire(struct cart_stack **out, struct cart_registry *r, const char *const *names,
                       size_t n, size_t *missing, struct cart_err *err) CART_MUST_USE;
/* Every cartridge of the registry, by name: for listings. */
int cart_stack_acquire_all(struct cart_stack **out, struct cart_registry *r,
                           struct cart_err *err) CART_MUST_USE;
void cart_stack_hold(struct cart_stack *s);    /* one more holder */
void cart_stack_release(struct cart_stack *s); /* NULL is fine */

/* What the files under a stack are now. One that was written over in place has other rows than
 * those that were checked, and what was computed behind them counts for nothing: once other data
 * have been seen it stays CHANGED, until it is opened again. Where only times tell of writes, its
 * data are to be read (UNKNOWN); if they are what they were, nobody knows what they were in
 * between, so stacks that were there before are CHANGED, and new ones are SOUND, with another id.
 * Other modes, links and names change nothing, and one that was replaced by a rename lives on in
 * its rows. Any thread; asks the file system. */
enum cart_stack_standing { CART_STACK_SOUND, CART_STACK_UNKNOWN, CART_STACK_CHANGED };
/* Quick: reads no data. *which is an index where it is not SOUND. */
enum cart_stack_standing cart_stack_standing(const struct cart_stack *s, size_t *which);
/* Reads the data of those that are UNKNOWN, which takes its time. UNKNOWN afterwards: written
 * again. */
void cart_stack_examine(struct cart_stack *s);
/* Takes the ids of now, for a stack that nothing has been computed behind and one thread has. */
void cart_stack_renew(struct cart_stack *s);

/* Whether copies were let go since this was asked or rows were copied last, so that others may have
 * room; quick. */
bool cart_registry_can_copy(struct cart_registry *r);
/* Copies rows as far as there is room for them; takes its time. */
void cart_registry_copy(struct cart_registry *r);

struct cart_registry_counts {
    size_t cartridges, bytes; /* now named: how many, and the bytes of their rows */
    size_t copied;            /* bytes of copies of rows that the registry or stacks hold, or that
                               * are being made */
    uint64_t loads, refusals; /* since the start */
};
struct cart_registry_counts cart_registry_counts(struct cart_registry *r);

#endif
