/* Cartridges by name: opening, naming, dropping, counting. */
#include "serve/registry_impl.h"

#include "base/buf.h"
#include "engine/draft.h"

#include <assert.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

int cart_registry_new(struct cart_registry **out, const struct cart_model *m,
                      bool allow_other_weights, struct cart_err *err)
{
    struct cart_registry *r = calloc(1, sizeof *r);
    struct shared *shared = calloc(1, sizeof *shared);

    if (r == NULL || shared == NULL || pthread_mutex_init(&shared->lock, NULL) != 0 ||
        pthread_mutex_init(&r->loading, NULL) != 0) {
        free(r);
        free(shared);
        return cart_err_memory(err, "a registry of cartridges", sizeof *r);
    }
    shared->holders = 1;
    r->m = m;
    r->allow_other_weights = allow_other_weights;
    r->shared = shared;
    r->copies = CART_REGISTRY_COPIES;
    *out = r;
    return 0;
}

void cart_item_free(struct item *i)
{
    if (i == NULL)
        return;
    cart_kv_copy_free(i->copy);
    cart_cartridge_close(i->cartridge);
    cart_draft_free(i->draft);
    if (i->fd >= 0)
        close(i->fd);
    free(i->name);
    free(i->dir);
    free(i->file);
    free(i);
}

struct item *cart_item_let_go(struct shared *s, struct item *i)
{
    assert(i->holders > 0);
    if (--i->holders > 0)
        return NULL;
    s->copied -= i->copied;
    s->freed |= i->copied > 0;
    return i;
}

void cart_shared_unlock(struct shared *s)
{
    bool last = --s->holders == 0;

    pthread_mutex_unlock(&s->lock);
    if (last) {
        pthread_mutex_destroy(&s->lock);
        free(s);
    }
}

void cart_registry_free(struct cart_registry *r)
{
    if (r == NULL)
        return;
    pthread_mutex_lock(&r->shared->lock);
    for (size_t i = 0; i < r->n; i++)
        r->items[i] = cart_item_let_go(r->shared, r->items[i]);
    cart_shared_unlock(r->shared);
    for (size_t i = 0; i < r->n; i++)
        cart_item_free(r->items[i]);
    free(r->items);
    pthread_mutex_destroy(&r->loading);
    free(r);
}

/* ---- names ---- */

bool cart_registry_is_name(const char *s, size_t n)
{
    static const char letters[] =
        "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._-";

    return n > 0 && n <= CART_CARTRIDGE_NAME_MAX && s[0] != '.' && strspn(s, letters) >= n;
}

bool cart_registry_find(const struct cart_registry *r, const char *name, size_t *at)
{
    size_t low = 0;
    size_t high = r->n;

    while (low < high) {
        size_t mid = low + (high - low) / 2;
        int order = strcmp(r->items[mid]->name, name);
        if (order == 0) {
            *at = mid;
            return true;
        }
        if (order < 0)
            low = mid + 1;
        else
            high = mid;
    }
    *at = low;
    return false;
}

/* ---- opening ---- */

static int index_draft(struct item *i, size_t V, struct cart_err *err)
{
    const struct cart_cartridge *c = i->cartridge;
    int r = 0;

    if (c->n_draft == 0)
        return 0;
    if ((r = cart_draft_new(&i->draft, err)) < 0)
        return r;
    for (size_t k = 0; k < c->n_draft && r == 0; k++) {
        uint32_t id = (uint32_t)c->draft[k];
        if (c->draft[k] >= 0 && (uint64_t)c->draft[k] < V)
            r = cart_draft_add(i->draft, &id, 1, err);
    }
    return r;
}

struct file_mark cart_mark_of(const struct stat *st)
{
    return (struct file_mark){st->st_dev, st->st_ino, st->st_size, st->st_mtim, st->st_ctim};
}

static bool same_time(struct timespec a, struct timespec b)
{
    return a.tv_sec == b.tv_sec && a.tv_nsec == b.tv_nsec;
}

bool cart_mark_as_written(const struct file_mark *a, const struct file_mark *b)
{
    return a->dev == b->dev && a->ino == b->ino && a->size == b->size &&
           same_time(a->modified, b->modified);
}

bool cart_mark_same(const struct file_mark *a, const struct file_mark *b)
{
    return cart_mark_as_written(a, b) && same_time(a->changed, b->changed);
}

static struct item *item_new(const char *name, const struct origin *from)
{
    struct item *i = calloc(1, sizeof *i);

    if (i == NULL)
        return NULL;
    i->fd = -1;
    i->holders = 1;
    if ((i->name = strdup(name)) == NULL ||
        (from->dir != NULL && (i->dir = strdup(from->dir)) == NULL) ||
        (from->file != NULL && (i->file = strdup(from->file)) == NULL)) {
        cart_item_free(i);
        return NULL;
    }
    return i;
}

