#include "study/kernels.h"

#include "tensor/matmul.h"

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
