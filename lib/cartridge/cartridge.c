#include "cartridge/cartridge.h"

#include "base/guard.h"
#include "base/io.h"
#include "cartridge/metadata.h"
#include "cartridge/rows.h"
#include "stream/safetensors.h"
#include "base/sniff.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct cart_cartridge_priv {
    struct cart_map map;
    struct cart_guard *guard; /* of the map, or NULL */
    struct cart_st st;
    struct cart_arena arena;               /* tensor table, layers, copies */
    const struct cart_st_tensor **tensors; /* [L, CART_ROWS_TENSORS], NULL where absent */
    const void **data;                     /* the same, as used: in the file or in the arena */
    int64_t *draft;                        /* a copy of an unaligned draft_reference */
    char *path;
};

/* Files each tensor under its layer. */
static int collect(struct cart_cartridge *c, const struct cart_model *m, struct cart_note *note,
                   struct cart_err *err)
{
    struct cart_cartridge_priv *p = c->priv;
    for (size_t i = 0; i < p->st.n; i++) {
        const struct cart_st_tensor *t = &p->st.tensors[i];
        size_t layer, which;
        char shown[80];
        cart_err_escape(shown, sizeof shown, t->name, strlen(t->name));
        if (!cart_rows_parse_name(t->name, &layer, &which)) {
            if (strcmp(t->name, "draft_reference") != 0)
                cart_note_add(note, "tensor %s ignored", shown);
            continue;
        }
        if (layer >= m->L)
            return cart_err_set(err, CART_EMATCH, "tensor %s: the model has %zu layers", shown,
                                m->L);
        p->tensors[layer * CART_ROWS_TENSORS + which] = t;
    }
    return 0;
}

static int check_shape(const struct cart_st_tensor *t, const struct cart_layer *l, size_t rows,
                       int dtype, struct cart_err *err)
{
    if (t->rank != 3)
        return cart_err_set(err, CART_EFORMAT, "tensor %s: expected 3 dimensions, found %zu",
                            t->name, t->rank);
    if (t->shape[1] != l->HK || t->shape[2] != l->DH)
        return cart_err_set(err, CART_EMATCH,
                            "tensor %s: expected [%zu,%zu,%zu], found [%zu,%zu,%zu]", t->name, rows,
                            l->HK, l->DH, t->shape[0], t->shape[1], t->shape[2]);
    if (t->shape[0] != rows)
        return cart_err_set(err, CART_EFORMAT, "tensor %s: expected %zu rows, found %zu", t->name,
                            rows, t->shape[0]);
    if (cart_rows_dtype(t->dtype) != dtype)
        return cart_err_set(err, CART_EFORMAT, "tensor %s: expected %s as in layer 0, found %s",
                            t->name, cart_dtype_info(dtype)->name, cart_st_dtype_name(t->dtype));
    return 0;
}

/* p, frozen and type as layer 0 has them; then every layer must agree. */
static int check_tensors(struct cart_cartridge *c, const struct cart_model *m, bool described,
                         struct cart_err *err)
{
    struct cart_cartridge_priv *p = c->priv;
    const struct cart_st_tensor *rows = p->tensors[CART_ROWS_K],
                                *sink = p->tensors[CART_ROWS_K_SINK];
    if (!rows || rows->rank != 3 || (sink && sink->rank != 3))
        return cart_err_set(err, CART_EFORMAT,
                            "not a cartridge: no tensor layers.0.k of rows, heads, width");
    c->dtype = cart_rows_dtype(rows->dtype);
    if (c->dtype < 0)
        return cart_err_set(err, CART_EFORMAT,
                            "tensor layers.0.k: type %s: expected F32, F16 or BF16",
                            cart_st_dtype_name(rows->dtype));
    c->frozen = sink ? sink->shape[0] : 0;
    if (c->frozen > CART_CARTRIDGE_MAX_P || rows->shape[0] > CART_CARTRIDGE_MAX_P - c->frozen)
        return cart_err_set(err, CART_EFORMAT, "expected at most %zu rows, found more",
                            CART_CARTRIDGE_MAX_P);
    c->p = c->frozen + rows->shape[0];
    if (c->p == 0)
        return cart_err_set(err, CART_EFORMAT, "no rows");
    for (size_t i = 0; i < m->L; i++)
        for (size_t k = 0; k < CART_ROWS_TENSORS; k++) {
            const struct cart_st_tensor *t = p->tensors[i * CART_ROWS_TENSORS + k];
            bool is_sink = k == CART_ROWS_K_SINK || k == CART_ROWS_V_SINK;
            size_t want = is_sink ? c->frozen : c->p - c->frozen;
            if (!t && is_sink && c->frozen == 0)
                continue;
            if (!t)
                return cart_err_set(err, described ? CART_EFORMAT : CART_EMATCH,
                                    "tensor layers.%zu.%s is missing (the model has %zu layers)", i,
                                    cart_rows_names[k], m->L);
            int r = check_shape(t, &m->layers[i], want, c->dtype, err);
            if (r < 0)
                return r;
            c->row_bytes += t->bytes;
        }
    return 0;
}

