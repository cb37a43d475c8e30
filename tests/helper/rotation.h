/* For tests: whether a model turns its keys by the angles that its file asks for, by sines and
 * cosines of the C library. */
#ifndef CART_TESTS_HELPER_ROTATION_H
#define CART_TESTS_HELPER_ROTATION_H

#include "model/model.h"

/* Keys of layer 0 depend on the token and its place alone. One token at places 0, 1, ..., of which
 * place 0 is not turned: at place p, pair j is turned by p scale base^(-2j/n). For models without
 * divisors of the angles. The first difference goes to standard output. */
bool test_rotation(const struct cart_model *m, double base, double scale, struct cart_pool *pool);

#endif
