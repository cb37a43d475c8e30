/* Memory of keys and values for many conversations: pages of CART_PAGE_ROWS rows, one budget for
 * all, filled once and then shared. A page that is full belongs to a tree: a node stands for
 * (cartridges, all token ids from the start up to its end), so a later stream that starts with the
 * same finds its rows there. Keys are compared by their contents. Pages that no open lane uses stay
 * as a cache; the least recently used leaf goes first when one is needed.
 *
 * A lane is one stream's way through the tree and, after it, rows of its own. Rows are a function
 * of what stands before them alone (the numeric contract), so whether they were found, copied or
 * computed shows nowhere.
 *
 * Opening a lane promises it the pages for all the rows it may ever have; what is promised never
 * exceeds the budget, so that an open lane always finds a page. Pages end where the logical index
 * is a multiple of CART_PAGE_ROWS, which is a multiple of the attention's block: shared rows are
 * read once for all who share them.
 *
 * One thread of control owns all of it. */
#ifndef CART_ENGINE_PAGES_H
#define CART_ENGINE_PAGES_H

#include "model/forward.h"

#define CART_PAGE_ROWS ((size_t)64)

struct cart_pages;
struct cart_page;
struct cart_page_root;

/* Room for n pages (> 0) of rows of type dtype (model/kv.h), and for pieces of at most `piece`
 * tokens of one lane at a time. */
int cart_pages_new(struct cart_pages **out, const struct cart_model *m, int dtype, size_t n,
                   size_t piece, struct cart_err *err) CART_MUST_USE;
void cart_pages_free(struct cart_pages *p); /* every lane is closed */
size_t cart_pages_bytes(const struct cart_model *m, int dtype, size_t n, size_t piece);
size_t cart_page_bytes(const struct cart_model *m, int dtype);

struct cart_pages_counts {
    size_t total, used, committed; /* pages; used: with rows, cached ones among them */
    uint64_t evicted;              /* since the start */
};
struct cart_pages_counts cart_pages_counts(const struct cart_pages *p);

struct cart_lane {
    struct cart_pages *pages;
    struct cart_page_root *root;
    struct cart_page **nodes; /* [n_nodes] shared pages that it stands behind, in order */
    const struct cart_kv_part *
        *parts; /* [n_parts + n_nodes]: what it was opened behind, then the nodes' rows */
    size_t n_parts, n_nodes;
    struct cart_page *page; /* its own rows after the nodes; NULL: none yet */
    uint32_t ids[CART_PAGE_ROWS];
    size_t n_own;  /* rows, with their ids, of its own page */
    size_t first;  /* rows of what it was opened behind */
    size_t rows;   /* tokens with rows: nodes and own */
    size_t future; /* pages that it may still take, its own one included */
    bool wide;     /* the piece under way goes through the common wide tail */
    struct cart_lane *prev, *next;
};

/* key [n_key]: says what parts are (ids of cartridges in order); parts [n_parts] are borrowed and
 * have `first` rows. max_rows: how many tokens of its own the lane will have at most. ids [n]: the
 * prompt; cached rows for at most its first `limit` tokens (< n; 0: none) are taken over at once.
 * CART_EAGAIN: the budget is promised to others. */
struct cart_lane_start {
    const uint64_t *key;
    size_t n_key;
    const struct cart_kv_part *const *parts;
    size_t n_parts, first;
    const uint32_t *ids;
    size_t n, limit, max_rows;
};
int cart_lane_open(struct cart_lane *l, struct cart_pages *p, const struct cart_lane_start *s,
                   struct cart_err *err) CART_MUST_USE;

/* Looks whether rows beyond its own have been computed elsewhere meanwhile and takes them, up to
 * token `limit` of ids. Returns how many were taken. ids are those given to cart_lane_open, or what
 * followed. */
size_t cart_lane_catch_up(struct cart_lane *l, const uint32_t *ids, size_t limit);

/* Rows that fit the lane's page before the next one begins; > 0. */
size_t cart_lane_room(const struct cart_lane *l);

/* Where the next T tokens' rows go: *kv for one cart_forward, valid until cart_lane_append. Returns
 * the T that is possible
 * (> 0), at most the one given: all of it if it fits the lane's page, or if the wide tail is not in
 * use. */
size_t cart_lane_begin(struct cart_lane *l, size_t T, struct cart_kv *kv);
/* The forward has written rows for T tokens; the first n of them, ids, stay. */
void cart_lane_append(struct cart_lane *l, const uint32_t *ids, size_t n);

/* Leaves; its rows stay for others where keep. Releases all that the lane holds. Safe on a zeroed
 * lane. */
void cart_lane_close(struct cart_lane *l, bool keep);

#endif
