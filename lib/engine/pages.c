#include "engine/pages.h"

#include "base/buf.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

/* A page, and its place in the tree once it has one: then its rows stand for ids [n] after all that
 * its ancestors stand for. A node whose rows end where a page ends is closed and may have children;
 * others are leaves that streams only copy from. */
struct cart_page {
    struct cart_kv_tail tail;     /* cap CART_PAGE_ROWS; memory is the arena's of cart_pages */
    struct cart_kv_layer *layers; /* [L] */
    struct cart_kv_part part;
    struct cart_page *next_free;
    struct cart_page_root *root;
    struct cart_page *parent;              /* NULL: a child of the root */
    struct cart_page *child, *prev, *next; /* first child; siblings */
    struct cart_page *all_prev, *all_next;
    uint32_t ids[CART_PAGE_ROWS];
    size_t n;
    bool closed;
    size_t users; /* open lanes that stand behind it */
    uint64_t used;
};

struct cart_page_root {
    uint64_t *key; /* [n_key] */
    size_t n_key, lanes;
    struct cart_page *child;
    struct cart_page_root *next;
};

struct cart_pages {
    const struct cart_model *m;
    struct cart_arena arena;
    struct cart_page *pages; /* [n] */
    struct cart_page *free_list;
    size_t n, n_free, committed;
    struct cart_kv_tail wide; /* [piece + CART_PAGE_ROWS] */
    bool wide_busy;
    struct cart_page_root *roots;
    struct cart_page *all; /* every node */
    struct cart_lane *lanes;
    uint64_t clock, evicted;
};

/* ---- memory ---- */

static void layout_page(struct cart_arena *a, struct cart_page *page, const struct cart_model *m,
                        int dtype)
{
    page->layers = cart_arena_push(a, m->L, sizeof *page->layers);
    cart_kv_tail_layout(&page->tail, a, m, dtype, CART_PAGE_ROWS);
}

/* What layout takes, from one page: the count comes from outside, and nothing has refused it
 * yet. */
static void measure(struct cart_arena *a, const struct cart_model *m, int dtype, size_t n,
                    size_t piece)
{
    struct cart_page page = {0};
    struct cart_kv_tail wide = {0};

    cart_arena_push(a, n, sizeof page);
    size_t before = a->used;
    layout_page(a, &page, m, dtype);
    cart_arena_push(a, n - 1, a->used - before);
    cart_kv_tail_layout(&wide, a, m, dtype, piece + CART_PAGE_ROWS);
}

static void layout(struct cart_pages *p, int dtype, size_t n, size_t piece)
{
    p->pages = cart_arena_push(&p->arena, n, sizeof *p->pages);
    for (size_t i = 0; i < n; i++)
        layout_page(&p->arena, &p->pages[i], p->m, dtype);
    cart_kv_tail_layout(&p->wide, &p->arena, p->m, dtype, piece + CART_PAGE_ROWS);
}

size_t cart_pages_bytes(const struct cart_model *m, int dtype, size_t n, size_t piece)
{
    struct cart_arena a = CART_ARENA_INIT;

    measure(&a, m, dtype, n, piece);
    return a.overflow ? SIZE_MAX : a.used;
}

size_t cart_page_bytes(const struct cart_model *m, int dtype)
{
    return cart_pages_bytes(m, dtype, 2, 0) - cart_pages_bytes(m, dtype, 1, 0);
}

/* Pages that rows [first, first + rows) of a stream lie in. */
static size_t pages_for(size_t first, size_t rows)
{
    size_t skip = first % CART_PAGE_ROWS;

    return rows == 0 ? 0 : (skip + rows - 1) / CART_PAGE_ROWS + 1;
}

