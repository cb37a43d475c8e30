#include "serve/registry_impl.h"

#include "base/buf.h"
#include "base/io.h"
#include "engine/draft.h"

#include <assert.h>
#include <dirent.h>
#include <errno.h>
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

struct item *cart_item_let_go(struct item *i)
{
    assert(i->holders > 0);
    return --i->holders == 0 ? i : NULL;
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
        r->items[i] = cart_item_let_go(r->items[i]);
    cart_shared_unlock(r->shared);
    for (size_t i = 0; i < r->n; i++)
        cart_item_free(r->items[i]);
    free(r->items);
    pthread_mutex_destroy(&r->loading);
    free(r);
}

/* ---- names ---- */

static bool is_name(const char *s, size_t n)
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

/* Where a cartridge comes from: path, and, in a directory that is read again, dir and file as in
 * struct item. */
struct origin {
    const char *path, *dir, *file;
};

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

/* Bytes of the rows that have been copied, but for those of the cartridge that will be replaced. */
static size_t copied_bytes(const struct cart_registry *r, const char *name)
{
    size_t n = 0;

    pthread_mutex_lock(&r->shared->lock);
    for (size_t i = 0; i < r->n; i++) {
        if (r->items[i]->copy != NULL && strcmp(r->items[i]->name, name) != 0)
            n += r->items[i]->cartridge->row_bytes;
    }
    pthread_mutex_unlock(&r->shared->lock);
    return n;
}

