/* Directory listings in bytewise order of whole paths. */
#include "base/io.h"
#include "format/docs_impl.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

struct entry {
    char *name;
    bool directory;
};

/* One open directory: what is left to visit of it. */
struct cart_listing {
    char *path;
    struct entry *entries;
    size_t n, cap, next;
};

/* A directory's name counts with the slash that follows it in the paths below it. */
static int compare_entries(const void *a, const void *b)
{
    const struct entry *x = a, *y = b;
    size_t i = 0;

    while (x->name[i] && x->name[i] == y->name[i])
        i++;
    int cx = x->name[i] ? (unsigned char)x->name[i] : x->directory ? '/' : 0;
    int cy = y->name[i] ? (unsigned char)y->name[i] : y->directory ? '/' : 0;
    return (cx > cy) - (cx < cy);
}

static void listing_release(struct cart_listing *l)
{
    for (size_t i = 0; i < l->n; i++)
        free(l->entries[i].name);
    free(l->entries);
    free(l->path);
}

static int list_name(struct cart_listing *l, DIR *dir, const char *name, struct cart_err *err)
{
    struct stat st;
    int r;

    if (strcmp(name, ".") == 0 || strcmp(name, "..") == 0)
        return 0;
    if ((r = cart_array_reserve(&l->entries, &l->cap, l->n + 1, sizeof *l->entries, err)) < 0)
        return r;
    struct entry e = {strdup(name), false};
    if (!e.name)
        return cart_err_memory(err, l->path, strlen(name));
    e.directory = fstatat(dirfd(dir), name, &st, AT_SYMLINK_NOFOLLOW) == 0 && S_ISDIR(st.st_mode);
    l->entries[l->n++] = e;
    return 0;
}

static int read_listing(struct cart_listing *l, struct cart_err *err)
{
    DIR *dir = opendir(l->path);
    int r = dir ? 0 : cart_walk_failure(l->path, err);

    while (r == 0) {
        errno = 0;
        const struct dirent *e = readdir(dir);
        if (!e) {
            if (errno != 0)
                r = cart_err_sys(err, "%s: reading the directory", l->path);
            break;
        }
        r = list_name(l, dir, e->d_name, err);
    }
    if (dir)
        closedir(dir);
    return r;
}

int cart_walk_failure(const char *path, struct cart_err *err)
{
    size_t n = strlen(path);

    if (errno == ENAMETOOLONG && n > 120)
        return cart_err_sys(err, "%.80s... (%zu bytes)", path, n);
    return cart_err_sys(err, "%s", path);
}

int cart_walk_push(struct cart_walk *w, const char *path, struct cart_err *err)
{
    struct cart_listing l = {.path = strdup(path)};
    int r = l.path ? read_listing(&l, err) : cart_err_memory(err, path, strlen(path));

    if (r == 0)
        r = cart_array_reserve(&w->stack, &w->cap, w->depth + 1, sizeof *w->stack, err);
    if (r < 0) {
        listing_release(&l);
        return r;
    }
    if (l.n > 0)
        qsort(l.entries, l.n, sizeof *l.entries, compare_entries);
    w->stack[w->depth++] = l;
    return 0;
}

int cart_walk_next(struct cart_walk *w, char **path, const char **name, struct cart_err *err)
{
    struct cart_listing *top = &w->stack[w->depth - 1];

    if (top->next == top->n) {
        listing_release(top);
        w->depth--;
        return 0;
    }
    const char *entry = top->entries[top->next++].name;
    char *joined = cart_io_join(top->path, entry);
    if (!joined)
        return cart_err_memory(err, top->path, strlen(entry));
    *path = joined;
    *name = joined + strlen(joined) - strlen(entry);
    return 1;
}

void cart_walk_release(struct cart_walk *w)
{
    while (w->depth > 0)
        listing_release(&w->stack[--w->depth]);
    free(w->stack);
    *w = (struct cart_walk){NULL, 0, 0};
}
