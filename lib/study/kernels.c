#include "study/kernels.h"

#include "tensor/matmul.h"

json_t *cart_kernels_mark(json_t *options)
{
    if (!options || cart_kernels_selected() == CART_KERNELS_AUTO ||
        json_object_set_new(options, "kernels", json_string("blas")) == 0)
        return options;
    json_decref(options);
    return NULL;
}
