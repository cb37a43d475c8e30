/* The cartridges of a request, as they were when it came, and what their files are now. */
#include "serve/registry_impl.h"

#include <stdlib.h>
#include <string.h>

static void stack_free(struct cart_stack *s)
{
    if (s == NULL)
        return;
    if (s->priv != NULL) {
        free(s->priv->items);
        free(s->priv->entries);
        free(s->priv->parts);
    }
    free(s->priv);
    free(s);
}

static struct cart_stack *stack_new(size_t n)
{
    struct cart_stack *s = calloc(1, sizeof *s);
    size_t room = n > 0 ? n : 1;

    if (s == NULL || (s->priv = calloc(1, sizeof *s->priv)) == NULL) {
        stack_free(s);
        return NULL;
    }
    s->priv->items = calloc(room, sizeof *s->priv->items);
    s->priv->entries = calloc(room, sizeof *s->priv->entries);
    s->priv->parts = calloc(2 * room, sizeof *s->priv->parts);
    if (s->priv->items == NULL || s->priv->entries == NULL || s->priv->parts == NULL) {
        stack_free(s);
        return NULL;
    }
    s->n = n;
    s->entries = s->priv->entries;
    s->parts = s->priv->parts;
    s->priv->holders = 1;
    return s;
}

/* With the lock: the i-th cartridge of the stack. */
static void stack_put(struct cart_stack *s, size_t i, struct item *item)
{
    const struct cart_cartridge *c = item->cartridge;

    item->holders++;
    s->priv->items[i] = item;
    s->priv->entries[i] = (struct cart_stack_entry){item->name, c, item->id, item->draft};
    /* A copy is read in place where its blocks stand on the attention's. */
    if (item->copy != NULL && s->rows % CART_ATTN_BLOCK == 0)
        s->priv->parts[s->n_parts++] = &item->copy->part;
    else
        s->n_parts += cart_cartridge_parts(&c, 1, s->priv->parts + s->n_parts);
    s->rows += c->p; /* at most CART_CARTRIDGE_MAX_P each */
}

int cart_stack_acquire(struct cart_stack **out, struct cart_registry *r, const char *const *names,
                       size_t n, size_t *missing, struct cart_err *err)
{
    size_t bad = SIZE_MAX;
    char shown[64];

    if (n > CART_STACK_MAX)
        return cart_err_set(err, CART_EUSAGE, "%zu cartridges: expected at most %zu", n,
                            CART_STACK_MAX);
    struct cart_stack *s = stack_new(n);
    if (s == NULL)
        return cart_err_memory(err, "a list of cartridges", 0);
    pthread_mutex_lock(&r->shared->lock);
    for (size_t i = 0; i < n && bad == SIZE_MAX; i++) {
        size_t at;
        bad = cart_registry_find(r, names[i], &at) ? SIZE_MAX : i;
    }
    for (size_t i = 0; i < n && bad == SIZE_MAX; i++) {
        size_t at;
        if (cart_registry_find(r, names[i], &at))
            stack_put(s, i, r->items[at]);
    }
    if (bad == SIZE_MAX) {
        r->shared->holders++;
        s->priv->shared = r->shared;
    }
    pthread_mutex_unlock(&r->shared->lock);
    if (bad != SIZE_MAX) {
        stack_free(s);
        if (missing != NULL)
            *missing = bad;
        return cart_err_set(err, CART_EUSAGE, "no cartridge is named \"%s\"",
                            cart_err_escape(shown, sizeof shown, names[bad], strlen(names[bad])));
    }
    *out = s;
    return 0;
}

int cart_stack_acquire_all(struct cart_stack **out, struct cart_registry *r, struct cart_err *err)
{
    pthread_mutex_lock(&r->shared->lock);
    struct cart_stack *s = stack_new(r->n);
    for (size_t i = 0; s != NULL && i < r->n; i++)
        stack_put(s, i, r->items[i]);
    if (s != NULL) {
        r->shared->holders++;
        s->priv->shared = r->shared;
    }
    pthread_mutex_unlock(&r->shared->lock);
    if (s == NULL)
        return cart_err_memory(err, "a list of cartridges", 0);
    *out = s;
    return 0;
}

