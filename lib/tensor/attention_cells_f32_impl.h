/* What the tiles of attention multiply in the f32 class: a cell is one value. Included once by each
 * attention variant of the class, before attention_impl.h; a fragment of code, not an interface. */
#ifndef CART_TENSOR_ATTENTION_CELLS_F32_IMPL_H
#define CART_TENSOR_ATTENTION_CELLS_F32_IMPL_H

#include "tensor/lanes_impl.h"

#define VALUES 1 /* of a cell */

/* Sixteen cells along VALUES * 16 values that follow each other. */
CART_ALWAYS_INLINE struct lanes cells_along(struct lanes v0, struct lanes v1)
{
    (void)v1;
    return v0;
}

/* Sixteen cells across sixteen values of each of VALUES rows. */
CART_ALWAYS_INLINE struct lanes cells_across(struct lanes even, struct lanes odd)
{
    (void)odd;
    return even;
}

/* The values that sixteen cells hold along them, sixteen at a time. */
CART_ALWAYS_INLINE struct lanes cells_values(struct lanes cells, int half)
{
    (void)half;
    return cells;
}

/* The odd or the even values alone, zeros for the others. */
CART_ALWAYS_INLINE struct lanes cells_kept(struct lanes cells, bool odd)
{
    (void)odd;
    return cells;
}

/* One step of sixteen chains. */
CART_ALWAYS_INLINE struct lanes cells_chain(struct lanes a, struct lanes b, struct lanes c)
{
    return lanes_fma(a, b, c);
}

#endif