/* Run twice: measures, then hands out. A tensor is copied where it lies unaligned or in the other
 * rotation order. */
static void layout(struct cart_cartridge *c, const struct cart_model *m, struct cart_arena *a,
                   bool reorder, struct cart_kv_layer **layers)
{
    struct cart_cartridge_priv *p = c->priv;
    size_t size = cart_dtype_info(c->dtype)->bytes;
    layers[0] = cart_arena_push(a, m->L, sizeof **layers);
    layers[1] = cart_arena_push(a, m->L, sizeof **layers);
    for (size_t i = 0; i < m->L * CART_ROWS_TENSORS; i++) {
        const struct cart_st_tensor *t = p->tensors[i];
        if (!t)
            continue;
        bool keys = i % CART_ROWS_TENSORS <= CART_ROWS_K;
        p->data[i] = t->data;
        if ((uintptr_t)t->data % size == 0 && !(keys && reorder))
            continue;
        void *copy = cart_arena_push(a, t->bytes, 1);
        if (!copy || t->bytes == 0)
            continue;
        if (keys && reorder)
            cart_rows_reorder(copy, t->data, t->shape[0], &m->layers[i / CART_ROWS_TENSORS],
                              &m->rope, size);
        else
            memcpy(copy, t->data, t->bytes);
        p->data[i] = copy;
    }
}

static void add_part(struct cart_cartridge *c, const struct cart_model *m,
                     struct cart_kv_layer *layers, size_t rows, size_t k, size_t v)
{
    if (rows == 0)
        return;
    for (size_t i = 0; i < m->L; i++) {
        layers[i].k = c->priv->data[i * CART_ROWS_TENSORS + k];
        layers[i].v = c->priv->data[i * CART_ROWS_TENSORS + v];
        layers[i].stride = cart_layer_kv_width(&m->layers[i]);
    }
    c->parts[c->n_parts++] =
        (struct cart_kv_part){.rows = rows, .dtype = c->dtype, .layers = layers};
}

static int bind_rows(struct cart_cartridge *c, const struct cart_model *m, bool reorder,
                     struct cart_err *err)
{
    struct cart_kv_layer *layers[2];
    struct cart_arena *arena = &c->priv->arena;
    layout(c, m, arena, reorder, layers);
    int r = cart_arena_reserve(arena, arena->used, err);
    if (r < 0)
        return r;
    layout(c, m, arena, reorder, layers);
    add_part(c, m, layers[0], c->frozen, CART_ROWS_K_SINK, CART_ROWS_V_SINK);
    add_part(c, m, layers[1], c->p - c->frozen, CART_ROWS_K, CART_ROWS_V);
    size_t row0 = 0;
    for (size_t i = 0; i < c->n_parts; i++) {
        if ((r = cart_rows_check_finite(m, &c->parts[i], row0, "rows", err)) < 0)
            return r;
        row0 += c->parts[i].rows;
    }
    return cart_rows_check_data(&c->priv->st, c->digest, err);
}

static int bind_draft(struct cart_cartridge *c, const struct cart_model *m, struct cart_err *err)
{
    const struct cart_st_tensor *t;
    int r = cart_rows_check_draft(&c->priv->st, m->V, &t, err);
    if (r < 0 || !t)
        return r;
    const int64_t *ids = t->data;
    if ((uintptr_t)t->data % sizeof *ids != 0) {
        if (!(c->priv->draft = malloc(t->bytes)))
            return cart_err_memory(err, "draft_reference", t->bytes);
        ids = memcpy(c->priv->draft, t->data, t->bytes);
    }
    c->draft = ids;
    c->n_draft = t->shape[0];
    return 0;
}