void cart_stack_hold(struct cart_stack *s)
{
    pthread_mutex_lock(&s->priv->shared->lock);
    s->priv->holders++;
    pthread_mutex_unlock(&s->priv->shared->lock);
}

void cart_stack_release(struct cart_stack *s)
{
    if (s == NULL)
        return;
    struct shared *shared = s->priv->shared;
    pthread_mutex_lock(&shared->lock);
    if (--s->priv->holders > 0) {
        pthread_mutex_unlock(&shared->lock);
        return;
    }
    for (size_t i = 0; i < s->n; i++)
        s->priv->items[i] = cart_item_let_go(shared, s->priv->items[i]);
    cart_shared_unlock(shared);
    for (size_t i = 0; i < s->n; i++)
        cart_item_free(s->priv->items[i]);
    stack_free(s);
}

/* False: the file cannot be asked, and counts as changed. */
static bool mark_now(const struct item *item, struct file_mark *now)
{
    struct stat st;

    if (cart_cartridge_is_short(item->cartridge) || fstat(item->fd, &st) < 0)
        return false;
    *now = cart_mark_of(&st);
    return true;
}

/* The item with the lock; where it has changed, id tells nothing. */
static bool item_known(struct item *item, struct shared *shared, struct file_mark *mark,
                       uint64_t *id)
{
    pthread_mutex_lock(&shared->lock);
    bool known = !item->changed;
    *mark = item->mark;
    *id = item->id;
    pthread_mutex_unlock(&shared->lock);
    return known;
}

static enum cart_stack_standing item_standing(struct item *item, struct shared *shared, uint64_t id)
{
    struct file_mark mark;
    struct file_mark now;
    uint64_t current;

    if (!item_known(item, shared, &mark, &current) || current != id)
        return CART_STACK_CHANGED;
    return mark_now(item, &now) && cart_mark_same(&mark, &now) ? CART_STACK_SOUND
                                                               : CART_STACK_UNKNOWN;
}

enum cart_stack_standing cart_stack_standing(const struct cart_stack *s, size_t *which)
{
    enum cart_stack_standing worst = CART_STACK_SOUND;

    for (size_t i = 0; i < s->n && worst != CART_STACK_CHANGED; i++) {
        enum cart_stack_standing one =
            item_standing(s->priv->items[i], s->priv->shared, s->entries[i].id);
        if (one != CART_STACK_SOUND) {
            worst = one;
            *which = i;
        }
    }
    return worst;
}

/* Sound data under another time of writing may have been others meanwhile, and pages been computed
 * behind those: the item goes on under another id. Where the mark changes again while the data are
 * read, they stay unknown. */
static void item_examine(struct item *item, struct shared *shared)
{
    struct file_mark mark;
    struct file_mark before;
    struct file_mark after;
    uint64_t id;

    if (!item_known(item, shared, &mark, &id))
        return;
    bool asked = mark_now(item, &before);
    if (asked && cart_mark_same(&mark, &before))
        return;
    bool sound = asked && before.size == mark.size && cart_cartridge_is_intact(item->cartridge) &&
                 mark_now(item, &after);
    if (sound && !cart_mark_same(&before, &after))
        return;
    pthread_mutex_lock(&shared->lock);
    if (!sound) {
        item->changed = true;
        item->mark = (struct file_mark){0};
    } else if (!item->changed && cart_mark_same(&item->mark, &mark)) {
        if (!cart_mark_as_written(&mark, &after))
            item->id = ++shared->next_id;
        item->mark = after;
    }
    pthread_mutex_unlock(&shared->lock);
}

void cart_stack_examine(struct cart_stack *s)
{
    for (size_t i = 0; i < s->n; i++)
        item_examine(s->priv->items[i], s->priv->shared);
}

void cart_stack_renew(struct cart_stack *s)
{
    pthread_mutex_lock(&s->priv->shared->lock);
    for (size_t i = 0; i < s->n; i++)
        s->priv->entries[i].id = s->priv->items[i]->id;
    pthread_mutex_unlock(&s->priv->shared->lock);
}
