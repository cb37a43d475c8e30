#include "cartridge/cartridge.h"
#include "cartridge/rows.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct named {
    char name[40];
};

static int by_name(const void *a, const void *b)
{
    return strcmp(((const struct cart_st_tensor *)a)->name,
                  ((const struct cart_st_tensor *)b)->name);
}

static enum cart_st_dtype st_dtype(int dtype)
{
    return dtype == CART_F16 ? CART_ST_F16 : dtype == CART_BF16 ? CART_ST_BF16 : CART_ST_F32;
}

struct table {
    struct cart_st_tensor *tensors;
    struct named *names;
    size_t n;
};

static void add_rows(struct table *t, const struct cart_layer *l, size_t layer, const char *what,
                     const void *data, size_t rows, int dtype)
{
    snprintf(t->names[t->n].name, sizeof t->names[t->n].name, "layers.%zu.%s", layer, what);
    size_t bytes = rows * cart_layer_kv_width(l) * cart_dtype_info(dtype)->bytes;
    t->tensors[t->n] = (struct cart_st_tensor){.name = t->names[t->n].name,
                                               .dtype = st_dtype(dtype),
                                               .rank = 3,
                                               .data = data,
                                               .bytes = bytes};
    t->tensors[t->n].shape[0] = rows;
    t->tensors[t->n].shape[1] = l->HK;
    t->tensors[t->n].shape[2] = l->DH;
    t->n++;
}

static void fill(struct table *t, const struct cart_model *m, const struct cart_kv_part *parts,
                 size_t n_parts, size_t frozen, const int64_t *draft, size_t n_draft)
{
    if (draft) {
        t->tensors[t->n] = (struct cart_st_tensor){.name = "draft_reference",
                                                   .dtype = CART_ST_I64,
                                                   .rank = 1,
                                                   .data = draft,
                                                   .bytes = n_draft * sizeof *draft};
        t->tensors[t->n].shape[0] = n_draft;
        t->n++;
    }
    const struct cart_kv_part *sink = frozen ? &parts[0] : NULL;
    const struct cart_kv_part *rows = n_parts > (sink ? 1u : 0u) ? &parts[sink ? 1 : 0] : NULL;
    int dtype = parts[0].dtype;
    for (size_t i = 0; i < m->L; i++) {
        const struct cart_layer *l = &m->layers[i];
        size_t n = rows ? rows->rows : 0;
        add_rows(t, l, i, "k", rows ? rows->layers[i].k : "", n, dtype);
        add_rows(t, l, i, "v", rows ? rows->layers[i].v : "", n, dtype);
        if (sink) {
            add_rows(t, l, i, "k_sink", sink->layers[i].k, sink->rows, dtype);
            add_rows(t, l, i, "v_sink", sink->layers[i].v, sink->rows, dtype);
        }
    }
    qsort(t->tensors, t->n, sizeof *t->tensors, by_name);
}

/* A file that says of itself what it is says what its data are. */
static int write_described(int fd, const char *name, const struct table *t, const json_t *metadata,
                           struct cart_err *err)
{
    json_t *m = cart_json_copy(metadata);
    int r = m ? cart_rows_seal(m, t->tensors, t->n, err) : cart_err_memory(err, "metadata", 0);
    if (r == 0)
        r = cart_st_write(fd, t->tensors, t->n, m, name, err);
    json_decref(m);
    return r;
}

int cart_cartridge_write(int fd, const char *name, const struct cart_model *m,
                         const struct cart_kv_part *parts, size_t n_parts, size_t frozen,
                         const json_t *metadata, const int64_t *draft, size_t n_draft,
                         struct cart_err *err)
{
    size_t row0 = 0;
    int r = 0;
    for (size_t i = 0; i < n_parts; i++) {
        if ((r = cart_rows_check_finite(m, &parts[i], row0, name, err)) < 0)
            return r;
        row0 += parts[i].rows;
    }
    struct table t = {calloc(4 * m->L + 1, sizeof *t.tensors),
                      calloc(4 * m->L + 1, sizeof *t.names), 0};
    if (t.tensors && t.names) {
        fill(&t, m, parts, n_parts, frozen, draft, n_draft);
        r = json_object_get(metadata, "cart.version")
                ? write_described(fd, name, &t, metadata, err)
                : cart_st_write(fd, t.tensors, t.n, metadata, name, err);
    } else {
        r = cart_err_memory(err, "tensor table", (4 * m->L + 1) * sizeof *t.tensors);
    }
    free(t.tensors);
    free(t.names);
    return r;
}