/* Rows of another shape than the model's say more than fingerprints of it do. */
static int name_shape(const struct cart_st *st, const struct cart_model *m, int r,
                      struct cart_err *err)
{
    const struct cart_st_tensor *rows = cart_st_find(st, "layers.0.k");
    const struct cart_layer *l = &m->layers[0];
    size_t layers = 0, layer, which;
    for (size_t i = 0; i < st->n; i++)
        if (cart_rows_parse_name(st->tensors[i].name, &layer, &which) && layer >= layers)
            layers = layer + 1;
    if (!rows || rows->rank != 3 ||
        (layers == m->L && rows->shape[1] == l->HK && rows->shape[2] == l->DH))
        return r;
    return cart_err_set(err, r,
                        "made for another model: expected %zu layers of %zu KV heads of width "
                        "%zu, found %zu layers of %zu KV heads of width %zu",
                        m->L, l->HK, l->DH, layers, rows->shape[1], rows->shape[2]);
}

static int open_parsed(struct cart_cartridge *c, const struct cart_model *m,
                       const struct cart_cartridge_options *opt, struct cart_note *note,
                       struct cart_err *err)
{
    struct cart_cartridge_priv *p = c->priv;
    struct cart_claims claims;
    int r = cart_claims_parse(&claims, p->st.metadata, note, err);
    if (r < 0 || (r = cart_rows_check_header(&p->st, err)) < 0)
        return r;
    c->metadata = p->st.metadata;
    if (claims.described) {
        bool other = opt && opt->allow_other_weights;
        if ((r = cart_claims_match(&claims, m, other, note, err)) < 0)
            return r == CART_EMATCH ? name_shape(&p->st, m, r, err) : r;
    } else {
        cart_note_add(note, "no cart metadata: accepted on matching geometry alone");
    }
    p->tensors = calloc(m->L * CART_ROWS_TENSORS, sizeof *p->tensors);
    p->data = calloc(m->L * CART_ROWS_TENSORS, sizeof *p->data);
    if (!p->tensors || !p->data)
        return cart_err_memory(err, "tensor table", m->L * CART_ROWS_TENSORS * sizeof *p->data);
    if ((r = collect(c, m, note, err)) < 0 || (r = check_tensors(c, m, claims.described, err)) < 0)
        return r;
    if ((r = cart_claims_check_rows(&claims, c->p, c->frozen, err)) < 0)
        return r;
    c->first_position = claims.first_position;
    c->steps = claims.steps;
    bool reorder = claims.described && claims.rope_order != m->rope.order && m->rope.n_rot > 0;
    if ((r = bind_rows(c, m, reorder, err)) < 0)
        return r;
    return bind_draft(c, m, err);
}

/* Another kind of file is named as what it is, before safetensors finds fault with its header. */
static int check_kind(const struct cart_map *map, const char *path, struct cart_err *err)
{
    enum cart_sniff kind =
        cart_sniff(map->data, map->size < CART_SNIFF_BYTES ? map->size : CART_SNIFF_BYTES);
    if (kind == CART_SNIFF_SAFETENSORS || kind == CART_SNIFF_OTHER)
        return 0;
    return cart_err_set(err, kind == CART_SNIFF_EMPTY ? CART_ETRUNC : CART_EFORMAT,
                        "%s: expected a cartridge (safetensors), found %s", path,
                        cart_sniff_name(kind));
}