int cart_pages_new(struct cart_pages **out, const struct cart_model *m, int dtype, size_t n,
                   size_t piece, struct cart_err *err)
{
    struct cart_pages *p = calloc(1, sizeof *p);

    assert(n > 0);
    if (p == NULL)
        return cart_err_memory(err, "pages", sizeof *p);
    measure(&p->arena, m, dtype, n, piece);
    int r = cart_arena_reserve(&p->arena, p->arena.used, err);
    if (r < 0) {
        free(p);
        return cart_err_wrap(err, r, "keys and values of %zu pages", n);
    }
    p->m = m;
    layout(p, dtype, n, piece);
    p->n = p->n_free = n;
    for (size_t i = n; i > 0; i--) {
        p->pages[i - 1].next_free = p->free_list;
        p->free_list = &p->pages[i - 1];
    }
    *out = p;
    return 0;
}

struct cart_pages_counts cart_pages_counts(const struct cart_pages *p)
{
    return (struct cart_pages_counts){p->n, p->n - p->n_free, p->committed, p->evicted};
}

static void page_give(struct cart_pages *p, struct cart_page *page)
{
    page->tail.rows = 0;
    page->next_free = p->free_list;
    p->free_list = page;
    p->n_free++;
}

/* ---- the tree ---- */

static struct cart_page **children(struct cart_page_root *root, struct cart_page *parent)
{
    return parent != NULL ? &parent->child : &root->child;
}

static void root_drop_if_unused(struct cart_pages *p, struct cart_page_root *root)
{
    struct cart_page_root **at = &p->roots;

    if (root->lanes > 0 || root->child != NULL)
        return;
    while (*at != root)
        at = &(*at)->next;
    *at = root->next;
    free(root->key);
    free(root);
}

static struct cart_page_root *root_find(struct cart_pages *p, const uint64_t *key, size_t n)
{
    for (struct cart_page_root *r = p->roots; r != NULL; r = r->next) {
        if (r->n_key == n && (n == 0 || memcmp(r->key, key, n * sizeof *key) == 0))
            return r;
    }
    return NULL;
}

static struct cart_page_root *root_new(struct cart_pages *p, const uint64_t *key, size_t n)
{
    struct cart_page_root *r = calloc(1, sizeof *r);

    if (r == NULL)
        return NULL;
    r->key = malloc((n > 0 ? n : 1) * sizeof *key);
    if (r->key == NULL) {
        free(r);
        return NULL;
    }
    if (n > 0)
        memcpy(r->key, key, n * sizeof *key);
    r->n_key = n;
    r->next = p->roots;
    p->roots = r;
    return r;
}

/* A leaf that nobody stands behind goes, and its page with it. The root stays. */
static void node_remove(struct cart_pages *p, struct cart_page *n)
{
    struct cart_page **first = children(n->root, n->parent);

    assert(n->users == 0 && n->child == NULL);
    if (n->prev != NULL)
        n->prev->next = n->next;
    else
        *first = n->next;
    if (n->next != NULL)
        n->next->prev = n->prev;
    if (n->all_prev != NULL)
        n->all_prev->all_next = n->all_next;
    else
        p->all = n->all_next;
    if (n->all_next != NULL)
        n->all_next->all_prev = n->all_prev;
    page_give(p, n);
}

/* A page to fill. source: the page that is about to be copied into it, or NULL; it is evicted only
 * if no other can be, and then its rows lie in the page returned. */
static struct cart_page *page_take(struct cart_pages *p, struct cart_page *source)
{
    if (p->free_list == NULL) {
        struct cart_page *oldest = NULL;
        for (struct cart_page *n = p->all; n != NULL; n = n->all_next) {
            if (n != source && n->users == 0 && n->child == NULL &&
                (oldest == NULL || n->used < oldest->used))
                oldest = n;
        }
        oldest = oldest != NULL ? oldest : source;
        assert(oldest != NULL); /* what is promised never exceeds the budget */
        struct cart_page_root *root = oldest->root;
        node_remove(p, oldest);
        root_drop_if_unused(p, root);
        p->evicted++;
    }
    struct cart_page *page = p->free_list;
    p->free_list = page->next_free;
    p->n_free--;
    page->tail.rows = 0;
    return page;
}

