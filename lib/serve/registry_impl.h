/* What the registry (registry.c, registry_copy.c, registry_directory.c) and the stacks made of it
 * (stack.c) share. */
#ifndef CART_SERVE_REGISTRY_IMPL_H
#define CART_SERVE_REGISTRY_IMPL_H

#include "serve/registry.h"

#include <pthread.h>
#include <sys/stat.h>
#include <time.h>

/* What a file was when its data were last known: equal, and it need not be read again. */
struct file_mark {
    dev_t dev;
    ino_t ino;
    off_t size;
    struct timespec modified, changed;
};

struct item {
    char *name;
    char *dir;  /* the directory that its file is in, or NULL: added by its path */
    char *file; /* in dir, of a cartridge that was given another name than its file's; or NULL */
    struct cart_cartridge *cartridge;
    struct cart_draft *draft;
    int fd; /* of the file that is mapped, whatever has its name now */
    /* Guarded by the registry's lock. */
    size_t holders;            /* the registry's name and stacks */
    struct cart_kv_copy *copy; /* of its rows, or NULL: they are read in the file; set once */
    size_t copied;             /* its bytes */
    uint64_t id;
    struct file_mark mark; /* of no file once changed */
    bool changed;          /* the file has had other data: so it stays */
};

/* Stacks outlive the registry: what they share with it is counted by itself. */
struct shared {
    pthread_mutex_t lock;
    size_t holders; /* the registry and every stack */
    uint64_t next_id, loads, refusals;
    size_t copied; /* bytes of the copies, and of those being made, of items that somebody holds */
    bool freed;    /* some were let go, and nobody has been told or copied rows since */
};

/* Where a cartridge comes from: path, and, in a directory that is read again, dir and file as in
 * struct item. */
struct origin {
    const char *path, *dir, *file;
};

struct cart_registry {
    const struct cart_model *m;
    bool allow_other_weights;
    struct item **items; /* [n] by name; with n and cap guarded by the lock of shared */
    size_t n, cap;
    struct shared *shared;
    size_t copies;           /* bytes that copies may take, CART_REGISTRY_COPIES; fixed in use */
    pthread_mutex_t loading; /* one thread at a time looks at files; taken before shared's lock */
};

struct cart_stack_priv {
    struct shared *shared;
    struct item **items; /* [n] */
    struct cart_stack_entry *entries;
    const struct cart_kv_part **parts;
    size_t holders; /* guarded by the lock */
};

/* registry.c. With the lock: where the name is (true) or belongs. */
bool cart_registry_find(const struct cart_registry *r, const char *name, size_t *at);
/* With the lock: the item if nobody holds it any more, to be freed after unlocking; else NULL. */
struct item *cart_item_let_go(struct shared *s, struct item *i);
void cart_item_free(struct item *i);       /* NULL is fine */
void cart_shared_unlock(struct shared *s); /* and one holder less */
/* With the lock: the at-th loses its name; to be freed as from cart_item_let_go. */
struct item *cart_registry_remove(struct cart_registry *r, size_t at);
bool cart_registry_is_name(const char *s, size_t n);
int cart_registry_check_name(const char *name, struct cart_err *err) CART_MUST_USE;
/* With loading: opens the file and gives it the name. */
int cart_registry_open(struct cart_registry *r, const char *name, const struct origin *from,
                       char *warning, size_t warning_cap, struct cart_err *err) CART_MUST_USE;

/* registry_copy.c. With loading: copies rows of named cartridges that have no copy yet, by name, as
 * long as there is room. */
void cart_registry_copy_rows(struct cart_registry *r);

struct file_mark cart_mark_of(const struct stat *st);
bool cart_mark_same(const struct file_mark *a, const struct file_mark *b);
/* What tells of writes is the same; modes, links and names tell of themselves in changed only. */
bool cart_mark_as_written(const struct file_mark *a, const struct file_mark *b);

#endif
