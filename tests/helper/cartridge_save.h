/* For tests: a cartridge written to a file, whole or not at all; arguments as
 * cart_cartridge_write. */
#ifndef CART_TESTS_HELPER_CARTRIDGE_SAVE_H
#define CART_TESTS_HELPER_CARTRIDGE_SAVE_H

#include "cartridge/cartridge.h"

int test_cartridge_save(const char *path, const struct cart_model *m,
                        const struct cart_kv_part *parts, size_t n_parts, size_t frozen,
                        const json_t *metadata, const int64_t *draft, size_t n_draft,
                        struct cart_err *err) CART_MUST_USE;

#endif