static int item_open(struct item **out, const struct cart_registry *r, const char *name,
                     const struct origin *from, char *warning, size_t warning_cap,
                     struct cart_err *err)
{
    const struct cart_cartridge_options opt = {r->allow_other_weights, true};
    struct item *i = item_new(name, from);
    struct stat st;
    int code = 0;

    if (i == NULL)
        return cart_err_memory(err, "a cartridge", sizeof *i);
    /* Without O_NONBLOCK a FIFO would wait for a writer. The mark is taken before the data are
     * read: what is written meanwhile shows. */
    if ((i->fd = open(from->path, O_RDONLY | O_CLOEXEC | O_NONBLOCK)) < 0 || fstat(i->fd, &st) < 0)
        code = cart_err_sys(err, "%s", from->path);
    if (code == 0)
        code = cart_cartridge_open_fd(&i->cartridge, r->m, i->fd, from->path, &opt, warning,
                                      warning_cap, err);
    if (code == 0)
        code = index_draft(i, r->m->V, err);
    if (code < 0) {
        cart_item_free(i);
        return code;
    }
    i->mark = cart_mark_of(&st);
    *out = i;
    return 0;
}

/* Gives the item its name, in place of who had it. */
static int publish(struct cart_registry *r, struct item *item, struct cart_err *err)
{
    struct item *gone = NULL;
    size_t at;
    int code = 0;

    pthread_mutex_lock(&r->shared->lock);
    item->id = ++r->shared->next_id;
    if (cart_registry_find(r, item->name, &at)) {
        gone = cart_item_let_go(r->shared, r->items[at]);
        r->items[at] = item;
    } else {
        code = cart_array_reserve(&r->items, &r->cap, r->n + 1, sizeof *r->items, err);
        if (code == 0) {
            memmove(r->items + at + 1, r->items + at, (r->n - at) * sizeof(struct item *));
            r->items[at] = item;
            r->n++;
        }
    }
    r->shared->loads += code == 0;
    pthread_mutex_unlock(&r->shared->lock);
    cart_item_free(gone);
    if (code < 0)
        cart_item_free(item);
    return code;
}

int cart_registry_open(struct cart_registry *r, const char *name, const struct origin *from,
                       char *warning, size_t warning_cap, struct cart_err *err)
{
    struct item *item = NULL;

    if (warning != NULL)
        warning[0] = '\0';
    int code = item_open(&item, r, name, from, warning, warning_cap, err);
    if (code == 0)
        return publish(r, item, err);
    pthread_mutex_lock(&r->shared->lock);
    r->shared->refusals++;
    pthread_mutex_unlock(&r->shared->lock);
    return code;
}

int cart_registry_check_name(const char *name, struct cart_err *err)
{
    char shown[64];

    if (cart_registry_is_name(name, strlen(name)))
        return 0;
    return cart_err_set(
        err, CART_EUSAGE, "cartridge name \"%s\": expected 1 to %zu of A-Z a-z 0-9 . _ -",
        cart_err_escape(shown, sizeof shown, name, strlen(name)), CART_CARTRIDGE_NAME_MAX);
}

int cart_registry_add(struct cart_registry *r, const char *name, const char *path, char *warning,
                      size_t warning_cap, struct cart_err *err)
{
    const struct origin from = {path, NULL, NULL};
    int code = cart_registry_check_name(name, err);

    if (code < 0)
        return code;
    pthread_mutex_lock(&r->loading);
    code = cart_registry_open(r, name, &from, warning, warning_cap, err);
    if (code == 0)
        cart_registry_copy_rows(r);
    pthread_mutex_unlock(&r->loading);
    return code;
}

struct item *cart_registry_remove(struct cart_registry *r, size_t at)
{
    struct item *gone = cart_item_let_go(r->shared, r->items[at]);

    memmove(r->items + at, r->items + at + 1, (--r->n - at) * sizeof(struct item *));
    return gone;
}

int cart_registry_drop(struct cart_registry *r, const char *name, struct cart_err *err)
{
    struct item *gone = NULL;
    char shown[64];
    size_t at;

    pthread_mutex_lock(&r->shared->lock);
    bool found = cart_registry_find(r, name, &at);
    if (found)
        gone = cart_registry_remove(r, at);
    pthread_mutex_unlock(&r->shared->lock);
    cart_item_free(gone);
    if (!found)
        return cart_err_set(err, CART_EUSAGE, "no cartridge is named \"%s\"",
                            cart_err_escape(shown, sizeof shown, name, strlen(name)));
    return 0;
}

struct cart_registry_counts cart_registry_counts(struct cart_registry *r)
{
    struct cart_registry_counts c = {0};

    pthread_mutex_lock(&r->shared->lock);
    c.cartridges = r->n;
    for (size_t i = 0; i < r->n; i++)
        c.bytes += r->items[i]->cartridge->row_bytes;
    c.copied = r->shared->copied;
    c.loads = r->shared->loads;
    c.refusals = r->shared->refusals;
    pthread_mutex_unlock(&r->shared->lock);
    return c;
}