void cart_pages_free(struct cart_pages *p)
{
    if (p == NULL)
        return;
    while (p->all != NULL) {
        struct cart_page *n = p->all;
        struct cart_page_root *root = n->root;
        while (n->child != NULL)
            n = n->child;
        node_remove(p, n);
        root_drop_if_unused(p, root);
    }
    assert(p->lanes == NULL && p->roots == NULL);
    cart_arena_release(&p->arena);
    free(p);
}

/* How many of the first tokens agree. */
static size_t common(const uint32_t *a, size_t n, const uint32_t *b, size_t m)
{
    size_t i = 0;

    while (i < n && i < m && a[i] == b[i])
        i++;
    return i;
}

static void node_hold(struct cart_pages *p, struct cart_page *n)
{
    p->committed += n->users++ == 0;
    n->used = ++p->clock;
}

/* Makes the page a child of parent. Leaves beside it that know no more than it does go. */
static void node_add(struct cart_pages *p, struct cart_page_root *root, struct cart_page *parent,
                     struct cart_page *page, const uint32_t *ids, size_t n, bool closed)
{
    struct cart_page **first = children(root, parent);

    for (struct cart_page *c = *first; c != NULL;) {
        struct cart_page *next = c->next;
        if (!c->closed && c->n <= n && common(c->ids, c->n, ids, n) == c->n)
            node_remove(p, c);
        c = next;
    }
    page->parent = parent;
    page->root = root;
    memcpy(page->ids, ids, n * sizeof *ids);
    page->n = n;
    page->closed = closed;
    page->users = 0;
    page->used = ++p->clock;
    page->child = page->prev = NULL;
    page->next = *first;
    if (*first != NULL)
        (*first)->prev = page;
    *first = page;
    page->all_prev = NULL;
    page->all_next = p->all;
    if (p->all != NULL)
        p->all->all_prev = page;
    p->all = page;
    cart_kv_part_of_tail(&page->part, page->layers, p->m, &page->tail, 0, n);
}

/* ---- lanes ---- */

static struct cart_page *last_node(const struct cart_lane *l)
{
    return l->n_nodes > 0 ? l->nodes[l->n_nodes - 1] : NULL;
}

size_t cart_lane_room(const struct cart_lane *l)
{
    return CART_PAGE_ROWS - (l->first + l->rows) % CART_PAGE_ROWS;
}

static void stand_behind(struct cart_lane *l, struct cart_page *n)
{
    node_hold(l->pages, n);
    l->parts[l->n_parts + l->n_nodes] = &n->part;
    l->nodes[l->n_nodes++] = n;
    assert(l->future > 0);
    l->future--;
    l->pages->committed--;
}

/* The child whose rows are exactly a whole page of what comes next. */
static struct cart_page *next_closed(const struct cart_lane *l, const uint32_t *ids, size_t n)
{
    for (struct cart_page *c = *children(l->root, last_node(l)); c != NULL; c = c->next) {
        if (c->closed && c->n <= n && common(c->ids, c->n, ids, c->n) == c->n)
            return c;
    }
    return NULL;
}

/* A full page becomes a node that the lane stands behind. An equal one that was there first is
 * taken in its place. */
static void seal(struct cart_lane *l)
{
    struct cart_page *known = next_closed(l, l->ids, l->n_own);

    if (known != NULL) {
        page_give(l->pages, l->page);
    } else {
        known = l->page;
        node_add(l->pages, l->root, last_node(l), known, l->ids, l->n_own, true);
    }
    l->page = NULL;
    l->n_own = 0;
    stand_behind(l, known);
}

/* The best source of rows beyond the lane's own within one page: a child of where it stands, or the
 * own page of another lane that stands there too. */
struct source {
    const struct cart_kv_tail *tail;
    struct cart_page *node; /* NULL: a lane's */
    size_t n;               /* rows of it that fit */
};

static struct source best_source(const struct cart_lane *l, const uint32_t *ids, size_t n)
{
    struct source best = {NULL, NULL, l->n_own};
    struct cart_page *at = last_node(l);

