/* Copies of cartridges' rows, as attention reads them fastest. */
#include "serve/registry_impl.h"

#include <string.h>

static size_t copy_bytes(const struct cart_registry *r, const struct cart_cartridge *c)
{
    return cart_kv_tail_bytes(r->m, c->parts[0].dtype, 0, c->p);
}

/* With the lock: the first item behind the name that wants a copy and has room for it, held, its
 * room taken; or NULL. */
static struct item *next_to_copy(struct cart_registry *r, const char *name, struct file_mark *mark)
{
    size_t at;

    for (at = cart_registry_find(r, name, &at) ? at + 1 : at; at < r->n; at++) {
        struct item *i = r->items[at];
        if (i->copy != NULL || i->changed || i->cartridge->p < CART_ATTN_BLOCK)
            continue;
        size_t bytes = copy_bytes(r, i->cartridge);
        if (bytes > r->copies || r->shared->copied > r->copies - bytes)
            continue;
        r->shared->copied += i->copied = bytes;
        i->holders++;
        *mark = i->mark;
        return i;
    }
    return NULL;
}

static bool is_as_written(const struct item *i, const struct file_mark *mark)
{
    struct stat st;

    if (fstat(i->fd, &st) < 0 || cart_cartridge_is_short(i->cartridge))
        return false;
    struct file_mark now = cart_mark_of(&st);
    return cart_mark_as_written(mark, &now);
}

/* The copy, or NULL: there is no memory for it, or somebody writes to the file. */
static struct cart_kv_copy *copy_of(const struct item *i, const struct cart_model *m,
                                    const struct file_mark *mark)
{
    const struct cart_cartridge *c = i->cartridge;
    const struct cart_kv_part *parts[2];
    size_t n_parts = cart_cartridge_parts(&c, 1, parts);
    struct cart_kv_copy *copy = NULL;
    struct cart_err err;

    if (!is_as_written(i, mark) || cart_kv_copy_new(&copy, m, parts, n_parts, NULL, &err) < 0)
        return NULL;
    if (is_as_written(i, mark))
        return copy;
    cart_kv_copy_free(copy);
    return NULL;
}

void cart_registry_copy_rows(struct cart_registry *r)
{
    char name[CART_CARTRIDGE_NAME_MAX + 1] = "";
    struct shared *s = r->shared;
    struct file_mark mark;

    pthread_mutex_lock(&s->lock);
    s->freed = false;
    for (struct item *i; (i = next_to_copy(r, name, &mark)) != NULL;) {
        memcpy(name, i->name, strlen(i->name) + 1); /* cart_registry_is_name bounds it */
        pthread_mutex_unlock(&s->lock);
        struct cart_kv_copy *copy = copy_of(i, r->m, &mark);
        pthread_mutex_lock(&s->lock);
        bool same = copy != NULL && !i->changed && cart_mark_as_written(&i->mark, &mark);
        if (same) {
            i->copy = copy;
        } else {
            s->copied -= i->copied;
            i->copied = 0;
        }
        struct item *gone = cart_item_let_go(s, i);
        pthread_mutex_unlock(&s->lock);
        if (!same)
            cart_kv_copy_free(copy);
        cart_item_free(gone);
        pthread_mutex_lock(&s->lock);
    }
    pthread_mutex_unlock(&s->lock);
}

bool cart_registry_can_copy(struct cart_registry *r)
{
    pthread_mutex_lock(&r->shared->lock);
    bool can = r->shared->freed;
    r->shared->freed = false;
    pthread_mutex_unlock(&r->shared->lock);
    return can;
}

void cart_registry_copy(struct cart_registry *r)
{
    pthread_mutex_lock(&r->loading);
    cart_registry_copy_rows(r);
    pthread_mutex_unlock(&r->loading);
}