/* A copy of the rows, as long as there is room for it and nobody writes to the file meanwhile. */
static void copy_rows(struct item *i, const struct cart_registry *r)
{
    const struct cart_cartridge *c = i->cartridge;
    const struct cart_kv_part *parts[2];
    size_t taken = copied_bytes(r, i->name), n_parts = cart_cartridge_parts(&c, 1, parts);
    struct cart_err err;
    struct stat st;

    if (c->p < CART_ATTN_BLOCK || taken > CART_REGISTRY_COPIES ||
        c->row_bytes > CART_REGISTRY_COPIES - taken ||
        cart_kv_copy_new(&i->copy, r->m, parts, n_parts, NULL, &err) < 0)
        return;
    if (fstat(i->fd, &st) == 0 && !cart_cartridge_is_short(c)) {
        struct file_mark now = cart_mark_of(&st);
        if (cart_mark_as_written(&i->mark, &now))
            return;
    }
    cart_kv_copy_free(i->copy);
    i->copy = NULL;
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
    /* Without O_NONBLOCK a FIFO would wait for a writer. The mark is taken before the data are read:
     * what is written meanwhile shows. */
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
    copy_rows(i, r);
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
        gone = cart_item_let_go(r->items[at]);
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

static int add(struct cart_registry *r, const char *name, const struct origin *from, char *warning,
               size_t warning_cap, struct cart_err *err)
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

static int check_name(const char *name, struct cart_err *err)
{
    char shown[64];

    if (is_name(name, strlen(name)))
        return 0;
    return cart_err_set(
        err, CART_EUSAGE, "cartridge name \"%s\": expected 1 to %zu of A-Z a-z 0-9 . _ -",
        cart_err_escape(shown, sizeof shown, name, strlen(name)), CART_CARTRIDGE_NAME_MAX);
}

int cart_registry_add(struct cart_registry *r, const char *name, const char *path, char *warning,
                      size_t warning_cap, struct cart_err *err)
{
    const struct origin from = {path, NULL, NULL};
    int code = check_name(name, err);

    if (code < 0)
        return code;
    pthread_mutex_lock(&r->loading);
    code = add(r, name, &from, warning, warning_cap, err);
    pthread_mutex_unlock(&r->loading);
    return code;
}

static struct item *remove_at(struct cart_registry *r, size_t at)
{
    struct item *gone = cart_item_let_go(r->items[at]);

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
        gone = remove_at(r, at);
    pthread_mutex_unlock(&r->shared->lock);
    cart_item_free(gone);
    if (!found)
        return cart_err_set(err, CART_EUSAGE, "no cartridge is named \"%s\"",
                            cart_err_escape(shown, sizeof shown, name, strlen(name)));
    return 0;
}

/* ---- a directory ---- */

struct names {
    char **list; /* file names, sorted */
    size_t n, cap;
};

static void names_release(struct names *names)
{
    for (size_t i = 0; i < names->n; i++)
        free(names->list[i]);
    free(names->list);
}

static int by_text(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

/* Length of NAME in NAME.cartridge.safetensors or NAME.safetensors; 0: the file is none of ours. */
static size_t stem(const char *file)
{
    static const char *const ends[] = {".cartridge.safetensors", ".safetensors"};
    size_t n = strlen(file);

    for (size_t i = 0; i < CART_COUNTOF(ends); i++) {
        size_t k = strlen(ends[i]);
        if (n > k && strcmp(file + n - k, ends[i]) == 0)
            return is_name(file, n - k) ? n - k : 0;
    }
    return 0;
}

static int names_read(struct names *names, const char *dir, struct cart_err *err)
{
    DIR *d = opendir(dir);
    int r = 0;

    if (d == NULL && errno == ENOTDIR)
        return cart_err_set(err, CART_EFORMAT, "%s: expected a directory, found a file", dir);
    if (d == NULL)
        return cart_err_sys(err, "%s", dir);
    for (;;) {
        errno = 0;
        const struct dirent *e = readdir(d);
        if (e == NULL) {
            r = errno != 0 ? cart_err_sys(err, "%s", dir) : 0;
            break;
        }
        if (stem(e->d_name) == 0)
            continue;
        r = cart_array_reserve(&names->list, &names->cap, names->n + 1, sizeof *names->list, err);
        if (r == 0 && (names->list[names->n] = strdup(e->d_name)) == NULL)
            r = cart_err_memory(err, "the names of a directory", 0);
        if (r < 0)
            break;
        names->n++;
    }
    closedir(d);
    if (names->n > 0)
        qsort(names->list, names->n, sizeof *names->list, by_text);
    return r;
}

/* The path of file, the caller's to free, and *code 0; or NULL and *code an error: no memory. */
static char *join(const char *dir, const char *file, int *code, struct cart_err *err)
{
    char *path = cart_io_join(dir, file);

    *code = path != NULL ? 0 : cart_err_memory(err, file, 0);
    return path;
}

static int add_file(struct cart_registry *r, const char *name, const char *dir, const char *file,
                    char *warning, size_t warning_cap, struct cart_err *err)
{
    char *path = NULL;
    size_t n = stem(file);
    bool own = n > 0 && n == strlen(name) && strncmp(file, name, n) == 0;
    int code = check_name(name, err);

    if (code == 0 && (path = join(dir, file, &code, err)) != NULL) {
        const struct origin from = {path, dir, own ? NULL : file};
        code = add(r, name, &from, warning, warning_cap, err);
    }
    free(path);
    return code;
}

int cart_registry_add_file(struct cart_registry *r, const char *name, const char *dir,
                           const char *file, char *warning, size_t warning_cap,
                           struct cart_err *err)
{
    pthread_mutex_lock(&r->loading);
    int code = add_file(r, name, dir, file, warning, warning_cap, err);
    pthread_mutex_unlock(&r->loading);
    return code;
}

enum held { NEW, UNCHANGED, GIVEN };

static enum held held(struct cart_registry *r, const char *name, const char *dir,
                      const struct file_mark *mark)
{
    enum held s = NEW;
    size_t at;

    pthread_mutex_lock(&r->shared->lock);
    if (cart_registry_find(r, name, &at)) {
        const struct item *i = r->items[at];
        if (i->dir == NULL || i->file != NULL)
            s = GIVEN;
        else if (strcmp(i->dir, dir) == 0 && cart_mark_same(&i->mark, mark))
            s = UNCHANGED;
    }
    pthread_mutex_unlock(&r->shared->lock);
    return s;
}

static int load_file(struct cart_registry *r, const char *dir, const char *file,
                     cart_registry_report_fn *report, void *ctx, struct cart_err *err)
{
    struct cart_err why = {0};
    char name[CART_CARTRIDGE_NAME_MAX + 1];
    char warning[512] = "";
    size_t n = stem(file);
    struct stat st;
    struct file_mark mark;
    int code = 0;
    char *path = join(dir, file, &code, err);

    memcpy(name, file, n);
    name[n] = '\0';
    bool is_file = path != NULL && stat(path, &st) == 0 && S_ISREG(st.st_mode);
    if (is_file)
        mark = cart_mark_of(&st);
    if (is_file && held(r, name, dir, &mark) == NEW) {
        const struct origin from = {path, dir, NULL};
        int opened = add(r, name, &from, warning, sizeof warning, &why);
        if (report != NULL)
            report(ctx, name, warning, opened < 0 ? &why : NULL);
    }
    free(path);
    return code;
}

/* Cartridges of the directory whose file is gone lose their names. */
static void drop_missing(struct cart_registry *r, const char *dir, const struct names *names)
{
    for (size_t i = 0;;) {
        struct item *gone = NULL;
        pthread_mutex_lock(&r->shared->lock);
        bool more = i < r->n;
        bool here = !more || r->items[i]->dir == NULL || r->items[i]->file != NULL ||
                    strcmp(r->items[i]->dir, dir) != 0;
        for (size_t k = 0; !here && k < names->n; k++) {
            size_t n = stem(names->list[k]);
            here =
                strncmp(r->items[i]->name, names->list[k], n) == 0 && r->items[i]->name[n] == '\0';
        }
        if (more && !here)
            gone = remove_at(r, i);
        pthread_mutex_unlock(&r->shared->lock);
        cart_item_free(gone);
        if (!more)
            return;
        i += here;
    }
}

/* The first cartridge after name that has a file of the directory under another name than the
 * file's: into name and *file (the caller frees it). 1, 0 where there is none, or no memory. */
static int next_given(struct cart_registry *r, const char *dir, char *name, char **file,
                      struct file_mark *mark, struct cart_err *err)
{
    int code = 0;
    size_t at;

    *file = NULL;
    pthread_mutex_lock(&r->shared->lock);
    for (at = cart_registry_find(r, name, &at) ? at + 1 : at; at < r->n && code == 0; at++) {
        const struct item *i = r->items[at];
        if (i->file == NULL || strcmp(i->dir, dir) != 0)
            continue;
        *file = strdup(i->file);
        *mark = i->mark;
        memcpy(name, i->name, strlen(i->name) + 1); /* is_name bounds it */
        code = *file != NULL ? 1 : cart_err_memory(err, "the name of a file", 0);
    }
    pthread_mutex_unlock(&r->shared->lock);
    return code;
}

/* Cartridges of the directory that were given another name: opened again where the file changed,
 * dropped where it is gone. */
static int load_given(struct cart_registry *r, const char *dir, cart_registry_report_fn *report,
                      void *ctx, struct cart_err *err)
{
    char name[CART_CARTRIDGE_NAME_MAX + 1] = "";
    struct file_mark mark, now;
    char *file;
    int code;

    while ((code = next_given(r, dir, name, &file, &mark, err)) == 1) {
        struct cart_err why = {0};
        char warning[512] = "";
        struct stat st;
        char *path = join(dir, file, &code, err);
        bool is_file = code == 0 && stat(path, &st) == 0 && S_ISREG(st.st_mode);
        if (is_file)
            now = cart_mark_of(&st);
        if (code == 0 && !is_file) {
            code = cart_registry_drop(r, name, NULL);
            code = code == CART_EUSAGE ? 0 : code; /* dropped meanwhile */
        } else if (code == 0 && !cart_mark_same(&mark, &now)) {
            int opened = add_file(r, name, dir, file, warning, sizeof warning, &why);
            if (report != NULL)
                report(ctx, name, warning, opened < 0 ? &why : NULL);
        }
        free(path);
        free(file);
        if (code < 0)
            break;
    }
    return code;
}

int cart_registry_load(struct cart_registry *r, const char *dir, cart_registry_report_fn *report,
                       void *ctx, struct cart_err *err)
{
    struct names names = {NULL, 0, 0};

    /* From the look at the directory on: what is added meanwhile would count as gone. */
    pthread_mutex_lock(&r->loading);
    int code = names_read(&names, dir, err);

    if (code == 0 && (code = load_given(r, dir, report, ctx, err)) == 0)
        drop_missing(r, dir, &names);
    for (size_t i = 0; i < names.n && code == 0; i++) {
        /* Of two files for one name the first in order counts. */
        size_t n = stem(names.list[i]);
        if (i == 0 || stem(names.list[i - 1]) != n ||
            strncmp(names.list[i - 1], names.list[i], n) != 0)
            code = load_file(r, dir, names.list[i], report, ctx, err);
    }
    pthread_mutex_unlock(&r->loading);
    names_release(&names);
    return code;
}

struct cart_registry_counts cart_registry_counts(struct cart_registry *r)
{
    struct cart_registry_counts c = {0};

    pthread_mutex_lock(&r->shared->lock);
    c.cartridges = r->n;
    for (size_t i = 0; i < r->n; i++) {
        c.bytes += r->items[i]->cartridge->row_bytes;
        if (r->items[i]->copy != NULL)
            c.copied += cart_kv_tail_bytes(r->m, r->items[i]->copy->part.dtype, 0,
                                           r->items[i]->copy->part.rows);
    }
    c.loads = r->shared->loads;
    c.refusals = r->shared->refusals;
    pthread_mutex_unlock(&r->shared->lock);
    return c;
}
