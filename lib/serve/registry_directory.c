/* A registry's cartridges from a directory: which files are there, which changed, which are
 * gone. */
#include "serve/registry_impl.h"

#include "base/io.h"

#include <dirent.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

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
            return cart_registry_is_name(file, n - k) ? n - k : 0;
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
    int code = cart_registry_check_name(name, err);

    if (code == 0 && (path = join(dir, file, &code, err)) != NULL) {
        const struct origin from = {path, dir, own ? NULL : file};
        code = cart_registry_open(r, name, &from, warning, warning_cap, err);
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
    if (code == 0)
        cart_registry_copy_rows(r);
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
        int opened = cart_registry_open(r, name, &from, warning, sizeof warning, &why);
        if (report != NULL)
            report(ctx, name, warning, opened < 0 ? &why : NULL);
    }
    free(path);
    return code;
}

/* Whether an item came from the directory, and its file is not among the names. */
static bool is_missing(const struct item *i, const char *dir, const struct names *names)
{
    bool here = i->dir == NULL || i->file != NULL || strcmp(i->dir, dir) != 0;

    for (size_t k = 0; !here && k < names->n; k++) {
        size_t n = stem(names->list[k]);
        here = strncmp(i->name, names->list[k], n) == 0 && i->name[n] == '\0';
    }
    return !here;
}

/* Cartridges of the directory whose file is gone lose their names. */
static void drop_missing(struct cart_registry *r, const char *dir, const struct names *names)
{
    char name[CART_CARTRIDGE_NAME_MAX + 1] = "";

    for (bool more = true; more;) {
        struct item *gone = NULL;
        size_t at;
        /* By name: what another thread drops meanwhile moves the others. */
        pthread_mutex_lock(&r->shared->lock);
        at = cart_registry_find(r, name, &at) ? at + 1 : at;
        more = at < r->n;
        if (more) {
            memcpy(name, r->items[at]->name, strlen(r->items[at]->name) + 1); /* is_name bounds */
            if (is_missing(r->items[at], dir, names))
                gone = cart_registry_remove(r, at);
        }
        pthread_mutex_unlock(&r->shared->lock);
        cart_item_free(gone);
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
        memcpy(name, i->name, strlen(i->name) + 1); /* cart_registry_is_name bounds it */
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
    cart_registry_copy_rows(r);
    pthread_mutex_unlock(&r->loading);
    names_release(&names);
    return code;
}
