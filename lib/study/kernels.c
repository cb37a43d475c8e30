#include "study/kernels.h"

#include "tensor/matmul.h"

#include <string.h>

static bool mark(json_t *options, bool wanted, const char *key, const char *value)
{
    return !wanted || json_object_set_new(options, key, json_string(value)) == 0;
}

json_t *cart_kernels_mark(json_t *options)
{
    if (!options ||
        (mark(options, cart_kernels_selected() == CART_KERNELS_BLAS, "kernels", "blas") &&
         mark(options, cart_precision_selected() == CART_PRECISION_BF16, "precision", "bf16")))
        return options;
    json_decref(options);
    return NULL;
}

static int match(const json_t *options, const char *key, const char *selected, const char *unmarked,
                 struct cart_err *err)
{
    const char *mark = json_string_value(json_object_get(options, key));
    mark = mark ? mark : unmarked;
    return strcmp(mark, selected) == 0
               ? 0
               : cart_err_set(err, CART_EMATCH, "%s: expected %s, found %.20s", key, selected,
                              mark);
}

int cart_kernels_match(const json_t *options, struct cart_err *err)
{
    bool blas = cart_kernels_selected() == CART_KERNELS_BLAS;
    bool bf16 = cart_precision_selected() == CART_PRECISION_BF16;
    int r = match(options, "kernels", blas ? "blas" : "exact", "exact", err);
    return r < 0 ? r : match(options, "precision", bf16 ? "bf16" : "f32", "f32", err);
}