    for (struct cart_page *c = *children(l->root, at); c != NULL; c = c->next) {
        size_t m = common(c->ids, c->n, ids, n);
        if (m > best.n)
            best = (struct source){&c->tail, c, m};
    }
    for (const struct cart_lane *o = l->pages->lanes; o != NULL; o = o->next) {
        if (o == l || o->root != l->root || last_node(o) != at || o->page == NULL)
            continue;
        size_t m = common(o->ids, o->n_own, ids, n);
        if (m > best.n)
            best = (struct source){&o->page->tail, NULL, m};
    }
    return best;
}

static void own_page(struct cart_lane *l, struct cart_page *source)
{
    if (l->page == NULL)
        l->page = page_take(l->pages, source);
}

size_t cart_lane_catch_up(struct cart_lane *l, const uint32_t *ids, size_t limit)
{
    size_t before = l->rows;

    while (l->rows < limit) {
        size_t base = l->rows - l->n_own; /* where the page under way begins */
        struct cart_page *whole = l->page == NULL ? next_closed(l, ids + base, limit - base) : NULL;
        if (whole != NULL) {
            l->rows += whole->n;
            stand_behind(l, whole);
            continue;
        }
        size_t end = l->n_own + cart_lane_room(l);
        struct source s = best_source(l, ids + base, limit - base < end ? limit - base : end);
        if (s.tail == NULL)
            break;
        if (s.node != NULL)
            s.node->used = ++l->pages->clock;
        own_page(l, s.node);
        if (s.tail != &l->page->tail)
            cart_kv_tail_copy(&l->page->tail, l->n_own, s.tail, l->n_own, s.n - l->n_own,
                              l->pages->m);
        memcpy(l->ids + l->n_own, ids + base + l->n_own, (s.n - l->n_own) * sizeof *ids);
        l->rows += s.n - l->n_own;
        l->page->tail.rows = l->n_own = s.n;
        if (l->n_own == end)
            seal(l);
    }
    return l->rows - before;
}

static int lane_storage(struct cart_lane *l, const struct cart_lane_start *s, size_t pages,
                        struct cart_err *err)
{
    size_t n;

    if (!cart_size_add(s->n_parts, pages, &n))
        return cart_err_memory(err, "the pages of a stream", 0);
    l->nodes = calloc(pages, sizeof *l->nodes);
    l->parts = calloc(n, sizeof *l->parts);
    if (l->nodes == NULL || l->parts == NULL)
        return cart_err_memory(err, "the pages of a stream", n * sizeof *l->parts);
    for (size_t i = 0; i < s->n_parts; i++)
        l->parts[i] = s->parts[i];
    l->n_parts = s->n_parts;
    return 0;
}

/* Pages that the lane adds to what is promised: those that it may have to fill, and those that it
 * finds with nobody behind them. */
static size_t promise(const struct cart_lane *probe, const struct cart_lane_start *s, size_t pages)
{
    struct cart_page *at = NULL;
    size_t n = pages;

    for (size_t have = 0; probe->root != NULL && have < s->limit;) {
        struct cart_page *c = *children(probe->root, at);
        while (c != NULL && !(c->closed && c->n <= s->limit - have &&
                              common(c->ids, c->n, s->ids + have, c->n) == c->n))
            c = c->next;
        if (c == NULL)
            break;
        n -= c->users > 0;
        have += c->n;
        at = c;
    }
    return n;
}

int cart_lane_open(struct cart_lane *l, struct cart_pages *p, const struct cart_lane_start *s,
                   struct cart_err *err)
{
    size_t pages = pages_for(s->first, s->max_rows);
    struct cart_lane lane = {.pages = p, .first = s->first};