/* Takes over map, also on failure. */
static int open_mapped(struct cart_cartridge **out, const struct cart_model *m, const char *path,
                       const struct cart_map *map, const struct cart_cartridge_options *opt,
                       char *warning, size_t warning_cap, struct cart_err *err)
{
    struct cart_note note = {warning, warning_cap};
    struct cart_map own = *map;
    struct cart_cartridge *c = calloc(1, sizeof *c);
    struct cart_cartridge_priv *p = calloc(1, sizeof *p);
    int r;
    if (warning && warning_cap > 0)
        warning[0] = '\0';
    if (!c || !p) {
        free(c);
        free(p);
        cart_map_release(&own);
        return cart_err_memory(err, "cartridge", sizeof *c);
    }
    c->priv = p;
    p->map = own;
    c->path = p->path = strdup(path);
    r = p->path ? 0 : cart_err_memory(err, "path", strlen(path));
    if (r == 0 && opt && opt->guarded)
        r = cart_guard_new(&p->guard, &p->map, err);
    if (r == 0)
        r = check_kind(&p->map, path, err);
    if (r == 0)
        r = cart_st_parse(&p->st, p->map.data, p->map.size, path, err);
    if (r == 0 && (r = open_parsed(c, m, opt, &note, err)) < 0)
        cart_err_wrap(err, r, "%s", path);
    if (cart_cartridge_is_short(c))
        r = cart_err_set(err, CART_ETRUNC, "%s: it became shorter while it was read", path);
    if (r < 0)
        cart_cartridge_close(c);
    else
        *out = c;
    return r;
}

int cart_cartridge_open(struct cart_cartridge **out, const struct cart_model *m, const char *path,
                        const struct cart_cartridge_options *opt, char *warning, size_t warning_cap,
                        struct cart_err *err)
{
    struct cart_map map;
    int r = cart_map_open(&map, path, err);
    return r < 0 ? r : open_mapped(out, m, path, &map, opt, warning, warning_cap, err);
}

int cart_cartridge_open_fd(struct cart_cartridge **out, const struct cart_model *m, int fd,
                           const char *name, const struct cart_cartridge_options *opt,
                           char *warning, size_t warning_cap, struct cart_err *err)
{
    struct cart_map map;
    int r = cart_map_fd(&map, fd, name, err);
    return r < 0 ? r : open_mapped(out, m, name, &map, opt, warning, warning_cap, err);
}

void cart_cartridge_close(struct cart_cartridge *c)
{
    if (!c)
        return;
    struct cart_cartridge_priv *p = c->priv;
    cart_arena_release(&p->arena);
    free(p->tensors);
    free(p->data);
    free(p->draft);
    cart_st_release(&p->st);
    cart_guard_free(p->guard);
    cart_map_release(&p->map);
    free(p->path);
    free(p);
    free(c);
}

bool cart_cartridge_is_short(const struct cart_cartridge *c)
{
    return cart_guard_broken(c->priv->guard);
}

bool cart_cartridge_is_intact(const struct cart_cartridge *c)
{
    char now[sizeof c->digest];
    return cart_rows_check_data(&c->priv->st, now, NULL) == 0 && strcmp(now, c->digest) == 0;
}

int cart_cartridges_unchanged(const struct cart_cartridge *const *list, size_t n,
                              struct cart_err *err)
{
    for (size_t i = 0; i < n; i++) {
        char now[sizeof list[i]->digest];
        int r = cart_rows_check_data(&list[i]->priv->st, now, err);
        if (r < 0 && r != CART_EFORMAT)
            return r;
        if (r < 0 || strcmp(now, list[i]->digest) != 0)
            return cart_err_set(err, CART_EAGAIN, "%s: changed while it was used", list[i]->path);
    }
    return 0;
}

int cart_cartridges_cause(const struct cart_cartridge *const *list, size_t n, int r,
                          struct cart_err *err)
{
    struct cart_err why;
    if (r != CART_EFORMAT || cart_cartridges_unchanged(list, n, &why) != CART_EAGAIN)
        return r;
    return cart_err_set(err, CART_EAGAIN, "%s", why.msg);
}

size_t cart_cartridge_parts(const struct cart_cartridge *const *list, size_t n,
                            const struct cart_kv_part **out)
{
    size_t count = 0;
    for (size_t i = 0; i < n; i++)
        for (size_t k = 0; k < list[i]->n_parts; k++)
            out[count++] = &list[i]->parts[k];
    return count;
}

int cart_cartridge_fit(const struct cart_model *m, const struct cart_cartridge *const *list,
                       size_t n, size_t need, size_t *p, struct cart_err *err)
{
    size_t rows = 0;
    for (size_t i = 0; i < n; i++)
        rows += list[i]->p;
    if (rows > m->context || need > m->context - rows)
        return cart_err_set(err, CART_EUSAGE,
                            "%zu cartridge rows and %zu tokens exceed the model's context of %zu",
                            rows, need, m->context);
    *p = rows;
    return 0;
}