    lane.root = root_find(p, s->key, s->n_key);
    size_t need = promise(&lane, s, pages);
    if (p->committed > p->n || need > p->n - p->committed)
        return cart_err_set(err, CART_EAGAIN, "%zu of %zu pages are promised, %zu more are needed",
                            p->committed, p->n, need);
    int r = lane_storage(&lane, s, pages, err);
    if (r == 0 && lane.root == NULL && (lane.root = root_new(p, s->key, s->n_key)) == NULL)
        r = cart_err_memory(err, "the pages of a stream", 0);
    if (r < 0) {
        free(lane.nodes);
        free(lane.parts);
        return r;
    }
    lane.root->lanes++;
    lane.future = pages;
    p->committed += pages;
    *l = lane;
    l->next = p->lanes;
    if (p->lanes != NULL)
        p->lanes->prev = l;
    p->lanes = l;
    cart_lane_catch_up(l, s->ids, s->limit);
    return 0;
}

size_t cart_lane_begin(struct cart_lane *l, size_t T, struct cart_kv *kv)
{
    struct cart_pages *p = l->pages;
    size_t fits = cart_lane_room(l);

    assert(T > 0);
    own_page(l, NULL);
    if (T > fits && !p->wide_busy) {
        size_t piece = p->wide.cap - CART_PAGE_ROWS;
        T = T < piece ? T : piece;
        cart_kv_tail_copy(&p->wide, 0, &l->page->tail, 0, l->n_own, p->m);
        p->wide.rows = l->n_own;
        p->wide_busy = l->wide = true;
    } else if (T > fits) {
        T = fits;
    }
    *kv = (struct cart_kv){l->parts, l->n_parts + l->n_nodes, l->wide ? &p->wide : &l->page->tail};
    return T;
}

/* Rows from the wide tail, from row `from` on, into pages. */
static void spread(struct cart_lane *l, const uint32_t *ids, size_t n, size_t from)
{
    while (n > 0) {
        size_t take = n < cart_lane_room(l) ? n : cart_lane_room(l);
        own_page(l, NULL);
        cart_kv_tail_copy(&l->page->tail, l->n_own, &l->pages->wide, from, take, l->pages->m);
        memcpy(l->ids + l->n_own, ids, take * sizeof *ids);
        bool full = take == cart_lane_room(l);
        l->n_own += take;
        l->page->tail.rows = l->n_own;
        l->rows += take;
        ids += take;
        n -= take;
        from += take;
        if (full)
            seal(l);
    }
}

void cart_lane_append(struct cart_lane *l, const uint32_t *ids, size_t n)
{
    struct cart_pages *p = l->pages;

    if (l->wide) {
        l->wide = p->wide_busy = false;
        spread(l, ids, n, l->n_own);
        return;
    }
    bool full = n == cart_lane_room(l);
    memcpy(l->ids + l->n_own, ids, n * sizeof *ids);
    l->n_own += n;
    l->rows += n;
    l->page->tail.rows = l->n_own;
    if (full)
        seal(l);
}

/* A last page that is not full stays as a leaf, unless what it knows is known. */
static void keep_own(struct cart_lane *l)
{
    struct cart_page *at = last_node(l);

    for (struct cart_page *c = *children(l->root, at); c != NULL; c = c->next) {
        if (common(c->ids, c->n, l->ids, l->n_own) == l->n_own) {
            c->used = ++l->pages->clock;
            page_give(l->pages, l->page);
            return;
        }
    }
    node_add(l->pages, l->root, at, l->page, l->ids, l->n_own, false);
}

void cart_lane_close(struct cart_lane *l, bool keep)
{
    struct cart_pages *p = l->pages;

    if (p == NULL)
        return;
    if (l->wide)
        l->wide = p->wide_busy = false;
    if (l->page != NULL && keep && l->n_own > 0)
        keep_own(l);
    else if (l->page != NULL)
        page_give(p, l->page);
    for (size_t i = l->n_nodes; i > 0; i--) {
        l->nodes[i - 1]->used = ++p->clock;
        p->committed -= --l->nodes[i - 1]->users == 0;
    }
    p->committed -= l->future;
    if (l->next != NULL)
        l->next->prev = l->prev;
    if (l->prev != NULL)
        l->prev->next = l->next;
    else
        p->lanes = l->next;
    l->root->lanes--;
    root_drop_if_unused(p, l->root);
    free(l->nodes);
    free(l->parts);
    *l = (struct cart_lane){0};
}
